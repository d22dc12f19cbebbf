/* The faulty relay, for tests: a decorator that passes on to another relay, and misbehaves as told
 * (one rule set per handle). */
#ifndef FUNCPIPE_STORAGE_RELAY_FAULTY_H
#define FUNCPIPE_STORAGE_RELAY_FAULTY_H

#include "storage/relay.h"

typedef enum RelayFault {
    RELAY_FAULT_NONE,
    RELAY_FAULT_FAIL,      /* ERR_IO before the operation took place */
    RELAY_FAULT_FAIL_DONE, /* ERR_IO though it took place (a lost answer) */
    RELAY_FAULT_DELAY,     /* sleep delay_ms first */
    RELAY_FAULT_TWICE,     /* put, add: done twice */
    RELAY_FAULT_FLIP,      /* get: one bit of the answer flipped */
    RELAY_FAULT_TRUNCATE,  /* get: the last byte is missing */
    RELAY_FAULT_GARBAGE    /* get: the answer is noise of the same size */
} RelayFault;
typedef struct RelayFaultRule {
    RelayFault fault;
    int64_t at_operation; /* the n-th operation (put, add, get, size, has, drop, notes) on this
                             handle, from 0 */
    int64_t n_operations; /* how many in a row; 0: one */
    const char *key_part; /* only operations whose key contains this; NULL: all */
    int64_t delay_ms;
} RelayFaultRule;
int relay_faulty_open(Relay *take_inner, const RelayFaultRule *rules, int n_rules,
                      Relay **out_relay);
int64_t relay_faulty_operations(const Relay *relay); /* operations seen so far */

#endif

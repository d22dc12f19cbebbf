/* Connections that are cut in the middle of an operation on a relay, for Criterion programs: a
 * proxy stands in front of the store, and each operation goes over a connection that is new. */
#ifndef FUNCPIPE_TESTS_CUTTING_H
#define FUNCPIPE_TESTS_CUTTING_H

#include "storage/relay.h"
#include "tests/support/proxy.h"

typedef struct Cutting {
    Proxy *proxy;
    Relay *direct, *proxied; /* to one store, which holds "cut/o" for gets, and nothing for puts */
    bool put;                /* else get */
    bool any; /* cut whichever connection is the first to pass on so much, else the first one */
    ProxyWay way;
    const char *data;
    size_t bytes;
    int64_t n_retries; /* at least so many are counted when one connection is cut */
    /* What is in the store after a put that was cut at byte `at`, and again when the object has
     * been dropped (cleaned). NULL: nothing to see. */
    void (*look)(const struct Cutting *cutting, int64_t at, bool cleaned);
} Cutting;

/* Of many positions every how many-th is to be taken: 1, more in a slow build's short form. */
int64_t cutting_stride(void);
/* How many bytes go that way when nothing is cut. */
int64_t cutting_measure(Cutting *cutting);
/* The operation does its work though the connection is cut after `at` bytes that way: with a reset,
 * or as if the other end had closed. The test fails when it does not, or when nothing was cut. */
void cutting_at(Cutting *cutting, int64_t at, bool reset);

#endif

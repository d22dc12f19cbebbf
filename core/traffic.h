/* Traffic: what a worker, a stage or a job has moved through the relay, counted. Workers send it
 * with their heartbeats and their results; the coordinator adds it up. As JSON:
 *
 *     {"puts":12,"gets":20,"adds":4,"put_bytes":4096,"get_bytes":9216,"add_bytes":2048,"waits":3,
 *      "waited_us":1500,"duplicates":0,"retries":0,"notes":7,"drops":0,"requests":120,
 *      "read_requests":48,"write_requests":56,"add_requests":4,"note_requests":10,
 *      "look_requests":2,"drop_requests":0,"announce_requests":0} */
#ifndef FUNCPIPE_CORE_TRAFFIC_H
#define FUNCPIPE_CORE_TRAFFIC_H

#include "core/buf.h"
#include "core/json.h"

/*        name                what is counted */
#define TRAFFIC_TABLE(X)                                                                           \
    X(puts) /* objects put, duplicates included */                                                 \
    X(gets) /* objects read */                                                                     \
    X(adds) /* contributions to sums, duplicates included */                                       \
    X(put_bytes)                                                                                   \
    X(get_bytes)                                                                                   \
    X(add_bytes)                                                                                   \
    X(waits)             /* operations that had to wait: the object was not there, or no room */   \
    X(waited_us)         /* the time these took, over all threads */                               \
    X(duplicates)        /* puts and adds of what was there already */                             \
    X(retries)           /* operations that were tried again */                                    \
    X(notes)             /* notes written and read */                                              \
    X(drops)             /* removals, each of many prefixes at once */                             \
    X(requests)          /* sent to a store, of all kinds; 0 where there is no server */           \
    X(read_requests)     /* of these, on behalf of gets */                                         \
    X(write_requests)    /* ... of puts */                                                         \
    X(add_requests)      /* ... of adds */                                                         \
    X(note_requests)     /* ... of notes */                                                        \
    X(look_requests)     /* ... of looks whether objects are there, and of counts */               \
    X(drop_requests)     /* ... of drops and tidying; the rest opened the relay */                 \
    X(announce_requests) /* beside these, to where objects are announced */

typedef struct Traffic {
#define TRAFFIC_FIELD(name) int64_t name;
    TRAFFIC_TABLE(TRAFFIC_FIELD)
#undef TRAFFIC_FIELD
} Traffic;

void traffic_add(Traffic *sum, const Traffic *more);
/* Append its members, without braces. */
int traffic_format(const Traffic *traffic, Buf *out_text);
/* All members, and no others. ERR_FORMAT names one that is wrong. */
int traffic_read(const cJSON *value, const char *path, Traffic *out_traffic);
/* As an object; NULL without memory. */
cJSON *traffic_to_json(const Traffic *traffic);

#endif

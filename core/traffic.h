/* Traffic: what a worker, a stage or a job has moved through the relay, counted. Workers send it
 * with their heartbeats and their results; the coordinator adds it up. As JSON:
 *
 *     {"puts":12,"gets":20,"put_bytes":4096,"get_bytes":9216,"waits":3,"waited_us":1500,
 *      "duplicates":0,"retries":0,"notes":7,"requests":80,"read_requests":44} */
#ifndef FUNCPIPE_CORE_TRAFFIC_H
#define FUNCPIPE_CORE_TRAFFIC_H

#include "core/buf.h"
#include "core/json.h"

/*        name                what is counted */
#define TRAFFIC_TABLE(X)                                                                           \
    X(puts) /* objects put, duplicates included */                                                 \
    X(gets) /* objects read */                                                                     \
    X(put_bytes)                                                                                   \
    X(get_bytes)                                                                                   \
    X(waits)         /* operations that had to wait: the object was not there, or no room */       \
    X(waited_us)     /* the time these took, over all threads */                                   \
    X(duplicates)    /* puts whose object was there already */                                     \
    X(retries)       /* operations that were tried again */                                        \
    X(notes)         /* notes written and read */                                                  \
    X(requests)      /* sent to a store, of all kinds; 0 where there is no server */               \
    X(read_requests) /* of these, on behalf of gets */

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

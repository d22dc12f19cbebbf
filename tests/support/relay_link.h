/* A relay behind an emulated link, for tests and benchmarks that need transfers of a known length.
 *
 * A link is one worker's: all its handles share it, and it carries one object at a time each way.
 * What is put appears when it has gone up as a whole, what is read is delivered when it has come
 * down as a whole; each takes bytes / rate behind what is on the link already, and the latency.
 * Meanwhile the calling thread sleeps. Notes and questions take no time. */
#ifndef FUNCPIPE_TESTS_SUPPORT_RELAY_LINK_H
#define FUNCPIPE_TESTS_SUPPORT_RELAY_LINK_H

#include <pthread.h>

#include "storage/relay.h"

typedef struct RelayLink {
    int64_t latency_us, rate_bytes_per_s; /* each way; a rate of 0 is endless */
    pthread_mutex_t lock;
    int64_t free_ns[2]; /* up, down: from when on it carries nothing */
} RelayLink;

void relay_link_init(RelayLink *link, int64_t latency_us, int64_t rate_bytes_per_s);
void relay_link_done(RelayLink *link); /* after all its handles */
/* One more handle. An interruption ends a transfer under way with ERR_CANCELLED. */
int relay_link_open(Relay *take_inner, RelayLink *link, Relay **out_relay);

#endif

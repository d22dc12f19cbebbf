/* Fetch: one thread's way to the relay. Moves blobs between staging buffers and keys, with the
 * bounded retries and deadlines every transfer has: a transient error or a damaged answer is tried
 * again FETCH_TRIES times with back-off, then reported naming key, peer and the peer's last
 * heartbeat. A full relay gets as long as the put has: what others have read is dropped in time.
 *
 * A wait ends when the order's wait timeout has passed since anything was seen of those waited for:
 * one that loads, evaluates or replays what came before is not given up for being slow. Seen is
 * what their heartbeats tell: another attempt, step or state, objects moved; being alive alone is
 * not enough but in states that wait for nobody. FETCH_MAX_WAITS timeouts end it in any case. */
#ifndef FUNCPIPE_WORKER_FETCH_H
#define FUNCPIPE_WORKER_FETCH_H

#include <pthread.h>

#include "core/order.h"
#include "core/traffic.h"
#include "storage/blob.h"
#include "storage/key.h"

enum { FETCH_TRIES = 4, FETCH_MAX_WAITS = 12, FETCH_MAX_PEERS = 32 };

typedef struct Fetch {
    Relay *relay;
    const Order *order;
    KeySpace space;
    pthread_mutex_t lock; /* of the rest; the heartbeat reads the next two */
    char waiting[RELAY_KEY_BYTES];
    RelayCounters counted; /* the relay's, as of the last transfer's end */
    bool interrupted;
    pthread_cond_t changed; /* it is interrupted */
} Fetch;

/* A blob in a staging buffer: where it lies and what it must hold. */
typedef struct FetchBlob {
    void *bytes;
    size_t capacity;
    const BlobTensor *tensors;
    const size_t *offsets;
    int32_t n_tensors;
} FetchBlob;

/* A worker, to be named in errors; stage < 0: nobody in particular. */
typedef struct FetchPeer {
    int32_t stage, replica;
} FetchPeer;

int fetch_init(Fetch *fetch, const Order *order, Relay *take_relay);
void fetch_done(Fetch *fetch);
/* Wait for the blob under `key` and check it. Adds the size to *bytes. */
int fetch_get(Fetch *fetch, Key key, FetchPeer peer, const FetchBlob *blob, int64_t *bytes);
/* The same for what any of n workers may be late with, of which the first FETCH_MAX_PEERS are
 * looked at; errors name none. */
int fetch_get_of(Fetch *fetch, Key key, const FetchPeer *peers, int32_t n, const FetchBlob *blob,
                 int64_t *bytes);
/* Seal and publish. Returns 1 when the key was there already (the first content stays). */
int fetch_put(Fetch *fetch, Key key, const FetchBlob *blob, int64_t *bytes);
/* Seal as contribution `index` of n and add to the sum under `key` (relay_add). 1 as above. */
int fetch_add(Fetch *fetch, Key key, int index, int n, const FetchBlob *blob, int64_t *bytes);
/* Publish plain bytes with the same retries. */
int fetch_put_bytes(Fetch *fetch, Key key, const void *data, size_t bytes);
/* As relay_interrupt, for pauses between tries, too. Thread-safe. */
void fetch_interrupt(Fetch *fetch, bool on);
/* Add what has been moved, as of the last transfer's end. Thread-safe. */
void fetch_traffic(Fetch *fetch, Traffic *sum);
/* Copy of the key being waited for; "" when none. Thread-safe. */
void fetch_waiting(Fetch *fetch, char *out, size_t out_bytes);

#endif

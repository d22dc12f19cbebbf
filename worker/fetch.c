#include "worker/fetch.h"

#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/report.h"
#include "core/text.h"

enum { FETCH_BACKOFF_MS = 20 };

int fetch_init(Fetch *fetch, const Order *order, Relay *take_relay) {
    memset(fetch, 0, sizeof *fetch);
    fetch->relay = take_relay;
    fetch->order = order;
    fetch->space.generation = order->generation;
    if (pthread_mutex_init(&fetch->lock, NULL) != 0) {
        return err_set(ERR_MEMORY, "a lock could not be made");
    }
    return text_copy(fetch->space.job, sizeof fetch->space.job, order->job);
}

void fetch_done(Fetch *fetch) {
    if (fetch == NULL || fetch->order == NULL) {
        return;
    }
    relay_close(fetch->relay);
    pthread_mutex_destroy(&fetch->lock);
    memset(fetch, 0, sizeof *fetch);
}

static void fetch_set_waiting(Fetch *fetch, const char *key) {
    pthread_mutex_lock(&fetch->lock);
    snprintf(fetch->waiting, sizeof fetch->waiting, "%s", key);
    pthread_mutex_unlock(&fetch->lock);
}

/* A transfer has ended. */
static void fetch_end(Fetch *fetch) {
    pthread_mutex_lock(&fetch->lock);
    fetch->waiting[0] = '\0';
    fetch->counted = fetch->relay->counters;
    pthread_mutex_unlock(&fetch->lock);
}

void fetch_traffic(Fetch *fetch, Traffic *sum) {
    pthread_mutex_lock(&fetch->lock);
    relay_add_up(&fetch->counted, sum);
    pthread_mutex_unlock(&fetch->lock);
}

void fetch_waiting(Fetch *fetch, char *out, size_t out_bytes) {
    pthread_mutex_lock(&fetch->lock);
    snprintf(out, out_bytes, "%s", fetch->waiting);
    pthread_mutex_unlock(&fetch->lock);
}

/* Say in the note when the peer was last heard of. */
static int fetch_name_peer(Fetch *fetch, FetchPeer peer, int code) {
    if (peer.stage < 0) {
        return code;
    }
    ErrNote note;
    err_copy(&note);
    char text[HEARTBEAT_MAX_BYTES];
    size_t bytes = 0;
    Heartbeat heartbeat;
    Key key = key_heartbeat(&fetch->space, peer.stage, peer.replica);
    int heard = relay_note_get(fetch->relay, key.text, text, sizeof text, &bytes);
    if (heard >= 0) {
        heard = report_parse_heartbeat(text, bytes, &heartbeat);
    }
    err_restore(&note);
    if (heard < 0) {
        return err_context(code, "waiting for worker %d.%d, which has no heartbeat", peer.stage,
                           peer.replica);
    }
    return err_context(code, "waiting for worker %d.%d, last heartbeat %.1f s ago (%s, step %lld)",
                       peer.stage, peer.replica,
                       (double)(clock_wall_ms() - heartbeat.wall_ms) / 1000.0, heartbeat.state,
                       (long long)heartbeat.step);
}

static bool fetch_worth_retry(int code, int attempt, int64_t deadline_ns) {
    return code < 0 && err_retry(code) && code != ERR_TIMEOUT && code != ERR_KILLED &&
           attempt + 1 < FETCH_TRIES && clock_now_ns() < deadline_ns;
}

static void fetch_back_off(int attempt) {
    clock_sleep_until(clock_deadline_ms((int64_t)FETCH_BACKOFF_MS << attempt));
}

int fetch_get(Fetch *fetch, Key key, FetchPeer peer, const FetchBlob *blob, int64_t *bytes) {
    const int64_t deadline = clock_deadline_ms(fetch->order->wait_timeout_ms);
    int rc = 0;
    size_t got = 0;
    fetch_set_waiting(fetch, key.text);
    for (int attempt = 0;; attempt++) {
        rc = relay_get(fetch->relay, key.text, blob->bytes, blob->capacity, deadline, &got);
        if (rc >= 0) {
            rc = blob_check(blob->bytes, got, key.text, blob->tensors, blob->n_tensors);
        }
        if (!fetch_worth_retry(rc, attempt, deadline)) {
            break;
        }
        fetch->relay->counters.n_retries++;
        fetch_back_off(attempt);
    }
    fetch_end(fetch);
    if (rc < 0) {
        return rc == ERR_TIMEOUT ? fetch_name_peer(fetch, peer, rc) : rc;
    }
    *bytes += (int64_t)got;
    return 0;
}

/* A put, or with n > 0 an addition to a sum. It gives up before those do that wait for what it
 * sends: it knows why, such as a full relay, and they do not. */
static int fetch_send(Fetch *fetch, const char *key, int index, int n, Slice part) {
    const int64_t wait_ms = fetch->order->wait_timeout_ms;
    const int64_t deadline = clock_deadline_ms(wait_ms - wait_ms / 4);
    for (int attempt = 0;; attempt++) {
        int rc = n > 0 ? relay_add(fetch->relay, key, index, n, &part, 1, deadline)
                       : relay_put(fetch->relay, key, &part, 1, deadline);
        if (!fetch_worth_retry(rc, attempt, deadline)) {
            fetch_end(fetch);
            return rc;
        }
        fetch->relay->counters.n_retries++;
        fetch_back_off(attempt);
    }
}

int fetch_put(Fetch *fetch, Key key, const FetchBlob *blob, int64_t *bytes) {
    int64_t total = blob_seal(blob->bytes, key.text, blob->tensors, blob->n_tensors);
    if (total < 0) {
        return (int)total;
    }
    *bytes += total;
    return fetch_send(fetch, key.text, 0, 0, (Slice){blob->bytes, (size_t)total});
}

int fetch_add(Fetch *fetch, Key key, int index, int n, const FetchBlob *blob, int64_t *bytes) {
    int64_t total =
        blob_seal(blob->bytes, key_part(key.text, index).text, blob->tensors, blob->n_tensors);
    if (total < 0) {
        return (int)total;
    }
    *bytes += total;
    return fetch_send(fetch, key.text, index, n, (Slice){blob->bytes, (size_t)total});
}

int fetch_put_bytes(Fetch *fetch, Key key, const void *data, size_t bytes) {
    return fetch_send(fetch, key.text, 0, 0, (Slice){data, bytes});
}

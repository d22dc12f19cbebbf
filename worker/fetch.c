#include "worker/fetch.h"

#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/hash.h"
#include "core/report.h"
#include "core/text.h"

enum { FETCH_BACKOFF_MS = 20, FETCH_MAX_BACKOFF_MS = 1000 };
enum { FETCH_LOOKS = 4 }; /* looks at heartbeats in a wait timeout */

int fetch_init(Fetch *fetch, const Order *order, Relay *take_relay) {
    memset(fetch, 0, sizeof *fetch);
    fetch->relay = take_relay;
    fetch->order = order;
    fetch->space.generation = order->generation;
    if (pthread_mutex_init(&fetch->lock, NULL) != 0) {
        return err_set(ERR_MEMORY, "a lock could not be made");
    }
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&fetch->changed, &attr);
    pthread_condattr_destroy(&attr);
    return text_copy(fetch->space.job, sizeof fetch->space.job, order->job);
}

void fetch_done(Fetch *fetch) {
    if (fetch == NULL || fetch->order == NULL) {
        return;
    }
    relay_close(fetch->relay);
    pthread_mutex_destroy(&fetch->lock);
    pthread_cond_destroy(&fetch->changed);
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

void fetch_interrupt(Fetch *fetch, bool on) {
    pthread_mutex_lock(&fetch->lock);
    fetch->interrupted = on;
    pthread_cond_broadcast(&fetch->changed);
    pthread_mutex_unlock(&fetch->lock);
    relay_interrupt(fetch->relay, on);
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

/* The peer's last heartbeat; leaves the error's note alone. */
static bool fetch_hear(Fetch *fetch, FetchPeer peer, Heartbeat *out_heartbeat) {
    ErrNote note;
    err_copy(&note);
    char text[HEARTBEAT_MAX_BYTES];
    size_t bytes = 0;
    Key key = key_heartbeat(&fetch->space, peer.stage, peer.replica);
    int heard = relay_note_get(fetch->relay, key.text, text, sizeof text, &bytes);
    if (heard >= 0) {
        heard = report_parse_heartbeat(text, bytes, out_heartbeat);
    }
    err_restore(&note);
    return heard >= 0;
}

/* Say in the note when the peer was last heard of. */
static int fetch_name_peer(Fetch *fetch, FetchPeer peer, int code) {
    Heartbeat heartbeat;
    if (peer.stage < 0) {
        return code;
    }
    if (!fetch_hear(fetch, peer, &heartbeat)) {
        return err_context(code, "waiting for worker %d.%d, which has no heartbeat", peer.stage,
                           peer.replica);
    }
    return err_context(code, "waiting for worker %d.%d, last heartbeat %.1f s ago (%s, step %lld)",
                       peer.stage, peer.replica,
                       (double)(clock_wall_ms() - heartbeat.wall_ms) / 1000.0, heartbeat.state,
                       (long long)heartbeat.step);
}

static bool fetch_worth_retry(int code, int n_tries, int64_t deadline_ns) {
    return code < 0 && err_retry(code) && code != ERR_TIMEOUT && code != ERR_KILLED &&
           n_tries < FETCH_TRIES && clock_now_ns() < deadline_ns;
}

/* The pause behind so many others, each twice as long; ERR_CANCELLED when interrupted. */
static int fetch_back_off(Fetch *fetch, const char *key, int n_pauses, int64_t deadline_ns) {
    int64_t ms = FETCH_BACKOFF_MS;
    for (int i = 0; i < n_pauses && ms < FETCH_MAX_BACKOFF_MS; i++) {
        ms *= 2;
    }
    int64_t until_ns = clock_deadline_ms(ms < FETCH_MAX_BACKOFF_MS ? ms : FETCH_MAX_BACKOFF_MS);
    until_ns = until_ns < deadline_ns ? until_ns : deadline_ns;
    const struct timespec until = {.tv_sec = until_ns / CLOCK_NS_PER_S,
                                   .tv_nsec = until_ns % CLOCK_NS_PER_S};
    fetch->relay->counters.n_retries++;
    pthread_mutex_lock(&fetch->lock);
    while (!fetch->interrupted && clock_now_ns() < until_ns) {
        pthread_cond_timedwait(&fetch->changed, &fetch->lock, &until);
    }
    const bool interrupted = fetch->interrupted;
    pthread_mutex_unlock(&fetch->lock);
    return interrupted ? err_set(ERR_CANCELLED, "another try to move '%s' was interrupted", key)
                       : 0;
}

/* ---- waiting ---- */

typedef struct FetchWait {
    const FetchPeer *peers;
    int32_t n;
    int64_t timeout_ms;
    int64_t until_ns; /* unless something is seen of a peer */
    int64_t end_ns;   /* in any case */
    uint64_t seen[FETCH_MAX_PEERS];
} FetchWait;

/* What a heartbeat tells of work done, as one number; 0: of one that does nothing more. Time spent
 * and signs of life count where a worker waits for nobody: else it may be stuck all the while. */
static uint64_t fetch_work_of(const Heartbeat *beat) {
    const bool loads = strcmp(beat->state, "loading") == 0;
    const bool evaluates = strcmp(beat->state, "evaluating") == 0;
    const int64_t told[] = {beat->attempt,
                            beat->step,
                            beat->traffic.puts,
                            beat->traffic.gets,
                            beat->traffic.adds,
                            loads ? beat->wall_ms : 0,
                            evaluates ? beat->busy_us : 0};
    if (strcmp(beat->state, "done") == 0 || strcmp(beat->state, "failed") == 0) {
        return 0;
    }
    return (hash_bytes(told, sizeof told) ^ hash_text(beat->state)) | 1;
}

static void fetch_begin_wait(const Fetch *fetch, const FetchPeer *peers, int32_t n,
                             FetchWait *out_wait) {
    const int64_t timeout_ms = fetch->order->wait_timeout_ms;
    *out_wait = (FetchWait){.peers = peers,
                            .n = n < FETCH_MAX_PEERS ? n : FETCH_MAX_PEERS,
                            .timeout_ms = timeout_ms,
                            .until_ns = clock_deadline_ms(timeout_ms),
                            .end_ns = clock_deadline_ms(timeout_ms * FETCH_MAX_WAITS)};
}

/* When the peers are to be looked at next. */
static int64_t fetch_next_look(const FetchWait *wait) {
    const int64_t look_ns = clock_deadline_ms(wait->timeout_ms / FETCH_LOOKS + 1);
    return wait->n > 0 && look_ns < wait->until_ns ? look_ns : wait->until_ns;
}

/* Go on waiting? A first look at a peer is there to be compared with. */
static bool fetch_waits_on(Fetch *fetch, FetchWait *wait) {
    for (int32_t i = 0; i < wait->n && clock_now_ns() < wait->end_ns; i++) {
        Heartbeat beat;
        const uint64_t work = fetch_hear(fetch, wait->peers[i], &beat) ? fetch_work_of(&beat) : 0;
        if (work != 0 && wait->seen[i] != 0 && work != wait->seen[i]) {
            const int64_t until_ns = clock_deadline_ms(wait->timeout_ms);
            wait->until_ns = until_ns < wait->end_ns ? until_ns : wait->end_ns;
        }
        wait->seen[i] = work != 0 ? work : wait->seen[i];
    }
    return clock_now_ns() < wait->until_ns;
}

int fetch_get_of(Fetch *fetch, Key key, const FetchPeer *peers, int32_t n, const FetchBlob *blob,
                 int64_t *bytes) {
    FetchWait wait;
    int rc = 0;
    size_t got = 0;
    fetch_begin_wait(fetch, peers, n, &wait);
    fetch_set_waiting(fetch, key.text);
    for (int n_tries = 1;; n_tries++) {
        rc = relay_get(fetch->relay, key.text, blob->bytes, blob->capacity, fetch_next_look(&wait),
                       &got);
        if (rc == ERR_TIMEOUT && fetch_waits_on(fetch, &wait)) {
            n_tries--;
            continue;
        }
        if (rc >= 0) {
            rc = blob_check(blob->bytes, got, key.text, blob->tensors, blob->n_tensors);
        }
        if (!fetch_worth_retry(rc, n_tries, wait.until_ns)) {
            break;
        }
        rc = fetch_back_off(fetch, key.text, n_tries - 1, wait.until_ns);
        if (rc < 0) {
            break;
        }
    }
    fetch_end(fetch);
    *bytes += rc >= 0 ? (int64_t)got : 0;
    return rc < 0 ? rc : 0;
}

int fetch_get(Fetch *fetch, Key key, FetchPeer peer, const FetchBlob *blob, int64_t *bytes) {
    int rc = fetch_get_of(fetch, key, &peer, peer.stage >= 0 ? 1 : 0, blob, bytes);
    return rc == ERR_TIMEOUT ? fetch_name_peer(fetch, peer, rc) : rc;
}

/* A put, or with n > 0 an addition to a sum. It gives up before those do that wait for what it
 * sends: it knows why, such as a full relay, and they do not. */
static int fetch_send(Fetch *fetch, const char *key, int index, int n, Slice part) {
    const int64_t wait_ms = fetch->order->wait_timeout_ms;
    const int64_t deadline = clock_deadline_ms(wait_ms - wait_ms / 4);
    int n_tries = 0;
    for (int n_pauses = 0;; n_pauses++) {
        int rc = n > 0 ? relay_add(fetch->relay, key, index, n, &part, 1, deadline)
                       : relay_put(fetch->relay, key, &part, 1, deadline);
        n_tries += rc != ERR_FULL; /* one that is full has room when others have got on */
        bool again = fetch_worth_retry(rc, n_tries, deadline);
        if (again) {
            const int paused = fetch_back_off(fetch, key, n_pauses, deadline);
            again = paused >= 0 && clock_now_ns() < deadline; /* else its error says the most */
            rc = paused < 0 ? paused : rc;
        }
        if (!again) {
            fetch_end(fetch);
            return rc;
        }
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

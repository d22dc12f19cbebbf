#include "tests/support/relay_link.h"

#include <stdlib.h>
#include <time.h>

#include "core/clock.h"
#include "core/err.h"

enum { UP, DOWN };

typedef struct Linked {
    Relay base;
    Relay *inner;
    RelayLink *link;
    pthread_mutex_t lock; /* of the next one */
    bool interrupted;
    pthread_cond_t wake;
} Linked;

void relay_link_init(RelayLink *link, int64_t latency_us, int64_t rate_bytes_per_s) {
    *link = (RelayLink){.latency_us = latency_us, .rate_bytes_per_s = rate_bytes_per_s};
    pthread_mutex_init(&link->lock, NULL);
}

void relay_link_done(RelayLink *link) {
    pthread_mutex_destroy(&link->lock);
}

/* When what is sent now has arrived. */
static int64_t reserve(RelayLink *link, int way, size_t bytes) {
    const double seconds =
        link->rate_bytes_per_s > 0 ? (double)bytes / (double)link->rate_bytes_per_s : 0;
    int64_t now_ns = clock_now_ns();
    pthread_mutex_lock(&link->lock);
    int64_t begin_ns = link->free_ns[way] > now_ns ? link->free_ns[way] : now_ns;
    link->free_ns[way] = begin_ns + (int64_t)(seconds * (double)CLOCK_NS_PER_S);
    int64_t end_ns = link->free_ns[way] + link->latency_us * CLOCK_NS_PER_US;
    pthread_mutex_unlock(&link->lock);
    return end_ns;
}

static int transfer(Linked *linked, int way, const char *key, size_t bytes) {
    int64_t end_ns = reserve(linked->link, way, bytes);
    struct timespec until = {.tv_sec = (time_t)(end_ns / CLOCK_NS_PER_S),
                             .tv_nsec = (long)(end_ns % CLOCK_NS_PER_S)};
    pthread_mutex_lock(&linked->lock);
    while (!linked->interrupted && clock_now_ns() < end_ns)
        pthread_cond_timedwait(&linked->wake, &linked->lock, &until);
    pthread_mutex_unlock(&linked->lock);
    return clock_now_ns() >= end_ns
               ? 0
               : err_set(ERR_CANCELLED, "the transfer of '%s' was interrupted", key);
}

static size_t bytes_of(const Slice *parts, int n_parts) {
    size_t bytes = 0;
    for (int i = 0; i < n_parts; i++)
        bytes += parts[i].bytes;
    return bytes;
}

/* What the inner relay counts of its own. */
static int after(Linked *linked, int rc) {
    linked->base.counters.n_waits = linked->inner->counters.n_waits;
    return rc;
}

static int linked_put(Relay *relay, const char *key, const Slice *parts, int n_parts,
                      int64_t deadline_ns) {
    Linked *linked = (Linked *)relay;
    TRY(transfer(linked, UP, key, bytes_of(parts, n_parts)));
    return after(linked, relay_put(linked->inner, key, parts, n_parts, deadline_ns));
}

static int linked_add(Relay *relay, const char *key, int index, int n, const Slice *parts,
                      int n_parts, int64_t deadline_ns) {
    Linked *linked = (Linked *)relay;
    TRY(transfer(linked, UP, key, bytes_of(parts, n_parts)));
    return after(linked, relay_add(linked->inner, key, index, n, parts, n_parts, deadline_ns));
}

static int linked_get(Relay *relay, const char *key, void *buf, size_t capacity,
                      int64_t deadline_ns, size_t *out_bytes) {
    Linked *linked = (Linked *)relay;
    TRY(after(linked, relay_get(linked->inner, key, buf, capacity, deadline_ns, out_bytes)));
    return transfer(linked, DOWN, key, *out_bytes);
}

static int linked_size(Relay *relay, const char *key, int64_t deadline_ns, size_t *out_bytes) {
    Linked *linked = (Linked *)relay;
    return after(linked, linked->inner->ops->size(linked->inner, key, deadline_ns, out_bytes));
}

static int linked_has(Relay *relay, const char *key) {
    return relay_has(((Linked *)relay)->inner, key);
}

static int linked_server(const Relay *relay, const char *key, int *out_n) {
    return relay_server(((const Linked *)relay)->inner, key, out_n);
}

static int linked_drop(Relay *relay, const char *const *prefixes, int n_prefixes,
                       int64_t *out_dropped) {
    return relay_drop(((Linked *)relay)->inner, prefixes, n_prefixes, out_dropped);
}

static int linked_count(Relay *relay, const char *prefix, int64_t *out_count) {
    return relay_count(((Linked *)relay)->inner, prefix, out_count);
}

static int linked_note_put(Relay *relay, const char *key, const void *data, size_t bytes,
                           int64_t ttl_ms) {
    return relay_note_put(((Linked *)relay)->inner, key, data, bytes, ttl_ms);
}

static int linked_note_get(Relay *relay, const char *key, void *buf, size_t capacity,
                           size_t *out_bytes) {
    return relay_note_get(((Linked *)relay)->inner, key, buf, capacity, out_bytes);
}

static void linked_interrupt(Relay *relay, bool on) {
    Linked *linked = (Linked *)relay;
    pthread_mutex_lock(&linked->lock);
    linked->interrupted = on;
    pthread_cond_broadcast(&linked->wake);
    pthread_mutex_unlock(&linked->lock);
    relay_interrupt(linked->inner, on);
}

static void linked_close(Relay *relay) {
    Linked *linked = (Linked *)relay;
    relay_close(linked->inner);
    pthread_cond_destroy(&linked->wake);
    pthread_mutex_destroy(&linked->lock);
    free(linked);
}

#define LINKED_OPS                                                                                 \
    .name = "link", .close = linked_close, .put = linked_put, .get = linked_get,                   \
    .size = linked_size, .has = linked_has, .drop = linked_drop, .count = linked_count,            \
    .note_put = linked_note_put, .note_get = linked_note_get, .interrupt = linked_interrupt,       \
    .server = linked_server
static const RelayOps ops_without_add = {LINKED_OPS};
static const RelayOps ops_with_add = {LINKED_OPS, .add = linked_add};
#undef LINKED_OPS

int relay_link_open(Relay *take_inner, RelayLink *link, Relay **out_relay) {
    Linked *linked = calloc(1, sizeof *linked);
    if (!linked) {
        relay_close(take_inner);
        return err_set(ERR_MEMORY, "a relay behind a link");
    }
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&linked->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&linked->lock, NULL);
    linked->base.ops = relay_adds(take_inner) ? &ops_with_add : &ops_without_add;
    linked->inner = take_inner;
    linked->link = link;
    *out_relay = &linked->base;
    return 0;
}

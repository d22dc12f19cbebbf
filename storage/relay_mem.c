/* The relay of one process: hash tables of objects, of sums under way and of notes behind one
 * mutex. Bytes never change once they are there and are counted by reference, so they are copied
 * outside the lock. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/hash.h"
#include "storage/prefix_set.h"
#include "storage/relay_mem_table.h"
#include "storage/relay_survey.h"
#include "storage/sum.h"

typedef struct RelayMem {
    Relay base;
    RelayMemStore *store;
    pthread_cond_t changed;
    /* Under the store's lock: */
    bool interrupted;
    uint64_t awaited; /* while it waits: the hash of the key it waits for; ANY_KEY: any change */
    struct RelayMem *next_waiting;
} RelayMem;

struct RelayMemStore {
    pthread_mutex_t lock;
    Table objects, sums, notes;
    RelayMem *waiting; /* those who wait, each on its own condition: a put wakes whom it concerns */
    int window;
    int n_handles;
};

enum { ANY_KEY = 0 };

/* ---- store ---- */

int relay_mem_store_open(RelayMemStore **out_store) {
    RelayMemStore *store = calloc(1, sizeof *store);
    if (!store)
        return err_set(ERR_MEMORY, "a memory relay");
    if (relay_mem_table_init(&store->objects) < 0 || relay_mem_table_init(&store->sums) < 0 ||
        relay_mem_table_init(&store->notes) < 0) {
        relay_mem_table_done(&store->objects);
        relay_mem_table_done(&store->sums);
        free(store);
        return ERR_MEMORY;
    }
    pthread_mutex_init(&store->lock, NULL);
    *out_store = store;
    return 0;
}

void relay_mem_store_close(RelayMemStore *store) {
    if (!store)
        return;
    assert(store->n_handles == 0);
    relay_mem_table_done(&store->objects);
    relay_mem_table_done(&store->sums);
    relay_mem_table_done(&store->notes);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

/* Under the lock: something has changed about the keys of this hash; ANY_KEY: about all. */
static void wake(RelayMemStore *store, uint64_t hash) {
    for (RelayMem *mem = store->waiting; mem; mem = mem->next_waiting) {
        if (hash == ANY_KEY || mem->awaited == ANY_KEY || mem->awaited == hash)
            pthread_cond_signal(&mem->changed);
    }
}

void relay_mem_store_window(RelayMemStore *store, int n) {
    pthread_mutex_lock(&store->lock);
    store->window = n;
    wake(store, ANY_KEY);
    pthread_mutex_unlock(&store->lock);
}

static void leave_waiting(RelayMem *mem) {
    RelayMem **at = &mem->store->waiting;
    while (*at != mem)
        at = &(*at)->next_waiting;
    *at = mem->next_waiting;
}

/* One wait for a change, under the lock: about the keys of this hash, or any. `what` and the key go
 * into the errors. */
static int wait_change(RelayMem *mem, const char *what, const char *key, uint64_t hash,
                       int64_t deadline_ns) {
    RelayMemStore *store = mem->store;
    if (mem->interrupted)
        return err_set(ERR_CANCELLED, "%s '%s' in the memory relay was interrupted", what, key);
    if (deadline_ns != CLOCK_NEVER && clock_now_ns() >= deadline_ns)
        return err_set(ERR_TIMEOUT, "%s '%s' in the memory relay: the deadline passed", what, key);
    mem->awaited = hash;
    mem->next_waiting = store->waiting;
    store->waiting = mem;
    if (deadline_ns == CLOCK_NEVER) {
        pthread_cond_wait(&mem->changed, &store->lock);
    } else {
        struct timespec until = {.tv_sec = (time_t)(deadline_ns / CLOCK_NS_PER_S),
                                 .tv_nsec = (long)(deadline_ns % CLOCK_NS_PER_S)};
        pthread_cond_timedwait(&mem->changed, &store->lock, &until);
    }
    leave_waiting(mem);
    return 0;
}

/* ---- operations ---- */

static Entry *entry_make(const char *key, const Slice *parts, int n_parts) {
    size_t bytes = 0;
    for (int i = 0; i < n_parts; i++)
        bytes += parts[i].bytes;
    Entry *entry = calloc(1, sizeof *entry);
    Bytes *content = malloc(sizeof *content + bytes);
    if (!entry || !content) {
        free(entry);
        free(content);
        err_set(ERR_MEMORY, "putting '%s' (%zu bytes) into the memory relay", key, bytes);
        return NULL;
    }
    content->bytes = bytes;
    content->n_refs = 1;
    size_t at = 0;
    for (int i = 0; i < n_parts; i++) {
        if (parts[i].bytes > 0)
            memcpy(content->data + at, parts[i].data, parts[i].bytes);
        at += parts[i].bytes;
    }
    entry->bytes = content;
    entry->hash = hash_text(key);
    entry->put_ns = clock_now_ns();
    memcpy(entry->key, key, strlen(key) + 1);
    return entry;
}

/* Is the key's edge full: as many objects as the window allows, put and never read? */
static bool edge_full(const RelayMemStore *store, const char *key) {
    const char *dot = strrchr(key, '.');
    if (store->window <= 0 || !dot)
        return false;
    size_t length = (size_t)(dot - key) + 1;
    int n = 0;
    for (size_t i = 0; i < store->objects.n_buckets; i++) {
        for (const Entry *at = store->objects.buckets[i]; at; at = at->next) {
            const char *other = strrchr(at->key, '.');
            n += !at->read && other && (size_t)(other - at->key) + 1 == length &&
                 strncmp(at->key, key, length) == 0;
        }
    }
    return n >= store->window;
}

static int mem_put(Relay *relay, const char *key, const Slice *parts, int n_parts,
                   int64_t deadline_ns) {
    RelayMem *mem = (RelayMem *)relay;
    RelayMemStore *store = mem->store;
    Entry *entry = entry_make(key, parts, n_parts);
    if (!entry)
        return ERR_MEMORY;
    int rc = 0;
    bool waited = false;
    pthread_mutex_lock(&store->lock);
    while (!relay_mem_table_find(&store->objects, key) && edge_full(store, key)) {
        waited = true;
        TRY_DONE(wait_change(mem, "putting", key, ANY_KEY, deadline_ns));
    }
    if (relay_mem_table_find(&store->objects, key)) {
        rc = 1;
        goto done;
    }
    relay_mem_table_add(&store->objects, entry);
    wake(store, entry->hash);
    entry = NULL;
done:
    pthread_mutex_unlock(&store->lock);
    relay->counters.n_waits += waited;
    if (entry)
        relay_mem_entry_free(entry);
    return rc;
}

/* ---- sums, under the lock ---- */

static int start_sum(const char *key, int n, Entry **out_entry) {
    Entry *entry = calloc(1, sizeof *entry);
    if (!entry)
        return err_set(ERR_MEMORY, "the sum '%s' in the memory relay", key);
    int rc = sum_open(key, n, SUM_MAX_HELD_BYTES, NULL, &entry->sum);
    if (rc < 0) {
        relay_mem_entry_free(entry);
        return rc;
    }
    entry->hash = hash_text(key);
    memcpy(entry->key, key, strlen(key) + 1);
    *out_entry = entry;
    return 0;
}

/* The sum becomes an object. Its entry stays when that fails, and the next one tries again. */
static int publish_sum(RelayMemStore *store, Entry *entry) {
    Slice sealed = sum_prefix(entry->sum, NULL);
    Entry *object = entry_make(entry->key, &sealed, 1);
    if (!object)
        return ERR_MEMORY;
    relay_mem_table_take(&store->sums, entry);
    relay_mem_entry_free(entry);
    relay_mem_table_add(&store->objects, object);
    return 0;
}

static int add_to_sum(RelayMemStore *store, const char *key, int index, int n, Slice blob) {
    if (relay_mem_table_find(&store->objects, key))
        return 1;
    Entry *there = relay_mem_table_find(&store->sums, key);
    Entry *entry = there;
    if (!there)
        TRY(start_sum(key, n, &entry));
    int rc = sum_add(entry->sum, index, n, blob.data, blob.bytes);
    if (rc < 0 && !there)
        relay_mem_entry_free(entry); /* as if it had never come */
    if (rc < 0)
        return rc;
    if (!there)
        relay_mem_table_add(&store->sums, entry);
    if (sum_complete(entry->sum))
        TRY(publish_sum(store, entry));
    wake(store, hash_text(key));
    return rc;
}

static int mem_add(Relay *relay, const char *key, int index, int n, const Slice *parts, int n_parts,
                   int64_t deadline_ns) {
    RelayMem *mem = (RelayMem *)relay;
    RelayMemStore *store = mem->store;
    Slice blob = n_parts == 1 ? parts[0] : (Slice){NULL, 0};
    Entry *whole = n_parts == 1 ? NULL : entry_make(key, parts, n_parts);
    if (n_parts != 1 && !whole)
        return ERR_MEMORY;
    if (whole)
        blob = (Slice){whole->bytes->data, whole->bytes->bytes};
    pthread_mutex_lock(&store->lock);
    int rc = add_to_sum(store, key, index, n, blob);
    relay->counters.n_waits += rc == ERR_FULL;
    while (rc == ERR_FULL) { /* wait for those before it */
        TRY_DONE(wait_change(mem, "adding to", key, hash_text(key), deadline_ns));
        rc = add_to_sum(store, key, index, n, blob);
    }
done:
    pthread_mutex_unlock(&store->lock);
    if (whole)
        relay_mem_entry_free(whole);
    return rc;
}

/* Wait for the object, under the lock. */
static int await(RelayMem *mem, const char *key, int64_t deadline_ns, Entry **out_entry) {
    Entry *entry = relay_mem_table_find(&mem->store->objects, key);
    mem->base.counters.n_waits += !entry;
    while (!entry) {
        TRY(wait_change(mem, "getting", key, hash_text(key), deadline_ns));
        entry = relay_mem_table_find(&mem->store->objects, key);
    }
    *out_entry = entry;
    return 0;
}

static int mem_get(Relay *relay, const char *key, void *buf, size_t capacity, int64_t deadline_ns,
                   size_t *out_bytes) {
    RelayMem *mem = (RelayMem *)relay;
    RelayMemStore *store = mem->store;
    Entry *entry = NULL;
    Bytes *bytes = NULL;
    pthread_mutex_lock(&store->lock);
    int rc = await(mem, key, deadline_ns, &entry);
    if (rc >= 0 && entry->bytes->bytes > capacity)
        rc = err_set(ERR_LIMIT, "the object '%s' in the memory relay has %zu bytes, room for %zu",
                     key, entry->bytes->bytes, capacity);
    if (rc >= 0) {
        if (!entry->read && store->window > 0)
            wake(store, ANY_KEY);
        entry->read = true;
        bytes = entry->bytes;
        bytes->n_refs++;
    }
    pthread_mutex_unlock(&store->lock);
    if (rc < 0)
        return rc;
    if (bytes->bytes > 0)
        memcpy(buf, bytes->data, bytes->bytes);
    *out_bytes = bytes->bytes;
    pthread_mutex_lock(&store->lock);
    bool last = --bytes->n_refs == 0;
    pthread_mutex_unlock(&store->lock);
    if (last)
        free(bytes);
    return 0;
}

static int mem_size(Relay *relay, const char *key, int64_t deadline_ns, size_t *out_bytes) {
    RelayMem *mem = (RelayMem *)relay;
    Entry *entry = NULL;
    pthread_mutex_lock(&mem->store->lock);
    int rc = await(mem, key, deadline_ns, &entry);
    if (rc >= 0)
        *out_bytes = entry->bytes->bytes;
    pthread_mutex_unlock(&mem->store->lock);
    return rc;
}

static int mem_has(Relay *relay, const char *key) {
    RelayMem *mem = (RelayMem *)relay;
    pthread_mutex_lock(&mem->store->lock);
    bool there = relay_mem_table_find(&mem->store->objects, key) != NULL;
    pthread_mutex_unlock(&mem->store->lock);
    return there;
}

static int mem_drop(Relay *relay, const char *const *prefixes, int n_prefixes,
                    int64_t *out_dropped) {
    RelayMemStore *store = ((RelayMem *)relay)->store;
    PrefixSet set;
    TRY(prefix_set_init(&set, prefixes, n_prefixes));
    pthread_mutex_lock(&store->lock);
    *out_dropped =
        relay_mem_table_drop(&store->objects, &set) + relay_mem_table_drop(&store->notes, &set);
    int64_t n_sums = relay_mem_table_drop(&store->sums, &set);
    if (store->window > 0 || n_sums > 0)
        wake(store, ANY_KEY);
    pthread_mutex_unlock(&store->lock);
    prefix_set_done(&set);
    return 0;
}

static int mem_count(Relay *relay, const char *prefix, int64_t *out_count) {
    RelayMemStore *store = ((RelayMem *)relay)->store;
    pthread_mutex_lock(&store->lock);
    *out_count = relay_mem_table_count(&store->objects, prefix);
    pthread_mutex_unlock(&store->lock);
    return 0;
}

static int mem_note_put(Relay *relay, const char *key, const void *data, size_t bytes,
                        int64_t ttl_ms) {
    RelayMemStore *store = ((RelayMem *)relay)->store;
    Slice part = {data, bytes};
    Entry *entry = entry_make(key, &part, 1);
    if (!entry)
        return ERR_MEMORY;
    entry->expires_ns = clock_deadline_ms(ttl_ms);
    pthread_mutex_lock(&store->lock);
    Entry *old = relay_mem_table_find(&store->notes, key);
    if (old) {
        Bytes *content = old->bytes;
        old->bytes = entry->bytes;
        old->put_ns = entry->put_ns;
        old->expires_ns = entry->expires_ns;
        entry->bytes = content;
    } else {
        relay_mem_table_add(&store->notes, entry);
        entry = NULL;
    }
    pthread_mutex_unlock(&store->lock);
    if (entry)
        relay_mem_entry_free(entry);
    return 0;
}

static int mem_note_get(Relay *relay, const char *key, void *buf, size_t capacity,
                        size_t *out_bytes) {
    RelayMemStore *store = ((RelayMem *)relay)->store;
    int rc = 0;
    pthread_mutex_lock(&store->lock);
    Entry *entry = relay_mem_table_find(&store->notes, key);
    if (!entry || clock_now_ns() >= entry->expires_ns) {
        rc = err_set(ERR_NOT_FOUND, "the memory relay has no note '%s'%s", key,
                     entry ? " any more: it expired" : "");
        goto done;
    }
    if (entry->bytes->bytes > capacity) {
        rc = err_set(ERR_LIMIT, "the note '%s' has %zu bytes, room for %zu", key,
                     entry->bytes->bytes, capacity);
        goto done;
    }
    if (entry->bytes->bytes > 0)
        memcpy(buf, entry->bytes->data, entry->bytes->bytes);
    *out_bytes = entry->bytes->bytes;
done:
    pthread_mutex_unlock(&store->lock);
    return rc;
}

/* ---- survey ---- */

/* Copies of a table's entries, without their bytes, so that the visit needs no lock. */
static int copy_entries(const Table *table, const char *prefix, bool notes, Buf *out) {
    for (size_t i = 0; i < table->n_buckets; i++) {
        for (const Entry *at = table->buckets[i]; at; at = at->next) {
            Copy copy = {.notes = notes,
                         .put_ns = at->put_ns,
                         .expires_ns = at->expires_ns,
                         .bytes = at->bytes->bytes};
            memcpy(copy.key, at->key, sizeof copy.key);
            if (relay_mem_under(at->key, prefix))
                TRY(buf_add(out, &copy, sizeof copy));
        }
    }
    return 0;
}

static int mem_visit(Relay *relay, const char *prefix, RelayVisit visit, void *ctx) {
    RelayMemStore *store = ((RelayMem *)relay)->store;
    Copy copy;
    Buf copies;
    buf_init(&copies, 0);
    pthread_mutex_lock(&store->lock);
    int rc = copy_entries(&store->objects, prefix, false, &copies);
    if (rc >= 0)
        rc = copy_entries(&store->notes, prefix, true, &copies);
    pthread_mutex_unlock(&store->lock);
    int64_t now_ns = clock_now_ns();
    for (size_t at = 0; rc >= 0 && at < copies.bytes; at += sizeof copy) {
        memcpy(&copy, copies.data + at, sizeof copy);
        bool expired = copy.notes && now_ns >= copy.expires_ns;
        RelayItem item = {.kind = expired      ? RELAY_ITEM_EXPIRED
                                  : copy.notes ? RELAY_ITEM_NOTE
                                               : RELAY_ITEM_OBJECT,
                          .key = copy.key,
                          .bytes = (int64_t)copy.bytes,
                          .idle_ms = (now_ns - copy.put_ns) / CLOCK_NS_PER_MS};
        rc = visit(ctx, &item);
    }
    buf_done(&copies);
    return rc < 0 ? rc : 0;
}

static int mem_sweep(Relay *relay, const char *prefix, int64_t older_ms, bool dry_run,
                     RelaySwept *out_swept) { /* nothing is ever left */
    (void)relay, (void)prefix, (void)older_ms, (void)dry_run, (void)out_swept;
    return 0;
}

static int mem_about(Relay *relay, RelayTell tell, void *ctx) {
    (void)relay;
    tell(ctx, "kind", "memory of one process", NULL);
    tell(ctx, "persistence", "none: it ends with the process", NULL);
    return 0;
}

static const RelaySurvey mem_survey = {.visit = mem_visit, .sweep = mem_sweep, .about = mem_about};

static void mem_interrupt(Relay *relay, bool on) {
    RelayMem *mem = (RelayMem *)relay;
    pthread_mutex_lock(&mem->store->lock);
    mem->interrupted = on;
    pthread_cond_signal(&mem->changed);
    pthread_mutex_unlock(&mem->store->lock);
}

static void mem_close(Relay *relay) {
    RelayMem *mem = (RelayMem *)relay;
    pthread_mutex_lock(&mem->store->lock);
    mem->store->n_handles--;
    pthread_mutex_unlock(&mem->store->lock);
    pthread_cond_destroy(&mem->changed);
    free(mem);
}

int relay_mem_open(RelayMemStore *store, Relay **out_relay) {
    static const RelayOps ops = {.name = "mem",
                                 .close = mem_close,
                                 .put = mem_put,
                                 .add = mem_add,
                                 .get = mem_get,
                                 .size = mem_size,
                                 .has = mem_has,
                                 .drop = mem_drop,
                                 .count = mem_count,
                                 .note_put = mem_note_put,
                                 .note_get = mem_note_get,
                                 .interrupt = mem_interrupt,
                                 .survey = &mem_survey};
    RelayMem *mem = calloc(1, sizeof *mem);
    if (!mem)
        return err_set(ERR_MEMORY, "a handle of the memory relay");
    mem->base.ops = &ops;
    mem->store = store;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&mem->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_lock(&store->lock);
    store->n_handles++;
    pthread_mutex_unlock(&store->lock);
    *out_relay = &mem->base;
    return 0;
}

/* The relay: write-once objects under keys, waited for with a deadline.
 *
 * An object appears whole and never changes: the first put of a key stays, later ones are counted
 * as duplicates and change nothing. A get waits until the object is there (pushed, not polled) or
 * the deadline passes. Beside objects there are notes: tiny, last writer wins, expiring.
 *
 * A Relay is one connection, used by one thread at a time; every thread that talks opens its own
 * handle. Only relay_interrupt may be called from another thread. Implementations fill a RelayOps
 * and put `Relay base` first in their struct. */
#ifndef FUNCPIPE_STORAGE_RELAY_H
#define FUNCPIPE_STORAGE_RELAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/traffic.h"

enum { RELAY_KEY_BYTES = 200, RELAY_NOTE_MAX_BYTES = 4096, RELAY_MAX_PARTS = 64 };
enum { RELAY_MAX_PREFIXES = 1024, RELAY_MAX_SERVERS = 16, RELAY_PLACE_BYTES = 272 };
#define RELAY_MAX_OBJECT_BYTES ((size_t)1 << 34)

typedef struct Relay Relay;
typedef struct RelayCounters {
    int64_t n_puts, n_gets, n_adds, n_waits, n_duplicates, n_notes, n_drops, n_retries;
    int64_t n_requests; /* sent to a store, of all kinds; 0 where there is no server */
    /* Of these, on behalf of gets, puts, adds, notes; of relay_has and counts; of drops. */
    int64_t n_read_requests, n_write_requests, n_add_requests, n_note_requests;
    int64_t n_look_requests, n_drop_requests;
    int64_t n_announce_requests; /* beside these, to where objects are announced */
    int64_t put_bytes, get_bytes, add_bytes;
    int64_t waited_ns; /* that those of n_waits took */
} RelayCounters;

typedef struct RelayOps {
    const char *name; /* "file" */
    void (*close)(Relay *relay);
    int (*put)(Relay *relay, const char *key, const Slice *parts, int n_parts, int64_t deadline_ns);
    int (*get)(Relay *relay, const char *key, void *buf, size_t capacity, int64_t deadline_ns,
               size_t *out_bytes);
    int (*size)(Relay *relay, const char *key, int64_t deadline_ns, size_t *out_bytes);
    int (*has)(Relay *relay, const char *key);
    int (*drop)(Relay *relay, const char *const *prefixes, int n_prefixes, int64_t *out_dropped);
    int (*count)(Relay *relay, const char *prefix, int64_t *out_count);
    int (*note_put)(Relay *relay, const char *key, const void *data, size_t bytes, int64_t ttl_ms);
    int (*note_get)(Relay *relay, const char *key, void *buf, size_t capacity, size_t *out_bytes);
    void (*interrupt)(Relay *relay, bool on);
    void (*tidy)(Relay *relay, const char *prefix); /* NULL: nothing is ever left */
    int (*add)(Relay *relay, const char *key, int index, int n, const Slice *parts, int n_parts,
               int64_t deadline_ns); /* NULL: this store cannot sum */
    int (*server)(const Relay *relay, const char *key, int *out_n); /* NULL: there is but one */
    void (*place)(const Relay *relay, int server, char *out, size_t bytes); /* NULL: has no name */
    const struct RelaySurvey *survey; /* storage/relay_survey.h; NULL: it cannot be listed */
} RelayOps;

struct Relay {
    const RelayOps *ops;
    RelayCounters counters; /* kept by the functions below and by implementations */
};

/* Open by URL: "file:///dev/shm/dir" (the directory is made if its parent exists; mode 0700).
 * ERR_ARGUMENT for an unknown scheme names the known ones; ERR_UNREACHABLE names the place, also
 * when it is silent (within 15 s). */
int relay_open(const char *url, Relay **out_relay);
/* The same for a relay that another process has opened before: what it can do without may be
 * unreachable now (where objects are announced, storage/relay_announced.h). */
int relay_open_again(const char *url, Relay **out_relay);
/* May a job name this relay? Known scheme, well-formed, no password in it. Connects to nothing.
 * ERR_ARGUMENT as above. */
int relay_check_url(const char *url);
void relay_close(Relay *relay); /* NULL is fine */
/* Add what a handle has counted to *sum. */
void relay_add_up(const RelayCounters *counters, Traffic *sum);

/* Keys: '/'-separated parts of [A-Za-z0-9._-], no empty or dot-leading part, < RELAY_KEY_BYTES. */
int relay_check_key(const char *key);

/* Publish the concatenation of parts. Returns 0 when stored, 1 when the key was there already (the
 * first content stays). ERR_FULL, ERR_TIMEOUT, ERR_IO, ERR_UNREACHABLE name key and place. */
int relay_put(Relay *relay, const char *key, const Slice *parts, int n_parts, int64_t deadline_ns);
/* Can this store sum? */
bool relay_adds(const Relay *relay);
/* Contribute number `index` of n to the sum `key`: a blob as storage/sum.h says, in parts. When all
 * n are there, the object `key` appears: their sum in the order of the indices. relay_drop drops
 * contributions with it, relay_count does not count them. Returns 0 when counted; 1 when it was
 * counted already (the first content stays) or the sum is there. ERR_CORRUPT (no such blob, another
 * form or n than the first one) names key and reason; ERR_UNSUPPORTED, ERR_ARGUMENT, ERR_LIMIT, and
 * those of relay_put. Any error: counted not at all, or wholly as for a put; add again. */
int relay_add(Relay *relay, const char *key, int index, int n, const Slice *parts, int n_parts,
              int64_t deadline_ns);
/* Wait for the object and read it into buf: *out_bytes = its size. ERR_LIMIT when it is larger than
 * capacity (says both sizes), ERR_TIMEOUT (names key), ERR_CANCELLED after relay_interrupt. */
int relay_get(Relay *relay, const char *key, void *buf, size_t capacity, int64_t deadline_ns,
              size_t *out_bytes);
/* The same into a Buf, replaced; at most buf->max_bytes when that is set. */
int relay_get_buf(Relay *relay, const char *key, Buf *buf, int64_t deadline_ns);
/* 1 there, 0 not. */
int relay_has(Relay *relay, const char *key);
/* Drop every object and note whose key equals one of the prefixes or starts with one + "/"; none is
 * no error. One pass over the store does for all, so give many at once (at most
 * RELAY_MAX_PREFIXES). */
int relay_drop(Relay *relay, const char *const *prefixes, int n_prefixes, int64_t *out_dropped);
int relay_drop_one(Relay *relay, const char *prefix, int64_t *out_dropped);
/* How many objects there are at or under `prefix` ("" for all). */
int relay_count(Relay *relay, const char *prefix, int64_t *out_count);

/* Remove what place is left for keys under `prefix` without an object or note in it: empty folders,
 * with those above that are empty, too, and the relay's where this handle has made it; uploads to a
 * store that never ended. What lies elsewhere may be in use all the while. */
void relay_tidy(Relay *relay, const char *prefix);

int relay_note_put(Relay *relay, const char *key, const void *data, size_t bytes, int64_t ttl_ms);
/* ERR_NOT_FOUND when absent or expired. */
int relay_note_get(Relay *relay, const char *key, void *buf, size_t capacity, size_t *out_bytes);

/* on: every wait under way or to come on this handle returns ERR_CANCELLED; off: waits again. */
void relay_interrupt(Relay *relay, bool on);

/* The number of the server that holds the key, from 0, of *out_n (NULL: not wanted; at most
 * RELAY_MAX_SERVERS) that may each lose what it holds, notes and objects alike; 0 of them: notes
 * lie elsewhere than objects. Asks nobody; any thread may call it. */
int relay_server(const Relay *relay, const char *key, int *out_n);
/* Where server number `server` is, as messages name it: "HOST:PORT"; "" where there is none. Put
 * into out (RELAY_PLACE_BYTES), which is returned. As relay_server it asks nobody. */
const char *relay_place(const Relay *relay, int server, char *out);

/* ---- implementations ---- */
int relay_file_open(const char *directory, Relay **out_relay);

/* Memory: one store, any number of handles (threads of one process). */
typedef struct RelayMemStore RelayMemStore;
int relay_mem_store_open(RelayMemStore **out_store);
void relay_mem_store_close(RelayMemStore *store); /* after all its handles */
int relay_mem_open(RelayMemStore *store, Relay **out_relay);
/* Bound the objects of a key's edge: a put waits while `n` objects that share everything before the
 * key's last '.' and were put but never read are there (0: no bound). For tests of narrow relays.
 */
void relay_mem_store_window(RelayMemStore *store, int n);

#endif

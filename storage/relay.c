#include "storage/relay.h"

#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/relay_announced.h"
#include "storage/relay_redis.h"
#include "storage/sum.h"

static bool key_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

int relay_check_key(const char *key) {
    size_t length = strnlen(key, RELAY_KEY_BYTES);
    if (length == RELAY_KEY_BYTES)
        return err_set(ERR_ARGUMENT, "the key '%.60s...' is longer than %d characters", key,
                       RELAY_KEY_BYTES - 1);
    bool part_begins = true;
    for (size_t i = 0; i <= length; i++) {
        bool part_ends = i == length || key[i] == '/';
        if (part_begins && part_ends)
            return err_set(ERR_ARGUMENT, "the key '%s' has an empty part", key);
        if (part_begins && key[i] == '.')
            return err_set(ERR_ARGUMENT, "a part of the key '%s' begins with '.'", key);
        if (!part_ends && !key_char(key[i]))
            return err_set(ERR_ARGUMENT,
                           "a key may hold only letters, digits, '.', '_', '-' and '/': character "
                           "%zu of '%s' is none of them",
                           i + 1, key);
        part_begins = part_ends;
    }
    return 0;
}

/* ---- opening by URL ---- */

static int open_file(const char *place, bool again, Relay **out_relay) {
    (void)again;
    if (place[0] != '/')
        return err_set(ERR_ARGUMENT,
                       "the relay 'file://%s' needs an absolute directory (file:///DIRECTORY)",
                       place);
    return relay_file_open(place, out_relay);
}

static int open_redis(const char *place, bool again, Relay **out_relay) {
    (void)again;
    return relay_redis_open(place, false, out_relay);
}

static int open_rediss(const char *place, bool again, Relay **out_relay) {
    (void)again;
    return relay_redis_open(place, true, out_relay);
}

static int check_redis(const char *place) {
    return relay_redis_check(place, false);
}

static int check_rediss(const char *place) {
    return relay_redis_check(place, true);
}

typedef struct RelayScheme {
    const char *prefix;
    int (*open)(const char *place, bool again, Relay **out_relay); /* what follows the prefix */
    int (*check)(const char *place);                               /* NULL: nothing more to check */
} RelayScheme;

static const RelayScheme schemes[] = {{"file://", open_file, NULL},
                                      {"redis://", open_redis, check_redis},
                                      {"rediss://", open_rediss, check_rediss},
                                      {"s3://", relay_announced_open_s3, relay_announced_check_s3}};
enum { N_SCHEMES = sizeof schemes / sizeof schemes[0] };

/* Says which schemes there are, and never more of the URL than its scheme: a password may follow.
 */
static int unknown_scheme(const char *url) {
    char known[128] = "";
    size_t at = 0;
    for (int i = 0; i < N_SCHEMES; i++) {
        size_t length = strlen(schemes[i].prefix);
        if (at + length + 3 > sizeof known)
            break;
        if (i > 0)
            known[at++] = ' ';
        memcpy(known + at, schemes[i].prefix, length + 1);
        at += length;
    }
    const char *end = strstr(url, "://");
    if (!end || end - url > 32)
        return err_set(ERR_ARGUMENT, "the relay's URL does not begin with a scheme (known: %s)",
                       known);
    return err_set(ERR_ARGUMENT, "the relay scheme '%.*s://' is unknown (known: %s)",
                   (int)(end - url), url, known);
}

int relay_check_url(const char *url) {
    for (int i = 0; i < N_SCHEMES; i++) {
        size_t length = strlen(schemes[i].prefix);
        if (strncmp(url, schemes[i].prefix, length) == 0)
            return schemes[i].check ? schemes[i].check(url + length) : 0;
    }
    return unknown_scheme(url);
}

/* A place that does not answer while it is opened cannot be reached: nobody waits for an object
 * yet. */
static int silent_is_unreachable(int rc) {
    ErrNote note;
    if (rc != ERR_TIMEOUT)
        return rc;
    err_copy(&note);
    note.code = ERR_UNREACHABLE;
    return err_restore(&note);
}

static int open_by_scheme(const char *url, bool again, Relay **out_relay) {
    for (int i = 0; i < N_SCHEMES; i++) {
        size_t length = strlen(schemes[i].prefix);
        if (strncmp(url, schemes[i].prefix, length) == 0)
            return silent_is_unreachable(schemes[i].open(url + length, again, out_relay));
    }
    return unknown_scheme(url);
}

int relay_open(const char *url, Relay **out_relay) {
    return open_by_scheme(url, false, out_relay);
}

int relay_open_again(const char *url, Relay **out_relay) {
    return open_by_scheme(url, true, out_relay);
}

void relay_close(Relay *relay) {
    if (relay)
        relay->ops->close(relay);
}

void relay_add_up(const RelayCounters *counters, Traffic *sum) {
    const Traffic more = {.puts = counters->n_puts,
                          .gets = counters->n_gets,
                          .adds = counters->n_adds,
                          .put_bytes = counters->put_bytes,
                          .get_bytes = counters->get_bytes,
                          .add_bytes = counters->add_bytes,
                          .waits = counters->n_waits,
                          .waited_us = counters->waited_ns / CLOCK_NS_PER_US,
                          .duplicates = counters->n_duplicates,
                          .retries = counters->n_retries,
                          .notes = counters->n_notes,
                          .drops = counters->n_drops,
                          .requests = counters->n_requests,
                          .read_requests = counters->n_read_requests,
                          .write_requests = counters->n_write_requests,
                          .add_requests = counters->n_add_requests,
                          .note_requests = counters->n_note_requests,
                          .look_requests = counters->n_look_requests,
                          .drop_requests = counters->n_drop_requests,
                          .announce_requests = counters->n_announce_requests};
    traffic_add(sum, &more);
}

/* ---- operations: arguments checked here, once for all implementations ---- */

static int check_parts(const char *key, const Slice *parts, int n_parts, size_t *out_bytes) {
    if (n_parts < 0 || n_parts > RELAY_MAX_PARTS)
        return err_set(ERR_ARGUMENT, "putting '%s': %d parts (at most %d)", key, n_parts,
                       RELAY_MAX_PARTS);
    size_t bytes = 0;
    for (int i = 0; i < n_parts; i++) {
        if (parts[i].bytes > RELAY_MAX_OBJECT_BYTES - bytes)
            return err_set(ERR_LIMIT, "putting '%s': more than %zu bytes", key,
                           RELAY_MAX_OBJECT_BYTES);
        bytes += parts[i].bytes;
    }
    *out_bytes = bytes;
    return 0;
}

/* What had been counted when an operation began. */
typedef struct Before {
    int64_t n_waits, n_requests, now_ns;
} Before;

static Before before(const Relay *relay) {
    return (Before){relay->counters.n_waits, relay->counters.n_requests, clock_now_ns()};
}

/* It has ended with rc: count what it asked as requests of its kind, and its time when it waited,
 * for whatever and however often. */
static int after(Relay *relay, const Before *before, int64_t *n_of_kind, int rc) {
    RelayCounters *counters = &relay->counters;
    *n_of_kind += counters->n_requests - before->n_requests;
    if (counters->n_waits > before->n_waits) {
        counters->n_waits = before->n_waits + 1;
        counters->waited_ns += clock_now_ns() - before->now_ns;
    }
    return rc;
}

int relay_put(Relay *relay, const char *key, const Slice *parts, int n_parts, int64_t deadline_ns) {
    size_t bytes = 0;
    TRY(relay_check_key(key));
    TRY(check_parts(key, parts, n_parts, &bytes));
    Before begin = before(relay);
    int rc = after(relay, &begin, &relay->counters.n_write_requests,
                   relay->ops->put(relay, key, parts, n_parts, deadline_ns));
    if (rc < 0)
        return rc;
    relay->counters.n_puts++;
    relay->counters.put_bytes += (int64_t)bytes;
    relay->counters.n_duplicates += rc == 1;
    return rc;
}

bool relay_adds(const Relay *relay) {
    return relay->ops->add != NULL;
}

int relay_add(Relay *relay, const char *key, int index, int n, const Slice *parts, int n_parts,
              int64_t deadline_ns) {
    size_t bytes = 0;
    TRY(relay_check_key(key));
    if (!relay->ops->add)
        return err_set(ERR_UNSUPPORTED, "adding to '%s': the relay '%s' cannot sum", key,
                       relay->ops->name);
    TRY(check_parts(key, parts, n_parts, &bytes));
    TRY(sum_check_place(key, index, n, bytes));
    Before begin = before(relay);
    int rc = after(relay, &begin, &relay->counters.n_add_requests,
                   relay->ops->add(relay, key, index, n, parts, n_parts, deadline_ns));
    if (rc < 0)
        return rc;
    relay->counters.n_adds++;
    relay->counters.add_bytes += (int64_t)bytes;
    relay->counters.n_duplicates += rc == 1;
    return rc;
}

int relay_get(Relay *relay, const char *key, void *buf, size_t capacity, int64_t deadline_ns,
              size_t *out_bytes) {
    size_t bytes = 0;
    TRY(relay_check_key(key));
    Before begin = before(relay);
    TRY(after(relay, &begin, &relay->counters.n_read_requests,
              relay->ops->get(relay, key, buf, capacity, deadline_ns, &bytes)));
    relay->counters.n_gets++;
    relay->counters.get_bytes += (int64_t)bytes;
    *out_bytes = bytes;
    return 0;
}

int relay_get_buf(Relay *relay, const char *key, Buf *buf, int64_t deadline_ns) {
    size_t bytes = 0;
    TRY(relay_check_key(key));
    Before begin = before(relay);
    TRY(after(relay, &begin, &relay->counters.n_read_requests,
              relay->ops->size(relay, key, deadline_ns, &bytes)));
    buf_clear(buf);
    int rc = buf_reserve(buf, bytes);
    if (rc < 0)
        return err_context(rc, "the object '%s'", key);
    /* An object never changes: if it is larger now, it was dropped and made anew, and that fails.
     */
    TRY(relay_get(relay, key, buf->data, bytes, deadline_ns, &bytes));
    buf->bytes = bytes;
    buf->data[bytes] = '\0';
    return 0;
}

int relay_has(Relay *relay, const char *key) {
    TRY(relay_check_key(key));
    Before begin = before(relay);
    return after(relay, &begin, &relay->counters.n_look_requests, relay->ops->has(relay, key));
}

int relay_drop(Relay *relay, const char *const *prefixes, int n_prefixes, int64_t *out_dropped) {
    int64_t dropped = 0;
    if (n_prefixes < 0 || n_prefixes > RELAY_MAX_PREFIXES)
        return err_set(ERR_ARGUMENT, "dropping %d prefixes at once (at most %d)", n_prefixes,
                       RELAY_MAX_PREFIXES);
    for (int i = 0; i < n_prefixes; i++)
        TRY(relay_check_key(prefixes[i]));
    if (n_prefixes > 0) {
        Before begin = before(relay);
        TRY(after(relay, &begin, &relay->counters.n_drop_requests,
                  relay->ops->drop(relay, prefixes, n_prefixes, &dropped)));
        relay->counters.n_drops++;
    }
    if (out_dropped)
        *out_dropped = dropped;
    return 0;
}

int relay_drop_one(Relay *relay, const char *prefix, int64_t *out_dropped) {
    return relay_drop(relay, &prefix, 1, out_dropped);
}

int relay_count(Relay *relay, const char *prefix, int64_t *out_count) {
    int64_t count = 0;
    if (prefix[0])
        TRY(relay_check_key(prefix));
    Before begin = before(relay);
    TRY(after(relay, &begin, &relay->counters.n_look_requests,
              relay->ops->count(relay, prefix, &count)));
    *out_count = count;
    return 0;
}

void relay_tidy(Relay *relay, const char *prefix) {
    if (!relay->ops->tidy)
        return;
    Before begin = before(relay);
    relay->ops->tidy(relay, prefix);
    (void)after(relay, &begin, &relay->counters.n_drop_requests, 0);
}

int relay_note_put(Relay *relay, const char *key, const void *data, size_t bytes, int64_t ttl_ms) {
    TRY(relay_check_key(key));
    if (bytes > RELAY_NOTE_MAX_BYTES)
        return err_set(ERR_LIMIT, "the note '%s' has %zu bytes (at most %d)", key, bytes,
                       RELAY_NOTE_MAX_BYTES);
    if (ttl_ms <= 0)
        return err_set(ERR_ARGUMENT, "the note '%s' is to live %lld ms (at least 1)", key,
                       (long long)ttl_ms);
    Before begin = before(relay);
    TRY(after(relay, &begin, &relay->counters.n_note_requests,
              relay->ops->note_put(relay, key, data, bytes, ttl_ms)));
    relay->counters.n_notes++;
    return 0;
}

int relay_note_get(Relay *relay, const char *key, void *buf, size_t capacity, size_t *out_bytes) {
    TRY(relay_check_key(key));
    Before begin = before(relay);
    TRY(after(relay, &begin, &relay->counters.n_note_requests,
              relay->ops->note_get(relay, key, buf, capacity, out_bytes)));
    relay->counters.n_notes++;
    return 0;
}

int relay_server(const Relay *relay, const char *key, int *out_n) {
    int n = 1;
    int server = relay->ops->server ? relay->ops->server(relay, key, &n) : 0;
    if (out_n)
        *out_n = n;
    return server;
}

const char *relay_place(const Relay *relay, int server, char *out) {
    out[0] = '\0';
    if (relay->ops->place)
        relay->ops->place(relay, server, out, RELAY_PLACE_BYTES);
    return out;
}

void relay_interrupt(Relay *relay, bool on) {
    relay->ops->interrupt(relay, on);
}

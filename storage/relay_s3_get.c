/* Getting from the S3 relay: asking when it is due, then the rest of what is long. */
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/relay_s3_parts.h"

enum {
    MAX_CHANGES = 5,       /* how often an object may be another one between two ranges */
    SHORT_BYTES = 64 << 10 /* takes hardly longer to come than nothing */
};
#define MOST_AGE_US (24 * 3600 * INT64_C(1000000)) /* of one that is waited for */

typedef struct Get {
    const char *key;
    char *out;
    size_t capacity;
    bool sizes; /* only the size is wanted: too small an `out` is no error */
    bool whole; /* ask for no range */
    int64_t deadline_ns, begin_ns;
    int64_t missed_ns; /* when it was asked for last and not there; 0 never */
    bool waited;
    size_t have;   /* read so far, from the beginning */
    int64_t total; /* of the object */
    char tag[S3_TAG_BYTES];
} Get;

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static S3Limits limits_of(const Get *get) {
    return (S3Limits){.retry_until_ns = get->deadline_ns,
                      .answer_by_ns = larger(clock_deadline_ms(S3_GRACE_MS), get->deadline_ns)};
}

static int too_long(const Get *get) {
    return err_set(ERR_LIMIT, "the object '%s' has %lld bytes, the buffer %zu", get->key,
                   (long long)get->total, get->capacity);
}

static int nonsense(const RelayS3 *s3, const Get *get, const char *what) {
    return err_set(ERR_CORRUPT, "the object '%s': the S3 store %s %s", get->key, s3->url.host,
                   what);
}

/* An answer 200 or 206 to a question for the first `asked` bytes. */
static int take_first(const RelayS3 *s3, Get *get, const S3Answer *answer, size_t asked) {
    get->total = answer->total_bytes;
    if (get->total < 0 && answer->status == 200 && !answer->too_long)
        get->total = (int64_t)answer->bytes;
    if (get->total < 0)
        return nonsense(s3, get, "does not say how long it is");
    if ((uint64_t)get->total > RELAY_MAX_OBJECT_BYTES)
        return err_set(ERR_LIMIT, "the object '%s' has %lld bytes", get->key,
                       (long long)get->total);
    if ((uint64_t)get->total > get->capacity && !get->sizes)
        return too_long(get);
    size_t expected = (uint64_t)get->total < asked ? (size_t)get->total : asked;
    get->have = answer->too_long ? 0 : answer->bytes;
    if (get->have != expected && !answer->too_long)
        return nonsense(s3, get, "gave another part of it than was asked for");
    memcpy(get->tag, answer->tag, sizeof get->tag);
    return 1;
}

/* What the answer teaches about when to ask. */
static void learn(RelayS3 *s3, const Get *get, const S3Answer *answer) {
    int64_t took_ns = clock_now_ns() - answer->sent_ns;
    if (answer->status == 404 || answer->bytes <= SHORT_BYTES)
        s3_rhythm_trip(s3->rhythm, took_ns);
    if (answer->status == 404 || answer->stamp_us == 0)
        return; /* a store that keeps no time beside an object is asked from the beginning */
    int64_t age_us = answer->sent_us - answer->stamp_us; /* stamp_us > 0, whatever a store says */
    if (age_us >= MOST_AGE_US || age_us <= -MOST_AGE_US)
        return;
    S3Wait wait = {.found_ns = answer->sent_ns - get->begin_ns,
                   .missed = get->missed_ns > 0,
                   .missed_ns = get->missed_ns - get->begin_ns,
                   .age_ns = age_us * CLOCK_NS_PER_US};
    s3_rhythm_learn(s3->rhythm, get->key, &wait);
}

/* Is it there? 1 with its first bytes read, 0 not. */
static int ask(RelayS3 *s3, Get *get) {
    S3Name name = relay_s3_name(s3, 'o', get->key);
    S3Limits limits = limits_of(get);
    bool ranged = (get->sizes || get->capacity > S3_PIECE_BYTES) && !get->whole;
    size_t asked = get->capacity < S3_PIECE_BYTES || !ranged ? get->capacity : S3_PIECE_BYTES;
    S3Request request = {.method = "GET",
                         .name = name.text,
                         .end_byte = ranged ? (int64_t)asked : 0,
                         .out = get->out,
                         .capacity = asked};
    TRY(s3_client_run(s3->client, &request, 1, &limits));
    switch (request.answer.status) {
    case 200:
    case 206:
        learn(s3, get, &request.answer);
        return take_first(s3, get, &request.answer, asked);
    case 404:
        learn(s3, get, &request.answer);
        get->missed_ns = request.answer.sent_ns;
        return 0;
    case 416: /* an empty object has no range */
        if (ranged) {
            get->whole = true;
            return ask(s3, get);
        }
        return relay_s3_odd(s3, &request.answer);
    default:
        return relay_s3_odd(s3, &request.answer);
    }
}

static void count_wait(RelayS3 *s3, Get *get) {
    s3->base.counters.n_waits += !get->waited;
    get->waited = true;
}

/* One question within a wait: 1 there, 0 not. */
static int ask_in_wait(RelayS3 *s3, Get *get) {
    bool late = clock_now_ns() >= get->deadline_ns;
    bool interrupted = atomic_load(&s3->interrupted);
    int rc = ask(s3, get);
    if (rc != 0 && rc != ERR_CANCELLED)
        return rc;
    count_wait(s3, get);
    if (interrupted || rc == ERR_CANCELLED)
        return err_set(ERR_CANCELLED, "waiting for '%s' was interrupted", get->key);
    if (late)
        return err_set(ERR_TIMEOUT, "'%s' is not in the relay at %s, and the deadline passed",
                       get->key, s3->url.host);
    return 0;
}

/* Not before it is due, and not too soon after the last question. */
static int64_t next_question(const RelayS3 *s3, const Get *get) {
    int64_t due_ns = get->begin_ns + s3_rhythm_due_ns(s3->rhythm, get->key);
    if (get->missed_ns == 0)
        return due_ns;
    int64_t pause_ns = s3_rhythm_pause_ns(s3->rhythm, get->key, get->missed_ns - get->begin_ns);
    return larger(due_ns, get->missed_ns + pause_ns);
}

/* Wait until it is there and its first bytes are read. Who comes back after a deadline has been
 * waiting all the while. */
static int await(RelayS3 *s3, Get *get) {
    if (strcmp(s3->asked_key, get->key) == 0) {
        get->begin_ns = s3->asked_ns;
        get->missed_ns = s3->asked_missed_ns;
    }
    s3->asked_key[0] = '\0';
    for (int rc = 0; rc == 0;) {
        int64_t next_ns = next_question(s3, get);
        int64_t now_ns = clock_now_ns();
        if (next_ns > now_ns && now_ns < get->deadline_ns) {
            s3_client_pause(s3->client, next_ns, get->deadline_ns);
            count_wait(s3, get);
        }
        rc = ask_in_wait(s3, get);
        if (rc == ERR_TIMEOUT || rc == ERR_CANCELLED) {
            memcpy(s3->asked_key, get->key, strlen(get->key) + 1);
            s3->asked_ns = get->begin_ns;
            s3->asked_missed_ns = get->missed_ns;
        }
        TRY(rc);
    }
    return 0;
}

/* All of it, from the beginning or behind get->have bytes. */
static int get_all(RelayS3 *s3, Get *get) {
    for (int n_changes = 0; n_changes < MAX_CHANGES; n_changes++) {
        if (get->have == 0)
            TRY(await(s3, get));
        if ((uint64_t)get->total > get->capacity)
            return too_long(get);
        if (get->have == (size_t)get->total)
            return 0;
        S3Limits limits = {.retry_until_ns = get->deadline_ns, .answer_by_ns = CLOCK_NEVER};
        int rc = relay_s3_get_rest(s3, get->key, get->tag, get->out, get->have, (size_t)get->total,
                                   &limits);
        if (rc != 0)
            return rc < 0 ? rc : 0;
        get->have = 0;
        get->whole = false;
    }
    return nonsense(s3, get, "gave ranges of different objects");
}

static int named(const Get *get, int rc) {
    bool says_key = rc == ERR_LIMIT || rc == ERR_CORRUPT ||
                    ((rc == ERR_TIMEOUT || rc == ERR_CANCELLED) && strstr(err_text(), get->key));
    return rc < 0 && !says_key ? err_context(rc, "getting '%s'", get->key) : rc;
}

int relay_s3_get(Relay *relay, const char *key, void *buf, size_t capacity, int64_t deadline_ns,
                 size_t *out_bytes) {
    RelayS3 *s3 = (RelayS3 *)relay;
    Get get = {.key = key,
               .out = buf,
               .capacity = capacity,
               .deadline_ns = deadline_ns,
               .begin_ns = clock_now_ns()};
    bool held = strcmp(s3->held_key, key) == 0;
    s3->held_key[0] = '\0';
    if (held) {
        get.total = s3->held_total;
        get.have = s3->held_bytes < capacity ? s3->held_bytes : capacity;
        if (get.have > 0)
            memcpy(buf, s3->held, get.have);
        memcpy(get.tag, s3->held_tag, sizeof get.tag);
    }
    int rc = held && get.total == 0 ? 0 : get_all(s3, &get);
    if (rc < 0)
        return named(&get, rc);
    *out_bytes = (size_t)get.total;
    return 0;
}

int relay_s3_size(Relay *relay, const char *key, int64_t deadline_ns, size_t *out_bytes) {
    RelayS3 *s3 = (RelayS3 *)relay;
    Get get = {.key = key,
               .out = s3->held,
               .capacity = S3_HELD_BYTES,
               .sizes = true,
               .deadline_ns = deadline_ns,
               .begin_ns = clock_now_ns()};
    s3->held_key[0] = '\0';
    int rc = await(s3, &get);
    if (rc < 0)
        return named(&get, rc);
    memcpy(s3->held_key, key, strlen(key) + 1);
    memcpy(s3->held_tag, get.tag, sizeof s3->held_tag);
    s3->held_total = get.total;
    s3->held_bytes = get.have;
    *out_bytes = (size_t)get.total;
    return 0;
}

/* Getting from the S3 relay: asking when it is due, then the rest of what is long. */
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/relay_s3_parts.h"

enum { MAX_CHANGES = 5 }; /* how often an object may be another one between two ranges */

typedef struct Get {
    const char *key;
    char *out;
    size_t capacity;
    bool sizes; /* only the size is wanted: too small an `out` is no error */
    bool whole; /* ask for no range */
    int64_t deadline_ns, begin_ns;
    bool waited;
    size_t have;   /* read so far, from the beginning */
    int64_t total; /* of the object */
    char tag[S3_TAG_BYTES];
} Get;

static S3Limits limits_of(const Get *get) {
    int64_t grace_ns = clock_deadline_ms(S3_GRACE_MS);
    return (S3Limits){.retry_until_ns = get->deadline_ns,
                      .answer_by_ns = grace_ns > get->deadline_ns ? grace_ns : get->deadline_ns};
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

/* Is it there? 1 with its first bytes read, 0 not. *out_sent_ns: when the question went. */
static int ask(RelayS3 *s3, Get *get, int64_t *out_sent_ns) {
    S3Name name = relay_s3_name(s3, 'o', get->key);
    S3Limits limits = limits_of(get);
    bool ranged = (get->sizes || get->capacity > S3_PIECE_BYTES) && !get->whole;
    size_t asked = get->capacity < S3_PIECE_BYTES || !ranged ? get->capacity : S3_PIECE_BYTES;
    S3Request request = {.method = "GET",
                         .name = name.text,
                         .end_byte = ranged ? (int64_t)asked : 0,
                         .out = get->out,
                         .capacity = asked,
                         .reads = true};
    TRY(s3_client_run(s3->client, &request, 1, &limits));
    *out_sent_ns = request.answer.sent_ns;
    switch (request.answer.status) {
    case 200:
    case 206:
        return take_first(s3, get, &request.answer, asked);
    case 404:
        return 0;
    case 416: /* an empty object has no range */
        if (ranged) {
            get->whole = true;
            return ask(s3, get, out_sent_ns);
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

/* Wait until it is there and its first bytes are read. */
static int await(RelayS3 *s3, Get *get) {
    int64_t due_ns = get->begin_ns + s3_rhythm_due_ns(s3->rhythm, get->key);
    int64_t first_ns = 0;
    if (due_ns > get->begin_ns && !get->waited && clock_now_ns() < get->deadline_ns) {
        s3_client_pause(s3->client, due_ns, get->deadline_ns);
        count_wait(s3, get);
    }
    for (int n_misses = 0;; n_misses++) {
        int64_t sent_ns = 0;
        bool late = clock_now_ns() >= get->deadline_ns;
        bool interrupted = atomic_load(&s3->interrupted);
        int rc = ask(s3, get, &sent_ns);
        if (rc == ERR_CANCELLED)
            interrupted = true;
        else if (rc < 0)
            return rc;
        int64_t waited_ns = sent_ns - get->begin_ns;
        first_ns = n_misses == 0 ? waited_ns : first_ns;
        if (rc > 0) {
            s3_rhythm_learn(s3->rhythm, get->key, first_ns, waited_ns, n_misses);
            return 0;
        }
        count_wait(s3, get);
        if (interrupted)
            return err_set(ERR_CANCELLED, "waiting for '%s' was interrupted", get->key);
        if (late)
            return err_set(ERR_TIMEOUT, "'%s' is not in the relay at %s, and the deadline passed",
                           get->key, s3->url.host);
        int64_t pause_ns = s3_rhythm_pause_ns(s3->rhythm, get->key, waited_ns, n_misses + 1);
        s3_client_pause(s3->client, clock_now_ns() + pause_ns, get->deadline_ns);
    }
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
        S3Limits limits = limits_of(get);
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

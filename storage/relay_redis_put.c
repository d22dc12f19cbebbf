/* Putting into the Redis relay: one transaction for all but the longest objects. */
#include <stdio.h>
#include <string.h>

#include "core/err.h"
#include "storage/relay_redis_parts.h"

enum {
    ATOMIC_BYTES = 256 << 20, /* of pieces put in one transaction */
    WINDOW_PIECES = 64,
    MOST_MORE_MS = 3600 * 1000 /* that pieces live beyond their entry: it comes behind them */
};

typedef struct Put {
    const char *key;
    const Slice *parts;
    int n_parts;
    size_t bytes;
    bool duplicate;
    bool replaces; /* an entry whose pieces are not all there */
    char token[32];
    int64_t n_pieces, piece_bytes;
} Put;

/* An answer to XADD: was there an entry already? */
static int read_added(const RedisTalk *talk, const RedisReply *reply, bool *out_duplicate) {
    *out_duplicate = redis_kind(reply) == REDIS_ERROR &&
                     strstr(redis_text(reply).data, "equal or smaller") != NULL;
    return *out_duplicate ? 0 : redis_check(talk, reply);
}

/* The parts of the object that fall into [begin, end): their number in `out`. */
static int cut_parts(const Put *put, size_t begin, size_t end, Slice out[RELAY_MAX_PARTS]) {
    int n = 0;
    size_t at = 0;
    for (int i = 0; i < put->n_parts; i++) {
        size_t from = begin > at ? begin - at : 0;
        size_t to = end > at ? end - at : 0;
        to = to < put->parts[i].bytes ? to : put->parts[i].bytes;
        if (from < to)
            out[n++] = (Slice){(const char *)put->parts[i].data + from, to - from};
        at += put->parts[i].bytes;
    }
    return n;
}

static void piece_ttl(const RelayRedis *redis, char *out, size_t bytes) {
    int64_t ttl_ms = redis->url.ttl_ms;
    int64_t more_ms = ttl_ms / 4 < MOST_MORE_MS ? ttl_ms / 4 : MOST_MORE_MS;
    snprintf(out, bytes, "%lld",
             (long long)(ttl_ms < INT64_MAX - more_ms ? ttl_ms + more_ms : ttl_ms));
}

static int ask_piece(RelayRedis *redis, RedisTalk *talk, const Put *put, int64_t index) {
    Slice parts[RELAY_MAX_PARTS];
    char ttl[24];
    RedisName name = relay_redis_piece_name(redis, put->key, put->token, index);
    size_t begin = (size_t)(index * put->piece_bytes);
    size_t end = begin + (size_t)put->piece_bytes;
    int n = cut_parts(put, begin, end < put->bytes ? end : put->bytes, parts);
    piece_ttl(redis, ttl, sizeof ttl);
    const char *const before[] = {"SET", name.text};
    const char *const after[] = {"PX", ttl};
    return redis_ask_value(talk, 2, before, parts, n, 2, after);
}

/* One transaction: pieces [first_piece, n_pieces), the entry, its time to live. Also of an entry
 * that is there: who puts again wants it to stay. */
static int ask_entry(RelayRedis *redis, RedisTalk *talk, const Put *put, int64_t first_piece) {
    char text[128];
    char ttl[24];
    RedisName name = relay_redis_name(redis, 'o', put->key);
    const char *const before[] = {"XADD", name.text, "1-1", "d"};
    snprintf(ttl, sizeof ttl, "%lld", (long long)redis->url.ttl_ms);
    snprintf(text, sizeof text, "%s %lld %lld %zu", put->token, (long long)put->n_pieces,
             (long long)put->piece_bytes, put->bytes);
    TRY(REDIS_ASK(talk, "MULTI"));
    for (int64_t i = first_piece; i < put->n_pieces; i++)
        TRY(ask_piece(redis, talk, put, i));
    if (put->replaces)
        TRY(REDIS_ASK(talk, "UNLINK", name.text));
    TRY(put->n_pieces ? REDIS_ASK(talk, "XADD", name.text, "1-1", "m", text)
                      : redis_ask_value(talk, 4, before, put->parts, put->n_parts, 0, NULL));
    TRY(REDIS_ASK(talk, "PEXPIRE", name.text, ttl));
    return REDIS_ASK(talk, "EXEC");
}

/* Take n answers, and put the first error of the server, if any, into *out_said. */
static int expect(RedisTalk *talk, int64_t n, int64_t deadline_ns, ErrNote *out_said) {
    out_said->code = 0;
    for (int64_t i = 0; i < n; i++) {
        RedisReply *reply = NULL;
        TRY(redis_answer(talk, deadline_ns, false, &reply));
        if (redis_check(talk, reply) < 0 && out_said->code == 0)
            err_copy(out_said);
        redis_free(reply);
    }
    return 0;
}

static int drop_pieces(RelayRedis *redis, RedisTalk *talk, const char *key, const char *token,
                       int64_t n_pieces, int64_t deadline_ns) {
    ErrNote said;
    for (int64_t i = 0; i < n_pieces; i++)
        TRY(REDIS_ASK(talk, "UNLINK", relay_redis_piece_name(redis, key, token, i).text));
    TRY(redis_send(talk, deadline_ns));
    return expect(talk, n_pieces, deadline_ns, &said);
}

/* The answer to EXEC of ask_entry: those of n commands, the last two XADD and PEXPIRE. */
static int read_exec(const RedisTalk *talk, const RedisReply *reply, size_t n, Put *put) {
    TRY(redis_check(talk, reply));
    if (redis_count(reply) != n)
        return err_set(ERR_CORRUPT, "an answer of another form to a transaction");
    for (size_t i = 0; i < n; i++) {
        if (i + 2 == n)
            TRY(read_added(talk, redis_at(reply, i), &put->duplicate));
        else
            TRY(redis_check(talk, redis_at(reply, i)));
    }
    return 0;
}

/* When memory is short, EXEC refuses all. */
static int put_entry(RelayRedis *redis, RedisTalk *talk, Put *put, int64_t first_piece,
                     int64_t deadline_ns) {
    int64_t n = put->n_pieces - first_piece + put->replaces + 2;
    RedisReply *reply = NULL;
    ErrNote said;
    TRY(ask_entry(redis, talk, put, first_piece));
    TRY(redis_send(talk, deadline_ns));
    TRY(expect(talk, n + 1, deadline_ns, &said)); /* OK, and QUEUED for each */
    TRY(redis_answer(talk, deadline_ns, false, &reply));
    int rc = said.code < 0 ? err_restore(&said) : read_exec(talk, reply, (size_t)n, put);
    redis_free(reply);
    return rc;
}

/* What is too long for one transaction: pieces, a window at a time. */
static int put_windows(RelayRedis *redis, RedisTalk *talk, const Put *put, int64_t deadline_ns) {
    ErrNote said;
    for (int64_t i = 0; i < put->n_pieces;) {
        int64_t n = 0;
        for (; i < put->n_pieces && n * put->piece_bytes < ATOMIC_BYTES && n < WINDOW_PIECES; n++)
            TRY(ask_piece(redis, talk, put, i++));
        TRY(redis_send(talk, deadline_ns));
        TRY(expect(talk, n, deadline_ns, &said));
        if (said.code < 0)
            return err_restore(&said);
    }
    return 0;
}

/* ---- an entry that was there ---- */

/* The manifest in an answer to XRANGE: 1; 0: the entry is gone, or is its object itself. */
static int read_entry(const RedisTalk *talk, const char *key, const RedisReply *reply,
                      RedisManifest *manifest) {
    TRY(redis_check(talk, reply));
    for (size_t depth = 0; depth < 2; depth++) { /* the one entry, its fields */
        if (redis_count(reply) <= depth)
            return 0;
        reply = redis_at(reply, depth);
    }
    if (redis_count(reply) != 2 || redis_kind(redis_at(reply, 0)) != REDIS_TEXT ||
        redis_kind(redis_at(reply, 1)) != REDIS_TEXT ||
        strcmp(redis_text(redis_at(reply, 0)).data, "m") != 0)
        return 0;
    TRY(relay_redis_read_manifest(key, redis_text(redis_at(reply, 1)), manifest));
    return 1;
}

/* Let the pieces live on as their entry does: 1 all are there, 0 not. */
static int renew_pieces(RelayRedis *redis, RedisTalk *talk, const char *key,
                        const RedisManifest *manifest, int64_t deadline_ns) {
    char ttl[24];
    int all = 1;
    piece_ttl(redis, ttl, sizeof ttl);
    for (int64_t first = 0; first < manifest->n_pieces && all; first += WINDOW_PIECES) {
        int64_t end = first + WINDOW_PIECES;
        end = end < manifest->n_pieces ? end : manifest->n_pieces;
        for (int64_t i = first; i < end; i++) {
            RedisName name = relay_redis_piece_name(redis, key, manifest->token, i);
            TRY(REDIS_ASK(talk, "PEXPIRE", name.text, ttl));
        }
        TRY(redis_send(talk, deadline_ns));
        for (int64_t i = first; i < end; i++) {
            RedisReply *reply = NULL;
            TRY(redis_answer(talk, deadline_ns, false, &reply));
            all &= redis_kind(reply) == REDIS_INTEGER && redis_integer(reply) == 1;
            redis_free(reply);
        }
    }
    return all;
}

/* Another was first. Its pieces are to live as long as its entry, which this put has renewed; where
 * one is gone, the object is none, and ours, whose pieces are there, takes its place. */
static int keep_first(RelayRedis *redis, RedisTalk *talk, Put *put, int64_t deadline_ns) {
    RedisName name = relay_redis_name(redis, 'o', put->key);
    RedisReply *reply = NULL;
    RedisManifest manifest;
    TRY(REDIS_ASK(talk, "XRANGE", name.text, "-", "+", "COUNT", "1"));
    TRY(redis_send(talk, deadline_ns));
    TRY(redis_answer(talk, deadline_ns, false, &reply));
    int there = read_entry(talk, put->key, reply, &manifest);
    redis_free(reply);
    if (there <= 0)
        return there;
    int all = renew_pieces(redis, talk, put->key, &manifest, deadline_ns);
    if (all != 0)
        return all;
    put->replaces = true;
    TRY(put_entry(redis, talk, put, put->n_pieces, deadline_ns));
    return drop_pieces(redis, talk, put->key, manifest.token, manifest.n_pieces, deadline_ns);
}

static int put_once(RelayRedis *redis, int server, void *arg, int64_t deadline_ns) {
    Put *put = arg;
    RedisTalk *talk = redis->talks[server];
    int64_t max = redis->about[server].max_bulk_bytes;
    put->replaces = false;
    if (put->bytes <= REDIS_INLINE_BYTES)
        return put_entry(redis, talk, put, 0, deadline_ns);
    put->piece_bytes = max < REDIS_PIECE_BYTES ? max : REDIS_PIECE_BYTES;
    put->n_pieces = ((int64_t)put->bytes + put->piece_bytes - 1) / put->piece_bytes;
    /* Another token at every try: the last one's entry may be there although no answer came. */
    snprintf(put->token, sizeof put->token, "%016llx%llx", (unsigned long long)redis->random,
             (unsigned long long)redis->n_tokens++);
    bool atomic = put->bytes <= ATOMIC_BYTES;
    int rc = atomic ? 0 : put_windows(redis, talk, put, deadline_ns);
    if (rc >= 0)
        rc = put_entry(redis, talk, put, atomic ? 0 : put->n_pieces, deadline_ns);
    if (rc >= 0 && put->duplicate)
        rc = keep_first(redis, talk, put, deadline_ns);
    if ((rc >= 0 && !put->duplicate) || !redis_talk_quiet(talk))
        return rc;
    ErrNote said; /* pieces may be there that nobody will ask for */
    err_copy(&said);
    int dropped = drop_pieces(redis, talk, put->key, put->token, put->n_pieces, deadline_ns);
    return rc < 0 ? err_restore(&said) : dropped;
}

int relay_redis_put(Relay *relay, const char *key, const Slice *parts, int n_parts,
                    int64_t deadline_ns) {
    RelayRedis *redis = (RelayRedis *)relay;
    Put put = {.key = key, .parts = parts, .n_parts = n_parts};
    for (int i = 0; i < n_parts; i++)
        put.bytes += parts[i].bytes;
    int rc =
        relay_redis_attempt(redis, relay_redis_server(redis, key), put_once, &put, deadline_ns, 0);
    return rc < 0 ? err_context(rc, "putting '%s'", key) : put.duplicate;
}

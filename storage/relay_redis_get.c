/* Getting from the Redis relay: one XREAD that waits in the server, then the pieces of what is
 * long.
 */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/relay_redis_parts.h"

enum {
    STALL_MS = 10000, /* the longest wait for the next bytes of what is there */
    BLOCK_MS = 20000, /* of one XREAD BLOCK: a dead server is noticed soon after */
    GRACE_MS = 5000,  /* for an answer beyond its BLOCK, and for what is there after a deadline */
    INCOMPLETE_MS = 300, /* an entry without pieces for this long is broken */
    LOOK_AGAIN_MS = 20,
    WINDOW_PIECES = 64
};

typedef struct Get {
    const char *key;
    void *out;
    size_t capacity, bytes;
    Buf *held; /* instead of `out`: only the size is wanted, and what came along is kept here */
    bool waited, found;
    bool incomplete; /* the entry is there and pieces are not: it is being dropped, or broken */
    int64_t deadline_ns;
} Get;

static int too_long(const Get *get, int64_t bytes) {
    return err_set(ERR_LIMIT, "the object '%s' has %lld bytes, the buffer %zu", get->key,
                   (long long)bytes, get->capacity);
}

static int take_inline(Get *get, Slice content) {
    if (get->held) {
        buf_clear(get->held);
        TRY(buf_add(get->held, content.data, content.bytes));
    } else if (content.bytes > get->capacity) {
        return too_long(get, (int64_t)content.bytes);
    } else if (content.bytes > 0) {
        memcpy(get->out, content.data, content.bytes);
    }
    get->bytes = content.bytes;
    get->found = true;
    return 0;
}

int relay_redis_read_manifest(const char *key, Slice text, RedisManifest *manifest) {
    int end = -1;
    if (text.bytes < 120 &&
        sscanf(text.data, "%39[0-9a-f] %lld %lld %lld%n", manifest->token, &manifest->n_pieces,
               &manifest->piece_bytes, &manifest->bytes, &end) == 4 &&
        (size_t)end == text.bytes && manifest->bytes > 0 &&
        (unsigned long long)manifest->bytes <= RELAY_MAX_OBJECT_BYTES &&
        manifest->piece_bytes >= REDIS_LEAST_PIECE_BYTES &&
        manifest->piece_bytes <= REDIS_PIECE_BYTES &&
        manifest->n_pieces == (manifest->bytes + manifest->piece_bytes - 1) / manifest->piece_bytes)
        return 0;
    return err_set(ERR_CORRUPT, "the object '%s': its entry is nonsense", key);
}

/* Piece i of an object: its size. */
static size_t piece_size(const RedisManifest *manifest, long long i) {
    long long left = manifest->bytes - i * manifest->piece_bytes;
    return (size_t)(left < manifest->piece_bytes ? left : manifest->piece_bytes);
}

/* Are the pieces [first, end) there, with their sizes? 1 or 0. */
static int check_pieces(RelayRedis *redis, RedisTalk *talk, const Get *get,
                        const RedisManifest *manifest, long long first, long long end) {
    int all = 1;
    int wrong = 0;
    for (long long i = first; i < end; i++)
        TRY(REDIS_ASK(talk, "STRLEN",
                      relay_redis_piece_name(redis, get->key, manifest->token, i).text));
    TRY(redis_send(talk, clock_deadline_ms(STALL_MS)));
    for (long long i = first; i < end; i++) {
        RedisReply *reply = NULL;
        TRY(redis_answer(talk, clock_deadline_ms(STALL_MS), false, &reply));
        int rc = redis_check(talk, reply);
        if (rc >= 0 && redis_integer(reply) == 0)
            all = 0;
        else if (rc >= 0 && redis_integer(reply) != (int64_t)piece_size(manifest, i))
            rc = err_set(ERR_CORRUPT, "the object '%s': piece %lld has another size", get->key, i);
        wrong = wrong < 0 ? wrong : rc;
        redis_free(reply);
    }
    return wrong < 0 ? wrong : all;
}

static int read_pieces(RelayRedis *redis, RedisTalk *talk, const Get *get,
                       const RedisManifest *manifest, long long first, long long end) {
    int all = 1;
    for (long long i = first; i < end; i++)
        TRY(REDIS_ASK(talk, "GET",
                      relay_redis_piece_name(redis, get->key, manifest->token, i).text));
    TRY(redis_send(talk, clock_deadline_ms(STALL_MS)));
    for (long long i = first; i < end; i++) {
        int rc = redis_answer_value(talk, (char *)get->out + i * manifest->piece_bytes,
                                    piece_size(manifest, i), STALL_MS);
        TRY(rc);
        all &= rc;
    }
    return all;
}

static int take_long(RelayRedis *redis, RedisTalk *talk, Get *get, Slice text) {
    RedisManifest manifest;
    TRY(relay_redis_read_manifest(get->key, text, &manifest));
    if (!get->held && (unsigned long long)manifest.bytes > get->capacity)
        return too_long(get, manifest.bytes);
    for (long long first = 0; first < manifest.n_pieces; first += WINDOW_PIECES) {
        long long end = first + WINDOW_PIECES;
        end = end < manifest.n_pieces ? end : manifest.n_pieces;
        /* The caller takes memory for what we say: it must be there. */
        int all = get->held ? check_pieces(redis, talk, get, &manifest, first, end)
                            : read_pieces(redis, talk, get, &manifest, first, end);
        TRY(all);
        if (!all) {
            get->incomplete = true;
            return 0;
        }
    }
    get->bytes = (size_t)manifest.bytes;
    get->found = true;
    return 0;
}

/* An answer to XREAD: [[name, [[id, [field, content]]]]], or nil. */
static int take_entry(RelayRedis *redis, RedisTalk *talk, Get *get, const RedisReply *reply) {
    TRY(redis_check(talk, reply));
    if (redis_kind(reply) == REDIS_NIL)
        return 0;
    for (int depth = 0; depth < 4; depth++) {
        size_t index =
            (size_t)depth % 2; /* the one stream, its entries, the one entry, its fields */
        if (redis_count(reply) <= index)
            return err_set(ERR_CORRUPT, "the object '%s': an answer of another form", get->key);
        reply = redis_at(reply, index);
    }
    if (redis_count(reply) != 2 || redis_kind(redis_at(reply, 0)) != REDIS_TEXT ||
        redis_kind(redis_at(reply, 1)) != REDIS_TEXT)
        return err_set(ERR_CORRUPT, "the object '%s': its entry is nonsense", get->key);
    const char *field = redis_text(redis_at(reply, 0)).data;
    Slice content = redis_text(redis_at(reply, 1));
    if (strcmp(field, "d") == 0)
        return take_inline(get, content);
    if (strcmp(field, "m") == 0)
        return take_long(redis, talk, get, content);
    return err_set(ERR_CORRUPT, "the object '%s': its entry is nonsense", get->key);
}

/* Is it there already? Also counts the wait. */
static int look_first(RelayRedis *redis, RedisTalk *talk, Get *get, int64_t deadline_ns) {
    RedisReply *reply = NULL;
    TRY(redis_answer(talk, deadline_ns, true, &reply));
    bool there = redis_kind(reply) == REDIS_INTEGER && redis_integer(reply) > 0;
    redis_free(reply);
    redis->base.counters.n_waits += !there && !get->waited;
    get->waited |= !there;
    return 0;
}

/* Look once, waiting at most BLOCK_MS. */
static int get_once(RelayRedis *redis, int server, void *arg, int64_t deadline_ns) {
    Get *get = arg;
    RedisTalk *talk = redis->talks[server];
    RedisName name = relay_redis_name(redis, 'o', get->key);
    RedisReply *reply = NULL;
    char block[24];
    int64_t left_ms = (get->deadline_ns - clock_now_ns()) / CLOCK_NS_PER_MS + 1;
    bool waits = get->deadline_ns > clock_now_ns() && !atomic_load(&redis->interrupted);
    int64_t block_ms = left_ms < BLOCK_MS ? left_ms : BLOCK_MS;
    int64_t until_ns = clock_deadline_ms((waits ? block_ms : 0) + GRACE_MS);
    (void)deadline_ns; /* of all tries */
    get->incomplete = false;
    snprintf(block, sizeof block, "%lld", (long long)block_ms);
    if (waits) {
        TRY(REDIS_ASK(talk, "EXISTS", name.text));
        TRY(REDIS_ASK(talk, "XREAD", "COUNT", "1", "BLOCK", block, "STREAMS", name.text, "0"));
    } else {
        TRY(REDIS_ASK(talk, "XREAD", "COUNT", "1", "STREAMS", name.text, "0"));
    }
    TRY(redis_send(talk, until_ns));
    if (waits)
        TRY(look_first(redis, talk, get, until_ns));
    TRY(redis_answer(talk, until_ns, waits, &reply));
    int rc = take_entry(redis, talk, get, reply);
    redis_free(reply);
    return rc;
}

static int get_any(RelayRedis *redis, Get *get) {
    int server = relay_redis_server(redis, get->key);
    const RedisServer *peer = &redis->url.servers[server];
    int64_t broken_ns = CLOCK_NEVER;
    for (;;) {
        /* What is there is read whatever the deadline says; only waiting ends with it. */
        int rc = relay_redis_attempt(redis, server, get_once, get, get->deadline_ns, GRACE_MS);
        if (rc == ERR_CANCELLED || (rc >= 0 && !get->found && atomic_load(&redis->interrupted)))
            return err_set(ERR_CANCELLED, "waiting for '%s' was interrupted", get->key);
        if (rc < 0)
            return rc == ERR_LIMIT ? rc : err_context(rc, "getting '%s'", get->key);
        if (get->found)
            return 0;
        if (!get->incomplete)
            broken_ns = CLOCK_NEVER;
        else if (broken_ns == CLOCK_NEVER)
            broken_ns = clock_deadline_ms(INCOMPLETE_MS);
        if (get->incomplete && clock_now_ns() >= broken_ns)
            return err_set(ERR_CORRUPT, "the object '%s' at %s:%s lacks pieces", get->key,
                           peer->host, peer->port);
        if (get->incomplete)
            relay_redis_pause(redis, LOOK_AGAIN_MS, CLOCK_NEVER);
        else if (clock_now_ns() >= get->deadline_ns)
            return err_set(ERR_TIMEOUT,
                           "'%s' is not in the relay at %s:%s, and the deadline passed", get->key,
                           peer->host, peer->port);
    }
}

int relay_redis_get(Relay *relay, const char *key, void *buf, size_t capacity, int64_t deadline_ns,
                    size_t *out_bytes) {
    RelayRedis *redis = (RelayRedis *)relay;
    Get get = {.key = key, .out = buf, .capacity = capacity, .deadline_ns = deadline_ns};
    bool held = strcmp(redis->held_key, key) == 0;
    redis->held_key[0] = '\0';
    if (held)
        TRY(take_inline(&get, (Slice){redis->held.data, redis->held.bytes}));
    else
        TRY(get_any(redis, &get));
    *out_bytes = get.bytes;
    return 0;
}

int relay_redis_size(Relay *relay, const char *key, int64_t deadline_ns, size_t *out_bytes) {
    RelayRedis *redis = (RelayRedis *)relay;
    Get get = {.key = key, .held = &redis->held, .deadline_ns = deadline_ns};
    redis->held_key[0] = '\0';
    buf_clear(&redis->held);
    TRY(get_any(redis, &get));
    if (redis->held.bytes == get.bytes) /* else it is a long one, and nothing came along */
        snprintf(redis->held_key, sizeof redis->held_key, "%s", key);
    *out_bytes = get.bytes;
    return 0;
}

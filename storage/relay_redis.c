/* The relay over Redis. Under PREFIX:
 *
 *     o:KEY            a stream of one entry with the id 1-1, so that the server itself lets the
 *                      first one stay, and XREAD BLOCK pushes it to all who wait. Its field is d
 *                      (the content) or, for what is longer, m: "TOKEN PIECES PIECE_BYTES BYTES"
 *     c:KEY:TOKEN:I    piece I of a longer object; TOKEN tells rivals' pieces apart
 *     n:KEY            a note
 *
 * An object is put in one round trip (MULTI for a longer one: all or nothing, pieces first) and
 * delivered half a round trip later, a longer one after another round trip. Everything has a time
 * to live. A server's keys are chosen by rendezvous hashing over all servers of the URL. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/hash.h"
#include "core/text.h"
#include "storage/relay_redis_parts.h"

enum {
    INLINE_BYTES = 64 << 10,  /* of an object that is its entry */
    PIECE_BYTES = 16 << 20,   /* of a longer one, unless the server takes less */
    ATOMIC_BYTES = 256 << 20, /* of pieces put in one MULTI */
    STALL_MS = 30000,         /* the longest wait for the next bytes of what is there */
    BLOCK_MS = 20000,         /* of one XREAD BLOCK: a dead server is noticed soon after */
    GRACE_MS = 5000,          /* for an answer to come beyond its BLOCK */
    BACKOFF_FIRST_MS = 10,
    BACKOFF_LAST_MS = 1000,
    WINDOW_PIECES = 64
};

RedisName relay_redis_name(const RelayRedis *redis, char kind, const char *key) {
    RedisName name;
    snprintf(name.text, sizeof name.text, "%s%c:%s", redis->url.prefix, kind, key);
    return name;
}

static RedisName name_of_piece(const RelayRedis *redis, const char *key, const char *token,
                               int64_t index) {
    RedisName name;
    snprintf(name.text, sizeof name.text, "%sc:%s:%s:%lld", redis->url.prefix, key, token,
             (long long)index);
    return name;
}

int relay_redis_server(const RelayRedis *redis, const char *key) {
    char text[REDIS_HOST_BYTES + RELAY_KEY_BYTES + 16];
    int best = 0;
    uint64_t highest = 0;
    for (int i = 0; i < redis->url.n_servers && redis->url.n_servers > 1; i++) {
        const RedisServer *server = &redis->url.servers[i];
        snprintf(text, sizeof text, "%s:%s|%s", server->host, server->port, key);
        uint64_t hash = hash_text(text);
        if (i == 0 || hash > highest) {
            best = i;
            highest = hash;
        }
    }
    return best;
}

/* ---- attempts ---- */

static void hang_up(RelayRedis *redis, int server) {
    redis_talk_close(redis->talks[server]);
    redis->talks[server] = NULL;
}

/* Sleep, half of it at random, unless interrupted. */
static void back_off(RelayRedis *redis, int n_tries, int64_t deadline_ns, bool interruptible) {
    int64_t ms = BACKOFF_FIRST_MS;
    for (int i = 0; i < n_tries && ms < BACKOFF_LAST_MS; i++)
        ms *= 2;
    redis->jitter = redis->jitter * UINT64_C(6364136223846793005) + 1442695040888963407U;
    ms = ms / 2 + (int64_t)((redis->jitter >> 33) % (uint64_t)(ms / 2 + 1));
    int64_t until_ns = clock_deadline_ms(ms);
    until_ns = until_ns < deadline_ns ? until_ns : deadline_ns;
    int64_t left_ms = (until_ns - clock_now_ns()) / CLOCK_NS_PER_MS;
    struct pollfd wake = {interruptible ? redis->wake_fd : -1, POLLIN, 0};
    if (left_ms > 0)
        poll(&wake, 1, (int)left_ms);
}

static int try_once(RelayRedis *redis, int server, Exchange exchange, void *arg,
                    int64_t deadline_ns) {
    if (!redis->talks[server]) {
        int64_t connect_ns = clock_deadline_ms(REDIS_OWN_TIME_MS);
        TRY(redis_talk_open(&redis->url, server, redis->wake_fd,
                            connect_ns < deadline_ns ? connect_ns : deadline_ns, NULL,
                            &redis->talks[server]));
    }
    return exchange(redis, server, arg, deadline_ns);
}

int relay_redis_attempt(RelayRedis *redis, int server, Exchange exchange, void *arg,
                        int64_t deadline_ns) {
    for (int n_tries = 0;; n_tries++) {
        int rc = try_once(redis, server, exchange, arg, deadline_ns);
        if (rc >= 0)
            return rc;
        if (rc != ERR_FULL && rc != ERR_IO && rc != ERR_LIMIT && rc != ERR_AUTH)
            hang_up(redis, server); /* answers may be outstanding */
        if ((rc != ERR_FULL && rc != ERR_UNREACHABLE) || clock_now_ns() >= deadline_ns)
            return rc;
        redis->base.counters.n_retries++;
        back_off(redis, n_tries, deadline_ns, false);
    }
}

/* ---- putting ---- */

typedef struct Put {
    const char *key;
    const Slice *parts;
    int n_parts;
    size_t bytes;
    bool duplicate;
    char token[32];
    int64_t n_pieces, piece_bytes;
} Put;

/* An answer to XADD: was there an entry already? */
static int read_added(const RedisTalk *talk, const RedisReply *reply, bool *out_duplicate) {
    *out_duplicate = redis_kind(reply) == REDIS_ERROR &&
                     strstr(redis_text(reply).data, "equal or smaller") != NULL;
    return *out_duplicate ? 0 : redis_check(talk, reply);
}

static int put_inline(RelayRedis *redis, int server, void *arg, int64_t deadline_ns) {
    Put *put = arg;
    RedisTalk *talk = redis->talks[server];
    RedisName name = relay_redis_name(redis, 'o', put->key);
    char ttl[24];
    const char *const before[] = {"XADD", name.text, "1-1", "d"};
    RedisReply *added = NULL;
    RedisReply *expiring = NULL;
    snprintf(ttl, sizeof ttl, "%lld", (long long)redis->url.ttl_ms);
    TRY(redis_ask_value(talk, 4, before, put->parts, put->n_parts, 0, NULL));
    TRY(REDIS_ASK(talk, "PEXPIRE", name.text, ttl));
    TRY(redis_send(talk, deadline_ns));
    TRY(redis_answer(talk, deadline_ns, false, &added));
    int rc = redis_answer(talk, deadline_ns, false, &expiring);
    if (rc >= 0)
        rc = read_added(talk, added, &put->duplicate);
    redis_free(added);
    redis_free(expiring);
    return rc;
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

static int ask_piece(RelayRedis *redis, RedisTalk *talk, const Put *put, int64_t index) {
    Slice parts[RELAY_MAX_PARTS];
    char ttl[24];
    RedisName name = name_of_piece(redis, put->key, put->token, index);
    size_t begin = (size_t)(index * put->piece_bytes);
    size_t end = begin + (size_t)put->piece_bytes;
    int n = cut_parts(put, begin, end < put->bytes ? end : put->bytes, parts);
    snprintf(ttl, sizeof ttl, "%lld", (long long)redis->url.ttl_ms);
    const char *const before[] = {"SET", name.text};
    const char *const after[] = {"PX", ttl};
    return redis_ask_value(talk, 2, before, parts, n, 2, after);
}

static int ask_entry(RelayRedis *redis, RedisTalk *talk, const Put *put) {
    char text[128];
    char ttl[24];
    RedisName name = relay_redis_name(redis, 'o', put->key);
    snprintf(ttl, sizeof ttl, "%lld", (long long)redis->url.ttl_ms);
    snprintf(text, sizeof text, "%s %lld %lld %zu", put->token, (long long)put->n_pieces,
             (long long)put->piece_bytes, put->bytes);
    TRY(REDIS_ASK(talk, "XADD", name.text, "1-1", "m", text));
    return REDIS_ASK(talk, "PEXPIRE", name.text, ttl);
}

/* Answers to n commands that must be no errors; the first error counts. */
static int expect(RedisTalk *talk, int64_t n, int64_t deadline_ns) {
    int first = 0;
    ErrNote note;
    for (int64_t i = 0; i < n; i++) {
        RedisReply *reply = NULL;
        TRY(redis_answer(talk, deadline_ns, false, &reply));
        int rc = redis_check(talk, reply);
        if (rc < 0 && first == 0) {
            first = rc;
            err_copy(&note);
        }
        redis_free(reply);
    }
    return first < 0 ? err_restore(&note) : 0;
}

static int drop_pieces(RelayRedis *redis, RedisTalk *talk, const char *key, const char *token,
                       int64_t n_pieces, int64_t deadline_ns) {
    for (int64_t i = 0; i < n_pieces; i++)
        TRY(REDIS_ASK(talk, "UNLINK", name_of_piece(redis, key, token, i).text));
    TRY(redis_send(talk, deadline_ns));
    return expect(talk, n_pieces, deadline_ns);
}

/* Pieces and entry at once. When memory is short, EXEC refuses all. */
static int put_atomic(RelayRedis *redis, RedisTalk *talk, Put *put, int64_t deadline_ns) {
    RedisReply *reply = NULL;
    TRY(REDIS_ASK(talk, "MULTI"));
    for (int64_t i = 0; i < put->n_pieces; i++)
        TRY(ask_piece(redis, talk, put, i));
    TRY(ask_entry(redis, talk, put));
    TRY(REDIS_ASK(talk, "EXEC"));
    TRY(redis_send(talk, deadline_ns));
    int rc = expect(talk, put->n_pieces + 3, deadline_ns);
    if (rc < 0 && rc != ERR_FULL && rc != ERR_IO)
        return rc;
    ErrNote note;
    err_copy(&note);
    TRY(redis_answer(talk, deadline_ns, false, &reply));
    if (rc < 0)
        rc = err_restore(&note);
    else if (redis_count(reply) != (size_t)put->n_pieces + 2)
        rc = redis_check(talk, reply);
    else
        rc = read_added(talk, redis_at(reply, (size_t)put->n_pieces), &put->duplicate);
    redis_free(reply);
    return rc;
}

/* What is too long for one MULTI: pieces, a window at a time, then the entry. */
static int put_in_windows(RelayRedis *redis, RedisTalk *talk, Put *put, int64_t deadline_ns) {
    RedisReply *reply = NULL;
    for (int64_t i = 0; i < put->n_pieces;) {
        int64_t n = 0;
        for (; i < put->n_pieces && n * put->piece_bytes < ATOMIC_BYTES && n < WINDOW_PIECES; n++)
            TRY(ask_piece(redis, talk, put, i++));
        TRY(redis_send(talk, deadline_ns));
        TRY(expect(talk, n, deadline_ns));
    }
    TRY(ask_entry(redis, talk, put));
    TRY(redis_send(talk, deadline_ns));
    TRY(redis_answer(talk, deadline_ns, false, &reply));
    int rc = read_added(talk, reply, &put->duplicate);
    redis_free(reply);
    return rc < 0 ? rc : expect(talk, 1, deadline_ns);
}

static int put_long(RelayRedis *redis, int server, void *arg, int64_t deadline_ns) {
    Put *put = arg;
    RedisTalk *talk = redis->talks[server];
    int64_t max = redis->about[server].max_bulk_bytes;
    put->piece_bytes = max < PIECE_BYTES ? max : PIECE_BYTES;
    put->n_pieces = ((int64_t)put->bytes + put->piece_bytes - 1) / put->piece_bytes;
    snprintf(put->token, sizeof put->token, "%016llx%llx", (unsigned long long)redis->random,
             (unsigned long long)redis->n_tokens++);
    int rc = put->bytes <= ATOMIC_BYTES ? put_atomic(redis, talk, put, deadline_ns)
                                        : put_in_windows(redis, talk, put, deadline_ns);
    if ((rc >= 0 && put->duplicate) || rc == ERR_FULL)
        TRY(drop_pieces(redis, talk, put->key, put->token, put->n_pieces, deadline_ns));
    return rc;
}

static int redis_put(Relay *relay, const char *key, const Slice *parts, int n_parts,
                     int64_t deadline_ns) {
    RelayRedis *redis = (RelayRedis *)relay;
    Put put = {.key = key, .parts = parts, .n_parts = n_parts};
    for (int i = 0; i < n_parts; i++)
        put.bytes += parts[i].bytes;
    int server = relay_redis_server(redis, key);
    bool whole =
        put.bytes <= INLINE_BYTES && (int64_t)put.bytes <= redis->about[server].max_bulk_bytes;
    int rc = relay_redis_attempt(redis, server, whole ? put_inline : put_long, &put, deadline_ns);
    return rc < 0 ? err_context(rc, "putting '%s'", key) : put.duplicate;
}

/* ---- getting ---- */

typedef struct Get {
    const char *key;
    void *out;
    size_t capacity, bytes;
    Buf *held; /* instead of `out`: only the size is wanted, and what came along is kept here */
    bool waited, found;
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

typedef struct Manifest {
    char token[40];
    long long n_pieces, piece_bytes, bytes;
} Manifest;

static int read_manifest(const Get *get, Slice text, Manifest *manifest) {
    int end = -1;
    if (text.bytes < 120 &&
        sscanf(text.data, "%39[0-9a-f] %lld %lld %lld%n", manifest->token, &manifest->n_pieces,
               &manifest->piece_bytes, &manifest->bytes, &end) == 4 &&
        (size_t)end == text.bytes && manifest->piece_bytes > 0 && manifest->bytes > 0 &&
        (unsigned long long)manifest->bytes <= RELAY_MAX_OBJECT_BYTES &&
        manifest->n_pieces == (manifest->bytes + manifest->piece_bytes - 1) / manifest->piece_bytes)
        return 0;
    return err_set(ERR_CORRUPT, "the object '%s': its entry is nonsense", get->key);
}

static int take_long(RelayRedis *redis, RedisTalk *talk, Get *get, Slice text) {
    Manifest manifest;
    TRY(read_manifest(get, text, &manifest));
    if (get->held) {
        get->bytes = (size_t)manifest.bytes;
        get->found = true;
        return 0;
    }
    if ((unsigned long long)manifest.bytes > get->capacity)
        return too_long(get, manifest.bytes);
    for (long long first = 0; first < manifest.n_pieces; first += WINDOW_PIECES) {
        long long end = first + WINDOW_PIECES;
        end = end < manifest.n_pieces ? end : manifest.n_pieces;
        int all = 1;
        for (long long i = first; i < end; i++)
            TRY(REDIS_ASK(talk, "GET", name_of_piece(redis, get->key, manifest.token, i).text));
        TRY(redis_send(talk, clock_deadline_ms(STALL_MS)));
        for (long long i = first; i < end; i++) {
            long long from = i * manifest.piece_bytes;
            long long bytes = manifest.bytes - from;
            bytes = bytes < manifest.piece_bytes ? bytes : manifest.piece_bytes;
            int rc = redis_answer_value(talk, (char *)get->out + from, (size_t)bytes, STALL_MS);
            TRY(rc);
            all &= rc;
        }
        if (!all) /* dropped meanwhile */
            return 0;
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
    (void)deadline_ns;
    snprintf(block, sizeof block, "%lld", (long long)block_ms);
    if (waits) {
        TRY(REDIS_ASK(talk, "EXISTS", name.text));
        TRY(REDIS_ASK(talk, "XREAD", "BLOCK", block, "STREAMS", name.text, "0"));
    } else {
        TRY(REDIS_ASK(talk, "XREAD", "STREAMS", name.text, "0"));
    }
    TRY(redis_send(talk, clock_deadline_ms(REDIS_OWN_TIME_MS)));
    if (waits) {
        TRY(redis_answer(talk, clock_deadline_ms(REDIS_OWN_TIME_MS), false, &reply));
        bool there = redis_kind(reply) == REDIS_INTEGER && redis_integer(reply) > 0;
        redis_free(reply);
        redis->base.counters.n_waits += !there && !get->waited;
        get->waited |= !there;
    }
    TRY(redis_answer(talk, clock_deadline_ms((waits ? block_ms : 0) + GRACE_MS), waits, &reply));
    int rc = take_entry(redis, talk, get, reply);
    redis_free(reply);
    return rc;
}

static int get_any(RelayRedis *redis, Get *get) {
    int server = relay_redis_server(redis, get->key);
    for (;;) {
        /* What is there is read whatever the deadline says; only waiting ends with it. */
        int64_t least_ns = clock_deadline_ms(REDIS_OWN_TIME_MS);
        int rc = relay_redis_attempt(redis, server, get_once, get,
                                     get->deadline_ns > least_ns ? get->deadline_ns : least_ns);
        if (rc == ERR_CANCELLED || (rc >= 0 && !get->found && atomic_load(&redis->interrupted)))
            return err_set(ERR_CANCELLED, "waiting for '%s' was interrupted", get->key);
        if (rc < 0)
            return rc == ERR_LIMIT ? rc : err_context(rc, "getting '%s'", get->key);
        if (get->found)
            return 0;
        if (clock_now_ns() >= get->deadline_ns)
            return err_set(ERR_TIMEOUT, "'%s' is not in the relay, and the deadline passed",
                           get->key);
    }
}

static int redis_get(Relay *relay, const char *key, void *buf, size_t capacity, int64_t deadline_ns,
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

static int redis_size(Relay *relay, const char *key, int64_t deadline_ns, size_t *out_bytes) {
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

/* ---- handles ---- */

static void redis_interrupt(Relay *relay, bool on) {
    RelayRedis *redis = (RelayRedis *)relay;
    uint64_t one = 1;
    bool was = atomic_exchange(&redis->interrupted, on);
    ssize_t n = on == was ? 0
                : on      ? write(redis->wake_fd, &one, sizeof one)
                          : read(redis->wake_fd, &one, sizeof one);
    (void)n;
}

static void redis_close(Relay *relay) {
    RelayRedis *redis = (RelayRedis *)relay;
    for (int i = 0; i < redis->url.n_servers; i++)
        redis_talk_close(redis->talks[i]);
    if (redis->wake_fd >= 0)
        close(redis->wake_fd);
    buf_done(&redis->held);
    explicit_bzero(&redis->url, sizeof redis->url);
    free(redis);
}

int relay_redis_open(const char *place, bool tls, Relay **out_relay) {
    static const RelayOps ops = {.name = "redis",
                                 .close = redis_close,
                                 .put = redis_put,
                                 .get = redis_get,
                                 .size = redis_size,
                                 .has = relay_redis_has,
                                 .drop = relay_redis_drop,
                                 .count = relay_redis_count,
                                 .note_put = relay_redis_note_put,
                                 .note_get = relay_redis_note_get,
                                 .interrupt = redis_interrupt};
    RelayRedis *redis = calloc(1, sizeof *redis);
    if (!redis)
        return err_set(ERR_MEMORY, "a handle of a Redis relay");
    int rc = 0;
    redis->base.ops = &ops;
    buf_init(&redis->held, 0);
    redis->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (redis->wake_fd < 0 ||
        getrandom(&redis->random, sizeof redis->random, 0) != (ssize_t)sizeof redis->random)
        TRY_DONE(err_errno(ERR_IO, errno, "opening a Redis relay"));
    redis->jitter = redis->random;
    TRY_DONE(redis_url_parse(place, tls, &redis->url));
    for (int i = 0; i < redis->url.n_servers; i++)
        TRY_DONE(redis_talk_open(&redis->url, i, redis->wake_fd,
                                 clock_deadline_ms(REDIS_OWN_TIME_MS), &redis->about[i],
                                 &redis->talks[i]));
    *out_relay = &redis->base;
    return 0;
done:
    redis_close(&redis->base);
    return rc;
}

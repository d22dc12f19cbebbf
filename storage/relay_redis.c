/* The relay over Redis: where things lie, tries, handles. Under PREFIX:
 *
 *     o:KEY            a stream of one entry with the id 1-1, so that the server itself lets the
 *                      first one stay, and XREAD BLOCK pushes it to all who wait. Its field is d
 *                      (the content) or, for what is longer, m: "TOKEN PIECES PIECE_BYTES BYTES"
 *     c:KEY:TOKEN:I    piece I of a longer object; TOKEN tells rivals' pieces apart
 *     n:KEY            a note
 *     s:KEY            a sum under way, in the server's module (storage/redis_module)
 *
 * An object is put in one round trip, all or nothing, and delivered half a round trip later, a
 * longer one after another round trip. Everything has a time to live. A server's keys are chosen by
 * rendezvous hashing over all servers of the URL. */
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

enum { BACKOFF_FIRST_MS = 10, BACKOFF_LAST_MS = 1000 };

RedisName relay_redis_name(const RelayRedis *redis, char kind, const char *key) {
    RedisName name;
    snprintf(name.text, sizeof name.text, "%s%c:%s", redis->url.prefix, kind, key);
    return name;
}

RedisName relay_redis_piece_name(const RelayRedis *redis, const char *key, const char *token,
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

bool relay_redis_pause(RelayRedis *redis, int64_t ms, int64_t deadline_ns) {
    int64_t until_ns = clock_deadline_ms(ms);
    until_ns = until_ns < deadline_ns ? until_ns : deadline_ns;
    int64_t left_ms = (until_ns - clock_now_ns() + CLOCK_NS_PER_MS - 1) / CLOCK_NS_PER_MS;
    struct pollfd wake = {redis->wake_fd, POLLIN, 0};
    if (left_ms > 0)
        poll(&wake, 1, (int)left_ms);
    return !atomic_load(&redis->interrupted);
}

/* Sleep longer at every try, half of it at random. */
static bool back_off(RelayRedis *redis, int n_tries, int64_t deadline_ns) {
    int64_t ms = BACKOFF_FIRST_MS;
    for (int i = 0; i < n_tries && ms < BACKOFF_LAST_MS; i++)
        ms *= 2;
    redis->jitter = redis->jitter * UINT64_C(6364136223846793005) + 1442695040888963407U;
    ms = ms / 2 + (int64_t)((redis->jitter >> 33) % (uint64_t)(ms / 2 + 1));
    return relay_redis_pause(redis, ms, deadline_ns);
}

static int try_once(RelayRedis *redis, int server, Exchange exchange, void *arg,
                    int64_t deadline_ns) {
    if (!redis->talks[server]) {
        int64_t connect_ns = clock_deadline_ms(REDIS_OWN_TIME_MS);
        TRY(redis_talk_open(&redis->url, server, redis->wake_fd,
                            connect_ns < deadline_ns ? connect_ns : deadline_ns, NULL,
                            &redis->talks[server]));
        redis_talk_count(redis->talks[server], &redis->base.counters.n_requests);
    }
    int rc = exchange(redis, server, arg, deadline_ns);
    if (!redis_talk_quiet(redis->talks[server]))
        hang_up(redis, server);
    return rc;
}

int relay_redis_attempt(RelayRedis *redis, int server, Exchange exchange, void *arg,
                        int64_t deadline_ns, int64_t grace_ms) {
    bool renewed = false;
    ErrNote said = {0}; /* why the last try failed */
    for (int n_tries = 0;;) {
        bool connected = redis->talks[server] != NULL;
        int64_t grace_ns = clock_deadline_ms(grace_ms);
        int rc = try_once(redis, server, exchange, arg,
                          grace_ms > 0 && grace_ns > deadline_ns ? grace_ns : deadline_ns);
        if (rc >= 0 || (rc != ERR_FULL && rc != ERR_UNREACHABLE && rc != ERR_TIMEOUT))
            return rc;
        bool late = clock_now_ns() >= deadline_ns;
        if (late && rc == ERR_TIMEOUT && said.code < 0)
            return err_restore(&said); /* a try cut short by the deadline tells less */
        err_copy(&said);
        bool stale = connected && !redis->talks[server] && rc == ERR_UNREACHABLE;
        if (!stale || renewed) { /* a connection that died meanwhile is replaced at once */
            if (late)
                return rc;
            redis->base.counters.n_waits += rc == ERR_FULL; /* for room */
            if (!back_off(redis, n_tries++, deadline_ns))
                return err_context(ERR_CANCELLED, "interrupted");
            if (clock_now_ns() >= deadline_ns)
                return rc;
        }
        renewed |= stale;
        redis->base.counters.n_retries++;
    }
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

int relay_redis_check(const char *place, bool tls) {
    RedisUrl url;
    TRY(redis_url_parse(place, tls, &url));
    bool inside = url.password_inside;
    explicit_bzero(&url, sizeof url);
    return inside ? err_set(ERR_ARGUMENT,
                            "the relay's URL holds a password, which every order and the outputs "
                            "would keep: put it into a file and name that, "
                            "?password_file=/PATH")
                  : 0;
}

static int redis_server(const Relay *relay, const char *key, int *out_n) {
    const RelayRedis *redis = (const RelayRedis *)relay;
    *out_n = redis->url.n_servers;
    return relay_redis_server(redis, key);
}

static void redis_place(const Relay *relay, int server, char *out, size_t bytes) {
    const RedisServer *peer = &((const RelayRedis *)relay)->url.servers[server];
    snprintf(out, bytes, "%s:%s", peer->host, peer->port);
}

#define REDIS_OPS                                                                                  \
    .name = "redis", .close = redis_close, .put = relay_redis_put, .get = relay_redis_get,         \
    .size = relay_redis_size, .has = relay_redis_has, .drop = relay_redis_drop,                    \
    .count = relay_redis_count, .note_put = relay_redis_note_put,                                  \
    .note_get = relay_redis_note_get, .interrupt = redis_interrupt, .server = redis_server,        \
    .place = redis_place, .survey = &relay_redis_survey
static const RelayOps ops_without_add = {REDIS_OPS};
static const RelayOps ops_with_add = {REDIS_OPS, .add = relay_redis_add};
#undef REDIS_OPS

int relay_redis_open(const char *place, bool tls, Relay **out_relay) {
    RelayRedis *redis = calloc(1, sizeof *redis);
    if (!redis)
        return err_set(ERR_MEMORY, "a handle of a Redis relay");
    int rc = 0;
    redis->base.ops = &ops_with_add;
    buf_init(&redis->held, 0);
    redis->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (redis->wake_fd < 0 ||
        getrandom(&redis->random, sizeof redis->random, 0) != (ssize_t)sizeof redis->random)
        TRY_DONE(err_errno(ERR_IO, errno, "opening a Redis relay"));
    redis->jitter = redis->random;
    TRY_DONE(redis_url_parse(place, tls, &redis->url));
    for (int i = 0; i < redis->url.n_servers; i++) {
        TRY_DONE(redis_talk_open(&redis->url, i, redis->wake_fd,
                                 clock_deadline_ms(REDIS_OWN_TIME_MS), &redis->about[i],
                                 &redis->talks[i]));
        redis_talk_count(redis->talks[i], &redis->base.counters.n_requests);
    }
    for (int i = 0; i < redis->url.n_servers; i++) {
        if (redis->about[i].module_version != REDIS_MODULE_VERSION)
            redis->base.ops = &ops_without_add;
    }
    *out_relay = &redis->base;
    return 0;
done:
    redis_close(&redis->base);
    return rc;
}

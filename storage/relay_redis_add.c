/* Adding in the Redis relay: one command of our module in the server, which holds the sum and
 * publishes it as relay_redis_put would. A command whose answer was lost is sent again: the module
 * counts an index once. */
#include <stdio.h>

#include "core/err.h"
#include "storage/relay_redis_parts.h"

typedef struct Add {
    const char *key;
    int index, n;
    const Slice *parts;
    int n_parts;
    size_t bytes;
    bool duplicate;
} Add;

static int read_counted(const RelayRedis *redis, int server, const RedisReply *reply, Add *add) {
    const RedisServer *peer = &redis->url.servers[server];
    if (redis_says(reply, "ERR unknown command")) /* and quotes what we sent */
        return err_set(ERR_UNSUPPORTED,
                       "%s:%s had the module funcpipe and has it no longer: it was started again "
                       "without --loadmodule",
                       peer->host, peer->port);
    TRY(redis_check(redis->talks[server], reply));
    if (redis_kind(reply) != REDIS_INTEGER || redis_integer(reply) < 0 || redis_integer(reply) > 1)
        return err_set(ERR_CORRUPT, "an answer of another form from %s:%s", peer->host, peer->port);
    add->duplicate = redis_integer(reply) == 1;
    return 0;
}

static int add_once(RelayRedis *redis, int server, void *arg, int64_t deadline_ns) {
    Add *add = arg;
    RedisTalk *talk = redis->talks[server];
    RedisName name = relay_redis_name(redis, 'o', add->key);
    RedisReply *reply = NULL;
    char index[16];
    char n[16];
    char ttl[24];
    const char *const before[] = {"FUNCPIPE.ADD", name.text, index, n, ttl};
    if (add->bytes > (size_t)redis->about[server].max_bulk_bytes)
        return err_set(ERR_LIMIT,
                       "the contribution has %zu bytes, the server takes values of at most %lld "
                       "(proto-max-bulk-len)",
                       add->bytes, (long long)redis->about[server].max_bulk_bytes);
    snprintf(index, sizeof index, "%d", add->index);
    snprintf(n, sizeof n, "%d", add->n);
    snprintf(ttl, sizeof ttl, "%lld", (long long)redis->url.ttl_ms);
    TRY(redis_ask_value(talk, 5, before, add->parts, add->n_parts, 0, NULL));
    TRY(redis_send(talk, deadline_ns));
    TRY(redis_answer(talk, deadline_ns, false, &reply));
    int rc = read_counted(redis, server, reply, add);
    redis_free(reply);
    return rc;
}

int relay_redis_add(Relay *relay, const char *key, int index, int n, const Slice *parts,
                    int n_parts, int64_t deadline_ns) {
    RelayRedis *redis = (RelayRedis *)relay;
    Add add = {.key = key, .index = index, .n = n, .parts = parts, .n_parts = n_parts};
    for (int i = 0; i < n_parts; i++)
        add.bytes += parts[i].bytes;
    int rc =
        relay_redis_attempt(redis, relay_redis_server(redis, key), add_once, &add, deadline_ns, 0);
    return rc < 0 ? err_context(rc, "adding to '%s'", key) : add.duplicate;
}

/* What the servers of a Redis relay are like, in words for people. */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/reduction.h"
#include "core/text.h"
#include "storage/relay_redis_parts.h"

enum {
    LITTLE_BYTES = 64 << 20,
    SOON_DAYS = 14,
    SKEW_MS = 2000,
    VALUE_BYTES = 256,
    NUMBER_BYTES = 32
};

typedef struct Telling {
    RelayRedis *redis;
    int server;
    const char *info; /* what INFO says; "" when it is forbidden */
    RelayTell tell;
    void *ctx;
} Telling;

static void say(const Telling *telling, const char *name, const char *value, const char *problem) {
    telling->tell(telling->ctx, name, value, problem);
}

/* A number of INFO; `none` where it is not there. */
static int64_t info_number(const Telling *telling, const char *name, int64_t none) {
    char text[NUMBER_BYTES];
    int64_t value = none;
    redis_info(telling->info, name, text, sizeof text);
    return text[0] && text_parse_i64(text, 0, INT64_MAX, &value) >= 0 ? value : none;
}

/* Is the host this machine? */
static bool is_here(const char *host) {
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
           strcmp(host, "::1") == 0;
}

static void tell_server(const Telling *telling) {
    const RedisServer *peer = &telling->redis->url.servers[telling->server];
    char value[VALUE_BYTES + REDIS_HOST_BYTES];
    char version[NUMBER_BYTES];
    redis_info(telling->info, "redis_version", version, sizeof version);
    snprintf(value, sizeof value, "%s:%s, Redis %s", peer->host, peer->port,
             version[0] ? version : "of an unknown version");
    say(telling, "server", value, NULL);
}

/* A setting of the server; "" when it does not tell. */
static void ask_setting(const Telling *telling, const char *name, char *out, size_t out_bytes) {
    Question question = {.n_args = 3, .args = {"CONFIG", "GET", name}};
    bool told = relay_redis_ask(telling->redis, telling->server, &question) >= 0 &&
                redis_count(question.reply) == 2;
    const char *value = told ? redis_text(redis_at(question.reply, 1)).data : "";
    snprintf(out, out_bytes, "%s", value);
    redis_free(question.reply);
}

/* Does it let others in, not only this machine's? Without a password it does so only where its
 * protected mode is off. */
static bool lets_others_in(const Telling *telling) {
    char mode[NUMBER_BYTES];
    char addresses[VALUE_BYTES];
    ask_setting(telling, "protected-mode", mode, sizeof mode);
    if (strcmp(mode, "no") != 0)
        return false;
    ask_setting(telling, "bind", addresses, sizeof addresses);
    char *rest = addresses;
    const char *address = strtok_r(addresses, " ", &rest);
    if (!address)
        return true; /* none: all */
    for (; address; address = strtok_r(NULL, " ", &rest)) {
        if (!is_here(address + (address[0] == '-')))
            return true;
    }
    return false;
}

static void tell_login(const Telling *telling) {
    const RedisUrl *url = &telling->redis->url;
    char value[VALUE_BYTES + REDIS_SECRET_BYTES];
    bool open = !url->password[0] &&
                (!is_here(url->servers[telling->server].host) || lets_others_in(telling));
    if (url->user[0])
        snprintf(value, sizeof value, "as '%s', with a password", url->user);
    else
        snprintf(value, sizeof value, "%s", url->password[0] ? "with a password" : "none");
    say(telling, "login", value,
        open ? "everybody who reaches the server can read and change the training: set a password "
               "(requirepass, or an ACL user) and give password_file= in the URL"
             : NULL);
}

static void tell_tls(const Telling *telling) {
    char value[VALUE_BYTES];
    char protocol[NUMBER_BYTES];
    int days = 0;
    if (!redis_talk_tls(telling->redis->talks[telling->server], protocol, sizeof protocol, &days)) {
        bool here = is_here(telling->redis->url.servers[telling->server].host);
        say(telling, "tls",
            here ? "none" : "none: whoever sees the network's packets sees the data and passwords",
            NULL);
        return;
    }
    snprintf(value, sizeof value, "%s, the certificate is valid for %d more %s", protocol, days,
             text_plural(days, "day", "days"));
    say(telling, "tls", value,
        days < SOON_DAYS ? "the server's certificate expires within two weeks: renew it" : NULL);
}

static void tell_memory(const Telling *telling) {
    char value[VALUE_BYTES];
    char used[NUMBER_BYTES];
    char limit[NUMBER_BYTES];
    char policy[NUMBER_BYTES];
    int64_t used_bytes = info_number(telling, "used_memory", -1);
    int64_t limit_bytes = info_number(telling, "maxmemory", -1);
    redis_info(telling->info, "maxmemory_policy", policy, sizeof policy);
    if (used_bytes < 0 || limit_bytes < 0) {
        say(telling, "memory", "not known: the server does not tell", NULL);
        return;
    }
    text_format_bytes(used_bytes, used, sizeof used);
    if (limit_bytes > 0)
        snprintf(value, sizeof value, "%s used of %s", used,
                 text_format_bytes(limit_bytes, limit, sizeof limit));
    else
        snprintf(
            value, sizeof value, "%s used, no limit (maxmemory 0); the machine has %s", used,
            text_format_bytes(info_number(telling, "total_system_memory", 0), limit, sizeof limit));
    say(telling, "memory", value,
        limit_bytes > 0 && limit_bytes - used_bytes < LITTLE_BYTES
            ? "less than 64 MiB are free: raise maxmemory, or run funcpipe gc"
            : NULL);
    say(telling, "eviction", policy[0] ? policy : "not known", NULL); /* bad ones refuse a login */
}

static void tell_persistence(const Telling *telling) {
    static const char resume[] = "; a job that runs then goes back to its last save";
    char value[VALUE_BYTES];
    char last[NUMBER_BYTES];
    int64_t aof = info_number(telling, "aof_enabled", -1);
    Question saves = {.n_args = 3, .args = {"CONFIG", "GET", "save"}};
    bool known = relay_redis_ask(telling->redis, telling->server, &saves) >= 0 &&
                 redis_count(saves.reply) == 2;
    const char *points = known ? redis_text(redis_at(saves.reply, 1)).data : "";
    if (aof == 1)
        snprintf(value, sizeof value,
                 "append-only file: a restart of the server loses the last second or so");
    else if (aof < 0 || !known)
        snprintf(value, sizeof value, "not known: the server does not tell");
    else if (points[0])
        snprintf(value, sizeof value,
                 "snapshots (save %.40s): a restart of the server loses what came since the last "
                 "one%s",
                 points, resume);
    else
        snprintf(value, sizeof value, "none: a restart of the server loses all objects%s", resume);
    redis_info(telling->info, "rdb_last_bgsave_status", last, sizeof last);
    say(telling, "persistence", value,
        strcmp(last, "err") == 0 ? "the last snapshot failed, and the server may refuse writes: "
                                   "look at its log, or turn snapshots off (save \"\")"
                                 : NULL);
    redis_free(saves.reply);
}

static void tell_longest(const Telling *telling) {
    char value[VALUE_BYTES];
    char bytes[NUMBER_BYTES];
    snprintf(value, sizeof value, "%s (proto-max-bulk-len); longer objects go in pieces",
             text_format_bytes(telling->redis->about[telling->server].max_bulk_bytes, bytes,
                               sizeof bytes));
    say(telling, "longest_value", value, NULL);
}

static void tell_clients(const Telling *telling) {
    char value[VALUE_BYTES];
    char problem[VALUE_BYTES];
    int64_t n = info_number(telling, "connected_clients", -1);
    int64_t most = info_number(telling, "maxclients", -1);
    if (n < 0)
        return;
    if (most > 0)
        snprintf(value, sizeof value, "%lld of at most %lld", (long long)n, (long long)most);
    else
        snprintf(value, sizeof value, "%lld", (long long)n);
    snprintf(problem, sizeof problem,
             "nearly all connections are taken, and each worker needs %d, %d to %d where it sums "
             "gradients with others: raise maxclients",
             WORKER_LINKS, WORKER_LINKS + WORKER_LINKS_UP + WORKER_LEAST_DOWN,
             WORKER_LINKS + WORKER_LINKS_UP + WORKER_MOST_DOWN);
    say(telling, "connections", value, most > 0 && n > most - most / 10 ? problem : NULL);
}

/* The server's clock against ours in the middle of the question. */
static void tell_clock(const Telling *telling) {
    char value[VALUE_BYTES];
    Question question = {.n_args = 1, .args = {"TIME"}};
    int64_t begin_ms = clock_wall_ms();
    int64_t seconds = 0;
    int64_t micros = 0;
    if (relay_redis_ask(telling->redis, telling->server, &question) < 0)
        return;
    int64_t middle_ms = begin_ms + (clock_wall_ms() - begin_ms) / 2;
    bool fine =
        redis_count(question.reply) == 2 &&
        text_parse_i64(redis_text(redis_at(question.reply, 0)).data, 0, INT64_MAX / 1000,
                       &seconds) >= 0 &&
        text_parse_i64(redis_text(redis_at(question.reply, 1)).data, 0, 999999, &micros) >= 0;
    redis_free(question.reply);
    if (!fine)
        return;
    int64_t skew_ms = seconds * 1000 + micros / 1000 - middle_ms;
    snprintf(value, sizeof value, "%lld ms", (long long)skew_ms);
    say(telling, "clock_skew", value,
        skew_ms > SKEW_MS || skew_ms < -SKEW_MS
            ? "the clocks differ by seconds: set both by NTP, or ages in messages are wrong"
            : NULL);
}

int relay_redis_about(Relay *relay, RelayTell tell, void *ctx) {
    RelayRedis *redis = (RelayRedis *)relay;
    for (int server = 0; server < redis->url.n_servers; server++) {
        Question question = {.n_args = 1, .args = {"INFO"}};
        int rc = relay_redis_ask(redis, server, &question);
        if (rc < 0 && rc != ERR_AUTH)
            return err_context(rc, "looking at the server");
        const char *info = rc >= 0 ? redis_text(question.reply).data : "";
        Telling telling = {redis, server, info, tell, ctx};
        tell_server(&telling);
        tell_login(&telling);
        tell_tls(&telling);
        tell_memory(&telling);
        tell_longest(&telling);
        tell_clients(&telling);
        tell_persistence(&telling);
        tell_clock(&telling);
        redis_free(question.reply);
    }
    return 0;
}

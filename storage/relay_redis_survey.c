/* Surveying the Redis relay: every name with its size and how long it has been left alone, and
 * pieces of objects that are nowhere. Nothing here is touched by being looked at: MEMORY USAGE,
 * OBJECT IDLETIME and EXISTS leave the time of the last use as it is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/relay_redis_parts.h"

enum { LOOK_NAMES = 500 };

typedef struct Look { /* at one name */
    bool gone;
    int64_t bytes, idle_ms; /* -1: the server does not say */
} Look;

typedef struct Looks { /* at the names of one server */
    const RedisNames *names;
    Look *items;
    size_t first, end; /* under way */
} Looks;

static int64_t number_or(const RedisReply *reply, int64_t none) {
    return redis_kind(reply) == REDIS_INTEGER ? redis_integer(reply) : none;
}

static int look_once(RelayRedis *redis, int server, void *arg, int64_t deadline_ns) {
    Looks *looks = arg;
    RedisTalk *talk = redis->talks[server];
    for (size_t i = looks->first; i < looks->end; i++) {
        TRY(REDIS_ASK(talk, "MEMORY", "USAGE", looks->names->items[i]));
        TRY(REDIS_ASK(talk, "OBJECT", "IDLETIME", looks->names->items[i]));
    }
    TRY(redis_send(talk, deadline_ns));
    for (size_t i = looks->first; i < looks->end; i++) {
        RedisReply *reply = NULL;
        TRY(redis_answer(talk, deadline_ns, false, &reply));
        looks->items[i].gone = redis_kind(reply) == REDIS_NIL;
        looks->items[i].bytes = number_or(reply, -1);
        redis_free(reply);
        TRY(redis_answer(talk, deadline_ns, false, &reply));
        int64_t idle_s = number_or(reply, -1);
        looks->items[i].idle_ms = idle_s < 0 || idle_s > INT64_MAX / 1000 ? -1 : idle_s * 1000;
        redis_free(reply);
    }
    return 0;
}

static int look_at(RelayRedis *redis, int server, const RedisNames *names, Look **out_items) {
    Looks looks = {.names = names, .items = calloc(names->n + 1, sizeof *looks.items)};
    int rc = looks.items ? 0 : err_set(ERR_MEMORY, "%zu keys", names->n);
    while (rc >= 0 && looks.end < names->n) {
        looks.first = looks.end;
        looks.end = names->n - looks.first < LOOK_NAMES ? names->n : looks.first + LOOK_NAMES;
        rc = relay_redis_attempt(redis, server, look_once, &looks,
                                 clock_deadline_ms(REDIS_OWN_TIME_MS), 0);
    }
    if (rc < 0)
        free(looks.items);
    else
        *out_items = looks.items;
    return rc;
}

static int find(RelayRedis *redis, int server, const char *kinds, const char *prefix,
                RedisNames *out_names, Look **out_looks) {
    PrefixSet set;
    TRY(prefix_set_init(&set, &prefix, 1));
    int rc = relay_redis_scan(redis, server, kinds, &set, out_names);
    prefix_set_done(&set);
    return rc < 0 ? rc : look_at(redis, server, out_names, out_looks);
}

/* ---- visit ---- */

static int show(const RelayRedis *redis, const char *name, const Look *look, RelayVisit visit,
                void *ctx) {
    char key[RELAY_KEY_BYTES];
    const char *kind = name + strlen(redis->url.prefix);
    size_t bytes = strcspn(kind + 2, ":");
    if (look->gone || bytes >= sizeof key)
        return 0;
    memcpy(key, kind + 2, bytes);
    key[bytes] = '\0';
    RelayItem item = {.kind = *kind == 'o'   ? RELAY_ITEM_OBJECT
                              : *kind == 'n' ? RELAY_ITEM_NOTE
                                             : RELAY_ITEM_PIECE,
                      .key = key,
                      .bytes = look->bytes,
                      .idle_ms = look->idle_ms};
    return visit(ctx, &item);
}

static int redis_visit(Relay *relay, const char *prefix, RelayVisit visit, void *ctx) {
    RelayRedis *redis = (RelayRedis *)relay;
    int rc = 0;
    for (int server = 0; rc >= 0 && server < redis->url.n_servers; server++) {
        RedisNames names = {0};
        Look *looks = NULL;
        rc = find(redis, server, "onc", prefix, &names, &looks);
        if (rc < 0)
            err_context(rc, "listing the relay");
        for (size_t i = 0; rc >= 0 && i < names.n; i++)
            rc = show(redis, names.items[i], &looks[i], visit, ctx);
        free(looks);
        relay_redis_names_done(&names);
    }
    return rc < 0 ? rc : 0;
}

/* ---- pieces that nobody asks for ---- */

/* The pieces [first, end) of one object by one writer: PREFIXc:KEY:TOKEN:I. */
typedef struct Pieces {
    size_t first, end;
    size_t key_bytes, token_bytes; /* the name up to the end of KEY, of TOKEN */
} Pieces;

static void find_pieces(const RedisNames *names, size_t first, size_t key_begin, Pieces *out) {
    const char *name = names->items[first];
    size_t key_bytes = key_begin + strcspn(name + key_begin, ":");
    size_t token = key_bytes + (name[key_bytes] == ':');
    *out = (Pieces){.first = first,
                    .end = first + 1,
                    .key_bytes = key_bytes,
                    .token_bytes = token + strcspn(name + token, ":")};
    while (out->end < names->n && strncmp(names->items[out->end], name, out->token_bytes) == 0 &&
           names->items[out->end][out->token_bytes] == ':')
        out->end++;
}

/* Have others put pieces of the same object, too? */
static bool has_rivals(const RedisNames *names, const Pieces *pieces) {
    const char *name = names->items[pieces->first];
    const char *before = pieces->first > 0 ? names->items[pieces->first - 1] : "";
    const char *behind = pieces->end < names->n ? names->items[pieces->end] : "";
    return strncmp(before, name, pieces->key_bytes + 1) == 0 ||
           strncmp(behind, name, pieces->key_bytes + 1) == 0;
}

/* Does the entry, an answer to XRANGE, name the token? */
static bool names_token(const RedisReply *reply, const char *token, size_t bytes) {
    for (int depth = 0; depth < 2; depth++) {
        if (redis_count(reply) < (depth == 0 ? 1 : 2))
            return false;
        reply = redis_at(reply, depth == 0 ? 0 : 1);
    }
    if (redis_count(reply) != 2 || redis_kind(redis_at(reply, 1)) != REDIS_TEXT)
        return false;
    Slice content = redis_text(redis_at(reply, 1));
    return content.bytes > bytes && memcmp(content.data, token, bytes) == 0 &&
           ((const char *)content.data)[bytes] == ' ';
}

/* 1: the object of these pieces is not there, or is made of others. Only where there are rivals
 * the entry is read: that makes it look used. */
static int are_orphans(RelayRedis *redis, int server, const RedisNames *names,
                       const Pieces *pieces) {
    char key[RELAY_KEY_BYTES];
    const char *name = names->items[pieces->first];
    size_t begin = strlen(redis->url.prefix) + 2;
    size_t bytes = pieces->key_bytes - begin;
    bool rivals = has_rivals(names, pieces);
    if (bytes >= sizeof key || pieces->token_bytes <= pieces->key_bytes + 1)
        return 0; /* not of our making */
    memcpy(key, name + begin, bytes);
    key[bytes] = '\0';
    RedisName entry = relay_redis_name(redis, 'o', key);
    Question question = {
        .n_args = rivals ? 6 : 2,
        .args = {rivals ? "XRANGE" : "EXISTS", entry.text, "-", "+", "COUNT", "1"}};
    TRY(relay_redis_ask(redis, server, &question));
    bool wanted = rivals ? names_token(question.reply, name + pieces->key_bytes + 1,
                                       pieces->token_bytes - pieces->key_bytes - 1)
                         : number_or(question.reply, 1) > 0;
    redis_free(question.reply);
    return !wanted;
}

/* All of them, for older_ms? A writer may be at work: an entry comes behind its pieces. */
static bool are_old(const Pieces *pieces, const Look *looks, int64_t older_ms) {
    for (size_t i = pieces->first; i < pieces->end; i++) {
        if (!looks[i].gone && looks[i].idle_ms < older_ms)
            return false;
    }
    return true;
}

static int remove_pieces(RelayRedis *redis, int server, const RedisNames *names,
                         const Pieces *pieces) {
    for (size_t i = pieces->first; i < pieces->end; i++) {
        Question question = {.n_args = 2, .args = {"UNLINK", names->items[i]}};
        TRY(relay_redis_ask(redis, server, &question));
        redis_free(question.reply);
    }
    return 0;
}

static int sweep_server(RelayRedis *redis, int server, const char *prefix, int64_t older_ms,
                        bool dry_run, RelaySwept *swept) {
    RedisNames names = {0};
    Look *looks = NULL;
    Pieces pieces = {0};
    int rc = find(redis, server, "c", prefix, &names, &looks);
    while (rc >= 0 && pieces.end < names.n) {
        find_pieces(&names, pieces.end, strlen(redis->url.prefix) + 2, &pieces);
        rc = are_old(&pieces, looks, older_ms) ? are_orphans(redis, server, &names, &pieces) : 0;
        if (rc <= 0)
            continue;
        for (size_t i = pieces.first; i < pieces.end; i++) {
            swept->n_pieces += !looks[i].gone;
            swept->piece_bytes += looks[i].bytes > 0 ? looks[i].bytes : 0;
        }
        rc = dry_run ? 0 : remove_pieces(redis, server, &names, &pieces);
    }
    free(looks);
    relay_redis_names_done(&names);
    return rc < 0 ? rc : 0;
}

static int redis_sweep(Relay *relay, const char *prefix, int64_t older_ms, bool dry_run,
                       RelaySwept *out_swept) {
    RelayRedis *redis = (RelayRedis *)relay;
    for (int server = 0; server < redis->url.n_servers; server++) {
        int rc = sweep_server(redis, server, prefix, older_ms, dry_run, out_swept);
        if (rc < 0)
            return err_context(rc, "looking for pieces without an object");
    }
    return 0;
}

const RelaySurvey relay_redis_survey = {
    .visit = redis_visit, .sweep = redis_sweep, .about = relay_redis_about};

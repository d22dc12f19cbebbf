/* Dropping and counting what lies under prefixes: one SCAN of each server for all of them, and no
 * list of keys kept anywhere. A list a step, written in the transaction of every put, would spare
 * the SCAN; but it would cost every put of the training two commands and the server memory for
 * every object, while a drop comes once in many steps and in a thread that nobody waits for; and
 * what such a list lacked (pieces of a writer that died, a list that expired) would stay for good.
 * Keys made from the plan would be as cheap, and find nothing but what the coordinator knows of. So
 * a drop costs the server about 0.2 ms for each 1000 keys of its database, whosesoever they are: it
 * is well to give the relay a database of its own (/DB in its URL). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/text.h"
#include "storage/prefix_set.h"
#include "storage/relay_redis_parts.h"

enum {
    SCAN_COUNT = 1000,   /* keys the server looks at for one answer */
    UNLINK_NAMES = 50,   /* of one command */
    UNLINK_COMMANDS = 40 /* sent together */
};

void relay_redis_names_done(RedisNames *names) {
    for (size_t i = 0; i < names->n; i++)
        free(names->items[i]);
    free(names->items);
    *names = (RedisNames){0};
}

static int add_name(RedisNames *names, const char *name) {
    if (names->n == names->capacity) {
        size_t capacity = names->capacity ? 2 * names->capacity : 256;
        char **items = realloc(names->items, capacity * sizeof *items);
        if (!items)
            return err_set(ERR_MEMORY, "%zu keys", capacity);
        names->items = items;
        names->capacity = capacity;
    }
    names->items[names->n] = strdup(name);
    if (!names->items[names->n])
        return err_set(ERR_MEMORY, "a key");
    names->n++;
    return 0;
}

/* Is the name of one of `kinds` at or under one of the prefixes? */
static bool lies_under(const RelayRedis *redis, const char *name, const char *kinds,
                       const PrefixSet *under) {
    size_t n_prefix = strlen(redis->url.prefix);
    if (strncmp(name, redis->url.prefix, n_prefix) != 0 || !name[n_prefix] ||
        !strchr(kinds, name[n_prefix]) || name[n_prefix + 1] != ':')
        return false;
    const char *key = name + n_prefix + 2;
    return prefix_set_covers(under, key, strcspn(key, ":")); /* a piece has more behind its ':' */
}

/* Backwards, so that an entry ("o:") goes before its pieces ("c:"): what is left of a drop that was
 * broken off is never an object without its pieces. */
static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)b, *(char *const *)a);
}

/* Sorted, and without the keys that a scan named twice. */
static void sort_names(RedisNames *names) {
    size_t n = 0;
    if (names->n > 0)
        qsort(names->items, names->n, sizeof *names->items, compare_names);
    for (size_t i = 0; i < names->n; i++) {
        if (n > 0 && strcmp(names->items[n - 1], names->items[i]) == 0)
            free(names->items[i]);
        else
            names->items[n++] = names->items[i];
    }
    names->n = n;
}

static int read_cursor(const char *text, char *out, size_t out_bytes) {
    size_t n = strspn(text, "0123456789");
    return n > 0 && !text[n] && text_copy(out, out_bytes, text) >= 0
               ? 0
               : err_set(ERR_CORRUPT, "an answer to SCAN");
}

int relay_redis_scan(RelayRedis *redis, int server, const char *kinds, const PrefixSet *under,
                     RedisNames *out_names) {
    char cursor[24] = "0";
    char pattern[REDIS_NAME_BYTES];
    char count[16];
    snprintf(pattern, sizeof pattern, "%s?:%.*s*", redis->url.prefix, (int)prefix_set_common(under),
             under->items[0]);
    snprintf(count, sizeof count, "%d", SCAN_COUNT);
    do {
        Question question = {.n_args = 6,
                             .args = {"SCAN", cursor, "MATCH", pattern, "COUNT", count}};
        TRY(relay_redis_ask(redis, server, &question));
        const RedisReply *reply = question.reply;
        int rc = redis_count(reply) == 2 ? 0 : err_set(ERR_CORRUPT, "an answer to SCAN");
        const RedisReply *found = rc >= 0 ? redis_at(reply, 1) : NULL;
        if (rc >= 0)
            rc = read_cursor(redis_text(redis_at(reply, 0)).data, cursor, sizeof cursor);
        for (size_t i = 0; rc >= 0 && i < redis_count(found); i++) {
            const char *name = redis_text(redis_at(found, i)).data;
            if (lies_under(redis, name, kinds, under))
                rc = add_name(out_names, name);
        }
        redis_free(question.reply);
        TRY(rc);
    } while (strcmp(cursor, "0") != 0);
    sort_names(out_names);
    return 0;
}

typedef struct Unlink {
    const RedisNames *names;
    size_t first, end;
    int64_t n_gone; /* objects and notes, not pieces and sums under way */
    size_t n_prefix;
} Unlink;

/* 'o', 'n' or 'c'. */
static char kind_of(const Unlink *some, size_t index) {
    return some->names->items[index][some->n_prefix];
}

/* How many names from `first` on go into one command: all of one kind, as its answer counts them.
 */
static size_t one_command(const Unlink *some, size_t first) {
    size_t n = 1;
    while (n < UNLINK_NAMES && first + n < some->end &&
           kind_of(some, first + n) == kind_of(some, first))
        n++;
    return n;
}

static int ask_unlink(RedisTalk *talk, const Unlink *some, size_t first, size_t n) {
    const char *args[UNLINK_NAMES + 1] = {"UNLINK"};
    for (size_t i = 0; i < n; i++)
        args[i + 1] = some->names->items[first + i];
    return redis_ask(talk, (int)n + 1, args);
}

static int unlink_some(RelayRedis *redis, int server, void *arg, int64_t deadline_ns) {
    Unlink *some = arg;
    RedisTalk *talk = redis->talks[server];
    int64_t n_gone = 0;
    for (size_t i = some->first, n; i < some->end; i += n) {
        n = one_command(some, i);
        TRY(ask_unlink(talk, some, i, n));
    }
    TRY(redis_send(talk, deadline_ns));
    ErrNote said = {0};
    for (size_t i = some->first; i < some->end; i += one_command(some, i)) {
        RedisReply *reply = NULL;
        TRY(redis_answer(talk, deadline_ns, false, &reply));
        if (redis_check(talk, reply) < 0 && said.code == 0)
            err_copy(&said);
        if (strchr("on", kind_of(some, i)) && redis_kind(reply) == REDIS_INTEGER)
            n_gone += redis_integer(reply);
        redis_free(reply);
    }
    some->n_gone += n_gone;
    return said.code < 0 ? err_restore(&said) : 0;
}

static int drop_at(RelayRedis *redis, int server, const PrefixSet *prefixes, int64_t *n_gone) {
    enum { SOME = UNLINK_NAMES * UNLINK_COMMANDS };
    RedisNames names = {0};
    int rc = relay_redis_scan(redis, server, "oncs", prefixes, &names);
    Unlink some = {.names = &names, .n_prefix = strlen(redis->url.prefix)};
    while (rc >= 0 && some.first < names.n) {
        some.end = some.first + SOME < names.n ? some.first + SOME : names.n;
        rc = relay_redis_attempt(redis, server, unlink_some, &some,
                                 clock_deadline_ms(REDIS_OWN_TIME_MS), 0);
        some.first = some.end;
    }
    relay_redis_names_done(&names);
    *n_gone += some.n_gone;
    return rc;
}

/* A server that fails keeps the others from nothing. */
int relay_redis_drop(Relay *relay, const char *const *prefixes, int n_prefixes,
                     int64_t *out_dropped) {
    RelayRedis *redis = (RelayRedis *)relay;
    PrefixSet set;
    int64_t n_gone = 0;
    ErrNote said = {0};
    redis->held_key[0] = '\0';
    TRY(prefix_set_init(&set, prefixes, n_prefixes));
    for (int server = 0; server < redis->url.n_servers; server++) {
        if (drop_at(redis, server, &set, &n_gone) < 0 && said.code == 0)
            err_copy(&said);
    }
    prefix_set_done(&set);
    if (said.code < 0)
        return n_prefixes == 1 ? err_context(err_restore(&said), "dropping '%s'", prefixes[0])
                               : err_context(err_restore(&said), "dropping '%s' and %d more",
                                             prefixes[0], n_prefixes - 1);
    *out_dropped = n_gone;
    return 0;
}

int relay_redis_count(Relay *relay, const char *prefix, int64_t *out_count) {
    RelayRedis *redis = (RelayRedis *)relay;
    PrefixSet set;
    int64_t n = 0;
    int rc = prefix_set_init(&set, &prefix, 1);
    for (int server = 0; rc >= 0 && server < redis->url.n_servers; server++) {
        RedisNames names = {0};
        rc = relay_redis_scan(redis, server, "o", &set, &names);
        n += (int64_t)names.n;
        relay_redis_names_done(&names);
    }
    prefix_set_done(&set);
    if (rc < 0)
        return err_context(rc, "counting '%s'", prefix);
    *out_count = n;
    return 0;
}

/* What the Redis relay's files share; nobody else includes it. */
#ifndef FUNCPIPE_STORAGE_RELAY_REDIS_PARTS_H
#define FUNCPIPE_STORAGE_RELAY_REDIS_PARTS_H

#include <stdatomic.h>

#include "storage/prefix_set.h"
#include "storage/redis_form.h"
#include "storage/redis_talk.h"
#include "storage/relay_redis.h"
#include "storage/relay_survey.h"

enum {
    REDIS_NAME_BYTES = REDIS_PREFIX_BYTES + RELAY_KEY_BYTES + 64,
    REDIS_OWN_TIME_MS = 10000 /* for operations without a deadline of their own */
};

typedef struct RelayRedis {
    Relay base;
    RedisUrl url;
    RedisTalk *talks[REDIS_MAX_SERVERS]; /* NULL: not connected (yet, or any more) */
    RedisAbout about[REDIS_MAX_SERVERS];
    int wake_fd;
    atomic_bool interrupted;
    uint64_t random, n_tokens;
    char held_key[RELAY_KEY_BYTES]; /* whose content relay_size read already; "" none */
    Buf held;
    uint64_t jitter;
} RelayRedis;

typedef struct RedisName {
    char text[REDIS_NAME_BYTES];
} RedisName;

/* The name of a key's object 'o', note 'n', sum under way 's'. */
RedisName relay_redis_name(const RelayRedis *redis, char kind, const char *key);
RedisName relay_redis_piece_name(const RelayRedis *redis, const char *key, const char *token,
                                 int64_t index);
/* The server of a key: of all, the one whose hash with the key is highest (rendezvous hashing), so
 * that a server more or less moves only its own share. */
int relay_redis_server(const RelayRedis *redis, const char *key);

/* One try of an operation on a connected server. */
typedef int (*Exchange)(RelayRedis *redis, int server, void *arg, int64_t deadline_ns);

/* Try until it works, fails for good, the deadline passes or an interruption comes (ERR_CANCELLED).
 * A connection that failed is replaced, at once when it had worked before; a full server is asked
 * again and again. A try may last grace_ms even when the deadline is nearer. Repeating is harmless:
 * objects are write-once. */
int relay_redis_attempt(RelayRedis *redis, int server, Exchange exchange, void *arg,
                        int64_t deadline_ns, int64_t grace_ms);
/* Sleep until the earlier of both times, or an interruption: then false. */
bool relay_redis_pause(RelayRedis *redis, int64_t ms, int64_t deadline_ns);

/* relay_redis_put.c, relay_redis_add.c, relay_redis_get.c */
int relay_redis_put(Relay *relay, const char *key, const Slice *parts, int n_parts,
                    int64_t deadline_ns);
int relay_redis_add(Relay *relay, const char *key, int index, int n, const Slice *parts,
                    int n_parts, int64_t deadline_ns);
int relay_redis_get(Relay *relay, const char *key, void *buf, size_t capacity, int64_t deadline_ns,
                    size_t *out_bytes);
int relay_redis_size(Relay *relay, const char *key, int64_t deadline_ns, size_t *out_bytes);

/* What the entry of an object in pieces says; `text` has a NUL behind it. ERR_CORRUPT. */
typedef struct RedisManifest {
    char token[40];
    long long n_pieces, piece_bytes, bytes;
} RedisManifest;
int relay_redis_read_manifest(const char *key, Slice text, RedisManifest *out_manifest);

/* relay_redis_ask.c: one question, one answer. */
typedef struct Question {
    int n_args;
    const char *args[8];
    Slice value; /* when data != NULL: between args[1] and the rest */
    RedisReply *reply;
} Question;

/* Ask it within REDIS_OWN_TIME_MS; the answer is no error and is to be freed. */
int relay_redis_ask(RelayRedis *redis, int server, Question *question);

int relay_redis_has(Relay *relay, const char *key);
int relay_redis_note_put(Relay *relay, const char *key, const void *data, size_t bytes,
                         int64_t ttl_ms);
int relay_redis_note_get(Relay *relay, const char *key, void *buf, size_t capacity,
                         size_t *out_bytes);

/* relay_redis_scan.c: all keys under prefixes. */
typedef struct RedisNames { /* of one server: sorted backwards, each once */
    char **items;
    size_t n, capacity;
} RedisNames;

void relay_redis_names_done(RedisNames *names);
/* Every name of one of the kinds ("onc") at or under one of the prefixes; `out_names` is to be
 * ended in any case. */
int relay_redis_scan(RelayRedis *redis, int server, const char *kinds, const PrefixSet *under,
                     RedisNames *out_names);
int relay_redis_drop(Relay *relay, const char *const *prefixes, int n_prefixes,
                     int64_t *out_dropped);
int relay_redis_count(Relay *relay, const char *prefix, int64_t *out_count);

/* relay_redis_survey.c */
extern const struct RelaySurvey relay_redis_survey;
/* relay_redis_about.c: what the servers are like. */
int relay_redis_about(Relay *relay, RelayTell tell, void *ctx);

#endif

/* A logged-in conversation with one Redis server: commands are queued, sent together, and answered
 * in order. The only file that knows hiredis. An answer has at most 8 MiB but for values. After an
 * error only redis_talk_close is allowed, unless the talk is quiet. */
#ifndef FUNCPIPE_STORAGE_REDIS_TALK_H
#define FUNCPIPE_STORAGE_REDIS_TALK_H

#include "core/buf.h"
#include "storage/redis_url.h"

typedef struct RedisTalk RedisTalk;
typedef struct redisReply RedisReply;

typedef struct RedisAbout { /* of the server, read at the first login */
    int64_t max_bulk_bytes; /* the longest value it takes */
} RedisAbout;

/* Connect, and before anything else AUTH and SELECT. With `about`: also check that the server can
 * be a relay (ERR_UNSUPPORTED: cluster mode, too old, or one that evicts keys), and wait while it
 * reads its file. ERR_AUTH when the login is refused. */
int redis_talk_open(const RedisUrl *url, int server, int wake_fd, int64_t deadline_ns,
                    RedisAbout *about, RedisTalk **out_talk);
void redis_talk_close(RedisTalk *talk); /* NULL is fine */
/* Count in *n_asked what is asked from here on; NULL: nowhere. */
void redis_talk_count(RedisTalk *talk, int64_t *n_asked);
/* Has all that was asked been answered? */
bool redis_talk_quiet(const RedisTalk *talk);

/* redis_link_tls; NULL: false. */
bool redis_talk_tls(const RedisTalk *talk, char *out_protocol, size_t protocol_bytes,
                    int *out_days);
/* The value of a line "NAME:VALUE" of INFO, or "" when it is not there. */
const char *redis_info(const char *text, const char *name, char *out, size_t out_bytes);

/* Queue a command of n texts. */
int redis_ask(RedisTalk *talk, int n_args, const char *const *args);
/* Queue one with a value in between: before..., the parts joined, after... The parts are borrowed
 * until redis_send. */
int redis_ask_value(RedisTalk *talk, int n_before, const char *const *before, const Slice *parts,
                    int n_parts, int n_after, const char *const *after);
int redis_send(RedisTalk *talk, int64_t deadline_ns);
#define REDIS_ASK(talk, ...)                                                                       \
    redis_ask(talk, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)),                 \
              (const char *[]){__VA_ARGS__})

/* The next answer; free it with redis_free. An error of the server is an answer too. */
int redis_answer(RedisTalk *talk, int64_t deadline_ns, bool interruptible, RedisReply **out_reply);
/* The next answer must be a value of `bytes` bytes: 1 and it is in `out`; 0: there is none. No copy
 * is made on the way. `stall_ms`: the longest wait for the next bytes. ERR_CORRUPT when its length
 * is another. */
int redis_answer_value(RedisTalk *talk, void *out, size_t bytes, int64_t stall_ms);

typedef enum RedisKind { REDIS_NIL, REDIS_INTEGER, REDIS_TEXT, REDIS_ARRAY, REDIS_ERROR } RedisKind;
RedisKind redis_kind(const RedisReply *reply);
Slice redis_text(const RedisReply *reply); /* of TEXT and ERROR; NUL behind it */
int64_t redis_integer(const RedisReply *reply);
size_t redis_count(const RedisReply *reply);                       /* of ARRAY; else 0 */
const RedisReply *redis_at(const RedisReply *reply, size_t index); /* of ARRAY */
void redis_free(RedisReply *reply);

/* Does the error begin with the word (NOAUTH, OOM, ...)? */
bool redis_says(const RedisReply *reply, const char *word);
/* 0 unless it is an error: then it is set as ours, saying who answered what. */
int redis_check(const RedisTalk *talk, const RedisReply *reply);

#endif

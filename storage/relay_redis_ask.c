/* What is one question and one answer: is an object there; notes. */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/relay_redis_parts.h"

#define NOTE_MAX_MS (INT64_C(3650) * 24 * 3600 * 1000) /* Redis refuses times beyond its clock */

static int ask_question(RelayRedis *redis, int server, void *arg, int64_t deadline_ns) {
    Question *question = arg;
    RedisTalk *talk = redis->talks[server];
    redis_free(question->reply);
    question->reply = NULL;
    TRY(question->value.data ? redis_ask_value(talk, 2, question->args, &question->value, 1,
                                               question->n_args - 2, question->args + 2)
                             : redis_ask(talk, question->n_args, question->args));
    TRY(redis_send(talk, deadline_ns));
    TRY(redis_answer(talk, deadline_ns, false, &question->reply));
    return redis_check(talk, question->reply);
}

int relay_redis_ask(RelayRedis *redis, int server, Question *question) {
    int rc = relay_redis_attempt(redis, server, ask_question, question,
                                 clock_deadline_ms(REDIS_OWN_TIME_MS), 0);
    if (rc < 0) {
        redis_free(question->reply);
        question->reply = NULL;
    }
    return rc;
}

int relay_redis_has(Relay *relay, const char *key) {
    RelayRedis *redis = (RelayRedis *)relay;
    RedisName name = relay_redis_name(redis, 'o', key);
    Question question = {.n_args = 2, .args = {"EXISTS", name.text}};
    int rc = relay_redis_ask(redis, relay_redis_server(redis, key), &question);
    if (rc < 0)
        return err_context(rc, "looking for '%s'", key);
    rc = redis_integer(question.reply) > 0;
    redis_free(question.reply);
    return rc;
}

typedef struct NoteQuestion {
    Question question;
    ErrNote full;
} NoteQuestion;

/* A full server is not asked again: a note is out of date by the time that there is room. */
static int ask_note(RelayRedis *redis, int server, void *arg, int64_t deadline_ns) {
    NoteQuestion *note = arg;
    int rc = ask_question(redis, server, &note->question, deadline_ns);
    if (rc != ERR_FULL)
        return rc;
    err_copy(&note->full);
    return 0;
}

int relay_redis_note_put(Relay *relay, const char *key, const void *data, size_t bytes,
                         int64_t ttl_ms) {
    RelayRedis *redis = (RelayRedis *)relay;
    RedisName name = relay_redis_name(redis, 'n', key);
    char ttl[24];
    NoteQuestion note = {.question = {.n_args = 4,
                                      .args = {"SET", name.text, "PX", ttl},
                                      .value = {bytes ? data : "", bytes}}};
    snprintf(ttl, sizeof ttl, "%lld", (long long)(ttl_ms < NOTE_MAX_MS ? ttl_ms : NOTE_MAX_MS));
    int rc = relay_redis_attempt(redis, relay_redis_server(redis, key), ask_note, &note,
                                 clock_deadline_ms(REDIS_OWN_TIME_MS), 0);
    redis_free(note.question.reply);
    if (rc >= 0 && note.full.code < 0)
        rc = err_restore(&note.full);
    return rc < 0 ? err_context(rc, "putting the note '%s'", key) : 0;
}

int relay_redis_note_get(Relay *relay, const char *key, void *buf, size_t capacity,
                         size_t *out_bytes) {
    RelayRedis *redis = (RelayRedis *)relay;
    RedisName name = relay_redis_name(redis, 'n', key);
    Question question = {.n_args = 2, .args = {"GET", name.text}};
    int rc = relay_redis_ask(redis, relay_redis_server(redis, key), &question);
    if (rc < 0)
        return err_context(rc, "getting the note '%s'", key);
    Slice text = redis_text(question.reply);
    if (redis_kind(question.reply) == REDIS_NIL)
        rc = err_set(ERR_NOT_FOUND, "there is no note '%s'", key);
    else if (text.bytes > capacity)
        rc = err_set(ERR_LIMIT, "the note '%s' has %zu bytes, the buffer %zu", key, text.bytes,
                     capacity);
    else {
        memcpy(buf, text.data, text.bytes);
        *out_bytes = text.bytes;
    }
    redis_free(question.reply);
    return rc;
}

#include "storage/redis_talk.h"

#include <hiredis/hiredis.h>
#include <hiredis/sds.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/text.h"
#include "storage/redis_link.h"

enum {
    TALK_READ_BYTES = 64 << 10,
    DEFAULT_MAX_BULK = 512 << 20,
    LEAST_MAX_BULK = 64 << 10, /* no server says less; one that does is not believed */
    MAX_ERROR_BYTES = 300,
    MAX_ANSWER_BYTES = 8 << 20, /* of all but values; the longest is one of SCAN */
    MAX_ANSWER_ITEMS = 64 << 10,
    MAX_LINE_BYTES = 4 << 10,
    VALUE_BYTES_PER_MS = 64, /* a value that comes more slowly than 64 kB/s does not come */
    LOADING_MS = 50
};

typedef struct Piece { /* of what is queued: borrowed, or at `at` in the text */
    const void *borrowed;
    size_t at, bytes;
} Piece;

struct RedisTalk {
    RedisLink *link;
    redisReader *reader;
    redisReplyObjectFunctions functions; /* hiredis' own, but for arrays */
    void *(*create_array)(const redisReadTask *task, int n_items); /* hiredis' own */
    int64_t n_outstanding;                                         /* questions without an answer */
    int64_t *n_asked;                  /* counts them; NULL: nobody does */
    char place[REDIS_HOST_BYTES + 32]; /* for errors: redis://host:port/db */
    Buf text;                          /* what is queued but the borrowed */
    Piece *pieces;
    size_t n_pieces, cap_pieces;
    size_t piece_begin; /* in text: not in a piece yet */
    char input[TALK_READ_BYTES];
};

/* ---- questions ---- */

static int add_piece(RedisTalk *talk, Piece piece) {
    if (piece.bytes == 0)
        return 0;
    if (talk->n_pieces == talk->cap_pieces) {
        size_t capacity = talk->cap_pieces ? 2 * talk->cap_pieces : 64;
        Piece *pieces = realloc(talk->pieces, capacity * sizeof *pieces);
        if (!pieces)
            return err_set(ERR_MEMORY, "%zu pieces of a Redis command", capacity);
        talk->pieces = pieces;
        talk->cap_pieces = capacity;
    }
    talk->pieces[talk->n_pieces++] = piece;
    return 0;
}

static int end_piece(RedisTalk *talk) {
    size_t begin = talk->piece_begin;
    talk->piece_begin = talk->text.bytes;
    return add_piece(talk, (Piece){NULL, begin, talk->text.bytes - begin});
}

static int add_texts(RedisTalk *talk, int n, const char *const *texts) {
    for (int i = 0; i < n; i++)
        TRY(buf_printf(&talk->text, "$%zu\r\n%s\r\n", strlen(texts[i]), texts[i]));
    return 0;
}

void redis_talk_count(RedisTalk *talk, int64_t *n_asked) {
    talk->n_asked = n_asked;
}

static void count(RedisTalk *talk) {
    talk->n_outstanding++;
    if (talk->n_asked)
        ++*talk->n_asked;
}

int redis_ask(RedisTalk *talk, int n_args, const char *const *args) {
    count(talk);
    TRY(buf_printf(&talk->text, "*%d\r\n", n_args));
    return add_texts(talk, n_args, args);
}

int redis_ask_value(RedisTalk *talk, int n_before, const char *const *before, const Slice *parts,
                    int n_parts, int n_after, const char *const *after) {
    size_t bytes = 0;
    count(talk);
    for (int i = 0; i < n_parts; i++)
        bytes += parts[i].bytes;
    TRY(buf_printf(&talk->text, "*%d\r\n", n_before + 1 + n_after));
    TRY(add_texts(talk, n_before, before));
    TRY(buf_printf(&talk->text, "$%zu\r\n", bytes));
    TRY(end_piece(talk));
    for (int i = 0; i < n_parts; i++)
        TRY(add_piece(talk, (Piece){parts[i].data, 0, parts[i].bytes}));
    TRY(buf_text(&talk->text, "\r\n"));
    return add_texts(talk, n_after, after);
}

int redis_send(RedisTalk *talk, int64_t deadline_ns) {
    TRY(end_piece(talk));
    Slice *parts = malloc((talk->n_pieces + 1) * sizeof *parts);
    if (!parts)
        return err_set(ERR_MEMORY, "a Redis command of %zu pieces", talk->n_pieces);
    for (size_t i = 0; i < talk->n_pieces; i++) {
        const Piece *piece = &talk->pieces[i];
        parts[i] =
            (Slice){piece->borrowed ? piece->borrowed : talk->text.data + piece->at, piece->bytes};
    }
    int rc = redis_link_send(talk->link, parts, talk->n_pieces, deadline_ns);
    free(parts);
    buf_clear(&talk->text);
    talk->n_pieces = 0;
    talk->piece_begin = 0;
    return rc;
}

/* ---- answers ---- */

/* The length of an array comes from outside, and hiredis takes memory for all of it at once. */
static void *limited_array(const redisReadTask *task, int n_items) {
    const RedisTalk *talk = task->privdata;
    return n_items <= MAX_ANSWER_ITEMS ? talk->create_array(task, n_items) : NULL;
}

static int fill(RedisTalk *talk, int64_t deadline_ns, bool interruptible) {
    int64_t n =
        redis_link_receive(talk->link, talk->input, sizeof talk->input, deadline_ns, interruptible);
    if (n < 0)
        return (int)n;
    if (talk->reader->pos >= sizeof talk->input) { /* hiredis does so only between answers */
        sdsrange(talk->reader->buf, (int)talk->reader->pos, -1);
        talk->reader->pos = 0;
        talk->reader->len = sdslen(talk->reader->buf);
    }
    return redisReaderFeed(talk->reader, talk->input, (size_t)n) == REDIS_OK
               ? (int)n
               : err_set(ERR_MEMORY, "an answer of %s", talk->place);
}

static int nonsense(const RedisTalk *talk, const char *what) {
    return err_set(ERR_CORRUPT, "%s does not answer as a Redis server does: %s", talk->place, what);
}

int redis_answer(RedisTalk *talk, int64_t deadline_ns, bool interruptible, RedisReply **out_reply) {
    for (int64_t bytes = 0;;) {
        void *reply = NULL;
        if (redisReaderGetReply(talk->reader, &reply) != REDIS_OK)
            return nonsense(talk, talk->reader->err == REDIS_ERR_OOM ? "an array beyond all bounds"
                                                                     : talk->reader->errstr);
        if (reply) {
            talk->n_outstanding--;
            *out_reply = reply;
            return 0;
        }
        if (bytes > MAX_ANSWER_BYTES)
            return nonsense(talk, "an answer without an end");
        int n = fill(talk, deadline_ns, interruptible);
        TRY(n);
        bytes += n;
    }
}

bool redis_talk_quiet(const RedisTalk *talk) {
    return talk->n_outstanding == 0;
}

/* What the reader has read and not yet taken apart. */
static Slice waiting(const RedisTalk *talk) {
    return (Slice){talk->reader->buf + talk->reader->pos, talk->reader->len - talk->reader->pos};
}

/* The "$N" line in front of a value: N, or -1 for none. An error of the server becomes ours. */
static int value_length(RedisTalk *talk, int64_t stall_ms, int64_t *out_bytes) {
    char number[24];
    Slice line = waiting(talk);
    const char *end = NULL;
    while (!(end = line.bytes ? memchr(line.data, '\n', line.bytes) : NULL)) {
        if (line.bytes > MAX_LINE_BYTES)
            return nonsense(talk, "a line without an end");
        TRY(fill(talk, clock_deadline_ms(stall_ms), false));
        line = waiting(talk);
    }
    const char *text = line.data;
    size_t n = (size_t)(end - text);
    if (text[0] != '$') {
        RedisReply *reply = NULL;
        TRY(redis_answer(talk, clock_deadline_ms(stall_ms), false, &reply));
        int rc = redis_check(talk, reply);
        redis_free(reply);
        return rc < 0 ? rc : nonsense(talk, "a value was asked for");
    }
    if (n < 3 || n - 1 > sizeof number || text[n - 1] != '\r')
        return nonsense(talk, "the length of a value");
    memcpy(number, text + 1, n - 2);
    number[n - 2] = '\0';
    if (text_parse_i64(number, -1, INT64_C(1) << 40, out_bytes) < 0)
        return nonsense(talk, "the length of a value");
    talk->reader->pos += n + 1;
    return 0;
}

int redis_answer_value(RedisTalk *talk, void *out, size_t bytes, int64_t stall_ms) {
    int64_t length = 0;
    char *to = out;
    int64_t all_ns = clock_deadline_ms(stall_ms + (int64_t)bytes / VALUE_BYTES_PER_MS);
    TRY(value_length(talk, stall_ms, &length));
    if (length < 0) {
        talk->n_outstanding--;
        return 0;
    }
    if ((uint64_t)length != bytes)
        return err_set(ERR_CORRUPT, "%s: a value has %lld bytes instead of %zu", talk->place,
                       (long long)length, bytes);
    Slice early = waiting(talk);
    size_t n = early.bytes < bytes ? early.bytes : bytes;
    if (n > 0)
        memcpy(to, early.data, n);
    talk->reader->pos += n;
    while (n < bytes) {
        int64_t stall_ns = clock_deadline_ms(stall_ms);
        int64_t got = redis_link_receive(talk->link, to + n, bytes - n,
                                         stall_ns < all_ns ? stall_ns : all_ns, false);
        if (got < 0)
            return (int)got;
        n += (size_t)got;
    }
    while (waiting(talk).bytes < 2)
        TRY(fill(talk, clock_deadline_ms(stall_ms), false));
    if (memcmp(waiting(talk).data, "\r\n", 2) != 0)
        return nonsense(talk, "the end of a value");
    talk->reader->pos += 2;
    talk->n_outstanding--;
    return 1;
}

RedisKind redis_kind(const RedisReply *reply) {
    switch (reply->type) {
    case REDIS_REPLY_INTEGER:
        return REDIS_INTEGER;
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
        return REDIS_TEXT;
    case REDIS_REPLY_ARRAY:
        return REDIS_ARRAY;
    case REDIS_REPLY_ERROR:
        return REDIS_ERROR;
    default:
        return REDIS_NIL;
    }
}

Slice redis_text(const RedisReply *reply) {
    return reply->str ? (Slice){reply->str, (size_t)reply->len} : (Slice){"", 0};
}

int64_t redis_integer(const RedisReply *reply) {
    return reply->integer;
}

size_t redis_count(const RedisReply *reply) {
    return reply->type == REDIS_REPLY_ARRAY ? reply->elements : 0;
}

const RedisReply *redis_at(const RedisReply *reply, size_t index) {
    return reply->element[index];
}

void redis_free(RedisReply *reply) {
    if (reply)
        freeReplyObject(reply);
}

static bool begins_with_word(const char *text, const char *word) {
    size_t n = strlen(word);
    return strncmp(text, word, n) == 0 && (text[n] == ' ' || text[n] == '\0');
}

bool redis_says(const RedisReply *reply, const char *word) {
    return reply->type == REDIS_REPLY_ERROR && begins_with_word(reply->str, word);
}

static int in_cluster(const RedisTalk *talk) {
    return err_set(ERR_UNSUPPORTED,
                   "%s is part of a Redis cluster, which cannot be a relay: name single servers "
                   "instead",
                   talk->place);
}

/* An error as the server words it, of printable characters. */
static const char *words(const char *text, char out[MAX_ERROR_BYTES]) {
    size_t n = 0;
    for (; text[n] && n + 1 < MAX_ERROR_BYTES; n++)
        out[n] = (char)(text[n] < ' ' || text[n] > '~' ? '?' : text[n]);
    out[n] = '\0';
    return out;
}

int redis_check(const RedisTalk *talk, const RedisReply *reply) {
    static const char aborted[] = "EXECABORT Transaction discarded because of: ";
    static const struct {
        const char *word;
        int code;
    } known[] = {{"NOAUTH", ERR_AUTH},
                 {"WRONGPASS", ERR_AUTH},
                 {"NOPERM", ERR_AUTH},
                 {"DENIED", ERR_AUTH},
                 {"OOM", ERR_FULL},
                 {"WRONGTYPE", ERR_CORRUPT},
                 {"MOVED", ERR_UNSUPPORTED},
                 {"ASK", ERR_UNSUPPORTED},
                 {"CLUSTERDOWN", ERR_UNSUPPORTED},
                 {"CROSSSLOT", ERR_UNSUPPORTED},
                 {"READONLY", ERR_UNSUPPORTED},
                 {"LOADING", ERR_UNREACHABLE},
                 {"BUSY", ERR_UNREACHABLE},
                 {"MASTERDOWN", ERR_UNREACHABLE},
                 {"ERR max number of clients reached", ERR_UNREACHABLE}};
    char said[MAX_ERROR_BYTES];
    if (reply->type != REDIS_REPLY_ERROR)
        return 0;
    const char *text = reply->str;
    if (strncmp(text, aborted, sizeof aborted - 1) == 0)
        text += sizeof aborted - 1;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (!begins_with_word(text, known[i].word))
            continue;
        if (known[i].code == ERR_UNSUPPORTED && strcmp(known[i].word, "READONLY") != 0)
            return in_cluster(talk);
        return err_set(known[i].code, "%s answers: %s", talk->place, words(text, said));
    }
    return err_set(ERR_IO, "%s answers: %s", talk->place, words(text, said));
}

/* ---- logging in ---- */

/* The next answer must be no error. */
static int expect_fine(RedisTalk *talk, int64_t deadline_ns) {
    RedisReply *reply = NULL;
    TRY(redis_answer(talk, deadline_ns, true, &reply));
    int rc = redis_check(talk, reply);
    redis_free(reply);
    return rc;
}

/* The answer to AUTH. A server that does not know the command quotes its arguments: such words are
 * not shown. */
static int expect_login(RedisTalk *talk, const char *password, int64_t deadline_ns) {
    RedisReply *reply = NULL;
    char start[7];
    TRY(redis_answer(talk, deadline_ns, true, &reply));
    int rc = redis_check(talk, reply);
    snprintf(start, sizeof start, "%s", password);
    if (rc < 0 && (strstr(reply->str, start) || strstr(reply->str, "args")))
        rc = err_set(ERR_AUTH, "%s refuses the login and quotes it", talk->place);
    else if (rc == ERR_IO) /* such as: no password is set */
        rc = err_context(ERR_AUTH, "logging in");
    redis_free(reply);
    return rc;
}

static int expect_db(RedisTalk *talk, int64_t deadline_ns) {
    RedisReply *reply = NULL;
    TRY(redis_answer(talk, deadline_ns, true, &reply));
    int rc = redis_check(talk, reply);
    if (rc == ERR_IO)
        rc = strstr(reply->str, "cluster mode")
                 ? in_cluster(talk)
                 : err_context(ERR_ARGUMENT, "the relay's URL: the database");
    redis_free(reply);
    return rc;
}

static int log_in(RedisTalk *talk, const RedisUrl *url, int64_t deadline_ns) {
    char db[24];
    snprintf(db, sizeof db, "%lld", (long long)url->db);
    if (url->password[0]) {
        int rc = url->user[0] ? REDIS_ASK(talk, "AUTH", url->user, url->password)
                              : REDIS_ASK(talk, "AUTH", url->password);
        if (rc >= 0)
            rc = redis_send(talk, deadline_ns);
        if (talk->text.data)
            explicit_bzero(talk->text.data, talk->text.capacity);
        TRY(rc);
        TRY(expect_login(talk, url->password, deadline_ns));
    }
    if (url->db > 0)
        TRY(REDIS_ASK(talk, "SELECT", db));
    TRY(REDIS_ASK(talk, "PING")); /* a server that wants a password says so here */
    TRY(redis_send(talk, deadline_ns));
    if (url->db > 0)
        TRY(expect_db(talk, deadline_ns));
    return expect_fine(talk, deadline_ns);
}

static int ask_ping(RedisTalk *talk, int64_t deadline_ns, RedisReply **out_reply) {
    TRY(REDIS_ASK(talk, "PING"));
    TRY(redis_send(talk, deadline_ns));
    return redis_answer(talk, deadline_ns, true, out_reply);
}

/* While the server reads its file: wait, and ask again. `rc` is what it said first. */
static int wait_for_loading(RedisTalk *talk, int rc, int64_t deadline_ns) {
    while (rc == ERR_UNREACHABLE && clock_now_ns() + LOADING_MS * CLOCK_NS_PER_MS < deadline_ns) {
        RedisReply *reply = NULL;
        ErrNote said;
        err_copy(&said);
        clock_sleep_until(clock_deadline_ms(LOADING_MS));
        if (ask_ping(talk, deadline_ns, &reply) < 0)
            return err_restore(&said);
        rc = redis_check(talk, reply);
        redis_free(reply);
    }
    return rc;
}

const char *redis_info(const char *text, const char *name, char *out, size_t out_bytes) {
    size_t n = strlen(name);
    out[0] = '\0';
    for (const char *line = text; line; line = strchr(line, '\n'), line += line != NULL) {
        if (strncmp(line, name, n) == 0 && line[n] == ':') {
            size_t length = strcspn(line + n + 1, "\r\n");
            length = length < out_bytes ? length : out_bytes - 1;
            memcpy(out, line + n + 1, length);
            out[length] = '\0';
            break;
        }
    }
    return out;
}

static int check_info(const RedisTalk *talk, const char *text) {
    char value[64];
    if (strcmp(redis_info(text, "cluster_enabled", value, sizeof value), "1") == 0)
        return in_cluster(talk);
    redis_info(text, "maxmemory_policy", value, sizeof value);
    if (value[0] && strcmp(value, "noeviction") != 0) {
        char limit[32];
        bool harmless = strncmp(value, "volatile-", 9) == 0 &&
                        strcmp(redis_info(text, "maxmemory", limit, sizeof limit), "0") == 0;
        if (!harmless)
            return err_set(ERR_UNSUPPORTED,
                           "%s throws keys away when memory is short (maxmemory-policy %s), and "
                           "with them parts of the training: set maxmemory-policy noeviction",
                           talk->place, value);
    }
    redis_info(text, "redis_version", value, sizeof value);
    if (value[0] && value[0] >= '0' && value[0] <= '4' && value[1] == '.')
        return err_set(ERR_UNSUPPORTED, "%s is Redis %s; 5.0 or newer is needed", talk->place,
                       value);
    return 0;
}

/* CONFIG may be forbidden: then the server's default is taken. */
static void read_max_bulk(const RedisReply *reply, RedisAbout *about) {
    about->max_bulk_bytes = DEFAULT_MAX_BULK;
    if (redis_count(reply) == 2 && redis_kind(redis_at(reply, 1)) == REDIS_TEXT) {
        int64_t bytes = 0;
        if (text_parse_i64(redis_at(reply, 1)->str, 1, INT64_MAX, &bytes) >= 0)
            about->max_bulk_bytes = bytes < LEAST_MAX_BULK ? LEAST_MAX_BULK : bytes;
    }
}

static int look_at_server(RedisTalk *talk, int64_t deadline_ns, RedisAbout *about) {
    RedisReply *reply = NULL;
    TRY(REDIS_ASK(talk, "INFO"));
    TRY(REDIS_ASK(talk, "CONFIG", "GET", "proto-max-bulk-len"));
    TRY(redis_send(talk, deadline_ns));
    TRY(redis_answer(talk, deadline_ns, true, &reply));
    int rc = redis_kind(reply) == REDIS_TEXT ? check_info(talk, reply->str) : 0;
    redis_free(reply);
    TRY(rc);
    TRY(redis_answer(talk, deadline_ns, true, &reply));
    read_max_bulk(reply, about);
    redis_free(reply);
    return 0;
}

int redis_talk_open(const RedisUrl *url, int server, int wake_fd, int64_t deadline_ns,
                    RedisAbout *about, RedisTalk **out_talk) {
    const RedisServer *peer = &url->servers[server];
    RedisTalk *talk = calloc(1, sizeof *talk);
    if (!talk)
        return err_set(ERR_MEMORY, "a connection to Redis");
    int rc = 0;
    buf_init(&talk->text, 0);
    snprintf(talk->place, sizeof talk->place, "redis%s://%s:%s/%lld", url->tls ? "s" : "",
             peer->host, peer->port, (long long)url->db);
    talk->reader = redisReaderCreate();
    if (!talk->reader)
        TRY_DONE(err_set(ERR_MEMORY, "a connection to Redis"));
    talk->functions = *talk->reader->fn;
    talk->create_array = talk->functions.createArray;
    talk->functions.createArray = limited_array;
    talk->reader->fn = &talk->functions;
    talk->reader->privdata = talk;
    TRY_DONE(redis_link_open(url, server, wake_fd, deadline_ns, &talk->link));
    rc = log_in(talk, url, deadline_ns);
    if (rc == ERR_UNREACHABLE && about && redis_talk_quiet(talk))
        rc = wait_for_loading(talk, rc, deadline_ns);
    TRY_DONE(rc);
    if (about)
        TRY_DONE(look_at_server(talk, deadline_ns, about));
    *out_talk = talk;
    return 0;
done:
    redis_talk_close(talk);
    return rc;
}

bool redis_talk_tls(const RedisTalk *talk, char *out_protocol, size_t protocol_bytes,
                    int *out_days) {
    return talk && redis_link_tls(talk->link, out_protocol, protocol_bytes, out_days);
}

void redis_talk_close(RedisTalk *talk) {
    if (!talk)
        return;
    redis_link_close(talk->link);
    if (talk->reader)
        redisReaderFree(talk->reader);
    buf_done(&talk->text);
    free(talk->pieces);
    free(talk);
}

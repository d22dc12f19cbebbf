/* The relay over S3: names, handles, and what is one question and one answer. */
#include "storage/relay_s3.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/relay_s3_parts.h"

S3Name relay_s3_name(const RelayS3 *s3, char kind, const char *key) {
    S3Name name;
    snprintf(name.text, sizeof name.text, "%s%s/.%c", s3->url.prefix, key, kind);
    return name;
}

int relay_s3_ask(RelayS3 *s3, S3Request *request) {
    int64_t deadline_ns = clock_deadline_ms(S3_OWN_TIME_MS);
    S3Limits limits = {.retry_until_ns = deadline_ns, .answer_by_ns = deadline_ns};
    return s3_client_run(s3->client, request, 1, &limits);
}

int relay_s3_odd(const RelayS3 *s3, const S3Answer *answer) {
    return err_set(answer->status == 501 ? ERR_UNSUPPORTED : ERR_IO,
                   "the S3 store %s answered %d %s, which was not expected", s3->url.host,
                   answer->status, answer->code);
}

static int s3_has(Relay *relay, const char *key) {
    RelayS3 *s3 = (RelayS3 *)relay;
    int64_t deadline_ns = clock_deadline_ms(S3_OWN_TIME_MS);
    S3Limits limits = {.retry_until_ns = deadline_ns, .answer_by_ns = deadline_ns};
    int64_t bytes = 0;
    int rc = relay_s3_there(s3, key, &limits, &bytes);
    return rc < 0 ? err_context(rc, "looking for '%s'", key) : rc;
}

static void s3_interrupt(Relay *relay, bool on) {
    RelayS3 *s3 = (RelayS3 *)relay;
    uint64_t one = 1;
    bool was = atomic_exchange(&s3->interrupted, on);
    ssize_t n = on == was ? 0
                : on      ? write(s3->wake_fd, &one, sizeof one)
                          : read(s3->wake_fd, &one, sizeof one);
    (void)n;
}

static void s3_close(Relay *relay) {
    RelayS3 *s3 = (RelayS3 *)relay;
    s3_client_close(s3->client);
    s3_rhythm_close(s3->rhythm);
    if (s3->wake_fd >= 0)
        close(s3->wake_fd);
    free(s3->held);
    free(s3);
}

static void s3_place(const Relay *relay, int server, char *out, size_t bytes) {
    (void)server; /* there is but one */
    snprintf(out, bytes, "%s", ((const RelayS3 *)relay)->url.host);
}

/* May we list the bucket? Without that right a store says of an absent object that we may not read
 * it, not that it is absent. */
static int ask_first(RelayS3 *s3) {
    Buf text;
    Buf query;
    buf_init(&text, S3_MAX_ANSWER_BYTES);
    buf_init(&query, 0);
    int64_t deadline_ns = clock_deadline_ms(S3_OWN_TIME_MS);
    S3Limits limits = {deadline_ns, deadline_ns, true};
    int rc = buf_text(&query, "list-type=2&max-keys=1&prefix=");
    if (rc >= 0)
        rc = s3_encode(&query, s3->url.prefix, false);
    S3Request request = {.method = "GET", .query = query.data, .text = &text};
    if (rc >= 0)
        rc = s3_client_run(s3->client, &request, 1, &limits);
    if (rc >= 0 && request.answer.status != 200)
        rc = relay_s3_odd(s3, &request.answer);
    buf_done(&text);
    buf_done(&query);
    return rc < 0 ? err_context(rc, "listing the bucket '%s'", s3->url.bucket) : 0;
}

int relay_s3_open(const char *place, Relay **out_relay) {
    static const RelayOps ops = {.name = "s3",
                                 .close = s3_close,
                                 .put = relay_s3_put,
                                 .get = relay_s3_get,
                                 .size = relay_s3_size,
                                 .has = s3_has,
                                 .drop = relay_s3_drop,
                                 .count = relay_s3_count,
                                 .note_put = relay_s3_note_put,
                                 .note_get = relay_s3_note_get,
                                 .interrupt = s3_interrupt,
                                 .place = s3_place,
                                 .survey = &relay_s3_survey,
                                 .tidy = relay_s3_tidy};
    RelayS3 *s3 = calloc(1, sizeof *s3);
    if (!s3)
        return err_set(ERR_MEMORY, "a handle of an S3 relay");
    int rc = 0;
    s3->base.ops = &ops;
    s3->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (s3->wake_fd < 0)
        TRY_DONE(err_errno(ERR_IO, errno, "opening an S3 relay"));
    s3->held = malloc(S3_HELD_BYTES);
    if (!s3->held)
        TRY_DONE(err_set(ERR_MEMORY, "a handle of an S3 relay"));
    TRY_DONE(s3_url_parse(place, &s3->url));
    TRY_DONE(s3_rhythm_open(&s3->rhythm));
    TRY_DONE(
        s3_client_open(&s3->url, s3->wake_fd, &s3->interrupted, &s3->base.counters, &s3->client));
    TRY_DONE(ask_first(s3));
    *out_relay = &s3->base;
    return 0;
done:
    s3_close(&s3->base);
    return rc;
}

/* What networks and stores do to the S3 relay: refusals that pass and that stay, connections cut
 * anywhere, answers that are nonsense, clocks that differ, objects that change. Each ends as if
 * nothing had been, or in one sentence that names the store and holds no secret. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/file.h"
#include "storage/relay.h"
#include "tests/support/cutting.h"
#include "tests/support/loopback.h"
#include "tests/support/s3_fake.h"
#include "tests/support/temp_folder.h"

#define SECRET "c4n4ry-secret"
#define TOKEN "c4n4ry-token"

enum { LONG_BYTES = 17 << 20 }; /* is put and read in pieces */

static S3Fake *fake;
static Relay *relay;
static char url[256];

static int open_relay(Relay **out_relay) {
    return relay_open(url, out_relay);
}

static void use_keys(void) {
    setenv("AWS_ACCESS_KEY_ID", "AKTEST", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    setenv("AWS_SESSION_TOKEN", TOKEN, 1);
    setenv("AWS_CONFIG_FILE", "/not/there", 1);
}

static void enter(void) {
    use_keys();
    cr_assert_eq(s3_fake_start(&fake), 0, "%s", err_text());
    snprintf(url, sizeof url, "s3://bucket/jobs?endpoint=http://127.0.0.1:%d&timeout=2s",
             s3_fake_port(fake));
    cr_assert_eq(open_relay(&relay), 0, "%s", err_text());
}

static void leave(void) {
    relay_close(relay);
    s3_fake_stop(fake);
}

#define FAULT_TEST(suite, name) Test(suite, name, .init = enter, .fini = leave)

static void rules(const S3FakeRule *some) {
    s3_fake_rules(fake, some);
}

/* One rule. */
static void rule(const char *request, S3FakeWay way, int status, const char *code, int n_times) {
    const S3FakeRule some[] = {
        {.request = request, .way = way, .status = status, .code = code, .n_times = n_times}, {0}};
    rules(some);
}

/* One sentence with these words, and no secret in it. */
static void expect_sentence(const char *words) {
    const char *text = err_text();
    cr_expect(strstr(text, words), "'%s' and not '%s'", text, words);
    cr_expect_not(strstr(text, "c4n4ry"), "%s", text);
    for (const char *at = text; *at; at++)
        cr_expect(*at >= ' ' && *at <= '~', "%s", text);
}

static int64_t soon(void) {
    return clock_deadline_ms(30000);
}

static int put_text(Relay *to, const char *key, const char *text, int64_t ms) {
    Slice part = {text, strlen(text)};
    return relay_put(to, key, &part, 1, clock_deadline_ms(ms));
}

static void expect_text(const char *key, const char *text) {
    char got[64] = "";
    size_t bytes = 0;
    cr_expect_eq(relay_get(relay, key, got, sizeof got - 1, soon(), &bytes), 0, "%s", err_text());
    cr_expect_eq(bytes, strlen(text));
    cr_expect_arr_eq(got, text, bytes);
}

static char *long_content(void) {
    char *data = malloc(LONG_BYTES + 1);
    uint32_t state = 5;
    for (size_t i = 0; i < LONG_BYTES; i++) {
        state = state * 1664525U + 1013904223U;
        data[i] = (char)(state >> 24);
    }
    return data;
}

static int put_long(Relay *to, const char *key, const char *data, int64_t ms) {
    Slice parts[2] = {{data, 12345}, {data + 12345, LONG_BYTES - 12345}};
    return relay_put(to, key, parts, 2, clock_deadline_ms(ms));
}

static int get_long(const char *key, const char *data) {
    char *got = malloc(LONG_BYTES);
    size_t bytes = 0;
    int rc = relay_get(relay, key, got, LONG_BYTES, soon(), &bytes);
    if (rc >= 0)
        cr_expect(bytes == LONG_BYTES && memcmp(got, data, bytes) == 0, "other bytes");
    free(got);
    return rc;
}

/* ---- refusals that pass ---- */

FAULT_TEST(s3_busy, a_third_of_all) {
    const S3FakeRule some[] = {{"", S3_FAKE_REFUSE, 503, "SlowDown", 0, 0, 30}, {0}};
    char key[32];
    rules(some);
    for (int i = 0; i < 60; i++) {
        snprintf(key, sizeof key, "k/%d", i);
        cr_assert_eq(put_text(relay, key, key, 30000), 0, "%s", err_text());
        expect_text(key, key);
    }
    cr_expect_gt(relay->counters.n_retries, 20);
    cr_expect_eq(relay->counters.n_requests, s3_fake_count(fake, "") + 1, "%lld and %d",
                 (long long)relay->counters.n_requests, s3_fake_count(fake, ""));
    cr_expect_eq(s3_fake_twice(fake), 0, "a signature was used again");
}

FAULT_TEST(s3_busy, twenty_in_a_row) {
    int64_t begin_ns = clock_now_ns();
    rule("PUT", S3_FAKE_REFUSE, 503, "SlowDown", 20);
    cr_expect_eq(put_text(relay, "k", "text", 60000), 0, "%s", err_text());
    cr_expect_geq(relay->counters.n_retries, 20);
    cr_expect_gt(clock_now_ns() - begin_ns, CLOCK_NS_PER_S, "no back-off");
    expect_text("k", "text");
    cr_expect_eq(s3_fake_twice(fake), 0, "a signature was used again");
}

/* Busy is not full: only for room is it a wait. */
FAULT_TEST(s3_busy, waits_for_room) {
    cr_assert_eq(put_text(relay, "k/0", "text", 5000), 0, "%s", err_text());
    rule("PUT", S3_FAKE_REFUSE, 503, "SlowDown", 1);
    cr_assert_eq(put_text(relay, "k/1", "text", 20000), 0, "%s", err_text());
    cr_expect_eq(relay->counters.n_waits, 0);
    rule("PUT", S3_FAKE_REFUSE, 507, "Insufficient", 2);
    cr_assert_eq(put_text(relay, "k/2", "text", 20000), 0, "%s", err_text());
    cr_expect_eq(relay->counters.n_waits, 1);
    cr_expect_gt(relay->counters.waited_ns, 0);
    cr_expect_geq(relay->counters.n_retries, 3);
}

FAULT_TEST(s3_busy, the_deadline_ends_it) {
    int64_t begin_ns = clock_now_ns();
    rule("PUT", S3_FAKE_REFUSE, 503, "SlowDown", 0);
    cr_expect_eq(put_text(relay, "k", "text", 400), ERR_UNREACHABLE, "%s", err_text());
    expect_sentence("'k'");
    expect_sentence("503 SlowDown");
    expect_sentence("127.0.0.1:");
    int64_t took_ms = (clock_now_ns() - begin_ns) / CLOCK_NS_PER_MS;
    cr_expect(took_ms >= 200 && took_ms < 1500, "%lld ms", (long long)took_ms);
    cr_expect_lt(s3_fake_count(fake, "PUT"), 60);
}

FAULT_TEST(s3_busy, every_status_that_passes) {
    static const struct {
        int status;
        const char *code;
    } cases[] = {{500, "InternalError"},  {502, "BadGateway"},       {503, "ServiceUnavailable"},
                 {504, "GatewayTimeout"}, {429, "TooManyRequests"},  {408, "RequestTimeout"},
                 {400, "RequestTimeout"}, {409, "OperationAborted"}, {400, "BadDigest"},
                 {507, "Insufficient"},   {403, "QuotaExceeded"},    {307, "TemporaryRedirect"},
                 {400, "IncompleteBody"}, {200, "InternalError"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char key[32];
        int64_t n = 0;
        snprintf(key, sizeof key, "status/%zu", i);
        rule("", S3_FAKE_REFUSE, cases[i].status, cases[i].code, 1);
        cr_expect_eq(put_text(relay, key, "x", 30000), 0, "%d: %s", cases[i].status, err_text());
        rule("", S3_FAKE_REFUSE, cases[i].status, cases[i].code, 1);
        cr_expect_eq(relay_count(relay, key, &n), 0, "%d: %s", cases[i].status, err_text());
        cr_expect_eq(n, 1);
        if (cases[i].status == 200)
            continue; /* an object may begin with "<Error>" */
        rule("", S3_FAKE_REFUSE, cases[i].status, cases[i].code, 1);
        expect_text(key, "x");
        rule("", S3_FAKE_REFUSE, cases[i].status, cases[i].code, 1);
        cr_expect_eq(relay_has(relay, key), 1, "%d: %s", cases[i].status, err_text());
    }
}

/* ---- refusals that stay ---- */

static void all_refused(int status, const char *code, int expected) {
    char buf[16];
    size_t bytes = 0;
    int64_t n = 0;
    rule("", S3_FAKE_REFUSE, status, code, 0);
    cr_expect_eq(put_text(relay, "a/k", "x", 5000), expected, "%s", err_text());
    expect_sentence("'a/k'");
    cr_expect_eq(relay_get(relay, "a/k", buf, sizeof buf, soon(), &bytes), expected, "%s",
                 err_text());
    expect_sentence(code);
    expect_sentence("'a/k'");
    cr_expect_eq(relay_has(relay, "a/k"), expected, "%s", err_text());
    expect_sentence("127.0.0.1:");
    cr_expect_eq(relay_drop_one(relay, "a", &n), expected, "%s", err_text());
    expect_sentence(code);
    cr_expect_eq(relay_count(relay, "a", &n), expected, "%s", err_text());
    expect_sentence(code);
    cr_expect_eq(relay_note_put(relay, "a/n", "x", 1, 1000), expected, "%s", err_text());
    expect_sentence("'a/n'");
    cr_expect_eq(relay_note_get(relay, "a/n", buf, sizeof buf, &bytes), expected, "%s", err_text());
    expect_sentence("'a/n'");
    relay_tidy(relay, "a");
}

FAULT_TEST(s3_refused, no_rights) {
    all_refused(403, "AccessDenied", ERR_AUTH);
    all_refused(403, "SignatureDoesNotMatch", ERR_AUTH);
    all_refused(403, "InvalidAccessKeyId", ERR_AUTH);
    all_refused(400, "ExpiredToken", ERR_AUTH);
}

FAULT_TEST(s3_refused, odd_ones) {
    all_refused(418, "Teapot", ERR_IO);
    all_refused(405, "MethodNotAllowed", ERR_IO);
}

/* Neither is a part of one that is longer than what is told of an answer. */
FAULT_TEST(s3_refused, a_long_token_is_quoted) {
    Relay *own = NULL;
    char token[401] = "";
    for (int i = 0; i < 50; i++)
        snprintf(token + 8 * i, sizeof token - 8 * (size_t)i, "c4n4ry%02d", i);
    setenv("AWS_SESSION_TOKEN", token, 1);
    cr_assert_eq(open_relay(&own), 0, "%s", err_text());
    rule("PUT", S3_FAKE_REFUSE, 403, "AccessDenied", 0);
    cr_expect_eq(put_text(own, "k", "x", 5000), ERR_AUTH, "%s", err_text());
    expect_sentence("said ****");
    relay_close(own);
}

static void write_keys(const char *key_id) {
    char text[200];
    int n = snprintf(text, sizeof text,
                     "[default]\naws_access_key_id = %s\naws_secret_access_key = " SECRET "\n"
                     "aws_session_token = " TOKEN "\n",
                     key_id);
    cr_assert_eq(file_write(temp_path("keys"), text, (size_t)n), 0, "%s", err_text());
}

/* Temporary credentials end, and others are in their place by then, or not. */
FAULT_TEST(s3_refused, credentials_renewed) {
    Relay *own = NULL;
    char place[400];
    temp_enter();
    write_keys("AKFIRST");
    snprintf(place, sizeof place, "%s&credentials_file=%s", url, temp_path("keys"));
    cr_assert_eq(relay_open(place, &own), 0, "%s", err_text());
    rule("", S3_FAKE_REFUSE, 400, "ExpiredToken", 1);
    cr_expect_eq(put_text(own, "k", "x", 5000), ERR_AUTH, "%s", err_text());
    expect_sentence("ExpiredToken");
    write_keys("AKSECOND");
    rule("", S3_FAKE_REFUSE, 400, "ExpiredToken", 1);
    cr_expect_eq(put_text(own, "k", "x", 5000), 0, "%s", err_text());
    relay_close(own);
    temp_leave();
}

/* Many requests are under way when they end: those signed before others were found are repeated. */
FAULT_TEST(s3_refused, credentials_renewed_in_parallel) {
    Relay *own = NULL;
    char place[400];
    char *data = long_content();
    temp_enter();
    write_keys("AKFIRST");
    snprintf(place, sizeof place, "%s&credentials_file=%s", url, temp_path("keys"));
    cr_assert_eq(relay_open(place, &own), 0, "%s", err_text());
    write_keys("AKSECOND");
    s3_fake_expire(fake, "PUT partNumber", "AKFIRST");
    cr_expect_eq(put_long(own, "k", data, 30000), 0, "%s", err_text());
    cr_expect_eq(s3_fake_count(fake, "PUT partNumber"), 6, "%d parts were put",
                 s3_fake_count(fake, "PUT partNumber"));
    cr_expect_eq(s3_fake_uploads(fake), 0);
    relay_close(own);
    temp_leave();
    free(data);
}

static void open_refused(int status, const char *code, int expected, const char *words) {
    Relay *other = NULL;
    int64_t begin_ns = clock_now_ns();
    rule("", S3_FAKE_REFUSE, status, code, 0);
    cr_expect_eq(open_relay(&other), expected, "%s", err_text());
    expect_sentence(words);
    expect_sentence("127.0.0.1:");
    cr_expect_lt(clock_now_ns() - begin_ns, 2 * CLOCK_NS_PER_S);
}

FAULT_TEST(s3_refused, at_the_beginning) {
    open_refused(404, "NoSuchBucket", ERR_NOT_FOUND, "has no bucket 'bucket'");
    open_refused(301, "PermanentRedirect", ERR_ARGUMENT, "in another region: elsewhere-1");
    open_refused(400, "AuthorizationHeaderMalformed", ERR_ARGUMENT, "elsewhere-1, not us-east-1");
    open_refused(403, "AccessDenied", ERR_AUTH, "listing the bucket 'bucket'");
    open_refused(403, "InvalidAccessKeyId", ERR_AUTH, "InvalidAccessKeyId");
    open_refused(501, "NotImplemented", ERR_UNSUPPORTED, "NotImplemented");
}

Test(s3_refused, nobody_there, .init = use_keys) {
    Relay *other = NULL;
    int port = 0;
    int fd = loopback_listen(0, &port);
    close(fd);
    int64_t begin_ns = clock_now_ns();
    snprintf(url, sizeof url, "s3://bucket?endpoint=http://127.0.0.1:%d", port);
    cr_expect_eq(open_relay(&other), ERR_UNREACHABLE, "%s", err_text());
    expect_sentence("the S3 store 127.0.0.1:");
    snprintf(url, sizeof url, "s3://bucket?endpoint=http://no.such.host.invalid");
    cr_expect_eq(open_relay(&other), ERR_UNREACHABLE, "%s", err_text());
    expect_sentence("no.such.host.invalid");
    cr_expect_lt(clock_now_ns() - begin_ns, 5 * CLOCK_NS_PER_S);
    snprintf(url, sizeof url, "s3://bucket?endpoint=https://127.0.0.1&ca=/not/there.pem");
    cr_expect_lt(open_relay(&other), 0);
    expect_sentence("127.0.0.1");
}

/* ---- cuts and nonsense, once, in every operation ---- */

/* What each operation does, on keys of its own; it must hold though the request went wrong once. */
static void run_step(int step, int round, const char *data) {
    char key[48];
    char buf[64];
    size_t bytes = 0;
    int64_t n = 0;
    snprintf(key, sizeof key, "s%d/r%d", step, round);
    switch (step) {
    case 0:
        cr_expect_geq(put_text(relay, key, "text", 30000), 0, "%s", err_text());
        break;
    case 1:
        expect_text("there", "text");
        break;
    case 2:
        cr_expect_eq(relay_has(relay, "there"), 1, "%s", err_text());
        break;
    case 3:
        cr_expect_eq(relay_count(relay, "there", &n), 0, "%s", err_text());
        cr_expect_eq(n, 1, "%lld", (long long)n);
        break;
    case 4:
        cr_expect_eq(relay_drop_one(relay, "gone", &n), 0, "%s", err_text());
        break;
    case 5:
        cr_expect_eq(relay_note_put(relay, "note", "note", 4, 60000), 0, "%s", err_text());
        break;
    case 6:
        cr_expect_eq(relay_note_get(relay, "note", buf, sizeof buf, &bytes), 0, "%s", err_text());
        cr_expect_eq(bytes, 4);
        break;
    case 7:
    case 8:
    case 9:
        cr_expect_geq(put_long(relay, key, data, 30000), 0, "%s", err_text());
        cr_expect_eq(get_long(key, data), 0, "%s", err_text());
        break;
    default:
        cr_expect_eq(get_long("long", data), 0, "%s", err_text());
    }
}

static const char *const step_requests[] = {"PUT",           "GET",          "GET",
                                            "GET list-type", "POST delete",  "PUT",
                                            "GET",           "POST uploads", "PUT partNumber",
                                            "POST uploadId", "GET"};
enum { N_STEPS = sizeof step_requests / sizeof step_requests[0] };

static void wrong_once(S3FakeWay way, const char *garbage) {
    char *data = long_content();
    cr_assert_geq(put_text(relay, "there", "text", 5000), 0, "%s", err_text());
    cr_assert_geq(put_long(relay, "long", data, 30000), 0, "%s", err_text());
    cr_assert_eq(relay_note_put(relay, "note", "note", 4, 60000), 0, "%s", err_text());
    for (int step = 0; step < N_STEPS; step++) {
        /* the first one, and one in the middle */
        for (int skip = 0; skip < 2; skip += (int)cutting_stride()) {
            S3FakeRule some[] = {{step_requests[step], way, 0, garbage, skip, 1, 0}, {0}};
            cr_assert_geq(put_text(relay, "gone/x", "x", 5000), 0);
            rules(some);
            run_step(step, skip, data);
        }
    }
    rules(NULL);
    cr_expect_eq(s3_fake_uploads(fake) <= 2, 1, "%d uploads are left", s3_fake_uploads(fake));
    relay_tidy(relay, "s7");
    relay_tidy(relay, "s8");
    relay_tidy(relay, "s9");
    cr_expect_eq(s3_fake_uploads(fake), 0);
    free(data);
}

FAULT_TEST(s3_cut, before_it_is_done) {
    wrong_once(S3_FAKE_CUT_BEFORE, NULL);
}

FAULT_TEST(s3_cut, after_it_is_done) {
    wrong_once(S3_FAKE_CUT_AFTER, NULL);
}

FAULT_TEST(s3_cut, within_the_headers) {
    wrong_once(S3_FAKE_CUT_HEADERS, NULL);
}

FAULT_TEST(s3_cut, within_the_body) {
    wrong_once(S3_FAKE_CUT_BODY, NULL);
}

/* Answers of XML; an object's bytes are its reader's to check. */
static void nonsense_once(S3FakeWay way, const char *garbage) {
    static const int steps[] = {3, 4, 7, 9};
    char *data = long_content();
    cr_assert_geq(put_text(relay, "there", "text", 5000), 0);
    for (int i = 0; i < 4; i++) {
        cr_assert_geq(put_text(relay, "gone/x", "x", 5000), 0);
        rule(step_requests[steps[i]], way, 0, garbage, 1);
        run_step(steps[i], 5, data);
    }
    free(data);
}

FAULT_TEST(s3_nonsense, garbage) {
    nonsense_once(S3_FAKE_GARBAGE, "<html>gateway says <b>no</html>");
    nonsense_once(S3_FAKE_GARBAGE, "\x01\x02");
    nonsense_once(S3_FAKE_GARBAGE, "");
}

FAULT_TEST(s3_nonsense, half_the_xml) {
    nonsense_once(S3_FAKE_TRUNCATE, NULL);
}

FAULT_TEST(s3_nonsense, for_ever) {
    char *data = long_content();
    rule("POST uploads", S3_FAKE_GARBAGE, 0, "nonsense", 0);
    cr_expect_eq(put_long(relay, "k", data, 3000), ERR_CORRUPT, "%s", err_text());
    expect_sentence("something that is no XML");
    rule("POST uploads", S3_FAKE_GARBAGE, 0, "<InitiateMultipartUploadResult/>", 0);
    cr_expect_eq(put_long(relay, "k", data, 3000), ERR_CORRUPT, "%s", err_text());
    expect_sentence("without an id");
    free(data);
}

FAULT_TEST(s3_nonsense, a_time_without_end) {
    cr_assert_eq(put_text(relay, "k", "text", 5000), 0, "%s", err_text());
    rule("GET", S3_FAKE_FAR_STAMP, 0, NULL, 0);
    expect_text("k", "text");
    expect_text("k", "text");
}

FAULT_TEST(s3_nonsense, what_is_no_store) {
    char buf[8];
    size_t bytes = 0;
    cr_expect_eq(relay_note_put(relay, "n/k", "x", 1, 60000), 0, "%s", err_text());
    rule("", S3_FAKE_GARBAGE, 0, "<html/>", 0);
    cr_expect_eq(relay_note_get(relay, "n/k", buf, sizeof buf, &bytes), ERR_CORRUPT);
    expect_sentence("the note 'n/k' is nonsense");
}

/* ---- objects that change between their ranges ---- */

FAULT_TEST(s3_changes, another_tag_once) {
    const S3FakeRule second[] = {{"GET", S3_FAKE_OTHER_TAG, 0, NULL, 1, 1, 0}, {0}};
    char *data = long_content();
    cr_assert_eq(put_long(relay, "k", data, 30000), 0, "%s", err_text());
    rules(second);
    cr_expect_eq(get_long("k", data), 0, "%s", err_text());
    cr_expect_eq(s3_fake_count(fake, "GET"), 6, "%d questions", s3_fake_count(fake, "GET"));
    const S3FakeRule refused[] = {{"GET", S3_FAKE_REFUSE, 412, "PreconditionFailed", 2, 1, 0}, {0}};
    rules(refused);
    cr_expect_eq(get_long("k", data), 0, "%s", err_text());
    free(data);
}

FAULT_TEST(s3_changes, another_tag_for_ever) {
    char *data = long_content();
    cr_assert_eq(put_long(relay, "k", data, 30000), 0, "%s", err_text());
    rule("GET", S3_FAKE_OTHER_TAG, 0, NULL, 0);
    cr_expect_eq(get_long("k", data), ERR_CORRUPT, "%s", err_text());
    expect_sentence("ranges of different objects");
    expect_sentence("'k'");
    free(data);
}

FAULT_TEST(s3_changes, dropped_between) {
    const S3FakeRule second[] = {{"GET", S3_FAKE_REFUSE, 404, "NoSuchKey", 1, 2, 0}, {0}};
    char *data = long_content();
    cr_assert_eq(put_long(relay, "k", data, 30000), 0, "%s", err_text());
    rules(second);
    cr_expect_eq(get_long("k", data), 0, "%s", err_text());
    free(data);
}

/* A store that goes on saying 404 for a while after it has said so once. */
FAULT_TEST(s3_changes, absent_for_long) {
    rule("GET", S3_FAKE_REFUSE, 404, "NoSuchKey", 12);
    cr_assert_eq(put_text(relay, "k", "text", 5000), 0, "%s", err_text());
    expect_text("k", "text");
    cr_expect_eq(relay->counters.n_waits, 1);
    cr_expect_eq(relay->counters.n_read_requests, 12); /* the put has looked once */
}

/* ---- clocks ---- */

static void *put_in_thread(void *arg) {
    Relay *own = arg;
    char key[48];
    snprintf(key, sizeof key, "clock/%p", arg);
    return put_text(own, key, "x", 20000) == 0 ? arg : NULL;
}

static void clocks(int64_t ahead_s) {
    Relay *relays[8];
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        cr_assert_eq(open_relay(&relays[i]), 0, "%s", err_text());
    s3_fake_clock(fake, ahead_s);
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, put_in_thread, relays[i]);
    for (int i = 0; i < 8; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        cr_expect_eq(result, relays[i], "a put failed");
        relay_close(relays[i]);
    }
    cr_expect_leq(s3_fake_skewed(fake), 8, "%d refusals", s3_fake_skewed(fake));
    int before = s3_fake_skewed(fake);
    cr_expect_eq(put_text(relay, "clock/after", "x", 5000), 0, "%s", err_text());
    cr_expect_eq(s3_fake_skewed(fake), before, "another handle did not know");
}

FAULT_TEST(s3_clock, an_hour_behind_the_store) {
    clocks(3600);
}

FAULT_TEST(s3_clock, an_hour_before_the_store) {
    clocks(-3600);
}

/* Many requests of one handle at once: what the first refusal teaches all use. */
FAULT_TEST(s3_clock, parts_in_parallel) {
    char *data = long_content();
    s3_fake_clock(fake, 3600);
    cr_expect_eq(put_long(relay, "k", data, 30000), 0, "%s", err_text());
    cr_expect_eq(get_long("k", data), 0, "%s", err_text());
    cr_expect_leq(s3_fake_skewed(fake), 1, "%d refusals", s3_fake_skewed(fake));
    cr_expect_eq(s3_fake_twice(fake), 0, "a signature was used again");
    free(data);
}

FAULT_TEST(s3_clock, never_right) {
    rule("", S3_FAKE_REFUSE, 403, "RequestTimeTooSkewed", 0);
    cr_expect_eq(put_text(relay, "k", "x", 20000), ERR_AUTH, "%s", err_text());
    expect_sentence("RequestTimeTooSkewed");
    cr_expect_leq(s3_fake_count(fake, ""), 5);
}

/* ---- stores that overwrite ---- */

static void first_stays(S3FakeCreate create, int most_puts) {
    s3_fake_create(fake, create);
    cr_expect_eq(put_text(relay, "c/1", "first", 5000), 0, "%s", err_text());
    cr_expect_eq(put_text(relay, "c/1", "second", 5000), 1, "%s", err_text());
    expect_text("c/1", "first");
    cr_expect_eq(put_text(relay, "c/2", "first", 5000), 0, "%s", err_text());
    cr_expect_eq(put_text(relay, "c/2", "second", 5000), 1, "%s", err_text());
    expect_text("c/2", "first");
    cr_expect_eq(s3_fake_count(fake, "PUT"), most_puts, "%d puts", s3_fake_count(fake, "PUT"));
    char *data = long_content();
    cr_expect_eq(put_long(relay, "c/long", data, 30000), 0, "%s", err_text());
    cr_expect_eq(put_long(relay, "c/long", data, 30000), 1, "%s", err_text());
    cr_expect_eq(get_long("c/long", data), 0, "%s", err_text());
    cr_expect_eq(s3_fake_uploads(fake), 0);
    free(data);
}

/* Two puts for the first object, to see; one for each after it, whether it is written or not. No
 * looks but at the first of all and at long ones. */
FAULT_TEST(s3_create, checked) {
    first_stays(S3_FAKE_CREATE_CHECKED, 5);
    cr_expect_eq(s3_fake_count(fake, "GET"), 9, "%d", s3_fake_count(fake, "GET"));
}

/* Then a look before each, and a put only of what is not there. */
FAULT_TEST(s3_create, ignored) {
    char key[32];
    first_stays(S3_FAKE_CREATE_IGNORED, 4); /* it is tried out three times */
    for (int i = 0; i < 3; i++) {
        snprintf(key, sizeof key, "c/more/%d", i);
        cr_expect_eq(put_text(relay, key, "x", 5000), 0, "%s", err_text());
    }
    cr_expect_eq(s3_fake_count(fake, "PUT c/more"), 4, "%d", s3_fake_count(fake, "PUT c/more"));
}

FAULT_TEST(s3_create, not_implemented) {
    first_stays(S3_FAKE_CREATE_501, 3);
}

/* Another was faster, and the store says so at the end of a long upload. */
FAULT_TEST(s3_create, lost_a_long_race) {
    const S3FakeRule not_seen[] = {{"GET", S3_FAKE_REFUSE, 404, "NoSuchKey", 0, 1, 0}, {0}};
    char *data = long_content();
    cr_assert_eq(put_long(relay, "k", data, 30000), 0, "%s", err_text());
    rules(not_seen);
    cr_expect_eq(put_long(relay, "k", data, 30000), 1, "%s", err_text());
    cr_expect_eq(s3_fake_uploads(fake), 0, "an upload is left");
    free(data);
}

/* ---- uploads ---- */

FAULT_TEST(s3_uploads, aborted_when_they_fail) {
    char *data = long_content();
    rule("PUT partNumber=2", S3_FAKE_REFUSE, 500, "InternalError", 0);
    cr_expect_eq(put_long(relay, "k", data, 3000), ERR_UNREACHABLE, "%s", err_text());
    expect_sentence("500 InternalError");
    cr_expect_eq(s3_fake_uploads(fake), 0, "the upload is left");
    cr_expect_eq(relay_has(relay, "k"), 0);
    rules(NULL);
    cr_expect_eq(put_long(relay, "k", data, 30000), 0, "%s", err_text());
    free(data);
}

FAULT_TEST(s3_uploads, forgotten_ones_begin_anew) {
    char *data = long_content();
    rule("PUT partNumber=2", S3_FAKE_REFUSE, 404, "NoSuchUpload", 1);
    cr_expect_eq(put_long(relay, "k/1", data, 30000), 0, "%s", err_text());
    rule("POST uploadId", S3_FAKE_REFUSE, 404, "NoSuchUpload", 1);
    cr_expect_eq(put_long(relay, "k/2", data, 30000), 0, "%s", err_text());
    cr_expect_eq(get_long("k/2", data), 0, "%s", err_text());
    rule("PUT partNumber=2", S3_FAKE_REFUSE, 404, "NoSuchUpload", 0);
    cr_expect_eq(put_long(relay, "k/3", data, 30000), ERR_IO, "%s", err_text());
    expect_sentence("forgot the upload");
    free(data);
}

/* What a killed writer leaves goes with tidy, that of other jobs stays. */
FAULT_TEST(s3_uploads, tidied) {
    char *data = long_content();
    const S3FakeRule some[] = {{"POST uploadId", S3_FAKE_REFUSE, 403, "AccessDenied", 0, 0, 0},
                               {"DELETE", S3_FAKE_REFUSE, 403, "AccessDenied", 0, 0, 0},
                               {0}};
    rules(some);
    cr_expect_eq(put_long(relay, "job/k", data, 30000), ERR_AUTH);
    cr_expect_eq(put_long(relay, "job2/k", data, 30000), ERR_AUTH);
    rules(NULL);
    cr_expect_eq(s3_fake_uploads(fake), 2);
    relay_tidy(relay, "job");
    cr_expect_eq(s3_fake_uploads(fake), 1, "%d uploads are left", s3_fake_uploads(fake));
    free(data);
}

/* ---- many names ---- */

FAULT_TEST(s3_pages, counted_and_dropped) {
    int64_t n = 0;
    char key[32];
    s3_fake_page(fake, 7);
    for (int i = 0; i < 50; i++) {
        snprintf(key, sizeof key, "p/t%d/o.%d", i % 3, i);
        cr_assert_eq(put_text(relay, key, "x", 5000), 0, "%s", err_text());
    }
    cr_assert_eq(put_text(relay, "p2/x", "x", 5000), 0);
    cr_assert_eq(relay_note_put(relay, "p/n", "x", 1, 1000), 0);
    cr_expect_eq(relay_count(relay, "p", &n), 0, "%s", err_text());
    cr_expect_eq(n, 50, "%lld", (long long)n);
    cr_expect_eq(relay_drop_one(relay, "p/t1", &n), 0, "%s", err_text());
    cr_expect_eq(n, 17, "%lld", (long long)n);
    cr_expect_eq(relay_drop_one(relay, "p", &n), 0, "%s", err_text());
    cr_expect_eq(n, 34, "%lld", (long long)n);
    cr_expect_eq(s3_fake_objects(fake), 1);
}

FAULT_TEST(s3_pages, deletions_refused) {
    int64_t n = 0;
    cr_assert_eq(put_text(relay, "p/x", "x", 5000), 0);
    rule("POST delete", S3_FAKE_GARBAGE, 0,
         "<DeleteResult><Error><Key>k</Key><Code>AccessDenied</Code></Error></DeleteResult>", 0);
    cr_expect_eq(relay_drop_one(relay, "p", &n), ERR_AUTH, "%s", err_text());
    expect_sentence("refuses to delete: AccessDenied");
    rule("POST delete", S3_FAKE_GARBAGE, 0,
         "<DeleteResult><Error><Key>k</Key><Code>InternalError</Code></Error></DeleteResult>", 2);
    cr_assert_geq(put_text(relay, "p/x", "x", 5000), 0);
    cr_expect_eq(relay_drop_one(relay, "p", &n), 0, "%s", err_text());
    rule("GET list-type", S3_FAKE_GARBAGE, 0,
         "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>", 0);
    cr_expect_eq(relay_count(relay, "p", &n), ERR_CORRUPT, "%s", err_text());
    expect_sentence("no token for the rest");
}

/* A store that loses its place does not make us list for ever. */
FAULT_TEST(s3_pages, no_way_on) {
    static const char page[] = "<ListBucketResult><NextContinuationToken>t</NextContinuationToken>"
                               "<IsTruncated>true</IsTruncated></ListBucketResult>";
    const S3FakeRule some[] = {
        {"GET list-type", S3_FAKE_GARBAGE, 0, page, 0, 1, 0},
        {"GET list-type", S3_FAKE_GARBAGE, 0,
         "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>", 0, 9, 0},
        {0}};
    int64_t n = 0;
    rule("GET list-type", S3_FAKE_GARBAGE, 0, page, 9);
    cr_expect_eq(relay_count(relay, "p", &n), ERR_CORRUPT, "%s", err_text());
    expect_sentence("the same token for the rest");
    rules(some);
    cr_expect_eq(relay_count(relay, "p", &n), ERR_CORRUPT, "%s", err_text());
    expect_sentence("no token for the rest");
}

/* ---- interruptions and silence ---- */

typedef struct Doing {
    pthread_t thread;
    bool puts;
    int rc;
    int64_t took_ms;
    ErrNote note;
} Doing;

static void *do_it(void *arg) {
    Doing *doing = arg;
    char buf[8];
    size_t bytes = 0;
    doing->rc = doing->puts ? put_text(relay, "i/k", "x", 60000)
                            : relay_get(relay, "i/k", buf, sizeof buf, CLOCK_NEVER, &bytes);
    doing->took_ms = clock_now_ns() / CLOCK_NS_PER_MS;
    err_copy(&doing->note);
    return NULL;
}

static int64_t interrupt_once(bool puts) {
    Doing doing = {.puts = puts};
    pthread_create(&doing.thread, NULL, do_it, &doing);
    clock_sleep_until(clock_deadline_ms(300));
    int64_t begin_ms = clock_now_ns() / CLOCK_NS_PER_MS;
    relay_interrupt(relay, true);
    pthread_join(doing.thread, NULL);
    relay_interrupt(relay, false);
    err_restore(&doing.note);
    cr_expect_eq(doing.rc, ERR_CANCELLED, "%s", err_text());
    expect_sentence("'i/k'");
    return doing.took_ms - begin_ms;
}

/* Once in a few times, on a busy machine: what slept on would do so each time. */
static void interrupted(bool puts, int64_t most_ms) {
    int64_t took_ms = most_ms;
    for (int i = 0; i < 4 && took_ms >= most_ms; i++)
        took_ms = interrupt_once(puts);
    cr_expect_lt(took_ms, most_ms);
}

FAULT_TEST(s3_interrupt, in_a_back_off) {
    rule("", S3_FAKE_REFUSE, 503, "SlowDown", 0);
    interrupted(true, 500);
    interrupted(false, 500);
}

FAULT_TEST(s3_interrupt, in_silence) {
    rule("", S3_FAKE_SILENT, 0, NULL, 0);
    interrupted(false, 1000);
}

/* An answer that has begun holds nobody either. */
FAULT_TEST(s3_interrupt, in_a_slow_answer) {
    cr_assert_eq(put_text(relay, "i/k", "12345678", 5000), 0, "%s", err_text());
    rule("GET", S3_FAKE_TRICKLE, 0, NULL, 0);
    interrupted(false, 1000);
}

FAULT_TEST(s3_silence, ends_at_the_deadline) {
    int64_t begin_ns = clock_now_ns();
    rule("", S3_FAKE_SILENT, 0, NULL, 0);
    cr_expect_eq(put_text(relay, "k", "x", 500), ERR_TIMEOUT, "%s", err_text());
    expect_sentence("has not answered in time");
    cr_expect_lt(clock_now_ns() - begin_ns, 1500 * CLOCK_NS_PER_MS);
}

/* A silent connection is given up after timeout=, and the request goes over another one. */
FAULT_TEST(s3_silence, ends_a_connection) {
    rule("", S3_FAKE_SILENT, 0, NULL, 1);
    int64_t begin_ns = clock_now_ns();
    cr_expect_eq(put_text(relay, "k", "x", 20000), 0, "%s", err_text());
    cr_expect_lt(clock_now_ns() - begin_ns, 6 * CLOCK_NS_PER_S);
    expect_text("k", "x");
}

/* So is one whose answer began and hardly goes on. */
FAULT_TEST(s3_silence, a_slow_answer) {
    const char *text = "would take twenty seconds to come at all";
    char got[64];
    size_t bytes = 0;
    cr_assert_eq(put_text(relay, "k", text, 5000), 0, "%s", err_text());
    rule("GET", S3_FAKE_TRICKLE, 0, NULL, 0);
    int64_t begin_ns = clock_now_ns();
    int rc = relay_get(relay, "k", got, sizeof got, clock_deadline_ms(500), &bytes);
    cr_expect_eq(rc, ERR_UNREACHABLE, "%s", err_text());
    expect_sentence("its answer began and came too slowly");
    cr_expect_lt(clock_now_ns() - begin_ns, 5 * CLOCK_NS_PER_S);
    rule("GET", S3_FAKE_TRICKLE, 0, NULL, 1);
    expect_text("k", text);
}

/* ---- questions ---- */

static void *put_later(void *arg) {
    (void)arg;
    Relay *own = NULL;
    char key[48];
    if (open_relay(&own) < 0)
        return NULL;
    for (int i = 0; i < 120; i++) {
        snprintf(key, sizeof key, "steady/t%d/go.0", i);
        char buf[8];
        size_t bytes = 0;
        if (relay_get(own, key, buf, sizeof buf, soon(), &bytes) < 0)
            break;
        clock_sleep_until(clock_deadline_ms(12));
        snprintf(key, sizeof key, "steady/t%d/a.0", i);
        put_text(own, key, "x", 20000);
    }
    relay_close(own);
    return NULL;
}

/* Who comes back after a deadline goes on waiting, and asks as rarely as before. */
FAULT_TEST(s3_questions, a_wait_in_many_parts) {
    char buf[8];
    size_t bytes = 0;
    for (int i = 0; i < 40; i++) {
        cr_expect_eq(relay_get(relay, "k", buf, sizeof buf, clock_deadline_ms(25), &bytes),
                     ERR_TIMEOUT, "%s", err_text());
    }
    cr_expect_leq(relay->counters.n_read_requests, 100, "%lld questions in a second",
                  (long long)relay->counters.n_read_requests);
    cr_assert_eq(put_text(relay, "k", "text", 5000), 0, "%s", err_text());
    expect_text("k", "text");
}

/* A steady run: the worker asks, the other one answers after some time, step by step. Asking all
 * the time takes ten questions; on a busy machine, whose waits scatter, some more than one are
 * needed. */
FAULT_TEST(s3_questions, few_an_object) {
    pthread_t thread;
    char key[48];
    char buf[8];
    size_t bytes = 0;
    pthread_create(&thread, NULL, put_later, NULL);
    RelayCounters begin = {0};
    for (int i = 0; i < 120; i++) {
        begin = i == 20 ? relay->counters : begin;
        snprintf(key, sizeof key, "steady/t%d/go.0", i);
        cr_assert_eq(put_text(relay, key, "x", 20000), 0, "%s", err_text());
        snprintf(key, sizeof key, "steady/t%d/a.0", i);
        cr_assert_eq(relay_get(relay, key, buf, sizeof buf, soon(), &bytes), 0, "%s", err_text());
    }
    pthread_join(thread, NULL);
    double questions = (double)(relay->counters.n_read_requests - begin.n_read_requests) /
                       (double)(relay->counters.n_gets - begin.n_gets);
    cr_log_info("%.2f requests for an object read", questions);
    cr_expect_lt(questions, 5, "%.2f requests for an object read", questions);
}

/* ---- a long run ---- */

/* Some hundred steps, each written, read and, at the saves, removed as a job does it: behind each
 * save the store holds as much as behind the first one. */
FAULT_TEST(s3_books, a_long_run_leaves_no_more_than_a_short_one) {
    enum { STEPS = 300, SAVE_EVERY = 20 };
    char keys[SAVE_EVERY][32];
    const char *prefixes[SAVE_EVERY];
    for (int step = 0; step < STEPS; step++) {
        char key[48];
        int64_t n = 0;
        int of_save = step % SAVE_EVERY;
        snprintf(keys[of_save], sizeof keys[of_save], "run/t%d", step);
        prefixes[of_save] = keys[of_save];
        snprintf(key, sizeof key, "run/t%d/a.0-1.0", step);
        cr_assert_eq(put_text(relay, key, "text", 20000), 0, "%s", err_text());
        cr_assert_eq(put_text(relay, key, "text", 20000), 1, "%s", err_text());
        cr_assert_eq(relay_note_put(relay, "run/n/h.0.0", key, strlen(key), 60000), 0, "%s",
                     err_text());
        expect_text(key, "text");
        if (of_save < SAVE_EVERY - 1)
            continue;
        cr_expect_eq(s3_fake_objects(fake), SAVE_EVERY + 1, "%d at step %d", s3_fake_objects(fake),
                     step);
        cr_assert_eq(relay_drop(relay, prefixes, SAVE_EVERY, &n), 0, "%s", err_text());
        cr_expect_eq(n, SAVE_EVERY);
        cr_expect_eq(s3_fake_objects(fake), 1, "the note, and %d behind step %d",
                     s3_fake_objects(fake) - 1, step);
    }
    cr_assert_eq(relay_drop_one(relay, "run", NULL), 0, "%s", err_text());
    cr_expect_eq(s3_fake_objects(fake), 0);
}

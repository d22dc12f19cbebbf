/* The scenarios of tests/support/relay_suite.h over relays of a real S3 store: all of them once,
 * once more with objects announced in Redis, and those in which names and signatures count for
 * other prefixes and addresses. And over a store of our own that is busy all the time; and over
 * connections that are cut. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/relay_survey.h"
#include "storage/s3_client.h"
#include "tests/support/cutting.h"
#include "tests/support/proxy.h"
#include "tests/support/relay_tests.h"
#include "tests/support/s3_server.h"

#define PLAIN_TEST(name) RELAY_TEST(s3_plain, name)
#define ODD_TEST(name) RELAY_TEST(s3_odd, name)
#define VIRTUAL_TEST(name) RELAY_TEST(s3_virtual, name)
#define TLS_TEST(name) RELAY_TEST(s3_tls, name)
#define SLOW_TEST(name) RELAY_TEST(s3_slow, name)
#define BUSY_TEST(name) RELAY_TEST(s3_busy, name)
#define ANNOUNCED_TEST(name) RELAY_TEST(s3_announced, name)

/* Every kind of request: put, get in ranges, multipart, list, delete, notes, waits. */
#define NAMED_SCENARIOS(X)                                                                         \
    X(first_content_stays)                                                                         \
    X(all_sizes)                                                                                   \
    X(into_a_buf)                                                                                  \
    X(long_keys)                                                                                   \
    X(one_name_three_uses)                                                                         \
    X(drop_keeps_neighbours)                                                                       \
    X(count_objects)                                                                               \
    X(notes_last_wins)                                                                             \
    X(get_waits)                                                                                   \
    X(damaged_objects)

/* On a busy store. Not those with deadlines so short that a refusal is the last word. */
#define BUSY_SCENARIOS(X)                                                                          \
    X(first_content_stays)                                                                         \
    X(empty_objects)                                                                               \
    X(all_sizes)                                                                                   \
    X(into_a_buf)                                                                                  \
    X(one_name_three_uses)                                                                         \
    X(drop_keeps_neighbours)                                                                       \
    X(drop_many_prefixes)                                                                          \
    X(count_objects)                                                                               \
    X(counters)                                                                                    \
    X(notes_last_wins)                                                                             \
    X(get_waits)                                                                                   \
    X(many_threads)                                                                                \
    X(writers_race)                                                                                \
    X(drop_under_a_waiter)                                                                         \
    X(killed_writer)

S3_SERVER_STARTS
S3_SERVER_STOPS

RELAY_SCENARIOS(PLAIN_TEST)
RELAY_SCENARIOS(ANNOUNCED_TEST)
NAMED_SCENARIOS(ODD_TEST)
NAMED_SCENARIOS(VIRTUAL_TEST)
NAMED_SCENARIOS(TLS_TEST)
RELAY_FAR_SCENARIOS(SLOW_TEST)
BUSY_SCENARIOS(BUSY_TEST)

/* ---- what only a real store shows ---- */

static Relay *relay;
static S3Client *client;
static S3Url s3_url;
static RelayCounters counters;
static atomic_bool interrupted;
static char prefix[64], url[512];

static void enter(void) {
    cr_assert_gt(s3_server_port(), 0, "%s", err_text());
    s3_server_prefix(prefix, sizeof prefix);
    s3_server_url(prefix, 0, url, sizeof url);
    cr_assert_eq(relay_open(url, &relay), 0, "%s", err_text());
    cr_assert_eq(s3_url_parse(url + strlen("s3://"), &s3_url), 0, "%s", err_text());
    cr_assert_eq(s3_client_open(&s3_url, -1, &interrupted, &counters, &client), 0, "%s",
                 err_text());
}

static void leave(void) {
    relay_close(relay);
    s3_client_close(client);
}

static void run(S3Request *requests, size_t n) {
    S3Limits limits = {clock_deadline_ms(60000), clock_deadline_ms(60000), false};
    cr_assert_eq(s3_client_run(client, requests, n, &limits), 0, "%s", err_text());
}

/* More names than one listing or one deletion takes, put many at a time. */
Test(s3_store, thousands_of_names, .init = enter, .fini = leave) {
    enum { N = 1203 };
    S3Request *requests = calloc(N, sizeof *requests);
    char(*names)[128] = calloc(N, sizeof *names);
    int64_t n = 0;
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "%s/m/t%d/o.%d/.o", prefix, i % 2, i);
        requests[i] = (S3Request){.method = "PUT", .name = names[i]};
    }
    run(requests, N);
    cr_expect_eq(relay_count(relay, "m", &n), 0, "%s", err_text());
    cr_expect_eq(n, N, "%lld", (long long)n);
    cr_expect_eq(relay_drop_one(relay, "m", &n), 0, "%s", err_text());
    cr_expect_eq(n, N, "%lld", (long long)n);
    cr_expect_eq(relay_count(relay, "", &n), 0, "%s", err_text());
    cr_expect_eq(n, 0, "%lld", (long long)n);
    free(requests);
    free(names);
}

/* The uploads under the prefix. */
static int uploads(void) {
    char query[128];
    Buf text;
    int n = 0;
    buf_init(&text, 1 << 20);
    snprintf(query, sizeof query, "prefix=%s&uploads=", prefix);
    S3Request request = {.method = "GET", .query = query, .text = &text};
    run(&request, 1);
    for (const char *at = buf_string(&text); (at = strstr(at, "<UploadId>")); at++)
        n++;
    buf_done(&text);
    return n;
}

Test(s3_store, uploads_are_tidied, .init = enter, .fini = leave) {
    static const char *const keys[] = {"job/t1/k", "job/t2/k", "job2/k"};
    for (int i = 0; i < 3; i++) {
        char name[128];
        Buf text;
        buf_init(&text, 1 << 20);
        snprintf(name, sizeof name, "%s/%s/.o", prefix, keys[i]);
        S3Request request = {.method = "POST", .name = name, .query = "uploads", .text = &text};
        run(&request, 1);
        buf_done(&text);
    }
    cr_expect_eq(uploads(), 3, "%d", uploads());
    relay_tidy(relay, "job");
    cr_expect_eq(uploads(), 1, "%d", uploads());
    relay_tidy(relay, "job2");
    cr_expect_eq(uploads(), 0, "%d", uploads());
}

/* A writer that is killed in the middle of an upload: what it leaves is found, counted, removed. */
Test(s3_store, killed_in_an_upload, .init = enter, .fini = leave) {
    enum { LONG_BYTES = 96 << 20, TRIES = 20 };
    char *data = calloc(1, LONG_BYTES);
    RelaySwept swept = {0};
    char key[32];
    for (int i = 0; i < TRIES && uploads() == 0; i++) { /* it may be ready before we look */
        snprintf(key, sizeof key, "job/t%d/k", i);
        pid_t child = fork();
        if (child == 0) {
            Relay *own = NULL;
            Slice part = {data, LONG_BYTES};
            if (relay_open(url, &own) == 0)
                (void)relay_put(own, key, &part, 1, CLOCK_NEVER);
            _exit(0);
        }
        for (int tries = 0; tries < 1000 && uploads() == 0 && waitpid(child, NULL, WNOHANG) == 0;
             tries++)
            ;
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    cr_assert_eq(uploads(), 1, "no upload was caught");
    cr_expect_eq(relay_has(relay, key), 0, "a part of it is there");
    clock_sleep_until(clock_deadline_ms(20));
    cr_expect_eq(relay_survey_sweep(relay, "", 3600000, false, &swept), 0, "%s", err_text());
    cr_expect_eq(swept.n_uploads, 0, "it may be going on");
    cr_expect_eq(relay_survey_sweep(relay, "jo", 1, false, &swept), 0, "%s", err_text());
    cr_expect_eq(swept.n_uploads, 0, "it is no job's of that name");
    cr_expect_eq(relay_survey_sweep(relay, "job", 1, true, &swept), 0, "%s", err_text());
    cr_expect_eq(swept.n_uploads, 1, "%lld uploads are told", (long long)swept.n_uploads);
    cr_expect_eq(relay_survey_sweep(relay, "", 1, false, &swept), 0, "%s", err_text());
    cr_expect_eq(swept.n_uploads, 1, "%lld uploads are told", (long long)swept.n_uploads);
    cr_expect_eq(uploads(), 0, "it is left");
    free(data);
}

/* ---- cut connections ---- */

/* A proxy in front of the store; what is there lies under the prefix. */
static Cutting cutting_open(bool put, ProxyWay way, const char *data, size_t bytes) {
    char place[512];
    Cutting cutting = {
        .direct = relay, .put = put, .way = way, .data = data, .bytes = bytes, .n_retries = 1};
    Slice part = {data, bytes};
    if (!put)
        cr_assert_eq(relay_put(relay, "cut/o", &part, 1, clock_deadline_ms(20000)), 0);
    cr_assert_eq(proxy_start(s3_server_port(), &cutting.proxy), 0, "%s", err_text());
    s3_server_url(prefix, proxy_port(cutting.proxy), place, sizeof place);
    cr_assert_eq(relay_open(place, &cutting.proxied), 0, "%s", err_text());
    return cutting;
}

static void cutting_close(Cutting *cutting) {
    relay_close(cutting->proxied);
    proxy_stop(cutting->proxy);
    relay_tidy(relay, "cut");
    cr_expect_eq(uploads(), 0, "uploads are left");
}

/* One request: within the first line of the request or the answer, its headers, where they end, at
 * the first and the last byte of a body. */
static void cut_small(bool put, ProxyWay way) {
    enum { BODY = 25 };
    Cutting cutting = cutting_open(put, way, "some content of an object", BODY);
    cutting_measure(&cutting); /* a handle's first put asks for more */
    const int64_t n = cutting_measure(&cutting);
    const bool body = put == (way == PROXY_UP);
    const int64_t head = body ? n - BODY : n;
    const int64_t at[] = {0,        1,        9,    12,       head / 4, head / 2,
                          head - 3, head - 1, head, head + 1, n - 1};
    cr_assert_gt(n, 100);
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        if (at[i] < n)
            cutting_at(&cutting, at[i], i % 2 == 0);
    }
    cutting_close(&cutting);
}

Test(s3_cuts, put_up, .init = enter, .fini = leave) {
    cut_small(true, PROXY_UP);
}

Test(s3_cuts, put_down, .init = enter, .fini = leave) {
    cut_small(true, PROXY_DOWN);
}

Test(s3_cuts, get_up, .init = enter, .fini = leave) {
    cut_small(false, PROXY_UP);
}

Test(s3_cuts, get_down, .init = enter, .fini = leave) {
    cut_small(false, PROXY_DOWN);
}

/* An object of two pieces, over several connections: what begins it, its pieces, what ends it.
 * Ended by -1. */
static void cut_large(bool put, ProxyWay way, const int64_t *at) {
    enum { BYTES = 9 << 20 };
    char *data = malloc(BYTES);
    for (int64_t i = 0; i < BYTES; i++)
        data[i] = (char)(i * 2654435761 >> 13);
    Cutting cutting = cutting_open(put, way, data, BYTES);
    cutting.any = true;
    cutting.n_retries =
        0; /* curl itself repeats what has no answer over a connection used before */
    cutting_measure(&cutting);
    for (int i = 0; at[i] >= 0; i++)
        cutting_at(&cutting, at[i], i % 2 == 0);
    cutting_close(&cutting);
    free(data);
}

Test(s3_cuts, large_put_up, .init = enter, .fini = leave) {
    static const int64_t at[] = {0, 20, 300, 900, 2000, 600000, -1};
    cut_large(true, PROXY_UP, at);
}

Test(s3_cuts, large_put_down, .init = enter, .fini = leave) {
    static const int64_t at[] = {0, 12, 100, 400, 600, -1};
    cut_large(true, PROXY_DOWN, at);
}

Test(s3_cuts, large_get_up, .init = enter, .fini = leave) {
    static const int64_t at[] = {0, 20, 300, -1};
    cut_large(false, PROXY_UP, at);
}

Test(s3_cuts, large_get_down, .init = enter, .fini = leave) {
    static const int64_t at[] = {0, 12, 200, 600, 3000000, 8 << 20, -1};
    cut_large(false, PROXY_DOWN, at);
}

/* ---- refusals ---- */

static void refused(const char *place, int code, const char *words) {
    Relay *other = NULL;
    int rc = relay_open(place, &other);
    cr_expect_eq(rc, code, "%s: %s", err_name(rc), err_text());
    cr_expect(strstr(err_text(), words), "'%s' and not '%s'", err_text(), words);
    cr_expect_not(strstr(err_text(), "canary"), "%s", err_text());
}

Test(s3_store, refusals, .init = enter, .fini = leave) {
    char place[256];
    setenv("AWS_ACCESS_KEY_ID", "AKFUNCPIPETESTS", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "canary-which-is-wrong", 1);
    snprintf(place, sizeof place, "s3://" S3_SERVER_BUCKET "?endpoint=http://127.0.0.1:%d",
             s3_server_port());
    refused(place, ERR_AUTH, "SignatureDoesNotMatch");
    setenv("AWS_ACCESS_KEY_ID", "NOBODY", 1);
    refused(place, ERR_AUTH, "InvalidAccessKeyId");
    setenv("AWS_ACCESS_KEY_ID", "AKFUNCPIPETESTS", 1);
    setenv("AWS_SECRET_ACCESS_KEY", S3_SERVER_SECRET, 1);
    snprintf(place, sizeof place, "s3://no-such-bucket?endpoint=http://127.0.0.1:%d",
             s3_server_port());
    refused(place, ERR_NOT_FOUND, "has no bucket 'no-such-bucket'");
    snprintf(place, sizeof place, "s3://" S3_SERVER_BUCKET "?endpoint=https://localhost:%d",
             s3_server_tls_port());
    refused(place, ERR_UNREACHABLE, "TLS: SSL certificate problem");
    snprintf(place, sizeof place, "s3://" S3_SERVER_BUCKET "?endpoint=https://localhost:%d&ca=/x",
             s3_server_tls_port());
    refused(place, ERR_ARGUMENT, "'/x' for the S3 store localhost:");
    snprintf(place, sizeof place, "s3://" S3_SERVER_BUCKET "?endpoint=https://127.0.0.2:%d&ca=%s",
             s3_server_tls_port(), s3_server_trust());
    refused(place, ERR_UNREACHABLE, "127.0.0.2:");
}

/* Servers that the Redis relay cannot or will not use: each ends in one sentence that names the
 * server and says what to do, soon, and without a secret. And servers that are hardly Redis. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/file.h"
#include "storage/relay_survey.h"
#include "tests/support/loopback.h"
#include "tests/support/redis_fake.h"
#include "tests/support/redis_server.h"
#include "tests/support/relay_suite.h"

#define CANARY "c4n4ry"

/* One sentence: the words in it, no secret, nothing odd. */
static void expect_sentence(const char *words) {
    const char *text = err_text();
    cr_expect(strstr(text, words), "'%s' and not '%s'", text, words);
    cr_expect_not(strstr(text, CANARY), "%s", text);
    for (const char *at = text; *at; at++)
        cr_expect(*at >= ' ' && *at <= '~', "%s", text);
}

/* relay_open must fail so within `ms`. */
static void refused(const char *url, int code, const char *words, int64_t ms) {
    Relay *relay = NULL;
    int64_t begin_ns = clock_now_ns();
    int rc = relay_open(url, &relay);
    int64_t took_ms = (clock_now_ns() - begin_ns) / CLOCK_NS_PER_MS;
    cr_expect_eq(rc, code, "%s: %s", err_name(rc), err_text());
    cr_expect_lt(took_ms, ms, "%lld ms: %s", (long long)took_ms, err_text());
    expect_sentence(words);
    relay_close(relay);
}

static const char *url_of(const char *scheme, const char *user, const char *host, int port,
                          const char *rest) {
    static char url[1024];
    snprintf(url, sizeof url, "%s://%s%s:%d%s", scheme, user, host, port, rest);
    return url;
}

static void put_refused(Relay *relay, const char *key, int code, const char *words) {
    Slice part = {"x", 1};
    cr_expect_eq(relay_put(relay, key, &part, 1, clock_deadline_ms(3000)), code, "%s", err_text());
    expect_sentence(words);
    cr_expect(strstr(err_text(), key), "%s", err_text());
}

/* ---- how the server is set up ---- */

static void server_refused(const char *const *args, const char *words) {
    RedisServerProcess server;
    char port[16];
    cr_assert_eq(redis_server_start(&server, args), 0, "%s", err_text());
    snprintf(port, sizeof port, ":%d", server.port);
    refused(url_of("redis", "", "127.0.0.1", server.port, ""), ERR_UNSUPPORTED, words, 5000);
    cr_expect(strstr(err_text(), port), "%s", err_text());
    redis_server_stop(&server);
}

Test(redis_setup, keys_thrown_away) {
    static const char *const all[] = {"--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru",
                                      NULL};
    static const char *const some[] = {"--maxmemory", "50mb", "--maxmemory-policy", "volatile-lru",
                                       NULL};
    server_refused(all, "allkeys-lru");
    cr_expect(strstr(err_text(), "set maxmemory-policy noeviction"), "%s", err_text());
    server_refused(some, "volatile-lru");
    cr_expect(strstr(err_text(), "set maxmemory-policy noeviction"), "%s", err_text());
}

Test(redis_setup, cluster) {
    char bus[16]; /* the usual one, 10000 above, may be beyond all ports */
    const char *const args[] = {"--cluster-enabled", "yes", "--cluster-port", bus, NULL};
    RedisServerProcess server;
    int port = 0;
    close(loopback_listen(0, &port));
    snprintf(bus, sizeof bus, "%d", port);
    cr_assert_eq(redis_server_start(&server, args), 0, "%s", err_text());
    refused(url_of("redis", "", "127.0.0.1", server.port, ""), ERR_UNSUPPORTED,
            "name single servers instead", 5000);
    refused(url_of("redis", "", "127.0.0.1", server.port, "/3"), ERR_UNSUPPORTED,
            "name single servers instead", 5000);
    redis_server_stop(&server);
}

Test(redis_setup, no_such_database) {
    RedisServerProcess server;
    cr_assert_eq(redis_server_start(&server, NULL), 0, "%s", err_text());
    refused(url_of("redis", "", "127.0.0.1", server.port, "/99"), ERR_ARGUMENT, "DB index", 5000);
    redis_server_stop(&server);
}

/* ---- logging in ---- */

Test(redis_login, passwords) {
    static const char *const args[] = {"--requirepass", CANARY "1", NULL};
    RedisServerProcess server;
    cr_assert_eq(redis_server_start(&server, args), 0, "%s", err_text());
    refused(url_of("redis", "", "127.0.0.1", server.port, ""), ERR_AUTH, "NOAUTH", 5000);
    refused(url_of("redis", "", "127.0.0.1", server.port, "/3"), ERR_AUTH, "NOAUTH", 5000);
    refused(url_of("redis", ":" CANARY "2@", "127.0.0.1", server.port, ""), ERR_AUTH, "WRONGPASS",
            5000);
    refused(url_of("redis", "someone:" CANARY "1@", "127.0.0.1", server.port, ""), ERR_AUTH,
            "WRONGPASS", 5000);
    redis_server_stop(&server);
}

Test(redis_login, a_password_where_none_is_set) {
    RedisServerProcess server;
    cr_assert_eq(redis_server_start(&server, NULL), 0, "%s", err_text());
    refused(url_of("redis", ":" CANARY "@", "127.0.0.1", server.port, ""), ERR_AUTH,
            "without any password configured", 5000);
    redis_server_stop(&server);
}

/* A user who may log in and nothing else: every operation says so, one after the other. */
Test(redis_login, a_user_without_rights) {
    static const char *const args[] = {"--user", "worker", "on",    ">" CANARY, "~other:*",
                                       "+ping",  "+multi", "+exec", "+exists",  "+unlink",
                                       "+scan",  "+set",   NULL};
    RedisServerProcess server;
    Relay *relay = NULL;
    int64_t n = 0;
    size_t bytes = 0;
    char *data = calloc(1, 3 << 20);
    Slice part = {data, 3 << 20};
    cr_assert_eq(redis_server_start(&server, args), 0, "%s", err_text());
    cr_assert_eq(
        relay_open(url_of("redis", "worker:" CANARY "@", "127.0.0.1", server.port, ""), &relay), 0,
        "%s", err_text());
    for (int i = 0; i < 2; i++) {
        put_refused(relay, "a/k", ERR_AUTH, "NOPERM");
        cr_expect_eq(relay_put(relay, "a/long", &part, 1, clock_deadline_ms(3000)), ERR_AUTH);
        expect_sentence("'a/long'");
        cr_expect_eq(relay_has(relay, "a/k"), ERR_AUTH, "%s", err_text());
        expect_sentence("NOPERM");
        cr_expect_eq(relay_note_put(relay, "a/k", "x", 1, 1000), ERR_AUTH, "%s", err_text());
        cr_expect_eq(relay_get(relay, "a/k", data, 8, clock_deadline_ms(3000), &bytes), ERR_AUTH,
                     "%s", err_text());
        expect_sentence("'a/k'");
        cr_expect_eq(relay_count(relay, "a", &n), 0, "%s", err_text()); /* SCAN names no keys */
    }
    /* What one may not drop is no success. */
    redis_server_ask(server.port, "SET funcpipe:n:a/k x");
    cr_expect_eq(relay_drop_one(relay, "a", &n), ERR_AUTH, "%s", err_text());
    expect_sentence("NOPERM");
    relay_close(relay);
    redis_server_stop(&server);
    free(data);
}

/* ---- TLS ---- */

typedef struct TlsPlace {
    RedisServerProcess server;
    char folder[64], cert[96], key[96], ca[96];
} TlsPlace;

static void tls_open(TlsPlace *place, const char *whose, const char *clients) {
    const char *const args[] = {"--tls-port",
                                "PORT",
                                "--port",
                                "0",
                                "--tls-cert-file",
                                place->cert,
                                "--tls-key-file",
                                place->key,
                                "--tls-ca-cert-file",
                                place->ca,
                                "--tls-auth-clients",
                                clients,
                                NULL};
    cr_assert_geq(relay_suite_folder(place->folder, sizeof place->folder), 0);
    cr_assert_geq(redis_server_certificates(place->folder), 0, "%s", err_text());
    snprintf(place->cert, sizeof place->cert, "%s/%s.crt", place->folder, whose);
    snprintf(place->key, sizeof place->key, "%s/%s.key", place->folder, whose);
    snprintf(place->ca, sizeof place->ca, "%s/ca.crt", place->folder);
    cr_assert_eq(redis_server_start(&place->server, args), 0, "%s", err_text());
}

static void tls_close(TlsPlace *place) {
    redis_server_stop(&place->server);
    relay_suite_remove_folder(place->folder);
}

/* The URL with these files of the folder as parameters. */
static const char *tls_url(const TlsPlace *place, const char *host, const char *ca,
                           const char *mine) {
    char rest[512] = "";
    size_t n = 0;
    if (ca)
        n = (size_t)snprintf(rest, sizeof rest, "?ca=%s/%s", place->folder, ca);
    if (mine)
        snprintf(rest + n, sizeof rest - n, "%ccert=%s/%s.crt&key=%s/%s.key", n ? '&' : '?',
                 place->folder, mine, place->folder, mine);
    return url_of("rediss", "", host, place->server.port, rest);
}

static void expect_fine(const char *url) {
    Relay *relay = NULL;
    cr_expect_eq(relay_open(url, &relay), 0, "%s", err_text());
    if (relay)
        cr_expect_eq(relay_has(relay, "k"), 0, "%s", err_text());
    relay_close(relay);
}

Test(redis_tls, whom_to_trust) {
    TlsPlace place;
    tls_open(&place, "server", "no");
    expect_fine(tls_url(&place, "localhost", "ca.crt", NULL));
    expect_fine(tls_url(&place, "127.0.0.1", "ca.crt", NULL));
    refused(tls_url(&place, "localhost", NULL, NULL), ERR_AUTH, "its certificate is refused", 5000);
    refused(tls_url(&place, "localhost", "other.crt", NULL), ERR_AUTH, "its certificate is refused",
            5000);
    refused(tls_url(&place, "localhost", "nothing.crt", NULL), ERR_ARGUMENT, "nothing.crt", 5000);
    refused(tls_url(&place, "localhost", "ca.key", NULL), ERR_ARGUMENT, "ca.key", 5000);
    tls_close(&place);
}

static void keep_tls(void *ctx, const char *name, const char *value, const char *problem) {
    if (strcmp(name, "tls") == 0)
        snprintf(ctx, 256, "%s%s", value, problem ? "!" : "");
}

Test(redis_tls, is_told) {
    TlsPlace place;
    Relay *relay = NULL;
    char told[256] = "";
    int days = 0;
    tls_open(&place, "server", "no");
    cr_assert_eq(relay_open(tls_url(&place, "localhost", "ca.crt", NULL), &relay), 0);
    cr_expect_eq(relay_survey_about(relay, keep_tls, told), 0, "%s", err_text());
    cr_expect_eq(sscanf(told, "TLSv1.%*d, the certificate is valid for %d more days", &days), 1,
                 "%s", told);
    cr_expect(days >= 3648 && days <= 3650 && !strchr(told, '!'), "%s", told);
    relay_close(relay);
    tls_close(&place);
}

Test(redis_tls, a_certificate_for_another_host) {
    TlsPlace place;
    tls_open(&place, "other", "no");
    refused(tls_url(&place, "localhost", "ca.crt", NULL), ERR_AUTH, "ostname mismatch", 5000);
    refused(tls_url(&place, "127.0.0.1", "ca.crt", NULL), ERR_AUTH, "IP address mismatch", 5000);
    tls_close(&place);
}

Test(redis_tls, a_certificate_of_ones_own) {
    TlsPlace place;
    char path[96];
    tls_open(&place, "server", "yes");
    expect_fine(tls_url(&place, "localhost", "ca.crt", "client"));
    for (int i = 0; i < 10; i++) /* whoever is faster, the alert or our first command */
        refused(tls_url(&place, "localhost", "ca.crt", NULL), ERR_AUTH, "there is none", 5000);
    snprintf(path, sizeof path, "%s/bad.crt", place.folder);
    cr_assert_geq(file_write(path, "x", 1), 0);
    snprintf(path, sizeof path, "%s/bad.key", place.folder);
    cr_assert_geq(file_write(path, "x", 1), 0);
    refused(tls_url(&place, "localhost", "ca.crt", "bad"), ERR_ARGUMENT, "bad.crt", 5000);
    char mixed[512];
    snprintf(mixed, sizeof mixed, "?ca=%s&cert=%s/client.crt&key=%s/ca.key", place.ca, place.folder,
             place.folder);
    refused(url_of("rediss", "", "localhost", place.server.port, mixed), ERR_ARGUMENT, "ca.key",
            5000);
    tls_close(&place);
}

Test(redis_tls, the_wrong_kind_of_port) {
    TlsPlace place;
    RedisServerProcess plain;
    tls_open(&place, "server", "no");
    refused(url_of("redis", "", "localhost", place.server.port, ""), ERR_UNREACHABLE,
            "localhost:", 12000);
    tls_close(&place);
    cr_assert_eq(redis_server_start(&plain, NULL), 0, "%s", err_text());
    Relay *relay = NULL;
    int64_t begin_ns = clock_now_ns();
    int rc = relay_open(url_of("rediss", "", "localhost", plain.port, ""), &relay);
    cr_expect_eq(rc, ERR_UNREACHABLE, "%s", err_name(rc));
    cr_expect_lt((clock_now_ns() - begin_ns) / CLOCK_NS_PER_MS, 9000);
    expect_sentence("localhost:");
    redis_server_stop(&plain);
}

/* ---- nobody there ---- */

Test(redis_reach, nobody) {
    RedisFake *fake = NULL;
    cr_assert_eq(redis_fake_start(NULL, &fake), 0, "%s", err_text());
    int port = redis_fake_port(fake);
    redis_fake_stop(fake);
    char place[32];
    snprintf(place, sizeof place, "127.0.0.1:%d", port);
    refused(url_of("redis", ":" CANARY "@", "127.0.0.1", port, ""), ERR_UNREACHABLE, place, 5000);
    expect_sentence("refused");
    refused(url_of("rediss", "", "[::1]", port, ""), ERR_UNREACHABLE, "[::1]:", 5000);
    refused(url_of("redis", ":" CANARY "@", "no.such.host.invalid", port, ""), ERR_UNREACHABLE,
            "no.such.host.invalid", 15000);
}

static void silent(const char *scheme) {
    static const FakeRule rules[] = {{NULL, "", FAKE_SILENT, 0}, {0}};
    RedisFake *fake = NULL;
    char place[32];
    cr_assert_eq(redis_fake_start(rules, &fake), 0, "%s", err_text());
    snprintf(place, sizeof place, "127.0.0.1:%d", redis_fake_port(fake));
    refused(url_of(scheme, ":" CANARY "@", "127.0.0.1", redis_fake_port(fake), "/1"),
            ERR_UNREACHABLE, place, 15000);
    redis_fake_stop(fake);
}

Test(redis_reach, silent_after_the_connect) {
    silent("redis");
}

Test(redis_reach, silent_after_the_connect_with_tls) {
    silent("rediss");
}

/* ---- what is hardly Redis ---- */

static void fake_refused(const FakeRule *rules, const char *user, const char *rest, int code,
                         const char *words) {
    RedisFake *fake = NULL;
    cr_assert_eq(redis_fake_start(rules, &fake), 0, "%s", err_text());
    refused(url_of("redis", user, "127.0.0.1", redis_fake_port(fake), rest), code, words, 15000);
    char port[16];
    snprintf(port, sizeof port, ":%d", redis_fake_port(fake));
    expect_sentence(port);
    redis_fake_stop(fake);
}

/* A server that does not know AUTH repeats its arguments; others say more than they should. */
Test(redis_fake, secrets_in_answers) {
    static const FakeRule quoting[] = {
        {"AUTH", "-ERR unknown command 'AUTH', with args beginning with: '" CANARY "' \r\n",
         FAKE_SAY, 0},
        {0}};
    static const FakeRule telling[] = {{"AUTH", "-NOPE " CANARY " is wrong\r\n", FAKE_SAY, 0}, {0}};
    static const FakeRule odd[] = {{"PING", "-ERR \x1b[31m\x80 odd\r\n", FAKE_SAY, 0}, {0}};
    fake_refused(quoting, ":" CANARY "@", "", ERR_AUTH, "refuses the login");
    fake_refused(telling, "me:" CANARY "@", "", ERR_AUTH, "refuses the login");
    fake_refused(odd, "", "", ERR_IO, "odd");
}

Test(redis_fake, nonsense) {
    static const FakeRule garbage[] = {{NULL, "HTTP/1.1 400 Bad Request\r\n\r\n", FAKE_SAY, 0},
                                       {0}};
    static const FakeRule endless[] = {
        {"PING", "+aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", FAKE_FOREVER, 0}, {0}};
    static const FakeRule arrays[] = {{"PING", "*2147483647\r\n", FAKE_SAY, 0}, {0}};
    static const FakeRule nested[] = {{"PING", "*1\r\n", FAKE_FOREVER, 0}, {0}};
    static const FakeRule full[] = {{NULL, "-ERR max number of clients reached\r\n", FAKE_SAY, 0},
                                    {"PING", "", FAKE_HANG_UP, 0},
                                    {0}};
    static const FakeRule closing[] = {{"PING", "", FAKE_HANG_UP, 0}, {0}};
    static const FakeRule old[] = {{"INFO", "$20\r\nredis_version:4.0.9\n\r\n", FAKE_SAY, 0}, {0}};
    struct rusage before;
    struct rusage after;
    getrusage(RUSAGE_SELF, &before);
    fake_refused(garbage, "", "", ERR_CORRUPT, "does not answer as a Redis server does");
    fake_refused(endless, "", "", ERR_CORRUPT, "an answer without an end");
    fake_refused(arrays, "", "", ERR_CORRUPT, "an array beyond all bounds");
    fake_refused(nested, "", "", ERR_CORRUPT, "does not answer as a Redis server does");
    fake_refused(full, "", "", ERR_UNREACHABLE, "max number of clients");
    fake_refused(closing, "", "", ERR_UNREACHABLE, "closed the connection");
    fake_refused(old, "", "", ERR_UNSUPPORTED, "5.0 or newer is needed");
    getrusage(RUSAGE_SELF, &after);
    cr_expect_lt(after.ru_maxrss - before.ru_maxrss, 64 << 10, "KiB");
}

/* A value that is announced and never comes. */
Test(redis_fake, huge_length) {
    static const FakeRule rules[] = {{"PING", "$4294967296\r\nabc", FAKE_SAY, 0}, {0}};
    fake_refused(rules, "", "", ERR_UNREACHABLE, "the deadline passed");
}

static Relay *opened(const FakeRule *rules, RedisFake **fake, const char *user, const char *rest) {
    Relay *relay = NULL;
    cr_assert_eq(redis_fake_start(rules, fake), 0, "%s", err_text());
    cr_assert_eq(
        relay_open(url_of("redis", user, "127.0.0.1", redis_fake_port(*fake), rest), &relay), 0,
        "%s", err_text());
    return relay;
}

#define PUT_WORKS                                                                                  \
    { "EXEC", "*2\r\n$3\r\n1-1\r\n:1\r\n", FAKE_SAY, 0 }

Test(redis_fake, moved_and_ask) {
    static const FakeRule moved[] = {{"EXISTS", "-MOVED 3999 127.0.0.1:6381\r\n", FAKE_SAY, 0},
                                     {"EXEC",
                                      "-EXECABORT Transaction discarded because of: MOVED "
                                      "3999 127.0.0.1:6381\r\n",
                                      FAKE_SAY, 0},
                                     {"XREAD", "-ASK 3999 127.0.0.1:6381\r\n", FAKE_SAY, 0},
                                     {0}};
    RedisFake *fake = NULL;
    size_t bytes = 0;
    char out[8];
    Relay *relay = opened(moved, &fake, "", "");
    cr_expect_eq(relay_has(relay, "k"), ERR_UNSUPPORTED);
    expect_sentence("part of a Redis cluster");
    put_refused(relay, "k", ERR_UNSUPPORTED, "part of a Redis cluster");
    cr_expect_eq(relay_get(relay, "k", out, sizeof out, clock_deadline_ms(3000), &bytes),
                 ERR_UNSUPPORTED);
    expect_sentence("'k'");
    relay_close(relay);
    redis_fake_stop(fake);
}

/* Login first, at every connection; a server that reads its file is waited for. */
Test(redis_fake, loading_then_fine) {
    static const FakeRule rules[] = {
        {"PING", "-LOADING Redis is loading the dataset in memory\r\n", FAKE_SAY, 3},
        {"MULTI", "", FAKE_HANG_UP, 1},
        {"EXISTS", "-LOADING Redis is loading the dataset in memory\r\n", FAKE_SAY, 2},
        PUT_WORKS,
        {0}};
    RedisFake *fake = NULL;
    char log[FAKE_LOG_BYTES];
    Slice part = {"x", 1};
    Relay *relay = opened(rules, &fake, "me:" CANARY "@", "/3");
    cr_expect_eq(relay_put(relay, "k", &part, 1, clock_deadline_ms(5000)), 0, "%s", err_text());
    cr_expect_eq(relay->counters.n_retries, 1);
    cr_expect_eq(relay_has(relay, "k"), 0, "%s", err_text());
    cr_expect_eq(relay->counters.n_retries, 3);
    relay_close(relay);
    redis_fake_log(fake, log);
    redis_fake_stop(fake);
    cr_expect_str_eq(log, "(AUTH SELECT PING PING PING PING INFO CONFIG FUNCPIPE.ABOUT MULTI "
                          "(AUTH SELECT PING MULTI XADD PEXPIRE EXEC EXISTS EXISTS EXISTS");
}

/* Odd answers in the middle: an error that names the key, and the next question has its answer. */
Test(redis_fake, odd_answers) {
    static const FakeRule rules[] = {{"XREAD", "*1\r\n*2\r\n$1\r\no\r\n*0\r\n", FAKE_SAY, 1},
                                     {"EXISTS", ":0\r\n", FAKE_SAY, 1},
                                     {"XREAD", ":7\r\n", FAKE_SAY, 1},
                                     {"XREAD", "!what\r\n", FAKE_SAY, 1},
                                     {"EXEC", "*1\r\n+OK\r\n", FAKE_SAY, 1},
                                     {"SCAN", "*2\r\n$0\r\n\r\n*0\r\n", FAKE_SAY, 1},
                                     PUT_WORKS,
                                     {0}};
    RedisFake *fake = NULL;
    int64_t n = 0;
    size_t bytes = 0;
    char out[8];
    Slice part = {"x", 1};
    Relay *relay = opened(rules, &fake, "", "");
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(relay_get(relay, "k", out, sizeof out, clock_deadline_ms(2000), &bytes),
                     ERR_CORRUPT, "%d: %s", i, err_text());
        expect_sentence("'k'");
    }
    put_refused(relay, "k", ERR_CORRUPT, "'k'");
    cr_expect_eq(relay_count(relay, "a", &n), ERR_CORRUPT, "%s", err_text());
    cr_expect_eq(relay_put(relay, "k", &part, 1, clock_deadline_ms(2000)), 0, "%s", err_text());
    relay_close(relay);
    redis_fake_stop(fake);
}

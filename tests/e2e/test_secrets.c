/* No secret is written anywhere: jobs that go well and jobs that fail in every way, plan, doctor
 * and gc, with passwords and keys in files, in the environment and in URLs; then every byte that
 * was printed or written is looked through. Each part of a secret between characters that are
 * escaped in URLs or JSON holds the same word, so that escaped and cut forms are found, too. */
#include <criterion/criterion.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/file.h"
#include "tests/support/e2e.h"
#include "tests/support/loopback.h"
#include "tests/support/redis_server.h"
#include "tests/support/s3_fake.h"

#define WORD "c4n4ry"
#define PASSWORD "c4n4ry1/c4n4ry2@c4n4ry3:c4n4ry4%c4n4ry5 c4n4ry6"
#define ENCODED "c4n4ry1%2Fc4n4ry2%40c4n4ry3%3Ac4n4ry4%25c4n4ry5%20c4n4ry6"
#define WRONG "wrong%2Fc4n4ry"

enum { MAX_RUNS = 32, FOUND_OR_NOT = -1 /* a problem, such as a slow machine */ };

static struct {
    E2e run;
    int exit_code;
    const char *words; /* in what it says; NULL: whatever */
} runs[MAX_RUNS];
static int n_runs, n_outs;
static RedisServerProcess server, tls_server;
static S3Fake *fake;
static int nowhere; /* a port where nobody is */

/* ---- looking ---- */

static int look(const char *path, const struct stat *about, int type, struct FTW *where) {
    Buf text;
    (void)about;
    (void)where;
    if (type != FTW_F || strncmp(path, "./secrets/", 10) == 0)
        return 0;
    buf_init(&text, 0);
    cr_assert_eq(buf_read_file(&text, path, (size_t)1 << 30), 0, "%s", err_text());
    const char *found = text.data ? memmem(text.data, text.bytes, WORD, strlen(WORD)) : NULL;
    if (found) {
        size_t at = (size_t)(found - text.data);
        size_t from = at > 100 ? at - 100 : 0;
        cr_expect(false, "%s: ...%.160s", path, text.data + from);
    }
    buf_done(&text);
    return 0;
}

/* ---- running: what fails is begun at once and waited for together ---- */

static void begin(int exit_code, const char *words, const char *const *args) {
    cr_assert_lt(n_runs, MAX_RUNS);
    runs[n_runs].run = e2e_start(args);
    runs[n_runs].exit_code = exit_code;
    runs[n_runs++].words = words;
}

static void begin_train(int exit_code, const char *words, const char *relay) {
    char set[512];
    char out[32];
    snprintf(set, sizeof set, "relay=%s", relay);
    snprintf(out, sizeof out, "out%d", n_outs++);
    begin(exit_code, words,
          E2E_ARGS("train", "mlp.json", "--out", out, "--set", set, "--set", "steps=20", "--trace",
                   n_outs % 2 ? "--json" : "--overwrite"));
}

static void finish(void) {
    for (int i = 0; i < n_runs; i++) {
        int status = e2e_wait(&runs[i].run);
        const char *text = e2e_read(runs[i].run.err);
        bool fine = status == runs[i].exit_code ||
                    (runs[i].exit_code == FOUND_OR_NOT && (status == 0 || status == 1));
        cr_expect(fine, "run %d: %d instead of %d: %s", i, status, runs[i].exit_code, text);
        cr_expect(!runs[i].words || strstr(text, runs[i].words) ||
                      strstr(e2e_read(runs[i].run.out), runs[i].words),
                  "run %d: no '%s' in: %s", i, runs[i].words, text);
    }
    n_runs = 0;
}

static void enter(void) {
    e2e_enter();
    cr_assert_eq(mkdir("secrets", 0700), 0);
    cr_assert_eq(file_write("secrets/right", PASSWORD "\n", sizeof PASSWORD), 0);
    cr_assert_eq(file_write("secrets/wrong", "not-" PASSWORD "\n", sizeof PASSWORD + 4), 0);
    close(loopback_listen(0, &nowhere));
    e2e_job("mlp", e2e_mlp);
    e2e_wrap_worker(":"); /* leaves its order in a file: that is looked through, too */
}

static void leave(void) {
    redis_server_stop(&server);
    redis_server_stop(&tls_server);
    if (fake)
        s3_fake_stop(fake);
    e2e_leave();
}

static const char *text_of(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *text_of(const char *format, ...) {
    static char texts[64][512];
    static int next;
    char *text = texts[next++ % 64];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof texts[0], format, args);
    va_end(args);
    return text;
}

/* ---- Redis ---- */

static const char *with_file(int port, const char *file) {
    return text_of("redis://127.0.0.1:%d?password_file=%s", port, e2e_path("secrets/%s", file));
}

static void commands(const char *relay, int doctor, int gc) {
    begin(doctor, NULL, E2E_ARGS("doctor", relay));
    begin(gc, NULL, E2E_ARGS("gc", relay, "--json"));
}

/* A server for TLS with a certificate for another host. */
static const char *another_host(void) {
    cr_assert_geq(redis_server_certificates("secrets"), 0, "%s", err_text());
    const char *const args[] = {"--tls-port",
                                "PORT",
                                "--port",
                                "0",
                                "--tls-cert-file",
                                e2e_path("secrets/%s", "other.crt"),
                                "--tls-key-file",
                                e2e_path("secrets/%s", "other.key"),
                                "--tls-ca-cert-file",
                                e2e_path("secrets/%s", "ca.crt"),
                                "--tls-auth-clients",
                                "no",
                                "--requirepass",
                                PASSWORD,
                                NULL};
    cr_assert_eq(redis_server_start(&tls_server, args), 0, "%s", err_text());
    return text_of("localhost:%d?ca=%s", tls_server.port, e2e_path("secrets/%s", "ca.crt"));
}

static void fill(void) {
    int64_t answer =
        redis_server_ask(server.port, "AUTH \"" PASSWORD "\"\r\nCONFIG SET maxmemory 1000000");
    cr_assert_eq(answer, 0);
}

Test(secrets, of_redis, .init = enter, .fini = leave) {
    static const char *const args[] = {"--requirepass", PASSWORD, NULL};
    cr_assert_eq(redis_server_start(&server, args), 0, "%s", err_text());
    const char *tls = another_host();
    const char *good = with_file(server.port, "right");
    const char *inside = text_of("redis://:%s@127.0.0.1:%d", ENCODED, server.port);
    begin_train(0, NULL, good);
    begin(0, NULL, E2E_ARGS("plan", "mlp.json", "--set", text_of("relay=%s", good)));
    commands(good, FOUND_OR_NOT, 0);
    commands(inside, FOUND_OR_NOT, 0);
    finish();
    begin_train(3, "WRONGPASS", with_file(server.port, "wrong"));
    begin_train(3, "NOAUTH", text_of("redis://127.0.0.1:%d", server.port));
    begin_train(3, "refused", with_file(nowhere, "right"));
    begin_train(2, "holds a password", inside);
    begin_train(2, NULL, text_of("redis://:%s@127.0.0.1:%d", PASSWORD, server.port));
    begin_train(2, NULL, text_of("redis://%s@127.0.0.1:%d/x", ENCODED, server.port));
    begin_train(2, NULL, text_of("redis://127.0.0.1:%d?password=%s", server.port, ENCODED));
    begin_train(2, NULL, text_of("redis//:%s@127.0.0.1:%d", ENCODED, server.port));
    begin_train(3, "ostname mismatch",
                text_of("rediss://%s&password_file=%s", tls, e2e_path("secrets/%s", "right")));
    begin(2, NULL, E2E_ARGS("plan", "mlp.json", "--set", text_of("relay=%s", inside)));
    commands(text_of("rediss://:%s@%s", ENCODED, tls), 3, 3);
    commands(text_of("redis://:%s@127.0.0.1:%d", WRONG, server.port), 3, 3);
    commands(text_of("redis://:%s@127.0.0.1:%d", ENCODED, nowhere), 3, 3);
    finish();
    E2e run = e2e_train("mlp.json", "full",
                        E2E_ARGS("--set", text_of("relay=%s", good), "--set", "limits.restarts=0",
                                 "--set", "timeouts.wait=2s"));
    cr_assert(e2e_await_rows(&run, "full", 10), "%s", e2e_read(run.err));
    fill();
    cr_expect_eq(e2e_wait(&run), 1, "%s", e2e_read(run.err));
    cr_expect(strstr(e2e_read(run.err), "maxmemory"), "%s", e2e_read(run.err));
    cr_assert_eq(nftw(".", look, 16, FTW_PHYS), 0);
}

/* ---- S3 ---- */

#define TWICE_ENCODED "c4n4ry1%252Fc4n4ry2%2540c4n4ry3%253Ac4n4ry4%2525c4n4ry5%2520c4n4ry6"

#define S3_SECRET "c4n4ry1/c4n4ry2+c4n4ry3="
#define S3_TOKEN "c4n4ry1//c4n4ry2+c4n4ry3=="

static const char *s3_url(int port, const char *more) {
    return text_of("s3://bucket/jobs?endpoint=http://127.0.0.1:%d&timeout=1s%s", port, more);
}

static void refuse(int status, const char *code) {
    const S3FakeRule rules[] = {
        {.request = "", .way = S3_FAKE_REFUSE, .status = status, .code = code}, {0}};
    s3_fake_rules(fake, rules);
}

Test(secrets, of_s3, .init = enter, .fini = leave) {
    static const char keys[] =
        "[default]\naws_access_key_id = AKTEST\naws_secret_access_key = " S3_SECRET
        "\naws_session_token = " S3_TOKEN "\n";
    static const char half[] = "[default]\naws_secret_access_key = " S3_SECRET "\n";
    cr_assert_eq(file_write("secrets/keys", keys, sizeof keys - 1), 0);
    cr_assert_eq(file_write("secrets/half", half, sizeof half - 1), 0);
    cr_assert_eq(s3_fake_start(&fake), 0, "%s", err_text());
    const char *tls = another_host();
    const char *from_file = text_of("&credentials_file=%s", e2e_path("secrets/%s", "keys"));
    int port = s3_fake_port(fake);
    begin_train(0, NULL, s3_url(port, from_file));
    setenv("AWS_ACCESS_KEY_ID", "AKTEST", 1);
    setenv("AWS_SECRET_ACCESS_KEY", S3_SECRET, 1);
    setenv("AWS_SESSION_TOKEN", S3_TOKEN, 1);
    begin_train(0, NULL, s3_url(port, ""));
    begin(0, NULL, E2E_ARGS("plan", "mlp.json", "--set", text_of("relay=%s", s3_url(port, ""))));
    commands(s3_url(port, ""), 1, 0); /* it is not encrypted */
    finish();
    begin_train(2, "in front of the bucket", "s3://AKTEST:" S3_SECRET "@bucket");
    begin_train(2, NULL, s3_url(port, "&secret=" S3_SECRET));
    begin_train(3, "half",
                s3_url(port, text_of("&credentials_file=%s", e2e_path("secrets/%s", "half"))));
    begin_train(3, "the S3 store", s3_url(nowhere, ""));
    begin_train(3, "TLS",
                text_of("s3://bucket?endpoint=https://%s",
                        text_of("%.*s&%s", (int)strcspn(tls, "?"), tls, strchr(tls, '?') + 1)));
    commands(s3_url(nowhere, ""), 3, 3);
    finish();
    refuse(403, "SignatureDoesNotMatch");
    begin_train(3, "SignatureDoesNotMatch", s3_url(port, ""));
    commands(s3_url(port, ""), 3, 3);
    finish();
    refuse(400, "ExpiredToken");
    begin_train(3, "ExpiredToken", s3_url(port, from_file));
    finish();
    cr_assert_eq(nftw(".", look, 16, FTW_PHYS), 0);
}

/* Objects are announced in Redis: a URL within the URL. */
static const char *announced(const char *redis) {
    return s3_url(s3_fake_port(fake), text_of("&announce=%s", redis));
}

Test(secrets, of_announcements, .init = enter, .fini = leave) {
    static const char *const args[] = {"--requirepass", PASSWORD, NULL};
    cr_assert_eq(redis_server_start(&server, args), 0, "%s", err_text());
    cr_assert_eq(s3_fake_start(&fake), 0, "%s", err_text());
    setenv("AWS_ACCESS_KEY_ID", "AKTEST", 1);
    setenv("AWS_SECRET_ACCESS_KEY", S3_SECRET, 1);
    const char *good = announced(with_file(server.port, "right"));
    const char *inside = announced(text_of("redis://:%s@127.0.0.1:%d", TWICE_ENCODED, server.port));
    begin_train(0, NULL, good);
    begin(0, NULL, E2E_ARGS("plan", "mlp.json", "--set", text_of("relay=%s", good)));
    commands(good, 1, 0); /* it is not encrypted */
    commands(inside, 1, 0);
    finish();
    begin_train(3, "WRONGPASS", announced(with_file(server.port, "wrong")));
    begin_train(3, "NOAUTH", announced(text_of("redis://127.0.0.1:%d", server.port)));
    begin_train(3, "refused", announced(with_file(nowhere, "right")));
    begin_train(2, "holds a password", inside);
    begin_train(2, NULL, announced(text_of("redis://:%s@127.0.0.1:%d", ENCODED, server.port)));
    begin_train(2, NULL, announced(text_of("redis//:%s@127.0.0.1", TWICE_ENCODED)));
    begin_train(2, NULL, announced(text_of("redis://h?password=%s", TWICE_ENCODED)));
    begin(2, NULL, E2E_ARGS("plan", "mlp.json", "--set", text_of("relay=%s", inside)));
    commands(announced(text_of("redis://:wrong%%252Fc4n4ry@127.0.0.1:%d", server.port)), 3, 3);
    commands(announced(text_of("redis://:%s@127.0.0.1:%d", TWICE_ENCODED, nowhere)), 3, 3);
    finish();
    cr_assert_eq(nftw(".", look, 16, FTW_PHYS), 0);
}

/* Whole jobs over a real Redis server: the weights are those of the file relay, bit by bit, whoever
 * dies; the server is left as it was found; and no password is written anywhere. */
#include <criterion/criterion.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "core/buf.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/file.h"
#include "tests/support/e2e.h"
#include "tests/support/redis_server.h"

#define SECRET "canary-7d1f-in-the-mine"

static RedisServerProcess server;

static void begin(const char *const *args) {
    e2e_enter();
    int rc = redis_server_start(&server, args);
    if (rc == ERR_UNSUPPORTED)
        cr_skip_test("%s", err_text());
    cr_assert_eq(rc, 0, "%s", err_text());
}

static void enter(void) {
    begin(NULL);
}

static void enter_with_password(void) {
    static const char *const args[] = {"--requirepass", SECRET, NULL};
    begin(args);
}

static void leave(void) {
    redis_server_stop(&server);
    e2e_leave();
}

static const char *relay_set(const char *rest) {
    static char text[E2E_PATH_BYTES];
    snprintf(text, sizeof text, "relay=redis://127.0.0.1:%d%s", server.port, rest);
    return text;
}

static void server_is_empty(void) {
    cr_assert_eq(redis_server_ask(server.port, "DBSIZE"), 0);
}

static void check_job(const char *name, const char *text, int64_t n_steps) {
    const char *job = e2e_job(name, text);
    e2e_train_fully(job, "files", NULL);
    e2e_train_fully(job, "redis", E2E_ARGS("--set", relay_set("")));
    e2e_check_equal("files", "redis", n_steps);
    e2e_check_same_rows("files", "redis", 0, n_steps);
    server_is_empty();
}

Test(redis_jobs, mlp, .init = enter, .fini = leave) {
    check_job("mlp", e2e_mlp, 200);
}

Test(redis_jobs, cnn, .init = enter, .fini = leave) {
    check_job("cnn", e2e_cnn, 120);
}

Test(redis_jobs, gpt, .init = enter, .fini = leave) {
    check_job("gpt", e2e_gpt, 120);
}

static void enter_with_module(void) {
    static const char *const args[] = {"--loadmodule", REDIS_SERVER_MODULE, NULL};
    begin(args);
}

/* Three replicas: each reads all, each adds up a part, the server adds; one of them dies, too. */
Test(redis_jobs, every_form_of_the_reduction, .init = enter_with_module, .fini = leave) {
    static const char *const forms[] = {"plan.reduce.form=whole", "plan.reduce.form=chunked",
                                        "plan.reduce.form=in_store", "plan.reduce.form=auto"};
    const char *job = e2e_job("mlp", e2e_mlp);
    const char *const replicas = "plan.replicas=[1,3,1]";
    e2e_train_fully(job, "files", E2E_ARGS("--set", replicas, "--set", forms[0]));
    for (int i = 0; i < 4; i++) {
        E2e run = e2e_train(job, "redis",
                            E2E_ARGS("--overwrite", "--set", relay_set(""), "--set", replicas,
                                     "--set", forms[i], "--set", "plan.reduce.chunk=4KiB"));
        cr_assert(e2e_await_rows(&run, "redis", 40), "%s", e2e_read(run.err));
        kill(e2e_worker("redis", 1, i % 3), SIGKILL);
        cr_assert_eq(e2e_wait(&run), 0, "%s: %s", forms[i], e2e_read(run.err));
        e2e_check_equal("files", "redis", 200);
        e2e_check_same_rows("files", "redis", 0, 200);
        server_is_empty();
    }
}

/* A form that the relay cannot do is refused before anything begins. */
Test(redis_jobs, a_server_that_cannot_add, .init = enter, .fini = leave) {
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), "out",
                        E2E_ARGS("--set", relay_set(""), "--set", "plan.reduce.form=in_store"));
    cr_assert_eq(e2e_wait(&run), 4, "%s", e2e_read(run.err));
    cr_assert(strstr(e2e_read(run.err), "this relay cannot add"), "%s", e2e_read(run.err));
    server_is_empty();
}

Test(redis_jobs, workers_die, .init = enter, .fini = leave) {
    static const int workers[][2] = {{0, 0}, {1, 0}, {1, 1}, {2, 0}};
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "files", NULL);
    E2e run =
        e2e_train(job, "redis", E2E_ARGS("--set", relay_set("/3"), "--set", "limits.restarts=20"));
    for (int i = 0; i < 4; i++) {
        cr_assert(e2e_await_rows(&run, "redis", 30 + i * 35), "%s", e2e_read(run.err));
        kill(e2e_worker("redis", workers[i][0], workers[i][1]), SIGKILL);
    }
    cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
    cr_assert_geq(e2e_count("redis", "worker_died"), 3);
    e2e_check_clean(&run);
    e2e_check_equal("files", "redis", 200);
    e2e_check_same_rows("files", "redis", 0, 200);
}

/* ---- no password is written anywhere ---- */

static int look_for_secret(const char *path, const struct stat *about, int type,
                           struct FTW *where) {
    Buf text;
    (void)about;
    (void)where;
    if (type != FTW_F || strstr(path, "/secret"))
        return 0;
    buf_init(&text, 0);
    cr_assert_eq(buf_read_file(&text, path, (size_t)1 << 30), 0, "%s", err_text());
    bool found = text.data && memmem(text.data, text.bytes, SECRET, strlen(SECRET));
    buf_done(&text);
    cr_assert(!found, "the password stands in '%s'", path);
    return 0;
}

Test(redis_jobs, the_password_is_written_nowhere, .init = enter_with_password, .fini = leave) {
    char rest[E2E_PATH_BYTES];
    const char *job = e2e_job("mlp", e2e_mlp);
    E2e run;
    cr_assert_eq(file_write("secret", SECRET "\n", sizeof SECRET), 0);
    snprintf(rest, sizeof rest, "?password_file=%s", e2e_path("%s", "secret"));
    e2e_train_fully(job, "good", E2E_ARGS("--set", relay_set(rest), "--trace"));
    run = e2e_train(job, "none", E2E_ARGS("--set", relay_set("")));
    cr_assert_eq(e2e_wait(&run), 3, "%s", e2e_read(run.err));
    cr_assert(strstr(e2e_read(run.err), "NOAUTH"), "%s", e2e_read(run.err));
    char inside[E2E_PATH_BYTES];
    snprintf(inside, sizeof inside, "relay=redis://:" SECRET "@127.0.0.1:%d", server.port);
    run = e2e_train(job, "inside", E2E_ARGS("--set", inside, "--json"));
    cr_assert_eq(e2e_wait(&run), 2, "%s", e2e_read(run.err));
    run =
        e2e_train(job, "killed", E2E_ARGS("--set", relay_set(rest), "--set", "limits.restarts=0"));
    cr_assert(e2e_await_rows(&run, "killed", 20));
    kill(e2e_worker("killed", 1, 0), SIGKILL);
    cr_assert_eq(e2e_wait(&run), 1);
    cr_assert_eq(nftw(".", look_for_secret, 16, FTW_PHYS), 0);
}

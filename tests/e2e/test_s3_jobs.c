/* Whole jobs over a real S3 store: the weights are those of the file relay, bit by bit, whoever
 * dies, the store too; and nothing is left in the bucket. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "storage/relay.h"
#include "tests/support/damage.h"
#include "tests/support/e2e.h"
#include "tests/support/relay_jobs.h"
#include "tests/support/s3_fake.h"
#include "tests/support/s3_server.h"

S3_SERVER_STARTS
S3_SERVER_STOPS

static char url[E2E_PATH_BYTES];

static void enter(void) {
    char prefix[64];
    e2e_enter();
    cr_assert_gt(s3_server_port(), 0, "%s", err_text());
    s3_server_prefix(prefix, sizeof prefix);
    s3_server_url(prefix, 0, url, sizeof url);
}

static const char *relay_set(void) {
    static char text[E2E_PATH_BYTES + 8];
    snprintf(text, sizeof text, "relay=%s", url);
    return text;
}

static void nothing_is_left(void) {
    Relay *relay = NULL;
    int64_t n = -1;
    cr_assert_eq(relay_open(url, &relay), 0, "%s", err_text());
    cr_expect_eq(relay_count(relay, "", &n), 0, "%s", err_text());
    cr_expect_eq(n, 0, "%lld objects are left", (long long)n);
    relay_close(relay);
}

static void check_job(const char *name, const char *text, int64_t n_steps) {
    char steps[32];
    const char *job = e2e_job(name, text);
    snprintf(steps, sizeof steps, "steps=%lld", (long long)n_steps);
    e2e_train_fully(job, "files", E2E_ARGS("--set", steps));
    e2e_train_fully(job, "s3", E2E_ARGS("--set", steps, "--set", relay_set()));
    e2e_check_equal("files", "s3", n_steps);
    e2e_check_same_rows("files", "s3", 0, n_steps);
    nothing_is_left();
}

Test(s3_jobs, mlp, .init = enter, .fini = e2e_leave) {
    check_job("mlp", e2e_mlp, 30);
}

Test(s3_jobs, gpt, .init = enter, .fini = e2e_leave) {
    check_job("gpt", e2e_gpt, 20);
}

Test(s3_jobs, workers_die, .init = enter, .fini = e2e_leave) {
    static const int workers[][2] = {{0, 0}, {1, 1}, {2, 0}};
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "files", E2E_ARGS("--set", "steps=50"));
    E2e run = e2e_train(
        job, "s3",
        E2E_ARGS("--set", "steps=50", "--set", relay_set(), "--set", "limits.restarts=20"));
    for (int i = 0; i < 3; i++) {
        cr_assert(e2e_await_rows(&run, "s3", 8 + i * 14), "%s", e2e_read(run.err));
        kill(e2e_worker("s3", workers[i][0], workers[i][1]), SIGKILL);
    }
    cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
    cr_assert_geq(e2e_count("s3", "worker_died"), 2);
    e2e_check_clean(&run);
    e2e_check_equal("files", "s3", 50);
    e2e_check_same_rows("files", "s3", 0, 50);
    nothing_is_left();
}

/* ---- gc and doctor ---- */

Test(s3_jobs, gc_and_doctor_look_at_it, .init = enter, .fini = e2e_leave) {
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), "dead",
                        E2E_ARGS("--set", relay_set(), "--set", "timeouts.heartbeat=20ms"));
    cr_assert(e2e_await_rows(&run, "dead", 12), "%s", e2e_read(run.err));
    kill(run.pid, SIGKILL);
    e2e_wait(&run);
    while (e2e_processes_of(run.pid) > 0)
        e2e_sleep_ms(5);
    cr_assert_eq(e2e_run(&run, E2E_ARGS("gc", url, "--dry-run")), 0, "%s", e2e_read(run.err));
    cr_expect(strstr(e2e_read(run.out), "mlp generation 1: left alone"), "%s", e2e_read(run.out));
    cr_assert_eq(e2e_run(&run, E2E_ARGS("doctor", url)), 1, "%s", e2e_read(run.err));
    const char *text = e2e_read(run.out);
    cr_expect(strstr(text, "requests are signed but not encrypted"), "%s", text);
    cr_expect(strstr(text, "\n1 problem:\n"), "%s", text);
    cr_expect(strstr(text, "sums               no"), "%s", text);
}

/* ---- the demo, damaged objects, what others left, a store that restarts ---- */

Test(s3_jobs, demo, .init = enter, .fini = e2e_leave) {
    relay_jobs_demo(url, 12);
}

Test(s3_jobs, damaged_objects, .init = enter, .fini = e2e_leave) {
    for (int i = 0; i < (e2e_long() ? N_DAMAGES : 1); i++) {
        if (!e2e_long() || i != DAMAGE_NONE)
            relay_jobs_damage(url, 12, e2e_long() ? i : DAMAGE_DTYPE);
    }
}

Test(s3_jobs, leftovers, .init = enter, .fini = e2e_leave) {
    relay_jobs_leftovers(url, 16);
}

Test(s3_jobs, the_store_restarts, .init = enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "files", E2E_ARGS("--set", "steps=30"));
    E2e run = e2e_train(job, "s3", E2E_ARGS("--set", "steps=30", "--set", relay_set()));
    cr_assert(e2e_await_rows(&run, "s3", 12), "%s", e2e_read(run.err));
    cr_assert_eq(s3_server_restart(), 0, "%s", err_text());
    cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
    e2e_check_clean(&run);
    e2e_check_equal("files", "s3", 30);
    e2e_check_same_rows("files", "s3", 0, 30);
    nothing_is_left();
}

/* A third of all requests is refused for a moment, and twenty puts in a row. */
Test(s3_jobs, a_busy_store, .init = e2e_enter, .fini = e2e_leave) {
    static const S3FakeRule rules[] = {
        {"PUT", S3_FAKE_REFUSE, 503, "SlowDown", .skip = 100, .n_times = 20},
        {"", S3_FAKE_REFUSE, 503, "SlowDown", .percent = 30},
        {0}};
    const char *job = e2e_job("mlp", e2e_mlp);
    S3Fake *fake = NULL;
    cr_assert_eq(s3_fake_start(&fake), 0, "%s", err_text());
    s3_fake_rules(fake, rules);
    setenv("AWS_ACCESS_KEY_ID", "AKTEST", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    snprintf(url, sizeof url, "s3://bucket/jobs?endpoint=http://127.0.0.1:%d", s3_fake_port(fake));
    e2e_train_fully(job, "files", E2E_ARGS("--set", "steps=20"));
    e2e_train_fully(job, "s3", E2E_ARGS("--set", "steps=20", "--set", relay_set()));
    e2e_check_equal("files", "s3", 20);
    e2e_check_same_rows("files", "s3", 0, 20);
    cr_expect_gt(s3_fake_count(fake, "PUT"), 120);
    cr_expect_eq(s3_fake_objects(fake), 0);
    s3_fake_stop(fake);
}

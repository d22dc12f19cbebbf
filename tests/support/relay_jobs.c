#include "tests/support/relay_jobs.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/key.h"
#include "tests/support/damage.h"
#include "tests/support/e2e.h"

/* Signs of life cost a relay work, too, and these jobs are not about them. */
#define SELDOM "--set", "timeouts.heartbeat=250ms"

enum { MICRO_ROWS = 8, WIDTH = 32 }; /* of e2e_mlp's first edge */

static const char *set_of(const char *name, const char *value) {
    static char texts[8][E2E_PATH_BYTES * 2];
    static int next;
    char *text = texts[next++ % 8];
    snprintf(text, sizeof texts[0], "%s=%s", name, value);
    return text;
}

static const char *number(int64_t value) {
    static char texts[4][24];
    static int next;
    char *text = texts[next++ % 4];
    snprintf(text, sizeof texts[0], "%lld", (long long)value);
    return text;
}

static Relay *open_relay(const char *url) {
    Relay *relay = NULL;
    cr_assert_eq(relay_open(url, &relay), 0, "%s", err_text());
    return relay;
}

static int64_t count(const char *url, const char *prefix) {
    int64_t n = -1;
    Relay *relay = open_relay(url);
    cr_assert_eq(relay_count(relay, prefix, &n), 0, "%s", err_text());
    relay_close(relay);
    return n;
}

/* ---- the demo's job ---- */

#define DEMO FUNCPIPE_SOURCE_DIR "/docs/examples/fashion-mnist-cnn.json"

static E2e start_demo(const char *job, const char *out, const RelayJobsDemo *demo,
                      int64_t n_steps) {
    const char *args[24] = {"--set", set_of("relay", demo->relay)};
    static const char *const shorter[] = {"save.every_steps=4", "evaluate=null", "data.eval=null",
                                          "update.schedule.warmup_steps=2"};
    int n = 2;
    if (demo->form) {
        args[n++] = "--set";
        args[n++] = set_of("plan.reduce.form", demo->form);
    }
    if (!e2e_long()) {
        args[n++] = "--set";
        args[n++] = set_of("steps", number(n_steps));
        for (size_t i = 0; i < sizeof shorter / sizeof shorter[0]; i++) {
            args[n++] = "--set";
            args[n++] = shorter[i];
        }
    }
    return e2e_train(job, out, args);
}

static void await_demo(E2e *run, const char *out, int64_t row) {
    cr_assert(e2e_await_rows(run, out, row), "%s", e2e_read(run->err));
}

/* One run of the job as it was resolved: with the cut that was made of measured times. All comes
 * early, because the workers may be steps ahead of what the run's files tell. */
static void disturb_demo(const char *out, const RelayJobsDemo *demo, int64_t n_steps, int64_t end) {
    E2e run = start_demo("files/job.json", out, demo, n_steps);
    if (!demo->loses) {
        await_demo(&run, out, end / 8);
        cr_assert_eq(kill(e2e_worker(out, 1, 0), SIGKILL), 0);
    }
    if (demo->disturb) {
        await_demo(&run, out, end / 4);
        cr_assert(e2e_await_event(&run, out, "saved", 1), "%s", e2e_read(run.err));
        demo->disturb();
        cr_assert(e2e_is_running(&run), "it was over before");
    }
    cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
    cr_expect_geq(e2e_count(out, "worker_died"), demo->loses ? 0 : 1);
    cr_assert_eq(e2e_count(out, "relay_lost"), demo->loses ? 1 : 0, "%s", e2e_read(run.err));
    if (demo->loses)
        cr_expect_gt(e2e_number(e2e_event(out, "resumed", -1, -1, 0), "step"), 0);
    e2e_check_clean(&run);
    e2e_check_rows(out, end);
    e2e_check_same_rows("files", out, 0, end);
    int status =
        e2e_run(&run, E2E_ARGS("diff", e2e_checkpoint("files", end), e2e_checkpoint(out, end)));
    cr_expect_eq(status, 0, "%s%s", e2e_read(run.out), e2e_read(run.err));
    cr_expect_eq(count(demo->relay, ""), 0);
}

void relay_jobs_demo(const RelayJobsDemo *runs, int n_runs, int64_t n_steps) {
    const int64_t end = e2e_long() ? 1500 : n_steps;
    E2e run = start_demo(DEMO, "files", &(RelayJobsDemo){.relay = "auto"}, n_steps);
    cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
    for (int i = 0; i < n_runs; i++)
        disturb_demo(e2e_path("disturbed%d", i), &runs[i], n_steps, end);
}

/* ---- a damaged object ---- */

/* Before its writer: what came first stays. */
static void put_damaged(const char *url, const char *key, int way) {
    static const BlobTensor activation = {DTYPE_F32, {2, {MICRO_ROWS, WIDTH}}};
    static Damaged object;
    Relay *relay = open_relay(url);
    damage_make(way, key, &activation, 1, &object);
    Slice part = {object.bytes, object.n};
    int rc = relay_put(relay, key, &part, 1, clock_deadline_ms(20000));
    cr_assert_eq(rc, 0, "%s: %d: the step has been made", key, rc);
    relay_close(relay);
}

void relay_jobs_damage(const char *relay, int64_t n_rows, int way) {
    const KeySpace space = {.job = "mlp", .generation = 1};
    const char *out = damage_name(way);
    E2e run =
        e2e_train(e2e_job("mlp", e2e_mlp), out,
                  E2E_ARGS("--set", set_of("relay", relay), SELDOM, "--set", "limits.restarts=1"));
    cr_assert(e2e_await_rows(&run, out, 2), "%s", e2e_read(run.err));
    const int64_t step = e2e_rows(out) + n_rows;
    const Key key = key_activation(&space, (KeyPlace){step, -1}, 0, 1, 2);
    put_damaged(relay, key.text, way);
    int status = e2e_wait(&run);
    const char *text = e2e_read(run.err);
    const char *said = e2e_text(e2e_event(out, "state", -1, -1, 0), "text");
    cr_expect_eq(status, 1, "%s: %d: %s", out, status, text);
    cr_expect(strstr(text, key.text) && strstr(text, damage_reason(way)), "%s: %s", out, text);
    cr_expect(strstr(said, key.text) && strstr(said, damage_reason(way)), "%s: %s", out, said);
    cr_expect_leq(e2e_rows(out), step, "%s: a step was made of it", out);
    e2e_check_clean(&run);
    cr_expect_eq(count(relay, ""), 0);
}

/* ---- what earlier runs left ---- */

static void die_in(const char *job, const char *out, const char *relay, int64_t rows) {
    E2e run = e2e_train(job, out, E2E_ARGS("--set", set_of("relay", relay), SELDOM));
    cr_assert(e2e_await_rows(&run, out, rows), "%s", e2e_read(run.err));
    kill(run.pid, SIGKILL);
    e2e_wait(&run);
    while (e2e_processes_of(run.pid) > 0)
        e2e_sleep_ms(5);
}

void relay_jobs_leftovers(const char *relay, int64_t n_steps) {
    const char *job = e2e_job("mlp", e2e_mlp);
    const char *steps = set_of("steps", number(n_steps));
    e2e_train_fully(job, "empty", E2E_ARGS("--set", steps, "--set", "update.lr=0.01"));
    die_in(job, "first", relay, n_steps / 2);
    die_in(job, "second", relay, 2);
    cr_assert_gt(count(relay, "mlp/g1"), 10, "nothing was left");
    e2e_train_fully(job, "third",
                    E2E_ARGS("--set", set_of("relay", relay), SELDOM, "--set", steps, "--set",
                             "update.lr=0.01"));
    e2e_check_equal("empty", "third", n_steps);
    e2e_check_same_rows("empty", "third", 0, n_steps);
    cr_expect_eq(count(relay, "mlp/g3") + count(relay, "mlp/claim.3"), 0);
}

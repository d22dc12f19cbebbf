/* Whole jobs over a real S3 store: the weights are those of the file relay, bit by bit, whoever
 * dies, the store too; and nothing is left in the bucket. */
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "storage/relay.h"
#include "tests/support/damage.h"
#include "tests/support/e2e.h"
#include "tests/support/redis_server.h"
#include "tests/support/relay_jobs.h"
#include "tests/support/s3_fake.h"
#include "tests/support/s3_server.h"

S3_SERVER_STARTS
S3_SERVER_STOPS
E2E_REFERENCES_BEGIN
E2E_REFERENCES_END

enum { STEPS = 20 }; /* of the disturbed jobs: each has the same reference */
#define STEPS_SET "--set", "steps=20"

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

/* Fewer signs of life than the jobs of the other tests: here each costs a store some work. */
#define OVER_S3 "--set", relay_set(), "--set", "timeouts.heartbeat=250ms"

static void nothing_is_left(void) {
    Relay *relay = NULL;
    int64_t n = -1;
    cr_assert_eq(relay_open(url, &relay), 0, "%s", err_text());
    cr_expect_eq(relay_count(relay, "", &n), 0, "%s", err_text());
    cr_expect_eq(n, 0, "%lld objects are left", (long long)n);
    relay_close(relay);
}

/* OUT/s3 is as the same job over files, which was trained once for all tests. */
static void check_as_over_files(const char *job) {
    const char *files = e2e_reference(job, E2E_ARGS(STEPS_SET));
    e2e_check_equal(files, "s3", STEPS);
    e2e_check_same_rows(files, "s3", 0, STEPS);
    nothing_is_left();
}

static void check_job(const char *name, const char *text, int64_t n_steps) {
    char steps[32];
    const char *job = e2e_job(name, text);
    snprintf(steps, sizeof steps, "steps=%lld", (long long)n_steps);
    e2e_train_fully(job, "files", E2E_ARGS("--set", steps));
    e2e_train_fully(job, "s3", E2E_ARGS("--set", steps, OVER_S3));
    e2e_check_equal("files", "s3", n_steps);
    e2e_check_same_rows("files", "s3", 0, n_steps);
    nothing_is_left();
}

Test(s3_jobs, gpt, .init = enter, .fini = e2e_leave) {
    check_job("gpt", e2e_gpt, 20);
}

/* Other jobs would not begin while the store is away: this is the last test in the order of names.
 */
Test(s3_jobs, workers_and_the_store_die, .init = enter, .fini = e2e_leave) {
    static const int workers[][2] = {{0, 0}, {1, 1}, {2, 0}};
    const char *job = e2e_job("mlp", e2e_mlp);
    E2e run = e2e_train(job, "s3", E2E_ARGS(STEPS_SET, OVER_S3, "--set", "limits.restarts=20"));
    for (int i = 0; i < 3; i++) {
        cr_assert(e2e_await_rows(&run, "s3", 3 + i * 5), "%s", e2e_read(run.err));
        kill(e2e_worker("s3", workers[i][0], workers[i][1]), SIGKILL);
    }
    cr_assert(e2e_await_rows(&run, "s3", 16), "%s", e2e_read(run.err));
    cr_assert_eq(s3_server_restart(), 0, "%s", err_text());
    cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
    cr_assert_geq(e2e_count("s3", "worker_died"), 2);
    cr_expect_eq(e2e_count("s3", "relay_lost"), 0);
    e2e_check_clean(&run);
    check_as_over_files(job);
}

/* A figure of the stages' traffic up to a step, added up. */
static double traffic(const char *out, int64_t step, const char *figure) {
    enum { MAX_STAGES = 8 };
    double newest[MAX_STAGES] = {0}; /* at the last step the run's end tells it again */
    double sum = 0;
    const cJSON *line = NULL;
    cJSON_ArrayForEach(line, e2e_lines(e2e_path("%s/events.jsonl", out))) {
        if (strcmp(e2e_text(line, "event"), "traffic") != 0)
            continue;
        int stage = (int)e2e_number(line, "stage");
        cr_assert_lt(stage, MAX_STAGES);
        if (stage >= 0 && (int64_t)e2e_number(line, "step") == step)
            newest[stage] = e2e_number(line, figure);
    }
    for (int stage = 0; stage < MAX_STAGES; stage++)
        sum += newest[stage];
    return sum;
}

static double requests_an_object(const char *out, int64_t first, int64_t end) {
    double gets = traffic(out, end, "gets") - traffic(out, first, "gets");
    cr_assert_gt(gets, 0);
    return (traffic(out, end, "read_requests") - traffic(out, first, "read_requests")) / gets;
}

/* How long computations of that name took in steps [first, end), from the trace, on the average; or
 * how far from `mean_ms` they were. */
static double computed_ms(const cJSON *trace, const char *name, int64_t first, int64_t end,
                          double mean_ms) {
    double sum = 0;
    int n = 0;
    const cJSON *event = NULL;
    cJSON_ArrayForEach(event, trace) {
        if (strcmp(e2e_text(event, "name"), name) != 0)
            continue;
        double step = e2e_number(cJSON_GetObjectItem(event, "args"), "step");
        if (step >= (double)first && step < (double)end) {
            sum += fabs(e2e_number(event, "dur") / 1000 - mean_ms);
            n++;
        }
    }
    return n > 0 ? sum / n : 0;
}

/* The largest mean distance from the mean, of all computations of a step. */
static double scatter_ms(const cJSON *trace, int64_t first, int64_t end) {
    static const char *const names[] = {"0F0", "0F1", "0B0", "0B1", "1F0", "1F1",
                                        "1B0", "1B1", "F0",  "F1",  "B0",  "B1"};
    double most = 0;
    double all = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        double mean = computed_ms(trace, names[i], first, end, 0);
        most = fmax(most, computed_ms(trace, names[i], first, end, mean));
        all += mean;
    }
    cr_assert_gt(all, 0, "the trace has no computation");
    return most;
}

/* A step of some hundred milliseconds, as it is in earnest, in two workers. */
static const char long_steps[] =
    "{\"version\":1,\"name\":\"long\",\"model\":{\"zoo\":\"mlp\",\"options\":{\"input\":[64],"
    "\"hidden\":[900,900],\"classes\":4}},"
    "\"data\":{\"train\":{\"kind\":\"generated\",\"samples\":512,\"seed\":3}},"
    "\"batch\":512,\"micro_batch\":256,\"steps\":60,"
    "\"update\":{\"kind\":\"sgd\",\"lr\":0.05},\"save\":{\"every_steps\":15},"
    "\"plan\":{\"stages\":2,\"cut\":[2]}}";

/* Each handle has learned when objects come. Where others take the machine from the job, its
 * computations scatter, and so do the waits: the steadiest of the last steps count, and only
 * where these scatter by no more than a round trip is the bound that of a steady run. */
Test(s3_jobs, asks_when_objects_are_due, .init = enter, .fini = e2e_leave) {
    enum { FIRST = 30, END = 60, WINDOW = 15 };
    double best = 0;
    double best_ms = 1e9;
    e2e_train_fully(e2e_job("long", long_steps), "s3", E2E_ARGS(OVER_S3, "--trace"));
    cJSON *trace = cJSON_Parse(e2e_read(e2e_path("s3/trace.json")));
    cr_assert_not_null(trace);
    for (int first = FIRST; first < END; first += WINDOW) {
        double requests = requests_an_object("s3", first, first + WINDOW);
        double ms = scatter_ms(cJSON_GetObjectItem(trace, "traceEvents"), first, first + WINDOW);
        cr_log_info("steps from %d on: %.2f requests for an object read, computations scatter by "
                    "%.1f ms",
                    first, requests, ms);
        best = ms < best_ms ? requests : best;
        best_ms = ms < best_ms ? ms : best_ms;
    }
    cJSON_Delete(trace);
    cr_expect_leq(best, best_ms < 1.5 ? 1.3 : 6, "%.2f requests, scattered by %.1f ms", best,
                  best_ms);
}

/* ---- announced in Redis ---- */

static RedisServerProcess redis;

static void enter_announced(void) {
    enter();
    cr_assert_eq(redis_server_start(&redis, NULL), 0, "%s", err_text());
    size_t n = strlen(url);
    snprintf(url + n, sizeof url - n, "&announce=redis://127.0.0.1:%d", redis.port);
}

static void leave_announced(void) {
    redis_server_stop(&redis);
    e2e_leave();
}

/* One request for an object, but where a machine is so busy that one waits for a second. */
Test(s3_jobs, announced, .init = enter_announced, .fini = leave_announced) {
    check_job("mlp", e2e_mlp, 40);
    double requests = requests_an_object("s3", 20, 40);
    cr_log_info("%.3f requests for an object read", requests);
    cr_expect_leq(requests, 1.05, "%.3f requests for an object read", requests);
    cr_expect_eq(redis_server_ask(redis.port, "DBSIZE"), 0, "announcements are left");
}

/* Redis dies, then a worker, whose successor begins without Redis; then Redis comes back, empty,
 * and once more. */
Test(s3_jobs, announced_in_what_dies, .init = enter_announced, .fini = leave_announced) {
    const char *job = e2e_job("mlp", e2e_mlp);
    E2e run = e2e_train(job, "s3", E2E_ARGS(STEPS_SET, OVER_S3));
    cr_assert(e2e_await_rows(&run, "s3", 4), "%s", e2e_read(run.err));
    redis_server_kill(&redis);
    cr_assert(e2e_await_rows(&run, "s3", 6), "%s", e2e_read(run.err));
    kill(e2e_worker("s3", 1, 1), SIGKILL);
    cr_assert(e2e_await_rows(&run, "s3", 9), "%s", e2e_read(run.err));
    cr_assert_eq(redis_server_again(&redis), 0, "%s", err_text());
    cr_assert(e2e_await_rows(&run, "s3", 14), "%s", e2e_read(run.err));
    redis_server_kill(&redis);
    cr_assert_eq(redis_server_again(&redis), 0, "%s", err_text());
    cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
    cr_expect_eq(e2e_count("s3", "worker_died"), 1, "a worker without Redis was taken for dead");
    cr_expect_eq(e2e_count("s3", "relay_lost"), 0, "Redis was taken for the store");
    e2e_check_clean(&run);
    check_as_over_files(job);
}

Test(s3_jobs, doctor_looks_at_announcements, .init = enter_announced, .fini = leave_announced) {
    E2e run;
    cr_assert_eq(e2e_run(&run, E2E_ARGS("doctor", url)), 1, "%s", e2e_read(run.err));
    const char *text = e2e_read(run.out);
    cr_expect(strstr(text, "announce_server"), "%s", text);
    cr_expect(strstr(text, "pushes             yes"), "%s", text);
    cr_expect(strstr(text, "sums               no"), "%s", text);
    cr_expect(strstr(text, "\n1 problem:\n"), "%s", text);
    redis_server_kill(&redis);
    cr_assert_eq(e2e_run(&run, E2E_ARGS("doctor", url)), 3, "%s", e2e_read(run.out));
    cr_expect(strstr(e2e_read(run.err), "where objects are announced"), "%s", e2e_read(run.err));
}

/* ---- a busy store ---- */

/* A third of all requests is refused, and twenty in a row: the job is only slower, and says how
 * often it tried again. */
Test(s3_jobs, over_a_busy_store, .init = e2e_enter, .fini = e2e_leave) {
    const S3FakeRule busy[] = {{"PUT", S3_FAKE_REFUSE, 503, "SlowDown", 40, 20, 0},
                               {"", S3_FAKE_REFUSE, 503, "SlowDown", 0, 0, 30},
                               {0}};
    char relay[E2E_PATH_BYTES];
    S3Fake *fake = NULL;
    const char *job = e2e_job("mlp", e2e_mlp);
    cr_assert_eq(s3_fake_start(&fake), 0, "%s", err_text());
    s3_fake_rules(fake, busy);
    setenv("AWS_ACCESS_KEY_ID", "AKTEST", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    snprintf(relay, sizeof relay, "relay=s3://bucket/j?endpoint=http://127.0.0.1:%d",
             s3_fake_port(fake));
    e2e_train_fully(job, "files", E2E_ARGS("--set", "steps=10"));
    e2e_train_fully(job, "s3", E2E_ARGS("--set", "steps=10", "--set", relay));
    e2e_check_equal("files", "s3", 10);
    e2e_check_same_rows("files", "s3", 0, 10);
    cr_expect_gt(traffic("s3", 10, "retries"), 50, "%g", traffic("s3", 10, "retries"));
    cr_expect_gt(s3_fake_count(fake, "PUT"), 60);
    cr_expect_eq(s3_fake_objects(fake), 0);
    s3_fake_stop(fake);
}

/* ---- gc and doctor ---- */

Test(s3_jobs, gc_and_doctor_look_at_it, .init = enter, .fini = e2e_leave) {
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), "dead",
                        E2E_ARGS("--set", relay_set(), "--set", "timeouts.heartbeat=20ms"));
    cr_assert(e2e_await_rows(&run, "dead", 5), "%s", e2e_read(run.err));
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

/* ---- the demo, damaged objects, what others left, deleted objects ---- */

Test(s3_jobs, demo, .init = enter, .fini = e2e_leave) {
    relay_jobs_demo(&(RelayJobsDemo){.relay = url}, 1, 12);
}

Test(s3_jobs, damaged_objects, .init = enter, .fini = e2e_leave) {
    for (int i = 0; i < (e2e_long() ? N_DAMAGES : 1); i++) {
        if (!e2e_long() || i != DAMAGE_NONE)
            relay_jobs_damage(url, 12, e2e_long() ? i : DAMAGE_DTYPE);
    }
}

Test(s3_jobs, leftovers, .init = enter, .fini = e2e_leave) {
    relay_jobs_leftovers(url, 8);
}

/* Somebody deletes what is under way, until a worker waits in vain for it: all go back to the last
 * save, and the weights are the same. */
Test(s3_jobs, keys_are_deleted, .init = enter, .fini = e2e_leave) {
    enum { N_AHEAD = 4 };
    const char *job = e2e_job("mlp", e2e_mlp);
    Relay *relay = NULL;
    cr_assert_eq(relay_open(url, &relay), 0, "%s", err_text());
    E2e run = e2e_train(job, "s3", E2E_ARGS(STEPS_SET, OVER_S3, "--set", "timeouts.wait=5s"));
    cr_assert(e2e_await_rows(&run, "s3", 12), "%s", e2e_read(run.err));
    while (e2e_is_running(&run) && e2e_count("s3", "relay_lost") == 0) {
        char texts[N_AHEAD][32];
        const char *prefixes[N_AHEAD];
        int64_t n = 0;
        for (int i = 0; i < N_AHEAD; i++) {
            snprintf(texts[i], sizeof texts[i], "mlp/g1/t%lld", (long long)e2e_rows("s3") + i);
            prefixes[i] = texts[i];
        }
        cr_assert_eq(relay_drop(relay, prefixes, N_AHEAD, &n), 0, "%s", err_text());
        e2e_sleep_ms(5);
    }
    relay_close(relay);
    cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
    cr_expect_geq(e2e_count("s3", "relay_lost"), 1, "%s", e2e_read(run.err));
    const char *said = e2e_read(e2e_path("%s", "s3/events.jsonl"));
    cr_expect(strstr(said, "'mlp/g1/t") || strstr(said, "norms of step"), "%s", said);
    e2e_check_clean(&run);
    check_as_over_files(job);
}

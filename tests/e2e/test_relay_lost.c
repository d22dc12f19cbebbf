/* Relays that lose what they hold, in mid-run: the run notices, all workers go back to the last
 * save under another generation, and the weights are those of an undisturbed run, bit by bit. */
#include <criterion/criterion.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "tests/support/e2e.h"
#include "tests/support/redis_server.h"

enum { STEPS = 150 };

#define STEPS_SET "--set", "steps=150"
#define NO_SAVE "--set", "save.every_steps=1000"

static RedisServerProcess server;
static RedisServerProcess second; /* where there are two */
static const char *job;
static char relay[96];       /* relay=URL */
static int64_t away_ms = 50; /* of a server that is killed */
static char patience[32];    /* timeouts.wait: long enough for a busy machine */

static void enter_with(const char *const *args) {
    e2e_enter();
    cr_assert_eq(redis_server_start(&server, args), 0, "%s", err_text());
    snprintf(relay, sizeof relay, "relay=redis://127.0.0.1:%d", server.port);
    snprintf(patience, sizeof patience, "timeouts.wait=%ds", e2e_slowness());
    job = e2e_job("mlp", e2e_mlp);
}

static void enter(void) {
    enter_with(NULL);
}

static void enter_with_file(void) {
    static const char *const args[] = {"--appendonly", "yes", "--appendfsync", "always", NULL};
    enter_with(args);
}

static void enter_with_two(void) {
    static const char *const args[] = {"--loadmodule", REDIS_SERVER_MODULE, NULL};
    enter_with(args);
    cr_assert_eq(redis_server_start(&second, args), 0, "%s", err_text());
    snprintf(relay, sizeof relay, "relay=redis://127.0.0.1:%d,127.0.0.1:%d", server.port,
             second.port);
}

static void leave(void) {
    redis_server_stop(&server);
    e2e_leave();
}

static void leave_two(void) {
    redis_server_stop(&second);
    leave();
}

static void run_undisturbed(void) {
    e2e_train_fully(job, "undisturbed", E2E_ARGS(STEPS_SET));
}

static void kill_and_start_one(E2e *run, const char *out, int64_t row, RedisServerProcess *which) {
    cr_assert(e2e_await_rows(run, out, row), "%s", e2e_read(run->err));
    redis_server_kill(which);
    e2e_sleep_ms(away_ms);
    cr_assert_eq(redis_server_again(which), 0, "%s", err_text());
}

static void kill_and_start(E2e *run, const char *out, int64_t row) {
    kill_and_start_one(run, out, row, &server);
}

static const char *reason(const char *out) {
    return e2e_text(e2e_event(out, "relay_lost", -1, -1, 0), "text");
}

static void server_is_empty(void) {
    cr_expect_eq(redis_server_ask(server.port, "DBSIZE"), 0, "something is left");
}

/* The run ends by itself, as if nothing had been, after so many losses. */
static void check_end(E2e *run, const char *out, int n_losses) {
    cr_assert_eq(e2e_wait(run), 0, "%s", e2e_read(run->err));
    e2e_check_clean(run);
    cr_expect_eq(e2e_count(out, "relay_lost"), n_losses, "%s", e2e_read(run->err));
    cr_expect_eq(e2e_count(out, "resumed"), n_losses);
    e2e_check_equal("undisturbed", out, STEPS);
    e2e_check_same_rows("undisturbed", out, 0, STEPS);
    e2e_check_rows(out, STEPS);
    server_is_empty();
}

/* ---- servers that die ---- */

/* Twice, with saves and an evaluation before and in between; and before there is any save. */
Test(relay_lost, a_server_without_persistence, .init = enter, .fini = leave) {
    run_undisturbed();
    E2e run = e2e_train(job, "twice", E2E_ARGS(STEPS_SET, "--set", relay));
    kill_and_start(&run, "twice", 33);
    cr_assert(e2e_await_event(&run, "twice", "resumed", 1), "%s", e2e_read(run.err));
    double first = e2e_number(e2e_event("twice", "resumed", -1, -1, 0), "step");
    cr_expect(first >= 20 && first <= 50, "from step %g", first);
    kill_and_start(&run, "twice", 75);
    check_end(&run, "twice", 2);
    cr_expect(strstr(reason("twice"), "/n/w.0' is gone"), "%s", reason("twice"));
    cr_expect(strstr(e2e_read(run.out), "2 losses of the relay made good"), "%s",
              e2e_read(run.out));
    run = e2e_train(job, "unsaved", E2E_ARGS(STEPS_SET, NO_SAVE, "--set", relay));
    kill_and_start(&run, "unsaved", 20);
    check_end(&run, "unsaved", 1);
    cr_expect_eq(e2e_number(e2e_event("unsaved", "resumed", -1, -1, 0), "step"), 0);
}

#define N_ADDS                                                                                     \
    "EVAL \"return tonumber(string.match(redis.call('INFO', 'commandstats'), "                     \
    "'cmdstat_funcpipe.add:calls=(%d+)') or 0)\" 0"

/* Each holds a part of all objects and of all sums; the reason names the one that died. */
Test(relay_lost, one_of_two_servers, .init = enter_with_two, .fini = leave_two) {
    char words[64];
    run_undisturbed();
    E2e run = e2e_train(job, "out",
                        E2E_ARGS(STEPS_SET, "--set", relay, "--set", "plan.reduce.form=in_store"));
    kill_and_start_one(&run, "out", 45, &second);
    check_end(&run, "out", 1);
    snprintf(words, sizeof words, ": at 127.0.0.1:%d its watermark '", second.port);
    cr_expect(strstr(reason("out"), words), "%s: %s", words, reason("out"));
    cr_expect_gt(e2e_number(e2e_event("out", "resumed", -1, -1, 0), "step"), 0);
    cr_expect_gt(redis_server_ask(server.port, N_ADDS), 10, "the first one has summed little");
    cr_expect_gt(redis_server_ask(second.port, N_ADDS), 10, "the second one has summed little");
    cr_expect_eq(redis_server_ask(second.port, "DBSIZE"), 0, "something is left");
}

/* The snapshot has the watermark, but an older one. */
Test(relay_lost, a_server_back_from_a_snapshot, .init = enter, .fini = leave) {
    run_undisturbed();
    E2e run = e2e_train(job, "out", E2E_ARGS(STEPS_SET, "--set", relay));
    cr_assert(e2e_await_rows(&run, "out", 8), "%s", e2e_read(run.err));
    cr_assert_eq(redis_server_ask(server.port, "SAVE"), 0);
    kill_and_start(&run, "out", 60);
    check_end(&run, "out", 1);
    cr_expect(strstr(reason("out"), "is back at "), "%s", reason("out"));
}

/* It was away for longer than a worker may be silent, and has lost nothing. */
Test(relay_lost, a_server_back_with_all_it_had, .init = enter_with_file, .fini = leave) {
    run_undisturbed();
    E2e run = e2e_train(job, "out",
                        E2E_ARGS(STEPS_SET, "--set", relay, "--set", "timeouts.silence=1500ms"));
    away_ms = 2500;
    kill_and_start(&run, "out", 40);
    check_end(&run, "out", 0);
    cr_expect_eq(e2e_count("out", "worker_died"), 0);
}

/* Ctrl-C twice while the server is stopped, or gone: nothing is waited for that cannot come. */
Test(relay_lost, cancelled_at_once_while_a_server_is_away, .init = enter, .fini = leave) {
    static const char *const outs[] = {"stopped", "gone"};
    for (int i = 0; i < 2; i++) {
        E2e run = e2e_train(job, outs[i], E2E_ARGS("--set", "steps=1000000", "--set", relay));
        cr_assert(e2e_await_rows(&run, outs[i], 10), "%s", e2e_read(run.err));
        kill(server.pid, i == 0 ? SIGSTOP : SIGKILL);
        e2e_sleep_ms(200);
        kill(run.pid, SIGINT);
        cr_assert(e2e_await_event(&run, outs[i], "signal", 1), "%s", e2e_read(run.err));
        e2e_sleep_ms(300);
        cr_assert(e2e_is_running(&run), "%s", e2e_read(run.err));
        int64_t begin_ns = clock_now_ns();
        kill(run.pid, SIGINT);
        cr_assert_eq(e2e_wait(&run), 130, "%d: %s", run.status, e2e_read(run.err));
        int64_t took_ms = (clock_now_ns() - begin_ns) / CLOCK_NS_PER_MS;
        cr_expect_lt(took_ms, 5000 * e2e_slowness(), "%lld ms", (long long)took_ms);
        cr_expect(strstr(e2e_read(run.err), "; funcpipe gc removes what is left there"), "%s",
                  e2e_read(run.err));
        e2e_check_clean(&run);
        kill(server.pid, SIGCONT);
    }
}

Test(relay_lost, more_often_than_the_job_allows, .init = enter, .fini = leave) {
    E2e run = e2e_train(job, "out",
                        E2E_ARGS(STEPS_SET, NO_SAVE, "--set", relay, "--set", "limits.restarts=0"));
    kill_and_start(&run, "out", 20);
    cr_assert_eq(e2e_wait(&run), 1, "%s", e2e_read(run.err));
    cr_expect(strstr(e2e_read(run.err), "is gone; that is loss 1 since step 0 was saved"), "%s",
              e2e_read(run.err));
    server_is_empty();
}

/* ---- objects that go ---- */

/* Remove all objects of those generations again and again, until so many losses have been noticed,
 * or the run has ended. */
static void remove_objects(E2e *run, const char *out, const char *generations, int n_losses) {
    char lines[200];
    snprintf(lines, sizeof lines,
             "EVAL \"for _, k in ipairs(redis.call('KEYS', 'funcpipe:o:mlp/%s/t*')) do "
             "redis.call('DEL', k) end return 1\" 0",
             generations);
    while (e2e_is_running(run) && e2e_count(out, "relay_lost") < n_losses) {
        redis_server_ask(server.port, lines);
        e2e_sleep_ms(1);
    }
}

/* Nothing but who waits for them can tell. */
Test(relay_lost, objects_in_flight, .init = enter, .fini = leave) {
    run_undisturbed();
    E2e run = e2e_train(job, "out", E2E_ARGS(STEPS_SET, "--set", relay, "--set", patience));
    cr_assert(e2e_await_rows(&run, "out", 25), "%s", e2e_read(run.err));
    remove_objects(&run, "out", "g1", 1);
    check_end(&run, "out", 1);
    cr_expect(strstr(reason("out"), "stage ") &&
                  strstr(reason("out"), ", while all others run: ") &&
                  strstr(reason("out"), "'mlp/g1/t"),
              "%s", reason("out"));
}

/* The run ends, and names what is missing. */
Test(relay_lost, objects_that_never_stay, .init = enter, .fini = leave) {
    E2e run = e2e_train(job, "out", E2E_ARGS(STEPS_SET, "--set", relay, "--set", patience));
    cr_assert(e2e_await_event(&run, "out", "worker_started", 4), "%s", e2e_read(run.err));
    remove_objects(&run, "out", "g*", 2);
    cr_assert_eq(e2e_wait(&run), 1, "%s", e2e_read(run.err));
    const char *text = e2e_read(run.err);
    cr_expect(strstr(text, "funcpipe: stage ") && strstr(text, " at step 0, while") &&
                  strstr(text, "/t0/") && strstr(text, "; again, after all workers went back"),
              "%s", text);
    cr_expect_eq(e2e_count("out", "resumed"), 1);
    server_is_empty();
}

/* Claims live no longer than other objects: the next run of that name takes another generation all
 * the same, and the first one goes on. */
Test(relay_lost, a_claim_alone, .init = enter, .fini = leave) {
    run_undisturbed();
    E2e run = e2e_train(job, "out", E2E_ARGS("--set", "steps=1000000", "--set", relay));
    cr_assert(e2e_await_rows(&run, "out", 10), "%s", e2e_read(run.err));
    cr_assert_eq(redis_server_ask(server.port, "DEL funcpipe:o:mlp/claim.1"), 1);
    e2e_train_fully(job, "other", E2E_ARGS(STEPS_SET, "--set", relay));
    e2e_check_equal("undisturbed", "other", STEPS);
    kill(run.pid, SIGINT);
    cr_assert_eq(e2e_wait(&run), 130, "%s", e2e_read(run.err));
    cr_expect_eq(e2e_count("out", "relay_lost"), 0);
    server_is_empty();
}

static int remove_one(const char *path, const struct stat *about, int flag, struct FTW *ftw) {
    (void)about, (void)flag, (void)ftw;
    return remove(path) < 0 ? 0 : 0; /* some go, some come meanwhile */
}

Test(relay_lost, files, .init = enter, .fini = leave) {
    run_undisturbed();
    E2e run = e2e_train(job, "out", E2E_ARGS(STEPS_SET, "--set", "relay=file://relay"));
    cr_assert(e2e_await_rows(&run, "out", 37), "%s", e2e_read(run.err));
    nftw("relay", remove_one, 16, FTW_DEPTH | FTW_PHYS);
    check_end(&run, "out", 1);
    cr_expect_eq(access("relay", F_OK), -1, "its folder is left");
}

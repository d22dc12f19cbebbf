/* Ctrl-C, SIGTERM, and the end of the coordinator itself. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/checkpoint.h"
#include "core/clock.h"
#include "core/err.h"
#include "tests/support/e2e.h"

enum { STEPS = 400 };

/* Evaluated only at the end: a stop just where an evaluation is due leaves that one out. */
#define LONG "--set", "steps=400", "--set", "evaluate=null"
static const char *const more[] = {LONG, NULL};

static int64_t now_ms(void) {
    return clock_now_ns() / CLOCK_NS_PER_MS;
}

static E2e start(const char *out) {
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), out, more);
    cr_assert(e2e_await_rows(&run, out, 25), "%s", e2e_read(run.err));
    return run;
}

static void no_worker_was_killed(const char *out) {
    const cJSON *line = NULL;
    cJSON_ArrayForEach(line, e2e_lines(e2e_path("%s/events.jsonl", out))) {
        cr_assert_str_neq(e2e_text(line, "event"), "worker_died");
        cr_assert(strcmp(e2e_text(line, "event"), "worker_ended") != 0 ||
                      strcmp(e2e_text(line, "code"), "OK") == 0,
                  "a worker ended with %s", e2e_text(line, "code"));
    }
}

/* The newest checkpoint stands where the rows end; returns its step. */
static int64_t check_saved(const char *out) {
    char folder[ORDER_PATH_BYTES];
    int64_t step = 0;
    cr_assert_eq(checkpoint_latest(e2e_path("%s/checkpoints", out), folder, &step), 0, "%s",
                 err_text());
    cr_assert_eq(checkpoint_verify(folder), 0, "%s", err_text());
    cr_assert(step > 0 && step < STEPS);
    e2e_check_rows(out, step);
    return step;
}

/* Going on from what was cancelled gives what an unbroken run gives. */
static void check_resumed(const char *out) {
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "unbroken", more);
    e2e_train_fully(job, out, E2E_ARGS(LONG, "--resume", "latest"));
    e2e_check_equal("unbroken", out, STEPS);
    e2e_check_same_rows("unbroken", out, 0, STEPS);
    e2e_check_rows(out, STEPS);
}

Test(cancel, once, .init = e2e_enter, .fini = e2e_leave) {
    E2e run = start("cancelled");
    int64_t begin = now_ms();
    kill(run.pid, SIGINT);
    cr_assert_eq(e2e_wait(&run), 130, "%d: %s", run.status, e2e_read(run.err));
    cr_assert_lt(now_ms() - begin, 5000 * e2e_slowness());
    e2e_check_clean(&run);
    no_worker_was_killed("cancelled");
    cr_assert(strstr(e2e_read(run.err), "stopping: the workers save and end"), "%s",
              e2e_read(run.err));
    cr_assert(strstr(e2e_read(run.out), "cancelled after"), "%s", e2e_read(run.out));
    cr_assert_null(strstr(e2e_read(run.err), "funcpipe: "), "an error was shown: %s",
                   e2e_read(run.err));
    check_saved("cancelled");
    check_resumed("cancelled");
}

Test(cancel, again_and_again, .init = e2e_enter, .fini = e2e_leave) {
    int64_t before = 0;
    E2e run = start("cancelled");
    kill(run.pid, SIGINT);
    cr_assert_eq(e2e_wait(&run), 130);
    for (int i = 0; i < 3; i++) {
        int64_t step = check_saved("cancelled");
        cr_assert_gt(step, before);
        before = step;
        run = e2e_train(e2e_job("mlp", e2e_mlp), "cancelled", E2E_ARGS(LONG, "--resume", "latest"));
        cr_assert(e2e_await_rows(&run, "cancelled", step + 10));
        kill(run.pid, i == 1 ? SIGTERM : SIGINT);
        cr_assert_eq(e2e_wait(&run), i == 1 ? 6 : 130, "%d: %s", run.status, e2e_read(run.err));
        e2e_check_clean(&run);
    }
    check_saved("cancelled");
    check_resumed("cancelled");
}

/* A worker dies while all are asked to stop: its successor stops at the same step. */
Test(cancel, with_a_death, .init = e2e_enter, .fini = e2e_leave) {
    static const int workers[][2] = {{0, 0}, {1, 0}, {1, 1}, {2, 0}};
    const char *job = e2e_job("mlp", e2e_mlp);
    int64_t before = 0;
    for (int i = 0; i < 8; i++) {
        E2e run =
            e2e_train(job, "cancelled",
                      E2E_ARGS(LONG, i > 0 ? "--resume" : "--overwrite", i > 0 ? "latest" : NULL));
        cr_assert(e2e_await_rows(&run, "cancelled", before + 12), "%s", e2e_read(run.err));
        kill(run.pid, SIGINT);
        clock_sleep_until(clock_now_ns() + i * 1500 * CLOCK_NS_PER_US);
        pid_t pid = e2e_worker("cancelled", workers[i % 4][0], workers[i % 4][1]);
        if (e2e_is_running(&run))
            kill(pid, SIGKILL);
        cr_assert_eq(e2e_wait(&run), 130, "%d: %s", run.status, e2e_read(run.err));
        e2e_check_clean(&run);
        before = check_saved("cancelled");
    }
    check_resumed("cancelled");
}

Test(cancel, terminated, .init = e2e_enter, .fini = e2e_leave) {
    E2e run = start("cancelled");
    kill(run.pid, SIGTERM);
    cr_assert_eq(e2e_wait(&run), 6, "%d: %s", run.status, e2e_read(run.err));
    e2e_check_clean(&run);
    no_worker_was_killed("cancelled");
    check_saved("cancelled");
    cr_assert_eq(e2e_run(&run, E2E_ARGS("train", "--help")), 0);
    cr_assert(strstr(e2e_read(run.out), "6 cancelled (SIGTERM),\n130 interrupted (Ctrl-C)"));
}

/* Twice: at once. A worker is stopped so that a clean stop would take long. */
static void twice(int first, int second, int exit_code) {
    E2e run = start("cancelled");
    kill(e2e_worker("cancelled", 1, 0), SIGSTOP);
    kill(run.pid, first);
    cr_assert(e2e_await_event(&run, "cancelled", "signal", 1));
    e2e_sleep_ms(200);
    cr_assert(e2e_is_running(&run));
    int64_t begin = now_ms();
    kill(run.pid, second);
    cr_assert_eq(e2e_wait(&run), exit_code, "%d: %s", run.status, e2e_read(run.err));
    cr_assert_lt(now_ms() - begin, 2000 * e2e_slowness());
    e2e_check_clean(&run);
}

Test(cancel, twice, .init = e2e_enter, .fini = e2e_leave) {
    twice(SIGINT, SIGINT, 130);
}

Test(cancel, twice_terminated, .init = e2e_enter, .fini = e2e_leave) {
    twice(SIGTERM, SIGTERM, 6);
}

/* In the middle of everything: while it measures, plans, starts workers. */
Test(cancel, early, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("cnn", e2e_cnn);
    for (int i = 0; i < 12; i++) {
        const char *out = e2e_path("cancelled%d", i);
        E2e run = e2e_train(job, out, E2E_ARGS("--set", "plan.cut=auto", "--set", "steps=1000000"));
        cr_assert(e2e_await_path(&run, e2e_path("cancelled%d/.funcpipe-lock", i)), "%s",
                  e2e_read(run.err));
        e2e_sleep_ms((int64_t)i * 15 * e2e_slowness());
        kill(run.pid, SIGINT);
        int status = e2e_wait(&run);
        cr_assert_eq(status, 130, "after %d ms: %d: %s", i * 15, status, e2e_read(run.err));
        e2e_check_clean(&run);
    }
}

/* ---- before the workers run ---- */

/* Start a command that opens a file of that name, and stop it there for a while. */
static E2e start_reading(const char *name, const char *const *args) {
    char rule[160];
    snprintf(rule, sizeof rule, "funcpipe open %s 1 0 10000", name);
    e2e_break_files(rule, true);
    E2e run = e2e_start(args);
    for (int64_t begin = now_ms(); !e2e_file_broke(0); e2e_sleep_ms(2))
        cr_assert(e2e_is_running(&run) && now_ms() - begin < 5000, "%s", e2e_read(run.err));
    return run;
}

static void check_interrupted(E2e *run, int number) {
    int64_t begin = now_ms();
    kill(run->pid, number);
    int status = e2e_wait(run);
    cr_assert_eq(status, number == SIGINT ? 130 : 6, "%d: %s", status, e2e_read(run->err));
    cr_assert_lt(now_ms() - begin, 2000);
    cr_assert(strstr(e2e_read(run->err), "funcpipe: cancelled before it ran\n"), "%s",
              e2e_read(run->err));
    e2e_check_clean(run);
}

Test(cancel, while_it_reads, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    const char *const *commands[] = {E2E_ARGS("train", job, "--out", "out", "--json"),
                                     E2E_ARGS("plan", job), E2E_ARGS("eval", "/tmp", "--job", job),
                                     E2E_ARGS("model", "inspect", job)};
    for (int i = 0; i < 8; i++) {
        E2e run = start_reading("mlp.json", commands[i % 4]);
        check_interrupted(&run, i < 4 ? SIGINT : SIGTERM);
        cr_assert_eq(access("out", F_OK), -1, "outputs were made");
        if (i == 0)
            cr_assert_str_eq(e2e_text(e2e_lines(run.out)->child, "code"), "ERR_CANCELLED");
    }
    E2e run = start_reading("mlp.json", commands[1]); /* what takes long is told */
    int64_t begin = now_ms();
    while (!strstr(e2e_read(run.err), "reading the job and its data ...\n")) {
        cr_assert_lt(now_ms() - begin, 5000);
        e2e_sleep_ms(50);
    }
    check_interrupted(&run, SIGINT);
}

/* The outputs that it is to go on in are as they were. */
Test(cancel, while_it_checks_a_checkpoint, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "out", E2E_ARGS("--set", "steps=10"));
    E2e run = start_reading("checkpoints/10/manifest.json",
                            E2E_ARGS("train", job, "--out", "out", "--resume", "latest"));
    cr_assert_eq(access("out/.funcpipe-lock", F_OK), 0);
    check_interrupted(&run, SIGTERM);
    cr_assert_eq(access("out/.funcpipe-lock", F_OK), -1);
    e2e_check_rows("out", 10);
}

/* The outputs are being made: what is there is taken away again. */
Test(cancel, while_it_begins, .init = e2e_enter, .fini = e2e_leave) {
    static const int numbers[] = {SIGINT, SIGTERM};
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "out", E2E_ARGS("--set", "steps=10"));
    for (int i = 0; i < 4; i++) {
        char rule[80];
        snprintf(rule, sizeof rule, "funcpipe open metrics.%s 1 0 1000", i < 2 ? "csv" : "jsonl");
        e2e_break_files(rule, true);
        E2e run = i % 2 ? e2e_start(E2E_ARGS("eval", "out")) : e2e_train(job, "new", NULL);
        cr_assert(e2e_await_path(&run, "broke.0"));
        kill(run.pid, numbers[i % 2]);
        cr_assert_eq(e2e_wait(&run), i % 2 ? 6 : 130, "%d: %s", run.status, e2e_read(run.err));
        cr_assert_eq(access("new/.funcpipe-lock", F_OK), -1);
        e2e_check_clean(&run);
        e2e_mend_files();
        if (i == 0)
            cr_assert_eq(system("rm -r new"), 0); /* NOLINT(cert-env33-c) */
    }
}

/* The worker that is asked about itself takes its time. */
Test(cancel, while_it_plans, .init = e2e_enter, .fini = e2e_leave) {
    static const char script[] = "#!/bin/sh\ntouch began\nsleep 1\n"
                                 "exec " FUNCPIPE_BINARY_DIR "/funcpipe-worker \"$@\"\n";
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_write("slow.sh", script);
    cr_assert_eq(chmod("slow.sh", 0700), 0);
    setenv("FUNCPIPE_WORKER", e2e_path("slow.sh"), 1);
    E2e run = e2e_start(E2E_ARGS("plan", job));
    cr_assert(e2e_await_path(&run, "began"));
    kill(run.pid, SIGINT);
    cr_assert_eq(e2e_wait(&run), 130, "%d: %s", run.status, e2e_read(run.err));
    for (int64_t begin = now_ms(); e2e_processes_of(run.pid) > 0; e2e_sleep_ms(10))
        cr_assert_lt(now_ms() - begin, 5000 * e2e_slowness());
}

/* The terminal sends Ctrl-C to the whole foreground group; the workers are not in it. */
Test(cancel, from_a_terminal, .init = e2e_enter, .fini = e2e_leave) {
    const char *args[] = {"train", e2e_job("mlp", e2e_mlp), "--out", "cancelled", LONG, NULL};
    E2e run = e2e_start_on_terminal(args);
    cr_assert(e2e_await_rows(&run, "cancelled", 25));
    cr_assert_eq(write(run.terminal, "\x03", 1), 1);
    cr_assert_eq(e2e_wait(&run), 130);
    e2e_check_clean(&run);
    no_worker_was_killed("cancelled");
    check_saved("cancelled");
}

Test(cancel, the_whole_group, .init = e2e_enter, .fini = e2e_leave) {
    E2e run = start("cancelled");
    kill(-run.pid, SIGINT);
    cr_assert_eq(e2e_wait(&run), 130);
    no_worker_was_killed("cancelled");
    check_saved("cancelled");
}

/* The terminal goes away. */
Test(cancel, hang_up, .init = e2e_enter, .fini = e2e_leave) {
    const char *args[] = {"train", e2e_job("mlp", e2e_mlp), "--out", "cancelled", LONG, NULL};
    E2e run = e2e_start_on_terminal(args);
    cr_assert(e2e_await_rows(&run, "cancelled", 25));
    close(run.terminal);
    cr_assert_eq(e2e_wait(&run), 6, "%d", run.status);
    e2e_check_clean(&run);
    no_worker_was_killed("cancelled");
    check_saved("cancelled");
}

/* ---- the coordinator dies ---- */

static void await_no_workers(pid_t pid) {
    int64_t begin = now_ms();
    while (e2e_processes_of(pid) > 0) {
        cr_assert_lt(now_ms() - begin, 2000 * e2e_slowness(), "%d workers outlived it",
                     e2e_processes_of(pid));
        e2e_sleep_ms(10);
    }
}

Test(cancel, killed_coordinator, .init = e2e_enter, .fini = e2e_leave) {
    E2e run = start("killed");
    cr_assert(e2e_await_event(&run, "killed", "saved", 1));
    cr_assert_eq(e2e_processes_of(run.pid), 4);
    kill(run.pid, SIGKILL);
    cr_assert_eq(e2e_wait(&run), E2E_SIGNALLED + SIGKILL);
    await_no_workers(run.pid);
    cr_assert_eq(e2e_scratch_folders(run.pid), 1, "there is no relay to clean");
    e2e_train_fully(e2e_job("mlp", e2e_mlp), "other", E2E_ARGS("--set", "steps=5"));
    cr_assert_eq(e2e_scratch_folders(run.pid), 0, "the dead one's relay is left");
    check_resumed("killed");
}

/* Killed again and again, at any moment; each time it goes on. */
Test(cancel, killed_coordinator_at_random, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    int n_runs = e2e_long() ? 60 : 6;
    for (int i = 0; i < n_runs; i++) {
        E2e run =
            e2e_train(job, "killed",
                      E2E_ARGS(LONG, i > 0 ? "--resume" : "--overwrite", i > 0 ? "latest" : NULL));
        cr_assert(e2e_await_event(&run, "killed", "saved", i == 0), "%s", e2e_read(run.err));
        e2e_await_rows(&run, "killed", e2e_rows("killed") + 10);
        e2e_sleep_ms(i * 7 % 40);
        kill(run.pid, SIGKILL);
        e2e_wait(&run);
        await_no_workers(run.pid);
        if (e2e_rows("killed") > STEPS - 50)
            break;
    }
    check_resumed("killed");
}

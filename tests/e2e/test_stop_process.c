/* Workers stopped (SIGSTOP) until they count as dead, and going on (SIGCONT) beside their
 * successors: what they still write changes nothing, and they end by themselves. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/e2e.h"

enum { STEPS = 300 };

#define N_OF(array) (int)(sizeof(array) / sizeof(array)[0])
#define WORKER "funcpipe-worker "

static char silence[64], start[64];

/* What all runs here have in common; a stopped worker is given up after `silence`. */
static const char *const *settings(void) {
    static const char *args[] = {"--set", "steps=300", "--set", silence, "--set", start, NULL};
    snprintf(silence, sizeof silence, "timeouts.silence=%dms", 300 * e2e_slowness());
    snprintf(start, sizeof start, "timeouts.start=%dms", 2000 * e2e_slowness());
    return args;
}

static void check_equal(const char *out) {
    e2e_check_equal("undisturbed", out, STEPS);
    e2e_check_same_rows("undisturbed", out, 0, STEPS);
    e2e_check_rows(out, STEPS);
}

/* Only whole checkpoints are left: the three newest. */
static void check_checkpoints(const char *out) {
    int n = 0;
    char path[64];
    snprintf(path, sizeof path, "%s/checkpoints", out);
    DIR *dir = opendir(path);
    cr_assert(dir != NULL);
    for (const struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        if (entry->d_name[0] == '.')
            continue;
        n++;
        cr_assert(strcmp(entry->d_name, "280") == 0 || strcmp(entry->d_name, "290") == 0 ||
                      strcmp(entry->d_name, "300") == 0,
                  "%s/%s is left", path, entry->d_name);
        cr_assert_eq(e2e_files_in(e2e_path("%s/%s", path, entry->d_name)), 8);
    }
    closedir(dir);
    cr_assert_eq(n, 3);
}

static bool await_end(E2e *run, const char *out, int stage, int replica, const char *code) {
    for (int i = 1; e2e_await_event(run, out, "worker_ended", i); i++) {
        const cJSON *ended = e2e_event(out, "worker_ended", stage, replica, 1);
        if (ended != NULL)
            return strcmp(e2e_text(ended, "code"), code) == 0;
    }
    return false;
}

static void finish(E2e *run, const char *out) {
    int status = e2e_wait(run);
    cr_assert_eq(status, 0, "%d: %s", status, e2e_read(run->err));
    e2e_check_clean(run);
    check_equal(out);
    check_checkpoints(out);
}

/* Stop these workers behind row 20, let them go on once all have successors and steps go on. */
static void stop_and_go_on(const int (*workers)[2], int n_workers) {
    pid_t pids[4];
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "undisturbed", settings());
    E2e run = e2e_train(job, "stopped", settings());
    cr_assert(e2e_await_rows(&run, "stopped", 20));
    for (int i = 0; i < n_workers; i++) {
        pids[i] = e2e_worker("stopped", workers[i][0], workers[i][1]);
        cr_assert(pids[i] > 0 && kill(pids[i], SIGSTOP) == 0);
    }
    cr_assert(e2e_await_event(&run, "stopped", "worker_started", 4 + n_workers), "%s",
              e2e_read(run.err));
    cr_assert(e2e_await_rows(&run, "stopped", e2e_rows("stopped") + 5));
    for (int i = 0; i < n_workers; i++) {
        cr_assert_eq(e2e_process_state(pids[i]), 'T', "a stopped worker was not left alone");
        kill(pids[i], SIGCONT);
    }
    for (int i = 0; i < n_workers; i++)
        cr_assert(await_end(&run, "stopped", workers[i][0], workers[i][1], "ERR_SUPERSEDED"),
                  "worker %d.%d did not end because of its successor", workers[i][0],
                  workers[i][1]);
    finish(&run, "stopped");
}

Test(stop_process, until_a_successor_runs, .init = e2e_enter, .fini = e2e_leave) {
    static const int workers[][2] = {{1, 0}};
    stop_and_go_on(workers, 1);
}

Test(stop_process, all_replicas_of_a_stage, .init = e2e_enter, .fini = e2e_leave) {
    static const int workers[][2] = {{1, 0}, {1, 1}};
    stop_and_go_on(workers, 2);
}

Test(stop_process, the_leader_and_the_loss_stage, .init = e2e_enter, .fini = e2e_leave) {
    static const int workers[][2] = {{0, 0}, {2, 0}};
    stop_and_go_on(workers, 2);
}

Test(stop_process, all_workers, .init = e2e_enter, .fini = e2e_leave) {
    static const int workers[][2] = {{0, 0}, {1, 0}, {1, 1}, {2, 0}};
    stop_and_go_on(workers, 4);
}

/* Those that never go on are ended with the job. */
Test(stop_process, until_the_end, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "undisturbed", settings());
    E2e run = e2e_train(job, "stopped", settings());
    cr_assert(e2e_await_rows(&run, "stopped", 20));
    pid_t first = e2e_worker("stopped", 1, 1);
    kill(first, SIGSTOP);
    cr_assert(e2e_await_event(&run, "stopped", "worker_started", 5));
    pid_t second = e2e_worker("stopped", 1, 1);
    cr_assert_neq(first, second);
    kill(second, SIGSTOP);
    finish(&run, "stopped");
    cr_assert_eq(e2e_process_state(first), 0);
    cr_assert_eq(e2e_process_state(second), 0);
    cr_assert_geq(e2e_count("stopped", "worker_died"), 2);
}

/* A short stop is no death. */
Test(stop_process, shorter_than_the_limit, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "undisturbed", settings());
    E2e run =
        e2e_train(job, "stopped", E2E_ARGS("--set", "steps=300", "--set", "timeouts.silence=30s"));
    cr_assert(e2e_await_rows(&run, "stopped", 20));
    for (int replica = 0; replica < 2; replica++)
        kill(e2e_worker("stopped", 1, replica), SIGSTOP);
    e2e_sleep_ms(500);
    for (int replica = 0; replica < 2; replica++)
        kill(e2e_worker("stopped", 1, replica), SIGCONT);
    finish(&run, "stopped");
    cr_assert_eq(e2e_count("stopped", "worker_started"), 4);
}

/* The coordinator is stopped for longer than that (Ctrl-Z): the workers were not silent. */
Test(stop_process, the_coordinator, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "undisturbed", settings());
    E2e run = e2e_train(job, "stopped", settings());
    cr_assert(e2e_await_rows(&run, "stopped", 20));
    kill(run.pid, SIGSTOP);
    e2e_sleep_ms(3000);
    kill(run.pid, SIGCONT);
    finish(&run, "stopped");
    cr_assert_eq(e2e_count("stopped", "worker_died"), 0, "%s", e2e_read(run.err));
}

/* ---- at exact moments ---- */

typedef struct Moment {
    const char *name, *rule; /* of tests/e2e/fault_io.c */
    int stage, replica;
} Moment;

static void stop_at(const char *job, const Moment *moment) {
    char out[] = "stopped";
    e2e_break_files(moment->rule, true);
    const char *more[16];
    int n = 0;
    for (const char *const *set = settings(); *set; set++)
        more[n++] = *set;
    more[n++] = "--overwrite";
    more[n] = NULL;
    E2e run = e2e_train(job, out, more);
    cr_assert(e2e_await_path(&run, "broke.0"), "%s: nobody was stopped", moment->name);
    pid_t pid = e2e_worker(out, moment->stage, moment->replica);
    cr_assert(pid > 0);
    cr_assert(e2e_await_event(&run, out, "worker_started", 5), "%s: %s", moment->name,
              e2e_read(run.err));
    cr_assert(e2e_await_rows(&run, out, 80));
    cr_assert_eq(e2e_process_state(pid), 'T', "%s: another worker was stopped", moment->name);
    kill(pid, SIGCONT);
    cr_assert(await_end(&run, out, moment->stage, moment->replica, "ERR_SUPERSEDED"), "%s",
              moment->name);
    finish(&run, out);
}

/* Late writes: the successor has long written the same, and it may be gone again. */
Test(stop_process, late_writes, .init = e2e_enter, .fini = e2e_leave) {
    static const Moment moments[] = {
        {"an activation", WORKER "link /t47/+a.1-2.2 1 1 stop", 1, 0},
        {"a gradient", WORKER "link /t47/+g.1-0.1 1 1 stop", 1, 1},
        {"a reduction", WORKER "link /t47/+r.1.0.1 1 1 stop", 1, 1},
        {"norms", WORKER "link /t47/+n.0.0 1 1 stop", 0, 0},
        {"a heartbeat", WORKER "rename /@h.2.0 3 1 stop", 2, 0},
        {"the first heartbeat", WORKER "rename /@h.1.0 1 1 stop", 1, 0},
        {"a save's file", WORKER "rename /50/model-00002-of- 1 1 stop", 1, 0},
        {"a save's last file", WORKER "rename /50/update-00003-of- 1 1 stop", 2, 0},
        {"the report of a save", WORKER "link /t50/+s.0.0 1 1 stop", 0, 0},
        {"evaluation sums", WORKER "link /e40/+v.2.0 1 1 stop", 2, 0}};
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "undisturbed", settings());
    for (int i = 0; i < N_OF(moments); i++)
        stop_at(job, &moments[i]);
}

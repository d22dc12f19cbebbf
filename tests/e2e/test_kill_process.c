/* Workers killed with SIGKILL, anywhere and again: the weights at the end are those of the
 * undisturbed run, bit by bit, and nothing is left behind. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/rng.h"
#include "tests/support/e2e.h"

enum { KILLS_A_RUN = 5 };

/* A seeded number below n: the same on every run of the test. */
static int64_t draw(uint64_t seed, int *n_drawn, int64_t n) {
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t counter[4] = {(uint32_t)(*n_drawn)++};
    return rng_philox(counter, key).v[0] % (uint64_t)n;
}

typedef struct KillJob {
    const char *job;
    int64_t n_steps;
    int workers[4][2]; /* stage, replica */
    int n_workers;
} KillJob;

/* Kill a worker at a random moment: somewhere in the steps to come, or soon after the last kill,
 * when its successor (or itself) may still be loading. True when it was killed. */
static bool kill_one(E2e *run, const char *out, const KillJob *about, uint64_t seed, int *n_drawn,
                     int64_t upto) {
    const int *who = about->workers[draw(seed, n_drawn, about->n_workers)];
    bool soon = draw(seed, n_drawn, 3) == 0;
    int64_t row = draw(seed, n_drawn, upto);
    int64_t us = draw(seed, n_drawn, soon ? 60000 : 8000);
    if (!soon && !e2e_await_rows(run, out, row))
        return false;
    clock_sleep_until(clock_now_ns() + us * CLOCK_NS_PER_US);
    for (int tries = 0; tries < 400 && e2e_is_running(run); tries++) {
        pid_t pid = e2e_worker(out, who[0], who[1]);
        if (pid > 0 && kill(pid, SIGKILL) == 0)
            return true;
        clock_sleep_until(clock_deadline_ms(5)); /* dead already: its successor will do */
    }
    return false;
}

static int run_with_kills(const KillJob *about, const char *out, uint64_t seed,
                          const char *const *more) {
    int n_drawn = 0;
    int n_killed = 0;
    E2e run = e2e_train(about->job, out, more);
    cr_assert(e2e_await_event(&run, out, "worker_started", about->n_workers), "%s",
              e2e_read(run.err));
    for (int i = 1; i <= KILLS_A_RUN; i++)
        n_killed +=
            kill_one(&run, out, about, seed, &n_drawn, about->n_steps * 3 * i / (4 * KILLS_A_RUN));
    int status = e2e_wait(&run);
    cr_assert_eq(status, 0, "seed %llu: %d: %s", (unsigned long long)seed, status,
                 e2e_read(run.err));
    e2e_check_clean(&run);
    return n_killed;
}

/* Runs with kills against the undisturbed one. */
static void check_runs(const KillJob *about, uint64_t first_seed, int n_runs,
                       const char *const *more) {
    char out[32];
    int n_killed = 0;
    n_runs *= e2e_long() ? 10 : 1;
    e2e_train_fully(about->job, "undisturbed", more);
    for (int i = 0; i < n_runs; i++) {
        snprintf(out, sizeof out, "killed%d", i);
        n_killed += run_with_kills(about, out, first_seed + (uint64_t)i, more);
        e2e_check_equal("undisturbed", out, about->n_steps);
        e2e_check_same_rows("undisturbed", out, 0, about->n_steps);
        e2e_check_rows(out, about->n_steps);
    }
    /* Of the 60 tried in all, 50 at least are done. */
    cr_assert_geq(n_killed * 6, n_runs * KILLS_A_RUN * 5, "only %d kills in %d runs", n_killed,
                  n_runs);
    fprintf(stderr, "%d kills in %d runs\n", n_killed, n_runs);
}

#define MORE_RESTARTS "--set", "limits.restarts=20"

Test(kill_process, random_moments_mlp, .init = e2e_enter, .fini = e2e_leave) {
    KillJob about = {e2e_job("mlp", e2e_mlp), 200, {{0, 0}, {1, 0}, {1, 1}, {2, 0}}, 4};
    check_runs(&about, 1000, 3, E2E_ARGS(MORE_RESTARTS));
}

Test(kill_process, random_moments_cnn, .init = e2e_enter, .fini = e2e_leave) {
    KillJob about = {e2e_job("cnn", e2e_cnn), 120, {{0, 0}, {1, 0}, {1, 1}, {2, 0}}, 4};
    check_runs(&about, 2000, 3, E2E_ARGS(MORE_RESTARTS));
}

Test(kill_process, random_moments_gpt, .init = e2e_enter, .fini = e2e_leave) {
    KillJob about = {e2e_job("gpt", e2e_gpt), 120, {{0, 0}, {1, 0}, {2, 0}}, 3};
    check_runs(&about, 3000, 2, E2E_ARGS(MORE_RESTARTS));
}

/* ---- at exact moments ---- */

typedef struct Phase {
    const char *name, *rules; /* of tests/e2e/fault_io.c, each done once */
    int n_deaths;
} Phase;

/* Run the job once for each phase, in which workers are killed as its rules say. */
static void check_phases(const Phase *phases, int n_phases, int64_t n_steps) {
    const char *const more[] = {"--set", "steps=70", "--set", "evaluate.every_steps=30", NULL};
    char out[32];
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "undisturbed", more);
    for (int i = 0; i < n_phases; i++) {
        snprintf(out, sizeof out, "phase%d", i);
        e2e_break_files(phases[i].rules, true);
        e2e_train_fully(job, out, more);
        cr_assert(e2e_file_broke(phases[i].n_deaths - 1), "%s: nobody was killed", phases[i].name);
        cr_assert_eq(e2e_count(out, "worker_died"), phases[i].n_deaths, "%s: %d deaths",
                     phases[i].name, e2e_count(out, "worker_died"));
        e2e_mend_files();
        e2e_check_equal("undisturbed", out, n_steps);
        e2e_check_same_rows("undisturbed", out, 0, n_steps);
    }
}

#define N_OF(array) (int)(sizeof(array) / sizeof(array)[0])
#define WORKER "funcpipe-worker "

/* Step 57 waits, so that there is a checkpoint from which a successor begins. */
#define LATE_STEP_57 ";" WORKER "link /t57/+a.0-1.0 1 1 2000"

Test(kill_process, loading, .init = e2e_enter, .fini = e2e_leave) {
    static const Phase phases[] = {{"the first sign of life", WORKER "rename /@h.1.0 1 1 kill", 1},
                                   {"behind it", WORKER "rename /@h.0.0 1 1 killed", 1},
                                   {"a successor that loads the checkpoint",
                                    WORKER "link /t57/+a.1-2.2 1 1 kill;" WORKER
                                           "open /model-00002-of-00003 1 1 kill" LATE_STEP_57,
                                    2},
                                   {"a successor's first sign of life",
                                    WORKER "link /t57/+a.0-1.3 1 1 kill;" WORKER
                                           "open /update-00001-of-00003 1 1 killed" LATE_STEP_57,
                                    2}};
    check_phases(phases, N_OF(phases), 70);
}

Test(kill_process, phases_of_a_step, .init = e2e_enter, .fini = e2e_leave) {
    static const Phase phases[] = {
        {"forward, before its publication", WORKER "link /t57/+a.1-2.2 1 1 kill", 1},
        {"behind it", WORKER "link /t57/+a.1-2.2 1 1 killed", 1},
        {"the first instruction of all", WORKER "link /t0/+a.0-1.0 1 1 kill", 1},
        {"a fetch", WORKER "open /t57/+a.0-1.1 1 1 kill", 1},
        {"the loss stage", WORKER "open /t57/+a.1-2.3 1 1 killed", 1},
        {"backward, before its publication", WORKER "link /t57/+g.1-0.3 1 1 kill", 1},
        {"behind it", WORKER "link /t57/+g.2-1.0 1 1 killed", 1},
        {"reduce, before its publication", WORKER "link /t57/+r.1.0.0 1 1 kill", 1},
        {"behind it", WORKER "link /t57/+r.1.0.1 1 1 killed", 1},
        {"reduce, the other's part", WORKER "open /t57/+r.1.0.0 1 1 killed", 1},
        {"norms, before", WORKER "link /t57/+n.0.0 1 1 kill", 1},
        {"between norms and update", WORKER "link /t57/+n.1.0 1 1 killed", 1},
        {"update", WORKER "open /t57/+n.2.0 1 1 killed", 1},
        {"three at one step",
         WORKER "link /t57/+a.1-2.0 1 1 kill;" WORKER "link /t57/+r.1.0.1 1 1 killed;" WORKER
                "link /t57/+n.0.0 1 1 killed",
         3}};
    check_phases(phases, N_OF(phases), 70);
}

Test(kill_process, phases_of_a_save, .init = e2e_enter, .fini = e2e_leave) {
    static const Phase phases[] = {
        {"writing", WORKER "write /checkpoints/60/.tmp- 1 1 killed", 1},
        {"before the first file has its name", WORKER "rename /60/model-00002-of- 1 1 kill", 1},
        {"between the files", WORKER "rename /60/model-00001-of- 1 1 killed", 1},
        {"behind the last file", WORKER "rename /60/update-00003-of- 1 1 killed", 1},
        {"before it says so", WORKER "link /t60/+s.1.1 1 1 kill", 1},
        {"behind it", WORKER "link /t60/+s.0.0 1 1 killed", 1},
        {"the last save, before it says so", WORKER "link /t70/+s.2.0 1 1 kill", 1},
        {"behind it", WORKER "link /t70/+s.1.0 1 1 killed", 1}};
    check_phases(phases, N_OF(phases), 70);
}

Test(kill_process, phases_of_an_evaluation, .init = e2e_enter, .fini = e2e_leave) {
    static const Phase phases[] = {{"a forward", WORKER "link /e60.1/+a.1-2.0 1 1 kill", 1},
                                   {"a fetch", WORKER "open /e60.0/+a.0-1.1 1 1 killed", 1},
                                   {"its sums, before", WORKER "link /e60/+v.2.0 1 1 kill", 1},
                                   {"its sums, behind", WORKER "link /e60/+v.2.0 1 1 killed", 1},
                                   {"the last one", WORKER "link /e70.2/+a.1-2.1 1 1 kill", 1}};
    check_phases(phases, N_OF(phases), 70);
}

/* ---- at random ---- */

/* Saves as often as they can be, and only the newest kept: what a successor begins with is about
 * to be removed. */
Test(kill_process, only_the_newest_save_is_kept, .init = e2e_enter, .fini = e2e_leave) {
    KillJob about = {e2e_job("mlp", e2e_mlp), 200, {{0, 0}, {1, 0}, {1, 1}, {2, 0}}, 4};
    check_runs(&about, 4000, 2,
               E2E_ARGS(MORE_RESTARTS, "--set", "save.every_steps=1", "--set", "save.keep_last=1"));
}

/* Saves by time: when they are due is the leader's word, which outlives it. */
Test(kill_process, saves_by_time, .init = e2e_enter, .fini = e2e_leave) {
    KillJob about = {e2e_job("mlp", e2e_mlp), 200, {{0, 0}, {1, 0}, {0, 0}, {2, 0}}, 4};
    check_runs(&about, 5000, 2, E2E_ARGS(MORE_RESTARTS, "--set", "save={\"every\":\"50ms\"}"));
}

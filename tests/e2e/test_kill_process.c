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
    pid_t pid = e2e_worker(out, who[0], who[1]);
    return e2e_is_running(run) && pid > 0 && kill(pid, SIGKILL) == 0;
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
    cr_assert_geq(n_killed, n_runs * 3, "only %d kills in %d runs", n_killed, n_runs);
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

/* Saves as often as they can be, and only the newest kept: what a successor begins with is about
 * to be removed. */
Test(kill_process, only_the_newest_save_is_kept, .init = e2e_enter, .fini = e2e_leave) {
    KillJob about = {e2e_job("mlp", e2e_mlp), 200, {{0, 0}, {1, 0}, {1, 1}, {2, 0}}, 4};
    check_runs(&about, 4000, 2,
               E2E_ARGS(MORE_RESTARTS, "--set", "save.every_steps=1", "--set", "save.keep_last=1"));
}

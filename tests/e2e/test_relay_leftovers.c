/* A relay that is not empty: what earlier runs, or others, left there is never read, and a run
 * leaves nothing of its own. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "storage/relay.h"
#include "tests/support/damage.h"
#include "tests/support/e2e.h"
#include "tests/support/relay_jobs.h"

enum { STEPS = 200 };

#define SHORT "--set", "steps=200"
#define RELAY SHORT, "--set", "relay=file://relay"

/* Train in the common relay until `row`, and die there with all that lies in it. */
static void die_at(const char *job, const char *out, int64_t row) {
    E2e run = e2e_train(job, out, E2E_ARGS(RELAY));
    cr_assert(e2e_await_rows(&run, out, row));
    kill(run.pid, SIGKILL);
    e2e_wait(&run);
    while (e2e_processes_of(run.pid) > 0)
        e2e_sleep_ms(5);
    cr_assert_gt(e2e_files_in("relay"), 10, "nothing was left");
}

Test(relay_leftovers, another_rate, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "empty", E2E_ARGS(SHORT, "--set", "update.lr=0.01"));
    die_at(job, "first", 40);
    die_at(job, "second", 15);
    int left = e2e_files_in("relay");
    e2e_train_fully(job, "third", E2E_ARGS(RELAY, "--set", "update.lr=0.01"));
    e2e_check_equal("empty", "third", STEPS);
    e2e_check_same_rows("empty", "third", 0, STEPS);
    cr_assert_leq(e2e_files_in("relay"), left, "more is left than before");
    cr_assert_eq(access("relay/mlp/g3", F_OK), -1, "its own objects are left");
}

/* Another model, of the same name, with the same keys and other shapes. */
Test(relay_leftovers, another_model, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    die_at(job, "first", 40);
    e2e_train_fully(job, "second", E2E_ARGS(RELAY, "--set", "model.options.hidden=[24,40]"));
    e2e_train_fully(job, "empty", E2E_ARGS(SHORT, "--set", "model.options.hidden=[24,40]"));
    e2e_check_equal("empty", "second", STEPS);
}

/* What died goes on in the same relay. */
Test(relay_leftovers, resumed, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "empty", E2E_ARGS(SHORT));
    die_at(job, "first", 40);
    e2e_train_fully(job, "first", E2E_ARGS(RELAY, "--resume", "latest"));
    e2e_check_equal("empty", "first", STEPS);
    e2e_check_rows("first", STEPS);
}

static void put(Relay *relay, const char *key, const char *text) {
    Slice part = {text, strlen(text)};
    cr_assert_geq(relay_put(relay, key, &part, 1, clock_deadline_ms(10000)), 0);
}

/* Generations of others: objects, fences, notes and claims, nonsense all of it. */
Test(relay_leftovers, other_generations, .init = e2e_enter, .fini = e2e_leave) {
    static const int generations[] = {1, 2, 4, 40};
    const char *job = e2e_job("mlp", e2e_mlp);
    char url[300];
    char key[100];
    Relay *relay = NULL;
    snprintf(url, sizeof url, "file://%s", e2e_path("relay"));
    cr_assert_eq(relay_open(url, &relay), 0);
    for (int i = 0; i < 4; i++) {
        static const char *const names[] = {"t0/a.0-1.0", "t5/g.1-0.2", "t9/r.1.0", "t9/n.0.0",
                                            "t10/s.0.0",  "e40/v.2.0",  "c/f.1.0.2"};
        for (int k = 0; k < 7; k++) {
            snprintf(key, sizeof key, "mlp/g%d/%s", generations[i], names[k]);
            put(relay, key, "nonsense");
        }
        snprintf(key, sizeof key, "mlp/claim.%d", generations[i]);
        put(relay, key, "1");
        snprintf(key, sizeof key, "mlp/g%d/n/control", generations[i]);
        cr_assert_geq(relay_note_put(relay, key, "{\"stop\":true}", 13, 60000), 0);
    }
    put(relay, "mlp2/g3/t0/a.0-1.0", "nonsense");
    put(relay, "other/claim.3", "1");
    int before = e2e_files_in("relay");
    e2e_train_fully(job, "empty", E2E_ARGS(SHORT));
    e2e_train_fully(job, "seeded", E2E_ARGS(RELAY));
    e2e_check_equal("empty", "seeded", STEPS);
    cr_assert_eq(e2e_files_in("relay"), before, "%d files instead of %d", e2e_files_in("relay"),
                 before);
    cr_assert_eq(access("relay/mlp/g3", F_OK), -1);
    relay_close(relay);
}

/* A store may let a claim expire before the objects that lie under it. */
Test(relay_leftovers, generations_without_a_claim, .init = e2e_enter, .fini = e2e_leave) {
    static const char *const names[] = {"mlp/g1/t0/a.0-1.0", "mlp/g2/t5/g.1-0.2"};
    const char *job = e2e_job("mlp", e2e_mlp);
    char url[300];
    Relay *relay = NULL;
    snprintf(url, sizeof url, "file://%s", e2e_path("relay"));
    cr_assert_eq(relay_open(url, &relay), 0);
    for (int i = 0; i < 2; i++)
        put(relay, names[i], "nonsense");
    e2e_train_fully(job, "empty", E2E_ARGS(SHORT));
    e2e_train_fully(job, "seeded", E2E_ARGS(RELAY));
    e2e_check_equal("empty", "seeded", STEPS);
    for (int i = 0; i < 2; i++)
        cr_expect_eq(relay_has(relay, names[i]), 1, "'%s' went", names[i]);
    cr_assert_eq(e2e_files_in("relay"), 2, "%d files", e2e_files_in("relay"));
    relay_close(relay);
}

/* ---- objects that somebody damaged ---- */

Test(relay_leftovers, damaged_objects, .init = e2e_enter, .fini = e2e_leave) {
    static const int ways[] = {DAMAGE_GARBAGE, DAMAGE_CUT, DAMAGE_FLIP, DAMAGE_DTYPE};
    char url[300];
    snprintf(url, sizeof url, "file://%s", e2e_path("relay"));
    for (int i = 0; i < (e2e_long() ? N_DAMAGES : 4); i++) {
        if (!e2e_long() || i != DAMAGE_NONE)
            relay_jobs_damage(url, 40, e2e_long() ? i : ways[i]);
    }
}

/* Two of one name at the same time. */
Test(relay_leftovers, side_by_side, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "alone0", E2E_ARGS(SHORT));
    e2e_train_fully(job, "alone1", E2E_ARGS(SHORT, "--set", "update.lr=0.01"));
    E2e runs[2] = {e2e_train(job, "beside0", E2E_ARGS(RELAY)),
                   e2e_train(job, "beside1", E2E_ARGS(RELAY, "--set", "update.lr=0.01"))};
    for (int i = 0; i < 2; i++)
        cr_assert_eq(e2e_wait(&runs[i]), 0, "%s", e2e_read(runs[i].err));
    e2e_check_equal("alone0", "beside0", STEPS);
    e2e_check_equal("alone1", "beside1", STEPS);
    cr_assert_eq(e2e_files_in("relay"), 0);
}

/* However a run ends, itself it leaves nothing. */
Test(relay_leftovers, nothing_is_left, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "success", E2E_ARGS(RELAY));
    cr_assert_lt(access("relay", F_OK), 0, "the folder it made, after success");
    cr_assert_eq(mkdir("relay", 0700), 0);
    e2e_train_fully(job, "again", E2E_ARGS(RELAY));
    cr_assert_eq(access("relay", F_OK), 0, "it was there before");
    cr_assert_lt(access("relay/mlp", F_OK), 0, "after success");
    E2e run = e2e_train(job, "cancelled", E2E_ARGS(RELAY));
    cr_assert(e2e_await_rows(&run, "cancelled", 20));
    kill(run.pid, SIGINT);
    cr_assert_eq(e2e_wait(&run), 130);
    cr_assert_eq(e2e_files_in("relay"), 0, "after Ctrl-C");
    run = e2e_train(job, "twice", E2E_ARGS(RELAY));
    cr_assert(e2e_await_rows(&run, "twice", 20));
    kill(e2e_worker("twice", 1, 0), SIGSTOP);
    kill(run.pid, SIGTERM);
    cr_assert(e2e_await_event(&run, "twice", "signal", 1));
    kill(run.pid, SIGTERM);
    cr_assert_eq(e2e_wait(&run), 6);
    cr_assert_eq(e2e_files_in("relay"), 0, "after being cancelled at once");
    run = e2e_train(job, "failed", E2E_ARGS(RELAY, "--set", "limits.restarts=0"));
    cr_assert(e2e_await_rows(&run, "failed", 20));
    kill(e2e_worker("failed", 2, 0), SIGKILL);
    cr_assert_eq(e2e_wait(&run), 1);
    cr_assert_eq(e2e_files_in("relay"), 0, "after a failure");
}

/* A worker is killed while it writes a note, and nobody opens the relay after it. */
Test(relay_leftovers, half_a_note, .init = e2e_enter, .fini = e2e_leave) {
    e2e_break_files("funcpipe-worker rename /@h.2.0 3 1 kill", true);
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), "failed",
                        E2E_ARGS(RELAY, "--set", "steps=1000", "--set", "limits.restarts=0"));
    cr_assert_eq(e2e_wait(&run), 1, "%s", e2e_read(run.err));
    cr_assert_eq(e2e_files_in("relay"), 0);
}

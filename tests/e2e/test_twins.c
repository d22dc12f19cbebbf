/* Each order is delivered twice: the second to come says that the first is running already, and
 * leaves no trace, whichever of the two the coordinator listens to. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/e2e.h"

enum { STEPS = 60, WORKERS = 4 };

static const char *job;

static void enter(void) {
    e2e_enter();
    job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "single", E2E_ARGS("--set", "steps=60"));
}

static void run_twins(const char *form) {
    E2e run = e2e_train(
        job, "twins",
        E2E_ARGS("--overwrite", "--set", "steps=60", "--set", "relay=file://relay", "--set", form));
    cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
    e2e_check_equal("single", "twins", STEPS);
    e2e_check_same_rows("single", "twins", 0, STEPS);
    e2e_check_rows("twins", STEPS);
    cr_expect_eq(e2e_files_in("relay"), 0, "%d files are left", e2e_files_in("relay"));
}

/* How often a twin has said so; each writes into a file of its own. */
static int refusals(void) {
    int n = 0;
    const char *said = e2e_read("refusals");
    for (const char *at = strstr(said, "is already running"); at; at = strstr(at + 1, "is already"))
        n++;
    return n;
}

/* It comes when the first one's mark is there. */
Test(twins, that_come_second, .init = enter, .fini = e2e_leave) {
    static const char *const forms[] = {"plan.reduce.form=whole", "plan.reduce.form=in_store"};
    e2e_wrap_worker(
        "WHO=$(sed -n 's/.*\"stage\":\\([0-9]*\\),\"replica\":\\([0-9]*\\),.*/\\1.\\2/p' "
        "\"$ORDER\")\n"
        "(for i in $(seq 500); do\n"
        "   find relay -name \"*r.$WHO.1*\" 2>/dev/null | grep -q . && break\n"
        "   sleep 0.01\n"
        " done\n"
        " \"$REAL\" --order \"$ORDER\" --parent-pid $$ >>refusals 2>&1) &");
    for (int i = 0; i < 2; i++) {
        run_twins(forms[i]);
        cr_expect_eq(e2e_count("twins", "worker_started"), WORKERS);
        cr_expect_eq(e2e_count("twins", "worker_died"), 0);
        cr_expect_eq(e2e_number(e2e_event("twins", "traffic", 1, -1, 0), "duplicates"), 0);
    }
    cr_expect_geq(refusals(), 1, "%s", e2e_read("refusals"));
}

/* The coordinator's own comes second, and hears that from it: it takes the worker for dead, and the
 * next attempt, delivered once, ends the first one. */
Test(twins, that_come_first, .init = enter, .fini = e2e_leave) {
    e2e_wrap_worker("if grep -q '\"attempt\":1,' \"$ORDER\"; then\n"
                    "    \"$REAL\" --order \"$ORDER\" --parent-pid $$ >/dev/null 2>&1 &\n"
                    "    sleep 0.5\n"
                    "fi");
    run_twins("plan.reduce.form=chunked");
    cr_expect_eq(e2e_count("twins", "worker_died"), WORKERS);
    cr_expect(strstr(e2e_read("twins/events.jsonl"), "attempt 1 of worker 0.0 is already running"));
}

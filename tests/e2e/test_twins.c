/* Each order is delivered twice: both workers run at once, write the same keys with the same bytes,
 * and what they did counts once. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "tests/support/e2e.h"

enum { STEPS = 80 };

static void run_twins(const char *job, const char *form) {
    E2e run = e2e_train(
        job, "twins",
        E2E_ARGS("--overwrite", "--set", "steps=80", "--set", "relay=file://relay", "--set", form));
    cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
    e2e_check_equal("single", "twins", STEPS);
    e2e_check_same_rows("single", "twins", 0, STEPS);
    e2e_check_rows("twins", STEPS);
    cr_expect_eq(e2e_count("twins", "worker_started"), 4);
    cr_expect_eq(e2e_count("twins", "worker_died"), 0);
    cr_expect_gt(e2e_number(e2e_event("twins", "traffic", 1, -1, 0), "duplicates"), 0,
                 "there were no twins");
    cr_expect_eq(e2e_files_in("relay"), 0, "%d files are left", e2e_files_in("relay"));
}

Test(twins, do_no_harm, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "single", E2E_ARGS("--set", "steps=80"));
    e2e_wrap_worker("\"$REAL\" --order \"$ORDER\" --parent-pid $$ >/dev/null 2>&1 &");
    run_twins(job, "plan.reduce.form=whole");
    run_twins(job, "plan.reduce.form=chunked");
    run_twins(job, "plan.reduce.form=in_store");
}

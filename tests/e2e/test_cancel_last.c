/* A cancel that reaches the workers in the last step: too late, and nothing is missing. */
#include <criterion/criterion.h>
#include <signal.h>

#include "tests/support/e2e.h"

enum { STEPS = 40 };

Test(cancel_last, is_too_late, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "undisturbed", E2E_ARGS("--set", "steps=40"));
    /* The last step waits for its first activation, so that the wish is there for it. */
    e2e_break_files("funcpipe-worker link /t39/+a.0-1.0 1 1 1500", true);
    E2e run = e2e_train(job, "cancelled", E2E_ARGS("--set", "steps=40"));
    cr_assert(e2e_await_rows(&run, "cancelled", STEPS - 1), "%s", e2e_read(run.err));
    kill(run.pid, SIGINT);
    int status = e2e_wait(&run);
    cr_assert(e2e_file_broke(0));
    cr_assert_eq(status, 0, "%d: %s", status, e2e_read(run.err));
    e2e_check_clean(&run);
    e2e_check_rows("cancelled", STEPS);
    e2e_check_same_rows("undisturbed", "cancelled", 0, STEPS);
    e2e_check_equal("undisturbed", "cancelled", STEPS);
}

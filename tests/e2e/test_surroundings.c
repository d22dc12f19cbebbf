/* What a run meets around it: limits on files and their sizes, closed descriptors. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/e2e.h"

static E2e expect(const char *const *more, int exit_code, const char *words) {
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), "out", more);
    int status = e2e_wait(&run);
    const char *text = e2e_read(run.err);
    cr_assert_eq(status, exit_code, "%d instead of %d: %s", status, exit_code, text);
    cr_assert(strstr(text, words), "expected '%s' in: %s", words, text);
    e2e_check_clean(&run);
    return run;
}

static const char *const short_job[] = {"--set", "steps=30", "--overwrite", NULL};

Test(surroundings, few_files, .init = e2e_enter, .fini = e2e_leave) {
    for (int n = 7; n <= 31; n += n < 10 ? 1 : 7) {
        char lines[64], words[64];
        snprintf(lines, sizeof lines, "ulimit -c 0; ulimit -n %d", n);
        snprintf(words, sizeof words, "more files can be opened, the limit is %d (ulimit -n)", n);
        e2e_shell(lines);
        expect(short_job, 1, words);
    }
}

Test(surroundings, a_limit_on_file_sizes, .init = e2e_enter, .fini = e2e_leave) {
    e2e_shell("ulimit -f 12");
    expect(E2E_ARGS("--set", "steps=3000"), 1, "': File too large");
}

/* What is printed goes nowhere then, and not into the first files that are opened. */
Test(surroundings, closed_descriptors, .init = e2e_enter, .fini = e2e_leave) {
    static const char *const closings[] = {"exec >&- 2>&-", "exec <&- >&- 2>&-", "exec <&-"};
    for (size_t i = 0; i < sizeof closings / sizeof closings[0]; i++) {
        e2e_shell(closings[i]);
        expect(short_job, 0, "");
        e2e_check_rows("out", 30);
        expect(E2E_ARGS("--json", "--set", "steps=30", "--overwrite"), 0, "");
        e2e_check_rows("out", 30);
        cr_assert_eq(e2e_count("out", "progress"), 0);
    }
}

/* What a worker is asked for before there is a plan. */
#include <criterion/criterion.h>
#include <sys/stat.h>

#include "coordinator/profile.h"
#include "core/err.h"
#include "tests/support/temp_folder.h"

TestSuite(profile, .init = temp_enter, .fini = temp_leave);

/* A worker in its place. */
static const char *write_script(const char *text) {
    const char *path = temp_write("worker", text, strlen(text));
    cr_assert_eq(chmod(path, 0755), 0);
    return path;
}

/* A coordinator that is killed while it measures leaves no process behind. */
Test(profile, the_worker_ends_with_its_parent) {
    Profile profile;
    const char *path =
        write_script("#!/bin/sh\n"
                     "[ \"$*\" = \"--isa avx2 --parent-pid $PPID\" ] && echo avx2\n");
    cr_assert_eq(profile_isa(path, "avx2", 30000, NULL, &profile), 0, "%s", err_text());
    cr_expect_str_eq(profile.isa, "avx2");
    profile_done(&profile);
}

Test(profile, a_worker_that_fails_is_named) {
    Profile profile;
    const char *path = write_script("#!/bin/sh\necho no such thing\nexit 3\n");
    cr_assert_eq(profile_isa(path, "avx2", 30000, NULL, &profile), ERR_WORKER);
    cr_expect(strstr(err_text(), "failed with status 3: no such thing"), "%s", err_text());
}

Test(profile, the_worker_says_why) {
    Profile profile;
    const char *path = write_script("#!/bin/sh\necho some words first\n"
                                    "echo '{\"result\":\"error\",\"code\":\"ERR_INFEASIBLE\","
                                    "\"text\":\"too large by half\",\"step\":0}'\nexit 1\n");
    cr_assert_eq(profile_isa(path, "auto", 30000, NULL, &profile), ERR_INFEASIBLE);
    cr_expect_str_eq(err_text(), "too large by half");
}

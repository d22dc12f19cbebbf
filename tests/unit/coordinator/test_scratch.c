#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "coordinator/scratch.h"
#include "core/err.h"
#include "tests/support/temp_folder.h"

/* TMPDIR is the test's folder: what is cleaned lies in there. */
static void enter(void) {
    temp_enter();
    cr_assert_eq(setenv("TMPDIR", temp_folder, 1), 0);
}

TestSuite(scratch, .init = enter, .fini = temp_leave);

static pid_t dead_pid(void) {
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    return pid;
}

/* A folder as a run of that process makes it, with a file in it. */
static const char *folder_of(pid_t pid, const char *ending) {
    char name[64];
    char file[80];
    snprintf(name, sizeof name, "funcpipe-run-%d-%s", (int)pid, ending);
    snprintf(file, sizeof file, "%s/file", name);
    cr_assert_eq(mkdir(temp_path(name), 0700), 0);
    temp_write(file, "x", 1);
    return temp_path(name);
}

static int lock(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cr_assert(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0, "%s", path);
    return fd;
}

/* Process numbers say nothing: they are another PID namespace's, or have been used again. */
Test(scratch, what_is_held_stays_and_the_rest_goes) {
    const char *held = folder_of(dead_pid(), "aaaaaa");
    const char *left = folder_of(getpid(), "bbbbbb");
    int fd = lock(held);
    cr_expect_geq(scratch_clean(), 1);
    cr_expect_eq(access(held, F_OK), 0, "somebody holds it");
    cr_expect_lt(access(left, F_OK), 0, "nobody holds it");
    close(fd);
    cr_expect_geq(scratch_clean(), 1);
    cr_expect_lt(access(held, F_OK), 0);
}

Test(scratch, other_folders_are_nobodys_business) {
    static const char *const names[] = {"funcpipe-run-12", "funcpipe-run-x-aaaaaa",
                                        "funcpipe-run-12-aaaaaaa", "funcpipe-test"};
    for (int i = 0; i < 4; i++)
        cr_assert_eq(mkdir(temp_path(names[i]), 0700), 0);
    mkdir(temp_path("away"), 0700);
    cr_assert_eq(symlink(temp_path("away"), temp_path("funcpipe-run-12-bbbbbb")), 0);
    scratch_clean();
    cr_expect_eq(temp_count(temp_folder, ""), 6);
}

Test(scratch, is_held_from_the_first_to_the_last) {
    Scratch scratch;
    cr_assert_eq(scratch_make(1, &scratch), 0, "%s", err_text());
    scratch_clean();
    cr_expect_eq(access(scratch.path, F_OK), 0);
    char path[ORDER_PATH_BYTES];
    snprintf(path, sizeof path, "%s", scratch.path);
    scratch_remove(&scratch);
    cr_expect_lt(access(path, F_OK), 0);
    scratch_remove(&scratch);
    cr_expect_eq(scratch_make(INT64_MAX, &scratch), ERR_FULL);
}

/* One that is made is not taken by somebody who cleans at that moment. */
Test(scratch, made_while_others_clean) {
    pid_t cleaner = fork();
    if (cleaner == 0) {
        for (;;)
            scratch_clean();
    }
    for (int i = 0; i < 2000; i++) {
        Scratch scratch;
        char file[ORDER_PATH_BYTES + 8];
        cr_assert_eq(scratch_make(1, &scratch), 0, "%s", err_text());
        snprintf(file, sizeof file, "%s/file", scratch.path);
        int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        cr_assert_geq(fd, 0, "%d: '%s' was taken", i, scratch.path);
        close(fd);
        cr_assert_eq(access(file, F_OK), 0);
        scratch_remove(&scratch);
    }
    kill(cleaner, SIGKILL);
    waitpid(cleaner, NULL, 0);
}

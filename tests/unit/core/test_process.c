#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/err.h"
#include "core/process.h"

/* The exit status of `run` in a process of its own. */
static int in_a_child(int (*run)(void)) {
    int status = 0;
    pid_t child = fork();
    if (child == 0)
        _exit(run());
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int begin_without_descriptors(void) {
    struct stat null, about;
    if (stat("/dev/null", &null) < 0)
        return 1;
    for (int fd = 0; fd <= 2; fd++)
        close(fd);
    process_begin();
    for (int fd = 0; fd <= 2; fd++) {
        if (fstat(fd, &about) < 0 || about.st_rdev != null.st_rdev)
            return 2 + fd;
    }
    return 0;
}

static int begin_with_descriptors(void) {
    int pipes[2];
    if (pipe(pipes) < 0 || dup2(pipes[1], 1) < 0)
        return 1;
    close(2);
    process_begin();
    char c = 0;
    return write(1, "x", 1) == 1 && read(pipes[0], &c, 1) == 1 && c == 'x' ? 0 : 2;
}

static int write_to_nobody(void) {
    int pipes[2];
    process_begin();
    if (pipe(pipes) < 0)
        return 1;
    close(pipes[0]);
    return write(pipes[1], "x", 1) < 0 && errno == EPIPE ? 0 : 2;
}

Test(process, closed_descriptors_become_dev_null) {
    cr_assert_eq(in_a_child(begin_without_descriptors), 0);
}

Test(process, open_descriptors_stay) {
    cr_assert_eq(in_a_child(begin_with_descriptors), 0);
}

Test(process, a_reader_that_has_gone_is_an_error) {
    cr_assert_eq(in_a_child(write_to_nobody), 0);
}

Test(process, limits_that_suffice) {
    cr_assert_eq(process_check_limits(32, 6), 0, "%s", err_text());
}

static int few_files(void) {
    struct rlimit limit = {20, 20};
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 1;
    if (process_check_limits(32, 0) != ERR_IO)
        return 2;
    if (!strstr(err_text(), "of 32 more files can be opened, the limit is 20 (ulimit -n)"))
        return 3;
    return process_check_limits(5, 0) == 0 ? 0 : 4;
}

Test(process, few_files_are_named) {
    cr_assert_eq(in_a_child(few_files), 0);
}

static int few_threads(void) {
    struct rlimit limit = {1, 1};
    bool root = geteuid() == 0; /* has no such limit */
    if (setrlimit(RLIMIT_NPROC, &limit) < 0 || (root && setresuid(65534, 65534, 65534) < 0))
        return 1;
    if (process_check_limits(0, 6) != ERR_IO)
        return 2;
    return strstr(err_text(), "of 6 more threads can be started, the limit is 1 (ulimit -u)") ? 0
                                                                                              : 3;
}

Test(process, few_threads_are_named) {
    cr_assert_eq(in_a_child(few_threads), 0);
}

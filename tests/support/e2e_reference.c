/* Undisturbed runs that the tests of a program share, each in a process of its own. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "tests/support/e2e.h"
#include "tests/support/e2e_parts.h"
#include "tests/support/temp.h"

#define VARIABLE "FUNCPIPE_TEST_REFERENCES" /* the folder of the program's references */

void e2e_references_begin(void) {
    char folder[64];
    if (temp_make(folder, sizeof folder, "references") < 0 || setenv(VARIABLE, folder, 1) < 0)
        fprintf(stderr, "no folder for references: each test makes its own\n");
}

void e2e_references_end(void) {
    const char *folder = getenv(VARIABLE);
    if (folder)
        temp_remove(folder);
    unsetenv(VARIABLE);
}

static char *path_of(const char *folder, const char *name, const char *end) {
    char *path = e2e_keep(calloc(1, E2E_PATH_BYTES), free);
    int n = snprintf(path, E2E_PATH_BYTES, "%s/%s%s", folder, name, end);
    cr_assert(n > 0 && n < E2E_PATH_BYTES, "'%s' is too long", name);
    return path;
}

const char *e2e_reference(const char *job, const char *const *more) {
    const char *args[32] = {"--overwrite"}; /* what a test left that failed */
    int n = 1;
    const char *folder = getenv(VARIABLE);
    if (!folder)
        folder = e2e_path("%s", ".");
    const char *name = strrchr(job, '/') + 1;
    const char *out = path_of(folder, name, ".files");
    int lock = open(path_of(folder, name, ".made"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    cr_assert(lock >= 0 && flock(lock, LOCK_EX) == 0, "no lock for '%s'", out);
    if (lseek(lock, 0, SEEK_END) == 0) {
        for (; more && *more && n < 31; more++)
            args[n++] = *more;
        e2e_train_fully(job, out, args);
        cr_assert_eq(write(lock, "made", 4), 4);
    }
    close(lock);
    return out;
}

/* Where the files of tests and benches stand: in memory (/dev/shm) where there is such a place. */
#ifndef FUNCPIPE_TESTS_SUPPORT_TEMP_H
#define FUNCPIPE_TESTS_SUPPORT_TEMP_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Make a folder funcpipe-NAME.XXXXXX there and write its path; -1 with errno: not made. */
static inline int temp_make(char *out_path, size_t path_bytes, const char *name) {
    const char *above = access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
    int n = snprintf(out_path, path_bytes, "%s/funcpipe-%s.XXXXXX", above, name);
    return n > 0 && (size_t)n < path_bytes && mkdtemp(out_path) != NULL ? 0 : -1;
}
/* Remove a folder with all that is in it; that some or all of it is gone already is fine. */
void temp_remove(const char *path);

#endif

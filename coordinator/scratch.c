#include "coordinator/scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "coordinator/outputs.h"
#include "core/err.h"
#include "core/text.h"

static const char prefix[] = "funcpipe-run-";

enum { N_PLACES = 3, MAX_TRIES = 100 };
static const char *place_of(int i) {
    const char *tmp = i == 1 ? getenv("TMPDIR") : NULL;
    if (i == 0)
        return "/dev/shm";
    return tmp && tmp[0] == '/' ? tmp : "/tmp";
}

/* Less than nothing where no folder can be made, or none that an order can name. */
static int64_t free_bytes(const char *place) {
    struct statvfs about;
    if (!text_is_utf8(place, strlen(place)) || access(place, W_OK | X_OK) < 0 ||
        statvfs(place, &about) < 0)
        return -1;
    double bytes = (double)about.f_bavail * (double)about.f_frsize;
    return bytes < 9e18 ? (int64_t)bytes : INT64_MAX;
}

/* Open and lock a folder: its descriptor, or -1 with errno (EWOULDBLOCK: somebody holds it). */
static int hold(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    int errnum = errno;
    close(fd);
    errno = errnum;
    return -1;
}

/* Between mkdtemp and the lock the folder looks like one that nobody holds, and a scratch_clean may
 * take it: then another one is made. Nothing is written into it before. */
static int make_in(const char *place, Scratch *scratch) {
    struct stat about;
    for (int tries = 0; tries < MAX_TRIES; tries++) {
        int n = snprintf(scratch->path, sizeof scratch->path, "%s/%s%lld-XXXXXX", place, prefix,
                         (long long)getpid());
        if (n < 0 || (size_t)n >= sizeof scratch->path || !mkdtemp(scratch->path))
            return -1;
        scratch->fd = hold(scratch->path);
        if (scratch->fd < 0 && (errno == EWOULDBLOCK || errno == ENOENT))
            continue;
        if (stat(scratch->path, &about) == 0)
            return 0; /* its name is random, so it is still the one that was made */
        if (scratch->fd >= 0)
            close(scratch->fd);
    }
    return -1;
}

int scratch_make(int64_t want_bytes, Scratch *out_scratch) {
    char wanted[32];
    Scratch scratch;
    for (int i = 0; i < N_PLACES; i++) {
        if (free_bytes(place_of(i)) >= want_bytes && make_in(place_of(i), &scratch) == 0) {
            *out_scratch = scratch;
            return 0;
        }
    }
    return err_set(ERR_FULL, "no room for a relay of %s in /dev/shm, %s or /tmp",
                   text_format_bytes(want_bytes, wanted, sizeof wanted), place_of(1));
}

void scratch_remove(Scratch *scratch) {
    if (!scratch->path[0])
        return;
    outputs_remove_tree(scratch->path);
    if (scratch->fd >= 0)
        close(scratch->fd);
    scratch->path[0] = '\0';
}

/* prefix PID-XXXXXX? */
static bool is_scratch(const char *name) {
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return false;
    name += sizeof prefix - 1;
    size_t length = strspn(name, "0123456789");
    return length > 0 && name[length] == '-' && strlen(name + length + 1) == 6;
}

static int clean_place(const char *place) {
    char path[PATH_MAX];
    struct stat about;
    int n_removed = 0;
    DIR *dir = opendir(place);
    if (!dir)
        return 0;
    for (const struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        int n = snprintf(path, sizeof path, "%s/%s", place, entry->d_name);
        if (!is_scratch(entry->d_name) || n < 0 || (size_t)n >= sizeof path ||
            lstat(path, &about) < 0 || !S_ISDIR(about.st_mode) || about.st_uid != geteuid())
            continue;
        int fd = hold(path);
        if (fd < 0)
            continue;
        n_removed += outputs_remove_tree(path) >= 0;
        close(fd);
    }
    closedir(dir);
    return n_removed;
}

int scratch_clean(void) {
    ErrNote before;
    err_copy(&before);
    int n_removed = 0;
    for (int i = 0; i < N_PLACES; i++)
        n_removed += clean_place(place_of(i));
    err_restore(&before);
    return n_removed;
}

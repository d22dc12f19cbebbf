/* The folder itself: made, held by one run at a time, removed. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/outputs.h"
#include "core/err.h"
#include "core/text.h"

static int remove_entry(const char *path, const struct stat *about, int kind, struct FTW *place) {
    (void)about;
    (void)kind;
    (void)place;
    return remove(path) < 0 && errno != ENOENT ? -1 : 0;
}

int outputs_remove_tree(const char *folder) {
    if (nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) < 0 && errno != ENOENT)
        return err_errno(ERR_IO, errno, "removing '%s'", folder);
    return 0;
}

static int make_one(const char *path) {
    if (mkdir(path, 0777) < 0 && errno != EEXIST)
        return err_errno(errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, errno, "creating folder '%s'",
                         path);
    return 0;
}

int outputs_make_folder(const char *path) {
    char part[ORDER_PATH_BYTES];
    TRY(text_copy(part, sizeof part, path));
    for (char *at = part + 1; *at; at++) {
        if (*at != '/')
            continue;
        *at = '\0';
        TRY(make_one(part));
        *at = '/';
    }
    return make_one(part);
}

/* ---- the lock ---- */

/* The process that holds it, by what it wrote there; 0: it has not written yet. */
static int64_t holder_of(int fd) {
    char text[24];
    int64_t pid = 0;
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    ErrNote before;
    err_copy(&before);
    if (text_parse_i64(text, 1, INT32_MAX, &pid) < 0)
        pid = 0;
    err_restore(&before);
    return pid;
}

static int taken(const char *folder, int fd) {
    char holder[48] = "";
    int64_t pid = holder_of(fd);
    if (pid > 0)
        snprintf(holder, sizeof holder, " (process %lld)", (long long)pid);
    return err_set(ERR_EXISTS,
                   "another run%s is writing its outputs into '%s': let it end, or choose another "
                   "--out",
                   holder, folder);
}

/* Is the file at the path still the one that was locked? */
static bool is_same(int fd, const char *path) {
    struct stat ours;
    struct stat there;
    return fstat(fd, &ours) == 0 && stat(path, &there) == 0 && ours.st_ino == there.st_ino &&
           ours.st_dev == there.st_dev;
}

/* 1: locked; 0: its holder has removed it meanwhile. */
static int lock_file(const char *folder, OutputsLock *lock) {
    char text[24];
    lock->fd = open(lock->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (lock->fd < 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? err_set(ERR_NOT_FOUND, "there is no folder '%s'", folder)
                   : err_errno(ERR_IO, errno, "creating '%s'", lock->path);
    int rc = 1;
    if (flock(lock->fd, LOCK_EX | LOCK_NB) < 0)
        rc = errno == EWOULDBLOCK ? taken(folder, lock->fd)
                                  : err_errno(ERR_IO, errno, "locking '%s'", lock->path);
    else if (!is_same(lock->fd, lock->path))
        rc = 0;
    if (rc <= 0) {
        close(lock->fd);
        return rc;
    }
    int n = snprintf(text, sizeof text, "%lld\n", (long long)getpid());
    if (ftruncate(lock->fd, 0) == 0 && pwrite(lock->fd, text, (size_t)n, 0) < n)
        (void)ftruncate(lock->fd, 0); /* a full disk: it is held all the same, without a name */
    return 1;
}

int outputs_lock(const char *folder, OutputsLock *out_lock) {
    OutputsLock lock;
    int n = snprintf(lock.path, sizeof lock.path, "%s/%s", folder, OUTPUTS_LOCK_NAME);
    if (n < 0 || (size_t)n >= sizeof lock.path)
        return err_set(ERR_LIMIT, "the path '%s' is too long", folder);
    int locked = 0;
    while (locked == 0)
        locked = lock_file(folder, &lock);
    TRY(locked);
    *out_lock = lock;
    return 0;
}

void outputs_unlock(OutputsLock *lock) {
    if (!lock || lock->fd < 0)
        return;
    unlink(lock->path); /* while it is held: nobody else's file */
    close(lock->fd);
    lock->fd = -1;
}

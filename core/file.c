#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/err.h"

enum { TEMPORARY_BYTES = 32 }; /* room for what a temporary name is longer by */

static int file_error(const char *doing, const char *path) {
    int errnum = errno;
    int code = errnum == ENOSPC || errnum == EDQUOT || errnum == EFBIG ? ERR_FULL
               : errnum == ENOENT || errnum == ENOTDIR                 ? ERR_NOT_FOUND
                                                                       : ERR_IO;
    return err_errno(code, errnum, "%s '%s'", doing, path);
}

bool file_is_temporary(const char *name) {
    return strncmp(name, ".tmp-", 5) == 0 && name[5] &&
           name[5 + strspn(name + 5, "0123456789abcdef")] == '\0';
}

int file_create(FileWriter *file, const char *path) {
    const char *slash = strrchr(path, '/');
    size_t folder = slash ? (size_t)(slash - path) + 1 : 0;
    uint64_t random = 0;
    file->fd = -1;
    file->hash = NULL;
    file->bytes = 0;
    if (strlen(path) >= PATH_MAX - TEMPORARY_BYTES)
        return err_set(ERR_LIMIT, "the path '%.80s...' is too long", path);
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return err_errno(ERR_IO, errno, "naming a temporary file for '%s'", path);
    snprintf(file->path, sizeof file->path, "%s", path);
    snprintf(file->temporary, sizeof file->temporary, "%.*s.tmp-%016llx", (int)folder, path,
             (unsigned long long)random);
    TRY(hash_open(&file->hash));
    file->fd = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return file->fd < 0 ? file_error("creating a file beside", path) : 0;
}

static int write_all(const FileWriter *file, const char *data, size_t bytes) {
    while (bytes > 0) {
        ssize_t n = write(file->fd, data, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return file_error("writing", file->path);
        data += n;
        bytes -= (size_t)n;
    }
    return 0;
}

int file_add(FileWriter *file, const void *data, size_t bytes) {
    int rc = write_all(file, data, bytes);
    hash_add(file->hash, data, bytes);
    file->bytes += (int64_t)bytes;
    return rc;
}

int file_commit(FileWriter *file) {
    if (fsync(file->fd) < 0)
        return file_error("syncing", file->path);
    int closed = close(file->fd);
    file->fd = -1;
    if (closed == 0 && rename(file->temporary, file->path) == 0)
        return file_sync_folder(file->path);
    int rc = file_error(closed < 0 ? "closing" : "renaming to", file->path);
    unlink(file->temporary);
    return rc;
}

void file_done(FileWriter *file) {
    if (file->fd >= 0) {
        close(file->fd);
        unlink(file->temporary);
    }
    file->fd = -1;
    hash_close(file->hash);
    file->hash = NULL;
}

int file_sync_folder(const char *path) {
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + 1 : 0;
    if (n >= sizeof folder)
        return err_set(ERR_LIMIT, "the path '%.80s...' is too long", path);
    memcpy(folder, path, n);
    folder[n] = '\0';
    int fd = open(n ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return file_error("opening the folder of", path);
    int rc = 0;
    if (fsync(fd) < 0 && errno != EINVAL) /* EINVAL: this file system has no need of it */
        rc = file_error("syncing the folder of", path);
    close(fd);
    return rc;
}

int file_write(const char *path, const void *data, size_t bytes) {
    FileWriter file;
    int rc = file_create(&file, path);
    if (rc >= 0)
        rc = file_add(&file, data, bytes);
    if (rc >= 0)
        rc = file_commit(&file);
    file_done(&file);
    return rc < 0 ? rc : 0;
}

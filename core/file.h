/* Writing files that others read: a file appears whole or not at all (temporary name in the same
 * folder, fsync, rename, fsync of the folder). Errors name the path: ERR_FULL on ENOSPC, EDQUOT and
 * EFBIG, ERR_NOT_FOUND where the folder is not there, ERR_IO else. EFBIG needs SIGXFSZ to be
 * ignored, as process_begin does: else writing beyond RLIMIT_FSIZE ends the process. */
#ifndef FUNCPIPE_CORE_FILE_H
#define FUNCPIPE_CORE_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/hash.h"

/* The whole content at once. */
int file_write(const char *path, const void *data, size_t bytes);

/* Piece by piece: file_create, file_add as often as wanted, file_commit; file_done in any case
 * (it removes what was not committed). */
typedef struct FileWriter {
    char path[PATH_MAX], temporary[PATH_MAX];
    int fd;          /* -1: none */
    HashState *hash; /* of the pieces so far */
    int64_t bytes;   /* of the pieces so far */
} FileWriter;

int file_create(FileWriter *file, const char *path);
int file_add(FileWriter *file, const void *data, size_t bytes);
int file_commit(FileWriter *file);
void file_done(FileWriter *file);

/* Is it the name of a file that is being written, or was when its writer died? */
bool file_is_temporary(const char *name);

/* fsync of the folder that holds `path`: what was renamed or made in it survives a crash. */
int file_sync_folder(const char *path);

#endif

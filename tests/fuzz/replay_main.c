/* Runs one fuzz target over every file of a folder: the corpus as a test for any compiler.
 *
 *     fuzz_replay_json tests/fuzz/corpus/json
 *
 * Fails when the folder holds no file. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/err.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int replay(const char *folder, const char *name) {
    enum { MAX_BYTES = 64 << 20 };
    char path[4096];
    Buf file;
    buf_init(&file, 0);
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return err_set(ERR_LIMIT, "a path in '%s' is too long", folder);
    int rc = buf_read_file(&file, path, MAX_BYTES);
    if (rc >= 0) {
        /* A copy of the exact size, so that a sanitizer sees the first byte read behind it. */
        uint8_t *exact = malloc(file.bytes ? file.bytes : 1);
        if (exact) {
            if (file.bytes)
                memcpy(exact, file.data, file.bytes);
            printf("%s\n", path); /* the last one printed is the one that crashed */
            fflush(stdout);
            LLVMFuzzerTestOneInput(exact, file.bytes);
        } else {
            rc = err_set(ERR_MEMORY, "%zu bytes of '%s'", file.bytes, path);
        }
        free(exact);
    }
    buf_done(&file);
    return rc;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    DIR *dir = opendir(argv[1]);
    if (!dir) {
        fprintf(stderr, "%s: no folder '%s'\n", argv[0], argv[1]);
        return 1;
    }
    int n_files = 0;
    int rc = 0;
    for (struct dirent *entry = readdir(dir); entry && rc >= 0; entry = readdir(dir)) {
        if (entry->d_name[0] == '.')
            continue;
        rc = replay(argv[1], entry->d_name);
        n_files++;
    }
    closedir(dir);
    if (rc < 0) {
        fprintf(stderr, "%s: %s\n", argv[0], err_text());
        return 1;
    }
    printf("%d inputs replayed from %s\n", n_files, argv[1]);
    if (n_files == 0) {
        fprintf(stderr, "%s: the corpus '%s' is empty\n", argv[0], argv[1]);
        return 1;
    }
    return 0;
}

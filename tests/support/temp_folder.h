/* A folder of one test: temp_enter makes it, temp_leave removes it with all its files (folders in
 * it too). Use them as .init and .fini of a Criterion test. */
#ifndef FUNCPIPE_TESTS_SUPPORT_TEMP_FOLDER_H
#define FUNCPIPE_TESTS_SUPPORT_TEMP_FOLDER_H

#include <criterion/criterion.h>
#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/temp.h"

static char temp_folder[64];

static inline void temp_enter(void) {
    cr_assert_eq(temp_make(temp_folder, sizeof temp_folder, "test"), 0);
}

static inline int temp_remove_one(const char *path, const struct stat *about, int flag,
                                  struct FTW *ftw) {
    (void)about, (void)flag, (void)ftw;
    return remove(path);
}

static inline void temp_leave(void) {
    if (temp_folder[0])
        nftw(temp_folder, temp_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* The path of `name` in the folder: valid until four more were asked for. */
static inline const char *temp_path(const char *name) {
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", temp_folder, name);
    return path;
}

/* Write a file there, as it comes, and return its path. */
static inline const char *temp_write(const char *name, const void *data, size_t bytes) {
    const char *path = temp_path(name);
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file, "%s", path);
    cr_assert_eq(fwrite(data, 1, bytes, file), bytes);
    cr_assert_eq(fclose(file), 0);
    return path;
}

/* How many entries of `folder` have a name that starts with `prefix`. */
static inline int temp_count(const char *folder, const char *prefix) {
    DIR *dir = opendir(folder);
    int n = 0;
    for (struct dirent *entry = dir ? readdir(dir) : NULL; entry; entry = readdir(dir))
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
             strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    if (dir)
        closedir(dir);
    return n;
}

#endif

/* The folder of all checkpoints of a job: which is the newest, and which may go. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/checkpoint_parts.h"
#include "core/err.h"
#include "core/file.h"
#include "core/text.h"

enum { STEP_TEXT_BYTES = 24, MAX_ASIDE = 99 };

typedef struct StepList {
    int64_t *steps; /* descending */
    size_t n, capacity;
} StepList;

/* The step that a directory's name is, in the one way it is written; negative: it is none. */
static int64_t step_of(const char *name) {
    char again[STEP_TEXT_BYTES];
    int64_t step;
    if (text_parse_i64(name, 0, INT64_MAX, &step) < 0)
        return -1;
    snprintf(again, sizeof again, "%lld", (long long)step);
    return strcmp(name, again) == 0 ? step : -1;
}

static int add_step(StepList *list, int64_t step) {
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 16;
        int64_t *steps = realloc(list->steps, capacity * sizeof *steps);
        if (!steps)
            return err_set(ERR_MEMORY, "the list of checkpoints");
        list->steps = steps;
        list->capacity = capacity;
    }
    list->steps[list->n++] = step;
    return 0;
}

static int order_descending(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left;
    int64_t b = *(const int64_t *)right;
    return a < b ? 1 : a > b ? -1 : 0;
}

static int list_steps(const char *checkpoints, StepList *out_list) {
    StepList list = {0};
    DIR *dir = opendir(checkpoints);
    if (!dir)
        return err_errno(errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, errno,
                         "opening the folder of checkpoints '%s'", checkpoints);
    int rc = 0;
    for (struct dirent *entry = readdir(dir); entry && rc >= 0; entry = readdir(dir)) {
        struct stat about;
        int64_t step = step_of(entry->d_name);
        if (step >= 0 && fstatat(dirfd(dir), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISDIR(about.st_mode))
            rc = add_step(&list, step);
    }
    closedir(dir);
    if (rc < 0) {
        free(list.steps);
        return rc;
    }
    if (list.n > 0)
        qsort(list.steps, list.n, sizeof list.steps[0], order_descending);
    *out_list = list;
    return 0;
}

static int step_path(char out[MANIFEST_PATH_BYTES], const char *checkpoints, int64_t step) {
    char name[STEP_TEXT_BYTES];
    snprintf(name, sizeof name, "%lld", (long long)step);
    return manifest_join(out, checkpoints, name);
}

/* ---- the newest ---- */

/* 0 when the manifest is sound, is this step's and agrees with its files. */
static int check_sound(const char *directory, int64_t step) {
    Manifest manifest;
    TRY(manifest_read(directory, &manifest));
    int rc = checkpoint_check_sizes(directory, &manifest);
    if (rc >= 0 && manifest.step != step)
        rc = err_set(ERR_FORMAT, "checkpoint '%s': its manifest says step %lld", directory,
                     (long long)manifest.step);
    manifest_done(&manifest);
    return rc;
}

int checkpoint_latest_before(const char *checkpoints, int64_t before,
                             char out_directory[ORDER_PATH_BYTES], int64_t *out_step) {
    StepList list = {0};
    TRY(list_steps(checkpoints, &list));
    int rc = ERR_NOT_FOUND;
    size_t n_seen = 0;
    int64_t step = -1;
    char path[MANIFEST_PATH_BYTES];
    for (size_t i = 0; i < list.n && rc < 0; i++) {
        step = list.steps[i];
        if (step >= before)
            continue;
        n_seen++;
        rc = step_path(path, checkpoints, step);
        if (rc >= 0)
            rc = check_sound(path, step);
    }
    if (rc >= 0)
        rc = text_copy(out_directory, ORDER_PATH_BYTES, path);
    else if (n_seen > 0) /* the oldest one's reason is the note so far */
        rc = n_seen == 1
                 ? err_context(ERR_NOT_FOUND, "the only checkpoint in '%s' is not sound",
                               checkpoints)
                 : err_context(ERR_NOT_FOUND, "none of the %zu checkpoints in '%s' is sound",
                               n_seen, checkpoints);
    else
        rc = err_set(ERR_NOT_FOUND, "there is no %scheckpoint in '%s'", list.n > 0 ? "other " : "",
                     checkpoints);
    if (rc >= 0 && out_step)
        *out_step = step;
    free(list.steps);
    return rc < 0 ? rc : 0;
}

int checkpoint_latest(const char *checkpoints, char out_directory[ORDER_PATH_BYTES],
                      int64_t *out_step) {
    return checkpoint_latest_before(checkpoints, INT64_MAX, out_directory, out_step);
}

int checkpoint_set_aside(const char *directory) {
    char aside[MANIFEST_PATH_BYTES];
    for (int i = 1; i <= MAX_ASIDE; i++) {
        int n = snprintf(aside, sizeof aside, "%s.damaged-%d", directory, i);
        if (n < 0 || (size_t)n >= sizeof aside)
            return err_set(ERR_LIMIT, "the path '%s.damaged-%d' is too long", directory, i);
        if (access(aside, F_OK) < 0 && errno == ENOENT)
            return rename(directory, aside) < 0
                       ? err_errno(ERR_IO, errno, "renaming '%s' to '%s'", directory, aside)
                       : 0;
    }
    return err_set(ERR_LIMIT, "'%s' has been damaged %d times: remove some of its copies",
                   directory, MAX_ASIDE);
}

/* ---- cleaning ---- */

/* "-DIGITS" behind a place in a name; NULL: there is something else. */
static const char *skip_number(const char *at) {
    size_t n = at && *at == '-' ? strspn(at + 1, "0123456789") : 0;
    return n > 0 ? at + 1 + n : NULL;
}

bool checkpoint_is_folder_name(const char *name) {
    char step[STEP_TEXT_BYTES];
    size_t length = strspn(name, "0123456789");
    if (length == 0 || length >= sizeof step)
        return false;
    memcpy(step, name, length);
    step[length] = '\0';
    const char *behind = name + length;
    if (strncmp(behind, ".damaged", 8) == 0)
        behind = skip_number(behind + 8);
    ErrNote before;
    err_copy(&before);
    bool own = behind && !*behind && step_of(step) >= 0;
    err_restore(&before);
    return own;
}

bool checkpoint_is_file_name(const char *name) {
    if (file_is_temporary(name) || strcmp(name, "manifest.json") == 0 ||
        strcmp(name, "model.safetensors.index.json") == 0)
        return true;
    const char *at = strncmp(name, "model-", 6) == 0    ? name + 5
                     : strncmp(name, "update-", 7) == 0 ? name + 6
                                                        : NULL;
    at = skip_number(at);
    at = at && strncmp(at, "-of-", 4) == 0 ? skip_number(at + 3) : NULL;
    return at && strcmp(at, ".safetensors") == 0;
}

/* 1: all in it is a checkpoint's; 0: there is something that no worker wrote. */
static int is_checkpoint(const char *directory) {
    DIR *dir = opendir(directory);
    if (!dir)
        return err_errno(ERR_IO, errno, "opening '%s'", directory);
    int own = 1;
    for (const struct dirent *entry = readdir(dir); entry && own; entry = readdir(dir)) {
        const char *name = entry->d_name;
        own = strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || checkpoint_is_file_name(name);
    }
    closedir(dir);
    return own;
}

/* Remove a directory's files: all, or the temporary ones only. */
static int remove_files(const char *directory, bool all) {
    DIR *dir = opendir(directory);
    if (!dir)
        return err_errno(ERR_IO, errno, "opening '%s'", directory);
    int rc = 0;
    for (struct dirent *entry = readdir(dir); entry && rc >= 0; entry = readdir(dir)) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || !(all || file_is_temporary(name)))
            continue;
        if (unlinkat(dirfd(dir), name, 0) < 0 && errno != ENOENT)
            rc = err_errno(ERR_IO, errno, "removing '%s/%s'", directory, name);
    }
    closedir(dir);
    return rc;
}

/* The manifest goes first, and for good: what is half removed must not look sound. */
static int remove_checkpoint(const char *directory) {
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return err_errno(ERR_IO, errno, "opening '%s'", directory);
    int rc = 0;
    if (unlinkat(fd, "manifest.json", 0) == 0)
        rc = fsync(fd) < 0 && errno != EINVAL ? -1 : 0;
    else if (errno != ENOENT)
        rc = -1;
    if (rc < 0)
        rc = err_errno(ERR_IO, errno, "removing the manifest of '%s'", directory);
    close(fd);
    TRY(rc);
    TRY(remove_files(directory, true));
    if (rmdir(directory) < 0)
        return err_errno(ERR_IO, errno, "removing '%s'", directory);
    return 0;
}

int checkpoint_clean(const char *checkpoints, int64_t keep_last, int64_t before) {
    bool workers = before < INT64_MAX;
    StepList list = {0};
    int rc = list_steps(checkpoints, &list);
    if (rc == ERR_NOT_FOUND)
        return 0;
    TRY(rc);
    int64_t n_sound = 0; /* seen so far, from the newest on */
    int64_t newest = -1;
    int n_removed = 0;
    if (!workers)
        rc = remove_files(checkpoints, false);
    for (size_t i = 0; i < list.n && rc >= 0; i++) {
        int64_t step = list.steps[i];
        char path[MANIFEST_PATH_BYTES];
        char manifest[MANIFEST_PATH_BYTES];
        TRY_DONE(step_path(path, checkpoints, step));
        TRY_DONE(manifest_join(manifest, path, "manifest.json"));
        bool sound = check_sound(path, step) >= 0;
        bool partial = !sound && access(manifest, F_OK) < 0 && errno == ENOENT;
        bool old = keep_last > 0 && n_sound >= keep_last;
        bool quiet = !workers || (newest >= 0 && step < newest && step < before);
        int own = quiet && (partial || old) ? is_checkpoint(path) : 0;
        TRY_DONE(own);
        if (own) {
            TRY_DONE(remove_checkpoint(path));
            n_removed++;
        } else if (quiet) {
            TRY_DONE(remove_files(path, false));
        }
        n_sound += sound;
        if (sound && newest < 0)
            newest = step;
    }
done:
    free(list.steps);
    return rc < 0 ? rc : n_removed;
}

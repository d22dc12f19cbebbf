/* What a run makes in its folder: how that is told from what is somebody else's, and removed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/checkpoint.h"
#include "coordinator/outputs_parts.h"
#include "core/err.h"
#include "core/file.h"

static const char *const own_files[] = {"job.json",      "plan.json",  "metrics.csv",
                                        "metrics.jsonl", "trace.json", OUTPUTS_MARK_NAME};
enum { N_FILES = sizeof own_files / sizeof own_files[0] };

/* ---- names ---- */

static bool is_top_file(const char *name) {
    bool own = file_is_temporary(name) || strcmp(name, OUTPUTS_LOCK_NAME) == 0;
    for (int i = 0; i < N_FILES; i++)
        own = own || strcmp(name, own_files[i]) == 0;
    return own;
}

/* HEAD STAGE.REPLICA.ATTEMPT TAIL */
static bool is_of_worker(const char *name, const char *head, const char *tail) {
    size_t length = strlen(head);
    if (strncmp(name, head, length) != 0)
        return false;
    name += length;
    for (int i = 0; i < 3; i++) {
        size_t n = strspn(name, "0123456789");
        if (n == 0 || (i < 2 && name[n] != '.'))
            return false;
        name += i < 2 ? n + 1 : n;
    }
    return strcmp(name, tail) == 0;
}

bool outputs_is_trace_name(const char *name) {
    return is_of_worker(name, "trace-", ".json");
}

static bool is_log(const char *name) {
    return file_is_temporary(name) || is_of_worker(name, "worker-", ".log") ||
           outputs_is_trace_name(name);
}

/* A folder that runs make, and what they make in it. */
typedef struct Place {
    bool (*is_file)(const char *name);
    const struct Place *(*below)(const char *name); /* NULL: no folders at all */
} Place;

static const Place *below_checkpoints(const char *name) {
    static const Place checkpoint = {checkpoint_is_file_name, NULL};
    return checkpoint_is_folder_name(name) ? &checkpoint : NULL;
}

static const Place *below_top(const char *name) {
    static const Place checkpoints = {file_is_temporary, below_checkpoints};
    static const Place logs = {is_log, NULL};
    return strcmp(name, "checkpoints") == 0 ? &checkpoints
           : strcmp(name, "logs") == 0      ? &logs
                                            : NULL;
}

static const Place top = {is_top_file, below_top};

/* ---- walking ---- */

static int walk(const char *folder, const Place *place, bool remove);

/* The mark and the lock stay for the time being. */
static int remove_file(const char *path, const Place *place, const char *name) {
    bool stays = place == &top &&
                 (strcmp(name, OUTPUTS_MARK_NAME) == 0 || strcmp(name, OUTPUTS_LOCK_NAME) == 0);
    if (!stays && unlink(path) < 0 && errno != ENOENT)
        return err_errno(ERR_IO, errno, "removing '%s'", path);
    return 0;
}

static int walk_entry(const char *folder, const Place *place, const char *name, bool remove) {
    char path[MANIFEST_PATH_BYTES];
    struct stat about;
    TRY(manifest_join(path, folder, name));
    if (lstat(path, &about) < 0)
        return errno == ENOENT ? 0 : err_errno(ERR_IO, errno, "looking at '%s'", path);
    const Place *below = place->below ? place->below(name) : NULL;
    if (S_ISREG(about.st_mode) && place->is_file(name))
        return remove ? remove_file(path, place, name) : 0;
    if (!S_ISDIR(about.st_mode) || !below)
        return remove ? 0
                      : err_set(ERR_EXISTS,
                                "'%s' is not of a run's making: nothing is overwritten; move it "
                                "away, or choose another --out",
                                path);
    TRY(walk(path, below, remove));
    if (remove && rmdir(path) < 0 && errno != ENOENT)
        return err_errno(ERR_IO, errno, "removing '%s'", path);
    return 0;
}

static int walk(const char *folder, const Place *place, bool remove) {
    if (remove) /* what is half removed must not look like a sound checkpoint */
        TRY(walk_entry(folder, place, "manifest.json", true));
    DIR *dir = opendir(folder);
    if (!dir)
        return err_errno(ERR_IO, errno, "reading folder '%s'", folder);
    int rc = 0;
    for (const struct dirent *entry = readdir(dir); entry && rc >= 0; entry = readdir(dir)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rc = walk_entry(folder, place, entry->d_name, remove);
    }
    closedir(dir);
    return rc;
}

int outputs_check_own(const char *folder) {
    return walk(folder, &top, false);
}

int outputs_remove_own(const char *folder) {
    char mark[MANIFEST_PATH_BYTES];
    TRY(walk(folder, &top, true));
    TRY(manifest_join(mark, folder, OUTPUTS_MARK_NAME));
    if (unlink(mark) < 0 && errno != ENOENT)
        return err_errno(ERR_IO, errno, "removing '%s'", mark);
    return 0;
}

/* ---- the mark, and the job file ---- */

bool outputs_is_marked(const char *folder) {
    static const char head[] = "{\"time\":\"";
    char text[128];
    char path[MANIFEST_PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s", folder, OUTPUTS_MARK_NAME);
    if (n < 0 || (size_t)n >= sizeof path)
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    ssize_t bytes = read(fd, text, sizeof text - 1);
    close(fd);
    if (bytes <= 0)
        return bytes == 0;
    text[bytes] = '\0';
    return strncmp(text, head, sizeof head - 1) == 0 && strstr(text, ",\"event\":\"");
}

int outputs_check_job(const char *folder, const char *job) {
    char path[MANIFEST_PATH_BYTES];
    struct stat given;
    struct stat there;
    if (!job || stat(job, &given) < 0)
        return 0;
    for (int i = 0; i < N_FILES; i++) {
        TRY(manifest_join(path, folder, own_files[i]));
        if (stat(path, &there) == 0 && there.st_ino == given.st_ino && there.st_dev == given.st_dev)
            return err_set(ERR_EXISTS,
                           "the job file '%s' lies where its outputs would replace it: choose "
                           "another --out, or give a copy of it",
                           path);
    }
    return 0;
}

/* Surveying the file relay: its files, empty folders, and what the place is like. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/text.h"
#include "storage/key.h"
#include "storage/relay_file.h"
#include "storage/relay_survey.h"

enum { PROBED_INSTANCES = 64, FEW_INSTANCES = 8, LITTLE_BYTES = 64 << 20 };

typedef struct Survey {
    RelayFile *file;
    RelayVisit visit; /* NULL: sweep */
    void *ctx;
    int64_t now_ms, older_ms;
    bool dry_run;
    int64_t n_folders;
    char key[RELAY_KEY_BYTES]; /* of the folder under way, with a '/' behind it; "": the root */
} Survey;

static int64_t wall_ms(const struct timespec *when) {
    return (int64_t)when->tv_sec * 1000 + when->tv_nsec / CLOCK_NS_PER_MS;
}

/* Show what lies at `path`; gone by now is no error. */
static int show(Survey *survey, const char *key, bool note, int dir_fd, const char *path) {
    struct stat about;
    char data[RELAY_NOTE_MAX_BYTES];
    size_t bytes = 0;
    if (fstatat(dir_fd, path, &about, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(about.st_mode))
        return 0;
    bool expired = note && relay_note_get(&survey->file->base, key, data, sizeof data, &bytes) ==
                               ERR_NOT_FOUND;
    int64_t idle_ms = survey->now_ms - wall_ms(&about.st_mtim);
    RelayItem item = {.kind = expired ? RELAY_ITEM_EXPIRED
                              : note  ? RELAY_ITEM_NOTE
                                      : RELAY_ITEM_OBJECT,
                      .key = key,
                      .bytes = (int64_t)about.st_size,
                      .idle_ms = idle_ms > 0 ? idle_ms : 0};
    return survey->visit(survey->ctx, &item);
}

/* Behind survey->key, the name: true when that is a key. */
static bool push(Survey *survey, const char *name) {
    size_t at = strlen(survey->key);
    size_t bytes = strlen(name);
    if (at + bytes + 1 >= sizeof survey->key)
        return false;
    memcpy(survey->key + at, name, bytes + 1);
    if (relay_check_key(survey->key) >= 0)
        return true;
    survey->key[at] = '\0';
    return false;
}

/* May the folder of survey->key go, if it is empty? Only one of a job's generation, so that nothing
 * foreign is ever touched. */
static bool is_old_place(const Survey *survey, int fd) {
    struct stat about;
    char inside[RELAY_KEY_BYTES + 4];
    KeySpace space;
    bool claim;
    snprintf(inside, sizeof inside, "%s/x", survey->key);
    return key_find_space(inside, &space, &claim) && fstat(fd, &about) == 0 &&
           survey->now_ms - wall_ms(&about.st_mtim) >= survey->older_ms;
}

static int survey_folder(Survey *survey, int parent_fd, const char *name, int depth,
                         bool *out_empty);

static int survey_entry(Survey *survey, int fd, const char *name, int depth, bool *empty) {
    bool mark = name[0] == '+' || name[0] == '@';
    size_t at = strlen(survey->key);
    bool gone = false;
    int rc = 0;
    if (mark || name[0] == '.' || depth >= RELAY_KEY_BYTES / 2) {
        *empty = false;
        if (mark && survey->visit && push(survey, name + 1))
            rc = show(survey, survey->key, name[0] == '@', fd, name);
    } else if (push(survey, name)) {
        rc = survey_folder(survey, fd, name, depth + 1, &gone);
        *empty = *empty && gone;
    } else {
        *empty = false;
    }
    survey->key[at] = '\0';
    return rc < 0 ? rc : 0;
}

/* Everything below the folder of survey->key. *out_gone: it is (or would be) removed. */
static int survey_folder(Survey *survey, int parent_fd, const char *name, int depth,
                         bool *out_gone) {
    int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    *out_gone = false;
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : -1;
    bool old = !survey->visit && is_old_place(survey, fd); /* before removals below make it young */
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return -1;
    }
    size_t at = strlen(survey->key);
    bool empty = true;
    int rc = 0;
    if (at > 0)
        memcpy(survey->key + at, "/", 2); /* push leaves room for it */
    for (struct dirent *entry; rc >= 0 && (errno = 0, entry = readdir(dir));) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rc = survey_entry(survey, fd, entry->d_name, depth, &empty);
    }
    rc = rc >= 0 && errno ? -1 : rc;
    survey->key[at] = '\0';
    closedir(dir);
    if (rc >= 0 && old && empty &&
        (survey->dry_run || unlinkat(parent_fd, name, AT_REMOVEDIR) == 0)) {
        survey->n_folders++;
        *out_gone = true;
    }
    return rc;
}

/* rc of a survey: -1 stands for errno, all else for an error that is set. */
static int ended(const Survey *survey, int rc) {
    return rc == -1 ? relay_file_error(survey->file, "walking through", "") : rc;
}

/* At and under the prefix. */
static int survey_prefix(Survey *survey, const char *prefix) {
    FilePlace place;
    bool gone;
    if (!prefix[0])
        return ended(survey, survey_folder(survey, AT_FDCWD, survey->file->root, 0, &gone));
    relay_file_place(survey->file, prefix, '+', &place);
    char *mark = place.path + place.dir_bytes + 1;
    if (survey->visit) {
        TRY(show(survey, prefix, false, AT_FDCWD, place.path));
        *mark = '@';
        TRY(show(survey, prefix, true, AT_FDCWD, place.path));
    }
    memmove(mark, mark + 1, strlen(mark));
    snprintf(survey->key, sizeof survey->key, "%s", prefix);
    return ended(survey, survey_folder(survey, AT_FDCWD, place.path, 0, &gone));
}

static int file_visit(Relay *relay, const char *prefix, RelayVisit visit, void *ctx) {
    Survey survey = {
        .file = (RelayFile *)relay, .visit = visit, .ctx = ctx, .now_ms = clock_wall_ms()};
    return survey_prefix(&survey, prefix);
}

static int file_sweep(Relay *relay, const char *prefix, int64_t older_ms, bool dry_run,
                      RelaySwept *out_swept) {
    Survey survey = {.file = (RelayFile *)relay,
                     .now_ms = clock_wall_ms(),
                     .older_ms = older_ms,
                     .dry_run = dry_run};
    int rc = survey_prefix(&survey, prefix);
    out_swept->n_folders = survey.n_folders;
    return rc;
}

/* ---- what the place is like ---- */

static const struct {
    long magic;
    const char *name;
    bool memory, network;
} systems[] = {
    {0x01021994, "tmpfs", true, false},  {0x858458F6, "ramfs", true, false},
    {0xEF53, "ext4", false, false},      {0x58465342, "xfs", false, false},
    {0x9123683E, "btrfs", false, false}, {0x794C7630, "overlayfs", false, false},
    {0x6969, "nfs", false, true},        {0xFF534D42, "cifs", false, true},
    {0xFE534D42, "smb2", false, true},   {0x65735546, "fuse", false, true},
    {0x01021997, "9p", false, true},
};

static void tell_system(const RelayFile *file, RelayTell tell, void *ctx) {
    struct statfs about;
    char value[128];
    const char *name = "another file system";
    bool memory = false;
    bool network = false;
    if (statfs(file->root, &about) < 0)
        return;
    for (size_t i = 0; i < sizeof systems / sizeof systems[0]; i++) {
        if (((unsigned long)about.f_type & 0xFFFFFFFFUL) != (unsigned long)systems[i].magic)
            continue;
        name = systems[i].name;
        memory = systems[i].memory;
        network = systems[i].network;
    }
    snprintf(value, sizeof value, "%s%s", name,
             memory ? ", in memory" : ": objects are written to a disk; /dev/shm is faster");
    tell(ctx, "file_system", value,
         network
             ? "what other machines write here is not noticed: workers on several machines need "
               "a relay that is a server, such as redis://"
             : NULL);
    tell(ctx, "persistence",
         memory ? "none: when the machine restarts all objects are lost, and the job goes on with "
                  "--resume latest"
                : "files, not synced: what the disk has not seen is lost with the power",
         NULL);
}

static void tell_space(const RelayFile *file, RelayTell tell, void *ctx) {
    struct statvfs about;
    char value[64];
    if (statvfs(file->root, &about) < 0)
        return;
    int64_t free_bytes = (int64_t)about.f_bavail * (int64_t)about.f_frsize;
    tell(ctx, "free", text_format_bytes(free_bytes, value, sizeof value),
         free_bytes < LITTLE_BYTES
             ? "less than 64 MiB are free: make room, or choose another directory"
             : NULL);
}

/* How many more instances this user may have, up to PROBED_INSTANCES: by taking them for a moment.
 */
static void tell_inotify(RelayTell tell, void *ctx) {
    int fds[PROBED_INSTANCES];
    int n = 0;
    char value[64];
    while (n < PROBED_INSTANCES && (fds[n] = inotify_init1(IN_CLOEXEC)) >= 0)
        n++;
    for (int i = 0; i < n; i++)
        close(fds[i]);
    snprintf(value, sizeof value, "%s%d more", n == PROBED_INSTANCES ? "at least " : "", n);
    tell(ctx, "inotify_instances", value,
         n < FEW_INSTANCES ? "each thread that waits takes one, and without it looks every 5 ms: "
                             "raise fs.inotify.max_user_instances"
                           : NULL);
}

static int file_about(Relay *relay, RelayTell tell, void *ctx) {
    const RelayFile *file = (const RelayFile *)relay;
    tell(ctx, "directory", file->root, NULL);
    tell_system(file, tell, ctx);
    tell_space(file, tell, ctx);
    tell_inotify(tell, ctx);
    return 0;
}

const RelaySurvey relay_file_survey = {
    .visit = file_visit, .sweep = file_sweep, .about = file_about};

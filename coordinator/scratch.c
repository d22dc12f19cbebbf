#include "coordinator/scratch.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "coordinator/outputs.h"
#include "core/err.h"
#include "core/text.h"

static const char prefix[] = "funcpipe-";

enum { N_PLACES = 3 };
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

int scratch_make(int64_t want_bytes, char *out_path, size_t out_bytes) {
    char path[PATH_MAX];
    char wanted[32];
    for (int i = 0; i < N_PLACES; i++) {
        int n = snprintf(path, sizeof path, "%s/%s%lld-XXXXXX", place_of(i), prefix,
                         (long long)getpid());
        if (n < 0 || (size_t)n >= sizeof path || free_bytes(place_of(i)) < want_bytes)
            continue;
        if (mkdtemp(path))
            return text_copy(out_path, out_bytes, path);
    }
    return err_set(ERR_FULL, "no room for a relay of %s in /dev/shm, %s or /tmp",
                   text_format_bytes(want_bytes, wanted, sizeof wanted), place_of(1));
}

/* The process a folder belongs to; 0: it is none of ours. */
static int64_t owner_of(const char *name) {
    char digits[24];
    int64_t pid = 0;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return 0;
    name += sizeof prefix - 1;
    size_t length = strspn(name, "0123456789");
    if (length == 0 || length >= sizeof digits || name[length] != '-')
        return 0;
    memcpy(digits, name, length);
    digits[length] = '\0';
    return text_parse_i64(digits, 1, INT32_MAX, &pid) < 0 ? 0 : pid;
}

static int clean_place(const char *place) {
    char path[PATH_MAX];
    struct stat about;
    int n_removed = 0;
    DIR *dir = opendir(place);
    if (!dir)
        return 0;
    for (const struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        int64_t pid = owner_of(entry->d_name);
        int n = snprintf(path, sizeof path, "%s/%s", place, entry->d_name);
        if (pid == 0 || n < 0 || (size_t)n >= sizeof path || lstat(path, &about) < 0 ||
            !S_ISDIR(about.st_mode) || about.st_uid != geteuid() || kill((pid_t)pid, 0) == 0 ||
            errno != ESRCH)
            continue;
        n_removed += outputs_remove_tree(path) >= 0;
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

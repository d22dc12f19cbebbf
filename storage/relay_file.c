/* The relay of one machine: objects are files, see relay_file.h for their names. */
#include "storage/relay_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"

#define TEMPORARY_PREFIX ".tmp-"

/* ---- places ---- */

void relay_file_place(const RelayFile *file, const char *key, char mark, FilePlace *out_place) {
    size_t root_bytes = strlen(file->root);
    size_t key_bytes = strlen(key);
    const char *slash = strrchr(key, '/');
    size_t dirs_bytes = slash ? (size_t)(slash - key) + 1 : 0; /* with its '/' */
    char *at = out_place->path;
    memcpy(at, file->root, root_bytes);
    at += root_bytes;
    *at++ = '/';
    memcpy(at, key, dirs_bytes);
    at += dirs_bytes;
    out_place->dir_bytes = (size_t)(at - out_place->path) - 1;
    *at++ = mark;
    memcpy(at, key + dirs_bytes, key_bytes - dirs_bytes + 1);
}

int relay_file_make_dirs(const RelayFile *file, const FilePlace *place) {
    char dir[PATH_MAX];
    memcpy(dir, place->path, place->dir_bytes);
    dir[place->dir_bytes] = '\0';
    for (size_t end = strlen(file->root); end <= place->dir_bytes; end++) {
        if (end < place->dir_bytes && dir[end] != '/')
            continue;
        char kept = dir[end];
        dir[end] = '\0';
        if (mkdir(dir, 0700) < 0 && errno != EEXIST)
            return -1;
        dir[end] = kept;
    }
    return 0;
}

int relay_file_error(const RelayFile *file, const char *doing, const char *key) {
    int errnum = errno;
    int code = errnum == ENOSPC || errnum == EDQUOT || errnum == EFBIG     ? ERR_FULL
               : errnum == ENOENT || errnum == ENOTDIR || errnum == EACCES ? ERR_UNREACHABLE
                                                                           : ERR_IO;
    return err_errno(code, errnum, "%s '%s' in file://%s", doing, key, file->root);
}

/* ---- writing ---- */

typedef struct Writing {
    int fd;
    char path[PATH_MAX]; /* of the temporary file; "" when it has no name */
} Writing;

/* A temporary file under a name, locked. The loops are for one who clears away dead writers' files
 * (clear_temporaries) and comes between open and lock. */
static int open_named(RelayFile *file, Writing *out_writing) {
    for (int tries = 0; tries < RELAY_FILE_TRIES; tries++) {
        snprintf(out_writing->path, sizeof out_writing->path, "%.*s/" TEMPORARY_PREFIX "%llx-%llx",
                 PATH_MAX - 64, file->root, (unsigned long long)file->random,
                 (unsigned long long)file->n_temporaries++);
        int fd = open(out_writing->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0)
            return -1;
        struct stat about;
        bool locked = flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; /* or no locks */
        if (locked && fstat(fd, &about) == 0 && about.st_nlink > 0) {
            out_writing->fd = fd;
            return 0;
        }
        close(fd);
    }
    errno = EBUSY;
    return -1;
}

static int open_writing(RelayFile *file, bool named, Writing *out_writing) {
    out_writing->path[0] = '\0';
    if (named)
        return open_named(file, out_writing);
    out_writing->fd = open(file->root, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    return out_writing->fd < 0 ? -1 : 0;
}

/* Start a file; a root that was removed is made again. */
static int begin_writing(RelayFile *file, const char *key, bool named, Writing *out_writing) {
    if (open_writing(file, named, out_writing) == 0)
        return 0;
    if (errno == ENOENT && (mkdir(file->root, 0700) == 0 || errno == EEXIST) &&
        open_writing(file, named, out_writing) == 0)
        return 0;
    return relay_file_error(file, "creating", key);
}

static void end_writing(Writing *writing) {
    if (writing->path[0])
        unlink(writing->path);
    close(writing->fd);
}

/* Write all; -1 with errno (ETIMEDOUT: the deadline passed between two writes). */
static int write_all(int fd, struct iovec *parts, int n_parts, int64_t deadline_ns) {
    while (n_parts > 0) {
        ssize_t n = writev(fd, parts, n_parts);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        while (n_parts > 0 && (size_t)n >= parts->iov_len) {
            n -= (ssize_t)parts->iov_len;
            parts++;
            n_parts--;
        }
        if (n_parts == 0)
            return 0;
        parts->iov_base = (char *)parts->iov_base + n;
        parts->iov_len -= (size_t)n;
        if (clock_now_ns() >= deadline_ns) {
            errno = ETIMEDOUT;
            return -1;
        }
    }
    return 0;
}

static int write_parts(RelayFile *file, const char *key, int fd, const Slice *parts, int n_parts,
                       int64_t deadline_ns) {
    struct iovec vectors[RELAY_MAX_PARTS];
    int n_vectors = 0;
    for (int i = 0; i < n_parts; i++) {
        if (parts[i].bytes > 0) /* writev only reads: the const may go */
            vectors[n_vectors++] = (struct iovec){(void *)(uintptr_t)parts[i].data, parts[i].bytes};
    }
    int rc = write_all(fd, vectors, n_vectors, deadline_ns);
    if (rc < 0 && errno == ETIMEDOUT)
        return err_set(ERR_TIMEOUT, "putting '%s' in file://%s: the deadline passed", key,
                       file->root);
    return rc < 0 ? relay_file_error(file, "writing", key) : 0;
}

/* Give the complete file its key: 0, or 1 when the key has a file already. */
static int link_in(RelayFile *file, const char *key, const Writing *writing,
                   const FilePlace *place) {
    char from[64];
    snprintf(from, sizeof from, "/proc/self/fd/%d", writing->fd);
    const char *source = writing->path[0] ? writing->path : from;
    for (int tries = 0;; tries++) {
        if (linkat(AT_FDCWD, source, AT_FDCWD, place->path, AT_SYMLINK_FOLLOW) == 0)
            return 0;
        if (errno == EEXIST)
            return 1;
        if (errno != ENOENT || tries == RELAY_FILE_TRIES)
            return relay_file_error(file, "linking", key);
        if (relay_file_make_dirs(file, place) < 0 && errno != ENOENT)
            return relay_file_error(file, "making the directory of", key);
    }
}

int relay_file_publish(RelayFile *file, const char *key, const FilePlace *place, const Slice *parts,
                       int n_parts, int64_t deadline_ns) {
    Writing writing;
    TRY(begin_writing(file, key, !file->unnamed, &writing));
    int rc = write_parts(file, key, writing.fd, parts, n_parts, deadline_ns);
    if (rc >= 0)
        rc = link_in(file, key, &writing, place);
    end_writing(&writing);
    return rc;
}

static int file_put(Relay *relay, const char *key, const Slice *parts, int n_parts,
                    int64_t deadline_ns) {
    RelayFile *file = (RelayFile *)relay;
    FilePlace place;
    relay_file_place(file, key, '+', &place);
    if (access(place.path, F_OK) == 0)
        return 1;
    return relay_file_publish(file, key, &place, parts, n_parts, deadline_ns);
}

/* ---- reading ---- */

/* Read `bytes` bytes, or fewer where the file ends. */
static ssize_t read_all(int fd, void *buf, size_t bytes) {
    size_t at = 0;
    while (at < bytes) {
        ssize_t n = read(fd, (char *)buf + at, bytes - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        at += (size_t)n;
    }
    return (ssize_t)at;
}

static int size_of(RelayFile *file, const char *key, int fd, size_t *out_bytes) {
    struct stat about;
    if (fstat(fd, &about) < 0)
        return relay_file_error(file, "looking at", key);
    if (!S_ISREG(about.st_mode))
        return err_set(ERR_CORRUPT, "'%s' in file://%s is not a plain file", key, file->root);
    *out_bytes = (size_t)about.st_size;
    return 0;
}

static int read_object(RelayFile *file, const char *key, int fd, void *buf, size_t capacity,
                       size_t *out_bytes) {
    size_t bytes = 0;
    TRY(size_of(file, key, fd, &bytes));
    if (bytes > capacity)
        return err_set(ERR_LIMIT, "the object '%s' in file://%s has %zu bytes, room for %zu", key,
                       file->root, bytes, capacity);
    ssize_t n = read_all(fd, buf, bytes);
    if (n < 0)
        return relay_file_error(file, "reading", key);
    if ((size_t)n != bytes)
        return err_set(ERR_CORRUPT, "the object '%s' in file://%s ended after %zd of %zu bytes",
                       key, file->root, n, bytes);
    *out_bytes = bytes;
    return 0;
}

static int file_get(Relay *relay, const char *key, void *buf, size_t capacity, int64_t deadline_ns,
                    size_t *out_bytes) {
    RelayFile *file = (RelayFile *)relay;
    int fd = relay_file_await(file, key, deadline_ns);
    if (fd < 0)
        return fd;
    int rc = read_object(file, key, fd, buf, capacity, out_bytes);
    close(fd);
    return rc;
}

static int file_size(Relay *relay, const char *key, int64_t deadline_ns, size_t *out_bytes) {
    RelayFile *file = (RelayFile *)relay;
    int fd = relay_file_await(file, key, deadline_ns);
    if (fd < 0)
        return fd;
    int rc = size_of(file, key, fd, out_bytes);
    close(fd);
    return rc;
}

static int file_has(Relay *relay, const char *key) {
    RelayFile *file = (RelayFile *)relay;
    FilePlace place;
    relay_file_place(file, key, '+', &place);
    if (access(place.path, F_OK) == 0)
        return 1;
    return errno == ENOENT ? 0 : relay_file_error(file, "looking for", key);
}

/* ---- drop and count ---- */

typedef struct Walk {
    bool drop;
    int64_t n_objects, n_notes; /* dropped, or there */
} Walk;

static bool remove_one(int dir_fd, const char *name) {
    return unlinkat(dir_fd, name, 0) == 0;
}

/* Everything below directory `name`; a directory or file that is gone by now is no error. */
static int walk(Walk *about, int parent_fd, const char *name, int depth) {
    int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : -1;
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return -1;
    }
    int rc = 0;
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry) {
            rc = errno ? -1 : 0;
            break;
        }
        if (entry->d_name[0] == '.')
            continue;
        if (entry->d_name[0] == '+')
            about->n_objects += !about->drop || remove_one(fd, entry->d_name);
        else if (entry->d_name[0] == '@')
            about->n_notes += !about->drop || remove_one(fd, entry->d_name);
        else if (entry->d_name[0] == '=')
            rc = about->drop ? relay_file_drop_sum(fd, entry->d_name) : 0;
        else if (depth < RELAY_KEY_BYTES)
            rc = walk(about, fd, entry->d_name, depth + 1);
        if (rc < 0)
            break;
    }
    int errnum = errno;
    closedir(dir);
    /* ENOTEMPTY: a late put came in between, and stays. */
    if (rc >= 0 && about->drop && unlinkat(parent_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT &&
        errno != ENOTEMPTY && errno != EEXIST)
        return -1;
    errno = errnum;
    return rc;
}

static int walk_prefix(RelayFile *file, const char *prefix, Walk *about) {
    if (!prefix[0])
        return walk(about, AT_FDCWD, file->root, 0) < 0
                   ? relay_file_error(file, "walking through", "")
                   : 0;
    FilePlace place;
    relay_file_place(file, prefix, '+', &place);
    if (about->drop ? unlink(place.path) == 0 : access(place.path, F_OK) == 0)
        about->n_objects++;
    char *mark = place.path + place.dir_bytes + 1;
    *mark = '@';
    if (about->drop && unlink(place.path) == 0)
        about->n_notes++;
    *mark = '=';
    if (about->drop && relay_file_drop_sum(AT_FDCWD, place.path) < 0)
        return relay_file_error(file, "dropping the contributions to", prefix);
    memmove(mark, mark + 1, strlen(mark));
    if (walk(about, AT_FDCWD, place.path, 0) < 0)
        return relay_file_error(file, about->drop ? "dropping" : "counting", prefix);
    return 0;
}

/* A prefix is a place: each costs a look for an object and a note of that name and a walk through
 * what lies below, and nothing beside it is touched. */
static int file_drop(Relay *relay, const char *const *prefixes, int n_prefixes,
                     int64_t *out_dropped) {
    Walk about = {.drop = true};
    for (int i = 0; i < n_prefixes; i++)
        TRY(walk_prefix((RelayFile *)relay, prefixes[i], &about));
    *out_dropped = about.n_objects + about.n_notes;
    return 0;
}

static int file_count(Relay *relay, const char *prefix, int64_t *out_count) {
    Walk about = {.drop = false};
    TRY(walk_prefix((RelayFile *)relay, prefix, &about));
    *out_count = about.n_objects;
    return 0;
}

/* ---- notes ---- */

/* In front of a note's bytes. Times are those since boot: they do not jump, and after a boot every
 * older note has more than its time to live left, which tells it apart. */
typedef struct NoteHeader {
    char magic[4];
    uint32_t bytes;
    int64_t expires_ns, ttl_ns;
} NoteHeader;

static const char note_magic[4] = {'F', 'P', 'N', '1'};

static int64_t boot_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * CLOCK_NS_PER_S + now.tv_nsec;
}

static int rename_in(RelayFile *file, const char *key, Writing *writing, const FilePlace *place) {
    for (int tries = 0;; tries++) {
        if (rename(writing->path, place->path) == 0) {
            writing->path[0] = '\0';
            return 0;
        }
        if (errno != ENOENT || tries == RELAY_FILE_TRIES)
            return relay_file_error(file, "renaming the note", key);
        if (relay_file_make_dirs(file, place) < 0 && errno != ENOENT)
            return relay_file_error(file, "making the directory of", key);
    }
}

static int file_note_put(Relay *relay, const char *key, const void *data, size_t bytes,
                         int64_t ttl_ms) {
    RelayFile *file = (RelayFile *)relay;
    int64_t now = boot_ns();
    int64_t most = (INT64_MAX - now) / CLOCK_NS_PER_MS;
    int64_t ttl_ns = (ttl_ms < most ? ttl_ms : most) * CLOCK_NS_PER_MS;
    NoteHeader header = {.bytes = (uint32_t)bytes, .expires_ns = now + ttl_ns, .ttl_ns = ttl_ns};
    memcpy(header.magic, note_magic, sizeof note_magic);
    FilePlace place;
    relay_file_place(file, key, '@', &place);
    Writing writing;
    TRY(begin_writing(file, key, true, &writing));
    Slice parts[] = {{&header, sizeof header}, {data, bytes}};
    int rc = write_parts(file, key, writing.fd, parts, 2, CLOCK_NEVER);
    if (rc >= 0)
        rc = rename_in(file, key, &writing, &place);
    end_writing(&writing);
    return rc;
}

static int check_note(RelayFile *file, const char *key, const NoteHeader *header, size_t bytes,
                      size_t capacity) {
    int64_t rest = header->expires_ns - boot_ns();
    if (bytes < sizeof *header || memcmp(header->magic, note_magic, sizeof note_magic) != 0 ||
        header->bytes != bytes - sizeof *header)
        return err_set(ERR_CORRUPT, "the note '%s' in file://%s is no note", key, file->root);
    if (rest <= 0 || rest > header->ttl_ns)
        return err_set(ERR_NOT_FOUND, "the note '%s' in file://%s expired", key, file->root);
    if (header->bytes > capacity)
        return err_set(ERR_LIMIT, "the note '%s' in file://%s has %u bytes, room for %zu", key,
                       file->root, header->bytes, capacity);
    return 0;
}

static int file_note_get(Relay *relay, const char *key, void *buf, size_t capacity,
                         size_t *out_bytes) {
    RelayFile *file = (RelayFile *)relay;
    FilePlace place;
    relay_file_place(file, key, '@', &place);
    int fd = open(place.path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return err_set(ERR_NOT_FOUND, "file://%s has no note '%s'", file->root, key);
    if (fd < 0)
        return relay_file_error(file, "opening the note", key);
    struct {
        NoteHeader header;
        char data[RELAY_NOTE_MAX_BYTES + 1];
    } note = {0};
    ssize_t n = read_all(fd, &note, sizeof note.header + sizeof note.data);
    int rc = n < 0 ? relay_file_error(file, "reading the note", key) : 0;
    close(fd);
    TRY(rc);
    TRY(check_note(file, key, &note.header, (size_t)n, capacity));
    if (note.header.bytes > 0)
        memcpy(buf, note.data, note.header.bytes);
    *out_bytes = note.header.bytes;
    return 0;
}

/* ---- handle ---- */

static void file_interrupt(Relay *relay, bool on) {
    RelayFile *file = (RelayFile *)relay;
    uint64_t one = 1;
    atomic_store(&file->interrupted, on);
    ssize_t n = on ? write(file->wake_fd, &one, sizeof one) : read(file->wake_fd, &one, sizeof one);
    (void)n; /* EAGAIN: it is in the state asked for */
}

/* Temporary files that nobody holds are of writers that died. */
static void clear_temporaries(const RelayFile *file) {
    DIR *dir = opendir(file->root);
    if (!dir)
        return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (strncmp(entry->d_name, TEMPORARY_PREFIX, sizeof TEMPORARY_PREFIX - 1) != 0)
            continue;
        int fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            unlinkat(dirfd(dir), entry->d_name, 0);
        close(fd);
    }
    closedir(dir);
}

static void file_tidy(Relay *relay, const char *prefix) {
    RelayFile *file = (RelayFile *)relay;
    FilePlace place;
    char folder[RELAY_KEY_BYTES];
    snprintf(folder, sizeof folder, "%s", prefix);
    char *end = folder + strlen(folder);
    do { /* and those above */
        *end = '\0';
        relay_file_place(file, folder, '+', &place);
        char *name = place.path + place.dir_bytes + 1;
        memmove(name, name + 1, strlen(name));
        rmdir(place.path); /* fails where there is something in it */
        end = strrchr(folder, '/');
    } while (end);
    clear_temporaries(file);
    if (file->made_root)
        rmdir(file->root);
}

static void file_close(Relay *relay) {
    RelayFile *file = (RelayFile *)relay;
    clear_temporaries(file);
    if (file->inotify_fd >= 0)
        close(file->inotify_fd);
    if (file->wake_fd >= 0)
        close(file->wake_fd);
    free(file);
}

/* Can files be written without a name here, and be given one later? */
static bool probe_unnamed(const RelayFile *file) {
    int fd = open(file->root, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    bool ok = access(path, F_OK) == 0;
    close(fd);
    return ok;
}

/* The real path, to be freed; the loop is for one that is removed, empty, just now (file_tidy). */
static char *make_root(RelayFile *file, const char *directory) {
    for (int tries = 0; tries < RELAY_FILE_TRIES; tries++) {
        file->made_root = mkdir(directory, 0700) == 0;
        if (!file->made_root && errno != EEXIST)
            return NULL;
        char *real = realpath(directory, NULL);
        if (real || errno != ENOENT)
            return real;
    }
    return NULL;
}

static int open_root(RelayFile *file, const char *directory) {
    char *real = make_root(file, directory);
    if (!real)
        return err_errno(ERR_UNREACHABLE, errno, "the relay directory '%s'", directory);
    size_t length = strlen(real);
    bool fits = length < sizeof file->root - RELAY_KEY_BYTES - 64;
    if (fits)
        memcpy(file->root, real, length + 1);
    free(real);
    if (!fits)
        return err_set(ERR_ARGUMENT, "the path of the relay directory '%.60s...' is too long",
                       directory);
    struct stat about;
    if (stat(file->root, &about) < 0)
        return err_errno(ERR_UNREACHABLE, errno, "the relay directory '%s'", file->root);
    if (!S_ISDIR(about.st_mode))
        return err_set(ERR_UNREACHABLE, "the relay '%s' is not a directory", file->root);
    if (strcmp(file->root, "/") == 0)
        return err_set(ERR_ARGUMENT, "the relay may not be '/': give it a directory of its own");
    if (access(file->root, R_OK | W_OK | X_OK) < 0)
        return err_errno(ERR_UNREACHABLE, errno, "the relay directory '%s'", file->root);
    return 0;
}

int relay_file_open(const char *directory, Relay **out_relay) {
    static const RelayOps ops = {.name = "file",
                                 .close = file_close,
                                 .tidy = file_tidy,
                                 .put = file_put,
                                 .add = relay_file_add,
                                 .get = file_get,
                                 .size = file_size,
                                 .has = file_has,
                                 .drop = file_drop,
                                 .count = file_count,
                                 .note_put = file_note_put,
                                 .note_get = file_note_get,
                                 .interrupt = file_interrupt,
                                 .survey = &relay_file_survey};
    RelayFile *file = calloc(1, sizeof *file);
    if (!file)
        return err_set(ERR_MEMORY, "a handle of the relay '%s'", directory);
    file->base.ops = &ops;
    file->inotify_fd = file->watch = -1;
    int rc = 0;
    file->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (file->wake_fd < 0 ||
        getrandom(&file->random, sizeof file->random, 0) != (ssize_t)sizeof file->random) {
        rc = err_errno(ERR_IO, errno, "opening the relay '%s'", directory);
        goto done;
    }
    TRY_DONE(open_root(file, directory));
    file->unnamed = probe_unnamed(file);
    clear_temporaries(file);
    *out_relay = &file->base;
    file = NULL;
done:
    if (file)
        file_close(&file->base);
    return rc;
}

void relay_file_forbid_unnamed(Relay *relay) {
    ((RelayFile *)relay)->unnamed = false;
}

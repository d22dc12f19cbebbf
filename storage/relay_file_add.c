/* Sums in the file relay. Contributions are write-once files; whoever finds all of them there, its
 * own and those of others, makes the sum and publishes it as the object, once. So one that dies
 * leaves nothing half-done: its successor adds again, finds its contribution there, and goes on
 * from it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/err.h"
#include "storage/relay_file.h"
#include "storage/sum.h"

#define FORM_NAME "form"

typedef struct FileSum {
    RelayFile *file;
    const char *key;
    int n;
    FilePlace object, dir; /* dir.path is a folder: its contributions */
} FileSum;

/* Where a file of the sum lies: a contribution, or its form (index -1). */
static FilePlace place_in(const FileSum *sum, int index) {
    FilePlace place = sum->dir;
    place.dir_bytes = strlen(place.path);
    char *at = place.path + place.dir_bytes;
    size_t room = sizeof place.path - place.dir_bytes;
    if (index < 0)
        snprintf(at, room, "/" FORM_NAME);
    else
        snprintf(at, room, "/%d", index);
    return place;
}

static bool is_there(const FilePlace *place) {
    return access(place->path, F_OK) == 0;
}

int relay_file_drop_sum(int parent_fd, const char *name) {
    int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : -1;
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return -1;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] != '.')
            unlinkat(fd, entry->d_name, 0);
    }
    closedir(dir);
    bool gone = unlinkat(parent_fd, name, AT_REMOVEDIR) == 0;
    /* ENOTEMPTY: one came in between, and stays. */
    return gone || errno == ENOENT || errno == ENOTEMPTY || errno == EEXIST ? 0 : -1;
}

/* ---- the form, which the first contribution sets ---- */

/* 1 and the form, or 0: there is none (yet, or any more). */
static int read_form(const FileSum *sum, SumForm *out_form) {
    FilePlace place = place_in(sum, -1);
    int fd = open(place.path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0)
        return relay_file_error(sum->file, "opening the form of the sum", sum->key);
    ssize_t n = read(fd, out_form, sizeof *out_form);
    close(fd);
    return n == (ssize_t)sizeof *out_form
               ? 1
               : err_set(ERR_CORRUPT, "the form of the sum '%s' in file://%s has %zd bytes",
                         sum->key, sum->file->root, n);
}

/* Fits the contribution the first one, or is it that? The form is a file of its own, so that of
 * two first ones one is the first. */
static int agree(const FileSum *sum, int index, const SumForm *form, int64_t deadline_ns) {
    SumForm first = {0};
    FilePlace place = place_in(sum, -1);
    Slice content = {form, sizeof *form};
    int there = is_there(&place);
    if (!there)
        there = relay_file_publish(sum->file, sum->key, &place, &content, 1, deadline_ns);
    if (there == 1)
        there = read_form(sum, &first);
    TRY(there);
    return there ? sum_check_form(sum->key, index, form, &first) : 0;
}

/* ---- a contribution ---- */

/* An earlier attempt's contribution stays, but it must have been one of as many. */
static int check_earlier(const FileSum *sum, int index) {
    SumForm first = {0};
    int there = read_form(sum, &first);
    if (there > 0 && first.n != sum->n) {
        SumForm form = {.n = sum->n};
        return sum_check_form(sum->key, index, &form, &first);
    }
    return there < 0 ? there : 1;
}

static int contribute(const FileSum *sum, int index, Slice blob, int64_t deadline_ns) {
    FilePlace place = place_in(sum, index);
    SumForm form = {0};
    if (is_there(&place))
        return check_earlier(sum, index);
    TRY(sum_check(sum->key, index, sum->n, blob.data, blob.bytes, &form));
    TRY(agree(sum, index, &form, deadline_ns));
    return relay_file_publish(sum->file, sum->key, &place, &blob, 1, deadline_ns);
}

/* ---- the sum ---- */

static bool all_there(const FileSum *sum) {
    for (int i = 0; i < sum->n; i++) {
        FilePlace place = place_in(sum, i);
        if (!is_there(&place))
            return false;
    }
    return true;
}

/* 1 and *out_sum is complete; 0: a contribution has gone, with the sum made or dropped by others.
 */
static int add_all(const FileSum *sum, Sum *out_sum) {
    Buf buf;
    int rc = 0;
    buf_init(&buf, SUM_MAX_PART_BYTES);
    for (int i = 0; i < sum->n; i++) {
        FilePlace place = place_in(sum, i);
        buf_clear(&buf);
        rc = buf_read_file(&buf, place.path, SUM_MAX_PART_BYTES);
        if (rc == ERR_NOT_FOUND)
            break;
        TRY_DONE(rc);
        TRY_DONE(sum_add(out_sum, i, sum->n, buf_string(&buf), buf.bytes));
    }
    rc = rc == ERR_NOT_FOUND ? 0 : 1;
done:
    buf_done(&buf);
    return rc;
}

static int make_sum(const FileSum *sum, int64_t deadline_ns) {
    Sum *made = NULL;
    TRY(sum_open(sum->key, sum->n, 0, NULL, &made));
    int rc = add_all(sum, made);
    if (rc == 1) {
        Slice sealed = sum_prefix(made, NULL);
        rc = relay_file_publish(sum->file, sum->key, &sum->object, &sealed, 1, deadline_ns);
        if (rc == 0) /* not when another one did: what is there may be of a sum made anew */
            relay_file_drop_sum(AT_FDCWD, sum->dir.path);
    }
    sum_close(made);
    return rc < 0 ? rc : 0;
}

/* The sum was made while this contribution was under way, and needs it no longer. */
static void take_back(const FileSum *sum, int index) {
    FilePlace place = place_in(sum, index);
    FilePlace form = place_in(sum, -1);
    unlink(place.path);
    if (rmdir(sum->dir.path) < 0) {
        unlink(form.path);
        rmdir(sum->dir.path);
    }
}

static int add_blob(const FileSum *sum, int index, Slice blob, int64_t deadline_ns) {
    int counted = contribute(sum, index, blob, deadline_ns);
    TRY(counted);
    if (all_there(sum))
        TRY(make_sum(sum, deadline_ns));
    else if (is_there(&sum->object))
        take_back(sum, index);
    return counted;
}

int relay_file_add(Relay *relay, const char *key, int index, int n, const Slice *parts, int n_parts,
                   int64_t deadline_ns) {
    FileSum sum = {.file = (RelayFile *)relay, .key = key, .n = n};
    relay_file_place(sum.file, key, '+', &sum.object);
    relay_file_place(sum.file, key, '=', &sum.dir);
    if (is_there(&sum.object))
        return 1;
    if (n_parts == 1)
        return add_blob(&sum, index, parts[0], deadline_ns);
    Buf whole;
    int rc = 0;
    buf_init(&whole, SUM_MAX_PART_BYTES);
    for (int i = 0; i < n_parts; i++)
        TRY_DONE(buf_add(&whole, parts[i].data, parts[i].bytes));
    rc = add_blob(&sum, index, (Slice){buf_string(&whole), whole.bytes}, deadline_ns);
done:
    buf_done(&whole);
    return rc;
}

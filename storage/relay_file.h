/* What the file relay's parts and its tests know of each other. In its directory, key a/b/c is
 *
 *     a/b/+c     the object: appears by link(2) when it is complete, never changes
 *     a/b/@c     the note: replaced by rename(2)
 *     a/b/=c/    a sum under way: files 0, 1, ... are its contributions, `form` what they have in
 *                common; it goes when the object has come
 *     .tmp-*     a file being written, locked by its writer; one without a lock is a dead writer's
 *                and goes when a handle is opened or closed
 *
 * so an object, a note, a sum and a sub-directory of one name do not meet. */
#ifndef FUNCPIPE_STORAGE_RELAY_FILE_H
#define FUNCPIPE_STORAGE_RELAY_FILE_H

#include <limits.h>
#include <stdatomic.h>

#include "storage/relay.h"

/* How often a put or wait makes directories anew that somebody else drops. */
enum { RELAY_FILE_TRIES = 1000 };

typedef struct RelayFile {
    Relay base;
    char root[PATH_MAX];
    bool made_root;  /* by this handle */
    bool unnamed;    /* the file system can write files that have no name yet (O_TMPFILE) */
    uint64_t random; /* with n_temporaries: names of temporary files */
    uint64_t n_temporaries;
    atomic_bool interrupted;
    int wake_fd;    /* eventfd, readable while interrupted */
    int inotify_fd; /* -1 before the first wait */
    int watch;      /* of watched_dir; -1: none */
    char watched_dir[PATH_MAX];
} RelayFile;

/* Where a key's object ('+'), note ('@') or sum ('=') lies. */
typedef struct FilePlace {
    char path[PATH_MAX];
    size_t dir_bytes; /* path up to the last '/', without it */
} FilePlace;

void relay_file_place(const RelayFile *file, const char *key, char mark, FilePlace *out_place);
/* Make the place's directory and those above it, the root included. -1 with errno; ENOENT means
 * that somebody drops them just now. */
int relay_file_make_dirs(const RelayFile *file, const FilePlace *place);
/* Write a file and give it the place, unless one is there: 0, or 1. */
int relay_file_publish(RelayFile *file, const char *key, const FilePlace *place, const Slice *parts,
                       int n_parts, int64_t deadline_ns);
int relay_file_add(Relay *relay, const char *key, int index, int n, const Slice *parts, int n_parts,
                   int64_t deadline_ns);
/* Remove a sum's folder and what is in it; none is no error. -1 with errno. */
int relay_file_drop_sum(int parent_fd, const char *name);
/* Open the object for reading, waiting until it is there: file descriptor, or the error. */
int relay_file_await(RelayFile *file, const char *key, int64_t deadline_ns);
/* The error of errno: ERR_FULL, ERR_UNREACHABLE or ERR_IO. */
int relay_file_error(const RelayFile *file, const char *doing, const char *key);
extern const struct RelaySurvey relay_file_survey;
/* For tests: work as where O_TMPFILE is unknown. */
void relay_file_forbid_unnamed(Relay *relay);

#endif

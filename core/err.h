/* Errors. A function that can fail returns int: >= 0 worked, < 0 is one of the codes below.
 * The failure is described once, where it is first noticed, in a thread-local note:
 *
 *     return err_set(ERR_CORRUPT, "blob '%s': checksum %08x, expected %08x", key, got, want);
 *
 * Callers pass the code on with TRY(), or leave through one `done:` label, and may put words in
 * front with err_context(). Log or return, never both. A thread that ends with an error copies its
 * note (err_copy) to whoever joins it (err_restore). */
#ifndef FUNCPIPE_CORE_ERR_H
#define FUNCPIPE_CORE_ERR_H

#include <stdbool.h>
#include <stddef.h>

/*        name          value  http  retry  sentence */
#define ERR_TABLE(X)                                                                               \
    X(ERR_ARGUMENT, -1, 400, false, "an argument or a configuration value is wrong")               \
    X(ERR_FORMAT, -2, 400, false, "the text or file does not have the expected form")              \
    X(ERR_CORRUPT, -3, 500, true, "stored bytes are damaged")                                      \
    X(ERR_NOT_FOUND, -4, 404, false, "the thing asked for does not exist")                         \
    X(ERR_EXISTS, -5, 409, false, "it exists already with other content")                          \
    X(ERR_LIMIT, -6, 413, false, "a size is beyond the allowed limit")                             \
    X(ERR_MEMORY, -7, 507, true, "memory could not be had")                                        \
    X(ERR_IO, -8, 500, true, "reading or writing failed")                                          \
    X(ERR_FULL, -9, 507, true, "the store or disk is full")                                        \
    X(ERR_TIMEOUT, -10, 504, true, "a deadline passed")                                            \
    X(ERR_CANCELLED, -11, 499, false, "the work was cancelled")                                    \
    X(ERR_UNREACHABLE, -12, 503, true, "the peer cannot be reached")                               \
    X(ERR_AUTH, -13, 401, false, "the credentials were refused")                                   \
    X(ERR_INFEASIBLE, -14, 422, false, "no plan satisfies the limits")                             \
    X(ERR_DIVERGED, -15, 500, false, "the training diverged (loss or gradient not finite)")        \
    X(ERR_SUPERSEDED, -16, 409, false, "another run of this worker has taken over")                \
    X(ERR_KILLED, -17, 500, true, "the worker was killed")                                         \
    X(ERR_UNSUPPORTED, -18, 501, false, "this build or device cannot do that")                     \
    X(ERR_WORKER, -19, 500, false, "a worker failed repeatedly")                                   \
    X(ERR_INTERNAL, -20, 500, false, "an internal rule was broken")

enum {
#define ERR_ENUM(name, value, http, retry, sentence) name = value,
    ERR_TABLE(ERR_ENUM)
#undef ERR_ENUM
};

enum { ERR_NOTE_BYTES = 1024 };
typedef struct ErrNote {
    int code;
    char text[ERR_NOTE_BYTES];
} ErrNote;

/* Set the calling thread's note and return `code`. Notes are texts for people: names, keys and
 * paths from outside may stand in them as they are, text_printable makes them harmless. */
int err_set(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Like err_set, adding ": " and the sentence of the C library's error number `errnum`. */
int err_errno(int code, int errnum, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Put "words: " in front of the note; returns `code` unchanged. */
int err_context(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The note of this thread; "" when nothing failed. Valid until the next err_ call here. */
const char *err_text(void);
/* Copy this thread's note out, and set it from a copy (returns the copy's code). */
void err_copy(ErrNote *out_note);
int err_restore(const ErrNote *note);

const char *err_name(int code);     /* "ERR_CORRUPT"; "ERR_UNKNOWN" for others */
const char *err_sentence(int code); /* the table's sentence */
int err_http(int code);             /* HTTP status */
bool err_retry(int code);           /* may a retry help? */
/* The code named `name`, or ERR_INTERNAL (to carry codes in JSON). */
int err_from_name(const char *name);

/* Lets compilers and analysers see that what these return is negative, so that they do not take an
 * output for unset behind TRY(). A code that is not one becomes ERR_INTERNAL. */
static inline int err_negative(int code) {
    return code < 0 ? code : ERR_INTERNAL;
}
#define err_set(...) err_negative((err_set)(__VA_ARGS__))
#define err_errno(...) err_negative((err_errno)(__VA_ARGS__))
#define err_context(...) err_negative((err_context)(__VA_ARGS__))

#define TRY(call)                                                                                  \
    do {                                                                                           \
        int try_rc_ = (call);                                                                      \
        if (try_rc_ < 0)                                                                           \
            return try_rc_;                                                                        \
    } while (0)
/* Like TRY for functions with a `done:` label and an `int rc` variable. */
#define TRY_DONE(call)                                                                             \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc < 0)                                                                                \
            goto done;                                                                             \
    } while (0)

#endif

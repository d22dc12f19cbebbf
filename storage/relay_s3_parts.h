/* What the S3 relay's files share; nobody else includes it. */
#ifndef FUNCPIPE_STORAGE_RELAY_S3_PARTS_H
#define FUNCPIPE_STORAGE_RELAY_S3_PARTS_H

#include "storage/relay_s3.h"
#include "storage/relay_survey.h"
#include "storage/s3_client.h"
#include "storage/s3_rhythm.h"

enum {
    S3_SINGLE_BYTES = 16 << 20, /* an object up to this is put by one request */
    S3_PIECE_BYTES = 8 << 20,   /* of a longer one that is put or got, many at a time */
    S3_HELD_BYTES = 256 << 10,  /* of an object whose size was asked for, kept for the get after */
    S3_OWN_TIME_MS = 10000,     /* for operations without a deadline of their own */
    S3_GRACE_MS = 5000          /* for what is there after a deadline */
};

typedef enum S3Create {
    S3_CREATE_UNKNOWN,
    S3_CREATE_CHECKED, /* the store refuses to overwrite when asked so */
    S3_CREATE_IGNORED  /* it does not: look first */
} S3Create;

typedef struct RelayS3 {
    Relay base;
    S3Url url;
    S3Client *client;
    S3Rhythm *rhythm;
    int wake_fd;
    atomic_bool interrupted;
    S3Create create;
    int n_unchecked; /* tries that the store did not refuse and ought to have */
    /* The object that was waited for last, in vain: who asks for it again goes on waiting. */
    char asked_key[RELAY_KEY_BYTES];   /* "" none */
    int64_t asked_ns, asked_missed_ns; /* when first, when last */
    /* The first bytes of the object whose size was asked for last. */
    char held_key[RELAY_KEY_BYTES], held_tag[S3_TAG_BYTES]; /* "" none */
    int64_t held_total;
    size_t held_bytes;
    char *held; /* S3_HELD_BYTES */
} RelayS3;

/* The name of a key's object 'o' or note 'n' in the bucket: PREFIX KEY/.o. No part of a key begins
 * with '.', so all at and under a key is what begins with PREFIX KEY/, and nothing else. */
typedef struct S3Name {
    char text[S3_NAME_BYTES];
} S3Name;
S3Name relay_s3_name(const RelayS3 *s3, char kind, const char *key);

/* One request with the usual limits of an operation without a deadline. */
int relay_s3_ask(RelayS3 *s3, S3Request *request);
/* An answer that is none of those that were expected. */
int relay_s3_odd(const RelayS3 *s3, const S3Answer *answer);

/* relay_s3_put.c: relay_s3_there also gives the size (1 there, 0 not). */
int relay_s3_put(Relay *relay, const char *key, const Slice *parts, int n_parts,
                 int64_t deadline_ns);
int relay_s3_there(RelayS3 *s3, const char *key, const S3Limits *limits, int64_t *out_bytes);

/* relay_s3_parallel.c: an object in pieces. relay_s3_put_long: 0 put, 1 it was there.
 * relay_s3_get_rest reads [first, bytes) into out: 1 done, 0 it is another one by now. */
int relay_s3_put_long(RelayS3 *s3, const char *key, const Slice *parts, int n_parts, size_t bytes,
                      int64_t deadline_ns);
int relay_s3_get_rest(RelayS3 *s3, const char *key, const char *tag, char *out, size_t first,
                      size_t bytes, const S3Limits *limits);

/* relay_s3_get.c */
int relay_s3_get(Relay *relay, const char *key, void *buf, size_t capacity, int64_t deadline_ns,
                 size_t *out_bytes);
int relay_s3_size(Relay *relay, const char *key, int64_t deadline_ns, size_t *out_bytes);

/* relay_s3_scan.c */
int relay_s3_drop(Relay *relay, const char *const *prefixes, int n_prefixes, int64_t *out_dropped);
int relay_s3_count(Relay *relay, const char *prefix, int64_t *out_count);
void relay_s3_tidy(Relay *relay, const char *prefix);
typedef struct S3Fact {
    int64_t bytes, modified_ms; /* by the store's clock, since 1970; -1: not told */
} S3Fact;
typedef int (*S3Visit)(void *ctx, char kind, const char *key, const S3Fact *fact);
/* Show all objects 'o' and notes 'n' at and under a key, and uploads in parts 'u' that were begun
 * and not ended (bytes: not told); < 0 ends it. */
int relay_s3_list(RelayS3 *s3, const char *under, S3Visit visit, void *ctx);
/* End uploads in parts under a key that are known to have begun so long ago (0: all) and were not
 * completed (dry_run: only count them). *out_n: also of those before an error. */
int relay_s3_end_uploads(RelayS3 *s3, const char *under, int64_t older_ms, bool dry_run,
                         int64_t *out_n);

/* relay_s3_survey.c */
extern const RelaySurvey relay_s3_survey;

/* relay_s3_note.c */
int relay_s3_note_put(Relay *relay, const char *key, const void *data, size_t bytes,
                      int64_t ttl_ms);
int relay_s3_note_get(Relay *relay, const char *key, void *buf, size_t capacity, size_t *out_bytes);

#endif

/* An S3 store in a thread of the test that misbehaves as told: objects in memory, multipart
 * uploads, listings by pages, conditional puts; no signatures are checked (the real store does
 * that), but the date in them is. Rules say which requests go wrong, and how. */
#ifndef FUNCPIPE_TESTS_S3_FAKE_H
#define FUNCPIPE_TESTS_S3_FAKE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum S3FakeWay {
    S3_FAKE_REFUSE,      /* `status` and `code`; it has not been done */
    S3_FAKE_CUT_BEFORE,  /* the connection is cut; it has not been done */
    S3_FAKE_CUT_AFTER,   /* done, and cut without an answer */
    S3_FAKE_CUT_HEADERS, /* done, and cut within the headers of the answer */
    S3_FAKE_CUT_BODY,    /* done, and cut within the body */
    S3_FAKE_GARBAGE,     /* done, and the answer's body is `code` */
    S3_FAKE_TRUNCATE,    /* done, and the answer's body is its first half, as if that were all */
    S3_FAKE_FLIP,        /* done, and one bit in the middle of the answer's body is another */
    S3_FAKE_OTHER_TAG,   /* done, and the answer has another ETag */
    S3_FAKE_FAR_STAMP,   /* done, and the time beside the object is the last there is */
    S3_FAKE_TRICKLE,     /* done, and the answer's body comes at two bytes a second */
    S3_FAKE_SILENT       /* nothing is done or said any more on this connection */
} S3FakeWay;

typedef struct S3FakeRule {
    const char
        *request; /* "PUT", or "GET list-type" for those with that in their address; "": all */
    S3FakeWay way;
    int status;
    const char *code;
    int skip,
        n_times; /* the first `skip` such requests are fine, the n_times after go wrong; 0: all
                  */
    int percent; /* of these, at random; 0: each */
} S3FakeRule;

typedef enum S3FakeCreate {
    S3_FAKE_CREATE_CHECKED,
    S3_FAKE_CREATE_IGNORED, /* If-None-Match changes nothing */
    S3_FAKE_CREATE_501
} S3FakeCreate;

enum { S3_FAKE_MAX_RULES = 8 };

typedef struct S3Fake S3Fake;
int s3_fake_start(S3Fake **out_fake);
void s3_fake_stop(S3Fake *fake);
int s3_fake_port(const S3Fake *fake);
/* Instead of those before; ended by one without a request, copied. NULL: none. Counts anew. */
void s3_fake_rules(S3Fake *fake, const S3FakeRule *rules);
void s3_fake_create(S3Fake *fake, S3FakeCreate create);
/* Such requests, signed with this key, are refused as ExpiredToken from now on. */
void s3_fake_expire(S3Fake *fake, const char *request, const char *key_id);
void s3_fake_clock(S3Fake *fake, int64_t ahead_s); /* of ours */
void s3_fake_page(S3Fake *fake, int n);            /* names of one listing (1000) */
/* A store that remembers: a name that was not there stays so for its readers this long after it was
 * first asked for, and listings show nothing that is younger. */
void s3_fake_stale(S3Fake *fake, int64_t ms);
void s3_fake_fill(S3Fake *fake, int n);     /* put n objects that are nobody's: other/0, ... */
void s3_fake_age(S3Fake *fake, int64_t ms); /* what is there came so much earlier */
void s3_fake_begin(S3Fake *fake, const char *name); /* an upload that nobody goes on with */

/* Requests since the rules were set: those that match as a rule's `request` does. */
int s3_fake_count(S3Fake *fake, const char *request);
int s3_fake_skewed(S3Fake *fake);  /* refused for their date */
int s3_fake_twice(S3Fake *fake);   /* bore a signature that one before had in another second */
int s3_fake_objects(S3Fake *fake); /* in the store */
int s3_fake_uploads(S3Fake *fake); /* begun and neither joined nor aborted */

#endif

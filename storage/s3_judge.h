/* What an answer of an S3 store means: is it one, is the request to be repeated, or has it failed?
 */
#ifndef FUNCPIPE_STORAGE_S3_JUDGE_H
#define FUNCPIPE_STORAGE_S3_JUDGE_H

#include "storage/s3_client.h"

typedef struct S3Reply {
    int status;
    Slice text;                   /* its body, unless it is an object */
    bool xml;                     /* a good answer must be XML */
    char region[S3_REGION_BYTES]; /* where the store says that the bucket is; "" nothing */
    int64_t skew_ms;              /* the store's clock less the date that was signed; 0 not told */
} S3Reply;

typedef enum S3Verdict {
    S3_DONE,   /* the answer's code is set */
    S3_AGAIN,  /* the note says why, as for all below */
    S3_SLOWER, /* again, and all others slower */
    S3_SKEWED, /* again at once: the clock was wrong */
    S3_FAILED  /* for good: the note's code */
} S3Verdict;

/* ERR_ codes are in the note (err_text); it names the store, the status, its code and its message.
 * `secrets` are removed from what the store says. */
S3Verdict s3_judge(const S3Url *url, const S3Credentials *secrets, const S3Reply *reply,
                   S3Answer *answer);

#endif

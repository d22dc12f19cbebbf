/* One try of one request over libcurl; what the client's two files share, nobody else includes it.
 */
#ifndef FUNCPIPE_STORAGE_S3_FLIGHT_H
#define FUNCPIPE_STORAGE_S3_FLIGHT_H

#include <curl/curl.h>

#include "core/err.h"
#include "storage/s3_judge.h"

typedef enum S3Stage { S3_WAITING, S3_FLYING, S3_ANSWERED } S3Stage; /* of S3Request.stage */

typedef struct S3Flight {
    S3Client *client;
    CURL *easy;
    S3Request *request; /* NULL: free */
    struct curl_slist *headers;
    size_t body_at; /* of the request's body: sent so far */
    Buf text;       /* of an answer that is no object */
    int status;     /* 0: no answer yet */
    bool headed;    /* all headers are there */
    bool looked;    /* at the length of the answer */
    bool garbage;   /* an answer without end */
    int n_renewed;  /* the client's when it was signed */
    int64_t signed_ms, date_ms;
    int64_t answered_ns; /* when the answer began; where status is set */
    char region[S3_REGION_BYTES];
    char why[CURL_ERROR_SIZE];
} S3Flight;

struct S3Client {
    S3Url *url;
    S3Credentials credentials;
    int n_renewed; /* how often these have been replaced */
    int wake_fd;
    const atomic_bool *interrupted;
    RelayCounters *counters;
    CURLM *multi;
    S3Flight flights[S3_FLIGHTS];
    uint64_t jitter;
    int64_t calm_ns; /* nothing is sent before this */
    ErrNote said;    /* why the last repeated try failed; code 0: none */
};

/* Begin a try: the flight is then in client->multi. */
int s3_flight_begin(S3Flight *flight, S3Request *request);
/* It has ended: what became of it. The request keeps its answer, the flight is free. */
S3Verdict s3_flight_end(S3Flight *flight, CURLcode result);
/* When the answer that has begun must have ended: timeout=, and what its bytes take of a slow link.
 */
int64_t s3_flight_until_ns(const S3Flight *flight);
void s3_flight_abort(S3Flight *flight); /* a free one stays free */

#endif

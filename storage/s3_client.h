/* Requests to an S3 store, many in flight over kept connections: signed, sent, repeated when that
 * helps, and answered. One client per relay handle, used by one thread.
 *
 * A request is repeated, signed anew with a fresh date, after a connection that failed or fell
 * silent, an answer cut short, too slow or not to be understood, and the store's 408, 409, 429 and
 * 5xx, with exponential back-off and full jitter (Brooker, "Exponential Backoff And Jitter", 2015).
 * All requests of this client slow down together: a store that says SlowDown means everybody. A
 * clock that differs from the store's is noticed from the Date of any answer, and corrected for the
 * whole process. Temporary credentials that are over are looked for again. Everything asked for
 * here may be repeated: objects are written once, or with the same bytes. */
#ifndef FUNCPIPE_STORAGE_S3_CLIENT_H
#define FUNCPIPE_STORAGE_S3_CLIENT_H

#include <stdatomic.h>

#include "storage/relay.h"
#include "storage/s3_sign.h"

enum {
    S3_FLIGHTS = 8, /* requests in flight at a time */
    S3_NAME_BYTES = S3_PREFIX_BYTES + RELAY_KEY_BYTES + 8,
    S3_TAG_BYTES = 80,
    S3_CODE_BYTES = 64,
    S3_CLOCK_OFF_MS = 3000,       /* a difference of clocks that is no delay on the way */
    S3_MAX_ANSWER_BYTES = 4 << 20 /* of an answer that is no object */
};

typedef struct S3Answer {
    int status;               /* 200, 204, 206; or 404, 412, 416, 501 */
    char code[S3_CODE_BYTES]; /* "NoSuchKey"; "" none */
    char tag[S3_TAG_BYTES];   /* ETag as it came, quotes and all; "" none */
    int64_t total_bytes;      /* of the whole object; -1 not told */
    size_t bytes;             /* that came into `out` */
    int64_t stamp_us;         /* when its writer began to put it; 0 not told */
    bool too_long;            /* more than `capacity`: nothing else is to be relied on */
    int64_t sent_ns, sent_us; /* when its last try began, by the monotonic and the store's clock */
} S3Answer;

typedef struct S3Request {
    const char *method;
    const char *name;             /* the object in the bucket; NULL: the bucket itself */
    const char *query;            /* as s3_sign.h has it; NULL none */
    bool stamp;                   /* put the time beside the object, for who waits for it */
    bool create;                  /* only if it is not there: If-None-Match: * */
    const char *match;            /* only if it still has this ETag; NULL: any */
    const char *md5;              /* Content-MD5; NULL none */
    int64_t first_byte, end_byte; /* ask for this range; end_byte 0: the whole object */
    const Slice *parts; /* the body: bytes [first_body, end_body) of their concatenation */
    int n_parts;
    size_t first_body, end_body;
    char *out; /* for the bytes of an object; NULL with capacity 0 */
    size_t capacity;
    Buf *text; /* instead of `out`, for XML: an answer's body */
    S3Answer answer;
    /* the client's own */
    int n_tries, n_skewed;
    int64_t not_before_ns;
    char body_hash[S3_HEX_BYTES]; /* "": not known yet */
    int stage;
} S3Request;

typedef struct S3Limits {
    int64_t retry_until_ns; /* no request is repeated after this; each is tried once */
    int64_t answer_by_ns;   /* a request without the beginning of an answer ends now; one with it
                             * is repeated when its bytes come too slowly (s3_flight.h) */
    bool once;              /* a store that cannot be reached is not asked again */
} S3Limits;

typedef struct S3Client S3Client;

/* Borrows all but the credentials, which it finds. wake_fd is readable while *interrupted is set.
 * Asks nobody. */
int s3_client_open(S3Url *url, int wake_fd, const atomic_bool *interrupted, RelayCounters *counters,
                   S3Client **out_client);
void s3_client_close(S3Client *client); /* NULL is fine */

/* Run n requests until each has an answer that S3Answer.status lists. Else ERR_UNREACHABLE,
 * ERR_AUTH, ERR_TIMEOUT, ERR_FULL, ERR_NOT_FOUND (no such bucket), ERR_CANCELLED (interrupted while
 * a request was to be repeated, had no answer yet, or its answer to a GET was not whole soon) and
 * what else the store may say, naming its host; the other requests are then given up. Never a
 * secret. */
int s3_client_run(S3Client *client, S3Request *requests, size_t n, const S3Limits *limits);
/* Sleep until the earlier of both, or an interruption: then false. */
bool s3_client_pause(S3Client *client, int64_t until_ns, int64_t deadline_ns);
int64_t s3_client_wall_us(void); /* as the store's clock has it, to S3_CLOCK_OFF_MS */
bool s3_client_temporary(const S3Client *client); /* are its credentials such as end? */

#endif

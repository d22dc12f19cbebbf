/* AWS Signature Version 4 and the hashes that go with it (AWS General Reference, "Signature Version
 * 4 signing process"; "Authenticating Requests: Using the Authorization Header" of the S3 API). A
 * request is signed in its canonical form: method, encoded path, sorted query, headers, hash of the
 * body. Path and query are encoded here, once, so that what is signed is what is sent. */
#ifndef FUNCPIPE_STORAGE_S3_SIGN_H
#define FUNCPIPE_STORAGE_S3_SIGN_H

#include <stdbool.h>

#include "core/buf.h"
#include "storage/s3_credentials.h"

enum { S3_DATE_BYTES = 17, S3_HEX_BYTES = 65, S3_MD5_BYTES = 25 };

typedef struct S3Header {
    const char *name, *value; /* lower case; without spaces around it */
} S3Header;

typedef struct S3Canonical {
    const char *method, *path; /* the path encoded by s3_encode */
    const char *query;         /* "a=1&b": names ascending, encoded by s3_encode; "" none */
    const S3Header *headers;   /* names ascending; host and all x-amz-* */
    int n_headers;
    const char *body_hash; /* s3_hash, or "UNSIGNED-PAYLOAD" */
} S3Canonical;

/* "20260131T120000Z". */
void s3_date(int64_t wall_ms, char out_date[S3_DATE_BYTES]);
/* SHA-256 of the concatenation, in hex. ERR_INTERNAL when OpenSSL refuses. */
int s3_hash(const Slice *parts, int n_parts, char out_hex[S3_HEX_BYTES]);
/* MD5 in base64, as Content-MD5 has it. */
int s3_md5(const void *data, size_t bytes, char out_base64[S3_MD5_BYTES]);
/* Append `text` with all bytes but A-Z a-z 0-9 - . _ ~ as %XX (and '/', when that is to stay). */
int s3_encode(Buf *out, const char *text, bool keep_slashes);
/* Append the value of the header Authorization. `service`: "s3". */
int s3_sign(const S3Credentials *credentials, const char *region, const char *service,
            const S3Canonical *request, const char *date, Buf *out_authorization);

#endif

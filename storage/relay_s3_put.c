/* Putting into the S3 relay what fits into one request, and finding out how the store keeps the
 * first content. */
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/relay_s3_parts.h"

enum {
    TRY_OUT_BYTES = 1 << 20, /* the store's ways are tried out with an object up to this */
    TRY_OUTS = 3             /* once, it may have been dropped in between */
};

/* By its first byte, not by HEAD, which would give no reason for a refusal. */
int relay_s3_there(RelayS3 *s3, const char *key, const S3Limits *limits, int64_t *out_bytes) {
    S3Name name = relay_s3_name(s3, 'o', key);
    char byte;
    S3Request request = {
        .method = "GET", .name = name.text, .end_byte = 1, .out = &byte, .capacity = 1};
    const S3Answer *answer = &request.answer;
    TRY(s3_client_run(s3->client, &request, 1, limits));
    switch (answer->status) {
    case 404:
        return 0;
    case 200: /* an empty one has no first byte: the whole, or 416 */
    case 206:
    case 416:
        *out_bytes = answer->status == 416 ? 0 : answer->total_bytes;
        return 1;
    default:
        return relay_s3_odd(s3, answer);
    }
}

/* 1: the store refused, it was there. */
static int write_once(RelayS3 *s3, S3Request *request, const S3Limits *limits) {
    request->create = s3->create != S3_CREATE_IGNORED;
    TRY(s3_client_run(s3->client, request, 1, limits));
    if (request->answer.status == 501 && request->create) {
        s3->create = S3_CREATE_IGNORED;
        request->create = false;
        TRY(s3_client_run(s3->client, request, 1, limits));
    }
    if (request->answer.status == 412 && request->create) {
        s3->create = S3_CREATE_CHECKED;
        return 1;
    }
    return request->answer.status < 300 ? 0 : relay_s3_odd(s3, &request->answer);
}

static int put_one(RelayS3 *s3, const char *key, const Slice *parts, int n_parts, size_t bytes,
                   const S3Limits *limits) {
    S3Name name = relay_s3_name(s3, 'o', key);
    S3Request request = {.method = "PUT",
                         .name = name.text,
                         .parts = parts,
                         .n_parts = n_parts,
                         .end_body = bytes,
                         .stamp = true};
    int64_t there_bytes = 0;
    if (s3->create != S3_CREATE_CHECKED) {
        int there = relay_s3_there(s3, key, limits, &there_bytes);
        if (there != 0)
            return there;
    }
    int rc = write_once(s3, &request, limits);
    if (rc != 0 || s3->create != S3_CREATE_UNKNOWN || bytes > TRY_OUT_BYTES)
        return rc;
    /* The same once more: is it refused? If not, the same bytes have changed nothing. Whether this
     * one works does not matter. */
    ErrNote note;
    err_copy(&note);
    rc = write_once(s3, &request, limits);
    if (rc == 0 && ++s3->n_unchecked == TRY_OUTS)
        s3->create = S3_CREATE_IGNORED;
    err_restore(&note);
    return 0;
}

int relay_s3_put(Relay *relay, const char *key, const Slice *parts, int n_parts,
                 int64_t deadline_ns) {
    RelayS3 *s3 = (RelayS3 *)relay;
    S3Limits limits = {.retry_until_ns = deadline_ns, .answer_by_ns = deadline_ns};
    size_t bytes = 0;
    for (int i = 0; i < n_parts; i++)
        bytes += parts[i].bytes;
    if (strcmp(s3->held_key, key) == 0)
        s3->held_key[0] = '\0';
    int rc = bytes <= S3_SINGLE_BYTES
                 ? put_one(s3, key, parts, n_parts, bytes, &limits)
                 : relay_s3_put_long(s3, key, parts, n_parts, bytes, deadline_ns);
    return rc < 0 ? err_context(rc, "putting '%s'", key) : rc;
}

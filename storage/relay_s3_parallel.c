/* Long objects in the S3 relay: uploads in parts and reads in ranges, many at a time. How an object
 * is cut depends on its size alone, so that the same bytes make the same object, ETag included. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/relay_s3_parts.h"
#include "storage/s3_xml.h"

enum { ID_BYTES = 1024, MAX_UPLOADS = 3, ABORT_MS = 3000 };

typedef struct Upload {
    RelayS3 *s3;
    S3Name name;
    const Slice *parts;
    int n_parts;
    size_t bytes, n_pieces;
    const S3Limits *limits;
    char id[ID_BYTES];
    S3Request *requests; /* n_pieces */
    char *queries;       /* query_bytes each */
    size_t query_bytes;
} Upload;

static int take_id(void *arg, const char *path, const char *text) {
    Upload *upload = arg;
    if (strcmp(path, "InitiateMultipartUploadResult/UploadId") == 0)
        return text[0] && strlen(text) < sizeof upload->id
                   ? snprintf(upload->id, sizeof upload->id, "%s", text)
                   : err_set(ERR_CORRUPT, "an upload's id of %zu characters", strlen(text));
    return 0;
}

static int begin_upload(Upload *upload) {
    RelayS3 *s3 = upload->s3;
    Buf text;
    buf_init(&text, S3_MAX_ANSWER_BYTES);
    S3Request request = {.method = "POST",
                         .name = upload->name.text,
                         .query = "uploads",
                         .text = &text,
                         .stamp = true};
    upload->id[0] = '\0';
    int rc = s3_client_run(s3->client, &request, 1, upload->limits);
    if (rc >= 0 && request.answer.status != 200)
        rc = relay_s3_odd(s3, &request.answer);
    if (rc >= 0)
        rc = s3_xml_read((Slice){text.data, text.bytes}, take_id, upload);
    if (rc >= 0 && !upload->id[0])
        rc = err_set(ERR_CORRUPT, "the S3 store %s began an upload without an id", s3->url.host);
    buf_done(&text);
    return rc;
}

/* "partNumber=N&uploadId=ID", or without a number for 0. */
static int format_query(const Upload *upload, size_t number, char *out, size_t out_bytes) {
    Buf query;
    int rc = 0;
    buf_init(&query, out_bytes);
    if (number > 0)
        rc = buf_printf(&query, "partNumber=%zu&", number);
    if (rc >= 0)
        rc = buf_text(&query, "uploadId=");
    if (rc >= 0)
        rc = s3_encode(&query, upload->id, false);
    if (rc >= 0)
        snprintf(out, out_bytes, "%s", query.data);
    buf_done(&query);
    return rc;
}

/* 1: all there; 0: somebody has ended the upload. */
static int send_pieces(Upload *upload) {
    RelayS3 *s3 = upload->s3;
    for (size_t i = 0; i < upload->n_pieces; i++) {
        size_t first = i * S3_PIECE_BYTES;
        size_t left = upload->bytes - first;
        char *query = upload->queries + i * upload->query_bytes;
        TRY(format_query(upload, i + 1, query, upload->query_bytes));
        upload->requests[i] =
            (S3Request){.method = "PUT",
                        .name = upload->name.text,
                        .query = query,
                        .parts = upload->parts,
                        .n_parts = upload->n_parts,
                        .first_body = first,
                        .end_body = first + (left < S3_PIECE_BYTES ? left : S3_PIECE_BYTES)};
    }
    TRY(s3_client_run(s3->client, upload->requests, upload->n_pieces, upload->limits));
    for (size_t i = 0; i < upload->n_pieces; i++) {
        const S3Answer *answer = &upload->requests[i].answer;
        if (answer->status == 404)
            return 0;
        if (answer->status != 200)
            return relay_s3_odd(s3, answer);
        if (!answer->tag[0])
            return err_set(ERR_CORRUPT, "the S3 store %s took a part and gave it no ETag",
                           s3->url.host);
    }
    return 1;
}

static int format_pieces(const Upload *upload, Buf *out) {
    TRY(buf_text(out, "<CompleteMultipartUpload>"));
    for (size_t i = 0; i < upload->n_pieces; i++) {
        TRY(buf_printf(out, "<Part><PartNumber>%zu</PartNumber><ETag>", i + 1));
        TRY(s3_xml_escape(out, upload->requests[i].answer.tag));
        TRY(buf_text(out, "</ETag></Part>"));
    }
    return buf_text(out, "</CompleteMultipartUpload>");
}

/* The answers of one try to join the pieces: 200, 404 (no such upload), 412. */
static int ask_to_join(Upload *upload, Slice body, S3Request *request) {
    RelayS3 *s3 = upload->s3;
    request->parts = &body;
    TRY(s3_client_run(s3->client, request, 1, upload->limits));
    if (request->answer.status == 501 && request->create) {
        request->create = false;
        TRY(s3_client_run(s3->client, request, 1, upload->limits));
    }
    request->parts = NULL;
    int status = request->answer.status;
    return status == 200 || status == 404 || status == 412 ? status
                                                           : relay_s3_odd(s3, &request->answer);
}

enum { JOINED, REFUSED, GONE };

static int join_pieces(Upload *upload, const char *key) {
    RelayS3 *s3 = upload->s3;
    Buf body;
    Buf text;
    int64_t there_bytes = 0;
    buf_init(&body, 0);
    buf_init(&text, S3_MAX_ANSWER_BYTES);
    S3Request request = {.method = "POST",
                         .name = upload->name.text,
                         .query = upload->queries,
                         .create = s3->create != S3_CREATE_IGNORED,
                         .n_parts = 1,
                         .text = &text};
    int rc = format_query(upload, 0, upload->queries, upload->query_bytes);
    if (rc >= 0)
        rc = format_pieces(upload, &body);
    request.end_body = body.bytes;
    if (rc >= 0)
        rc = ask_to_join(upload, (Slice){body.data, body.bytes}, &request);
    buf_done(&body);
    buf_done(&text);
    TRY(rc);
    if (rc == 412)
        return REFUSED;
    if (rc == 200)
        return JOINED;
    /* Perhaps it was joined, and only the answer was lost. */
    int there = relay_s3_there(s3, key, upload->limits, &there_bytes);
    TRY(there);
    return there && there_bytes == (int64_t)upload->bytes ? JOINED : GONE;
}

/* As far as it can be done; the note stays. */
static void abort_upload(Upload *upload) {
    S3Limits limits = {0, clock_deadline_ms(ABORT_MS), true};
    S3Request request = {.method = "DELETE", .name = upload->name.text, .query = upload->queries};
    ErrNote note;
    err_copy(&note);
    if (format_query(upload, 0, upload->queries, upload->query_bytes) >= 0)
        (void)s3_client_run(upload->s3->client, &request, 1, &limits);
    err_restore(&note);
}

static int upload_once(Upload *upload, const char *key) {
    TRY(begin_upload(upload));
    int rc = send_pieces(upload);
    if (rc == 0)
        return GONE;
    if (rc > 0)
        rc = join_pieces(upload, key);
    if (rc < 0 || rc == REFUSED)
        abort_upload(upload);
    return rc;
}

int relay_s3_put_long(RelayS3 *s3, const char *key, const Slice *parts, int n_parts, size_t bytes,
                      int64_t deadline_ns) {
    S3Limits limits = {.retry_until_ns = deadline_ns, .answer_by_ns = deadline_ns};
    Upload upload = {.s3 = s3,
                     .name = relay_s3_name(s3, 'o', key),
                     .parts = parts,
                     .n_parts = n_parts,
                     .bytes = bytes,
                     .n_pieces = (bytes + S3_PIECE_BYTES - 1) / S3_PIECE_BYTES,
                     .limits = &limits,
                     .query_bytes = 3 * ID_BYTES + 64};
    int64_t there_bytes = 0;
    int there = relay_s3_there(s3, key, &limits, &there_bytes);
    if (there != 0)
        return there;
    upload.requests = calloc(upload.n_pieces, sizeof *upload.requests);
    upload.queries = calloc(upload.n_pieces, upload.query_bytes);
    int rc = upload.requests && upload.queries ? GONE
                                               : err_set(ERR_MEMORY, "%zu parts", upload.n_pieces);
    for (int i = 0; i < MAX_UPLOADS && rc == GONE; i++)
        rc = upload_once(&upload, key);
    free(upload.requests);
    free(upload.queries);
    if (rc == GONE)
        return err_set(ERR_IO, "the S3 store %s forgot the upload %d times", s3->url.host,
                       MAX_UPLOADS);
    return rc < 0 ? rc : rc == REFUSED;
}

/* ---- reading ---- */

/* 1 as it should be, 0 the object is another one by now. */
static int check_range(const RelayS3 *s3, const S3Request *request, size_t bytes) {
    const S3Answer *answer = &request->answer;
    if (answer->status == 404 || answer->status == 412 || answer->status == 416)
        return 0;
    if (answer->status != 206)
        return answer->status == 200
                   ? err_set(ERR_UNSUPPORTED, "the S3 store %s gives no ranges", s3->url.host)
                   : relay_s3_odd(s3, answer);
    if (answer->too_long || answer->bytes != request->capacity)
        return 0;
    if (answer->total_bytes >= 0 && answer->total_bytes != (int64_t)bytes)
        return 0;
    return !request->match || !answer->tag[0] || strcmp(answer->tag, request->match) == 0;
}

int relay_s3_get_rest(RelayS3 *s3, const char *key, const char *tag, char *out, size_t first,
                      size_t bytes, const S3Limits *limits) {
    S3Name name = relay_s3_name(s3, 'o', key);
    size_t n = (bytes - first + S3_PIECE_BYTES - 1) / S3_PIECE_BYTES;
    S3Request *requests = calloc(n, sizeof *requests);
    if (!requests)
        return err_set(ERR_MEMORY, "%zu ranges", n);
    for (size_t i = 0; i < n; i++) {
        size_t from = first + i * S3_PIECE_BYTES;
        size_t end = bytes - from < S3_PIECE_BYTES ? bytes : from + S3_PIECE_BYTES;
        requests[i] = (S3Request){.method = "GET",
                                  .name = name.text,
                                  .match = tag[0] ? tag : NULL,
                                  .first_byte = (int64_t)from,
                                  .end_byte = (int64_t)end,
                                  .out = out + from,
                                  .capacity = end - from};
    }
    int rc = s3_client_run(s3->client, requests, n, limits);
    rc = rc < 0 ? rc : 1;
    for (size_t i = 0; i < n && rc == 1; i++)
        rc = check_range(s3, &requests[i], bytes);
    free(requests);
    return rc;
}

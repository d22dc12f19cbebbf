#include "storage/s3_flight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "core/clock.h"
#include "core/text.h"

enum {
    CONNECT_MS = 5000,
    MAX_SKEWED = 3,   /* tries of one request with a date that the store refuses */
    PROMPT_MS = 2000, /* an answer whose Date is from now */
    TRANSFER_BYTES = 512 << 10,
    ANSWER_BYTES_PER_MS = 64 / S3_FLIGHTS, /* of one, where all together come at 64 kB/s */
    MAX_PATH_BYTES = 3 * (S3_NAME_BYTES + S3_BUCKET_BYTES)
};

#define STAMP_HEADER "x-amz-meta-funcpipe-at"

/* The store's clock less ours: one for the process, because all its requests are signed by it, and
 * what one has learned keeps the others from being refused. */
static atomic_llong clock_offset_ms;

int64_t s3_client_wall_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / CLOCK_NS_PER_US +
           (int64_t)atomic_load(&clock_offset_ms) * 1000;
}

static int64_t wall_ms(void) {
    return s3_client_wall_us() / 1000;
}

/* ---- what comes ---- */

static bool header_is(const char *line, size_t n, const char *name, char *value,
                      size_t value_bytes) {
    size_t length = strlen(name);
    if (n <= length || strncasecmp(line, name, length) != 0)
        return false;
    line += length;
    n -= length;
    while (n > 0 && strchr(" \t", *line)) {
        line++;
        n--;
    }
    while (n > 0 && strchr(" \t\r\n", line[n - 1]))
        n--;
    n = n < value_bytes ? n : value_bytes - 1;
    memcpy(value, line, n);
    value[n] = '\0';
    return true;
}

static int read_status(const char *digits) {
    int status = 0;
    for (int i = 0; i < 3; i++)
        status = digits[i] >= '0' && digits[i] <= '9' ? status * 10 + digits[i] - '0' : 0;
    return status;
}

/* A status line, or the like of "ETag: "abc"". */
static size_t take_header(char *line, size_t size, size_t n, void *arg) {
    S3Flight *flight = arg;
    S3Answer *answer = &flight->request->answer;
    char value[256];
    size_t bytes = size * n;
    if (bytes >= 12 && strncasecmp(line, "HTTP/", 5) == 0) { /* "HTTP/1.1 200 OK" */
        flight->status = read_status(line + 9);
        flight->answered_ns = clock_now_ns();
        flight->headed = false;
        answer->tag[0] = '\0';
        answer->total_bytes = -1;
        answer->stamp_us = 0;
    } else if (bytes <= 2 && line[bytes - 1] == '\n') {
        flight->headed = true;
    } else if (header_is(line, bytes, "etag:", value, sizeof value)) {
        if (text_copy(answer->tag, sizeof answer->tag, value) < 0)
            answer->tag[0] = '\0';
    } else if (header_is(line, bytes, "content-range:", value, sizeof value)) {
        const char *slash = strchr(value, '/');
        if (!slash || text_parse_i64(slash + 1, 0, INT64_MAX, &answer->total_bytes) < 0)
            answer->total_bytes = -1;
    } else if (header_is(line, bytes, STAMP_HEADER ":", value, sizeof value)) {
        if (text_parse_i64(value, 1, INT64_MAX, &answer->stamp_us) < 0)
            answer->stamp_us = 0;
    } else if (header_is(line, bytes, "x-amz-bucket-region:", value, sizeof value)) {
        snprintf(flight->region, sizeof flight->region, "%s", value);
    } else if (header_is(line, bytes, "date:", value, sizeof value)) {
        time_t seconds = curl_getdate(value, NULL);
        flight->date_ms = seconds > 0 ? (int64_t)seconds * 1000 + 500 : 0; /* on the average */
    }
    return bytes;
}

static bool is_object(const S3Flight *flight) {
    return !flight->request->text && (flight->status == 200 || flight->status == 206);
}

/* The whole object's size, when the first bytes come or none do. */
static void look_at_length(S3Flight *flight) {
    S3Answer *answer = &flight->request->answer;
    curl_off_t length = -1;
    if (flight->looked)
        return;
    flight->looked = true;
    curl_easy_getinfo(flight->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    if (answer->total_bytes < 0 && flight->status == 200)
        answer->total_bytes = (int64_t)length;
    answer->too_long = is_object(flight) && length >= 0 && flight->request->method[0] == 'G' &&
                       (uint64_t)length > flight->request->capacity;
}

static size_t take_body(char *data, size_t size, size_t n, void *arg) {
    S3Flight *flight = arg;
    S3Request *request = flight->request;
    S3Answer *answer = &request->answer;
    size_t bytes = size * n;
    look_at_length(flight);
    if (is_object(flight) && request->method[0] == 'G') {
        if (answer->too_long || bytes > request->capacity - answer->bytes) {
            answer->too_long = true;
            return 0;
        }
        memcpy(request->out + answer->bytes, data, bytes);
        answer->bytes += bytes;
        return bytes;
    }
    flight->garbage = buf_add(&flight->text, data, bytes) < 0;
    return flight->garbage ? 0 : bytes;
}

/* ---- what goes ---- */

/* Bytes [from, end) of the parts' concatenation, at most `capacity` of them. */
static size_t copy_body(const S3Request *request, size_t from, char *out, size_t capacity) {
    size_t copied = 0;
    size_t at = 0;
    size_t end = request->end_body - from < capacity ? request->end_body : from + capacity;
    for (int i = 0; i < request->n_parts && from < end; i++) {
        size_t part_end = at + request->parts[i].bytes;
        if (from < part_end) {
            size_t n = (part_end < end ? part_end : end) - from;
            memcpy(out + copied, (const char *)request->parts[i].data + (from - at), n);
            copied += n;
            from += n;
        }
        at = part_end;
    }
    return copied;
}

static size_t give_body(char *out, size_t size, size_t n, void *arg) {
    S3Flight *flight = arg;
    size_t copied =
        copy_body(flight->request, flight->request->first_body + flight->body_at, out, size * n);
    flight->body_at += copied;
    return copied;
}

/* A connection that was kept and had died: from the beginning, over another one. */
static int rewind_body(void *arg, curl_off_t offset, int origin) {
    S3Flight *flight = arg;
    if (origin != SEEK_SET || offset < 0)
        return CURL_SEEKFUNC_CANTSEEK;
    flight->body_at = (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

/* The hash that is signed; over TLS nothing could have changed the body. */
static int hash_body(const S3Client *client, S3Request *request) {
    Slice parts[RELAY_MAX_PARTS];
    int n = 0;
    size_t at = 0;
    if (request->body_hash[0])
        return 0;
    if (client->url->tls && request->end_body > request->first_body)
        return text_copy(request->body_hash, sizeof request->body_hash, "UNSIGNED-PAYLOAD");
    for (int i = 0; i < request->n_parts; i++) {
        size_t from = request->first_body > at ? request->first_body - at : 0;
        size_t end = request->end_body > at ? request->end_body - at : 0;
        end = end < request->parts[i].bytes ? end : request->parts[i].bytes;
        if (from < end)
            parts[n++] = (Slice){(const char *)request->parts[i].data + from, end - from};
        at += request->parts[i].bytes;
    }
    return s3_hash(parts, n, request->body_hash);
}

static int add_header(S3Flight *flight, const char *text) {
    struct curl_slist *longer = curl_slist_append(flight->headers, text);
    if (!longer)
        return err_set(ERR_MEMORY, "a header");
    flight->headers = longer;
    return 0;
}

static int add_headers(S3Flight *flight, const char *path) {
    const S3Client *client = flight->client;
    const S3Request *request = flight->request;
    char date[S3_DATE_BYTES];
    char stamp[24];
    Buf line;
    int rc = 0;
    int n = 3;
    flight->signed_ms = request->answer.sent_us / 1000;
    flight->n_renewed = client->n_renewed;
    s3_date(flight->signed_ms, date);
    snprintf(stamp, sizeof stamp, "%lld", (long long)request->answer.sent_us);
    S3Header headers[5] = {{"host", client->url->host},
                           {"x-amz-content-sha256", request->body_hash},
                           {"x-amz-date", date}};
    if (request->stamp)
        headers[n++] = (S3Header){STAMP_HEADER, stamp};
    if (client->credentials.token[0])
        headers[n++] = (S3Header){"x-amz-security-token", client->credentials.token};
    const S3Canonical canonical = {.method = request->method,
                                   .path = path,
                                   .query = request->query ? request->query : "",
                                   .headers = headers,
                                   .n_headers = n,
                                   .body_hash = request->body_hash};
    buf_init(&line, 0);
    TRY_DONE(buf_text(&line, "authorization: "));
    TRY_DONE(s3_sign(&client->credentials, client->url->region, "s3", &canonical, date, &line));
    TRY_DONE(add_header(flight, line.data));
    for (int i = 0; i < canonical.n_headers; i++) {
        buf_clear(&line);
        TRY_DONE(buf_printf(&line, "%s: %s", headers[i].name, headers[i].value));
        TRY_DONE(add_header(flight, line.data));
    }
    buf_clear(&line);
    if (request->end_byte > 0) {
        TRY_DONE(buf_printf(&line, "range: bytes=%lld-%lld", (long long)request->first_byte,
                            (long long)request->end_byte - 1));
        TRY_DONE(add_header(flight, line.data));
    }
    buf_clear(&line);
    if (request->match || request->md5) {
        TRY_DONE(buf_printf(&line, "%s: %s", request->match ? "if-match" : "content-md5",
                            request->match ? request->match : request->md5));
        TRY_DONE(add_header(flight, line.data));
    }
    if (request->create)
        TRY_DONE(add_header(flight, "if-none-match: *"));
    TRY_DONE(add_header(flight, "expect:")); /* no waiting for leave to send */
    TRY_DONE(add_header(flight, "content-type:"));
done:
    buf_done(&line);
    return rc;
}

static int add_path(const S3Client *client, const S3Request *request, Buf *out) {
    if (!client->url->virtual_style)
        TRY(buf_printf(out, "/%s", client->url->bucket));
    if (request->name || client->url->virtual_style)
        TRY(buf_text(out, "/"));
    return request->name ? s3_encode(out, request->name, true) : 0;
}

static void set_fixed(const S3Client *client, S3Flight *flight) {
    CURL *easy = flight->easy;
    const S3Url *url = client->url;
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L); /* do not wait for a thread that resolves */
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_PROXY, ""); /* the URL says whom to ask, nothing else does */
    curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "funcpipe/" FUNCPIPE_VERSION);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, flight->why);
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, (long)TRANSFER_BYTES);
    curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, (long)TRANSFER_BYTES);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                     (long)(url->timeout_ms < CONNECT_MS ? url->timeout_ms : CONNECT_MS));
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)((url->timeout_ms + 999) / 1000));
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (url->ca[0])
        curl_easy_setopt(easy, CURLOPT_CAINFO, url->ca);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, flight);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, flight);
    curl_easy_setopt(easy, CURLOPT_READFUNCTION, give_body);
    curl_easy_setopt(easy, CURLOPT_READDATA, flight);
    curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, rewind_body);
    curl_easy_setopt(easy, CURLOPT_SEEKDATA, flight);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, flight);
}

static int prepare(S3Flight *flight) {
    const S3Client *client = flight->client;
    S3Request *request = flight->request;
    Buf address;
    Buf path;
    int rc = 0;
    buf_init(&address, 0);
    buf_init(&path, MAX_PATH_BYTES);
    buf_clear(&flight->text);
    flight->body_at = 0;
    flight->status = 0;
    flight->headed = flight->looked = flight->garbage = false;
    flight->date_ms = 0;
    flight->region[0] = flight->why[0] = '\0';
    curl_easy_reset(flight->easy);
    set_fixed(client, flight);
    TRY_DONE(hash_body(client, request));
    TRY_DONE(add_path(client, request, &path));
    TRY_DONE(add_headers(flight, buf_string(&path)));
    TRY_DONE(buf_printf(&address, "%s://%s%s%s%s", client->url->tls ? "https" : "http",
                        client->url->host, buf_string(&path),
                        request->query && request->query[0] ? "?" : "",
                        request->query ? request->query : ""));
    curl_easy_setopt(flight->easy, CURLOPT_HTTPHEADER, flight->headers);
    if (curl_easy_setopt(flight->easy, CURLOPT_URL, address.data) != CURLE_OK)
        rc = err_set(ERR_MEMORY, "an address");
    if (strcmp(request->method, "GET") != 0)
        curl_easy_setopt(flight->easy, CURLOPT_CUSTOMREQUEST, request->method);
    if (request->method[0] == 'P') { /* PUT, POST */
        curl_easy_setopt(flight->easy, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(flight->easy, CURLOPT_INFILESIZE_LARGE,
                         (curl_off_t)(request->end_body - request->first_body));
    }
done:
    buf_done(&address);
    buf_done(&path);
    return rc;
}

/* ---- flights ---- */

int64_t s3_flight_until_ns(const S3Flight *flight) {
    curl_off_t length = -1;
    int64_t most = is_object(flight) ? (int64_t)flight->request->capacity : S3_MAX_ANSWER_BYTES;
    curl_easy_getinfo(flight->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    int64_t bytes = length >= 0 && length < most ? (int64_t)length : most;
    int64_t ms = flight->client->url->timeout_ms + bytes / ANSWER_BYTES_PER_MS;
    return flight->answered_ns + ms * CLOCK_NS_PER_MS;
}

void s3_flight_abort(S3Flight *flight) {
    if (!flight->request)
        return;
    curl_multi_remove_handle(flight->client->multi, flight->easy);
    curl_easy_setopt(flight->easy, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(flight->headers);
    flight->headers = NULL;
    flight->request->stage = S3_WAITING;
    flight->request = NULL;
}

int s3_flight_begin(S3Flight *flight, S3Request *request) {
    S3Client *client = flight->client;
    request->answer =
        (S3Answer){.total_bytes = -1, .sent_ns = clock_now_ns(), .sent_us = s3_client_wall_us()};
    request->stage = S3_FLYING;
    request->n_tries++;
    flight->request = request;
    int rc = prepare(flight);
    if (rc >= 0 && curl_multi_add_handle(client->multi, flight->easy) != CURLM_OK)
        rc = err_set(ERR_MEMORY, "a request");
    if (rc < 0) {
        s3_flight_abort(flight);
        return rc;
    }
    client->counters->n_requests++;
    client->counters->n_retries += request->n_tries > 1;
    return 0;
}

static void learn_clock(const S3Flight *flight, bool surely) {
    int64_t now_ms = clock_wall_ms();
    int64_t took_ns = clock_now_ns() - flight->request->answer.sent_ns;
    bool prompt = took_ns < PROMPT_MS * CLOCK_NS_PER_MS;
    int64_t off_ms = flight->date_ms - wall_ms();
    if (flight->date_ms > 0 && (surely || (prompt && llabs(off_ms) > S3_CLOCK_OFF_MS)))
        atomic_store(&clock_offset_ms, flight->date_ms - now_ms);
}

/* Why there is no whole answer; the code is in the note. */
static S3Verdict judge_failure(const S3Flight *flight, CURLcode result) {
    const S3Url *url = flight->client->url;
    const char *why = flight->why[0] ? flight->why : curl_easy_strerror(result);
    switch (result) {
    case CURLE_SSL_CACERT_BADFILE:
        err_set(ERR_ARGUMENT, "'%s' for the S3 store %s: %s",
                url->ca[0] ? url->ca : "the system's certificates", url->host, why);
        return S3_FAILED;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
        err_set(ERR_UNREACHABLE, "the S3 store %s: TLS: %s", url->host, why);
        return S3_FAILED;
    case CURLE_OUT_OF_MEMORY:
        err_set(ERR_MEMORY, "a request to the S3 store %s", url->host);
        return S3_FAILED;
    default:
        err_set(ERR_UNREACHABLE, "the S3 store %s: %s", url->host,
                flight->garbage ? "an answer without end" : why);
        return S3_AGAIN;
    }
}

static S3Verdict judge(S3Flight *flight, CURLcode result) {
    const S3Client *client = flight->client;
    S3Request *request = flight->request;
    if (request->answer.too_long) {
        request->answer.status = flight->status;
        return S3_DONE;
    }
    if (result == CURLE_OK && !flight->headed) /* closed within the headers: fine for libcurl */
        result = CURLE_PARTIAL_FILE;
    if (result != CURLE_OK)
        return judge_failure(flight, result);
    look_at_length(flight);
    S3Reply reply = {.status = flight->status,
                     .text = {flight->text.data, flight->text.bytes},
                     .xml = request->text != NULL,
                     .skew_ms = flight->date_ms > 0 ? flight->date_ms - flight->signed_ms : 0};
    memcpy(reply.region, flight->region, sizeof reply.region);
    S3Verdict verdict = s3_judge(client->url, &client->credentials, &reply, &request->answer);
    learn_clock(flight, verdict == S3_SKEWED);
    if (verdict == S3_SKEWED && request->n_skewed++ >= MAX_SKEWED)
        return S3_FAILED;
    if (verdict == S3_DONE && request->text && request->answer.status == 200) {
        buf_clear(request->text);
        if (buf_add(request->text, flight->text.data, flight->text.bytes) < 0)
            return S3_FAILED;
    }
    return verdict;
}

S3Verdict s3_flight_end(S3Flight *flight, CURLcode result) {
    S3Request *request = flight->request;
    S3Verdict verdict = judge(flight, result);
    s3_flight_abort(flight);
    if (verdict == S3_DONE)
        request->stage = S3_ANSWERED;
    return verdict;
}

/* Notes in S3: "funcpipe-note EXPIRY\n" and the bytes. The store expires nothing by itself within
 * seconds, so who reads looks at the time, which is the store's. */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/text.h"
#include "storage/relay_s3_parts.h"

static const char note_mark[] = "funcpipe-note ";
enum { MARK_CHARS = sizeof note_mark - 1, HEAD_BYTES = 48 };

int relay_s3_note_put(Relay *relay, const char *key, const void *data, size_t bytes,
                      int64_t ttl_ms) {
    RelayS3 *s3 = (RelayS3 *)relay;
    S3Name name = relay_s3_name(s3, 'n', key);
    char head[HEAD_BYTES];
    int64_t now_ms = s3_client_wall_us() / 1000;
    int64_t until_ms = ttl_ms < INT64_MAX - now_ms ? now_ms + ttl_ms : INT64_MAX;
    int n = snprintf(head, sizeof head, "%s%lld\n", note_mark, (long long)until_ms);
    Slice parts[] = {{head, (size_t)n}, {data, bytes}};
    S3Request request = {.method = "PUT",
                         .name = name.text,
                         .parts = parts,
                         .n_parts = 2,
                         .end_body = (size_t)n + bytes};
    int rc = relay_s3_ask(s3, &request);
    if (rc >= 0 && request.answer.status >= 300)
        rc = relay_s3_odd(s3, &request.answer);
    return rc < 0 ? err_context(rc, "putting the note '%s'", key) : 0;
}

/* The text in front of the bytes: its length, and whether the note is over. */
static int read_head(const char *key, const char *text, size_t bytes, bool *out_over) {
    char number[24] = "";
    int64_t until_ms = 0;
    const char *end = memchr(text, '\n', bytes < HEAD_BYTES ? bytes : HEAD_BYTES);
    size_t digits = end ? (size_t)(end - text) - MARK_CHARS : 0;
    if (!end || end - text <= MARK_CHARS || memcmp(text, note_mark, MARK_CHARS) != 0 ||
        digits >= sizeof number)
        return err_set(ERR_CORRUPT, "the note '%s' is nonsense", key);
    memcpy(number, text + MARK_CHARS, digits);
    if (text_parse_i64(number, 0, INT64_MAX, &until_ms) < 0)
        return err_set(ERR_CORRUPT, "the note '%s' is nonsense", key);
    *out_over = until_ms <= s3_client_wall_us() / 1000;
    return (int)(end - text) + 1;
}

int relay_s3_note_get(Relay *relay, const char *key, void *buf, size_t capacity,
                      size_t *out_bytes) {
    RelayS3 *s3 = (RelayS3 *)relay;
    S3Name name = relay_s3_name(s3, 'n', key);
    char text[HEAD_BYTES + RELAY_NOTE_MAX_BYTES];
    bool over = false;
    S3Request request = {.method = "GET", .name = name.text, .out = text, .capacity = sizeof text};
    int rc = relay_s3_ask(s3, &request);
    const S3Answer *answer = &request.answer;
    if (rc < 0)
        return err_context(rc, "getting the note '%s'", key);
    if (answer->status == 404)
        return err_set(ERR_NOT_FOUND, "there is no note '%s'", key);
    if (answer->status != 200 || answer->too_long)
        return err_set(ERR_CORRUPT, "the note '%s' is nonsense", key);
    int head = read_head(key, text, answer->bytes, &over);
    TRY(head);
    size_t bytes = answer->bytes - (size_t)head;
    if (over)
        return err_set(ERR_NOT_FOUND, "the note '%s' has expired", key);
    if (bytes > capacity)
        return err_set(ERR_LIMIT, "the note '%s' has %zu bytes, the buffer %zu", key, bytes,
                       capacity);
    memcpy(buf, text + head, bytes);
    *out_bytes = bytes;
    return 0;
}

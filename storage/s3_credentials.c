#include "storage/s3_credentials.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/text.h"

enum { MAX_FILE_BYTES = 1 << 20, SECTION_BYTES = S3_PROFILE_BYTES + 16 };

typedef struct Found {
    S3Credentials keys;
    char region[S3_REGION_BYTES];
} Found;

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

/* ---- files ---- */

typedef struct Span {
    const char *from, *end;
} Span;

static Span trimmed(const char *from, const char *end) {
    while (from < end && strchr(" \t\r", *from))
        from++;
    while (end > from && strchr(" \t\r", end[-1]))
        end--;
    return (Span){from, end};
}

static bool span_is(Span span, const char *text) {
    size_t n = (size_t)(span.end - span.from);
    return strlen(text) == n && memcmp(span.from, text, n) == 0;
}

static int take(const char *path, int line, Span value, char *out, size_t out_bytes) {
    size_t n = (size_t)(value.end - value.from);
    bool fine = n < out_bytes;
    for (size_t i = 0; i < n && fine; i++)
        fine = value.from[i] > ' ' && value.from[i] <= '~';
    if (!fine)
        return err_set(ERR_FORMAT, "'%s', line %d: the value is too long or has odd characters",
                       path, line);
    memcpy(out, value.from, n);
    out[n] = '\0';
    return 0;
}

static int take_line(const char *path, int line, Span span, Found *found) {
    const char *equals = memchr(span.from, '=', (size_t)(span.end - span.from));
    if (!equals)
        return err_set(ERR_FORMAT, "'%s', line %d: neither [SECTION] nor NAME = VALUE", path, line);
    Span name = trimmed(span.from, equals);
    Span value = trimmed(equals + 1, span.end);
    S3Credentials *keys = &found->keys;
    if (span_is(name, "aws_access_key_id"))
        return take(path, line, value, keys->key_id, sizeof keys->key_id);
    if (span_is(name, "aws_secret_access_key"))
        return take(path, line, value, keys->secret, sizeof keys->secret);
    if (span_is(name, "aws_session_token"))
        return take(path, line, value, keys->token, sizeof keys->token);
    if (span_is(name, "region"))
        return take(path, line, value, found->region, sizeof found->region);
    return 0;
}

/* The lines of [section] in a file's text. */
static int take_section(const char *path, const char *text, const char *section, Found *found) {
    bool inside = false;
    for (int line = 1; *text; line++) {
        const char *end = text + strcspn(text, "\n");
        Span span = trimmed(text, end);
        bool indented = *text == ' ' || *text == '\t'; /* belongs to the setting above */
        if (span.from < span.end && *span.from == '[' && span.end[-1] == ']')
            inside = span_is(trimmed(span.from + 1, span.end - 1), section);
        else if (inside && !indented && span.from < span.end && !strchr("#;", *span.from))
            TRY(take_line(path, line, span, found));
        text = *end ? end + 1 : end;
    }
    return 0;
}

static int take_file(const char *path, const char *section, Found *found) {
    Buf text;
    buf_init(&text, 0);
    int rc = buf_read_file(&text, path, MAX_FILE_BYTES);
    if (rc >= 0 && text.data && memchr(text.data, '\0', text.bytes))
        rc = err_set(ERR_FORMAT, "'%s' is no text", path);
    if (rc >= 0)
        rc = take_section(path, buf_string(&text), section, found);
    if (text.data)
        explicit_bzero(text.data, text.bytes);
    buf_done(&text);
    return rc;
}

/* A file of AWS's own: it may be absent. `path` is where it is looked for. */
static int take_usual(const char *named, const char *usual, const char *section, char *path,
                      Found *found) {
    int n = snprintf(path, S3_FILE_BYTES, "%s%s%s", named, named[0] ? "" : variable("HOME"),
                     named[0] ? "" : usual);
    if (path[0] != '/' || n >= S3_FILE_BYTES)
        return 0;
    int rc = take_file(path, section, found);
    return rc == ERR_NOT_FOUND ? 0 : rc;
}

/* ---- all places ---- */

static int take_variables(Found *found) {
    static const char *const names[] = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
                                        "AWS_SESSION_TOKEN"};
    S3Credentials *keys = &found->keys;
    char *const out[] = {keys->key_id, keys->secret, keys->token};
    const size_t bytes[] = {sizeof keys->key_id, sizeof keys->secret, sizeof keys->token};
    for (int i = 0; i < 3; i++) {
        const char *value = variable(names[i]);
        if (take("", 0, (Span){value, value + strlen(value)}, out[i], bytes[i]) < 0)
            return err_set(ERR_AUTH, "the variable %s is too long or has odd characters", names[i]);
    }
    if (!keys->key_id[0] != !keys->secret[0])
        return err_set(ERR_AUTH, "of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY one is missing");
    if (!keys->key_id[0]) /* of another key, which is gone */
        explicit_bzero(keys->token, sizeof keys->token);
    return 0;
}

static int search(const S3Url *url, Found *found) {
    char section[SECTION_BYTES];
    char credentials[S3_FILE_BYTES] = "";
    char config[S3_FILE_BYTES] = "";
    const char *profile = url->profile[0]              ? url->profile
                          : variable("AWS_PROFILE")[0] ? variable("AWS_PROFILE")
                                                       : "default";
    bool is_default = strcmp(profile, "default") == 0;
    if (url->credentials[0]) {
        TRY(take_file(url->credentials, profile, found));
        if (found->keys.key_id[0] && found->keys.secret[0])
            return 0;
        return err_set(
            ERR_AUTH, "'%s' has no aws_access_key_id and aws_secret_access_key in its section [%s]",
            url->credentials, profile);
    }
    if (!url->profile[0])
        TRY(take_variables(found));
    if (!found->keys.key_id[0])
        TRY(take_usual(variable("AWS_SHARED_CREDENTIALS_FILE"), "/.aws/credentials", profile,
                       credentials, found));
    snprintf(section, sizeof section, "%s%s", is_default ? "" : "profile ", profile);
    if (!found->keys.key_id[0] || !found->region[0]) {
        Found more = {0};
        int rc = take_usual(variable("AWS_CONFIG_FILE"), "/.aws/config", section, config, &more);
        if (!found->keys.key_id[0])
            found->keys = more.keys;
        if (!found->region[0])
            memcpy(found->region, more.region, sizeof found->region);
        explicit_bzero(&more, sizeof more);
        TRY(rc);
    }
    if (found->keys.key_id[0] && found->keys.secret[0])
        return 0;
    return err_set(ERR_AUTH,
                   "there are no credentials for the S3 store: neither in AWS_ACCESS_KEY_ID and "
                   "AWS_SECRET_ACCESS_KEY nor as [%s] in '%s' or '%s'",
                   profile, credentials, config);
}

static int settle_region(S3Url *url, const Found *found) {
    const char *region = variable("AWS_REGION");
    if (!region[0])
        region = variable("AWS_DEFAULT_REGION");
    if (!region[0])
        region = found->region;
    if (!region[0] && url->host[0])
        region = "us-east-1";
    if (!url->region[0] && !region[0])
        return err_set(ERR_ARGUMENT, "the relay's URL has neither a region nor an endpoint, and "
                                     "AWS_REGION and the profile have no region");
    if (!url->region[0])
        TRY(s3_url_check_region("AWS_REGION or the profile", region));
    s3_url_settle(url, region);
    return 0;
}

int s3_credentials_find(S3Url *url, S3Credentials *out_credentials) {
    Found *found = calloc(1, sizeof *found);
    if (!found)
        return err_set(ERR_MEMORY, "credentials");
    int rc = search(url, found);
    if (rc >= 0)
        rc = settle_region(url, found);
    if (rc >= 0)
        *out_credentials = found->keys;
    explicit_bzero(found, sizeof *found);
    free(found);
    return rc;
}

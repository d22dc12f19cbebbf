#include "storage/s3_judge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/text.h"
#include "storage/s3_xml.h"

enum { SKEW_MS = 60000, MESSAGE_BYTES = 240 };

typedef struct Refusal {
    const S3Credentials *secrets;
    bool found; /* the document is an <Error> */
    char code[S3_CODE_BYTES], message[MESSAGE_BYTES], region[S3_REGION_BYTES];
} Refusal;

static void blank(char *text, const char *secret) {
    size_t n = strlen(secret);
    if (n < 4)
        return;
    for (char *at = strstr(text, secret); at; at = strstr(at, secret))
        memset(at, '*', n);
}

/* A store may quote what it was sent: none of it may be left by cutting it. */
static void take_message(const char *text, const S3Credentials *secrets, char *out) {
    char whole[S3_XML_TEXT_BYTES]; /* no text is longer */
    snprintf(whole, sizeof whole, "%s", text);
    blank(whole, secrets->secret);
    blank(whole, secrets->token);
    snprintf(out, MESSAGE_BYTES, "%.*s", MESSAGE_BYTES - 1, whole);
}

static int take_refusal(void *arg, const char *path, const char *text) {
    Refusal *refusal = arg;
    if (strcmp(path, "Error/Code") == 0)
        snprintf(refusal->code, sizeof refusal->code, "%s", text);
    else if (strcmp(path, "Error/Message") == 0)
        take_message(text, refusal->secrets, refusal->message);
    else if (strcmp(path, "Error/Region") == 0)
        snprintf(refusal->region, sizeof refusal->region, "%s", text);
    refusal->found |= strcmp(path, "Error") == 0;
    return 0;
}

/* The one code that stands for an answer without a body. */
static const char *usual_code(int status) {
    return status == 404   ? "NoSuchKey"
           : status == 412 ? "PreconditionFailed"
           : status == 416 ? "InvalidRange"
           : status == 501 ? "NotImplemented"
                           : "";
}

static bool is_any(const char *code, const char *const *codes) {
    for (; *codes; codes++) {
        if (strcmp(code, *codes) == 0)
            return true;
    }
    return false;
}

/* Damaged or late on its way here or there: it may go better the next time. */
static const char *const transient[] = {"RequestTimeout", "BadDigest",
                                        "IncompleteBody", "XAmzContentSHA256Mismatch",
                                        "InternalError",  NULL};
static const char *const busy[] = {
    "SlowDown", "ServiceUnavailable", "Throttling", "ThrottlingException", "RequestLimitExceeded",
    NULL};
static const char *const full[] = {"QuotaExceeded", "InsufficientStorage", "EntityTooLarge",
                                   "XMinioStorageFull", NULL};
static const char *const elsewhere[] = {"AuthorizationHeaderMalformed", "PermanentRedirect",
                                        "IllegalLocationConstraintException", NULL};

static S3Verdict note(S3Verdict verdict, int code, const S3Url *url, const S3Reply *reply,
                      const Refusal *refusal) {
    err_set(code, "the S3 store %s answered %d%s%s%s%s", url->host, reply->status,
            refusal->code[0] ? " " : "", refusal->code, refusal->message[0] ? ": " : "",
            refusal->message);
    return verdict;
}

static S3Verdict judge_refusal(const S3Url *url, const S3Reply *reply, const Refusal *refusal) {
    const char *code = refusal->code;
    int status = reply->status;
    const char *region = reply->region[0] ? reply->region : refusal->region;
    bool skewed = strcmp(code, "RequestTimeTooSkewed") == 0 ||
                  (status == 403 && llabs(reply->skew_ms) > SKEW_MS);
    if (skewed)
        return note(S3_SKEWED, ERR_AUTH, url, reply, refusal);
    if (strcmp(code, "NoSuchBucket") == 0)
        return err_set(ERR_NOT_FOUND, "the S3 store %s has no bucket '%s'", url->host, url->bucket),
               S3_FAILED;
    if (is_any(code, elsewhere) || status == 301)
        return err_set(ERR_ARGUMENT,
                       "the S3 store %s says that the bucket '%s' is in another region%s%s, not %s",
                       url->host, url->bucket, region[0] ? ": " : "", region, url->region),
               S3_FAILED;
    if (is_any(code, full) || status == 507)
        return note(S3_SLOWER, ERR_FULL, url, reply, refusal);
    if (is_any(code, busy) || status == 503 || status == 429)
        return note(S3_SLOWER, ERR_UNREACHABLE, url, reply, refusal);
    if (is_any(code, transient) || status == 408 || status == 409 || status == 307 ||
        (status >= 500 && status != 501))
        return note(S3_AGAIN, ERR_UNREACHABLE, url, reply, refusal);
    if (status == 401 || status == 403 || strcmp(code, "ExpiredToken") == 0 ||
        strcmp(code, "InvalidToken") == 0)
        return note(S3_FAILED, ERR_AUTH, url, reply, refusal);
    return note(S3_FAILED, status == 501 ? ERR_UNSUPPORTED : ERR_IO, url, reply, refusal);
}

S3Verdict s3_judge(const S3Url *url, const S3Credentials *secrets, const S3Reply *reply,
                   S3Answer *answer) {
    Refusal refusal = {.secrets = secrets};
    bool good = reply->status >= 200 && reply->status < 300;
    answer->status = reply->status;
    answer->code[0] = '\0';
    /* A store that took long may begin with 200 and end with an error. */
    int rc = reply->text.bytes > 0 ? s3_xml_read(reply->text, take_refusal, &refusal) : 0;
    if (good && reply->xml && !refusal.found && (rc < 0 || reply->text.bytes == 0))
        return err_set(ERR_CORRUPT, "the S3 store %s answered %d and %s", url->host, reply->status,
                       reply->text.bytes == 0 ? "nothing" : "something that is no XML"),
               S3_AGAIN;
    if (good && !refusal.found)
        return S3_DONE;
    if (rc < 0 && !refusal.code[0])
        refusal = (Refusal){0}; /* an answer of something in between, in another language */
    if (!refusal.code[0])
        snprintf(refusal.code, sizeof refusal.code, "%s", usual_code(reply->status));
    text_copy(answer->code, sizeof answer->code, refusal.code);
    bool told = reply->status == 404 || reply->status == 412 || reply->status == 416 ||
                reply->status == 501;
    if (told && strcmp(refusal.code, "NoSuchBucket") != 0)
        return S3_DONE;
    return judge_refusal(url, reply, &refusal);
}

#include "storage/s3_sign.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/err.h"

enum { HASH_BYTES = 32, DAY_CHARS = 8 };

static int refused(void) {
    return err_set(ERR_INTERNAL, "OpenSSL does not hash");
}

static void to_hex(const unsigned char hash[HASH_BYTES], char out_hex[S3_HEX_BYTES]) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < HASH_BYTES; i++) {
        out_hex[2 * i] = digits[hash[i] >> 4];
        out_hex[2 * i + 1] = digits[hash[i] & 15];
    }
    out_hex[2 * HASH_BYTES] = '\0';
}

void s3_date(int64_t wall_ms, char out_date[S3_DATE_BYTES]) {
    time_t seconds = (time_t)(wall_ms / 1000);
    struct tm utc = {0};
    gmtime_r(&seconds, &utc);
    strftime(out_date, S3_DATE_BYTES, "%Y%m%dT%H%M%SZ", &utc);
}

int s3_hash(const Slice *parts, int n_parts, char out_hex[S3_HEX_BYTES]) {
    unsigned char hash[HASH_BYTES];
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool fine = context && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1;
    for (int i = 0; i < n_parts && fine; i++)
        fine = parts[i].bytes == 0 || EVP_DigestUpdate(context, parts[i].data, parts[i].bytes) == 1;
    fine = fine && EVP_DigestFinal_ex(context, hash, NULL) == 1;
    EVP_MD_CTX_free(context);
    if (!fine)
        return refused();
    to_hex(hash, out_hex);
    return 0;
}

int s3_md5(const void *data, size_t bytes, char out_base64[S3_MD5_BYTES]) {
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (EVP_Digest(data, bytes, hash, &n, EVP_md5(), NULL) != 1 || n != 16)
        return refused();
    EVP_EncodeBlock((unsigned char *)out_base64, hash, 16);
    return 0;
}

int s3_encode(Buf *out, const char *text, bool keep_slashes) {
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    for (; *text; text++) {
        if (strchr(plain, *text) || (keep_slashes && *text == '/'))
            TRY(buf_add(out, text, 1));
        else
            TRY(buf_printf(out, "%%%02X", (unsigned)(unsigned char)*text));
    }
    return 0;
}

static int keyed(const void *key, size_t key_bytes, const char *text, size_t text_bytes,
                 unsigned char out[HASH_BYTES]) {
    unsigned n = 0;
    return HMAC(EVP_sha256(), key, (int)key_bytes, (const unsigned char *)text, text_bytes, out,
                &n) &&
                   n == HASH_BYTES
               ? 0
               : refused();
}

/* The key of one day, region and service. */
static int signing_key(const S3Credentials *credentials, const char *date, const char *region,
                       const char *service, unsigned char key[HASH_BYTES]) {
    char first[sizeof credentials->secret + 4];
    int n = snprintf(first, sizeof first, "AWS4%s", credentials->secret);
    int rc = keyed(first, (size_t)n, date, DAY_CHARS, key);
    explicit_bzero(first, sizeof first);
    TRY(rc);
    TRY(keyed(key, HASH_BYTES, region, strlen(region), key));
    TRY(keyed(key, HASH_BYTES, service, strlen(service), key));
    return keyed(key, HASH_BYTES, "aws4_request", 12, key);
}

static int add_names(Buf *out, const S3Canonical *request) {
    for (int i = 0; i < request->n_headers; i++)
        TRY(buf_printf(out, "%s%s", i > 0 ? ";" : "", request->headers[i].name));
    return 0;
}

static int hash_canonical(const S3Canonical *request, Buf *text, char out_hex[S3_HEX_BYTES]) {
    TRY(buf_printf(text, "%s\n%s\n", request->method, request->path));
    /* A name without a value has an empty one: "uploads" is signed as "uploads=". */
    for (const char *at = request->query; *at;) {
        size_t n = strcspn(at, "&");
        TRY(buf_add(text, at, n));
        if (!memchr(at, '=', n))
            TRY(buf_text(text, "="));
        at += n;
        if (*at)
            TRY(buf_add(text, at++, 1));
    }
    TRY(buf_text(text, "\n"));
    for (int i = 0; i < request->n_headers; i++)
        TRY(buf_printf(text, "%s:%s\n", request->headers[i].name, request->headers[i].value));
    TRY(buf_text(text, "\n"));
    TRY(add_names(text, request));
    TRY(buf_printf(text, "\n%s", request->body_hash));
    return s3_hash(&(Slice){text->data, text->bytes}, 1, out_hex);
}

int s3_sign(const S3Credentials *credentials, const char *region, const char *service,
            const S3Canonical *request, const char *date, Buf *out_authorization) {
    unsigned char key[HASH_BYTES];
    unsigned char signature[HASH_BYTES];
    char hex[S3_HEX_BYTES];
    char to_sign[256];
    Buf canonical;
    buf_init(&canonical, 0);
    int rc = hash_canonical(request, &canonical, hex);
    buf_done(&canonical);
    TRY(rc);
    int n = snprintf(to_sign, sizeof to_sign, "AWS4-HMAC-SHA256\n%s\n%.8s/%s/%s/aws4_request\n%s",
                     date, date, region, service, hex);
    if (n >= (int)sizeof to_sign)
        return err_set(ERR_ARGUMENT, "a region of %zu characters", strlen(region));
    rc = signing_key(credentials, date, region, service, key);
    if (rc >= 0)
        rc = keyed(key, HASH_BYTES, to_sign, (size_t)n, signature);
    explicit_bzero(key, sizeof key);
    TRY(rc);
    to_hex(signature, hex);
    TRY(buf_printf(out_authorization,
                   "AWS4-HMAC-SHA256 Credential=%s/%.8s/%s/%s/aws4_request,"
                   "SignedHeaders=",
                   credentials->key_id, date, region, service));
    TRY(add_names(out_authorization, request));
    return buf_printf(out_authorization, ",Signature=%s", hex);
}

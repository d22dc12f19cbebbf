#include "storage/s3_url.h"

#include <stdio.h>
#include <string.h>

#include "core/err.h"
#include "core/text.h"
#include "storage/url.h"

enum { LEAST_BUCKET = 3, LEAST_TIMEOUT_MS = 1000, MOST_TIMEOUT_MS = 600000 };

typedef enum Parameter {
    ENDPOINT,
    REGION,
    STYLE,
    CREDENTIALS_FILE,
    PROFILE,
    CA,
    TIMEOUT,
    ANNOUNCE,
    N_PARAMETERS
} Parameter;

static const char *const names[N_PARAMETERS] = {"endpoint", "region", "style",   "credentials_file",
                                                "profile",  "ca",     "timeout", "announce"};

static const char letters_digits[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

static bool only_of(const char *text, const char *more) {
    for (; *text; text++) {
        if (!strchr(letters_digits, *text) && !strchr(more, *text))
            return false;
    }
    return true;
}

static int parse_bucket(const char *from, const char *end, S3Url *url) {
    int rc = url_decode("the bucket", from, end, url->bucket, sizeof url->bucket);
    /* Not quoted: an access key and its secret may stand here, as in other programs' URLs, and a
     * '/' in the secret ends what looks like the bucket. */
    if (memchr(from, '@', (size_t)(end - from)) || memchr(from, ':', (size_t)(end - from)) ||
        (rc >= 0 && strpbrk(url->bucket, "@:")))
        return err_set(ERR_ARGUMENT,
                       "the relay's URL: nothing may stand in front of the bucket (credentials "
                       "come from the environment or a file, ?credentials_file=/PATH)");
    TRY(rc);
    if (strlen(url->bucket) < LEAST_BUCKET || !only_of(url->bucket, "._-") ||
        !only_of((char[2]){url->bucket[0], '\0'}, "") || strstr(url->bucket, ".."))
        return err_set(ERR_ARGUMENT,
                       "the relay's URL: the bucket '%s' is no name of 3 to %d letters, digits, "
                       "'.', '_' and '-'",
                       url->bucket, S3_BUCKET_BYTES - 1);
    return 0;
}

/* Its parts may hold anything but be empty, "." or "..": those are paths to some stores. */
static int parse_prefix(const char *from, const char *end, S3Url *url) {
    TRY(url_decode("the prefix", from, end, url->prefix, sizeof url->prefix - 1));
    size_t n = strlen(url->prefix);
    if (!text_is_utf8(url->prefix, n))
        return err_set(ERR_ARGUMENT, "the relay's URL: the prefix is not UTF-8");
    if (n > 0 && url->prefix[n - 1] != '/')
        memcpy(url->prefix + n, "/", 2);
    for (const char *at = url->prefix; *at; at = strchr(at, '/') + 1) {
        size_t part = strcspn(at, "/");
        if (part == 0 || (part <= 2 && strspn(at, ".") == part))
            return err_set(ERR_ARGUMENT,
                           "the relay's URL: the prefix '%s' has a part that is empty, '.' or '..'",
                           url->prefix);
    }
    return 0;
}

static int set_endpoint(const char *value, S3Url *url) {
    url->tls = strncmp(value, "https://", 8) == 0;
    if (!url->tls && strncmp(value, "http://", 7) != 0)
        return err_set(ERR_ARGUMENT,
                       "the relay's URL: the endpoint begins with neither http:// nor https://");
    const char *host = value + (url->tls ? 8 : 7);
    if (strchr(host, '@'))
        return err_set(ERR_ARGUMENT, "the relay's URL: the endpoint may hold no user or password");
    size_t n = strcspn(host, "/?#");
    bool more = host[n] && strcmp(host + n, "/") != 0;
    if (n == 0 || n >= sizeof url->host - sizeof url->bucket || more)
        return err_set(ERR_ARGUMENT,
                       "the relay's URL: the endpoint '%s' is no http[s]://HOST[:PORT]", value);
    memcpy(url->host, host, n);
    url->host[n] = '\0';
    char *colon = url->host[0] == '[' ? strstr(url->host, "]:") : strchr(url->host, ':');
    int64_t port = 1;
    if (colon) {
        colon += *colon == ']';
        if (text_parse_i64(colon + 1, 1, 65535, &port) < 0)
            return err_set(ERR_ARGUMENT,
                           "the relay's URL: the endpoint's port is no number from 1 to 65535");
        if (port == (url->tls ? 443 : 80)) /* nobody writes it into Host */
            *colon = '\0';
    }
    char *end = url->host + strcspn(url->host, ":");
    bool bracketed = url->host[0] == '[' && only_of(url->host, "[]:.%");
    char kept = *end;
    *end = '\0';
    bool plain = end > url->host && only_of(url->host, ".-_");
    *end = kept;
    return plain || bracketed
               ? 0
               : err_set(ERR_ARGUMENT, "the relay's URL: the endpoint's host has a character "
                                       "that no host has");
}

int s3_url_check_region(const char *what, const char *region) {
    if (region[0] && strlen(region) < S3_REGION_BYTES && only_of(region, "-"))
        return 0;
    return err_set(ERR_ARGUMENT, "%s: the region '%.80s' is no name such as eu-central-1", what,
                   region);
}

static int set_timeout(const char *value, S3Url *url) {
    if (text_parse_duration_ms(value, &url->timeout_ms) < 0 || url->timeout_ms < LEAST_TIMEOUT_MS ||
        url->timeout_ms > MOST_TIMEOUT_MS)
        return err_set(ERR_ARGUMENT, "the relay's URL: timeout '%s' is no duration from 1s to 10m",
                       value);
    return 0;
}

static int set_text(const char *name, const char *value, char *out, size_t out_bytes) {
    return value[0] && text_copy(out, out_bytes, value) >= 0
               ? 0
               : err_set(ERR_ARGUMENT, "the relay's URL: '%s' is empty or longer than %zu bytes",
                         name, out_bytes - 1);
}

static int set_announce(const char *value, S3Url *url) {
    if (strncmp(value, "redis://", 8) != 0 && strncmp(value, "rediss://", 9) != 0)
        return err_set(ERR_ARGUMENT,
                       "the relay's URL: announce begins with neither redis:// nor rediss://");
    return set_text("announce", value, url->announce, sizeof url->announce);
}

/* Not quoted behind another URL, as it may be a part of a password there. */
static int unknown(const S3Url *url, const char *name) {
    if (url->announce[0])
        return err_set(ERR_ARGUMENT, "the relay's URL: an unknown parameter stands behind "
                                     "'announce' (in its value '&' is written %%26)");
    const char *near = text_nearest(name, names, N_PARAMETERS);
    if (near)
        return err_set(ERR_ARGUMENT,
                       "the relay's URL: the parameter '%s' is unknown (did you mean '%s'?)", name,
                       near);
    return err_set(ERR_ARGUMENT, "the relay's URL: the parameter '%s' is unknown", name);
}

static int set_parameter(void *ctx, const char *at, const char *name, const char *value) {
    S3Url *url = ctx;
    (void)at;
    int which = 0;
    while (which < N_PARAMETERS && strcmp(name, names[which]) != 0)
        which++;
    if (which == N_PARAMETERS)
        return unknown(url, name);
    if (url->given & 1U << which)
        return err_set(ERR_ARGUMENT, "the relay's URL: '%s' stands in it twice", name);
    url->given |= 1U << which;
    if ((which == CREDENTIALS_FILE || which == CA) && value[0] != '/')
        return err_set(ERR_ARGUMENT, "the relay's URL: '%s' needs an absolute path", name);
    switch ((Parameter)which) {
    case ENDPOINT:
        return set_endpoint(value, url);
    case REGION:
        TRY(s3_url_check_region("the relay's URL", value));
        return set_text(name, value, url->region, sizeof url->region);
    case STYLE:
        url->virtual_style = strcmp(value, "virtual") == 0;
        return url->virtual_style || strcmp(value, "path") == 0
                   ? 0
                   : err_set(ERR_ARGUMENT,
                             "the relay's URL: style is 'path' or 'virtual', not '%s'", value);
    case CREDENTIALS_FILE:
        return set_text(name, value, url->credentials, sizeof url->credentials);
    case PROFILE:
        return set_text(name, value, url->profile, sizeof url->profile);
    case CA:
        return set_text(name, value, url->ca, sizeof url->ca);
    case ANNOUNCE:
        return set_announce(value, url);
    default:
        return set_timeout(value, url);
    }
}

/* What belongs together. */
static int check_whole(S3Url *url) {
    bool endpoint = url->given & 1U << ENDPOINT;
    if (url->ca[0] && !url->tls)
        return err_set(ERR_ARGUMENT, "the relay's URL: 'ca' is of TLS, which is https://");
    if (!(url->given & 1U << STYLE))
        url->virtual_style = !endpoint && !strchr(url->bucket, '.');
    if (url->virtual_style && (!only_of(url->bucket, ".-") || url->host[0] == '['))
        return err_set(ERR_ARGUMENT,
                       "the relay's URL: the bucket '%s' cannot stand in front of the host "
                       "(style=path)",
                       url->bucket);
    if (endpoint && url->virtual_style) {
        char host[S3_HOST_BYTES];
        memcpy(host, url->host, sizeof host);
        snprintf(url->host, sizeof url->host, "%s.%s", url->bucket, host);
    }
    return 0;
}

int s3_url_parse(const char *place, S3Url *out_url) {
    S3Url url = {.tls = true, .timeout_ms = 10000};
    const char *question = place + strcspn(place, "?");
    const char *slash = memchr(place, '/', (size_t)(question - place));
    TRY(parse_bucket(place, slash ? slash : question, &url));
    if (slash)
        TRY(parse_prefix(slash + 1, question, &url));
    if (*question)
        TRY(url_parameters(question + 1, set_parameter, &url));
    TRY(check_whole(&url));
    *out_url = url;
    return 0;
}

void s3_url_settle(S3Url *url, const char *region) {
    if (!url->region[0])
        snprintf(url->region, sizeof url->region, "%s", region);
    /* China's regions have names of their own. */
    const char *end = strncmp(url->region, "cn-", 3) == 0 ? ".cn" : "";
    if (!url->host[0] && url->virtual_style)
        snprintf(url->host, sizeof url->host, "%s.s3.%s.amazonaws.com%s", url->bucket, url->region,
                 end);
    else if (!url->host[0])
        snprintf(url->host, sizeof url->host, "s3.%s.amazonaws.com%s", url->region, end);
}

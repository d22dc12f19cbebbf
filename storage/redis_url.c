#include "storage/redis_url.h"

#include <stdio.h>
#include <string.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/text.h"
#include "storage/url.h"

enum { MAX_DB = 65535 };

/* What is unknown is quoted, unless it may be the rest of a password with a '/' or '?' in it. */
static int unknown(const char *rest, const char *what, const char *quote, const char *expected) {
    if (strchr(rest, '@'))
        return err_set(ERR_ARGUMENT,
                       "the relay's URL: %s is wrong ('/', '?' and '@' in a password are written "
                       "%%2F, %%3F and %%40)",
                       what);
    return err_set(ERR_ARGUMENT, "the relay's URL: %s '%s' %s", what, quote, expected);
}

static int parse_user(const char *from, const char *end, RedisUrl *url) {
    const char *colon = memchr(from, ':', (size_t)(end - from));
    TRY(url_decode("the user's name", from, colon ? colon : end, url->user, sizeof url->user));
    if (colon)
        TRY(url_decode("the password", colon + 1, end, url->password, sizeof url->password));
    url->password_inside = url->password[0] != '\0';
    return 0;
}

static int parse_server(const char *from, const char *end, RedisServer *server) {
    int64_t port = 6379;
    const char *host = from;
    const char *host_end = end;
    const char *port_text = NULL;
    if (from < end && *from == '[') { /* an IPv6 address */
        host = from + 1;
        host_end = memchr(from, ']', (size_t)(end - from));
        if (!host_end)
            return err_set(ERR_ARGUMENT, "the relay's URL: '[' of an address without its ']'");
        if (host_end + 1 < end)
            port_text = host_end + 1;
    } else {
        const char *colon = memchr(from, ':', (size_t)(end - from));
        if (colon) {
            host_end = colon;
            port_text = colon;
        }
    }
    TRY(url_decode("a host", host, host_end, server->host, sizeof server->host));
    if (!server->host[0])
        return err_set(ERR_ARGUMENT, "the relay's URL: a host is missing");
    snprintf(server->port, sizeof server->port, "6379");
    if (port_text) {
        size_t n = (size_t)(end - port_text) - 1;
        if (*port_text != ':' || n == 0 || n >= sizeof server->port)
            return err_set(ERR_ARGUMENT,
                           "the relay's URL: the port of '%s' is no number from 1 to "
                           "65535",
                           server->host);
        memcpy(server->port, port_text + 1, n);
        server->port[n] = '\0';
        if (text_parse_i64(server->port, 1, 65535, &port) < 0)
            return err_set(ERR_ARGUMENT,
                           "the relay's URL: the port of '%s' is no number from 1 to "
                           "65535",
                           server->host);
    }
    return 0;
}

static int parse_servers(const char *from, const char *end, RedisUrl *url) {
    for (;;) {
        const char *comma = memchr(from, ',', (size_t)(end - from));
        if (url->n_servers == REDIS_MAX_SERVERS)
            return err_set(ERR_ARGUMENT, "the relay's URL names more than %d servers",
                           REDIS_MAX_SERVERS);
        TRY(parse_server(from, comma ? comma : end, &url->servers[url->n_servers]));
        for (int i = 0; i < url->n_servers; i++) {
            if (strcmp(url->servers[i].host, url->servers[url->n_servers].host) == 0 &&
                strcmp(url->servers[i].port, url->servers[url->n_servers].port) == 0)
                return err_set(ERR_ARGUMENT, "the relay's URL names the server '%s:%s' twice",
                               url->servers[i].host, url->servers[i].port);
        }
        url->n_servers++;
        if (!comma)
            return 0;
        from = comma + 1;
    }
}

static int read_password(const char *path, RedisUrl *url) {
    Buf text;
    if (url->password[0])
        return err_set(ERR_ARGUMENT, "the relay's URL has a password and a password_file");
    buf_init(&text, 0);
    int rc = buf_read_file(&text, path, sizeof url->password);
    if (rc >= 0) {
        size_t n = strcspn(buf_string(&text), "\r\n");
        rc = n > 0 && n < sizeof url->password
                 ? 0
                 : err_set(ERR_ARGUMENT, "'%s': its first line is no password", path);
        if (rc >= 0) {
            memcpy(url->password, text.data, n);
            url->password[n] = '\0';
        }
    }
    if (text.data)
        explicit_bzero(text.data, text.bytes);
    buf_done(&text);
    return rc < 0 ? err_context(rc, "the relay's password_file") : 0;
}

static int check_prefix(const char *prefix) {
    for (const char *at = prefix; *at; at++) {
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:/", *at))
            return err_set(ERR_ARGUMENT,
                           "the relay's URL: prefix '%s' may hold only letters, "
                           "digits and '.', '_', '-', ':', '/'",
                           prefix);
    }
    return 0;
}

static int set_parameter(void *ctx, const char *rest, const char *name, const char *value) {
    RedisUrl *url = ctx;
    static const char *const names[] = {"password_file", "prefix", "ttl", "ca", "cert", "key"};
    int which = -1;
    for (int i = 0; i < 6; i++)
        which = strcmp(name, names[i]) == 0 ? i : which;
    if (which < 0) {
        char hint[64] = "is unknown";
        const char *near = text_nearest(name, names, 6);
        if (near)
            snprintf(hint, sizeof hint, "is unknown (did you mean '%s'?)", near);
        return unknown(rest, "the parameter", name, hint);
    }
    if (url->given & 1U << which)
        return err_set(ERR_ARGUMENT, "the relay's URL: '%s' stands in it twice", name);
    url->given |= 1U << which;
    if (which >= 3 && !url->tls)
        return err_set(ERR_ARGUMENT, "the relay's URL: '%s' is of TLS, which is rediss://", name);
    if ((which == 0 || which >= 3) && value[0] != '/')
        return err_set(ERR_ARGUMENT, "the relay's URL: '%s' needs an absolute path", name);
    switch (which) {
    case 0:
        return read_password(value, url);
    case 1:
        TRY(check_prefix(value));
        return text_copy(url->prefix, sizeof url->prefix, value) < 0
                   ? err_set(ERR_ARGUMENT, "the relay's URL: prefix is longer than %zu bytes",
                             sizeof url->prefix - 1)
                   : 0;
    case 2:
        if (text_parse_duration_ms(value, &url->ttl_ms) < 0 || url->ttl_ms <= 0)
            return err_set(ERR_ARGUMENT, "the relay's URL: ttl '%s' is no duration such as 1d",
                           value);
        return 0;
    default:
        return text_copy(which == 3   ? url->ca
                         : which == 4 ? url->cert
                                      : url->key,
                         REDIS_FILE_BYTES, value);
    }
}

static int parse(const char *place, RedisUrl *url) {
    const char *question = place + strcspn(place, "?");
    const char *slash = memchr(place, '/', (size_t)(question - place));
    const char *end = slash ? slash : question;
    const char *at = memrchr(place, '@', (size_t)(end - place));
    if (at)
        TRY(parse_user(place, at, url));
    TRY(parse_servers(at ? at + 1 : place, end, url));
    if (slash && slash + 1 < question) {
        char db[16] = "";
        size_t n = (size_t)(question - slash) - 1;
        if (n < sizeof db)
            memcpy(db, slash + 1, n);
        if (text_parse_i64(db, 0, MAX_DB, &url->db) < 0)
            return unknown(end, "the database", db, "is no number from 0 to 65535");
    }
    if (*question)
        TRY(url_parameters(question + 1, set_parameter, url));
    if (url->user[0] && !url->password[0]) /* no names: a password alone may have been meant */
        return err_set(ERR_ARGUMENT, "the relay's URL has a user and no password (a password "
                                     "alone is written ':PASSWORD@')");
    if (!url->cert[0] != !url->key[0])
        return err_set(ERR_ARGUMENT, "the relay's URL: cert and key belong together");
    return 0;
}

int redis_url_parse(const char *place, bool tls, RedisUrl *out_url) {
    RedisUrl url = {.tls = tls, .ttl_ms = 24 * 3600 * INT64_C(1000), .prefix = "funcpipe:"};
    int rc = parse(place, &url);
    if (rc >= 0)
        *out_url = url;
    explicit_bzero(&url, sizeof url);
    return rc;
}

/* Relays over real Redis servers. A place is its servers and the URL that reaches them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/file.h"
#include "tests/support/proxy.h"
#include "tests/support/redis_server.h"
#include "tests/support/relay_suite.h"

typedef struct RedisPlace {
    RedisServerProcess servers[2];
    int n_servers;
    Proxy *proxy;    /* NULL: none */
    char folder[64]; /* secrets and certificates; "" none */
    char url[512];
} RedisPlace;

static void place_close(void *arg) {
    RedisPlace *place = arg;
    proxy_stop(place->proxy);
    for (int i = 0; i < place->n_servers; i++)
        redis_server_stop(&place->servers[i]);
    if (place->folder[0])
        relay_suite_remove_folder(place->folder);
    free(place);
}

/* n servers with the same arguments. */
static int place_begin(int n, const char *const *args, RedisPlace **out_place) {
    RedisPlace *place = calloc(1, sizeof *place);
    if (!place)
        return err_set(ERR_MEMORY, "a place");
    for (; place->n_servers < n; place->n_servers++) {
        int rc = redis_server_start(&place->servers[place->n_servers], args);
        if (rc < 0) {
            place_close(place);
            return rc;
        }
    }
    *out_place = place;
    return 0;
}

static int place_open(void *arg, Relay **out_relay) {
    return relay_open(((RedisPlace *)arg)->url, out_relay);
}

static const char *const module_args[] = {"--loadmodule", REDIS_SERVER_MODULE, NULL};

/* ---- plain ---- */

static int plain_open(void **out_place) {
    RedisPlace *place = NULL;
    TRY(place_begin(1, NULL, &place));
    snprintf(place->url, sizeof place->url, "redis://127.0.0.1:%d", place->servers[0].port);
    *out_place = place;
    return 0;
}

/* ---- with our module: a password in a file, and database 3 ---- */

static int password_open(void **out_place) {
    static const char *const args[] = {"--requirepass", "a pass:word@of/odd?characters",
                                       "--loadmodule", REDIS_SERVER_MODULE, NULL};
    static const char secret[] = "a pass:word@of/odd?characters\n";
    RedisPlace *place = NULL;
    char path[96];
    TRY(place_begin(1, args, &place));
    int rc = relay_suite_folder(place->folder, sizeof place->folder);
    snprintf(path, sizeof path, "%s/secret", place->folder);
    if (rc < 0 || file_write(path, secret, sizeof secret - 1) < 0) {
        place_close(place);
        return err_set(ERR_IO, "no file for a password");
    }
    snprintf(place->url, sizeof place->url,
             "redis://127.0.0.1:%d/3?password_file=%s&prefix=a:b:", place->servers[0].port, path);
    *out_place = place;
    return 0;
}

/* ---- TLS with a certificate of one's own ---- */

static int tls_open(void **out_place) {
    char folder[64];
    char cert[96];
    char key[96];
    char ca[96];
    RedisPlace *place = NULL;
    if (relay_suite_folder(folder, sizeof folder) < 0)
        return err_set(ERR_IO, "no folder for certificates");
    int rc = redis_server_certificates(folder);
    snprintf(cert, sizeof cert, "%s/server.crt", folder);
    snprintf(key, sizeof key, "%s/server.key", folder);
    snprintf(ca, sizeof ca, "%s/ca.crt", folder);
    /* The last --port counts. */
    const char *const args[] = {
        "--tls-port",         "PORT", "--port", "0", "--tls-cert-file", cert, "--tls-key-file", key,
        "--tls-ca-cert-file", ca,     NULL};
    if (rc >= 0)
        rc = place_begin(1, args, &place);
    if (rc < 0) {
        relay_suite_remove_folder(folder);
        return rc;
    }
    snprintf(place->folder, sizeof place->folder, "%s", folder);
    snprintf(place->url, sizeof place->url,
             "rediss://localhost:%d?ca=%s&cert=%s/client.crt&key=%s/client.key",
             place->servers[0].port, ca, folder, folder);
    *out_place = place;
    return 0;
}

/* ---- values of at most 1 MiB; two servers, with our module ---- */

static int small_open(void **out_place) {
    static const char *const args[] = {"--proto-max-bulk-len", "1mb", NULL};
    RedisPlace *place = NULL;
    TRY(place_begin(1, args, &place));
    snprintf(place->url, sizeof place->url, "redis://localhost:%d/0", place->servers[0].port);
    *out_place = place;
    return 0;
}

static int two_open(void **out_place) {
    RedisPlace *place = NULL;
    TRY(place_begin(2, module_args, &place));
    snprintf(place->url, sizeof place->url, "redis://127.0.0.1:%d,127.0.0.1:%d/0",
             place->servers[0].port, place->servers[1].port);
    *out_place = place;
    return 0;
}

/* ---- far away, with our module: each packet takes some milliseconds ---- */

static int slow_open(void **out_place) {
    RedisPlace *place = NULL;
    TRY(place_begin(1, module_args, &place));
    int rc = proxy_start(place->servers[0].port, &place->proxy);
    if (rc < 0) {
        place_close(place);
        return rc;
    }
    proxy_delay(place->proxy, PROXY_UP, 2);
    proxy_delay(place->proxy, PROXY_DOWN, 2);
    snprintf(place->url, sizeof place->url, "redis://127.0.0.1:%d", proxy_port(place->proxy));
    *out_place = place;
    return 0;
}

#define REDIS_FACTORY(what, sums, how_slow)                                                        \
    const RelayFactory relay_factory_redis_##what = {.name = "redis_" #what,                       \
                                                     .place_open = what##_open,                    \
                                                     .place_close = place_close,                   \
                                                     .open = place_open,                           \
                                                     .across_processes = true,                     \
                                                     .adds = sums,                                 \
                                                     .over_network = true,                         \
                                                     .slowness = how_slow}
REDIS_FACTORY(plain, false, 0);
REDIS_FACTORY(password, true, 0);
REDIS_FACTORY(tls, false, 0);
REDIS_FACTORY(small, false, 0);
REDIS_FACTORY(two, true, 0);
REDIS_FACTORY(slow, true, 10);

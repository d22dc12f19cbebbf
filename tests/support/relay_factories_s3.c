/* Relays over a real S3 store. A place is a prefix of its bucket and the URL that says so. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/file.h"
#include "tests/support/proxy.h"
#include "tests/support/redis_server.h"
#include "tests/support/relay_suite.h"
#include "tests/support/s3_fake.h"
#include "tests/support/s3_server.h"

typedef struct S3Place {
    char url[512];
    Proxy *proxy;             /* NULL: none */
    S3Fake *fake;             /* NULL: it is the program's real store */
    char folder[64];          /* with credentials for the fake one */
    RedisServerProcess redis; /* where objects are announced; port 0: none */
} S3Place;

/* The store is the program's: what lies under the prefix goes with it. */
static void place_close(void *arg) {
    S3Place *place = arg;
    proxy_stop(place->proxy);
    if (place->fake)
        s3_fake_stop(place->fake);
    if (place->folder[0])
        relay_suite_remove_folder(place->folder);
    if (place->redis.port > 0)
        redis_server_stop(&place->redis);
    free(place);
}

static int place_open(void *arg, Relay **out_relay) {
    return relay_open(((S3Place *)arg)->url, out_relay);
}

/* `odd`: behind the prefix; by_name: the bucket as part of the host's name. */
static int place_begin(const char *odd, bool by_name, void **out_place) {
    char prefix[64];
    char whole[192];
    TRY(s3_server_port());
    S3Place *place = calloc(1, sizeof *place);
    if (!place)
        return err_set(ERR_MEMORY, "a place");
    s3_server_prefix(prefix, sizeof prefix);
    snprintf(whole, sizeof whole, "%s%s", prefix, odd);
    if (by_name)
        snprintf(place->url, sizeof place->url,
                 "s3://" S3_SERVER_BUCKET
                 "/%s?endpoint=http://localhost:%d&style=virtual&region=default"
                 "&credentials_file=%s",
                 whole, s3_server_port(), s3_server_credentials());
    else
        s3_server_url(whole, 0, place->url, sizeof place->url);
    *out_place = place;
    return 0;
}

static int plain_open(void **out_place) {
    return place_begin("", false, out_place);
}

/* What signatures stumble over. */
static int odd_open(void **out_place) {
    return place_begin("/a%20b%2B~@()=%2541%23%3F%C3%A9&%3C'%22!*$,;:"
                       "/x",
                       false, out_place);
}

static int virtual_open(void **out_place) {
    return place_begin("", true, out_place);
}

static int tls_open(void **out_place) {
    S3Place *place = NULL;
    TRY(place_begin("", false, out_place));
    place = *out_place;
    char prefix[64];
    s3_server_prefix(prefix, sizeof prefix);
    snprintf(place->url, sizeof place->url,
             "s3://" S3_SERVER_BUCKET "/%s?endpoint=https://localhost:%d&ca=%s&credentials_file=%s",
             prefix, s3_server_tls_port(), s3_server_trust(), s3_server_credentials());
    return 0;
}

static int announced_open(void **out_place) {
    void *begun = NULL;
    TRY(place_begin("", false, &begun));
    S3Place *place = begun;
    int rc = redis_server_start(&place->redis, NULL);
    if (rc < 0) {
        free(place);
        return rc;
    }
    size_t n = strlen(place->url);
    snprintf(place->url + n, sizeof place->url - n, "&announce=redis://127.0.0.1:%d/1%%3Fttl=1h",
             place->redis.port);
    *out_place = place;
    return 0;
}

/* Alone in its program: there is one store for all. */
static int swift_open(void **out_place) {
    s3_server_is_swift();
    return place_begin("", false, out_place);
}

/* ---- far away: each packet takes some milliseconds ---- */

static int slow_open(void **out_place) {
    S3Place *place = NULL;
    char prefix[64];
    TRY(place_begin("", false, out_place));
    place = *out_place;
    int rc = proxy_start(s3_server_port(), &place->proxy);
    if (rc < 0) {
        place_close(place);
        return rc;
    }
    proxy_delay(place->proxy, PROXY_UP, 2);
    proxy_delay(place->proxy, PROXY_DOWN, 2);
    s3_server_prefix(prefix, sizeof prefix);
    s3_server_url(prefix, proxy_port(place->proxy), place->url, sizeof place->url);
    return 0;
}

/* ---- busy: it says "slow down" to a third of all requests ---- */

static int busy_begin(S3Place *place) {
    static const char keys[] = "[default]\naws_access_key_id=AK\naws_secret_access_key=secret\n";
    static const S3FakeRule rules[] = {
        {.request = "", .way = S3_FAKE_REFUSE, .status = 503, .code = "SlowDown", .percent = 30},
        {0}};
    char path[96];
    if (relay_suite_folder(place->folder, sizeof place->folder) < 0)
        return err_set(ERR_IO, "no folder for credentials");
    snprintf(path, sizeof path, "%s/credentials", place->folder);
    TRY(file_write(path, keys, sizeof keys - 1));
    TRY(s3_fake_start(&place->fake));
    s3_fake_rules(place->fake, rules);
    snprintf(place->url, sizeof place->url,
             "s3://bucket/jobs?endpoint=http://127.0.0.1:%d&credentials_file=%s",
             s3_fake_port(place->fake), path);
    return 0;
}

static int busy_open(void **out_place) {
    S3Place *place = calloc(1, sizeof *place);
    if (!place)
        return err_set(ERR_MEMORY, "a place");
    int rc = busy_begin(place);
    if (rc < 0)
        place_close(place);
    else
        *out_place = place;
    return rc;
}

#define S3_FACTORY(what, may_overwrite)                                                            \
    const RelayFactory relay_factory_s3_##what = {.name = "s3_" #what,                             \
                                                  .place_open = what##_open,                       \
                                                  .place_close = place_close,                      \
                                                  .open = place_open,                              \
                                                  .across_processes = true,                        \
                                                  .over_network = true,                            \
                                                  .overwrites = may_overwrite,                     \
                                                  .slowness = 5}
S3_FACTORY(plain, false);
S3_FACTORY(odd, false);
S3_FACTORY(virtual, false);
S3_FACTORY(tls, false);
S3_FACTORY(announced, false);
S3_FACTORY(swift, true);
S3_FACTORY(slow, false);
S3_FACTORY(busy, false);

/* For Criterion programs about the Redis relay: a real server, a relay straight to it, and one
 * through a proxy. Whatever cannot be had fails the test. */
#ifndef FUNCPIPE_TESTS_REDIS_PLACE_H
#define FUNCPIPE_TESTS_REDIS_PLACE_H

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/relay.h"
#include "tests/support/loopback.h"
#include "tests/support/proxy.h"
#include "tests/support/redis_server.h"
#include "tests/support/relay_suite.h"

typedef struct RedisPlace {
    RedisServerProcess server;
    Proxy *proxy;
    Relay *direct, *proxied;
    char user[64], rest[128]; /* of the URL: in front of the host, behind the port */
    char folder[64];          /* of certificates; "" none */
} RedisPlace;

static inline Relay *place_relay_as(const RedisPlace *place, const char *scheme, int port) {
    char url[320];
    Relay *relay = NULL;
    snprintf(url, sizeof url, "%s://%s127.0.0.1:%d%s", scheme, place->user, port, place->rest);
    cr_assert_eq(relay_open(url, &relay), 0, "%s", err_text());
    return relay;
}

static inline Relay *place_relay(const RedisPlace *place, int port) {
    return place_relay_as(place, "redis", port);
}

static inline void place_open(RedisPlace *place, const char *const *args, const char *user,
                              const char *rest) {
    *place = (RedisPlace){0};
    snprintf(place->user, sizeof place->user, "%s", user);
    snprintf(place->rest, sizeof place->rest, "%s", rest);
    cr_assert_eq(redis_server_start(&place->server, args), 0, "%s", err_text());
    cr_assert_eq(proxy_start(place->server.port, &place->proxy), 0, "%s", err_text());
    place->direct = place_relay(place, place->server.port);
    place->proxied = place_relay(place, proxy_port(place->proxy));
}

/* The same, with TLS on the way through the proxy. */
static inline void place_open_tls(RedisPlace *place) {
    char cert[96];
    char key[96];
    char ca[96];
    char port[16];
    int tls_port = 0;
    *place = (RedisPlace){0};
    cr_assert_geq(relay_suite_folder(place->folder, sizeof place->folder), 0);
    cr_assert_geq(redis_server_certificates(place->folder), 0, "%s", err_text());
    snprintf(cert, sizeof cert, "%s/server.crt", place->folder);
    snprintf(key, sizeof key, "%s/server.key", place->folder);
    snprintf(ca, sizeof ca, "%s/ca.crt", place->folder);
    close(loopback_listen(0, &tls_port));
    snprintf(port, sizeof port, "%d", tls_port);
    const char *const args[] = {"--tls-port",
                                port,
                                "--tls-cert-file",
                                cert,
                                "--tls-key-file",
                                key,
                                "--tls-ca-cert-file",
                                ca,
                                "--tls-auth-clients",
                                "no",
                                "--proto-max-bulk-len",
                                "1mb",
                                NULL};
    cr_assert_eq(redis_server_start(&place->server, args), 0, "%s", err_text());
    cr_assert_eq(proxy_start(tls_port, &place->proxy), 0, "%s", err_text());
    place->direct = place_relay(place, place->server.port);
    snprintf(place->rest, sizeof place->rest, "?ca=%s", ca);
    place->proxied = place_relay_as(place, "rediss", proxy_port(place->proxy));
}

static inline void place_close(RedisPlace *place) {
    relay_close(place->direct);
    relay_close(place->proxied);
    proxy_stop(place->proxy);
    redis_server_stop(&place->server);
    if (place->folder[0])
        relay_suite_remove_folder(place->folder);
}

static inline int64_t place_ask(const RedisPlace *place, const char *lines) {
    int64_t answer = redis_server_ask(place->server.port, lines);
    cr_assert_geq(answer, 0, "%s", lines);
    return answer;
}

/* Byte i of the content numbered `seed`. */
static inline void place_fill(char *data, size_t bytes, unsigned seed) {
    uint32_t state = seed * 2654435761U + 1;
    for (size_t i = 0; i < bytes; i++) {
        state = state * 1664525U + 1013904223U;
        data[i] = (char)(state >> 24);
    }
}

static inline int place_put(Relay *relay, const char *key, const void *data, size_t bytes,
                            int64_t ms) {
    Slice part = {data, bytes};
    return relay_put(relay, key, &part, 1, clock_deadline_ms(ms));
}

/* The object is there, whole. */
static inline void place_expect(Relay *relay, const char *key, const void *data, size_t bytes) {
    Buf buf;
    buf_init(&buf, 0);
    int rc = relay_get_buf(relay, key, &buf, clock_deadline_ms(5000));
    cr_assert_eq(rc, 0, "%s: %s", key, err_text());
    cr_assert_eq(buf.bytes, bytes, "%s: %zu bytes", key, buf.bytes);
    cr_assert(memcmp(buf_string(&buf), data, bytes) == 0, "%s: other bytes", key);
    buf_done(&buf);
}

/* ---- one operation in a thread of its own ---- */

typedef struct Doing {
    pthread_t thread;
    Relay *relay;
    const char *key;
    const void *data; /* a put; NULL: a get */
    size_t bytes;
    int64_t ms, took_ms, cpu_ms;
    int rc;
    ErrNote note;
    char *got;
} Doing;

static inline void *doing_main(void *arg) {
    Doing *doing = arg;
    struct timespec cpu;
    int64_t begin_ns = clock_now_ns();
    if (doing->data)
        doing->rc = place_put(doing->relay, doing->key, doing->data, doing->bytes, doing->ms);
    else
        doing->rc = relay_get(doing->relay, doing->key, doing->got, doing->bytes,
                              clock_deadline_ms(doing->ms), &doing->bytes);
    doing->took_ms = (clock_now_ns() - begin_ns) / CLOCK_NS_PER_MS;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    doing->cpu_ms = (int64_t)cpu.tv_sec * 1000 + cpu.tv_nsec / CLOCK_NS_PER_MS;
    err_copy(&doing->note);
    return NULL;
}

static inline void doing_start(Doing *doing) {
    if (!doing->data)
        doing->got = malloc(doing->bytes + 1);
    cr_assert_eq(pthread_create(&doing->thread, NULL, doing_main, doing), 0);
}

static inline int doing_join(Doing *doing) {
    pthread_join(doing->thread, NULL);
    free(doing->got);
    err_restore(&doing->note);
    return doing->rc;
}

static inline void sleep_ms(int64_t ms) {
    clock_sleep_until(clock_deadline_ms(ms));
}

#endif

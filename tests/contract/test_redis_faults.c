/* The Redis relay when the network or the server fails it: cuts at every byte, restarts, silence,
 * full servers, dead ones, interruptions. Real servers, a proxy in between. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cutting.h"
#include "tests/support/redis_place.h"

enum { MIB = 1 << 20, LARGE_BYTES = 3 * MIB + 7 };

static const char *const small_values[] = {"--proto-max-bulk-len", "1mb", NULL};

/* ---- cut connections ---- */

static RedisPlace cut_place;
static int64_t n_cut_pieces;

static void look(const Cutting *cutting, int64_t at, bool cleaned) {
    (void)cutting;
    if (cleaned) {
        cr_assert_eq(place_ask(&cut_place, "DBSIZE"), 0, "cut at %lld", (long long)at);
        return;
    }
    cr_assert_eq(place_ask(&cut_place, REDIS_SERVER_IMMORTAL), 0, "cut at %lld", (long long)at);
    if (n_cut_pieces > 0) { /* of a try whose answer was lost, pieces may be left */
        int64_t n = place_ask(&cut_place, REDIS_SERVER_PIECES);
        cr_assert(n == n_cut_pieces || n == 2 * n_cut_pieces, "%lld pieces", (long long)n);
    }
}

/* In cut_place. The connection that was there before is found dead: one more retry. */
static Cutting cutting_open(bool put, ProxyWay way, const char *data, size_t bytes) {
    if (!put)
        cr_assert_eq(place_put(cut_place.direct, "cut/o", data, bytes, 5000), 0);
    return (Cutting){.proxy = cut_place.proxy,
                     .direct = cut_place.direct,
                     .proxied = cut_place.proxied,
                     .put = put,
                     .way = way,
                     .data = data,
                     .bytes = bytes,
                     .n_retries = 2,
                     .look = look};
}

static void cut_everywhere(bool put, ProxyWay way) {
    place_open(&cut_place, small_values, "", "");
    Cutting cutting = cutting_open(put, way, "some content of an object", 25);
    int64_t n = cutting_measure(&cutting);
    cr_assert_gt(n, 30);
    for (int64_t at = 0; at < n; at += cutting_stride()) {
        cutting_at(&cutting, at, at % 2 == 0);
        if (at % 4 == 0)
            cutting_at(&cutting, at, false);
    }
    place_close(&cut_place);
}

Test(redis_cuts, put_up) {
    cut_everywhere(true, PROXY_UP);
}

Test(redis_cuts, put_down) {
    cut_everywhere(true, PROXY_DOWN);
}

Test(redis_cuts, get_up) {
    cut_everywhere(false, PROXY_UP);
}

Test(redis_cuts, get_down) {
    cut_everywhere(false, PROXY_DOWN);
}

/* About `n` positions, and the last ones all. */
static void cut_large(bool put, ProxyWay way, int64_t n) {
    char *data = malloc(LARGE_BYTES);
    place_fill(data, LARGE_BYTES, 1);
    place_open(&cut_place, small_values, "", "");
    Cutting cutting = cutting_open(put, way, data, LARGE_BYTES);
    n_cut_pieces = 4;
    int64_t all = cutting_measure(&cutting);
    int64_t stride = (all / n > 0 ? all / n : 1) * cutting_stride();
    for (int64_t at = 0; at < all - 8; at += stride)
        cutting_at(&cutting, at, at / stride % 2 == 0);
    for (int64_t at = all - 8; at < all; at++)
        cutting_at(&cutting, at, at % 2 == 0);
    place_close(&cut_place);
    free(data);
}

Test(redis_cuts, large_put_up) {
    cut_large(true, PROXY_UP, 50);
}

Test(redis_cuts, large_put_down) {
    cut_large(true, PROXY_DOWN, 50);
}

Test(redis_cuts, large_get_up) {
    cut_large(false, PROXY_UP, 50);
}

Test(redis_cuts, large_get_down) {
    cut_large(false, PROXY_DOWN, 50);
}

/* Over TLS: about `n` positions, from its first byte on. The length of a signature varies, so the
 * last bytes are left out: those of the connections above. */
static void cut_tls(bool put, ProxyWay way, int64_t n) {
    place_open_tls(&cut_place);
    Cutting cutting = cutting_open(put, way, "some content of an object", 25);
    int64_t all = cutting_measure(&cutting) - 16;
    cr_assert_gt(all, n, "%lld bytes", (long long)all);
    for (int64_t i = 0; i < n; i += cutting_stride())
        cutting_at(&cutting, i * all / n, i % 2 == 0);
    place_close(&cut_place);
}

Test(redis_cuts, tls_put_up) {
    cut_tls(true, PROXY_UP, 60);
}

Test(redis_cuts, tls_put_down) {
    cut_tls(true, PROXY_DOWN, 60);
}

Test(redis_cuts, tls_get_up) {
    cut_tls(false, PROXY_UP, 60);
}

Test(redis_cuts, tls_get_down) {
    cut_tls(false, PROXY_DOWN, 60);
}

/* Drops, notes and counts are questions of their own, over dead connections too. */
Test(redis_cuts, all_else_finds_a_new_connection) {
    RedisPlace place;
    char note[8];
    size_t bytes = 0;
    int64_t n = 0;
    place_open(&place, NULL, "", "");
    cr_assert_eq(place_put(place.direct, "a/b", "x", 1, 5000), 0);
    for (int i = 0; i < 5; i++) {
        proxy_cut_all(place.proxy);
        if (i % 2)
            proxy_cut(place.proxy, PROXY_DOWN, 20, i == 1);
        int rc = i == 0   ? relay_has(place.proxied, "a/b")
                 : i == 1 ? relay_note_put(place.proxied, "a/n", "note", 4, 60000)
                 : i == 2 ? relay_note_get(place.proxied, "a/n", note, sizeof note, &bytes)
                 : i == 3 ? relay_count(place.proxied, "", &n)
                          : relay_drop_one(place.proxied, "a", &n);
        cr_expect_eq(rc, i == 0, "%d: %s", i, err_text());
    }
    cr_expect_eq(n, 2);
    cr_expect_eq(bytes, 4);
    cr_expect_eq(place_ask(&place, "DBSIZE"), 0);
    place_close(&place);
}

/* ---- silence and slowness ---- */

Test(redis_network, silence_ends_with_the_deadline) {
    RedisPlace place;
    place_open(&place, NULL, "", "");
    cr_assert_eq(place_put(place.proxied, "k/there", "x", 1, 5000), 0);
    proxy_swallow(place.proxy, true);
    Doing put = {.relay = place.proxied, .key = "k/put", .data = "x", .bytes = 1, .ms = 700};
    doing_start(&put);
    cr_expect_eq(doing_join(&put), ERR_TIMEOUT, "%s", err_text());
    cr_expect(strstr(err_text(), "'k/put'") && strstr(err_text(), "127.0.0.1:"), "%s", err_text());
    cr_expect(put.took_ms >= 690 && put.took_ms < 3000, "%lld ms", (long long)put.took_ms);
    Doing get = {.relay = place.proxied, .key = "k/there", .bytes = 8, .ms = 700};
    doing_start(&get);
    cr_expect_eq(doing_join(&get), ERR_TIMEOUT, "%s", err_text());
    cr_expect(strstr(err_text(), "'k/there'") && strstr(err_text(), "127.0.0.1:"), "%s",
              err_text());
    cr_expect_lt(get.took_ms, 8000);
    cr_expect_lt(get.cpu_ms, 200);
    proxy_swallow(place.proxy, false);
    place_expect(place.proxied, "k/there", "x", 1);
    place_close(&place);
}

Test(redis_network, slow_both_ways) {
    RedisPlace place;
    char *data = malloc(LARGE_BYTES);
    place_fill(data, LARGE_BYTES, 2);
    place_open(&place, small_values, "", "");
    proxy_delay(place.proxy, PROXY_UP, 15);
    proxy_delay(place.proxy, PROXY_DOWN, 15);
    cr_assert_eq(place_put(place.proxied, "k/l", data, LARGE_BYTES, 20000), 0, "%s", err_text());
    cr_assert_eq(place_put(place.proxied, "k/l", data, LARGE_BYTES, 20000), 1, "%s", err_text());
    place_expect(place.proxied, "k/l", data, LARGE_BYTES);
    cr_expect_eq(place_ask(&place, REDIS_SERVER_PIECES), 4);
    place_close(&place);
    free(data);
}

/* ---- restarts ---- */

typedef struct Putter {
    pthread_t thread;
    Relay *relay;
    int n;
    int rc;
    ErrNote note;
} Putter;

static void *putter_main(void *arg) {
    Putter *putter = arg;
    for (int i = 0; i < putter->n && putter->rc >= 0; i++) {
        char key[32];
        snprintf(key, sizeof key, "many/%d", i);
        putter->rc = place_put(putter->relay, key, key, strlen(key), 20000);
        sleep_ms(5);
    }
    err_copy(&putter->note);
    return NULL;
}

Test(redis_restart, with_its_file) {
    static const char *const args[] = {
        "--requirepass", "pw", "--appendonly", "yes", "--appendfsync", "always", NULL};
    RedisPlace place;
    place_open(&place, args, ":pw@", "/3");
    Relay *third = place_relay(&place, place.server.port);
    Doing get = {.relay = place.direct, .key = "late", .bytes = 8, .ms = 20000};
    Putter putter = {.relay = third, .n = 120};
    doing_start(&get);
    cr_assert_eq(pthread_create(&putter.thread, NULL, putter_main, &putter), 0);
    sleep_ms(200);
    redis_server_kill(&place.server);
    sleep_ms(300);
    cr_assert_eq(redis_server_again(&place.server), 0, "%s", err_text());
    cr_assert_eq(place_put(place.proxied, "late", "x", 1, 20000), 0, "%s", err_text());
    cr_expect_eq(doing_join(&get), 0, "%s", err_text());
    pthread_join(putter.thread, NULL);
    cr_expect_geq(putter.rc, 0, "%s", putter.note.text);
    cr_expect_geq(third->counters.n_retries, 1);
    cr_expect_geq(place.direct->counters.n_retries, 1);
    for (int i = 0; i < putter.n; i++) {
        char key[32];
        snprintf(key, sizeof key, "many/%d", i);
        place_expect(place.direct, key, key, strlen(key));
    }
    cr_expect_eq(place_ask(&place, "AUTH pw\r\nDBSIZE"), 0);
    cr_expect_eq(place_ask(&place, "AUTH pw\r\nSELECT 3\r\nDBSIZE"), putter.n + 1);
    cr_expect_eq(place_ask(&place, "AUTH pw\r\nSELECT 3\r\n" REDIS_SERVER_IMMORTAL), 0);
    relay_close(third);
    place_close(&place);
}

Test(redis_restart, without_a_file) {
    RedisPlace place;
    place_open(&place, NULL, "", "");
    cr_assert_eq(place_put(place.direct, "early", "x", 1, 5000), 0);
    Doing get = {.relay = place.proxied, .key = "never/comes", .bytes = 8, .ms = 1500};
    doing_start(&get);
    sleep_ms(100);
    redis_server_kill(&place.server);
    sleep_ms(100);
    cr_assert_eq(redis_server_again(&place.server), 0, "%s", err_text());
    cr_expect_eq(doing_join(&get), ERR_TIMEOUT, "%s", err_text());
    cr_expect(strstr(err_text(), "'never/comes'"), "%s", err_text());
    cr_expect_lt(get.took_ms, 5000);
    cr_expect_eq(relay_has(place.direct, "early"), 0);
    cr_expect_eq(place_put(place.direct, "early", "y", 1, 5000), 0, "%s", err_text());
    place_expect(place.proxied, "early", "y", 1);
    place_close(&place);
}

/* A server that does not come back: the error comes with the deadline, and names it. */
Test(redis_restart, never_again) {
    RedisPlace place;
    char port[16];
    place_open(&place, NULL, "", "");
    snprintf(port, sizeof port, ":%d", place.server.port);
    redis_server_kill(&place.server);
    Doing put = {.relay = place.direct, .key = "k", .data = "x", .bytes = 1, .ms = 1200};
    doing_start(&put);
    cr_expect_eq(doing_join(&put), ERR_UNREACHABLE, "%s", err_text());
    cr_expect(strstr(err_text(), "'k'") && strstr(err_text(), port), "%s", err_text());
    cr_expect(put.took_ms >= 1190 && put.took_ms < 4000, "%lld ms", (long long)put.took_ms);
    cr_expect_lt(put.cpu_ms, 200);
    Doing get = {.relay = place.direct, .key = "k", .bytes = 8, .ms = 1200};
    doing_start(&get);
    cr_expect_eq(doing_join(&get), ERR_UNREACHABLE, "%s", err_text());
    cr_expect(strstr(err_text(), "'k'") && strstr(err_text(), port), "%s", err_text());
    cr_expect(get.took_ms >= 1190 && get.took_ms < 4000, "%lld ms", (long long)get.took_ms);
    place_close(&place);
}

/* ---- a full server ---- */

static const char *const little_memory[] = {
    "--maxmemory", "30mb", "--maxmemory-policy", "noeviction", "--proto-max-bulk-len", "1mb", NULL};

/* Put until it is full: how many fitted. */
static int fill_server(RedisPlace *place, const char *data, size_t bytes) {
    for (int i = 0; i < 2000; i++) {
        char key[32];
        snprintf(key, sizeof key, "fill/%d/o", i);
        int rc = place_put(place->direct, key, data, bytes, 400);
        if (rc >= 0)
            continue;
        char port[16];
        snprintf(port, sizeof port, ":%d", place->server.port);
        cr_assert_eq(rc, ERR_FULL, "%s", err_text());
        cr_assert(strstr(err_text(), key) && strstr(err_text(), port), "%s", err_text());
        return i;
    }
    cr_assert_fail("it is never full");
    return 0;
}

/* For room, so often, and so long at least. */
static void waited_for_room(const Relay *relay, int64_t n_waits, int64_t ms) {
    cr_expect_eq(relay->counters.n_waits, n_waits, "%lld waits",
                 (long long)relay->counters.n_waits);
    cr_expect_geq(relay->counters.waited_ns, ms * CLOCK_NS_PER_MS);
}

static void full(size_t bytes, int64_t n_pieces) {
    RedisPlace place;
    int64_t n = 0;
    char *data = malloc(bytes);
    place_fill(data, bytes, 3);
    place_open(&place, little_memory, "", "");
    int n_there = fill_server(&place, data, bytes);
    cr_assert_gt(n_there, 3);
    cr_expect_eq(place_ask(&place, REDIS_SERVER_PIECES), n_there * n_pieces);
    Doing put = {
        .relay = place.proxied, .key = "more/o", .data = data, .bytes = bytes, .ms = 20000};
    doing_start(&put);
    sleep_ms(1200);
    for (int i = 0; i < n_there / 2; i++) {
        char key[32];
        snprintf(key, sizeof key, "fill/%d", i);
        cr_assert_eq(relay_drop_one(place.direct, key, &n), 0, "%s", err_text());
        cr_assert_eq(n, 1);
    }
    cr_expect_eq(doing_join(&put), 0, "%s", err_text());
    cr_expect_geq(put.took_ms, 1000);
    cr_expect_lt(put.took_ms, 10000);
    cr_expect_lt(put.cpu_ms, 400);
    cr_expect_geq(place.proxied->counters.n_retries, 2);
    cr_expect_lt(place.proxied->counters.n_retries, 40);
    waited_for_room(place.direct, 1, 200);
    waited_for_room(place.proxied, 1, 1000);
    place_expect(place.direct, "more/o", data, bytes);
    cr_assert_eq(relay_drop_one(place.direct, "fill", &n), 0);
    cr_expect_eq(n, n_there - n_there / 2);
    cr_expect_eq(place_ask(&place, REDIS_SERVER_PIECES), n_pieces);
    cr_assert_eq(place_put(place.direct, "fill/x", data, bytes, 5000), 0, "%s", err_text());
    cr_assert_eq(relay_drop_one(place.direct, "fill", &n), 0);
    cr_assert_eq(relay_drop_one(place.direct, "more", &n), 0);
    cr_expect_eq(place_ask(&place, "DBSIZE"), 0);
    place_close(&place);
    free(data);
}

Test(redis_full, small_objects) {
    full(40000, 0);
}

Test(redis_full, large_objects) {
    full(LARGE_BYTES, 4);
}

/* Heartbeats: who waits for room with them looks dead. */
Test(redis_full, notes_are_not_waited_for) {
    RedisPlace place;
    place_open(&place, NULL, "", "");
    cr_assert_eq(relay_note_put(place.direct, "n/k", "old", 3, 60000), 0, "%s", err_text());
    place_ask(&place, "CONFIG SET maxmemory 1");
    int64_t begin_ns = clock_now_ns();
    cr_expect_eq(relay_note_put(place.direct, "n/k", "new", 3, 60000), ERR_FULL, "%s", err_text());
    cr_expect(strstr(err_text(), "'n/k'") && strstr(err_text(), "maxmemory"), "%s", err_text());
    cr_expect_lt(clock_now_ns() - begin_ns, 2 * CLOCK_NS_PER_S);
    place_ask(&place, "CONFIG SET maxmemory 0");
    cr_expect_eq(relay_note_put(place.direct, "n/k", "new", 3, 60000), 0, "%s", err_text());
    place_close(&place);
}

/* ---- two servers ---- */

typedef struct Two {
    RedisServerProcess servers[2];
    Relay *relay;
    char url[128];
} Two;

static void two_open(Two *two) {
    for (int i = 0; i < 2; i++)
        cr_assert_eq(redis_server_start(&two->servers[i], NULL), 0, "%s", err_text());
    snprintf(two->url, sizeof two->url, "redis://127.0.0.1:%d,127.0.0.1:%d", two->servers[0].port,
             two->servers[1].port);
    cr_assert_eq(relay_open(two->url, &two->relay), 0, "%s", err_text());
}

Test(redis_two, keys_are_spread_alike_everywhere) {
    Two two;
    Relay *other = NULL;
    char turned[128];
    two_open(&two);
    snprintf(turned, sizeof turned, "redis://127.0.0.1:%d,127.0.0.1:%d", two.servers[1].port,
             two.servers[0].port);
    for (int i = 0; i < 100; i++) {
        char key[32];
        snprintf(key, sizeof key, "s/%d", i);
        cr_assert_eq(place_put(two.relay, key, key, strlen(key), 5000), 0, "%s", err_text());
    }
    int64_t n_first = redis_server_ask(two.servers[0].port, "DBSIZE");
    int64_t n_second = redis_server_ask(two.servers[1].port, "DBSIZE");
    cr_expect(n_first > 20 && n_second > 20 && n_first + n_second == 100, "%lld and %lld",
              (long long)n_first, (long long)n_second);
    cr_assert_eq(relay_open(turned, &other), 0, "%s", err_text());
    for (int i = 0; i < 100; i++) {
        char key[32];
        snprintf(key, sizeof key, "s/%d", i);
        place_expect(other, key, key, strlen(key));
    }
    relay_close(other);
    relay_close(two.relay);
    redis_server_stop(&two.servers[0]);
    redis_server_stop(&two.servers[1]);
}

Test(redis_two, one_dead) {
    Two two;
    char dead[16];
    int64_t n = 0;
    int n_fine = 0;
    int n_failed = 0;
    two_open(&two);
    snprintf(dead, sizeof dead, ":%d", two.servers[1].port);
    redis_server_kill(&two.servers[1]);
    for (int i = 0; i < 60 && (n_fine < 3 || n_failed < 3); i++) {
        char key[32];
        snprintf(key, sizeof key, "s/%d", i);
        int rc = place_put(two.relay, key, key, strlen(key), 200);
        n_fine += rc == 0;
        n_failed += rc != 0;
        if (rc == 0)
            place_expect(two.relay, key, key, strlen(key));
        cr_expect(rc == 0 || (rc == ERR_UNREACHABLE && strstr(err_text(), key) &&
                              strstr(err_text(), dead)),
                  "%s: %s", key, err_text());
    }
    cr_expect(n_fine >= 3 && n_failed >= 3, "%d and %d", n_fine, n_failed);
    cr_expect_eq(relay_drop_one(two.relay, "s", &n), ERR_UNREACHABLE);
    cr_expect(strstr(err_text(), dead), "%s", err_text());
    cr_expect_eq(redis_server_ask(two.servers[0].port, "DBSIZE"), 0, "the live one was not asked");
    relay_close(two.relay);
    redis_server_stop(&two.servers[0]);
    redis_server_stop(&two.servers[1]);
}

/* ---- interruptions ---- */

static void expect_interrupted(Doing *doing) {
    doing_start(doing);
    sleep_ms(250);
    relay_interrupt(doing->relay, true);
    cr_expect_eq(doing_join(doing), ERR_CANCELLED, "%s", err_text());
    cr_expect(strstr(err_text(), doing->key), "%s", err_text());
    cr_expect(doing->took_ms >= 240 && doing->took_ms < 1500, "%lld ms", (long long)doing->took_ms);
    relay_interrupt(doing->relay, false);
}

Test(redis_interrupt, a_wait_a_connect_and_a_dead_server) {
    RedisPlace place;
    Doing get = {.key = "never", .bytes = 8, .ms = 20000};
    place_open(&place, NULL, "", "");
    get.relay = place.proxied;
    expect_interrupted(&get);
    cr_expect_eq(place_put(place.proxied, "k", "x", 1, 5000), 0, "%s", err_text());
    proxy_swallow(place.proxy, true); /* the connection is new, and its login has no answer */
    proxy_cut_all(place.proxy);
    get.bytes = 8;
    expect_interrupted(&get);
    Doing put = {.relay = place.proxied, .key = "p", .data = "x", .bytes = 1, .ms = 20000};
    expect_interrupted(&put);
    proxy_swallow(place.proxy, false);
    place_expect(place.proxied, "k", "x", 1);
    redis_server_kill(&place.server);
    get.bytes = 8;
    expect_interrupted(&get);
    expect_interrupted(&put);
    cr_assert_eq(redis_server_again(&place.server), 0, "%s", err_text());
    cr_expect_eq(place_put(place.proxied, "k", "x", 1, 5000), 0, "%s", err_text());
    place_close(&place);
}

/* What was sent has no answer: the server is stopped, and its connections stay. */
Test(redis_interrupt, a_server_that_says_nothing) {
    RedisPlace place;
    place_open(&place, NULL, "", "");
    Doing put = {.relay = place.proxied, .key = "p", .data = "x", .bytes = 1, .ms = 20000};
    cr_expect_eq(place_put(place.proxied, "k", "x", 1, 5000), 0, "%s", err_text());
    kill(place.server.pid, SIGSTOP);
    expect_interrupted(&put);
    kill(place.server.pid, SIGCONT);
    place_expect(place.proxied, "k", "x", 1);
    place_close(&place);
}

Test(redis_interrupt, a_put_that_waits_for_room) {
    RedisPlace place;
    char *data = malloc(MIB);
    place_fill(data, MIB, 4);
    place_open(&place, little_memory, "", "");
    fill_server(&place, data, MIB);
    Doing put = {.relay = place.proxied, .key = "more", .data = data, .bytes = MIB, .ms = 20000};
    expect_interrupted(&put);
    cr_expect_eq(relay_has(place.proxied, "fill/0/o"), 1, "%s", err_text());
    place_close(&place);
    free(data);
}

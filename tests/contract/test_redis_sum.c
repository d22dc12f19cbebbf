/* Sums in a Redis server: where there is no module, what the module keeps over restarts, cut
 * connections, full servers, and what is left behind. Real servers, a proxy in between. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "storage/sum.h"
#include "tests/support/cutting.h"
#include "tests/support/redis_fake.h"
#include "tests/support/redis_place.h"
#include "tests/support/sum_cases.h"

enum { MIB = 1 << 20, SMALL = 1000, LARGE = 3 << 18 }; /* elements: inline, and a piece */

static const char *const with_module[] = {"--loadmodule", REDIS_SERVER_MODULE, NULL};

static int add(Relay *relay, const char *key, int index, int n, size_t n_elements, int64_t ms) {
    SumCase blob = sum_case_part(key, index, n_elements);
    Slice part = {blob.data, blob.bytes};
    int rc = relay_add(relay, key, index, n, &part, 1, clock_deadline_ms(ms));
    free(blob.data);
    return rc;
}

static void added(Relay *relay, const char *key, int index, int n, size_t n_elements,
                  int expected) {
    int rc = add(relay, key, index, n, n_elements, 15000);
    cr_assert_eq(rc, expected, "contribution %d to '%s': %d %s", index, key, rc, err_text());
}

static void expect_sum(Relay *relay, const char *key, int n, size_t n_elements) {
    SumCase sum = sum_case_sum(key, n, n_elements);
    place_expect(relay, key, sum.data, sum.bytes);
    free(sum.data);
}

/* ---- who can ---- */

Test(redis_sum, without_the_module) {
    RedisPlace place;
    place_open(&place, NULL, "", "");
    cr_expect_not(relay_adds(place.direct));
    cr_expect_eq(add(place.direct, "k", 0, 1, 10, 1000), ERR_UNSUPPORTED);
    cr_expect(strstr(err_text(), "'k'") && strstr(err_text(), "cannot sum"), "%s", err_text());
    place_close(&place);
}

Test(redis_sum, one_of_two_without_the_module) {
    RedisServerProcess servers[2];
    Relay *relay = NULL;
    char url[128];
    cr_assert_eq(redis_server_start(&servers[0], with_module), 0, "%s", err_text());
    cr_assert_eq(redis_server_start(&servers[1], NULL), 0, "%s", err_text());
    for (int i = 0; i < 2; i++) {
        snprintf(url, sizeof url, "redis://127.0.0.1:%d,127.0.0.1:%d", servers[i].port,
                 servers[1 - i].port);
        cr_assert_eq(relay_open(url, &relay), 0, "%s", err_text());
        cr_expect_not(relay_adds(relay));
        cr_expect_eq(add(relay, "k", 0, 1, 10, 1000), ERR_UNSUPPORTED);
        relay_close(relay);
    }
    redis_server_stop(&servers[0]);
    redis_server_stop(&servers[1]);
}

Test(redis_sum, started_again_without_the_module) {
    RedisPlace place;
    char port[16];
    place_open(&place, with_module, "", "");
    snprintf(port, sizeof port, ":%d", place.server.port);
    cr_expect(relay_adds(place.direct));
    redis_server_kill(&place.server);
    place.server.args[0] = NULL;
    cr_assert_eq(redis_server_again(&place.server), 0, "%s", err_text());
    cr_expect_eq(add(place.direct, "k", 0, 1, 10, 3000), ERR_UNSUPPORTED, "%s", err_text());
    cr_expect(strstr(err_text(), "'k'") && strstr(err_text(), port) &&
                  strstr(err_text(), "--loadmodule"),
              "%s", err_text());
    place_close(&place);
}

/* A module of another version is as none: its commands may mean something else. */
Test(redis_sum, another_version) {
    static const char *const answers[] = {":0\r\n", ":1\r\n", ":2\r\n", "+1\r\n", "*0\r\n"};
    for (int i = 0; i < 5; i++) {
        const FakeRule rules[] = {{"FUNCPIPE.ABOUT", answers[i], FAKE_SAY, 0},
                                  {"FUNCPIPE.ADD", ":7\r\n", FAKE_SAY, 0},
                                  {0}};
        RedisFake *fake = NULL;
        Relay *relay = NULL;
        char url[64];
        cr_assert_eq(redis_fake_start(rules, &fake), 0, "%s", err_text());
        snprintf(url, sizeof url, "redis://127.0.0.1:%d", redis_fake_port(fake));
        cr_assert_eq(relay_open(url, &relay), 0, "%s", err_text());
        cr_expect_eq(relay_adds(relay), i == 1, "%s", answers[i]);
        cr_expect_eq(add(relay, "k", 0, 1, 10, 1000), i == 1 ? ERR_CORRUPT : ERR_UNSUPPORTED, "%s",
                     err_text());
        relay_close(relay);
        redis_fake_stop(fake);
    }
}

Test(redis_sum, a_user_without_the_right) {
    static const char *const args[] = {
        "--loadmodule", REDIS_SERVER_MODULE, "--user", "worker", "on", ">pw", "~*",
        "+@all",        "-funcpipe.add",     NULL};
    RedisPlace place;
    place_open(&place, args, "worker:pw@", "");
    cr_expect(relay_adds(place.direct));
    cr_expect_eq(add(place.direct, "k", 0, 1, 10, 3000), ERR_AUTH, "%s", err_text());
    cr_expect(strstr(err_text(), "'k'") && strstr(err_text(), "NOPERM"), "%s", err_text());
    place_close(&place);
}

Test(redis_sum, more_than_the_server_takes) {
    static const char *const args[] = {"--loadmodule", REDIS_SERVER_MODULE, "--proto-max-bulk-len",
                                       "1mb", NULL};
    RedisPlace place;
    place_open(&place, args, "", "");
    cr_expect_eq(add(place.direct, "k", 0, 1, LARGE, 3000), ERR_LIMIT, "%s", err_text());
    cr_expect(strstr(err_text(), "'k'") && strstr(err_text(), "at most 1048576"), "%s", err_text());
    added(place.direct, "k", 0, 1, SMALL, 0);
    expect_sum(place.direct, "k", 1, SMALL);
    place_close(&place);
}

/* What is no client of ours. */
Test(redis_sum, odd_commands) {
    static const struct {
        const char *line, *kept;
    } lines[] = {{"FUNCPIPE.ADD", NULL},
                 {"FUNCPIPE.ADD funcpipe:o:k 0 1 1000", NULL},
                 {"FUNCPIPE.ADD funcpipe:o:k 0 1 1000 x y", NULL},
                 {"FUNCPIPE.ADD \"\" 0 1 1000 x", NULL},
                 {"FUNCPIPE.ADD : 0 1 1000 x", NULL},
                 {"FUNCPIPE.ADD o: 0 1 1000 x", NULL},
                 {"FUNCPIPE.ADD nocolon 0 1 1000 x", NULL},
                 {"FUNCPIPE.ADD funcpipe:s:k 0 1 1000 x", NULL},
                 {"FUNCPIPE.ADD \"funcpipe:o:k\\x00l\" 0 1 1000 x", NULL},
                 {"FUNCPIPE.ADD funcpipe:o:k -1 1 1000 x", NULL},
                 {"FUNCPIPE.ADD funcpipe:o:k 99999999999999999999 1 1000 x", NULL},
                 {"FUNCPIPE.ADD funcpipe:o:k 1 1 1000 x", NULL},
                 {"FUNCPIPE.ADD funcpipe:o:k 0 1025 1000 x", NULL},
                 {"FUNCPIPE.ADD funcpipe:o:k 0 1 0 x", NULL},
                 {"FUNCPIPE.ADD funcpipe:o:k 0 1 1000 x", NULL},
                 {"FUNCPIPE.RESUME funcpipe:o:k 3 1 x", NULL},
                 {"FUNCPIPE.RESUME funcpipe:o:k 3 0 x", NULL},
                 {"FUNCPIPE.ABOUT x", NULL},
                 {"SET funcpipe:s:k x\r\nFUNCPIPE.ADD funcpipe:o:k 0 1 1000 x", "s:k"}};
    RedisPlace place;
    place_open(&place, with_module, "", "");
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        cr_expect_eq(redis_server_ask(place.server.port, lines[i].line), -1, "%s", lines[i].line);
        cr_expect_eq(place_ask(&place, "DBSIZE"), lines[i].kept != NULL, "%s", lines[i].line);
    }
    cr_expect_eq(add(place.direct, "k", 0, 2, 10, 1000), ERR_CORRUPT, "%s", err_text());
    cr_expect_eq(place_ask(&place, "DEL funcpipe:s:k"), 1);
    cr_expect_eq(place_ask(&place, "FUNCPIPE.ABOUT"), 1);
    /* An object that is there, of whatever kind, is the sum. */
    cr_expect_eq(place_ask(&place, "SET funcpipe:o:k x\r\nFUNCPIPE.ADD funcpipe:o:k 0 1 9 x"), 1);
    place_close(&place);
}

/* ---- waiting, and what lies there ---- */

Test(redis_sum, who_waits_is_woken) {
    static const size_t sizes[] = {0, SMALL, 16320, LARGE};
    RedisPlace place;
    place_open(&place, with_module, "", "");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        SumCase sum = sum_case_sum("k", 3, sizes[i]);
        Doing get = {.relay = place.proxied, .key = "k", .bytes = sum.bytes, .ms = 20000};
        added(place.direct, "k", 1, 3, sizes[i], 0);
        doing_start(&get);
        sleep_ms(150);
        added(place.direct, "k", 0, 3, sizes[i], 0);
        sleep_ms(50);
        added(place.direct, "k", 2, 3, sizes[i], 0);
        cr_expect_eq(doing_join(&get), 0, "%s", err_text());
        cr_expect(get.took_ms >= 190 && get.took_ms < 2000, "%lld ms", (long long)get.took_ms);
        cr_expect_lt(get.cpu_ms, 100);
        expect_sum(place.proxied, "k", 3, sizes[i]);
        cr_assert_eq(relay_drop_one(place.direct, "k", NULL), 0, "%s", err_text());
        cr_expect_eq(place_ask(&place, "DBSIZE"), 0);
        free(sum.data);
    }
    place_close(&place);
}

Test(redis_sum, every_key_has_a_time_to_live) {
    static const char *const keys[] = {"s:early", "o:small", "o:large"};
    RedisPlace place;
    place_open(&place, with_module, "", "?ttl=90s");
    added(place.direct, "early", 1, 2, SMALL, 0);
    for (int i = 0; i < 2; i++) {
        added(place.direct, "small", i, 2, SMALL, 0);
        added(place.direct, "large", i, 2, LARGE, 0);
    }
    cr_expect_eq(place_ask(&place, "DBSIZE"), 4); /* and a piece */
    cr_expect_eq(place_ask(&place, REDIS_SERVER_PIECES), 1);
    cr_expect_eq(place_ask(&place, REDIS_SERVER_IMMORTAL), 0);
    for (int i = 0; i < 3; i++) {
        char line[64];
        snprintf(line, sizeof line, "PTTL funcpipe:%s", keys[i]);
        int64_t ms = place_ask(&place, line);
        cr_expect(ms > 30000 && ms <= 90000, "%s: %lld ms", keys[i], (long long)ms);
    }
    int64_t bytes = place_ask(&place, "MEMORY USAGE funcpipe:s:early");
    cr_expect(bytes > 4 * SMALL && bytes < 8 * SMALL, "%lld bytes", (long long)bytes);
    place_close(&place);
}

Test(redis_sum, what_nobody_ends_goes_by_itself) {
    RedisPlace place;
    place_open(&place, with_module, "", "?ttl=3s");
    added(place.direct, "k", 1, 2, SMALL, 0);
    sleep_ms(3200);
    cr_expect_eq(place_ask(&place, "EXISTS funcpipe:s:k"), 0);
    added(place.direct, "k", 0, 2, SMALL, 0);
    cr_expect_eq(relay_has(place.direct, "k"), 0, "a contribution outlived its time");
    added(place.direct, "k", 1, 2, SMALL, 0);
    expect_sum(place.direct, "k", 2, SMALL);
    place_close(&place);
}

Test(redis_sum, a_thousand_sums_leave_nothing) {
    static const size_t sizes[] = {0, 10, SMALL, 16320, 16400, 100000, LARGE};
    RedisPlace place;
    int64_t before = 0;
    place_open(&place, with_module, "", "");
    for (int i = 0; i < 1000; i++) {
        char key[64];
        int64_t n = 0;
        size_t n_elements = i % 50 == 0 ? sizes[6] : sizes[i % 6];
        snprintf(key, sizeof key, "job/t%d/r", i);
        for (int index = 0; index < 3; index++)
            added(place.direct, key, (index + i) % 3, 3, n_elements, 0);
        if (i % 10 == 0)
            expect_sum(place.proxied, key, 3, n_elements);
        snprintf(key, sizeof key, "job/t%d/early", i);
        added(place.direct, key, 1, 2, n_elements, 0); /* and one that never ends */
        snprintf(key, sizeof key, "job/t%d", i);
        cr_assert_eq(relay_drop_one(place.direct, key, &n), 0, "%s", err_text());
        cr_assert_eq(n, 1);
        if (i == 200)
            before = place_ask(&place, REDIS_SERVER_MEMORY);
    }
    int64_t after = place_ask(&place, REDIS_SERVER_MEMORY);
    cr_expect_eq(place_ask(&place, "DBSIZE"), 0);
    cr_expect_lt(after - before, MIB, "%lld bytes, then %lld", (long long)before, (long long)after);
    place_close(&place);
}

/* ---- restarts ---- */

static void wait_for(const RedisPlace *place, const char *field, const char *value) {
    char line[256];
    snprintf(line, sizeof line,
             "EVAL \"return string.find(redis.call('INFO', 'persistence'), '%s:%s') or 0\" 0",
             field, value);
    for (int i = 0; place_ask(place, line) == 0; i++) {
        cr_assert_lt(i, 1000, "%s is never %s", field, value);
        sleep_ms(10);
    }
}

/* In the middle of two sums, one with a prefix and one without, and behind a third. */
static void restarted(const char *const *args, const char *save) {
    RedisPlace place;
    place_open(&place, args, "", "?ttl=1h");
    added(place.direct, "middle", 3, 4, LARGE, 0);
    added(place.direct, "middle", 0, 4, LARGE, 0);
    added(place.direct, "middle", 1, 4, LARGE, 0);
    added(place.direct, "early", 1, 2, SMALL, 0);
    for (int i = 0; i < 3; i++)
        added(place.direct, "done", i, 3, LARGE, 0);
    if (save) {
        place_ask(&place, save);
        wait_for(&place, "aof_rewrite_in_progress", "0");
        wait_for(&place, "aof_rewrite_scheduled", "0");
        wait_for(&place, "rdb_bgsave_in_progress", "0");
    }
    SumCase sum = sum_case_sum("middle", 4, LARGE);
    Doing get = {.relay = place.proxied, .key = "middle", .bytes = sum.bytes, .ms = 20000};
    doing_start(&get);
    redis_server_kill(&place.server);
    sleep_ms(100);
    cr_assert_eq(redis_server_again(&place.server), 0, "%s", err_text());
    expect_sum(place.direct, "done", 3, LARGE);
    added(place.direct, "done", 1, 3, LARGE, 1);
    added(place.direct, "middle", 3, 4, LARGE, 1);
    added(place.direct, "middle", 1, 4, LARGE, 1);
    added(place.direct, "middle", 2, 4, LARGE, 0);
    added(place.direct, "early", 1, 2, SMALL, 1);
    added(place.direct, "early", 0, 2, SMALL, 0);
    cr_expect_eq(doing_join(&get), 0, "%s", err_text());
    expect_sum(place.direct, "middle", 4, LARGE);
    expect_sum(place.direct, "early", 2, SMALL);
    cr_expect_eq(place_ask(&place, REDIS_SERVER_IMMORTAL), 0);
    cr_expect_eq(place_ask(&place, "DBSIZE"), 5); /* three objects, two of them with a piece */
    cr_assert_eq(relay_drop_one(place.direct, "done", NULL), 0);
    /* And once more from the file, which holds the ends of the sums now. */
    if (strcmp(args[2], "--appendonly") == 0) {
        redis_server_kill(&place.server);
        cr_assert_eq(redis_server_again(&place.server), 0, "%s", err_text());
        expect_sum(place.direct, "middle", 4, LARGE);
        expect_sum(place.direct, "early", 2, SMALL);
        cr_expect_eq(relay_has(place.direct, "done"), 0);
        cr_expect_eq(place_ask(&place, "DBSIZE"), 3);
    }
    place_close(&place);
    free(sum.data);
}

static const char *const appending[] = {
    "--loadmodule", REDIS_SERVER_MODULE, "--appendonly", "yes", "--appendfsync", "always", NULL};

Test(redis_sum_restart, with_an_append_file) {
    restarted(appending, NULL);
}

Test(redis_sum_restart, with_a_rewritten_append_file) {
    restarted(appending, "BGREWRITEAOF");
}

Test(redis_sum_restart, with_an_append_file_rewritten_as_commands) {
    static const char *const args[] = {
        "--loadmodule", REDIS_SERVER_MODULE,      "--appendonly", "yes", "--appendfsync",
        "always",       "--aof-use-rdb-preamble", "no",           NULL};
    restarted(args, "BGREWRITEAOF");
}

Test(redis_sum_restart, with_a_snapshot) {
    static const char *const args[] = {"--loadmodule", REDIS_SERVER_MODULE, "--rdbcompression",
                                       "no", NULL};
    restarted(args, "SAVE");
}

Test(redis_sum_restart, without_a_file) {
    RedisPlace place;
    place_open(&place, with_module, "", "");
    added(place.direct, "k", 0, 3, LARGE, 0);
    added(place.direct, "k", 2, 3, LARGE, 0);
    redis_server_kill(&place.server);
    cr_assert_eq(redis_server_again(&place.server), 0, "%s", err_text());
    added(place.direct, "k", 1, 3, LARGE, 0);
    cr_expect_eq(relay_has(place.direct, "k"), 0);
    added(place.proxied, "k", 0, 3, LARGE, 0);
    added(place.proxied, "k", 2, 3, LARGE, 0);
    expect_sum(place.direct, "k", 3, LARGE);
    place_close(&place);
}

/* A replica of the server holds the same. */
Test(redis_sum_restart, a_replica_has_it_all) {
    RedisPlace place;
    RedisServerProcess replica;
    Relay *relay = NULL;
    char port[16];
    char url[64];
    place_open(&place, with_module, "", "");
    added(place.direct, "early", 1, 2, LARGE, 0);
    snprintf(port, sizeof port, "%d", place.server.port);
    const char *const args[] = {
        "--loadmodule", REDIS_SERVER_MODULE,          "--replicaof", "127.0.0.1",
        port,           "--repl-diskless-sync-delay", "0",           NULL};
    cr_assert_eq(redis_server_start(&replica, args), 0, "%s", err_text());
    for (int i = 0; redis_server_ask(replica.port, "EXISTS funcpipe:s:early") != 1; i++) {
        cr_assert_lt(i, 500, "the replica does not follow");
        sleep_ms(20);
    }
    added(place.direct, "early", 0, 2, LARGE, 0);
    for (int i = 2; i >= 0; i--)
        added(place.direct, "late", i, 3, SMALL, 0);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", replica.port);
    cr_assert_eq(relay_open(url, &relay), 0, "%s", err_text());
    expect_sum(relay, "early", 2, LARGE);
    expect_sum(relay, "late", 3, SMALL);
    cr_expect_eq(redis_server_ask(replica.port, "DBSIZE"), 3);
    relay_close(relay);
    redis_server_stop(&replica);
    place_close(&place);
}

/* ---- cut connections ---- */

/* Add over a connection that is new and is cut after `at` bytes: counted once, whatever happened.
 */
static void cut_at(RedisPlace *place, ProxyWay way, int64_t at, size_t n_elements) {
    int64_t n = 0;
    added(place->direct, "cut/k", 2, 3, n_elements, 0);
    proxy_cut_all(place->proxy);
    proxy_cut(place->proxy, way, at, at % 2 == 0);
    int64_t n_retries = place->proxied->counters.n_retries;
    int rc = add(place->proxied, "cut/k", 0, 3, n_elements, 15000);
    cr_assert(rc == 0 || rc == 1, "cut at %lld: %d %s", (long long)at, rc, err_text());
    cr_assert_geq(place->proxied->counters.n_retries - n_retries, 2, "cut at %lld", (long long)at);
    added(place->direct, "cut/k", 0, 3, n_elements, 1);
    added(place->direct, "cut/k", 1, 3, n_elements, 0);
    expect_sum(place->direct, "cut/k", 3, n_elements);
    cr_assert_eq(relay_drop_one(place->direct, "cut", &n), 0, "%s", err_text());
    cr_assert_eq(n, 1);
    cr_assert_eq(place_ask(place, "DBSIZE"), 0);
}

static void cut_everywhere(ProxyWay way, size_t n_elements, int64_t n_cuts) {
    RedisPlace place;
    place_open(&place, with_module, "", "");
    proxy_cut_all(place.proxy);
    added(place.proxied, "cut/k", 0, 3, n_elements, 0);
    int64_t all = proxy_bytes(place.proxy, way);
    int64_t stride = (all > n_cuts ? all / n_cuts : 1) * cutting_stride();
    cr_assert_eq(relay_drop_one(place.direct, "cut", NULL), 0, "%s", err_text());
    for (int64_t at = 0; at < all - 4; at += stride)
        cut_at(&place, way, at, n_elements);
    for (int64_t at = all > 4 ? all - 4 : 0; at < all; at++) /* of the answer: it was counted */
        cut_at(&place, way, at, n_elements);
    place_close(&place);
}

Test(redis_sum_cuts, up) {
    cut_everywhere(PROXY_UP, 20, 120);
}

Test(redis_sum_cuts, down) {
    cut_everywhere(PROXY_DOWN, 20, 120);
}

Test(redis_sum_cuts, large_up) {
    cut_everywhere(PROXY_UP, LARGE, 30);
}

Test(redis_sum_cuts, large_down) {
    cut_everywhere(PROXY_DOWN, LARGE, 30);
}

/* The last contribution, and its answer is lost: the sum is there, and the retry is told so. */
Test(redis_sum_cuts, the_last_answer) {
    RedisPlace place;
    place_open(&place, with_module, "", "");
    for (int i = 0; i < 10; i++) {
        char key[16];
        snprintf(key, sizeof key, "k/%d", i);
        added(place.direct, key, 0, 2, SMALL, 0);
        proxy_cut_all(place.proxy);
        added(place.proxied, "warm/up", i, 100, 1, 0);
        int64_t all = proxy_bytes(place.proxy, PROXY_DOWN); /* the last four are ":0\r\n" */
        proxy_cut_all(place.proxy);
        proxy_cut(place.proxy, PROXY_DOWN, all - 3, true);
        added(place.proxied, key, 1, 2, SMALL, 1);
        expect_sum(place.direct, key, 2, SMALL);
    }
    place_close(&place);
}

/* ---- a full server ---- */

static const char *const little_memory[] = {
    "--loadmodule",       REDIS_SERVER_MODULE, "--maxmemory", "24mb",
    "--maxmemory-policy", "noeviction",        NULL};

/* Begin sums until the server is full: how many. */
static int begin_sums(RedisPlace *place, int index, int n) {
    for (int i = 0; i < 100; i++) {
        char key[32];
        snprintf(key, sizeof key, "fill/%d/r", i);
        int rc = add(place->direct, key, index, n, LARGE, 300);
        if (rc == 0)
            continue;
        cr_assert_eq(rc, ERR_FULL, "%s", err_text());
        cr_assert(strstr(err_text(), key) && strstr(err_text(), "maxmemory"), "%s", err_text());
        return i;
    }
    cr_assert_fail("it is never full");
    return 0;
}

/* Contributions that let sums end are taken all the same: else none would ever end. */
Test(redis_sum_full, sums_end) {
    for (int first = 0; first < 2; first++) {
        RedisPlace place;
        char key[32];
        int64_t n = 0;
        place_open(&place, little_memory, "", "");
        int n_sums = begin_sums(&place, first, 2);
        cr_assert_gt(n_sums, 3);
        for (int i = 0; i < n_sums; i++) {
            snprintf(key, sizeof key, "fill/%d/r", i);
            added(place.direct, key, first, 2, LARGE, 1); /* a duplicate takes no memory */
            added(place.direct, key, 1 - first, 2, LARGE, 0);
            expect_sum(place.direct, key, 2, LARGE);
        }
        cr_expect_eq(relay_drop_one(place.direct, "fill", &n), 0);
        cr_expect_eq(n, n_sums);
        cr_expect_eq(place_ask(&place, "DBSIZE"), 0);
        place_close(&place);
    }
}

typedef struct Adding {
    pthread_t thread;
    Relay *relay;
    const char *key;
    int64_t took_ms;
    int rc;
} Adding;

static void *adding_main(void *arg) {
    Adding *adding = arg;
    int64_t begin_ns = clock_now_ns();
    adding->rc = add(adding->relay, adding->key, 0, 2, LARGE, 20000);
    adding->took_ms = (clock_now_ns() - begin_ns) / CLOCK_NS_PER_MS;
    return NULL;
}

Test(redis_sum_full, a_new_one_waits_for_room) {
    RedisPlace place;
    place_open(&place, little_memory, "", "");
    int n_sums = begin_sums(&place, 0, 2);
    Adding adding = {.relay = place.proxied, .key = "more/r"};
    cr_assert_eq(pthread_create(&adding.thread, NULL, adding_main, &adding), 0);
    sleep_ms(800);
    for (int i = 0; i < n_sums / 2; i++) {
        char key[32];
        snprintf(key, sizeof key, "fill/%d", i);
        cr_assert_eq(relay_drop_one(place.direct, key, NULL), 0, "%s", err_text());
    }
    pthread_join(adding.thread, NULL);
    cr_expect_eq(adding.rc, 0);
    cr_expect(adding.took_ms >= 790 && adding.took_ms < 10000, "%lld ms",
              (long long)adding.took_ms);
    cr_expect_geq(place.proxied->counters.n_retries, 2);
    cr_expect_eq(place.proxied->counters.n_waits, 1);
    /* The rest is making up what is added. */
    cr_expect_geq(place.proxied->counters.waited_ns, adding.took_ms / 2 * CLOCK_NS_PER_MS);
    added(place.direct, "more/r", 1, 2, LARGE, 0);
    expect_sum(place.direct, "more/r", 2, LARGE);
    place_close(&place);
}

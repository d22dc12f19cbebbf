/* What lies in Redis: every key goes by itself some day, nothing is left after a drop, and what
 * others did to our keys is noticed: never a crash, a wrong object or memory for what is not there.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/support/redis_place.h"

enum { MIB = 1 << 20 };

static const char *const small_values[] = {"--proto-max-bulk-len", "1mb", NULL};

Test(redis_entries, every_key_has_a_time_to_live) {
    RedisPlace place;
    char *data = malloc(3 * MIB);
    place_fill(data, 3 * MIB, 1);
    place_open(&place, small_values, "", "?ttl=90s");
    cr_assert_eq(place_put(place.direct, "a", "", 0, 5000), 0, "%s", err_text());
    cr_assert_eq(place_put(place.direct, "b", data, 100, 5000), 0, "%s", err_text());
    cr_assert_eq(place_put(place.direct, "c", data, 3 * MIB, 5000), 0, "%s", err_text());
    cr_assert_eq(place_put(place.proxied, "c", data, 3 * MIB, 5000), 1, "%s", err_text());
    cr_assert_eq(relay_note_put(place.direct, "n", "x", 1, 60000), 0, "%s", err_text());
    cr_expect_eq(place_ask(&place, "DBSIZE"), 7); /* 3 entries, 3 pieces, a note */
    cr_expect_eq(place_ask(&place, REDIS_SERVER_IMMORTAL), 0);
    static const char *const keys[] = {"o:a", "o:b", "o:c", "n:n"};
    for (int i = 0; i < 4; i++) {
        char line[64];
        snprintf(line, sizeof line, "PTTL funcpipe:%s", keys[i]);
        int64_t ms = place_ask(&place, line);
        cr_expect(ms > 30000 && ms <= 90000, "%s: %lld ms", keys[i], (long long)ms);
    }
    place_close(&place);
    free(data);
}

/* The shortest life of a piece less that of the entry "k"; without a piece the latter, negative. */
#define PIECES_OUTLIVE                                                                             \
    "EVAL \"local n = 0 for _, k in ipairs(redis.call('KEYS', 'funcpipe:c:*')) do "                \
    "local ms = redis.call('PTTL', k) if n == 0 or ms < n then n = ms end end "                    \
    "return n - redis.call('PTTL', 'funcpipe:o:k')\" 0"

/* Who puts again what is there renews all of it. */
Test(redis_entries, pieces_outlive_their_entry) {
    RedisPlace place;
    char *data = malloc(3 * MIB);
    place_fill(data, 3 * MIB, 4);
    place_open(&place, small_values, "", "?ttl=90s");
    cr_assert_eq(place_put(place.direct, "k", data, 3 * MIB, 5000), 0, "%s", err_text());
    cr_expect_gt(place_ask(&place, PIECES_OUTLIVE), 0);
    place_ask(&place, "EVAL \"for _, k in ipairs(redis.call('KEYS', '*')) do "
                      "redis.call('PEXPIRE', k, 20000) end\" 0");
    cr_expect_eq(place_put(place.proxied, "k", data, 3 * MIB, 5000), 1, "%s", err_text());
    cr_expect_gt(place_ask(&place, PIECES_OUTLIVE), 0);
    cr_expect_gt(place_ask(&place, "PTTL funcpipe:o:k"), 60000);
    cr_expect_eq(place_ask(&place, "DBSIZE"), 4);
    place_close(&place);
    free(data);
}

/* An object without one of its pieces is none: the next put is the first. */
Test(redis_entries, a_put_mends_what_lacks_pieces) {
    RedisPlace place;
    char *data = malloc(3 * MIB);
    place_fill(data, 3 * MIB, 5);
    place_open(&place, small_values, "", "");
    for (int i = 1; i <= 3; i++) {
        char line[256];
        cr_assert_geq(place_put(place.direct, "k", data, 3 * MIB, 5000), 0, "%s", err_text());
        snprintf(line, sizeof line,
                 "EVAL \"local k = redis.call('KEYS', 'funcpipe:c:*') table.sort(k) "
                 "return redis.call('DEL', k[%d])\" 0",
                 i);
        cr_assert_eq(place_ask(&place, line), 1);
        cr_expect_eq(place_put(place.proxied, "k", data, 3 * MIB, 5000), 0, "%s", err_text());
        place_expect(place.direct, "k", data, 3 * MIB);
        cr_expect_eq(place_ask(&place, "DBSIZE"), 4, "pieces are left");
        cr_expect_eq(place_ask(&place, REDIS_SERVER_IMMORTAL), 0);
    }
    place_close(&place);
    free(data);
}

Test(redis_entries, a_thousand_rounds_leave_nothing) {
    static const size_t sizes[] = {0, 1, 1000, 64 << 10, (64 << 10) + 1, 300000, MIB + MIB / 2};
    RedisPlace place;
    char *data = malloc(2 * MIB);
    int64_t before = 0;
    place_fill(data, 2 * MIB, 2);
    place_open(&place, small_values, "", "");
    for (int i = 0; i < 1000; i++) {
        char key[64];
        int64_t n = 0;
        size_t bytes = i % 50 == 0 ? sizes[6] : sizes[i % 6];
        snprintf(key, sizeof key, "job/step%d/act", i);
        cr_assert_eq(place_put(place.direct, key, data + i, bytes, 5000), 0, "%s", err_text());
        place_expect(place.proxied, key, data + i, bytes);
        snprintf(key, sizeof key, "job/step%d", i);
        cr_assert_eq(relay_drop_one(place.direct, key, &n), 0, "%s", err_text());
        cr_assert_eq(n, 1);
        if (i == 200)
            before = place_ask(&place, REDIS_SERVER_MEMORY);
    }
    int64_t after = place_ask(&place, REDIS_SERVER_MEMORY);
    cr_expect_eq(place_ask(&place, "DBSIZE"), 0);
    cr_expect_lt(after - before, 4 * MIB, "%lld bytes, then %lld", (long long)before,
                 (long long)after);
    place_close(&place);
    free(data);
}

/* ---- deleted by others ---- */

Test(redis_entries, deleted_while_waited_for) {
    RedisPlace place;
    place_open(&place, NULL, "", "");
    Doing get = {.relay = place.proxied, .key = "k", .bytes = 8, .ms = 900};
    doing_start(&get);
    sleep_ms(200);
    cr_expect_eq(place_ask(&place, "SET funcpipe:o:k x\r\nDEL funcpipe:o:k"), 1);
    cr_expect_eq(doing_join(&get), ERR_TIMEOUT, "%s", err_text());
    cr_expect(strstr(err_text(), "'k'"), "%s", err_text());
    cr_expect_eq(place_put(place.direct, "k", "x", 1, 5000), 0, "%s", err_text());
    cr_expect_eq(place_ask(&place, "DEL funcpipe:o:k"), 1);
    cr_expect_eq(relay_has(place.direct, "k"), 0);
    cr_expect_eq(place_put(place.direct, "k", "y", 1, 5000), 0, "%s", err_text());
    place_expect(place.proxied, "k", "y", 1);
    place_close(&place);
}

/* The pieces are gone and the entry is not: said soon, without a spin. */
Test(redis_entries, pieces_deleted) {
    RedisPlace place;
    char *data = malloc(3 * MIB);
    place_fill(data, 3 * MIB, 3);
    place_open(&place, small_values, "", "");
    for (int i = 0; i < 3; i++) {
        char line[256];
        cr_assert_eq(place_put(place.direct, "k", data, 3 * MIB, 5000), 0, "%s", err_text());
        snprintf(line, sizeof line,
                 "EVAL \"local k = redis.call('KEYS', 'funcpipe:c:*') table.sort(k) "
                 "return redis.call('DEL', k[%d])\" 0",
                 i + 1);
        cr_assert_eq(place_ask(&place, line), 1);
        Doing get = {.relay = place.proxied, .key = "k", .bytes = 3 * MIB, .ms = 20000};
        doing_start(&get);
        cr_expect_eq(doing_join(&get), ERR_CORRUPT, "%s", err_text());
        cr_expect(strstr(err_text(), "'k'") && strstr(err_text(), "pieces"), "%s", err_text());
        cr_expect_lt(get.took_ms, 5000);
        cr_expect_lt(get.cpu_ms, 300);
        Buf buf;
        buf_init(&buf, 0);
        cr_expect_eq(relay_get_buf(place.proxied, "k", &buf, 0), ERR_CORRUPT, "%s", err_text());
        buf_done(&buf);
        cr_assert_eq(relay_drop_one(place.direct, "k", NULL), 0, "%s", err_text());
        cr_expect_eq(place_ask(&place, "DBSIZE"), 0);
    }
    /* Nor does it end what is there in the end: the entry goes, and another one comes. */
    cr_assert_eq(place_put(place.direct, "k", data, 3 * MIB, 5000), 0, "%s", err_text());
    cr_assert_eq(relay_drop_one(place.direct, "k", NULL), 0, "%s", err_text());
    Doing get = {.relay = place.proxied, .key = "k", .bytes = 3 * MIB, .ms = 20000};
    doing_start(&get);
    sleep_ms(100);
    cr_assert_eq(place_put(place.direct, "k", data, 3 * MIB, 5000), 0, "%s", err_text());
    cr_expect_eq(doing_join(&get), 0, "%s", err_text());
    place_close(&place);
    free(data);
}

/* ---- overwritten by others ---- */

typedef struct Broken {
    const char *lines; /* how */
    int rc, other_rc;  /* of a get; another that is right too, or 0 */
} Broken;

#define ENTRY "DEL funcpipe:o:k\r\nXADD funcpipe:o:k 1-1 "

static const Broken broken[] = {
    {"SET funcpipe:o:k x", ERR_CORRUPT, 0},
    {"DEL funcpipe:o:k\r\nRPUSH funcpipe:o:k x", ERR_CORRUPT, 0},
    {ENTRY "z 1", ERR_CORRUPT, 0},
    {ENTRY "\"\" 1", ERR_CORRUPT, 0},
    {ENTRY "d 1 d 2", ERR_CORRUPT, 0},
    {ENTRY "m \"\"", ERR_CORRUPT, 0},
    {ENTRY "m garbage", ERR_CORRUPT, 0},
    {ENTRY "m \"ab 1 65536\"", ERR_CORRUPT, 0},
    {ENTRY "m \"ab 1 65536 5 6\"", ERR_CORRUPT, 0},
    {ENTRY "m \"zz 1 65536 5\"", ERR_CORRUPT, 0},
    {ENTRY "m \"ab 2 65536 5\"", ERR_CORRUPT, 0},
    {ENTRY "m \"ab 1 65536 0\"", ERR_CORRUPT, 0},
    {ENTRY "m \"ab 1 65536 -5\"", ERR_CORRUPT, 0},
    {ENTRY "m \"ab -1 -65536 65536\"", ERR_CORRUPT, 0},
    {ENTRY "m \"ab 1 0 5\"", ERR_CORRUPT, 0},
    {ENTRY "m \"ab 1 9223372036854775807 5\"", ERR_CORRUPT, 0},
    {ENTRY "m \"ab 1 99999999999999999999999 5\"", ERR_CORRUPT, 0},
    {ENTRY "m \"ab 17179869184 1 17179869184\"", ERR_CORRUPT, 0},
    {ENTRY "m \"ab 1 65536 9223372036854775807\"", ERR_CORRUPT, 0},
    {ENTRY "m \"ab 262145 65536 17179934720\"", ERR_CORRUPT, 0}, /* more than any object */
    {ENTRY "m \"ab 262144 65536 17179869184\"", ERR_CORRUPT, ERR_LIMIT},
    {ENTRY "m \"ab 1 65536 5\"", ERR_CORRUPT, 0}, /* there is no piece */
    {"SET funcpipe:c:k:ab:0 1234\r\n" ENTRY "m \"ab 1 65536 5\"", ERR_CORRUPT, 0},
    {"SET funcpipe:c:k:ab:0 123456\r\n" ENTRY "m \"ab 1 65536 5\"", ERR_CORRUPT, 0},
    {"DEL funcpipe:c:k:ab:0\r\nRPUSH funcpipe:c:k:ab:0 1\r\n" ENTRY "m \"ab 1 65536 5\"",
     ERR_CORRUPT, 0},
    {"EVAL \"return redis.call('XADD', 'funcpipe:o:k', '5-5', 'd', string.rep('x', 20000000))\" 0",
     ERR_CORRUPT, ERR_LIMIT},
    {ENTRY "d 1\r\nXDEL funcpipe:o:k 1-1", ERR_TIMEOUT, 0},
};

static int64_t max_rss_kib(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

Test(redis_entries, overwritten_by_garbage) {
    RedisPlace place;
    char out[4096];
    place_open(&place, small_values, "", "");
    int64_t rss_kib = max_rss_kib();
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        const Broken *how = &broken[i];
        size_t bytes = 0;
        Buf buf;
        buf_init(&buf, 0);
        place_ask(&place, "DEL funcpipe:o:k");
        place_ask(&place, how->lines);
        int rc = relay_get(place.direct, "k", out, sizeof out, clock_deadline_ms(400), &bytes);
        cr_expect(rc == how->rc || (how->other_rc && rc == how->other_rc), "%s: %s: %s", how->lines,
                  err_name(rc), err_text());
        cr_expect(strstr(err_text(), "'k'"), "%s: %s", how->lines, err_text());
        rc = relay_get_buf(place.direct, "k", &buf, clock_deadline_ms(400));
        cr_expect_eq(rc, how->rc, "%s: %s: %s", how->lines, err_name(rc), err_text());
        cr_expect(strstr(err_text(), "'k'"), "%s: %s", how->lines, err_text());
        rc = place_put(place.direct, "k", "x", 1, 1000); /* our entry, or an error: no crash */
        cr_expect(rc == 1 || rc == ERR_CORRUPT, "%s: %d %s", how->lines, rc, err_text());
        cr_expect_eq(relay_note_put(place.direct, "n", "x", 1, 1000), 0, "%s", err_text());
        buf_done(&buf);
    }
    cr_expect_lt(max_rss_kib() - rss_kib, 128 << 10);
    place_close(&place);
}

/* A long object over something that is none: refused, and its pieces do not stay. */
Test(redis_entries, a_put_over_garbage_leaves_no_pieces) {
    RedisPlace place;
    char *data = calloc(1, 3 * MIB);
    place_open(&place, small_values, "", "");
    place_ask(&place, "RPUSH funcpipe:o:k x");
    cr_expect_eq(place_put(place.direct, "k", data, 3 * MIB, 5000), ERR_CORRUPT, "%s", err_text());
    cr_expect(strstr(err_text(), "'k'"), "%s", err_text());
    cr_expect_eq(place_ask(&place, "DBSIZE"), 1);
    place_ask(&place, "RPUSH funcpipe:n:note x");
    size_t bytes = 0;
    cr_expect_eq(relay_note_get(place.direct, "note", data, MIB, &bytes), ERR_CORRUPT);
    cr_expect(strstr(err_text(), "'note'"), "%s", err_text());
    cr_expect_eq(relay_note_put(place.direct, "note", "x", 1, 1000), 0, "%s", err_text());
    place_close(&place);
    free(data);
}

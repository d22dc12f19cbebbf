/* What a drop costs a Redis server: one pass over its keys for all prefixes together, whatever else
 * lies there, and the removals in few commands. */
#include "tests/support/redis_place.h"

enum { N_OTHERS = 20000, N_STEPS = 500, N_EACH = 4 };

static RedisPlace place;

static void enter(void) {
    place_open(&place, NULL, "", "");
}

static void leave(void) {
    place_close(&place);
}

/* How often the server was asked a command. */
static int64_t calls(const char *command) {
    char text[256];
    snprintf(text, sizeof text,
             "EVAL \"return tonumber(string.match(redis.call('INFO', 'commandstats'), "
             "'cmdstat_%s:calls=(%%d+)')) or 0\" 0",
             command);
    return place_ask(&place, text);
}

Test(redis_drops, one_pass_for_all_prefixes, .init = enter, .fini = leave) {
    static char prefixes[N_STEPS][64];
    static char big[70 << 10];
    const char *list[N_STEPS];
    char key[80];
    int64_t n = 0;
    place_ask(&place, "EVAL \"for i = 1, 20000 do redis.call('SET', 'other:' .. i, 'x') end "
                      "return 1\" 0");
    for (int step = 0; step < N_STEPS; step++) {
        snprintf(prefixes[step], sizeof prefixes[step], "job/g1/t%d", step);
        list[step] = prefixes[step];
        for (int i = 0; i < N_EACH; i++) {
            snprintf(key, sizeof key, "job/g1/t%d/a.0-1.%d", step, i);
            size_t bytes = step % 100 == 0 ? sizeof big : 100; /* some have pieces */
            cr_assert_eq(place_put(place.direct, key, big, bytes, 5000), 0, "%s", err_text());
        }
    }
    cr_assert_eq(place_put(place.direct, "job/g1/t500/a", big, 100, 5000), 0, "%s", err_text());
    int64_t scans = calls("scan");
    int64_t unlinks = calls("unlink");
    cr_assert_eq(relay_drop(place.direct, list, N_STEPS, &n), 0, "%s", err_text());
    scans = calls("scan") - scans;
    unlinks = calls("unlink") - unlinks;
    cr_expect_eq(n, N_STEPS * N_EACH);
    cr_expect_leq(scans, (N_OTHERS + N_STEPS * N_EACH) / 1000 + 3, "%lld scans", (long long)scans);
    cr_expect_leq(unlinks, N_STEPS * N_EACH / 50 + 3, "%lld unlinks", (long long)unlinks);
    cr_expect_eq(place_ask(&place, "DBSIZE"), N_OTHERS + 1);
}

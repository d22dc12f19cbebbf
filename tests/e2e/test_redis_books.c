/* A long job over a real Redis server that sums, too: what it keeps there stays as much as between
 * two saves, and dropping it takes next to no time of the server's. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "tests/support/e2e.h"
#include "tests/support/redis_server.h"

enum { N_STEPS = 1000, SAVE_EVERY = 20, STEP_KEYS = 7, N_WORKERS = 3, MAX_SAMPLES = 4096 };

static const char small_job[] =
    "{\"version\":1,\"name\":\"small\",\"model\":{\"zoo\":\"mlp\",\"options\":{\"input\":[8],"
    "\"hidden\":[16],\"classes\":4}},"
    "\"data\":{\"train\":{\"kind\":\"generated\",\"samples\":64,\"seed\":3}},"
    "\"batch\":8,\"micro_batch\":4,\"steps\":1000,\"update\":{\"kind\":\"sgd\",\"lr\":0.05},"
    "\"save\":{\"every_steps\":20},\"plan\":{\"stages\":2,\"cut\":[2],\"replicas\":[2,1],"
    "\"reduce\":{\"form\":\"in_store\"}},"
    "\"timeouts\":{\"heartbeat\":\"50ms\"}}";

#define OF_FIRST_STEPS                                                                             \
    "EVAL \"return #redis.call('KEYS', 'funcpipe:?:small/g1/t[0-9]/*') + "                         \
    "#redis.call('KEYS', 'funcpipe:?:small/g1/t[0-9][0-9]/*')\" 0"

static RedisServerProcess server;

static const char *const out = "out";

static void enter(void) {
    static const char *const args[] = {"--loadmodule", REDIS_SERVER_MODULE, NULL};
    e2e_enter();
    int rc = redis_server_start(&server, args);
    cr_assert_eq(rc, 0, "%s", err_text());
}

static void leave(void) {
    redis_server_stop(&server);
    e2e_leave();
}

/* Of a command: how often the server was asked it (1), its time for it in microseconds (2). */
static int64_t statistic(const char *command, int which) {
    char text[256];
    snprintf(text, sizeof text,
             "EVAL \"local s = {string.match(redis.call('INFO', 'commandstats'), "
             "'cmdstat_%s:calls=(%%d+),usec=(%%d+)')} return tonumber(s[%d]) or 0\" 0",
             command, which);
    return redis_server_ask(server.port, text);
}

static int64_t least(const int64_t *values, int first, int end) {
    int64_t n = INT64_MAX;
    for (int i = first; i < end; i++)
        n = values[i] < n ? values[i] : n;
    return n;
}

static int64_t most(const int64_t *values, int first, int end) {
    int64_t n = 0;
    for (int i = first; i < end; i++)
        n = values[i] > n ? values[i] : n;
    return n;
}

/* How much there is between two saves goes by how long a save takes, so the outputs are in memory;
 * how little there is behind one must be the same from the first to the last. */
Test(redis_books, a_long_job_leaves_no_more_than_a_short_one, .init = enter, .fini = leave) {
    static int64_t keys[MAX_SAMPLES];
    static int64_t memory[MAX_SAMPLES];
    char relay[64];
    const char *job = e2e_job("small", small_job);
    int64_t old = -1;
    int n = 0;
    snprintf(relay, sizeof relay, "relay=redis://127.0.0.1:%d", server.port);
    int64_t begin_ns = clock_now_ns();
    E2e run = e2e_train(job, out, E2E_ARGS("--set", relay));
    cr_assert(e2e_await_rows(&run, out, 2 * SAVE_EVERY), "%s", e2e_read(run.err));
    while (e2e_is_running(&run) && n < MAX_SAMPLES) {
        if (old < 0 && e2e_rows(out) >= N_STEPS / 2)
            old = redis_server_ask(server.port, OF_FIRST_STEPS);
        keys[n] = redis_server_ask(server.port, "DBSIZE");
        memory[n++] = redis_server_ask(server.port, REDIS_SERVER_MEMORY);
        e2e_sleep_ms(10);
    }
    cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
    int64_t all_us = (clock_now_ns() - begin_ns) / CLOCK_NS_PER_US;
    cr_assert_geq(n, 20, "%d samples are too few to tell", n);
    n -= 2; /* the end itself */
    int64_t early = least(memory, 0, n / 2);
    int64_t late = least(memory, n / 2, n);
    cr_expect_eq(old, 0, "%lld keys of the first 100 steps at the 500th", (long long)old);
    cr_expect_leq(least(keys, n / 2, n), N_STEPS * STEP_KEYS / 12, "%lld keys",
                  (long long)least(keys, n / 2, n));
    cr_expect_leq(late, early + (768 << 10), "%lld bytes in the first half, %lld in the second",
                  (long long)early, (long long)late);
    cr_expect_eq(redis_server_ask(server.port, "DBSIZE"), 0);
    cr_expect_eq(statistic("funcpipe.add", 1), 2 * N_STEPS);
    int64_t scans = statistic("scan", 1);
    int64_t drop_us = statistic("scan", 2) + statistic("unlink", 2);
    /* A save lets objects go each time that the last worker to pass a step says so. */
    cr_expect(scans > 2 && scans <= N_WORKERS * N_STEPS / SAVE_EVERY + 10, "%lld passes",
              (long long)scans);
    cr_expect(drop_us > 0 && drop_us <= all_us / 50, "dropping took %lld of %lld us",
              (long long)drop_us, (long long)all_us);
    printf("redis_books: %lld keys at most; behind saves %lld bytes early, %lld late; %lld scans; "
           "drops took the server %lld of %lld us\n",
           (long long)most(keys, 0, n), (long long)early, (long long)late, (long long)scans,
           (long long)drop_us, (long long)all_us);
}

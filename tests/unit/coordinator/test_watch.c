/* The watch's drops, while the relay fails now and then. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>

#include "coordinator/plan.h"
#include "coordinator/watch.h"
#include "core/clock.h"
#include "core/err.h"
#include "storage/relay.h"
#include "tests/support/temp_folder.h"

TestSuite(watch, .init = temp_enter, .fini = temp_leave);

static const char base[] = "{\"version\": 1, \"name\": \"job\","
                           " \"model\": {\"zoo\": \"mlp\", \"options\": {\"input\": [8], "
                           "\"hidden\": [16], \"classes\": 3}},"
                           " \"data\": {\"train\": {\"kind\": \"generated\", \"samples\": 100}},"
                           " \"batch\": 32, \"micro_batch\": 8, \"steps\": 20, \"update\": "
                           "{\"kind\": \"sgd\", \"lr\": 0.1},"
                           " \"timeouts\": {\"heartbeat\": \"1s\"}}";

static atomic_int n_faults; /* removals of t2 that still fail */

/* The library's calls come here. */
int unlinkat(int fd, const char *name, int flags) {
    int (*real)(int, const char *, int) =
        (int (*)(int, const char *, int))dlsym(RTLD_NEXT, "unlinkat");
    size_t length = strlen(name);
    if (length > 3 && strcmp(name + length - 3, "/t2") == 0 && atomic_fetch_sub(&n_faults, 1) > 0) {
        errno = EIO;
        return -1;
    }
    return real(fd, name, flags);
}

static void notify(void *ctx) {
    (void)ctx;
}

static JobConfig config;
static Plan plan;
static Order order;
static Relay *relay;

/* A job that stands at first_step, and its relay. */
static void begin(const char *job, int64_t first_step) {
    cr_assert_eq(config_parse("job", job, strlen(job), temp_folder, NULL, 0, 0, &config), 0, "%s",
                 err_text());
    cr_assert_eq(plan_make(&config, NULL, &plan), 0, "%s", err_text());
    order = config.order;
    order.plan = plan.spec;
    order.generation = 1;
    order.first_step = first_step;
    snprintf(order.relay_url, sizeof order.relay_url, "file://%s/relay", temp_folder);
    cr_assert_eq(relay_open(order.relay_url, &relay), 0, "%s", err_text());
}

/* It has dropped at least so often, and says so. */
static void end(Watch *watch, int64_t n_drops) {
    Traffic traffic = {0};
    watch_close(watch, &traffic);
    cr_expect_geq(traffic.drops, n_drops);
    relay_close(relay);
    plan_done(&plan);
    config_done(&config);
}

static void put(const char *key) {
    Slice part = {"x", 1};
    cr_assert_eq(relay_put(relay, key, &part, 1, INT64_MAX), 0, "%s", err_text());
}

/* Wait until only `n` objects are left. */
static void await_count(int64_t expected) {
    int64_t n = -1;
    for (int64_t until = clock_deadline_ms(20000); clock_now_ns() < until && n != expected;) {
        cr_assert_geq(relay_count(relay, "job/g1", &n), 0, "%s", err_text());
        clock_sleep_until(clock_deadline_ms(5));
    }
    cr_expect_eq(n, expected, "%lld objects are left", (long long)n);
}

Test(watch, a_drop_that_fails_is_done_again) {
    Watch *watch = NULL;
    begin(base, 10);
    for (int step = 0; step < 5; step++) {
        char key[64];
        snprintf(key, sizeof key, "job/g1/t%d/a.0-1.0", step);
        put(key);
    }
    atomic_store(&n_faults, 3);
    cr_assert_eq(watch_open(&order, 0, notify, NULL, &watch), 0, "%s", err_text());
    watch_drop(watch, 0, 4);
    await_count(1);
    cr_expect_leq(atomic_load(&n_faults), 0);
    cr_expect_eq(relay_has(relay, "job/g1/t4/a.0-1.0"), 1);
    WatchReport report;
    cr_expect_eq(watch_take(watch, &report), 0);
    end(watch, 1);
}

/* More prefixes than one call takes: by steps, and by the batches of one evaluation. */
Test(watch, many_steps_are_dropped) {
    static const char job[] =
        "{\"version\": 1, \"name\": \"job\", \"model\": {\"zoo\": \"mlp\", \"options\": "
        "{\"input\": [8], \"hidden\": [16], \"classes\": 3}}, \"data\": {\"train\": {\"kind\": "
        "\"generated\", \"samples\": 100}, \"eval\": {\"kind\": \"generated\", \"samples\": 700}}, "
        "\"batch\": 1, \"steps\": 3000, \"update\": {\"kind\": \"sgd\", \"lr\": 0.1}, "
        "\"evaluate\": {\"every_steps\": 1000}, \"timeouts\": {\"heartbeat\": \"1s\"}}";
    enum { STEPS = 1300, BATCHES = 700 };
    Watch *watch = NULL;
    char key[64];
    begin(job, 2900);
    for (int step = 0; step <= STEPS; step++) {
        snprintf(key, sizeof key, "job/g1/t%d/a.0-1.0", step);
        put(key);
    }
    for (int batch = 0; batch < BATCHES; batch++) {
        snprintf(key, sizeof key, "job/g1/e1000.%d/a.0-1.0", batch);
        put(key);
    }
    put("job/g1/e1000/v.0.0");
    put("job/g1/e2000/v.0.0");
    cr_assert_eq(watch_open(&order, 0, notify, NULL, &watch), 0, "%s", err_text());
    watch_drop(watch, 0, 700);
    watch_drop(watch, 700, STEPS);
    await_count(2);
    snprintf(key, sizeof key, "job/g1/t%d/a.0-1.0", STEPS);
    cr_expect_eq(relay_has(relay, key), 1);
    cr_expect_eq(relay_has(relay, "job/g1/e2000/v.0.0"), 1);
    end(watch, 3);
}

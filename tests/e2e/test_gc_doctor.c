/* funcpipe gc and doctor beside real jobs: the dead one's objects go, the live one goes on; and
 * what is wrong with a relay is said. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/relay.h"
#include "tests/support/e2e.h"
#include "tests/support/redis_server.h"
#include "tests/support/s3_fake.h"

static RedisServerProcess server;

static void enter(void) {
    e2e_enter();
}

static void leave(void) {
    redis_server_stop(&server);
    e2e_leave();
}

static const char *begin(const char *const *args) {
    static char url[64];
    cr_assert_eq(redis_server_start(&server, args), 0, "%s", err_text());
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", server.port);
    return url;
}

/* Run a command with --json: what it printed. */
static const cJSON *ask(const char *command, const char *relay, int exit_code) {
    E2e run;
    int status = e2e_run(&run, E2E_ARGS(command, relay, "--json"));
    cr_assert_eq(status, exit_code, "%d: %s %s", status, e2e_read(run.out), e2e_read(run.err));
    return e2e_lines(run.out)->child;
}

static const cJSON *generation(const cJSON *report, const char *job) {
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(report, "generations")) {
        if (strcmp(e2e_text(item, "job"), job) == 0)
            return item;
    }
    cr_assert_fail("nothing is said of '%s'", job);
    return NULL;
}

#define HEARTBEATS_OF(job) "EVAL \"return #redis.call('KEYS', 'funcpipe:n:" job "/*/h.*')\" 0"
#define OBJECTS_OF(job) "EVAL \"return #redis.call('KEYS', 'funcpipe:?:" job "/*')\" 0"

Test(gc_doctor, a_dead_job_beside_a_live_one, .init = enter, .fini = leave) {
    const char *url = begin(NULL);
    const char *job = e2e_job("mlp", e2e_mlp);
    char relay[96];
    snprintf(relay, sizeof relay, "relay=%s", url);
    E2e live = e2e_train(job, "live",
                         E2E_ARGS("--set", relay, "--set", "steps=1000000", "--set",
                                  "name=\"live\"", "--set", "save.every_steps=200"));
    E2e dead = e2e_train(
        job, "dead",
        E2E_ARGS("--set", relay, "--set", "name=\"dead\"", "--set", "timeouts.heartbeat=20ms"));
    cr_assert(e2e_await_rows(&dead, "dead", 15), "%s", e2e_read(dead.err));
    kill(dead.pid, SIGKILL);
    e2e_wait(&dead);
    cr_assert_gt(redis_server_ask(server.port, OBJECTS_OF("dead")), 10);
    cr_assert(e2e_await_rows(&live, "live", 20), "%s", e2e_read(live.err));
    cr_expect_str_eq(e2e_text(generation(ask("gc", url, 0), "dead"), "state"), "running");
    for (int i = 0; i < 1000 && redis_server_ask(server.port, HEARTBEATS_OF("dead")) > 0; i++)
        e2e_sleep_ms(10); /* its last heartbeats expire */
    cr_expect_str_eq(e2e_text(generation(ask("gc", url, 0), "dead"), "state"), "young");
    /* Nobody has used any key for two hours, it seems: those of the live one, too. */
    redis_server_ask(server.port, REDIS_SERVER_AGE);
    const cJSON *report = ask("gc", url, 0);
    cr_expect(cJSON_IsTrue(cJSON_GetObjectItem(generation(report, "dead"), "removed")));
    cr_expect_str_eq(e2e_text(generation(report, "live"), "state"), "running");
    cr_expect_eq(redis_server_ask(server.port, OBJECTS_OF("dead")), 0);
    cr_assert(e2e_await_rows(&live, "live", e2e_rows("live") + 100), "%s", e2e_read(live.err));
    kill(live.pid, SIGINT);
    cr_assert_eq(e2e_wait(&live), 130, "%s", e2e_read(live.err));
    cr_expect_eq(e2e_count("live", "worker_died"), 0);
    cr_expect_eq(redis_server_ask(server.port, "DBSIZE"), 0);
}

/* A dead generation, what was begun for it and for others, as a run tells it. */
Test(gc_doctor, uploads_that_nobody_ended, .init = e2e_enter, .fini = e2e_leave) {
    S3Fake *fake = NULL;
    Relay *relay = NULL;
    char url[128];
    E2e run;
    cr_assert_eq(s3_fake_start(&fake), 0, "%s", err_text());
    setenv("AWS_ACCESS_KEY_ID", "AKTEST", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    snprintf(url, sizeof url, "s3://bucket/j?endpoint=http://127.0.0.1:%d", s3_fake_port(fake));
    cr_assert_eq(relay_open(url, &relay), 0, "%s", err_text());
    cr_assert_eq(relay_put(relay, "dead/claim.1", NULL, 0, CLOCK_NEVER), 0, "%s", err_text());
    relay_close(relay);
    s3_fake_begin(fake, "j/dead/g1/t0/a.0-1.0/.o");
    s3_fake_begin(fake, "j/other/g1/t0/a.0-1.0/.o");
    s3_fake_age(fake, 7200000);
    static const char words[] =
        "1 of 1 generation would be removed: 0 B; 2 uploads that nobody ended\n";
    cr_expect_eq(e2e_run(&run, E2E_ARGS("gc", url, "--dry-run")), 0, "%s", e2e_read(run.err));
    cr_expect(strstr(e2e_read(run.out), words), "%s", e2e_read(run.out));
    cr_expect_eq(e2e_run(&run, E2E_ARGS("gc", url, "--job", "dead")), 0, "%s", e2e_read(run.err));
    cr_expect(strstr(e2e_read(run.out), "removed: 0 B; 1 upload that nobody ended\n"), "%s",
              e2e_read(run.out));
    cr_expect_eq(s3_fake_objects(fake), 0);
    const cJSON *report = ask("gc", url, 0);
    cr_expect_eq(e2e_number(report, "uploads"), 1);
    cr_expect_eq(e2e_number(report, "pieces"), 0);
    cr_expect_eq(s3_fake_uploads(fake), 0);
    s3_fake_stop(fake);
}

static const cJSON *fact(const cJSON *report, const char *name) {
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(report, "facts")) {
        if (strcmp(e2e_text(item, "name"), name) == 0)
            return item;
    }
    cr_assert_fail("nothing is said of '%s'", name);
    return NULL;
}

static void check_measured(const cJSON *report) {
    const cJSON *measured = cJSON_GetObjectItemCaseSensitive(report, "measured");
    cr_expect_gt(e2e_number(measured, "put_bytes_per_s"), 0);
    cr_expect_gt(e2e_number(measured, "get_bytes_per_s"), 0);
    cr_expect_geq(e2e_number(measured, "put_p99_us"), e2e_number(measured, "put_median_us"));
    cr_expect_geq(e2e_number(measured, "longest_bytes"), 1 << 20);
    cr_expect_geq(e2e_number(measured, "wake_median_us"), 0);
}

Test(gc_doctor, a_sound_store, .init = enter, .fini = leave) {
    static const char *const args[] = {"--loadmodule", REDIS_SERVER_MODULE, NULL};
    const char *url = begin(args);
    const cJSON *report = ask("doctor", url, 0);
    check_measured(report);
    cr_expect_str_eq(e2e_text(fact(report, "sums"), "value"), "yes");
    cr_expect_eq(e2e_number(report, "problems"), 0);
    cr_expect(strstr(e2e_text(fact(report, "persistence"), "value"), "loses all objects"));
    cr_expect_eq(redis_server_ask(server.port, "DBSIZE"), 0, "the doctor left something");
    char files[E2E_PATH_BYTES];
    snprintf(files, sizeof files, "file://%s", e2e_path("%s", "relay"));
    check_measured(ask("doctor", files, 0));
    cr_expect_eq(access("relay", F_OK), -1, "the doctor left its folder");
}

Test(gc_doctor, what_is_wrong_is_said, .init = enter, .fini = leave) {
    static const char *const args[] = {"--maxmemory", "63mb", NULL};
    const char *url = begin(args);
    char other[64];
    E2e run;
    const cJSON *report = ask("doctor", url, 1);
    cr_expect(strstr(e2e_text(fact(report, "memory"), "problem"), "raise maxmemory"));
    cr_expect_eq(redis_server_ask(server.port, "DBSIZE"), 0, "the doctor left something");
    snprintf(other, sizeof other, "redis://0.0.0.0:%d", server.port);
    cr_expect(
        strstr(e2e_text(fact(ask("doctor", other, 1), "login"), "problem"), "set a password"));
    redis_server_ask(server.port, "CONFIG SET maxmemory-policy allkeys-lru");
    cr_expect(strstr(e2e_text(fact(ask("doctor", url, 1), "use"), "problem"), "noeviction"));
    redis_server_ask(server.port, "CONFIG SET requirepass secret");
    cr_expect_eq(e2e_run(&run, E2E_ARGS("doctor", url)), 3, "%s", e2e_read(run.err));
    snprintf(other, sizeof other, "redis://127.0.0.1:%d", 1);
    cr_expect_eq(e2e_run(&run, E2E_ARGS("doctor", other)), 3, "%s", e2e_read(run.err));
    cr_expect_eq(e2e_run(&run, E2E_ARGS("doctor", "nowhere")), 2, "%s", e2e_read(run.err));
    cr_expect_eq(e2e_run(&run, E2E_ARGS("doctor")), 2, "%s", e2e_read(run.err));
    cr_expect_eq(e2e_run(&run, E2E_ARGS("gc", other)), 3, "%s", e2e_read(run.err));
    cr_expect_eq(e2e_run(&run, E2E_ARGS("gc", other, "--older", "5s")), 2);
    cr_expect_eq(e2e_run(&run, E2E_ARGS("gc", other, "--job", "../x")), 2);
}

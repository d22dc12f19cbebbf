/* Whole jobs over a real Redis server: the weights are those of the file relay, bit by bit, whoever
 * dies, the server too; where they cannot be, the job says why; and the server is left as it was
 * found. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "core/err.h"
#include "core/file.h"
#include "tests/support/damage.h"
#include "tests/support/e2e.h"
#include "tests/support/redis_server.h"
#include "tests/support/relay_jobs.h"

#define PASSWORD "a-password"

E2E_REFERENCES_BEGIN
E2E_REFERENCES_END

enum { STEPS = 120 }; /* of all jobs that are compared with a reference */
#define STEPS_SET "--set", "steps=120"

static RedisServerProcess server;

static void begin(const char *const *args) {
    e2e_enter();
    int rc = redis_server_start(&server, args);
    if (rc == ERR_UNSUPPORTED)
        cr_skip_test("%s", err_text());
    cr_assert_eq(rc, 0, "%s", err_text());
}

static void restart(RedisServerProcess *one) {
    redis_server_kill(one);
    e2e_sleep_ms(150);
    cr_assert_eq(redis_server_again(one), 0, "%s", err_text());
}

static void enter(void) {
    begin(NULL);
}

static void leave(void) {
    redis_server_stop(&server);
    e2e_leave();
}

static const char *relay_set(const char *rest) {
    static char text[E2E_PATH_BYTES + 64];
    snprintf(text, sizeof text, "relay=redis://127.0.0.1:%d%s", server.port, rest);
    return text;
}

static const char *url(const char *rest) {
    return relay_set(rest) + strlen("relay=");
}

static void server_is_empty(void) {
    cr_assert_eq(redis_server_ask(server.port, "DBSIZE"), 0);
}

/* OUT/redis is as the same job over files, which was trained once for all tests. */
static void check_as_over_files(const char *job) {
    const char *files = e2e_reference(job, E2E_ARGS(STEPS_SET));
    e2e_check_equal(files, "redis", STEPS);
    e2e_check_same_rows(files, "redis", 0, STEPS);
}

static void check_job(const char *name, const char *text) {
    const char *job = e2e_job(name, text);
    e2e_train_fully(job, "redis", E2E_ARGS(STEPS_SET, "--set", relay_set("")));
    check_as_over_files(job);
    server_is_empty();
}

Test(redis_jobs, mlp, .init = enter, .fini = leave) {
    check_job("mlp", e2e_mlp);
}

Test(redis_jobs, cnn, .init = enter, .fini = leave) {
    check_job("cnn", e2e_cnn);
}

Test(redis_jobs, gpt, .init = enter, .fini = leave) {
    check_job("gpt", e2e_gpt);
}

static void enter_with_module(void) {
    static const char *const args[] = {"--loadmodule", REDIS_SERVER_MODULE, NULL};
    begin(args);
}

/* Three replicas: each reads all, each adds up a part, the server adds; one of them dies, too. */
Test(redis_jobs, every_form_of_the_reduction, .init = enter_with_module, .fini = leave) {
    static const char *const forms[] = {"plan.reduce.form=whole", "plan.reduce.form=chunked",
                                        "plan.reduce.form=in_store", "plan.reduce.form=auto"};
    const char *job = e2e_job("mlp", e2e_mlp);
    const char *const replicas = "plan.replicas=[1,3,1]";
    const char *const steps = "steps=100";
    e2e_train_fully(job, "files", E2E_ARGS("--set", steps, "--set", replicas, "--set", forms[0]));
    for (int i = 0; i < 4; i++) {
        const char *out = e2e_path("redis%d", i);
        E2e run = e2e_train(job, out,
                            E2E_ARGS("--set", relay_set(""), "--set", steps, "--set", replicas,
                                     "--set", forms[i], "--set", "plan.reduce.chunk=4KiB"));
        cr_assert(e2e_await_rows(&run, out, 40), "%s", e2e_read(run.err));
        kill(e2e_worker(out, 1, i % 3), SIGKILL);
        cr_assert_eq(e2e_wait(&run), 0, "%s: %s", forms[i], e2e_read(run.err));
        cr_expect_eq(e2e_count(out, "worker_died"), 1, "%s", forms[i]);
        e2e_check_equal("files", out, 100);
        e2e_check_same_rows("files", out, 0, 100);
        server_is_empty();
    }
}

/* A form that the relay cannot do is refused before anything begins. */
Test(redis_jobs, a_server_that_cannot_add, .init = enter, .fini = leave) {
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), "out",
                        E2E_ARGS("--set", relay_set(""), "--set", "plan.reduce.form=in_store"));
    cr_assert_eq(e2e_wait(&run), 4, "%s", e2e_read(run.err));
    cr_assert(strstr(e2e_read(run.err), "this relay cannot add"), "%s", e2e_read(run.err));
    server_is_empty();
}

Test(redis_jobs, workers_die, .init = enter, .fini = leave) {
    static const int workers[][2] = {{0, 0}, {1, 0}, {1, 1}, {2, 0}};
    const char *job = e2e_job("mlp", e2e_mlp);
    E2e run = e2e_train(
        job, "redis", E2E_ARGS(STEPS_SET, "--set", relay_set("/3"), "--set", "limits.restarts=20"));
    for (int i = 0; i < 4; i++) {
        cr_assert(e2e_await_rows(&run, "redis", 20 + i * 25), "%s", e2e_read(run.err));
        kill(e2e_worker("redis", workers[i][0], workers[i][1]), SIGKILL);
    }
    cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
    cr_assert_geq(e2e_count("redis", "worker_died"), 3);
    e2e_check_clean(&run);
    check_as_over_files(job);
}

/* ---- the demo, damaged objects, what others left ---- */

static RedisServerProcess forgetful; /* its objects are gone with it */

static void enter_demo(void) {
    static const char *const keeps[] = {"--loadmodule",
                                        REDIS_SERVER_MODULE,
                                        "--appendonly",
                                        "yes",
                                        "--appendfsync",
                                        "always",
                                        NULL};
    static const char *const loses[] = {"--loadmodule", REDIS_SERVER_MODULE, NULL};
    begin(keeps);
    cr_assert_eq(redis_server_start(&forgetful, loses), 0, "%s", err_text());
}

static void leave_demo(void) {
    redis_server_stop(&forgetful);
    leave();
}

static void restart_server(void) {
    restart(&server);
}

static void restart_forgetful(void) {
    restart(&forgetful);
}

/* The server adds the gradients. It dies in mid-step: once with all it had in its file, once with
 * nothing. */
Test(redis_jobs, demo, .init = enter_demo, .fini = leave_demo) {
    char relays[2][64];
    for (int i = 0; i < 2; i++)
        snprintf(relays[i], sizeof relays[i], "redis://127.0.0.1:%d",
                 i == 0 ? server.port : forgetful.port);
    const RelayJobsDemo runs[] = {
        {.relay = relays[0], .form = "in_store", .disturb = restart_server},
        {.relay = relays[1], .form = "in_store", .disturb = restart_forgetful, .loses = true}};
    relay_jobs_demo(runs, 2, 16);
    server_is_empty();
    cr_expect_eq(redis_server_ask(forgetful.port, "DBSIZE"), 0);
}

Test(redis_jobs, damaged_objects, .init = enter, .fini = leave) {
    static const int ways[] = {DAMAGE_GARBAGE, DAMAGE_DTYPE};
    for (int i = 0; i < (e2e_long() ? N_DAMAGES : 2); i++) {
        if (!e2e_long() || i != DAMAGE_NONE)
            relay_jobs_damage(url("/2"), 40, e2e_long() ? i : ways[i]);
    }
}

Test(redis_jobs, leftovers, .init = enter, .fini = leave) {
    relay_jobs_leftovers(url(""), 60);
}

/* However a run ends, it leaves nothing; what a killed one leaves goes by itself some day. */
Test(redis_jobs, nothing_is_left, .init = enter, .fini = leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    const char *const relay = relay_set("");
    E2e run = e2e_train(job, "cancelled", E2E_ARGS("--set", relay));
    cr_assert(e2e_await_rows(&run, "cancelled", 20), "%s", e2e_read(run.err));
    kill(run.pid, SIGINT);
    cr_assert_eq(e2e_wait(&run), 130, "%s", e2e_read(run.err));
    server_is_empty();
    run = e2e_train(job, "failed", E2E_ARGS("--set", relay, "--set", "limits.restarts=0"));
    cr_assert(e2e_await_rows(&run, "failed", 20), "%s", e2e_read(run.err));
    kill(e2e_worker("failed", 2, 0), SIGKILL);
    cr_assert_eq(e2e_wait(&run), 1, "%s", e2e_read(run.err));
    server_is_empty();
    run = e2e_train(job, "killed", E2E_ARGS("--set", relay));
    cr_assert(e2e_await_rows(&run, "killed", 20), "%s", e2e_read(run.err));
    kill(run.pid, SIGKILL);
    e2e_wait(&run);
    cr_expect_gt(redis_server_ask(server.port, "DBSIZE"), 10);
    cr_expect_eq(redis_server_ask(server.port, REDIS_SERVER_IMMORTAL), 0);
}

/* ---- a server in trouble ---- */

static void enter_with_file(void) {
    static const char *const args[] = {
        "--requirepass", PASSWORD, "--appendonly", "yes", "--appendfsync", "always", NULL};
    begin(args);
    cr_assert_eq(file_write("password", PASSWORD, strlen(PASSWORD)), 0);
}

/* The server dies in mid-step and comes back with what it had: all log in anew, to their database.
 */
Test(redis_jobs, the_server_restarts, .init = enter_with_file, .fini = leave) {
    char rest[E2E_PATH_BYTES];
    const char *job = e2e_job("mlp", e2e_mlp);
    snprintf(rest, sizeof rest, "/3?password_file=%s", e2e_path("%s", "password"));
    E2e run = e2e_train(job, "redis", E2E_ARGS(STEPS_SET, "--set", relay_set(rest)));
    for (int i = 0; i < 2; i++) {
        cr_assert(e2e_await_rows(&run, "redis", 30 + i * 45), "%s", e2e_read(run.err));
        restart(&server);
    }
    cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
    e2e_check_clean(&run);
    check_as_over_files(job);
    cr_expect_eq(redis_server_ask(server.port, "AUTH " PASSWORD "\r\nDBSIZE"), 0);
    cr_expect_eq(redis_server_ask(server.port, "AUTH " PASSWORD "\r\nSELECT 3\r\nDBSIZE"), 0);
}

/* Memory for so many more bytes than the server uses now. */
static void limit_memory(int64_t bytes) {
    char line[64];
    snprintf(line, sizeof line, "CONFIG SET maxmemory %lld",
             (long long)(redis_server_ask(server.port, REDIS_SERVER_MEMORY) + bytes));
    cr_assert_eq(redis_server_ask(server.port, line), 0);
}

static int64_t refusals(void) {
    return redis_server_ask(server.port,
                            "EVAL \"return tonumber(string.match(redis.call('INFO', 'errorstats'), "
                            "'errorstat_OOM:count=(%d+)') or 0)\" 0");
}

/* Some worker said what was full; on a busy machine another one may have given up before. */
static void check_full(E2e *run, const char *out, int64_t most_refusals) {
    const char *said = e2e_read(e2e_path("%s/events.jsonl", out));
    cr_expect(strstr(said, "'mlp/g1/t") && strstr(said, "maxmemory"), "%s", e2e_read(run->err));
    cr_expect_leq(refusals(), most_refusals, "%lld refusals: a spin", (long long)refusals());
}

/* More between two saves than the server holds: writers wait, and then the job says why it ends. */
Test(redis_jobs, a_server_that_is_too_small, .init = enter, .fini = leave) {
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), "full",
                        E2E_ARGS("--set", relay_set(""), "--set", "save.every_steps=1000", "--set",
                                 "timeouts.wait=2s", "--set", "limits.restarts=1", "--set",
                                 "steps=1000"));
    cr_assert(e2e_await_rows(&run, "full", 5), "%s", e2e_read(run.err));
    limit_memory(256 << 10);
    cr_expect_eq(e2e_wait(&run), 1, "%s", e2e_read(run.err));
    check_full(&run, "full", 5000);
    e2e_check_clean(&run);
    server_is_empty();
}

/* Enough between two saves, and no more: who is faster than the saves waits for them. Where it is
 * too little all the same, the job says so. */
Test(redis_jobs, a_server_that_is_just_large_enough, .init = enter, .fini = leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    E2e run = e2e_train(job, "redis",
                        E2E_ARGS(STEPS_SET, "--set", relay_set(""), "--set", "save.every_steps=5",
                                 "--set", "timeouts.wait=4s", "--set", "limits.restarts=1"));
    cr_assert(e2e_await_rows(&run, "redis", 5), "%s", e2e_read(run.err));
    limit_memory(768 << 10);
    int status = e2e_wait(&run);
    if (status == 0)
        check_as_over_files(job);
    else
        check_full(&run, "redis", 5000);
    cr_expect(status == 0 || status == 1, "%d: %s", status, e2e_read(run.err));
    printf("redis_jobs: a server just large enough: exit code %d, %lld refusals\n", status,
           (long long)refusals());
    e2e_check_clean(&run);
    server_is_empty();
}

/* Somebody deletes what is under way: the job finds its way, with the same weights, or ends and
 * names an object that is missing. */
Test(redis_jobs, keys_are_deleted, .init = enter, .fini = leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    E2e run = e2e_train(job, "redis",
                        E2E_ARGS(STEPS_SET, "--set", relay_set(""), "--set", "timeouts.wait=5s",
                                 "--set", "limits.restarts=1"));
    cr_assert(e2e_await_rows(&run, "redis", 47), "%s", e2e_read(run.err));
    redis_server_ask(server.port,
                     "EVAL \"for _, k in ipairs(redis.call('KEYS', 'funcpipe:o:mlp/g1/t*')) do "
                     "redis.call('DEL', k) end return 1\" 0");
    int status = e2e_wait(&run);
    const char *said = e2e_text(e2e_event("redis", "state", -1, -1, 0), "text");
    e2e_check_clean(&run);
    if (status == 0)
        check_as_over_files(job);
    else
        cr_expect(status == 1 && (strstr(said, "'mlp/g1/t") || strstr(said, "norms of step")),
                  "%d: %s", status, said);
    server_is_empty();
}

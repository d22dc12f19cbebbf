/* Jobs that cannot go on: what they say, their exit code, how soon they end, and that nothing is
 * left behind. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "tests/support/e2e.h"

static int64_t now_ms(void) {
    return clock_now_ns() / CLOCK_NS_PER_MS;
}

static int64_t started_ms;

/* Train to the failure: the exit code, and words of the error. */
static E2e expect_failure(const char *const *more, int exit_code, const char *words) {
    started_ms = now_ms();
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), "failed", more);
    int status = e2e_wait(&run);
    const char *text = e2e_read(run.err);
    cr_assert_eq(status, exit_code, "%d instead of %d: %s", status, exit_code, text);
    cr_assert(strstr(text, words), "expected '%s' in: %s", words, text);
    const char *last = strstr(text, "funcpipe: ");
    cr_assert(last != NULL, "no error was shown: %s", text);
    cr_assert_null(strstr(last + 1, "\nfuncpipe: "), "more than one error: %s", text);
    e2e_check_clean(&run);
    return run;
}

static void ended_within(int64_t ms) {
    cr_assert_lt(now_ms() - started_ms, ms * e2e_slowness());
}

static int attempts(int stage, int replica) {
    int n = 0;
    while (e2e_event("failed", "worker_started", stage, replica, n + 1))
        n++;
    return n;
}

/* All processes that were started have ended. */
static void no_process_is_left(void) {
    const cJSON *line = NULL;
    cJSON_ArrayForEach(line, e2e_lines("failed/events.jsonl")) {
        if (strcmp(e2e_text(line, "event"), "worker_started") == 0)
            cr_assert_eq(e2e_process_state((pid_t)e2e_number(line, "pid")), 0);
    }
}

/* ---- workers that die ---- */

Test(failure, dies_again_and_again_at_one_step, .init = e2e_enter, .fini = e2e_leave) {
    e2e_break_files("funcpipe-worker link /t17/+n.1.0 1 0 kill", false);
    E2e run = expect_failure(NULL, 1, "killed by signal 9 (Killed)");
    if (e2e_count("failed", "saved") > 0) /* else the commit was slower than the deaths */
        cr_assert(strstr(e2e_read(run.out), "checkpoint failed/checkpoints/10\nto go on: the same"),
                  "%s", e2e_read(run.out));
    const cJSON *state = e2e_event("failed", "state", -1, -1, 0);
    int times = 0;
    int step = -1;
    cr_assert_eq(sscanf(e2e_text(state, "text"), "stage 1, replica 0 failed %d times", &times), 1,
                 "%s", e2e_text(state, "text"));
    cr_assert_eq(sscanf(strstr(e2e_text(state, "text"), "step "), "step %d:", &step), 1);
    cr_assert(step >= 0 && step <= 17, "step %d", step);
    cr_assert(times >= 3 && times <= 15);
    cr_assert_eq(attempts(0, 0), 1);
    ended_within(20000);
}

/* Heartbeats tell of its start only; the norms of the steps before say where it died. */
Test(failure, where_it_died_is_known, .init = e2e_enter, .fini = e2e_leave) {
    e2e_break_files("funcpipe-worker link /t17/+n.1.0 1 0 kill", true);
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), "run",
                        E2E_ARGS("--set", "timeouts.heartbeat=1m", "--set", "timeouts.start=1m"));
    cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
    double step = e2e_number(e2e_event("run", "worker_died", 1, 0, 1), "step");
    cr_assert(step == 16 || step == 17, "step %g", step); /* 16: the watch was a little behind */
    e2e_check_rows("run", 200);
}

Test(failure, dies_at_its_start, .init = e2e_enter, .fini = e2e_leave) {
    e2e_wrap_worker("grep -q '\"stage\":1,\"replica\":1,' \"$ORDER\" && exit 7");
    expect_failure(NULL, 1,
                   "stage 1, replica 1 failed 3 times in a row at step 0: ended with status "
                   "7 and without a result; see ");
    cr_assert(strstr(e2e_read("run0.stderr"), "/failed/logs/worker-1.1.3.log"));
    cr_assert_eq(access("failed/logs/worker-1.1.3.log", R_OK), 0);
    cr_assert_eq(attempts(1, 1), 3);
    ended_within(10000);
}

Test(failure, no_restart_is_allowed, .init = e2e_enter, .fini = e2e_leave) {
    e2e_wrap_worker("grep -q '\"stage\":2,' \"$ORDER\" && kill -9 $$");
    expect_failure(E2E_ARGS("--set", "limits.restarts=0"), 1,
                   "stage 2, replica 0 failed 1 time in a row at step 0: killed by signal 9");
    cr_assert_eq(attempts(2, 0), 1);
    ended_within(5000);
}

Test(failure, ends_too_early, .init = e2e_enter, .fini = e2e_leave) {
    e2e_wrap_worker("grep -q '\"stage\":0,' \"$ORDER\" && "
                    "echo '{\"result\":\"done\",\"step\":5}' && exit 0");
    expect_failure(NULL, 1, "it ended before its last step");
    cr_assert_eq(attempts(0, 0), 3);
}

Test(failure, prints_nonsense, .init = e2e_enter, .fini = e2e_leave) {
    e2e_wrap_worker("grep -q '\"stage\":0,' \"$ORDER\" && "
                    "head -c 300000 /dev/urandom && echo && echo '{\"result\":' && exit 0");
    expect_failure(NULL, 1,
                   "stage 0, replica 0 failed 3 times in a row at step 0: ended with status "
                   "0 and without a result");
}

/* No retry helps, so there is none. */
Test(failure, bad_data, .init = e2e_enter, .fini = e2e_leave) {
    char tokens[2000];
    memset(tokens, 7, sizeof tokens);
    tokens[1000] = 31;
    FILE *file = fopen("tokens.bin", "wb");
    cr_assert(file && fwrite(tokens, sizeof tokens, 1, file) == 1 && fclose(file) == 0);
    E2e run = e2e_train(
        e2e_job("gpt", e2e_gpt), "failed",
        E2E_ARGS("--set",
                 "data.train={\"kind\":\"tokens\",\"path\":\"tokens.bin\",\"dtype\":\"U8\","
                 "\"context\":12}",
                 "--set", "data.eval=null", "--set", "evaluate=null"));
    cr_assert_eq(e2e_wait(&run), 1);
    const char *text = e2e_read(run.err);
    cr_assert(strstr(text, "funcpipe: stage ") && strstr(text, "tokens.bin") && strstr(text, "31"),
              "%s", text);
    cr_assert_eq(e2e_count("failed", "worker_started"), 3);
    e2e_check_clean(&run);
}

/* ---- workers that hang ---- */

/* It never gives a sign of life: the start limit counts as death. */
Test(failure, never_begins, .init = e2e_enter, .fini = e2e_leave) {
    e2e_wrap_worker("grep -q '\"stage\":1,\"replica\":0,' \"$ORDER\" && exec sleep 1000");
    char start[64];
    snprintf(start, sizeof start, "timeouts.start=%dms", 500 * e2e_slowness());
    expect_failure(E2E_ARGS("--set", start), 1,
                   "stage 1, replica 0 failed 3 times in a row at step 0: no heartbeat within ");
    cr_assert_eq(attempts(1, 0), 3);
    no_process_is_left();
    ended_within(10000);
}

/* The others wait no longer than they may. */
Test(failure, waits_are_limited, .init = e2e_enter, .fini = e2e_leave) {
    e2e_wrap_worker("grep -q '\"stage\":1,\"replica\":0,' \"$ORDER\" && exec sleep 1000");
    expect_failure(E2E_ARGS("--set", "timeouts.start=10m", "--set", "timeouts.wait=1s"), 1,
                   "waiting for worker 1.0, which has no heartbeat");
    no_process_is_left();
    ended_within(12000);
}

/* A death is noticed within three heartbeats. */
Test(failure, deaths_are_noticed, .init = e2e_enter, .fini = e2e_leave) {
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), "run",
                        E2E_ARGS("--set", "timeouts.heartbeat=200ms", "--set", "steps=1000"));
    cr_assert(e2e_await_rows(&run, "run", 20));
    for (int i = 1; i <= 3; i++) {
        int64_t begin = now_ms();
        cr_assert_eq(kill(e2e_worker("run", i - 1, 0), SIGKILL), 0);
        cr_assert(e2e_await_event(&run, "run", "worker_started", 4 + i));
        cr_assert_leq(now_ms() - begin, 600 * e2e_slowness());
        cr_assert_eq(e2e_count("run", "worker_died"), i);
    }
    kill(run.pid, SIGINT);
    e2e_wait(&run);
}

/* ---- exit codes ---- */

Test(failure, diverged, .init = e2e_enter, .fini = e2e_leave) {
    expect_failure(E2E_ARGS("--set", "update.lr=1e9", "--set", "update.on_nonfinite=stop", "--set",
                            "update.schedule=null"),
                   5, ": loss nan, gradient norm nan are not both finite");
    ended_within(10000);
}

/* The other policy: the steps are skipped, together, counted and told. The last one, too: what is
 * left is of no use. */
Test(failure, nonfinite_steps_are_skipped, .init = e2e_enter, .fini = e2e_leave) {
    E2e run = expect_failure(
        E2E_ARGS("--set", "update.lr=1e9", "--set", "update.schedule=null", "--set", "steps=60"), 5,
        "the training has diverged: loss or gradients of its last step, 59, were not finite");
    e2e_check_rows("failed", 60);
    const cJSON *rows = e2e_lines("failed/metrics.jsonl");
    int skipped = (int)e2e_number(cJSON_GetArrayItem(rows, 59), "skipped");
    cr_assert_gt(skipped, 32);
    cr_assert_eq(e2e_number(cJSON_GetArrayItem(rows, 60 - skipped), "skipped"), 1);
    cr_assert_eq(e2e_number(cJSON_GetArrayItem(rows, 59 - skipped), "skipped"), 0);
    cr_assert_eq(e2e_count("failed", "update_skipped"), 6, "1, 2, 4, 8, 16, 32");
    cr_assert_eq(e2e_number(e2e_event("failed", "update_skipped", -1, -1, 0), "skipped"), 32);
    char words[80];
    snprintf(words, sizeof words, "\n%d of 60 updates were skipped: loss or gradients", skipped);
    cr_assert(strstr(e2e_read(run.out), words), "%s", e2e_read(run.out));
    cr_assert(strstr(e2e_read(run.err), "gradients were not finite (32 skipped so far)"), "%s",
              e2e_read(run.err));
    cr_assert_eq(e2e_run(&run, E2E_ARGS("train", e2e_job("mlp", e2e_mlp), "--out", "failed",
                                        "--set", "update.lr=1e9", "--set", "update.schedule=null",
                                        "--set", "steps=60", "--resume", "latest")),
                 5, "going on makes it no better: %s", e2e_read(run.out));
}

static void write_npy(const char *path, const char *dtype, const char *shape, const void *data,
                      size_t bytes) {
    char head[128];
    memcpy(head, "\x93NUMPY\x01\x00\x76\x00", 10);
    int n = 10 + snprintf(head + 10, sizeof head - 10,
                          "{'descr': '%s', 'fortran_order': False, 'shape': %s}", dtype, shape);
    memset(head + n, ' ', sizeof head - (size_t)n);
    head[127] = '\n';
    FILE *file = fopen(path, "wb");
    cr_assert(file && fwrite(head, sizeof head, 1, file) == 1 && fwrite(data, bytes, 1, file) == 1);
    cr_assert_eq(fclose(file), 0);
}

/* One sample is beyond all figures: the step that has it is skipped, the others train. */
Test(failure, skipped_steps_before_the_last_are_no_failure, .init = e2e_enter, .fini = e2e_leave) {
    static float inputs[8][16];
    static const int64_t targets[8] = {0, 1, 2, 3, 0, 1, 2, 3};
    for (int i = 0; i < 16; i++)
        inputs[1][i] = i % 3 == 0 ? -3e38F : 3e38F;
    write_npy("x.npy", "<f4", "(8, 16)", inputs, sizeof inputs);
    write_npy("y.npy", "<i8", "(8,)", targets, sizeof targets);
    E2e run;
    int status = e2e_run(
        &run,
        E2E_ARGS("train", e2e_job("mlp", e2e_mlp), "--json", "--out", "out", "--set",
                 "data={\"train\":{\"kind\":\"npy\",\"inputs\":\"x.npy\",\"targets\":\"y.npy\"}}",
                 "--set", "evaluate=null", "--set", "shuffle=false", "--set", "batch=4", "--set",
                 "micro_batch=2", "--set", "steps=4"));
    cr_assert_eq(status, 0, "%d: %s", status, e2e_read(run.err));
    const cJSON *lines = e2e_lines(run.out);
    const cJSON *last = cJSON_GetArrayItem(lines, cJSON_GetArraySize(lines) - 1);
    cr_assert_eq(e2e_number(last, "skipped"), 2);
    cr_assert(cJSON_IsNumber(cJSON_GetObjectItem(last, "loss")));
    const cJSON *event = e2e_event("out", "update_skipped", -1, -1, 0);
    cr_assert_eq(e2e_number(event, "step"), 2);
}

Test(failure, infeasible, .init = e2e_enter, .fini = e2e_leave) {
    expect_failure(
        E2E_ARGS("--set", "plan={\"stages\":50}"), 4,
        "--set plan={\"stages\":50}: $.plan.stages: 50 stages, but model 'mlp' has only");
    expect_failure(E2E_ARGS("--set", "platform={\"kind\":\"local\",\"workers\":2}"), 4,
                   "the plan needs 4 workers");
    const char *huge = "model.options={\"input\":[800000],\"hidden\":[800000],\"classes\":2}";
    expect_failure(E2E_ARGS("--set", huge, "--set", "plan={\"stages\":2}", "--overwrite"), 4,
                   "funcpipe: measuring the layers: cpu device: ");
    expect_failure(E2E_ARGS("--set", huge, "--set", "plan=null", "--overwrite"), 4, " too little");
}

/* What measuring finds is wrong with the job, not with the run. */
Test(failure, bad_jobs_that_measuring_finds, .init = e2e_enter, .fini = e2e_leave) {
    static const char isa[] = "$.plan.isa: unknown value 'avx1024' (expected one of: auto, ";
    expect_failure(E2E_ARGS("--set", "plan.isa=avx1024"), 2, isa);
    expect_failure(E2E_ARGS("--set", "plan={\"isa\":\"avx1024\",\"stages\":2}", "--overwrite"), 2,
                   "avx1024");
    char tokens[2000];
    memset(tokens, 31, sizeof tokens);
    FILE *file = fopen("tokens.bin", "wb");
    cr_assert(file && fwrite(tokens, sizeof tokens, 1, file) == 1 && fclose(file) == 0);
    E2e run = e2e_train(
        e2e_job("gpt", e2e_gpt), "tokens",
        E2E_ARGS("--set",
                 "data.train={\"kind\":\"tokens\",\"path\":\"tokens.bin\",\"dtype\":\"U8\","
                 "\"context\":12}",
                 "--set", "data.eval=null", "--set", "evaluate=null", "--set",
                 "plan={\"stages\":2}"));
    cr_assert_eq(e2e_wait(&run), 2, "%s", e2e_read(run.err));
    const char *text = e2e_read(run.err);
    cr_assert(strstr(text, "funcpipe: measuring the layers: ") && strstr(text, "tokens.bin"), "%s",
              text);
}

Test(failure, bad_jobs, .init = e2e_enter, .fini = e2e_leave) {
    E2e run;
    expect_failure(E2E_ARGS("--set", "batch=0"), 2, "--set batch=0: $.batch: 0 is outside");
    expect_failure(E2E_ARGS("--set", "plan.stagse=2"), 2, "(did you mean 'stages'?)");
    expect_failure(E2E_ARGS("--set", "pl\x1b[2Jan=\n"), 2, "unknown key 'pl\\x1b[2Jan'");
    static char long_value[100000] = "plan.isa=";
    memset(long_value + 9, 'A', sizeof long_value - 10);
    run = expect_failure(E2E_ARGS("--set", long_value), 2, "$.plan.isa: unknown value 'AAAA");
    cr_assert_lt(strlen(e2e_read(run.err)), 1000);
    e2e_write("broken.json", "{\"version\": 1,\n  \"name\": }\n");
    cr_assert_eq(e2e_run(&run, E2E_ARGS("train", "broken.json")), 2);
    cr_assert(strstr(e2e_read(run.err), "broken.json"), "%s", e2e_read(run.err));
    cr_assert_eq(e2e_run(&run, E2E_ARGS("train", "none.json")), 2);
    cr_assert(strstr(e2e_read(run.err), "none.json"), "%s", e2e_read(run.err));
    cr_assert_eq(access("funcpipe-out", F_OK), -1, "outputs were made");
}

Test(failure, unreachable_relay, .init = e2e_enter, .fini = e2e_leave) {
    expect_failure(E2E_ARGS("--set", "relay=file:///nowhere/of/any/use"), 3, "/nowhere/of/any/use");
    expect_failure(E2E_ARGS("--overwrite", "--set", "relay=carrier-pigeon://loft"), 2,
                   "carrier-pigeon");
    expect_failure(E2E_ARGS("--overwrite", "--set", "relay=file:///dev/null"), 3,
                   "'/dev/null' is not a directory");
    expect_failure(E2E_ARGS("--overwrite", "--set", "relay=file:////."), 2,
                   "$.relay: 'file:////.' is the root of the file system");
}

Test(failure, no_worker_program, .init = e2e_enter, .fini = e2e_leave) {
    setenv("FUNCPIPE_WORKER", "/nowhere/funcpipe-worker", 1);
    expect_failure(NULL, 2, "FUNCPIPE_WORKER is '/nowhere/funcpipe-worker'");
    e2e_wrap_worker("");
    cr_assert_eq(chmod("worker.sh", 0600), 0);
    if (geteuid() != 0)
        expect_failure(NULL, 2, "worker.sh");
}

/* Logs are not worth a job: their folder is made again, and where it cannot be there are none. */
Test(failure, logs_are_removed, .init = e2e_enter, .fini = e2e_leave) {
    for (int again = 0; again < 2; again++) {
        char out[16];
        snprintf(out, sizeof out, "run%d", again);
        E2e run = e2e_train(e2e_job("mlp", e2e_mlp), out, E2E_ARGS("--set", "steps=400"));
        cr_assert(e2e_await_rows(&run, out, 20));
        cr_assert_eq(rename(e2e_path("%s/logs", out), e2e_path("logs%d", again)), 0);
        if (again)
            e2e_write(e2e_path("%s/logs", out), "a file");
        kill(e2e_worker(out, 1, 0), SIGKILL);
        cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
        cr_assert_not_null(e2e_event(out, "worker_started", 1, 0, 2));
        cr_assert_eq(access(e2e_path("%s/logs/worker-1.0.2.log", out), F_OK), again ? -1 : 0);
    }
}

/* The disk of the outputs is full. */
Test(failure, outputs_cannot_be_written, .init = e2e_enter, .fini = e2e_leave) {
    e2e_break_files("funcpipe write metrics.jsonl 30 0 ENOSPC", false);
    expect_failure(NULL, 1, "/failed/metrics.jsonl': No space left on device");
    ended_within(10000);
}

/* What a job says it moved through the relay is what it must move: to the byte, by stage. */
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "core/err.h"
#include "core/report.h"
#include "storage/blob.h"
#include "storage/manifest.h"
#include "tests/support/e2e.h"
#include "tests/support/redis_server.h"

enum { STEPS = 30, SAVES = 3, MICROS = 4, ROWS = 8, WIDTH = 32, STAGES = 3 };
enum { MARK_BYTES = 16 }; /* with which a worker says that it runs */

/* e2e_mlp in 3 stages with replicas 1, 2, 1: full batches only, no evaluation. */
#define PLAIN                                                                                      \
    "--set", "steps=30", "--set", "evaluate=null", "--set", "data.eval=null", "--set",             \
        "data.train.samples=256"

static RedisServerProcess server;

static void enter(void) {
    static const char *const args[] = {"--loadmodule", REDIS_SERVER_MODULE, NULL};
    e2e_enter();
    cr_assert_eq(redis_server_start(&server, args), 0, "%s", err_text());
}

static void leave(void) {
    redis_server_stop(&server);
    e2e_leave();
}

static int64_t blob_bytes(int n, const BlobTensor *tensors) {
    return blob_layout(tensors, n, NULL);
}

static int64_t edge_bytes(void) {
    const BlobTensor tensor = {DTYPE_F32, {.n_dims = 2, .dims = {ROWS, WIDTH}}};
    return blob_bytes(1, &tensor);
}

static int64_t norms_bytes(void) { /* of two parameters */
    const BlobTensor tensors[] = {
        {DTYPE_F64, shape_1d(2)}, {DTYPE_F64, shape_1d(1)}, {DTYPE_I64, shape_1d(4)}};
    return blob_bytes(3, tensors);
}

static int64_t reduce_bytes(void) { /* of the second stage: a weight and a bias, in one chunk */
    const BlobTensor tensor = {DTYPE_F32, shape_1d((int64_t)WIDTH * WIDTH + WIDTH)};
    return blob_bytes(1, &tensor);
}

/* The objects by which the workers of a stage said that they had saved. */
static int64_t saved_bytes(const char *out, int stage, int replicas) {
    int64_t bytes = 0;
    Buf text;
    buf_init(&text, 0);
    for (int save = 1; save <= SAVES; save++) {
        Manifest manifest;
        Saved saved = {0};
        cr_assert_eq(manifest_read(e2e_checkpoint(out, save * STEPS / SAVES), &manifest), 0, "%s",
                     err_text());
        for (int kind = 0; kind < 2; kind++) {
            char name[MANIFEST_NAME_BYTES];
            manifest_file_name(kind == 1, stage, STAGES, name);
            for (int32_t i = 0; i < manifest.n_files; i++) {
                if (strcmp(manifest.files[i].name, name) != 0)
                    continue;
                SavedFile *file = &saved.files[saved.n_files++];
                snprintf(file->name, sizeof file->name, "%s", name);
                file->bytes = manifest.files[i].bytes;
                file->xxh3 = manifest.files[i].xxh3;
            }
        }
        cr_assert_eq(saved.n_files, 2);
        for (int replica = 0; replica < replicas; replica++) {
            buf_clear(&text);
            cr_assert_geq(report_format_saved(replica ? &(Saved){0} : &saved, &text), 0);
            bytes += (int64_t)text.bytes;
        }
        manifest_done(&manifest);
    }
    buf_done(&text);
    return bytes;
}

/* The last "traffic" event of a stage; -1: of the coordinator. */
static const cJSON *traffic_of(const char *out, int stage) {
    const cJSON *found = NULL;
    const cJSON *line = NULL;
    cJSON_ArrayForEach(line, e2e_lines(e2e_path("%s/events.jsonl", out))) {
        if (strcmp(e2e_text(line, "event"), "traffic") == 0 && e2e_number(line, "stage") == stage)
            found = line;
    }
    cr_assert(found != NULL, "nothing is said of stage %d", stage);
    return found;
}

static int64_t figure(const cJSON *object, const char *key) {
    return llround(e2e_number(object, key));
}

/* Every request is of one kind, and each kind has as many as its operations take at least. */
static void check_requests(const cJSON *traffic) {
    static const char *const kinds[] = {"read_requests", "write_requests", "add_requests",
                                        "note_requests", "look_requests",  "drop_requests"};
    int64_t sum = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        sum += figure(traffic, kinds[i]);
    cr_expect_eq(figure(traffic, "requests"), sum, "Redis counts no login");
    cr_expect_geq(figure(traffic, "read_requests"), figure(traffic, "gets"));
    /* A put is MULTI, XADD, PEXPIRE, EXEC; an add or note one command, a drop at least one SCAN. */
    cr_expect_geq(figure(traffic, "write_requests"), 4 * figure(traffic, "puts"));
    cr_expect_geq(figure(traffic, "add_requests"), figure(traffic, "adds"));
    cr_expect_geq(figure(traffic, "note_requests"), figure(traffic, "notes"));
    cr_expect_geq(figure(traffic, "drop_requests"), figure(traffic, "drops"));
    cr_expect_eq(figure(traffic, "announce_requests"), 0);
}

/* In the store: the second stage's replicas add what they would put for one another to read. */
static void check_exact(const char *out, bool in_store) {
    static const int replicas[STAGES] = {1, 2, 1};
    int64_t a = edge_bytes();
    int64_t n = norms_bytes();
    int64_t r = reduce_bytes();
    const struct {
        int64_t put_bytes, get_bytes, puts, gets, adds; /* of a step */
    } steps[STAGES] = {{MICROS * a + n, MICROS * a + 2 * n, MICROS + 1, MICROS + 2, 0},
                       {2 * MICROS * a + n + (in_store ? 0 : 2 * r), 2 * MICROS * a + 5 * n + 2 * r,
                        2 * MICROS + 1 + (in_store ? 0 : 2), 2 * MICROS + 5 + 2, in_store ? 2 : 0},
                       {MICROS * a + n, MICROS * a + 2 * n, MICROS + 1, MICROS + 2, 0}};
    for (int stage = 0; stage < STAGES; stage++) {
        const cJSON *traffic = traffic_of(out, stage);
        cr_expect_eq(figure(traffic, "step"), STEPS);
        cr_expect_eq(figure(traffic, "puts"),
                     STEPS * steps[stage].puts + (SAVES + 1) * replicas[stage]);
        cr_expect_eq(figure(traffic, "gets"), STEPS * steps[stage].gets);
        cr_expect_eq(figure(traffic, "put_bytes"),
                     STEPS * steps[stage].put_bytes + saved_bytes(out, stage, replicas[stage]) +
                         MARK_BYTES * replicas[stage],
                     "stage %d put %lld bytes", stage, (long long)figure(traffic, "put_bytes"));
        cr_expect_eq(figure(traffic, "get_bytes"), STEPS * steps[stage].get_bytes,
                     "stage %d got %lld bytes", stage, (long long)figure(traffic, "get_bytes"));
        cr_expect_eq(figure(traffic, "adds"), STEPS * steps[stage].adds);
        cr_expect_eq(figure(traffic, "add_bytes"), STEPS * steps[stage].adds * r);
        cr_expect_eq(figure(traffic, "duplicates"), 0);
        cr_expect_eq(figure(traffic, "drops"), 0);
        cr_expect_gt(figure(traffic, "waits"), 0);
        cr_expect_gt(figure(traffic, "waited_us"), 0);
        check_requests(traffic);
    }
}

/* The coordinator reads all norms and what was saved, and removes what no worker needs any more, at
 * the end all of the generation, and its claim. */
static void check_own(const char *out) {
    const cJSON *traffic = traffic_of(out, -1);
    cr_expect_eq(figure(traffic, "step"), STEPS);
    cr_expect_eq(figure(traffic, "gets"), STEPS * STAGES + SAVES * (STAGES + 1));
    cr_expect_eq(figure(traffic, "get_bytes"), STEPS * STAGES * norms_bytes() +
                                                   saved_bytes(out, 0, 1) + saved_bytes(out, 1, 2) +
                                                   saved_bytes(out, 2, 1));
    cr_expect_geq(figure(traffic, "puts"), 1, "its claim");
    cr_expect_geq(figure(traffic, "drops"), 2);
    cr_expect_leq(figure(traffic, "drops"), e2e_count(out, "dropped") + 2);
    cr_expect_gt(figure(traffic, "notes"), 0);
    check_requests(traffic);
}

/* The sum of all stages, from the events. */
static int64_t sum_of(const char *out, const char *key) {
    int64_t sum = 0;
    for (int stage = 0; stage < STAGES; stage++)
        sum += figure(traffic_of(out, stage), key);
    return sum;
}

static void check_finished(const E2e *run, const char *out) {
    static const char *const keys[] = {"puts",      "gets",      "adds",    "put_bytes",
                                       "get_bytes", "add_bytes", "requests"};
    const cJSON *line = NULL;
    const cJSON *finished = NULL;
    cJSON_ArrayForEach(line, e2e_lines(run->out)) finished = line;
    cr_assert_str_eq(e2e_text(finished, "event"), "finished");
    const cJSON *traffic = cJSON_GetObjectItemCaseSensitive(finished, "traffic");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        cr_expect_eq(figure(traffic, keys[i]), sum_of(out, keys[i]), "%s", keys[i]);
}

/* Rows know what heartbeats have told by then: never less than the row before, never too much. */
static void check_metrics(const char *out) {
    const cJSON *row = NULL;
    int64_t put_bytes = 0;
    cJSON_ArrayForEach(row, e2e_lines(e2e_path("%s/metrics.jsonl", out))) {
        cr_expect_geq(figure(row, "put_bytes"), put_bytes);
        cr_expect_geq(e2e_number(row, "waited_us"), 0);
        put_bytes = figure(row, "put_bytes");
    }
    cr_expect_leq(put_bytes, sum_of(out, "put_bytes"));
}

/* The fetches and publications of a trace have the bytes of their objects. */
static void check_trace(const char *out) {
    int64_t bytes[3] = {0};
    const cJSON *event = NULL;
    cJSON *root = NULL;
    cr_assert_geq(json_parse_file(e2e_path("%s/trace.json", out), 64 << 20, &root), 0, "%s",
                  err_text());
    cJSON_ArrayForEach(event, cJSON_GetObjectItem(root, "traceEvents")) {
        const cJSON *args = cJSON_GetObjectItem(event, "args");
        if (strcmp(e2e_text(event, "ph"), "X") == 0) {
            cr_assert_geq(e2e_number(args, "wait_us"), 0);
            bytes[figure(event, "tid")] += figure(args, "bytes");
        }
    }
    cr_expect_eq(bytes[1], STEPS * 4 * MICROS * edge_bytes(), "fetched: %lld", (long long)bytes[1]);
    cr_expect_eq(bytes[2], STEPS * 4 * MICROS * edge_bytes(), "published: %lld",
                 (long long)bytes[2]);
    cJSON_Delete(root);
}

static void to_the_byte(const char *form, bool in_store) {
    char relay[64];
    snprintf(relay, sizeof relay, "relay=redis://127.0.0.1:%d", server.port);
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), "out",
                        E2E_ARGS(PLAIN, "--set", relay, "--set", form, "--trace", "--json"));
    cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
    check_exact("out", in_store);
    check_own("out");
    check_finished(&run, "out");
    check_metrics("out");
    check_trace("out");
    cr_expect_eq(e2e_count("out", "traffic"), STAGES * (SAVES + 1) + 1);
}

Test(traffic, to_the_byte, .init = enter, .fini = leave) {
    to_the_byte("plan.reduce.form=whole", false);
}

Test(traffic, to_the_byte_with_sums, .init = enter, .fini = leave) {
    to_the_byte("plan.reduce.form=in_store", true);
}

/* What a worker that died had moved counts as far as it had told, and what its successor puts once
 * more is a duplicate. */
Test(traffic, of_one_that_died, .init = e2e_enter, .fini = e2e_leave) {
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), "out",
                        E2E_ARGS("--set", "save.every_steps=100", "--json"));
    cr_assert(e2e_await_rows(&run, "out", 60), "%s", e2e_read(run.err));
    kill(e2e_worker("out", 1, 0), SIGKILL);
    cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
    check_finished(&run, "out");
    cr_expect_geq(figure(traffic_of("out", 1), "duplicates"), 50);
    cr_expect_eq(figure(traffic_of("out", 0), "duplicates"), 0);
    cr_expect_eq(figure(traffic_of("out", 1), "requests"), 0, "files have no server");
}

/* The relay is asked how quick it is where a form of sums is to be chosen, and only there. */
Test(traffic, the_relay_is_measured_for_a_choice_alone, .init = e2e_enter, .fini = e2e_leave) {
    static const struct {
        const char *text, *set;
        bool asked;
    } cases[] = {{e2e_mlp, "plan.reduce.form=auto", true},
                 {e2e_mlp, "plan.reduce.form=whole", false},
                 {e2e_mlp, "plan.replicas=[1,1,1]", false},
                 {e2e_gpt, "plan.reduce.form=auto", true}};
    e2e_wrap_worker("grep -o '\"latency_us\": *[0-9]*' \"$ORDER\" >latency");
    for (int i = 0; i < 4; i++) {
        char out[16];
        long long us = -1;
        snprintf(out, sizeof out, "out%d", i);
        e2e_train_fully(e2e_job("job", cases[i].text), out,
                        E2E_ARGS("--set", "steps=2", "--set", cases[i].set));
        cr_assert_eq(sscanf(e2e_read("latency"), "\"latency_us\":%lld", &us), 1, "%s",
                     e2e_read("latency"));
        cr_expect_eq(us > 0, cases[i].asked, "%d: %lld us", i, us);
    }
}

static long long latency_in(const char *path) {
    long long us = -1;
    const char *at = strstr(e2e_read(path), "\"latency_us\":");
    cr_assert_not_null(at, "%s: %s", path, e2e_read(path));
    cr_assert_eq(sscanf(at, "\"latency_us\":%lld", &us), 1, "%s", at);
    return us;
}

/* What was measured stays: a run from the resolved file, and one that is resumed, choose the same
 * forms, however quick the relay has become. */
Test(traffic, what_a_choice_went_by_is_the_plans, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("job", e2e_mlp);
    e2e_wrap_worker("grep -o '\"latency_us\": *[0-9]*' \"$ORDER\" >latency");
    e2e_train_fully(job, "out", E2E_ARGS("--set", "steps=2", "--set", "plan.reduce.wire=bf16"));
    const long long us = latency_in("latency");
    cr_assert_gt(us, 0);
    cr_expect_eq(latency_in("out/job.json"), us);
    cr_expect_eq(latency_in("out/plan.json"), us);
    e2e_train_fully("out/job.json", "again", NULL);
    cr_expect_eq(latency_in("latency"), us);
    e2e_check_equal("out", "again", 2);
    e2e_train_fully(job, "told",
                    E2E_ARGS("--set", "steps=2", "--set", "plan.reduce.latency_us=765432"));
    cr_expect_eq(latency_in("latency"), 765432, "measured although it was given");
    cr_expect_eq(latency_in("told/job.json"), 765432);
    unlink("latency");
    e2e_train_fully("told/job.json", "told", E2E_ARGS("--set", "steps=4", "--resume", "latest"));
    cr_expect_eq(latency_in("latency"), 765432, "measured by a run that was resumed");
}

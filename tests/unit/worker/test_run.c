/* A worker's whole life in this thread: one stage of a small model over the memory relay. */
#include "worker/run.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/hash.h"
#include "core/text.h"
#include "storage/key.h"
#include "storage/manifest.h"
#include "tests/support/sim.h"
#include "tests/support/temp.h"

typedef struct Rig {
    RelayMemStore *store;
    SimJob job;
    Order order;
    char folder[256];
    int64_t fail_step; /* its first instruction fails; -1: none */
    int64_t pause_ms;  /* in every instruction */
    char said[512];    /* the last line */
    int n_said;
} Rig;

static int open_relay(void *ctx, const Order *order, Relay **out_relay) {
    const Rig *rig = ctx;
    (void)order;
    return relay_mem_open(rig->store, out_relay);
}

static int before(void *ctx, const Instr *instr, int64_t step, bool eval) {
    const Rig *rig = ctx;
    (void)instr, (void)eval;
    if (rig->pause_ms > 0)
        clock_sleep_until(clock_deadline_ms(rig->pause_ms));
    return step == rig->fail_step ? err_set(ERR_KILLED, "killed in step %lld", (long long)step) : 0;
}

static void say(void *ctx, const char *line) {
    Rig *rig = ctx;
    rig->n_said++;
    snprintf(rig->said, sizeof rig->said, "%s", line);
}

/* Evaluates after every so many steps; 0: never. */
static void rig_open(Rig *rig, int64_t eval_every) {
    Program train, eval;
    Buf text;
    memset(rig, 0, sizeof *rig);
    rig->fail_step = -1;
    program_init(&train);
    program_init(&eval);
    buf_init(&text, 0);
    cr_assert_eq(relay_mem_store_open(&rig->store), 0);
    cr_assert_geq(temp_make(rig->folder, sizeof rig->folder, "run"), 0);
    cr_assert_geq(sim_job_init(&rig->job, "mlp"), 0, "%s", err_text());
    if (eval_every > 0)
        sim_job_eval(&rig->job, 8, eval_every);
    cr_assert_geq(sim_programs(&rig->job, 0, 0, &train, &eval), 0, "%s", err_text());
    cr_assert_geq(order_copy(&rig->job.order, &rig->order), 0, "%s", err_text());
    cr_assert_geq(program_format(&train, 0, &text), 0, "%s", err_text());
    rig->order.program = buf_take(&text, NULL);
    if (eval_every > 0) {
        cr_assert_geq(program_format(&eval, 0, &text), 0, "%s", err_text());
        rig->order.eval_program = buf_take(&text, NULL);
    }
    rig->order.attempt = 1;
    rig->order.n_steps = rig->order.end_step = 3;
    cr_assert_geq(text_copy(rig->order.store_path, sizeof rig->order.store_path, rig->folder), 0);
    program_done(&train);
    program_done(&eval);
}

static int rig_run(Rig *rig, WorkerResult *out_result) {
    const WorkerEnv env = {.ctx = rig, .open_relay = open_relay, .before = before, .say = say};
    return worker_run(&rig->order, &env, out_result);
}

static void rig_close(Rig *rig) {
    order_done(&rig->order);
    sim_job_done(&rig->job);
    relay_mem_store_close(rig->store);
    temp_remove(rig->folder);
}

static void read_heartbeat(const Rig *rig, Heartbeat *out_heartbeat) {
    const KeySpace space = {.job = "sim", .generation = rig->order.generation};
    char text[HEARTBEAT_MAX_BYTES];
    size_t bytes = 0;
    Relay *relay = NULL;
    cr_assert_eq(relay_mem_open(rig->store, &relay), 0);
    cr_assert_eq(relay_note_get(relay, key_heartbeat(&space, 0, 0).text, text, sizeof text, &bytes),
                 0, "%s", err_text());
    cr_assert_eq(report_parse_heartbeat(text, bytes, out_heartbeat), 0, "%s", err_text());
    relay_close(relay);
}

/* The last sign of life tells how it ended. */
Test(run, last_heartbeat) {
    static const char *const states[] = {"done", "failed"};
    for (int fails = 0; fails < 2; fails++) {
        Rig rig;
        WorkerResult result;
        Heartbeat heartbeat;
        rig_open(&rig, 0);
        rig.fail_step = fails ? 1 : -1;
        cr_assert_eq(rig_run(&rig, &result), fails ? ERR_KILLED : 0, "%s", err_text());
        read_heartbeat(&rig, &heartbeat);
        cr_expect_str_eq(heartbeat.state, states[fails]);
        cr_expect_eq(heartbeat.step, fails ? 1 : 2, "%lld", (long long)heartbeat.step);
        cr_expect_eq(heartbeat.traffic.puts, result.traffic.puts);
        rig_close(&rig);
    }
}

/* A trace that cannot be written is told, and takes nothing from what was done. */
Test(run, trace_that_cannot_be_written) {
    Rig rig;
    WorkerResult result;
    Heartbeat heartbeat;
    rig_open(&rig, 0);
    snprintf(rig.order.trace_path, sizeof rig.order.trace_path, "%s/nowhere/trace.json",
             rig.folder);
    cr_assert_eq(rig_run(&rig, &result), 0, "%s", err_text());
    cr_expect_eq(result.code, 0);
    cr_expect_eq(result.step, 3);
    cr_expect_eq(rig.n_said, 1);
    cr_expect(strstr(rig.said, "no trace") && strstr(rig.said, "/nowhere/trace.json"), "%s",
              rig.said);
    read_heartbeat(&rig, &heartbeat);
    cr_expect_str_eq(heartbeat.state, "done");
    rig_close(&rig);
}

/* What it did is counted once, however often training and evaluation take turns. */
Test(run, reported_times) {
    Rig rig;
    WorkerResult result;
    Heartbeat heartbeat;
    rig_open(&rig, 1);
    rig.pause_ms = 1;
    const int64_t begin_ns = clock_now_ns();
    cr_assert_eq(rig_run(&rig, &result), 0, "%s", err_text());
    const int64_t wall_us = (clock_now_ns() - begin_ns) / CLOCK_NS_PER_US;
    read_heartbeat(&rig, &heartbeat);
    cr_expect_gt(heartbeat.busy_us, 0);
    cr_expect_leq(heartbeat.busy_us + heartbeat.wait_us, wall_us, "%lld + %lld of %lld us",
                  (long long)heartbeat.busy_us, (long long)heartbeat.wait_us, (long long)wall_us);
    rig_close(&rig);
}

/* ---- checkpoints ---- */

static void add_file(const char *folder, const char *name, Buf *text) {
    char path[512];
    int64_t bytes = 0;
    uint64_t hash = 0;
    char hex[HASH_HEX_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    cr_assert_eq(manifest_hash_file(path, &bytes, &hash), 0, "%s", err_text());
    cr_assert_geq(buf_printf(text, "%s{\"name\":\"%s\",\"bytes\":%lld,\"xxh3\":\"%s\"}",
                             text->data[text->bytes - 1] == '[' ? "" : ",", name, (long long)bytes,
                             hash_format(hash, hex)),
                  0);
}

/* The checkpoint of step 3 with a second file of all parameters. */
static void write_manifest(const Rig *rig, const char *folder) {
    static const char first[] = "model-00001-of-00001.safetensors";
    static const char second[] = "model-00002-of-00002.safetensors";
    char paths[2][512];
    Buf text;
    buf_init(&text, 0);
    snprintf(paths[0], sizeof paths[0], "%s/%s", folder, first);
    snprintf(paths[1], sizeof paths[1], "%s/%s", folder, second);
    cr_assert_eq(link(paths[0], paths[1]), 0);
    buf_text(&text, "{\"version\":1,\"job\":\"sim\",\"step\":3,"
                    "\"model_hash\":\"0000000000000000\",\"update\":\"sgd\",\"files\":[");
    add_file(folder, first, &text);
    add_file(folder, second, &text);
    add_file(folder, "update-00001-of-00001.safetensors", &text);
    buf_printf(&text, "],\"tensors\":%d}", 3 * rig->order.model.n_params);
    snprintf(paths[0], sizeof paths[0], "%s/manifest.json", folder);
    FILE *file = fopen(paths[0], "w");
    cr_assert(file && fwrite(text.data, 1, text.bytes, file) == text.bytes);
    fclose(file);
    buf_done(&text);
}

/* It is said, whatever else is there. */
Test(run, checkpoint_with_a_parameter_twice) {
    Rig rig;
    WorkerResult result;
    rig_open(&rig, 0);
    cr_assert_eq(rig_run(&rig, &result), 0, "%s", err_text());
    snprintf(rig.order.resume_path, sizeof rig.order.resume_path, "%s/3", rig.folder);
    write_manifest(&rig, rig.order.resume_path);
    rig.order.first_step = 3;
    rig.order.n_steps = rig.order.end_step = 4;
    rig.order.attempt = 2;
    cr_assert_eq(rig_run(&rig, &result), ERR_FORMAT, "%s", err_text());
    cr_expect(strstr(result.text, "holds a parameter twice"), "%s", result.text);
    rig_close(&rig);
}

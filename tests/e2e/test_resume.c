/* Going on from any checkpoint under any plan: what follows is what the unbroken run had. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/checkpoint.h"
#include "core/err.h"
#include "storage/safetensors.h"
#include "tests/support/e2e.h"

enum { STEPS = 80 };

/* The unbroken run of a job without replicas, with every checkpoint kept. */
static void train_unbroken(const char *job, const char *out) {
    e2e_train_fully(
        job, out,
        E2E_ARGS("--set", "steps=80", "--set", "plan.replicas=null", "--set", "save.keep_last=0"));
}

typedef struct Variant {
    int64_t from;
    const char *sets[4]; /* NULL-ended */
} Variant;

static void check_variant(const char *job, const Variant *variant, int index) {
    char out[32];
    snprintf(out, sizeof out, "resumed%d", index);
    const char *all[24] = {"--set",    "steps=80",
                           "--set",    "plan.replicas=null",
                           "--resume", e2e_checkpoint("unbroken", variant->from)};
    int n = 6;
    for (int i = 0; i < 4 && variant->sets[i]; i++) {
        all[n++] = "--set";
        all[n++] = variant->sets[i];
    }
    e2e_train_fully(job, out, all);
    e2e_check_equal("unbroken", out, STEPS);
    e2e_check_same_rows("unbroken", out, variant->from, STEPS);
    cr_assert_eq(e2e_rows(out), STEPS - variant->from);
}

static void check_variants(const char *job, const Variant *variants, int n) {
    train_unbroken(job, "unbroken");
    for (int i = 0; i < n; i++)
        check_variant(job, &variants[i], i);
}

#define N_OF(array) (int)(sizeof(array) / sizeof(array)[0])

/* 250 samples in batches of 32 make 8 steps an epoch: most of these stand within one. */
Test(resume, another_plan_mlp, .init = e2e_enter, .fini = e2e_leave) {
    static const Variant variants[] = {
        {10, {NULL}},
        {20, {"plan.cut=null", "plan.stages=1"}},
        {30, {"plan.cut=[1,2,3,4,5]", "plan.stages=null"}},
        {40, {"plan.cut=[3]", "plan.stages=null", "plan.schedule=gpipe"}},
        {50, {"plan.schedule=gpipe", "plan.recompute=true"}},
        {60, {"plan.prefetch=4", "plan.warmup=3"}},
        {70, {"plan.cut=auto", "plan.stages=2"}}};
    check_variants(e2e_job("mlp", e2e_mlp), variants, N_OF(variants));
}

Test(resume, another_plan_cnn, .init = e2e_enter, .fini = e2e_leave) {
    static const Variant variants[] = {{20, {"plan.cut=null", "plan.stages=1"}},
                                       {50, {"plan.cut=[4,11,15]", "plan.stages=null"}}};
    check_variants(e2e_job("cnn", e2e_cnn), variants, N_OF(variants));
}

Test(resume, another_plan_gpt, .init = e2e_enter, .fini = e2e_leave) {
    static const Variant variants[] = {{30, {"plan.cut=null", "plan.stages=1"}},
                                       {50, {"plan.cut=[2,9,16,23]", "plan.stages=null"}}};
    check_variants(e2e_job("gpt", e2e_gpt), variants, N_OF(variants));
}

/* Sums over other replicas are rounded elsewhere: near, not equal, and again equal to themselves.
 */
Test(resume, other_replicas, .init = e2e_enter, .fini = e2e_leave) {
    static const char *const replicas[] = {"plan.replicas=[1,2,1]", "plan.replicas=[2,1,2]",
                                           "plan.replicas=[3,4,2]"};
    const char *job = e2e_job("mlp", e2e_mlp);
    CheckpointDiff diff;
    char out[2][32];
    train_unbroken(job, "unbroken");
    for (int i = 0; i < N_OF(replicas); i++) {
        for (int again = 0; again < 2; again++) {
            snprintf(out[again], sizeof out[0], "resumed%d.%d", i, again);
            e2e_train_fully(job, out[again],
                            E2E_ARGS("--set", "steps=80", "--resume",
                                     e2e_checkpoint("unbroken", 70), "--set", replicas[i]));
        }
        e2e_check_equal(out[0], out[1], STEPS);
        e2e_check_same_rows(out[0], out[1], 70, STEPS);
        cr_assert_eq(checkpoint_diff(e2e_checkpoint("unbroken", STEPS),
                                     e2e_checkpoint(out[0], STEPS), &diff),
                     0, "%s", err_text());
        for (int64_t row = 0; row < diff.n_rows; row++)
            cr_assert_leq(diff.rows[row].l2_rel, 1e-5, "%s: %g", diff.rows[row].name,
                          diff.rows[row].l2_rel);
        checkpoint_diff_done(&diff);
    }
}

/* In the same folder: rows stand once each, and the rate's curve has no kink. */
Test(resume, in_place, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "unbroken", E2E_ARGS("--set", "steps=80"));
    for (int i = 0; i < 4; i++) {
        int saves = e2e_count("resumed", "saved");
        E2e run = e2e_train(job, "resumed",
                            E2E_ARGS("--set", "steps=80", i == 0 ? "--overwrite" : "--resume",
                                     i == 0 ? NULL : "latest"));
        cr_assert(e2e_await_event(&run, "resumed", "saved", saves + 2), "%s", e2e_read(run.err));
        kill(run.pid, SIGKILL);
        e2e_wait(&run);
        while (e2e_processes_of(run.pid) > 0)
            e2e_sleep_ms(5);
    }
    e2e_train_fully(job, "resumed", E2E_ARGS("--set", "steps=80", "--resume", "latest"));
    e2e_check_rows("resumed", STEPS);
    e2e_check_same_rows("unbroken", "resumed", 0, STEPS);
    e2e_check_equal("unbroken", "resumed", STEPS);
}

/* At the end nothing is left to do: in the job's folder it is done, elsewhere it would leave
 * nothing. */
Test(resume, done_elsewhere, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "ended", E2E_ARGS("--set", "steps=20"));
    e2e_train_fully(job, "ended", E2E_ARGS("--set", "steps=20", "--resume", "latest"));
    e2e_train_fully(job, "ended",
                    E2E_ARGS("--set", "steps=20", "--resume", e2e_checkpoint("ended", 20)));
    E2e run = e2e_train(job, "new",
                        E2E_ARGS("--set", "steps=20", "--resume", e2e_checkpoint("ended", 20)));
    cr_assert_eq(e2e_wait(&run), 2, "%s", e2e_read(run.err));
    cr_assert(strstr(e2e_read(run.err), "nothing is left to do"), "%s", e2e_read(run.err));
    cr_assert_lt(access("new", F_OK), 0, "nothing was made");
    e2e_train_fully(job, "new",
                    E2E_ARGS("--set", "steps=30", "--resume", e2e_checkpoint("ended", 20)));
}

/* More steps than at first: without a schedule of the rate the same as all at once. */
Test(resume, longer, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "long", E2E_ARGS("--set", "steps=80", "--set", "update.schedule=null"));
    e2e_train_fully(job, "short", E2E_ARGS("--set", "steps=43", "--set", "update.schedule=null"));
    e2e_train_fully(
        job, "short",
        E2E_ARGS("--set", "steps=80", "--set", "update.schedule=null", "--resume", "latest"));
    e2e_check_equal("long", "short", STEPS);
    e2e_check_rows("short", STEPS);
}

/* ---- what is refused ---- */

/* The exit code is 2, the text says why, and the outputs are as they were. */
static void expect_refusal(const char *job, const char *const *more, const char *words) {
    const char *before = e2e_read("unbroken/metrics.csv");
    E2e run = e2e_train(job, "unbroken", more);
    int status = e2e_wait(&run);
    cr_assert_eq(status, 2, "%d: %s", status, e2e_read(run.err));
    cr_assert(strstr(e2e_read(run.err), words), "expected '%s' in: %s", words, e2e_read(run.err));
    cr_assert_str_eq(e2e_read("unbroken/metrics.csv"), before);
    e2e_check_clean(&run);
}

Test(resume, refusals, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    train_unbroken(job, "unbroken");
    expect_refusal(job,
                   E2E_ARGS("--set", "update={\"kind\":\"adamw\",\"lr\":0.001}", "--set",
                            "steps=100", "--resume", "latest"),
                   "adamw");
    expect_refusal(job, E2E_ARGS("--set", "steps=50", "--resume", "latest"), "stands at step 80");
    expect_refusal(job, E2E_ARGS("--resume", e2e_checkpoint("unbroken", 40)),
                   "has checkpoints up to step 80, newer than step 40");
    expect_refusal(job, E2E_ARGS("--set", "model.options.hidden=[32,32,4]", "--resume", "latest"),
                   "fc4.");
    expect_refusal(job, E2E_ARGS("--set", "model.options.hidden=[32,16]", "--resume", "latest"),
                   "fc2.bias");
    expect_refusal(job, E2E_ARGS("--resume", "unbroken/checkpoints/none"), "none");
    expect_refusal(job, E2E_ARGS("--resume", "latest", "--overwrite"), "give one of them");
    expect_refusal(job, E2E_ARGS("--set", "steps=80"), "is not empty");
}

/* A folder with files of one's own under the names that outputs have. */
Test(resume, a_project_is_no_outputs, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("job", e2e_mlp);
    cr_assert(mkdir("checkpoints", 0777) == 0 && mkdir("logs", 0777) == 0);
    e2e_write("checkpoints/resnet50.pt", "precious");
    e2e_write("logs/notes.txt", "precious");
    e2e_train_fully(job, "other", E2E_ARGS("--set", "steps=20"));
    static const char *const more[][3] = {
        {NULL}, {"--overwrite"}, {"--resume", "other"}, {"--resume", "latest"}};
    for (int i = 0; i < 4; i++) {
        E2e run = e2e_train(job, ".", more[i]);
        cr_assert_eq(e2e_wait(&run), 2, "%s", e2e_read(run.err));
        cr_assert_str_eq(e2e_read(job), e2e_mlp);
        cr_assert_str_eq(e2e_read("checkpoints/resnet50.pt"), "precious");
        cr_assert_str_eq(e2e_read("logs/notes.txt"), "precious");
    }
    /* The resolved job file of a run may say how that run goes on, but not be overwritten. */
    e2e_train_fully("other/job.json", "other", E2E_ARGS("--resume", "latest", "--set", "steps=30"));
    E2e run = e2e_train("other/job.json", "other", E2E_ARGS("--overwrite"));
    cr_assert_eq(e2e_wait(&run), 2);
    cr_assert(strstr(e2e_read(run.err), "other/job.json' lies where"), "%s", e2e_read(run.err));
}

/* Its tensors fit, so it is taken; that it is another model is told, on stderr and in the events.
 */
Test(resume, another_model_that_fits, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("cnn", e2e_cnn);
    E2e run;
    e2e_train_fully(job, "out", E2E_ARGS("--set", "steps=10"));
    run = e2e_train(job, "out", E2E_ARGS("--set", "steps=20", "--resume", "latest"));
    cr_assert_eq(e2e_wait(&run), 0);
    cr_assert_null(strstr(e2e_read(run.err), "another model"), "%s", e2e_read(run.err));
    cr_assert_eq(e2e_count("out", "warning"), 0);
    run = e2e_train(
        job, "out",
        E2E_ARGS("--set", "steps=30", "--resume", "latest", "--set", "model.options.dropout=0.2"));
    cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
    cr_assert(strstr(e2e_read(run.err), "20' was made with another model"), "%s",
              e2e_read(run.err));
    cr_assert_eq(e2e_count("out", "warning"), 1);
    int status = e2e_run(&run, E2E_ARGS("eval", "out", "--json", "--job", job, "--set",
                                        "model.options.dropout=0.3"));
    cr_assert_eq(status, 0);
    cr_assert(strstr(e2e_read(run.err), "30' was made with another model"), "%s",
              e2e_read(run.err));
    cr_assert_eq(e2e_run(&run, E2E_ARGS("eval", "out")), 0);
    cr_assert_null(strstr(e2e_read(run.err), "another model"), "%s", e2e_read(run.err));
}

/* Momentum cannot begin anew behind steps that had none; the other way round it is left out. */
Test(resume, momentum_of_none, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "unbroken", E2E_ARGS("--set", "steps=20", "--set", "update.momentum=0"));
    expect_refusal(job, E2E_ARGS("--set", "steps=40", "--resume", "latest"),
                   "sgd without momentum");
    e2e_train_fully(job, "with", E2E_ARGS("--set", "steps=20"));
    e2e_train_fully(
        job, "with",
        E2E_ARGS("--set", "steps=40", "--set", "update.momentum=0", "--resume", "latest"));
}

/* Another run's checkpoint goes on in a folder of its own, or in place of what is there. */
Test(resume, from_another_run, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    train_unbroken(job, "other");
    train_unbroken(job, "unbroken");
    expect_refusal(job, E2E_ARGS("--resume", e2e_checkpoint("other", 80)),
                   "holds the outputs of another run");
    expect_refusal(
        job,
        E2E_ARGS("--resume", e2e_checkpoint("unbroken", 60), "--set", "steps=80", "--overwrite"),
        "would remove checkpoint");
    e2e_train_fully(job, "unbroken",
                    E2E_ARGS("--set", "steps=80", "--set", "plan.replicas=null", "--resume",
                             e2e_checkpoint("other", 60), "--overwrite"));
    cr_assert_eq(e2e_rows("unbroken"), 20);
    e2e_check_equal("other", "unbroken", 80);
}

/* A folder that a run writes into is nobody else's, whatever is asked for; the next one needs not
 * wait for a killed one. */
Test(resume, one_run_at_a_time, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    static const char *const more[][5] = {{NULL}, {"--overwrite"}, {"--resume", "latest"}};
    char words[80];
    E2e first = e2e_train(job, "out", E2E_ARGS("--set", "steps=100000"));
    cr_assert(e2e_await_event(&first, "out", "saved", 1), "%s", e2e_read(first.err));
    snprintf(words, sizeof words, "another run (process %d) is writing its outputs into 'out'",
             (int)first.pid);
    for (int i = 0; i < N_OF(more); i++) {
        E2e second = e2e_train(job, "out", more[i]);
        int status = e2e_wait(&second);
        cr_assert_eq(status, 2, "%d: %s", status, e2e_read(second.err));
        cr_assert(strstr(e2e_read(second.err), words), "%s", e2e_read(second.err));
        e2e_check_clean(&second);
    }
    int64_t rows = e2e_rows("out");
    cr_assert(e2e_await_rows(&first, "out", rows + 10), "it goes on");
    kill(first.pid, SIGKILL);
    e2e_wait(&first);
    e2e_train_fully(job, "out", E2E_ARGS("--set", "steps=200", "--overwrite"));
    cr_assert_eq(access("out/.funcpipe-lock", F_OK), -1);
    e2e_check_rows("out", 200);
}

/* The model has lost a layer: the checkpoint's tensors of it are too many. */
Test(resume, surplus_tensors_are_named, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    const char *all[] = {
        "--set", "steps=80", "--set", "plan=null", "--set", "model.options.hidden=[32,4]", NULL};
    e2e_train_fully(job, "unbroken", all);
    expect_refusal(job,
                   E2E_ARGS("--set", "steps=90", "--set", "plan=null", "--set",
                            "model.options.hidden=[32]", "--resume", "latest"),
                   "fc3.");
}

/* At its end there is nothing to do. */
Test(resume, at_the_end, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    train_unbroken(job, "unbroken");
    train_unbroken(job, "resumed");
    e2e_train_fully(job, "resumed", E2E_ARGS("--set", "steps=80", "--resume", "latest"));
    e2e_check_rows("resumed", STEPS);
    e2e_check_equal("unbroken", "resumed", STEPS);
}

/* Copy a stage's parameters, one tensor under another name. */
static void rename_tensor(const char *path, const char *from, const char *to) {
    Safetensors *file = NULL;
    SafetensorsTensor tensors[16];
    cr_assert_eq(safetensors_open(path, &file), 0, "%s", err_text());
    const SafetensorsMeta metadata[] = {{"format", "pt"},
                                        {"step", safetensors_metadata(file, "step")},
                                        {"updates", safetensors_metadata(file, "updates")},
                                        {"skipped", safetensors_metadata(file, "skipped")}};
    int n = safetensors_count(file);
    cr_assert(n > 0 && n <= 16);
    for (int i = 0; i < n; i++) {
        const SafetensorsEntry *entry = safetensors_at(file, i);
        size_t bytes = (size_t)shape_elements(&entry->shape) * sizeof(float);
        void *data = malloc(bytes);
        cr_assert_eq(safetensors_read(file, entry, data, bytes), 0, "%s", err_text());
        tensors[i] = (SafetensorsTensor){strcmp(entry->name, from) == 0 ? to : entry->name,
                                         entry->dtype, entry->shape, data};
    }
    cr_assert_eq(safetensors_write(path, tensors, n, metadata, 4, NULL), 0, "%s", err_text());
    for (int i = 0; i < n; i++)
        free((void *)tensors[i].data);
    safetensors_close(file);
}

/* Names of equal length, so that the sizes in the manifest stay right. */
Test(resume, wrong_tensors_are_named, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    train_unbroken(job, "unbroken");
    const char *path = e2e_path("unbroken/checkpoints/80/model-00002-of-00003.safetensors");
    rename_tensor(path, "fc2.weight", "fcX.weight");
    expect_refusal(job, E2E_ARGS("--set", "steps=100", "--resume", e2e_checkpoint("unbroken", 80)),
                   "tensor 'fcX.weight'");
    rename_tensor(path, "fcX.weight", "fc2.weight");
    path = e2e_path("unbroken/checkpoints/80/update-00002-of-00003.safetensors");
    rename_tensor(path, "fc2.bias.momentum", "fc2.bias.momentuX");
    expect_refusal(job, E2E_ARGS("--set", "steps=100", "--resume", e2e_checkpoint("unbroken", 80)),
                   "fc2.bias.moment");
}

/* A newer one that is damaged is passed over. */
Test(resume, damaged_newest, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    train_unbroken(job, "unbroken");
    train_unbroken(job, "resumed");
    cr_assert_eq(truncate("resumed/checkpoints/80/model-00001-of-00003.safetensors", 100), 0);
    cr_assert_eq(remove("resumed/checkpoints/70/manifest.json"), 0);
    e2e_train_fully(job, "resumed",
                    E2E_ARGS("--set", "steps=80", "--set", "plan.replicas=null", "--set",
                             "save.keep_last=0", "--resume", "latest"));
    const cJSON *started = e2e_event("resumed", "worker_started", -1, -1, 0);
    cr_assert_eq(e2e_number(started, "first_step"), 60);
    e2e_check_rows("resumed", STEPS);
    e2e_check_equal("unbroken", "resumed", STEPS);
    e2e_check_equal("unbroken", "resumed", 70);
}

/* One bit of a file of equal size: the last one of its last tensor. */
static void flip(const char *path) {
    FILE *file = fopen(path, "r+");
    cr_assert_not_null(file, "%s", path);
    cr_assert_eq(fseek(file, -1, SEEK_END), 0);
    int last = fgetc(file);
    cr_assert_eq(fseek(file, -1, SEEK_END), 0);
    cr_assert_geq(fputc(last ^ 1, file), 0);
    cr_assert_eq(fclose(file), 0);
}

/* Only the hash tells: the latest falls back and says so, and what is damaged goes aside. */
Test(resume, damaged_bytes, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    train_unbroken(job, "unbroken");
    train_unbroken(job, "resumed");
    flip("resumed/checkpoints/80/update-00002-of-00003.safetensors");
    flip("resumed/checkpoints/70/model-00003-of-00003.safetensors");
    E2e run;
    int status = e2e_run(&run, E2E_ARGS("eval", "resumed/checkpoints/70"));
    cr_assert_eq(status, 1, "%d: %s", status, e2e_read(run.err));
    cr_assert(strstr(e2e_read(run.err), "model-00003-of-00003.safetensors' has XXH3"), "%s",
              e2e_read(run.err));
    status = e2e_run(&run, E2E_ARGS("eval", "resumed"));
    cr_assert_eq(status, 0, "%d: %s", status, e2e_read(run.err));
    cr_assert(strstr(e2e_read(run.err), "70': 'model-00003"), "%s", e2e_read(run.err));
    cr_assert(strstr(e2e_read(run.out), "after 60 steps"), "%s", e2e_read(run.out));
    run = e2e_train(job, "resumed",
                    E2E_ARGS("--set", "steps=80", "--set", "plan.replicas=null", "--set",
                             "save.keep_last=0", "--resume", "latest"));
    status = e2e_wait(&run);
    cr_assert_eq(status, 0, "%d: %s", status, e2e_read(run.err));
    cr_assert(strstr(e2e_read(run.err), "looking for an older one"), "%s", e2e_read(run.err));
    e2e_check_clean(&run);
    cr_assert_eq(access("resumed/checkpoints/80.damaged-1/manifest.json", F_OK), 0);
    cr_assert_eq(access("resumed/checkpoints/70.damaged-1/manifest.json", F_OK), 0);
    cr_assert_eq(e2e_number(e2e_event("resumed", "worker_started", -1, -1, 0), "first_step"), 60);
    e2e_check_rows("resumed", STEPS);
    e2e_check_equal("unbroken", "resumed", STEPS);
}

/* Checkpoints on disk: commit and what it refuses, finding, cleaning, and differences. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "coordinator/checkpoint.h"
#include "core/err.h"
#include "core/hash.h"
#include "core/process.h"
#include "tests/support/temp_folder.h"

/* fc1 (5,4), bn (5) with statistics, fc2 (3,5): 8 parameters, 6 of them weights. */
static Model make_model(void) {
    Model model;
    Shape input = shape_1d(4);
    Shape target = {0};
    LayerAttr linear = model_attr_default(LAYER_LINEAR);
    LayerAttr norm = model_attr_default(LAYER_BATCHNORM);
    LayerAttr loss = model_attr_default(LAYER_CROSS_ENTROPY);
    cr_assert_eq(model_init(&model, "m", DTYPE_F32, &input, DTYPE_I32, &target), 0);
    int32_t at = MODEL_VALUE_INPUT;
    linear.features = 5;
    cr_assert_geq(at = model_add(&model, LAYER_LINEAR, "fc1", &at, 1, &linear, NULL), 0);
    cr_assert_geq(at = model_add(&model, LAYER_BATCHNORM, "bn", &at, 1, &norm, NULL), 0);
    linear.features = 3;
    cr_assert_geq(at = model_add(&model, LAYER_LINEAR, "fc2", &at, 1, &linear, NULL), 0);
    int32_t both[] = {at, MODEL_VALUE_TARGET};
    cr_assert_geq(model_add(&model, LAYER_CROSS_ENTROPY, "loss", both, 2, &loss, NULL), 0);
    cr_assert_eq(model_check(&model), 0, "%s", err_text());
    cr_assert_eq(model.n_params, 8);
    return model;
}

/* What the workers of a run leave in a checkpoint, and what went wrong. */
typedef struct Run {
    int n_stages;
    UpdateKind update;
    bool no_momentum;
    int64_t step;
    float change;         /* added to bn.weight[2] */
    const char *missing;  /* this tensor is left out */
    const char *twice;    /* this one is in the last stage's file, too */
    const char *surplus;  /* one of this name is added to the last file of its kind */
    const char *reshaped; /* this one has a shape of its own */
    const char *retyped;  /* and this one is I32 */
} Run;

typedef struct StageFile {
    SafetensorsTensor tensors[32];
    char names[32][SAFETENSORS_NAME_BYTES];
    int n;
} StageFile;

static float values[64];

static bool is(const char *name, const char *wanted) {
    return wanted && strcmp(name, wanted) == 0;
}

static void add(StageFile *file, const Run *run, const char *name, const char *suffix,
                const Shape *shape) {
    char *full = file->names[file->n];
    snprintf(full, SAFETENSORS_NAME_BYTES, "%s%s", name, suffix);
    if (is(full, run->missing))
        return;
    float *data = malloc(sizeof values);
    for (int i = 0; i < 64; i++)
        data[i] = (float)(hash_text(full) % 1000 + (uint64_t)i) / 16.0F;
    if (is(full, "bn.weight"))
        data[2] += run->change;
    SafetensorsTensor tensor = {full, DTYPE_F32, *shape, data};
    if (is(full, run->reshaped))
        tensor.shape = shape_1d(7);
    if (is(full, run->retyped))
        tensor.dtype = DTYPE_I32;
    file->tensors[file->n++] = tensor;
}

static void write_stage(const char *directory, const Run *run, const Model *model, int stage,
                        bool update) {
    StageFile *file = calloc(1, sizeof *file);
    bool last = stage == run->n_stages - 1;
    for (int32_t i = 0; i < model->n_params; i++) {
        const Param *param = &model->params[i];
        bool here =
            i * run->n_stages / model->n_params == stage || (last && is(param->name, run->twice));
        if (!here || (update && param->role != PARAM_WEIGHT))
            continue;
        if (!update) {
            add(file, run, param->name, "", &param->shape);
        } else if (run->update == UPDATE_ADAMW) {
            add(file, run, param->name, ".exp_avg", &param->shape);
            add(file, run, param->name, ".exp_avg_sq", &param->shape);
        } else if (!run->no_momentum) {
            add(file, run, param->name, ".momentum", &param->shape);
        }
    }
    Shape shape = shape_1d(2);
    if (last && run->surplus && update == (strstr(run->surplus, ".moment") != NULL))
        add(file, run, run->surplus, "", &shape);
    char path[512];
    char step[24];
    snprintf(path, sizeof path, "%s/%s-%05d-of-%05d.safetensors", directory,
             update ? "update" : "model", stage + 1, run->n_stages);
    snprintf(step, sizeof step, "%lld", (long long)run->step);
    SafetensorsMeta meta = {"step", step};
    cr_assert_eq(safetensors_write(path, file->tensors, file->n, &meta, 1, NULL), 0, "%s",
                 err_text());
    for (int i = 0; i < file->n; i++)
        free((void *)file->tensors[i].data);
    free(file);
}

/* Write the workers' part of checkpoint `run->step` into the test's folder; returns its path. */
static const char *write_run(const Run *run, const Model *model) {
    char name[32];
    snprintf(name, sizeof name, "%lld", (long long)run->step);
    const char *directory = temp_path(name);
    mkdir(directory, 0755);
    for (int stage = 0; stage < run->n_stages; stage++) {
        write_stage(directory, run, model, stage, false);
        write_stage(directory, run, model, stage, true);
    }
    return directory;
}

static int commit(const Run *run, const Model *model) {
    return checkpoint_commit(write_run(run, model), "job", run->step, model, run->update,
                             run->n_stages, NULL, false);
}

static bool exists(const char *directory, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return access(path, F_OK) == 0;
}

/* ---- commit ---- */

Test(checkpoint, commit_then_check_under_every_cut, .init = temp_enter, .fini = temp_leave) {
    Model model = make_model();
    for (int n_stages = 1; n_stages <= 9; n_stages++) { /* with 9, one stage owns nothing */
        for (int kind = 0; kind < 3; kind++) {
            Run run = {.n_stages = n_stages,
                       .update = kind == 1 ? UPDATE_ADAMW : UPDATE_SGD,
                       .no_momentum = kind == 2,
                       .step = n_stages * 10 + kind};
            const char *directory = write_run(&run, &model);
            cr_assert_eq(checkpoint_check(directory, &model, CHECKPOINT_ANY_UPDATE), ERR_NOT_FOUND);
            cr_assert_eq(checkpoint_commit(directory, "a-job", run.step, &model, run.update,
                                           n_stages, NULL, false),
                         0, "%s", err_text());
            cr_assert_eq(checkpoint_check(directory, &model, (int)run.update), 0, "%s", err_text());
            cr_assert_eq(checkpoint_check(directory, &model, CHECKPOINT_ANY_UPDATE), 0);
            cr_assert_eq(checkpoint_verify(directory), 0, "%s", err_text());
            Manifest manifest;
            cr_assert_eq(manifest_read(directory, &manifest), 0, "%s", err_text());
            cr_assert_str_eq(manifest.job, "a-job");
            cr_assert_eq(manifest.step, run.step);
            cr_assert_eq(manifest.update, run.update);
            cr_assert_eq(manifest.n_files, n_stages * 2);
            cr_assert_eq(manifest.n_tensors, kind == 0 ? 14 : kind == 1 ? 20 : 8);
            cr_assert_eq(manifest.model_hash, model_hash(&model));
            manifest_done(&manifest);
        }
    }
    manifest_done(NULL);
    model_done(&model);
}

Test(checkpoint, index_is_hugging_faces, .init = temp_enter, .fini = temp_leave) {
    Model model = make_model();
    Run run = {.n_stages = 3, .step = 5};
    cr_assert_eq(commit(&run, &model), 0, "%s", err_text());
    cJSON *root = NULL;
    cr_assert_eq(json_parse_file(temp_path("5/model.safetensors.index.json"), 1 << 20, &root), 0,
                 "%s", err_text());
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(root, "metadata");
    const cJSON *total = cJSON_GetObjectItemCaseSensitive(metadata, "total_size");
    cr_assert_eq(total->valuedouble, (5 * 4 + 5 + 4 * 5 + 3 * 5 + 3) * 4);
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(root, "weight_map");
    cr_assert_eq(cJSON_GetArraySize(map), 8);
    cr_assert_str_eq(cJSON_GetObjectItemCaseSensitive(map, "fc1.weight")->valuestring,
                     "model-00001-of-00003.safetensors");
    cr_assert_str_eq(cJSON_GetObjectItemCaseSensitive(map, "fc2.bias")->valuestring,
                     "model-00003-of-00003.safetensors");
    cJSON_Delete(root);
    model_done(&model);
}

static void expect_refused(Run run, int code, const char *words) {
    Model model = make_model();
    run.step = 7;
    cr_expect_eq(commit(&run, &model), code, "%s: %s", words, err_text());
    cr_expect(strstr(err_text(), words) && strstr(err_text(), temp_path("7")),
              "'%s' is not in '%s'", words, err_text());
    cr_expect_not(exists(temp_path("7"), "manifest.json"));
    cr_expect_not(exists(temp_path("7"), "model.safetensors.index.json"));
    model_done(&model);
}

Test(checkpoint, commit_names_the_wrong_tensor, .init = temp_enter, .fini = temp_leave) {
    expect_refused((Run){.n_stages = 2, .missing = "bn.running_var"}, ERR_FORMAT,
                   "'bn.running_var' is missing");
    expect_refused((Run){.n_stages = 2, .missing = "fc2.bias.momentum"}, ERR_FORMAT,
                   "'fc2.bias.momentum' is missing");
    expect_refused((Run){.n_stages = 2, .update = UPDATE_ADAMW, .missing = "bn.bias.exp_avg_sq"},
                   ERR_FORMAT, "'bn.bias.exp_avg_sq' is missing");
    expect_refused((Run){.n_stages = 2, .surplus = "fc3.weight"}, ERR_FORMAT,
                   "'fc3.weight' in 'model-00002-of-00002.safetensors' is no parameter");
    expect_refused((Run){.n_stages = 2, .surplus = "bn.running_mean.momentum"}, ERR_FORMAT,
                   "'bn.running_mean.momentum' in 'update-00002-of-00002.safetensors' is no update "
                   "state");
    expect_refused((Run){.n_stages = 2, .twice = "fc1.bias"}, ERR_FORMAT,
                   "'fc1.bias' is in 'model-00001-of-00002.safetensors' and again in "
                   "'model-00002-of-00002.safetensors'");
    expect_refused((Run){.n_stages = 2, .reshaped = "fc1.bias"}, ERR_FORMAT,
                   "is F32 (7), the model has F32 (5)");
    expect_refused((Run){.n_stages = 2, .reshaped = "fc1.bias.momentum"}, ERR_FORMAT,
                   "'fc1.bias.momentum'");
    expect_refused((Run){.n_stages = 2, .retyped = "fc1.bias"}, ERR_FORMAT, "is I32 (5)");
}

Test(checkpoint, commit_refuses_other_states_steps_and_stages, .init = temp_enter,
     .fini = temp_leave) {
    Model model = make_model();
    Run run = {.n_stages = 2, .step = 3};
    const char *directory = write_run(&run, &model);
    cr_assert_eq(checkpoint_commit(directory, "job", 3, &model, UPDATE_ADAMW, 2, NULL, false),
                 ERR_FORMAT);
    cr_assert(strstr(err_text(), ".momentum' in 'update-00001"), "%s", err_text());
    cr_assert_eq(checkpoint_commit(directory, "job", 4, &model, UPDATE_SGD, 2, NULL, false),
                 ERR_FORMAT);
    cr_assert(strstr(err_text(), "holds step 3, not 4"), "%s", err_text());
    cr_assert_eq(checkpoint_commit(directory, "job", 3, &model, UPDATE_SGD, 3, NULL, false),
                 ERR_NOT_FOUND);
    cr_assert(strstr(err_text(), "model-00001-of-00003.safetensors"), "%s", err_text());
    cr_assert_eq(checkpoint_commit(directory, "job", 3, &model, UPDATE_SGD, 0, NULL, false),
                 ERR_ARGUMENT);
    char path[512];
    snprintf(path, sizeof path, "%s/update-00002-of-00002.safetensors", directory);
    cr_assert_eq(truncate(path, 200), 0);
    cr_assert_eq(checkpoint_commit(directory, "job", 3, &model, UPDATE_SGD, 2, NULL, false),
                 ERR_FORMAT);
    cr_assert(strstr(err_text(), path), "%s", err_text());
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(checkpoint_commit(directory, "job", 3, &model, UPDATE_SGD, 2, NULL, false),
                 ERR_NOT_FOUND);
    cr_assert_not(exists(directory, "manifest.json"));
    model_done(&model);
}

/* What a worker wrote must be what lies there when the manifest vouches for it. */
Test(checkpoint, commit_refuses_what_no_worker_wrote, .init = temp_enter, .fini = temp_leave) {
    Model model = make_model();
    Run run = {.n_stages = 2, .step = 3};
    const char *directory = write_run(&run, &model);
    cr_assert_eq(checkpoint_commit(directory, "job", 3, &model, UPDATE_SGD, 2, NULL, false), 0);
    Manifest manifest;
    cr_assert_eq(manifest_read(directory, &manifest), 0);
    Saved said[2] = {0};
    for (int i = 0; i < 4; i++) {
        SavedFile *file = &said[i % 2].files[said[i % 2].n_files++];
        snprintf(file->name, sizeof file->name, "%.60s", manifest.files[i].name);
        file->bytes = manifest.files[i].bytes;
        file->xxh3 = manifest.files[i].xxh3;
    }
    manifest_done(&manifest);
    cr_assert_eq(checkpoint_commit(directory, "job", 3, &model, UPDATE_SGD, 2, said, false), 0,
                 "%s", err_text());
    char path[512];
    snprintf(path, sizeof path, "%s/manifest.json", directory);
    cr_assert_eq(unlink(path), 0);
    said[1].files[0].xxh3 ^= 1;
    cr_assert_eq(checkpoint_commit(directory, "job", 3, &model, UPDATE_SGD, 2, said, false),
                 ERR_CORRUPT);
    cr_assert(strstr(err_text(), "'model-00002-of-00002.safetensors' has "), "%s", err_text());
    said[1].files[0].xxh3 ^= 1;
    said[0].n_files = 1;
    cr_assert_eq(checkpoint_commit(directory, "job", 3, &model, UPDATE_SGD, 2, said, false),
                 ERR_CORRUPT);
    cr_assert(strstr(err_text(), "does not say that it wrote 'update-00001-of-00002"), "%s",
              err_text());
    cr_assert_not(exists(directory, "manifest.json"));
    model_done(&model);
}

Test(checkpoint, a_full_disk_leaves_it_partial, .init = temp_enter, .fini = temp_leave) {
    Model model = make_model();
    Run run = {.n_stages = 2, .step = 3};
    const char *directory = write_run(&run, &model);
    struct rlimit before;
    process_begin();
    getrlimit(RLIMIT_FSIZE, &before);
    struct rlimit limit = {.rlim_cur = 100, .rlim_max = before.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int rc = checkpoint_commit(directory, "job", 3, &model, UPDATE_SGD, 2, NULL, false);
    setrlimit(RLIMIT_FSIZE, &before);
    cr_assert_eq(rc, ERR_FULL, "%s", err_text());
    cr_assert(strstr(err_text(), directory), "%s", err_text());
    cr_assert_not(exists(directory, "manifest.json"));
    cr_assert_eq(temp_count(directory, ".tmp-"), 0);
    cr_assert_eq(checkpoint_commit(directory, "job", 3, &model, UPDATE_SGD, 2, NULL, false), 0);
    model_done(&model);
}

/* ---- check ---- */

Test(checkpoint, check_names_what_does_not_fit, .init = temp_enter, .fini = temp_leave) {
    Model model = make_model();
    Run run = {.n_stages = 2, .step = 3};
    cr_assert_eq(commit(&run, &model), 0, "%s", err_text());
    const char *directory = temp_path("3");
    cr_assert_eq(checkpoint_check(directory, &model, UPDATE_ADAMW), ERR_ARGUMENT);
    cr_assert(strstr(err_text(), "was made with sgd, the job uses adamw"), "%s", err_text());
    cr_assert_eq(checkpoint_check(temp_folder, &model, UPDATE_SGD), ERR_NOT_FOUND);
    /* A model of other parameters. */
    Shape shape = model.params[0].shape;
    model.params[0].shape = shape_2d(5, 5);
    cr_assert_eq(checkpoint_check(directory, &model, UPDATE_SGD), ERR_FORMAT);
    cr_assert(strstr(err_text(), "'fc1.weight'") && strstr(err_text(), "the model has F32 (5, 5)"),
              "%s", err_text());
    model.params[0].shape = shape;
    snprintf(model.params[0].name, MODEL_NAME_BYTES, "fc9.weight");
    cr_assert_eq(checkpoint_check(directory, &model, UPDATE_SGD), ERR_FORMAT);
    cr_assert(strstr(err_text(), "'fc1.weight'") && strstr(err_text(), "no parameter"), "%s",
              err_text());
    snprintf(model.params[0].name, MODEL_NAME_BYTES, "fc1.weight");
    model.n_params--;
    cr_assert_eq(checkpoint_check(directory, &model, UPDATE_SGD), ERR_FORMAT);
    cr_assert(strstr(err_text(), "'fc2.bias'"), "%s", err_text());
    model.n_params++;
    model_done(&model);
}

Test(checkpoint, momentum_that_was_never_saved, .init = temp_enter, .fini = temp_leave) {
    Model model = make_model();
    cr_assert_eq(commit(&(Run){.n_stages = 2, .step = 3, .no_momentum = true}, &model), 0);
    cr_assert_eq(commit(&(Run){.n_stages = 2, .step = 4}, &model), 0);
    UpdateSpec with = {.kind = UPDATE_SGD, .momentum = 0.9};
    UpdateSpec without = {.kind = UPDATE_SGD};
    cr_expect_eq(checkpoint_check_momentum(temp_path("3"), &model, &with), ERR_ARGUMENT);
    cr_expect(strstr(err_text(), "without momentum") && strstr(err_text(), "0.9"), "%s",
              err_text());
    cr_expect_eq(checkpoint_check_momentum(temp_path("3"), &model, &without), 0);
    cr_expect_eq(checkpoint_check_momentum(temp_path("4"), &model, &with), 0);
    cr_expect_eq(checkpoint_check_momentum(temp_path("4"), &model, &without), 0);
    model_done(&model);
}

Test(checkpoint, damage_is_seen, .init = temp_enter, .fini = temp_leave) {
    Model model = make_model();
    Run run = {.n_stages = 2, .step = 3};
    cr_assert_eq(commit(&run, &model), 0, "%s", err_text());
    char path[512];
    snprintf(path, sizeof path, "%s/3/update-00001-of-00002.safetensors", temp_folder);
    int fd = open(path, O_RDWR);
    struct stat about;
    fstat(fd, &about);
    cr_assert_eq(pwrite(fd, "!", 1, about.st_size - 1), 1);
    cr_assert_eq(checkpoint_check(temp_path("3"), &model, UPDATE_SGD), 0);
    cr_assert_eq(checkpoint_verify(temp_path("3")), ERR_CORRUPT);
    cr_assert(strstr(err_text(), "update-00001-of-00002"), "%s", err_text());
    cr_assert_eq(pwrite(fd, "!", 1, about.st_size), 1);
    close(fd);
    cr_assert_eq(checkpoint_check(temp_path("3"), &model, UPDATE_SGD), ERR_CORRUPT);
    cr_assert(strstr(err_text(), "update-00001-of-00002"), "%s", err_text());
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(checkpoint_check(temp_path("3"), &model, UPDATE_SGD), ERR_NOT_FOUND);
    model_done(&model);
}

Test(checkpoint, hostile_manifests, .init = temp_enter, .fini = temp_leave) {
#define HASH "\"0123456789abcdef\""
#define HEAD "{\"version\":1,\"job\":\"j\",\"step\":1,\"model_hash\":" HASH ",\"update\":\"sgd\","
    static const char *const texts[][2] = {
        {"", "end of the text"},
        {"{}", "version"},
        {"{\"version\":2}", "version"},
        {HEAD "\"files\":{},\"tensors\":0}", "files"},
        {HEAD "\"files\":[],\"tensors\":-1}", "tensors"},
        {HEAD "\"files\":[],\"tensors\":0,\"more\":1}", "more"},
        {HEAD "\"files\":[{\"name\":\"../x\",\"bytes\":1,\"xxh3\":" HASH "}],\"tensors\":0}",
         "../x"},
        {HEAD "\"files\":[{\"name\":\"a/b\",\"bytes\":1,\"xxh3\":" HASH "}],\"tensors\":0}", "a/b"},
        {HEAD "\"files\":[{\"name\":\"a\",\"bytes\":-1,\"xxh3\":" HASH "}],\"tensors\":0}",
         "bytes"},
        {HEAD "\"files\":[{\"name\":\"a\",\"bytes\":1,\"xxh3\":\"12\"}],\"tensors\":0}", "'12'"},
        {HEAD "\"files\":[1],\"tensors\":0}", "files[0]"},
        {"{\"version\":1,\"job\":\"j\",\"step\":1,\"model_hash\":" HASH ",\"update\":\"adam\"}",
         "adamw"},
    };
    cr_assert_eq(mkdir(temp_path("1"), 0755), 0);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        Manifest manifest;
        temp_write("1/manifest.json", texts[i][0], strlen(texts[i][0]));
        cr_expect_lt(manifest_read(temp_path("1"), &manifest), 0, "%s", texts[i][0]);
        cr_expect(strstr(err_text(), texts[i][1]) && strstr(err_text(), temp_folder), "%s: %s",
                  texts[i][0], err_text());
    }
}

/* ---- the folder ---- */

static void expect_latest(int64_t want) {
    char directory[ORDER_PATH_BYTES];
    int64_t step = -1;
    int rc = checkpoint_latest(temp_folder, directory, &step);
    cr_assert_eq(rc, want < 0 ? ERR_NOT_FOUND : 0, "%s", err_text());
    cr_assert_eq(step, want);
    char name[32];
    snprintf(name, sizeof name, "%lld", (long long)want);
    if (want >= 0)
        cr_assert_str_eq(directory, temp_path(name));
}

Test(checkpoint, the_only_one_is_not_sound, .init = temp_enter, .fini = temp_leave) {
    Model model = make_model();
    cr_assert_eq(commit(&(Run){.n_stages = 1, .step = 11}, &model), 0);
    cr_assert_eq(truncate(temp_path("11/manifest.json"), 40), 0);
    expect_latest(-1);
    cr_expect(strstr(err_text(), "the only checkpoint in "), "%s", err_text());
    model_done(&model);
}

Test(checkpoint, latest_passes_over_what_is_not_sound, .init = temp_enter, .fini = temp_leave) {
    Model model = make_model();
    char directory[ORDER_PATH_BYTES];
    expect_latest(-1);
    cr_assert_eq(checkpoint_latest(temp_path("none"), directory, NULL), ERR_NOT_FOUND);
    cr_assert_eq(commit(&(Run){.n_stages = 2, .step = 9}, &model), 0);
    cr_assert_eq(commit(&(Run){.n_stages = 1, .step = 10}, &model), 0);
    expect_latest(10); /* by number, not by letter */
    write_run(&(Run){.n_stages = 2, .step = 20}, &model);
    mkdir(temp_path("30"), 0755);
    mkdir(temp_path("040"), 0755);
    mkdir(temp_path("x"), 0755);
    temp_write("50", "a file", 6);
    cr_assert_eq(symlink("10", temp_path("60")), 0);
    expect_latest(10);
    /* Cut in the middle of the last write, and a manifest of another step. */
    cr_assert_eq(commit(&(Run){.n_stages = 1, .step = 11}, &model), 0);
    cr_assert_eq(truncate(temp_path("11/manifest.json"), 40), 0);
    expect_latest(10);
    cr_assert_eq(rename(temp_path("9"), temp_path("12")), 0);
    expect_latest(10);
    cr_assert_eq(truncate(temp_path("10/model-00001-of-00001.safetensors"), 40), 0);
    expect_latest(-1);
    cr_assert(strstr(err_text(), "is sound"), "%s", err_text());
    model_done(&model);
}

static void fill_folder(const Model *model) {
    for (int64_t step = 1; step <= 5; step++)
        cr_assert_eq(commit(&(Run){.n_stages = 1, .step = step * 10}, model), 0, "%s", err_text());
    write_run(&(Run){.n_stages = 2, .step = 15}, model);
    write_run(&(Run){.n_stages = 2, .step = 60}, model);
    temp_write("30/.tmp-0123", "x", 1);
    temp_write("50/.tmp-0123", "x", 1);
    temp_write("60/.tmp-0123", "x", 1);
    temp_write("notes.txt", "x", 1);
    mkdir(temp_path("mine"), 0755);
}

Test(checkpoint, clean_when_nobody_writes, .init = temp_enter, .fini = temp_leave) {
    Model model = make_model();
    fill_folder(&model);
    temp_write(".tmp-4567", "x", 1);
    cr_assert_eq(checkpoint_clean(temp_folder, 0, INT64_MAX), 2, "%s", err_text());
    static const char *const kept[] = {"10", "20", "30", "40", "50", "notes.txt", "mine"};
    for (size_t i = 0; i < 7; i++)
        cr_assert(exists(temp_folder, kept[i]), "%s", kept[i]);
    cr_assert_eq(temp_count(temp_folder, ""), 7);
    cr_assert_eq(temp_count(temp_path("30"), ".tmp-"), 0);
    cr_assert_eq(temp_count(temp_path("50"), ".tmp-"), 0);
    cr_assert_eq(checkpoint_clean(temp_folder, 2, INT64_MAX), 3, "%s", err_text());
    cr_assert(exists(temp_folder, "40") && exists(temp_folder, "50"));
    cr_assert_eq(temp_count(temp_folder, ""), 4);
    expect_latest(50);
    cr_assert_eq(checkpoint_check(temp_path("50"), &model, UPDATE_SGD), 0, "%s", err_text());
    cr_assert_eq(checkpoint_clean(temp_path("none"), 1, INT64_MAX), 0);
    model_done(&model);
}

Test(checkpoint, clean_leaves_what_no_worker_wrote, .init = temp_enter, .fini = temp_leave) {
    static const char *const names[] = {"letter.txt", "model-1.safetensors", ".tmp-mine",
                                        "update-00001-of-00002.safetensors.old"};
    for (int i = 0; i < 4; i++) {
        char path[64];
        snprintf(path, sizeof path, "%d", i);
        mkdir(temp_path(path), 0755);
        temp_write("0/model-00001-of-00002.safetensors", "x", 1);
        snprintf(path, sizeof path, "%d/%s", i, names[i]);
        temp_write(path, "dear", 4);
    }
    mkdir(temp_path("4"), 0755);
    temp_write("4/model-00001-of-00002.safetensors", "x", 1);
    temp_write("4/.tmp-0123456789abcdef", "x", 1);
    cr_assert_eq(checkpoint_clean(temp_folder, 1, INT64_MAX), 1, "%s", err_text());
    for (int i = 0; i < 4; i++) {
        char path[64];
        snprintf(path, sizeof path, "%d/%s", i, names[i]);
        cr_expect_eq(access(temp_path(path), F_OK), 0, "%s", path);
    }
    cr_expect_lt(access(temp_path("4"), F_OK), 0);
}

Test(checkpoint, clean_beside_writers, .init = temp_enter, .fini = temp_leave) {
    Model model = make_model();
    fill_folder(&model);
    cr_assert_eq(checkpoint_clean(temp_folder, 2, 50), 4, "%s", err_text());
    cr_assert(exists(temp_folder, "40") && exists(temp_folder, "50"));
    cr_assert_eq(temp_count(temp_path("60"), ""), 5, "a save under way was touched");
    cr_assert_eq(temp_count(temp_path("50"), ".tmp-"), 1);
    expect_latest(50);
    /* What a worker may still write, or begin with, stays whatever is newer. */
    write_run(&(Run){.n_stages = 2, .step = 45}, &model);
    cr_assert_eq(checkpoint_clean(temp_folder, 1, 40), 0);
    cr_assert(exists(temp_folder, "40") && exists(temp_folder, "45"));
    cr_assert_eq(checkpoint_clean(temp_folder, 2, 46), 1);
    cr_assert(!exists(temp_folder, "45"));
    /* Without a sound one all may be under way. */
    cr_assert_eq(unlink(temp_path("40/manifest.json")), 0);
    cr_assert_eq(unlink(temp_path("50/manifest.json")), 0);
    cr_assert_eq(checkpoint_clean(temp_folder, 1, 50), 0);
    cr_assert_eq(checkpoint_clean(temp_folder, 1, INT64_MAX), 3);
    model_done(&model);
}

Test(checkpoint, a_damaged_one_does_not_count_as_kept, .init = temp_enter, .fini = temp_leave) {
    Model model = make_model();
    for (int64_t step = 1; step <= 4; step++)
        cr_assert_eq(commit(&(Run){.n_stages = 1, .step = step}, &model), 0);
    cr_assert_eq(truncate(temp_path("4/model-00001-of-00001.safetensors"), 40), 0);
    cr_assert_eq(checkpoint_clean(temp_folder, 1, INT64_MAX), 2);
    cr_assert(exists(temp_folder, "3") && exists(temp_folder, "4"));
    expect_latest(3);
    model_done(&model);
}

/* Killed at any moment of saving and cleaning, the newest sound checkpoint is whole. */
Test(checkpoint, kills_leave_a_sound_one, .init = temp_enter, .fini = temp_leave, .timeout = 120) {
    Model model = make_model();
    cr_assert_eq(commit(&(Run){.n_stages = 2, .step = 1}, &model), 0);
    int64_t latest = 1;
    for (int turn = 0; turn < 12 || (latest <= 1 && turn < 500); turn++) { /* a slow machine */
        pid_t child = fork();
        cr_assert_geq(child, 0);
        for (int64_t step = latest + 1; child == 0; step++) {
            if (commit(&(Run){.n_stages = 2, .step = step}, &model) < 0 ||
                checkpoint_clean(temp_folder, 1, step) < 0)
                _exit(1);
        }
        usleep(5000 + 4100u * (unsigned)turn);
        cr_assert_eq(kill(child, SIGKILL), 0);
        int status;
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert(WIFSIGNALED(status));
        char directory[ORDER_PATH_BYTES];
        int64_t before = latest;
        cr_assert_eq(checkpoint_latest(temp_folder, directory, &latest), 0, "%s", err_text());
        cr_assert_geq(latest, before);
        cr_assert_eq(checkpoint_check(directory, &model, UPDATE_SGD), 0, "%s", err_text());
        cr_assert_eq(checkpoint_verify(directory), 0, "%s", err_text());
        cr_assert_geq(checkpoint_clean(temp_folder, 1, INT64_MAX), 0, "%s", err_text());
        cr_assert_eq(temp_count(temp_folder, ""), 1);
    }
    cr_assert_gt(latest, 1);
    model_done(&model);
}

/* ---- differences ---- */

Test(checkpoint_diff, other_cuts_hold_equal_tensors, .init = temp_enter, .fini = temp_leave) {
    Model model = make_model();
    CheckpointDiff diff;
    cr_assert_eq(commit(&(Run){.n_stages = 1, .step = 1}, &model), 0);
    cr_assert_eq(commit(&(Run){.n_stages = 3, .step = 2}, &model), 0);
    temp_write("2/model-00001-of-00001.safetensors", "left by another run", 19);
    cr_assert_eq(checkpoint_diff(temp_path("1"), temp_path("2"), &diff), 0, "%s", err_text());
    cr_assert(checkpoint_diff_equal(&diff));
    cr_assert_eq(diff.n_rows, 14, "update state, too");
    cr_assert_eq(diff.n_states[CHECKPOINT_EQUAL], 14);
    cr_assert_eq(diff.worst_abs, -1);
    cr_assert_str_eq(diff.rows[0].name, "bn.bias");
    checkpoint_diff_done(&diff);
    checkpoint_diff_done(NULL);
    model_done(&model);
}

Test(checkpoint_diff, other_update_state_is_a_difference, .init = temp_enter, .fini = temp_leave) {
    Model model = make_model();
    CheckpointDiff diff;
    cr_assert_eq(commit(&(Run){.n_stages = 1, .step = 1}, &model), 0);
    cr_assert_eq(commit(&(Run){.n_stages = 1, .step = 2, .no_momentum = true}, &model), 0);
    cr_assert_eq(checkpoint_diff(temp_path("1"), temp_path("2"), &diff), 0, "%s", err_text());
    cr_assert_not(checkpoint_diff_equal(&diff));
    cr_assert_eq(diff.n_states[CHECKPOINT_ONLY_A], 6);
    checkpoint_diff_done(&diff);
    model_done(&model);
}

Test(checkpoint_diff, names_the_largest_difference, .init = temp_enter, .fini = temp_leave) {
    Model model = make_model();
    CheckpointDiff diff;
    cr_assert_eq(commit(&(Run){.n_stages = 2, .step = 1}, &model), 0);
    cr_assert_eq(commit(&(Run){.n_stages = 1, .step = 2, .change = 0.25F}, &model), 0);
    cr_assert_eq(checkpoint_diff(temp_path("1"), temp_path("2"), &diff), 0, "%s", err_text());
    cr_assert_not(checkpoint_diff_equal(&diff));
    cr_assert_eq(diff.n_states[CHECKPOINT_VALUES], 1);
    cr_assert_eq(diff.n_states[CHECKPOINT_EQUAL], 13);
    const CheckpointDiffRow *row = &diff.rows[diff.worst_abs];
    cr_assert_str_eq(row->name, "bn.weight");
    double changed = (double)((float)(hash_text("bn.weight") % 1000 + 2) / 16.0F) + 0.25;
    cr_assert_float_eq(row->max_abs, 0.25, 1e-6);
    cr_assert_float_eq(row->max_rel, 0.25 / changed, 1e-6);
    cr_assert(row->l2_rel > 0 && row->l2_rel < row->max_rel);
    cr_assert_eq(diff.worst_rel, diff.worst_abs);
    checkpoint_diff_done(&diff);
    model_done(&model);
}

Test(checkpoint_diff, plain_files_of_any_form, .init = temp_enter, .fini = temp_leave) {
    uint16_t half_a[] = {0x3C00, 0x4200}; /* 1, 3 */
    uint16_t half_b[] = {0x3C00, 0x4000}; /* 1, 2 */
    uint16_t brain_a[] = {0x3F80, 0x4040};
    uint16_t brain_b[] = {0x3F80, 0x4000};
    float nan_a[] = {NAN, 1};
    float nan_b[] = {1, 1};
    float zero_a[] = {0.0F, -0.0F};
    float zero_b[] = {-0.0F, -0.0F};
    int64_t long_a[] = {5, 5};
    int64_t long_b[] = {5, 7};
    Shape two = shape_1d(2);
    SafetensorsTensor a[] = {{"brain", DTYPE_BF16, two, brain_a}, {"form", DTYPE_F32, two, nan_b},
                             {"half", DTYPE_F16, two, half_a},    {"long", DTYPE_I64, two, long_a},
                             {"nan", DTYPE_F32, two, nan_a},      {"only.a", DTYPE_F32, two, nan_a},
                             {"type", DTYPE_F32, two, nan_a},     {"zero", DTYPE_F32, two, zero_a}};
    SafetensorsTensor b[] = {
        {"brain", DTYPE_BF16, two, brain_b}, {"form", DTYPE_F32, shape_2d(1, 2), nan_b},
        {"half", DTYPE_F16, two, half_b},    {"long", DTYPE_I64, two, long_b},
        {"nan", DTYPE_F32, two, nan_b},      {"only.b", DTYPE_F32, two, nan_b},
        {"type", DTYPE_I32, two, nan_b},     {"zero", DTYPE_F32, two, zero_b}};
    static const struct {
        CheckpointDiffState state;
        double max_abs;
    } want[] = {{CHECKPOINT_VALUES, 1}, {CHECKPOINT_FORM, 0},   {CHECKPOINT_VALUES, 1},
                {CHECKPOINT_VALUES, 2}, {CHECKPOINT_VALUES, 0}, {CHECKPOINT_ONLY_A, 0},
                {CHECKPOINT_ONLY_B, 0}, {CHECKPOINT_FORM, 0},   {CHECKPOINT_VALUES, 0}};
    CheckpointDiff diff;
    cr_assert_eq(mkdir(temp_path("b"), 0755), 0); /* a folder as downloaded: no manifest */
    cr_assert_eq(safetensors_write(temp_path("a.safetensors"), a, 8, NULL, 0, NULL), 0);
    cr_assert_eq(safetensors_write(temp_path("b/1.safetensors"), b, 4, NULL, 0, NULL), 0);
    cr_assert_eq(safetensors_write(temp_path("b/2.safetensors"), b + 4, 4, NULL, 0, NULL), 0);
    cr_assert_eq(checkpoint_diff(temp_path("a.safetensors"), temp_path("b"), &diff), 0, "%s",
                 err_text());
    cr_assert_eq(diff.n_rows, 9);
    for (int i = 0; i < 9; i++) {
        cr_expect_eq(diff.rows[i].state, want[i].state, "%s", diff.rows[i].name);
        if (i != 4)
            cr_expect_eq(diff.rows[i].max_abs, want[i].max_abs, "%s", diff.rows[i].name);
    }
    cr_expect(isinf(diff.rows[4].max_abs) && isinf(diff.rows[4].l2_rel));
    cr_expect_str_eq(diff.rows[diff.worst_abs].name, "nan");
    checkpoint_diff_done(&diff);
    cr_assert_eq(safetensors_write(temp_path("b/3.safetensors"), b, 1, NULL, 0, NULL), 0);
    cr_assert_eq(checkpoint_diff(temp_path("a.safetensors"), temp_path("b"), &diff), ERR_FORMAT);
    cr_assert(strstr(err_text(), "'brain' is in two files"), "%s", err_text());
    cr_assert_eq(checkpoint_diff(temp_path("a.safetensors"), temp_path("c"), &diff), ERR_NOT_FOUND);
    mkdir(temp_path("empty"), 0755);
    cr_assert_eq(checkpoint_diff(temp_path("empty"), temp_path("b"), &diff), ERR_NOT_FOUND);
}

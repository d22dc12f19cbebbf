#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/config.h"
#include "core/err.h"
#include "core/file.h"
#include "tests/support/temp.h"

static const char base[] =
    "{\"version\": 1, \"name\": \"job-1\","
    " \"model\": {\"zoo\": \"mlp\", \"options\": {\"input\": [8], \"hidden\": [16, 16],"
    "                                            \"classes\": 3}},"
    " \"data\": {\"train\": {\"kind\": \"generated\", \"samples\": 100},"
    "            \"eval\": {\"kind\": \"generated\", \"samples\": 50, \"seed\": 2}},"
    " \"batch\": 32, \"micro_batch\": 10, \"epochs\": 3,"
    " \"update\": {\"kind\": \"sgd\", \"lr\": 0.1}}";

static int parse_sets(const ConfigSet *sets, int n_sets, JobConfig *config) {
    return config_parse("job.json", base, strlen(base), "/data", sets, n_sets, 0, config);
}

/* The base with one value set must be refused with these words. */
static void refuse(const char *path, const char *text, int code, const char *words) {
    JobConfig config;
    ConfigSet set = {path, text};
    int rc = parse_sets(&set, 1, &config);
    cr_assert_eq(rc, code, "--set %s=%s: %s, %s", path, text, err_name(rc),
                 rc < 0 ? err_text() : "");
    cr_assert(strstr(err_text(), words), "'%s' does not say '%s'", err_text(), words);
    cr_assert(strstr(err_text(), "job.json"), "'%s' does not name the file", err_text());
}

static JobConfig accept(const char *path, const char *text) {
    JobConfig config;
    ConfigSet set = {path, text};
    cr_assert_eq(parse_sets(&set, 1, &config), 0, "--set %s=%s: %s", path, text, err_text());
    return config;
}

Test(config, defaults) {
    JobConfig config;
    cr_assert_eq(parse_sets(NULL, 0, &config), 0, "%s", err_text());
    const Order *order = &config.order;
    cr_expect_str_eq(order->job, "job-1");
    cr_expect_eq(order->train_samples, 100);
    cr_expect_eq(order->eval_samples, 50);
    cr_expect_eq(order->n_steps, 12, "3 epochs of ceil(100 / 32) steps");
    cr_expect_eq(order->plan.micro_rows, 10);
    cr_expect_eq(order->plan.n_micro, 4);
    cr_expect_eq(order->seed, 1);
    cr_expect(order->shuffle);
    cr_expect_eq(order->eval_every, 0);
    cr_expect_eq(order->train.classes, 3, "from the model");
    cr_expect_eq(order->train.shape.dims[0], 8, "from the model");
    cr_expect_eq(config.plan.n_stages, 1);
    cr_expect_null(config.plan.ends);
    cr_expect_str_eq(config.plan.schedule, "1f1b");
    cr_expect_str_eq(config.relay, "auto");
    cr_expect_eq(config.keep_last, 3);
    cr_expect_not(config.save_every_given);
    config_done(&config);
}

Test(config, all_sections) {
    static const ConfigSet sets[] = {
        {"epochs", "null"},
        {"steps", "100"},
        {"seed", "\"18446744073709551615\""},
        {"save", "{\"every_steps\": 5, \"every\": \"10m\", \"keep_last\": 0}"},
        {"evaluate", "{\"every_epochs\": 2, \"samples\": 20}"},
        {"plan.cut", "[\"relu1\", 3]"},
        {"plan.replicas", "{\"1\": 2}"},
        {"plan.recompute", "[true, false, true]"},
        {"plan.schedule", "gpipe"},
        {"plan.prefetch", "2"},
        {"plan.threads", "2"},
        {"platform", "{\"kind\": \"local\", \"workers\": 4}"},
        {"relay", "file://relay"},
        {"timeouts", "{\"wait\": \"1m\", \"silence\": \"3s\", \"start\": \"1h\"}"},
        {"limits", "{\"restarts\": 0, \"relay\": \"2GiB\"}"},
    };
    JobConfig config;
    cr_assert_eq(parse_sets(sets, sizeof sets / sizeof sets[0], &config), 0, "%s", err_text());
    cr_expect_eq(config.order.n_steps, 100);
    cr_expect_eq(config.order.seed, UINT64_MAX);
    cr_expect_eq(config.order.save_every, 5);
    cr_expect_eq(config.save_every_ms, 600000);
    cr_expect_eq(config.keep_last, 0);
    cr_expect_eq(config.order.eval_every, 8, "two epochs of 4 steps");
    cr_expect_eq(config.order.eval_samples, 20);
    cr_expect_eq(config.plan.n_stages, 3);
    cr_expect_eq(config.plan.ends[0], 2);
    cr_expect_eq(config.plan.ends[1], 3);
    cr_expect_eq(config.plan.ends[2], config.order.model.n_layers);
    cr_expect_eq(config.plan.replicas[1], 2);
    cr_expect_eq(config_workers(&config.plan), 4);
    cr_expect(config.plan.recompute[0] && !config.plan.recompute[1] && config.plan.recompute[2]);
    cr_expect_str_eq(config.relay, "file:///data/relay");
    cr_expect_eq(config.order.wait_timeout_ms, 60000);
    cr_expect_eq(config.silence_ms, 3000);
    cr_expect_eq(config.start_timeout_ms, 3600000);
    cr_expect_eq(config.max_restarts, 0);
    cr_expect_eq(config.relay_limit_bytes, INT64_C(2) << 30);
    config_done(&config);
}

Test(config, names_the_nearest_key) {
    refuse("plan.stagse", "3", ERR_FORMAT, "did you mean 'stages'?");
    refuse("plan.stagse", "3", ERR_FORMAT, "--set plan.stagse=3");
    refuse("bacth", "3", ERR_FORMAT, "$: unknown key 'bacth' (did you mean 'batch'?)");
    refuse("save.every_step", "3", ERR_FORMAT, "$.save: unknown key 'every_step'");
    refuse("model.zoo", "mpl", ERR_NOT_FOUND, "mlp");
    refuse("update.kind", "adam", ERR_ARGUMENT, "$.update.kind");
    refuse("plan.schedule", "1f1c", ERR_ARGUMENT, "did you mean '1f1b'?");
    refuse("plan.cut", "[\"rleu1\"]", ERR_ARGUMENT, "$.plan.cut[0]: no layer is named 'rleu1'");
    refuse("platform.kind", "aws", ERR_ARGUMENT, "$.platform.kind");
}

Test(config, refuses_wrong_types_and_units) {
    refuse("batch", "\"32\"", ERR_FORMAT, "$.batch: expected a whole number, found a string");
    refuse("batch", "1.5", ERR_FORMAT, "$.batch");
    refuse("batch", "0", ERR_ARGUMENT, "$.batch");
    refuse("timeouts.wait", "5", ERR_FORMAT,
           "$.timeouts.wait: expected a duration with its unit, such as \"5s\", found a number");
    refuse("limits.relay", "5", ERR_FORMAT,
           "$.limits.relay: expected a size with its unit, such as \"512MiB\", found a number");
    refuse("timeouts.wait", "5 minutes", ERR_FORMAT, "not a duration");
    refuse("timeouts.wait", "1ms", ERR_ARGUMENT, "less than 100ms");
    static const char *const durations[] = {"timeouts.wait",  "timeouts.heartbeat",
                                            "timeouts.start", "timeouts.silence",
                                            "timeouts.stop",  "save.every"};
    for (size_t i = 0; i < sizeof durations / sizeof durations[0]; i++) {
        char words[80];
        snprintf(words, sizeof words, "$.%s: '12726d' is more than 12725d", durations[i]);
        refuse(durations[i], "12726d", ERR_ARGUMENT, words);
        JobConfig config = accept(durations[i], "12725d");
        config_done(&config);
    }
    refuse("limits.relay", "9000TiB", ERR_FORMAT, "$.limits.relay: '9000TiB' is too large");
    refuse("limits.relay", "1gb", ERR_FORMAT, "not a size");
    refuse("save.every", "10", ERR_FORMAT, "$.save.every");
    refuse("shuffle", "1", ERR_FORMAT, "true or false");
    refuse("plan", "3", ERR_FORMAT, "$.plan: expected an object");
    refuse("plan.recompute", "1", ERR_FORMAT, "$.plan.recompute");
    refuse("plan", "{\"replicas\": 1025, \"reduce\": {\"form\": \"in_store\"}}", ERR_ARGUMENT,
           "$.plan.reduce.form: stage 0: a store sums at most 1024 contributions");
    refuse("plan.replicas", "true", ERR_FORMAT, "$.plan.replicas: expected a number, an array");
    refuse("plan.replicas", "0", ERR_ARGUMENT, "$.plan.replicas: expected a whole number from 1");
    refuse("relay", "/dev/shm/x", ERR_ARGUMENT, "$.relay");
    refuse("relay", "mem://", ERR_ARGUMENT,
           "$.relay: the relay scheme 'mem://' is unknown (known: ");
    refuse("relay", "redis://:hush@x", ERR_ARGUMENT,
           ": --set relay: $.relay: the relay's URL holds a password, ");
    refuse("relay", "redis://x?password_file=secret", ERR_ARGUMENT,
           "'password_file' needs an absolute path");
    refuse("relay", "redis://x:0", ERR_ARGUMENT, "$.relay: the relay's URL: ");
    refuse("relay", "ftp://me:secret@x", ERR_ARGUMENT,
           ": --set relay: $.relay: the relay scheme 'ftp://' is unknown");
    refuse("plan.isa", "neon", ERR_ARGUMENT, "$.plan.isa");
    refuse("plan.isa", "avx3", ERR_ARGUMENT, "avx2");
    refuse("relay", "file:///", ERR_ARGUMENT, "$.relay: 'file:///' is the root");
    refuse("relay", "file:////.//..", ERR_ARGUMENT, "$.relay: 'file:////.//..' is the root");
    refuse("name", "../x", ERR_ARGUMENT, "$.name");
    refuse("name", "", ERR_ARGUMENT, "$.name");
    refuse("version", "2", ERR_UNSUPPORTED, "$.version");
}

Test(config, refuses_what_does_not_fit_together) {
    refuse("steps", "3", ERR_ARGUMENT, "exactly one of the keys 'steps' and 'epochs'");
    refuse("epochs", "null", ERR_ARGUMENT, "exactly one of the keys 'steps' and 'epochs'");
    refuse("batch", "200", ERR_ARGUMENT, "there are only 100 samples");
    refuse("data.train.samples", "1", ERR_ARGUMENT, "there is only 1 sample");
    refuse("micro_batch", "33", ERR_ARGUMENT, "$.micro_batch");
    refuse("evaluate", "{\"every_steps\": 1, \"every_epochs\": 1}", ERR_ARGUMENT, "at most one");
    refuse("evaluate.samples", "51", ERR_ARGUMENT, "50 samples");
    static const ConfigSet far[] = {{"data.train.samples", "1099511627776"},
                                    {"evaluate.every_epochs", "1048576"}};
    JobConfig config;
    cr_assert_eq(parse_sets(far, 2, &config), ERR_LIMIT);
    cr_assert(strstr(err_text(), "$.evaluate.every_epochs: 1048576 epochs are"), "%s", err_text());
    refuse("plan.stages", "7", ERR_INFEASIBLE, "has only 6 layers");
    refuse("plan.replicas", "[2, 2]", ERR_ARGUMENT,
           "2 entries, but there is 1 stage; one value alone");
    refuse("plan.replicas", "{\"1\": 2}", ERR_FORMAT, "$.plan.replicas: the stage");
    refuse("plan.replicas", "{\"00\": 2}", ERR_FORMAT,
           "$.plan.replicas: the stage '00' must be written '0'");
    refuse("plan.replicas", "{\"+0\": 2}", ERR_FORMAT, "$.plan.replicas: the stage");
    refuse("plan.replicas", "{\"-0\": 2}", ERR_FORMAT, "$.plan.replicas: the stage");
    refuse("plan.replicas", "{\"0\": 65}", ERR_INFEASIBLE, "the plan needs 65 workers");
    refuse("plan.recompute", "[true, false]", ERR_ARGUMENT, "2 entries, but there is 1 stage");
    refuse("plan", "{\"stages\": 2, \"replicas\": [1]}", ERR_ARGUMENT, "1 entry, but there are 2");
    refuse("plan.cut", "[3, 2]", ERR_ARGUMENT, "not beyond the end of the stage before it (3)");
    refuse("plan.cut", "[1, 1]", ERR_ARGUMENT, "end after 1 layer, which");
    refuse("plan.cut", "[0]", ERR_ARGUMENT, "$.plan.cut[0]");
    refuse("plan.cut", "[7]", ERR_ARGUMENT, "from 1 to 6");
    refuse("model", "{}", ERR_FORMAT, "exactly one of the keys 'zoo', 'file' and 'layers'");
    refuse("model.file", "m.json", ERR_FORMAT, "$.model: expected exactly one of the keys 'zoo'");
    refuse("model.layers", "[]", ERR_FORMAT, "$.model: expected exactly one of the keys 'zoo'");
    refuse("save.every", "0s", ERR_ARGUMENT, "$.save.every: saves cannot come every 0ms");
    refuse("data.train",
           "{\"kind\": \"idx\", \"inputs\": \"a\", \"targets\": \"b\", \"mean\": [1]}",
           ERR_ARGUMENT, "mean has 1 entry and std 0");
}

Test(config, checks_data_against_the_model) {
    refuse("data.train.classes", "4", ERR_ARGUMENT, "the model's loss has only 3");
    refuse("data.train.shape", "[9]", ERR_ARGUMENT, "reads inputs of shape (8)");
    refuse("data.train.tokens", "true", ERR_ARGUMENT, "$.data.train");
    refuse("data.eval", "{\"kind\": \"idx\", \"inputs\": \"none.idx\", \"targets\": \"t.idx\"}",
           ERR_NOT_FOUND, "/data/");
    refuse("data.eval",
           "{\"kind\": \"idx\", \"inputs\": \"/usr/share/datasets/fashion-mnist/none.gz\", "
           "\"targets\": \"t\"}",
           ERR_NOT_FOUND, "apt-get install dataset-fashion-mnist");
    JobConfig config = accept("data.train.classes", "2");
    cr_expect_eq(config.order.train.classes, 2);
    config_done(&config);
}

static const char ignoring[] =
    "{\"name\": \"m\", \"input\": {\"dtype\": \"F32\", \"shape\": [8]},"
    " \"target\": {\"dtype\": \"I32\", \"shape\": []}, \"layers\": ["
    "{\"name\": \"fc\", \"kind\": \"linear\", \"features\": 3},"
    "{\"name\": \"end\", \"kind\": \"cross_entropy\", \"ignore_index\": -100}]}";

/* Which targets do not count is the loss's to say. */
Test(config, what_is_ignored_is_the_same_everywhere) {
    refuse("data.train.ignore_index", "-1", ERR_ARGUMENT,
           "$.data.train.ignore_index: -1, but that of the model's loss (layer 'loss', "
           "$.model.layers[5].ignore_index) is none");
    const ConfigSet sets[] = {{"model", ignoring}, {"data.eval.ignore_index", "-1"}};
    JobConfig config;
    cr_assert_eq(parse_sets(sets, 2, &config), ERR_ARGUMENT);
    cr_assert(strstr(err_text(),
                     "$.data.eval.ignore_index: -1, but that of the model's loss (layer "
                     "'end', $.model.layers[1].ignore_index) is -100"),
              "%s", err_text());
    cr_assert_eq(parse_sets(sets, 1, &config), 0, "%s", err_text());
    cr_expect(config.order.train.has_ignore && config.order.train.ignore_index == -100);
    config_done(&config);
    const ConfigSet same[] = {{"model", ignoring}, {"data.eval.ignore_index", "-100"}};
    cr_assert_eq(parse_sets(same, 2, &config), 0, "%s", err_text());
    config_done(&config);
}

Test(config, the_platform_is_this_machine) {
    JobConfig config = accept("platform.workers", "2");
    cr_expect_eq(config.max_workers, 2);
    config_done(&config);
}

/* Orders are JSON: they could not name such a file. */
Test(config, folders_are_utf8_where_paths_are_relative) {
    JobConfig config;
    const ConfigSet sets[] = {{"relay", "file://r"}};
    cr_assert_eq(config_parse("job.json", base, strlen(base), "/\xFF", sets, 1, 0, &config),
                 ERR_ARGUMENT);
    cr_assert(
        strstr(err_text(), "the folder '/\\xff', which 'r' is relative to, is not valid UTF-8"),
        "%s", err_text());
    cr_assert_eq(config_parse("job.json", base, strlen(base), "/\xFF", NULL, 0, 0, &config), 0);
    config_done(&config);
}

Test(config, evaluation_needs_data) {
    static const ConfigSet sets[] = {{"data.eval", "null"}, {"evaluate.every_steps", "5"}};
    JobConfig config;
    cr_assert_eq(parse_sets(sets, 2, &config), ERR_ARGUMENT);
    cr_assert(strstr(err_text(), "$.evaluate: needs evaluation data"));
    cr_assert(strstr(err_text(), "evaluate=null"), "%s", err_text());
}

Test(config, refuses_text_that_is_no_job) {
    static const char *const texts[] = {"",
                                        "[]",
                                        "{",
                                        "{\"version\": 1}",
                                        "{\"version\": 1, \"version\": 1}",
                                        "{\"version\": 1, \"name\": \"x\"} trailing",
                                        "null"};
    JobConfig config;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        cr_assert_lt(config_parse("job.json", texts[i], strlen(texts[i]), "/", NULL, 0, 0, &config),
                     0, "%s", texts[i]);
    cr_assert_eq(config_load("/no/such/job.json", NULL, 0, 0, &config), ERR_NOT_FOUND);
    cr_assert(strstr(err_text(), "/no/such/job.json"));
}

/* What is written reads back to what writes the same again. */
static void round_trip(const ConfigSet *sets, int n_sets) {
    JobConfig config;
    JobConfig again;
    Buf first;
    Buf second;
    buf_init(&first, 0);
    buf_init(&second, 0);
    cr_assert_eq(parse_sets(sets, n_sets, &config), 0, "%s", err_text());
    cJSON *root = config_to_json(&config);
    cr_assert_not_null(root);
    cr_assert_eq(json_format(root, true, &first), 0);
    cJSON_Delete(root);
    cr_assert_eq(config_parse("again", first.data, first.bytes, "/elsewhere", NULL, 0, 0, &again),
                 0, "%s\n%s", err_text(), first.data);
    root = config_to_json(&again);
    cr_assert_eq(json_format(root, true, &second), 0);
    cJSON_Delete(root);
    cr_assert_str_eq(first.data, second.data);
    cr_assert_eq(model_hash(&config.order.model), model_hash(&again.order.model));
    config_done(&config);
    config_done(&again);
    buf_done(&first);
    buf_done(&second);
}

Test(config, resolved_files_read_back) {
    static const ConfigSet sets[] = {
        {"plan.cut", "[\"relu1\", 3]"}, {"plan.replicas", "[1, 2, 1]"},
        {"relay", "file://r"},          {"seed", "\"9007199254740993\""},
        {"save.every_steps", "7"},      {"update", "{\"kind\": \"adamw\", \"lr\": 0.001}"},
        {"evaluate.every_steps", "4"}};
    round_trip(NULL, 0);
    round_trip(sets, sizeof sets / sizeof sets[0]);
    round_trip(sets, 2);
}

/* A resolved job can be cut otherwise: what all stages agree on is no array. */
Test(config, resolved_files_can_be_cut_anew) {
    static const ConfigSet sets[] = {
        {"plan.cut", "[\"relu1\", 3]"}, {"plan.replicas", "2"}, {"plan.recompute", "true"}};
    static const ConfigSet anew[] = {{"plan.stages", "2"}, {"plan.cut", "auto"}};
    JobConfig config;
    JobConfig again;
    Buf text;
    buf_init(&text, 0);
    cr_assert_eq(parse_sets(sets, 3, &config), 0, "%s", err_text());
    cr_expect_eq(config_workers(&config.plan), 6);
    cJSON *root = config_to_json(&config);
    cr_assert_eq(json_format(root, false, &text), 0);
    cJSON_Delete(root);
    cr_assert_eq(config_parse("again", text.data, text.bytes, "/", anew, 2, 0, &again), 0, "%s",
                 err_text());
    cr_expect_eq(again.plan.n_stages, 2);
    cr_expect(again.plan.replicas[1] == 2 && again.plan.recompute[0] && again.plan.recompute[1]);
    config_done(&again);
    cr_assert_eq(config_parse("again", text.data, text.bytes, "/", anew, 1, 0, &again),
                 ERR_ARGUMENT);
    cr_expect(strstr(err_text(), "plan.cut=auto cuts anew"), "%s", err_text());
    buf_done(&text);
    config_done(&config);
}

/* Written as people write it. */
Test(config, resolved_files_are_readable) {
    static const ConfigSet sets[] = {
        {"limits.relay", "2048MiB"}, {"timeouts.silence", "1500ms"}, {"save.every", "600s"}};
    JobConfig config;
    Buf text;
    buf_init(&text, 0);
    cr_assert_eq(parse_sets(sets, 3, &config), 0, "%s", err_text());
    config.order.train.kind = DATA_IDX;
    config.order.train.n_channels = 1;
    config.order.train.mean[0] = 0.286F;
    config.order.train.std[0] = 0.353F;
    cJSON *root = config_to_json(&config);
    cr_assert_eq(json_format(root, false, &text), 0);
    cJSON_Delete(root);
    static const char *const parts[] = {
        "\"relay\":\"2GiB\"", "\"wait\":\"5m\"",  "\"heartbeat\":\"1s\"", "\"silence\":\"1500ms\"",
        "\"every\":\"10m\"",  "\"mean\":[0.286]", "\"std\":[0.353]"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        cr_expect(strstr(text.data, parts[i]), "%s is not in %s", parts[i], text.data);
    buf_done(&text);
    config_done(&config);
}

Test(config, model_files_are_relative_to_the_job) {
    char folder[64];
    char path[128];
    char job[1024];
    Model model;
    JobConfig config;
    cr_assert_eq(temp_make(folder, sizeof folder, "test"), 0);
    cr_assert_eq(parse_sets(NULL, 0, &config), 0);
    cJSON *root = model_to_json(&config.order.model);
    Buf text;
    buf_init(&text, 0);
    cr_assert_eq(json_format(root, true, &text), 0);
    cJSON_Delete(root);
    config_done(&config);
    snprintf(path, sizeof path, "%s/model.json", folder);
    cr_assert_eq(file_write(path, text.data, text.bytes), 0);
    buf_done(&text);
    cr_assert_eq(config_load_model(path, NULL, 0, &model), 0, "%s", err_text());
    model_done(&model);
    snprintf(job, sizeof job,
             "{\"version\": 1, \"name\": \"x\", \"model\": {\"file\": \"model.json\"}, \"data\": "
             "{\"train\": {\"kind\": \"generated\", \"samples\": 9}}, \"batch\": 3, \"steps\": 2, "
             "\"update\": {\"kind\": \"sgd\", \"lr\": 1}}");
    snprintf(path, sizeof path, "%s/job.json", folder);
    cr_assert_eq(file_write(path, job, strlen(job)), 0);
    cr_assert_eq(config_load(path, NULL, 0, 0, &config), 0, "%s", err_text());
    cr_expect_eq(config.order.model.n_layers, 6);
    config_done(&config);
    cr_assert_eq(config_load_model(path, NULL, 0, &model), 0, "%s", err_text());
    model_done(&model);
    ConfigSet set = {"model.file", "other.json"};
    cr_assert_eq(config_load(path, &set, 1, 0, &config), ERR_NOT_FOUND);
    cr_assert(strstr(err_text(), "other.json"));
    unlink(path);
    snprintf(path, sizeof path, "%s/model.json", folder);
    unlink(path);
    rmdir(folder);
}

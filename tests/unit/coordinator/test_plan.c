#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/plan.h"
#include "core/err.h"
#include "core/program.h"

static const char base[] =
    "{\"version\": 1, \"name\": \"job\","
    " \"model\": {\"zoo\": \"mlp\", \"options\": {\"input\": [8], \"hidden\": [16, 16, 16],"
    "                                            \"classes\": 3}},"
    " \"data\": {\"train\": {\"kind\": \"generated\", \"samples\": 100},"
    "            \"eval\": {\"kind\": \"generated\", \"samples\": 50}},"
    " \"batch\": 32, \"micro_batch\": 8, \"steps\": 3000,"
    " \"update\": {\"kind\": \"sgd\", \"lr\": 0.1}}";

static JobConfig load(const ConfigSet *sets, int n_sets) {
    JobConfig config;
    cr_assert_eq(config_parse("job.json", base, strlen(base), "/", sets, n_sets, 0, &config), 0,
                 "%s", err_text());
    return config;
}

static JobConfig with(const char *path, const char *text) {
    ConfigSet set = {path, text};
    return load(&set, 1);
}

static Plan make(const JobConfig *config, const Profile *profile) {
    Plan plan;
    cr_assert_eq(plan_make(config, profile, &plan), 0, "%s", err_text());
    return plan;
}

Test(plan, one_stage_is_the_whole_model) {
    JobConfig config = load(NULL, 0);
    Plan plan = make(&config, NULL);
    cr_expect_eq(plan.spec.n_stages, 1);
    cr_expect_eq(plan.spec.ends[0], config.order.model.n_layers);
    cr_expect_eq(plan.n_workers, 1);
    cr_expect_eq(plan.balance, PLAN_GIVEN);
    cr_expect_str_eq(plan.workers[0].program, "F0 B0 F1 B1 F2 B2 F3 B3 R U");
    cr_expect_str_eq(plan.workers[0].eval_program, "F0 F1 F2 F3");
    cr_expect_eq(plan.save_every, 1000, "at least every 1000 steps");
    plan_done(&plan);
    config_done(&config);
}

Test(plan, cuts_by_layer_names) {
    JobConfig config = with("plan.cut", "[\"relu1\", \"relu2\"]");
    Plan plan = make(&config, NULL);
    cr_expect_eq(plan.spec.n_stages, 3);
    cr_expect_eq(plan.spec.ends[0], 2);
    cr_expect_eq(plan.spec.ends[1], 4);
    cr_expect_not_null(strstr(plan.workers[0].program, ">a0"));
    cr_expect_not_null(strstr(plan.workers[1].program, "<a0"));
    cr_expect_null(strstr(plan.workers[0].program, "<a0"));
    plan_done(&plan);
    config_done(&config);
}

Test(plan, balances_by_measured_time) {
    double forward[8] = {1, 0, 1, 0, 1, 0, 1, 20};
    double backward[8] = {0};
    Profile profile = {8, forward, backward, "avx2"};
    JobConfig config = with("plan.stages", "2");
    cr_assert_eq(config.order.model.n_layers, 8);
    Plan plan = make(&config, &profile);
    cr_expect_eq(plan.balance, PLAN_MEASURED);
    cr_expect_eq(plan.spec.ends[0], 7, "the slow layer alone");
    cr_expect_str_eq(plan.spec.isa, "avx2", "pinned");
    cr_expect_float_eq(plan.stage_us[1], 20, 1e-9);
    plan_done(&plan);
    plan = make(&config, NULL);
    cr_expect_eq(plan.balance, PLAN_FLOPS);
    cr_expect_str_eq(plan.spec.isa, "auto");
    plan_done(&plan);
    profile.n_layers = 7;
    cr_expect_eq(plan_make(&config, &profile, &plan), ERR_ARGUMENT);
    config_done(&config);
}

/* The second hidden value is 16 wide, the third 4: where both cuts take as long but for 1 %, the
 * narrow one goes through the relay; where the wide one is faster, it does. */
Test(plan, near_ties_move_fewer_bytes) {
    static const ConfigSet narrow[] = {{"plan.stages", "2"},
                                       {"model.options.hidden", "[16, 16, 4]"}};
    double forward[8] = {1, 0, 100, 0, 2, 0, 100, 0};
    double backward[8] = {0};
    Profile profile = {8, forward, backward, "avx2"};
    JobConfig config = load(narrow, 2);
    Plan plan = make(&config, &profile);
    cr_expect_eq(plan.spec.ends[0], 5, "ends after %d layers", plan.spec.ends[0]);
    plan_done(&plan);
    forward[4] = 10;
    forward[6] = 60;
    plan = make(&config, &profile);
    cr_expect_leq(plan.spec.ends[0], 4, "ends after %d layers", plan.spec.ends[0]);
    plan_done(&plan);
    config_done(&config);
}

Test(plan, replicas_share_the_micro_batches) {
    static const ConfigSet sets[] = {{"plan.cut", "[4]"}, {"plan.replicas", "[1, 2]"}};
    JobConfig config = load(sets, 2);
    Plan plan = make(&config, NULL);
    cr_expect_eq(plan.n_workers, 3);
    const PlanWorker *second = plan_worker(&plan, 1, 1);
    cr_assert_not_null(second);
    cr_expect_not_null(strstr(second->program, "F1"));
    cr_expect_null(strstr(second->program, "F0"));
    cr_expect_null(plan_worker(&plan, 1, 2));
    JobConfig alone = with("plan.cut", "[4]");
    Plan without = make(&alone, NULL);
    cr_expect_gt(plan.step_bytes, without.step_bytes, "gradients are summed through the relay");
    plan_done(&without);
    config_done(&alone);
    plan_done(&plan);
    config_done(&config);
}

Test(plan, every_number_of_stages_up_to_the_layers) {
    for (int stages = 1; stages <= 8; stages++) {
        for (int schedule = 0; schedule < 2; schedule++) {
            char text[16];
            snprintf(text, sizeof text, "%d", stages);
            ConfigSet sets[] = {{"plan.stages", text},
                                {"plan.schedule", schedule ? "gpipe" : "1f1b"},
                                {"plan.recompute", stages % 2 ? "true" : "false"}};
            JobConfig config = load(sets, 3);
            Plan plan = make(&config, NULL);
            cr_expect_eq(plan.spec.n_stages, stages);
            cr_expect_eq(plan.spec.ends[stages - 1], 8);
            plan_done(&plan);
            config_done(&config);
        }
    }
}

/* 3000 objects of some bytes are 3000 pages of a file system in memory. */
Test(plan, holds_whole_pages) {
    static const ConfigSet sets[] = {{"plan.stages", "2"},
                                     {"data.eval", "null"},
                                     {"micro_batch", "1"},
                                     {"save.every_steps", "50"},
                                     {"limits.relay", "1GB"}};
    JobConfig config = load(sets, 5);
    Plan plan = make(&config, NULL);
    int64_t n_objects = 51 * (2 * 32 + 2 * 2); /* edges there and back, norms and saves */
    cr_expect_eq(plan.held_bytes, n_objects * 4096);
    cr_expect_lt(plan.step_bytes, 2 * 32 * (16 * 4 + 1) + 4096, "without headers and pages");
    plan_done(&plan);
    config_done(&config);
}

/* Sums that no integer holds are a limit, not a nonsense plan. */
Test(plan, more_than_can_be_counted) {
    static const ConfigSet sets[] = {{"plan.stages", "8"},
                                     {"model.options.hidden", "[524288, 524288, 524288]"},
                                     {"data.eval.samples", "1000000000000"},
                                     {"limits.relay", "9000000GB"}};
    JobConfig config = load(sets, 4);
    Plan plan;
    cr_expect_eq(plan_make(&config, NULL, &plan), ERR_INFEASIBLE);
    cr_expect(strstr(err_text(), "more than 8") && strstr(err_text(), "raise limits.relay"), "%s",
              err_text());
    config_done(&config);
}

Test(plan, saves_before_the_relay_is_full) {
    static const ConfigSet tight[] = {{"plan.stages", "2"}, {"limits.relay", "200kB"}};
    JobConfig config = load(tight, 2);
    Plan plan = make(&config, NULL);
    cr_expect_gt(plan.save_every, 0);
    cr_expect_lt(plan.save_every, 1000);
    cr_expect_leq(plan.held_bytes, 200000);
    plan_done(&plan);
    config_done(&config);
    static const ConfigSet wide[] = {
        {"plan.stages", "2"}, {"limits.relay", "200kB"}, {"save.every_steps", "1000"}};
    config = load(wide, 3);
    cr_expect_eq(plan_make(&config, NULL, &plan), ERR_INFEASIBLE);
    cr_expect(strstr(err_text(), "save.every_steps"), "%s", err_text());
    config_done(&config);
    static const ConfigSet nothing[] = {{"plan.stages", "2"}, {"limits.relay", "1kB"}};
    config = load(nothing, 2);
    cr_expect_eq(plan_make(&config, NULL, &plan), ERR_INFEASIBLE);
    config_done(&config);
}

/* The best balanced cut crosses wide layers. With less room in the relay the cut is the fastest
 * that fits; with too little, none. */
Test(plan, an_automatic_cut_leaves_the_relay_room) {
    double times[10] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const Profile profile = {10, times, times, "sse41"};
    char limit[32] = "1GB";
    const ConfigSet sets[] = {{"plan.stages", "2"},
                              {"model.options.hidden", "[64, 256, 2048, 2048]"},
                              {"data.eval", "null"},
                              {"save.every_steps", "10"},
                              {"limits.relay", limit}};
    double slowest = 0;
    int64_t held = INT64_MAX;
    int n_cuts = 0;
    for (;; n_cuts++) {
        JobConfig config = load(sets, 5);
        Plan plan;
        int rc = plan_make(&config, &profile, &plan);
        config_done(&config);
        if (rc < 0) {
            cr_expect_eq(rc, ERR_INFEASIBLE, "%s", err_text());
            cr_expect(strstr(err_text(), "limits.relay"), "%s", err_text());
            break;
        }
        double slow = plan.stage_us[plan.stage_us[1] > plan.stage_us[0]];
        cr_expect_lt(plan.held_bytes, held);
        cr_expect_gt(slow, slowest, "%g after %g", slow, slowest);
        cr_assert_lt(n_cuts, 8);
        slowest = slow;
        held = plan.held_bytes;
        snprintf(limit, sizeof limit, "%lldB", (long long)held - 1);
        plan_done(&plan);
    }
    cr_expect_geq(n_cuts, 3, "%d cuts", n_cuts);
}

/* The demo's sizes, on machines of all kinds. */
/* Behind the first layer a sample has 1000 values, of which the evaluation alone is too much;
 * behind the third 100, but the weights in front are summed over two replicas. With some steps
 * between saves the first cut holds less; only the second fits, with a save after each step or two.
 */
Test(plan, an_automatic_cut_that_fits_only_with_frequent_saves) {
    static const ConfigSet sets[] = {{"plan.stages", "2"},
                                     {"plan.replicas", "[2, 1]"},
                                     {"model.options.hidden", "[1000, 280, 100]"},
                                     {"data.eval.samples", "10000"},
                                     {"batch", "64"},
                                     {"micro_batch", "16"},
                                     {"limits.relay", "20MB"}};
    double forward[8] = {20, 0, 0.5, 0, 0.5, 0, 9, 0};
    double backward[8] = {0};
    Profile profile = {8, forward, backward, "avx2"};
    JobConfig config = load(sets, sizeof sets / sizeof sets[0]);
    Plan plan = make(&config, &profile);
    cr_expect(plan.spec.ends[0] == 5 || plan.spec.ends[0] == 6, "ends after %d layers",
              plan.spec.ends[0]);
    cr_expect_leq(plan.held_bytes, 20000000);
    plan_done(&plan);
    config_done(&config);
}

Test(plan, fits_the_relay_whatever_the_layers_take) {
    static const char text[] =
        "{\"version\": 1, \"name\": \"job\", \"model\": {\"zoo\": \"cnn\"},"
        " \"data\": {\"train\": {\"kind\": \"generated\", \"samples\": 60000},"
        "            \"eval\": {\"kind\": \"generated\", \"samples\": 10000}},"
        " \"batch\": 64, \"micro_batch\": 16, \"steps\": 1500, \"save\": {\"every_steps\": 20},"
        " \"plan\": {\"stages\": 3, \"replicas\": [1, 2, 1]},"
        " \"update\": {\"kind\": \"sgd\", \"lr\": 0.1}}";
    JobConfig config;
    cr_assert_eq(config_parse("job.json", text, strlen(text), "/", NULL, 0, 0, &config), 0, "%s",
                 err_text());
    enum { MAX_LAYERS = 100, PROFILES = 300 };
    double times[MAX_LAYERS];
    const Profile profile = {config.order.model.n_layers, times, times, "sse41"};
    cr_assert_leq(profile.n_layers, MAX_LAYERS);
    uint32_t state = 1;
    for (int i = 0; i < PROFILES; i++) {
        for (int32_t k = 0; k < profile.n_layers; k++) {
            state = state * 1664525 + 1013904223;
            times[k] = 1 + (state >> 16) % 1000;
        }
        Plan plan;
        cr_assert_eq(plan_make(&config, &profile, &plan), 0, "%d: %s", i, err_text());
        plan_done(&plan);
    }
    config_done(&config);
}

Test(plan, json_reads_back) {
    static const ConfigSet sets[] = {{"plan.cut", "[2, 4]"}, {"plan.replicas", "[1, 3, 2]"}};
    double times[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    Profile profile = {8, times, times, "sse41"};
    JobConfig config = load(sets, 2);
    Plan plan = make(&config, &profile);
    Plan again;
    Buf first;
    Buf second;
    buf_init(&first, 0);
    buf_init(&second, 0);
    cJSON *root = plan_to_json(&plan);
    cr_assert_eq(json_format(root, true, &first), 0);
    cr_assert_eq(plan_parse(root, "$", &again), 0, "%s", err_text());
    cJSON_Delete(root);
    root = plan_to_json(&again);
    cr_assert_eq(json_format(root, true, &second), 0);
    cJSON_Delete(root);
    cr_expect_str_eq(first.data, second.data);
    plan_done(&again);
    plan_done(&plan);
    config_done(&config);
    buf_done(&first);
    buf_done(&second);
}

Test(plan, json_that_is_no_plan) {
    JobConfig config = with("plan.stages", "2");
    Plan plan = make(&config, NULL);
    Plan again;
    static const char *const paths[] = {"version", "workers", "plan.ends", "balanced",
                                        "step_bytes"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        cJSON *root = plan_to_json(&plan);
        cr_assert_eq(json_set(root, paths[i], "[7]"), 0);
        cr_expect_lt(plan_parse(root, "$", &again), 0, "%s", paths[i]);
        cJSON_Delete(root);
    }
    cJSON *root = plan_to_json(&plan);
    cJSON *workers = cJSON_GetObjectItem(root, "workers");
    cJSON_ReplaceItemInArray(workers, 1, cJSON_Duplicate(cJSON_GetArrayItem(workers, 0), true));
    cr_expect_eq(plan_parse(root, "$", &again), ERR_FORMAT);
    cr_expect(strstr(err_text(), "twice"), "%s", err_text());
    cJSON_Delete(root);
    plan_done(&plan);
    config_done(&config);
}

Test(plan, a_pinned_job_makes_the_same_plan) {
    double times[8] = {1, 9, 1, 1, 1, 1, 1, 1};
    Profile profile = {8, times, times, "avx2"};
    JobConfig config = with("plan.stages", "3");
    Plan plan = make(&config, &profile);
    cr_assert_eq(plan_pin(&plan, &config), 0);
    Plan again = make(&config, NULL);
    cr_expect_arr_eq(plan.spec.ends, again.spec.ends, 3 * sizeof(int32_t));
    cr_expect_str_eq(again.spec.isa, "avx2");
    cr_expect_eq(again.save_every, plan.save_every);
    for (int i = 0; i < 3; i++)
        cr_expect_str_eq(again.workers[i].program, plan.workers[i].program);
    plan_done(&again);
    plan_done(&plan);
    config_done(&config);
}

Test(plan, describes_itself) {
    JobConfig config = with("plan.cut", "[4]");
    Plan plan = make(&config, NULL);
    Buf text;
    buf_init(&text, 0);
    cr_assert_eq(plan_describe(&plan, &config, true, &text), 0);
    cr_expect(strstr(text.data, "stage 0: layers 0 to 3 (fc1 .. relu2)"), "%s", text.data);
    cr_expect(strstr(text.data, "to stage 1: 512 B forward, 512 B back"), "%s", text.data);
    cr_expect(strstr(text.data, "a save every 1000 steps"), "%s", text.data);
    cr_expect(strstr(text.data, "1.0: <a0"), "%s", text.data);
    buf_done(&text);
    cJSON *root = plan_describe_json(&plan, &config);
    const cJSON *stage = cJSON_GetObjectItem(root, "stages")->child;
    const cJSON *edge = cJSON_GetObjectItem(stage, "edges")->child;
    cr_expect_eq(cJSON_GetArraySize(cJSON_GetObjectItem(stage, "layers")), 4);
    cr_expect_eq(cJSON_GetObjectItem(edge, "to_stage")->valuedouble, 1);
    cr_expect_eq(cJSON_GetObjectItem(edge, "forward_bytes")->valuedouble, 512);
    cr_expect_eq(cJSON_GetObjectItem(edge, "backward_bytes")->valuedouble, 512);
    cJSON_Delete(root);
    plan_done(&plan);
    config_done(&config);
}

static void describes(const ConfigSet *sets, int n_sets, const char *words, const char *not_these) {
    JobConfig config = load(sets, n_sets);
    Plan plan = make(&config, NULL);
    Buf text;
    buf_init(&text, 0);
    cr_assert_eq(plan_describe(&plan, &config, false, &text), 0);
    cr_expect(strstr(text.data, words), "'%s' is not in %s", words, text.data);
    cr_expect_null(strstr(text.data, not_these), "'%s' is in %s", not_these, text.data);
    buf_done(&text);
    plan_done(&plan);
    config_done(&config);
}

/* The words fit the job. */
Test(plan, describes_small_jobs) {
    static const ConfigSet shorter[] = {{"steps", "96"}};
    static const ConfigSet often[] = {{"save.every_steps", "1"}};
    static const ConfigSet idle[] = {{"plan.replicas", "9"}};
    static const ConfigSet one_idle[] = {{"plan.replicas", "2"}, {"micro_batch", "32"}};
    static const ConfigSet busy[] = {{"plan.replicas", "4"}};
    describes(shorter, 1, "held; a save at the end\n", "1000");
    describes(shorter, 1, "in 1 stage; 1 worker\n", "as given");
    describes(often, 1, "a save every step\n", "1 steps");
    describes(idle, 1, "nothing to do for replicas 4 to 8: there are only 4 micro-batches", "1 of");
    describes(one_idle, 2, "nothing to do for replica 1: there is only 1 micro-batch;", "1 of");
    describes(busy, 1, "4 replicas", "nothing to do");
}

/* ---- asking the worker ---- */

static char script[64];

/* A worker that is a shell script. */
static const char *fake(const char *body) {
    snprintf(script, sizeof script, "/tmp/funcpipe-test-XXXXXX");
    int fd = mkstemp(script);
    cr_assert_geq(fd, 0);
    dprintf(fd, "#!/bin/sh\n%s\n", body);
    fchmod(fd, 0700);
    close(fd);
    return script;
}

Test(profile, asks_the_worker) {
    JobConfig config = with("plan.stages", "2");
    Profile profile;
    const char *path = fake("cat >/dev/null; echo '{\"isa\":\"sse41\",\"layers\":["
                            "{\"forward_us\":1.5,\"backward_us\":2},{\"forward_us\":1,"
                            "\"backward_us\":2}]}'");
    cr_assert_eq(plan_profile(&config, path, 20000, NULL, &profile), 0, "%s", err_text());
    cr_expect_eq(profile.n_layers, 2);
    cr_expect_float_eq(profile.forward_us[0], 1.5, 0);
    cr_expect_str_eq(profile.isa, "sse41");
    profile_done(&profile);
    unlink(path);
    config_done(&config);
    config = load(NULL, 0); /* one stage: only the instruction set */
    path = fake("test \"$1\" = --isa && echo avx2");
    cr_assert_eq(plan_profile(&config, path, 20000, NULL, &profile), 0, "%s", err_text());
    cr_expect_eq(profile.n_layers, 0);
    cr_expect_str_eq(profile.isa, "avx2");
    unlink(path);
    config_done(&config);
}

/* The limits are those of the plan that will run: the one that measuring goes by may break them. */
Test(profile, measures_under_any_limit) {
    static const ConfigSet tight[] = {{"plan.stages", "2"}, {"limits.relay", "1kB"}};
    JobConfig config = load(tight, 2);
    Profile profile;
    const char *path = fake("cat >/dev/null; echo '{\"isa\":\"sse41\",\"layers\":["
                            "{\"forward_us\":1.5,\"backward_us\":2}]}'");
    cr_assert_eq(plan_profile(&config, path, 20000, NULL, &profile), 0, "%s", err_text());
    profile_done(&profile);
    unlink(path);
    config_done(&config);
}

Test(profile, says_what_went_wrong) {
    static const struct {
        const char *body;
        int code;
        const char *words;
    } cases[] = {
        {"exit 3", ERR_WORKER, "status 3"},
        {"kill -9 $$", ERR_WORKER, "signal 9"},
        {"exec sleep 100", ERR_TIMEOUT,
         "did not answer within 300ms; raise timeouts.wait, or say where to cut (plan.cut)"},
        {"echo nonsense", ERR_FORMAT, "profile"},
        {"echo '{\"isa\":\"avx2\"}'", ERR_FORMAT, "layers"}};
    JobConfig config = with("plan.stages", "2");
    Profile profile;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *path = fake(cases[i].body);
        cr_expect_eq(plan_profile(&config, path, i == 2 ? 300 : 20000, NULL, &profile),
                     cases[i].code, "%s: %s", cases[i].body, err_text());
        cr_expect(strstr(err_text(), cases[i].words), "%s", err_text());
        unlink(path);
    }
    cr_expect_eq(plan_profile(&config, "/no/such/worker", 1000, NULL, &profile), ERR_NOT_FOUND);
    cr_expect_eq(plan_profile_ms(&config), 300000);
    config_done(&config);
    config = with("timeouts.wait", "1s");
    cr_expect_eq(plan_profile_ms(&config), 120000, "short waits are no reason to hurry");
    config_done(&config);
}

Test(profile, can_be_stopped) {
    JobConfig config = with("plan.stages", "2");
    Profile profile;
    atomic_bool stop = true;
    const char *path = fake("exec sleep 100");
    cr_expect_eq(plan_profile(&config, path, 100000, &stop, &profile), ERR_CANCELLED);
    unlink(path);
    config_done(&config);
}

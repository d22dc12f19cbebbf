/* The Stage order: JSON both ways, the learning rate, the geometry of the data. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/order.h"

static cJSON *json(const char *text) {
    cJSON *value = NULL;
    cr_assert(ge(int, json_parse("test", text, strlen(text), 1 << 20, &value), 0), "%s: %s", text,
              err_text());
    return value;
}

static char *print(cJSON *take_value) {
    Buf text;
    buf_init(&text, 0);
    cr_assert(ne(ptr, take_value, NULL));
    cr_assert(ge(int, json_format(take_value, false, &text), 0), "%s", err_text());
    cJSON_Delete(take_value);
    return buf_take(&text, NULL);
}

/* ---- parts ---- */

static UpdateSpec parse_update(const char *text) {
    UpdateSpec update;
    cJSON *value = json(text);
    cr_assert(eq(int, order_parse_update(value, "$.update", &update), 0), "%s", err_text());
    cJSON_Delete(value);
    return update;
}

static void expect_update_error(const char *text, int code, const char *message) {
    UpdateSpec update;
    cJSON *value = json(text);
    cr_expect(eq(int, order_parse_update(value, "$.update", &update), code), "%s", text);
    cr_expect(eq(str, (char *)err_text(), (char *)message));
    cJSON_Delete(value);
}

Test(order, update_defaults) {
    UpdateSpec sgd = parse_update("{\"kind\":\"sgd\",\"lr\":0.1}");
    cr_expect(eq(dbl, sgd.lr, 0.1));
    cr_expect(eq(int, sgd.schedule, LR_CONSTANT));
    cr_expect(eq(dbl, sgd.momentum, 0));
    cr_expect(eq(dbl, sgd.weight_decay, 0));
    cr_expect(not(sgd.stop_on_nonfinite));
    UpdateSpec adamw = parse_update("{\"kind\":\"adamw\",\"lr\":0.001}");
    cr_expect(eq(dbl, adamw.beta1, 0.9));
    cr_expect(eq(dbl, adamw.beta2, 0.999));
    cr_expect(eq(dbl, adamw.eps, 1e-8));
    cr_expect(eq(dbl, adamw.weight_decay, 0.01));
}

Test(order, update_reads_back_equal) {
    static const char *const texts[] = {
        "{\"kind\":\"sgd\",\"lr\":0.1,\"schedule\":{\"kind\":\"cosine\",\"warmup_steps\":100,"
        "\"final_lr\":0.001},\"momentum\":0.9,\"weight_decay\":0.0005,\"clip_norm\":1,"
        "\"nesterov\":true,\"on_nonfinite\":\"stop\"}",
        "{\"kind\":\"sgd\",\"lr\":0.1,\"schedule\":{\"kind\":\"step\",\"warmup_steps\":0,"
        "\"every\":30,\"factor\":0.1},\"momentum\":0,\"weight_decay\":0,\"clip_norm\":0,"
        "\"nesterov\":false,\"on_nonfinite\":\"skip\"}",
        "{\"kind\":\"adamw\",\"lr\":0.0003,\"schedule\":{\"kind\":\"linear\",\"warmup_steps\":5,"
        "\"final_lr\":0},\"beta1\":0.8,\"beta2\":0.95,\"eps\":1e-9,\"weight_decay\":0,"
        "\"clip_norm\":0.5,\"on_nonfinite\":\"skip\"}",
        "{\"kind\":\"adamw\",\"lr\":0.0003,\"schedule\":{\"kind\":\"constant\",\"warmup_steps\":0},"
        "\"beta1\":0.9,\"beta2\":0.999,\"eps\":1e-08,\"weight_decay\":0.01,"
        "\"clip_norm\":0,\"on_nonfinite\":\"skip\"}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        UpdateSpec first = parse_update(texts[i]);
        char *text = print(order_update_to_json(&first));
        UpdateSpec second = parse_update(text);
        cr_expect(eq(int, memcmp(&first, &second, sizeof first), 0), "%s", text);
        char *again = print(order_update_to_json(&second));
        cr_expect(eq(str, text, again));
        free(text);
        free(again);
    }
}

Test(order, update_errors_name_the_path) {
    expect_update_error("{\"kind\":\"sdg\",\"lr\":1}", ERR_ARGUMENT,
                        "$.update.kind: unknown value 'sdg' (did you mean 'sgd'?)");
    expect_update_error("{\"kind\":\"sgd\"}", ERR_FORMAT, "$.update: the key 'lr' is missing");
    expect_update_error("{\"kind\":\"adamw\",\"lr\":1,\"momentum\":0.9}", ERR_FORMAT,
                        "$.update: unknown key 'momentum'");
    expect_update_error("{\"kind\":\"sgd\",\"lr\":1,\"momentum\":1}", ERR_ARGUMENT,
                        "$.update.momentum: 1 is not below 1");
    expect_update_error("{\"kind\":\"sgd\",\"lr\":1,\"nesterov\":true}", ERR_ARGUMENT,
                        "$.update.nesterov: needs a momentum above 0");
    expect_update_error("{\"kind\":\"sgd\",\"lr\":1,\"schedule\":{\"kind\":\"step\",\"every\":0,"
                        "\"factor\":0.1}}",
                        ERR_ARGUMENT, "$.update.schedule.every: 0 is outside 1 to 1099511627776");
    expect_update_error("{\"kind\":\"sgd\",\"lr\":1,\"schedule\":{\"kind\":\"constant\","
                        "\"final_lr\":0}}",
                        ERR_FORMAT, "$.update.schedule: unknown key 'final_lr'");
    expect_update_error("{\"kind\":\"sgd\",\"lr\":-1}", ERR_ARGUMENT,
                        "$.update.lr: -1 is outside 0 to 1e+09");
}

static DataSpec parse_data(const char *text) {
    DataSpec data;
    cJSON *value = json(text);
    cr_assert(eq(int, order_parse_data(value, "$.data", &data), 0), "%s", err_text());
    cJSON_Delete(value);
    return data;
}

static void expect_data_error(const char *text, int code, const char *message) {
    DataSpec data;
    cJSON *value = json(text);
    cr_expect(eq(int, order_parse_data(value, "$.data", &data), code), "%s", text);
    cr_expect(eq(str, (char *)err_text(), (char *)message));
    cJSON_Delete(value);
}

Test(order, data_reads_back_equal) {
    static const char *const texts[] = {
        "{\"kind\":\"idx\",\"inputs\":\"a.gz\",\"targets\":\"b\",\"mean\":[0.1307],"
        "\"std\":[0.3081],\"samples\":60000,\"shape\":[1,28,28],\"classes\":10}",
        "{\"kind\":\"npy\",\"inputs\":\"a.npy\",\"targets\":\"b.npy\",\"samples\":0,"
        "\"ignore_index\":-100}",
        "{\"kind\":\"tokens\",\"path\":\"t.bin\",\"dtype\":\"U32\",\"context\":128,\"samples\":7,"
        "\"vocab\":50257,\"classes\":50257}",
        "{\"kind\":\"generated\",\"seed\":\"18446744073709551615\",\"tokens\":true,\"samples\":64,"
        "\"shape\":[16],\"vocab\":32,\"classes\":32}",
        "{\"kind\":\"generated\",\"seed\":9007199254740991,\"tokens\":false,\"samples\":64}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        DataSpec first = parse_data(texts[i]);
        char *text = print(order_data_to_json(&first));
        DataSpec second = parse_data(text);
        cr_expect(eq(int, memcmp(&first, &second, sizeof first), 0), "%s", text);
        free(text);
    }
    DataSpec tokens = parse_data("{\"kind\":\"tokens\",\"path\":\"t\",\"context\":4}");
    cr_expect(eq(int, tokens.token_dtype, DTYPE_U16));
    DataSpec generated = parse_data(texts[3]);
    cr_expect(eq(u64, generated.seed, UINT64_MAX));
}

Test(order, data_errors_name_the_path) {
    expect_data_error("{\"kind\":\"idx\",\"inputs\":\"a\"}", ERR_FORMAT,
                      "$.data: the key 'targets' is missing");
    expect_data_error("{\"kind\":\"tokens\",\"path\":\"a\",\"contxt\":8}", ERR_FORMAT,
                      "$.data: the key 'context' is missing (is 'contxt' meant to be it?)");
    expect_data_error("{\"kind\":\"idx\",\"inputs\":\"a\",\"targets\":\"b\",\"mean\":[0]}",
                      ERR_ARGUMENT, "$.data: mean has 1 entry and std 0; they must be as many");
    expect_data_error("{\"kind\":\"idx\",\"inputs\":\"a\",\"targets\":\"b\",\"mean\":[0,0],"
                      "\"std\":[1,0]}",
                      ERR_ARGUMENT, "$.data.std[1]: 0 is not above 0");
    expect_data_error("{\"kind\":\"generated\",\"samples\":4,\"seed\":-1}", ERR_FORMAT,
                      "$.data.seed: expected a whole number from 0 to 2^53 - 1, or one below 2^64 "
                      "as text");
    expect_data_error("{\"kind\":\"generated\",\"samples\":4,\"seed\":\"18446744073709551616\"}",
                      ERR_FORMAT,
                      "$.data.seed: expected a whole number from 0 to 2^53 - 1, or one below 2^64 "
                      "as text");
    expect_data_error("{\"kind\":\"generated\",\"samples\":4,\"context\":4}", ERR_FORMAT,
                      "$.data: unknown key 'context'");
    char long_path[2100];
    memset(long_path, 'x', sizeof long_path);
    char text[2300];
    snprintf(text, sizeof text, "{\"kind\":\"tokens\",\"path\":\"%.*s\",\"context\":8}", 1024,
             long_path);
    expect_data_error(text, ERR_LIMIT, "$.data.path: 1024 characters, at most 1023 are allowed");
}

/* ---- the whole order ---- */

static void fill_model(Model *model) {
    Shape input = shape_1d(4);
    Shape target = {0};
    LayerAttr attr = model_attr_default(LAYER_LINEAR);
    attr.features = 3;
    cr_assert(eq(int, model_init(model, "tiny", DTYPE_F32, &input, DTYPE_I32, &target), 0));
    int32_t x = MODEL_VALUE_INPUT;
    x = model_add(model, LAYER_LINEAR, "fc1", &x, 1, &attr, NULL);
    cr_assert(ge(i32, x, 0), "%s", err_text());
    attr = model_attr_default(LAYER_RELU);
    x = model_add(model, LAYER_RELU, "relu", &x, 1, &attr, NULL);
    cr_assert(ge(i32, x, 0), "%s", err_text());
    int32_t ends[] = {x, MODEL_VALUE_TARGET};
    attr = model_attr_default(LAYER_CROSS_ENTROPY);
    cr_assert(ge(int, model_add(model, LAYER_CROSS_ENTROPY, "loss", ends, 2, &attr, NULL), 0), "%s",
              err_text());
    cr_assert(eq(int, model_check(model), 0), "%s", err_text());
}

static void fill_order(Order *order) {
    order_init(order);
    strcpy(order->job, "job-1");
    fill_model(&order->model);
    order->stage = 1;
    order->replica = 1;
    order->plan.n_stages = 2;
    order->plan.ends = calloc(2, sizeof *order->plan.ends);
    order->plan.replicas = calloc(2, sizeof *order->plan.replicas);
    order->plan.recompute = calloc(2, sizeof *order->plan.recompute);
    order->plan.ends[0] = 1;
    order->plan.ends[1] = 3;
    order->plan.replicas[0] = 1;
    order->plan.replicas[1] = 2;
    order->plan.recompute[0] = true;
    strcpy(order->plan.schedule, "1f1b");
    order->plan.micro_rows = 3;
    order->plan.n_micro = 3;
    order->program = strdup("<a1 F1 B1 >g1 R U");
    order->eval_program = strdup("<a1 F1");
    order->train = parse_data("{\"kind\":\"generated\",\"samples\":20,\"seed\":7}");
    order->eval = parse_data("{\"kind\":\"generated\",\"samples\":5,\"seed\":8}");
    order->has_eval = true;
    order->train_samples = 20;
    order->eval_samples = 5;
    order->batch = 8;
    order->shuffle = true;
    order->seed = UINT64_MAX - 1;
    order->update = parse_update("{\"kind\":\"sgd\",\"lr\":0.1}");
    order->n_steps = 30;
    order->first_step = 10;
    order->end_step = 20;
    order->save_every = 10;
    strcpy(order->relay_url, "mem://x");
    strcpy(order->store_path, "/tmp/store");
    strcpy(order->resume_path, "/tmp/store/10");
}

static char *format_order(const Order *order) {
    Buf text;
    buf_init(&text, 0);
    cr_assert(eq(int, order_format(order, &text), 0), "%s", err_text());
    return buf_take(&text, NULL);
}

Test(order, reads_back_equal) {
    Order order;
    Order copy;
    Order again;
    fill_order(&order);
    char *text = format_order(&order);
    cr_assert(eq(int, order_parse("o", text, strlen(text), &again), 0), "%s", err_text());
    cr_assert(eq(int, order_copy(&again, &copy), 0), "%s", err_text());
    char *second = format_order(&copy);
    cr_expect(eq(str, text, second));
    cr_expect(eq(u64, copy.seed, UINT64_MAX - 1));
    cr_expect(eq(i32, copy.replica, 1));
    cr_expect(eq(str, copy.program, order.program));
    cr_expect(copy.plan.recompute[0] && !copy.plan.recompute[1]);
    cr_expect(copy.has_eval);
    cr_expect(eq(u64, model_hash(&copy.model), model_hash(&order.model)));
    free(text);
    free(second);
    order_done(&order);
    order_done(&copy);
    order_done(&again);
    order_done(&again); /* twice is harmless */
    order_done(NULL);
}

static void expect_order_error(const char *find, const char *put, int code, const char *message) {
    Order order;
    fill_order(&order);
    char *text = format_order(&order);
    char *at = strstr(text, find);
    cr_assert(ne(ptr, at, NULL), "%s", find);
    Buf changed;
    buf_init(&changed, 0);
    buf_add(&changed, text, (size_t)(at - text));
    buf_text(&changed, put);
    buf_text(&changed, at + strlen(find));
    Order out;
    cr_expect(eq(int, order_parse("o.json", buf_string(&changed), changed.bytes, &out), code));
    cr_expect(eq(str, (char *)err_text(), (char *)message));
    buf_done(&changed);
    free(text);
    order_done(&order);
}

Test(order, errors_name_the_path) {
    expect_order_error("\"version\":1", "\"version\":2", ERR_UNSUPPORTED,
                       "o.json: $.version: order version 2, this worker knows 1");
    expect_order_error("\"heartbeat_ms\":1000", "\"heartbeat_ms\":1000,\"x\":1", ERR_FORMAT,
                       "o.json: $: unknown key 'x'");
    expect_order_error("\"stage\":1", "\"stage\":2", ERR_ARGUMENT,
                       "o.json: $.stage: 2, but the plan has 2 stages");
    expect_order_error("\"replica\":1", "\"replica\":2", ERR_ARGUMENT,
                       "o.json: $.replica: 2, but stage 1 has 2 replicas");
    expect_order_error("\"n_micro\":3", "\"n_micro\":4", ERR_ARGUMENT,
                       "o.json: $.plan.n_micro: 4, but a batch of 8 in micro-batches of 3 rows "
                       "has 3");
    expect_order_error("\"ends\":[1,3]", "\"ends\":[1,2]", ERR_ARGUMENT,
                       "o.json: $.plan.ends: the last stage ends at layer 2, expected 3");
    expect_order_error("\"ends\":[1,3]", "\"ends\":[3,3]", ERR_ARGUMENT,
                       "o.json: $.plan.ends[1]: 3 does not come after 3");
    expect_order_error("\"replicas\":[1,2]", "\"replicas\":[1]", ERR_ARGUMENT,
                       "o.json: $.plan.replicas: 1 entries, expected one a stage (2)");
    expect_order_error("\"recompute\":[true,false]", "\"recompute\":[true,0]", ERR_FORMAT,
                       "o.json: $.plan.recompute[1]: expected true or false");
    expect_order_error("\"end_step\":20", "\"end_step\":31", ERR_ARGUMENT,
                       "o.json: $: the slice [10, 31) does not lie in the 30 steps");
    expect_order_error("\"resume_path\":\"/tmp/store/10\"", "\"resume_path\":\"\"", ERR_ARGUMENT,
                       "o.json: $.first_step: 10, but without resume_path it must be 0");
    expect_order_error("\"job\":\"job-1\"", "\"job\":\"../x\"", ERR_ARGUMENT,
                       "o.json: $.job: the job name '../x' may not begin with '.'");
    expect_order_error("\"program\":\"<a1 F1 B1 >g1 R U\",", "", ERR_ARGUMENT,
                       "o.json: $.program: missing");
}

/* Marks of files, which the data of a job file does not have. */
static void fill_marks(Order *order) {
    order->train = parse_data("{\"kind\":\"npy\",\"inputs\":\"a.npy\",\"targets\":\"b.npy\"}");
    order->train.marks[0] = (DataMark){1 << 20, UINT64_C(1700000000123456789), UINT64_MAX};
    order->train.marks[1] = (DataMark){200, 0, 7};
    order->eval = parse_data("{\"kind\":\"tokens\",\"path\":\"t.bin\",\"context\":8}");
    order->eval.marks[0] = (DataMark){300, 1, 8};
}

static const char marks_text[] =
    "\"train_marks\":[{\"bytes\":1048576,\"modified_ns\":\"1700000000123456789\","
    "\"inode\":\"18446744073709551615\"},{\"bytes\":200,\"modified_ns\":0,\"inode\":7}]";

Test(order, marks_of_files_read_back_equal) {
    Order order, again;
    fill_order(&order);
    fill_marks(&order);
    char *text = format_order(&order);
    cr_expect(ne(ptr, strstr(text, marks_text), NULL), "%s", text);
    cr_expect(ne(
        ptr, strstr(text, "\"eval_marks\":[{\"bytes\":300,\"modified_ns\":1,\"inode\":8}]"), NULL));
    cr_assert(eq(int, order_parse("o", text, strlen(text), &again), 0), "%s", err_text());
    cr_expect(eq(int, memcmp(order.train.marks, again.train.marks, sizeof order.train.marks), 0));
    cr_expect(eq(int, memcmp(order.eval.marks, again.eval.marks, sizeof order.eval.marks), 0));
    free(text);
    char *data = print(order_data_to_json(&order.train)); /* what the stored job file has */
    cr_expect(eq(ptr, strstr(data, "bytes"), NULL));
    free(data);
    order_done(&order);
    order_done(&again);
}

Test(order, wrong_marks_name_the_path) {
    static const char generated[] = "\"train_marks\":[{\"bytes\":1,\"modified_ns\":0,\"inode\":0}],"
                                    "\"heartbeat_ms\"";
    expect_order_error("\"heartbeat_ms\"", generated, ERR_FORMAT,
                       "o.json: $.train_marks: expected an array of 0, one a file of the data");
    Order order, out;
    fill_order(&order);
    fill_marks(&order);
    struct {
        const char *find, *put, *message;
    } cases[] = {
        {"\"bytes\":200", "\"bytes\":0", "$.train_marks[1].bytes: must not be 0"},
        {"\"bytes\":200,", "", "$.train_marks[1]: the key 'bytes' is missing"},
        {"\"inode\":7", "\"inode\":-7", "$.train_marks[1].inode: expected a whole number"},
        {"\"inode\":7", "\"inode\":7,\"device\":1", "$.train_marks[1]: unknown key 'device'"},
        {",{\"bytes\":200,\"modified_ns\":0,\"inode\":7}", "",
         "$.train_marks: expected an array of 2, one a file of the data"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = format_order(&order);
        char *at = strstr(text, cases[i].find);
        Buf changed;
        buf_init(&changed, 0);
        buf_add(&changed, text, (size_t)(at - text));
        buf_text(&changed, cases[i].put);
        buf_text(&changed, at + strlen(cases[i].find));
        cr_expect(lt(int, order_parse("o", buf_string(&changed), changed.bytes, &out), 0));
        cr_expect(ne(ptr, strstr(err_text(), cases[i].message), NULL), "%s", err_text());
        buf_done(&changed);
        free(text);
    }
    order_done(&order);
}

Test(order, format_refuses_what_parse_would) {
    Order order;
    Buf text;
    buf_init(&text, 0);
    fill_order(&order);
    order.batch = -1;
    cr_expect(eq(int, order_format(&order, &text), ERR_ARGUMENT));
    cr_expect(eq(str, (char *)err_text(), "order.batch: -1 is not from 1 to 1099511627776"));
    cr_expect(eq(sz, text.bytes, 0));
    order.batch = 8;
    strcpy(order.store_path, "/tmp/\xFF");
    cr_expect(eq(int, order_format(&order, &text), ERR_ARGUMENT));
    cr_expect(eq(str, (char *)err_text(), "order.store_path: '/tmp/\\xff' is not valid UTF-8"));
    cr_expect(eq(sz, text.bytes, 0));
    order_done(&order);
    buf_done(&text);
}

Test(order, cut_text_is_an_error_everywhere) {
    Order order;
    fill_order(&order);
    char *text = format_order(&order);
    size_t length = strlen(text);
    for (size_t n = 0; n < length; n += 7) {
        Order out;
        cr_expect(lt(int, order_parse("o", text, n, &out), 0), "%zu", n);
    }
    free(text);
    order_done(&order);
}

/* ---- learning rate ---- */

Test(order, learning_rate_closed_forms) {
    UpdateSpec u = parse_update("{\"kind\":\"sgd\",\"lr\":0.4,\"schedule\":{\"kind\":\"cosine\","
                                "\"warmup_steps\":4,\"final_lr\":0.1}}");
    for (int64_t step = 0; step < 4; step++)
        cr_expect(eq(dbl, order_lr(&u, step, 15), 0.4 * (double)(step + 1) / 4.0));
    cr_expect(eq(dbl, order_lr(&u, 4, 15), 0.4));
    cr_expect(lt(dbl, fabs(order_lr(&u, 9, 15) - 0.25), 1e-15)); /* half-way */
    cr_expect(lt(dbl, fabs(order_lr(&u, 14, 15) - 0.1), 1e-15)); /* the last step */
    for (int64_t step = 4; step < 15; step++) {
        double expected = 0.1 + 0.15 * (1.0 + cos(M_PI * (double)(step - 4) / 10.0));
        cr_expect(lt(dbl, fabs(order_lr(&u, step, 15) - expected), 1e-15));
    }
    u.schedule = LR_LINEAR;
    cr_expect(lt(dbl, fabs(order_lr(&u, 9, 15) - 0.25), 1e-15));
    cr_expect(lt(dbl, fabs(order_lr(&u, 14, 15) - 0.1), 1e-15));
    cr_expect(lt(dbl, fabs(order_lr(&u, 99, 15) - 0.1), 1e-15)); /* beyond the end: stays */
    u.schedule = LR_CONSTANT;
    cr_expect(eq(dbl, order_lr(&u, 14, 15), 0.4));
    u = parse_update("{\"kind\":\"sgd\",\"lr\":1,\"schedule\":{\"kind\":\"step\","
                     "\"warmup_steps\":2,\"every\":3,\"factor\":0.5}}");
    static const double expected[] = {0.5, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25};
    for (int64_t step = 0; step < 9; step++)
        cr_expect(eq(dbl, order_lr(&u, step, 9), expected[step]));
}

Test(order, learning_rate_of_short_jobs) {
    UpdateSpec u = parse_update("{\"kind\":\"sgd\",\"lr\":0.4,\"schedule\":{\"kind\":\"cosine\"}}");
    cr_expect(eq(dbl, order_lr(&u, 0, 1), 0.4)); /* the only step is not wasted at rate 0 */
    u.warmup_steps = 10;
    cr_expect(eq(dbl, order_lr(&u, 2, 3), 0.4 * 3 / 10));
}

/* ---- geometry ---- */

Test(order, micro_batches_of_a_batch) {
    int64_t first = -1;
    cr_expect(eq(i32, order_micro_rows(8, 3, 0, &first), 3));
    cr_expect(eq(i64, first, 0));
    cr_expect(eq(i32, order_micro_rows(8, 3, 1, &first), 3));
    cr_expect(eq(i64, first, 3));
    cr_expect(eq(i32, order_micro_rows(8, 3, 2, &first), 2));
    cr_expect(eq(i64, first, 6));
    /* The epoch's last batch has 2 rows: micros 1 and 2 are empty. */
    cr_expect(eq(i32, order_micro_rows(2, 3, 0, &first), 2));
    cr_expect(eq(i32, order_micro_rows(2, 3, 1, &first), 0));
    cr_expect(eq(i64, first, 2));
    cr_expect(eq(i32, order_micro_rows(2, 3, 2, &first), 0));
    cr_expect(eq(i64, first, 2));
}

Test(order, last_batch_of_an_epoch_may_be_short) {
    cr_expect(eq(i64, order_steps_per_epoch(20, 8), 3));
    cr_expect(eq(i64, order_steps_per_epoch(16, 8), 2));
    cr_expect(eq(i64, order_steps_per_epoch(3, 8), 1));
    static const int64_t rows[] = {8, 8, 4, 8, 8, 4};
    for (int64_t step = 0; step < 6; step++)
        cr_expect(eq(i64, order_batch_rows(20, 8, step), rows[step]));
    cr_expect(eq(i64, order_batch_rows(3, 8, 5), 3));
}

Test(order, an_epoch_uses_each_sample_once) {
    static const int64_t sizes[] = {1, 2, 7, 20, 64, 1000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t n = sizes[i];
        int64_t steps = order_steps_per_epoch(n, 8);
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            int *used = calloc((size_t)n, sizeof *used);
            for (int64_t step = epoch * steps; step < (epoch + 1) * steps; step++) {
                for (int64_t row = 0; row < order_batch_rows(n, 8, step); row++) {
                    int64_t sample = order_sample(42, true, n, 8, step, row);
                    cr_assert(sample >= 0 && sample < n);
                    used[sample]++;
                }
            }
            for (int64_t s = 0; s < n; s++)
                cr_expect(eq(int, used[s], 1), "n %lld sample %lld", (long long)n, (long long)s);
            free(used);
        }
    }
    cr_expect(eq(i64, order_sample(42, false, 20, 8, 4, 3), 11)); /* in order: second epoch */
    int same = 0;
    for (int64_t row = 0; row < 8; row++)
        same +=
            order_sample(42, true, 1000, 8, 0, row) == order_sample(42, true, 1000, 8, 125, row);
    cr_expect(lt(int, same, 8)); /* epochs differ */
}

Test(order, saves_and_evaluations_are_of_the_job) {
    Order order;
    order_init(&order);
    order.n_steps = 10;
    cr_expect(order_save_due(&order, 9));
    cr_expect(not(order_save_due(&order, 4)));
    cr_expect(not(order_eval_due(&order, 9))); /* no evaluation data */
    order.has_eval = true;
    order.save_every = 4;
    order.eval_every = 5;
    cr_expect(order_save_due(&order, 3));
    cr_expect(not(order_save_due(&order, 4)));
    cr_expect(order_eval_due(&order, 4));
    cr_expect(order_eval_due(&order, 9));
    cr_expect(not(order_eval_due(&order, 3)));
    cr_expect(eq(i32, order_micro_owner(3, 7), 1));
}

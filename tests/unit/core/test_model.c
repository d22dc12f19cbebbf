/* Models: the shape rules of each layer kind and their refusals, parameters, the JSON form. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/model.h"

typedef struct Case {
    LayerKind kind;
    DType dtype;
    Shape in;
    LayerAttr attr;
    const char *expected; /* the output's shape, or words of the error */
} Case;

#define DIMS(...)                                                                                  \
    {                                                                                              \
        sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), {                                      \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define F DTYPE_F32
#define I DTYPE_I32

static const Case GOOD[] = {
    {LAYER_LINEAR, F, DIMS(7), {.features = 5, .bias = true}, "(5)"},
    {LAYER_LINEAR, F, DIMS(3, 4, 7), {.features = 5}, "(3, 4, 5)"},
    {LAYER_CONV2D, F, DIMS(3, 28, 20), {.features = 8, .kernel = 3, .stride = 1}, "(8, 26, 18)"},
    {LAYER_CONV2D,
     F,
     DIMS(3, 28, 27),
     {.features = 8, .kernel = 3, .stride = 2, .pad = 1, .bias = true},
     "(8, 14, 14)"},
    {LAYER_CONV2D, F, DIMS(3, 4, 4), {.features = 8, .kernel = 4, .stride = 7}, "(8, 1, 1)"},
    {LAYER_BATCHNORM, F, DIMS(6, 5, 4), {.eps = 1e-5F, .momentum = 0.1F}, "(6, 5, 4)"},
    {LAYER_BATCHNORM, F, DIMS(6), {.eps = 1e-5F, .momentum = 1}, "(6)"},
    {LAYER_LAYERNORM, F, DIMS(9, 6), {.eps = 1e-12F}, "(9, 6)"},
    {LAYER_RELU, F, DIMS(2, 3, 4), {0}, "(2, 3, 4)"},
    {LAYER_GELU, F, DIMS(2), {0}, "(2)"},
    {LAYER_ADD, F, DIMS(2, 3), {0}, "(2, 3)"},
    {LAYER_DROPOUT, F, DIMS(2, 3), {.p = 0}, "(2, 3)"},
    {LAYER_MAXPOOL2D, F, DIMS(3, 9, 8), {.kernel = 2, .stride = 2}, "(3, 4, 4)"},
    {LAYER_MAXPOOL2D, F, DIMS(3, 9, 8), {.kernel = 3, .stride = 2, .pad = 1}, "(3, 5, 4)"},
    {LAYER_AVGPOOL2D, F, DIMS(3, 9, 8), {0}, "(3)"},
    {LAYER_FLATTEN, F, DIMS(3, 9, 8), {0}, "(216)"},
    {LAYER_EMBEDDING, I, DIMS(11), {.vocab = 50, .features = 6}, "(11, 6)"},
    {LAYER_POSITION, F, DIMS(11, 6), {0}, "(11, 6)"},
    {LAYER_ATTENTION, F, DIMS(11, 24), {.heads = 4, .causal = true}, "(11, 8)"},
    {LAYER_DELAY, F, DIMS(4), {.forward_us = 10, .backward_us = 20}, "(4)"},
};

static const Case BAD[] = {
    {LAYER_LINEAR, I, DIMS(7), {.features = 5}, "input 'input' is I32, expected F32 (..., D)"},
    {LAYER_LINEAR, F, {0}, {.features = 5}, "has shape (), expected (..., D)"},
    {LAYER_LINEAR, F, DIMS(7), {0}, "features is 0, expected 1 to"},
    {LAYER_LINEAR, F, DIMS(7), {.features = -3}, "features is -3"},
    {LAYER_LINEAR, F, DIMS(7), {.features = 5, .kernel = 3}, "no attribute 'kernel'"},
    {LAYER_LINEAR, F, DIMS(1 << 30), {.features = 1 << 30}, "weight"},
    {LAYER_CONV2D, F, DIMS(28, 20), {.features = 8, .kernel = 3, .stride = 1}, "(C, H, W)"},
    {LAYER_CONV2D, F, DIMS(1, 2, 9), {.features = 8, .kernel = 3, .stride = 1}, "does not fit"},
    {LAYER_CONV2D, F, DIMS(1, 9, 9), {.features = 8, .kernel = 3}, "stride is 0"},
    {LAYER_CONV2D, F, DIMS(1, 9, 9), {.features = 8, .kernel = 3, .stride = 1, .pad = -1}, "pad"},
    {LAYER_BATCHNORM, F, DIMS(6, 5), {.eps = 1e-5F, .momentum = 0.1F}, "(C, H, W) or (C)"},
    {LAYER_BATCHNORM, F, DIMS(6), {.eps = 0, .momentum = 0.1F}, "eps is 0"},
    {LAYER_BATCHNORM, F, DIMS(6), {.eps = NAN, .momentum = 0.1F}, "eps is nan"},
    {LAYER_BATCHNORM, F, DIMS(6), {.eps = 1e-5F, .momentum = 1.5F}, "momentum is 1.5"},
    {LAYER_LAYERNORM, F, {0}, {.eps = 1e-5F}, "expected (..., D)"},
    {LAYER_RELU, I, DIMS(6), {0}, "is I32"},
    {LAYER_RELU, F, DIMS(6), {.p = 0.5F}, "no attribute 'p'"},
    {LAYER_DROPOUT, F, DIMS(6), {.p = 1}, "p is 1"},
    {LAYER_DROPOUT, F, DIMS(6), {.p = -0.5F}, "p is -0.5"},
    {LAYER_MAXPOOL2D, F, DIMS(3, 9, 8), {.kernel = 3, .stride = 2, .pad = 2}, "half the kernel"},
    {LAYER_MAXPOOL2D, F, DIMS(3, 1, 8), {.kernel = 2, .stride = 2}, "does not fit"},
    {LAYER_AVGPOOL2D, F, DIMS(3, 9), {0}, "(C, H, W)"},
    {LAYER_FLATTEN, F, {0}, {0}, "at least one dimension"},
    {LAYER_EMBEDDING, F, DIMS(11), {.vocab = 50, .features = 6}, "is F32, expected I32 (T)"},
    {LAYER_EMBEDDING, I, DIMS(11, 2), {.vocab = 50, .features = 6}, "expected (T)"},
    {LAYER_EMBEDDING, I, DIMS(11), {.features = 6}, "vocab is 0"},
    {LAYER_POSITION, F, DIMS(11), {0}, "expected (T, D)"},
    {LAYER_ATTENTION, F, DIMS(11, 24), {.heads = 3}, "a multiple of 3 heads"},
    {LAYER_ATTENTION, F, DIMS(24), {.heads = 2}, "expected (T, 3D)"},
    {LAYER_DELAY, F, DIMS(4), {.forward_us = -1}, "forward_us is -1"},
    {LAYER_RELU, F, DIMS(4), {.has_ignore = true}, "no attribute 'ignore_index'"},
};

static int add_case(Model *model, const Case *c) {
    int32_t inputs[2] = {MODEL_VALUE_INPUT, MODEL_VALUE_INPUT};
    cr_assert_geq(model_init(model, "m", c->dtype, &c->in, DTYPE_I32, &(Shape){0}), 0, "%s",
                  err_text());
    return model_add(model, c->kind, "x", inputs, c->kind == LAYER_ADD ? 2 : 1, &c->attr, NULL);
}

Test(model, infers_the_shape_of_every_kind) {
    bool seen[LAYER_N_KINDS] = {[LAYER_CROSS_ENTROPY] = true};
    for (size_t i = 0; i < sizeof GOOD / sizeof GOOD[0]; i++) {
        Model model;
        char text[160];
        seen[GOOD[i].kind] = true;
        int rc = add_case(&model, &GOOD[i]);
        cr_assert_eq(rc, 2, "%s", err_text());
        cr_expect_str_eq(shape_format(&model.values[2].shape, text, sizeof text), GOOD[i].expected,
                         "%s gives %s", layer_kind_name(GOOD[i].kind), text);
        cr_expect_eq(model.values[2].dtype, DTYPE_F32);
        model_done(&model);
    }
    for (int kind = 0; kind < LAYER_N_KINDS; kind++)
        cr_expect(seen[kind], "%s is not tested", layer_kind_name(kind));
}

Test(model, refuses_wrong_shapes_and_attributes_and_adds_nothing) {
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        Model model;
        int rc = add_case(&model, &BAD[i]);
        cr_assert_lt(rc, 0, "case %zu", i);
        char layer[64];
        snprintf(layer, sizeof layer, "layer 'x' (%s): ", layer_kind_name(BAD[i].kind));
        cr_expect(strncmp(err_text(), layer, strlen(layer)) == 0, "%s", err_text());
        cr_expect(strstr(err_text(), BAD[i].expected), "case %zu: %s", i, err_text());
        cr_expect_eq(model.n_values, 2);
        cr_expect_eq(model.n_layers, 0);
        cr_expect_eq(model.n_params, 0);
        cr_expect_eq(model.values[0].n_consumers, 0);
        cr_expect_eq(model_find_value(&model, "x"), -1);
        model_done(&model);
    }
}

Test(model, refuses_wrong_data) {
    Model model;
    Shape scalar = {0};
    Shape too_many = DIMS(1, 1, 1, 1, 1, 1);
    Shape zero = DIMS(4, 0);
    Shape huge = DIMS((int64_t)1 << 32);
    Shape product = DIMS(1 << 30, 1 << 30);
    cr_expect_eq(model_init(&model, "m", F, &too_many, I, &scalar), ERR_LIMIT);
    cr_expect(strstr(err_text(), "input has 6 dimensions"), "%s", err_text());
    cr_expect_eq(model_init(&model, "m", F, &zero, I, &scalar), ERR_LIMIT);
    cr_expect_eq(model_init(&model, "m", F, &huge, I, &scalar), ERR_LIMIT);
    cr_expect_eq(model_init(&model, "m", F, &product, I, &scalar), ERR_LIMIT);
    cr_expect_eq(model_init(&model, "m", DTYPE_U8, &scalar, I, &scalar), ERR_ARGUMENT);
    cr_expect_lt(model_init(&model, "", F, &scalar, I, &scalar), 0);
    cr_expect_lt(model_init(&model, "a b", F, &scalar, I, &scalar), 0);
    cr_expect_null(model.values);
    model_done(&model); /* after a failed init, twice, and NULL */
    model_done(&model);
    model_done(NULL);
}

Test(model, refuses_wrong_names_and_inputs) {
    Model model;
    Shape shape = DIMS(4);
    int32_t input = MODEL_VALUE_INPUT;
    cr_assert_eq(model_init(&model, "m", F, &shape, I, &(Shape){0}), 0);
    cr_assert_eq(model_add(&model, LAYER_RELU, "a", &input, 1, NULL, NULL), 2);
    cr_expect_lt(model_add(&model, LAYER_RELU, "a", &input, 1, NULL, NULL), 0);
    cr_expect(strstr(err_text(), "'a'") && strstr(err_text(), "taken by another layer"), "%s",
              err_text());
    cr_expect_lt(model_add(&model, LAYER_RELU, "target", &input, 1, NULL, NULL), 0);
    cr_expect_lt(model_add(&model, LAYER_RELU, "a/b", &input, 1, NULL, NULL), 0);
    cr_expect_lt(model_add(&model, LAYER_N_KINDS, "b", &input, 1, NULL, NULL), 0);
    cr_expect_lt(model_add(&model, LAYER_ADD, "b", &input, 1, NULL, NULL), 0);
    cr_expect(strstr(err_text(), "1 input, expected 2"), "%s", err_text());
    cr_expect_lt(model_add(&model, LAYER_RELU, "b", &(int32_t){3}, 1, NULL, NULL), 0);
    cr_expect_lt(model_add(&model, LAYER_RELU, "b", &(int32_t){-1}, 1, NULL, NULL), 0);
    char longest[84];
    memset(longest, 'n', sizeof longest);
    longest[83] = '\0';
    cr_expect_lt(model_add(&model, LAYER_BATCHNORM, longest, &input, 1, NULL, NULL), 0);
    longest[82] = '\0';
    cr_assert_eq(model_add(&model, LAYER_BATCHNORM, longest, &input, 1, NULL, NULL), 3, "%s",
                 err_text());
    cr_expect_eq(strlen(model.params[2].name), MODEL_NAME_BYTES - 1);
    cr_expect_eq(model_find_param(&model, model.params[2].name), 2);
    model_done(&model);
}

Test(model, makes_parameters_with_names_roles_and_starts) {
    Model model;
    Shape shape = DIMS(3, 8, 8);
    int32_t at = MODEL_VALUE_INPUT;
    LayerAttr conv = model_attr_default(LAYER_CONV2D);
    conv.features = 4;
    conv.kernel = 3;
    conv.bias = true;
    cr_assert_eq(model_init(&model, "m", F, &shape, I, &(Shape){0}), 0);
    at = model_add(&model, LAYER_CONV2D, "conv1", &at, 1, &conv, NULL);
    at = model_add(&model, LAYER_BATCHNORM, "bn1", &at, 1, NULL, NULL);
    cr_assert_eq(at, 3, "%s", err_text());
    static const struct {
        const char *name;
        Shape shape;
        ParamRole role;
        InitKind init;
        bool no_decay;
    } expected[] = {
        {"conv1.weight", DIMS(4, 3, 3, 3), PARAM_WEIGHT, INIT_UNIFORM, false},
        {"conv1.bias", DIMS(4), PARAM_WEIGHT, INIT_UNIFORM, true},
        {"bn1.weight", DIMS(4), PARAM_WEIGHT, INIT_ONES, true},
        {"bn1.bias", DIMS(4), PARAM_WEIGHT, INIT_ZEROS, true},
        {"bn1.running_mean", DIMS(4), PARAM_STATISTIC, INIT_ZEROS, true},
        {"bn1.running_var", DIMS(4), PARAM_STATISTIC, INIT_ONES, true},
    };
    cr_assert(model.params && model.n_params == 6);
    for (int i = 0; i < 6; i++) {
        const Param *param = &model.params[i];
        cr_expect_str_eq(param->name, expected[i].name);
        cr_expect(shape_equal(&param->shape, &expected[i].shape), "%s", param->name);
        cr_expect_eq(param->role, expected[i].role);
        cr_expect_eq(param->init, expected[i].init);
        cr_expect_eq(param->no_decay, expected[i].no_decay);
        cr_expect_eq(param->n_uses, 1);
        cr_expect_eq(model_find_param(&model, param->name), i);
    }
    cr_expect_float_eq(model.params[0].init_scale, 1 / sqrt(27), 1e-7);
    cr_expect_float_eq(model.params[1].init_scale, 1 / sqrt(27), 1e-7);
    cr_expect_eq(model_param_elements(&model, 0), 108);
    cr_expect_eq(model_find_param(&model, "conv1.running_mean"), -1);
    cr_expect_eq(model_find_param(&model, "input.weight"), -1);
    cr_expect_eq(model_find_param(&model, "conv1"), -1);
    model_done(&model);
}

/* JSON with ' for ", so that it can be read here. */
static int parse(const char *text, Model *out_model) {
    char *json = strdup(text);
    for (char *c = json; *c; c++)
        if (*c == '\'')
            *c = '"';
    cJSON *value = NULL;
    int rc = json_parse("test", json, strlen(json), 1 << 20, &value);
    cr_assert_geq(rc, 0, "%s", err_text());
    rc = model_parse(value, "$.model", out_model);
    cJSON_Delete(value);
    free(json);
    return rc;
}

#define DATA(shape)                                                                                \
    "{'name':'m','input':{'dtype':'F32','shape':" shape "},"                                       \
    "'target':{'dtype':'I32','shape':[]},'layers':["
#define LOSS ",{'name':'loss','kind':'cross_entropy'}]}"

Test(model, reads_json_with_everything_left_out) {
    Model model;
    int rc = parse(DATA("[1,9,9]") "{'name':'c','kind':'conv2d','features':4,'kernel':3},"
                                   "{'name':'p','kind':'maxpool2d','kernel':3},"
                                   "{'name':'f','kind':'flatten'},"
                                   "{'name':'d','kind':'dropout','p':0.1}" LOSS,
                   &model);
    cr_assert_eq(rc, 0, "%s", err_text());
    cr_expect_eq(model.layers[0].inputs[0], MODEL_VALUE_INPUT);
    cr_expect_eq(model.layers[1].attr.stride, 3);
    cr_expect(model.layers[3].attr.p == 0.1F);
    cr_expect_eq(model.layers[4].n_inputs, 2);
    cr_expect_eq(model.layers[4].inputs[0], 5);
    cr_expect_eq(model.layers[4].inputs[1], MODEL_VALUE_TARGET);
    cr_expect_eq(model.values[6].shape.n_dims, 0);
    Buf text;
    buf_init(&text, 0);
    cJSON *json = model_to_json(&model);
    cr_assert_eq(json_format(json, false, &text), 0);
    cr_expect(strstr(buf_string(&text), "\"p\":0.1}"), "%s", buf_string(&text));
    Model again;
    cr_assert_eq(model_parse(json, "$", &again), 0, "%s", err_text());
    cr_expect_eq(model_hash(&again), model_hash(&model));
    Model copy;
    cr_assert_eq(model_copy(&again, &copy), 0);
    model_done(&again);
    cr_expect_eq(model_hash(&copy), model_hash(&model));
    cr_expect_eq(model_find_value(&copy, "f"), 4);
    model_done(&copy);
    model_done(&model);
    cJSON_Delete(json);
    buf_done(&text);
}

Test(model, refuses_json_with_path_and_nearest_name) {
    static const struct {
        const char *json, *expected[2];
    } cases[] = {
        {DATA("[4]") "{'name':'a','kind':'linear','feature':4}" LOSS,
         {"$.model.layers[0]", "features"}},
        {DATA("[4]") "{'name':'a','kind':'liner','features':4}" LOSS, {"layers[0].kind", "linear"}},
        {DATA("[4]") "{'name':'a','kind':'relu','featres':4}" LOSS, {"layers[0]", "featres"}},
        {DATA("[4]") "{'name':'a','kind':'linear','features':4,'biass':true}" LOSS,
         {"biass", "bias"}},
        {DATA("[4]") "{'name':'a','kind':'linear','features':0}" LOSS, {"layers[0].features", "1"}},
        {DATA("[4]") "{'name':'a','kind':'linear','features':2.5}" LOSS,
         {"layers[0].features", ""}},
        {DATA("[4]") "{'name':'a','kind':'dropout','p':0.99999999}" LOSS, {"layers[0].p", ""}},
        {DATA(
             "[4]") "{'name':'fc1','kind':'relu'},{'name':'b','kind':'relu','inputs':['fc2']}" LOSS,
         {"layers[1].inputs[0]", "'fc2' (did you mean 'fc1'?)"}},
        {DATA("[4]") "{'name':'a','kind':'relu','inputs':['loss']}" LOSS,
         {"layers[0].inputs[0]", "loss"}},
        {DATA("[4]") "{'name':'a','kind':'relu','inputs':[3]}" LOSS, {"layers[0].inputs[0]", ""}},
        {DATA("[4]") "{'name':'a','kind':'relu','inputs':'input'}" LOSS,
         {"layers[0].inputs", "array"}},
        {DATA("[4]") "{'name':'a','kind':'add'}" LOSS, {"layers[0]", "1 input, expected 2"}},
        {DATA("[4]") "{'name':'a','kind':'relu'},{'name':'a','kind':'relu'}" LOSS,
         {"layers[1]", "taken"}},
        {DATA("[2,4]") "{'name':'a','kind':'relu'}" LOSS, {"layer 'loss'", "ask for (2)"}},
        {DATA("[4]") "{'name':'a','kind':'relu'}]}",
         {"$.model", "expected the loss cross_entropy"}},
        {DATA("[4]") "]}", {"$.model", "no layers"}},
        {DATA("[4]") "{'name':'a','kind':'relu','inputs':['input']},"
                     "{'name':'b','kind':'relu','inputs':['input']}" LOSS,
         {"$.model", "reads the value 'a'"}},
        {DATA("[4]") "{'name':'a','kind':'cross_entropy'}" LOSS, {"layers[1]", "shape ()"}},
        {DATA("[4]") "{'name':'a','kind':'cross_entropy','inputs':['input','input']}]}",
         {"'target'", ""}},
        {DATA("[4,0]") "{'name':'a','kind':'relu'}" LOSS, {"$.model.input.shape[1]", ""}},
        {DATA("[1,1,1,1,1,1]") "{'name':'a','kind':'relu'}" LOSS, {"$.model.input.shape", "5"}},
        {DATA("[4]") "{'name':'a','kind':'relu','tie':'b.weight'}" LOSS,
         {"layers[0]", "no parameters"}},
        {DATA("[4]") "{'name':'a','kind':'linear','features':4,'tie':'b.weight'}" LOSS,
         {"layers[0]", "no earlier layer"}},
        {DATA("[4]") "{'name':'b','kind':'linear','features':4},"
                     "{'name':'a','kind':'linear','features':4,'tie':'b'}" LOSS,
         {"layers[1]", "did you mean 'b.weight'?"}},
        {DATA("[4]") "{'name':'b','kind':'linear','features':4},"
                     "{'name':'a','kind':'linear','features':4,'tie':'b.weigth'}" LOSS,
         {"layers[1]", "did you mean 'b.weight'?"}},
        {DATA("[4]") "{'name':'a','kind':'dropout'}" LOSS, {"layers[0]", "'p' is missing"}},
        {DATA("[4]") "{'name':'b','kind':'batchnorm'},"
                     "{'name':'a','kind':'batchnorm','tie':'b.running_var'}" LOSS,
         {"layers[1]", "running statistic"}},
        {DATA("[4]") "{'name':'b','kind':'linear','features':5},"
                     "{'name':'a','kind':'linear','features':4,'tie':'b.weight'}" LOSS,
         {"of shape (5, 4), expected (4, 5)", ""}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Model model;
        int rc = parse(cases[i].json, &model);
        cr_assert_lt(rc, 0, "case %zu", i);
        for (int k = 0; k < 2; k++)
            cr_expect(strstr(err_text(), cases[i].expected[k]), "case %zu: %s", i, err_text());
    }
}

Test(model, ties_parameters_and_counts_uses) {
    Model model;
    int rc = parse(DATA("[4]") "{'name':'a','kind':'linear','features':4},"
                               "{'name':'b','kind':'linear','features':4,'tie':'a.weight'},"
                               "{'name':'c','kind':'linear','features':4,'tie':'a.weight',"
                               "'bias':false}" LOSS,
                   &model);
    cr_assert_eq(rc, 0, "%s", err_text());
    cr_expect_eq(model.n_params, 3);
    cr_expect_eq(model.params[0].n_uses, 3);
    cr_expect_str_eq(model.params[2].name, "b.bias");
    cr_expect_eq(model.layers[1].params[0], 0);
    cr_expect_eq(model.layers[1].params[1], 2);
    cr_expect_eq(model_find_param(&model, "b.weight"), -1);
    cJSON *json = model_to_json(&model);
    cr_expect_null(
        cJSON_GetObjectItem(cJSON_GetArrayItem(cJSON_GetObjectItem(json, "layers"), 0), "tie"));
    Model again;
    cr_assert_eq(model_parse(json, "$", &again), 0, "%s", err_text());
    cr_expect_eq(again.n_params, 3);
    cr_expect_eq(model_hash(&again), model_hash(&model));
    cJSON_Delete(json);
    model_done(&again);
    model_done(&model);
}

Test(model, knows_which_values_need_gradients) {
    Model model;
    int rc = parse(DATA("[4]") "{'name':'d','kind':'delay','forward_us':5},"
                               "{'name':'a','kind':'linear','features':4},"
                               "{'name':'s','kind':'add','inputs':['a','d']},"
                               "{'name':'t','kind':'add','inputs':['s','s']}" LOSS,
                   &model);
    cr_assert_eq(rc, 0, "%s", err_text());
    static const bool needs[] = {false, false, false, true, true, true, true};
    static const int32_t consumers[] = {1, 1, 2, 1, 1, 1, 0};
    for (int i = 0; i < 7; i++) {
        cr_expect_eq(model.values[i].needs_grad, needs[i], "%s", model.values[i].name);
        cr_expect_eq(model.values[i].n_consumers, consumers[i], "%s", model.values[i].name);
    }
    cr_expect_eq(model_layer_backward_flops(&model, 0), 0);
    cr_expect_eq(model_layer_backward_flops(&model, 1), 32); /* no gradient for its input */
    model_done(&model);
}

Test(model, counts_flops) {
    Model model;
    int rc = parse(DATA("[3,8,8]") "{'name':'c','kind':'conv2d','features':4,'kernel':3,'pad':1},"
                                   "{'name':'e','kind':'conv2d','features':4,'kernel':3,'pad':1},"
                                   "{'name':'f','kind':'flatten'},"
                                   "{'name':'l','kind':'linear','features':10}" LOSS,
                   &model);
    cr_assert_eq(rc, 0, "%s", err_text());
    cr_expect_eq(model_layer_forward_flops(&model, 0), 2.0 * 9 * 3 * 4 * 64);
    cr_expect_eq(model_layer_backward_flops(&model, 0), 2.0 * 9 * 3 * 4 * 64);
    cr_expect_eq(model_layer_backward_flops(&model, 1), 4.0 * 9 * 4 * 4 * 64);
    cr_expect_eq(model_layer_forward_flops(&model, 2), 0);
    cr_expect_eq(model_layer_forward_flops(&model, 3), 2.0 * 256 * 10);
    for (int i = 0; i < model.n_layers; i++)
        cr_expect_geq(model_layer_backward_flops(&model, i), 0);
    model_done(&model);
}

Test(model, hash_changes_with_every_part) {
    static const char *const variants[] = {
        DATA("[4]") "{'name':'a','kind':'relu'}" LOSS,
        DATA("[5]") "{'name':'a','kind':'relu'}" LOSS,
        DATA("[4]") "{'name':'b','kind':'relu'}" LOSS,
        DATA("[4]") "{'name':'a','kind':'gelu'}" LOSS,
        DATA("[4]") "{'name':'a','kind':'dropout','p':0.5}" LOSS,
        DATA("[4]") "{'name':'a','kind':'dropout','p':0.25}" LOSS,
        DATA("[4]") "{'name':'a','kind':'dropout','p':0.25000003}" LOSS,
        DATA("[4]") "{'name':'a','kind':'linear','features':4}" LOSS,
        DATA("[4]") "{'name':'a','kind':'linear','features':5}" LOSS,
        DATA("[4]") "{'name':'a','kind':'linear','features':4,'bias':false}" LOSS,
        DATA("[4]") "{'name':'a','kind':'batchnorm'}" LOSS,
        DATA("[4]") "{'name':'a','kind':'batchnorm','eps':1e-6}" LOSS,
        DATA("[4]") "{'name':'a','kind':'batchnorm','momentum':0.2}" LOSS,
        DATA("[4]") "{'name':'a','kind':'layernorm'}" LOSS,
        DATA("[4]") "{'name':'a','kind':'delay'}" LOSS,
        DATA("[4]") "{'name':'a','kind':'delay','forward_us':1}" LOSS,
        DATA("[4]") "{'name':'a','kind':'delay','backward_us':1}" LOSS,
        DATA("[4]") "{'name':'loss','kind':'cross_entropy'}]}",
        DATA("[4]") "{'name':'loss','kind':'cross_entropy','ignore_index':0}]}",
        DATA("[4]") "{'name':'loss','kind':'cross_entropy','ignore_index':-100}]}",
        DATA("[4]") "{'name':'a','kind':'relu'},{'name':'b','kind':'add','inputs':['a','input']"
                    "}" LOSS,
        DATA("[4]") "{'name':'a','kind':'relu'},{'name':'b','kind':'add','inputs':['input','a']"
                    "}" LOSS,
        DATA("[4]") "{'name':'a','kind':'linear','features':4},"
                    "{'name':'b','kind':'linear','features':4}" LOSS,
        DATA("[4]") "{'name':'a','kind':'linear','features':4},"
                    "{'name':'b','kind':'linear','features':4,'tie':'a.weight'}" LOSS,
    };
    enum { N = sizeof variants / sizeof variants[0] };
    uint64_t hashes[N];
    for (int i = 0; i < N; i++) {
        Model model;
        cr_assert_eq(parse(variants[i], &model), 0, "%s: %s", variants[i], err_text());
        hashes[i] = model_hash(&model);
        cr_expect_neq(hashes[i], 0);
        for (int k = 0; k < i; k++)
            cr_expect_neq(hashes[i], hashes[k], "%d and %d: %s", k, i, variants[i]);
        model_done(&model);
    }
}

Test(model, takes_the_most_layers_and_no_more) {
    Model model;
    Shape shape = DIMS(4);
    int32_t at = MODEL_VALUE_INPUT;
    char name[32];
    cr_assert_eq(model_init(&model, "m", F, &shape, I, &(Shape){0}), 0);
    for (int i = 0; i < MODEL_MAX_LAYERS; i++) {
        snprintf(name, sizeof name, "h.%d.relu", i);
        at = model_add(&model, LAYER_RELU, name, &at, 1, NULL, NULL);
        cr_assert_eq(at, i + 2, "%s", err_text());
    }
    cr_expect_eq(model_find_value(&model, "h.12345.relu"), 12347);
    cr_expect_eq(model_add(&model, LAYER_RELU, "more", &at, 1, NULL, NULL), ERR_LIMIT);
    model_done(&model);
}

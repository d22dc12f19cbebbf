/* The zoo: what each model is made of, its options and their errors, its JSON form. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/zoo.h"
#include "core/err.h"
#include "core/stage.h"

/* Options in JSON with ' for "; NULL: none. */
static int build(const char *name, const char *options, Model *out_model) {
    if (!options)
        return zoo_build(name, NULL, "$.model", out_model);
    char *json = strdup(options);
    for (char *c = json; *c; c++)
        if (*c == '\'')
            *c = '"';
    cJSON *value = NULL;
    int rc = json_parse("test", json, strlen(json), 1 << 16, &value);
    cr_assert_geq(rc, 0, "%s", err_text());
    rc = zoo_build(name, value, "$.model", out_model);
    cJSON_Delete(value);
    free(json);
    return rc;
}

static int64_t count_weights(const Model *model) {
    int64_t n = 0;
    for (int32_t i = 0; i < model->n_params; i++)
        if (model->params[i].role == PARAM_WEIGHT)
            n += model_param_elements(model, i);
    return n;
}

static double count_flops(const Model *model) {
    double sum = 0;
    for (int32_t i = 0; i < model->n_layers; i++)
        sum += model_layer_forward_flops(model, i);
    return sum;
}

Test(zoo, every_model_reads_back_equal_and_can_be_cut_anywhere) {
    int n;
    const char *const *names = zoo_names(&n);
    cr_assert_eq(n, 3);
    for (int i = 0; i < n; i++) {
        Model model;
        Model again;
        cr_assert_eq(build(names[i], NULL, &model), 0, "%s", err_text());
        cr_expect_str_eq(model.name, names[i]);
        cJSON *json = model_to_json(&model);
        Buf text;
        Buf text_again;
        buf_init(&text, 0);
        buf_init(&text_again, 0);
        cr_assert_eq(json_format(json, true, &text), 0, "%s", err_text());
        cJSON_Delete(json);
        cr_assert_eq(json_parse(names[i], text.data, text.bytes, 1 << 20, &json), 0, "%s",
                     err_text());
        cr_assert_eq(model_parse(json, "$", &again), 0, "%s", err_text());
        cJSON_Delete(json);
        json = model_to_json(&again);
        cr_assert_eq(json_format(json, true, &text_again), 0);
        cr_expect_str_eq(buf_string(&text), buf_string(&text_again));
        cr_expect_eq(model_hash(&model), model_hash(&again));
        cr_assert_eq(again.n_params, model.n_params);
        cr_expect_arr_eq(again.params, model.params, (size_t)model.n_params * sizeof(Param));
        for (int32_t at = 1; at < model.n_layers; at++) {
            Stage stage;
            cr_assert_eq(stage_init(&stage, &model, (int32_t[]){at, model.n_layers}, 2, 1), 0);
            cr_expect_eq(stage.n_in, 1);
            stage_done(&stage);
        }
        cJSON_Delete(json);
        buf_done(&text);
        buf_done(&text_again);
        model_done(&again);
        model_done(&model);
    }
}

Test(zoo, mlp) {
    Model model;
    cr_assert_eq(build("mlp", NULL, &model), 0, "%s", err_text());
    cr_expect_eq(model.n_layers, 6);
    cr_expect_eq(count_weights(&model), 784 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 10 + 10);
    cr_expect_geq(model_find_param(&model, "fc3.bias"), 0);
    model_done(&model);
    cr_assert_eq(build("mlp", "{'input':[1,8,8],'hidden':[32],'classes':3}", &model), 0, "%s",
                 err_text());
    cr_expect_eq(model.layers[0].kind, LAYER_FLATTEN);
    cr_expect_eq(count_weights(&model), 64 * 32 + 32 + 32 * 3 + 3);
    model_done(&model);
    cr_assert_eq(build("mlp", "{'hidden':[]}", &model), 0, "%s", err_text());
    cr_expect_eq(model.n_layers, 2);
    model_done(&model);
}

Test(zoo, cnn) {
    Model model;
    cr_assert_eq(build("cnn", NULL, &model), 0, "%s", err_text());
    cr_expect_leq(count_flops(&model), 20e6);
    cr_expect_geq(model_find_param(&model, "layer1.0.bn2.running_var"), 0);
    cr_expect_geq(model_find_param(&model, "layer2.down.conv.weight"), 0);
    cr_expect_eq(model_find_param(&model, "layer2.down.conv.bias"), -1);
    int32_t add = model_find_value(&model, "layer1.0.add");
    cr_assert_geq(add, 0);
    cr_expect_eq(model.layers[model.values[add].producer].inputs[0],
                 model_find_value(&model, "stem.pool"));
    model_done(&model);
    cr_assert_eq(build("cnn",
                       "{'image':[3,32,32],'channels':[8,16,24],'blocks':2,'classes':100,"
                       "'dropout':0}",
                       &model),
                 0, "%s", err_text());
    cr_expect_eq(model_find_value(&model, "dropout"), -1);
    Shape expected = shape_3d(24, 4, 4);
    int32_t last = model_find_value(&model, "layer3.1.relu2");
    cr_assert_geq(last, 0);
    cr_expect(shape_equal(&model.values[last].shape, &expected));
    model_done(&model);
}

Test(zoo, tiny_gpt_has_gpt2s_names) {
    static const char *const block[] = {
        "ln_1.weight",        "ln_1.bias",        "attn.c_attn.weight", "attn.c_attn.bias",
        "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight",        "ln_2.bias",
        "mlp.c_fc.weight",    "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias"};
    Model model;
    cr_assert_eq(
        build("tiny_gpt", "{'vocab':65,'context':32,'width':48,'heads':6,'depth':2}", &model), 0,
        "%s", err_text());
    cr_assert_eq(model.n_params, 2 + 2 * 12 + 2);
    cr_expect_str_eq(model.params[0].name, "wte.weight");
    cr_expect_str_eq(model.params[1].name, "wpe.weight");
    for (int i = 0; i < 24; i++) {
        char name[64];
        snprintf(name, sizeof name, "h.%d.%s", i / 12, block[i % 12]);
        cr_expect_str_eq(model.params[2 + i].name, name);
    }
    cr_expect_str_eq(model.params[26].name, "ln_f.weight");
    cr_expect_str_eq(model.params[27].name, "ln_f.bias");
    cr_expect_eq(model.params[0].n_uses, 2);
    const Layer *head = &model.layers[model.n_layers - 2];
    cr_expect_str_eq(head->name, "lm_head");
    cr_expect(head->n_params == 1 && head->params[0] == 0);
    cr_expect_eq(count_weights(&model), 65 * 48 + 32 * 48 + 2 * (12 * 48 * 48 + 13 * 48) + 2 * 48);
    Shape logits = shape_2d(32, 65);
    cr_expect(shape_equal(&model.values[head->output].shape, &logits));
    model_done(&model);
}

Test(zoo, refuses_unknown_names_and_options_with_the_nearest) {
    static const struct {
        const char *name, *options;
        const char *expected[2];
    } cases[] = {
        {"tinygpt", NULL, {"'tinygpt'", "did you mean 'tiny_gpt'?"}},
        {"resnet50", NULL, {"'resnet50'", "mlp, cnn, tiny_gpt"}},
        {"mlp", "{'hiden':[3]}", {"$.model", "'hidden'"}},
        {"mlp", "{'hidden':[0]}", {"$.model.hidden[0]", ""}},
        {"mlp", "{'hidden':3}", {"$.model.hidden", ""}},
        {"mlp", "{'input':[]}", {"layer 'fc1'", "shape ()"}},
        {"mlp", "{'classes':1}", {"$.model.classes", ""}},
        {"cnn", "{'chanels':[3]}", {"$.model", "'channels'"}},
        {"cnn", "{'channels':[]}", {"$.model.channels", "at least one"}},
        {"cnn", "{'image':[28,28]}", {"$.model.image", "expected 3"}},
        {"cnn", "{'image':[1,1,1]}", {"stem.pool", "does not fit"}},
        {"cnn", "{'dropout':1}", {"$.model.dropout", ""}},
        {"tiny_gpt", "{'widht':3}", {"$.model", "'width'"}},
        {"tiny_gpt", "{'width':30,'heads':4}", {"$.model.width", "multiple of the 4 heads"}},
        {"tiny_gpt", "[]", {"$.model", "object"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Model model;
        int rc = build(cases[i].name, cases[i].options, &model);
        cr_assert_lt(rc, 0, "case %zu", i);
        for (int k = 0; k < 2; k++)
            cr_expect(strstr(err_text(), cases[i].expected[k]), "case %zu: %s", i, err_text());
    }
}

/* funcpipe model inspect and diff. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/checkpoint.h"
#include "coordinator/cli_parts.h"
#include "coordinator/job.h"
#include "core/err.h"
#include "core/text.h"

/* ---- model inspect ---- */

/* Elements of the parameters of a role that a layer is the first to use. */
static int64_t own_elements(const Model *model, int32_t index, ParamRole role) {
    int64_t n = 0;
    const Layer *layer = &model->layers[index];
    for (int32_t i = 0; i < layer->n_params; i++) {
        bool first = model->params[layer->params[i]].role == role;
        for (int32_t before = 0; before < index && first; before++) {
            const Layer *other = &model->layers[before];
            for (int32_t k = 0; k < other->n_params; k++)
                first = first && other->params[k] != layer->params[i];
        }
        if (first)
            n += model_param_elements(model, layer->params[i]);
    }
    return n;
}

typedef struct ModelTotals {
    int64_t params, buffers; /* elements: learned ones, running statistics */
    double forward, backward;
} ModelTotals;

static ModelTotals totals_of(const Model *model) {
    ModelTotals totals = {0};
    for (int32_t i = 0; i < model->n_params; i++)
        *(model->params[i].role == PARAM_WEIGHT ? &totals.params : &totals.buffers) +=
            model_param_elements(model, i);
    for (int32_t i = 0; i < model->n_layers; i++) {
        totals.forward += model_layer_forward_flops(model, i);
        totals.backward += model_layer_backward_flops(model, i);
    }
    return totals;
}

static void print_model(const Model *model) {
    char shape[96];
    const ModelTotals totals = totals_of(model);
    const Value *input = &model->values[MODEL_VALUE_INPUT];
    printf("model %s: input %s %s\n", model->name, dtype_name(input->dtype),
           shape_format(&input->shape, shape, sizeof shape));
    printf("%5s  %-28s %-16s %-20s %12s %9s %15s\n", "layer", "name", "kind", "output",
           "parameters", "buffers", "forward FLOP");
    for (int32_t i = 0; i < model->n_layers; i++) {
        const Layer *layer = &model->layers[i];
        printf("%5d  %-28s %-16s %-20s %12lld %9lld %15.0f\n", i, layer->name,
               layer_kind_name(layer->kind),
               shape_format(&model->values[layer->output].shape, shape, sizeof shape),
               (long long)own_elements(model, i, PARAM_WEIGHT),
               (long long)own_elements(model, i, PARAM_STATISTIC),
               model_layer_forward_flops(model, i));
    }
    printf("%d %s, %lld parameters, %lld in buffers (running statistics), %.0f FLOP forward and "
           "%.0f backward a sample\n",
           model->n_layers, text_plural(model->n_layers, "layer", "layers"),
           (long long)totals.params, (long long)totals.buffers, totals.forward, totals.backward);
}

static cJSON *layer_to_json(const Model *model, int32_t index) {
    const Layer *layer = &model->layers[index];
    const Shape *shape = &model->values[layer->output].shape;
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "name", layer->name);
    cJSON_AddStringToObject(object, "kind", layer_kind_name(layer->kind));
    cJSON *dims = cJSON_AddArrayToObject(object, "shape");
    for (int32_t i = 0; dims && i < shape->n_dims; i++)
        cJSON_AddItemToArray(dims, cJSON_CreateNumber((double)shape->dims[i]));
    cJSON_AddNumberToObject(object, "parameters", (double)own_elements(model, index, PARAM_WEIGHT));
    cJSON_AddNumberToObject(object, "buffers", (double)own_elements(model, index, PARAM_STATISTIC));
    cJSON_AddNumberToObject(object, "forward_flops", model_layer_forward_flops(model, index));
    cJSON_AddNumberToObject(object, "backward_flops", model_layer_backward_flops(model, index));
    return object;
}

static cJSON *model_to_table(const Model *model) {
    const ModelTotals totals = totals_of(model);
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "name", model->name);
    cJSON_AddNumberToObject(root, "parameters", (double)totals.params);
    cJSON_AddNumberToObject(root, "buffers", (double)totals.buffers);
    cJSON_AddNumberToObject(root, "forward_flops", totals.forward);
    cJSON_AddNumberToObject(root, "backward_flops", totals.backward);
    cJSON *layers = cJSON_AddArrayToObject(root, "layers");
    for (int32_t i = 0; layers && i < model->n_layers; i++)
        cJSON_AddItemToArray(layers, layer_to_json(model, i));
    return root;
}

int cli_model(const CliArgs *args, int *out_error) {
    static const char *const inspect = "inspect";
    Model model;
    int rc = strcmp(args->words[0], inspect) == 0
                 ? 0
                 : err_set(ERR_ARGUMENT, "model: unknown word '%s' (expected '%s')",
                           text_unless_secret(args->words[0]), inspect);
    if (rc >= 0)
        rc = config_load_model(args->words[1], args->sets, args->n_sets, &model);
    *out_error = rc < 0 ? rc : 0;
    if (rc < 0)
        return job_exit_code(rc, false);
    if (args->json)
        *out_error = cli_print_json(model_to_table(&model));
    else
        print_model(&model);
    model_done(&model);
    return EXIT_CODE_DONE;
}

/* ---- diff ---- */

static const char *const state_names[] = {"equal", "values", "form", "only_a", "only_b"};

static void print_diff(const CheckpointDiff *diff) {
    for (int64_t i = 0; i < diff->n_rows; i++) {
        const CheckpointDiffRow *row = &diff->rows[i];
        char name[2 * TEXT_WORD_BYTES];
        text_printable(row->name, name, sizeof name);
        if (row->state == CHECKPOINT_EQUAL)
            printf("= %s\n", name);
        else if (row->state == CHECKPOINT_VALUES)
            printf("%-40s max |a-b| %.3g, relative %.3g, norm %.3g\n", name, row->max_abs,
                   row->max_rel, row->l2_rel);
        else if (row->state == CHECKPOINT_FORM)
            printf("%-40s differs in type or shape\n", name);
        else
            printf("%-40s is only in %s\n", name, row->state == CHECKPOINT_ONLY_A ? "A" : "B");
    }
    printf("%lld %s: %lld equal, %lld with other values, %lld of another form, %lld only in A, "
           "%lld only in B\n",
           (long long)diff->n_rows, text_plural(diff->n_rows, "tensor", "tensors"),
           (long long)diff->n_states[CHECKPOINT_EQUAL],
           (long long)diff->n_states[CHECKPOINT_VALUES], (long long)diff->n_states[CHECKPOINT_FORM],
           (long long)diff->n_states[CHECKPOINT_ONLY_A],
           (long long)diff->n_states[CHECKPOINT_ONLY_B]);
}

static cJSON *finite_or_null(double value) {
    return isfinite(value) ? cJSON_CreateNumber(value) : cJSON_CreateNull();
}

static cJSON *diff_to_json(const CheckpointDiff *diff) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddBoolToObject(root, "equal", checkpoint_diff_equal(diff));
    cJSON *tensors = cJSON_AddArrayToObject(root, "tensors");
    for (int64_t i = 0; tensors && i < diff->n_rows; i++) {
        const CheckpointDiffRow *row = &diff->rows[i];
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "name", row->name);
        cJSON_AddStringToObject(object, "state", state_names[row->state]);
        if (row->state == CHECKPOINT_VALUES) {
            cJSON_AddItemToObject(object, "max_abs", finite_or_null(row->max_abs));
            cJSON_AddItemToObject(object, "max_rel", finite_or_null(row->max_rel));
            cJSON_AddItemToObject(object, "l2_rel", finite_or_null(row->l2_rel));
        }
        cJSON_AddItemToArray(tensors, object);
    }
    return root;
}

/* Whatever goes wrong has another exit code than that they differ. */
int cli_diff(const CliArgs *args, int *out_error) {
    CheckpointDiff diff;
    int rc = checkpoint_diff(args->words[0], args->words[1], &diff);
    *out_error = rc < 0 ? rc : 0;
    if (rc < 0)
        return EXIT_CODE_USAGE;
    if (args->json)
        rc = cli_print_json(diff_to_json(&diff));
    else
        print_diff(&diff);
    if (rc >= 0)
        rc = cli_flush();
    bool equal = checkpoint_diff_equal(&diff);
    checkpoint_diff_done(&diff);
    *out_error = rc < 0 ? rc : 0;
    return rc < 0 ? EXIT_CODE_USAGE : equal ? EXIT_CODE_DONE : EXIT_CODE_FAILED;
}

/* $.data: what the job file says, what the model needs, and what the files hold must agree. */
#include <stdio.h>
#include <string.h>

#include "coordinator/config_parts.h"
#include "core/err.h"
#include "core/text.h"
#include "storage/dataset.h"

/* The sizes the model gives to valid inputs and targets; 0: it does not say. */
typedef struct ModelSizes {
    int64_t vocab, classes;
    int32_t loss; /* number of the loss layer; -1: there is none with classes */
    bool has_ignore;
    int32_t ignore_index;
} ModelSizes;

static ModelSizes model_sizes(const Model *model) {
    ModelSizes sizes = {.loss = -1};
    for (int32_t i = 0; i < model->n_layers; i++) {
        const Layer *layer = &model->layers[i];
        if (layer->kind == LAYER_EMBEDDING && layer->inputs[0] == MODEL_VALUE_INPUT &&
            (sizes.vocab == 0 || layer->attr.vocab < sizes.vocab))
            sizes.vocab = layer->attr.vocab;
        if (layer->kind == LAYER_CROSS_ENTROPY) {
            const Shape *logits = &model->values[layer->inputs[0]].shape;
            sizes.classes = logits->n_dims > 0 ? logits->dims[logits->n_dims - 1] : 0;
            sizes.loss = i;
            sizes.has_ignore = layer->attr.has_ignore;
            sizes.ignore_index = layer->attr.ignore_index;
        }
    }
    return sizes;
}

static int fit_size(const char *path, const char *key, const char *model_part, int64_t of_model,
                    int64_t *size) {
    if (*size == 0)
        *size = of_model;
    if (of_model > 0 && *size > of_model)
        return err_set(ERR_ARGUMENT, "%s.%s: %lld, but the model's %s has only %lld", path, key,
                       (long long)*size, model_part, (long long)of_model);
    return 0;
}

/* The loss decides which targets count: the data set can only say the same. */
static int fit_ignore(const char *path, const Model *model, const ModelSizes *sizes,
                      DataSpec *data) {
    char other[24] = "none";
    if (!data->has_ignore) {
        data->has_ignore = sizes->has_ignore;
        data->ignore_index = sizes->ignore_index;
    }
    if (data->has_ignore == sizes->has_ignore && data->ignore_index == sizes->ignore_index)
        return 0;
    if (sizes->loss < 0)
        return err_set(ERR_ARGUMENT, "%s.ignore_index: %d, but the model's loss has no classes",
                       path, data->ignore_index);
    if (sizes->has_ignore)
        snprintf(other, sizeof other, "%d", sizes->ignore_index);
    return err_set(ERR_ARGUMENT,
                   "%s.ignore_index: %d, but that of the model's loss (layer '%s', "
                   "$.model.layers[%d].ignore_index) is %s",
                   path, data->ignore_index, model->layers[sizes->loss].name, sizes->loss, other);
}

/* Fill what the data set leaves to the model, and refuse what contradicts it. */
static int fit_to_model(DataSpec *data, const Model *model, const char *path) {
    ModelSizes sizes = model_sizes(model);
    const Shape *input = &model->values[MODEL_VALUE_INPUT].shape;
    char of_data[96];
    char of_model[96];
    if (data->shape.n_dims == 0)
        data->shape = *input;
    if (!shape_equal(&data->shape, input))
        return err_set(ERR_ARGUMENT, "%s.shape: %s, but model '%s' reads inputs of shape %s", path,
                       shape_format(&data->shape, of_data, sizeof of_data), model->name,
                       shape_format(input, of_model, sizeof of_model));
    TRY(fit_size(path, "vocab", "embedding", sizes.vocab, &data->vocab));
    TRY(fit_size(path, "classes", "loss", sizes.classes, &data->classes));
    return fit_ignore(path, model, &sizes, data);
}

static int check_form(const Dataset *dataset, const Model *model, const char *path) {
    DType dtype = DTYPE_NONE;
    Shape shape = {0};
    const Value *input = &model->values[MODEL_VALUE_INPUT];
    const Value *target = &model->values[MODEL_VALUE_TARGET];
    char found[96];
    char expected[96];
    TRY(dataset_input_form(dataset, &dtype, &shape));
    if (dtype != input->dtype || !shape_equal(&shape, &input->shape))
        return err_set(ERR_ARGUMENT, "%s: inputs are %s %s, but model '%s' reads %s %s", path,
                       dtype_name(dtype), shape_format(&shape, found, sizeof found), model->name,
                       dtype_name(input->dtype),
                       shape_format(&input->shape, expected, sizeof expected));
    TRY(dataset_target_form(dataset, &shape));
    if (!shape_equal(&shape, &target->shape))
        return err_set(ERR_ARGUMENT, "%s: targets have the shape %s, but model '%s' expects %s",
                       path, shape_format(&shape, found, sizeof found), model->name,
                       shape_format(&target->shape, expected, sizeof expected));
    return 0;
}

/* What the examples read comes with a package. */
static int name_package(int rc, const DataSpec *data) {
    static const char folder[] = "/usr/share/datasets/fashion-mnist/";
    ErrNote note;
    err_copy(&note);
    if (rc != ERR_NOT_FOUND || strncmp(data->input_path, folder, sizeof folder - 1) != 0)
        return rc;
    return err_set(rc, "%s (apt-get install dataset-fashion-mnist brings it)", note.text);
}

static int look_at_files(DataSpec *data, const Model *model, const char *path,
                         int64_t *out_samples) {
    Dataset *dataset = NULL;
    int rc = dataset_open(data, true, true, &dataset);
    if (rc < 0)
        return err_context(name_package(rc, data), "%s", path);
    rc = check_form(dataset, model, path);
    *out_samples = dataset_samples(dataset);
    dataset_marks(dataset, data->marks); /* workers must find these files */
    dataset_close(dataset);
    return rc;
}

static int parse_one(const cJSON *value, const char *path, const char *folder, unsigned flags,
                     const Model *model, DataSpec *out_data, int64_t *out_samples) {
    TRY(order_parse_data(value, path, out_data));
    TRY(config_absolute(folder, out_data->input_path, sizeof out_data->input_path));
    TRY(config_absolute(folder, out_data->target_path, sizeof out_data->target_path));
    TRY(fit_to_model(out_data, model, path));
    *out_samples = out_data->samples > 0 ? out_data->samples : 1;
    if (flags & CONFIG_WITHOUT_DATA)
        return 0;
    TRY(look_at_files(out_data, model, path, out_samples));
    if (*out_samples < 1)
        return err_set(ERR_ARGUMENT, "%s: there are no samples", path);
    out_data->samples = *out_samples;
    return 0;
}

int config_parse_data(JsonObject *root, const char *folder, unsigned flags, Order *order) {
    const cJSON *value = NULL;
    char path[JSON_PATH_BYTES];
    JsonObject object;
    TRY(json_get(root, "data", &value, path));
    TRY(json_object(value, path, &object));
    TRY(json_get(&object, "train", &value, path));
    TRY(parse_one(value, path, folder, flags, &order->model, &order->train, &order->train_samples));
    int present = json_opt(&object, "eval", &value, path);
    TRY(present);
    if (present) {
        TRY(parse_one(value, path, folder, flags, &order->model, &order->eval,
                      &order->eval_samples));
        order->has_eval = true;
    }
    return json_end(&object);
}

int config_check_eval_samples(Order *order, int64_t samples, const char *path) {
    if (samples == 0)
        return 0;
    if (order->eval.samples > 0 && samples > order->eval_samples)
        return err_set(ERR_ARGUMENT, "%s: %lld, but the evaluation data has %lld %s", path,
                       (long long)samples, (long long)order->eval_samples,
                       text_plural(order->eval_samples, "sample", "samples"));
    order->eval_samples = samples;
    order->eval.samples = samples;
    return 0;
}

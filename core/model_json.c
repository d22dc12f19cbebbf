/* The model's JSON form. The writer gives the canonical text: every attribute the kind knows, all
 * inputs by name; the reader also takes what is left out (see model.h). */
#include "core/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/hash.h"
#include "core/model_parts.h"
#include "core/text.h"

static const char *const DATA_DTYPES[] = {"F32", "I32"};

static int parse_data(JsonObject *model, const char *key, DType *out_dtype, Shape *out_shape) {
    const cJSON *value;
    char path[JSON_PATH_BYTES];
    JsonObject object;
    int dtype;
    int n_dims = 0;
    Shape shape = {0};
    TRY(json_get(model, key, &value, path));
    TRY(json_object(value, path, &object));
    TRY(json_get_choice(&object, "dtype", DATA_DTYPES, 2, &dtype));
    TRY(json_get_i64_array(&object, "shape", 1, MODEL_MAX_DIM, shape.dims, MODEL_MAX_DIMS,
                           &n_dims));
    TRY(json_end(&object));
    shape.n_dims = n_dims;
    *out_shape = shape;
    return dtype_parse(DATA_DTYPES[dtype], out_dtype);
}

/* ERR_ARGUMENT with the nearest name of a value made so far. */
static int unknown_value(const Model *model, const char *name, const char *path) {
    const char **names = malloc((size_t)model->n_values * sizeof *names);
    const char *nearest = NULL;
    for (int32_t i = 0; names && i < model->n_values; i++)
        names[i] = model->values[i].name;
    if (names)
        nearest = text_nearest(name, names, (size_t)model->n_values);
    free(names); /* nearest stands in the model */
    if (!nearest)
        return err_set(ERR_ARGUMENT, "%s: no earlier layer is named '%s'", path, name);
    return err_set(ERR_ARGUMENT, "%s: no earlier layer is named '%s' (did you mean '%s'?)", path,
                   name, nearest);
}

static int parse_input_names(const Model *model, const cJSON *array, const char *path,
                             int32_t *inputs, int *out_n) {
    if (!cJSON_IsArray(array))
        return err_set(ERR_FORMAT, "%s: expected an array of value names", path);
    int n = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, array) {
        char item_path[JSON_PATH_BYTES + 16];
        snprintf(item_path, sizeof item_path, "%s[%d]", path, n);
        if (n == LAYER_MAX_INPUTS)
            return err_set(ERR_LIMIT, "%s: expected at most %d inputs", path, LAYER_MAX_INPUTS);
        if (!cJSON_IsString(item))
            return err_set(ERR_FORMAT, "%s: expected a value's name", item_path);
        inputs[n] = model_find_value(model, item->valuestring);
        if (inputs[n] < 0)
            return unknown_value(model, item->valuestring, item_path);
        n++;
    }
    *out_n = n;
    return 0;
}

static int parse_inputs(const Model *model, JsonObject *layer, LayerKind kind, int32_t *inputs,
                        int *out_n) {
    const cJSON *array;
    char path[JSON_PATH_BYTES];
    int rc = json_opt(layer, "inputs", &array, path);
    if (rc != 0)
        return rc < 0 ? rc : parse_input_names(model, array, path, inputs, out_n);
    inputs[0] = model->n_layers > 0 ? model->layers[model->n_layers - 1].output : MODEL_VALUE_INPUT;
    inputs[1] = MODEL_VALUE_TARGET;
    *out_n = kind == LAYER_CROSS_ENTROPY ? 2 : 1;
    return 0;
}

static int parse_layer(Model *model, const cJSON *value, const char *path) {
    static const char *const names[LAYER_N_KINDS] = {
#define LAYER_NAME(name, text) text,
        LAYER_TABLE(LAYER_NAME)
#undef LAYER_NAME
    };
    JsonObject object;
    const char *name;
    const char *tie = NULL;
    int kind;
    int n_inputs = 0;
    int32_t inputs[LAYER_MAX_INPUTS];
    LayerAttr attr;
    TRY(json_object(value, path, &object));
    TRY(json_get_string(&object, "name", &name));
    TRY(json_get_choice(&object, "kind", names, LAYER_N_KINDS, &kind));
    TRY(parse_inputs(model, &object, (LayerKind)kind, inputs, &n_inputs));
    TRY(json_opt_string(&object, "tie", &tie));
    TRY(model_attr_parse((LayerKind)kind, &object, &attr));
    TRY(json_end(&object));
    int rc = model_add(model, (LayerKind)kind, name, inputs, n_inputs, &attr, tie);
    return rc < 0 ? err_context(rc, "%s", path) : 0;
}

static int parse_layers(Model *model, JsonObject *object) {
    const cJSON *layers;
    char path[JSON_PATH_BYTES];
    TRY(json_get(object, "layers", &layers, path));
    if (!cJSON_IsArray(layers))
        return err_set(ERR_FORMAT, "%s: expected an array of layers", path);
    const cJSON *item;
    int i = 0;
    cJSON_ArrayForEach(item, layers) {
        char item_path[JSON_PATH_BYTES + 16];
        snprintf(item_path, sizeof item_path, "%s[%d]", path, i++);
        TRY(parse_layer(model, item, item_path));
    }
    return 0;
}

int model_parse(const cJSON *value, const char *path, Model *out_model) {
    JsonObject object;
    const char *name;
    DType dtypes[2];
    Shape shapes[2];
    TRY(json_object(value, path, &object));
    TRY(json_get_string(&object, "name", &name));
    TRY(parse_data(&object, "input", &dtypes[0], &shapes[0]));
    TRY(parse_data(&object, "target", &dtypes[1], &shapes[1]));
    Model model;
    int rc = model_init(&model, name, dtypes[0], &shapes[0], dtypes[1], &shapes[1]);
    if (rc < 0)
        return err_context(rc, "%s", path);
    TRY_DONE(parse_layers(&model, &object));
    TRY_DONE(json_end(&object));
    rc = model_check(&model);
    if (rc < 0) {
        err_context(rc, "%s", path);
        goto done;
    }
    *out_model = model;
    return 0;
done:
    model_done(&model);
    return rc;
}

static bool format_data(const Value *value, cJSON *model) {
    cJSON *object = cJSON_AddObjectToObject(model, value->name);
    if (!object || !cJSON_AddStringToObject(object, "dtype", dtype_name(value->dtype)))
        return false;
    cJSON *shape = cJSON_AddArrayToObject(object, "shape");
    if (!shape)
        return false;
    for (int i = 0; i < value->shape.n_dims; i++) {
        cJSON *dim = cJSON_CreateNumber((double)value->shape.dims[i]);
        if (!cJSON_AddItemToArray(shape, dim))
            return false; /* a created item is never refused: dim is NULL */
    }
    return true;
}

/* The parameter of role 0 when an earlier layer made it, else NULL. */
static const char *tied_name(const Model *model, const Layer *layer) {
    if (layer->n_params == 0)
        return NULL;
    const char *name = model->params[layer->params[0]].name;
    size_t length = strlen(layer->name);
    bool own = strncmp(name, layer->name, length) == 0 && strcmp(name + length, ".weight") == 0;
    return own ? NULL : name;
}

static bool format_layer(const Model *model, const Layer *layer, cJSON *layers) {
    cJSON *object = cJSON_CreateObject();
    if (!object || !cJSON_AddItemToArray(layers, object))
        return false;
    if (!cJSON_AddStringToObject(object, "name", layer->name) ||
        !cJSON_AddStringToObject(object, "kind", layer_kind_name(layer->kind)))
        return false;
    cJSON *inputs = cJSON_AddArrayToObject(object, "inputs");
    if (!inputs)
        return false;
    for (int32_t i = 0; i < layer->n_inputs; i++)
        if (!cJSON_AddItemToArray(inputs, cJSON_CreateString(model->values[layer->inputs[i]].name)))
            return false;
    const char *tie = tied_name(model, layer);
    if (tie && !cJSON_AddStringToObject(object, "tie", tie))
        return false;
    return model_attr_format(layer->kind, &layer->attr, object) >= 0;
}

cJSON *model_to_json(const Model *model) {
    cJSON *object = cJSON_CreateObject();
    bool ok = object && cJSON_AddStringToObject(object, "name", model->name) &&
              format_data(&model->values[MODEL_VALUE_INPUT], object) &&
              format_data(&model->values[MODEL_VALUE_TARGET], object);
    cJSON *layers = ok ? cJSON_AddArrayToObject(object, "layers") : NULL;
    ok = layers != NULL;
    for (int32_t i = 0; ok && i < model->n_layers; i++)
        ok = format_layer(model, &model->layers[i], layers);
    if (!ok) {
        cJSON_Delete(object);
        return NULL;
    }
    return object;
}

uint64_t model_hash(const Model *model) {
    cJSON *object = model_to_json(model);
    Buf text;
    buf_init(&text, 0);
    uint64_t hash = 0;
    if (object && json_format(object, false, &text) >= 0)
        hash = hash_bytes(buf_string(&text), text.bytes);
    buf_done(&text);
    cJSON_Delete(object);
    return hash;
}

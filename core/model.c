/* The model's builder: values, layers and parameters in growing arrays, and a hash table over the
 * values' names. A layer is worked out whole before anything of it is added. */
#include "core/model.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/hash.h"
#include "core/model_parts.h"
#include "core/text.h"

/* A parameter's name is its layer's with a suffix of at most ".running_mean". */
enum { LAYER_NAME_MAX = MODEL_NAME_BYTES - 1 - (int)sizeof ".running_mean" + 1 };

static const char *const KIND_NAMES[LAYER_N_KINDS] = {
#define LAYER_NAME(name, text) text,
    LAYER_TABLE(LAYER_NAME)
#undef LAYER_NAME
};

const char *layer_kind_name(LayerKind kind) {
    return (unsigned)kind < LAYER_N_KINDS ? KIND_NAMES[kind] : "?";
}

/* Room for `want` elements; the capacity at least doubles. */
static int grow(void *array, int32_t *cap, int64_t want, size_t element_bytes) {
    if (want <= *cap)
        return 0;
    int64_t new_cap = want > 2 * (int64_t)*cap ? want : 2 * (int64_t)*cap;
    void *old;
    memcpy(&old, array, sizeof old);
    void *grown = realloc(old, (size_t)new_cap * element_bytes);
    if (!grown)
        return err_set(ERR_MEMORY, "no memory for a model of %lld parts", (long long)new_cap);
    memcpy(array, &grown, sizeof grown);
    *cap = (int32_t)new_cap;
    return 0;
}

/* The slot that holds `name`, or the empty one where it belongs. */
static int32_t find_slot(const Model *model, const char *name) {
    uint32_t mask = (uint32_t)model->n_name_slots - 1;
    uint32_t slot = (uint32_t)hash_text(name) & mask;
    while (model->name_slots[slot] > 0 &&
           strcmp(model->values[model->name_slots[slot] - 1].name, name) != 0)
        slot = (slot + 1) & mask;
    return (int32_t)slot;
}

int32_t model_find_value(const Model *model, const char *name) {
    return model->n_name_slots > 0 ? model->name_slots[find_slot(model, name)] - 1 : -1;
}

/* Keep the table at most half full with one more value. */
static int grow_slots(Model *model) {
    if (2 * (model->n_values + 1) <= model->n_name_slots)
        return 0;
    int32_t n_slots = model->n_name_slots > 0 ? 2 * model->n_name_slots : 64;
    int32_t *slots = calloc((size_t)n_slots, sizeof *slots);
    if (!slots)
        return err_set(ERR_MEMORY, "no memory for a model of %d values", model->n_values);
    free(model->name_slots);
    model->name_slots = slots;
    model->n_name_slots = n_slots;
    for (int32_t i = 0; i < model->n_values; i++)
        slots[find_slot(model, model->values[i].name)] = i + 1;
    return 0;
}

static int reserve(Model *model, int more_params) {
    TRY(grow(&model->values, &model->cap_values, model->n_values + 1, sizeof(Value)));
    TRY(grow(&model->layers, &model->cap_layers, model->n_layers + 1, sizeof(Layer)));
    TRY(grow(&model->params, &model->cap_params, model->n_params + more_params, sizeof(Param)));
    return grow_slots(model);
}

/* Room is reserved. */
static int32_t add_value(Model *model, const char *name, DType dtype, const Shape *shape,
                         int32_t producer) {
    int32_t id = model->n_values;
    model->name_slots[find_slot(model, name)] = id + 1;
    Value *value = &model->values[model->n_values++];
    *value = (Value){.dtype = dtype, .shape = *shape, .producer = producer};
    snprintf(value->name, sizeof value->name, "%s", name);
    return id;
}

static int init_data(Model *model, const char *name, DType dtype, const Shape *shape) {
    if (dtype != DTYPE_F32 && dtype != DTYPE_I32)
        return err_set(ERR_ARGUMENT, "%s has the element type %s, expected F32 or I32", name,
                       dtype_name(dtype));
    TRY(model_infer_check_shape(name, shape));
    TRY(reserve(model, 0));
    add_value(model, name, dtype, shape, -1);
    return 0;
}

int model_init(Model *model, const char *name, DType input_dtype, const Shape *input_shape,
               DType target_dtype, const Shape *target_shape) {
    memset(model, 0, sizeof *model);
    int rc = 0;
    TRY_DONE(text_check_name("model name", name, MODEL_NAME_BYTES - 1));
    TRY_DONE(text_copy(model->name, sizeof model->name, name));
    TRY_DONE(init_data(model, "input", input_dtype, input_shape));
    TRY_DONE(init_data(model, "target", target_dtype, target_shape));
done:
    if (rc < 0)
        model_done(model);
    return rc < 0 ? rc : 0;
}

void model_done(Model *model) {
    if (!model)
        return;
    free(model->values);
    free(model->layers);
    free(model->params);
    free(model->name_slots);
    memset(model, 0, sizeof *model);
}

static void *copy_array(const void *array, int32_t n, size_t element_bytes) {
    void *copy = malloc((size_t)(n > 0 ? n : 1) * element_bytes);
    if (copy && n > 0)
        memcpy(copy, array, (size_t)n * element_bytes);
    return copy;
}

int model_copy(const Model *model, Model *out_model) {
    Model copy = *model;
    copy.cap_values = copy.n_values;
    copy.cap_layers = copy.n_layers;
    copy.cap_params = copy.n_params;
    copy.values = copy_array(model->values, copy.n_values, sizeof(Value));
    copy.layers = copy_array(model->layers, copy.n_layers, sizeof(Layer));
    copy.params = copy_array(model->params, copy.n_params, sizeof(Param));
    copy.name_slots = copy_array(model->name_slots, copy.n_name_slots, sizeof(int32_t));
    if (!copy.values || !copy.layers || !copy.params || !copy.name_slots) {
        model_done(&copy);
        return err_set(ERR_MEMORY, "no memory for a copy of model '%s'", model->name);
    }
    *out_model = copy;
    return 0;
}

int32_t model_find_param(const Model *model, const char *name) {
    /* A parameter is named after the layer that made it, so the layer leads to it. */
    char layer_name[MODEL_NAME_BYTES];
    const char *dot = strrchr(name, '.');
    if (!dot || (size_t)(dot - name) >= sizeof layer_name)
        return -1;
    memcpy(layer_name, name, (size_t)(dot - name));
    layer_name[dot - name] = '\0';
    int32_t value = model_find_value(model, layer_name);
    if (value < 0 || model->values[value].producer < 0)
        return -1;
    const Layer *layer = &model->layers[model->values[value].producer];
    for (int32_t i = 0; i < layer->n_params; i++)
        if (strcmp(model->params[layer->params[i]].name, name) == 0)
            return layer->params[i];
    return -1;
}

int64_t model_param_elements(const Model *model, int32_t param) {
    return shape_elements(&model->params[param].shape);
}

static int check_name(const Model *model, LayerKind kind, const char *name) {
    if (model->n_layers >= MODEL_MAX_LAYERS)
        return err_set(ERR_LIMIT, "model '%s' has more than %d layers", model->name,
                       MODEL_MAX_LAYERS);
    if ((unsigned)kind >= LAYER_N_KINDS)
        return err_set(ERR_ARGUMENT, "layer '%s': unknown kind %d", name, (int)kind);
    TRY(text_check_name("layer name", name, LAYER_NAME_MAX));
    int32_t value = model_find_value(model, name);
    if (value >= 0)
        return err_set(ERR_ARGUMENT, "layer '%s': the name is taken by %s", name,
                       model->values[value].producer < 0 ? "the model's data" : "another layer");
    return 0;
}

static int check_inputs(const Model *model, LayerKind kind, const int32_t *inputs, int n_inputs) {
    int expected = model_infer_n_inputs(kind);
    if (n_inputs != expected)
        return err_set(ERR_ARGUMENT, "%d %s, expected %d", n_inputs,
                       text_plural(n_inputs, "input", "inputs"), expected);
    for (int i = 0; i < n_inputs; i++)
        if (inputs[i] < 0 || inputs[i] >= model->n_values)
            return err_set(ERR_ARGUMENT, "input value %d, expected one below %d", inputs[i],
                           model->n_values);
    return 0;
}

/* The parameter that somebody who wrote `name` may mean: the weight of the layer of that name, or
 * the one with the nearest name. NULL: none. */
static const char *nearest_param(const Model *model, const char *name) {
    int32_t value = model_find_value(model, name);
    const char *nearest = NULL;
    if (value >= 0 && model->values[value].producer >= 0) {
        const Layer *layer = &model->layers[model->values[value].producer];
        return layer->n_params > 0 ? model->params[layer->params[0]].name : NULL;
    }
    const char **names = malloc((size_t)(model->n_params + 1) * sizeof *names);
    for (int32_t i = 0; names && i < model->n_params; i++)
        names[i] = model->params[i].name;
    if (names)
        nearest = text_nearest(name, names, (size_t)model->n_params);
    free(names); /* nearest stands in the model */
    return nearest;
}

static int no_such_param(const Model *model, const char *name) {
    const char *nearest = nearest_param(model, name);
    if (nearest)
        return err_set(ERR_ARGUMENT,
                       "tied to '%s', but no earlier layer has such a parameter (did you mean "
                       "'%s'?)",
                       name, nearest);
    return err_set(ERR_ARGUMENT, "tied to '%s', but no earlier layer has such a parameter", name);
}

/* Returns the parameter's id. */
static int find_tied(const Model *model, const LayerMade *made, const char *tie_weight) {
    if (made->n_params == 0)
        return err_set(ERR_ARGUMENT, "tied to '%s', but the kind has no parameters", tie_weight);
    int32_t id = model_find_param(model, tie_weight);
    if (id < 0)
        return no_such_param(model, tie_weight);
    const Param *param = &model->params[id];
    if (param->role != PARAM_WEIGHT)
        return err_set(ERR_ARGUMENT, "tied to '%s', which is a running statistic", tie_weight);
    char text[2][160];
    if (!shape_equal(&param->shape, &made->params[0].shape))
        return err_set(ERR_ARGUMENT, "tied to '%s' of shape %s, expected %s", tie_weight,
                       shape_format(&param->shape, text[0], sizeof text[0]),
                       shape_format(&made->params[0].shape, text[1], sizeof text[1]));
    return id;
}

static bool output_needs_grad(const Model *model, const Layer *layer) {
    for (int32_t i = 0; i < layer->n_inputs; i++)
        if (model->values[layer->inputs[i]].needs_grad)
            return true;
    return layer->n_params > 0; /* every kind with parameters has a learned one */
}

/* Everything is checked and room is reserved. `tied`: the parameter of role 0, or -1. */
static void append(Model *model, Layer *layer, const LayerMade *made, int32_t tied) {
    for (int32_t i = 0; i < made->n_params; i++) {
        int32_t id = i == 0 ? tied : -1;
        if (id < 0) {
            id = model->n_params++;
            Param *param = &model->params[id];
            *param = made->params[i];
            snprintf(param->name, sizeof param->name, "%.*s.%.12s", (int)LAYER_NAME_MAX,
                     layer->name, made->params[i].name);
        }
        model->params[id].n_uses++;
        layer->params[layer->n_params++] = id;
    }
    layer->output = add_value(model, layer->name, DTYPE_F32, &made->shape, model->n_layers);
    model->values[layer->output].needs_grad = output_needs_grad(model, layer);
    for (int32_t i = 0; i < layer->n_inputs; i++)
        if (i == 0 || layer->inputs[i] != layer->inputs[i - 1])
            model->values[layer->inputs[i]].n_consumers++;
    model->layers[model->n_layers++] = *layer;
}

int model_add(Model *model, LayerKind kind, const char *name, const int32_t *inputs, int n_inputs,
              const LayerAttr *attr, const char *tie_weight) {
    TRY(check_name(model, kind, name));
    Layer layer = {.kind = kind, .n_inputs = n_inputs};
    LayerMade made = {0};
    layer.attr = attr ? *attr : model_attr_default(kind);
    snprintf(layer.name, sizeof layer.name, "%s", name);
    int32_t tied = -1;
    int rc;
    TRY_DONE(check_inputs(model, kind, inputs, n_inputs));
    TRY_DONE(model_attr_check(kind, &layer.attr));
    const Value *values[LAYER_MAX_INPUTS];
    for (int i = 0; i < n_inputs; i++) {
        layer.inputs[i] = inputs[i];
        values[i] = &model->values[inputs[i]];
    }
    TRY_DONE(model_infer(kind, values, &layer.attr, &made));
    if (tie_weight) {
        TRY_DONE(find_tied(model, &made, tie_weight));
        tied = rc;
    }
    TRY_DONE(reserve(model, made.n_params));
    append(model, &layer, &made, tied);
    return layer.output;
done:
    return err_context(rc, "layer '%s' (%s)", name, KIND_NAMES[kind]);
}

int model_check(Model *model) {
    if (model->n_layers == 0)
        return err_set(ERR_ARGUMENT, "model '%s' has no layers", model->name);
    const Layer *last = &model->layers[model->n_layers - 1];
    if (last->kind != LAYER_CROSS_ENTROPY)
        return err_set(ERR_ARGUMENT,
                       "the last layer '%s' of model '%s' is %s, expected the loss cross_entropy",
                       last->name, model->name, KIND_NAMES[last->kind]);
    for (int32_t i = 0; i < model->n_values; i++)
        if (model->values[i].n_consumers == 0 && i != last->output)
            return err_set(ERR_ARGUMENT, "no layer of model '%s' reads the value '%s'", model->name,
                           model->values[i].name);
    for (int32_t i = 0; i < model->n_layers; i++) {
        const Layer *layer = &model->layers[i];
        assert(layer->output == i + 2 && model->values[layer->output].producer == i);
        model->values[layer->output].needs_grad = output_needs_grad(model, layer);
    }
    return 0;
}

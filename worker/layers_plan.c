/* Where everything of a stage lies: homes of values and gradients, staging of blobs, the slab. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "worker/layers_internal.h"

/* Sizes come from an order: they are counted up to this, and what reaches it is refused. */
#define PLAN_MOST_BYTES ((size_t)1 << 56)

static size_t plan_sum(size_t bytes, size_t more) {
    return bytes < PLAN_MOST_BYTES && more < PLAN_MOST_BYTES - bytes ? bytes + device_align(more)
                                                                     : PLAN_MOST_BYTES;
}

/* ERR_LIMIT when n times so many bytes are more than any memory. */
static int plan_check(size_t bytes, size_t n, const char *what) {
    return bytes < PLAN_MOST_BYTES / (n + 1)
               ? 0
               : err_set(ERR_LIMIT, "the %s of %zu micro-batches do not fit any memory", what, n);
}

/* Time line of the slab: forward of local layer i at i, backward at 2n - 1 - i. */
static int32_t plan_backward_time(const Layers *layers, int32_t local) {
    return 2 * layers->n_local - 1 - local;
}

static int32_t plan_local(const Layers *layers, int32_t layer) {
    return layer - layers->setup.stage->first_layer;
}

static bool plan_is_local(const Layers *layers, int32_t layer) {
    const Stage *stage = layers->setup.stage;
    return layer >= stage->first_layer && layer < stage->end_layer;
}

static size_t plan_value_bytes(const Layers *layers, int32_t value) {
    const Value *v = &layers->model->values[value];
    const int64_t elements = shape_elements(&v->shape);
    int64_t bytes = 0;
    if (elements < 0 || __builtin_mul_overflow(elements, layers->max_rows, &bytes) ||
        __builtin_mul_overflow(bytes, dtype_bytes(v->dtype), &bytes)) {
        return PLAN_MOST_BYTES;
    }
    return plan_sum(0, layers->setup.ops->value_bytes(layers->setup.device, v->dtype, &v->shape,
                                                      layers->max_rows));
}

/* A plain value may lie in host staging memory when the device computes there. */
static bool plan_direct(const Layers *layers, int32_t value) {
    const Value *v = &layers->model->values[value];
    return layers->setup.ops->host_memory &&
           layers->setup.ops->value_is_plain(layers->setup.device, v->dtype, &v->shape);
}

static Home plan_slot(Layers *layers, size_t bytes) {
    Home home = {.kind = HOME_SLOT, .offset = layers->slot_bytes};
    layers->slot_bytes = plan_sum(layers->slot_bytes, bytes);
    return home;
}

static Home plan_host(Layers *layers, size_t bytes) {
    Home home = {.kind = HOME_HOST, .offset = layers->staging_bytes};
    layers->staging_bytes = plan_sum(layers->staging_bytes, bytes);
    return home;
}

static int plan_shared(Slab *slab, size_t bytes, int32_t begin, int32_t end, Home *out_home) {
    TRY(plan_check(bytes, 1, "activations"));
    int area = slab_add(slab, bytes, begin, end);
    TRY(area);
    *out_home = (Home){.kind = HOME_SHARED, .area = area};
    return 0;
}

static Shape plan_rows_shape(const Shape *shape, int32_t rows) {
    Shape out = {.n_dims = shape->n_dims + 1};
    out.dims[0] = rows;
    for (int32_t i = 0; i < shape->n_dims; i++) {
        out.dims[i + 1] = shape->dims[i];
    }
    return out;
}

static int plan_form(const Layers *layers, const int32_t *values, int32_t n, int32_t rows,
                     PortForm *form) {
    form->n = n;
    form->tensors = calloc((size_t)n + 1, sizeof *form->tensors);
    form->offsets = calloc((size_t)n + 1, sizeof *form->offsets);
    if (form->tensors == NULL || form->offsets == NULL) {
        return err_set(ERR_MEMORY, "an edge's form does not fit into memory");
    }
    for (int32_t i = 0; i < n; i++) {
        const Value *v = &layers->model->values[values[i]];
        if (v->shape.n_dims + 1 > SHAPE_MAX_DIMS) {
            return err_set(ERR_LIMIT, "value '%s' has too many dimensions to cross stages",
                           v->name);
        }
        form->tensors[i] = (BlobTensor){v->dtype, plan_rows_shape(&v->shape, rows)};
    }
    form->bytes = blob_layout(form->tensors, n, form->offsets);
    return form->bytes < 0 ? (int)form->bytes : 0;
}

static int plan_port(Layers *layers, const Edge *edge, Port *port) {
    port->edge = edge;
    const size_t n = (size_t)layers->n_variants;
    port->acts = calloc(n, sizeof *port->acts);
    port->grads = calloc(n, sizeof *port->grads);
    port->items = calloc((size_t)edge->n_grads + 1, sizeof *port->items);
    int32_t *grad_values = calloc((size_t)edge->n_grads + 1, sizeof *grad_values);
    int rc = 0;
    if (port->acts == NULL || port->grads == NULL || port->items == NULL || grad_values == NULL) {
        rc = err_set(ERR_MEMORY, "an edge's forms do not fit into memory");
        goto done;
    }
    for (int32_t i = 0; i < edge->n_grads; i++) {
        grad_values[i] = edge->grads[i].value;
    }
    for (int32_t v = 0; v < layers->n_variants; v++) {
        int32_t rows = layers->variants[v];
        TRY_DONE(plan_form(layers, edge->values, edge->n_values, rows, &port->acts[v]));
        TRY_DONE(plan_form(layers, grad_values, edge->n_grads, rows, &port->grads[v]));
        if ((size_t)port->acts[v].bytes > port->act_bytes) {
            port->act_bytes = (size_t)port->acts[v].bytes;
        }
        if ((size_t)port->grads[v].bytes > port->grad_bytes) {
            port->grad_bytes = (size_t)port->grads[v].bytes;
        }
    }
    port->act_offset = plan_host(layers, port->act_bytes).offset;
    port->grad_offset = plan_host(layers, port->grad_bytes).offset;
done:
    free(grad_values);
    return rc;
}

static int plan_ports(Layers *layers) {
    const Stage *stage = layers->setup.stage;
    layers->in = calloc((size_t)stage->n_in + 1, sizeof *layers->in);
    layers->out = calloc((size_t)stage->n_out + 1, sizeof *layers->out);
    if (layers->in == NULL || layers->out == NULL) {
        return err_set(ERR_MEMORY, "the stage's edges do not fit into memory");
    }
    for (; layers->n_in < stage->n_in; layers->n_in++) {
        TRY(plan_port(layers, &stage->in[layers->n_in], &layers->in[layers->n_in]));
    }
    for (; layers->n_out < stage->n_out; layers->n_out++) {
        TRY(plan_port(layers, &stage->out[layers->n_out], &layers->out[layers->n_out]));
    }
    return 0;
}

/* Input, target and values of earlier stages. */
static void plan_incoming(Layers *layers) {
    const Stage *stage = layers->setup.stage;
    if (stage->reads_input) {
        layers->input_plain = plan_host(layers, plan_value_bytes(layers, MODEL_VALUE_INPUT));
        layers->values[MODEL_VALUE_INPUT] =
            plan_direct(layers, MODEL_VALUE_INPUT)
                ? layers->input_plain
                : plan_slot(layers, plan_value_bytes(layers, MODEL_VALUE_INPUT));
    }
    if (stage->reads_target) {
        layers->target_plain = plan_host(layers, plan_value_bytes(layers, MODEL_VALUE_TARGET));
        layers->values[MODEL_VALUE_TARGET] =
            plan_direct(layers, MODEL_VALUE_TARGET)
                ? layers->target_plain
                : plan_slot(layers, plan_value_bytes(layers, MODEL_VALUE_TARGET));
    }
    for (int32_t p = 0; p < layers->n_in; p++) {
        const Edge *edge = layers->in[p].edge;
        assert(edge != NULL);
        for (int32_t i = 0; i < edge->n_values; i++) {
            int32_t value = edge->values[i];
            layers->values[value] = plan_direct(layers, value)
                                        ? (Home){.kind = HOME_IN_ACT, .port = p, .item = i}
                                        : plan_slot(layers, plan_value_bytes(layers, value));
        }
        for (int32_t i = 0; i < edge->n_grads; i++) {
            int32_t value = edge->grads[i].value;
            layers->in[p].items[i] = plan_direct(layers, value)
                                         ? (Home){.kind = HOME_IN_GRAD, .port = p, .item = i}
                                         : plan_slot(layers, plan_value_bytes(layers, value));
        }
    }
}

typedef struct ValueUse {
    bool kept;          /* a backward here reads it */
    int32_t crosses;    /* on how many out-edges */
    int32_t port, item; /* the first of them */
    int32_t last_use;   /* local index of the last local consumer; -1: none */
} ValueUse;

static ValueUse plan_value_use(const Layers *layers, int32_t value) {
    ValueUse use = {.last_use = -1};
    int32_t producer = layers->model->values[value].producer;
    use.kept = producer >= 0 && plan_is_local(layers, producer) &&
               layers->local[plan_local(layers, producer)].needs->keeps_output;
    for (int32_t i = 0; i < layers->n_local; i++) {
        const LocalLayer *local = &layers->local[i];
        for (int32_t x = 0; x < local->layer->n_inputs; x++) {
            if (local->layer->inputs[x] == value) {
                use.last_use = i;
                use.kept = use.kept || local->needs->keeps_input[x];
            }
        }
    }
    for (int32_t p = 0; p < layers->n_out; p++) {
        const Edge *edge = layers->out[p].edge;
        for (int32_t i = 0; i < edge->n_values; i++) {
            if (edge->values[i] == value && use.crosses++ == 0) {
                use.port = p;
                use.item = i;
            }
        }
    }
    return use;
}

/* Kept things are in the slot, or shared when they are computed again before the backward. */
static bool plan_keeps_in_slot(const Layers *layers) {
    return !layers->setup.recompute || layers->setup.split_backward;
}

static int plan_local_value(Layers *layers, Slab *slab, int32_t i) {
    LocalLayer *local = &layers->local[i];
    const int32_t value = local->layer->output, n = layers->n_local;
    const size_t bytes = plan_value_bytes(layers, value);
    if (local->layer->kind == LAYER_CROSS_ENTROPY) {
        return 0;
    }
    ValueUse use = plan_value_use(layers, value);
    Home *home = &layers->values[value];
    if (use.crosses == 1 && plan_direct(layers, value)) {
        *home = (Home){.kind = HOME_OUT_ACT, .port = use.port, .item = use.item};
    } else if (use.crosses > 0 || (use.kept && plan_keeps_in_slot(layers))) {
        *home = plan_slot(layers, bytes);
    } else if (use.kept) {
        TRY(plan_shared(slab, bytes, i, 2 * n, home));
    } else {
        TRY(plan_shared(slab, bytes, i, (use.last_use < i ? i : use.last_use) + 1, home));
    }
    return 0;
}

static int plan_saved(Layers *layers, Slab *slab, int32_t i) {
    LocalLayer *local = &layers->local[i];
    if (local->needs->saved_bytes == 0) {
        return 0;
    }
    if (plan_keeps_in_slot(layers)) {
        local->saved = plan_slot(layers, local->needs->saved_bytes);
        return 0;
    }
    return plan_shared(slab, local->needs->saved_bytes, i, plan_backward_time(layers, i) + 1,
                       &local->saved);
}

/* Contributions of later stages: edges in descending consumer, items in order. */
static int plan_remote(Layers *layers) {
    int32_t n = 0;
    for (int32_t p = 0; p < layers->n_out; p++) {
        const Edge *edge = layers->out[p].edge;
        assert(edge != NULL);
        n += edge->n_grads;
    }
    layers->remote = calloc((size_t)n + 1, sizeof *layers->remote);
    if (layers->remote == NULL) {
        return err_set(ERR_MEMORY, "the stage's gradient items do not fit into memory");
    }
    for (int32_t p = layers->n_out - 1; p >= 0; p--) {
        const Edge *edge = layers->out[p].edge;
        assert(edge != NULL);
        for (int32_t i = 0; i < edge->n_grads; i++) {
            RemoteGrad remote = {p, i, edge->grads[i].value, true};
            for (int32_t k = 0; k < layers->n_remote; k++) {
                remote.first = remote.first && layers->remote[k].value != remote.value;
            }
            layers->remote[layers->n_remote++] = remote;
        }
    }
    return 0;
}

/* Every gradient contribution to `value` in this stage: how many, and when the first comes. */
static int32_t plan_contributions(const Layers *layers, int32_t value, int32_t *out_time,
                                  const RemoteGrad **out_remote) {
    int32_t n = 0;
    *out_time = 2 * layers->n_local;
    *out_remote = NULL;
    for (int32_t k = 0; k < layers->n_remote; k++) {
        if (layers->remote[k].value == value) {
            *out_remote = &layers->remote[k];
            *out_time = layers->n_local;
            n++;
        }
    }
    for (int32_t i = layers->n_local - 1; i >= 0; i--) {
        const Layer *layer = layers->local[i].layer;
        for (int32_t x = 0; x < layer->n_inputs; x++) {
            if (layer->inputs[x] == value) {
                int32_t time = plan_backward_time(layers, i);
                *out_time = time < *out_time ? time : *out_time;
                n++;
            }
        }
    }
    return n;
}

static int plan_local_grad(Layers *layers, Slab *slab, int32_t i) {
    const int32_t value = layers->local[i].layer->output;
    if (!layers->model->values[value].needs_grad ||
        layers->local[i].layer->kind == LAYER_CROSS_ENTROPY) {
        return 0;
    }
    int32_t time;
    const RemoteGrad *remote;
    int32_t n = plan_contributions(layers, value, &time, &remote);
    if (n == 1 && remote != NULL && plan_direct(layers, value)) {
        layers->grads[value] =
            (Home){.kind = HOME_OUT_GRAD, .port = remote->port, .item = remote->item};
        return 0;
    }
    const size_t bytes = plan_value_bytes(layers, value);
    if (layers->setup.split_backward) {
        layers->grads[value] = plan_slot(layers, bytes);
        return 0;
    }
    return plan_shared(slab, bytes, time, plan_backward_time(layers, i) + 1, &layers->grads[value]);
}

/* The in-port's gradient item that takes layer `layer`'s contribution to `value`. */
static int plan_item(const Layers *layers, int32_t value, int32_t layer, Home *out_home,
                     bool *out_own) {
    for (int32_t p = 0; p < layers->n_in; p++) {
        const Edge *edge = layers->in[p].edge;
        for (int32_t i = 0; i < edge->n_grads; i++) {
            const EdgeGrad *grad = &edge->grads[i];
            if (grad->value == value && (grad->consumer == -1 || grad->consumer == layer)) {
                *out_home = layers->in[p].items[i];
                *out_own = grad->consumer == layer;
                return 0;
            }
        }
    }
    return err_set(ERR_INTERNAL, "no edge takes the gradient of value '%s' back",
                   layers->model->values[value].name);
}

/* Is there a contribution to `value` before input x of local layer i adds its own? */
static bool plan_is_first(const Layers *layers, int32_t value, int32_t i, int32_t x, bool own) {
    for (int32_t k = 0; k < layers->n_remote; k++) {
        if (layers->remote[k].value == value) {
            return false;
        }
    }
    if (layers->local[i].dx[x].same < x) {
        return false;
    }
    for (int32_t j = i + 1; j < layers->n_local && !own; j++) {
        for (int32_t y = 0; y < layers->local[j].layer->n_inputs; y++) {
            if (layers->local[j].layer->inputs[y] == value) {
                return false;
            }
        }
    }
    return true;
}

static int plan_targets(Layers *layers, int32_t i) {
    LocalLayer *local = &layers->local[i];
    size_t adding = 0;
    for (int32_t x = 0; x < local->layer->n_inputs; x++) {
        const int32_t value = local->layer->inputs[x];
        GradTarget *target = &local->dx[x];
        target->value = value;
        while (local->layer->inputs[target->same] != value) {
            target->same++;
        }
        target->wanted = layers->model->values[value].needs_grad;
        if (!target->wanted) {
            continue;
        }
        local->any_dx = true;
        bool own = false;
        if (plan_is_local(layers, layers->model->values[value].producer)) {
            target->home = layers->grads[value];
        } else {
            TRY(plan_item(layers, value, layers->setup.stage->first_layer + i, &target->home,
                          &own));
        }
        target->first = plan_is_first(layers, value, i, x, own);
        if (!target->first) {
            target->scratch = adding;
            adding = plan_sum(adding, plan_value_bytes(layers, value));
        }
    }
    if (adding > layers->adding_bytes) {
        layers->adding_bytes = adding;
    }
    return 0;
}

static int plan_add_scratch(Layers *layers, Slab *slab) {
    const int32_t n = layers->n_local;
    for (int32_t i = 0; i < n; i++) {
        const OpNeeds *needs = layers->local[i].needs;
        if (needs->scratch_bytes > layers->scratch_bytes) {
            layers->scratch_bytes = needs->scratch_bytes;
        }
    }
    for (int32_t k = 0; k < layers->n_remote; k++) {
        size_t bytes = plan_value_bytes(layers, layers->remote[k].value);
        if (!layers->remote[k].first && bytes > layers->adding_bytes) {
            layers->adding_bytes = bytes;
        }
    }
    const size_t slots = (size_t)layers->setup.n_slots;
    TRY(plan_check(layers->scratch_bytes, 1, "intermediate results"));
    TRY(plan_check(layers->adding_bytes, 1, "gradients"));
    TRY(plan_check(layers->slot_bytes, slots, "activations"));
    TRY(plan_check(layers->staging_bytes, slots, "objects"));
    layers->area_scratch = slab_add(slab, layers->scratch_bytes, 0, 2 * n);
    TRY(layers->area_scratch);
    layers->area_adding = slab_add(slab, layers->adding_bytes, n, 2 * n);
    TRY(layers->area_adding);
    layers->area_slots = slab_add(slab, slots * layers->slot_bytes, 0, 2 * n);
    return layers->area_slots < 0 ? layers->area_slots : 0;
}

int layers_plan(Layers *layers, Slab *slab) {
    layers->values = calloc((size_t)layers->model->n_values, sizeof *layers->values);
    layers->grads = calloc((size_t)layers->model->n_values, sizeof *layers->grads);
    if (layers->values == NULL || layers->grads == NULL) {
        return err_set(ERR_MEMORY, "the stage's values do not fit into memory");
    }
    TRY(plan_ports(layers));
    TRY(plan_remote(layers));
    plan_incoming(layers);
    for (int32_t i = 0; i < layers->n_local; i++) {
        TRY(plan_local_value(layers, slab, i));
        TRY(plan_saved(layers, slab, i));
        TRY(plan_local_grad(layers, slab, i));
    }
    for (int32_t i = 0; i < layers->n_local; i++) {
        TRY(plan_targets(layers, i));
    }
    return plan_add_scratch(layers, slab);
}

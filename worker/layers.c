#include "worker/layers_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"

static int layers_add_variant(Layers *layers, int64_t rows) {
    int32_t at = 0;
    while (at < layers->n_variants && layers->variants[at] < rows) {
        at++;
    }
    if (at < layers->n_variants && layers->variants[at] == rows) {
        return 0;
    }
    if (layers->n_variants > OP_MAX_ROW_VARIANTS) {
        return err_set(ERR_LIMIT, "more than %d different micro-batch sizes", OP_MAX_ROW_VARIANTS);
    }
    memmove(&layers->variants[at + 1], &layers->variants[at],
            (size_t)(layers->n_variants - at) * sizeof layers->variants[0]);
    layers->variants[at] = (int32_t)rows;
    layers->n_variants++;
    return 0;
}

/* The row counts that occur: of full batches and of the last one of an epoch or evaluation. */
static int layers_find_variants(Layers *layers, const Order *order) {
    int64_t first;
    const int64_t batches[] = {order->batch, order->train_samples % order->batch,
                               order->has_eval ? order->eval_samples % order->batch : 0,
                               order->train_samples < order->batch ? 0 : order->batch};
    TRY(layers_add_variant(layers, 0));
    for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++) {
        for (int32_t m = 0; m < order->plan.n_micro; m++) {
            TRY(layers_add_variant(
                layers, order_micro_rows(batches[b], order->plan.micro_rows, m, &first)));
        }
    }
    layers->max_rows = layers->variants[layers->n_variants - 1];
    return 0;
}

int layers_open(const LayersSetup *setup, Layers **out_layers) {
    int rc = 0;
    Layers *layers = calloc(1, sizeof *layers);
    if (layers == NULL) {
        return err_set(ERR_MEMORY, "a stage does not fit into memory");
    }
    layers->setup = *setup;
    layers->model = &setup->order->model;
    layers->step = -1;
    const Stage *stage = setup->stage;
    const int32_t n = stage->end_layer - stage->first_layer;
    layers->local = calloc((size_t)n, sizeof *layers->local);
    if (layers->local == NULL) {
        rc = err_set(ERR_MEMORY, "a stage's layers do not fit into memory");
        goto done;
    }
    TRY_DONE(layers_find_variants(layers, setup->order));
    for (int32_t i = 0; i < n; i++, layers->n_local++) {
        LocalLayer *local = &layers->local[i];
        const int32_t layer = stage->first_layer + i;
        local->layer = &layers->model->layers[layer];
        rc = setup->ops->op_open(setup->device, layers->model, layer, layers->variants + 1,
                                 layers->n_variants - 1, &local->op);
        if (rc < 0) {
            err_context(rc, "layer '%s'", local->layer->name);
            goto done;
        }
        local->needs = setup->ops->op_needs(local->op);
        for (int32_t p = 0; p < local->layer->n_params; p++) {
            const Param *param = &layers->model->params[local->layer->params[p]];
            local->any_dw = local->any_dw || param->role == PARAM_WEIGHT;
        }
    }
    *out_layers = layers;
    layers = NULL;
done:
    layers_close(layers);
    return rc;
}

static void layers_close_port(Port *port, int32_t n_variants) {
    for (int32_t v = 0; v < n_variants; v++) {
        if (port->acts != NULL) {
            free(port->acts[v].tensors);
            free(port->acts[v].offsets);
        }
        if (port->grads != NULL) {
            free(port->grads[v].tensors);
            free(port->grads[v].offsets);
        }
    }
    free(port->acts);
    free(port->grads);
    free(port->items);
}

void layers_close(Layers *layers) {
    if (layers == NULL) {
        return;
    }
    for (int32_t i = 0; layers->local != NULL && i < layers->n_local; i++) {
        layers->setup.ops->op_close(layers->local[i].op);
    }
    for (int32_t p = 0; layers->in != NULL && p < layers->setup.stage->n_in; p++) {
        layers_close_port(&layers->in[p], layers->n_variants);
    }
    for (int32_t p = 0; layers->out != NULL && p < layers->setup.stage->n_out; p++) {
        layers_close_port(&layers->out[p], layers->n_variants);
    }
    for (int32_t s = 0; layers->loaded != NULL && s < layers->setup.n_slots; s++) {
        if (layers->loaded[s] != NULL) {
            layers->setup.ops->event_close(layers->loaded[s]);
        }
    }
    free(layers->loaded);
    if (layers->staging != NULL) {
        layers->setup.ops->host_free(layers->setup.device, layers->staging);
    }
    free(layers->in);
    free(layers->out);
    free(layers->local);
    free(layers->values);
    free(layers->grads);
    free(layers->remote);
    free(layers->area_offsets);
    free(layers->uses);
    free(layers->states);
    free(layers);
}

const OpNeeds *layers_needs(const Layers *layers, int32_t layer) {
    return layers->local[layer - layers->setup.stage->first_layer].needs;
}

Op *layers_op(const Layers *layers, int32_t layer) {
    return layers->local[layer - layers->setup.stage->first_layer].op;
}

static int layers_bind_params(Layers *layers, Params *params) {
    const size_t n = (size_t)layers->n_local * LAYER_MAX_PARAMS;
    layers->uses = calloc(n, sizeof *layers->uses);
    layers->states = calloc(n, sizeof *layers->states);
    if (layers->uses == NULL || layers->states == NULL) {
        return err_set(ERR_MEMORY, "the stage's parameters do not fit into memory");
    }
    layers->params = params;
    for (int32_t s = 0; s < params->n_states; s++) {
        ParamState *state = &params->states[s];
        for (int32_t u = 0; u < state->n_uses; u++) {
            int32_t local = state->uses[u].layer - layers->setup.stage->first_layer;
            size_t at = (size_t)local * LAYER_MAX_PARAMS + (size_t)state->uses[u].role;
            layers->uses[at] = &state->uses[u];
            layers->states[at] = state;
        }
    }
    return 0;
}

static int layers_open_events(Layers *layers) {
    const LayersSetup *setup = &layers->setup;
    layers->loaded = calloc((size_t)setup->n_slots + 1, sizeof *layers->loaded);
    if (layers->loaded == NULL) {
        return err_set(ERR_MEMORY, "the events of %d slots", setup->n_slots);
    }
    for (int32_t s = 0; s < setup->n_slots; s++) {
        TRY(setup->ops->event_open(setup->device, &layers->loaded[s]));
    }
    return 0;
}

int layers_bind(Layers *layers, const Slab *slab, void *base, Params *params) {
    layers->n_areas = slab->n_areas;
    layers->area_offsets = calloc((size_t)slab->n_areas + 1, sizeof *layers->area_offsets);
    if (layers->area_offsets == NULL) {
        return err_set(ERR_MEMORY, "the slab's plan does not fit into memory");
    }
    for (int32_t a = 0; a < slab->n_areas; a++) {
        layers->area_offsets[a] = slab_offset(slab, a);
    }
    layers->base = base;
    layers->slots = layers->base + slab_offset(slab, layers->area_slots);
    layers->scratch = layers->base + slab_offset(slab, layers->area_scratch);
    layers->adding = layers->base + slab_offset(slab, layers->area_adding);
    void *staging = NULL;
    TRY(layers->setup.ops->host_alloc(
        layers->setup.device, (size_t)layers->setup.n_slots * layers->staging_bytes + 1, &staging));
    layers->staging = staging;
    TRY(layers_open_events(layers));
    return layers_bind_params(layers, params);
}

int32_t layers_variant(const Layers *layers, int32_t rows) {
    for (int32_t v = 0; v < layers->n_variants; v++) {
        if (layers->variants[v] == rows) {
            return v;
        }
    }
    return err_set(ERR_INTERNAL, "a micro-batch of %d rows was not foreseen", rows);
}

void *layers_staging(const Layers *layers, int32_t slot, size_t offset) {
    return layers->staging + (size_t)slot * layers->staging_bytes + offset;
}

void *layers_at(const Layers *layers, const Home *home, int32_t slot, int32_t rows) {
    const int32_t variant = home->kind >= HOME_IN_ACT ? layers_variant(layers, rows) : 0;
    const Port *port;
    switch (home->kind) {
    case HOME_SHARED:
        return layers->base + layers->area_offsets[home->area];
    case HOME_SLOT:
        return layers->slots + (size_t)slot * layers->slot_bytes + home->offset;
    case HOME_HOST:
        return layers_staging(layers, slot, home->offset);
    case HOME_IN_ACT:
    case HOME_OUT_ACT:
        port = home->kind == HOME_IN_ACT ? &layers->in[home->port] : &layers->out[home->port];
        return layers_staging(layers, slot,
                              port->act_offset + port->acts[variant].offsets[home->item]);
    case HOME_IN_GRAD:
    case HOME_OUT_GRAD:
        port = home->kind == HOME_IN_GRAD ? &layers->in[home->port] : &layers->out[home->port];
        return layers_staging(layers, slot,
                              port->grad_offset + port->grads[variant].offsets[home->item]);
    case HOME_NONE:
    default:
        return NULL;
    }
}

void layers_begin_step(Layers *layers, int64_t step, double loss_scale) {
    layers->step = step;
    layers->loss_scale = loss_scale;
    layers->n_forward = 0;
    layers->n_backward = 0;
    layers_reset_loss(layers);
}

const LossSums *layers_loss(const Layers *layers) {
    return &layers->loss;
}

void layers_reset_loss(Layers *layers) {
    layers->loss = (LossSums){0};
}

/* Non-empty micro-batches of the batch that come after `micro`: BatchNorm's exponent. */
static int64_t layers_micros_after(const Layers *layers, MicroPlace place) {
    const int32_t rows = layers->setup.order->plan.micro_rows;
    int64_t n = (place.batch_rows + rows - 1) / rows;
    return n > place.micro + 1 ? n - 1 - place.micro : 0;
}

static OpArgs layers_args(const Layers *layers, MicroPlace place) {
    return (OpArgs){.rows = place.rows,
                    .seed = layers->setup.order->seed,
                    .step = place.step,
                    .first_row = place.first_row,
                    .loss_scale = layers->loss_scale,
                    .scratch = layers->scratch};
}

static void layers_fill_args(const Layers *layers, int32_t i, MicroPlace place, int32_t slot,
                             OpArgs *args) {
    const LocalLayer *local = &layers->local[i];
    const Layer *layer = local->layer;
    for (int32_t x = 0; x < layer->n_inputs; x++) {
        args->x[x] = layers_at(layers, &layers->values[layer->inputs[x]], slot, place.rows);
    }
    args->y = layers_at(layers, &layers->values[layer->output], slot, place.rows);
    args->saved = layers_at(layers, &local->saved, slot, place.rows);
    for (int32_t p = 0; p < layer->n_params; p++) {
        const ParamState *state = layers->states[i * LAYER_MAX_PARAMS + p];
        const ParamUse *use = layers->uses[i * LAYER_MAX_PARAMS + p];
        args->w[p] = state->w;
        args->dw[p] = use->packed != NULL ? use->packed : use->sum;
    }
    args->packed = layers->params->packed[i];
}

static int layers_load(Layers *layers, Stream *stream, MicroPlace place, int32_t slot) {
    const Stage *stage = layers->setup.stage;
    const DeviceOps *ops = layers->setup.ops;
    const int32_t values[] = {MODEL_VALUE_INPUT, MODEL_VALUE_TARGET};
    const bool reads[] = {stage->reads_input, stage->reads_target};
    const Home *plains[] = {&layers->input_plain, &layers->target_plain};
    TRY(ops->event_sync(layers->loaded[slot])); /* what lay there before has been copied */
    for (int k = 0; k < 2; k++) {
        if (!reads[k]) {
            continue;
        }
        void *plain = layers_at(layers, plains[k], slot, place.rows);
        TRY(k == 0 ? data_load_input(layers->setup.data, place, plain)
                   : data_load_target(layers->setup.data, place, plain));
        const Value *v = &layers->model->values[values[k]];
        void *home = layers_at(layers, &layers->values[values[k]], slot, place.rows);
        if (home != plain) {
            TRY(ops->value_from_plain(stream, v->dtype, &v->shape, place.rows, home, plain));
        }
    }
    return ops->event_record(layers->loaded[slot], stream);
}

/* Bring received activations into device layout. */
static int layers_receive(Layers *layers, Stream *stream, MicroPlace place, int32_t slot) {
    const DeviceOps *ops = layers->setup.ops;
    const int32_t variant = layers_variant(layers, place.rows);
    TRY(variant);
    for (int32_t p = 0; p < layers->n_in; p++) {
        const Port *port = &layers->in[p];
        for (int32_t i = 0; i < port->edge->n_values; i++) {
            const int32_t value = port->edge->values[i];
            const Home *home = &layers->values[value];
            if (home->kind == HOME_IN_ACT) {
                continue;
            }
            const Value *v = &layers->model->values[value];
            TRY(ops->value_from_plain(
                stream, v->dtype, &v->shape, place.rows, layers_at(layers, home, slot, place.rows),
                layers_staging(layers, slot, port->act_offset + port->acts[variant].offsets[i])));
        }
    }
    return 0;
}

void layers_time(Layers *layers, int64_t *forward_ns, int64_t *backward_ns) {
    layers->forward_ns = forward_ns;
    layers->backward_ns = backward_ns;
}

/* Add the time since start_ns to the layer's. */
static int layers_note_time(const Layers *layers, Stream *stream, int64_t *ns, int32_t i,
                            int64_t start_ns) {
    if (ns == NULL) {
        return 0;
    }
    TRY(layers->setup.ops->stream_sync(stream));
    ns[i] += clock_now_ns() - start_ns;
    return 0;
}

static int layers_run_forward(Layers *layers, Stream *stream, MicroPlace place, int32_t slot,
                              bool recompute) {
    OpArgs step_args = layers_args(layers, place);
    const int64_t after = layers_micros_after(layers, place);
    for (int32_t i = 0; i < layers->n_local; i++) {
        const LocalLayer *local = &layers->local[i];
        OpArgs args = step_args;
        layers_fill_args(layers, i, place, slot, &args);
        args.loss = recompute ? &layers->scrap : &layers->loss;
        if (local->layer->kind == LAYER_BATCHNORM) {
            args.statistic_decay = pow(1.0 - (double)local->layer->attr.momentum, (double)after);
            args.accumulate = layers->n_forward > 0;
            if (recompute || place.eval) {
                args.dw[2] = args.dw[3] = NULL;
            }
        }
        const int64_t start_ns = layers->forward_ns != NULL ? clock_now_ns() : 0;
        int rc = layers->setup.ops->op_run(local->op, stream,
                                           place.eval ? OP_FORWARD_EVAL : OP_FORWARD, &args);
        if (rc >= 0) {
            rc = layers_note_time(layers, stream, layers->forward_ns, i, start_ns);
        }
        if (rc < 0) {
            return err_context(rc, "layer '%s' forward, step %lld, micro-batch %d",
                               local->layer->name, (long long)place.step, place.micro);
        }
    }
    return 0;
}

int layers_forward(Layers *layers, Stream *stream, MicroPlace place, int32_t slot) {
    const int64_t start_ns = layers->forward_ns != NULL ? clock_now_ns() : 0;
    TRY(layers_load(layers, stream, place, slot));
    TRY(layers_receive(layers, stream, place, slot));
    TRY(layers_note_time(layers, stream, layers->forward_ns, 0, start_ns));
    TRY(layers_run_forward(layers, stream, place, slot, false));
    layers->n_forward++;
    return 0;
}

int layers_recompute(Layers *layers, Stream *stream, MicroPlace place, int32_t slot) {
    return layers_run_forward(layers, stream, place, slot, true);
}

/* Start the gradients of values made here with what later stages sent back. */
static int layers_receive_grads(Layers *layers, Stream *stream, MicroPlace place, int32_t slot) {
    const DeviceOps *ops = layers->setup.ops;
    const int32_t variant = layers_variant(layers, place.rows);
    TRY(variant);
    for (int32_t k = 0; k < layers->n_remote; k++) {
        const RemoteGrad *remote = &layers->remote[k];
        const Home *home = &layers->grads[remote->value];
        if (home->kind == HOME_OUT_GRAD) {
            continue; /* the only contribution lies where it is wanted */
        }
        const Port *port = &layers->out[remote->port];
        const Value *v = &layers->model->values[remote->value];
        const void *plain = layers_staging(
            layers, slot, port->grad_offset + port->grads[variant].offsets[remote->item]);
        void *dst = layers_at(layers, home, slot, place.rows);
        void *to = remote->first ? dst : layers->adding;
        TRY(ops->value_from_plain(stream, v->dtype, &v->shape, place.rows, to, plain));
        if (!remote->first) {
            TRY(ops->add(
                stream, dst, to,
                (int64_t)(ops->value_bytes(layers->setup.device, v->dtype, &v->shape, place.rows) /
                          sizeof(float))));
        }
    }
    return 0;
}

/* dst += what input x of the layer handed back. */
static int layers_add_grad(const Layers *layers, Stream *stream, const GradTarget *target,
                           int32_t rows, void *dst, const void *dx) {
    const DeviceOps *ops = layers->setup.ops;
    const Value *v = &layers->model->values[target->value];
    const size_t bytes = ops->value_bytes(layers->setup.device, v->dtype, &v->shape, rows);
    return ops->add(stream, dst, dx, (int64_t)(bytes / sizeof(float)));
}

static int layers_backward_input(Layers *layers, Stream *stream, const LocalLayer *local,
                                 MicroPlace place, int32_t slot, OpArgs *args) {
    const DeviceOps *ops = layers->setup.ops;
    const Layer *layer = local->layer;
    if (!local->any_dx) {
        return 0;
    }
    for (int32_t x = 0; x < layer->n_inputs; x++) {
        const GradTarget *target = &local->dx[x];
        if (target->wanted) {
            args->dx[x] = target->first ? layers_at(layers, &target->home, slot, place.rows)
                                        : (char *)layers->adding + target->scratch;
        }
    }
    TRY(ops->op_run(local->op, stream, OP_BACKWARD_INPUT, args));
    for (int32_t x = 0; x < layer->n_inputs; x++) {
        const GradTarget *target = &local->dx[x];
        if (target->wanted && target->same < x) {
            TRY(layers_add_grad(layers, stream, target, place.rows, args->dx[target->same],
                                args->dx[x]));
        }
    }
    for (int32_t x = 0; x < layer->n_inputs; x++) {
        const GradTarget *target = &local->dx[x];
        if (target->wanted && target->same == x && !target->first) {
            TRY(layers_add_grad(layers, stream, target, place.rows,
                                layers_at(layers, &target->home, slot, place.rows), args->dx[x]));
        }
    }
    return 0;
}

/* A layer whose output needs no gradient has nothing to hand back. */
static bool layers_has_backward(const Layers *layers, const LocalLayer *local) {
    return local->layer->kind == LAYER_CROSS_ENTROPY ||
           layers->model->values[local->layer->output].needs_grad;
}

int layers_backward(Layers *layers, Stream *stream, MicroPlace place, int32_t slot, bool input,
                    bool weight) {
    if (input) {
        TRY(layers_receive_grads(layers, stream, place, slot));
    }
    for (int32_t i = layers->n_local - 1; i >= 0; i--) {
        const LocalLayer *local = &layers->local[i];
        if (!layers_has_backward(layers, local)) {
            continue;
        }
        OpArgs args = layers_args(layers, place);
        layers_fill_args(layers, i, place, slot, &args);
        args.dy = layers_at(layers, &layers->grads[local->layer->output], slot, place.rows);
        args.accumulate = layers->n_backward > 0;
        for (int32_t p = 0; p < local->layer->n_params; p++) {
            if (layers->states[i * LAYER_MAX_PARAMS + p]->meta->role == PARAM_STATISTIC) {
                args.dw[p] = NULL; /* the forward's own */
            }
        }
        const int64_t start_ns = layers->backward_ns != NULL ? clock_now_ns() : 0;
        int rc = 0;
        if (weight && local->any_dw) {
            rc = layers->setup.ops->op_run(local->op, stream, OP_BACKWARD_WEIGHT, &args);
        }
        if (rc >= 0 && input) {
            rc = layers_backward_input(layers, stream, local, place, slot, &args);
        }
        if (rc >= 0) {
            rc = layers_note_time(layers, stream, layers->backward_ns, i, start_ns);
        }
        if (rc >= 0 && layers->backward_done != NULL) {
            rc = layers->backward_done(layers->backward_ctx, layers->setup.stage->first_layer + i,
                                       stream);
        }
        if (rc < 0) {
            return err_context(rc, "layer '%s' backward, step %lld, micro-batch %d",
                               local->layer->name, (long long)place.step, place.micro);
        }
    }
    layers->n_backward += weight;
    return 0;
}

void layers_on_backward(Layers *layers, int (*done)(void *ctx, int32_t layer, Stream *stream),
                        void *ctx) {
    layers->backward_done = done;
    layers->backward_ctx = ctx;
}

int layers_end_step(Layers *layers, Stream *stream) {
    if (layers->n_backward > 0) {
        return 0;
    }
    for (int32_t s = 0; s < layers->params->n_states; s++) {
        ParamState *state = &layers->params->states[s];
        for (int32_t u = 0; u < state->n_uses; u++) {
            ParamUse *use = &state->uses[u];
            const OpNeeds *needs = layers_needs(layers, use->layer);
            if (use->packed != NULL) {
                TRY(layers->setup.ops->fill_zero(stream, use->packed,
                                                 needs->dw_packed_bytes[use->role]));
            }
            TRY(layers->setup.ops->fill_zero(stream, use->sum, (size_t)state->n * sizeof(float)));
        }
    }
    return 0;
}

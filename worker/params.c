#include "worker/params.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/rng.h"
#include "worker/layers.h"

static int params_init_uses(ParamState *state, const Model *model, const Stage *stage) {
    state->uses = calloc((size_t)state->meta->n_uses, sizeof *state->uses);
    if (state->uses == NULL) {
        return err_set(ERR_MEMORY, "the uses of '%s' do not fit into memory", state->meta->name);
    }
    for (int32_t l = stage->first_layer; l < stage->end_layer; l++) {
        const Layer *layer = &model->layers[l];
        for (int32_t role = 0; role < layer->n_params; role++) {
            if (layer->params[role] == state->id) {
                state->uses[state->n_uses++] = (ParamUse){.layer = l, .role = role};
                if (state->meta->role == PARAM_STATISTIC) {
                    state->decay = 1.0 - (double)layer->attr.momentum;
                }
            }
        }
    }
    return 0;
}

int params_init(Params *params, const Order *order, const Stage *stage, const DeviceOps *ops) {
    memset(params, 0, sizeof *params);
    params->order = order;
    params->stage = stage;
    params->ops = ops;
    const size_t n_local = (size_t)(stage->end_layer - stage->first_layer);
    params->states = calloc((size_t)stage->n_params + 1, sizeof *params->states);
    params->packed = calloc(n_local, sizeof *params->packed);
    params->area_packed = calloc(n_local, sizeof *params->area_packed);
    if (params->states == NULL || params->packed == NULL || params->area_packed == NULL) {
        return err_set(ERR_MEMORY, "the stage's parameters do not fit into memory");
    }
    for (int32_t i = 0; i < stage->n_params; i++, params->n_states++) {
        ParamState *state = &params->states[i];
        state->id = stage->params[i].param;
        state->meta = &order->model.params[state->id];
        state->n = model_param_elements(&order->model, state->id);
        state->tied_across = stage->params[i].tied_across;
        state->owner = stage->params[i].owner;
        TRY(params_init_uses(state, &order->model, stage));
    }
    return 0;
}

void params_done(Params *params) {
    if (params == NULL) {
        return;
    }
    for (int32_t i = 0; i < params->n_states; i++) {
        free(params->states[i].uses);
    }
    free(params->states);
    free(params->packed);
    free(params->area_packed);
    memset(params, 0, sizeof *params);
}

static bool params_has_momentum(const Params *params, const ParamState *state) {
    const UpdateSpec *update = &params->order->update;
    return state->meta->role == PARAM_WEIGHT &&
           (update->kind == UPDATE_ADAMW || update->momentum > 0.0);
}

static bool params_has_variance(const Params *params, const ParamState *state) {
    return state->meta->role == PARAM_WEIGHT && params->order->update.kind == UPDATE_ADAMW;
}

/* The gradient has memory of its own when it is a sum of several uses or of other stages'. */
static bool params_own_gradient(const ParamState *state) {
    return state->n_uses > 1 || state->tied_across;
}

static int params_area(Slab *slab, size_t bytes, int *out_area) {
    int area = slab_add(slab, bytes, 0, INT32_MAX);
    TRY(area);
    *out_area = area;
    return 0;
}

int params_plan(Params *params, const struct Layers *layers, Slab *slab) {
    const Stage *stage = params->stage;
    for (int32_t l = stage->first_layer; l < stage->end_layer; l++) {
        TRY(params_area(slab, layers_needs(layers, l)->packed_bytes,
                        &params->area_packed[l - stage->first_layer]));
    }
    for (int32_t i = 0; i < params->n_states; i++) {
        ParamState *state = &params->states[i];
        const size_t bytes = (size_t)state->n * sizeof(float);
        TRY(params_area(slab, bytes, &state->area_w));
        TRY(params_area(slab, params_own_gradient(state) ? bytes : 0, &state->area_g));
        TRY(params_area(slab, params_has_momentum(params, state) ? bytes : 0, &state->area_m));
        TRY(params_area(slab, params_has_variance(params, state) ? bytes : 0, &state->area_v));
        for (int32_t u = 0; u < state->n_uses; u++) {
            ParamUse *use = &state->uses[u];
            TRY(params_area(slab, bytes, &use->area_sum));
            TRY(params_area(slab, layers_needs(layers, use->layer)->dw_packed_bytes[use->role],
                            &use->area_packed));
        }
    }
    return 0;
}

int params_bind(Params *params, const struct Layers *layers, const Slab *slab, void *base) {
    char *at = base;
    const Stage *stage = params->stage;
    for (int32_t l = stage->first_layer; l < stage->end_layer; l++) {
        const int32_t i = l - stage->first_layer;
        if (layers_needs(layers, l)->packed_bytes > 0) {
            params->packed[i] = at + slab_offset(slab, params->area_packed[i]);
        }
    }
    for (int32_t i = 0; i < params->n_states; i++) {
        ParamState *state = &params->states[i];
        state->w = (float *)(void *)(at + slab_offset(slab, state->area_w));
        if (params_has_momentum(params, state)) {
            state->m = (float *)(void *)(at + slab_offset(slab, state->area_m));
        }
        if (params_has_variance(params, state)) {
            state->v = (float *)(void *)(at + slab_offset(slab, state->area_v));
        }
        for (int32_t u = 0; u < state->n_uses; u++) {
            ParamUse *use = &state->uses[u];
            use->sum = (float *)(void *)(at + slab_offset(slab, use->area_sum));
            if (layers_needs(layers, use->layer)->dw_packed_bytes[use->role] > 0) {
                use->packed = at + slab_offset(slab, use->area_packed);
            }
        }
        state->g = params_own_gradient(state)
                       ? (float *)(void *)(at + slab_offset(slab, state->area_g))
                       : state->uses[0].sum;
    }
    return 0;
}

int params_initialise(Params *params, Stream *stream) {
    int rc = 0;
    const uint64_t seed = params->order->seed;
    for (int32_t i = 0; i < params->n_states && rc >= 0; i++) {
        ParamState *state = &params->states[i];
        float *values = calloc((size_t)state->n, sizeof *values);
        if (values == NULL) {
            return err_set(ERR_MEMORY, "parameter '%s' does not fit into memory",
                           state->meta->name);
        }
        switch (state->meta->init) {
        case INIT_ONES:
            for (int64_t k = 0; k < state->n; k++) {
                values[k] = 1.0F;
            }
            break;
        case INIT_UNIFORM:
            rng_fill_uniform(seed, state->meta->name, state->meta->init_scale, values,
                             (size_t)state->n);
            break;
        case INIT_NORMAL:
            rng_fill_normal(seed, state->meta->name, state->meta->init_scale, values,
                            (size_t)state->n);
            break;
        case INIT_ZEROS:
        default:
            break;
        }
        rc = params->ops->copy(stream, state->w, values, (size_t)state->n * sizeof(float));
        if (rc >= 0) {
            rc = params->ops->stream_sync(stream);
        }
        free(values);
    }
    return rc;
}

int params_prepare(Params *params, const struct Layers *layers, Stream *stream) {
    const Stage *stage = params->stage;
    for (int32_t i = 0; i < stage->end_layer - stage->first_layer; i++) {
        if (params->packed[i] == NULL) {
            continue;
        }
        const Layer *layer = &params->order->model.layers[stage->first_layer + i];
        OpArgs args = {.packed = params->packed[i]};
        for (int32_t role = 0; role < layer->n_params; role++) {
            for (int32_t s = 0; s < params->n_states; s++) {
                if (params->states[s].id == layer->params[role]) {
                    args.w[role] = params->states[s].w;
                }
            }
        }
        TRY(params->ops->op_run(layers_op(layers, stage->first_layer + i), stream, OP_PREPARE,
                                &args));
    }
    return 0;
}

static int params_finish_use(Params *params, const struct Layers *layers, Stream *stream,
                             ParamUse *use) {
    if (use->packed == NULL) {
        return 0;
    }
    OpArgs args = {0};
    args.dw[use->role] = use->packed;
    args.dw_plain[use->role] = use->sum;
    return params->ops->op_run(layers_op(layers, use->layer), stream, OP_FINISH, &args);
}

int params_finish(Params *params, const struct Layers *layers, Stream *stream, ParamState *state) {
    for (int32_t u = 0; u < state->n_uses; u++) {
        TRY(params_finish_use(params, layers, stream, &state->uses[u]));
    }
    if (state->tied_across || state->n_uses == 1) {
        return 0;
    }
    TRY(params->ops->copy(stream, state->g, state->uses[0].sum, (size_t)state->n * sizeof(float)));
    for (int32_t u = 1; u < state->n_uses; u++) {
        TRY(params->ops->add(stream, state->g, state->uses[u].sum, state->n));
    }
    return 0;
}

static bool params_counts_norm(const ParamState *state) {
    return state->owner && state->meta->role == PARAM_WEIGHT;
}

int params_square_sums(Params *params, Stream *stream, double *out) {
    for (int32_t i = 0; i < params->n_states; i++) {
        const ParamState *state = &params->states[i];
        if (params_counts_norm(state)) {
            TRY(params->ops->square_sum(stream, state->g, state->n, out++));
        }
    }
    return params->ops->stream_sync(stream);
}

static int params_update_weight(Params *params, Stream *stream, const ParamState *state, double lr,
                                double scale) {
    const UpdateSpec *update = &params->order->update;
    const UpdateArgs args = {.n = state->n,
                             .w = state->w,
                             .g = state->g,
                             .m = state->m,
                             .v = state->v,
                             .lr = lr,
                             .scale = scale,
                             .momentum = update->momentum,
                             .weight_decay = state->meta->no_decay ? 0.0 : update->weight_decay,
                             .beta1 = update->beta1,
                             .beta2 = update->beta2,
                             .eps = update->eps,
                             .nesterov = update->nesterov,
                             .t = params->n_updates};
    return update->kind == UPDATE_ADAMW ? params->ops->update_adamw(stream, &args)
                                        : params->ops->update_sgd(stream, &args);
}

int params_update(Params *params, Stream *stream, int64_t step, double scale, int64_t n_micro) {
    const double lr = order_lr(&params->order->update, step, params->order->n_steps);
    params->n_updates++;
    for (int32_t i = 0; i < params->n_states; i++) {
        ParamState *state = &params->states[i];
        if (state->meta->role == PARAM_WEIGHT) {
            TRY(params_update_weight(params, stream, state, lr, scale));
        } else {
            TRY(params->ops->scale(stream, state->w, pow(state->decay, (double)n_micro), state->n));
            TRY(params->ops->add(stream, state->w, state->g, state->n));
        }
    }
    return 0;
}

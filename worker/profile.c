/* Measuring each layer's time on this machine: the whole model as one stage, one full micro-batch
 * of the real data, forward and backward, median over the repeats. */
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "worker/layers.h"
#include "worker/run.h"

typedef struct Profile {
    Order order; /* a copy with one stage */
    Stage stage;
    const DeviceOps *ops;
    Device *device;
    Stream *stream;
    Data data;
    Params params;
    Layers *layers;
    Slab slab;
    void *base;
    int64_t *forward_ns, *backward_ns; /* (n_repeats, n_layers) */
} Profile;

static int profile_order(const Order *order, Profile *profile) {
    TRY(order_copy(order, &profile->order));
    PlanSpec *plan = &profile->order.plan;
    order_plan_done(plan);
    plan->n_stages = 1;
    plan->ends = calloc(1, sizeof *plan->ends);
    plan->replicas = calloc(1, sizeof *plan->replicas);
    plan->recompute = calloc(1, sizeof *plan->recompute);
    if (plan->ends == NULL || plan->replicas == NULL || plan->recompute == NULL) {
        return err_set(ERR_MEMORY, "a plan does not fit into memory");
    }
    plan->ends[0] = order->model.n_layers;
    plan->replicas[0] = 1;
    profile->order.has_eval = false;
    profile->order.eval_only = false;
    return stage_init(&profile->stage, &profile->order.model, plan->ends, 1, 0);
}

static int profile_open(const Order *order, Profile *profile) {
    TRY(profile_order(order, profile));
    const PlanSpec *plan = &profile->order.plan;
    const DeviceConfig config = {.threads = plan->threads, .isa = plan->isa};
    TRY(device_find(plan->device, &profile->ops));
    TRY(profile->ops->open(&config, &profile->device));
    TRY(profile->ops->bind_thread(profile->device));
    TRY(profile->ops->stream_open(profile->device, &profile->stream));
    TRY(data_open(&profile->data, &profile->order, &profile->stage));
    const LayersSetup setup = {.order = &profile->order,
                               .stage = &profile->stage,
                               .ops = profile->ops,
                               .device = profile->device,
                               .data = &profile->data,
                               .n_slots = 1};
    TRY(layers_open(&setup, &profile->layers));
    TRY(params_init(&profile->params, &profile->order, &profile->stage, profile->ops));
    TRY(params_plan(&profile->params, profile->layers, &profile->slab));
    TRY(layers_plan(profile->layers, &profile->slab));
    TRY(slab_place(&profile->slab));
    TRY(profile->ops->mem_alloc(profile->device, profile->slab.bytes + 1, &profile->base));
    TRY(params_bind(&profile->params, profile->layers, &profile->slab, profile->base));
    TRY(layers_bind(profile->layers, &profile->slab, profile->base, &profile->params));
    TRY(params_initialise(&profile->params, profile->stream));
    return params_prepare(&profile->params, profile->layers, profile->stream);
}

static void profile_close(Profile *profile) {
    layers_close(profile->layers);
    params_done(&profile->params);
    data_close(&profile->data);
    slab_done(&profile->slab);
    if (profile->stream != NULL) {
        profile->ops->stream_close(profile->stream);
    }
    if (profile->base != NULL) {
        profile->ops->mem_free(profile->device, profile->base);
    }
    if (profile->device != NULL) {
        profile->ops->close(profile->device);
    }
    stage_done(&profile->stage);
    order_done(&profile->order);
    free(profile->forward_ns);
    free(profile->backward_ns);
}

static int profile_compare(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double profile_median_us(const int64_t *ns, int n_repeats, int32_t n_layers, int32_t layer,
                                int64_t *scratch) {
    for (int r = 0; r < n_repeats; r++) {
        scratch[r] = ns[(size_t)r * (size_t)n_layers + (size_t)layer];
    }
    qsort(scratch, (size_t)n_repeats, sizeof *scratch, profile_compare);
    return (double)scratch[n_repeats / 2] / 1000.0;
}

static int profile_run(Profile *profile, int n_repeats, LayerTime *out_times) {
    const int32_t n = profile->order.model.n_layers;
    const size_t cells = (size_t)n * (size_t)n_repeats;
    int64_t *scratch = calloc((size_t)n_repeats, sizeof *scratch);
    profile->forward_ns = calloc(cells, sizeof *profile->forward_ns);
    profile->backward_ns = calloc(cells, sizeof *profile->backward_ns);
    int rc = 0;
    if (scratch == NULL || profile->forward_ns == NULL || profile->backward_ns == NULL) {
        rc = err_set(ERR_MEMORY, "the measured times do not fit into memory");
        goto done;
    }
    const MicroPlace place = data_place(&profile->order, 0, 0, false);
    layers_begin_step(profile->layers, 0, 1.0);
    for (int r = -1; r < n_repeats; r++) { /* the first one warms up */
        size_t at = r < 0 ? 0 : (size_t)r * (size_t)n;
        layers_time(profile->layers, r < 0 ? NULL : profile->forward_ns + at,
                    r < 0 ? NULL : profile->backward_ns + at);
        TRY_DONE(layers_forward(profile->layers, profile->stream, place, 0));
        TRY_DONE(layers_backward(profile->layers, profile->stream, place, 0, true, true));
    }
    for (int32_t l = 0; l < n; l++) {
        out_times[l].forward_us = profile_median_us(profile->forward_ns, n_repeats, n, l, scratch);
        out_times[l].backward_us =
            profile_median_us(profile->backward_ns, n_repeats, n, l, scratch);
    }
done:
    free(scratch);
    return rc;
}

int worker_profile(const Order *order, int n_repeats, LayerTime *out_times) {
    Profile profile = {0};
    if (n_repeats < 1) {
        return err_set(ERR_ARGUMENT, "a profile takes at least one repeat");
    }
    slab_init(&profile.slab);
    int rc = profile_open(order, &profile);
    if (rc >= 0) {
        rc = profile_run(&profile, n_repeats, out_times);
    }
    profile_close(&profile);
    return rc;
}

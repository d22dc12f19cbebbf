/* Measuring each layer's time on this machine: the whole model as one stage, one full micro-batch
 * of the real data, forward and backward, median over the repeats. */
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "worker/layers.h"
#include "worker/run.h"

typedef struct Measure {
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
} Measure;

static int measure_order(const Order *order, Measure *measure) {
    TRY(order_copy(order, &measure->order));
    PlanSpec *plan = &measure->order.plan;
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
    measure->order.has_eval = false;
    measure->order.eval_only = false;
    return stage_init(&measure->stage, &measure->order.model, plan->ends, 1, 0);
}

static int measure_open(const Order *order, Measure *measure) {
    TRY(measure_order(order, measure));
    const PlanSpec *plan = &measure->order.plan;
    const DeviceConfig config = {.threads = plan->threads, .isa = plan->isa};
    TRY(device_find(plan->device, &measure->ops));
    TRY(measure->ops->open(&config, &measure->device));
    TRY(measure->ops->bind_thread(measure->device));
    TRY(measure->ops->stream_open(measure->device, &measure->stream));
    TRY(data_open(&measure->data, &measure->order, &measure->stage));
    const LayersSetup setup = {.order = &measure->order,
                               .stage = &measure->stage,
                               .ops = measure->ops,
                               .device = measure->device,
                               .data = &measure->data,
                               .n_slots = 1};
    TRY(layers_open(&setup, &measure->layers));
    TRY(params_init(&measure->params, &measure->order, &measure->stage, measure->ops));
    TRY(params_plan(&measure->params, measure->layers, &measure->slab));
    TRY(layers_plan(measure->layers, &measure->slab));
    TRY(slab_place(&measure->slab));
    TRY(measure->ops->mem_alloc(measure->device, measure->slab.bytes + 1, &measure->base));
    TRY(params_bind(&measure->params, measure->layers, &measure->slab, measure->base));
    TRY(layers_bind(measure->layers, &measure->slab, measure->base, &measure->params));
    TRY(params_initialise(&measure->params, measure->stream));
    return params_prepare(&measure->params, measure->layers, measure->stream);
}

static void measure_close(Measure *measure) {
    layers_close(measure->layers);
    params_done(&measure->params);
    data_close(&measure->data);
    slab_done(&measure->slab);
    if (measure->stream != NULL) {
        measure->ops->stream_close(measure->stream);
    }
    if (measure->base != NULL) {
        measure->ops->mem_free(measure->device, measure->base);
    }
    if (measure->device != NULL) {
        measure->ops->close(measure->device);
    }
    stage_done(&measure->stage);
    order_done(&measure->order);
    free(measure->forward_ns);
    free(measure->backward_ns);
}

static int measure_compare(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double measure_median_us(const int64_t *ns, int n_repeats, int32_t n_layers, int32_t layer,
                                int64_t *scratch) {
    for (int r = 0; r < n_repeats; r++) {
        scratch[r] = ns[(size_t)r * (size_t)n_layers + (size_t)layer];
    }
    qsort(scratch, (size_t)n_repeats, sizeof *scratch, measure_compare);
    const int64_t median_ns = scratch[(size_t)n_repeats / 2];
    return (double)median_ns / 1000.0;
}

static int measure_run(Measure *measure, int n_repeats, LayerTime *out_times) {
    const int32_t n = measure->order.model.n_layers;
    const size_t cells = (size_t)n * (size_t)n_repeats;
    int64_t *scratch = calloc((size_t)n_repeats, sizeof *scratch);
    measure->forward_ns = calloc(cells, sizeof *measure->forward_ns);
    measure->backward_ns = calloc(cells, sizeof *measure->backward_ns);
    int rc = 0;
    if (scratch == NULL || measure->forward_ns == NULL || measure->backward_ns == NULL) {
        rc = err_set(ERR_MEMORY, "the measured times do not fit into memory");
        goto done;
    }
    const MicroPlace place = data_place(&measure->order, 0, 0, false);
    layers_begin_step(measure->layers, 0, 1.0);
    for (int r = -1; r < n_repeats; r++) { /* the first one warms up */
        size_t at = r < 0 ? 0 : (size_t)r * (size_t)n;
        layers_time(measure->layers, r < 0 ? NULL : measure->forward_ns + at,
                    r < 0 ? NULL : measure->backward_ns + at);
        TRY_DONE(layers_forward(measure->layers, measure->stream, place, 0));
        TRY_DONE(layers_backward(measure->layers, measure->stream, place, 0, true, true));
    }
    for (int32_t l = 0; l < n; l++) {
        out_times[l].forward_us = measure_median_us(measure->forward_ns, n_repeats, n, l, scratch);
        out_times[l].backward_us =
            measure_median_us(measure->backward_ns, n_repeats, n, l, scratch);
    }
done:
    free(scratch);
    return rc;
}

int worker_profile(const Order *order, int n_repeats, LayerTime *out_times) {
    Measure measure = {0};
    if (n_repeats < 1) {
        return err_set(ERR_ARGUMENT, "a profile takes at least one repeat");
    }
    slab_init(&measure.slab);
    int rc = measure_open(order, &measure);
    if (rc >= 0) {
        rc = measure_run(&measure, n_repeats, out_times);
    }
    measure_close(&measure);
    return rc;
}

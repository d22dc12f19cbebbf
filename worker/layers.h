/* Layers: one stage's layers opened on a device, with the memory plan of its values and gradients,
 * and the forward and backward of one micro-batch as calls of the device's ops.
 *
 * Where a value lies (its Home) is decided once, before the first step:
 *   slot     kept per micro-batch in flight: what a backward reads, and what crosses to other
 * stages shared   one copy in the stage's slab, reused over time: values no backward needs,
 * gradients, scratch; with recompute also everything a backward reads (filled again by `C`) staging
 * a plain value that came in lies where it was received Blobs that go over the relay have one
 * staging buffer per slot and edge, in host memory.
 *
 * Gradients of a value are added in descending order of the consuming layer, other stages' items
 * first (core/stage.h), so that no cut changes a bit. */
#ifndef FUNCPIPE_WORKER_LAYERS_H
#define FUNCPIPE_WORKER_LAYERS_H

#include "core/order.h"
#include "core/program.h"
#include "gpu/device.h"
#include "worker/data.h"
#include "worker/fetch.h"
#include "worker/params.h"
#include "worker/slab.h"

typedef struct Layers Layers;

typedef struct LayersSetup {
    const Order *order;
    const Stage *stage;
    const DeviceOps *ops;
    Device *device;
    const Data *data;
    int32_t n_slots;
    bool recompute;      /* the program holds C for this stage */
    bool split_backward; /* the program holds I and W for this stage */
} LayersSetup;

/* Open every layer's op for all row counts the order implies. */
int layers_open(const LayersSetup *setup, Layers **out_layers);
void layers_close(Layers *layers);
const OpNeeds *layers_needs(const Layers *layers, int32_t layer);
Op *layers_op(const Layers *layers, int32_t layer);

/* Memory in two steps: add the areas to the stage's slab; once it is placed at `base`, use it. */
int layers_plan(Layers *layers, Slab *slab);
int layers_bind(Layers *layers, const Slab *slab, void *base, Params *params);

/* Compute thread: start a step's accumulation. loss_scale = 1 / valid targets of the batch. */
void layers_begin_step(Layers *layers, int64_t step, double loss_scale);
/* Of the step (or evaluation) so far, as far as queued work is done. */
const LossSums *layers_loss(const Layers *layers);
void layers_reset_loss(Layers *layers);
/* Run one pass of a micro-batch that lies in `slot`. C: forward again, statistics untouched. */
int layers_forward(Layers *layers, Stream *stream, MicroPlace place, int32_t slot);
int layers_recompute(Layers *layers, Stream *stream, MicroPlace place, int32_t slot);
int layers_backward(Layers *layers, Stream *stream, MicroPlace place, int32_t slot, bool input,
                    bool weight);
/* Call `done` behind each layer's backward from now on (NULL: no more); layers come in descending
 * order. An error of it is the backward's. */
void layers_on_backward(Layers *layers, int (*done)(void *ctx, int32_t layer, Stream *stream),
                        void *ctx);
/* A step without any micro-batch of this worker still needs zero gradients. */
int layers_end_step(Layers *layers, Stream *stream);

/* Record each layer's nanoseconds of the passes from now on (arrays of the stage's layers, added
 * to; NULL: stop). What brings in data counts as the first layer's. For profiling. */
void layers_time(Layers *layers, int64_t *forward_ns, int64_t *backward_ns);

/* Staging blobs. in: where the blob of that edge is to be received. out: the values (or gradient
 * items) brought into plain form, ready to be published; called on the publishing thread. */
int layers_act_in(const Layers *layers, int32_t producer, int32_t rows, int32_t slot,
                  FetchBlob *out_blob);
int layers_grad_in(const Layers *layers, int32_t consumer, int32_t rows, int32_t slot,
                   FetchBlob *out_blob);
int layers_act_out(const Layers *layers, Stream *stream, int32_t consumer, int32_t rows,
                   int32_t slot, FetchBlob *out_blob);
int layers_grad_out(const Layers *layers, Stream *stream, int32_t producer, int32_t rows,
                    int32_t slot, FetchBlob *out_blob);

#endif

/* Reduce: what all workers must agree on before an update: gradients summed over the replicas of a
 * stage and over the stages that share a parameter, the global norm, the loss, and the leader's
 * decision. Gradients go their way (worker/exchange.h) as soon as they are final, during the last
 * backward; they are added in one fixed order (uses in ascending layer order; within a use,
 * replicas in order), so all copies stay bit-equal and a duplicate counts once. */
#ifndef FUNCPIPE_WORKER_REDUCE_H
#define FUNCPIPE_WORKER_REDUCE_H

#include "core/report.h"
#include "worker/exchange.h"
#include "worker/layers.h"

typedef struct Reduce Reduce;

typedef struct ReduceSetup { /* all borrowed */
    const Order *order;
    const Stage *stage;
    const DeviceOps *ops;
    const Layers *layers;
    Params *params;
    Fetch *fetch;
    int (*open_relay)(void *ctx, Relay **out_relay);
    void *ctx;
} ReduceSetup;

typedef struct ReduceResult {
    bool finite;  /* loss and all gradients */
    double norm;  /* global gradient norm, before clipping */
    double scale; /* clip: min(1, clip_norm / (norm + 1e-6)); 1 without */
    double loss;  /* sum over the batch / valid targets */
    int64_t n_valid, n_correct;
    int32_t decision; /* DECISION_ bits of the leader */
} ReduceResult;

/* `fetch` is the compute thread's way to the relay; more handles are opened where gradients have to
 * be summed. */
int reduce_open(const ReduceSetup *setup, Reduce **out_reduce);
void reduce_close(Reduce *reduce);
/* Its further ways to the relay, for their counters; NULL behind the last. */
Fetch *reduce_fetch(Reduce *reduce, int i);
/* Wake every wait, as relay_interrupt does. Thread-safe. */
void reduce_interrupt(Reduce *reduce, bool on);

/* A step begins. `forget`: what a 16-bit wire has rounded away before is not made good (so that a
 * worker that starts here from a checkpoint does the same). */
void reduce_begin(Reduce *reduce, int64_t step, bool forget);
/* The last micro-batch's backward is done down to `layer`: the gradients that are final by that
 * become plain and go their way. */
int reduce_layer(Reduce *reduce, Stream *stream, int32_t layer);
/* All the rest, behind the last backward; `decision`: what this worker decides if it is the leader
 * (stage 0, replica 0). A decision published by an earlier attempt stays. */
int reduce_run(Reduce *reduce, Stream *stream, const LossSums *loss, int32_t decision,
               ReduceResult *out_result, int64_t *bytes);
/* Publish this replica's evaluation sums (loss stage only). */
int reduce_publish_eval(Reduce *reduce, int64_t step, const LossSums *loss);

#endif

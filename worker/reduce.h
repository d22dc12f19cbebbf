/* Reduce: what all workers must agree on before an update: gradients summed over the replicas of a
 * stage and over the stages that share a parameter, the global norm, the loss, and the leader's
 * decision. The plain exact form: every holder publishes its contribution, every holder reads all
 * and adds them in one fixed order (uses in ascending layer order; within a use, replicas in
 * order), so all copies stay bit-equal and a duplicate counts once. */
#ifndef FUNCPIPE_WORKER_REDUCE_H
#define FUNCPIPE_WORKER_REDUCE_H

#include "core/report.h"
#include "worker/fetch.h"
#include "worker/layers.h"

typedef struct Reduce Reduce;

typedef struct ReduceResult {
    bool finite;  /* loss and all gradients */
    double norm;  /* global gradient norm, before clipping */
    double scale; /* clip: min(1, clip_norm / (norm + 1e-6)); 1 without */
    double loss;  /* sum over the batch / valid targets */
    int64_t n_valid, n_correct;
    int32_t decision; /* DECISION_ bits of the leader */
} ReduceResult;

int reduce_open(const Order *order, const Stage *stage, const DeviceOps *ops, Params *params,
                Fetch *fetch, Reduce **out_reduce);
void reduce_close(Reduce *reduce);
/* All of it for `step`; `decision`: what this worker decides if it is the leader (stage 0, replica
 * 0). A decision published by an earlier attempt stays. */
int reduce_run(Reduce *reduce, Stream *stream, int64_t step, const LossSums *loss, int32_t decision,
               ReduceResult *out_result, int64_t *bytes);
/* Publish this replica's evaluation sums (loss stage only). */
int reduce_publish_eval(Reduce *reduce, int64_t step, const LossSums *loss);

#endif

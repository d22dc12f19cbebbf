/* Params: the parameters a stage holds, their gradients and update state.
 *
 * Every use of a parameter by a layer has its own gradient accumulator (ParamUse); after its last
 * backward params_finish makes the uses plain, reduce.c sums them over uses and replicas into `g`,
 * and params_update moves the weights. Statistics (BatchNorm) go the same way: their "gradient" is
 * the step's contribution, and the update is r <- decay^k r + c (gpu/kernels.h). */
#ifndef FUNCPIPE_WORKER_PARAMS_H
#define FUNCPIPE_WORKER_PARAMS_H

#include "core/order.h"
#include "core/stage.h"
#include "gpu/device.h"
#include "worker/slab.h"

struct Layers;

typedef struct ParamUse {
    int32_t layer, role;
    float *sum;   /* plain gradient of this use */
    void *packed; /* the op's own accumulator; NULL: it adds into sum */
    int area_sum, area_packed;
} ParamUse;

typedef struct ParamState {
    int32_t id;
    const Param *meta;
    int64_t n;
    bool tied_across; /* other stages hold it too */
    bool owner;       /* this stage saves it and counts its norm */
    float *w, *g;     /* g: uses[0].sum unless the parameter has several uses or is tied across */
    float *m, *v;     /* sgd with momentum: m; adamw: both; else NULL */
    double decay;     /* statistics: 1 - momentum */
    int32_t n_uses;
    ParamUse *uses; /* ascending layer */
    int area_w, area_g, area_m, area_v;
} ParamState;

typedef struct Params {
    const Order *order;
    const Stage *stage;
    const DeviceOps *ops;
    int32_t n_states;
    ParamState *states; /* ascending id */
    void **packed;      /* per local layer: packed weights or NULL */
    int *area_packed;
    int64_t n_updates; /* made so far (AdamW's t) */
    int64_t n_skipped; /* steps skipped because something was not finite */
} Params;

int params_init(Params *params, const Order *order, const Stage *stage, const DeviceOps *ops);
void params_done(Params *params);
int params_plan(Params *params, const struct Layers *layers, Slab *slab);
int params_bind(Params *params, const struct Layers *layers, const Slab *slab, void *base);
/* Weights from the seed and the parameters' names. */
int params_initialise(Params *params, Stream *stream);
/* Weights, update state and counts from checkpoint directory `path`; a missing, surplus or
 * misshaped tensor is an error that names it, the state of another kind of update one that says so.
 */
int params_load(Params *params, Stream *stream, const char *path);
/* Hand the new weights to the ops that keep packed copies. */
int params_prepare(Params *params, const struct Layers *layers, Stream *stream);
/* The backwards are done: packed accumulators -> plain uses, uses of one stage summed into g (not
 * for tied_across). */
int params_finish(Params *params, const struct Layers *layers, Stream *stream, ParamState *state);
/* Sum of squares of g of every owned weight, ascending id: as many as the stage's norms
 * object holds (core/report.h). */
int params_square_sums(Params *params, Stream *stream, double *out);
/* One update: gradients scaled by `scale`; `n_micro` non-empty micro-batches moved statistics. */
int params_update(Params *params, Stream *stream, int64_t step, double scale, int64_t n_micro);

#endif

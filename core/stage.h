/* A stage is a half-open range of layers, [first_layer, end_layer). What crosses stages is an edge
 * (producer stage, consumer stage) with the live values on it: a value made in stage p and read in
 * stage q crosses on edge (p, q), also over stages in between. Input and target never cross: a
 * stage that reads them loads them from the data set.
 *
 * The cut must not change a bit, so gradients are summed in an order the whole model fixes: a
 * value's contributions are added in descending order of the consuming layer. The stage that holds
 * the last consumers sends their sum (a prefix of that order); every other remote consumer's
 * contribution is its own item on the edge. A layer that reads a value twice is one
 * consumer. Likewise a parameter's gradient has one accumulator per using layer; uses are summed in
 * ascending layer order, and within a use replicas in order. */
#ifndef FUNCPIPE_CORE_STAGE_H
#define FUNCPIPE_CORE_STAGE_H

#include "core/model.h"

enum { STAGE_MAX = 4096 };

typedef struct EdgeGrad {
    int32_t value;
    int32_t consumer; /* the consuming layer, or -1: the sum over all (or the one) in that stage */
} EdgeGrad;

typedef struct Edge {
    int32_t producer, consumer; /* stages, producer < consumer */
    int32_t n_values;
    int32_t *values; /* value ids, ascending */
    int32_t n_grads; /* 0: nothing comes back */
    EdgeGrad *grads; /* ascending value; of one value in summing order: descending consumer */
} Edge;

typedef struct StageParam {
    int32_t param;
    bool tied_across; /* other stages use it too */
    bool owner;       /* the lowest stage that uses it: saves it, counts its norm */
} StageParam;

typedef struct Stage {
    int32_t index, n_stages;
    int32_t first_layer, end_layer;
    bool reads_input, reads_target, has_loss;
    int32_t n_in, n_out;
    Edge *in;  /* from earlier stages, ascending producer */
    Edge *out; /* to later stages, ascending consumer */
    int32_t n_params;
    StageParam *params; /* every parameter its layers use, ascending id */
} Stage;

/* Check a cut: ends[i] is the end layer of stage i; ascending, each stage at least one layer, the
 * last ends at n_layers. ERR_INFEASIBLE when n_stages > n_layers. */
int stage_check_cut(const Model *model, const int32_t *ends, int32_t n_stages);
int stage_init(Stage *stage, const Model *model, const int32_t *ends, int32_t n_stages,
               int32_t index);
void stage_done(Stage *stage);
int32_t stage_of_layer(const int32_t *ends, int32_t n_stages, int32_t layer);
/* Which stage counts each parameter's norm: that of its first user; -1 for statistics.
 * out_owners: (n_params). */
void stage_norm_owners(const Model *model, const int32_t *ends, int32_t n_stages,
                       int32_t *out_owners);
/* Bytes a micro-batch of `rows` moves over the edge: forward, plus the gradients when `back`.
 * INT64_MAX when they do not fit. */
int64_t stage_edge_bytes(const Model *model, const Edge *edge, int64_t rows, bool back);

#endif

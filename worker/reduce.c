#include "worker/reduce.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"

/* A blob with memory of its own. */
typedef struct ReduceBlob {
    BlobTensor *tensors;
    size_t *offsets;
    void *bytes;
    FetchBlob blob;
} ReduceBlob;

struct Reduce {
    const Order *order;
    const Stage *stage;
    const DeviceOps *ops;
    Params *params;
    Fetch *fetch;
    int32_t replicas, loss_stage, loss_replicas;
    ReduceBlob own, other;           /* gradients of the stage's own parameters (replicas > 1) */
    ReduceBlob tied_own, tied_other; /* one tied parameter's use: tensors[0] is set per use */
    size_t tied_bytes;
    ReduceBlob *norms; /* per stage, replica 0; then the loss stage's others */
    int32_t n_norms;
    double *squares; /* (n_params) by parameter id; owners only */
    int32_t *owner;  /* (n_params) stage that counts the norm; -1: statistic */
};

static int reduce_blob_init(ReduceBlob *blob, int32_t n, const BlobTensor *tensors) {
    blob->tensors = calloc((size_t)n + 1, sizeof *blob->tensors);
    blob->offsets = calloc((size_t)n + 1, sizeof *blob->offsets);
    if (blob->tensors == NULL || blob->offsets == NULL) {
        return err_set(ERR_MEMORY, "an exchange object's form does not fit into memory");
    }
    if (n > 0) {
        memcpy(blob->tensors, tensors, (size_t)n * sizeof *tensors);
    }
    int64_t total = blob_layout(blob->tensors, n, blob->offsets);
    if (total < 0) {
        return (int)total;
    }
    blob->bytes =
        aligned_alloc(BLOB_ALIGN, ((size_t)total + BLOB_ALIGN) & ~(size_t)(BLOB_ALIGN - 1));
    if (blob->bytes == NULL) {
        return err_set(ERR_MEMORY, "an exchange object of %lld bytes does not fit into memory",
                       (long long)total);
    }
    memset(blob->bytes, 0, (size_t)total);
    blob->blob = (FetchBlob){blob->bytes, (size_t)total, blob->tensors, blob->offsets, n};
    return 0;
}

static void reduce_blob_done(ReduceBlob *blob) {
    free(blob->tensors);
    free(blob->offsets);
    free(blob->bytes);
}

static void *reduce_tensor(const ReduceBlob *blob, int32_t i) {
    return (char *)blob->bytes + blob->offsets[i];
}

static int reduce_open_replicas(Reduce *reduce) {
    const Params *params = reduce->params;
    BlobTensor *tensors = calloc((size_t)params->n_states + 1, sizeof *tensors);
    if (tensors == NULL) {
        return err_set(ERR_MEMORY, "an exchange object's form does not fit into memory");
    }
    int32_t n = 0;
    int64_t tied = 0;
    for (int32_t i = 0; i < params->n_states; i++) {
        const ParamState *state = &params->states[i];
        if (state->tied_across) {
            tied = state->n > tied ? state->n : tied;
        } else {
            tensors[n++] = (BlobTensor){DTYPE_F32, shape_1d(state->n)};
        }
    }
    int rc = 0;
    if (reduce->replicas > 1) {
        TRY_DONE(reduce_blob_init(&reduce->own, n, tensors));
        TRY_DONE(reduce_blob_init(&reduce->other, n, tensors));
    }
    if (tied > 0) {
        tensors[0] = (BlobTensor){DTYPE_F32, shape_1d(tied)};
        TRY_DONE(reduce_blob_init(&reduce->tied_own, 1, tensors));
        TRY_DONE(reduce_blob_init(&reduce->tied_other, 1, tensors));
        reduce->tied_bytes = reduce->tied_own.blob.capacity;
    }
done:
    free(tensors);
    return rc;
}

static int reduce_find_owners(Reduce *reduce) {
    const Model *model = &reduce->order->model;
    const PlanSpec *plan = &reduce->order->plan;
    reduce->owner = calloc((size_t)model->n_params + 1, sizeof *reduce->owner);
    reduce->squares = calloc((size_t)model->n_params + 1, sizeof *reduce->squares);
    if (reduce->owner == NULL || reduce->squares == NULL) {
        return err_set(ERR_MEMORY, "the table of norms does not fit into memory");
    }
    stage_norm_owners(model, plan->ends, plan->n_stages, reduce->owner);
    return 0;
}

static int reduce_open_norms(Reduce *reduce) {
    const PlanSpec *plan = &reduce->order->plan;
    reduce->loss_stage = plan->n_stages - 1;
    reduce->loss_replicas = plan->replicas[reduce->loss_stage];
    const int32_t n = plan->n_stages + reduce->loss_replicas - 1;
    reduce->norms = calloc((size_t)n, sizeof *reduce->norms);
    if (reduce->norms == NULL) {
        return err_set(ERR_MEMORY, "the table of norms does not fit into memory");
    }
    for (; reduce->n_norms < n; reduce->n_norms++) {
        int64_t owned = 0;
        for (int32_t p = 0; p < reduce->order->model.n_params; p++) {
            owned += reduce->n_norms < plan->n_stages && reduce->owner[p] == reduce->n_norms;
        }
        const BlobTensor tensors[] = {
            {DTYPE_F64, shape_1d(owned)}, {DTYPE_F64, shape_1d(1)}, {DTYPE_I64, shape_1d(4)}};
        TRY(reduce_blob_init(&reduce->norms[reduce->n_norms], 3, tensors));
    }
    return 0;
}

int reduce_open(const Order *order, const Stage *stage, const DeviceOps *ops, Params *params,
                Fetch *fetch, Reduce **out_reduce) {
    Reduce *reduce = calloc(1, sizeof *reduce);
    if (reduce == NULL) {
        return err_set(ERR_MEMORY, "the reduction does not fit into memory");
    }
    *reduce = (Reduce){.order = order,
                       .stage = stage,
                       .ops = ops,
                       .params = params,
                       .fetch = fetch,
                       .replicas = order->plan.replicas[stage->index]};
    int rc = 0;
    TRY_DONE(reduce_open_replicas(reduce));
    TRY_DONE(reduce_find_owners(reduce));
    TRY_DONE(reduce_open_norms(reduce));
    *out_reduce = reduce;
    reduce = NULL;
done:
    reduce_close(reduce);
    return rc;
}

void reduce_close(Reduce *reduce) {
    if (reduce == NULL) {
        return;
    }
    reduce_blob_done(&reduce->own);
    reduce_blob_done(&reduce->other);
    reduce_blob_done(&reduce->tied_own);
    reduce_blob_done(&reduce->tied_other);
    for (int32_t i = 0; i < reduce->n_norms; i++) {
        reduce_blob_done(&reduce->norms[i]);
    }
    free(reduce->norms);
    free(reduce->squares);
    free(reduce->owner);
    free(reduce);
}

/* g = the contribution (first) or g += it. The contribution lies in host memory. */
static int reduce_take(Reduce *reduce, Stream *stream, ParamState *state, const void *contribution,
                       bool first) {
    if (first) {
        return reduce->ops->copy(stream, state->g, contribution, (size_t)state->n * sizeof(float));
    }
    if (reduce->ops->host_memory) {
        return reduce->ops->add(stream, state->g, contribution, state->n);
    }
    return err_set(ERR_UNSUPPORTED, "device '%s' cannot add from host memory", reduce->ops->name);
}

/* Sum over the replicas of this stage, parameters that no other stage holds. */
static int reduce_replicas(Reduce *reduce, Stream *stream, int64_t step, int64_t *bytes) {
    Params *params = reduce->params;
    const int32_t stage = reduce->stage->index, self = reduce->order->replica;
    for (int32_t i = 0, n = 0; i < params->n_states; i++) {
        const ParamState *state = &params->states[i];
        if (!state->tied_across) {
            TRY(reduce->ops->copy(stream, reduce_tensor(&reduce->own, n++), state->g,
                                  (size_t)state->n * sizeof(float)));
        }
    }
    TRY(reduce->ops->stream_sync(stream));
    TRY(fetch_put(reduce->fetch, key_reduce(&reduce->fetch->space, step, stage, self),
                  &reduce->own.blob, bytes));
    for (int32_t r = 0; r < reduce->replicas; r++) {
        const ReduceBlob *from = r == self ? &reduce->own : &reduce->other;
        if (r != self) {
            TRY(fetch_get(reduce->fetch, key_reduce(&reduce->fetch->space, step, stage, r),
                          (FetchPeer){stage, r}, &from->blob, bytes));
        }
        for (int32_t i = 0, n = 0; i < params->n_states; i++) {
            if (!params->states[i].tied_across) {
                TRY(reduce_take(reduce, stream, &params->states[i], reduce_tensor(from, n++),
                                r == 0));
            }
        }
        TRY(reduce->ops->stream_sync(stream));
    }
    return 0;
}

static void reduce_size_tied(ReduceBlob *blob, int64_t n) {
    blob->tensors[0].shape = shape_1d(n);
    blob->blob.capacity = (size_t)blob_layout(blob->tensors, 1, blob->offsets);
}

static const ParamUse *reduce_own_use(const ParamState *state, int32_t layer) {
    for (int32_t u = 0; u < state->n_uses; u++) {
        if (state->uses[u].layer == layer) {
            return &state->uses[u];
        }
    }
    return NULL;
}

/* Publish this worker's contributions to a parameter that several stages hold. */
static int reduce_publish_tied(Reduce *reduce, Stream *stream, int64_t step,
                               const ParamState *state, int64_t *bytes) {
    reduce_size_tied(&reduce->tied_own, state->n);
    for (int32_t u = 0; u < state->n_uses; u++) {
        TRY(reduce->ops->copy(stream, reduce_tensor(&reduce->tied_own, 0), state->uses[u].sum,
                              (size_t)state->n * sizeof(float)));
        TRY(reduce->ops->stream_sync(stream));
        TRY(fetch_put(reduce->fetch,
                      key_tied(&reduce->fetch->space, step, state->id, state->uses[u].layer,
                               reduce->order->replica),
                      &reduce->tied_own.blob, bytes));
    }
    return 0;
}

static int reduce_sum_tied(Reduce *reduce, Stream *stream, int64_t step, ParamState *state,
                           int64_t *bytes) {
    const Model *model = &reduce->order->model;
    const PlanSpec *plan = &reduce->order->plan;
    bool first = true;
    reduce_size_tied(&reduce->tied_other, state->n);
    for (int32_t l = 0; l < model->n_layers; l++) {
        bool uses = false;
        for (int32_t role = 0; role < model->layers[l].n_params; role++) {
            uses = uses || model->layers[l].params[role] == state->id;
        }
        const int32_t stage = stage_of_layer(plan->ends, plan->n_stages, l);
        for (int32_t r = 0; uses && r < plan->replicas[stage]; r++, first = false) {
            const void *contribution = reduce_tensor(&reduce->tied_other, 0);
            if (stage == reduce->stage->index && r == reduce->order->replica) {
                contribution = reduce_own_use(state, l)->sum;
            } else {
                TRY(fetch_get(reduce->fetch, key_tied(&reduce->fetch->space, step, state->id, l, r),
                              (FetchPeer){stage, r}, &reduce->tied_other.blob, bytes));
            }
            TRY(reduce_take(reduce, stream, state, contribution, first));
            TRY(reduce->ops->stream_sync(stream));
        }
    }
    return 0;
}

static int reduce_gradients(Reduce *reduce, Stream *stream, int64_t step, int64_t *bytes) {
    Params *params = reduce->params;
    for (int32_t i = 0; i < params->n_states; i++) {
        if (params->states[i].tied_across) {
            TRY(reduce_publish_tied(reduce, stream, step, &params->states[i], bytes));
        }
    }
    if (reduce->replicas > 1) {
        TRY(reduce_replicas(reduce, stream, step, bytes));
    }
    for (int32_t i = 0; i < params->n_states; i++) {
        if (params->states[i].tied_across) {
            TRY(reduce_sum_tied(reduce, stream, step, &params->states[i], bytes));
        }
    }
    return 0;
}

/* Who publishes norms object i. */
static FetchPeer reduce_norms_peer(const Reduce *reduce, int32_t i) {
    const int32_t n_stages = reduce->order->plan.n_stages;
    return i < n_stages ? (FetchPeer){i, 0} : (FetchPeer){reduce->loss_stage, i - n_stages + 1};
}

static int reduce_publish_norms(Reduce *reduce, Stream *stream, int64_t step, int32_t own,
                                const LossSums *loss, int32_t decision, int64_t *bytes) {
    ReduceBlob *norms = &reduce->norms[own];
    if (norms->tensors[0].shape.dims[0] > 0) {
        TRY(params_square_sums(reduce->params, stream, reduce_tensor(norms, 0)));
    }
    double *sum = reduce_tensor(norms, 1);
    int64_t *counts = reduce_tensor(norms, 2);
    sum[0] = loss->loss;
    counts[0] = loss->n_valid;
    counts[1] = loss->n_correct;
    counts[2] = decision;
    counts[3] = reduce->params->n_skipped;
    Key key = key_norms(&reduce->fetch->space, step, reduce->stage->index, reduce->order->replica);
    int rc = fetch_put(reduce->fetch, key, &norms->blob, bytes);
    if (rc > 0) { /* an earlier attempt's content stays: agree with it */
        rc = fetch_get(reduce->fetch, key, (FetchPeer){-1, 0}, &norms->blob, bytes);
    }
    return rc < 0 ? rc : 0;
}

/* All norms objects are here: sum them in one order. */
static void reduce_conclude(const Reduce *reduce, ReduceResult *result) {
    const Model *model = &reduce->order->model;
    const double clip = reduce->order->update.clip_norm;
    double total = 0.0, loss = 0.0;
    memset(result, 0, sizeof *result);
    for (int32_t s = 0; s < reduce->order->plan.n_stages; s++) {
        const double *from = reduce_tensor(&reduce->norms[s], 0);
        for (int32_t p = 0; p < model->n_params; p++) {
            if (reduce->owner[p] == s) {
                reduce->squares[p] = *from++;
            }
        }
    }
    for (int32_t p = 0; p < model->n_params; p++) {
        total += reduce->owner[p] >= 0 ? reduce->squares[p] : 0.0;
    }
    for (int32_t i = 0; i < reduce->n_norms; i++) {
        FetchPeer peer = reduce_norms_peer(reduce, i);
        const int64_t *counts = reduce_tensor(&reduce->norms[i], 2);
        if (peer.stage == reduce->loss_stage) {
            loss += *(const double *)reduce_tensor(&reduce->norms[i], 1);
            result->n_valid += counts[0];
            result->n_correct += counts[1];
        }
        if (peer.stage == 0 && peer.replica == 0) {
            result->decision = (int32_t)counts[2];
        }
    }
    result->norm = sqrt(total);
    result->finite = isfinite(total) && isfinite(loss);
    result->scale =
        clip > 0.0 && result->norm > 0.0 ? fmin(1.0, clip / (result->norm + 1e-6)) : 1.0;
    result->loss = result->n_valid > 0 ? loss / (double)result->n_valid : 0.0;
}

int reduce_run(Reduce *reduce, Stream *stream, int64_t step, const LossSums *loss, int32_t decision,
               ReduceResult *out_result, int64_t *bytes) {
    const int32_t stage = reduce->stage->index, replica = reduce->order->replica;
    TRY(reduce_gradients(reduce, stream, step, bytes));
    int32_t own = -1;
    if (replica == 0) {
        own = stage;
    } else if (stage == reduce->loss_stage) {
        own = reduce->order->plan.n_stages + replica - 1;
    }
    if (own >= 0) {
        TRY(reduce_publish_norms(reduce, stream, step, own, loss, decision, bytes));
    }
    for (int32_t i = 0; i < reduce->n_norms; i++) {
        FetchPeer peer = reduce_norms_peer(reduce, i);
        if (i != own) {
            TRY(fetch_get(reduce->fetch,
                          key_norms(&reduce->fetch->space, step, peer.stage, peer.replica), peer,
                          &reduce->norms[i].blob, bytes));
        }
    }
    reduce_conclude(reduce, out_result);
    return 0;
}

int reduce_publish_eval(Reduce *reduce, int64_t step, const LossSums *loss) {
    const BlobTensor tensors[] = {{DTYPE_F64, shape_1d(1)}, {DTYPE_I64, shape_1d(2)}};
    ReduceBlob blob = {0};
    int64_t bytes = 0;
    int rc = 0;
    TRY_DONE(reduce_blob_init(&blob, 2, tensors));
    *(double *)reduce_tensor(&blob, 0) = loss->loss;
    ((int64_t *)reduce_tensor(&blob, 1))[0] = loss->n_valid;
    ((int64_t *)reduce_tensor(&blob, 1))[1] = loss->n_correct;
    TRY_DONE(fetch_put(
        reduce->fetch,
        key_eval(&reduce->fetch->space, step, reduce->stage->index, reduce->order->replica),
        &blob.blob, &bytes));
done:
    reduce_blob_done(&blob);
    return rc < 0 ? rc : 0;
}

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

/* A parameter of the stage and where its gradient goes. */
typedef struct ReducePart {
    ParamState *state;
    Exchange *exchange; /* NULL: nobody else has it */
    int64_t at;         /* its first element in the exchange's vector */
    bool ends_exchange; /* no other one follows in it */
} ReducePart;

struct Reduce {
    ReduceSetup setup;
    int64_t step;
    int32_t replicas, loss_stage, loss_replicas;
    ReducePart *parts; /* (n_parts) in the order in which they become final */
    int32_t n_parts, n_final;
    Transfers *transfers; /* NULL: nothing to sum */
    Exchange *replicas_sum;
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

/* ---- who sums what ---- */

/* Behind the last backward's pass over which layer is it final? */
static int32_t reduce_final_layer(const ParamState *state) {
    return state->uses[0].layer;
}

static int reduce_later_layer_first(const void *left, const void *right) {
    const ReducePart *a = left, *b = right;
    const int32_t layers[] = {reduce_final_layer(a->state), reduce_final_layer(b->state)};
    if (layers[0] != layers[1]) {
        return layers[0] > layers[1] ? -1 : 1;
    }
    return a->state->id < b->state->id ? -1 : 1;
}

static int reduce_list_parts(Reduce *reduce) {
    Params *params = reduce->setup.params;
    reduce->parts = calloc((size_t)params->n_states + 1, sizeof *reduce->parts);
    if (reduce->parts == NULL) {
        return err_set(ERR_MEMORY, "the table of gradients does not fit into memory");
    }
    for (; reduce->n_parts < params->n_states; reduce->n_parts++) {
        reduce->parts[reduce->n_parts].state = &params->states[reduce->n_parts];
    }
    qsort(reduce->parts, (size_t)reduce->n_parts, sizeof *reduce->parts, reduce_later_layer_first);
    return 0;
}

static int reduce_open_exchange(Reduce *reduce, const ExchangeSetup *exchange,
                                Exchange **out_exchange) {
    TRY(reduction_check(&exchange->spec, exchange->n_members));
    if (reduce->transfers == NULL) {
        TRY(transfers_open(reduce->setup.order, reduce->setup.open_relay, reduce->setup.ctx,
                           WORKER_LINKS_UP, exchange_threads_down(exchange), &reduce->transfers));
    }
    return exchange_open(exchange, reduce->transfers, out_exchange);
}

/* The stage's own parameters, over its replicas. */
static int reduce_open_replicas(Reduce *reduce) {
    const int32_t stage = reduce->setup.stage->index;
    FetchPeer *replicas = calloc((size_t)reduce->replicas, sizeof *replicas);
    ReducePart *last = NULL;
    int rc = 0;
    if (replicas == NULL) {
        return err_set(ERR_MEMORY, "the table of replicas does not fit into memory");
    }
    ExchangeSetup exchange = {.kind = 'r',
                              .id = stage,
                              .n_members = reduce->replicas,
                              .n_holders = reduce->replicas,
                              .members = replicas,
                              .holders = replicas,
                              .self = reduce->setup.order->replica,
                              .own = &reduce->setup.order->replica,
                              .n_own = 1,
                              .alone = true,
                              .spec = reduce->setup.order->plan.reduce};
    for (int32_t r = 0; r < reduce->replicas; r++) {
        replicas[r] = (FetchPeer){stage, r};
    }
    for (int32_t i = 0; i < reduce->n_parts; i++) {
        ReducePart *part = &reduce->parts[i];
        if (!part->state->tied_across) {
            part->at = exchange.n_floats;
            exchange.n_floats += part->state->n;
            last = part;
        } else {
            exchange.alone = false;
        }
    }
    if (reduce->replicas > 1 && last != NULL) {
        last->ends_exchange = true;
        TRY_DONE(reduce_open_exchange(reduce, &exchange, &reduce->replicas_sum));
    }
    for (int32_t i = 0; i < reduce->n_parts; i++) {
        if (!reduce->parts[i].state->tied_across) {
            reduce->parts[i].exchange = reduce->replicas_sum;
        }
    }
done:
    free(replicas);
    return rc;
}

typedef struct TiedGroup { /* who uses a tied parameter */
    FetchPeer *members, *holders;
    int32_t *own;
    int32_t n_members, n_holders, n_own, self;
} TiedGroup;

static void reduce_group_done(TiedGroup *group) {
    free(group->members);
    free(group->holders);
    free(group->own);
}

static bool reduce_uses(const Layer *layer, int32_t param) {
    for (int32_t role = 0; role < layer->n_params; role++) {
        if (layer->params[role] == param) {
            return true;
        }
    }
    return false;
}

/* Contributions by ascending layer, in each by replica; holders by stage and replica. */
static int reduce_find_group(const Reduce *reduce, int32_t param, TiedGroup *group) {
    const Model *model = &reduce->setup.order->model;
    const PlanSpec *plan = &reduce->setup.order->plan;
    int32_t last_stage = -1;
    size_t most = 0;
    for (int32_t l = 0; l < model->n_layers; l++) {
        most += (size_t)plan->replicas[stage_of_layer(plan->ends, plan->n_stages, l)];
    }
    group->members = calloc(most, sizeof *group->members);
    group->holders = calloc(most, sizeof *group->holders);
    group->own = calloc((size_t)model->n_layers, sizeof *group->own);
    if (group->members == NULL || group->holders == NULL || group->own == NULL) {
        return err_set(ERR_MEMORY, "the uses of a parameter do not fit into memory");
    }
    for (int32_t l = 0; l < model->n_layers; l++) {
        if (!reduce_uses(&model->layers[l], param)) {
            continue;
        }
        const int32_t stage = stage_of_layer(plan->ends, plan->n_stages, l);
        for (int32_t r = 0; r < plan->replicas[stage]; r++) {
            const bool self =
                stage == reduce->setup.stage->index && r == reduce->setup.order->replica;
            if (stage != last_stage) {
                group->self = self ? group->n_holders : group->self;
                group->holders[group->n_holders++] = (FetchPeer){stage, r};
            }
            if (self) {
                group->own[group->n_own++] = group->n_members;
            }
            group->members[group->n_members++] = (FetchPeer){stage, r};
        }
        last_stage = stage;
    }
    return 0;
}

static int reduce_open_tied(Reduce *reduce, ReducePart *part) {
    TiedGroup group = {0};
    int rc = reduce_find_group(reduce, part->state->id, &group);
    const ExchangeSetup exchange = {.kind = 'u',
                                    .id = part->state->id,
                                    .n_floats = part->state->n,
                                    .n_members = group.n_members,
                                    .n_holders = group.n_holders,
                                    .members = group.members,
                                    .holders = group.holders,
                                    .self = group.self,
                                    .own = group.own,
                                    .n_own = group.n_own,
                                    .spec = reduce->setup.order->plan.reduce};
    if (rc >= 0) {
        rc = reduce_open_exchange(reduce, &exchange, &part->exchange);
    }
    part->ends_exchange = part->exchange != NULL;
    reduce_group_done(&group);
    return rc;
}

static int reduce_open_sums(Reduce *reduce) {
    TRY(reduce_list_parts(reduce));
    TRY(reduce_open_replicas(reduce));
    for (int32_t i = 0; i < reduce->n_parts; i++) {
        if (reduce->parts[i].state->tied_across) {
            TRY(reduce_open_tied(reduce, &reduce->parts[i]));
        }
    }
    return 0;
}

/* ---- norms ---- */

static int reduce_find_owners(Reduce *reduce) {
    const Model *model = &reduce->setup.order->model;
    const PlanSpec *plan = &reduce->setup.order->plan;
    reduce->owner = calloc((size_t)model->n_params + 1, sizeof *reduce->owner);
    reduce->squares = calloc((size_t)model->n_params + 1, sizeof *reduce->squares);
    if (reduce->owner == NULL || reduce->squares == NULL) {
        return err_set(ERR_MEMORY, "the table of norms does not fit into memory");
    }
    stage_norm_owners(model, plan->ends, plan->n_stages, reduce->owner);
    return 0;
}

static int reduce_open_norms(Reduce *reduce) {
    const PlanSpec *plan = &reduce->setup.order->plan;
    reduce->loss_stage = plan->n_stages - 1;
    reduce->loss_replicas = plan->replicas[reduce->loss_stage];
    const int32_t n = plan->n_stages + reduce->loss_replicas - 1;
    reduce->norms = calloc((size_t)n, sizeof *reduce->norms);
    if (reduce->norms == NULL) {
        return err_set(ERR_MEMORY, "the table of norms does not fit into memory");
    }
    for (; reduce->n_norms < n; reduce->n_norms++) {
        int64_t owned = 0;
        for (int32_t p = 0; p < reduce->setup.order->model.n_params; p++) {
            owned += reduce->n_norms < plan->n_stages && reduce->owner[p] == reduce->n_norms;
        }
        const BlobTensor tensors[] = {
            {DTYPE_F64, shape_1d(owned)}, {DTYPE_F64, shape_1d(1)}, {DTYPE_I64, shape_1d(4)}};
        TRY(reduce_blob_init(&reduce->norms[reduce->n_norms], 3, tensors));
    }
    return 0;
}

int reduce_open(const ReduceSetup *setup, Reduce **out_reduce) {
    Reduce *reduce = calloc(1, sizeof *reduce);
    if (reduce == NULL) {
        return err_set(ERR_MEMORY, "the reduction does not fit into memory");
    }
    reduce->setup = *setup;
    reduce->replicas = setup->order->plan.replicas[setup->stage->index];
    int rc = 0;
    TRY_DONE(reduce_open_sums(reduce));
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
    transfers_close(reduce->transfers);
    exchange_close(reduce->replicas_sum);
    for (int32_t i = 0; i < reduce->n_parts; i++) {
        if (reduce->parts[i].state->tied_across) {
            exchange_close(reduce->parts[i].exchange);
        }
    }
    for (int32_t i = 0; i < reduce->n_norms; i++) {
        reduce_blob_done(&reduce->norms[i]);
    }
    free(reduce->parts);
    free(reduce->norms);
    free(reduce->squares);
    free(reduce->owner);
    free(reduce);
}

Fetch *reduce_fetch(Reduce *reduce, int i) {
    return reduce->transfers != NULL ? transfers_fetch(reduce->transfers, i) : NULL;
}

void reduce_interrupt(Reduce *reduce, bool on) {
    if (reduce != NULL && reduce->transfers != NULL) {
        transfers_interrupt(reduce->transfers, on);
    }
}

/* ---- gradients ---- */

void reduce_begin(Reduce *reduce, int64_t step, bool forget) {
    reduce->step = step;
    reduce->n_final = 0;
    for (int32_t i = 0; i < reduce->n_parts; i++) {
        if (reduce->parts[i].ends_exchange) {
            exchange_begin(reduce->parts[i].exchange, step, forget);
        }
    }
}

/* Bring a gradient into the exchange's vector. */
static int reduce_write(Reduce *reduce, Stream *stream, const ReducePart *part, int32_t own,
                        const float *gradient) {
    int64_t n = 0;
    for (int64_t i = 0; i < part->state->n; i += n) {
        float *to = exchange_in(part->exchange, own, part->at + i, &n);
        n = n < part->state->n - i ? n : part->state->n - i;
        TRY(reduce->setup.ops->copy(stream, to, gradient + i, (size_t)n * sizeof(float)));
    }
    return 0;
}

static int reduce_read(Reduce *reduce, Stream *stream, const ReducePart *part) {
    int64_t n = 0;
    for (int64_t i = 0; i < part->state->n; i += n) {
        const float *from = exchange_out(part->exchange, part->at + i, &n);
        n = n < part->state->n - i ? n : part->state->n - i;
        TRY(reduce->setup.ops->copy(stream, part->state->g + i, from, (size_t)n * sizeof(float)));
    }
    return 0;
}

static int reduce_finish_part(Reduce *reduce, Stream *stream, const ReducePart *part) {
    ParamState *state = part->state;
    TRY(params_finish(reduce->setup.params, reduce->setup.layers, stream, state));
    if (part->exchange == NULL) {
        return 0;
    }
    if (!state->tied_across) {
        TRY(reduce_write(reduce, stream, part, 0, state->g));
    }
    for (int32_t u = 0; state->tied_across && u < state->n_uses; u++) {
        TRY(reduce_write(reduce, stream, part, u, state->uses[u].sum));
    }
    TRY(reduce->setup.ops->stream_sync(stream));
    exchange_ready(part->exchange, part->at + state->n);
    return 0;
}

int reduce_layer(Reduce *reduce, Stream *stream, int32_t layer) {
    while (reduce->n_final < reduce->n_parts &&
           reduce_final_layer(reduce->parts[reduce->n_final].state) >= layer) {
        TRY(reduce_finish_part(reduce, stream, &reduce->parts[reduce->n_final]));
        reduce->n_final++;
    }
    return 0;
}

static int reduce_gradients(Reduce *reduce, Stream *stream, int64_t *bytes) {
    TRY(reduce_layer(reduce, stream, 0));
    if (reduce->transfers != NULL) {
        TRY(transfers_wait(reduce->transfers, bytes));
    }
    for (int32_t i = 0; i < reduce->n_parts; i++) {
        if (reduce->parts[i].exchange != NULL) {
            TRY(reduce_read(reduce, stream, &reduce->parts[i]));
        }
    }
    /* The loss, too, is there then, and no slot is in use. */
    return reduce->setup.ops->stream_sync(stream);
}

/* ---- the rest of it ---- */

/* Who publishes norms object i. */
static FetchPeer reduce_norms_peer(const Reduce *reduce, int32_t i) {
    const int32_t n_stages = reduce->setup.order->plan.n_stages;
    return i < n_stages ? (FetchPeer){i, 0} : (FetchPeer){reduce->loss_stage, i - n_stages + 1};
}

static int reduce_publish_norms(Reduce *reduce, Stream *stream, int64_t step, int32_t own,
                                const LossSums *loss, int32_t decision, int64_t *bytes) {
    ReduceBlob *norms = &reduce->norms[own];
    if (norms->tensors[0].shape.dims[0] > 0) {
        TRY(params_square_sums(reduce->setup.params, stream, reduce_tensor(norms, 0)));
    }
    double *sum = reduce_tensor(norms, 1);
    int64_t *counts = reduce_tensor(norms, 2);
    sum[0] = loss->loss;
    counts[0] = loss->n_valid;
    counts[1] = loss->n_correct;
    counts[2] = decision;
    counts[3] = reduce->setup.params->n_skipped;
    Key key = key_norms(&reduce->setup.fetch->space, step, reduce->setup.stage->index,
                        reduce->setup.order->replica);
    int rc = fetch_put(reduce->setup.fetch, key, &norms->blob, bytes);
    if (rc > 0) { /* an earlier attempt's content stays: agree with it */
        rc = fetch_get(reduce->setup.fetch, key, (FetchPeer){-1, 0}, &norms->blob, bytes);
    }
    return rc < 0 ? rc : 0;
}

/* All norms objects are here: sum them in one order. */
static void reduce_conclude(const Reduce *reduce, ReduceResult *result) {
    const Model *model = &reduce->setup.order->model;
    const double clip = reduce->setup.order->update.clip_norm;
    double total = 0.0, loss = 0.0;
    memset(result, 0, sizeof *result);
    for (int32_t s = 0; s < reduce->setup.order->plan.n_stages; s++) {
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

int reduce_run(Reduce *reduce, Stream *stream, const LossSums *loss, int32_t decision,
               ReduceResult *out_result, int64_t *bytes) {
    const int32_t stage = reduce->setup.stage->index, replica = reduce->setup.order->replica;
    const int64_t step = reduce->step;
    TRY(reduce_gradients(reduce, stream, bytes));
    int32_t own = -1;
    if (replica == 0) {
        own = stage;
    } else if (stage == reduce->loss_stage) {
        own = reduce->setup.order->plan.n_stages + replica - 1;
    }
    if (own >= 0) {
        TRY(reduce_publish_norms(reduce, stream, step, own, loss, decision, bytes));
    }
    for (int32_t i = 0; i < reduce->n_norms; i++) {
        FetchPeer peer = reduce_norms_peer(reduce, i);
        if (i != own) {
            TRY(fetch_get(reduce->setup.fetch,
                          key_norms(&reduce->setup.fetch->space, step, peer.stage, peer.replica),
                          peer, &reduce->norms[i].blob, bytes));
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
    TRY_DONE(fetch_put(reduce->setup.fetch,
                       key_eval(&reduce->setup.fetch->space, step, reduce->setup.stage->index,
                                reduce->setup.order->replica),
                       &blob.blob, &bytes));
done:
    reduce_blob_done(&blob);
    return rc < 0 ? rc : 0;
}

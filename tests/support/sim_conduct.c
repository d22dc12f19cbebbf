/* The small conductor of a simulation. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/checkpoint.h"
#include "core/clock.h"
#include "storage/blob.h"
#include "tests/support/sim_internal.h"

enum { SIM_BLOB_BYTES = 1 << 16, SIM_COUNTS = 4 };

/* An exchange object as it was read. */
struct SimBlob {
    _Alignas(64) char bytes[SIM_BLOB_BYTES];
    BlobTensor tensors[3];
    size_t offsets[3];
};

static int sim_get(Sim *sim, Key key, int n_tensors, const SimBlob **out_blob) {
    SimBlob *blob = sim->blob;
    size_t bytes = 0;
    int n = 0;
    TRY(relay_get(sim->relay, key.text, blob->bytes, sizeof blob->bytes,
                  clock_deadline_ms(sim->job->wait_ms), &bytes));
    TRY(blob_parse(blob->bytes, bytes, key.text, blob->tensors, blob->offsets, n_tensors, &n));
    if (n != n_tensors) {
        return err_set(ERR_CORRUPT, "'%s' holds %d tensors, expected %d", key.text, n, n_tensors);
    }
    *out_blob = blob;
    return 0;
}

static const double *sim_doubles(const SimBlob *blob, int tensor) {
    return (const double *)(const void *)(blob->bytes + blob->offsets[tensor]);
}

static const int64_t *sim_integers(const SimBlob *blob, int tensor) {
    return (const int64_t *)(const void *)(blob->bytes + blob->offsets[tensor]);
}

static int sim_watch_norms(Sim *sim, int64_t step, int32_t stage, int32_t replica, double *square,
                           double *loss, int64_t counts[SIM_COUNTS]) {
    const SimBlob *blob;
    TRY(sim_get(sim, key_norms(&sim->space, step, stage, replica), 3, &blob));
    for (int64_t i = 0; i < blob->tensors[0].shape.dims[0]; i++) {
        *square += sim_doubles(blob, 0)[i];
    }
    *loss += sim_doubles(blob, 1)[0];
    counts[0] += sim_integers(blob, 2)[0];
    counts[1] += sim_integers(blob, 2)[1];
    if (stage == 0 && replica == 0) {
        counts[2] = sim_integers(blob, 2)[2];
        counts[3] = sim_integers(blob, 2)[3];
    } else if (counts[3] != sim_integers(blob, 2)[3]) {
        return err_set(ERR_INTERNAL, "step %lld: worker %d.%d has skipped %lld updates, not %lld",
                       (long long)step, stage, replica, (long long)sim_integers(blob, 2)[3],
                       (long long)counts[3]);
    }
    return 0;
}

static int sim_watch_step(Sim *sim, int64_t step, int64_t *out_decision) {
    const PlanSpec *plan = &sim->job->order.plan;
    const int32_t last = plan->n_stages - 1;
    double square = 0.0, loss = 0.0;
    int64_t counts[SIM_COUNTS] = {0};
    for (int32_t s = 0; s <= last; s++) {
        TRY(sim_watch_norms(sim, step, s, 0, &square, &loss, counts));
    }
    for (int32_t r = 1; r < plan->replicas[last]; r++) {
        TRY(sim_watch_norms(sim, step, last, r, &square, &loss, counts));
    }
    SimResult *result = sim->result;
    *out_decision = counts[2];
    if (result->n_steps < SIM_MAX_STEPS) {
        int32_t at = result->n_steps++;
        result->norm[at] = sqrt(square);
        result->valid[at] = counts[0];
        result->correct[at] = counts[1];
        result->skipped[at] = counts[3];
        result->loss[at] = counts[0] > 0 ? loss / (double)counts[0] : 0.0;
    }
    return 0;
}

static int sim_watch_eval(Sim *sim, int64_t step) {
    const PlanSpec *plan = &sim->job->order.plan;
    const int32_t last = plan->n_stages - 1;
    double loss = 0.0;
    int64_t valid = 0, correct = 0;
    for (int32_t r = 0; r < plan->replicas[last]; r++) {
        const SimBlob *blob;
        TRY(sim_get(sim, key_eval(&sim->space, step, last, r), 2, &blob));
        loss += sim_doubles(blob, 0)[0];
        valid += sim_integers(blob, 1)[0];
        correct += sim_integers(blob, 1)[1];
    }
    SimResult *result = sim->result;
    if (result->n_evals < SIM_MAX_EVALS) {
        result->eval_loss[result->n_evals] = loss / (double)valid;
        result->eval_accuracy[result->n_evals++] = (double)correct / (double)valid;
    }
    return 0;
}

static int sim_drop_eval(Sim *sim, int64_t step) {
    const Order *order = &sim->job->order;
    const int32_t last = order->plan.n_stages - 1;
    int64_t dropped = 0;
    for (int32_t r = 0; r < order->plan.replicas[last]; r++) {
        Key key = key_eval(&sim->space, step, last, r);
        TRY(relay_drop_one(sim->relay, key.text, &dropped));
    }
    for (int64_t b = 0; b < order_steps_per_epoch(order->eval_samples, order->batch); b++) {
        Key key = key_eval_prefix(&sim->space, (KeyPlace){step, b});
        TRY(relay_drop_one(sim->relay, key.text, &dropped));
    }
    return 0;
}

int sim_drop_before(Sim *sim, int64_t end) {
    const Order *order = &sim->job->order;
    int64_t dropped = 0;
    if (order->eval_only) {
        return sim_drop_eval(sim, order->first_step);
    }
    for (int64_t step = order->first_step; step < end; step++) {
        Key key = key_step_prefix(&sim->space, step);
        TRY(relay_drop_one(sim->relay, key.text, &dropped));
        if (order->has_eval && order_eval_due(order, step)) {
            TRY(sim_drop_eval(sim, step + 1));
        }
    }
    return 0;
}

/* Objects go when they are before the last save and every present attempt is past them. */
static int sim_drop(Sim *sim) {
    int64_t end = sim->committed;
    if (sim->faults != NULL && sim->faults->keep) {
        return 0;
    }
    pthread_mutex_lock(&sim->lock); /* no attempt begins meanwhile */
    for (int32_t w = 0; w < sim->n_workers; w++) {
        const int64_t passed = atomic_load(&sim->workers[w].passed);
        end = passed < end ? passed : end;
    }
    int rc = end > sim->dropped ? sim_drop_before(sim, end) : 0;
    sim->dropped = end > sim->dropped ? end : sim->dropped;
    pthread_mutex_unlock(&sim->lock);
    return rc;
}

static int sim_commit(Sim *sim, int64_t step) {
    const Order *order = &sim->job->order;
    SimResult *result = sim->result;
    Buf text;
    buf_init(&text, SIM_BLOB_BYTES);
    Saved *saved = calloc((size_t)order->plan.n_stages, sizeof *saved);
    int rc = saved != NULL ? 0 : err_set(ERR_MEMORY, "what was saved");
    for (int32_t s = 0; rc >= 0 && s < order->plan.n_stages; s++) {
        for (int32_t r = 0; rc >= 0 && r < order->plan.replicas[s]; r++) {
            Key key = key_saved(&sim->space, step, s, r);
            rc = relay_get_buf(sim->relay, key.text, &text, clock_deadline_ms(sim->job->wait_ms));
            if (rc >= 0 && r == 0) {
                rc = report_parse_saved(text.data, text.bytes, &saved[s]);
            }
        }
    }
    buf_done(&text);
    if (rc >= 0) {
        snprintf(result->last_checkpoint, sizeof result->last_checkpoint, "%s/%lld", result->store,
                 (long long)step);
        rc = checkpoint_commit(result->last_checkpoint, order->job, step, &order->model,
                               order->update.kind, order->plan.n_stages, saved, false);
    }
    free(saved);
    TRY(rc);
    result->n_saves++;
    pthread_mutex_lock(&sim->lock);
    sim->committed = step;
    pthread_mutex_unlock(&sim->lock);
    return sim_drop(sim);
}

static int sim_follow(Sim *sim) {
    const Order *order = &sim->job->order;
    if (order->eval_only) {
        return sim_watch_eval(sim, order->first_step);
    }
    for (int64_t step = order->first_step; step < order->end_step && !sim->result->stopped;
         step++) {
        int64_t decision = 0;
        TRY(sim_watch_step(sim, step, &decision));
        sim->result->stopped = (decision & DECISION_STOP) != 0;
        if (order->has_eval && order_eval_due(order, step) && !sim->result->stopped) {
            TRY(sim_watch_eval(sim, step + 1));
        }
        if (order_save_due(order, step) || step + 1 == order->end_step || decision != 0) {
            TRY(sim_commit(sim, step + 1));
        }
    }
    return 0;
}

int sim_conduct(Sim *sim) {
    sim->blob = aligned_alloc(64, sizeof *sim->blob);
    if (sim->blob == NULL) {
        return err_set(ERR_MEMORY, "the exchange objects of a simulation");
    }
    const int code = sim_follow(sim);
    free(sim->blob);
    sim->blob = NULL;
    return code;
}

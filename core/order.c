#include "core/order.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/rng.h"

void order_init(Order *order) {
    memset(order, 0, sizeof *order);
    memcpy(order->plan.device, "cpu", sizeof "cpu");
    memcpy(order->plan.isa, "auto", sizeof "auto");
    order->plan.threads = 1;
    order->wait_timeout_ms = 10 * 60 * 1000;
    order->heartbeat_ms = 1000;
}

void order_plan_done(PlanSpec *plan) {
    if (!plan)
        return;
    free(plan->ends);
    free(plan->replicas);
    free(plan->recompute);
    plan->ends = NULL;
    plan->replicas = NULL;
    plan->recompute = NULL;
    plan->n_stages = 0;
}

void order_done(Order *order) {
    if (!order)
        return;
    model_done(&order->model);
    order_plan_done(&order->plan);
    free(order->program);
    free(order->eval_program);
    order->program = NULL;
    order->eval_program = NULL;
}

/* A copy of `bytes` bytes; NULL stays NULL. */
static int copy_bytes(const void *from, size_t bytes, void **out_copy) {
    *out_copy = NULL;
    if (!from || bytes == 0)
        return 0;
    void *copy = malloc(bytes);
    if (!copy)
        return err_set(ERR_MEMORY, "a copy of %zu bytes of a stage order", bytes);
    memcpy(copy, from, bytes);
    *out_copy = copy;
    return 0;
}

static int copy_plan(const PlanSpec *plan, PlanSpec *out_plan) {
    size_t n = (size_t)plan->n_stages;
    TRY(copy_bytes(plan->ends, n * sizeof *plan->ends, (void **)&out_plan->ends));
    TRY(copy_bytes(plan->replicas, n * sizeof *plan->replicas, (void **)&out_plan->replicas));
    return copy_bytes(plan->recompute, n * sizeof *plan->recompute, (void **)&out_plan->recompute);
}

static int copy_text(const char *text, char **out_copy) {
    return copy_bytes(text, text ? strlen(text) + 1 : 0, (void **)out_copy);
}

int order_copy(const Order *order, Order *out_order) {
    Order copy = *order;
    memset(&copy.model, 0, sizeof copy.model);
    copy.plan.ends = NULL;
    copy.plan.replicas = NULL;
    copy.plan.recompute = NULL;
    copy.program = NULL;
    copy.eval_program = NULL;
    int rc = 0;
    if (order->model.n_values > 0)
        TRY_DONE(model_copy(&order->model, &copy.model));
    TRY_DONE(copy_plan(&order->plan, &copy.plan));
    TRY_DONE(copy_text(order->program, &copy.program));
    TRY_DONE(copy_text(order->eval_program, &copy.eval_program));
    *out_order = copy;
    return 0;
done:
    order_done(&copy);
    return rc;
}

double order_lr(const UpdateSpec *update, int64_t step, int64_t n_steps) {
    const double pi = 3.14159265358979323846;
    int64_t warmup = update->warmup_steps;
    if (step < warmup)
        return update->lr * (double)(step + 1) / (double)warmup;
    int64_t last =
        n_steps - 1 - warmup; /* 0: one step behind the warm-up, which has the base rate */
    double t = last > 0 ? (double)(step - warmup) / (double)last : 0.0;
    t = t > 1.0 ? 1.0 : t;
    switch (update->schedule) {
    case LR_CONSTANT:
        break;
    case LR_COSINE:
        return update->final_lr + (update->lr - update->final_lr) / 2.0 * (1.0 + cos(pi * t));
    case LR_LINEAR:
        return update->lr + (update->final_lr - update->lr) * t;
    case LR_STEP:
        if (update->decay_every > 0) {
            int64_t decays = (step - warmup) / update->decay_every;
            return update->lr * pow(update->decay_factor, (double)decays);
        }
        break;
    }
    return update->lr;
}

int64_t order_steps_per_epoch(int64_t samples, int64_t batch) {
    return samples / batch + (samples % batch != 0);
}

int64_t order_batch_rows(int64_t samples, int64_t batch, int64_t step) {
    int64_t first = step % order_steps_per_epoch(samples, batch) * batch;
    return samples - first < batch ? samples - first : batch;
}

int32_t order_micro_rows(int64_t rows, int32_t micro_rows, int32_t micro, int64_t *out_first) {
    int64_t first = (int64_t)micro * micro_rows;
    if (first > rows)
        first = rows;
    *out_first = first;
    return (int32_t)(rows - first < micro_rows ? rows - first : micro_rows);
}

int64_t order_sample(uint64_t seed, bool shuffle, int64_t samples, int64_t batch, int64_t step,
                     int64_t row) {
    int64_t steps = order_steps_per_epoch(samples, batch);
    int64_t index = step % steps * batch + row;
    return shuffle ? rng_permute(seed, step / steps, samples, index) : index;
}

int32_t order_micro_owner(int32_t replicas, int32_t micro) {
    return micro % replicas;
}

static bool is_due(int64_t every, int64_t n_steps, int64_t step) {
    return step + 1 == n_steps || (every > 0 && (step + 1) % every == 0);
}

/* Of the job alone, not of the slice: all workers, whatever their slices, save at the same steps.
 */
bool order_save_due(const Order *order, int64_t step) {
    return is_due(order->save_every, order->n_steps, step);
}

bool order_eval_due(const Order *order, int64_t step) {
    return order->has_eval && is_due(order->eval_every, order->n_steps, step);
}

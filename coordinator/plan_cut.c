/* Where a plan cuts the model. */
#include <stdlib.h>
#include <string.h>

#include "coordinator/partition.h"
#include "coordinator/plan_parts.h"
#include "core/err.h"
#include "core/stage.h"

/* Times are measured: cuts as near as this to the best are alike, and the fewest bytes decide. */
static const double PLAN_NEAR_TIE = 0.02;
/* How finely a cut is looked for that leaves the relay room: up to 80 times slower, by 1/32nds. */
enum { PLAN_MAX_DOUBLINGS = 12, PLAN_MAX_HALVINGS = 5 };
/* Between saves, where the job leaves them to the plan; where only that fits, one. */
enum { PLAN_SOME_STEPS = 20, PLAN_LEAST_STEPS = 1 };

static int layer_times(const Model *model, const Profile *profile, double **out_times) {
    double *times = calloc((size_t)model->n_layers, sizeof *times);
    if (!times)
        return err_set(ERR_MEMORY, "the times of %d layers", model->n_layers);
    for (int32_t i = 0; i < model->n_layers; i++) {
        if (profile)
            times[i] = profile->forward_us[i] + profile->backward_us[i];
        else
            times[i] = model_layer_forward_flops(model, i) + model_layer_backward_flops(model, i);
    }
    *out_times = times;
    return 0;
}

static void sum_stages(const PlanSpec *spec, const double *times, double *stage_us) {
    int32_t layer = 0;
    for (int32_t stage = 0; stage < spec->n_stages; stage++) {
        for (; layer < spec->ends[stage]; layer++)
            stage_us[stage] += times[layer];
    }
}

/* What the relay holds of a cut in front of each layer, before a save: values of n_steps and of the
 * evaluation, gradients of the steps. */
static int cut_bytes(const JobConfig *config, double n_steps, double *out_bytes) {
    const Model *model = &config->order.model;
    const double rows = (double)config->order.batch * n_steps;
    const double eval_rows = config->order.has_eval ? (double)config->order.eval_samples : 0;
    int32_t *last = calloc((size_t)model->n_values, sizeof *last);
    if (!last)
        return err_set(ERR_MEMORY, "the cuts of %d layers", model->n_layers);
    for (int32_t i = 0; i < model->n_layers; i++) {
        for (int32_t k = 0; k < model->layers[i].n_inputs; k++)
            last[model->layers[i].inputs[k]] = i;
    }
    /* First where the sum changes, then the sums. */
    for (int32_t i = 0; i < model->n_layers; i++) {
        const Value *value = &model->values[model->layers[i].output];
        double bytes = 4.0 * (double)shape_elements(&value->shape) *
                       (rows * (value->needs_grad ? 2 : 1) + eval_rows);
        if (last[model->layers[i].output] > i) {
            out_bytes[i + 1] += bytes;
            out_bytes[last[model->layers[i].output] + 1] -= bytes;
        }
    }
    for (int32_t i = 1; i <= model->n_layers; i++)
        out_bytes[i] += out_bytes[i - 1];
    free(last);
    return 0;
}

/* The same of each layer's gradients, as replicas publish them; of a tied parameter's where it is
 * used first. */
static int gradient_bytes(const JobConfig *config, double n_steps, double *out_bytes) {
    const Model *model = &config->order.model;
    bool *counted = calloc((size_t)model->n_params + 1, sizeof *counted);
    if (!counted)
        return err_set(ERR_MEMORY, "the gradients of %d layers", model->n_layers);
    for (int32_t i = 0; i < model->n_layers; i++) {
        for (int32_t k = 0; k < model->layers[i].n_params; k++) {
            int32_t param = model->layers[i].params[k];
            if (!counted[param])
                out_bytes[i] += (double)plan_weight_bytes(model, param) * n_steps;
            counted[param] = true;
        }
    }
    free(counted);
    return 0;
}

/* ---- a balanced cut that fits ---- */

typedef struct Balancing {
    const JobConfig *config;
    const double *times;
    PartitionCosts costs; /* bytes in the relay, about */
    int32_t *best;        /* the balanced cut (n_stages) */
    Plan *plan;           /* takes a cut */
} Balancing;

/* Take the cheapest cut that is so much slower than the best at most. ERR_INFEASIBLE: the relay
 * would still hold too much. */
static int take_cheapest(Balancing *it, double slack) {
    const Model *model = &it->config->order.model;
    PlanSpec *spec = &it->plan->spec;
    memcpy(spec->ends, it->best, (size_t)spec->n_stages * sizeof *spec->ends);
    TRY(partition_cheapen(it->times, &it->costs, model->n_layers, spec->n_stages, spec->replicas,
                          slack, spec->ends));
    return plan_fill_relay(it->config, it->plan);
}

/* The least slack with which the relay has room, nearly. ERR_INFEASIBLE: with none. */
static int take_fitting(Balancing *it) {
    double low = PLAN_NEAR_TIE;
    double high = low;
    int rc = take_cheapest(it, low);
    for (int i = 0; rc == ERR_INFEASIBLE && i < PLAN_MAX_DOUBLINGS; i++) {
        low = high;
        high *= 2;
        rc = take_cheapest(it, high);
    }
    if (rc == ERR_INFEASIBLE)
        return rc;
    for (int i = 0; high > low && i < PLAN_MAX_HALVINGS && (rc == 0 || rc == ERR_INFEASIBLE); i++) {
        double middle = (low + high) / 2;
        rc = take_cheapest(it, middle);
        *(rc == 0 ? &high : &low) = middle;
    }
    return rc == 0 || rc == ERR_INFEASIBLE ? take_cheapest(it, high) : rc;
}

/* Weigh the cuts by what lies in the relay when a save comes after so many steps: one more. */
static int take_saving(Balancing *it, int64_t every, double *bytes) {
    const size_t n = (size_t)it->config->order.model.n_layers + 1;
    memset(bytes, 0, 2 * n * sizeof *bytes);
    TRY(cut_bytes(it->config, (double)every + 1, bytes));
    TRY(gradient_bytes(it->config, (double)every + 1, bytes + n));
    return take_fitting(it);
}

static int balance(const JobConfig *config, const double *times, Plan *plan) {
    const Model *model = &config->order.model;
    const PlanSpec *spec = &plan->spec;
    const size_t n = (size_t)model->n_layers + 1;
    double *bytes = calloc(2 * n, sizeof *bytes);
    int32_t *best = calloc((size_t)spec->n_stages, sizeof *best);
    int rc = bytes && best ? 0 : err_set(ERR_MEMORY, "cutting %d layers", model->n_layers);
    TRY_DONE(rc);
    TRY_DONE(partition_balance(times, model->n_layers, spec->n_stages, spec->replicas, best));
    Balancing it = {config, times, {bytes, bytes + n}, best, plan};
    const int64_t every = config->order.save_every;
    rc = take_saving(&it, every > 0 ? every : PLAN_SOME_STEPS, bytes);
    if (rc == ERR_INFEASIBLE && every == 0)
        rc = take_saving(&it, PLAN_LEAST_STEPS, bytes);
    if (rc == ERR_INFEASIBLE) { /* the balanced cut, for which plan_make says what is too much */
        memcpy(plan->spec.ends, best, (size_t)spec->n_stages * sizeof *best);
        rc = 0;
    }
done:
    free(bytes);
    free(best);
    return rc;
}

int plan_cut(const JobConfig *config, const Profile *profile, Plan *plan) {
    const Model *model = &config->order.model;
    PlanSpec *spec = &plan->spec;
    const int32_t *given = config->plan.ends;
    double *times = NULL;
    if (profile && profile->n_layers == 0)
        profile = NULL;
    if (profile && profile->n_layers != model->n_layers)
        return err_set(ERR_ARGUMENT, "the profile has %d layers, model '%s' has %d",
                       profile->n_layers, model->name, model->n_layers);
    int rc = layer_times(model, profile, &times);
    if (rc >= 0 && given)
        memcpy(spec->ends, given, (size_t)spec->n_stages * sizeof *given);
    else if (rc >= 0)
        rc = balance(config, times, plan);
    plan->balance = given || spec->n_stages == 1 ? PLAN_GIVEN
                    : profile                    ? PLAN_MEASURED
                                                 : PLAN_FLOPS;
    if (rc >= 0 && profile) {
        plan->stage_us = calloc((size_t)spec->n_stages, sizeof *plan->stage_us);
        if (plan->stage_us)
            sum_stages(spec, times, plan->stage_us);
        else
            rc = err_set(ERR_MEMORY, "the times of %d stages", spec->n_stages);
    }
    free(times);
    return rc < 0 ? rc : stage_check_cut(model, spec->ends, spec->n_stages);
}

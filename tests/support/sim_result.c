/* Results of simulations: reading and comparing them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/checkpoint.h"
#include "core/err.h"
#include "storage/safetensors.h"
#include "tests/support/sim.h"
#include "tests/support/temp.h"

/* ---- reading ---- */

static int sim_read_file(const Model *model, const Safetensors *file, SimResult *result) {
    for (int i = 0; i < safetensors_count(file); i++) {
        const SafetensorsEntry *entry = safetensors_at(file, i);
        int32_t param = model_find_param(model, entry->name);
        if (param < 0 || result->params[param] != NULL) {
            return err_set(ERR_FORMAT, "tensor '%s' is surplus", entry->name);
        }
        result->sizes[param] = (int64_t)(entry->bytes / sizeof(float));
        result->params[param] = malloc(entry->bytes + 1);
        TRY(safetensors_read(file, entry, result->params[param], entry->bytes));
    }
    return 0;
}

int sim_read_checkpoint(const Model *model, const char *directory, SimResult *out_result) {
    Manifest manifest = {0};
    out_result->n_params = model->n_params;
    out_result->params = calloc((size_t)model->n_params + 1, sizeof *out_result->params);
    out_result->sizes = calloc((size_t)model->n_params + 1, sizeof *out_result->sizes);
    TRY(manifest_read(directory, &manifest));
    int rc = 0;
    for (int32_t i = 0; rc >= 0 && i < manifest.n_files; i++) {
        char path[1024];
        Safetensors *file = NULL;
        if (strncmp(manifest.files[i].name, "update-", 7) == 0) {
            continue;
        }
        snprintf(path, sizeof path, "%s/%s", directory, manifest.files[i].name);
        rc = safetensors_open(path, &file);
        if (rc >= 0) {
            rc = sim_read_file(model, file, out_result);
        }
        safetensors_close(file);
    }
    manifest_done(&manifest);
    return rc;
}

void sim_result_done(SimResult *result) {
    for (int32_t p = 0; result->params != NULL && p < result->n_params; p++) {
        free(result->params[p]);
    }
    free(result->params);
    free(result->sizes);
    free(result->uses);
    if (result->store[0] != '\0') {
        temp_remove(result->store);
    }
    memset(result, 0, sizeof *result);
}

/* ---- comparing ---- */

static bool sim_equal(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

static int sim_same_steps(const SimResult *a, const SimResult *b, char *why, size_t why_bytes) {
    if (a->n_steps != b->n_steps || a->n_evals != b->n_evals) {
        snprintf(why, why_bytes, "%d and %d steps, %d and %d evaluations", a->n_steps, b->n_steps,
                 a->n_evals, b->n_evals);
        return -1;
    }
    for (int32_t s = 0; s < a->n_steps; s++) {
        if (!sim_equal(a->loss[s], b->loss[s]) || !sim_equal(a->norm[s], b->norm[s])) {
            snprintf(why, why_bytes, "step %d: loss %.17g and %.17g, norm %.17g and %.17g", s,
                     a->loss[s], b->loss[s], a->norm[s], b->norm[s]);
            return -1;
        }
        if (a->valid[s] != b->valid[s] || a->correct[s] != b->correct[s] ||
            a->skipped[s] != b->skipped[s]) {
            snprintf(why, why_bytes,
                     "step %d: %lld and %lld valid, %lld and %lld correct, %lld and %lld skipped",
                     s, (long long)a->valid[s], (long long)b->valid[s], (long long)a->correct[s],
                     (long long)b->correct[s], (long long)a->skipped[s], (long long)b->skipped[s]);
            return -1;
        }
    }
    for (int32_t e = 0; e < a->n_evals; e++) {
        if (!sim_equal(a->eval_loss[e], b->eval_loss[e]) ||
            !sim_equal(a->eval_accuracy[e], b->eval_accuracy[e])) {
            snprintf(why, why_bytes, "evaluation %d: loss %.17g and %.17g", e, a->eval_loss[e],
                     b->eval_loss[e]);
            return -1;
        }
    }
    return 0;
}

int sim_same(const SimResult *a, const SimResult *b, bool with_losses, char *why,
             size_t why_bytes) {
    if (with_losses && sim_same_steps(a, b, why, why_bytes) < 0) {
        return -1;
    }
    if (a->n_params != b->n_params) {
        snprintf(why, why_bytes, "%d and %d parameters", a->n_params, b->n_params);
        return -1;
    }
    for (int32_t p = 0; p < a->n_params; p++) {
        if (a->sizes[p] != b->sizes[p] ||
            memcmp(a->params[p], b->params[p], (size_t)a->sizes[p] * sizeof(float)) != 0) {
            snprintf(why, why_bytes, "parameter %d differs (largest relative difference %g)", p,
                     sim_difference(a, b));
            return -1;
        }
    }
    return 0;
}

double sim_difference(const SimResult *a, const SimResult *b) {
    double worst = a->n_params == b->n_params ? 0.0 : INFINITY;
    for (int32_t p = 0; p < a->n_params && p < b->n_params; p++) {
        double largest = 0.0, difference = 0.0;
        if (a->sizes[p] != b->sizes[p]) {
            return INFINITY;
        }
        for (int64_t i = 0; i < a->sizes[p]; i++) {
            double x = (double)a->params[p][i], y = (double)b->params[p][i];
            largest = fmax(largest, fmax(fabs(x), fabs(y)));
            difference = fmax(difference, fabs(x - y));
            if (!isfinite(x) || !isfinite(y)) {
                return INFINITY;
            }
        }
        if (largest > 0.0) {
            worst = fmax(worst, difference / largest);
        }
    }
    return worst;
}

double sim_model_difference(const SimResult *a, const SimResult *b) {
    double difference = 0.0, size = 0.0;
    for (int32_t p = 0; p < a->n_params && p < b->n_params; p++) {
        for (int64_t i = 0; i < a->sizes[p] && i < b->sizes[p]; i++) {
            double x = (double)a->params[p][i], y = (double)b->params[p][i];
            difference += (x - y) * (x - y);
            size += x * x;
        }
    }
    return sqrt(difference / size);
}

static double sim_relative(double a, double b) {
    return a == b ? 0.0 : fabs(a - b) / fmax(fabs(a), fabs(b));
}

double sim_loss_difference(const SimResult *a, const SimResult *b) {
    if (a->n_steps != b->n_steps || a->n_evals != b->n_evals) {
        return INFINITY;
    }
    double worst = 0.0;
    for (int32_t s = 0; s < a->n_steps; s++) {
        worst = fmax(worst, sim_relative(a->loss[s], b->loss[s]));
    }
    for (int32_t e = 0; e < a->n_evals; e++) {
        worst = fmax(worst, sim_relative(a->eval_loss[e], b->eval_loss[e]));
    }
    return worst;
}

/* ---- history ---- */

enum { SIM_MAX_ATTEMPTS = 64 };

/* How often each attempt of one worker began each instruction of each step:
 * counts[(attempt - 1) * n_steps * n_instrs + step * n_instrs + instr]. */
typedef struct SimHistory {
    const SimJob *job;
    const Program *program;
    int32_t worker;
    int64_t first_step, n_steps;
    uint8_t *counts;
} SimHistory;

static uint8_t *sim_count(const SimHistory *history, int64_t attempt, int64_t step, int32_t instr) {
    return &history->counts[((attempt - 1) * history->n_steps + step) * history->program->n_instrs +
                            instr];
}

static bool sim_used_all(const SimHistory *history, int64_t attempt, int64_t step) {
    for (int32_t i = 0; i < history->program->n_instrs; i++) {
        if (history->program->instrs[i].micro >= 0 && *sim_count(history, attempt, step, i) != 1) {
            return false;
        }
    }
    return true;
}

static int sim_check_worker(const SimHistory *history, const SimResult *result, char *why,
                            size_t why_bytes) {
    for (int32_t u = 0; u < result->n_uses; u++) {
        const SimUse *use = &result->uses[u];
        if (use->worker != history->worker || use->eval) {
            continue;
        }
        uint8_t *count =
            sim_count(history, use->attempt, use->step - history->first_step, use->instr);
        if (++*count > 1) {
            snprintf(why, why_bytes, "worker %d, attempt %lld, step %lld: instruction %d twice",
                     use->worker, (long long)use->attempt, (long long)use->step, use->instr);
            return -1;
        }
    }
    for (int64_t step = 0; step < history->n_steps; step++) {
        bool all = false;
        for (int64_t attempt = 1; attempt <= SIM_MAX_ATTEMPTS && !all; attempt++) {
            all = sim_used_all(history, attempt, step);
        }
        if (!all) {
            snprintf(why, why_bytes, "worker %d: no attempt used all of step %lld", history->worker,
                     (long long)(history->first_step + step));
            return -1;
        }
    }
    return 0;
}

int sim_check_history(const SimJob *job, const SimResult *result, char *why, size_t why_bytes) {
    const Order *order = &job->order;
    SimHistory history = {.job = job,
                          .first_step = order->first_step,
                          .n_steps = result->stopped ? result->n_steps
                                                     : order->end_step - order->first_step};
    if (order->eval_only) {
        return 0;
    }
    if (result->n_steps != history.n_steps) {
        snprintf(why, why_bytes, "%d losses for %lld steps", result->n_steps,
                 (long long)history.n_steps);
        return -1;
    }
    int rc = 0;
    for (int32_t s = 0; s < order->plan.n_stages; s++) {
        for (int32_t r = 0; rc >= 0 && r < order->plan.replicas[s]; r++, history.worker++) {
            Program train, eval;
            rc = sim_programs(job, s, r, &train, &eval);
            if (rc < 0) {
                snprintf(why, why_bytes, "%s", err_text());
                return rc;
            }
            history.program = &train;
            history.counts =
                calloc((size_t)(SIM_MAX_ATTEMPTS * history.n_steps * train.n_instrs + 1), 1);
            rc = sim_check_worker(&history, result, why, why_bytes);
            free(history.counts);
            program_done(&train);
            program_done(&eval);
        }
    }
    return rc;
}

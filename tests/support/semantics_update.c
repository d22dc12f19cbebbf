/* Semantics: global norms, what is not finite, ties, running statistics, random numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/rng.h"
#include "core/text.h"
#include "storage/blob.h"
#include "storage/dataset.h"
#include "storage/key.h"
#include "tests/support/semantics_scenarios.h"
#include "tests/support/sim_check.h"

static int open_job(SimJob *job, const char *model, int32_t n_stages, char *why, size_t why_bytes) {
    EXPECT(sim_job_init(job, model) == 0, "%s", err_text());
    EXPECT(sim_job_stages(job, n_stages) == 0, "%s", err_text());
    return 0;
}

static int open_text(SimJob *job, const char *text, int32_t n_stages, char *why, size_t why_bytes) {
    EXPECT(sim_job_init_text(job, text, false, 5) == 0, "%s", err_text());
    EXPECT(sim_job_stages(job, n_stages) == 0, "%s", err_text());
    return 0;
}

static void plain_update(SimJob *job, double lr) {
    job->order.update.lr = lr;
    job->order.update.momentum = 0.0;
    job->order.update.weight_decay = 0.0;
}

#define MODEL_HEAD                                                                                 \
    "{\"name\":\"special\",\"input\":{\"dtype\":\"F32\",\"shape\":[12]},"                          \
    "\"target\":{\"dtype\":\"I32\",\"shape\":[]},\"layers\":["
#define MODEL_LINEAR(name) "{\"name\":\"" name "\",\"kind\":\"linear\",\"features\":16},"
#define MODEL_TAIL                                                                                 \
    "{\"name\":\"head\",\"kind\":\"linear\",\"features\":5},"                                      \
    "{\"name\":\"loss\",\"kind\":\"cross_entropy\"}]}"

/* ---- clipping ---- */

/* Gradients shrink on their way back through these: the first stage's are small. */
static const char deep_chain[] = MODEL_HEAD MODEL_LINEAR("a") MODEL_LINEAR("b") MODEL_LINEAR("c")
    MODEL_LINEAR("d") MODEL_LINEAR("e") MODEL_LINEAR("f") MODEL_LINEAR("g") MODEL_LINEAR("h")
        MODEL_LINEAR("i") MODEL_LINEAR("j") MODEL_TAIL;

/* How far the weights of the stage that layer `layer` is in moved; the largest error against
 * `scale` times the movement in `unclipped`. */
static double stage_movement(const SimJob *job, int32_t stage, const SimResult *start,
                             const SimResult *clipped, const SimResult *unclipped, double scale,
                             double *worst) {
    const Model *model = &job->order.model;
    const PlanSpec *plan = &job->order.plan;
    double square = 0.0;
    for (int32_t l = 0; l < model->n_layers; l++) {
        for (int32_t k = 0; k < model->layers[l].n_params; k++) {
            if (stage_of_layer(plan->ends, plan->n_stages, l) != stage) {
                continue;
            }
            const int32_t p = model->layers[l].params[k];
            for (int64_t i = 0; i < start->sizes[p]; i++) {
                double from = (double)start->params[p][i];
                double moved = (double)clipped->params[p][i] - from;
                double expected = scale * ((double)unclipped->params[p][i] - from);
                square += moved * moved;
                *worst = fmax(*worst, fabs(moved - expected));
            }
        }
    }
    return sqrt(square);
}

int semantics_clipping_scales_all_stages_alike(char *why, size_t why_bytes) {
    SimJob job;
    SimResult start, clipped, unclipped, oracle;
    double moved[3], worst = 0.0;
    TRY(open_text(&job, deep_chain, 3, why, why_bytes));
    sim_job_steps(&job, 1, 0);
    plain_update(&job, 0.0);
    TRY(sim_check_run(&job, NULL, &start, why, why_bytes));
    plain_update(&job, 1.0);
    TRY(sim_check_run(&job, NULL, &unclipped, why, why_bytes));
    job.order.update.clip_norm = 0.02;
    TRY(sim_check_run(&job, NULL, &clipped, why, why_bytes));
    const double scale = 0.02 / (clipped.norm[0] + 1e-6);
    EXPECT(clipped.norm[0] == unclipped.norm[0] && scale < 0.1, "norm %g", clipped.norm[0]);
    for (int32_t s = 0; s < 3; s++) {
        moved[s] = stage_movement(&job, s, &start, &clipped, &unclipped, scale, &worst);
    }
    EXPECT(moved[2] > 10.0 * moved[0], "the stages moved by %g, %g and %g", moved[0], moved[1],
           moved[2]);
    EXPECT(worst < 1e-7, "an element is %g from the common scale", worst);
    const double all = sqrt(moved[0] * moved[0] + moved[1] * moved[1] + moved[2] * moved[2]);
    EXPECT(fabs(all / 0.02 - 1.0) < 1e-4, "all moved by %g, the threshold is 0.02", all);
    sim_job_steps(&job, 6, 2);
    TRY(sim_check_oracle(&job, &oracle, why, why_bytes));
    TRY(sim_check_same(&job, NULL, &oracle, "", NULL, why, why_bytes)); /* norms, too */
    sim_result_done(&start);
    sim_result_done(&clipped);
    sim_result_done(&unclipped);
    sim_result_done(&oracle);
    sim_job_done(&job);
    return 0;
}

/* ---- what is not finite ---- */

enum { BAD_STEP = 2, BLOB_BYTES = 1 << 16 };

static int put_infinite(Relay *relay, Key key, const BlobTensor *tensors, int n) {
    static _Alignas(64) float blob[BLOB_BYTES / sizeof(float)];
    size_t offsets[16];
    memset(blob, 0, sizeof blob);
    int64_t bytes = blob_layout(tensors, n, offsets);
    if (bytes < 0 || bytes > BLOB_BYTES) {
        return err_set(ERR_LIMIT, "the object does not fit");
    }
    blob[offsets[0] / sizeof(float) + 1] = INFINITY;
    bytes = blob_seal(blob, key.text, tensors, n);
    const Slice part = {blob, (size_t)bytes};
    return relay_put(relay, key.text, &part, 1, clock_deadline_ms(1000));
}

static int open_space(const SimJob *job, KeySpace *space) {
    space->generation = job->order.generation;
    return text_copy(space->job, sizeof space->job, job->order.job);
}

/* What replica 1 of stage 1 adds to that stage's gradients in BAD_STEP. */
static int seed_reduce(Relay *relay, const SimJob *job) {
    const PlanSpec *plan = &job->order.plan;
    KeySpace space;
    Stage stage;
    int64_t elements = 0;
    TRY(open_space(job, &space));
    TRY(stage_init(&stage, &job->order.model, plan->ends, plan->n_stages, 1));
    for (int i = 0; i < stage.n_params; i++) {
        elements += model_param_elements(&job->order.model, stage.params[i].param);
    }
    stage_done(&stage);
    const BlobTensor all = {DTYPE_F32, shape_1d(elements)};
    return put_infinite(relay, key_part(key_sum(&space, BAD_STEP, 'r', 1, 0).text, 1), &all, 1);
}

/* What stage 1 gets back from stage 2 for micro-batch 1 in BAD_STEP. */
static int seed_gradient(Relay *relay, const SimJob *job) {
    const PlanSpec *plan = &job->order.plan;
    KeySpace space;
    Stage stage;
    BlobTensor tensors[16];
    TRY(open_space(job, &space));
    TRY(stage_init(&stage, &job->order.model, plan->ends, plan->n_stages, 2));
    const Edge *edge = &stage.in[stage.n_in - 1];
    const int n = edge->n_grads;
    for (int i = 0; i < n && i < 16; i++) {
        const Shape *shape = &job->order.model.values[edge->grads[i].value].shape;
        tensors[i] = (BlobTensor){DTYPE_F32, shape_2d(plan->micro_rows, shape->dims[0])};
    }
    stage_done(&stage);
    return put_infinite(relay, key_gradient(&space, (KeyPlace){BAD_STEP, -1}, 2, 1, 1), tensors, n);
}

/* With `seed` BAD_STEP is skipped by all, the rest is as if it had not been, and it is counted. */
static int check_skip(SimJob *job, int (*seed)(Relay *, const SimJob *), char *why,
                      size_t why_bytes) {
    const SimFaults faults = {.seed = seed};
    SimResult plain, skipped, resumed;
    sim_job_steps(job, 6, 1);
    TRY(sim_check_run(job, NULL, &plain, why, why_bytes));
    TRY(sim_check_run(job, &faults, &skipped, why, why_bytes));
    EXPECT(skipped.n_restarts == 0, "%d restarts", skipped.n_restarts);
    EXPECT(!isfinite(skipped.norm[BAD_STEP]), "norm %g", skipped.norm[BAD_STEP]);
    for (int32_t s = 0; s < 6; s++) { /* what a step reports was skipped before it */
        EXPECT(skipped.skipped[s] == (s > BAD_STEP), "step %d: %d skipped", s,
               (int)skipped.skipped[s]);
        EXPECT(s > BAD_STEP || skipped.loss[s] == plain.loss[s], "step %d: loss %g", s,
               skipped.loss[s]);
    }
    EXPECT(sim_job_resume(job, plain.store, BAD_STEP) == 0, "%s", err_text());
    job->order.first_step = BAD_STEP + 1;
    TRY(sim_check_run(job, NULL, &resumed, why, why_bytes));
    for (int32_t s = 0; s < resumed.n_steps; s++) {
        EXPECT(resumed.loss[s] == skipped.loss[BAD_STEP + 1 + s], "step %d: loss %.17g",
               BAD_STEP + 1 + s, skipped.loss[BAD_STEP + 1 + s]);
    }
    if (sim_same(&resumed, &skipped, false, why, why_bytes) < 0) {
        return -1;
    }
    sim_result_done(&plain);
    sim_result_done(&skipped);
    sim_result_done(&resumed);
    sim_job_done(job);
    return 0;
}

int semantics_a_gradient_of_one_stage_that_is_infinite_skips_the_step_everywhere(char *why,
                                                                                 size_t why_bytes) {
    SimJob job;
    TRY(open_job(&job, "mlp", 3, why, why_bytes));
    job.order.plan.replicas[1] = 2;
    job.order.update.clip_norm = 1.0;
    return check_skip(&job, seed_reduce, why, why_bytes);
}

int semantics_an_infinite_gradient_on_the_wire_skips_the_step_everywhere(char *why,
                                                                         size_t why_bytes) {
    SimJob job;
    TRY(open_job(&job, "mlp", 3, why, why_bytes));
    return check_skip(&job, seed_gradient, why, why_bytes);
}

/* Killed in, before and after the skipped step, each worker counts as if it had not been. */
int semantics_skips_are_counted_over_a_restart(char *why, size_t why_bytes) {
    const SimFaults undisturbed = {.seed = seed_gradient};
    SimJob job;
    SimResult expected;
    TRY(open_job(&job, "mlp", 3, why, why_bytes));
    sim_job_steps(&job, 6, 2);
    TRY(sim_check_run(&job, &undisturbed, &expected, why, why_bytes));
    EXPECT(expected.skipped[5] == 1, "%d skipped", (int)expected.skipped[5]);
    for (int32_t i = 0; i < 15; i++) {
        const SimKill kill = {.stage = i % 3, .attempt = 1, .step = 1 + i / 3, .instr = 4 + i % 5};
        const SimFaults faults = {.seed = seed_gradient, .kills = &kill, .n_kills = 1};
        int32_t n_restarts = 0;
        TRY(sim_check_same(&job, &faults, &expected, "", &n_restarts, why, why_bytes));
        EXPECT(n_restarts == 1, "%d restarts", n_restarts);
    }
    sim_result_done(&expected);
    sim_job_done(&job);
    return 0;
}

int semantics_training_that_overflows_goes_on_and_counts(char *why, size_t why_bytes) {
    SimJob job;
    SimResult oracle, result;
    TRY(open_job(&job, "tiny_gpt", 3, why, why_bytes));
    plain_update(&job, 1e38);
    TRY(sim_check_oracle(&job, &oracle, why, why_bytes));
    TRY(sim_check_run(&job, NULL, &result, why, why_bytes));
    EXPECT(isfinite(result.loss[0]), "the first step's loss is %g", result.loss[0]);
    for (int32_t s = 1; s < 6; s++) {
        EXPECT(!isfinite(result.loss[s]) || !isfinite(result.norm[s]), "step %d: loss %g, norm %g",
               s, result.loss[s], result.norm[s]);
        EXPECT(result.skipped[s] == s - 1 && oracle.skipped[s] == s - 1, "step %d: %d skipped", s,
               (int)result.skipped[s]);
    }
    if (sim_same(&oracle, &result, false, why, why_bytes) < 0) {
        return -1;
    }
    sim_result_done(&oracle);
    sim_result_done(&result);
    sim_job_done(&job);
    return 0;
}

int semantics_training_that_is_to_stop_when_not_finite_stops(char *why, size_t why_bytes) {
    const SimFaults faults = {.seed = seed_gradient};
    SimJob job;
    SimResult result;
    TRY(open_job(&job, "mlp", 3, why, why_bytes));
    job.order.update.stop_on_nonfinite = true;
    const int64_t begin_ns = clock_now_ns();
    int rc = sim_run(&job, &faults, &result);
    EXPECT(rc == ERR_DIVERGED && strstr(err_text(), "step 2") != NULL, "%d, %s", rc, err_text());
    EXPECT(clock_now_ns() - begin_ns < 10 * CLOCK_NS_PER_S, "some workers waited on");
    sim_result_done(&result);
    sim_job_done(&job);
    return 0;
}

/* ---- ties ---- */

/* The evaluation at the end uses the copies as they are; that of the checkpoint has one tensor for
 * both. */
int semantics_tied_copies_stay_equal_over_stages(char *why, size_t why_bytes) {
    SimJob job, evaluate;
    SimResult oracle, result, loaded;
    TRY(open_job(&job, "tiny_gpt", 3, why, why_bytes));
    sim_job_steps(&job, 10, 5);
    sim_job_eval(&job, 12, 5);
    TRY(sim_check_oracle(&job, &oracle, why, why_bytes));
    TRY(sim_check_run(&job, NULL, &result, why, why_bytes));
    TRY(sim_check_equal(&oracle, &result, "three stages", why, why_bytes));
    EXPECT(sim_job_copy(&job, &evaluate) == 0, "%s", err_text());
    evaluate.order.eval_only = true;
    EXPECT(sim_job_resume(&evaluate, result.store, 10) == 0, "%s", err_text());
    TRY(sim_check_run(&evaluate, NULL, &loaded, why, why_bytes));
    EXPECT(loaded.eval_loss[0] == result.eval_loss[1], "with both copies %.17g, with one %.17g",
           result.eval_loss[1], loaded.eval_loss[0]);
    EXPECT(sim_job_stages(&job, 4) == 0, "%s", err_text()); /* the tie is there after loading */
    EXPECT(sim_job_resume(&job, result.store, 5) == 0, "%s", err_text());
    sim_result_done(&loaded);
    TRY(sim_check_run(&job, NULL, &loaded, why, why_bytes));
    if (sim_same(&oracle, &loaded, false, why, why_bytes) < 0) {
        return -1;
    }
    sim_result_done(&oracle);
    sim_result_done(&result);
    sim_result_done(&loaded);
    sim_job_done(&evaluate);
    sim_job_done(&job);
    return 0;
}

int semantics_a_tie_is_one_tensor_in_the_checkpoint(char *why, size_t why_bytes) {
    SimJob job;
    SimResult result;
    TRY(open_job(&job, "tiny_gpt", 3, why, why_bytes));
    TRY(sim_check_run(&job, NULL, &result, why, why_bytes));
    const Model *model = &job.order.model;
    const int32_t tied = model_find_param(model, "wte.weight");
    EXPECT(tied >= 0 && model->params[tied].n_uses == 2, "wte.weight has %d uses",
           tied < 0 ? -1 : model->params[tied].n_uses);
    EXPECT(model_find_param(model, "lm_head.weight") < 0, "the head has a weight of its own");
    for (int32_t p = 0; p < model->n_params; p++) { /* a doubled or unknown one fails the reading */
        EXPECT(result.params[p] != NULL, "'%s' is missing", model->params[p].name);
    }
    sim_result_done(&result);
    sim_job_done(&job);
    return 0;
}

/* ---- running statistics ---- */

static const char norm_of_input[] =
    MODEL_HEAD "{\"name\":\"bn\",\"kind\":\"batchnorm\"}," MODEL_LINEAR("a") MODEL_TAIL;

enum { CHANNELS = 12, MAX_ROWS = 8 };

typedef struct Statistics {
    double mean[CHANNELS], var[CHANNELS];
} Statistics;

/* r <- (1 - momentum) r + momentum s, s over the micro-batch, the variance unbiased. */
static int move_statistics(const SimJob *job, const Dataset *dataset, int64_t step, int32_t micro,
                           Statistics *statistics) {
    const Order *order = &job->order;
    const double momentum = (double)order->model.layers[0].attr.momentum;
    float x[MAX_ROWS][CHANNELS];
    int64_t first = 0;
    const int64_t n_batch = order_batch_rows(order->train_samples, order->batch, step);
    const int32_t n = order_micro_rows(n_batch, order->plan.micro_rows, micro, &first);
    for (int32_t row = 0; row < n; row++) {
        TRY(dataset_read_input(dataset,
                               order_sample(order->seed, order->shuffle, order->train_samples,
                                            order->batch, step, first + row),
                               x[row]));
    }
    for (int32_t c = 0; c < CHANNELS && n > 0; c++) {
        double mean = 0.0, var = 0.0;
        for (int32_t row = 0; row < n; row++) {
            mean += (double)x[row][c] / n;
        }
        for (int32_t row = 0; row < n; row++) {
            var += ((double)x[row][c] - mean) * ((double)x[row][c] - mean) / (n > 1 ? n - 1 : 1);
        }
        statistics->mean[c] += momentum * (mean - statistics->mean[c]);
        statistics->var[c] += momentum * (var - statistics->var[c]);
    }
    return 0;
}

static int check_statistics(const SimJob *job, char *why, size_t why_bytes) {
    const Order *order = &job->order;
    Statistics expected = {{0}, {0}};
    Dataset *dataset = NULL;
    SimResult result;
    char text[SIM_DESCRIBE_BYTES];
    for (int32_t c = 0; c < CHANNELS; c++) {
        expected.var[c] = 1.0;
    }
    EXPECT(dataset_open(&order->train, true, false, &dataset) == 0, "%s", err_text());
    for (int64_t step = 0; step < order->n_steps; step++) {
        for (int32_t m = 0; m < order->plan.n_micro; m++) {
            EXPECT(move_statistics(job, dataset, step, m, &expected) == 0, "%s", err_text());
        }
    }
    dataset_close(dataset);
    TRY(sim_check_run(job, NULL, &result, why, why_bytes));
    const float *mean = result.params[model_find_param(&order->model, "bn.running_mean")];
    const float *var = result.params[model_find_param(&order->model, "bn.running_var")];
    for (int32_t c = 0; c < CHANNELS; c++) {
        EXPECT(fabs((double)mean[c] - expected.mean[c]) < 2e-6 &&
                   fabs((double)var[c] - expected.var[c]) < 2e-6,
               "%s, channel %d: mean %.8g, expected %.8g; variance %.8g, expected %.8g",
               sim_describe(job, text, sizeof text), c, (double)mean[c], expected.mean[c],
               (double)var[c], expected.var[c]);
    }
    sim_result_done(&result);
    return 0;
}

/* One, two and four micro-batches, a partial last batch, replicas, recompute. */
int semantics_running_statistics_move_once_per_micro_batch(char *why, size_t why_bytes) {
    for (int32_t i = 0; i < 24; i++) {
        SimJob job;
        TRY(open_text(&job, norm_of_input, 2, why, why_bytes));
        sim_job_micro(&job, 8, 8 >> (i % 3));
        sim_job_samples(&job, 21);
        sim_job_steps(&job, i % 2 == 0 ? 1 : 5, 0);
        job.order.plan.recompute[0] = i / 3 % 2 == 1;
        job.order.plan.replicas[0] = 1 + i / 6 % 2;
        job.order.plan.replicas[1] = 1 + i / 12;
        TRY(check_statistics(&job, why, why_bytes));
        sim_job_done(&job);
    }
    return 0;
}

int semantics_recompute_does_not_move_statistics_again(char *why, size_t why_bytes) {
    SimJob job;
    SimResult kept;
    for (int32_t n_micro = 1; n_micro <= 4; n_micro += 3) {
        TRY(open_job(&job, "cnn", 3, why, why_bytes));
        sim_job_micro(&job, 8, 8 / n_micro);
        TRY(sim_check_run(&job, NULL, &kept, why, why_bytes));
        memset(job.order.plan.recompute, true, 3 * sizeof(bool));
        TRY(sim_check_same(&job, NULL, &kept, "with recompute", NULL, why, why_bytes));
        sim_result_done(&kept);
        sim_job_done(&job);
    }
    return 0;
}

/* ---- random numbers ---- */

#define MODEL_DROP(name) "{\"name\":\"" name "\",\"kind\":\"dropout\",\"p\":0.5},"

static const char dropping[] = MODEL_HEAD MODEL_LINEAR("a") MODEL_DROP("d1") MODEL_LINEAR("b")
    MODEL_DROP("d2") MODEL_LINEAR("c") MODEL_DROP("d3") MODEL_TAIL;

static int open_dropping(SimJob *job, SimResult *out_oracle, char *why, size_t why_bytes) {
    TRY(open_text(job, dropping, 3, why, why_bytes));
    sim_job_samples(job, 21);
    TRY(sim_check_oracle(job, out_oracle, why, why_bytes));
    return 0;
}

int semantics_dropout_masks_are_equal_under_recompute(char *why, size_t why_bytes) {
    SimJob job;
    SimResult oracle;
    TRY(open_dropping(&job, &oracle, why, why_bytes));
    for (int32_t which = 0; which < 8; which++) {
        for (int32_t s = 0; s < 3; s++) {
            job.order.plan.recompute[s] = (which >> s & 1) != 0;
        }
        TRY(sim_check_same(&job, NULL, &oracle, "", NULL, why, why_bytes));
    }
    sim_result_done(&oracle);
    sim_job_done(&job);
    return 0;
}

/* Each worker dies before each of its backwards; its forward is done again. */
int semantics_dropout_masks_are_equal_after_a_restart_before_the_backward(char *why,
                                                                          size_t why_bytes) {
    SimJob job;
    SimResult oracle;
    int32_t n_kills = 0;
    TRY(open_dropping(&job, &oracle, why, why_bytes));
    for (int32_t i = 0; i < 6; i++) {
        Program train, eval;
        const int32_t stage = i / 2;
        job.order.plan.recompute[stage] = i % 2 == 1;
        EXPECT(sim_programs(&job, stage, 0, &train, &eval) == 0, "%s", err_text());
        for (int32_t k = 0; k < train.n_instrs; k++) {
            if (train.instrs[k].op != INSTR_BACKWARD && train.instrs[k].op != INSTR_RECOMPUTE) {
                continue;
            }
            if (n_kills++ % sim_stride() != 0) {
                continue;
            }
            const SimKill kill = {.stage = stage, .attempt = 1, .step = 3, .instr = k};
            const SimFaults faults = {.kills = &kill, .n_kills = 1};
            int32_t n_restarts = 0;
            TRY(sim_check_same(&job, &faults, &oracle, "", &n_restarts, why, why_bytes));
            EXPECT(n_restarts == 1, "%d restarts", n_restarts);
        }
        program_done(&train);
        program_done(&eval);
    }
    sim_result_done(&oracle);
    sim_job_done(&job);
    return 0;
}

/* The weights as they are before the first update. */
static int check_initial(const SimJob *job, const SimResult *result, char *why, size_t why_bytes) {
    const Model *model = &job->order.model;
    for (int32_t p = 0; p < model->n_params; p++) {
        const Param *param = &model->params[p];
        float *expected = calloc((size_t)result->sizes[p] + 1, sizeof *expected);
        EXPECT(expected != NULL, "no memory");
        for (int64_t i = 0; i < result->sizes[p] && param->init == INIT_ONES; i++) {
            expected[i] = 1.0F;
        }
        if (param->init == INIT_UNIFORM) {
            rng_fill_uniform(job->order.seed, param->name, param->init_scale, expected,
                             (size_t)result->sizes[p]);
        } else if (param->init == INIT_NORMAL) {
            rng_fill_normal(job->order.seed, param->name, param->init_scale, expected,
                            (size_t)result->sizes[p]);
        }
        const bool same =
            memcmp(expected, result->params[p], (size_t)result->sizes[p] * sizeof *expected) == 0;
        free(expected);
        EXPECT(same || param->role == PARAM_STATISTIC, "'%s' does not follow from its name",
               param->name);
    }
    return 0;
}

int semantics_initial_weights_depend_on_seed_and_name_only(char *why, size_t why_bytes) {
    static const char *const models[] = {"mlp", "cnn", "tiny_gpt"};
    for (size_t m = 0; m < 3; m++) {
        SimJob job;
        SimResult oracle, result;
        TRY(open_job(&job, models[m], 1, why, why_bytes));
        plain_update(&job, 0.0);
        sim_job_steps(&job, 1, 0);
        TRY(sim_check_oracle(&job, &oracle, why, why_bytes));
        TRY(check_initial(&job, &oracle, why, why_bytes));
        for (int32_t n_stages = 1; n_stages <= 3; n_stages++) {
            EXPECT(sim_job_stages(&job, n_stages) == 0, "%s", err_text());
            TRY(sim_check_same(&job, NULL, &oracle, "", NULL, why, why_bytes));
            for (int32_t s = 0; s < n_stages; s++) {
                job.order.plan.replicas[s] = 2 + s % 2;
            }
            TRY(sim_check_run(&job, NULL, &result, why, why_bytes));
            TRY(check_initial(&job, &result, why, why_bytes));
            EXPECT(sim_loss_difference(&oracle, &result) < 1e-12, "first loss %.17g, not %.17g",
                   result.loss[0], oracle.loss[0]);
            sim_result_done(&result);
        }
        job.order.seed++;
        TRY(sim_check_run(&job, NULL, &result, why, why_bytes));
        EXPECT(sim_difference(&oracle, &result) > 0.1, "another seed gives the same weights");
        sim_result_done(&result);
        sim_result_done(&oracle);
        sim_job_done(&job);
    }
    return 0;
}

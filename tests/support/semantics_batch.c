/* Semantics: micro-batches, losses, the order of the data, evaluation. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/text.h"
#include "storage/dataset.h"
#include "tests/support/semantics_scenarios.h"
#include "tests/support/sim_check.h"

#define SEMANTICS_SCENARIO_ROW(name) {#name, semantics_##name},
static const Scenario rows[] = {SEMANTICS_SCENARIOS(SEMANTICS_SCENARIO_ROW)};
#undef SEMANTICS_SCENARIO_ROW
const ScenarioTable semantics_scenarios = {"semantics", rows, sizeof rows / sizeof rows[0]};

static int open_job(SimJob *job, const char *model, int32_t n_stages, char *why, size_t why_bytes) {
    EXPECT(sim_job_init(job, model) == 0, "%s", err_text());
    EXPECT(sim_job_stages(job, n_stages) == 0, "%s", err_text());
    return 0;
}

/* ---- every shape of a pipeline ends ---- */

/* M < S, M = S and M = 1 included. */
int semantics_every_number_of_stages_and_micro_batches_ends(char *why, size_t why_bytes) {
    static const char *const schedules[] = {"1f1b", "gpipe"};
    for (int32_t n_micro = 1; n_micro <= 6; n_micro += sim_stride() > 1 ? 3 : 1) {
        SimJob job;
        SimResult oracle;
        TRY(open_job(&job, "mlp", 1, why, why_bytes));
        sim_job_micro(&job, 2 * n_micro, 2);
        sim_job_steps(&job, 3, 0);
        TRY(sim_check_oracle(&job, &oracle, why, why_bytes));
        for (int32_t i = 0; i < 10; i++) {
            EXPECT(sim_job_stages(&job, 1 + i / 2) == 0, "%s", err_text());
            text_copy(job.schedule, sizeof job.schedule, schedules[i % 2]);
            TRY(sim_check_same(&job, NULL, &oracle, "", NULL, why, why_bytes));
        }
        sim_result_done(&oracle);
        sim_job_done(&job);
    }
    return 0;
}

/* ---- partial batches ---- */

/* One update with rate 1 and nothing else: what the weights moved by is the gradient. */
static void plain_update(SimJob *job, double lr) {
    job->order.update.lr = lr;
    job->order.update.momentum = 0.0;
    job->order.update.weight_decay = 0.0;
}

/* The largest difference of two runs' gradients of their only step, relative to the gradient. */
static double gradient_difference(const SimResult *start, const SimResult *a, const SimResult *b) {
    double difference = 0.0, size = 0.0;
    for (int32_t p = 0; p < start->n_params; p++) {
        for (int64_t i = 0; i < start->sizes[p]; i++) {
            double from_a = (double)a->params[p][i] - (double)start->params[p][i];
            double from_b = (double)b->params[p][i] - (double)start->params[p][i];
            difference = fmax(difference, fabs(from_a - from_b));
            size = fmax(size, fabs(from_a));
        }
    }
    return difference / size;
}

/* The initial weights: a step with rate 0. */
static int initial_weights(const SimJob *job, SimResult *out_result, char *why, size_t why_bytes) {
    SimJob still;
    EXPECT(sim_job_copy(job, &still) == 0, "%s", err_text());
    plain_update(&still, 0.0);
    TRY(sim_check_oracle(&still, out_result, why, why_bytes));
    sim_job_done(&still);
    return 0;
}

/* Loss and gradient of the job's only step equal those of the whole batch at once in one stage. */
static int check_gradient(SimJob *job, int32_t micro_rows, double tolerance, char *why,
                          size_t why_bytes) {
    SimJob whole;
    SimResult start, expected, result;
    EXPECT(sim_job_copy(job, &whole) == 0, "%s", err_text());
    sim_job_micro(&whole, job->order.batch, (int32_t)job->order.batch);
    sim_job_micro(job, job->order.batch, micro_rows);
    TRY(initial_weights(&whole, &start, why, why_bytes));
    TRY(sim_check_oracle(&whole, &expected, why, why_bytes));
    TRY(sim_check_run(job, NULL, &result, why, why_bytes));
    const double gradient = gradient_difference(&start, &expected, &result);
    const double loss = sim_loss_difference(&expected, &result);
    EXPECT(gradient <= tolerance && loss <= tolerance,
           "%s, micro-batches of %d: gradients differ by %g, losses by %g", job->order.model.name,
           micro_rows, gradient, loss);
    for (int32_t s = 0; s < result.n_steps; s++) {
        EXPECT(result.valid[s] == expected.valid[s], "step %d: %lld targets, expected %lld", s,
               (long long)result.valid[s], (long long)expected.valid[s]);
        EXPECT(fabs(result.norm[s] / expected.norm[s] - 1.0) <= tolerance,
               "step %d: norm %.9g, expected %.9g", s, result.norm[s], expected.norm[s]);
    }
    sim_result_done(&start);
    sim_result_done(&expected);
    sim_result_done(&result);
    sim_job_done(&whole);
    return 0;
}

int semantics_batch_of_8_in_micro_batches_of_3(char *why, size_t why_bytes) {
    static const char *const models[] = {"mlp", "tiny_gpt"};
    for (size_t m = 0; m < 2; m++) {
        SimJob job;
        TRY(open_job(&job, models[m], 3, why, why_bytes));
        plain_update(&job, 1.0);
        sim_job_steps(&job, 1, 0);
        TRY(check_gradient(&job, 3, 1e-6, why, why_bytes));
        sim_job_done(&job);
    }
    return 0;
}

/* The last step of an epoch has a partial batch: its gradient, from the initial weights. */
static int check_partial_gradient(SimJob *job, int64_t epoch, char *why, size_t why_bytes) {
    SimResult start;
    plain_update(job, 0.0);
    sim_job_steps(job, epoch, 1);
    TRY(sim_check_run(job, NULL, &start, why, why_bytes));
    plain_update(job, 1.0);
    if (epoch > 1) {
        EXPECT(sim_job_resume(job, start.store, epoch - 1) == 0, "%s", err_text());
    }
    TRY(check_gradient(job, 3, 1e-6, why, why_bytes));
    sim_result_done(&start);
    return 0;
}

int semantics_data_that_the_batch_does_not_divide(char *why, size_t why_bytes) {
    static const int64_t samples[] = {3, 9, 11, 13};
    for (size_t i = 0; i < 8; i++) {
        const char *model = i % 2 == 0 ? "mlp" : "tiny_gpt";
        SimJob job;
        SimResult oracle;
        TRY(open_job(&job, model, 3, why, why_bytes));
        sim_job_samples(&job, samples[i / 2]);
        const int64_t epoch = order_steps_per_epoch(samples[i / 2], job.order.batch);
        TRY(check_partial_gradient(&job, epoch, why, why_bytes));
        sim_job_done(&job);
        TRY(open_job(&job, model, 3, why, why_bytes));
        sim_job_samples(&job, samples[i / 2]);
        sim_job_micro(&job, 8, 3);
        sim_job_steps(&job, 2 * epoch, 1);
        TRY(sim_check_oracle(&job, &oracle, why, why_bytes));
        TRY(sim_check_same(&job, NULL, &oracle, "two epochs", NULL, why, why_bytes));
        sim_result_done(&oracle);
        sim_job_done(&job);
    }
    return 0;
}

/* ---- valid targets ---- */

static int count_valid(const SimJob *job, int64_t step, int32_t micro, int64_t *out_valid,
                       char *why, size_t why_bytes) {
    const Order *order = &job->order;
    const int32_t ignored = order->model.layers[order->model.n_layers - 1].attr.ignore_index;
    Dataset *dataset = NULL;
    Shape shape;
    int32_t targets[64];
    int64_t first = 0;
    EXPECT(dataset_open(&order->train, false, true, &dataset) == 0, "%s", err_text());
    EXPECT(dataset_target_form(dataset, &shape) == 0, "%s", err_text());
    const int64_t n_batch = order_batch_rows(order->train_samples, order->batch, step);
    const int32_t n = order_micro_rows(n_batch, order->plan.micro_rows, micro, &first);
    *out_valid = 0;
    for (int32_t row = 0; row < n; row++) {
        int64_t sample = order_sample(order->seed, order->shuffle, order->train_samples,
                                      order->batch, step, first + row);
        EXPECT(dataset_read_target(dataset, sample, targets) == 0, "%s", err_text());
        for (int64_t i = 0; i < shape_elements(&shape); i++) {
            *out_valid += targets[i] != ignored;
        }
    }
    dataset_close(dataset);
    return 0;
}

static const char ignoring_tokens[] =
    "{\"name\":\"tokens\",\"input\":{\"dtype\":\"I32\",\"shape\":[12]},"
    "\"target\":{\"dtype\":\"I32\",\"shape\":[12]},\"layers\":["
    "{\"name\":\"wte\",\"kind\":\"embedding\",\"vocab\":13,\"features\":16},"
    "{\"name\":\"fc\",\"kind\":\"linear\",\"features\":16},{\"name\":\"g\",\"kind\":\"gelu\"},"
    "{\"name\":\"head\",\"kind\":\"linear\",\"features\":13},"
    "{\"name\":\"loss\",\"kind\":\"cross_entropy\",\"ignore_index\":3}]}";

int semantics_ignored_targets_count_nowhere(char *why, size_t why_bytes) {
    SimJob job;
    int64_t least = INT64_MAX, most = 0, total = 0;
    EXPECT(sim_job_init_text(&job, ignoring_tokens, true, 13) == 0, "%s", err_text());
    EXPECT(sim_job_stages(&job, 3) == 0, "%s", err_text());
    plain_update(&job, 1.0);
    sim_job_steps(&job, 1, 0);
    sim_job_micro(&job, 8, 2);
    for (int32_t m = 0; m < 4; m++) {
        int64_t valid = 0;
        TRY(count_valid(&job, 0, m, &valid, why, why_bytes));
        least = valid < least ? valid : least;
        most = valid > most ? valid : most;
        total += valid;
    }
    EXPECT(least < most && total < 8 * 12, "the data do not fit the test: %d to %d valid",
           (int)least, (int)most);
    TRY(check_gradient(&job, 2, 1e-6, why, why_bytes));
    TRY(check_gradient(&job, 3, 1e-6, why, why_bytes));
    TRY(check_gradient(&job, 1, 1e-6, why, why_bytes));
    sim_job_done(&job);
    return 0;
}

static const char ignoring_classes[] =
    "{\"name\":\"classes\",\"input\":{\"dtype\":\"F32\",\"shape\":[12]},"
    "\"target\":{\"dtype\":\"I32\",\"shape\":[]},\"layers\":["
    "{\"name\":\"fc\",\"kind\":\"linear\",\"features\":16},{\"name\":\"g\",\"kind\":\"gelu\"},"
    "{\"name\":\"head\",\"kind\":\"linear\",\"features\":2},"
    "{\"name\":\"loss\",\"kind\":\"cross_entropy\",\"ignore_index\":1}]}";

/* Rows of one sample each: many have nothing to learn; batches of one sample, too. */
int semantics_micro_batches_and_batches_without_a_valid_target(char *why, size_t why_bytes) {
    SimJob job;
    SimResult oracle;
    EXPECT(sim_job_init_text(&job, ignoring_classes, false, 2) == 0, "%s", err_text());
    sim_job_steps(&job, 12, 4);
    for (int64_t batch = 1; batch <= 8; batch += 7) {
        int32_t n_empty = 0;
        EXPECT(sim_job_stages(&job, 3) == 0, "%s", err_text());
        sim_job_micro(&job, batch, 1);
        TRY(sim_check_oracle(&job, &oracle, why, why_bytes));
        for (int32_t s = 0; s < oracle.n_steps; s++) {
            int64_t valid = 0;
            TRY(count_valid(&job, s, 0, &valid, why, why_bytes));
            n_empty += valid == 0;
            EXPECT(isfinite(oracle.loss[s]) && oracle.skipped[s] == 0, "step %d: loss %g, %d", s,
                   oracle.loss[s], (int)oracle.skipped[s]);
            EXPECT(batch > 1 || oracle.valid[s] == valid, "step %d: %d valid", s,
                   (int)oracle.valid[s]);
        }
        EXPECT(n_empty > 0, "the data do not fit the test");
        TRY(sim_check_same(&job, NULL, &oracle, "", NULL, why, why_bytes));
        sim_result_done(&oracle);
    }
    sim_job_done(&job);
    return 0;
}

/* ---- what is logged, and how far an update goes ---- */

/* The same value for any number of micro-batches; and the mean over samples, which evaluating the
 * same data with the same weights gives, too. */
int semantics_logged_loss_is_the_mean_over_the_batch(char *why, size_t why_bytes) {
    double first = 0.0;
    for (int32_t n_micro = 1; n_micro <= 8; n_micro = n_micro == 1 ? 2 : n_micro * 4) {
        SimJob job;
        SimResult result;
        TRY(open_job(&job, "mlp", 2, why, why_bytes));
        plain_update(&job, 0.0);
        sim_job_micro(&job, 24, 24 / n_micro);
        sim_job_steps(&job, 1, 0);
        sim_job_eval(&job, 24, 1);
        job.order.eval.seed = job.order.train.seed; /* the same samples */
        TRY(sim_check_run(&job, NULL, &result, why, why_bytes));
        first = n_micro == 1 ? result.loss[0] : first;
        EXPECT(fabs(result.loss[0] / first - 1.0) <= 1e-7, "M=%d: loss %.9g, expected %.9g",
               n_micro, result.loss[0], first);
        EXPECT(fabs(result.eval_loss[0] / first - 1.0) <= 1e-7,
               "M=%d: the mean over the samples is %.9g, logged is %.9g", n_micro,
               result.eval_loss[0], result.loss[0]);
        sim_result_done(&result);
        sim_job_done(&job);
    }
    return 0;
}

/* One batch again and again, small steps down its gradient: the loss falls by rate * norm^2. */
static int check_descent(SimJob *job, char *why, size_t why_bytes) {
    SimResult result;
    char text[SIM_DESCRIBE_BYTES];
    const double rate = 1e-3;
    plain_update(job, rate);
    sim_job_steps(job, 4, 0);
    TRY(sim_check_run(job, NULL, &result, why, why_bytes));
    for (int32_t s = 0; s + 1 < result.n_steps; s++) {
        const double fall = result.loss[s] - result.loss[s + 1];
        const double mean = result.norm[s] * result.norm[s + 1];
        EXPECT(fabs(fall / (rate * mean) - 1.0) < 0.01,
               "%s, step %d: the loss falls by %g, the gradient says %g",
               sim_describe(job, text, sizeof text), s, fall, rate * mean);
    }
    sim_result_done(&result);
    return 0;
}

/* With all samples in the batch, with fewer than a batch, and with targets that do not count. */
int semantics_gradient_is_that_of_the_logged_loss(char *why, size_t why_bytes) {
    static const int64_t samples[] = {8, 3, 5};
    for (int32_t i = 0; i < 9; i++) {
        SimJob job;
        if (i % 3 == 2) {
            EXPECT(sim_job_init_text(&job, ignoring_tokens, true, 13) == 0, "%s", err_text());
            EXPECT(sim_job_stages(&job, 3) == 0, "%s", err_text());
        } else {
            TRY(open_job(&job, i % 3 == 0 ? "mlp" : "cnn", 3, why, why_bytes));
        }
        for (int32_t l = 0; l < job.order.model.n_layers; l++) {
            job.order.model.layers[l].attr.p = 0.0F; /* the same masks in every step: none */
        }
        sim_job_samples(&job, samples[i / 3]);
        sim_job_micro(&job, 8, i % 3 == 1 ? 8 : 2); /* batch statistics: of one micro-batch */
        job.order.plan.replicas[1] = 2;
        TRY(check_descent(&job, why, why_bytes));
        sim_job_done(&job);
    }
    return 0;
}

/* Three samples are a partial batch of 8 and a full one of 3. */
int semantics_partial_batch_is_a_full_batch_of_its_size(char *why, size_t why_bytes) {
    static const char *const models[] = {"mlp", "cnn", "tiny_gpt"};
    for (size_t m = 0; m < 3; m++) {
        SimJob job;
        SimResult full;
        TRY(open_job(&job, models[m], 3, why, why_bytes));
        sim_job_samples(&job, 3);
        sim_job_micro(&job, 3, 2);
        TRY(sim_check_run(&job, NULL, &full, why, why_bytes));
        sim_job_micro(&job, 8, 2);
        TRY(sim_check_same(&job, NULL, &full, "a batch of 8", NULL, why, why_bytes));
        sim_result_done(&full);
        sim_job_done(&job);
    }
    return 0;
}

int semantics_one_update_moves_as_far_for_any_number_of_micro_batches(char *why, size_t why_bytes) {
    SimJob job;
    SimResult plain, clipped;
    TRY(open_job(&job, "mlp", 3, why, why_bytes));
    plain_update(&job, 0.5);
    sim_job_steps(&job, 1, 0);
    for (int32_t pass = 0; pass < 2; pass++) { /* without clipping, then far from it */
        job.order.update.clip_norm = pass * 1e6;
        TRY(check_gradient(&job, 1, 1e-6, why, why_bytes));
        TRY(check_gradient(&job, 2, 1e-6, why, why_bytes));
        TRY(check_gradient(&job, 4, 1e-6, why, why_bytes));
    }
    TRY(sim_check_run(&job, NULL, &clipped, why, why_bytes));
    job.order.update.clip_norm = 0.0;
    TRY(sim_check_run(&job, NULL, &plain, why, why_bytes));
    TRY(sim_check_equal(&plain, &clipped, "a threshold far above the norm", why, why_bytes));
    sim_result_done(&plain);
    sim_result_done(&clipped);
    sim_job_done(&job);
    return 0;
}

/* ---- the order of the data ---- */

/* Each sample's own loss under the initial weights, which tells them apart. */
static int sample_losses(const SimJob *job, double *losses, char *why, size_t why_bytes) {
    SimJob one;
    SimResult result;
    EXPECT(sim_job_copy(job, &one) == 0, "%s", err_text());
    one.order.shuffle = false;
    sim_job_micro(&one, 1, 1);
    sim_job_steps(&one, one.order.train_samples, 0);
    TRY(sim_check_oracle(&one, &result, why, why_bytes));
    memcpy(losses, result.loss, (size_t)result.n_steps * sizeof losses[0]);
    sim_result_done(&result);
    sim_job_done(&one);
    return 0;
}

/* The step's loss must be the mean of its samples' losses; counts how often each was used. */
static int check_samples(const SimJob *job, const SimResult *result, const double *losses,
                         int32_t *n_used, char *why, size_t why_bytes) {
    const Order *order = &job->order;
    for (int32_t s = 0; s < result->n_steps; s++) {
        const int64_t step = order->first_step + s;
        const int64_t n = order_batch_rows(order->train_samples, order->batch, step);
        double sum = 0.0;
        for (int64_t row = 0; row < n; row++) {
            int64_t sample = order_sample(order->seed, order->shuffle, order->train_samples,
                                          order->batch, step, row);
            sum += losses[sample];
            n_used[sample]++;
        }
        EXPECT(fabs(result->loss[s] / (sum / (double)n) - 1.0) <= 1e-6,
               "step %lld: loss %.9g, its samples have %.9g", (long long)step, result->loss[s],
               sum / (double)n);
    }
    return 0;
}

int semantics_an_epoch_uses_each_sample_once_in_order(char *why, size_t why_bytes) {
    enum { SAMPLES = 23, EPOCHS = 3 };
    SimJob job;
    SimResult result;
    double losses[SIM_MAX_STEPS];
    int32_t n_used[SAMPLES] = {0};
    TRY(open_job(&job, "mlp", 3, why, why_bytes));
    plain_update(&job, 0.0);
    sim_job_samples(&job, SAMPLES);
    sim_job_micro(&job, 5, 2);
    sim_job_steps(&job, EPOCHS * order_steps_per_epoch(SAMPLES, 5), 0);
    TRY(sample_losses(&job, losses, why, why_bytes));
    for (int32_t a = 0; a < SAMPLES; a++) {
        for (int32_t b = 0; b < a; b++) {
            EXPECT(fabs(losses[a] - losses[b]) > 1e-5, "samples %d and %d have one loss", a, b);
        }
    }
    TRY(sim_check_run(&job, NULL, &result, why, why_bytes));
    TRY(check_samples(&job, &result, losses, n_used, why, why_bytes));
    for (int32_t i = 0; i < SAMPLES; i++) {
        EXPECT(n_used[i] == EPOCHS, "sample %d was used %d times in %d epochs", i, n_used[i],
               EPOCHS);
    }
    sim_result_done(&result);
    sim_job_done(&job);
    return 0;
}

/* Interrupted after every step of two epochs: what follows is what the unbroken run did. */
int semantics_a_resume_in_mid_epoch_goes_on_with_the_next_sample(char *why, size_t why_bytes) {
    SimJob job;
    SimResult unbroken, resumed;
    double losses[SIM_MAX_STEPS];
    int32_t n_used[64];
    TRY(open_job(&job, "mlp", 2, why, why_bytes));
    plain_update(&job, 0.0);
    sim_job_samples(&job, 23);
    sim_job_micro(&job, 5, 2);
    sim_job_steps(&job, 10, 1);
    TRY(sample_losses(&job, losses, why, why_bytes));
    TRY(sim_check_run(&job, NULL, &unbroken, why, why_bytes));
    for (int64_t k = 1; k < 10; k++) {
        memset(n_used, 0, sizeof n_used);
        EXPECT(sim_job_stages(&job, 1 + (int32_t)k % 3) == 0, "%s", err_text());
        EXPECT(sim_job_resume(&job, unbroken.store, k) == 0, "%s", err_text());
        TRY(sim_check_run(&job, NULL, &resumed, why, why_bytes));
        TRY(check_samples(&job, &resumed, losses, n_used, why, why_bytes));
        for (int32_t s = 0; s < resumed.n_steps; s++) {
            EXPECT(resumed.loss[s] == unbroken.loss[k + s], "resumed at %d, step %d: loss %.17g",
                   (int)k, s, resumed.loss[s]);
        }
        for (int32_t i = 0; k == 5 && i < 23; i++) { /* the second epoch */
            EXPECT(n_used[i] == 1, "sample %d was used %d times", i, n_used[i]);
        }
        sim_result_done(&resumed);
    }
    sim_result_done(&unbroken);
    sim_job_done(&job);
    return 0;
}

/* ---- evaluation ---- */

int semantics_evaluation_over_stages_equals_one_stage(char *why, size_t why_bytes) {
    static const char *const models[] = {"mlp", "cnn", "tiny_gpt"};
    for (size_t m = 0; m < 3; m++) {
        SimJob job;
        SimResult oracle, replicas;
        TRY(open_job(&job, models[m], 3, why, why_bytes));
        sim_job_eval(&job, 13, 2);
        TRY(sim_check_oracle(&job, &oracle, why, why_bytes));
        EXPECT(oracle.n_evals == 3, "%d evaluations", oracle.n_evals);
        TRY(sim_check_same(&job, NULL, &oracle, "", NULL, why, why_bytes)); /* compares them too */
        plain_update(&job, 0.0); /* the same weights with replicas */
        job.order.plan.replicas[2] = 2;
        SimResult still;
        TRY(sim_check_run(&job, NULL, &replicas, why, why_bytes));
        TRY(sim_check_oracle(&job, &still, why, why_bytes));
        /* The running statistics of replicas are sums in another order. */
        EXPECT(sim_loss_difference(&still, &replicas) <= 1e-7, "%s: evaluations differ by %g",
               models[m], sim_loss_difference(&still, &replicas));
        sim_result_done(&still);
        sim_result_done(&replicas);
        sim_result_done(&oracle);
        sim_job_done(&job);
    }
    return 0;
}

/* The value depends neither on how samples fall into batches (batch statistics would) nor on the
 * step (dropout would). */
int semantics_evaluation_has_no_dropout_and_uses_running_statistics(char *why, size_t why_bytes) {
    static const char *const models[] = {"cnn", "tiny_gpt"};
    for (size_t m = 0; m < 2; m++) {
        SimJob job, evaluate;
        SimResult trained, result;
        TRY(open_job(&job, models[m], 3, why, why_bytes));
        sim_job_eval(&job, 12, 2);
        TRY(sim_check_run(&job, NULL, &trained, why, why_bytes));
        for (int64_t batch = 1; batch <= 12; batch += sim_stride() > 1 ? 4 : 1) {
            EXPECT(sim_job_copy(&job, &evaluate) == 0, "%s", err_text());
            evaluate.order.eval_only = true;
            EXPECT(sim_job_stages(&evaluate, 1 + (int32_t)batch % 4) == 0, "%s", err_text());
            EXPECT(sim_job_resume(&evaluate, trained.store, 4) == 0, "%s", err_text());
            sim_job_micro(&evaluate, batch, 1 + (int32_t)batch / 3);
            TRY(sim_check_run(&evaluate, NULL, &result, why, why_bytes));
            EXPECT(result.n_evals == 1, "%d evaluations", result.n_evals);
            EXPECT(fabs(result.eval_loss[0] / trained.eval_loss[1] - 1.0) <= 1e-6,
                   "%s in batches of %d: %.9g, expected %.9g", models[m], (int)batch,
                   result.eval_loss[0], trained.eval_loss[1]);
            sim_result_done(&result);
            sim_job_done(&evaluate);
        }
        sim_result_done(&trained);
        sim_job_done(&job);
    }
    return 0;
}

int semantics_evaluation_leaves_training_alone(char *why, size_t why_bytes) {
    static const char *const models[] = {"cnn", "tiny_gpt"};
    for (size_t m = 0; m < 2; m++) {
        SimJob job;
        SimResult without, with;
        TRY(open_job(&job, models[m], 3, why, why_bytes));
        TRY(sim_check_run(&job, NULL, &without, why, why_bytes));
        sim_job_eval(&job, 13, 1);
        TRY(sim_check_run(&job, NULL, &with, why, why_bytes));
        EXPECT(with.n_evals == 6, "%d evaluations", with.n_evals);
        with.n_evals = 0;
        TRY(sim_check_equal(&without, &with, models[m], why, why_bytes));
        sim_result_done(&without);
        sim_result_done(&with);
        sim_job_done(&job);
    }
    return 0;
}

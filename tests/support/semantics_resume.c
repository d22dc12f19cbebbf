/* Semantics: what a checkpoint carries over, cuts, and messages that are somebody else's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/checkpoint.h"
#include "coordinator/partition.h"
#include "core/err.h"
#include "core/text.h"
#include "storage/key.h"
#include "tests/support/semantics_scenarios.h"
#include "tests/support/sim_check.h"

static int open_job(SimJob *job, const char *model, int32_t n_stages, char *why, size_t why_bytes) {
    EXPECT(sim_job_init(job, model) == 0, "%s", err_text());
    EXPECT(sim_job_stages(job, n_stages) == 0, "%s", err_text());
    return 0;
}

/* The resumed run must do what the unbroken one did from that step on. */
static int check_resumed(const SimJob *job, const SimResult *unbroken, const SimResult *resumed,
                         char *why, size_t why_bytes) {
    const int64_t first = job->order.first_step;
    char text[SIM_DESCRIBE_BYTES];
    sim_describe(job, text, sizeof text);
    EXPECT(first + resumed->n_steps == unbroken->n_steps, "%s: %d steps", text, resumed->n_steps);
    for (int32_t s = 0; s < resumed->n_steps; s++) {
        EXPECT(resumed->loss[s] == unbroken->loss[first + s] &&
                   resumed->norm[s] == unbroken->norm[first + s],
               "%s, step %d: loss %.17g, expected %.17g", text, (int)(first + s), resumed->loss[s],
               unbroken->loss[first + s]);
    }
    int n = snprintf(why, why_bytes, "%s: ", text);
    return sim_same(unbroken, resumed, false, why + n, why_bytes - (size_t)n);
}

/* ---- learning rate ---- */

static double distance(const SimResult *a, const SimResult *b) {
    double square = 0.0;
    for (int32_t p = 0; p < a->n_params; p++) {
        for (int64_t i = 0; i < a->sizes[p]; i++) {
            double by = (double)a->params[p][i] - (double)b->params[p][i];
            square += by * by;
        }
    }
    return sqrt(square);
}

/* The rate of each step as the weights show it: how far they moved over the gradient's norm. */
static int check_rates(const SimJob *job, const SimResult *result, char *why, size_t why_bytes) {
    const Order *order = &job->order;
    SimResult before = {0};
    for (int64_t step = order->first_step; step < order->end_step; step++) {
        SimResult after = {0};
        char path[512];
        snprintf(path, sizeof path, "%s/%d", result->store, (int)step + 1);
        EXPECT(sim_read_checkpoint(&order->model, path, &after) == 0, "%s", err_text());
        if (before.n_params > 0) {
            const double expected = order_lr(&order->update, step, order->n_steps);
            const double rate = distance(&before, &after) / result->norm[step - order->first_step];
            EXPECT(fabs(rate / expected - 1.0) < 1e-3, "step %d: rate %g, expected %g", (int)step,
                   rate, expected);
        }
        sim_result_done(&before);
        before = after;
    }
    sim_result_done(&before);
    return 0;
}

/* Warm-up and cosine, 100 steps; interrupted at 45 and resumed. */
int semantics_learning_rate_goes_on_after_a_resume(char *why, size_t why_bytes) {
    SimJob job;
    SimResult unbroken, first, second;
    TRY(open_job(&job, "mlp", 2, why, why_bytes));
    UpdateSpec *update = &job.order.update;
    update->momentum = update->weight_decay = 0.0;
    update->lr = 0.1;
    update->schedule = LR_COSINE;
    update->warmup_steps = 10;
    update->final_lr = 0.01;
    sim_job_steps(&job, 100, 1);
    TRY(sim_check_run(&job, NULL, &unbroken, why, why_bytes));
    TRY(check_rates(&job, &unbroken, why, why_bytes));
    job.order.end_step = 45;
    TRY(sim_check_run(&job, NULL, &first, why, why_bytes));
    EXPECT(first.n_steps == 45, "%d steps", first.n_steps);
    job.order.end_step = 100;
    EXPECT(sim_job_resume(&job, first.store, 45) == 0, "%s", err_text());
    TRY(sim_check_run(&job, NULL, &second, why, why_bytes));
    TRY(check_rates(&job, &second, why, why_bytes));
    TRY(check_resumed(&job, &unbroken, &second, why, why_bytes));
    sim_result_done(&unbroken);
    sim_result_done(&first);
    sim_result_done(&second);
    sim_job_done(&job);
    return 0;
}

/* ---- update state ---- */

static void use_adamw(SimJob *job) {
    UpdateSpec *update = &job->order.update;
    update->kind = UPDATE_ADAMW;
    update->lr = 0.01;
    update->beta1 = 0.9;
    update->beta2 = 0.99;
    update->eps = 1e-8;
}

/* Saved at step 5 by `from` stages, resumed by each number of `to`. */
static int resume_everywhere(SimJob *job, int32_t from, const int32_t *to, int32_t n_to, char *why,
                             size_t why_bytes) {
    SimResult unbroken, resumed;
    sim_job_steps(job, 10, 5);
    EXPECT(sim_job_stages(job, from) == 0, "%s", err_text());
    TRY(sim_check_run(job, NULL, &unbroken, why, why_bytes));
    EXPECT(sim_job_resume(job, unbroken.store, 5) == 0, "%s", err_text());
    for (int32_t i = 0; i < n_to; i++) {
        EXPECT(sim_job_stages(job, to[i]) == 0, "%s", err_text());
        TRY(sim_check_run(job, NULL, &resumed, why, why_bytes));
        TRY(check_resumed(job, &unbroken, &resumed, why, why_bytes));
        sim_result_done(&resumed);
    }
    job->order.plan.replicas[0] = 2; /* of the last of them; adamw makes much of rounding */
    TRY(sim_check_run(job, NULL, &resumed, why, why_bytes));
    for (int32_t s = 0; s < resumed.n_steps; s++) {
        EXPECT(fabs(resumed.loss[s] / unbroken.loss[5 + s] - 1.0) < 1e-5,
               "with replicas, step %d: loss %.9g, expected %.9g", 5 + s, resumed.loss[s],
               unbroken.loss[5 + s]);
    }
    sim_result_done(&resumed);
    sim_result_done(&unbroken);
    sim_job_done(job);
    return 0;
}

int semantics_adamw_state_resumes_under_another_cut(char *why, size_t why_bytes) {
    static const char *const models[] = {"mlp", "cnn", "tiny_gpt"};
    static const int32_t to[] = {3, 1, 2, 4};
    for (size_t m = 0; m < 3; m++) {
        SimJob job;
        TRY(open_job(&job, models[m], 2, why, why_bytes));
        use_adamw(&job);
        TRY(resume_everywhere(&job, 2, to, 4, why, why_bytes));
    }
    return 0;
}

int semantics_momentum_resumes_under_another_cut_and_replicas(char *why, size_t why_bytes) {
    static const int32_t to[] = {1, 4, 2};
    SimJob job;
    TRY(open_job(&job, "cnn", 3, why, why_bytes));
    return resume_everywhere(&job, 3, to, 3, why, why_bytes);
}

int semantics_sgd_checkpoint_is_refused_by_adamw(char *why, size_t why_bytes) {
    SimJob job;
    SimResult saved, refused;
    TRY(open_job(&job, "mlp", 2, why, why_bytes));
    for (int32_t pass = 0; pass < 2; pass++) { /* with momentum and without */
        job.order.update.kind = UPDATE_SGD;
        job.order.update.momentum = pass == 0 ? 0.9 : 0.0;
        job.order.first_step = 0;
        job.order.resume_path[0] = '\0';
        TRY(sim_check_run(&job, NULL, &saved, why, why_bytes));
        EXPECT(sim_job_resume(&job, saved.store, 4) == 0, "%s", err_text());
        EXPECT(checkpoint_check(job.order.resume_path, &job.order.model, UPDATE_ADAMW) ==
                   ERR_ARGUMENT,
               "the coordinator takes it: %s", err_text());
        use_adamw(&job);
        int rc = sim_run(&job, NULL, &refused);
        EXPECT(rc == ERR_ARGUMENT && strstr(err_text(), "sgd") != NULL &&
                   strstr(err_text(), "adamw") != NULL,
               "%d, %s", rc, err_text());
        sim_result_done(&refused);
        sim_result_done(&saved);
    }
    sim_job_done(&job);
    return 0;
}

/* ---- layers ---- */

/* `n` linear layers and the loss. */
static int open_chain(SimJob *job, int n, int32_t n_stages, char *why, size_t why_bytes) {
    char text[2048];
    int at = snprintf(text, sizeof text,
                      "{\"name\":\"chain\",\"input\":{\"dtype\":\"F32\",\"shape\":[12]},"
                      "\"target\":{\"dtype\":\"I32\",\"shape\":[]},\"layers\":[");
    for (int i = 1; i <= n; i++) {
        at += snprintf(text + at, sizeof text - (size_t)at,
                       "{\"name\":\"fc%d\",\"kind\":\"linear\",\"features\":12},", i);
    }
    snprintf(text + at, sizeof text - (size_t)at,
             "{\"name\":\"loss\",\"kind\":\"cross_entropy\"}]}");
    EXPECT(sim_job_init_text(job, text, false, 5) == 0, "%s", err_text());
    EXPECT(sim_job_stages(job, n_stages) == 0, "%s", err_text());
    return 0;
}

int semantics_seven_layers_of_three_stages_load_into_any_cut(char *why, size_t why_bytes) {
    static const int32_t to[] = {1, 2, 4, 7, 8};
    SimJob job;
    TRY(open_chain(&job, 7, 3, why, why_bytes));
    return resume_everywhere(&job, 3, to, 5, why, why_bytes);
}

/* A checkpoint of seven layers. */
static int save_seven(SimResult *out_result, char *why, size_t why_bytes) {
    SimJob job;
    TRY(open_chain(&job, 7, 3, why, why_bytes));
    TRY(sim_check_run(&job, NULL, out_result, why, why_bytes));
    sim_job_done(&job);
    return 0;
}

int semantics_checkpoint_with_a_missing_tensor_is_refused(char *why, size_t why_bytes) {
    SimResult saved, refused;
    TRY(save_seven(&saved, why, why_bytes));
    for (int32_t n_stages = 1; n_stages <= 4; n_stages++) {
        SimJob job;
        TRY(open_chain(&job, 8, n_stages, why, why_bytes));
        EXPECT(sim_job_resume(&job, saved.store, 4) == 0, "%s", err_text());
        EXPECT(checkpoint_check(job.order.resume_path, &job.order.model, UPDATE_SGD) < 0 &&
                   strstr(err_text(), "fc8.") != NULL,
               "the coordinator: %s", err_text());
        int rc = sim_run(&job, NULL, &refused);
        EXPECT(rc < 0 && strstr(err_text(), "fc8.") != NULL, "%d, %s", rc, err_text());
        sim_result_done(&refused);
        sim_job_done(&job);
    }
    sim_result_done(&saved);
    return 0;
}

int semantics_checkpoint_with_a_surplus_tensor_is_refused(char *why, size_t why_bytes) {
    SimResult saved, refused;
    TRY(save_seven(&saved, why, why_bytes));
    for (int32_t n_stages = 1; n_stages <= 4; n_stages++) {
        SimJob job;
        TRY(open_chain(&job, 6, n_stages, why, why_bytes));
        EXPECT(sim_job_resume(&job, saved.store, 4) == 0, "%s", err_text());
        EXPECT(checkpoint_check(job.order.resume_path, &job.order.model, UPDATE_SGD) < 0 &&
                   strstr(err_text(), "fc7.") != NULL,
               "the coordinator: %s", err_text());
        int rc = sim_run(&job, NULL, &refused);
        EXPECT(rc < 0 && strstr(err_text(), "fc7.") != NULL, "%d, %s", rc, err_text());
        sim_result_done(&refused);
        sim_job_done(&job);
    }
    sim_result_done(&saved);
    return 0;
}

/* Balanced cuts of 1 to 40 layers into 1 to 8 stages: contiguous, disjoint, nothing left out. */
int semantics_every_layer_is_in_one_stage(char *why, size_t why_bytes) {
    uint64_t state = 1;
    for (int32_t n_layers = 1; n_layers <= 40; n_layers++) {
        SimJob job;
        double times[48];
        TRY(open_chain(&job, n_layers, 1, why, why_bytes)); /* and the loss */
        const Model *model = &job.order.model;
        for (int32_t l = 0; l < model->n_layers; l++) {
            times[l] = sim_draw(&state, 1000) / 10.0;
        }
        for (int32_t n_stages = 1; n_stages <= 8; n_stages++) {
            int32_t ends[8], next = 0;
            int rc = partition_balance(times, model->n_layers, n_stages, NULL, ends);
            if (n_stages > model->n_layers) {
                EXPECT(rc == ERR_INFEASIBLE, "%d layers in %d stages", model->n_layers, n_stages);
                continue;
            }
            EXPECT(rc == 0, "%s", err_text());
            for (int32_t s = 0; s < n_stages; s++) {
                Stage stage;
                EXPECT(stage_init(&stage, model, ends, n_stages, s) == 0, "%s", err_text());
                EXPECT(stage.first_layer == next && stage.end_layer > next,
                       "stage %d of %d has layers %d to %d, expected from %d", s, n_stages,
                       stage.first_layer, stage.end_layer, next);
                next = stage.end_layer;
                stage_done(&stage);
            }
            EXPECT(next == model->n_layers, "%d of %d layers are in %d stages", next,
                   model->n_layers, n_stages);
        }
        sim_job_done(&job);
    }
    return 0;
}

/* ---- messages that are somebody else's ---- */

/* A run with other data, rates and weights, of which everything stays in the relay. */
static int leave_messages(const SimJob *job, RelayMemStore *store, const char *name,
                          int64_t generation, char *why, size_t why_bytes) {
    const SimFaults faults = {.store = store, .keep = true};
    SimJob other;
    SimResult result;
    EXPECT(sim_job_copy(job, &other) == 0, "%s", err_text());
    EXPECT(text_copy(other.order.job, sizeof other.order.job, name) == 0, "%s", err_text());
    other.order.generation = generation;
    other.order.seed += 100;
    other.order.update.lr *= 3.0;
    TRY(sim_check_run(&other, &faults, &result, why, why_bytes));
    sim_result_done(&result);
    sim_job_done(&other);
    return 0;
}

static int count(RelayMemStore *store, const char *prefix, int64_t *out_count, char *why,
                 size_t why_bytes) {
    Relay *relay = NULL;
    EXPECT(relay_mem_open(store, &relay) == 0, "%s", err_text());
    EXPECT(relay_count(relay, prefix, out_count) == 0, "%s", err_text());
    relay_close(relay);
    return 0;
}

/* The job among what the others left: as in an empty relay, and what is theirs stays. */
static int check_among(SimJob *job, RelayMemStore *store, char *why, size_t why_bytes) {
    const SimFaults faults = {.store = store};
    SimResult clean;
    int64_t before = 0, after = 0;
    TRY(count(store, "", &before, why, why_bytes));
    EXPECT(before > 0, "the others left nothing");
    TRY(sim_check_run(job, NULL, &clean, why, why_bytes));
    TRY(sim_check_same(job, &faults, &clean, "", NULL, why, why_bytes));
    TRY(count(store, "", &after, why, why_bytes));
    EXPECT(after == before, "%d objects of others, %d are left", (int)before, (int)after);
    sim_result_done(&clean);
    return 0;
}

int semantics_messages_of_earlier_generations_are_not_read(char *why, size_t why_bytes) {
    SimJob job;
    RelayMemStore *store = NULL;
    TRY(open_job(&job, "tiny_gpt", 3, why, why_bytes));
    job.order.plan.replicas[1] = 2;
    sim_job_eval(&job, 10, 2);
    EXPECT(relay_mem_store_open(&store) == 0, "%s", err_text());
    TRY(leave_messages(&job, store, "sim", 1, why, why_bytes));
    TRY(leave_messages(&job, store, "sim", 11, why, why_bytes)); /* starts as generation 1 does */
    job.order.generation = 2;
    TRY(check_among(&job, store, why, why_bytes));
    job.order.generation = 110;
    TRY(check_among(&job, store, why, why_bytes));
    relay_mem_store_close(store);
    sim_job_done(&job);
    return 0;
}

int semantics_messages_of_other_jobs_are_not_read(char *why, size_t why_bytes) {
    static const char *const names[] = {"si", "sim1", "sim.g1", "sim-", "m", "sim.g1.t0"};
    SimJob job;
    RelayMemStore *store = NULL;
    TRY(open_job(&job, "cnn", 3, why, why_bytes));
    job.order.plan.replicas[2] = 2;
    sim_job_eval(&job, 10, 2);
    EXPECT(relay_mem_store_open(&store) == 0, "%s", err_text());
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        TRY(leave_messages(&job, store, names[i], 1, why, why_bytes));
    }
    TRY(check_among(&job, store, why, why_bytes));
    relay_mem_store_close(store);
    sim_job_done(&job);
    return 0;
}

int semantics_the_same_job_twice_in_one_relay_with_another_learning_rate(char *why,
                                                                         size_t why_bytes) {
    SimJob job;
    SimResult first, clean, second;
    RelayMemStore *store = NULL;
    TRY(open_job(&job, "mlp", 3, why, why_bytes));
    job.order.plan.replicas[0] = 2;
    EXPECT(relay_mem_store_open(&store) == 0, "%s", err_text());
    const SimFaults faults = {.store = store, .keep = true}; /* nothing is cleaned */
    TRY(sim_check_run(&job, &faults, &first, why, why_bytes));
    job.order.update.lr /= 5.0;
    job.order.generation++;
    TRY(sim_check_run(&job, NULL, &clean, why, why_bytes));
    TRY(sim_check_run(&job, &faults, &second, why, why_bytes));
    TRY(sim_check_equal(&clean, &second, "the second run", why, why_bytes));
    EXPECT(sim_difference(&first, &second) > 1e-3, "the learning rate changes nothing");
    relay_mem_store_close(store);
    sim_result_done(&first);
    sim_result_done(&clean);
    sim_result_done(&second);
    sim_job_done(&job);
    return 0;
}

/* Jobs for simulations: small models on generated data. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/schedule.h"
#include "coordinator/zoo.h"
#include "core/err.h"
#include "core/text.h"
#include "tests/support/sim.h"

static const char *sim_options(const char *model) {
    if (strcmp(model, "mlp") == 0) {
        return "{\"input\":[20],\"hidden\":[24,18,16],\"classes\":5}";
    }
    if (strcmp(model, "cnn") == 0) {
        return "{\"image\":[1,12,12],\"channels\":[8,16],\"blocks\":1,\"classes\":5,"
               "\"dropout\":0.25}";
    }
    return "{\"vocab\":37,\"context\":12,\"width\":24,\"heads\":3,\"depth\":2,\"dropout\":0.1}";
}

static void sim_defaults(Order *order) {
    text_copy(order->job, sizeof order->job, "sim");
    order->generation = 1;
    order->train_samples = 24;
    order->seed = 7;
    order->shuffle = true;
    order->n_steps = order->end_step = 6;
    order->save_every = 2;
    order->wait_timeout_ms = 60000;
    order->heartbeat_ms = 200;
    order->update.kind = UPDATE_SGD;
    order->update.lr = 0.05;
    order->update.momentum = 0.9;
    order->update.weight_decay = 1e-3;
    order->update.schedule = LR_CONSTANT;
    order->plan.threads = 1;
    text_copy(order->plan.device, sizeof order->plan.device, "cpu");
    text_copy(order->plan.isa, sizeof order->plan.isa, "auto");
    text_copy(order->relay_url, sizeof order->relay_url, "file:///nowhere");
}

int sim_job_init_model(SimJob *job, Model *take_model, bool tokens, int64_t classes) {
    memset(job, 0, sizeof *job);
    Order *order = &job->order;
    order_init(order);
    model_done(&order->model);
    order->model = *take_model;
    memset(take_model, 0, sizeof *take_model);
    sim_defaults(order);
    order->train.kind = DATA_GENERATED;
    order->train.samples = order->train_samples;
    order->train.shape = order->model.values[MODEL_VALUE_INPUT].shape;
    order->train.seed = 3;
    order->train.classes = classes;
    order->train.generated_tokens = tokens;
    order->train.vocab = tokens ? classes : 0;
    order->train.context = tokens ? order->train.shape.dims[0] : 0;
    order->eval = order->train;
    order->eval.seed = 4;
    text_copy(job->schedule, sizeof job->schedule, "1f1b");
    job->wait_ms = 60000;
    sim_job_micro(job, 8, 2);
    return sim_job_stages(job, 1);
}

int sim_job_init(SimJob *job, const char *name) {
    Model model;
    cJSON *options = NULL;
    const char *text = sim_options(name);
    TRY(json_parse("options", text, strlen(text), 4096, &options));
    int rc = zoo_build(name, options, "$", &model);
    cJSON_Delete(options);
    TRY(rc);
    bool tokens = strcmp(name, "tiny_gpt") == 0;
    return sim_job_init_model(job, &model, tokens, tokens ? 37 : 5);
}

int sim_job_init_text(SimJob *job, const char *text, bool tokens, int64_t classes) {
    Model model;
    cJSON *json = NULL;
    TRY(json_parse("model", text, strlen(text), 1 << 16, &json));
    int rc = model_parse(json, "$", &model);
    cJSON_Delete(json);
    TRY(rc);
    return sim_job_init_model(job, &model, tokens, classes);
}

void sim_job_done(SimJob *job) {
    order_done(&job->order);
}

int sim_job_copy(const SimJob *job, SimJob *out_job) {
    *out_job = *job;
    return order_copy(&job->order, &out_job->order);
}

int sim_job_cut(SimJob *job, const int32_t *ends, int32_t n_stages) {
    PlanSpec *plan = &job->order.plan;
    free(plan->ends);
    free(plan->replicas);
    free(plan->recompute);
    plan->n_stages = n_stages;
    plan->ends = calloc((size_t)n_stages, sizeof *plan->ends);
    plan->replicas = calloc((size_t)n_stages, sizeof *plan->replicas);
    plan->recompute = calloc((size_t)n_stages, sizeof *plan->recompute);
    if (plan->ends == NULL || plan->replicas == NULL || plan->recompute == NULL) {
        return err_set(ERR_MEMORY, "a plan does not fit into memory");
    }
    for (int32_t s = 0; s < n_stages; s++) {
        plan->ends[s] = ends[s];
        plan->replicas[s] = 1;
    }
    return stage_check_cut(&job->order.model, plan->ends, n_stages);
}

int sim_job_stages(SimJob *job, int32_t n_stages) {
    int32_t ends[64];
    for (int32_t s = 0; s < n_stages && s < 64; s++) {
        ends[s] = (int32_t)((int64_t)job->order.model.n_layers * (s + 1) / n_stages);
    }
    return sim_job_cut(job, ends, n_stages);
}

void sim_job_micro(SimJob *job, int64_t batch, int32_t micro_rows) {
    job->order.batch = batch;
    job->order.plan.micro_rows = micro_rows;
    job->order.plan.n_micro = (int32_t)((batch + micro_rows - 1) / micro_rows);
}

void sim_job_samples(SimJob *job, int64_t samples) {
    job->order.train_samples = job->order.train.samples = samples;
}

void sim_job_steps(SimJob *job, int64_t n_steps, int64_t save_every) {
    job->order.n_steps = job->order.end_step = n_steps;
    job->order.save_every = save_every;
}

void sim_job_eval(SimJob *job, int64_t samples, int64_t every) {
    job->order.has_eval = true;
    job->order.eval_samples = job->order.eval.samples = samples;
    job->order.eval_every = every;
}

int sim_job_resume(SimJob *job, const char *store, int64_t step) {
    char path[ORDER_PATH_BYTES + 32];
    job->order.first_step = step;
    snprintf(path, sizeof path, "%s/%lld", store, (long long)step);
    return text_copy(job->order.resume_path, sizeof job->order.resume_path, path);
}

/* As schedule_build, of what the job says that the stage computes. */
static int sim_build(const SimJob *job, const ScheduleSpec *spec, const Stage *stage,
                     Program *out_program) {
    Program compute;
    const char *text = job->compute[stage->index];
    program_init(out_program);
    TRY(program_parse("compute", text, strlen(text), stage->index, &compute));
    int rc = spec->recompute ? program_recompute(&compute, stage->index) : 0;
    if (rc >= 0) {
        rc = program_lower(stage, &compute, out_program);
    }
    program_done(&compute);
    TRY(rc);
    TRY(program_hoist(out_program, spec->hoist));
    return program_link(out_program);
}

int sim_programs(const SimJob *job, int32_t stage_index, int32_t replica, Program *out_train,
                 Program *out_eval) {
    const PlanSpec *plan = &job->order.plan;
    Stage stage;
    ScheduleSpec spec = {
        .warmup = job->warmup, .recompute = plan->recompute[stage_index], .hoist = job->hoist};
    TRY(text_copy(spec.name, sizeof spec.name, job->schedule));
    TRY(stage_init(&stage, &job->order.model, plan->ends, plan->n_stages, stage_index));
    int rc = job->compute != NULL
                 ? sim_build(job, &spec, &stage, out_train)
                 : schedule_build(&spec, &stage, replica, plan->replicas[stage_index],
                                  plan->n_micro, out_train);
    if (rc >= 0) {
        rc = schedule_build_eval(&spec, &stage, replica, plan->replicas[stage_index], plan->n_micro,
                                 out_eval);
    }
    stage_done(&stage);
    return rc;
}

#include "coordinator/plan.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/partition.h"
#include "coordinator/schedule.h"
#include "core/err.h"
#include "core/program.h"
#include "core/text.h"

/* Unless the job says otherwise, a save comes at least this often. */
enum { PLAN_MAX_SAVE_EVERY = 1000 };
/* Norms, saves and the like of one worker in one step. */
enum { PLAN_SMALL_BYTES = 1024 };
/* Memory for files is had by the page. */
enum { PLAN_PAGE_BYTES = 4096 };
/* Times are measured: cuts as near as this to the best are alike, and the fewest bytes decide. */
static const double PLAN_NEAR_TIE = 0.02;
/* What a blob adds to its tensors at most (storage/blob.h). */
enum { PLAN_BLOB_BYTES = 96, PLAN_TENSOR_BYTES = 72 + 64 };

void plan_done(Plan *plan) {
    if (!plan)
        return;
    order_plan_done(&plan->spec);
    for (int32_t i = 0; i < plan->n_workers; i++) {
        free(plan->workers[i].program);
        free(plan->workers[i].eval_program);
    }
    free(plan->workers);
    free(plan->stage_us);
    memset(plan, 0, sizeof *plan);
}

const PlanWorker *plan_worker(const Plan *plan, int32_t stage, int32_t replica) {
    for (int32_t i = 0; i < plan->n_workers; i++) {
        if (plan->workers[i].stage == stage && plan->workers[i].replica == replica)
            return &plan->workers[i];
    }
    return NULL;
}

/* ---- the cut ---- */

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

/* Elements that cross a cut in front of each layer, there and back. */
static int cut_costs(const Model *model, double **out_costs) {
    double *costs = calloc((size_t)model->n_layers + 1, sizeof *costs);
    int32_t *last = calloc((size_t)model->n_values, sizeof *last);
    if (!costs || !last) {
        free(costs);
        free(last);
        return err_set(ERR_MEMORY, "the cuts of %d layers", model->n_layers);
    }
    for (int32_t i = 0; i < model->n_layers; i++) {
        for (int32_t k = 0; k < model->layers[i].n_inputs; k++)
            last[model->layers[i].inputs[k]] = i;
    }
    /* First where the sum changes, then the sums. */
    for (int32_t i = 0; i < model->n_layers; i++) {
        const Value *value = &model->values[model->layers[i].output];
        double elements = (double)shape_elements(&value->shape) * (value->needs_grad ? 2 : 1);
        if (last[model->layers[i].output] > i) {
            costs[i + 1] += elements;
            costs[last[model->layers[i].output] + 1] -= elements;
        }
    }
    for (int32_t i = 1; i <= model->n_layers; i++)
        costs[i] += costs[i - 1];
    free(last);
    *out_costs = costs;
    return 0;
}

static int balance(const Model *model, const double *times, PlanSpec *spec) {
    double *costs = NULL;
    TRY(partition_balance(times, model->n_layers, spec->n_stages, spec->replicas, spec->ends));
    TRY(cut_costs(model, &costs));
    int rc = partition_cheapen(times, costs, model->n_layers, spec->n_stages, spec->replicas,
                               PLAN_NEAR_TIE, spec->ends);
    free(costs);
    return rc;
}

static int make_cut(const JobConfig *config, const Profile *profile, Plan *plan) {
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
        rc = balance(model, times, spec);
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

static int make_spec(const JobConfig *config, const Profile *profile, Plan *plan) {
    const PlanRequest *request = &config->plan;
    PlanSpec *spec = &plan->spec;
    size_t n = (size_t)request->n_stages;
    spec->n_stages = request->n_stages;
    spec->ends = calloc(n, sizeof *spec->ends);
    spec->replicas = calloc(n, sizeof *spec->replicas);
    spec->recompute = calloc(n, sizeof *spec->recompute);
    if (!spec->ends || !spec->replicas || !spec->recompute)
        return err_set(ERR_MEMORY, "a plan of %zu stages", n);
    memcpy(spec->replicas, request->replicas, n * sizeof *spec->replicas);
    memcpy(spec->recompute, request->recompute, n * sizeof *spec->recompute);
    spec->warmup = request->warmup;
    spec->micro_rows = config->order.plan.micro_rows;
    spec->n_micro = config->order.plan.n_micro;
    spec->threads = request->threads;
    spec->reduce = request->reduce;
    TRY(text_copy(spec->schedule, sizeof spec->schedule, request->schedule));
    TRY(text_copy(spec->device, sizeof spec->device, request->device));
    TRY(text_copy(spec->isa, sizeof spec->isa, request->isa));
    if (strcmp(spec->isa, "auto") == 0 && profile)
        TRY(text_copy(spec->isa, sizeof spec->isa, profile->isa));
    return make_cut(config, profile, plan);
}

/* ---- programs ---- */

/* The programs of all workers while they are made and checked. */
typedef struct Programs {
    Program *train, *eval; /* (n_workers) */
    const Program **pointers;
    int32_t n;
} Programs;

static void programs_done(Programs *programs) {
    for (int32_t i = 0; i < programs->n; i++) {
        program_done(&programs->train[i]);
        program_done(&programs->eval[i]);
    }
    free(programs->train);
    free(programs->eval);
    free(programs->pointers);
}

static int programs_init(Programs *programs, int32_t n) {
    memset(programs, 0, sizeof *programs);
    programs->train = calloc((size_t)n, sizeof *programs->train);
    programs->eval = calloc((size_t)n, sizeof *programs->eval);
    programs->pointers = calloc((size_t)n, sizeof *programs->pointers);
    if (!programs->train || !programs->eval || !programs->pointers)
        return err_set(ERR_MEMORY, "the programs of %d workers", n);
    programs->n = n;
    for (int32_t i = 0; i < n; i++) {
        program_init(&programs->train[i]);
        program_init(&programs->eval[i]);
    }
    return 0;
}

static int build_stage(const JobConfig *config, const Plan *plan, const Stage *stage,
                       int32_t first_worker, Programs *programs) {
    const PlanSpec *spec = &plan->spec;
    int32_t replicas = spec->replicas[stage->index];
    ScheduleSpec schedule = {.warmup = spec->warmup,
                             .recompute = spec->recompute[stage->index],
                             .hoist = config->plan.hoist};
    TRY(text_copy(schedule.name, sizeof schedule.name, spec->schedule));
    for (int32_t replica = 0; replica < replicas; replica++) {
        int32_t worker = first_worker + replica;
        int rc = schedule_build(&schedule, stage, replica, replicas, spec->n_micro,
                                &programs->train[worker]);
        if (rc >= 0 && config->order.has_eval)
            rc = schedule_build_eval(&schedule, stage, replica, replicas, spec->n_micro,
                                     &programs->eval[worker]);
        if (rc < 0)
            return err_context(rc, "the program of stage %d, replica %d", stage->index, replica);
    }
    return 0;
}

static int build_all(const JobConfig *config, const Plan *plan, Programs *programs) {
    const PlanSpec *spec = &plan->spec;
    int32_t worker = 0;
    for (int32_t i = 0; i < spec->n_stages; i++) {
        Stage stage;
        TRY(stage_init(&stage, &config->order.model, spec->ends, spec->n_stages, i));
        int rc = build_stage(config, plan, &stage, worker, programs);
        stage_done(&stage);
        TRY(rc);
        worker += spec->replicas[i];
    }
    return 0;
}

static int check_all(const JobConfig *config, Programs *programs) {
    for (int32_t i = 0; i < programs->n; i++)
        programs->pointers[i] = &programs->train[i];
    TRY(program_check_all(programs->pointers, programs->n, 0));
    if (!config->order.has_eval)
        return 0;
    for (int32_t i = 0; i < programs->n; i++)
        programs->pointers[i] = &programs->eval[i];
    return program_check_all(programs->pointers, programs->n, 0);
}

static int text_of(const Program *program, int32_t stage, char **out_text) {
    Buf text;
    buf_init(&text, 0);
    int rc = program_format(program, stage, &text);
    if (rc >= 0)
        rc = buf_reserve(&text, 0); /* "" rather than NULL */
    if (rc >= 0)
        *out_text = buf_take(&text, NULL);
    buf_done(&text);
    return rc < 0 ? rc : 0;
}

static int write_programs(const JobConfig *config, const Programs *programs, Plan *plan) {
    plan->workers = calloc((size_t)programs->n, sizeof *plan->workers);
    if (!plan->workers)
        return err_set(ERR_MEMORY, "%d workers", programs->n);
    plan->n_workers = programs->n;
    PlanWorker *worker = plan->workers;
    const Program *train = programs->train;
    const Program *eval = programs->eval;
    for (int32_t stage = 0; stage < plan->spec.n_stages; stage++) {
        for (int32_t r = 0; r < plan->spec.replicas[stage]; r++, worker++, train++, eval++) {
            worker->stage = stage;
            worker->replica = r;
            TRY(text_of(train, stage, &worker->program));
            if (config->order.has_eval)
                TRY(text_of(eval, stage, &worker->eval_program));
        }
    }
    return 0;
}

static int make_programs(const JobConfig *config, Plan *plan) {
    Programs programs;
    int rc = programs_init(&programs, config_workers(&config->plan));
    TRY_DONE(rc);
    TRY_DONE(build_all(config, plan, &programs));
    TRY_DONE(check_all(config, &programs));
    TRY_DONE(write_programs(config, &programs, plan));
done:
    programs_done(&programs);
    return rc < 0 ? rc : 0;
}

/* ---- what the relay carries ---- */

typedef struct RelayBytes {
    int64_t step;      /* carried in a step */
    int64_t held;      /* the same while it lies in files */
    int64_t held_eval; /* an evaluation, while it lies in files */
} RelayBytes;

/* INT64_MAX: more than that. */
static int64_t sum(int64_t a, int64_t b) {
    return __builtin_add_overflow(a, b, &a) ? INT64_MAX : a;
}

static int64_t product(int64_t a, int64_t b) {
    return __builtin_mul_overflow(a, b, &a) ? INT64_MAX : a;
}

/* What n objects of so many tensors take while they lie in files. */
static int64_t held_bytes(int64_t n, int64_t tensor_bytes, int64_t n_tensors) {
    int64_t bytes = sum(tensor_bytes, PLAN_BLOB_BYTES + n_tensors * PLAN_TENSOR_BYTES);
    int64_t pages = bytes / PLAN_PAGE_BYTES + (bytes % PLAN_PAGE_BYTES != 0);
    return product(n, product(pages, PLAN_PAGE_BYTES));
}

static int64_t weight_bytes(const Model *model, int32_t param) {
    const Param *p = &model->params[param];
    return p->role == PARAM_WEIGHT ? 4 * shape_elements(&p->shape) : 0;
}

/* How many layers of the stage use a parameter: a tied one has an object for each. */
static int64_t count_uses(const Model *model, const Stage *stage, int32_t param) {
    int64_t n = 0;
    for (int32_t i = stage->first_layer; i < stage->end_layer; i++) {
        for (int32_t k = 0; k < model->layers[i].n_params; k++)
            n += model->layers[i].params[k] == param;
    }
    return n;
}

/* Gradients that the stage publishes for summing (all its own when it has replicas, tied ones
 * always), its norms, and its saves. */
static void count_stage(const Model *model, const Stage *stage, int32_t replicas,
                        RelayBytes *bytes) {
    int64_t own = 0;
    int64_t n_own = 0;
    for (int32_t i = 0; i < stage->n_params; i++) {
        int32_t param = stage->params[i].param;
        int64_t weight = weight_bytes(model, param);
        if (weight > 0 && stage->params[i].tied_across) {
            int64_t n = replicas * count_uses(model, stage, param);
            bytes->step = sum(bytes->step, product(n, weight));
            bytes->held = sum(bytes->held, held_bytes(n, weight, 1));
        } else if (weight > 0 && replicas > 1) {
            own = sum(own, weight);
            n_own++;
        }
    }
    if (n_own > 0) {
        bytes->step = sum(bytes->step, product(replicas, own));
        bytes->held = sum(bytes->held, held_bytes(replicas, own, n_own));
    }
    bytes->step = sum(bytes->step, (int64_t)replicas * PLAN_SMALL_BYTES);
    bytes->held = sum(bytes->held, held_bytes(replicas, 8 * (stage->n_params + INT64_C(5)), 3));
    bytes->held = sum(bytes->held, held_bytes(replicas, 0, 0));
}

static void count_edge(const JobConfig *config, const Model *model, const Edge *edge,
                       RelayBytes *bytes) {
    const PlanSpec *spec = &config->order.plan;
    int64_t n = spec->n_micro;
    int64_t n_eval = config->order.eval_samples / spec->micro_rows +
                     order_steps_per_epoch(config->order.eval_samples, config->order.batch);
    int64_t there = stage_edge_bytes(model, edge, spec->micro_rows, false);
    int64_t both = stage_edge_bytes(model, edge, spec->micro_rows, true);
    bytes->step =
        sum(bytes->step, stage_edge_bytes(model, edge, config->order.batch, edge->n_grads > 0));
    bytes->held = sum(bytes->held, held_bytes(n, there, edge->n_values));
    if (edge->n_grads > 0)
        bytes->held = sum(bytes->held, held_bytes(n, both - there, edge->n_grads));
    if (config->order.has_eval)
        bytes->held_eval = sum(bytes->held_eval, held_bytes(n_eval, there, edge->n_values));
}

static int count_bytes(const JobConfig *config, const Plan *plan, RelayBytes *out_bytes) {
    const Model *model = &config->order.model;
    const PlanSpec *spec = &plan->spec;
    *out_bytes = (RelayBytes){0};
    if (config->order.has_eval)
        out_bytes->held_eval = held_bytes(spec->replicas[spec->n_stages - 1], 24, 2);
    for (int32_t i = 0; i < spec->n_stages; i++) {
        Stage stage;
        TRY(stage_init(&stage, model, spec->ends, spec->n_stages, i));
        for (int32_t e = 0; e < stage.n_out; e++)
            count_edge(config, model, &stage.out[e], out_bytes);
        count_stage(model, &stage, spec->replicas[i], out_bytes);
        stage_done(&stage);
    }
    return 0;
}

static int too_much(const JobConfig *config, const Plan *plan) {
    char held[32];
    char limit[32];
    text_format_bytes(plan->held_bytes, held, sizeof held);
    text_format_bytes(config->relay_limit_bytes, limit, sizeof limit);
    if (plan->save_every > 1)
        return err_set(ERR_INFEASIBLE,
                       "a save every %lld steps makes the relay hold %s, but limits.relay is %s: "
                       "save more often (save.every_steps), or raise limits.relay",
                       (long long)plan->save_every, held, limit);
    return err_set(ERR_INFEASIBLE,
                   "with a save after each step the relay holds %s%s, but limits.relay is %s: take "
                   "a smaller batch, less evaluation data or fewer stages, or raise limits.relay",
                   plan->held_bytes == INT64_MAX ? "more than " : "", held, limit);
}

/* Everything since the last save stays in the relay, and the new save's steps overlap the time in
 * which the slowest worker passes the old one's: one step more. */
static int choose_saves(const JobConfig *config, const RelayBytes *bytes, Plan *plan) {
    const Order *order = &config->order;
    int64_t per_step = bytes->held;
    if (order->eval_every > 0)
        per_step = sum(per_step, bytes->held_eval / order->eval_every);
    per_step = per_step > 0 ? per_step : 1;
    int64_t room = (config->relay_limit_bytes - bytes->held_eval) / per_step - 1;
    plan->step_bytes = bytes->step;
    plan->save_every = order->save_every;
    if (!config->save_every_given && plan->save_every == 0)
        plan->save_every = room < PLAN_MAX_SAVE_EVERY ? room : PLAN_MAX_SAVE_EVERY;
    if (plan->save_every < 1)
        plan->save_every = 1;
    int64_t every = plan->save_every < order->n_steps ? plan->save_every : order->n_steps;
    plan->held_bytes = sum(product(every + 1, per_step), bytes->held_eval);
    bool fits = plan->held_bytes <= config->relay_limit_bytes && plan->held_bytes < INT64_MAX;
    return fits ? 0 : too_much(config, plan);
}

int plan_make(const JobConfig *config, const Profile *profile, Plan *out_plan) {
    Plan plan;
    RelayBytes bytes;
    memset(&plan, 0, sizeof plan);
    int rc = make_spec(config, profile, &plan);
    TRY_DONE(rc);
    TRY_DONE(make_programs(config, &plan));
    TRY_DONE(count_bytes(config, &plan, &bytes));
    TRY_DONE(choose_saves(config, &bytes, &plan));
    *out_plan = plan;
    return 0;
done:
    plan_done(&plan);
    return rc;
}

int plan_pin(const Plan *plan, JobConfig *config) {
    size_t bytes = (size_t)plan->spec.n_stages * sizeof *plan->spec.ends;
    int32_t *ends = config->plan.ends ? config->plan.ends : malloc(bytes);
    if (!ends)
        return err_set(ERR_MEMORY, "a cut of %d stages", plan->spec.n_stages);
    memcpy(ends, plan->spec.ends, bytes);
    config->plan.ends = ends;
    config->plan.reduce.latency_us = plan->spec.reduce.latency_us;
    config->order.save_every = plan->save_every;
    config->save_every_given = true;
    return text_copy(config->plan.isa, sizeof config->plan.isa, plan->spec.isa);
}

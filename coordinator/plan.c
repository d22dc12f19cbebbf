#include "coordinator/plan.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/plan_parts.h"
#include "coordinator/schedule.h"
#include "core/err.h"
#include "core/program.h"
#include "core/text.h"

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

/* ---- the choices ---- */

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
    return plan_cut(config, profile, plan);
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

int plan_make(const JobConfig *config, const Profile *profile, Plan *out_plan) {
    Plan plan;
    memset(&plan, 0, sizeof plan);
    int rc = make_spec(config, profile, &plan);
    TRY_DONE(rc);
    TRY_DONE(make_programs(config, &plan));
    TRY_DONE(plan_fill_relay(config, &plan));
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

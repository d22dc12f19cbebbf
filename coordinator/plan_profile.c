/* Measuring what a plan needs to know. */
#include "coordinator/plan.h"
#include "core/err.h"

enum { PLAN_PROFILE_MS = 120000 };

/* An order whose one stage is the whole model, as profiling wants it. */
static int profile_whole(const JobConfig *config, const char *worker_path, int64_t timeout_ms,
                         const atomic_bool *stop, Profile *out_profile) {
    int32_t one = 1;
    bool no = false;
    JobConfig whole = *config; /* borrows everything */
    Plan plan;
    whole.plan.n_stages = 1;
    whole.plan.ends = NULL;
    whole.plan.replicas = &one;
    whole.plan.recompute = &no;
    whole.relay_limit_bytes = INT64_MAX; /* the plan that will run has to fit, not this one */
    TRY(plan_make(&whole, NULL, &plan));
    Order order = config->order;
    order.plan = plan.spec;
    order.program = plan.workers[0].program;
    order.eval_program = plan.workers[0].eval_program;
    order.end_step = order.n_steps;
    int rc = profile_run(worker_path, &order, timeout_ms, stop, out_profile);
    plan_done(&plan);
    if (rc == ERR_TIMEOUT) {
        ErrNote note;
        err_copy(&note);
        rc = err_set(rc, "%s; raise timeouts.wait, or say where to cut (plan.cut)", note.text);
    }
    return rc < 0 ? err_context(rc, "measuring the layers") : rc;
}

int64_t plan_profile_ms(const JobConfig *config) {
    int64_t wait_ms = config->order.wait_timeout_ms;
    return wait_ms > PLAN_PROFILE_MS ? wait_ms : PLAN_PROFILE_MS;
}

int plan_profile(const JobConfig *config, const char *worker_path, int64_t timeout_ms,
                 const atomic_bool *stop, Profile *out_profile) {
    if (!config->plan.ends && config->plan.n_stages > 1)
        return profile_whole(config, worker_path, timeout_ms, stop, out_profile);
    int rc = profile_isa(worker_path, config->plan.isa, timeout_ms, stop, out_profile);
    return rc == ERR_ARGUMENT ? err_context(rc, "$.plan.isa") : rc;
}

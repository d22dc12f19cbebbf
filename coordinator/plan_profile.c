/* Measuring what a plan needs to know. */
#include "coordinator/plan.h"
#include "core/err.h"

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
    return rc < 0 ? err_context(rc, "measuring the layers") : rc;
}

int plan_profile(const JobConfig *config, const char *worker_path, int64_t timeout_ms,
                 const atomic_bool *stop, Profile *out_profile) {
    if (!config->plan.ends && config->plan.n_stages > 1)
        return profile_whole(config, worker_path, timeout_ms, stop, out_profile);
    int rc = profile_isa(worker_path, config->plan.isa, timeout_ms, stop, out_profile);
    return rc == ERR_ARGUMENT ? err_context(rc, "$.plan.isa") : rc;
}

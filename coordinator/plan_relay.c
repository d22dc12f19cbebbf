/* What the relay carries and holds under a plan, and how often that makes it save. */
#include "coordinator/plan_parts.h"
#include "core/err.h"
#include "core/stage.h"
#include "core/text.h"

/* Unless the job says otherwise, a save comes at least this often. */
enum { PLAN_MAX_SAVE_EVERY = 1000 };
/* Norms, saves and the like of one worker in one step. */
enum { PLAN_SMALL_BYTES = 1024 };
/* Memory for files is had by the page. */
enum { PLAN_PAGE_BYTES = 4096 };
/* What a blob adds to its tensors at most (storage/blob.h). */
enum { PLAN_BLOB_BYTES = 96, PLAN_TENSOR_BYTES = 72 + 64 };

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

int64_t plan_weight_bytes(const Model *model, int32_t param) {
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
        int64_t weight = plan_weight_bytes(model, param);
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

int plan_fill_relay(const JobConfig *config, Plan *plan) {
    RelayBytes bytes;
    TRY(count_bytes(config, plan, &bytes));
    return choose_saves(config, &bytes, plan);
}

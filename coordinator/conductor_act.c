/* Doing what the job's state machine says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/checkpoint.h"
#include "coordinator/conductor_parts.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/stage.h"
#include "core/text.h"

/* ---- later ---- */

void conductor_delay(Conductor *conductor, const JobAction *action, int64_t delay_ms,
                     int64_t give_up_ms) {
    if (conductor->n_delayed == conductor->cap_delayed) {
        size_t capacity = conductor->cap_delayed ? 2 * conductor->cap_delayed : 16;
        DelayedAction *delayed = realloc(conductor->delayed, capacity * sizeof *delayed);
        if (!delayed) {
            conductor_fail(conductor, err_set(ERR_MEMORY, "a delayed action"));
            return;
        }
        conductor->delayed = delayed;
        conductor->cap_delayed = capacity;
    }
    DelayedAction *last = &conductor->delayed[conductor->n_delayed++];
    last->action = *action;
    last->action.delay_ms = 0;
    last->due_ms = delay_ms == CONDUCT_PUT_OFF ? INT64_MAX : conductor_now_ms() + delay_ms;
    last->give_up_ms = give_up_ms;
}

/* ---- profiling ---- */

static void prepare_work(uv_work_t *work) {
    Conductor *conductor = work->data;
    conductor->prepare_rc = plan_profile(conductor->config, conductor->options->worker_path,
                                         plan_profile_ms(conductor->config),
                                         &conductor->stop_preparing, &conductor->profile);
    if (conductor->prepare_rc < 0)
        err_copy(&conductor->prepare_note);
}

static void prepare_ended(uv_work_t *work, int status) {
    Conductor *conductor = work->data;
    (void)status;
    conductor->n_working--;
    if (conductor->prepare_rc < 0)
        conductor_fail(conductor, err_restore(&conductor->prepare_note));
    else
        conductor_event(conductor, &(JobEvent){.kind = JOB_EV_PROFILED}, NULL);
}

static void act_profile(Conductor *conductor) {
    conductor->preparing.data = conductor;
    conductor->n_working++;
    uv_queue_work(&conductor->loop, &conductor->preparing, prepare_work, prepare_ended);
}

/* ---- planning ---- */

static int open_relay(Conductor *conductor) {
    Order *order = &conductor->order;
    if (strcmp(conductor->config->relay, "auto") != 0) {
        TRY(text_copy(order->relay_url, sizeof order->relay_url, conductor->config->relay));
    } else {
        int64_t want = conductor->plan.held_bytes;
        scratch_clean();
        TRY(scratch_make(want, &conductor->scratch_relay));
        int n = snprintf(order->relay_url, sizeof order->relay_url, "file://%s/relay",
                         conductor->scratch_relay.path);
        if (n < 0 || (size_t)n >= sizeof order->relay_url)
            return err_set(ERR_LIMIT, "the path '%s' is too long", conductor->scratch_relay.path);
    }
    return relay_open(order->relay_url, &conductor->relay);
}

static int write_plan(Conductor *conductor) {
    cJSON *job = config_to_json(conductor->config);
    int rc = outputs_write_json(conductor->outputs, "job.json", job);
    cJSON_Delete(job);
    TRY(rc);
    cJSON *plan = plan_to_json(&conductor->plan);
    rc = outputs_write_json(conductor->outputs, "plan.json", plan);
    cJSON_Delete(plan);
    return rc;
}

/* Is anything summed over several holders: replicas, or stages with a tied parameter? */
static int has_sums(const Order *order) {
    int found = 0;
    const PlanSpec *plan = &order->plan;
    for (int32_t s = 0; s < plan->n_stages && !found; s++) {
        Stage stage;
        found = plan->replicas[s] > 1;
        TRY(stage_init(&stage, &order->model, plan->ends, plan->n_stages, s));
        for (int32_t p = 0; p < stage.n_params && !found; p++)
            found = stage.params[p].tied_across;
        stage_done(&stage);
    }
    return found;
}

/* What the form of the sums depends on, where there are some and it is to be chosen: the quickest
 * answer to a few questions, unless the job says it, and whether the relay can add. What was
 * measured is the plan's from then on: with a 16-bit wire other forms give other bits. */
static int measure_relay(Conductor *conductor) {
    enum { N_QUESTIONS = 5 };
    ReduceSpec *reduce = &conductor->order.plan.reduce;
    int64_t least_ns = INT64_MAX;
    reduce->store_adds = relay_adds(conductor->relay);
    if (reduce->form == REDUCE_IN_STORE && !reduce->store_adds)
        return err_set(ERR_INFEASIBLE,
                       "plan.reduce.form is \"in_store\", but this relay cannot add: load the "
                       "module funcpipe.so into all its servers, or choose \"auto\"");
    const bool open = reduce->form == REDUCE_AUTO && reduce->latency_us == 0;
    int sums = open ? has_sums(&conductor->order) : 0;
    if (sums <= 0)
        return sums;
    bool failed = false;
    for (int i = 0; i < N_QUESTIONS; i++) {
        int64_t start_ns = clock_now_ns();
        Key key = key_claim(conductor->space.job, conductor->space.generation);
        int rc = relay_has(conductor->relay, key.text);
        int64_t took_ns = clock_now_ns() - start_ns;
        if (rc < 0 && failed)
            return rc; /* two in a row: the relay is away */
        failed = rc < 0;
        least_ns = !failed && took_ns < least_ns ? took_ns : least_ns;
    }
    reduce->latency_us = least_ns / 1000 + 1;
    conductor->plan.spec.reduce.latency_us = reduce->latency_us;
    return plan_pin(&conductor->plan, conductor->config);
}

static int plan_job(Conductor *conductor) {
    Order *order = &conductor->order;
    JobConfig *config = conductor->config;
    TRY(plan_make(config, &conductor->profile, &conductor->plan));
    TRY(plan_pin(&conductor->plan, config));
    *order = config->order; /* borrows the model */
    order->plan = conductor->plan.spec;
    order->save_every = conductor->plan.save_every;
    order->first_step = conductor->resume_step;
    order->end_step = order->n_steps;
    if (order->eval_only) { /* also of a job that has fewer steps by now */
        order->end_step = order->first_step;
        if (order->n_steps < order->first_step)
            order->n_steps = order->first_step;
    }
    TRY(text_copy(order->store_path, sizeof order->store_path,
                  outputs_checkpoints(conductor->outputs)));
    conductor->beats = calloc((size_t)conductor->plan.n_workers, sizeof *conductor->beats);
    if (!conductor->beats)
        return err_set(ERR_MEMORY, "%d workers", conductor->plan.n_workers);
    TRY(open_relay(conductor));
    TRY(text_copy(conductor->space.job, sizeof conductor->space.job, order->job));
    TRY(conductor_claim(conductor, 1));
    TRY(measure_relay(conductor));
    InvokeHost host = {conductor, conductor_worker_ended, !conductor->options->out_folder};
    TRY(invoke_open(&conductor->loop, conductor->options->worker_path,
                    outputs_logs(conductor->outputs), &host, &conductor->invoker));
    TRY(conductor_watch(conductor, 0));
    TRY(outputs_begin(conductor->outputs)); /* nothing is changed there by a start that fails */
    return write_plan(conductor);
}

static void act_plan(Conductor *conductor) {
    int rc = plan_job(conductor);
    if (rc < 0) {
        conductor_fail(conductor, rc);
        return;
    }
    const JobConfig *config = conductor->config;
    conductor->setup = (JobSetup){.n_stages = conductor->plan.spec.n_stages,
                                  .replicas = conductor->plan.spec.replicas,
                                  .first_step = conductor->order.first_step,
                                  .end_step = conductor->order.end_step,
                                  .resumed = conductor->resume_folder[0] != '\0',
                                  .last_skipped = conductor->resume_skipped,
                                  .heartbeat_ms = config->order.heartbeat_ms,
                                  .start_timeout_ms = config->start_timeout_ms,
                                  .silence_ms = config->silence_ms,
                                  .stop_timeout_ms = config->stop_timeout_ms,
                                  .wait_timeout_ms = config->order.wait_timeout_ms,
                                  .save_every_ms = config->save_every_ms,
                                  .max_restarts = config->max_restarts,
                                  .eval_only = config->order.eval_only};
    conductor->planned = true;
    rate_init(&conductor->rate, clock_now_ns());
    conductor_event(conductor, &(JobEvent){.kind = JOB_EV_PLANNED, .setup = &conductor->setup},
                    NULL);
}

/* ---- workers ---- */

static int fill_order(Conductor *conductor, const JobAction *action, Order *order) {
    const PlanWorker *worker = plan_worker(&conductor->plan, action->stage, action->replica);
    *order = conductor->order; /* everything is borrowed; order_done is not for this one */
    order->stage = action->stage;
    order->replica = action->replica;
    order->attempt = action->attempt;
    order->program = worker->program;
    order->eval_program = worker->eval_program;
    order->first_step = action->step;
    int n = 0;
    if (action->resumed && action->step == conductor->resume_step)
        n = snprintf(order->resume_path, sizeof order->resume_path, "%s", conductor->resume_folder);
    else if (action->resumed)
        n = snprintf(order->resume_path, sizeof order->resume_path, "%s/%lld", order->store_path,
                     (long long)action->step);
    if (n < 0 || (size_t)n >= sizeof order->resume_path)
        return err_set(ERR_LIMIT, "the path of checkpoint %lld is too long",
                       (long long)action->step);
    if (!conductor->options->trace)
        return 0;
    n = snprintf(order->trace_path, sizeof order->trace_path, "%s/trace-%d.%d.%lld.json",
                 outputs_logs(conductor->outputs), action->stage, action->replica,
                 (long long)action->attempt);
    return n < 0 || (size_t)n >= sizeof order->trace_path
               ? err_set(ERR_LIMIT, "the path of a trace is too long")
               : 0;
}

static void act_invoke(Conductor *conductor, const JobAction *action) {
    Order order;
    int64_t pid = 0;
    const JobWorker *worker = job_worker(&conductor->job, action->stage, action->replica);
    JobEvent event = {
        .stage = action->stage, .replica = action->replica, .attempt = action->attempt};
    if (!worker->alive || worker->attempt != action->attempt)
        return; /* given up while it was delayed */
    if (conductor_fence_waits(conductor, action)) {
        conductor_delay(conductor, action,
                        conductor->write.running ? CONDUCT_PUT_OFF : CONDUCT_TICK_MS, 0);
        event.kind = JOB_EV_PUT_OFF;
        conductor_event(conductor, &event, NULL);
        return;
    }
    int rc = fill_order(conductor, action, &order);
    if (rc >= 0)
        rc = invoke_start(conductor->invoker, &order, &pid);
    if (rc >= 0)
        rc = outputs_event(conductor->outputs, "worker_started", NULL,
                           "\"stage\":%d,\"replica\":%d,\"attempt\":%lld,\"pid\":%lld,"
                           "\"first_step\":%lld",
                           action->stage, action->replica, (long long)action->attempt,
                           (long long)pid, (long long)action->step);
    event.kind = rc >= 0 ? JOB_EV_INVOKED : JOB_EV_INVOKE_FAILED;
    event.code = rc;
    conductor_event(conductor, &event, rc >= 0 ? NULL : err_text());
}

/* A worker has died and is about to be replaced: say why, then fence off what may still live. */
static void act_fence(Conductor *conductor, const JobAction *action) {
    const JobWorker *worker = job_worker(&conductor->job, action->stage, action->replica);
    char members[160];
    snprintf(members, sizeof members, "\"stage\":%d,\"replica\":%d,\"attempt\":%lld,\"step\":%lld",
             action->stage, action->replica, (long long)action->attempt - 1,
             (long long)worker->death_step);
    int rc = outputs_event(conductor->outputs, "worker_died", worker->death_text, "%s", members);
    progress_say_with(
        &conductor->progress, "worker_died", members,
        "stage %d, replica %d died at step %lld%s: %s; it starts again from step %lld",
        action->stage, action->replica, (long long)worker->death_step,
        worker->death_vague ? " or later" : "", worker->death_text, (long long)action->step);
    if (rc < 0)
        conductor_fail(conductor, rc);
    else
        conductor_write(conductor, action, 0);
}

/* ---- checkpoints, on libuv's thread pool: they read and sync files ---- */

static void store_work(uv_work_t *work) {
    Store *store = work->data;
    const Conductor *conductor = store->conductor;
    const Order *order = &conductor->order;
    char folder[ORDER_PATH_BYTES + 32];
    snprintf(folder, sizeof folder, "%s/%lld", order->store_path, (long long)store->step);
    if (store->clean)
        store->rc = checkpoint_clean(order->store_path, conductor->config->keep_last, store->step);
    else
        store->rc =
            checkpoint_commit(folder, order->job, store->step, &order->model, order->update.kind,
                              order->plan.n_stages, store->saved, store->last_skipped);
    if (store->rc < 0)
        err_copy(&store->note);
}

/* What the workers say they saved for a commit. */
static void take_parts(const Conductor *conductor, Store *store) {
    for (size_t i = 0; i < conductor->n_parts; i++) {
        if (conductor->parts[i].step == store->step)
            store->saved[conductor->parts[i].stage] = conductor->parts[i].saved;
    }
}

static void forget_parts(Conductor *conductor, int64_t step) {
    size_t n = 0;
    for (size_t i = 0; i < conductor->n_parts; i++) {
        if (conductor->parts[i].step > step)
            conductor->parts[n++] = conductor->parts[i];
    }
    conductor->n_parts = n;
}

static void store_ended(uv_work_t *work, int status);

static void start_store(Conductor *conductor) {
    if (conductor->stores)
        uv_queue_work(&conductor->loop, &conductor->stores->work, store_work, store_ended);
}

static void store_ended(uv_work_t *work, int status) {
    Store *store = work->data;
    Conductor *conductor = store->conductor;
    (void)status;
    conductor->n_working--;
    conductor->stores = store->next;
    start_store(conductor);
    JobEvent event = {.kind = JOB_EV_COMMITTED, .step = store->step, .code = store->rc};
    if (store->clean) {
        if (store->rc < 0)
            progress_say(&conductor->progress, "warning", "removing old checkpoints: %s",
                         store->note.text);
    } else if (store->rc < 0) {
        event.kind = JOB_EV_COMMIT_FAILED;
        outputs_event(conductor->outputs, "commit_failed", store->note.text, "\"step\":%lld",
                      (long long)store->step);
        conductor_event(conductor, &event, store->note.text);
    } else {
        if (store->step > conductor->result->saved_step)
            conductor->result->saved_step = store->step;
        forget_parts(conductor, store->step);
        outputs_event(conductor->outputs, "saved", NULL, "\"step\":%lld", (long long)store->step);
        conductor_tell_traffic(conductor, store->step, false);
        conductor_event(conductor, &event, NULL);
    }
    free(store);
}

/* Clean below `step`, or commit the save of `step`, when those before it have ended: a cleaning
 * would remove what a commit writes, and a commit the newest checkpoint that a cleaning keeps. */
static void act_store(Conductor *conductor, const JobAction *action, bool clean) {
    const int64_t step = action->step;
    Store **last = &conductor->stores;
    for (; *last; last = &(*last)->next) {
        if (clean && (*last)->clean && *last != conductor->stores) {
            (*last)->step = step; /* one that waits will do for both */
            return;
        }
    }
    size_t n_stages = (size_t)conductor->order.plan.n_stages;
    Store *store = calloc(1, sizeof *store + n_stages * sizeof store->saved[0]);
    if (!store) {
        conductor_fail(conductor, err_set(ERR_MEMORY, "a save"));
        return;
    }
    store->work.data = store;
    store->conductor = conductor;
    store->clean = clean;
    store->step = step;
    store->last_skipped = action->skipped;
    take_parts(conductor, store);
    *last = store;
    conductor->n_working++;
    if (store == conductor->stores)
        start_store(conductor);
}

static void act_drop(Conductor *conductor, const JobAction *action) {
    watch_drop(conductor->watch, action->first_step, action->step);
    int rc =
        outputs_event(conductor->outputs, "dropped", NULL, "\"first_step\":%lld,\"end_step\":%lld",
                      (long long)action->first_step, (long long)action->step);
    if (rc < 0)
        conductor_fail(conductor, rc);
    if (!conductor->config->order.eval_only)
        act_store(conductor, action, true);
}

/* ---- the end ---- */

static void act_finish(Conductor *conductor) {
    conductor->finishing = true;
    conductor->finish_ms = conductor_now_ms();
    conductor->n_delayed = 0;
    atomic_store(&conductor->stop_preparing, true);
    conductor_stop_writing(conductor);
    if (conductor->watch)
        conductor_take_reports(conductor);
    if (conductor->invoker)
        invoke_kill_all(conductor->invoker);
}

void conductor_act(Conductor *conductor, const JobAction *action) {
    if (action->delay_ms > 0) {
        conductor_delay(conductor, action, action->delay_ms, 0);
        return;
    }
    switch (action->kind) {
    case JOB_ACT_PROFILE:
        act_profile(conductor);
        return;
    case JOB_ACT_PLAN:
        act_plan(conductor);
        return;
    case JOB_ACT_FENCE:
        act_fence(conductor, action);
        return;
    case JOB_ACT_INVOKE:
        act_invoke(conductor, action);
        return;
    case JOB_ACT_CONTROL:
        conductor_write(conductor, action, 0);
        return;
    case JOB_ACT_COMMIT:
        act_store(conductor, action, false);
        return;
    case JOB_ACT_RESUME:
        conductor_act_resume(conductor);
        return;
    case JOB_ACT_DROP:
        act_drop(conductor, action);
        return;
    case JOB_ACT_FINISH:
        act_finish(conductor);
        return;
    }
}

void conductor_act_delayed(Conductor *conductor) {
    for (size_t i = 0; i < conductor->n_delayed;) {
        DelayedAction delayed = conductor->delayed[i];
        if (delayed.due_ms > conductor_now_ms()) {
            i++;
            continue;
        }
        conductor->delayed[i] = conductor->delayed[--conductor->n_delayed];
        if (delayed.give_up_ms > 0)
            conductor_write(conductor, &delayed.action, delayed.give_up_ms);
        else
            conductor_act(conductor, &delayed.action);
    }
}

void conductor_act_put_off(Conductor *conductor) {
    for (size_t i = 0; i < conductor->n_delayed; i++) {
        if (conductor->delayed[i].due_ms == INT64_MAX)
            conductor->delayed[i].due_ms = 0;
    }
    conductor_act_delayed(conductor);
}

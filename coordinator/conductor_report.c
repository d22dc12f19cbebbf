/* What comes back: reports of the watch, ends of processes; and what people see of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/conductor_parts.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/text.h"

static Beats *beats_of(const Conductor *conductor, int32_t stage, int32_t replica) {
    const JobWorker *worker = job_worker(&conductor->job, stage, replica);
    return worker ? &conductor->beats[worker - conductor->job.workers] : NULL;
}

/* What a worker of `attempt` says it has moved; what an earlier attempt still says is late. */
static void count_traffic(Beats *beats, int64_t attempt, const Traffic *traffic, bool final) {
    if (attempt < beats->traffic_attempt ||
        (attempt == beats->traffic_attempt && beats->traffic_final))
        return;
    if (attempt > beats->traffic_attempt)
        traffic_add(&beats->earlier, &beats->now);
    beats->traffic_attempt = attempt;
    beats->traffic_final = final;
    beats->now = *traffic;
}

Traffic conductor_traffic(const Conductor *conductor, int32_t stage) {
    Traffic sum = {0};
    const Job *job = &conductor->job;
    for (int32_t i = 0; conductor->beats && i < job->n_workers; i++) {
        if (stage >= 0 && job->workers[i].stage != stage)
            continue;
        traffic_add(&sum, &conductor->beats[i].earlier);
        traffic_add(&sum, &conductor->beats[i].now);
    }
    return sum;
}

/* Stage -1: the coordinator. */
static int tell_traffic(Conductor *conductor, int64_t step, int32_t stage, const Traffic *traffic) {
    Buf text;
    buf_init(&text, 0);
    int rc = traffic_format(traffic, &text);
    if (rc >= 0)
        rc = outputs_event(conductor->outputs, "traffic", NULL, "\"step\":%lld,\"stage\":%d,%s",
                           (long long)step, stage, buf_string(&text));
    buf_done(&text);
    return rc;
}

int conductor_tell_traffic(Conductor *conductor, int64_t step, bool end) {
    for (int32_t stage = 0; stage < conductor->order.plan.n_stages; stage++) {
        Traffic traffic = conductor_traffic(conductor, stage);
        TRY(tell_traffic(conductor, step, stage, &traffic));
    }
    return end ? tell_traffic(conductor, step, -1, &conductor->own) : 0;
}

static void check(Conductor *conductor, int rc) {
    if (rc < 0)
        conductor_fail(conductor, rc);
}

/* Without the sign that some operations leave on what is not a number. */
static double finite_or_nan(double value) {
    return isnan(value) ? NAN : value;
}

/* The first one is told, then each time their number has doubled. */
static void tell_skipped(Conductor *conductor, int64_t step) {
    int64_t n = ++conductor->n_skipped;
    char members[96];
    if ((n & (n - 1)) != 0)
        return;
    snprintf(members, sizeof members, "\"step\":%lld,\"skipped\":%lld", (long long)step,
             (long long)conductor->result->n_skipped);
    check(conductor, outputs_event(conductor->outputs, "update_skipped", NULL, "%s", members));
    progress_say_with(&conductor->progress, "update_skipped", members,
                      "the update of step %lld was skipped: loss or gradients were not finite "
                      "(%lld skipped so far)",
                      (long long)step, (long long)conductor->result->n_skipped);
}

static void take_step(Conductor *conductor, const WatchReport *report) {
    const Order *order = &conductor->order;
    int64_t step = report->step;
    int64_t rows = order_batch_rows(order->train_samples, order->batch, step);
    bool stop = (report->decision & DECISION_STOP) != 0;
    /* As the workers see it; what they report was skipped before this step. */
    bool skipped = !isfinite(report->loss_sum) || !isfinite(report->grad_norm);
    MetricsRow row = {
        .step = step,
        .epoch = step / order_steps_per_epoch(order->train_samples, order->batch),
        .wall_ms = clock_wall_ms() - (clock_now_ns() - report->now_ns) / CLOCK_NS_PER_MS,
        .loss = finite_or_nan(report->valid > 0 ? report->loss_sum / (double)report->valid : NAN),
        .lr = order_lr(&order->update, step, order->n_steps),
        .grad_norm = report->grad_norm,
        .samples_per_s = rate_add(&conductor->rate, rows, report->now_ns, report->waited),
        .skipped = report->skipped + skipped,
        .traffic = conductor_traffic(conductor, -1),
        .wants_eval = !stop && order_eval_due(order, step)};
    conductor->n_rows++;
    conductor->result->loss = row.loss;
    conductor->result->n_skipped = row.skipped;
    conductor->result->step = step + 1;
    check(conductor, outputs_row(conductor->outputs, &row));
    if (skipped && !order->update.stop_on_nonfinite)
        tell_skipped(conductor, step);
    JobEvent event = {.kind = JOB_EV_STEP,
                      .step = step,
                      .decision = report->decision,
                      .save_due = order_save_due(order, step),
                      .eval_due = row.wants_eval,
                      .skipped = skipped};
    conductor_event(conductor, &event, NULL);
}

/* `value` as JSON. */
static const char *json_of(double value, char *text, size_t bytes) {
    snprintf(text, bytes, "%.17g", value);
    return isfinite(value) ? text : "null";
}

static void take_evaluation(Conductor *conductor, const WatchReport *report) {
    ConductResult *result = conductor->result;
    double valid = (double)(report->valid > 0 ? report->valid : 1);
    char members[128];
    char loss[32];
    char accuracy[32];
    result->has_eval = true;
    result->eval_loss = finite_or_nan(report->valid > 0 ? report->loss_sum / valid : NAN);
    result->eval_accuracy = (double)report->correct / valid;
    if (!conductor->order.eval_only)
        check(conductor, outputs_evaluation(conductor->outputs, report->step - 1, result->eval_loss,
                                            result->eval_accuracy));
    snprintf(members, sizeof members, "\"step\":%lld,\"loss\":%s,\"accuracy\":%s",
             (long long)report->step, json_of(result->eval_loss, loss, sizeof loss),
             json_of(result->eval_accuracy, accuracy, sizeof accuracy));
    check(conductor, outputs_event(conductor->outputs, "evaluated", NULL, "%s", members));
    progress_say_with(&conductor->progress, "evaluated", members,
                      "evaluation after %lld %s: loss %.4g, accuracy %.4f", (long long)report->step,
                      text_plural(report->step, "step", "steps"), result->eval_loss,
                      result->eval_accuracy);
    conductor_event(conductor, &(JobEvent){.kind = JOB_EV_EVALUATED, .step = report->step}, NULL);
}

static void take_heartbeat(Conductor *conductor, const WatchReport *report) {
    const Heartbeat *heartbeat = &report->heartbeat;
    Beats *beats = beats_of(conductor, report->stage, report->replica);
    if (beats) {
        beats->attempt = heartbeat->attempt;
        beats->busy_us = heartbeat->busy_us;
        beats->wait_us = heartbeat->wait_us;
        count_traffic(beats, heartbeat->attempt, &heartbeat->traffic, false);
    }
    conductor_event(conductor,
                    &(JobEvent){.kind = JOB_EV_HEARTBEAT,
                                .stage = report->stage,
                                .replica = report->replica,
                                .attempt = heartbeat->attempt,
                                .step = heartbeat->step},
                    NULL);
}

static int keep_part(Conductor *conductor, const WatchReport *report) {
    if (conductor->n_parts == conductor->cap_parts) {
        size_t capacity = conductor->cap_parts ? 2 * conductor->cap_parts : 16;
        SavedPart *parts = realloc(conductor->parts, capacity * sizeof *parts);
        if (!parts)
            return err_set(ERR_MEMORY, "what %zu workers saved", capacity);
        conductor->parts = parts;
        conductor->cap_parts = capacity;
    }
    conductor->parts[conductor->n_parts++] =
        (SavedPart){report->step, report->stage, report->saved};
    return 0;
}

static void take_saved(Conductor *conductor, const WatchReport *report) {
    if (report->replica == 0)
        check(conductor, keep_part(conductor, report));
    conductor_event(conductor,
                    &(JobEvent){.kind = JOB_EV_SAVED,
                                .stage = report->stage,
                                .replica = report->replica,
                                .step = report->step},
                    NULL);
}

void conductor_take_reports(Conductor *conductor) {
    WatchReport report;
    while (conductor->watch && watch_take(conductor->watch, &report)) {
        switch (report.kind) {
        case WATCH_STEP:
            take_step(conductor, &report);
            break;
        case WATCH_SAVED:
            take_saved(conductor, &report);
            break;
        case WATCH_EVALUATED:
            take_evaluation(conductor, &report);
            break;
        case WATCH_HEARTBEAT:
            take_heartbeat(conductor, &report);
            break;
        case WATCH_LOST:
            conductor_event(conductor, &(JobEvent){.kind = JOB_EV_LOST}, report.failure.text);
            break;
        case WATCH_FAILED:
            conductor_fail(conductor, err_restore(&report.failure));
            break;
        }
    }
}

void conductor_worker_ended(void *ctx, WorkerId worker, const WorkerResult *result) {
    Conductor *conductor = ctx;
    conductor_take_reports(conductor); /* how far it came */
    Beats *beats = beats_of(conductor, worker.stage, worker.replica);
    if (beats && result->has_traffic)
        count_traffic(beats, worker.attempt, &result->traffic, true);
    check(
        conductor,
        outputs_event(conductor->outputs, "worker_ended", result->code < 0 ? result->text : NULL,
                      "\"stage\":%d,\"replica\":%d,\"attempt\":%lld,\"code\":\"%s\",\"step\":%lld",
                      worker.stage, worker.replica, (long long)worker.attempt,
                      result->code < 0 ? err_name(result->code) : "OK", (long long)result->step));
    conductor_event(conductor,
                    &(JobEvent){.kind = JOB_EV_EXITED,
                                .stage = worker.stage,
                                .replica = worker.replica,
                                .attempt = worker.attempt,
                                .step = result->step,
                                .code = result->code},
                    result->text);
}

void conductor_show(Conductor *conductor) {
    const Job *job = &conductor->job;
    double per_s = conductor->rate.per_s;
    double rest = (double)conductor->order.batch * (double)(job->end_step - job->next_step);
    bool known = conductor->n_rows > 1 && rest < 1e12 * per_s; /* the first holds the start */
    int64_t busy = 0;
    int64_t wait = 0;
    ProgressView view = {.state = job_state_name(job->state),
                         .step = job->next_step,
                         .end_step = job->end_step,
                         .loss = conductor->result->loss,
                         .n_skipped = conductor->result->n_skipped,
                         .samples_per_s = per_s,
                         .left_ms = known ? (int64_t)(rest / per_s * 1000) : -1,
                         .bubble = -1,
                         .n_workers = job->n_workers};
    for (int32_t i = 0; i < job->n_workers; i++) {
        const JobWorker *worker = &job->workers[i];
        view.n_alive += worker->alive && worker->heard_ms >= 0;
        view.n_restarts += worker->restarts;
        busy += conductor->beats[i].busy_us;
        wait += conductor->beats[i].wait_us;
    }
    if (busy + wait > 0)
        view.bubble = (double)wait / (double)(busy + wait);
    progress_show(&conductor->progress, &view, conductor_now_ms());
}

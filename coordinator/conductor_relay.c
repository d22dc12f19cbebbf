#include "coordinator/conductor_relay.h"

#include "coordinator/conductor_parts.h"
#include "core/clock.h"
#include "core/err.h"

enum { CONDUCT_NOTE_MARGIN_MS = 60000, CONDUCT_CLEAN_MS = 10000, CONDUCT_HURRY_MS = 3000 };

/* ---- writes: one at a time, the others are put off until it has ended ---- */

static bool is_same(const JobAction *action, JobActionKind kind, const JobAction *worker) {
    return action->kind == kind && action->stage == worker->stage &&
           action->replica == worker->replica && action->attempt == worker->attempt;
}

static bool is_put_off(const Conductor *conductor, JobActionKind kind, const JobAction *worker) {
    for (size_t i = 0; i < conductor->n_delayed; i++) {
        if (is_same(&conductor->delayed[i].action, kind, worker))
            return true;
    }
    return false;
}

bool conductor_fence_waits(const Conductor *conductor, const JobAction *invoke) {
    const RelayWrite *write = &conductor->write;
    return (write->running && is_same(&write->action, JOB_ACT_FENCE, invoke)) ||
           is_put_off(conductor, JOB_ACT_FENCE, invoke);
}

/* What an earlier one wanted and could not write is out of date. */
static void forget_control(Conductor *conductor) {
    size_t n = 0;
    for (size_t i = 0; i < conductor->n_delayed; i++) {
        if (conductor->delayed[i].action.kind != JOB_ACT_CONTROL)
            conductor->delayed[n++] = conductor->delayed[i];
    }
    conductor->n_delayed = n;
}

/* A relay that is away is waited for as long as anything is; a wish to stop until the stop takes
 * too long, which the job notices itself. */
static int64_t give_up_ms(const Conductor *conductor, const JobAction *action) {
    const JobConfig *config = conductor->config;
    bool stop = action->kind == JOB_ACT_CONTROL && action->stop;
    return conductor_now_ms() +
           (stop ? config->stop_timeout_ms + CONDUCT_LATE_MS : config->order.wait_timeout_ms);
}

static void write_work(uv_work_t *work) {
    RelayWrite *write = work->data;
    Relay *relay = write->conductor->relay;
    Slice part = {write->text.data, write->text.bytes};
    if (write->action.kind == JOB_ACT_FENCE)
        write->rc =
            relay_put(relay, write->key.text, &part, 1, clock_deadline_ms(CONDUCT_RELAY_MS));
    else
        write->rc =
            relay_note_put(relay, write->key.text, part.data, part.bytes,
                           write->conductor->config->stop_timeout_ms + CONDUCT_NOTE_MARGIN_MS);
    if (write->rc < 0)
        err_copy(&write->note);
}

static void write_ended(uv_work_t *work, int status) {
    RelayWrite *write = work->data;
    Conductor *conductor = write->conductor;
    const JobAction *action = &write->action;
    (void)status;
    write->running = false;
    buf_done(&write->text);
    relay_interrupt(conductor->relay, false);
    bool replaced =
        action->kind == JOB_ACT_CONTROL && is_put_off(conductor, JOB_ACT_CONTROL, action);
    if (write->rc < 0 && !conductor->finishing && !conductor->resuming && !replaced) {
        if (err_retry(write->rc) && conductor_now_ms() < write->give_up_ms)
            conductor_delay(conductor, action, CONDUCT_TICK_MS, write->give_up_ms);
        else
            conductor_fail(conductor, err_restore(&write->note));
    }
    conductor_act_put_off(conductor);
}

/* Its key and text. 0: there is nothing to write any more. */
static int form_write(const Conductor *conductor, const JobAction *action, RelayWrite *write) {
    if (action->kind == JOB_ACT_CONTROL) {
        Control control = {.stop = action->stop, .save = action->save};
        write->key = key_control(&conductor->space);
        TRY(report_format_control(&control, &write->text));
        return 1;
    }
    const JobWorker *worker = job_worker(&conductor->job, action->stage, action->replica);
    if (worker->attempt != action->attempt)
        return 0; /* given up meanwhile: its successor has a fence of its own */
    write->key = key_fence(&conductor->space, action->stage, action->replica, action->attempt);
    TRY(buf_text(&write->text, "fence"));
    return 1;
}

void conductor_write(Conductor *conductor, const JobAction *action, int64_t give_up) {
    RelayWrite *write = &conductor->write;
    if (give_up == 0)
        give_up = give_up_ms(conductor, action);
    if (action->kind == JOB_ACT_CONTROL)
        forget_control(conductor);
    if (write->running) {
        conductor_delay(conductor, action, CONDUCT_PUT_OFF, give_up);
        return;
    }
    *write = (RelayWrite){.conductor = conductor, .action = *action, .give_up_ms = give_up};
    buf_init(&write->text, RELAY_NOTE_MAX_BYTES);
    int rc = form_write(conductor, action, write);
    if (rc <= 0) {
        buf_done(&write->text);
        if (rc < 0)
            conductor_fail(conductor, rc);
        return;
    }
    write->running = true;
    write->work.data = write;
    uv_queue_work(&conductor->loop, &write->work, write_work, write_ended);
}

void conductor_stop_writing(Conductor *conductor) {
    if (conductor->write.running)
        relay_interrupt(conductor->relay, true);
}

/* ---- the end ---- */

static void clean_work(uv_work_t *work) {
    Conductor *conductor = work->data;
    watch_close(conductor->cleaning.watch, &conductor->own);
    conductor->cleaning.rc = conductor_drop_generations(conductor);
    if (conductor->cleaning.rc < 0)
        err_copy(&conductor->cleaning.note);
    if (conductor->relay)
        conductor_tidy_generations(conductor);
}

static void clean_ended(uv_work_t *work, int status) {
    Conductor *conductor = work->data;
    RelayCleaning *cleaning = &conductor->cleaning;
    (void)status;
    cleaning->running = false;
    cleaning->done = true;
    if (cleaning->rc < 0)
        progress_say(&conductor->progress, "warning",
                     "cleaning the relay: %s; funcpipe gc removes what is left there",
                     cleaning->note.text);
    if (conductor->relay)
        relay_add_up(&conductor->relay->counters, &conductor->own);
    relay_close(conductor->relay);
    conductor->relay = NULL;
    scratch_remove(&conductor->scratch_relay);
    uv_async_send(&conductor->reported);
}

/* Who has no time is not kept waiting by a relay that is away; whose job has been cancelled at once
 * not for long. */
static int64_t most_ms(const Conductor *conductor) {
    const Job *job = &conductor->job;
    bool cancelled = job->state == JOB_CANCELLED && job->failure.code == ERR_CANCELLED;
    return conductor->cleaning.hurried ? CONDUCT_HURRY_MS
           : cancelled                 ? CONDUCT_CLEAN_MS
                                       : INT64_MAX;
}

bool conductor_clean_relay(Conductor *conductor) {
    RelayCleaning *cleaning = &conductor->cleaning;
    if (cleaning->done || (conductor->write.running && !cleaning->running))
        return cleaning->done;
    if (!cleaning->running) {
        cleaning->running = true;
        cleaning->watch = conductor->watch;
        cleaning->begin_ms = conductor_now_ms();
        cleaning->work.data = conductor;
        conductor->watch = NULL;
        uv_queue_work(&conductor->loop, &cleaning->work, clean_work, clean_ended);
    } else if (conductor->relay && conductor_now_ms() - cleaning->begin_ms > most_ms(conductor)) {
        relay_interrupt(conductor->relay, true);
    }
    return false;
}

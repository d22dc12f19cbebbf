#include "coordinator/conductor.h"

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/checkpoint.h"
#include "coordinator/conductor_parts.h"
#include "coordinator/interrupt.h"
#include "coordinator/notice.h"
#include "coordinator/paths.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/process.h"
#include "core/text.h"

enum {
    CONDUCT_SCRATCH_OUT_BYTES = 1 << 20,
    CONDUCT_FILES = 32,
    CONDUCT_THREADS = 6 /* libuv's four, the watch, and one for what else may come */
};

static const int signal_numbers[] = {SIGINT, SIGTERM, SIGHUP};
enum { N_SIGNALS = sizeof signal_numbers / sizeof signal_numbers[0] };

int64_t conductor_now_ms(void) {
    return clock_now_ns() / CLOCK_NS_PER_MS;
}

/* ---- events ---- */

static int push_event(Conductor *conductor, const JobEvent *event, const char *text) {
    if (conductor->n_events == conductor->cap_events) {
        size_t capacity = conductor->cap_events ? 2 * conductor->cap_events : 16;
        QueuedEvent *events = realloc(conductor->events, capacity * sizeof *events);
        if (!events)
            return err_set(ERR_MEMORY, "%zu events", capacity);
        conductor->events = events;
        conductor->cap_events = capacity;
    }
    QueuedEvent *last = &conductor->events[conductor->n_events++];
    last->event = *event;
    last->event.now_ms = conductor_now_ms();
    snprintf(last->text, sizeof last->text, "%s", text ? text : "");
    return 0;
}

static void note_state(Conductor *conductor, JobState before) {
    const Job *job = &conductor->job;
    if (job->state == before)
        return;
    outputs_event(conductor->outputs, "state", job->failure.text[0] ? job->failure.text : NULL,
                  "\"state\":\"%s\",\"step\":%lld", job_state_name(job->state),
                  (long long)job->next_step);
}

static int work_off(Conductor *conductor) {
    while (conductor->first_event < conductor->n_events) {
        QueuedEvent queued = conductor->events[conductor->first_event++];
        JobState before = conductor->job.state;
        queued.event.text = queued.text;
        conductor->actions.n = 0;
        TRY(job_step(&conductor->job, &queued.event, &conductor->actions));
        note_state(conductor, before);
        for (int32_t i = 0; i < conductor->actions.n; i++)
            conductor_act(conductor, &conductor->actions.items[i]);
    }
    conductor->first_event = conductor->n_events = 0;
    return 0;
}

void conductor_event(Conductor *conductor, const JobEvent *event, const char *text) {
    int rc = push_event(conductor, event, text);
    if (rc >= 0 && conductor->stepping)
        return;
    conductor->stepping = true;
    if (rc >= 0)
        rc = work_off(conductor);
    conductor->stepping = false;
    if (rc >= 0)
        return;
    /* No memory even for events: what is left is to end. */
    conductor->first_event = conductor->n_events = 0;
    conductor->job.state = JOB_FAILED;
    conductor->job.exit_code = EXIT_CODE_FAILED;
    err_copy(&conductor->job.failure);
    conductor_act(conductor, &(JobAction){.kind = JOB_ACT_FINISH});
}

void conductor_fail(Conductor *conductor, int code) {
    if (!job_is_final(&conductor->job))
        conductor_event(conductor, &(JobEvent){.kind = JOB_EV_FAIL, .code = code}, err_text());
}

/* ---- the loop ---- */

static void close_handle(uv_handle_t *handle) {
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

/* libuv leaves them to the system, which would end us: they are held from here on. */
static void close_signals(Conductor *conductor) {
    sigset_t ours;
    sigset_t before;
    sigemptyset(&ours);
    for (int i = 0; i < N_SIGNALS; i++)
        sigaddset(&ours, signal_numbers[i]);
    pthread_sigmask(SIG_BLOCK, &ours, &before);
    for (int i = 0; i < N_SIGNALS; i++)
        close_handle((uv_handle_t *)&conductor->signals[i]);
    interrupt_hold();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Once the job is over, all processes are reaped and all work is done: clean up, end the loop. */
static void try_close(Conductor *conductor) {
    if (!conductor->finishing || conductor->closed)
        return;
    bool running = conductor->invoker && invoke_running(conductor->invoker) > 0;
    bool patient = conductor_now_ms() - conductor->finish_ms < CONDUCT_REAP_MS;
    if ((running || conductor->n_working > 0) && patient)
        return;
    if (!conductor_clean_relay(conductor))
        return;
    conductor->closed = true;
    close_signals(conductor);
    close_handle((uv_handle_t *)&conductor->tick);
    close_handle((uv_handle_t *)&conductor->reported);
    if (running)
        uv_stop(&conductor->loop); /* a process that cannot be killed is not waited for */
}

/* Longer than this without a look at the heartbeats, and none could be had. */
static int64_t late_ms(const Conductor *conductor) {
    return 2 * conductor->config->order.heartbeat_ms + CONDUCT_LATE_MS;
}

/* From now on a worker has all the time of an ordinary silence to be heard. */
static void listen_anew(Conductor *conductor) {
    int64_t silence_ms = job_silence_ms(&conductor->job);
    int64_t least_ms = late_ms(conductor);
    conductor->blind_until_ms =
        conductor->tick_ms + (silence_ms > least_ms ? silence_ms : least_ms);
}

/* Can heartbeats be read? Not so while this process was stopped, and with it the watch, nor while
 * the relay is away: it is not the workers that were silent. */
static bool is_blind(Conductor *conductor) {
    int64_t before = conductor->tick_ms;
    int64_t now = conductor_now_ms();
    conductor->tick_ms = now;
    bool paused = before > 0 && now - before > CONDUCT_LATE_MS;
    bool away = conductor->watch &&
                now - watch_read_ns(conductor->watch) / CLOCK_NS_PER_MS > late_ms(conductor);
    if (paused || away)
        listen_anew(conductor);
    return now < conductor->blind_until_ms;
}

static void note_measuring(Conductor *conductor) {
    bool measuring = conductor->job.state == JOB_PROFILING;
    if (!measuring || conductor->measuring_told ||
        conductor->tick_ms - conductor->begin_ms < NOTICE_AFTER_MS)
        return;
    conductor->measuring_told = true;
    progress_say(&conductor->progress, "preparing", "measuring the layers' times ...");
}

static void on_tick(uv_timer_t *timer) {
    Conductor *conductor = timer->data;
    bool blind = is_blind(conductor);
    conductor_take_reports(conductor);
    conductor_act_delayed(conductor);
    conductor_try_resume(conductor);
    note_measuring(conductor);
    conductor_event(conductor, &(JobEvent){.kind = JOB_EV_TICK, .blind = blind}, NULL);
    if (conductor->job.n_workers > 0 && !conductor->finishing && !conductor->order.eval_only)
        conductor_show(conductor);
    try_close(conductor);
}

static void on_reported(uv_async_t *async) {
    Conductor *conductor = async->data;
    conductor_take_reports(conductor);
    try_close(conductor);
}

static void take_signal(Conductor *conductor, int number) {
    bool first = conductor->job.cancel == JOB_CANCEL_NONE;
    JobCancel cancel = number == SIGINT ? JOB_CANCEL_INTERRUPT : JOB_CANCEL_TERMINATE;
    outputs_event(conductor->outputs, "signal", NULL, "\"signal\":%d", number);
    conductor->cleaning.hurried |= conductor->finishing || !first;
    if (first && conductor->job.state == JOB_RUNNING)
        progress_say(&conductor->progress, "stopping",
                     "stopping: the workers save and end (once more: end at once)");
    conductor_event(conductor, &(JobEvent){.kind = JOB_EV_CANCEL, .cancel = cancel}, NULL);
}

static void on_signal(uv_signal_t *handle, int number) {
    take_signal(handle->data, number);
}

static int run_loop(Conductor *conductor) {
    int rc = uv_loop_init(&conductor->loop);
    if (rc < 0)
        return err_set(ERR_INTERNAL, "the event loop: %s", uv_strerror(rc));
    for (int i = 0; i < N_SIGNALS; i++) {
        uv_signal_init(&conductor->loop, &conductor->signals[i]);
        conductor->signals[i].data = conductor;
        if (!interrupt_is_ignored(signal_numbers[i]))
            uv_signal_start(&conductor->signals[i], on_signal, signal_numbers[i]);
    }
    uv_timer_init(&conductor->loop, &conductor->tick);
    conductor->tick.data = conductor;
    uv_timer_start(&conductor->tick, on_tick, CONDUCT_TICK_MS, CONDUCT_TICK_MS);
    uv_async_init(&conductor->loop, &conductor->reported, on_reported);
    conductor->reported.data = conductor;
    conductor->begin_ms = conductor_now_ms();
    conductor_event(conductor, &(JobEvent){.kind = JOB_EV_START}, NULL);
    int number = interrupt_taken(); /* before the loop took them */
    if (number)
        take_signal(conductor, number);
    uv_run(&conductor->loop, UV_RUN_DEFAULT);
    if (uv_loop_close(&conductor->loop) == 0)
        invoke_close(conductor->invoker);
    conductor->invoker = NULL;
    return 0;
}

/* ---- before and after ---- */

static bool has_manifest(const char *folder) {
    char path[ORDER_PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s/manifest.json", folder);
    return access(path, F_OK) == 0;
}

/* Where warnings about a checkpoint go: they must be known even where progress is not shown. */
static Progress warnings(const Conductor *conductor) {
    Progress progress = conductor->progress;
    if (conductor->options->quiet)
        progress_init(&progress, false, false);
    return progress;
}

/* The newest checkpoint of which every byte is as it was written (1); people hear of newer ones. */
static int find_latest(Conductor *conductor, const char *checkpoints, char *found) {
    int64_t step = INT64_MAX;
    Progress progress = warnings(conductor);
    for (;;) {
        TRY(checkpoint_latest_before(checkpoints, step, found, &step));
        int rc = checkpoint_verify(found);
        if (rc != ERR_CORRUPT && rc != ERR_IO)
            return rc < 0 ? rc : 1;
        progress_say(&progress, "warning", "%s; looking for an older one", err_text());
    }
}

/* Find the checkpoint that --resume means. 1: its bytes have been checked. */
static int find_checkpoint(Conductor *conductor, char *found) {
    const ConductOptions *options = conductor->options;
    char place[ORDER_PATH_BYTES + 32];
    char resolved[PATH_MAX];
    bool latest = strcmp(options->resume, "latest") == 0;
    const char *folder = latest ? options->out_folder : options->resume;
    if (!latest && has_manifest(folder)) {
        if (!realpath(folder, resolved))
            return err_set(ERR_NOT_FOUND, "there is no folder '%s'", text_unless_secret(folder));
        return text_copy(found, ORDER_PATH_BYTES, resolved);
    }
    if (!folder)
        return err_set(ERR_ARGUMENT, "resuming the latest checkpoint needs an output folder");
    snprintf(place, sizeof place, "%s/checkpoints", folder);
    if (access(place, F_OK) < 0 && !latest)
        snprintf(place, sizeof place, "%s", folder);
    if (!realpath(place, resolved))
        return err_set(ERR_NOT_FOUND, "there is no checkpoint in '%s'", text_unless_secret(folder));
    return find_latest(conductor, resolved, found);
}

/* Is the checkpoint before the job's end? At the end a job is done in its own folder; in another
 * one it would leave nothing. */
static int check_end(const Conductor *conductor) {
    const ConductOptions *options = conductor->options;
    int64_t end = conductor->config->order.n_steps;
    char own[PATH_MAX];
    if (conductor->resume_step > end)
        return err_set(ERR_ARGUMENT,
                       "checkpoint '%s' stands at step %lld, beyond the job's end (%lld)",
                       conductor->resume_folder, (long long)conductor->resume_step, (long long)end);
    if (conductor->resume_step < end || strcmp(options->resume, "latest") == 0)
        return 0;
    size_t length = options->out_folder && realpath(options->out_folder, own) ? strlen(own) : 0;
    if (length > 0 && strncmp(conductor->resume_folder, own, length) == 0 &&
        conductor->resume_folder[length] == '/')
        return 0;
    return err_set(ERR_ARGUMENT,
                   "checkpoint '%s' stands at the job's end (step %lld): nothing is left to do; "
                   "give the job more steps, or evaluate the checkpoint with funcpipe eval",
                   conductor->resume_folder, (long long)end);
}

/* A checkpoint whose tensors all fit may be of another model: with gelu for relu, say. It may be
 * meant (another dropout), so it is only told. */
static void compare_models(Conductor *conductor, const Manifest *manifest) {
    ErrNote *warning = &conductor->resume_warning;
    Progress progress = warnings(conductor);
    uint64_t hash = model_hash(&conductor->config->order.model);
    if (manifest->model_hash == hash)
        return;
    warning->code = ERR_ARGUMENT;
    snprintf(warning->text, sizeof warning->text,
             "checkpoint '%.700s' was made with another model (hash %016llx, the job's has "
             "%016llx): its tensors all fit, but names, kinds or options of layers differ",
             conductor->resume_folder, (unsigned long long)manifest->model_hash,
             (unsigned long long)hash);
    progress_say(&progress, "warning", "%s", warning->text);
}

static int prepare_resume(Conductor *conductor) {
    const Order *order = &conductor->config->order;
    Manifest manifest;
    if (!conductor->options->resume)
        return 0;
    int verified = find_checkpoint(conductor, conductor->resume_folder);
    TRY(verified);
    TRY(checkpoint_check(conductor->resume_folder, &order->model,
                         order->eval_only ? CHECKPOINT_ANY_UPDATE : (int)order->update.kind));
    if (!order->eval_only)
        TRY(checkpoint_check_momentum(conductor->resume_folder, &order->model, &order->update));
    if (!verified)
        TRY(checkpoint_verify(conductor->resume_folder));
    TRY(manifest_read(conductor->resume_folder, &manifest));
    conductor->resume_step = manifest.step;
    conductor->resume_skipped = manifest.last_skipped;
    compare_models(conductor, &manifest);
    manifest_done(&manifest);
    return order->eval_only ? 0 : check_end(conductor);
}

static int prepare_outputs(Conductor *conductor) {
    const ConductOptions *options = conductor->options;
    OutputsStart start = {.job = conductor->config->order.job,
                          .mode = options->overwrite ? OUTPUTS_OVERWRITE
                                  : options->resume  ? OUTPUTS_RESUME
                                                     : OUTPUTS_NEW,
                          .resume_step = conductor->resume_step,
                          .from = conductor->resume_folder,
                          .job_file = options->job_file};
    const char *folder = options->out_folder;
    if (!folder) {
        TRY(scratch_make(CONDUCT_SCRATCH_OUT_BYTES, &conductor->scratch_out));
        folder = conductor->scratch_out.path;
    }
    TRY(outputs_open(folder, &start, &conductor->outputs));
    return conductor->resume_warning.code < 0
               ? outputs_event(conductor->outputs, "warning", conductor->resume_warning.text, "%s",
                               "")
               : 0;
}

/* The folder of the outputs is ours before anything in it is read. One that is not there yet is
 * made only when it is known that there is something to write. */
static int lock_outputs(Conductor *conductor, bool make) {
    const char *folder = conductor->options->out_folder;
    if (!folder || conductor->lock.fd >= 0 || (!make && access(folder, F_OK) < 0))
        return 0;
    if (make)
        TRY(outputs_make_folder(folder));
    TRY(outputs_lock(folder, &conductor->lock));
    interrupt_remove(conductor->lock.path);
    return 0;
}

static void end_outputs(Conductor *conductor) {
    const Job *job = &conductor->job;
    Progress *progress = &conductor->progress;
    bool training = conductor->outputs && conductor->planned && !conductor->order.eval_only;
    if (training && conductor->options->trace && outputs_merge_traces(conductor->outputs) < 0)
        progress_say(progress, "warning", "merging the traces: %s", err_text());
    if (training && checkpoint_clean(outputs_checkpoints(conductor->outputs),
                                     conductor->config->keep_last, INT64_MAX) < 0)
        progress_say(progress, "warning", "removing partial checkpoints: %s", err_text());
    char newest[ORDER_PATH_BYTES];
    conductor->result->resumable =
        training && checkpoint_latest(outputs_checkpoints(conductor->outputs), newest, NULL) >= 0;
    if (training)
        conductor_tell_traffic(conductor, job->next_step, true);
    if (conductor->outputs)
        outputs_event(
            conductor->outputs, "finished", job->failure.text[0] ? job->failure.text : NULL,
            "\"state\":\"%s\",\"exit_code\":%d", job_state_name(job->state), job->exit_code);
    outputs_close(conductor->outputs);
    conductor->outputs = NULL;
    interrupt_remove(NULL);
    outputs_unlock(&conductor->lock);
    scratch_remove(&conductor->scratch_out);
    progress_end(progress);
}

static int prepare(Conductor *conductor) {
    const ConductOptions *options = conductor->options;
    Notice notice;
    /* libuv aborts where it does not get what it needs: its loop, and a pool of four threads. */
    TRY(process_check_limits(CONDUCT_FILES, CONDUCT_THREADS));
    TRY(paths_check("--out", options->out_folder));
    TRY(paths_check(options->out_folder ? "--resume" : "the checkpoint", options->resume));
    TRY(lock_outputs(conductor, false));
    notice_begin(&notice, options->json && !options->quiet, "checking the checkpoint ...");
    int rc = prepare_resume(conductor);
    notice_end(&notice);
    TRY(rc);
    interrupt_hold(); /* what is made from here on is to be taken away */
    TRY(lock_outputs(conductor, true));
    return prepare_outputs(conductor);
}

static void fill_result(Conductor *conductor) {
    ConductResult *result = conductor->result;
    const Job *job = &conductor->job;
    result->state = job->state;
    result->exit_code = job->exit_code;
    result->failure = job->failure;
    result->ran = conductor->planned;
    result->traffic = conductor_traffic(conductor, -1);
    result->n_resumes = job->resumes;
    for (int32_t i = 0; i < job->n_workers; i++)
        result->n_restarts += job->workers[i].restarts;
}

int conduct(JobConfig *config, const ConductOptions *options, ConductResult *out_result) {
    *out_result = (ConductResult){.saved_step = -1, .loss = NAN};
    Conductor *conductor = calloc(1, sizeof *conductor);
    if (!conductor)
        return err_set(ERR_MEMORY, "the conductor");
    conductor->config = config;
    conductor->options = options;
    conductor->result = out_result;
    atomic_init(&conductor->stop_preparing, false);
    job_init(&conductor->job);
    progress_init(&conductor->progress, options->json, options->quiet);
    conductor->lock.fd = -1;
    int rc = prepare(conductor);
    out_result->step = conductor->resume_step;
    if (rc >= 0)
        rc = run_loop(conductor);
    if (rc < 0) {
        conductor->job.state = JOB_FAILED;
        conductor->job.exit_code = job_exit_code(rc, false);
        err_copy(&conductor->job.failure);
    }
    end_outputs(conductor);
    fill_result(conductor);
    rc = out_result->state == JOB_DONE ? 0 : err_restore(&out_result->failure);
    job_actions_done(&conductor->actions);
    job_done(&conductor->job);
    plan_done(&conductor->plan);
    profile_done(&conductor->profile);
    free(conductor->events);
    free(conductor->delayed);
    free(conductor->beats);
    free(conductor->parts);
    free(conductor->generations);
    free(conductor);
    return rc;
}

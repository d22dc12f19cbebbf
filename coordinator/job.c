#include "coordinator/job.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/job_parts.h"
#include "core/report.h"

enum { RESTART_DELAY_MS = 200, RESTART_MAX_DELAY_MS = 10000, COMMIT_DELAY_MS = 500 };
enum { STUCK_FACTOR = 5 }; /* deaths at different steps without progress are given more patience */

void job_init(Job *job) {
    memset(job, 0, sizeof *job);
    job->last_step_ms = -1;
    job->ended_ms = -1;
}

void job_done(Job *job) {
    if (!job)
        return;
    for (int32_t i = 0; i < job->n_saves; i++)
        free(job->saves[i].saved);
    free(job->saves);
    job->saves = NULL;
    job->n_saves = job->cap_saves = 0;
    free(job->workers);
    job->workers = NULL;
    job->n_workers = 0;
}

void job_actions_done(JobActions *actions) {
    free(actions->items);
    memset(actions, 0, sizeof *actions);
}

const char *job_state_name(JobState state) {
    static const char *const names[JOB_N_STATES] = {
#define JOB_STATE_NAME(name, text) text,
        JOB_STATE_TABLE(JOB_STATE_NAME)
#undef JOB_STATE_NAME
    };
    return names[state];
}

bool job_is_final(const Job *job) {
    return job->state == JOB_DONE || job->state == JOB_FAILED || job->state == JOB_CANCELLED;
}

JobWorker *job_worker(const Job *job, int32_t stage, int32_t replica) {
    for (int32_t i = 0; i < job->n_workers; i++) {
        if (job->workers[i].stage == stage && job->workers[i].replica == replica)
            return &job->workers[i];
    }
    return NULL;
}

static int compare_ms(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

int64_t job_median_step_ms(const Job *job) {
    int64_t sorted[JOB_STEP_TIMES];
    size_t n = (size_t)(job->n_step_ms < JOB_STEP_TIMES ? job->n_step_ms : JOB_STEP_TIMES);
    if (n == 0)
        return 0;
    memcpy(sorted, job->step_ms, n * sizeof sorted[0]);
    qsort(sorted, n, sizeof sorted[0], compare_ms);
    return sorted[n / 2];
}

int64_t job_silence_ms(const Job *job) {
    int64_t ms = job->setup.silence_ms;
    int64_t beats = 3 * job->setup.heartbeat_ms;
    int64_t steps = 10 * job_median_step_ms(job);
    ms = beats > ms ? beats : ms;
    return steps > ms ? steps : ms;
}

/* ---- actions ---- */

int job_act(JobActions *actions, const JobAction *action) {
    if (actions->n == actions->capacity) {
        int32_t capacity = actions->capacity ? 2 * actions->capacity : 16;
        JobAction *items = realloc(actions->items, (size_t)capacity * sizeof *items);
        if (!items)
            return err_set(ERR_MEMORY, "the actions of a job");
        actions->items = items;
        actions->capacity = capacity;
    }
    actions->items[actions->n++] = *action;
    return 0;
}

static int finish(Job *job, JobActions *actions, JobState state, int exit_code) {
    job->state = state;
    job->exit_code = exit_code;
    return job_act(actions, &(JobAction){.kind = JOB_ACT_FINISH});
}

int job_fail(Job *job, JobActions *actions, int code, int cause, const char *format, ...) {
    bool running = job->state == JOB_RUNNING || job->state == JOB_SAVING;
    va_list args;
    va_start(args, format);
    vsnprintf(job->failure.text, sizeof job->failure.text, format, args);
    va_end(args);
    job->failure.code = code;
    return finish(job, actions, JOB_FAILED, job_exit_code(cause, running));
}

int job_control(const Job *job, JobActions *actions) {
    if (job->resuming) /* it is said again under the generation to come */
        return 0;
    return job_act(actions, &(JobAction){.kind = JOB_ACT_CONTROL,
                                         .stop = job->state == JOB_SAVING,
                                         .save = job->save_asked});
}

/* ---- workers ---- */

int job_invoke(const Job *job, JobWorker *worker, int64_t now_ms, int64_t delay_ms,
               JobActions *actions) {
    worker->attempt++;
    worker->alive = true;
    worker->resume_step = job->committed;
    worker->step = job->committed;
    worker->passed_step = job->committed;
    worker->replay_end = job->next_step;
    worker->invoked_ms = now_ms + delay_ms;
    worker->put_off = false;
    worker->heard_ms = -1;
    return job_act(actions, &(JobAction){.kind = JOB_ACT_INVOKE,
                                         .stage = worker->stage,
                                         .replica = worker->replica,
                                         .attempt = worker->attempt,
                                         .step = worker->resume_step,
                                         .delay_ms = delay_ms,
                                         .resumed = job->resumable});
}

/* The worker, in whatever attempt, was at `step`. */
static void got_to(JobWorker *worker, int64_t step) {
    if (step <= worker->best_step)
        return;
    worker->best_step = step;
    worker->deaths_there = 0;
    worker->deaths_stuck = 0;
}

/* Where an attempt ended: what it says itself, else the furthest that is known. */
static int64_t end_step_of(const JobWorker *worker, const JobEvent *event) {
    if (event->kind == JOB_EV_EXITED && event->step >= worker->resume_step)
        return event->step;
    return worker->passed_step > worker->step ? worker->passed_step : worker->step;
}

/* The budget of restarts: deaths without progress, at one step or at one that nobody knows. */
static int check_budget(Job *job, const JobWorker *worker, int code, JobActions *actions) {
    long long step = worker->death_step;
    long long n = worker->deaths_there;
    if (n > job->setup.max_restarts && !worker->death_vague)
        return job_fail(job, actions, ERR_WORKER, code,
                        "stage %d, replica %d failed %lld time%s in a row at step %lld: %s",
                        worker->stage, worker->replica, n, n == 1 ? "" : "s", step,
                        worker->death_text);
    if (n > job->setup.max_restarts ||
        worker->deaths_stuck > STUCK_FACTOR * (job->setup.max_restarts + 1))
        return job_fail(
            job, actions, ERR_WORKER, code,
            "stage %d, replica %d failed %lld times and never came beyond step %lld; the "
            "last time, at step %lld%s: %s",
            worker->stage, worker->replica, (long long)worker->deaths_stuck,
            (long long)worker->best_step, step, worker->death_vague ? " or later" : "",
            worker->death_text);
    return 0;
}

/* The worker an event speaks of, when it is the present attempt's; else NULL. */
static JobWorker *present(const Job *job, const JobEvent *event) {
    JobWorker *worker = job_worker(job, event->stage, event->replica);
    return worker && worker->alive && worker->attempt == event->attempt ? worker : NULL;
}

static bool all_done(const Job *job) {
    for (int32_t i = 0; i < job->n_workers; i++) {
        if (!job->workers[i].done)
            return false;
    }
    return true;
}

static int finish_at_end(Job *job, JobActions *actions) {
    if (!job->last_skipped)
        return finish(job, actions, JOB_DONE, EXIT_CODE_DONE);
    return job_fail(job, actions, ERR_DIVERGED, ERR_DIVERGED,
                    "the training has diverged: loss or gradients of its last step, %lld, were not "
                    "finite",
                    (long long)job->end_step - 1);
}

static int check_finished(Job *job, int64_t now_ms, JobActions *actions) {
    if (!all_done(job))
        return 0;
    if (job->ended_ms < 0)
        job->ended_ms = now_ms;
    bool reported = job->next_step >= job->end_step && job->evals_seen >= job->evals_due;
    if (!reported || (!job->setup.eval_only && job->committed < job->end_step))
        return 0;
    if (job->end_step == job->setup.end_step) /* a wish to stop came too late */
        return finish_at_end(job, actions);
    return finish(job, actions, JOB_CANCELLED,
                  job->cancel == JOB_CANCEL_INTERRUPT ? EXIT_CODE_INTERRUPTED
                                                      : EXIT_CODE_CANCELLED);
}

/* Drop what nobody can need: a present attempt reads nothing of steps before its own, and a
 * successor begins at the last commit. */
static int check_drop(Job *job, JobActions *actions) {
    int64_t bound = job->committed < job->next_step ? job->committed : job->next_step;
    for (int32_t i = 0; i < job->n_workers; i++) {
        const JobWorker *worker = &job->workers[i];
        if (!worker->done && worker->step < bound)
            bound = worker->step;
    }
    if (bound <= job->dropped || job->resuming)
        return 0;
    JobAction action = {.kind = JOB_ACT_DROP, .first_step = job->dropped, .step = bound};
    job->dropped = bound;
    return job_act(actions, &action);
}

/* A stop was decided, and all have saved it: a successor would know nothing of the stop, and wait
 * for steps that never come. */
static bool nothing_is_left(const Job *job) {
    return job->end_step < job->setup.end_step && job->committed >= job->end_step;
}

static int worker_is_done(Job *job, JobWorker *worker, int64_t now_ms, JobActions *actions) {
    worker->alive = false;
    worker->done = true;
    TRY(check_drop(job, actions));
    return check_finished(job, now_ms, actions);
}

static int worker_died(Job *job, JobWorker *worker, const JobEvent *event, int code,
                       const char *text, JobActions *actions) {
    int64_t step = end_step_of(worker, event);
    if (nothing_is_left(job))
        return worker_is_done(job, worker, event->now_ms, actions);
    got_to(worker, step);
    worker->alive = false;
    snprintf(worker->death_text, sizeof worker->death_text, "%s", text);
    worker->death_vague = step == worker->resume_step && step < worker->best_step;
    bool again = step == worker->death_step || worker->death_vague;
    worker->deaths_there = again ? worker->deaths_there + 1 : 1;
    worker->death_step = step;
    worker->deaths_stuck++;
    TRY(check_budget(job, worker, code, actions));
    if (job_is_final(job))
        return 0;
    int64_t delay = 0;
    for (int64_t i = 1; i < worker->deaths_there && delay < RESTART_MAX_DELAY_MS; i++)
        delay = delay ? 2 * delay : RESTART_DELAY_MS;
    worker->restarts++;
    TRY(job_act(actions, &(JobAction){.kind = JOB_ACT_FENCE,
                                      .stage = worker->stage,
                                      .replica = worker->replica,
                                      .attempt = worker->attempt + 1,
                                      .step = job->committed}));
    return job_invoke(job, worker, event->now_ms, delay, actions);
}

static int on_planned(Job *job, const JobEvent *event, JobActions *actions) {
    const JobSetup *setup = event->setup;
    int64_t n = 0;
    for (int32_t i = 0; i < setup->n_stages; i++)
        n += setup->replicas[i];
    job->workers = calloc((size_t)n, sizeof *job->workers);
    if (!job->workers)
        return err_set(ERR_MEMORY, "%lld workers", (long long)n);
    job->n_workers = (int32_t)n;
    job->setup = *setup;
    job->setup.replicas = NULL;
    job->next_step = job->committed = job->dropped = setup->first_step;
    job->resumable = setup->resumed;
    job->end_step = setup->end_step;
    job->evals_due = setup->eval_only ? 1 : 0;
    job->last_save_ms = event->now_ms;
    job->state = JOB_RUNNING;
    job->last_skipped = setup->last_skipped && !setup->eval_only;
    if (!setup->eval_only && setup->first_step >= setup->end_step)
        return finish_at_end(job, actions);
    JobWorker *worker = job->workers;
    for (int32_t stage = 0; stage < setup->n_stages; stage++) {
        for (int32_t replica = 0; replica < setup->replicas[stage]; replica++, worker++) {
            worker->stage = stage;
            worker->replica = replica;
            worker->best_step = setup->first_step;
            worker->death_step = -1;
            TRY(job_invoke(job, worker, event->now_ms, 0, actions));
        }
    }
    return 0;
}

/* Its time to start in begins when it is started. */
static int on_invocation(Job *job, const JobEvent *event) {
    JobWorker *worker = present(job, event);
    if (worker) {
        worker->put_off = event->kind == JOB_EV_PUT_OFF;
        worker->invoked_ms = event->now_ms;
    }
    return 0;
}

static int on_heartbeat(Job *job, const JobEvent *event, JobActions *actions) {
    JobWorker *worker = present(job, event);
    if (!worker)
        return 0;
    worker->heard_ms = event->now_ms;
    if (event->step > worker->step)
        worker->step = event->step;
    got_to(worker, worker->step);
    return check_drop(job, actions);
}

static int on_exited(Job *job, const JobEvent *event, JobActions *actions) {
    JobWorker *worker = present(job, event);
    if (!worker)
        return 0;
    if (event->code == 0 && (event->step >= job->end_step || job->state == JOB_SAVING))
        return worker_is_done(job, worker, event->now_ms, actions);
    if (event->code == 0)
        return worker_died(job, worker, event, ERR_WORKER, "it ended before its last step",
                           actions);
    bool again =
        err_retry(event->code) || event->code == ERR_SUPERSEDED || event->code == ERR_CANCELLED;
    const char *text = event->text && event->text[0] ? event->text : err_sentence(event->code);
    int64_t step = end_step_of(worker, event);
    if (event->code == ERR_TIMEOUT && job_waits_in_vain(job, worker, event->now_ms))
        return job_miss(job, actions, "stage %d, replica %d at step %lld, while all others run: %s",
                        worker->stage, worker->replica, (long long)step, text);
    if (again)
        return worker_died(job, worker, event, event->code, text, actions);
    return job_fail(job, actions, event->code, event->code, "stage %d, replica %d at step %lld: %s",
                    worker->stage, worker->replica, (long long)step, text);
}

static int on_invoke_failed(Job *job, const JobEvent *event, JobActions *actions) {
    JobWorker *worker = present(job, event);
    if (!worker)
        return 0;
    if (err_retry(event->code))
        return worker_died(job, worker, event, event->code, event->text, actions);
    return job_fail(job, actions, event->code, event->code, "stage %d, replica %d: %s",
                    worker->stage, worker->replica, event->text);
}

/* ---- steps and saves ---- */

/* The save of `step`, begun now if it is new. */
static int find_save(Job *job, int64_t step, JobSave **out_save) {
    for (int32_t i = 0; i < job->n_saves; i++) {
        if (job->saves[i].step == step) {
            *out_save = &job->saves[i];
            return 0;
        }
    }
    if (job->n_saves == job->cap_saves) {
        int32_t capacity = job->cap_saves ? 2 * job->cap_saves : 8;
        JobSave *saves = realloc(job->saves, (size_t)capacity * sizeof *saves);
        if (!saves)
            return err_set(ERR_MEMORY, "%d saves", capacity);
        job->saves = saves;
        job->cap_saves = capacity;
    }
    bool *saved = calloc((size_t)job->n_workers, sizeof *saved);
    if (!saved)
        return err_set(ERR_MEMORY, "a save of %d workers", job->n_workers);
    JobSave *save = &job->saves[job->n_saves++];
    *save = (JobSave){.step = step, .saved = saved};
    *out_save = save;
    return 0;
}

/* Nobody's norms are complete without all workers' gradients of that step. */
static void all_passed(Job *job, int64_t step) {
    for (int32_t i = 0; i < job->n_workers; i++) {
        JobWorker *worker = &job->workers[i];
        if (step >= worker->replay_end)
            worker->passed_step = step + 1;
        got_to(worker, step + 1);
    }
}

static int on_step(Job *job, const JobEvent *event, JobActions *actions) {
    JobSave *save = NULL;
    bool stop = (event->decision & DECISION_STOP) != 0;
    bool told = (event->decision & DECISION_SAVE) != 0;
    if (event->step != job->next_step)
        return 0;
    if (job->last_step_ms >= 0)
        job->step_ms[job->n_step_ms++ % JOB_STEP_TIMES] = event->now_ms - job->last_step_ms;
    job->last_step_ms = event->now_ms;
    job->next_step = event->step + 1;
    job->last_skipped = event->skipped;
    all_passed(job, event->step);
    job->evals_due += event->eval_due;
    if (stop)
        job->end_step = event->step + 1;
    if (stop || told || event->save_due) {
        job->last_save_ms = event->now_ms;
        TRY(find_save(job, event->step + 1, &save));
        save->evals_due = job->evals_due;
        save->skipped = event->skipped;
    }
    if (told && job->save_asked) {
        job->save_asked = false;
        TRY(job_control(job, actions));
    }
    return check_finished(job, event->now_ms, actions);
}

/* A checkpoint vouches for all before it, so that evaluations, too, are never due again behind a
 * resume. */
static int check_commit(const Job *job, JobSave *save, JobActions *actions) {
    if (save->n_saved < job->n_workers || save->committing || job->evals_seen < save->evals_due)
        return 0;
    save->committing = true;
    return job_act(
        actions,
        &(JobAction){.kind = JOB_ACT_COMMIT, .step = save->step, .skipped = save->skipped});
}

static int on_evaluated(Job *job, const JobEvent *event, JobActions *actions) {
    job->evals_seen++;
    for (int32_t i = 0; i < job->n_saves; i++)
        TRY(check_commit(job, &job->saves[i], actions));
    return check_finished(job, event->now_ms, actions);
}

static int on_saved(Job *job, const JobEvent *event, JobActions *actions) {
    JobSave *save = NULL;
    JobWorker *worker = job_worker(job, event->stage, event->replica);
    if (worker)
        got_to(worker, event->step);
    if (!worker || event->step <= job->committed)
        return 0;
    TRY(find_save(job, event->step, &save));
    bool *saved = &save->saved[worker - job->workers];
    save->n_saved += !*saved;
    *saved = true;
    return check_commit(job, save, actions);
}

void job_forget_saves(Job *job, int64_t step) {
    int32_t n = 0;
    for (int32_t i = 0; i < job->n_saves; i++) {
        if (job->saves[i].step <= step)
            free(job->saves[i].saved);
        else
            job->saves[n++] = job->saves[i];
    }
    job->n_saves = n;
}

static int on_committed(Job *job, const JobEvent *event, JobActions *actions) {
    job_forget_saves(job, event->step);
    if (event->step > job->committed) {
        job->committed = event->step;
        job->resumes_stuck = 0;
    }
    job->resumable = true;
    TRY(check_drop(job, actions));
    return check_finished(job, event->now_ms, actions);
}

static int on_commit_failed(Job *job, const JobEvent *event, JobActions *actions) {
    JobSave *save = NULL;
    if (event->step <= job->committed) /* a newer one is there: this one is not missed */
        return 0;
    TRY(find_save(job, event->step, &save));
    save->n_failures++;
    if (!err_retry(event->code) || save->n_failures >= JOB_MAX_COMMITS)
        return job_fail(job, actions, event->code, event->code, "saving step %lld: %s",
                        (long long)event->step, event->text);
    return job_act(actions, &(JobAction){.kind = JOB_ACT_COMMIT,
                                         .step = event->step,
                                         .skipped = save->skipped,
                                         .delay_ms = save->n_failures * COMMIT_DELAY_MS});
}

/* ---- stopping and time ---- */

static int cancel_at_once(Job *job, JobActions *actions, const char *why) {
    snprintf(job->failure.text, sizeof job->failure.text, "%s", why);
    job->failure.code = ERR_CANCELLED;
    return finish(job, actions, JOB_CANCELLED,
                  job->cancel == JOB_CANCEL_INTERRUPT ? EXIT_CODE_INTERRUPTED
                                                      : EXIT_CODE_CANCELLED);
}

static int on_cancel(Job *job, const JobEvent *event, JobActions *actions) {
    bool first = job->cancel == JOB_CANCEL_NONE;
    job->cancel = event->cancel;
    if (job->state != JOB_RUNNING || job->setup.eval_only)
        return cancel_at_once(job, actions,
                              first ? "cancelled before it ran" : "cancelled at once");
    job->state = JOB_SAVING;
    job->stop_ms = event->now_ms;
    return job_control(job, actions);
}

static int check_silence(Job *job, JobWorker *worker, const JobEvent *event, JobActions *actions) {
    char text[160];
    bool started = worker->heard_ms >= 0;
    int64_t since = event->now_ms - (started ? worker->heard_ms : worker->invoked_ms);
    int64_t limit = started ? job_silence_ms(job) : job->setup.start_timeout_ms;
    if (!worker->alive || worker->put_off || since <= limit || event->blind)
        return 0;
    snprintf(text, sizeof text,
             started ? "no heartbeat for %lld ms (at most %lld)"
                     : "no heartbeat within %lld ms of its start (at most %lld)",
             (long long)since, (long long)limit);
    return worker_died(job, worker, event, ERR_TIMEOUT, text, actions);
}

static int on_tick(Job *job, const JobEvent *event, JobActions *actions) {
    int64_t now = event->now_ms;
    if (job->state != JOB_RUNNING && job->state != JOB_SAVING)
        return 0;
    for (int32_t i = 0; i < job->n_workers && !job_is_final(job); i++)
        TRY(check_silence(job, &job->workers[i], event, actions));
    if (job_is_final(job))
        return 0;
    if (job->state == JOB_SAVING && now - job->stop_ms > job->setup.stop_timeout_ms)
        return cancel_at_once(job, actions,
                              "the workers did not stop in time; what came after the "
                              "last save is lost");
    if (job->resuming || event->blind)
        return 0;
    if (job_misses(job, now))
        return job_miss_any(job, actions);
    if (job->state == JOB_RUNNING && job->setup.save_every_ms > 0 && !job->save_asked &&
        now - job->last_save_ms >= job->setup.save_every_ms) {
        job->save_asked = true;
        return job_control(job, actions);
    }
    return 0;
}

int job_step(Job *job, const JobEvent *event, JobActions *actions) {
    if (job_is_final(job) || (job->resuming && job_is_of_relay(event->kind)))
        return 0;
    switch (event->kind) {
    case JOB_EV_START:
        job->state = JOB_PROFILING;
        return job_act(actions, &(JobAction){.kind = JOB_ACT_PROFILE});
    case JOB_EV_PROFILED:
        job->state = JOB_PLANNING;
        return job_act(actions, &(JobAction){.kind = JOB_ACT_PLAN});
    case JOB_EV_PLANNED:
        return on_planned(job, event, actions);
    case JOB_EV_PUT_OFF:
    case JOB_EV_INVOKED:
        return on_invocation(job, event);
    case JOB_EV_INVOKE_FAILED:
        return on_invoke_failed(job, event, actions);
    case JOB_EV_HEARTBEAT:
        return on_heartbeat(job, event, actions);
    case JOB_EV_EXITED:
        return on_exited(job, event, actions);
    case JOB_EV_STEP:
        return on_step(job, event, actions);
    case JOB_EV_SAVED:
        return on_saved(job, event, actions);
    case JOB_EV_COMMITTED:
        return on_committed(job, event, actions);
    case JOB_EV_COMMIT_FAILED:
        return on_commit_failed(job, event, actions);
    case JOB_EV_EVALUATED:
        return on_evaluated(job, event, actions);
    case JOB_EV_LOST:
        return job_on_lost(job, event, actions);
    case JOB_EV_RESUMED:
        return job_on_resumed(job, event, actions);
    case JOB_EV_CANCEL:
        return on_cancel(job, event, actions);
    case JOB_EV_FAIL:
        return job_fail(job, actions, event->code, event->code, "%s", event->text);
    case JOB_EV_TICK:
        return on_tick(job, event, actions);
    }
    return 0;
}

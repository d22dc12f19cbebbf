/* A relay that lost objects: all workers go back to the last save, under the next generation. */
#include <stdarg.h>
#include <stdio.h>

#include "coordinator/job_parts.h"

bool job_is_of_relay(JobEventKind kind) {
    return kind == JOB_EV_STEP || kind == JOB_EV_SAVED || kind == JOB_EV_EVALUATED ||
           kind == JOB_EV_COMMIT_FAILED; /* what is saved again is committed again */
}

/* Is there anything left that has to come through the relay? */
static bool needs_relay(const Job *job) {
    if (job->next_step < job->end_step || job->evals_seen < job->evals_due)
        return true;
    for (int32_t i = 0; i < job->n_saves; i++) {
        if (job->saves[i].step == job->end_step && job->saves[i].committing)
            return false;
    }
    return !job->setup.eval_only && job->committed < job->end_step;
}

static int resume(Job *job, JobActions *actions) {
    job->resuming = true;
    job->resumes++;
    job->resumes_stuck++;
    job->ended_ms = -1;
    for (int32_t i = 0; i < job->n_workers; i++)
        job->workers[i].alive = job->workers[i].done = false;
    return job_act(actions, &(JobAction){.kind = JOB_ACT_RESUME});
}

int job_on_lost(Job *job, const JobEvent *event, JobActions *actions) {
    bool runs = job->state == JOB_RUNNING || job->state == JOB_SAVING;
    long long n = job->resumes_stuck + 1;
    if (!runs || job->resuming || !needs_relay(job))
        return 0;
    if (n > job->setup.max_restarts)
        return job_fail(job, actions, ERR_IO, ERR_IO,
                        "%s; that is loss %lld since step %lld was saved, and limits.restarts is "
                        "%lld",
                        event->text, n, (long long)job->committed,
                        (long long)job->setup.max_restarts);
    snprintf(job->lost_text, sizeof job->lost_text, "%s", event->text);
    return resume(job, actions);
}

int job_on_resumed(Job *job, const JobEvent *event, JobActions *actions) {
    if (!job->resuming)
        return 0;
    job->resuming = false;
    job->next_step = job->dropped = job->committed;
    job->end_step = job->setup.end_step;
    job->evals_due = job->setup.eval_only ? 1 : 0;
    job->evals_seen = 0;
    job->last_step_ms = -1;
    job->last_save_ms = event->now_ms;
    job_forget_saves(job, INT64_MAX);
    if (job->state == JOB_SAVING || job->save_asked)
        TRY(job_control(job, actions));
    for (int32_t i = 0; i < job->n_workers; i++)
        TRY(job_invoke(job, &job->workers[i], event->now_ms, 0, actions));
    return 0;
}

/* ---- waiting in vain ---- */

bool job_waits_in_vain(const Job *job, const JobWorker *waiting, int64_t now_ms) {
    for (int32_t i = 0; i < job->n_workers; i++) {
        const JobWorker *worker = &job->workers[i];
        bool runs = worker->alive && worker->heard_ms >= 0 &&
                    now_ms - worker->invoked_ms >= job->setup.wait_timeout_ms;
        if (worker != waiting && !worker->done && !runs)
            return false;
    }
    return job->setup.max_restarts > 0;
}

int job_miss(Job *job, JobActions *actions, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(job->lost_text, sizeof job->lost_text, format, args);
    va_end(args);
    if (job->resumes_stuck == 0 && job->setup.max_restarts > 0)
        return resume(job, actions);
    return job_fail(job, actions, ERR_TIMEOUT, ERR_TIMEOUT, "%s%s", job->lost_text,
                    job->resumes_stuck > 0 ? "; again, after all workers went back to the last save"
                                           : "");
}

/* All workers are beyond the step whose norms are waited for. */
static bool all_are_beyond(const Job *job) {
    for (int32_t i = 0; i < job->n_workers; i++) {
        if (!job->workers[i].done && job->workers[i].step <= job->next_step)
            return false;
    }
    return job->next_step < job->end_step && job->n_workers > 0;
}

bool job_misses(const Job *job, int64_t now_ms) {
    if (!needs_relay(job))
        return false;
    if (job->ended_ms >= 0)
        return now_ms - job->ended_ms > job->setup.wait_timeout_ms;
    if (!all_are_beyond(job))
        return false;
    int64_t since_ms = job->last_step_ms;
    for (int32_t i = 0; i < job->n_workers; i++) {
        if (job->workers[i].invoked_ms > since_ms)
            since_ms = job->workers[i].invoked_ms;
    }
    return now_ms - since_ms > job->setup.wait_timeout_ms;
}

int job_miss_any(Job *job, JobActions *actions) {
    const char *when =
        job->ended_ms >= 0 ? "all workers ended" : "all workers are beyond that step";
    if (job->next_step < job->end_step)
        return job_miss(job, actions, "%s, but the norms of step %lld never came", when,
                        (long long)job->next_step);
    for (int32_t i = 0; i < job->n_saves; i++) {
        for (int32_t w = 0; w < job->n_workers; w++) {
            if (!job->saves[i].saved[w])
                return job_miss(job, actions,
                                "%s, but the save of step %lld by stage %d, replica %d never came",
                                when, (long long)job->saves[i].step, job->workers[w].stage,
                                job->workers[w].replica);
        }
    }
    return job_miss(job, actions, "%s, but an evaluation never came", when);
}

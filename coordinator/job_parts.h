/* What the files of the job's state machine share; nobody else includes it. */
#ifndef FUNCPIPE_COORDINATOR_JOB_PARTS_H
#define FUNCPIPE_COORDINATOR_JOB_PARTS_H

#include "coordinator/job.h"

int job_act(JobActions *actions, const JobAction *action);
/* `cause` decides the exit code; the failure itself has `code`. */
int job_fail(Job *job, JobActions *actions, int code, int cause, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
int job_control(const Job *job, JobActions *actions);
/* A worker's next attempt, from the last commit. */
int job_invoke(const Job *job, JobWorker *worker, int64_t now_ms, int64_t delay_ms,
               JobActions *actions);
/* Forget the saves up to `step`: what did not become complete by now never will. */
void job_forget_saves(Job *job, int64_t step);

/* job_resume.c: a relay that lost objects. */
int job_on_lost(Job *job, const JobEvent *event, JobActions *actions);
int job_on_resumed(Job *job, const JobEvent *event, JobActions *actions);
/* Is it an event of what is read in the relay? */
bool job_is_of_relay(JobEventKind kind);
/* A wait of the worker's ran out. Do all others run, and have for as long as it waited? */
bool job_waits_in_vain(const Job *job, const JobWorker *waiting, int64_t now_ms);
/* An object never came, in these words: resume, once. */
int job_miss(Job *job, JobActions *actions, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Has all been done, for as long as one waits, that leads to what the coordinator waits for? And
 * then: job_miss it, by name. */
bool job_misses(const Job *job, int64_t now_ms);
int job_miss_any(Job *job, JobActions *actions);

#endif

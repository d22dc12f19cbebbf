/* Job: everything a training job can live through, as a state machine without I/O.
 *
 *     queued -> profiling -> planning -> running -> (saving) -> done | failed | cancelled
 *
 * job_step takes one event and appends the actions that follow from it; the conductor does them and
 * feeds back what comes of them. Time is a field of the event. Rules:
 *   - A worker that dies is invoked again, attempt + 1, from the last committed save; the others
 *     only wait. Its fence is written first, so that an older attempt that still lives ends itself.
 *   - Silence beyond a deadline derived from the measured step time counts as death; the silent
 *     process is left alone (it may only be stopped, and its successor does not wait for it). While
 *     heartbeats cannot be read nobody is silent.
 *   - Dying more than max_restarts times in a row at one step, without getting further in between,
 *     fails the job; so does an error that no retry helps against, at once. How far a worker got is
 *     known from its heartbeats, its saves, what it says at its end, and the norms: those of a step
 *     need all workers.
 *   - When all workers have saved step s its manifest is committed; the relay's objects of earlier
 *     steps are dropped when every worker's present attempt has passed s.
 *     A manifest is committed only behind the evaluations that were due up to it.
 *   - A relay that lost objects - it says so itself, or somebody waits in vain for one while all
 *     others run - sends all workers back to the last save, or to the beginning, under another
 *     generation number, which is in every key: what an older one still writes harms nobody. Losses
 *     without a save in between fail the job: more than max_restarts, or a second wait in vain.
 *   - A job whose last step was skipped, because loss or gradients were not finite, has diverged,
 *     also when it is gone on with from there.
 *   - Cancelling asks all workers to save and end; cancelling twice, or a stop that takes too long,
 *     ends at once.
 * Invariant: at most one attempt of a worker is the present one; events of others change nothing.
 */
#ifndef FUNCPIPE_COORDINATOR_JOB_H
#define FUNCPIPE_COORDINATOR_JOB_H

#include "coordinator/job_event.h"
#include "core/err.h"

#define JOB_STATE_TABLE(X)                                                                         \
    X(JOB_QUEUED, "queued")                                                                        \
    X(JOB_PROFILING, "profiling")                                                                  \
    X(JOB_PLANNING, "planning")                                                                    \
    X(JOB_RUNNING, "running")                                                                      \
    X(JOB_SAVING, "saving") /* asked to stop: all save and end */                                  \
    X(JOB_DONE, "done")                                                                            \
    X(JOB_FAILED, "failed")                                                                        \
    X(JOB_CANCELLED, "cancelled")

typedef enum JobState {
#define JOB_STATE_ENUM(name, text) name,
    JOB_STATE_TABLE(JOB_STATE_ENUM)
#undef JOB_STATE_ENUM
        JOB_N_STATES
} JobState;

typedef struct JobWorker {
    int32_t stage, replica;
    int64_t attempt;     /* the present one; 0: never invoked */
    bool alive;          /* invoked, and neither ended nor given up */
    bool done;           /* its slice is finished */
    int64_t resume_step; /* first step of the present attempt */
    int64_t step;        /* last reported by the present attempt, at least resume_step */
    int64_t passed_step; /* the present attempt has passed all before it, by norms and saves */
    int64_t replay_end;  /* norms of steps before it may be an earlier attempt's */
    int64_t best_step;   /* the furthest of any attempt */
    int64_t invoked_ms;  /* when the present attempt was, or is to be, invoked */
    bool put_off;        /* that waits for the relay */
    int64_t heard_ms;    /* its last sign of life; -1: none yet */
    int64_t death_step;  /* of the last death; -1: none */
    bool death_vague; /* there or later: nothing is known of that attempt, and others got further */
    int64_t deaths_there; /* in a row at death_step, since best_step last grew */
    int64_t deaths_stuck; /* since best_step last grew */
    int64_t restarts;
    char death_text[256]; /* of the last death: why */
} JobWorker;

enum { JOB_STEP_TIMES = 33, JOB_MAX_COMMITS = 5 };

typedef struct JobSave { /* a save under way */
    int64_t step;
    int32_t n_saved; /* workers */
    int32_t n_failures;
    int64_t evals_due; /* before it is committed */
    bool committing;
    bool skipped; /* the update before it was */
    bool *saved;  /* (n_workers) */
} JobSave;

typedef struct Job {
    JobState state;
    JobSetup setup; /* without replicas */
    int32_t n_workers;
    JobWorker *workers; /* by stage, then replica */
    int64_t next_step;  /* the norms of all steps before it are known */
    int64_t end_step;   /* becomes less when the leader decides to stop */
    int64_t committed;  /* step of the last committed save, or first_step */
    bool resumable;     /* there is a checkpoint of `committed` */
    int64_t dropped;    /* objects of steps before it are gone */
    bool resuming;      /* no generation: JOB_ACT_RESUME is under way */
    int64_t resumes;
    int64_t resumes_stuck; /* since the last commit */
    char lost_text[1024];  /* why the last one was */
    JobSave *saves;
    int32_t n_saves, cap_saves;
    int64_t evals_due, evals_seen;
    bool last_skipped; /* the step before next_step */
    int64_t last_save_ms;
    bool save_asked;
    int64_t stop_ms;  /* when stopping was asked for */
    int64_t ended_ms; /* when the last worker was done; -1: not yet */
    JobCancel cancel;
    int64_t step_ms[JOB_STEP_TIMES]; /* a ring of step times */
    int64_t n_step_ms;
    int64_t last_step_ms; /* -1: no step seen yet */
    int exit_code;        /* of the program, when the state is final */
    ErrNote failure;      /* failed or cancelled without a save: why */
} Job;

void job_init(Job *job);
void job_done(Job *job);
/* One event; the actions are appended in the order they are to be done. ERR_MEMORY only. */
int job_step(Job *job, const JobEvent *event, JobActions *actions);
void job_actions_done(JobActions *actions);

const char *job_state_name(JobState state);
bool job_is_final(const Job *job);
JobWorker *job_worker(const Job *job, int32_t stage, int32_t replica); /* NULL: no such worker */
int64_t job_median_step_ms(const Job *job);                            /* 0: not known yet */
/* Silence that counts as death: at least 3 heartbeats, 10 median steps, and the configured floor.
 */
int64_t job_silence_ms(const Job *job);

/* Exit codes of the program. */
enum {
    EXIT_CODE_DONE = 0,
    EXIT_CODE_FAILED = 1,
    EXIT_CODE_USAGE = 2, /* or configuration */
    EXIT_CODE_UNREACHABLE = 3,
    EXIT_CODE_INFEASIBLE = 4,
    EXIT_CODE_DIVERGED = 5,
    EXIT_CODE_CANCELLED = 6,
    EXIT_CODE_INTERRUPTED = 130
};
/* The exit code an error leads to; `running`: it ended a job that had started. */
int job_exit_code(int err_code, bool running);

#endif

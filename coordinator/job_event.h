/* What goes into the job's state machine and what comes out of it (coordinator/job.h). */
#ifndef FUNCPIPE_COORDINATOR_JOB_EVENT_H
#define FUNCPIPE_COORDINATOR_JOB_EVENT_H

#include <stdbool.h>
#include <stdint.h>

typedef enum JobCancel { JOB_CANCEL_NONE, JOB_CANCEL_INTERRUPT, JOB_CANCEL_TERMINATE } JobCancel;

/* What the job is told when its plan is made. */
typedef struct JobSetup {
    int32_t n_stages;
    const int32_t *replicas;      /* (n_stages), borrowed during the event */
    int64_t first_step, end_step; /* first_step: where the resumed checkpoint stands, or 0 */
    bool resumed;                 /* there is such a checkpoint */
    bool last_skipped;            /* the update before it was skipped */
    int64_t heartbeat_ms, start_timeout_ms, silence_ms, stop_timeout_ms, wait_timeout_ms;
    int64_t save_every_ms; /* 0: not by time */
    int64_t max_restarts;
    bool eval_only; /* one evaluation of the weights of first_step, nothing saved */
} JobSetup;

typedef enum JobEventKind {
    JOB_EV_START,
    JOB_EV_PROFILED,
    JOB_EV_PLANNED,       /* setup */
    JOB_EV_PUT_OFF,       /* worker: its invocation waits for the relay */
    JOB_EV_INVOKED,       /* worker */
    JOB_EV_INVOKE_FAILED, /* worker; code, text: it could not be started */
    JOB_EV_HEARTBEAT,     /* worker; step */
    JOB_EV_EXITED,        /* worker; code 0: slice done, else the error; step, text */
    JOB_EV_STEP,          /* step: the norms of all stages are in; decision, save_due, ... */
    JOB_EV_SAVED,         /* worker (of any attempt), step */
    JOB_EV_COMMITTED,     /* step */
    JOB_EV_COMMIT_FAILED, /* step; code, text */
    JOB_EV_EVALUATED,     /* step */
    JOB_EV_LOST,          /* text: the relay has lost objects, and how that is known */
    JOB_EV_RESUMED,       /* the next generation is taken, no worker runs any more */
    JOB_EV_CANCEL,        /* cancel */
    JOB_EV_FAIL,          /* planning failed, a hard limit was reached, ...: code, text */
    JOB_EV_TICK           /* blind */
} JobEventKind;

/* "worker" above is stage, replica and attempt. */
typedef struct JobEvent {
    JobEventKind kind;
    int64_t now_ms; /* monotonic */
    int32_t stage, replica;
    int64_t attempt, step;
    int decision;            /* DECISION_ bits of core/report.h */
    bool save_due, eval_due; /* after this step, by the order */
    bool blind;              /* heartbeats cannot be read just now: nobody counts as silent */
    bool skipped;            /* the step: its loss or gradients were not finite */
    JobCancel cancel;
    const JobSetup *setup;
    int code;
    const char *text;
} JobEvent;

typedef enum JobActionKind {
    JOB_ACT_PROFILE,
    JOB_ACT_PLAN,
    JOB_ACT_FENCE,   /* worker: attempts before this one shall end */
    JOB_ACT_INVOKE,  /* worker: run from `step`, after delay_ms */
    JOB_ACT_CONTROL, /* stop, save: the control note */
    JOB_ACT_COMMIT,  /* step, skipped, after delay_ms */
    JOB_ACT_RESUME,  /* end all workers and take the next generation: JOB_EV_RESUMED */
    JOB_ACT_DROP,    /* relay objects of steps [first_step, step); old checkpoints may go too */
    JOB_ACT_FINISH   /* the state is final: end all processes, clean up */
} JobActionKind;

typedef struct JobAction {
    JobActionKind kind;
    int32_t stage, replica;
    int64_t attempt, first_step, step, delay_ms;
    bool resumed; /* invoke: there is a checkpoint of `step` (else initial weights) */
    bool stop, save;
    bool skipped; /* the update before `step` was */
} JobAction;

typedef struct JobActions {
    JobAction *items;
    int32_t n, capacity;
} JobActions;

#endif

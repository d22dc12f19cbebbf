/* What the conductor's files share; nobody else includes it. */
#ifndef FUNCPIPE_COORDINATOR_CONDUCTOR_PARTS_H
#define FUNCPIPE_COORDINATOR_CONDUCTOR_PARTS_H

#include <stdatomic.h>
#include <uv.h>

#include "coordinator/conductor.h"
#include "coordinator/conductor_relay.h"
#include "coordinator/invoke.h"
#include "coordinator/outputs.h"
#include "coordinator/plan.h"
#include "coordinator/progress.h"
#include "coordinator/rate.h"
#include "coordinator/scratch.h"

enum {
    CONDUCT_TICK_MS = 100,
    CONDUCT_LATE_MS = 1000,
    CONDUCT_RELAY_MS = 10000,
    CONDUCT_REAP_MS = 10000
};

typedef struct QueuedEvent {
    JobEvent event;
    char text[ERR_NOTE_BYTES]; /* the event's text points here */
} QueuedEvent;

typedef struct DelayedAction {
    JobAction action;
    int64_t due_ms;
    int64_t give_up_ms; /* when a write into the relay is not tried again; 0: a first try */
} DelayedAction;

/* What replica 0 of a stage says it saved. */
typedef struct SavedPart {
    int64_t step;
    int32_t stage;
    Saved saved;
} SavedPart;

/* A commit of a save, or a cleaning of checkpoints. */
typedef struct Store {
    uv_work_t work;
    struct Store *next;
    struct Conductor *conductor;
    bool clean, last_skipped;
    int64_t step;
    int rc;
    ErrNote note;
    Saved saved[]; /* (n_stages) */
} Store;

typedef struct Beats { /* of one worker, by the order of JobWorker */
    int64_t attempt, busy_us, wait_us;
    int64_t traffic_attempt;
    bool traffic_final;   /* that attempt has ended and said so itself */
    Traffic now, earlier; /* of traffic_attempt; of all before it */
} Beats;

typedef struct Conductor {
    JobConfig *config;
    const ConductOptions *options;
    ConductResult *result;
    Job job;
    JobActions actions;
    QueuedEvent *events; /* a queue: [first_event, n_events) */
    size_t first_event, n_events, cap_events;
    bool stepping; /* events are being worked off */
    DelayedAction *delayed;
    size_t n_delayed, cap_delayed;

    uv_loop_t loop;
    uv_signal_t signals[3];
    uv_timer_t tick;
    uv_async_t reported;
    uv_work_t preparing;
    int prepare_rc;
    ErrNote prepare_note;
    atomic_bool stop_preparing;
    int n_working; /* jobs on libuv's thread pool */
    Store *stores; /* one at a time, in order; the first one is under way */
    bool planned, finishing, closed, measuring_told;
    int64_t begin_ms, finish_ms, resume_ms;
    int64_t tick_ms, blind_until_ms; /* the last tick; nobody counts as silent before that */

    Outputs *outputs;
    OutputsLock lock;
    Scratch scratch_out;                  /* none unless the outputs are scratch */
    Scratch scratch_relay;                /* none unless the relay is */
    char resume_folder[ORDER_PATH_BYTES]; /* the checkpoint the job begins with; "" none */
    int64_t resume_step;
    bool resume_skipped;    /* the update before it was */
    ErrNote resume_warning; /* for the events; code 0: none */
    Profile profile;
    Plan plan;
    JobSetup setup;
    Order order; /* the template with plan and places; borrows from config and plan */
    KeySpace space;
    Relay *relay; /* the write's or the cleaning's while one is running */
    RelayWrite write;
    RelayCleaning cleaning;
    int64_t *generations; /* that this run has claimed: the last one is the present one */
    size_t n_generations;
    bool resuming; /* no generation is under way until the next one is taken */
    Watch *watch;
    Invoker *invoker;
    Progress progress;
    Beats *beats;     /* (n_workers) */
    Traffic own;      /* of our relay handles that are closed */
    SavedPart *parts; /* of the saves that are not committed yet */
    size_t n_parts, cap_parts;
    int64_t n_rows, n_skipped; /* in this run: rows; steps skipped */
    Rate rate;
} Conductor;

int64_t conductor_now_ms(void);
/* Queue an event and work it off, unless that is under way already. text may be NULL. */
void conductor_event(Conductor *conductor, const JobEvent *event, const char *text);
/* The conductor itself cannot go on: the error note becomes the job's failure. */
void conductor_fail(Conductor *conductor, int code);

/* conductor_act.c: do one action of the state machine, now or later. */
void conductor_act(Conductor *conductor, const JobAction *action);
void conductor_act_delayed(Conductor *conductor);
void conductor_act_put_off(Conductor *conductor); /* a write has ended */
void conductor_delay(Conductor *conductor, const JobAction *action, int64_t delay_ms,
                     int64_t give_up_ms);

/* conductor_generation.c: what others left in the relay is never read. */
/* Take the first generation from `first` on that nobody has. */
int conductor_claim(Conductor *conductor, int64_t first);
int conductor_watch(Conductor *conductor, int64_t old_generation);
void conductor_act_resume(Conductor *conductor);
/* At every tick: go on, once nothing of the old generation runs any more. */
void conductor_try_resume(Conductor *conductor);
int conductor_drop_generations(Conductor *conductor);
void conductor_tidy_generations(Conductor *conductor);

/* conductor_report.c: what the watch and the invoker report. */
void conductor_take_reports(Conductor *conductor);
void conductor_worker_ended(void *ctx, WorkerId worker, const WorkerResult *result);
void conductor_show(Conductor *conductor);
/* What the workers of a stage (-1: all) have moved, as far as they have told. */
Traffic conductor_traffic(const Conductor *conductor, int32_t stage);
/* An event for each stage about it; at the end of a run also one about our own. */
int conductor_tell_traffic(Conductor *conductor, int64_t step, bool end);

#endif

/* The conductor: runs one job from beginning to end on a libuv loop. It does what the job's state
 * machine (coordinator/job.h) tells it, and tells that what came of it: it claims a generation in
 * the relay (another one, where the relay loses objects), starts and watches worker processes,
 * commits checkpoints, writes the outputs, and leaves nothing behind in the relay, however the job
 * ends.
 *
 * Signals: the first SIGINT (Ctrl-C) or SIGTERM asks all workers to save and end, the second ends
 * at once; the exit code is 130 after SIGINT and 6 after SIGTERM (and SIGHUP, unless it was ignored
 * from the start, as under nohup). Those that come before the loop runs, or after it, are
 * interrupt.h's. */
#ifndef FUNCPIPE_COORDINATOR_CONDUCTOR_H
#define FUNCPIPE_COORDINATOR_CONDUCTOR_H

#include "coordinator/config.h"
#include "coordinator/job.h"
#include "core/traffic.h"

typedef struct ConductOptions {
    const char *out_folder; /* NULL: a scratch folder, removed at the end */
    const char *resume;     /* NULL: from the start; "latest": of out_folder; else a checkpoint's
                               folder, or a folder that holds checkpoints */
    const char *job_file;   /* the job's, which the outputs must not replace; NULL: none */
    bool overwrite;         /* begin anew in a folder with outputs; also what another's checkpoint
                               goes on with */
    bool trace;
    bool json;               /* progress as JSON lines on stdout */
    bool quiet;              /* no progress at all */
    const char *worker_path; /* the worker binary */
} ConductOptions;

typedef struct ConductResult {
    JobState state;
    int exit_code;
    ErrNote failure;    /* why, unless the state is done */
    bool ran;           /* workers were started */
    int64_t step;       /* steps done */
    int64_t saved_step; /* of the last committed checkpoint; -1: none */
    bool resumable;     /* the outputs have a checkpoint to go on from */
    int64_t n_skipped;  /* updates skipped: loss or gradients were not finite */
    double loss;        /* of the last step; not a number: none */
    bool has_eval;
    double eval_loss, eval_accuracy; /* of the last evaluation */
    int64_t n_restarts;
    int64_t n_resumes; /* of all workers, since the relay had lost objects */
    Traffic traffic;   /* of all workers in this run, those that died as of their last heartbeats */
} ConductResult;

/* Run the job (config.order.eval_only: one evaluation of the checkpoint `resume`). The plan is
 * written into `config`. Always fills *out_result; returns 0 when the state is done, else the
 * error. */
int conduct(JobConfig *config, const ConductOptions *options, ConductResult *out_result);

#endif

/* Outputs: the folder a job leaves its results in.
 *
 *     job.json        the resolved job file      metrics.csv, metrics.jsonl  one row a step
 *     plan.json       the plan                   events.jsonl  all that happened, one line each
 *     checkpoints/STEP/                          logs/worker-STAGE.REPLICA.ATTEMPT.log
 *     trace.json      with --trace: all workers' traces in one (Chrome's trace viewer)
 *     .funcpipe-lock  while a run writes there: its process number
 *
 * Rows stand in order of steps, each step once: when a job resumes at step s, rows of steps >= s go
 * first. A row waits for its evaluation; the rows behind it wait with it. */
#ifndef FUNCPIPE_COORDINATOR_OUTPUTS_H
#define FUNCPIPE_COORDINATOR_OUTPUTS_H

#include "core/buf.h"
#include "core/json.h"
#include "core/order.h"
#include "core/traffic.h"

typedef enum OutputsMode {
    OUTPUTS_NEW,      /* the folder is absent or empty */
    OUTPUTS_RESUME,   /* go on in it, from resume_step */
    OUTPUTS_OVERWRITE /* remove what a job left there before */
} OutputsMode;

#define OUTPUTS_LOCK_NAME ".funcpipe-lock"

/* The folder is one run's while it lives; the kernel lets go of it when the process has gone. */
typedef struct OutputsLock {
    int fd; /* -1: not held */
    char path[ORDER_PATH_BYTES];
} OutputsLock;

typedef struct MetricsRow {
    int64_t step;    /* of the train step, from 0 */
    int64_t epoch;   /* from 0 */
    int64_t wall_ms; /* when its norms were complete */
    double loss, lr, grad_norm, samples_per_s;
    int64_t skipped; /* updates skipped so far */
    Traffic traffic; /* of all workers so far, as they have told */
    bool wants_eval, has_eval;
    double eval_loss, eval_accuracy;
} MetricsRow;

typedef struct Outputs Outputs;

/* Like mkdir -p. */
int outputs_make_folder(const char *path);
/* ERR_EXISTS: another run holds the folder, and which; ERR_NOT_FOUND: there is none. */
int outputs_lock(const char *folder, OutputsLock *out_lock);
void outputs_unlock(OutputsLock *lock); /* and removes the file; NULL or not held: nothing */

typedef struct OutputsStart {
    const char *job; /* its name */
    OutputsMode mode;
    int64_t resume_step;
    const char *from;     /* absolute: the checkpoint of resume_step; NULL or "": none */
    const char *job_file; /* that was given, never replaced or removed; NULL: none */
} OutputsStart;

/* Look whether a run may write there; nothing in the folder, which is made, is changed.
 * ERR_EXISTS: the folder holds something and the mode is OUTPUTS_NEW; or it has not been a job's
 * (any job's: events.jsonl tells), or is another job's by its job.json; or `from` is not one of its
 * checkpoints, so that two runs would be mixed; or it has sound checkpoints newer than resume_step;
 * or job_file is one of its files; or it is to be overwritten and holds something that no run makes
 * (which is named), or what `from` lies in. */
int outputs_open(const char *folder, const OutputsStart *start, Outputs **out_outputs);
/* The job runs: remove what is to be overwritten, or cut the rows that come again and set damaged
 * checkpoints aside that are newer; then make the files. Events of before are written only now, and
 * never where the job did not come so far; rows and JSON files only from now on. */
int outputs_begin(Outputs *outputs);
void outputs_close(Outputs *outputs); /* writes the rows that still wait */

const char *outputs_folder(const Outputs *outputs); /* absolute */
const char *outputs_checkpoints(const Outputs *outputs);
const char *outputs_logs(const Outputs *outputs);

/* Write FOLDER/name, whole or not at all. */
int outputs_write_json(Outputs *outputs, const char *name, const cJSON *value);
/* Append {"time":..,"event":kind, MEMBERS, "text":text}: `members` is JSON text such as
 * "\"step\":12", "" for none; text may be NULL. */
int outputs_event(Outputs *outputs, const char *kind, const char *text, const char *members, ...)
    __attribute__((format(printf, 4, 5)));
int outputs_row(Outputs *outputs, const MetricsRow *row);
/* Rows of steps from `step` on go, those that wait too: they come again. */
int outputs_cut(Outputs *outputs, int64_t step);
/* The evaluation behind train step `step` is in. */
int outputs_evaluation(Outputs *outputs, int64_t step, double loss, double accuracy);
/* Merge LOGS/trace-*.json into FOLDER/trace.json, and remove them. */
int outputs_merge_traces(Outputs *outputs);

/* Remove a folder and all in it; what is not there is no error. Follows no links. */
int outputs_remove_tree(const char *folder);

#endif

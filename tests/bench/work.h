/* A job of real worker processes, driven straight by orders: no coordinator stands beside it. One
 * folder in memory holds relay, orders, traces and the final save, and nothing of the relay is
 * dropped before the end, so runs are short. */
#ifndef FUNCPIPE_TESTS_BENCH_WORK_H
#define FUNCPIPE_TESTS_BENCH_WORK_H

#include "worker/run.h"

enum { WORK_MAX_STAGES = 8 };

typedef struct Work {
    Order order; /* template: stage and program are filled in per worker */
    char schedule[32];
    int32_t warmup, hoist;
    bool untraced;
    char folder[64];
    char preload[256];  /* library put in front of the workers' own; "": none */
    int64_t spawn_ns;   /* of the last run: when the first worker was started */
    int64_t peak_bytes; /* the largest resident set of a worker */
    double busy_s;      /* processor time of all workers */
} Work;

/* Around a model (taken over): generated data, batch 64 in one micro-batch, SGD with momentum, one
 * stage, one thread. Ends the program on any failure, as all of this does. */
void work_init(Work *work, Model *take_model, int64_t samples);
/* Around a model of the zoo; options as JSON, or NULL. */
void work_init_zoo(Work *work, const char *name, const char *options, int64_t samples);
/* Around stages that sleep instead of computing, delay_ms each forward and each backward; what
 * crosses from one to the next has 16 KiB a sample. Cut already. */
void work_init_delays(Work *work, int32_t n_stages, int delay_ms, int64_t samples);
void work_done(Work *work); /* removes the folder */
void work_batch(Work *work, int64_t batch, int32_t micro_rows);
void work_steps(Work *work, int64_t n_steps);
/* Cut into ends[]. */
void work_cut(Work *work, const int32_t *ends, int32_t n_stages);
/* Cut where the layers' measured times balance. Returns the sum of all layers' times over the
 * slowest stage's, the speed-up without bubbles and transfers. */
double work_balance(Work *work, int32_t n_stages);

/* Run all workers to the end. */
void work_run(Work *work);
/* The same with threads of this process instead, over the relay that `env` opens. Nothing of
 * `spawn_ns` and what follows it is filled in. */
void work_run_threads(const Work *work, const WorkerEnv *env);
const char *work_worker_path(void);

/* One instruction of a trace, times in ns of the monotonic clock. */
typedef struct WorkRecord {
    char name[24];
    int64_t step, start_ns, end_ns, wait_ns;
} WorkRecord;
/* The records of a stage's worker; free() them. */
int32_t work_trace(const Work *work, int32_t stage, WorkRecord **out_records);
/* Durations in ms of the steps after the first n_warm: from the last worker's update to the next
 * one. Returns how many. */
int work_step_ms(const Work *work, int n_warm, double *out_ms, int max_n);

#endif

/* Schedules: generators of programs. A generator says only in which order one worker of a stage
 * computes the forwards and backwards of its own micro-batches; lowering (core/program.h) adds all
 * the rest. Nobody but the coordinator knows these names.
 *
 *     gpipe    F0 F1 F2 F3 B0 B1 B2 B3          all forwards first (Huang et al., GPipe, 2019)
 *     1f1b     F0 F1 B0 F2 B1 F3 B2 B3          one forward, one backward, after a warm-up
 *                                               (Narayanan et al., PipeDream, 2019)
 *
 * Backwards ascend in every schedule, because gradients add up in micro order. */
#ifndef FUNCPIPE_COORDINATOR_SCHEDULE_H
#define FUNCPIPE_COORDINATOR_SCHEDULE_H

#include "core/program.h"

/* The worker a program is for, and what the generators go by. */
typedef struct ScheduleWorker {
    int32_t stage, n_stages;
    int32_t replica, replicas;
    int32_t n_micro; /* of the whole batch; the worker's own are those order_micro_owner gives it */
    int32_t warmup;  /* 0: the schedule's default */
} ScheduleWorker;

typedef struct ScheduleSpec {
    char name[32];
    int32_t warmup;
    bool recompute; /* of the stage at hand */
    int32_t hoist;  /* micro-batches that fetches run ahead (program_hoist) */
} ScheduleSpec;

/* The names, for error messages and the job file's checks; NULL ends the list. */
extern const char *const schedule_names[];
enum { SCHEDULE_N = 2 };

/* Generators: append compute instructions to *program, which the caller has initialised. */
int schedule_gpipe(const ScheduleWorker *worker, Program *program);
/* Before the backward of micro-batch m stand all own forwards up to m + depth - 1, so a replica has
 * at most ceil(depth / replicas) micro-batches in flight. depth is schedule_depth of the stage;
 * since it never grows from one stage to the next, no replica counts can make the workers wait for
 * one another in a ring. */
int schedule_1f1b(const ScheduleWorker *worker, Program *program);
int schedule_forward(const ScheduleWorker *worker, Program *program);
/* Warm-up depth of a stage. `warmup` is that of stage 0; the last stage has 1, and those between go
 * down evenly, rounded up. 0: n_stages, so stage x has n_stages - x. */
int32_t schedule_depth(int32_t warmup, int32_t stage, int32_t n_stages);

/* The whole program of one worker: generated, lowered, recomputing where asked, hoisted, linked and
 * checked. A worker without own micro-batches gets "R U". */
int schedule_build(const ScheduleSpec *spec, const Stage *stage, int32_t replica, int32_t replicas,
                   int32_t n_micro, Program *out_program);
/* The forward-only program for evaluation; hoisted like the training one. */
int schedule_build_eval(const ScheduleSpec *spec, const Stage *stage, int32_t replica,
                        int32_t replicas, int32_t n_micro, Program *out_program);

#endif

#include "coordinator/schedule.h"

#include <string.h>

#include "core/err.h"
#include "core/order.h"
#include "core/text.h"

const char *const schedule_names[] = {"1f1b", "gpipe", NULL};

static int (*const generators[SCHEDULE_N])(const ScheduleWorker *, Program *) = {schedule_1f1b,
                                                                                 schedule_gpipe};

static int find_schedule(const char *name, int *out_index) {
    for (int i = 0; i < SCHEDULE_N; i++) {
        if (strcmp(schedule_names[i], name) == 0) {
            *out_index = i;
            return 0;
        }
    }
    const char *nearest = text_nearest(name, schedule_names, SCHEDULE_N);
    if (nearest)
        return err_set(ERR_ARGUMENT, "unknown schedule '%s' (did you mean '%s'?)", name, nearest);
    return err_set(ERR_ARGUMENT, "unknown schedule '%s' (expected one of: %s, %s)", name,
                   schedule_names[0], schedule_names[1]);
}

/* The worker's first own micro-batch; the next ones follow in steps of `replicas`. */
static int32_t first_own(const ScheduleWorker *worker) {
    return worker->replica;
}

static int add(const ScheduleWorker *worker, Opcode op, int32_t micro, Program *program) {
    return program_add(program, op, worker->stage, micro, -1);
}

int schedule_forward(const ScheduleWorker *worker, Program *program) {
    for (int32_t m = first_own(worker); m < worker->n_micro; m += worker->replicas)
        TRY(add(worker, INSTR_FORWARD, m, program));
    return 0;
}

int schedule_gpipe(const ScheduleWorker *worker, Program *program) {
    TRY(schedule_forward(worker, program));
    for (int32_t m = first_own(worker); m < worker->n_micro; m += worker->replicas)
        TRY(add(worker, INSTR_BACKWARD, m, program));
    return 0;
}

int32_t schedule_depth(int32_t warmup, int32_t stage, int32_t n_stages) {
    int64_t above_one = (warmup > 0 ? warmup : n_stages) - 1;
    int64_t behind = n_stages - 1 - stage; /* stages behind this one */
    int64_t span = n_stages > 1 ? n_stages - 1 : 1;
    return (int32_t)(1 + (above_one * behind + span - 1) / span);
}

int schedule_1f1b(const ScheduleWorker *worker, Program *program) {
    int32_t depth = schedule_depth(worker->warmup, worker->stage, worker->n_stages);
    int32_t next = first_own(worker);
    for (int32_t m = first_own(worker); m < worker->n_micro; m += worker->replicas) {
        for (; next < worker->n_micro && next <= m + depth - 1; next += worker->replicas)
            TRY(add(worker, INSTR_FORWARD, next, program));
        TRY(add(worker, INSTR_BACKWARD, m, program));
    }
    return 0;
}

static int check_worker(const ScheduleWorker *worker) {
    if (worker->n_micro < 1 || worker->n_micro > PROGRAM_MAX_MICRO)
        return err_set(ERR_ARGUMENT, "%d micro-batches, expected 1 to %d", worker->n_micro,
                       PROGRAM_MAX_MICRO);
    if (worker->replicas < 1 || worker->replica < 0 || worker->replica >= worker->replicas)
        return err_set(ERR_ARGUMENT, "replica %d of %d", worker->replica, worker->replicas);
    if (worker->warmup < 0 || worker->warmup > PROGRAM_MAX_MICRO)
        return err_set(ERR_ARGUMENT, "a warm-up depth of %d, expected 0 to %d", worker->warmup,
                       PROGRAM_MAX_MICRO);
    return 0;
}

/* Generate into `compute`, lower, and run the passes over *program. */
static int build(const ScheduleSpec *spec, const Stage *stage, const ScheduleWorker *worker,
                 bool train, Program *compute, Program *program) {
    int index = 0;
    TRY(check_worker(worker));
    TRY(find_schedule(spec->name, &index));
    TRY(train ? generators[index](worker, compute) : schedule_forward(worker, compute));
    TRY(program_lower(stage, compute, program));
    if (train && program->n_instrs == 0) {
        TRY(program_add(program, INSTR_REDUCE, worker->stage, -1, -1));
        TRY(program_add(program, INSTR_UPDATE, worker->stage, -1, -1));
    }
    if (train && spec->recompute)
        TRY(program_recompute(program, worker->stage));
    TRY(program_hoist(program, spec->hoist));
    TRY(program_link(program));
    return program_check(program, stage, worker->replica, worker->replicas, worker->n_micro);
}

static int build_either(const ScheduleSpec *spec, const Stage *stage, int32_t replica,
                        int32_t replicas, int32_t n_micro, bool train, Program *out_program) {
    ScheduleWorker worker = {stage->index, stage->n_stages, replica,
                             replicas,     n_micro,         spec->warmup};
    Program compute;
    Program program;
    program_init(&compute);
    program_init(&program);
    int rc = build(spec, stage, &worker, train, &compute, &program);
    program_done(&compute);
    if (rc < 0) {
        program_done(&program);
        return rc;
    }
    *out_program = program;
    return 0;
}

int schedule_build(const ScheduleSpec *spec, const Stage *stage, int32_t replica, int32_t replicas,
                   int32_t n_micro, Program *out_program) {
    return build_either(spec, stage, replica, replicas, n_micro, true, out_program);
}

int schedule_build_eval(const ScheduleSpec *spec, const Stage *stage, int32_t replica,
                        int32_t replicas, int32_t n_micro, Program *out_program) {
    return build_either(spec, stage, replica, replicas, n_micro, false, out_program);
}

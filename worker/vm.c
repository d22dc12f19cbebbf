/* One mutex guards everything that two threads see: the scoreboard, where each lane stands, the
 * records, the end of the run. An instruction takes it twice, for some tens of nanoseconds, and
 * wakes only a lane that waits for exactly what it completed. The host is called without it.
 *
 * How a run ends: `end_step` bounds every lane, and an early end only lowers it, so a fetch beyond
 * it is of no interest any more, nor is its error. The first error sets `failed`; whoever set it
 * calls host.interrupt, counted by n_interrupting so that vm_run takes it back only afterwards.
 * An abort between two runs ends the next one at once. */
#include "worker/vm.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/process.h"

typedef enum LaneState { LANE_ENDED, LANE_IDLE, LANE_WAITING, LANE_RUNNING } LaneState;

typedef struct Lane { /* one queue: its instructions and the thread that takes them */
    Vm *vm;
    Queue queue;
    int32_t n_instrs;
    int32_t *instrs; /* (n_instrs) indices in the program, ascending */
    pthread_t thread;
    bool started; /* thread is to be joined */
    pthread_cond_t wake;
    LaneState state;
    int64_t step;         /* while running */
    int64_t since_ns;     /* waiting or running since */
    int32_t awaited;      /* while waiting: the instruction that must be done, ... */
    int64_t awaited_step; /* ... and in which step */
} Lane;

struct Vm {
    const Program *program;
    VmHost host;
    Lane lanes[QUEUE_N];
    pthread_mutex_t mutex;
    int64_t *done_step; /* (n_instrs) the last step in which it is done */
    bool running, failed, interrupted, ended_early;
    int n_interrupting; /* threads inside host.interrupt(true) */
    int64_t end_step;
    ErrNote note; /* when failed; between runs, the pending abort's */
    VmTotals totals;
    VmRecord *records; /* (record_mask + 1) ring */
    int64_t record_mask, n_executed;
    int64_t label;
};

static int check_program(const Program *program) {
    if (!program->linked)
        return err_set(ERR_INTERNAL, "a program without dependencies cannot be run");
    for (int32_t i = 0; i < program->n_instrs; i++) {
        const Instr *instr = &program->instrs[i];
        if (instr->first_dep < 0 || instr->n_deps < 0 ||
            instr->n_deps > program->n_deps - instr->first_dep)
            return err_set(ERR_INTERNAL, "instruction %d has impossible dependencies", (int)i);
    }
    for (int32_t i = 0; i < program->n_deps; i++) {
        const Dep *dep = &program->deps[i];
        if (dep->instr < 0 || dep->instr >= program->n_instrs || dep->steps_back < 0)
            return err_set(ERR_INTERNAL, "dependency %d names no instruction", (int)i);
    }
    return 0;
}

static int open_lanes(Vm *vm) {
    const Program *program = vm->program;
    for (int q = 0; q < QUEUE_N; q++) {
        vm->lanes[q].instrs = calloc((size_t)program->n_instrs + 1, sizeof(int32_t));
        if (!vm->lanes[q].instrs)
            return err_set(ERR_MEMORY, "the queues of %d instructions", (int)program->n_instrs);
    }
    for (int32_t i = 0; i < program->n_instrs; i++) {
        Lane *lane = &vm->lanes[program_queue(program->instrs[i].op)];
        lane->instrs[lane->n_instrs++] = i;
    }
    return 0;
}

static int open_records(Vm *vm, int32_t n_records) {
    if (n_records < 0 || n_records > 1 << 30)
        return err_set(ERR_ARGUMENT, "%d records: not within 0 and 2^30", (int)n_records);
    if (n_records == 0)
        return 0;
    size_t n = 1;
    while (n < (size_t)n_records)
        n *= 2;
    vm->records = calloc(n, sizeof *vm->records);
    if (!vm->records)
        return err_set(ERR_MEMORY, "%zu records of instructions", n);
    vm->record_mask = (int64_t)n - 1;
    return 0;
}

int vm_open(const Program *program, const VmHost *host, int32_t n_records, Vm **out_vm) {
    TRY(check_program(program));
    Vm *vm = calloc(1, sizeof *vm);
    if (!vm)
        return err_set(ERR_MEMORY, "the interpreter");
    vm->program = program;
    vm->host = *host;
    pthread_mutex_init(&vm->mutex, NULL);
    for (int q = 0; q < QUEUE_N; q++) {
        vm->lanes[q] = (Lane){.vm = vm, .queue = (Queue)q};
        pthread_cond_init(&vm->lanes[q].wake, NULL);
    }
    int rc = 0;
    vm->done_step = calloc((size_t)program->n_instrs + 1, sizeof *vm->done_step);
    if (!vm->done_step)
        rc = err_set(ERR_MEMORY, "the scoreboard of %d instructions", (int)program->n_instrs);
    if (rc >= 0)
        rc = open_lanes(vm);
    if (rc >= 0)
        rc = open_records(vm, n_records);
    if (rc < 0) {
        vm_close(vm);
        return rc;
    }
    *out_vm = vm;
    return 0;
}

void vm_close(Vm *vm) {
    if (!vm)
        return;
    assert(!vm->running);
    for (int q = 0; q < QUEUE_N; q++) {
        pthread_cond_destroy(&vm->lanes[q].wake);
        free(vm->lanes[q].instrs);
    }
    pthread_mutex_destroy(&vm->mutex);
    free(vm->done_step);
    free(vm->records);
    free(vm);
}

static void wake_all(Vm *vm) {
    for (int q = 0; q < QUEUE_N; q++)
        pthread_cond_signal(&vm->lanes[q].wake);
}

/* With the mutex held; lets go of it while the host is called. */
static void interrupt_host(Vm *vm) {
    vm->interrupted = true;
    vm->n_interrupting++;
    pthread_mutex_unlock(&vm->mutex);
    if (vm->host.interrupt)
        vm->host.interrupt(vm->host.ctx, true);
    pthread_mutex_lock(&vm->mutex);
    vm->n_interrupting--;
    pthread_cond_signal(&vm->lanes[QUEUE_COMPUTE].wake);
}

/* With the mutex held: the run ends with this error unless it had one before. */
static void fail(Vm *vm, const ErrNote *note) {
    if (vm->failed)
        return;
    vm->failed = true;
    vm->note = *note;
    wake_all(vm);
    interrupt_host(vm);
}

/* An error of the calling thread in `step`; of no interest beyond the end. */
static void fail_in_step(Vm *vm, int code, int64_t step) {
    ErrNote note;
    err_copy(&note);
    note.code = code;
    pthread_mutex_lock(&vm->mutex);
    if (step < vm->end_step)
        fail(vm, &note);
    pthread_mutex_unlock(&vm->mutex);
}

static bool goes_on(const Vm *vm, int64_t step) {
    return !vm->failed && step < vm->end_step;
}

/* Wait for the dependencies. False: the lane ends here. */
static bool begin_instr(Lane *lane, int64_t step, VmRecord *record) {
    Vm *vm = lane->vm;
    const Program *program = vm->program;
    const Instr *instr = &program->instrs[record->instr];
    bool waited = false;
    int64_t ready_ns = clock_now_ns();
    pthread_mutex_lock(&vm->mutex);
    lane->since_ns = ready_ns;
    for (int32_t i = 0; i < instr->n_deps && goes_on(vm, step);) {
        const Dep *dep = &program->deps[instr->first_dep + i];
        int64_t needed = step - dep->steps_back;
        if (vm->done_step[dep->instr] >= needed) {
            i++;
            continue;
        }
        lane->state = LANE_WAITING;
        lane->awaited = dep->instr;
        lane->awaited_step = needed;
        waited = true;
        pthread_cond_wait(&lane->wake, &vm->mutex);
    }
    bool go = goes_on(vm, step);
    record->start_ns = waited ? clock_now_ns() : ready_ns;
    record->wait_ns = record->start_ns - ready_ns;
    lane->state = go ? LANE_RUNNING : LANE_IDLE;
    lane->step = step;
    lane->since_ns = record->start_ns;
    if (lane->queue == QUEUE_COMPUTE)
        vm->totals.wait_ns += record->wait_ns;
    pthread_mutex_unlock(&vm->mutex);
    return go;
}

static void finish_instr(Lane *lane, const VmRecord *record) {
    Vm *vm = lane->vm;
    bool wake[QUEUE_N] = {false};
    pthread_mutex_lock(&vm->mutex);
    vm->done_step[record->instr] = record->step;
    lane->state = LANE_IDLE;
    for (int q = 0; q < QUEUE_N; q++) {
        const Lane *other = &vm->lanes[q];
        wake[q] = other->state == LANE_WAITING && other->awaited == record->instr &&
                  other->awaited_step <= record->step;
    }
    if (vm->records)
        vm->records[vm->n_executed & vm->record_mask] = *record;
    vm->n_executed++;
    if (lane->queue == QUEUE_COMPUTE)
        vm->totals.busy_ns += record->end_ns - record->start_ns;
    pthread_mutex_unlock(&vm->mutex);
    for (int q = 0; q < QUEUE_N; q++) {
        if (wake[q])
            pthread_cond_signal(&vm->lanes[q].wake);
    }
}

/* False: the lane ends here. */
static bool run_instr(Lane *lane, int32_t index, int64_t step) {
    Vm *vm = lane->vm;
    VmRecord record = {
        .step = step, .instr = index, .queue = (int32_t)lane->queue, .label = vm->label};
    if (!begin_instr(lane, step, &record))
        return false;
    int rc = vm->host.run(vm->host.ctx, &vm->program->instrs[index], step, &record.bytes);
    if (rc < 0) {
        fail_in_step(vm, rc, step);
        return false;
    }
    record.end_ns = clock_now_ns();
    finish_instr(lane, &record);
    return true;
}

static bool run_step(Lane *lane, int64_t step) {
    for (int32_t i = 0; i < lane->n_instrs; i++) {
        if (!run_instr(lane, lane->instrs[i], step))
            return false;
    }
    return true;
}

static void end_lane(Lane *lane) {
    Vm *vm = lane->vm;
    pthread_mutex_lock(&vm->mutex);
    lane->state = LANE_ENDED;
    pthread_mutex_unlock(&vm->mutex);
    pthread_cond_signal(&vm->lanes[QUEUE_COMPUTE].wake);
}

/* A queue thread. Its lane has instructions, so begin_instr notices the end. */
static void *queue_main(void *arg) {
    Lane *lane = arg;
    Vm *vm = lane->vm;
    pthread_setname_np(pthread_self(), lane->queue == QUEUE_FETCH ? "fetch" : "publish");
    process_work_briefly();
    int64_t step = lane->step;
    int rc = vm->host.thread_start ? vm->host.thread_start(vm->host.ctx, lane->queue) : 0;
    if (rc < 0) {
        fail_in_step(vm, rc, step);
    } else {
        while (run_step(lane, step))
            step++;
    }
    end_lane(lane);
    return NULL;
}

/* False: no further step. */
static bool end_compute_step(Vm *vm, int64_t step) {
    int rc = vm->host.step_end ? vm->host.step_end(vm->host.ctx, step) : 0;
    if (rc < 0) {
        fail_in_step(vm, rc, step);
        return false;
    }
    pthread_mutex_lock(&vm->mutex);
    vm->totals.n_steps++;
    if (rc > 0) {
        vm->ended_early = true;
        vm->end_step = step + 1;
        wake_all(vm);
    }
    bool go = goes_on(vm, step + 1);
    if (go)
        vm->totals.step = step + 1;
    pthread_mutex_unlock(&vm->mutex);
    return go;
}

static void run_compute(Vm *vm, int64_t first_step) {
    Lane *lane = &vm->lanes[QUEUE_COMPUTE];
    int64_t step = first_step;
    while (run_step(lane, step) && end_compute_step(vm, step))
        step++;
    end_lane(lane);
}

/* Have the queues done all that is wanted? After an early end a fetch may be inside the host beyond
 * it: that one must be interrupted, but only when the publications are done. */
static bool is_drained(const Vm *vm) {
    const Lane *fetch = &vm->lanes[QUEUE_FETCH];
    return vm->lanes[QUEUE_PUBLISH].state == LANE_ENDED &&
           (fetch->state == LANE_ENDED ||
            (fetch->state == LANE_RUNNING && fetch->step >= vm->end_step));
}

static void drain(Vm *vm) {
    pthread_mutex_lock(&vm->mutex);
    while (!vm->failed && !is_drained(vm))
        pthread_cond_wait(&vm->lanes[QUEUE_COMPUTE].wake, &vm->mutex);
    if (!vm->failed && vm->lanes[QUEUE_FETCH].state != LANE_ENDED)
        interrupt_host(vm);
    pthread_mutex_unlock(&vm->mutex);
    for (int q = 0; q < QUEUE_N; q++) {
        if (vm->lanes[q].started)
            pthread_join(vm->lanes[q].thread, NULL);
    }
}

static int begin_run(Vm *vm, int64_t first_step, int64_t end_step) {
    if (first_step < 0 || end_step < first_step)
        return err_set(ERR_ARGUMENT, "steps [%lld, %lld) cannot be run", (long long)first_step,
                       (long long)end_step);
    pthread_mutex_lock(&vm->mutex);
    assert(!vm->running);
    if (vm->failed) { /* aborted before it began */
        vm->failed = false;
        int rc = err_restore(&vm->note);
        pthread_mutex_unlock(&vm->mutex);
        return rc;
    }
    vm->running = true;
    vm->interrupted = vm->ended_early = false;
    vm->end_step = end_step;
    vm->totals.step = first_step;
    for (int32_t i = 0; i < vm->program->n_instrs; i++)
        vm->done_step[i] = first_step - 1;
    for (int q = 0; q < QUEUE_N; q++) {
        Lane *lane = &vm->lanes[q];
        lane->started = q != QUEUE_COMPUTE && lane->n_instrs > 0 && first_step < end_step;
        lane->state = lane->started ? LANE_IDLE : LANE_ENDED;
        lane->step = first_step;
    }
    pthread_mutex_unlock(&vm->mutex);
    return 0;
}

static bool start_queues(Vm *vm, int64_t first_step) {
    bool all = true;
    for (int q = 0; q < QUEUE_N; q++) {
        Lane *lane = &vm->lanes[q];
        if (!lane->started)
            continue;
        int errnum = all ? pthread_create(&lane->thread, NULL, queue_main, lane) : 0;
        if (errnum != 0)
            fail_in_step(vm, err_errno(ERR_MEMORY, errnum, "starting a thread"), first_step);
        if (!all || errnum != 0) {
            all = false;
            lane->started = false;
            end_lane(lane);
        }
    }
    return all;
}

static int end_run(Vm *vm) {
    pthread_mutex_lock(&vm->mutex);
    while (vm->n_interrupting > 0)
        pthread_cond_wait(&vm->lanes[QUEUE_COMPUTE].wake, &vm->mutex);
    vm->running = false; /* from here on an abort waits for the next run */
    int rc = vm->ended_early ? 1 : 0;
    if (vm->failed)
        rc = err_restore(&vm->note);
    vm->failed = false;
    bool interrupted = vm->interrupted;
    pthread_mutex_unlock(&vm->mutex);
    if (interrupted && vm->host.interrupt)
        vm->host.interrupt(vm->host.ctx, false);
    return rc;
}

int vm_run(Vm *vm, int64_t first_step, int64_t end_step) {
    TRY(begin_run(vm, first_step, end_step));
    if (start_queues(vm, first_step) && first_step < end_step)
        run_compute(vm, first_step);
    drain(vm);
    return end_run(vm);
}

void vm_label(Vm *vm, int64_t label) {
    assert(!vm->running);
    vm->label = label;
}

void vm_totals(const Vm *vm, VmTotals *out_totals) {
    Vm *self = (Vm *)vm; /* the mutex is all that changes */
    int64_t now = clock_now_ns();
    pthread_mutex_lock(&self->mutex);
    VmTotals totals = vm->totals;
    const Lane *lane = &vm->lanes[QUEUE_COMPUTE];
    int64_t under_way = now > lane->since_ns ? now - lane->since_ns : 0;
    if (lane->state == LANE_WAITING)
        totals.wait_ns += under_way;
    if (lane->state == LANE_RUNNING)
        totals.busy_ns += under_way;
    pthread_mutex_unlock(&self->mutex);
    *out_totals = totals;
}

void vm_abort(Vm *vm, int code, const char *text) {
    assert(code < 0);
    ErrNote note = {.code = code};
    snprintf(note.text, sizeof note.text, "%s", text);
    pthread_mutex_lock(&vm->mutex);
    if (vm->running) {
        fail(vm, &note);
    } else if (!vm->failed) {
        vm->failed = true;
        vm->note = note;
    }
    pthread_mutex_unlock(&vm->mutex);
}

static int compare_starts(const void *left, const void *right) {
    const VmRecord *a = left, *b = right;
    if (a->start_ns != b->start_ns)
        return a->start_ns < b->start_ns ? -1 : 1;
    if (a->end_ns != b->end_ns)
        return a->end_ns < b->end_ns ? -1 : 1;
    return a->queue - b->queue;
}

int32_t vm_records(const Vm *vm, VmRecord *out_records, int32_t max_n) {
    if (!vm->records || max_n <= 0)
        return 0;
    Vm *self = (Vm *)vm; /* the mutex is all that changes */
    pthread_mutex_lock(&self->mutex);
    int64_t kept = vm->n_executed <= vm->record_mask ? vm->n_executed : vm->record_mask + 1;
    int64_t n = kept < max_n ? kept : max_n; /* the newest */
    for (int64_t i = 0; i < n; i++)
        out_records[i] = vm->records[(vm->n_executed - n + i) & vm->record_mask];
    pthread_mutex_unlock(&self->mutex);
    qsort(out_records, (size_t)n, sizeof *out_records, compare_starts);
    return (int32_t)n;
}

int64_t vm_executed(const Vm *vm) {
    Vm *self = (Vm *)vm; /* the mutex is all that changes */
    pthread_mutex_lock(&self->mutex);
    int64_t n = vm->n_executed;
    pthread_mutex_unlock(&self->mutex);
    return n;
}

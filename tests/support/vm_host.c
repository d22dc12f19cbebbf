#include "tests/support/vm_host.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/err.h"

/* ---- programs ---- */

void vm_host_program(VmHostProgram *out_program) {
    memset(out_program, 0, sizeof *out_program);
    out_program->program.instrs = out_program->instrs;
    out_program->program.deps = out_program->deps;
    out_program->program.linked = true;
}

int32_t vm_host_add(VmHostProgram *program, Opcode op, int32_t micro) {
    Program *inner = &program->program;
    assert(inner->n_instrs < VM_HOST_INSTRS);
    program->instrs[inner->n_instrs] =
        (Instr){.op = op, .micro = micro, .peer = -1, .slot = micro, .first_dep = inner->n_deps};
    return inner->n_instrs++;
}

void vm_host_depend(VmHostProgram *program, int32_t on, int32_t steps_back) {
    Program *inner = &program->program;
    assert(inner->n_instrs > 0 && inner->n_deps < VM_HOST_DEPS);
    program->deps[inner->n_deps++] = (Dep){.instr = on, .steps_back = steps_back};
    program->instrs[inner->n_instrs - 1].n_deps++;
}

void vm_host_two_micros(VmHostProgram *out_program) {
    VmHostProgram *p = out_program;
    vm_host_program(p);
    for (int32_t micro = 0; micro < 2; micro++) {
        int32_t at = vm_host_add(p, INSTR_FETCH_ACT, micro);
        vm_host_depend(p, VM_HOST_B0 + 3 * micro, 1); /* the slot is free */
        vm_host_add(p, INSTR_FORWARD, micro);
        vm_host_depend(p, at, 0);
        vm_host_depend(p, at + 2, 1);
        vm_host_add(p, INSTR_PUBLISH_ACT, micro);
        vm_host_depend(p, at + 1, 0);
    }
    for (int32_t micro = 0; micro < 2; micro++) {
        int32_t at = vm_host_add(p, INSTR_FETCH_GRAD, micro);
        vm_host_depend(p, at + 1, 1);
        vm_host_add(p, INSTR_BACKWARD, micro);
        vm_host_depend(p, at, 0);
        vm_host_depend(p, 3 * micro + 1, 0);
        vm_host_depend(p, at + 2, 1);
        vm_host_add(p, INSTR_PUBLISH_GRAD, micro);
        vm_host_depend(p, at + 1, 0);
    }
    vm_host_add(p, INSTR_REDUCE, -1);
    vm_host_depend(p, VM_HOST_B1, 0);
    vm_host_add(p, INSTR_UPDATE, -1);
    vm_host_depend(p, VM_HOST_R, 0);
}

/* splitmix64 */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static int below(uint64_t *state, int n) {
    return (int)(next_random(state) % (uint64_t)n);
}

void vm_host_random(VmHostProgram *out_program, uint64_t seed, int n_instrs) {
    static const Opcode ops[] = {INSTR_FETCH_ACT, INSTR_FORWARD, INSTR_BACKWARD, INSTR_PUBLISH_ACT};
    uint64_t state = seed;
    vm_host_program(out_program);
    for (int i = 0; i < n_instrs; i++) {
        vm_host_add(out_program, ops[below(&state, 4)], i);
        int n_deps = below(&state, 5);
        for (int k = 0; k < n_deps; k++) {
            /* In text order within a step, anything from steps before: there is a total order. */
            bool this_step = i > 0 && below(&state, 3) > 0;
            vm_host_depend(out_program, below(&state, this_step ? i : n_instrs),
                           this_step ? 0 : 1 + below(&state, 2));
        }
    }
}

/* ---- the watching host ---- */

void vm_watch_init(VmWatch *watch, const Program *program, uint64_t seed) {
    memset(watch, 0, sizeof *watch);
    assert(program->n_instrs <= VM_HOST_INSTRS);
    pthread_mutex_init(&watch->mutex, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&watch->changed, &attr);
    pthread_condattr_destroy(&attr);
    watch->program = program;
    watch->error.instr = watch->gate.instr = -1;
    watch->fetchable_step = INT64_MAX;
    watch->end_at_step = watch->step_end_error = -1;
    watch->thread_start_error = QUEUE_N;
    watch->random = seed;
}

void vm_watch_done(VmWatch *watch) {
    pthread_cond_destroy(&watch->changed);
    pthread_mutex_destroy(&watch->mutex);
}

__attribute__((format(printf, 2, 3))) static void violate(VmWatch *watch, const char *format, ...) {
    if (watch->violation[0])
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(watch->violation, sizeof watch->violation, format, args);
    va_end(args);
}

static void check_thread(VmWatch *watch, Queue queue) {
    if (!pthread_equal(watch->threads[queue], pthread_self()))
        violate(watch, "queue %d ran on a foreign thread", (int)queue);
    char name[32] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    if (queue != QUEUE_COMPUTE && strcmp(name, queue == QUEUE_FETCH ? "fetch" : "publish") != 0)
        violate(watch, "the thread of queue %d is called '%s'", (int)queue, name);
}

/* With the mutex held: may this instruction start now? */
static void check_start(VmWatch *watch, const Instr *instr, int64_t step) {
    const Program *program = watch->program;
    int32_t index = (int32_t)(instr - program->instrs);
    Queue queue = program_queue(instr->op);
    check_thread(watch, queue);
    int64_t last = watch->last_step[queue];
    if (step < last || step > last + 1 || (step == last && index <= watch->last_instr[queue]))
        violate(watch, "instruction %d of step %lld came after %d of %lld", index, (long long)step,
                watch->last_instr[queue], (long long)last);
    for (int32_t i = 0; i < instr->n_deps; i++) {
        Dep dep = program->deps[instr->first_dep + i];
        if (watch->done_step[dep.instr] < step - dep.steps_back)
            violate(watch, "instruction %d of step %lld ran before %d (%d steps back)", index,
                    (long long)step, dep.instr, dep.steps_back);
    }
    watch->last_step[queue] = step;
    watch->last_instr[queue] = index;
}

static bool is_at(VmHostSpot spot, int32_t index, int64_t step) {
    return spot.instr == index && spot.step == step;
}

/* With the mutex held. */
static int stand(VmWatch *watch, int32_t index, int64_t step, Queue queue) {
    if (is_at(watch->gate, index, step)) {
        watch->at_gate = true;
        pthread_cond_broadcast(&watch->changed);
        while (!watch->gate_open && !watch->interrupted)
            pthread_cond_wait(&watch->changed, &watch->mutex);
        watch->at_gate = false;
        if (!watch->gate_open)
            return err_set(ERR_CANCELLED, "interrupted at the gate");
    }
    if (queue == QUEUE_FETCH && step > watch->fetchable_step) {
        watch->fetch_waited = true;
        pthread_cond_broadcast(&watch->changed);
        while (!watch->interrupted)
            pthread_cond_wait(&watch->changed, &watch->mutex);
        return err_set(ERR_CANCELLED, "interrupted fetch of step %lld", (long long)step);
    }
    return 0;
}

static int watch_run(void *ctx, const Instr *instr, int64_t step, int64_t *bytes) {
    VmWatch *watch = ctx;
    int32_t index = (int32_t)(instr - watch->program->instrs);
    Queue queue = program_queue(instr->op);
    pthread_mutex_lock(&watch->mutex);
    check_start(watch, instr, step);
    int64_t sleep_us =
        watch->max_sleep_us ? below(&watch->random, (int)watch->max_sleep_us + 1) : 0;
    int rc = stand(watch, index, step, queue);
    pthread_mutex_unlock(&watch->mutex);
    TRY(rc);
    if (sleep_us)
        clock_sleep_until(clock_now_ns() + sleep_us * CLOCK_NS_PER_US);
    if (is_at(watch->error, index, step))
        return err_set(ERR_IO, "instruction %d of step %lld failed", index, (long long)step);
    pthread_mutex_lock(&watch->mutex);
    watch->done_step[index] = step;
    watch->n_done[queue]++;
    pthread_cond_broadcast(&watch->changed);
    pthread_mutex_unlock(&watch->mutex);
    *bytes += 8;
    return 0;
}

static int watch_step_end(void *ctx, int64_t step) {
    VmWatch *watch = ctx;
    pthread_mutex_lock(&watch->mutex);
    check_thread(watch, QUEUE_COMPUTE);
    watch->n_step_ends++;
    for (int32_t i = 0; i < watch->program->n_instrs; i++) {
        if (program_queue(watch->program->instrs[i].op) == QUEUE_COMPUTE &&
            watch->done_step[i] != step)
            violate(watch, "step %lld ended before instruction %d", (long long)step, i);
    }
    while (watch->end_awaits_fetch && step == watch->end_at_step && !watch->fetch_waited)
        pthread_cond_wait(&watch->changed, &watch->mutex);
    pthread_mutex_unlock(&watch->mutex);
    if (step == watch->step_end_error)
        return err_set(ERR_DIVERGED, "the end of step %lld failed", (long long)step);
    return step == watch->end_at_step;
}

static void watch_interrupt(void *ctx, bool on) {
    VmWatch *watch = ctx;
    pthread_mutex_lock(&watch->mutex);
    if (!on && !watch->interrupted)
        violate(watch, "an interrupt that was not on was turned off");
    watch->interrupted = on;
    watch->n_interrupts += on;
    if (on)
        watch->published_at_interrupt = watch->n_done[QUEUE_PUBLISH];
    pthread_cond_broadcast(&watch->changed);
    pthread_mutex_unlock(&watch->mutex);
}

static int watch_thread_start(void *ctx, Queue queue) {
    VmWatch *watch = ctx;
    pthread_mutex_lock(&watch->mutex);
    watch->threads[queue] = pthread_self();
    watch->n_thread_starts++;
    if (queue == QUEUE_COMPUTE)
        violate(watch, "the calling thread was started");
    pthread_mutex_unlock(&watch->mutex);
    if (queue == watch->thread_start_error)
        return err_set(ERR_UNSUPPORTED, "queue %d cannot start", (int)queue);
    return 0;
}

VmHost vm_watch_host(VmWatch *watch) {
    return (VmHost){.ctx = watch,
                    .run = watch_run,
                    .step_end = watch_step_end,
                    .interrupt = watch_interrupt,
                    .thread_start = watch_thread_start};
}

void vm_watch_begin(VmWatch *watch, int64_t first_step) {
    pthread_mutex_lock(&watch->mutex);
    for (int i = 0; i < VM_HOST_INSTRS; i++)
        watch->done_step[i] = first_step - 1;
    for (int q = 0; q < QUEUE_N; q++) {
        watch->n_done[q] = 0;
        watch->last_step[q] = first_step;
        watch->last_instr[q] = -1;
    }
    watch->threads[QUEUE_COMPUTE] = pthread_self();
    watch->n_thread_starts = watch->n_interrupts = 0;
    watch->n_step_ends = watch->published_at_interrupt = 0;
    watch->gate_open = watch->at_gate = watch->fetch_waited = false;
    pthread_mutex_unlock(&watch->mutex);
}

void vm_watch_open_gate(VmWatch *watch) {
    pthread_mutex_lock(&watch->mutex);
    watch->gate_open = true;
    pthread_cond_broadcast(&watch->changed);
    pthread_mutex_unlock(&watch->mutex);
}

/* With the mutex held: one wait; false when the deadline passed. */
static bool wait_until(VmWatch *watch, int64_t deadline_ns) {
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / CLOCK_NS_PER_S),
                             .tv_nsec = (long)(deadline_ns % CLOCK_NS_PER_S)};
    pthread_cond_timedwait(&watch->changed, &watch->mutex, &until);
    return clock_now_ns() < deadline_ns;
}

bool vm_watch_await_gate(VmWatch *watch) {
    int64_t deadline_ns = clock_deadline_ms(20000);
    pthread_mutex_lock(&watch->mutex);
    while (!watch->at_gate && wait_until(watch, deadline_ns)) {
    }
    bool there = watch->at_gate;
    pthread_mutex_unlock(&watch->mutex);
    return there;
}

bool vm_watch_await_done(VmWatch *watch, Queue queue, int64_t n) {
    int64_t deadline_ns = clock_deadline_ms(20000);
    pthread_mutex_lock(&watch->mutex);
    while (watch->n_done[queue] < n && wait_until(watch, deadline_ns)) {
    }
    bool enough = watch->n_done[queue] >= n;
    pthread_mutex_unlock(&watch->mutex);
    return enough;
}

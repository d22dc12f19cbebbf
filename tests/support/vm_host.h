/* A host for the interpreter that watches it: every instruction after its dependencies, each queue
 * in text order on its own thread, nothing called at a wrong time. And small programs to run. */
#ifndef FUNCPIPE_TESTS_SUPPORT_VM_HOST_H
#define FUNCPIPE_TESTS_SUPPORT_VM_HOST_H

#include <pthread.h>

#include "worker/vm.h"

enum { VM_HOST_INSTRS = 64, VM_HOST_DEPS = 512 };

typedef struct VmHostProgram { /* a program made without program_link */
    Program program;
    Instr instrs[VM_HOST_INSTRS];
    Dep deps[VM_HOST_DEPS];
} VmHostProgram;

void vm_host_program(VmHostProgram *out_program);
int32_t vm_host_add(VmHostProgram *program, Opcode op, int32_t micro);
/* To the instruction added last. */
void vm_host_depend(VmHostProgram *program, int32_t on, int32_t steps_back);

/* One stage, two micro-batches with a slot each:
 *    0   1  2   3   4  5   6   7  8   9   10 11  12 13
 *    <a0 F0 >a0 <a1 F1 >a1 <g0 B0 >g0 <g1 B1 >g1 R U */
enum { VM_HOST_B0 = 7, VM_HOST_B1 = 10, VM_HOST_R = 12, VM_HOST_U = 13, VM_HOST_TWO_MICROS = 14 };
void vm_host_two_micros(VmHostProgram *out_program);

/* Any operations with any dependencies that cannot lock up. */
void vm_host_random(VmHostProgram *out_program, uint64_t seed, int n_instrs);

typedef struct VmHostSpot {
    int32_t instr;
    int64_t step;
} VmHostSpot; /* instr -1: nowhere */

typedef struct VmWatch {
    const Program *program;
    /* What to do. */
    int64_t max_sleep_us;     /* sleep at random up to this inside every instruction */
    VmHostSpot error;         /* fail there with ERR_IO */
    VmHostSpot gate;          /* stand there until opened or interrupted */
    int64_t fetchable_step;   /* fetches of later steps wait until interrupted */
    int64_t end_at_step;      /* step_end returns 1 there; -1: never */
    bool end_awaits_fetch;    /* ... once a fetch waits beyond fetchable_step */
    int64_t step_end_error;   /* step_end fails there; -1: never */
    Queue thread_start_error; /* that queue cannot start; QUEUE_N: all can */
    /* What was seen, under the mutex. */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int64_t done_step[VM_HOST_INSTRS];
    int64_t n_done[QUEUE_N];
    int32_t last_instr[QUEUE_N];
    int64_t last_step[QUEUE_N];
    pthread_t threads[QUEUE_N];
    int n_thread_starts;
    int64_t n_step_ends;
    bool interrupted, gate_open, at_gate, fetch_waited;
    int n_interrupts; /* turned on */
    int64_t published_at_interrupt;
    uint64_t random;
    char violation[256]; /* the first; "" */
} VmWatch;

void vm_watch_init(VmWatch *watch, const Program *program, uint64_t seed);
void vm_watch_done(VmWatch *watch);
/* The host whose context is `watch`. */
VmHost vm_watch_host(VmWatch *watch);
/* Before each vm_run, on its thread: forget what was seen. */
void vm_watch_begin(VmWatch *watch, int64_t first_step);
void vm_watch_open_gate(VmWatch *watch);
/* Wait (at most 20 s) until somebody stands at the gate; false: nobody came. */
bool vm_watch_await_gate(VmWatch *watch);
/* Wait until the queue has done n instructions; false: it did not within 20 s. */
bool vm_watch_await_done(VmWatch *watch, Queue queue, int64_t n);

#endif

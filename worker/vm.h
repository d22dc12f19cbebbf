/* The interpreter: runs one worker's linked program, step after step. It knows instructions,
 * queues and dependencies; it knows no schedule, no tensor and no relay: those are behind VmHost.
 *
 * Three threads (compute = the caller, fetch, publish) each take their queue's instructions in text
 * order. A scoreboard holds, per instruction, the last step in which it is done; an instruction of
 * step k starts when every dependency d is done in step >= k - d.steps_back. The fetch thread may
 * run ahead into the next step as far as slots allow. The first error of any thread stops all. */
#ifndef FUNCPIPE_WORKER_VM_H
#define FUNCPIPE_WORKER_VM_H

#include "core/program.h"

typedef struct VmHost {
    void *ctx;
    /* Execute one instruction of `step`; called on the instruction's queue thread, after its
     * dependencies. Adds to *bytes what it moved. An error ends the run. */
    int (*run)(void *ctx, const Instr *instr, int64_t step, int64_t *bytes);
    /* On the compute thread after the last compute instruction of a step: 0 go on, 1 end the run
     * after this step (publications of the step are still finished), < 0 error. May be NULL. */
    int (*step_end)(void *ctx, int64_t step);
    /* Wake every blocking call made by run on the fetch (and publish) thread: they must return an
     * error soon. Called from any thread when the run ends early. */
    void (*interrupt)(void *ctx, bool on);
    /* Thread start on fetch and publish (queue given), e.g. to bind a device. May be NULL. */
    int (*thread_start)(void *ctx, Queue queue);
} VmHost;

typedef struct VmRecord { /* one executed instruction */
    int64_t step, start_ns, end_ns, bytes;
    int64_t wait_ns; /* waited for dependencies before start */
    int32_t instr;   /* index in the program */
    int32_t queue;
    int64_t label; /* of its run */
} VmRecord;

typedef struct VmTotals {
    int64_t busy_ns, wait_ns; /* compute thread: inside instructions, waiting for dependencies */
    int64_t n_steps;
    int64_t step; /* the step the compute thread is in */
} VmTotals;

typedef struct Vm Vm;

/* `program` is linked and outlives the Vm. Keeps the last n_records records (a power of two is
 * used; 0: none). Everything is allocated here: nothing inside a step. */
int vm_open(const Program *program, const VmHost *host, int32_t n_records, Vm **out_vm);
void vm_close(Vm *vm);
/* Run steps [first_step, end_step). Returns 0 when all ran, 1 when step_end ended it, or the error,
 * whose note is the calling thread's. After an error or an early end it may be run again. */
int vm_run(Vm *vm, int64_t first_step, int64_t end_step);
/* Between runs: what the records of later runs are to be labelled with (0 before). */
void vm_label(Vm *vm, int64_t label);
/* Of all runs so far. Thread-safe, approximate while running. */
void vm_totals(const Vm *vm, VmTotals *out_totals);
/* Thread-safe: make vm_run end with this error soon (the heartbeat found a newer attempt, ...). */
void vm_abort(Vm *vm, int code, const char *text);
/* Copy out the kept records in order of start; returns how many (at most max_n). */
int32_t vm_records(const Vm *vm, VmRecord *out_records, int32_t max_n);
/* How many instructions were executed, recorded or not. */
int64_t vm_executed(const Vm *vm);

#endif

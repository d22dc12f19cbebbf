/* The process invoker: starts workers as processes of this machine on a libuv loop and tells how
 * they end. A worker gets its order as JSON on stdin, runs in a session of its own (the terminal's
 * Ctrl-C reaches only the coordinator) and ends when the coordinator's process does. Its stderr
 * goes to FOLDER/worker-STAGE.REPLICA.ATTEMPT.log (nowhere, where that cannot be written), the last
 * line of its stdout is its result. */
#ifndef FUNCPIPE_COORDINATOR_INVOKE_H
#define FUNCPIPE_COORDINATOR_INVOKE_H

#include <uv.h>

#include "core/order.h"
#include "core/report.h"

typedef struct WorkerId {
    int32_t stage, replica;
    int64_t attempt;
} WorkerId;

typedef struct InvokeHost {
    void *ctx;
    /* The process has ended. code: 0 done, the worker's own error, or ERR_KILLED with the signal or
     * status in words; step -1: the worker did not say. */
    void (*ended)(void *ctx, WorkerId worker, const WorkerResult *result);
    bool logs_go; /* at the end of the run: words quote them instead of naming them */
} InvokeHost;

typedef struct Invoker Invoker;

int invoke_open(uv_loop_t *loop, const char *worker_path, const char *logs_folder,
                const InvokeHost *host, Invoker **out_invoker);
/* Start the order's worker. ERR_NOT_FOUND: there is no such program; ERR_IO: no process now. */
int invoke_start(Invoker *invoker, const Order *order, int64_t *out_pid);
/* SIGKILL for every process that still runs, stopped ones too. */
void invoke_kill_all(Invoker *invoker);
int32_t invoke_running(const Invoker *invoker); /* processes that have not been told as ended */
void invoke_close(Invoker *invoker);            /* when none runs and the loop has run dry */

#endif

/* One worker's life: from an order to the end of its slice. The process (worker/main.c), the tests'
 * threads and later the HTTP server all call worker_run; it opens what the order names, loads the
 * stage's state, runs the program step after step, saves, evaluates, and reports through the relay.
 */
#ifndef FUNCPIPE_WORKER_RUN_H
#define FUNCPIPE_WORKER_RUN_H

#include "core/order.h"
#include "core/program.h"
#include "core/report.h"
#include "gpu/device.h"
#include "storage/relay.h"

typedef struct WorkerEnv {
    void *ctx;
    /* Open one more relay handle (each thread has its own). NULL:
     * relay_open_again(order->relay_url). */
    int (*open_relay)(void *ctx, const Order *order, Relay **out_relay);
    /* Called before each instruction on its queue's thread; an error ends the worker there, as a
     * kill would. eval: it is of the evaluation program, and `step` is the batch. For tests; NULL
     * otherwise. */
    int (*before)(void *ctx, const Instr *instr, int64_t step, bool eval);
    /* The device's table by its name, called on the thread that computes. NULL: device_find. For
     * tests. */
    int (*find_device)(void *ctx, const char *name, const DeviceOps **out_ops);
    /* One line for people ("save of step 100 failed once: ...; trying again"). NULL: dropped. */
    void (*say)(void *ctx, const char *line);
} WorkerEnv;

/* Run the order's slice. Returns 0 when the slice is done (or the leader decided to stop), else the
 * error; *out_result is filled in both cases. No partial save is ever left under a final name. */
int worker_run(const Order *order, const WorkerEnv *env, WorkerResult *out_result);

/* Measure each layer of the order's model with micro_rows rows on the order's device: microseconds
 * forward and backward (input and weight gradients together), median of n_repeats. */
typedef struct LayerTime {
    double forward_us, backward_us;
} LayerTime;
int worker_profile(const Order *order, int n_repeats, LayerTime *out_times /* (n_layers) */);

#endif

/* A device as one with memory and streams of its own is, on top of the CPU's: its memory has
 * addresses that the host must not touch (it dies there), and nothing that is queued is done before
 * somebody waits for it: a stream's work is done by stream_sync, by event_sync as far as the event,
 * and in turn that of streams that they wait for. So a wait that is missing is seen on every run.
 * It can also call a hook in front of each op. */
#ifndef FUNCPIPE_TESTS_SUPPORT_DEVICE_DEFERRED_H
#define FUNCPIPE_TESTS_SUPPORT_DEVICE_DEFERRED_H

#include <stdatomic.h>

#include "gpu/device.h"

typedef struct DeferredSetup { /* outlives the devices */
    void *ctx;
    /* Called when the op of `layer` is queued; an error is op_run's. May be NULL. */
    int (*before_op)(void *ctx, int32_t layer, OpPass pass, const OpArgs *args);
    atomic_llong n_late; /* pieces of work that were not done when the call returned */
    atomic_llong n_left; /* ... and never, as its stream was closed */
} DeferredSetup;

/* The table; the next device that this thread opens with it is of this setup. */
int device_deferred_find(DeferredSetup *setup, const char *name, const DeviceOps **out_ops);

#endif

/* Queued: what the compute thread has queued on the device. The scoreboard (worker/vm.h) counts a
 * computation as done when its work is queued; a device may do that work later. So each computation
 * that a transfer depends on has an event, recorded behind it, and a transfer waits for the events
 * of its dependencies: a publication's stream before it reads what was computed, a fetch's thread
 * before it writes over what is still being read. */
#ifndef FUNCPIPE_WORKER_QUEUED_H
#define FUNCPIPE_WORKER_QUEUED_H

#include "core/program.h"
#include "gpu/device.h"

typedef struct Queued {
    const DeviceOps *ops;
    const Program *program;
    Event **events; /* (n_instrs) NULL where no transfer depends on it */
} Queued;

/* `program` is linked and outlives it. All zero is closed. */
int queued_open(Queued *queued, const DeviceOps *ops, Device *device, const Program *program);
void queued_close(Queued *queued);
/* On the compute thread, behind the work of `instr`. */
int queued_record(const Queued *queued, const Instr *instr, Stream *stream);
/* What `instr` depends on is done before later work of the stream; before this returns. */
int queued_wait(const Queued *queued, const Instr *instr, Stream *stream);
int queued_sync(const Queued *queued, const Instr *instr);

#endif

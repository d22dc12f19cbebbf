/* What the conductor writes into the relay while workers run, fences and the control note, and what
 * it removes from it in the end: on libuv's thread pool, for a relay may be away, and the loop has
 * to take signals meanwhile. Part of the conductor; nobody else includes it. */
#ifndef FUNCPIPE_COORDINATOR_CONDUCTOR_RELAY_H
#define FUNCPIPE_COORDINATOR_CONDUCTOR_RELAY_H

#include <uv.h>

#include "coordinator/job_event.h"
#include "coordinator/watch.h"
#include "storage/key.h"
#include "storage/relay.h"

typedef struct Conductor Conductor;

enum { CONDUCT_PUT_OFF = -1 }; /* a delay: until the write that is under way has ended */

/* A fence or the control note, on its way into the relay. */
typedef struct RelayWrite {
    uv_work_t work;
    Conductor *conductor;
    bool running;
    JobAction action;
    int64_t give_up_ms;
    Key key;
    Buf text;
    int rc;
    ErrNote note;
} RelayWrite;

/* The end: everything of this run goes from the relay. */
typedef struct RelayCleaning {
    uv_work_t work;
    bool running, done;
    bool hurried; /* by a signal */
    int64_t begin_ms;
    Watch *watch;
    int rc;
    ErrNote note;
} RelayCleaning;

/* Write a fence or the control note, and again after failures until give_up_ms (0: choose it). */
void conductor_write(Conductor *conductor, const JobAction *action, int64_t give_up_ms);
void conductor_stop_writing(Conductor *conductor);
/* Is the fence of the attempt that is to be invoked still to be written? */
bool conductor_fence_waits(const Conductor *conductor, const JobAction *invoke);
/* Clean up, once nothing writes any more: true when it is done, until then call it again. */
bool conductor_clean_relay(Conductor *conductor);

#endif

/* Pulse: the heartbeat thread of a worker. It writes the heartbeat note every heartbeat_ms, notices
 * that a newer attempt of the same worker has been started (its fence object is there), and, on the
 * leader, reads the control note. It touches nothing of the worker but this struct.
 *
 * An order may be delivered twice. The process that comes first puts its mark into the relay and
 * runs; the other one ends, without a trace: it would wait for objects that are dropped once the
 * first one has passed them. */
#ifndef FUNCPIPE_WORKER_PULSE_H
#define FUNCPIPE_WORKER_PULSE_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/report.h"
#include "worker/fetch.h"
#include "worker/vm.h"

enum { PULSE_MAX_COUNTED = 32 };

typedef struct Pulse {
    const Order *order;
    Relay *relay;
    KeySpace space;
    Fetch *watched; /* whose waiting key is reported; may be NULL */
    Fetch *counted[PULSE_MAX_COUNTED];
    int n_counted;
    Traffic traffic; /* of all of them and our own relay, as last reported */
    pthread_t thread;
    bool thread_started;
    pthread_mutex_t lock; /* of state, vm, closing, counted */
    pthread_cond_t changed;
    const char *state; /* a literal */
    Vm *vm;            /* the one that runs now; may be NULL */
    bool training;     /* its steps are train steps */
    VmTotals before;   /* what vm's totals, which go on from run to run, are to be added to */
    bool closing, superseded;
    bool save_wished; /* the control note's save, when last read */
    /* DECISION_ bits to be decided next (leader); whoever decides takes them. */
    atomic_int decision;
} Pulse;

/* ERR_SUPERSEDED: this attempt is already running. */
int pulse_start(Pulse *pulse, const Order *order, Fetch *watched, Relay *take_relay);
/* From now on report the traffic of `fetch`, too, which must outlive pulse_stop. */
void pulse_count(Pulse *pulse, Fetch *fetch);
/* Write a last heartbeat with `state` and end the thread; pulse->traffic is final. */
void pulse_stop(Pulse *pulse, const char *state);
void pulse_set_state(Pulse *pulse, const char *state);
/* From now on `vm` is aborted when superseded, and its times reported (NULL: none); its step only
 * when `training`. Returns ERR_SUPERSEDED when that has happened already. */
int pulse_set_vm(Pulse *pulse, Vm *vm, bool training);

#endif

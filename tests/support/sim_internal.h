/* What sim.c (the workers), sim_conduct.c (the conductor) and sim_result.c share. */
#ifndef FUNCPIPE_TESTS_SUPPORT_SIM_INTERNAL_H
#define FUNCPIPE_TESTS_SUPPORT_SIM_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/err.h"
#include "storage/key.h"
#include "tests/support/sim.h"

typedef struct Sim Sim;
typedef struct SimBlob SimBlob;

typedef struct SimWorker {
    Sim *sim;
    int32_t stage, replica, index;
    pthread_t thread;
    bool started;
    Program train, eval; /* to recognise instructions */
    Order order;
    atomic_int n_handles; /* opened in this attempt */
    Relay *handles[SIM_MAX_HANDLES];
    const RelayOps *faulty_ops;
    RelayOps ops;        /* of the handles: the faulty relay's, but close counts */
    atomic_llong passed; /* steps that the present attempt has left behind */
} SimWorker;

struct Sim {
    const SimJob *job;
    const SimFaults *faults;
    RelayMemStore *store;
    Relay *relay;  /* the conductor's */
    SimBlob *blob; /* the exchange object it read last */
    KeySpace space;
    SimWorker workers[SIM_MAX_WORKERS];
    int32_t n_workers;
    pthread_mutex_t lock; /* of committed, failure, the result's uses and where attempts start */
    int64_t committed;    /* step of the last committed checkpoint; -1 none */
    int64_t dropped;      /* objects of steps before it are gone */
    ErrNote failure;      /* first error that may not be restarted */
    atomic_bool failed;
    atomic_int n_restarts;
    SimResult *result;
};

/* The conductor: follow the job to its last step. */
int sim_conduct(Sim *sim);
/* Drop all steps' and evaluations' objects before `end`. */
int sim_drop_before(Sim *sim, int64_t end);

#endif

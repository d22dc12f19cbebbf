/* Transfers: a few threads, each with its own handle of the relay, that move objects while the
 * compute thread goes on: some of them up, some down, each direction in the order of submission.
 * Where the relay has several servers a thread passes over what goes to one that more threads are
 * at already, so that none idles while others have a queue.
 * Transfers may wait for those of other workers. One that waits for what others first have to fetch
 * says so (patient): of a direction's threads one never takes such, so that what others wait for is
 * fetched whatever the order in which anybody has submitted. Those that wait only for what others
 * send need no care: sending waits for nobody. (A direction with one thread takes all in order.)
 * A transfer may submit further ones. The first error of any ends all: what waits is dropped, what
 * waits inside the relay is interrupted. */
#ifndef FUNCPIPE_WORKER_TRANSFERS_H
#define FUNCPIPE_WORKER_TRANSFERS_H

#include "worker/fetch.h"

typedef struct Transfer Transfer;
struct Transfer { /* the first member of the submitter's own struct, which keeps the memory */
    /* Do it; adds to *bytes what was moved. */
    int (*run)(Transfer *transfer, Fetch *fetch, int64_t *bytes);
    bool patient; /* it waits for what other workers fetch */
    /* of the queue */
    Transfer *next;
    int server; /* relay_server of its key */
};

typedef enum Direction { TRANSFER_UP, TRANSFER_DOWN, TRANSFER_N_DIRECTIONS } Direction;
enum { TRANSFERS_MAX_THREADS = WORKER_MOST_DOWN }; /* a direction */

typedef struct Transfers Transfers;

/* Open n_up + n_down handles with `open_relay` and start their threads. */
int transfers_open(const Order *order, int (*open_relay)(void *ctx, Relay **out_relay), void *ctx,
                   int n_up, int n_down, Transfers **out_transfers);
void transfers_close(Transfers *transfers); /* interrupts and joins; NULL is fine */

/* `key` is what it moves. */
void transfers_submit(Transfers *transfers, Direction direction, Transfer *transfer,
                      const char *key);
/* The same, before all that waits. */
void transfers_submit_first(Transfers *transfers, Direction direction, Transfer *transfer,
                            const char *key);
/* Wait until all is done that was submitted, also by transfers: 0, or the first error. Adds to
 * *bytes what was moved since the last call. */
int transfers_wait(Transfers *transfers, int64_t *bytes);
/* The i-th thread's way to the relay, for its counters; NULL behind the last. */
Fetch *transfers_fetch(Transfers *transfers, int i);
/* As relay_interrupt, for all handles. Thread-safe. */
void transfers_interrupt(Transfers *transfers, bool on);

#endif

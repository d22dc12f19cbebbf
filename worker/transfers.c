#include "worker/transfers.h"

#include <pthread.h>
#include <stdlib.h>

#include "core/err.h"
#include "core/process.h"

typedef struct TransferThread {
    Transfers *transfers;
    Direction direction;
    Fetch fetch;
    pthread_t thread;
    bool started;
} TransferThread;

enum { TRANSFERS_LOOK = 64 }; /* transfers that are looked at for the next one */

typedef struct TransferQueue {
    Transfer *first, *last;
    int n_at[RELAY_MAX_SERVERS]; /* threads that are at a server for this direction */
    int n_threads;
    int n_patient; /* threads that are at a patient transfer */
    pthread_cond_t filled;
} TransferQueue;

struct Transfers {
    pthread_mutex_t lock; /* of all below but the threads' own */
    pthread_cond_t idle;
    TransferQueue queues[TRANSFER_N_DIRECTIONS];
    int64_t n_open; /* submitted and not done */
    int64_t bytes;
    bool closing;
    ErrNote note; /* the first error; code 0: none */
    TransferThread threads[TRANSFER_N_DIRECTIONS * TRANSFERS_MAX_THREADS];
    int n_threads;
};

/* With the lock held: nothing more is done, and the relays' waits end. */
static void transfers_fail(Transfers *transfers, int code) {
    if (transfers->note.code != 0) {
        return;
    }
    err_copy(&transfers->note);
    transfers->note.code = code;
    for (int d = 0; d < TRANSFER_N_DIRECTIONS; d++) {
        TransferQueue *queue = &transfers->queues[d];
        for (; queue->first != NULL; queue->first = queue->first->next) {
            transfers->n_open--;
        }
        queue->last = NULL;
    }
    for (int i = 0; i < transfers->n_threads; i++) {
        fetch_interrupt(&transfers->threads[i].fetch, true);
    }
}

/* One thread is left to those that are not patient. */
static bool transfers_may_take(const TransferQueue *queue, const Transfer *transfer) {
    return !transfer->patient || queue->n_threads == 1 || queue->n_patient < queue->n_threads - 1;
}

/* Take out the first of those whose server has the fewest threads; NULL: none may be taken now. It
 * is safe to pass over the others although transfers wait for one another: at each one's server a
 * thread is busy with something that was submitted earlier. */
static Transfer *transfers_choose(TransferQueue *queue) {
    Transfer *before_best = NULL;
    Transfer *best = NULL;
    Transfer *before = NULL;
    int n = 0;
    for (Transfer *at = queue->first; at != NULL && n < TRANSFERS_LOOK;
         before = at, at = at->next) {
        if (best != NULL && queue->n_at[best->server] == 0) {
            break;
        }
        if (!transfers_may_take(queue, at)) {
            continue;
        }
        if (best == NULL || queue->n_at[at->server] < queue->n_at[best->server]) {
            before_best = before;
            best = at;
        }
        n++;
    }
    if (best == NULL) {
        return NULL;
    }
    *(before_best != NULL ? &before_best->next : &queue->first) = best->next;
    if (queue->last == best) {
        queue->last = before_best;
    }
    queue->n_at[best->server]++;
    queue->n_patient += best->patient;
    return best;
}

/* The next of the direction; NULL: the end. With the lock held. */
static Transfer *transfers_take(TransferThread *self) {
    Transfers *transfers = self->transfers;
    TransferQueue *queue = &transfers->queues[self->direction];
    Transfer *next = NULL;
    while (!transfers->closing && (next = transfers_choose(queue)) == NULL) {
        pthread_cond_wait(&queue->filled, &transfers->lock);
    }
    return next;
}

static void *transfers_main(void *arg) {
    TransferThread *self = arg;
    Transfers *transfers = self->transfers;
    TransferQueue *queue = &transfers->queues[self->direction];
    pthread_setname_np(pthread_self(),
                       self->direction == TRANSFER_UP ? "reduce-up" : "reduce-down");
    process_work_briefly();
    pthread_mutex_lock(&transfers->lock);
    for (Transfer *transfer = transfers_take(self); transfer != NULL;
         transfer = transfers_take(self)) {
        int64_t bytes = 0;
        const int server = transfer->server;
        const bool patient = transfer->patient;
        pthread_mutex_unlock(&transfers->lock);
        int rc = transfer->run(transfer, &self->fetch, &bytes);
        pthread_mutex_lock(&transfers->lock);
        transfers->bytes += bytes;
        queue->n_at[server]--;
        if (patient) { /* another one of these may be taken now, and not only by this thread */
            queue->n_patient--;
            pthread_cond_signal(&queue->filled);
        }
        if (rc < 0) {
            transfers_fail(transfers, rc);
        }
        if (--transfers->n_open == 0) {
            pthread_cond_broadcast(&transfers->idle);
        }
    }
    pthread_mutex_unlock(&transfers->lock);
    return NULL;
}

static int transfers_start(Transfers *transfers, const Order *order, Direction direction,
                           Relay *take_relay) {
    TransferThread *self = &transfers->threads[transfers->n_threads];
    *self = (TransferThread){.transfers = transfers, .direction = direction};
    int rc = fetch_init(&self->fetch, order, take_relay);
    if (rc < 0) {
        relay_close(take_relay);
        return rc;
    }
    transfers->n_threads++;
    int errnum = pthread_create(&self->thread, NULL, transfers_main, self);
    if (errnum != 0) {
        return err_errno(ERR_MEMORY, errnum, "starting a thread");
    }
    self->started = true;
    return 0;
}

int transfers_open(const Order *order, int (*open_relay)(void *ctx, Relay **out_relay), void *ctx,
                   int n_up, int n_down, Transfers **out_transfers) {
    Transfers *transfers = calloc(1, sizeof *transfers);
    if (transfers == NULL) {
        return err_set(ERR_MEMORY, "the transfers do not fit into memory");
    }
    pthread_mutex_init(&transfers->lock, NULL);
    pthread_cond_init(&transfers->idle, NULL);
    for (int d = 0; d < TRANSFER_N_DIRECTIONS; d++) {
        pthread_cond_init(&transfers->queues[d].filled, NULL);
    }
    int rc = 0;
    for (int d = 0; d < TRANSFER_N_DIRECTIONS; d++) {
        const int wanted = d == TRANSFER_UP ? n_up : n_down;
        const int n = wanted < TRANSFERS_MAX_THREADS ? wanted : TRANSFERS_MAX_THREADS;
        transfers->queues[d].n_threads = n;
        for (int i = 0; i < n && rc >= 0; i++) {
            Relay *relay = NULL;
            rc = open_relay(ctx, &relay);
            if (rc >= 0) {
                rc = transfers_start(transfers, order, (Direction)d, relay);
            }
        }
    }
    if (rc < 0) {
        transfers_close(transfers);
        return rc;
    }
    *out_transfers = transfers;
    return 0;
}

void transfers_close(Transfers *transfers) {
    if (transfers == NULL) {
        return;
    }
    pthread_mutex_lock(&transfers->lock);
    transfers->closing = true;
    for (int d = 0; d < TRANSFER_N_DIRECTIONS; d++) {
        pthread_cond_broadcast(&transfers->queues[d].filled);
    }
    pthread_mutex_unlock(&transfers->lock);
    transfers_interrupt(transfers, true);
    for (int i = 0; i < transfers->n_threads; i++) {
        if (transfers->threads[i].started) {
            pthread_join(transfers->threads[i].thread, NULL);
        }
    }
    for (int i = 0; i < transfers->n_threads; i++) { /* any of them interrupts all */
        fetch_done(&transfers->threads[i].fetch);
    }
    for (int d = 0; d < TRANSFER_N_DIRECTIONS; d++) {
        pthread_cond_destroy(&transfers->queues[d].filled);
    }
    pthread_cond_destroy(&transfers->idle);
    pthread_mutex_destroy(&transfers->lock);
    free(transfers);
}

static void transfers_queue(Transfers *transfers, Direction direction, Transfer *transfer,
                            const char *key, bool first) {
    TransferQueue *queue = &transfers->queues[direction];
    transfer->server = relay_server(transfers->threads[0].fetch.relay, key, NULL);
    pthread_mutex_lock(&transfers->lock);
    if (transfers->note.code == 0) {
        transfer->next = first ? queue->first : NULL;
        if (queue->first == NULL || first) {
            queue->first = transfer;
        } else {
            queue->last->next = transfer;
        }
        if (transfer->next == NULL) {
            queue->last = transfer;
        }
        transfers->n_open++;
        pthread_cond_signal(&queue->filled);
    }
    pthread_mutex_unlock(&transfers->lock);
}

void transfers_submit(Transfers *transfers, Direction direction, Transfer *transfer,
                      const char *key) {
    transfers_queue(transfers, direction, transfer, key, false);
}

void transfers_submit_first(Transfers *transfers, Direction direction, Transfer *transfer,
                            const char *key) {
    transfers_queue(transfers, direction, transfer, key, true);
}

int transfers_wait(Transfers *transfers, int64_t *bytes) {
    pthread_mutex_lock(&transfers->lock);
    while (transfers->n_open > 0) {
        pthread_cond_wait(&transfers->idle, &transfers->lock);
    }
    *bytes += transfers->bytes;
    transfers->bytes = 0;
    int rc = transfers->note.code != 0 ? err_restore(&transfers->note) : 0;
    pthread_mutex_unlock(&transfers->lock);
    return rc;
}

void transfers_interrupt(Transfers *transfers, bool on) {
    for (int i = 0; i < transfers->n_threads; i++) {
        fetch_interrupt(&transfers->threads[i].fetch, on);
    }
}

Fetch *transfers_fetch(Transfers *transfers, int i) {
    return i < transfers->n_threads ? &transfers->threads[i].fetch : NULL;
}

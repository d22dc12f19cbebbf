/* Watch: a thread with its own relay handle that waits for what workers report and passes it on.
 *
 *     norms       every step in order: all stages' replica 0, and every replica of the loss stage
 *     saves       key_saved of every worker, for each save that is due or was decided
 *     evaluations key_eval of every loss replica, for each that is due
 *     heartbeats  polled every heartbeat interval; only new ones are reported
 *     a loss      the relay has lost objects (coordinator/watermark.h): nothing follows
 *
 * It also drops objects, because a drop may take long and the watch knows what it still has to
 * read. Reports are values in a queue; notify (uv_async_send, say) is called when there are some.
 */
#ifndef FUNCPIPE_COORDINATOR_WATCH_H
#define FUNCPIPE_COORDINATOR_WATCH_H

#include "core/order.h"
#include "core/report.h"
#include "storage/key.h"

typedef enum WatchKind {
    WATCH_STEP,      /* step, sums, grad_norm, skipped, decision, waited */
    WATCH_SAVED,     /* step, stage, replica, saved */
    WATCH_EVALUATED, /* step, sums */
    WATCH_HEARTBEAT, /* stage, replica, heartbeat */
    WATCH_LOST,      /* the relay has lost objects: failure.text says how that is known */
    WATCH_FAILED     /* the relay cannot be read any more, or holds nonsense: failure */
} WatchKind;

typedef struct WatchReport {
    WatchKind kind;
    int64_t now_ns; /* monotonic, when it was read */
    int64_t step;
    int32_t stage, replica;
    double loss_sum;
    int64_t valid, correct;
    double grad_norm;
    int64_t skipped; /* updates skipped so far */
    int decision;
    bool waited; /* it was not there already: now_ns is the time when it came */
    Heartbeat heartbeat;
    Saved saved;
    ErrNote failure;
} WatchReport;

typedef struct Watch Watch;

/* `order`: the job's order with plan, relay_url, job, generation, first_step and eval_only filled
 * in; borrowed until watch_close. old_generation: what is left of it is dropped first; 0: none. */
int watch_open(const Order *order, int64_t old_generation, void (*notify)(void *ctx), void *ctx,
               Watch **out_watch);
/* Take the oldest report: 1, or 0 when there is none. Thread-safe. */
int watch_take(Watch *watch, WatchReport *out_report);
/* Queue: drop what lies under train steps [first, end) and their evaluations. Thread-safe. */
void watch_drop(Watch *watch, int64_t first_step, int64_t end_step);
/* When all heartbeats were last read, monotonic: while the relay is away nobody is silent.
 * Thread-safe. */
int64_t watch_read_ns(Watch *watch);
/* Ends its waits, joins it, and adds what its handle has moved to *traffic. */
void watch_close(Watch *watch, Traffic *traffic);

#endif

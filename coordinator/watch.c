#include "coordinator/watch.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coordinator/watermark.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/stage.h"
#include "core/text.h"
#include "storage/blob.h"
#include "storage/relay.h"

enum { WATCH_MAX_OBJECT_BYTES = 64 << 20, WATCH_RETRY_MS = 100 };
enum { WATCH_MAX_ERRORS = 20 }; /* in a row, while the relay answers with nonsense */
enum { WATCH_DROPS = 512 };     /* prefixes of one relay_drop */

typedef struct Pending { /* a save or an evaluation that has not been reported by all */
    int64_t step;
    bool is_save;
    int32_t n_seen;
    bool *seen; /* (n_workers) for a save, (loss replicas) for an evaluation */
    double loss_sum;
    int64_t valid, correct;
} Pending;

typedef struct Place {
    int32_t stage, replica;
    int64_t heard_wall_ms, heard_attempt; /* of the last heartbeat reported */
} Place;

struct Watch {
    const Order *order;
    KeySpace space;
    void (*notify)(void *ctx);
    void *ctx;
    Relay *relay;
    pthread_t thread;
    atomic_llong read_ns; /* when all heartbeats were last read */
    pthread_mutex_t lock; /* of the next eight */
    pthread_cond_t changed;
    bool closing;
    WatchReport *reports; /* a ring */
    size_t first_report, n_reports, cap_reports;
    int64_t drop_first, drop_end; /* asked for; first == end: nothing */
    /* the thread's own */
    Watermark watermark;
    int64_t old_generation; /* to be dropped; 0: none, or done */
    Place *places;          /* (n_workers) by stage, then replica */
    int32_t n_workers, loss_stage, loss_replicas, n_norms;
    int32_t *owner; /* (n_params) the stage that counts the norm; -1: none */
    double *squares;
    WatchReport step; /* the step under way */
    int32_t n_seen;   /* its norms objects so far */
    int64_t end_step;
    Pending *pending;
    int32_t n_pending, cap_pending;
    Buf object;
    Key drops[WATCH_DROPS]; /* to be dropped in one call */
    const char *drop_prefixes[WATCH_DROPS];
    int n_drops;
    int64_t next_beat_ns, failing_since_ns;
    int n_errors;
};

/* ---- reports ---- */

static int post(Watch *watch, WatchReport *report) {
    report->now_ns = clock_now_ns();
    pthread_mutex_lock(&watch->lock);
    if (watch->n_reports == watch->cap_reports) {
        size_t capacity = watch->cap_reports ? 2 * watch->cap_reports : 64;
        WatchReport *ring = malloc(capacity * sizeof *ring);
        for (size_t i = 0; ring && i < watch->n_reports; i++)
            ring[i] = watch->reports[(watch->first_report + i) % watch->cap_reports];
        if (!ring) {
            pthread_mutex_unlock(&watch->lock);
            return err_set(ERR_MEMORY, "%zu reports", capacity);
        }
        free(watch->reports);
        watch->reports = ring;
        watch->cap_reports = capacity;
        watch->first_report = 0;
    }
    watch->reports[(watch->first_report + watch->n_reports++) % watch->cap_reports] = *report;
    pthread_mutex_unlock(&watch->lock);
    watch->notify(watch->ctx);
    return 0;
}

int watch_take(Watch *watch, WatchReport *out_report) {
    int taken = 0;
    pthread_mutex_lock(&watch->lock);
    if (watch->n_reports > 0) {
        *out_report = watch->reports[watch->first_report];
        watch->first_report = (watch->first_report + 1) % watch->cap_reports;
        watch->n_reports--;
        taken = 1;
    }
    pthread_mutex_unlock(&watch->lock);
    return taken;
}

/* ---- pending saves and evaluations ---- */

static int add_pending(Watch *watch, int64_t step, bool is_save) {
    int32_t n = is_save ? watch->n_workers : watch->loss_replicas;
    if (watch->n_pending == watch->cap_pending) {
        int32_t capacity = watch->cap_pending ? 2 * watch->cap_pending : 8;
        Pending *items = realloc(watch->pending, (size_t)capacity * sizeof *items);
        if (!items)
            return err_set(ERR_MEMORY, "%d saves", capacity);
        watch->pending = items;
        watch->cap_pending = capacity;
    }
    bool *seen = calloc((size_t)n, sizeof *seen);
    if (!seen)
        return err_set(ERR_MEMORY, "a save of %d workers", n);
    watch->pending[watch->n_pending++] = (Pending){.step = step, .is_save = is_save, .seen = seen};
    return 0;
}

static void remove_pending(Watch *watch, int32_t index) {
    free(watch->pending[index].seen);
    watch->n_pending--;
    memmove(&watch->pending[index], &watch->pending[index + 1],
            (size_t)(watch->n_pending - index) * sizeof watch->pending[0]);
}

static Key pending_key(const Watch *watch, const Pending *pending, int32_t who) {
    if (pending->is_save)
        return key_saved(&watch->space, pending->step, watch->places[who].stage,
                         watch->places[who].replica);
    return key_eval(&watch->space, pending->step, watch->loss_stage, who);
}

static int blob_of(const Watch *watch, const char *key, const DType *dtypes, int n,
                   BlobTensor *tensors, size_t *offsets) {
    int found = 0;
    TRY(blob_parse(watch->object.data, watch->object.bytes, key, tensors, offsets, n, &found));
    for (int i = 0; i < n; i++) {
        if (found != n || tensors[i].dtype != dtypes[i] || tensors[i].shape.n_dims != 1)
            return err_set(ERR_CORRUPT, "object '%s': %d tensors of unexpected form", key, found);
    }
    return 0;
}

static int read_eval(Watch *watch, const char *key, Pending *pending) {
    static const DType dtypes[] = {DTYPE_F64, DTYPE_I64};
    BlobTensor tensors[2];
    size_t offsets[2];
    double loss = 0;
    int64_t counts[2];
    TRY(blob_of(watch, key, dtypes, 2, tensors, offsets));
    if (tensors[0].shape.dims[0] != 1 || tensors[1].shape.dims[0] != 2)
        return err_set(ERR_CORRUPT, "object '%s': not an evaluation's sums", key);
    memcpy(&loss, watch->object.data + offsets[0], sizeof loss);
    memcpy(counts, watch->object.data + offsets[1], sizeof counts);
    pending->loss_sum += loss;
    pending->valid += counts[0];
    pending->correct += counts[1];
    return 0;
}

/* Wait until the deadline for what `who` is to report (0 when it is not there by then). */
static int see_pending(Watch *watch, int32_t index, int32_t who, int64_t deadline_ns) {
    Pending *pending = &watch->pending[index];
    Key key = pending_key(watch, pending, who);
    TRY(relay_get_buf(watch->relay, key.text, &watch->object, deadline_ns));
    WatchReport report = {.kind = WATCH_SAVED, .step = pending->step};
    if (!pending->is_save)
        TRY(read_eval(watch, key.text, pending));
    else if (report_parse_saved(watch->object.data, watch->object.bytes, &report.saved) < 0)
        return err_context(ERR_CORRUPT, "object '%s'", key.text);
    pending->seen[who] = true;
    pending->n_seen++;
    if (pending->is_save) {
        report.stage = watch->places[who].stage;
        report.replica = watch->places[who].replica;
        TRY(post(watch, &report));
    } else if (pending->n_seen == watch->loss_replicas) {
        report.kind = WATCH_EVALUATED;
        report.loss_sum = pending->loss_sum;
        report.valid = pending->valid;
        report.correct = pending->correct;
        TRY(post(watch, &report));
    }
    return 0;
}

/* Look, without waiting, which of the pending ones have been reported. */
static int poll_pending(Watch *watch) {
    for (int32_t i = 0; i < watch->n_pending;) {
        Pending *pending = &watch->pending[i];
        int32_t n = pending->is_save ? watch->n_workers : watch->loss_replicas;
        for (int32_t who = 0; who < n; who++) {
            if (pending->seen[who])
                continue;
            int there = relay_has(watch->relay, pending_key(watch, pending, who).text);
            TRY(there);
            if (there)
                TRY(see_pending(watch, i, who, clock_deadline_ms(1000)));
        }
        if (pending->n_seen == n)
            remove_pending(watch, i);
        else
            i++;
    }
    return 0;
}

static int wait_pending(Watch *watch, int64_t deadline_ns) {
    int32_t who = 0;
    while (watch->pending[0].seen[who])
        who++;
    TRY(see_pending(watch, 0, who, deadline_ns));
    return poll_pending(watch);
}

/* ---- steps ---- */

static int find_owners(Watch *watch) {
    const Model *model = &watch->order->model;
    const PlanSpec *plan = &watch->order->plan;
    watch->owner = calloc((size_t)model->n_params + 1, sizeof *watch->owner);
    watch->squares = calloc((size_t)model->n_params + 1, sizeof *watch->squares);
    if (!watch->owner || !watch->squares)
        return err_set(ERR_MEMORY, "the norms of %d parameters", model->n_params);
    stage_norm_owners(model, plan->ends, plan->n_stages, watch->owner);
    return 0;
}

static int read_squares(Watch *watch, const char *key, int32_t stage, const char *data, int64_t n) {
    int64_t at = 0;
    for (int32_t p = 0; p < watch->order->model.n_params; p++) {
        if (watch->owner[p] != stage)
            continue;
        if (at < n)
            memcpy(&watch->squares[p], data + at * (int64_t)sizeof(double), sizeof(double));
        at++;
    }
    if (at != n)
        return err_set(ERR_CORRUPT, "object '%s': %lld norms, expected %lld", key, (long long)n,
                       (long long)at);
    return 0;
}

/* The i-th norms object of a step: replica 0 of every stage, then the loss stage's others. */
static int read_norms(Watch *watch, const char *key, int32_t stage, int32_t replica) {
    static const DType dtypes[] = {DTYPE_F64, DTYPE_F64, DTYPE_I64};
    BlobTensor tensors[3];
    size_t offsets[3];
    double loss = 0;
    int64_t counts[4];
    const char *data = watch->object.data;
    TRY(blob_of(watch, key, dtypes, 3, tensors, offsets));
    if (tensors[1].shape.dims[0] != 1 || tensors[2].shape.dims[0] != 4)
        return err_set(ERR_CORRUPT, "object '%s': not a step's norms", key);
    if (replica == 0)
        TRY(read_squares(watch, key, stage, data + offsets[0], tensors[0].shape.dims[0]));
    memcpy(&loss, data + offsets[1], sizeof loss);
    memcpy(counts, data + offsets[2], sizeof counts);
    if (stage == watch->loss_stage) {
        watch->step.loss_sum += loss;
        watch->step.valid += counts[0];
        watch->step.correct += counts[1];
    }
    if (stage == 0 && replica == 0) {
        watch->step.decision = (int)counts[2];
        watch->step.skipped = counts[3];
    }
    return 0;
}

static int end_step(Watch *watch) {
    WatchReport *step = &watch->step;
    const Order *order = watch->order;
    double total = 0;
    for (int32_t p = 0; p < order->model.n_params; p++)
        total += watch->owner[p] >= 0 ? watch->squares[p] : 0.0;
    step->grad_norm = sqrt(total);
    if (step->step + 1 == order->end_step) /* too late: the workers end as they would have */
        step->decision &= ~DECISION_STOP;
    bool stop = (step->decision & DECISION_STOP) != 0;
    TRY(post(watch, step));
    if (stop)
        watch->end_step = step->step + 1;
    if (!stop && order_eval_due(order, step->step))
        TRY(add_pending(watch, step->step + 1, false));
    if (stop || (step->decision & DECISION_SAVE) || order_save_due(order, step->step))
        TRY(add_pending(watch, step->step + 1, true));
    *step = (WatchReport){.kind = WATCH_STEP, .step = step->step + 1};
    watch->n_seen = 0;
    return poll_pending(watch);
}

static int wait_norms(Watch *watch, int64_t deadline_ns) {
    int32_t n_stages = watch->order->plan.n_stages;
    int64_t n_waits = watch->relay->counters.n_waits;
    while (watch->n_seen < watch->n_norms) {
        bool of_stage = watch->n_seen < n_stages;
        int32_t stage = of_stage ? watch->n_seen : watch->loss_stage;
        int32_t replica = of_stage ? 0 : watch->n_seen - n_stages + 1;
        Key key = key_norms(&watch->space, watch->step.step, stage, replica);
        TRY(relay_get_buf(watch->relay, key.text, &watch->object, deadline_ns));
        TRY(read_norms(watch, key.text, stage, replica));
        watch->n_seen++;
    }
    watch->step.waited = watch->relay->counters.n_waits > n_waits;
    return end_step(watch);
}

/* ---- heartbeats and drops ---- */

static int read_heartbeat(Watch *watch, Place *place) {
    char text[RELAY_NOTE_MAX_BYTES];
    size_t bytes = 0;
    Key key = key_heartbeat(&watch->space, place->stage, place->replica);
    WatchReport report = {.kind = WATCH_HEARTBEAT, .stage = place->stage};
    int rc = relay_note_get(watch->relay, key.text, text, sizeof text, &bytes);
    if (rc == ERR_NOT_FOUND)
        return 0;
    TRY(rc);
    rc = report_parse_heartbeat(text, bytes, &report.heartbeat);
    if (rc < 0) /* nonsense under a heartbeat's key is silence */
        return 0;
    if (report.heartbeat.wall_ms == place->heard_wall_ms &&
        report.heartbeat.attempt == place->heard_attempt)
        return 0;
    place->heard_wall_ms = report.heartbeat.wall_ms;
    place->heard_attempt = report.heartbeat.attempt;
    report.replica = place->replica;
    return post(watch, &report);
}

static int check_watermark(Watch *watch) {
    WatchReport report = {.kind = WATCH_LOST, .step = watch->step.step};
    int rc = watermark_raise(&watch->watermark, watch->relay);
    if (rc <= 0)
        return rc;
    snprintf(report.failure.text, sizeof report.failure.text, "the relay has lost objects: %s",
             watch->watermark.lost);
    TRY(post(watch, &report));
    return err_set(ERR_CANCELLED, "%s", report.failure.text); /* there is nothing to watch */
}

static int read_heartbeats(Watch *watch) {
    for (int32_t i = 0; i < watch->n_workers; i++)
        TRY(read_heartbeat(watch, &watch->places[i]));
    atomic_store(&watch->read_ns, clock_now_ns());
    return 0;
}

int64_t watch_read_ns(Watch *watch) {
    return atomic_load(&watch->read_ns);
}

void watch_drop(Watch *watch, int64_t first_step, int64_t end_step_) {
    pthread_mutex_lock(&watch->lock);
    if (watch->drop_first == watch->drop_end)
        watch->drop_first = first_step;
    watch->drop_end = end_step_;
    pthread_cond_broadcast(&watch->changed);
    pthread_mutex_unlock(&watch->lock);
}

/* Ask for a prefix to be dropped with the others. */
static int add_drop(Watch *watch, Key key) {
    if (watch->n_drops == WATCH_DROPS) {
        TRY(relay_drop(watch->relay, watch->drop_prefixes, watch->n_drops, NULL));
        watch->n_drops = 0;
    }
    watch->drops[watch->n_drops] = key;
    watch->drop_prefixes[watch->n_drops] = watch->drops[watch->n_drops].text;
    watch->n_drops++;
    return 0;
}

static int add_step(Watch *watch, int64_t step) {
    const Order *order = watch->order;
    TRY(add_drop(watch, key_step_prefix(&watch->space, step)));
    if (step == 0 || !order_eval_due(order, step - 1))
        return 0;
    int64_t n_batches = order_steps_per_epoch(order->eval_samples, order->batch);
    for (int64_t batch = 0; batch < n_batches; batch++)
        TRY(add_drop(watch, key_eval_prefix(&watch->space, (KeyPlace){step, batch})));
    for (int32_t replica = 0; replica < watch->loss_replicas; replica++)
        TRY(add_drop(watch, key_eval(&watch->space, step, watch->loss_stage, replica)));
    return 0;
}

static int drop_old(Watch *watch) {
    KeySpace space = watch->space;
    space.generation = watch->old_generation;
    if (space.generation > 0)
        TRY(relay_drop_one(watch->relay, key_space_prefix(&space).text, NULL));
    watch->old_generation = 0;
    return 0;
}

/* Drop what a turn has time for: as many of the steps as fill a call, or one with more. What fails
 * is asked for still, and done the next time. */
static int do_drops(Watch *watch) {
    TRY(drop_old(watch));
    pthread_mutex_lock(&watch->lock);
    int64_t step = watch->drop_first;
    int64_t end = watch->drop_end;
    pthread_mutex_unlock(&watch->lock);
    if (step == end)
        return 0;
    TRY(poll_pending(watch)); /* evaluations that are to be dropped are finished: read them first */
    for (int32_t i = watch->n_pending - 1; i >= 0; i--) {
        if (watch->pending[i].step < end)
            remove_pending(watch, i);
    }
    watch->n_drops = 0;
    do
        TRY(add_step(watch, step++));
    while (step < end && watch->n_drops < WATCH_DROPS / 2);
    TRY(relay_drop(watch->relay, watch->drop_prefixes, watch->n_drops, NULL));
    pthread_mutex_lock(&watch->lock);
    watch->drop_first = step;
    pthread_mutex_unlock(&watch->lock);
    return 0;
}

static bool drops_wait(Watch *watch) {
    pthread_mutex_lock(&watch->lock);
    bool wait = watch->drop_first != watch->drop_end;
    pthread_mutex_unlock(&watch->lock);
    return wait;
}

/* ---- the thread ---- */

static bool is_closing(Watch *watch) {
    pthread_mutex_lock(&watch->lock);
    bool closing = watch->closing;
    pthread_mutex_unlock(&watch->lock);
    return closing;
}

/* Until the deadline, or until there is something to drop where the sleep is `for_drops`. */
static void sleep_until(Watch *watch, int64_t deadline_ns, bool for_drops) {
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / CLOCK_NS_PER_S),
                             .tv_nsec = (long)(deadline_ns % CLOCK_NS_PER_S)};
    pthread_mutex_lock(&watch->lock);
    while (!watch->closing && !(for_drops && watch->drop_first != watch->drop_end) &&
           pthread_cond_timedwait(&watch->changed, &watch->lock, &until) == 0) {
    }
    pthread_mutex_unlock(&watch->lock);
}

static int read_reports(Watch *watch) {
    int64_t now_ns = clock_now_ns();
    if (now_ns >= watch->next_beat_ns) {
        watch->next_beat_ns = clock_deadline_ms(watch->order->heartbeat_ms);
        TRY(check_watermark(watch));
        TRY(read_heartbeats(watch));
        TRY(poll_pending(watch));
    }
    int64_t until_ns = drops_wait(watch) ? now_ns : watch->next_beat_ns;
    if (watch->step.step < watch->end_step)
        return wait_norms(watch, until_ns);
    if (watch->n_pending > 0)
        return wait_pending(watch, until_ns);
    sleep_until(watch, watch->next_beat_ns, true);
    return 0;
}

/* Drops that fail keep nothing from being read. */
static int watch_once(Watch *watch) {
    ErrNote note = {0};
    int dropped = do_drops(watch);
    if (dropped < 0)
        err_copy(&note);
    int rc = read_reports(watch);
    return dropped < 0 && (rc >= 0 || rc == ERR_TIMEOUT) ? err_restore(&note) : rc;
}

/* An error is tried again while the relay may come back; then the job has to know. */
static bool give_up(Watch *watch, int code) {
    int64_t now = clock_now_ns();
    if (watch->n_errors++ == 0)
        watch->failing_since_ns = now;
    bool lasts = now - watch->failing_since_ns > watch->order->wait_timeout_ms * CLOCK_NS_PER_MS;
    return lasts || !err_retry(code) ||
           (code == ERR_CORRUPT && watch->n_errors >= WATCH_MAX_ERRORS);
}

static void *watch_thread(void *arg) {
    Watch *watch = arg;
    pthread_setname_np(pthread_self(), "watch");
    while (!is_closing(watch)) {
        int rc = watch_once(watch);
        if (rc >= 0 || rc == ERR_TIMEOUT) {
            watch->n_errors = 0;
            continue;
        }
        if (rc == ERR_CANCELLED || is_closing(watch))
            break;
        if (give_up(watch, rc)) {
            WatchReport report = {.kind = WATCH_FAILED, .step = watch->step.step};
            err_copy(&report.failure);
            post(watch, &report);
            break;
        }
        sleep_until(watch, clock_deadline_ms(WATCH_RETRY_MS), false);
    }
    return NULL;
}

static int watch_init(Watch *watch, const Order *order) {
    watch->order = order;
    watch->space.generation = order->generation;
    TRY(text_copy(watch->space.job, sizeof watch->space.job, order->job));
    buf_init(&watch->object, WATCH_MAX_OBJECT_BYTES);
    const PlanSpec *plan = &order->plan;
    watch->loss_stage = plan->n_stages - 1;
    watch->loss_replicas = plan->replicas[watch->loss_stage];
    watch->n_norms = plan->n_stages + watch->loss_replicas - 1;
    for (int32_t stage = 0; stage < plan->n_stages; stage++)
        watch->n_workers += plan->replicas[stage];
    watch->places = calloc((size_t)watch->n_workers, sizeof *watch->places);
    if (!watch->places)
        return err_set(ERR_MEMORY, "watching %d workers", watch->n_workers);
    Place *place = watch->places;
    for (int32_t stage = 0; stage < plan->n_stages; stage++) {
        for (int32_t replica = 0; replica < plan->replicas[stage]; replica++)
            *place++ = (Place){.stage = stage, .replica = replica};
    }
    watch->step = (WatchReport){.kind = WATCH_STEP, .step = order->first_step};
    watch->end_step = order->eval_only ? order->first_step : order->n_steps;
    if (order->eval_only)
        TRY(add_pending(watch, order->first_step, false));
    return find_owners(watch);
}

static void watch_free(Watch *watch) {
    for (int32_t i = 0; i < watch->n_pending; i++)
        free(watch->pending[i].seen);
    free(watch->pending);
    relay_close(watch->relay);
    buf_done(&watch->object);
    free(watch->places);
    free(watch->owner);
    free(watch->squares);
    free(watch->reports);
    pthread_mutex_destroy(&watch->lock);
    pthread_cond_destroy(&watch->changed);
    free(watch);
}

int watch_open(const Order *order, int64_t old_generation, void (*notify)(void *ctx), void *ctx,
               Watch **out_watch) {
    Watch *watch = calloc(1, sizeof *watch);
    if (!watch)
        return err_set(ERR_MEMORY, "the watch over a job");
    watch->notify = notify;
    watch->ctx = ctx;
    watch->old_generation = old_generation;
    atomic_init(&watch->read_ns, clock_now_ns());
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&watch->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&watch->lock, NULL);
    int rc = watch_init(watch, order);
    if (rc >= 0)
        rc = relay_open_again(order->relay_url, &watch->relay);
    if (rc >= 0)
        watermark_init(&watch->watermark, &watch->space, watch->relay);
    if (rc >= 0 && pthread_create(&watch->thread, NULL, watch_thread, watch) != 0)
        rc = err_set(ERR_MEMORY, "a thread to watch a job");
    if (rc < 0) {
        watch_free(watch);
        return rc;
    }
    *out_watch = watch;
    return 0;
}

void watch_close(Watch *watch, Traffic *traffic) {
    if (!watch)
        return;
    pthread_mutex_lock(&watch->lock);
    watch->closing = true;
    pthread_cond_broadcast(&watch->changed);
    pthread_mutex_unlock(&watch->lock);
    relay_interrupt(watch->relay, true);
    pthread_join(watch->thread, NULL);
    relay_add_up(&watch->relay->counters, traffic);
    watch_free(watch);
}

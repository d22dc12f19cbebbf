#include "tests/support/device_deferred.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/err.h"
#include "gpu/kernels.h"

enum { MAX_AREAS = 4, MAX_QUEUED = 1 << 10 };

typedef struct Deferred Deferred;
typedef struct DeferredStream DeferredStream;
typedef struct Work Work;

/* The table's types are only names here; the device's own stand behind them. */
typedef struct DeferredArea {
    char *address; /* the host's to know, not to touch */
    void *memory;
    size_t bytes;
} DeferredArea;

struct Deferred {
    DeferredSetup *setup;
    const DeviceOps *cpu;
    Device *device;
    pthread_mutex_t lock; /* of all queues: one piece of work at a time */
    DeferredArea areas[MAX_AREAS];
};

struct Work {
    int (*run)(DeferredStream *stream, const Work *work);
    void *to;
    const void *from;
    int64_t n;
    int64_t position; /* of the stream waited for */
    DeferredStream *other;
    double factor;
    DType dtype;
    Shape shape;
    Op *op;
    OpPass pass;
    OpArgs args;
    UpdateArgs update;
};

struct DeferredStream {
    Deferred *deferred;
    Stream *stream;
    Work *queue;          /* (MAX_QUEUED) a ring */
    int64_t queued, done; /* ever */
    ErrNote note;         /* the first error of its work */
};

typedef struct DeferredEvent {
    Deferred *deferred;
    DeferredStream *stream; /* NULL: never recorded */
    int64_t position;
} DeferredEvent;

typedef struct DeferredOp {
    Op *op;
    int32_t layer;
} DeferredOp;

static _Thread_local DeferredSetup *next_setup;

static Deferred *of(Device *device) {
    return (Deferred *)(void *)device;
}

static DeferredStream *of_stream(Stream *stream) {
    return (DeferredStream *)(void *)stream;
}

/* ---- memory ---- */

/* What lies at a device address; host addresses stay what they are. */
static void *at(const Deferred *deferred, const void *address) {
    for (int i = 0; i < MAX_AREAS; i++) {
        const DeferredArea *area = &deferred->areas[i];
        const size_t offset = (uintptr_t)address - (uintptr_t)area->address;
        if (area->address != NULL && (uintptr_t)address >= (uintptr_t)area->address &&
            offset < area->bytes) {
            return (char *)area->memory + offset;
        }
    }
    return (void *)(uintptr_t)address;
}

/* The same, for what the device computes with: that is its own memory or nothing. */
static int own(const Deferred *deferred, const void *address, void **out_memory) {
    *out_memory = at(deferred, address);
    if (address != NULL && *out_memory == address) {
        return err_set(ERR_INTERNAL, "the device is to compute in the host's memory");
    }
    return 0;
}

static int deferred_mem_alloc(Device *device, size_t bytes, void **out_mem) {
    Deferred *deferred = of(device);
    int i = 0;
    while (i < MAX_AREAS && deferred->areas[i].address != NULL) {
        i++;
    }
    if (i == MAX_AREAS) {
        return err_set(ERR_LIMIT, "more than %d areas of device memory", MAX_AREAS);
    }
    DeferredArea area = {.bytes = bytes};
    TRY(deferred->cpu->mem_alloc(deferred->device, bytes, &area.memory));
    void *address =
        mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
        deferred->cpu->mem_free(deferred->device, area.memory);
        return err_set(ERR_MEMORY, "%zu bytes of addresses", bytes);
    }
    area.address = address;
    deferred->areas[i] = area;
    *out_mem = address;
    return 0;
}

static void deferred_mem_free(Device *device, void *mem) {
    Deferred *deferred = of(device);
    for (int i = 0; mem != NULL && i < MAX_AREAS; i++) {
        DeferredArea *area = &deferred->areas[i];
        if (area->address == mem) {
            munmap(area->address, area->bytes);
            deferred->cpu->mem_free(deferred->device, area->memory);
            *area = (DeferredArea){0};
        }
    }
}

static int deferred_host_alloc(Device *device, size_t bytes, void **out_mem) {
    return of(device)->cpu->host_alloc(of(device)->device, bytes, out_mem);
}

static void deferred_host_free(Device *device, void *mem) {
    of(device)->cpu->host_free(of(device)->device, mem);
}

/* ---- queues ---- */

/* With the lock held: do the stream's work up to `position`. */
static int work_to(DeferredStream *stream, int64_t position) {
    while (stream->done < position && stream->note.code == 0) {
        const Work *work = &stream->queue[stream->done % MAX_QUEUED];
        if (work->run(stream, work) < 0) {
            err_copy(&stream->note);
        }
        stream->done++;
    }
    return stream->note.code < 0 ? err_restore(&stream->note) : 0;
}

static int queue(DeferredStream *stream, const Work *work) {
    Deferred *deferred = stream->deferred;
    int rc = 0;
    pthread_mutex_lock(&deferred->lock);
    if (stream->queued - stream->done == MAX_QUEUED) {
        rc = work_to(stream, stream->done + 1);
    }
    stream->queue[stream->queued++ % MAX_QUEUED] = *work;
    pthread_mutex_unlock(&deferred->lock);
    atomic_fetch_add(&deferred->setup->n_late, 1);
    return rc;
}

static int deferred_stream_open(Device *device, Stream **out_stream) {
    Deferred *deferred = of(device);
    DeferredStream *stream = calloc(1, sizeof *stream);
    if (stream == NULL || (stream->queue = calloc(MAX_QUEUED, sizeof *stream->queue)) == NULL) {
        free(stream);
        return err_set(ERR_MEMORY, "a stream");
    }
    stream->deferred = deferred;
    int rc = deferred->cpu->stream_open(deferred->device, &stream->stream);
    if (rc < 0) {
        free(stream->queue);
        free(stream);
        return rc;
    }
    *out_stream = (Stream *)(void *)stream;
    return 0;
}

static void deferred_stream_close(Stream *stream) {
    DeferredStream *self = of_stream(stream);
    atomic_fetch_add(&self->deferred->setup->n_left, self->queued - self->done);
    self->deferred->cpu->stream_close(self->stream);
    free(self->queue);
    free(self);
}

static int deferred_stream_sync(Stream *stream) {
    DeferredStream *self = of_stream(stream);
    pthread_mutex_lock(&self->deferred->lock);
    int rc = work_to(self, self->queued);
    pthread_mutex_unlock(&self->deferred->lock);
    return rc;
}

static int deferred_event_open(Device *device, Event **out_event) {
    DeferredEvent *event = calloc(1, sizeof *event);
    if (event == NULL) {
        return err_set(ERR_MEMORY, "an event");
    }
    event->deferred = of(device);
    *out_event = (Event *)(void *)event;
    return 0;
}

static void deferred_event_close(Event *event) {
    free(event);
}

static int deferred_event_record(Event *event, Stream *stream) {
    DeferredEvent *self = (DeferredEvent *)(void *)event;
    pthread_mutex_lock(&self->deferred->lock);
    self->stream = of_stream(stream);
    self->position = self->stream->queued;
    pthread_mutex_unlock(&self->deferred->lock);
    return 0;
}

static int deferred_event_sync(Event *event) {
    DeferredEvent *self = (DeferredEvent *)(void *)event;
    pthread_mutex_lock(&self->deferred->lock);
    int rc = self->stream != NULL ? work_to(self->stream, self->position) : 0;
    pthread_mutex_unlock(&self->deferred->lock);
    return rc;
}

static int run_wait(DeferredStream *stream, const Work *work) {
    (void)stream;
    return work_to(work->other, work->position);
}

static int deferred_stream_wait(Stream *stream, Event *event) {
    DeferredEvent *self = (DeferredEvent *)(void *)event;
    Work work = {.run = run_wait};
    pthread_mutex_lock(&self->deferred->lock);
    work.other = self->stream;
    work.position = self->position;
    pthread_mutex_unlock(&self->deferred->lock);
    return work.other != NULL ? queue(of_stream(stream), &work) : 0;
}

/* ---- work ---- */

static int run_copy(DeferredStream *stream, const Work *work) {
    const Deferred *deferred = stream->deferred;
    return deferred->cpu->copy(stream->stream, at(deferred, work->to), at(deferred, work->from),
                               (size_t)work->n);
}

static int deferred_copy(Stream *stream, void *dst, const void *src, size_t bytes) {
    const Work work = {.run = run_copy, .to = dst, .from = src, .n = (int64_t)bytes};
    return queue(of_stream(stream), &work);
}

static int run_zero(DeferredStream *stream, const Work *work) {
    return stream->deferred->cpu->fill_zero(stream->stream, at(stream->deferred, work->to),
                                            (size_t)work->n);
}

static int deferred_fill_zero(Stream *stream, void *dst, size_t bytes) {
    const Work work = {.run = run_zero, .to = dst, .n = (int64_t)bytes};
    return queue(of_stream(stream), &work);
}

static int run_to_plain(DeferredStream *stream, const Work *work) {
    void *from;
    TRY(own(stream->deferred, work->from, &from));
    return stream->deferred->cpu->value_to_plain(stream->stream, work->dtype, &work->shape, work->n,
                                                 work->to, from);
}

static int deferred_to_plain(Stream *stream, DType dtype, const Shape *shape, int64_t rows,
                             void *plain_dst, const void *src) {
    const Work work = {.run = run_to_plain,
                       .to = plain_dst,
                       .from = src,
                       .n = rows,
                       .dtype = dtype,
                       .shape = *shape};
    return queue(of_stream(stream), &work);
}

static int run_from_plain(DeferredStream *stream, const Work *work) {
    void *to;
    TRY(own(stream->deferred, work->to, &to));
    return stream->deferred->cpu->value_from_plain(stream->stream, work->dtype, &work->shape,
                                                   work->n, to, work->from);
}

static int deferred_from_plain(Stream *stream, DType dtype, const Shape *shape, int64_t rows,
                               void *dst, const void *plain_src) {
    const Work work = {.run = run_from_plain,
                       .to = dst,
                       .from = plain_src,
                       .n = rows,
                       .dtype = dtype,
                       .shape = *shape};
    return queue(of_stream(stream), &work);
}

static int run_add(DeferredStream *stream, const Work *work) {
    void *to, *from;
    TRY(own(stream->deferred, work->to, &to));
    TRY(own(stream->deferred, work->from, &from));
    return stream->deferred->cpu->add(stream->stream, to, from, work->n);
}

static int deferred_add(Stream *stream, float *dst, const float *src, int64_t n) {
    const Work work = {.run = run_add, .to = dst, .from = src, .n = n};
    return queue(of_stream(stream), &work);
}

static int run_scale(DeferredStream *stream, const Work *work) {
    void *to;
    TRY(own(stream->deferred, work->to, &to));
    return stream->deferred->cpu->scale(stream->stream, to, work->factor, work->n);
}

static int deferred_scale(Stream *stream, float *dst, double factor, int64_t n) {
    const Work work = {.run = run_scale, .to = dst, .factor = factor, .n = n};
    return queue(of_stream(stream), &work);
}

static int run_square_sum(DeferredStream *stream, const Work *work) {
    void *from;
    TRY(own(stream->deferred, work->from, &from));
    return stream->deferred->cpu->square_sum(stream->stream, from, work->n, work->to);
}

static int deferred_square_sum(Stream *stream, const float *src, int64_t n, double *out_sum) {
    const Work work = {.run = run_square_sum, .to = out_sum, .from = src, .n = n};
    return queue(of_stream(stream), &work);
}

static int run_update(DeferredStream *stream, const Work *work) {
    const Deferred *deferred = stream->deferred;
    UpdateArgs args = work->update;
    void *w, *g, *m, *v;
    TRY(own(deferred, args.w, &w));
    TRY(own(deferred, args.g, &g));
    TRY(own(deferred, args.m, &m));
    TRY(own(deferred, args.v, &v));
    args.w = w;
    args.g = g;
    args.m = m;
    args.v = v;
    return work->n > 0 ? deferred->cpu->update_adamw(stream->stream, &args)
                       : deferred->cpu->update_sgd(stream->stream, &args);
}

static int deferred_update_sgd(Stream *stream, const UpdateArgs *args) {
    const Work work = {.run = run_update, .update = *args};
    return queue(of_stream(stream), &work);
}

static int deferred_update_adamw(Stream *stream, const UpdateArgs *args) {
    const Work work = {.run = run_update, .update = *args, .n = 1};
    return queue(of_stream(stream), &work);
}

/* ---- ops ---- */

static int run_op(DeferredStream *stream, const Work *work) {
    const Deferred *deferred = stream->deferred;
    OpArgs args = work->args;
    void *memory;
    for (int i = 0; i < LAYER_MAX_INPUTS; i++) {
        TRY(own(deferred, args.x[i], &memory));
        args.x[i] = memory;
        TRY(own(deferred, args.dx[i], &args.dx[i]));
    }
    for (int i = 0; i < LAYER_MAX_PARAMS; i++) {
        TRY(own(deferred, args.w[i], &memory));
        args.w[i] = memory;
        TRY(own(deferred, args.dw[i], &args.dw[i]));
        TRY(own(deferred, args.dw_plain[i], &args.dw_plain[i]));
    }
    TRY(own(deferred, args.dy, &memory));
    args.dy = memory;
    TRY(own(deferred, args.y, &args.y));
    TRY(own(deferred, args.packed, &args.packed));
    TRY(own(deferred, args.saved, &args.saved));
    TRY(own(deferred, args.scratch, &args.scratch));
    return deferred->cpu->op_run(work->op, stream->stream, work->pass, &args);
}

static int deferred_op_open(Device *device, const Model *model, int32_t layer, const int32_t *rows,
                            int32_t n_rows, Op **out_op) {
    DeferredOp *op = calloc(1, sizeof *op);
    if (op == NULL) {
        return err_set(ERR_MEMORY, "an op");
    }
    op->layer = layer;
    int rc = of(device)->cpu->op_open(of(device)->device, model, layer, rows, n_rows, &op->op);
    if (rc < 0) {
        free(op);
        return rc;
    }
    *out_op = (Op *)(void *)op;
    return 0;
}

static void deferred_op_close(Op *op) {
    if (op != NULL) {
        cpu_device_ops()->op_close(((DeferredOp *)(void *)op)->op);
        free(op);
    }
}

static const OpNeeds *deferred_op_needs(const Op *op) {
    return cpu_device_ops()->op_needs(((const DeferredOp *)(const void *)op)->op);
}

static int deferred_op_run(Op *op, Stream *stream, OpPass pass, const OpArgs *args) {
    const DeferredOp *self = (const DeferredOp *)(const void *)op;
    const DeferredSetup *setup = of_stream(stream)->deferred->setup;
    if (setup->before_op != NULL) {
        TRY(setup->before_op(setup->ctx, self->layer, pass, args));
    }
    const Work work = {.run = run_op, .op = self->op, .pass = pass, .args = *args};
    return queue(of_stream(stream), &work);
}

/* ---- the device ---- */

static int deferred_open(const DeviceConfig *config, Device **out_device) {
    Deferred *deferred = calloc(1, sizeof *deferred);
    if (deferred == NULL) {
        return err_set(ERR_MEMORY, "a device");
    }
    deferred->setup = next_setup;
    deferred->cpu = cpu_device_ops();
    pthread_mutex_init(&deferred->lock, NULL);
    int rc = deferred->cpu->open(config, &deferred->device);
    if (rc < 0) {
        pthread_mutex_destroy(&deferred->lock);
        free(deferred);
        return rc;
    }
    *out_device = (Device *)(void *)deferred;
    return 0;
}

static void deferred_close(Device *device) {
    if (device != NULL) {
        of(device)->cpu->close(of(device)->device);
        pthread_mutex_destroy(&of(device)->lock);
        free(device);
    }
}

static const char *deferred_isa(const Device *device) {
    const Deferred *deferred = (const Deferred *)(const void *)device;
    return deferred->cpu->isa(deferred->device);
}

static int deferred_bind_thread(Device *device) {
    return of(device)->cpu->bind_thread(of(device)->device);
}

static size_t deferred_value_bytes(const Device *device, DType dtype, const Shape *shape,
                                   int64_t rows) {
    const Deferred *deferred = (const Deferred *)(const void *)device;
    return deferred->cpu->value_bytes(deferred->device, dtype, shape, rows);
}

static bool deferred_value_is_plain(const Device *device, DType dtype, const Shape *shape) {
    const Deferred *deferred = (const Deferred *)(const void *)device;
    return deferred->cpu->value_is_plain(deferred->device, dtype, shape);
}

int device_deferred_find(DeferredSetup *setup, const char *name, const DeviceOps **out_ops) {
    static const DeviceOps ops = {
        .name = "deferred",
        .open = deferred_open,
        .close = deferred_close,
        .isa = deferred_isa,
        .bind_thread = deferred_bind_thread,
        .mem_alloc = deferred_mem_alloc,
        .mem_free = deferred_mem_free,
        .host_alloc = deferred_host_alloc,
        .host_free = deferred_host_free,
        .stream_open = deferred_stream_open,
        .stream_close = deferred_stream_close,
        .stream_sync = deferred_stream_sync,
        .event_open = deferred_event_open,
        .event_close = deferred_event_close,
        .event_record = deferred_event_record,
        .event_sync = deferred_event_sync,
        .stream_wait = deferred_stream_wait,
        .copy = deferred_copy,
        .fill_zero = deferred_fill_zero,
        .value_bytes = deferred_value_bytes,
        .value_is_plain = deferred_value_is_plain,
        .value_to_plain = deferred_to_plain,
        .value_from_plain = deferred_from_plain,
        .op_open = deferred_op_open,
        .op_close = deferred_op_close,
        .op_needs = deferred_op_needs,
        .op_run = deferred_op_run,
        .add = deferred_add,
        .scale = deferred_scale,
        .square_sum = deferred_square_sum,
        .update_sgd = deferred_update_sgd,
        .update_adamw = deferred_update_adamw,
    };
    (void)name;
    next_setup = setup;
    *out_ops = &ops;
    return 0;
}

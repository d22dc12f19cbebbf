/* Device: where tensors live and layers compute. One table of functions (DeviceOps) per kind of
 * device: gpu/cpu.c, later a CUDA plugin.
 *
 * The unit of work is an Op: one layer of the model opened for a device, with everything it needs
 * (oneDNN primitives, later cuDNN plans) created beforehand for every row count it will meet, so
 * that running it allocates nothing. What an op needs from its caller is told in OpNeeds; the
 * caller owns all memory.
 *
 * Work is queued on a Stream and done in the order of the calls; what a call is told by pointer to
 * args is taken before it returns, all memory that it names is in use until the work is done. The
 * host may touch that memory (results, sums in host memory, buffers copied from) after stream_sync,
 * or after event_sync on an event recorded behind; another stream after stream_wait on such an
 * event. An error of queued work is that of a later call on the stream. The CPU device finishes
 * before it returns.
 *
 * Layout: inside a stage a value lies in the device's own layout, which depends only on the value's
 * per-sample shape and the device (never on the cut); on the wire and in files it is plain
 * (row-major, the order of Shape). value_bytes, value_to_plain and value_from_plain convert.
 * Parameters and gradients are plain outside the ops; an op may keep a packed copy of its weights
 * (OP_PREPARE makes it) and a packed gradient accumulator (OP_FINISH makes it plain).
 *
 * Same op, inputs, rows, threads and instruction set: the same bits on every run.
 * lint: long because it is the whole contract of a device, on one page. */
#ifndef FUNCPIPE_GPU_DEVICE_H
#define FUNCPIPE_GPU_DEVICE_H

#include "core/model.h"

typedef struct Device Device;
typedef struct Stream Stream;
typedef struct Event Event;
typedef struct Op Op;

typedef struct DeviceConfig {
    int32_t threads; /* OpenMP team of the calling thread; >= 1 */
    const char *isa; /* "auto", or what device_isa said when the plan was made: "avx512_core",
                        "avx2", "sse41". ERR_UNSUPPORTED where this machine cannot. */
} DeviceConfig;

typedef enum OpPass {
    OP_PREPARE,      /* plain weights -> packed (after every change of the weights) */
    OP_FORWARD,      /* training: fills y and saved */
    OP_FORWARD_EVAL, /* evaluation: dropout off, BatchNorm by running statistics; saved untouched */
    OP_BACKWARD_INPUT,  /* dy -> dx[i] where not NULL (written, not added to) */
    OP_BACKWARD_WEIGHT, /* dy -> dw[i] */
    OP_FINISH /* packed dw -> plain dw_plain[i], only for those with dw_packed_bytes > 0 */
} OpPass;

enum { OP_MAX_ROW_VARIANTS = 16 };

typedef struct OpNeeds {
    size_t saved_bytes;   /* per micro-batch in flight: forward writes, backward reads */
    size_t scratch_bytes; /* during any one pass; shared between ops */
    size_t packed_bytes;  /* packed weights; 0: the plain ones are used */
    size_t dw_packed_bytes[LAYER_MAX_PARAMS]; /* packed accumulator of a gradient; 0: it is plain */
    bool keeps_input[LAYER_MAX_INPUTS];       /* backward reads that input's value */
    bool keeps_output;                        /* backward reads the output's value */
    bool may_alias; /* y may be the storage of x[0], and dx[0] that of dy */
} OpNeeds;

/* What the loss layer adds up, in host memory. Sums over the micro-batches of one worker. */
typedef struct LossSums {
    double loss;       /* sum over valid targets of -log p(target), unscaled */
    int64_t n_valid;   /* targets that count */
    int64_t n_correct; /* of those, argmax(logits) == target */
} LossSums;

typedef struct OpArgs {
    int32_t rows; /* rows of this micro-batch, 0 <= rows; one of the opened variants */
    const void *x[LAYER_MAX_INPUTS]; /* device layout */
    void *y;
    const void *dy;                  /* NULL for the loss layer */
    void *dx[LAYER_MAX_INPUTS];      /* NULL: not wanted */
    const void *w[LAYER_MAX_PARAMS]; /* plain parameters */
    void *packed;                    /* packed_bytes */
    void *dw[LAYER_MAX_PARAMS]; /* accumulators, packed where dw_packed_bytes says so; NULL: none.
                            For PARAM_STATISTIC roles of batchnorm, FORWARD writes there, see
                            kernels.h */
    void *dw_plain[LAYER_MAX_PARAMS]; /* OP_FINISH */
    bool
        accumulate; /* false: write dw (first micro of the step; zeros when rows is 0), true: add */
    void *saved;
    void *scratch;
    uint64_t seed; /* dropout key and position, core/rng.h */
    int64_t step;
    int64_t first_row; /* row index in the global batch of row 0 */
    double loss_scale; /* 1 / valid targets in the whole global batch: loss gradient's factor */
    double statistic_decay; /* batchnorm: see kernels.h */
    LossSums *loss;         /* loss layer: added to */
} OpArgs;

typedef struct UpdateArgs {
    int64_t n; /* elements */
    float *w;
    const float *g;
    float *m, *v;     /* state; NULL where the rule has none */
    double lr, scale; /* g is multiplied by scale (clip) before use */
    double momentum, weight_decay, beta1, beta2, eps;
    bool nesterov;
    int64_t t; /* AdamW: updates so far, this one included (bias correction), >= 1 */
} UpdateArgs;

typedef struct DeviceOps {
    const char *name; /* "cpu" */
    bool host_memory; /* device memory is host memory and calls return when their work is done:
                         plain values may lie in staging buffers. Else the host reads and writes
                         device memory by copy and value_to/from_plain only */
    int (*open)(const DeviceConfig *config, Device **out_device);
    void (*close)(Device *device);
    /* "avx512_core": what the plan records and DeviceConfig.isa pins. */
    const char *(*isa)(const Device *device);
    /* Make the calling thread this device's compute thread (OpenMP team, CUDA context). */
    int (*bind_thread)(Device *device);
    /* 64-byte aligned, zeroed. ERR_INFEASIBLE: more than the machine has at all. */
    int (*mem_alloc)(Device *device, size_t bytes, void **out_mem);
    void (*mem_free)(Device *device, void *mem);
    int (*host_alloc)(Device *device, size_t bytes, void **out_mem); /* staging; pinned on a GPU */
    void (*host_free)(Device *device, void *mem);

    int (*stream_open)(Device *device, Stream **out_stream);
    void (*stream_close)(Stream *stream);
    int (*stream_sync)(Stream *stream);
    int (*event_open)(Device *device, Event **out_event);
    void (*event_close)(Event *event);
    /* An event stands for the work that its stream held when it was last recorded; never recorded:
     * for none. One thread may record it while others wait for it. */
    int (*event_record)(Event *event, Stream *stream);
    int (*event_sync)(Event *event);                  /* the host waits */
    int (*stream_wait)(Stream *stream, Event *event); /* later work on the stream waits */
    int (*copy)(Stream *stream, void *dst, const void *src, size_t bytes); /* any direction */
    int (*fill_zero)(Stream *stream, void *dst, size_t bytes);

    /* Layout of values; `shape` per sample. to/from_plain: the plain side is host memory. */
    size_t (*value_bytes)(const Device *device, DType dtype, const Shape *shape, int64_t rows);
    bool (*value_is_plain)(const Device *device, DType dtype, const Shape *shape);
    int (*value_to_plain)(Stream *stream, DType dtype, const Shape *shape, int64_t rows,
                          void *plain_dst, const void *src);
    int (*value_from_plain)(Stream *stream, DType dtype, const Shape *shape, int64_t rows,
                            void *dst, const void *plain_src);

    /* Open layer `layer` of `model` (kept by reference) for the given row counts (ascending,
     * > 0, at most OP_MAX_ROW_VARIANTS; rows 0 is always allowed and does nothing). */
    int (*op_open)(Device *device, const Model *model, int32_t layer, const int32_t *rows,
                   int32_t n_rows, Op **out_op);
    void (*op_close)(Op *op);
    const OpNeeds *(*op_needs)(const Op *op);
    int (*op_run)(Op *op, Stream *stream, OpPass pass, const OpArgs *args);

    /* Whole-tensor helpers; deterministic for a given number of threads and n. */
    int (*add)(Stream *stream, float *dst, const float *src, int64_t n); /* dst += src */
    int (*scale)(Stream *stream, float *dst, double factor, int64_t n);
    /* Sum of squares in double, *out_sum in host memory; inf or nan if any element is not finite.
     * Independent of the number of threads (fixed blocks summed in order). */
    int (*square_sum)(Stream *stream, const float *src, int64_t n, double *out_sum);
    int (*update_sgd)(Stream *stream, const UpdateArgs *args);
    int (*update_adamw)(Stream *stream, const UpdateArgs *args);
} DeviceOps;

/* The table of the device named `name` ("cpu"); ERR_UNSUPPORTED names those there are. */
int device_find(const char *name, const DeviceOps **out_ops);
/* Round up to the alignment every tensor has (64 bytes). */
size_t device_align(size_t bytes);

#endif

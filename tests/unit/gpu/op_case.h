/* One layer opened on the CPU device with all the buffers it asks for, fed with plain values.
 * OpCase turns them into the device's layout and back, keeps a guard behind every buffer, and
 * compares gradients with central differences of a reference in double. Included by the kernel
 * tests only. */
#ifndef FUNCPIPE_TESTS_UNIT_GPU_OP_CASE_H
#define FUNCPIPE_TESTS_UNIT_GPU_OP_CASE_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/model.h"
#include "gpu/device.h"

#define OK(call)                                                                                   \
    do {                                                                                           \
        int ok_rc_ = (call);                                                                       \
        cr_assert(ok_rc_ >= 0, "%s:%d: %s: %s", __FILE__, __LINE__, #call, err_text());            \
    } while (0)

enum { CASE_GUARD = 64 };

typedef struct CaseBuf {
    char *mem;
    size_t bytes;
} CaseBuf;

typedef struct OpCase {
    const DeviceOps *ops;
    Device *device;
    Stream *stream;
    Model model;
    int32_t layer;
    Op *op;
    int32_t rows; /* of the data */
    int n_in, n_params;
    int64_t in_n[4], out_n, param_n[4];          /* elements; in and out per sample */
    float *x[4], *y, *dy, *dx[4], *w[4], *dw[4]; /* plain */
    int32_t *ids[4];                             /* I32 inputs */
    CaseBuf bx[4], by, bdy, bdx[4], bdw[4], packed, saved, scratch; /* device layout */
    LossSums loss;
    uint64_t seed;
    int64_t step, first_row;
    double loss_scale, statistic_decay;
    bool accumulate;
    bool no_statistics; /* dw[2], dw[3] NULL */
} OpCase;

static inline uint64_t case_next(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* In (-1, 1). */
static inline float case_random(uint64_t *state) {
    return (float)((double)(case_next(state) >> 11) * 0x1p-52 - 1.0);
}

/* n zeroed elements, and one more so that there is always memory. */
static inline void *case_zeros(int64_t n, size_t element_bytes) {
    void *mem = calloc((size_t)n + 1, element_bytes);
    if (mem == NULL)
        abort();
    return mem;
}

static inline void case_fill(float *out, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++)
        out[i] = case_random(&seed);
}

static inline CaseBuf case_buf(OpCase *c, size_t bytes) {
    CaseBuf b = {.bytes = bytes};
    void *mem;
    OK(c->ops->mem_alloc(c->device, device_align(bytes) + CASE_GUARD, &mem));
    b.mem = mem;
    memset(b.mem, 0xA5, device_align(bytes) + CASE_GUARD); /* NaN-like rubbish: nothing reads it */
    return b;
}

static inline void case_check_guard(const CaseBuf *b, const char *what) {
    if (b->mem == NULL)
        return;
    for (size_t i = b->bytes; i < device_align(b->bytes) + CASE_GUARD; i++)
        cr_assert((unsigned char)b->mem[i] == 0xA5, "%s: written behind its end (+%zu)", what,
                  i - b->bytes);
}

static inline const Value *case_in(const OpCase *c, int i) {
    return &c->model.values[c->model.layers[c->layer].inputs[i]];
}
static inline const Value *case_out(const OpCase *c) {
    return &c->model.values[c->model.layers[c->layer].output];
}

static inline void case_open_device(OpCase *c, const char *isa, int threads) {
    memset(c, 0, sizeof *c);
    OK(device_find("cpu", &c->ops));
    DeviceConfig config = {.threads = threads, .isa = isa};
    OK(c->ops->open(&config, &c->device));
    OK(c->ops->bind_thread(c->device));
    OK(c->ops->stream_open(c->device, &c->stream));
    c->loss_scale = 1.0;
    c->statistic_decay = 1.0;
    c->seed = 0x123456789ABCDEFu;
    c->step = 7;
    c->first_row = 3;
}

/* Opens the op for `variants` (NULL: {rows}) and fills inputs, parameters and dy with random
 * numbers. One input of shape `in`; kind add gets a second alike, cross_entropy its target. */
static inline void case_open(OpCase *c, const char *isa, int threads, LayerKind kind, Shape in,
                             const LayerAttr *attr, int32_t rows, const int32_t *variants,
                             int32_t n_variants) {
    case_open_device(c, isa, threads);
    bool ids = kind == LAYER_EMBEDDING;
    Shape target = in;
    if (target.n_dims > 0)
        target.n_dims--;
    OK(model_init(&c->model, "case", ids ? DTYPE_I32 : DTYPE_F32, &in,
                  kind == LAYER_CROSS_ENTROPY ? DTYPE_I32 : DTYPE_F32,
                  kind == LAYER_CROSS_ENTROPY ? &target : &in));
    int32_t inputs[2] = {MODEL_VALUE_INPUT, MODEL_VALUE_TARGET};
    int n_in = kind == LAYER_ADD || kind == LAYER_CROSS_ENTROPY ? 2 : 1;
    OK(model_add(&c->model, kind, "layer", inputs, n_in, attr, NULL));
    for (int i = 0; i < n_in; i++)
        c->model.values[i].needs_grad = c->model.values[i].dtype == DTYPE_F32;
    c->layer = 0;
    c->rows = rows;
    if (variants == NULL) {
        variants = &rows;
        n_variants = 1;
    }
    OK(c->ops->op_open(c->device, &c->model, 0, variants, n_variants, &c->op));
    const OpNeeds *needs = c->ops->op_needs(c->op);
    int32_t max_rows = variants[n_variants - 1];
    c->n_in = n_in;
    for (int i = 0; i < n_in; i++) {
        const Value *v = case_in(c, i);
        c->in_n[i] = shape_elements(&v->shape);
        int64_t n = c->in_n[i] * max_rows;
        c->bx[i] = case_buf(c, (size_t)n * 4);
        c->bdx[i] = case_buf(c, (size_t)n * 4);
        c->x[i] = case_zeros(n, sizeof(float));
        c->dx[i] = case_zeros(n, sizeof(float));
        c->ids[i] = (int32_t *)c->x[i];
        if (v->dtype == DTYPE_F32)
            case_fill(c->x[i], n, 11 + (uint64_t)i);
    }
    c->out_n = shape_elements(&case_out(c)->shape);
    int64_t n = c->out_n * max_rows;
    c->by = case_buf(c, (size_t)n * 4);
    c->bdy = case_buf(c, (size_t)n * 4);
    c->y = case_zeros(n, sizeof(float));
    c->dy = case_zeros(n, sizeof(float));
    case_fill(c->dy, n, 22);
    c->n_params = c->model.layers[0].n_params;
    for (int i = 0; i < c->n_params; i++) {
        c->param_n[i] = model_param_elements(&c->model, c->model.layers[0].params[i]);
        c->w[i] = case_zeros(c->param_n[i], sizeof(float));
        c->dw[i] = case_zeros(c->param_n[i], sizeof(float));
        case_fill(c->w[i], c->param_n[i], 33 + (uint64_t)i);
        size_t bytes = needs->dw_packed_bytes[i];
        c->bdw[i] = case_buf(c, bytes > 0 ? bytes : (size_t)c->param_n[i] * 4);
    }
    c->packed = case_buf(c, needs->packed_bytes);
    c->saved = case_buf(c, needs->saved_bytes);
    c->scratch = case_buf(c, needs->scratch_bytes);
}

static inline void case_close(OpCase *c) {
    char name[32];
    CaseBuf *all[] = {&c->by, &c->bdy, &c->packed, &c->saved, &c->scratch};
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "buffer %d", i);
        case_check_guard(all[i], name);
        c->ops->mem_free(c->device, all[i]->mem);
    }
    for (int i = 0; i < 4; i++) {
        CaseBuf *bufs[] = {&c->bx[i], &c->bdx[i], &c->bdw[i]};
        for (int j = 0; j < 3; j++) {
            snprintf(name, sizeof name, "x dx dw: %d of %d", j, i);
            case_check_guard(bufs[j], name);
            c->ops->mem_free(c->device, bufs[j]->mem);
        }
        free(c->x[i]);
        free(c->dx[i]);
        free(c->w[i]);
        free(c->dw[i]);
    }
    free(c->y);
    free(c->dy);
    c->ops->op_close(c->op);
    model_done(&c->model);
    c->ops->stream_close(c->stream);
    c->ops->close(c->device);
}

static inline OpArgs case_args(OpCase *c, int32_t rows) {
    OpArgs a = {.rows = rows,
                .y = c->by.mem,
                .dy = c->bdy.mem,
                .packed = c->packed.mem,
                .saved = c->saved.mem,
                .scratch = c->scratch.mem,
                .accumulate = c->accumulate,
                .seed = c->seed,
                .step = c->step,
                .first_row = c->first_row,
                .loss_scale = c->loss_scale,
                .statistic_decay = c->statistic_decay,
                .loss = &c->loss};
    for (int i = 0; i < c->n_in; i++) {
        a.x[i] = c->bx[i].mem;
        a.dx[i] = case_in(c, i)->dtype == DTYPE_F32 ? c->bdx[i].mem : NULL;
    }
    for (int i = 0; i < c->n_params; i++) {
        a.w[i] = c->w[i];
        bool statistic = i >= 2;
        a.dw[i] = statistic && c->no_statistics ? NULL : c->bdw[i].mem;
        a.dw_plain[i] = c->dw[i];
    }
    return a;
}

/* x, dy into the device's layout. */
static inline void case_load(OpCase *c, int32_t rows) {
    for (int i = 0; i < c->n_in; i++)
        OK(c->ops->value_from_plain(c->stream, case_in(c, i)->dtype, &case_in(c, i)->shape, rows,
                                    c->bx[i].mem, c->x[i]));
    OK(c->ops->value_from_plain(c->stream, DTYPE_F32, &case_out(c)->shape, rows, c->bdy.mem,
                                c->dy));
}

static inline void case_prepare(OpCase *c) {
    OpArgs a = case_args(c, 0);
    OK(c->ops->op_run(c->op, c->stream, OP_PREPARE, &a));
}

static inline void case_forward(OpCase *c, int32_t rows, OpPass pass) {
    case_load(c, rows);
    OpArgs a = case_args(c, rows);
    OK(c->ops->op_run(c->op, c->stream, pass, &a));
    OK(c->ops->value_to_plain(c->stream, DTYPE_F32, &case_out(c)->shape, rows, c->y, c->by.mem));
}

/* What the op said it does not keep is spoilt before backward. */
static inline void case_spoil(OpCase *c) {
    const OpNeeds *needs = c->ops->op_needs(c->op);
    for (int i = 0; i < c->n_in; i++)
        if (!needs->keeps_input[i])
            memset(c->bx[i].mem, 0xA5, c->bx[i].bytes);
    if (!needs->keeps_output)
        memset(c->by.mem, 0xA5, c->by.bytes);
    memset(c->scratch.mem, 0xA5, c->scratch.bytes);
}

static inline void case_backward(OpCase *c, int32_t rows) {
    case_spoil(c);
    OpArgs a = case_args(c, rows);
    OK(c->ops->op_run(c->op, c->stream, OP_BACKWARD_INPUT, &a));
    for (int i = 0; i < c->n_in; i++)
        if (a.dx[i] != NULL)
            OK(c->ops->value_to_plain(c->stream, DTYPE_F32, &case_in(c, i)->shape, rows, c->dx[i],
                                      c->bdx[i].mem));
    memset(c->scratch.mem, 0xA5, c->scratch.bytes);
    OK(c->ops->op_run(c->op, c->stream, OP_BACKWARD_WEIGHT, &a));
}

/* Accumulators -> plain dw. */
static inline void case_finish(OpCase *c) {
    const OpNeeds *needs = c->ops->op_needs(c->op);
    OpArgs a = case_args(c, 0);
    memset(c->scratch.mem, 0xA5, c->scratch.bytes);
    OK(c->ops->op_run(c->op, c->stream, OP_FINISH, &a));
    for (int i = 0; i < c->n_params; i++)
        if (needs->dw_packed_bytes[i] == 0)
            memcpy(c->dw[i], c->bdw[i].mem, (size_t)c->param_n[i] * 4);
}

/* Prepare, forward, backward, finish. */
static inline void case_step(OpCase *c, int32_t rows) {
    case_prepare(c);
    case_forward(c, rows, OP_FORWARD);
    case_backward(c, rows);
    case_finish(c);
}

/* y (rows, out) in double out of plain x, w in double. */
typedef void (*CaseReference)(const OpCase *c, int32_t rows, double *const x[4], double *const w[4],
                              double *y);

static inline double *case_doubles(const float *from, int64_t n) {
    double *d = case_zeros(n, sizeof *d);
    for (int64_t i = 0; i < n; i++)
        d[i] = (double)from[i];
    return d;
}

static inline double case_dot(const OpCase *c, int32_t rows, const double *y) {
    double sum = 0.0;
    for (int64_t i = 0; i < rows * c->out_n; i++)
        sum += y[i] * (double)c->dy[i];
    return sum;
}

static inline double case_scale_of(const float *v, int64_t n) {
    double max = 0.0;
    for (int64_t i = 0; i < n; i++)
        max = fabs((double)v[i]) > max ? fabs((double)v[i]) : max;
    return max;
}

/* How many elements are compared with differences: each takes two runs of the reference, which a
 * sanitizer makes slow and which is not what it is to look at. */
#if defined(__SANITIZE_ADDRESS__)
enum { CASE_DIFFERENCES = 12 };
#else
enum { CASE_DIFFERENCES = 60 };
#endif

/* Central differences at up to CASE_DIFFERENCES elements of `at` against the gradient `got`. */
static inline void case_differences(const OpCase *c, int32_t rows, CaseReference reference,
                                    double *const x[4], double *const w[4], double *at,
                                    const float *got, int64_t n, double tolerance,
                                    const char *what) {
    double *y = case_zeros(rows * c->out_n, sizeof *y);
    double size = case_scale_of(got, n);
    int64_t stride = n / CASE_DIFFERENCES + 1;
    stride += stride % 2 == 0; /* odd: walks through all residues */
    for (int64_t i = 0; i < n; i += stride) {
        const double h = 1e-5;
        double kept = at[i];
        at[i] = kept + h;
        reference(c, rows, x, w, y);
        double up = case_dot(c, rows, y);
        at[i] = kept - h;
        reference(c, rows, x, w, y);
        double down = case_dot(c, rows, y);
        at[i] = kept;
        double want = (up - down) / (2 * h), err = fabs(want - (double)got[i]);
        double bound = tolerance * (fabs(want) + 0.1 * size + 1e-3);
        cr_assert(!!(err <= bound), "%s[%lld]: %.9g, differences say %.9g", what, (long long)i,
                  (double)got[i], want);
    }
    free(y);
}

/* After case_step: y against the reference, dx and dw against its differences. */
static inline void case_check(OpCase *c, int32_t rows, CaseReference reference, double tolerance) {
    double *x[4], *w[4]; /* never NULL: empty where there is none */
    for (int i = 0; i < 4; i++) {
        bool floats = i < c->n_in && case_in(c, i)->dtype == DTYPE_F32;
        x[i] = case_doubles(c->x[i], floats ? rows * c->in_n[i] : 0);
        w[i] = case_doubles(c->w[i], i < c->n_params ? c->param_n[i] : 0);
    }
    double *y = case_zeros(rows * c->out_n, sizeof *y);
    reference(c, rows, x, w, y);
    double size = case_scale_of(c->y, rows * c->out_n);
    for (int64_t i = 0; i < rows * c->out_n; i++) {
        double err = fabs(y[i] - (double)c->y[i]);
        cr_assert(!!(err <= tolerance * (fabs(y[i]) + 0.1 * size + 1e-3)),
                  "y[%lld]: %.9g, reference %.9g", (long long)i, (double)c->y[i], y[i]);
    }
    char what[16];
    for (int i = 0; i < c->n_in; i++) {
        if (case_in(c, i)->dtype != DTYPE_F32)
            continue;
        snprintf(what, sizeof what, "dx%d", i);
        case_differences(c, rows, reference, x, w, x[i], c->dx[i], rows * c->in_n[i], tolerance,
                         what);
    }
    for (int i = 0; i < c->n_params && i < 2; i++) { /* 2 and 3 are statistics */
        snprintf(what, sizeof what, "dw%d", i);
        case_differences(c, rows, reference, x, w, w[i], c->dw[i], c->param_n[i], tolerance, what);
    }
    for (int i = 0; i < 4; i++) {
        free(x[i]);
        free(w[i]);
    }
    free(y);
}

/* The instruction sets this machine has, pinned in a program of its own each (Criterion forks). */
static inline bool case_has_isa(const char *isa) {
#if defined(__x86_64__)
    if (strcmp(isa, "avx512_core") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (strcmp(isa, "avx2") == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return __builtin_cpu_supports("sse4.1");
#else
    return strcmp(isa, "sse41") == 0;
#endif
}

/* TEST(suite, name) { body } with `isa` and `threads` in scope, run for every instruction set and
 * 1 and 2 threads. */
#define ISA_TEST_ONE(suite, name, isa_name, n)                                                     \
    Test(suite, name##_##isa_name##_##n##t) {                                                      \
        if (!case_has_isa(#isa_name))                                                              \
            cr_skip_test("this machine lacks " #isa_name);                                         \
        suite##_##name##_body(#isa_name, n);                                                       \
    }
#define ISA_TEST(suite, name)                                                                      \
    static void suite##_##name##_body(const char *isa, int threads);                               \
    ISA_TEST_ONE(suite, name, avx512_core, 1)                                                      \
    ISA_TEST_ONE(suite, name, avx512_core, 2)                                                      \
    ISA_TEST_ONE(suite, name, avx2, 1)                                                             \
    ISA_TEST_ONE(suite, name, avx2, 2)                                                             \
    ISA_TEST_ONE(suite, name, sse41, 1)                                                            \
    static void suite##_##name##_body(const char *isa, int threads)

#endif

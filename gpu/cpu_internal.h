/* What the CPU device's files share. An op is one layer opened for the device; its kind (CpuKind)
 * opens, runs and closes it, and cpu.c does what is common to all: row variants, rows 0, and
 * conversion to plain order for the kinds that know no other.
 * lint: long because all of one folder's internals stand together. */
#ifndef FUNCPIPE_GPU_CPU_INTERNAL_H
#define FUNCPIPE_GPU_CPU_INTERNAL_H

#include <dnnl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "gpu/cpu_loops.h"
#include "gpu/device.h"

/* Spread the next `for` over `team` threads; iteration i always falls to the same thread. */
#ifdef FUNCPIPE_OPENMP
#define CPU_PRAGMA(text) _Pragma(#text)
#define CPU_PARALLEL_FOR(team) CPU_PRAGMA(omp parallel for schedule(static) num_threads(team))
#else
#define CPU_PARALLEL_FOR(team) (void)(team);
#endif

enum {
    CPU_CHUNK = 8192,             /* elements of a pointwise piece */
    CPU_COLUMN_CHUNK = 64,        /* columns of a piece of column sums */
    CPU_PARALLEL_ELEMENTS = 16384 /* less work is done by one thread */
};

struct Device {
    int32_t threads;
    pthread_t compute_thread; /* the one that was bound: only it has a team */
    const char *isa;
    const CpuLoops *loops;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
};

struct Stream {
    Device *device;
};

struct Event {
    Device *device;
};

typedef struct CpuKind {
    int (*open)(Op *op);                                 /* fills needs and state */
    int (*run)(Op *op, OpPass pass, const OpArgs *args); /* rows > 0 (PREPARE, FINISH: any) */
    void (*close)(Op *op);                               /* NULL: nothing but `state` to free */
    bool plain; /* knows plain order only: cpu.c converts blocked values */
} CpuKind;

struct Op {
    Device *device;
    const Model *model;
    const Layer *layer;
    int32_t index; /* of the layer */
    const CpuKind *kind;
    OpNeeds needs;
    int32_t n_variants;
    int32_t variants[OP_MAX_ROW_VARIANTS]; /* ascending */
    int32_t variant;                       /* of the pass in progress */
    const Value *in[LAYER_MAX_INPUTS];
    const Value *out;
    int64_t in_elements; /* of input 0, per sample */
    int64_t out_elements;
    size_t convert_offset; /* in scratch: plain copies of blocked values */
    void *state;           /* the kind's own, freed with free() */
};

extern const CpuKind cpu_kind_linear, cpu_kind_conv2d, cpu_kind_batchnorm, cpu_kind_layernorm,
    cpu_kind_relu, cpu_kind_gelu, cpu_kind_add, cpu_kind_dropout, cpu_kind_maxpool,
    cpu_kind_avgpool, cpu_kind_flatten, cpu_kind_embedding, cpu_kind_position, cpu_kind_attention,
    cpu_kind_cross_entropy, cpu_kind_delay;

const CpuKind *cpu_kind_of(LayerKind kind); /* NULL: none */

static inline int64_t cpu_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t cpu_ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
/* Threads for `work` elements. Threads that only move data work alone: a second team would take the
 * processors from the first. */
static inline int32_t cpu_team(const Device *device, int64_t work) {
    return work < CPU_PARALLEL_ELEMENTS || !pthread_equal(pthread_self(), device->compute_thread)
               ? 1
               : device->threads;
}
static inline int32_t cpu_max_rows(const Op *op) {
    return op->variants[op->n_variants - 1];
}
/* Make the calling thread's OpenMP team the device's. */
void cpu_bind(const Device *device);

/* Layout (cpu_layout.c). Pieces of a (C,H,W) sample: C/B of (H*W, B) when blocked. */
bool cpu_is_blocked(const Device *device, DType dtype, const Shape *shape);
void cpu_to_plain(Device *device, const Shape *shape, int64_t rows, void *plain, const void *src);
void cpu_from_plain(Device *device, const Shape *shape, int64_t rows, void *dst, const void *plain);

/* Pointwise helpers over a whole tensor, threaded. */
void cpu_copy(Device *device, void *dst, const void *src, size_t bytes); /* nothing if dst == src */
void cpu_zero(Device *device, void *dst, size_t bytes);
void cpu_add(Device *device, float *dst, const float *a, const float *b, int64_t n);
/* out[c] (+)= sum of rows */
void cpu_column_sums(Device *device, float *out, const float *x, int64_t n_rows, int64_t n_columns,
                     bool accumulate);

/* C (m,n) = alpha op(A) op(B) + beta C, row-major. */
int cpu_gemm(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha,
             const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
             int64_t ldc);

/* oneDNN primitives (cpu_dnnl.c): a primitive with its memory objects and user scratchpad. */
enum { CPU_PRIM_ARGS = 6 };
typedef struct CpuPrim {
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t prim; /* NULL: not there */
    dnnl_exec_arg_t args[CPU_PRIM_ARGS];
    int32_t n_args;
    size_t scratch_bytes;
} CpuPrim;

/* An error for a failed oneDNN call, naming the layer (op may be NULL) and what was tried. */
int cpu_dnnl_error(const Op *op, const char *what, dnnl_status_t status);
/* Takes desc, also on error. */
int cpu_prim_open(const Op *op, dnnl_primitive_desc_t desc, CpuPrim *out_prim);
void cpu_prim_close(CpuPrim *prim);
int cpu_prim_arg(CpuPrim *prim, const Op *op, int arg, const dnnl_memory_desc_t *md);
int cpu_prim_set(CpuPrim *prim, int arg, const void *data);
int cpu_prim_run(CpuPrim *prim, const Op *op, void *scratch);
int cpu_reorder_open(const Op *op, const dnnl_memory_desc_t *from, const dnnl_memory_desc_t *to,
                     CpuPrim *out_prim);
int cpu_reorder_run(CpuPrim *prim, const Op *op, const void *from, void *to, void *scratch);
bool cpu_prim_is_reference(const_dnnl_primitive_desc_t desc);

/* Ops (cpu_op.c). */
int cpu_op_open(Device *device, const Model *model, int32_t layer, const int32_t *rows,
                int32_t n_rows, Op **out_op);
void cpu_op_close(Op *op);
const OpNeeds *cpu_op_needs(const Op *op);
int cpu_op_run(Op *op, Stream *stream, OpPass pass, const OpArgs *args);

/* Whole-tensor functions of the table (cpu_update.c). */
int cpu_op_add(Stream *stream, float *dst, const float *src, int64_t n);
int cpu_op_scale(Stream *stream, float *dst, double factor, int64_t n);
int cpu_op_square_sum(Stream *stream, const float *src, int64_t n, double *out_sum);
int cpu_op_update_sgd(Stream *stream, const UpdateArgs *args);
int cpu_op_update_adamw(Stream *stream, const UpdateArgs *args);

/* Layout functions of the table (cpu_layout.c). */
size_t cpu_value_bytes(const Device *device, DType dtype, const Shape *shape, int64_t rows);
bool cpu_value_is_plain(const Device *device, DType dtype, const Shape *shape);
int cpu_value_to_plain(Stream *stream, DType dtype, const Shape *shape, int64_t rows,
                       void *plain_dst, const void *src);
int cpu_value_from_plain(Stream *stream, DType dtype, const Shape *shape, int64_t rows, void *dst,
                         const void *plain_src);

#endif

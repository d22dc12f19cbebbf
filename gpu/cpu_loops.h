/* The CPU device's own loops: one table per instruction set, all compiled from cpu_loops.inc. Each
 * function is serial and works on one contiguous piece; the files cpu_*.c cut the work into pieces
 * of fixed size and spread them over the OpenMP team. Outputs may be the storage of an input
 * element for element (y over x, dx over dy) unless said otherwise.
 *
 * B is the table's channel block: a blocked value of one sample lies as (C/B, H*W, B).
 * lint: long because it lists every loop. */
#ifndef FUNCPIPE_GPU_CPU_LOOPS_H
#define FUNCPIPE_GPU_CPU_LOOPS_H

#include <stdbool.h>
#include <stdint.h>

enum { CPU_MAX_BLOCK = 16 };

/* Where a run of dropout words begins, core/rng.h. */
typedef struct DropoutKey {
    uint32_t key[2];
    uint32_t layer, row, step;
    uint32_t threshold;
    float scale; /* 1 / (1-p) */
} DropoutKey;

/* The numbers of one weight update, rounded once. */
typedef struct SgdRule {
    float lr, scale, momentum, weight_decay;
    bool nesterov;
} SgdRule;

typedef struct AdamRule {
    float scale, decay; /* decay = 1 - lr*wd */
    float beta1, one_minus_beta1, beta2, one_minus_beta2;
    float step_size;      /* lr / (1-b1^t) */
    float inv_root_bias2; /* 1 / sqrt(1-b2^t) */
    float eps;
} AdamRule;

/* One image of max pooling: (h, w) -> (oh, ow), windows k at stride s, padding p. */
typedef struct PoolShape {
    int32_t h, w, oh, ow, kernel, stride, pad;
} PoolShape;

/* C (m,n) = A B, or C += A B. A's element (i,k) stands at a[i * a_row + k * a_column]. */
typedef struct SmallGemm {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_column;
    const float *b;
    int64_t ldb;
    float *c;
    int64_t ldc;
    bool add;
} SmallGemm;

typedef struct CpuLoops {
    int32_t block; /* B */
    /* pointwise, n elements */
    void (*relu)(float *y, const float *x, int64_t n);
    void (*relu_grad)(float *dx, const float *dy, const float *y, int64_t n);
    void (*gelu)(float *y, const float *x, int64_t n);
    void (*gelu_grad)(float *dx, const float *dy, const float *x, int64_t n);
    void (*add)(float *y, const float *a, const float *b, int64_t n);
    void (*scale)(float *y, float factor, int64_t n);
    double (*square_sum)(const float *x, int64_t n);
    void (*sgd)(const SgdRule *rule, float *w, const float *g, float *m, int64_t n);
    void (*adamw)(const AdamRule *rule, float *w, const float *g, float *m, float *v, int64_t n);
    /* Elements [first, first+n) of a sample in plain order; x and y point at element `first`. */
    void (*dropout)(const DropoutKey *key, int64_t first, float *y, const float *x, int64_t n);
    /* One blocked piece (hw, B) that begins at channel first_channel. */
    void (*dropout_blocked)(const DropoutKey *key, int64_t first_channel, int64_t hw, float *y,
                            const float *x);

    /* rows x columns; ld = elements from row to row */
    void (*add_row)(float *y, const float *b, int64_t n_rows, int64_t n_columns, int64_t ld);
    /* out[c] (+)= sum over rows of x[r,c], in fixed order */
    void (*column_sums)(float *out, const float *x, int64_t n_rows, int64_t n_columns, int64_t ld,
                        bool accumulate);

    /* layernorm: one row; columns [0, n_columns) of the weight gradients over all rows */
    void (*layernorm)(float *y, const float *x, const float *w, const float *b, int64_t d,
                      float eps, float *out_mean, float *out_istd);
    void (*layernorm_grad_input)(float *dx, const float *dy, const float *x, const float *w,
                                 int64_t d, float mean, float istd);
    void (*layernorm_grad_weight)(float *dw, float *db, const float *dy, const float *x,
                                  const float *mean, const float *istd, int64_t n_rows,
                                  int64_t n_columns, int64_t ld, bool accumulate);

    /* batchnorm pieces: blocked (hw, B) with B channels; plain (hw) of one channel; columns: all
     * n_rows of n_columns channels. mean and m2 (sum of squared distances to the mean) per channel.
     */
    void (*bn_stats_blocked)(const float *x, int64_t hw, float *out_mean, float *out_m2);
    void (*bn_stats_plain)(const float *x, int64_t hw, float *out_mean, float *out_m2);
    void (*bn_stats_columns)(const float *x, int64_t n_rows, int64_t n_columns, int64_t ld,
                             float *out_mean, float *out_m2);
    /* y = (x - mean) * a + b */
    void (*bn_apply_blocked)(float *y, const float *x, int64_t hw, const float *mean,
                             const float *a, const float *b);
    void (*bn_apply_plain)(float *y, const float *x, int64_t hw, float mean, float a, float b);
    void (*bn_apply_columns)(float *y, const float *x, int64_t n_columns, const float *mean,
                             const float *a, const float *b);
    /* s1 = sum dy, s2 = sum dy (x - mean) */
    void (*bn_sums_blocked)(const float *dy, const float *x, int64_t hw, const float *mean,
                            float *out_s1, float *out_s2);
    void (*bn_sums_plain)(const float *dy, const float *x, int64_t hw, float mean, float *out_s1,
                          float *out_s2);
    void (*bn_sums_columns)(const float *dy, const float *x, int64_t n_rows, int64_t n_columns,
                            int64_t ld, const float *mean, float *out_s1, float *out_s2);
    /* dx = a * (dy - k1 - (x - mean) * k2) */
    void (*bn_grad_blocked)(float *dx, const float *dy, const float *x, int64_t hw,
                            const float *mean, const float *a, const float *k1, const float *k2);
    void (*bn_grad_plain)(float *dx, const float *dy, const float *x, int64_t hw, float mean,
                          float a, float k1, float k2);
    void (*bn_grad_columns)(float *dx, const float *dy, const float *x, int64_t n_columns,
                            const float *mean, const float *a, const float *k1, const float *k2);

    /* pooling; `index` says which element of the window won, per output element; dx is written */
    void (*maxpool_blocked)(const PoolShape *shape, float *y, uint16_t *index, const float *x);
    void (*maxpool_plain)(const PoolShape *shape, float *y, uint16_t *index, const float *x);
    void (*maxpool_grad_blocked)(const PoolShape *shape, float *dx, const float *dy,
                                 const uint16_t *index);
    void (*maxpool_grad_plain)(const PoolShape *shape, float *dx, const float *dy,
                               const uint16_t *index);
    void (*mean_blocked)(float *y, const float *x, int64_t hw); /* y: B means */
    void (*mean_plain)(float *y, const float *x, int64_t hw);   /* y: one mean */
    void (*fill_blocked)(float *y, const float *values, int64_t hw);
    void (*fill_plain)(float *y, float value, int64_t hw);

    /* blocked piece (hw, B) <-> B plain rows of hw */
    void (*transpose_lines)(float *out, int64_t ld_out, const float *in, int64_t ld_in,
                            int64_t n_rows, int64_t n_columns); /* out[c][r] = in[r][c] */
    void (*block_to_plain)(float *plain, const float *blocked, int64_t hw);
    void (*plain_to_block)(float *blocked, const float *plain, int64_t hw);

    /* softmax: max of z, and sum of exp(z - max) */
    void (*softmax_sums)(const float *z, int64_t n, float *out_max, float *out_sum);
    /* dz = factor * exp(z - max - log_sum) */
    void (*softmax_scaled)(float *dz, const float *z, int64_t n, float max, float log_sum,
                           float factor);
    bool (*has_equal)(const float *z, int64_t n, float value);
    /* p = softmax(factor * s) over n, in place, zeros in [n, n_padded); returns the row's log of
     * the sum of exponentials. These two write up to the next multiple of 16 elements. */
    float (*attention_softmax)(float *s, int64_t n, int64_t n_padded, float factor);
    /* s: scores in, P out; dp in, dS = factor * P (dp - sum(P dp)) out; both zero in [n, n_padded)
     */
    void (*attention_softmax_grad)(float *s, float *dp, int64_t n, int64_t n_padded, float factor,
                                   float lse);
    void (*small_gemm)(const SmallGemm *gemm);
    /* out (d, ld_out) = transpose of x (t, d), rows of x ld apart; zeros in columns [t, ld_out) */
    void (*transpose)(float *out, int64_t ld_out, const float *x, int64_t ld, int64_t t, int64_t d);
} CpuLoops;

extern const CpuLoops cpu_loops_avx512;
extern const CpuLoops cpu_loops_avx2;
extern const CpuLoops cpu_loops_sse41;

#endif

/* batchnorm and layernorm: gradients against central differences, and the statistics rule. */
#include "tests/unit/gpu/op_case.h"

static void layernorm_reference(const OpCase *c, int32_t rows, double *const x[4],
                                double *const w[4], double *y) {
    const Shape *in = &case_in(c, 0)->shape;
    int64_t d = in->dims[in->n_dims - 1];
    double eps = (double)c->model.layers[0].attr.eps;
    for (int64_t r = 0; r < rows * c->in_n[0] / d; r++) {
        const double *v = x[0] + r * d;
        double mean = 0, var = 0;
        for (int64_t i = 0; i < d; i++)
            mean += v[i] / (double)d;
        for (int64_t i = 0; i < d; i++)
            var += (v[i] - mean) * (v[i] - mean) / (double)d;
        for (int64_t i = 0; i < d; i++)
            y[r * d + i] = (v[i] - mean) / sqrt(var + eps) * w[0][i] + w[1][i];
    }
}

static void layernorm_case(const char *isa, int threads, Shape in, int32_t rows) {
    LayerAttr attr = model_attr_default(LAYER_LAYERNORM);
    OpCase c;
    case_open(&c, isa, threads, LAYER_LAYERNORM, in, &attr, rows, NULL, 0);
    case_step(&c, rows);
    case_check(&c, rows, layernorm_reference, 2e-4);
    case_close(&c);
}

ISA_TEST(layernorm, gradients) {
    layernorm_case(isa, threads, shape_1d(5), 3);
    layernorm_case(isa, threads, shape_2d(7, 64), 2);
    layernorm_case(isa, threads, shape_2d(33, 131), 5);
    layernorm_case(isa, threads, shape_3d(16, 2, 9), 2); /* a blocked value */
    layernorm_case(isa, threads, shape_1d(300), 200);
}

/* Mean and biased variance of channel ch in double. */
static void channel_moments(const Shape *in, int32_t rows, const double *x, int64_t ch,
                            double *out_mean, double *out_var) {
    int64_t channels = in->dims[0], hw = in->n_dims == 3 ? in->dims[1] * in->dims[2] : 1;
    double n = (double)(rows * hw), mean = 0, var = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t s = 0; s < hw; s++)
            mean += x[(r * channels + ch) * hw + s] / n;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t s = 0; s < hw; s++) {
            double d = x[(r * channels + ch) * hw + s] - mean;
            var += d * d / n;
        }
    *out_mean = mean;
    *out_var = var;
}

static void batchnorm_reference(const OpCase *c, int32_t rows, double *const x[4],
                                double *const w[4], double *y) {
    const Shape *in = &case_in(c, 0)->shape;
    int64_t channels = in->dims[0], hw = in->n_dims == 3 ? in->dims[1] * in->dims[2] : 1;
    double eps = (double)c->model.layers[0].attr.eps;
    for (int64_t ch = 0; ch < channels; ch++) {
        double mean, var;
        channel_moments(in, rows, x[0], ch, &mean, &var);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t s = 0; s < hw; s++) {
                int64_t at = (r * channels + ch) * hw + s;
                y[at] = (x[0][at] - mean) / sqrt(var + eps) * w[0][ch] + w[1][ch];
            }
    }
}

static void batchnorm_case(const char *isa, int threads, Shape in, int32_t rows) {
    LayerAttr attr = model_attr_default(LAYER_BATCHNORM);
    OpCase c;
    case_open(&c, isa, threads, LAYER_BATCHNORM, in, &attr, rows, NULL, 0);
    case_step(&c, rows);
    case_check(&c, rows, batchnorm_reference, 2e-4);
    case_close(&c);
}

ISA_TEST(batchnorm, gradients) {
    batchnorm_case(isa, threads, shape_3d(16, 3, 3), 2); /* blocked */
    batchnorm_case(isa, threads, shape_3d(48, 5, 7), 3);
    batchnorm_case(isa, threads, shape_3d(5, 3, 7), 4); /* plain */
    batchnorm_case(isa, threads, shape_3d(1, 1, 1), 3);
    batchnorm_case(isa, threads, shape_1d(67), 9); /* columns */
    batchnorm_case(isa, threads, shape_1d(130), 150);
}

/* A channel whose mean is far larger than its spread keeps its digits. */
ISA_TEST(batchnorm, large_mean) {
    LayerAttr attr = model_attr_default(LAYER_BATCHNORM);
    OpCase c;
    case_open(&c, isa, threads, LAYER_BATCHNORM, shape_3d(16, 9, 9), &attr, 8, NULL, 0);
    for (int64_t i = 0; i < 8 * c.in_n[0]; i++)
        c.x[0][i] = 1000.0f + 0.5f * c.x[0][i];
    case_step(&c, 8);
    case_check(&c, 8, batchnorm_reference, 2e-3);
    case_close(&c);
}

/* k micro-batches with the caller's decay factors move r as k single moves would. */
ISA_TEST(batchnorm, statistics_rule) {
    enum { K = 3 };
    const int32_t rows[K] = {4, 2, 1}, variants[] = {1, 2, 4};
    const double momentum = 0.1, decay = 0.9;
    LayerAttr attr = model_attr_default(LAYER_BATCHNORM);
    attr.momentum = (float)momentum;
    OpCase c;
    case_open(&c, isa, threads, LAYER_BATCHNORM, shape_3d(16, 2, 3), &attr, 4, variants, 3);
    double mean_want[16], var_want[16];
    for (int ch = 0; ch < 16; ch++) {
        mean_want[ch] = (double)c.w[2][ch];
        var_want[ch] = (double)c.w[3][ch];
    }
    for (int k = 0; k < K; k++) {
        case_fill(c.x[0], rows[k] * c.in_n[0], 100 + (uint64_t)k);
        double *x = case_doubles(c.x[0], rows[k] * c.in_n[0]);
        double n = rows[k] * 6;
        for (int ch = 0; ch < 16; ch++) {
            double mean, var;
            channel_moments(&case_in(&c, 0)->shape, rows[k], x, ch, &mean, &var);
            mean_want[ch] = decay * mean_want[ch] + momentum * mean;
            var_want[ch] = decay * var_want[ch] + momentum * var * n / (n - 1);
        }
        free(x);
        c.accumulate = k > 0;
        c.statistic_decay = pow(decay, K - 1 - k);
        case_forward(&c, rows[k], OP_FORWARD);
    }
    for (int ch = 0; ch < 16; ch++) {
        const float *mean_sum = (const float *)c.bdw[2].mem;
        const float *var_sum = (const float *)c.bdw[3].mem;
        double mean = pow(decay, K) * (double)c.w[2][ch] + (double)mean_sum[ch];
        double var = pow(decay, K) * (double)c.w[3][ch] + (double)var_sum[ch];
        cr_assert(!!(fabs(mean - mean_want[ch]) <= 1e-6), "mean %g, want %g", mean, mean_want[ch]);
        cr_assert(!!(fabs(var - var_want[ch]) <= 1e-6), "var %g, want %g", var, var_want[ch]);
    }
    case_close(&c);
}

/* Recompute gives dw[2], dw[3] NULL: same y, accumulators untouched. N = 1: the biased variance. */
ISA_TEST(batchnorm, recompute_and_single) {
    LayerAttr attr = model_attr_default(LAYER_BATCHNORM);
    OpCase c;
    case_open(&c, isa, threads, LAYER_BATCHNORM, shape_1d(5), &attr, 1, NULL, 0);
    case_forward(&c, 1, OP_FORWARD);
    float kept[5], y[5];
    memcpy(kept, c.bdw[3].mem, sizeof kept);
    memcpy(y, c.y, sizeof y);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(kept[i], 0.0f);
    memset(c.bdw[3].mem, 0x11, sizeof kept);
    memcpy(kept, c.bdw[3].mem, sizeof kept);
    c.no_statistics = true;
    case_forward(&c, 1, OP_FORWARD);
    cr_assert_arr_eq(c.bdw[3].mem, kept, sizeof kept);
    cr_assert_arr_eq(c.y, y, sizeof y);
    case_close(&c);
}

static void eval_case(const char *isa, int threads, Shape in, int32_t rows) {
    LayerAttr attr = model_attr_default(LAYER_BATCHNORM);
    OpCase c;
    case_open(&c, isa, threads, LAYER_BATCHNORM, in, &attr, rows, NULL, 0);
    int64_t channels = in.dims[0], hw = in.n_dims == 3 ? in.dims[1] * in.dims[2] : 1;
    for (int64_t ch = 0; ch < channels; ch++)
        c.w[3][ch] = fabsf(c.w[3][ch]) + 0.1f;
    memset(c.saved.mem, 0x33, c.saved.bytes);
    memset(c.bdw[2].mem, 0x44, c.bdw[2].bytes);
    case_forward(&c, rows, OP_FORWARD_EVAL);
    for (int64_t i = 0; i < rows * c.in_n[0]; i++) {
        int64_t ch = i / hw % channels;
        double want = ((double)c.x[0][i] - (double)c.w[2][ch]) /
                          sqrt((double)c.w[3][ch] + (double)attr.eps) * (double)c.w[0][ch] +
                      (double)c.w[1][ch];
        cr_assert(!!(fabs(want - (double)c.y[i]) <= 1e-5), "y[%lld] %g, want %g", (long long)i,
                  (double)c.y[i], want);
    }
    for (size_t i = 0; i < c.saved.bytes; i++)
        cr_assert_eq(c.saved.mem[i], 0x33);
    for (size_t i = 0; i < c.bdw[2].bytes; i++)
        cr_assert_eq(c.bdw[2].mem[i], 0x44);
    case_close(&c);
}

ISA_TEST(batchnorm, evaluation) {
    eval_case(isa, threads, shape_3d(16, 3, 2), 3);
    eval_case(isa, threads, shape_3d(3, 4, 5), 2);
    eval_case(isa, threads, shape_1d(70), 4);
}

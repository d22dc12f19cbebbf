/* maxpool2d and global_avgpool2d. */
#include "tests/unit/gpu/op_case.h"

static void maxpool_reference(const OpCase *c, int32_t rows, double *const x[4], double *const w[4],
                              double *y) {
    (void)w;
    const Shape *in = &case_in(c, 0)->shape, *out = &case_out(c)->shape;
    const LayerAttr *a = &c->model.layers[0].attr;
    int64_t h = in->dims[1], wi = in->dims[2], oh = out->dims[1], ow = out->dims[2];
    for (int64_t m = 0; m < rows * in->dims[0]; m++)
        for (int64_t p = 0; p < oh; p++)
            for (int64_t q = 0; q < ow; q++) {
                double best = -INFINITY;
                for (int64_t i = 0; i < a->kernel; i++)
                    for (int64_t j = 0; j < a->kernel; j++) {
                        int64_t r = p * a->stride - a->pad + i, s = q * a->stride - a->pad + j;
                        if (r >= 0 && r < h && s >= 0 && s < wi)
                            best = fmax(best, x[0][(m * h + r) * wi + s]);
                    }
                y[(m * oh + p) * ow + q] = best;
            }
}

static void maxpool_case(const char *isa, int threads, Shape in, int kernel, int stride, int pad,
                         int32_t rows) {
    LayerAttr attr = model_attr_default(LAYER_MAXPOOL2D);
    attr.kernel = kernel;
    attr.stride = stride;
    attr.pad = pad;
    OpCase c;
    case_open(&c, isa, threads, LAYER_MAXPOOL2D, in, &attr, rows, NULL, 0);
    case_step(&c, rows);
    case_check(&c, rows, maxpool_reference, 1e-5);
    case_close(&c);
}

ISA_TEST(maxpool2d, gradients) {
    maxpool_case(isa, threads, shape_3d(16, 6, 6), 2, 2, 0, 2);
    maxpool_case(isa, threads, shape_3d(32, 7, 5), 3, 2, 1, 2);
    maxpool_case(isa, threads, shape_3d(16, 5, 5), 3, 1, 1, 1); /* windows overlap */
    maxpool_case(isa, threads, shape_3d(3, 7, 6), 2, 2, 0, 3);
    maxpool_case(isa, threads, shape_3d(5, 7, 7), 3, 2, 1, 2);
    maxpool_case(isa, threads, shape_3d(1, 4, 4), 4, 4, 2, 1);
    maxpool_case(isa, threads, shape_3d(16, 30, 30), 2, 2, 0, 4);
}

/* Equal elements: the first one gets all of the gradient. NaN wins and stays. */
static void ties_case(const char *isa, int threads, int channels) {
    LayerAttr attr = model_attr_default(LAYER_MAXPOOL2D);
    attr.kernel = attr.stride = 2;
    attr.pad = 0;
    OpCase c;
    case_open(&c, isa, threads, LAYER_MAXPOOL2D, shape_3d(channels, 2, 4), &attr, 1, NULL, 0);
    for (int64_t i = 0; i < c.in_n[0]; i++)
        c.x[0][i] = i % 4 < 2 ? 1.0f : -INFINITY;
    c.x[0][1] = NAN;
    case_step(&c, 1);
    for (int64_t ch = 0; ch < channels; ch++) {
        const float *dx = c.dx[0] + 8 * ch, *dy = c.dy + 2 * ch;
        if (ch == 0) {
            cr_assert(isnan(c.y[0]));
            cr_assert_eq(dx[1], dy[0]);
        } else {
            cr_assert_eq(c.y[2 * ch], 1.0f);
            cr_assert_eq(dx[0], dy[0]);
            cr_assert_eq(dx[1], 0.0f);
        }
        cr_assert_eq(c.y[2 * ch + 1], -INFINITY);
        cr_assert_eq(dx[2], dy[1]);
        cr_assert_eq(dx[3] + dx[4] + dx[5] + dx[6] + dx[7], 0.0f);
    }
    case_close(&c);
}

ISA_TEST(maxpool2d, ties_and_nan) {
    ties_case(isa, threads, 16);
    ties_case(isa, threads, 3);
}

static void avgpool_reference(const OpCase *c, int32_t rows, double *const x[4], double *const w[4],
                              double *y) {
    (void)w;
    const Shape *in = &case_in(c, 0)->shape;
    int64_t hw = in->dims[1] * in->dims[2];
    for (int64_t m = 0; m < rows * in->dims[0]; m++) {
        y[m] = 0;
        for (int64_t s = 0; s < hw; s++)
            y[m] += x[0][m * hw + s] / (double)hw;
    }
}

static void avgpool_case(const char *isa, int threads, Shape in, int32_t rows) {
    LayerAttr attr = model_attr_default(LAYER_AVGPOOL2D);
    OpCase c;
    case_open(&c, isa, threads, LAYER_AVGPOOL2D, in, &attr, rows, NULL, 0);
    case_step(&c, rows);
    case_check(&c, rows, avgpool_reference, 1e-4);
    case_close(&c);
}

ISA_TEST(global_avgpool2d, gradients) {
    avgpool_case(isa, threads, shape_3d(16, 7, 7), 2);
    avgpool_case(isa, threads, shape_3d(64, 3, 5), 3);
    avgpool_case(isa, threads, shape_3d(5, 7, 7), 2);
    avgpool_case(isa, threads, shape_3d(1, 1, 1), 1);
    avgpool_case(isa, threads, shape_3d(32, 20, 20), 4);
}

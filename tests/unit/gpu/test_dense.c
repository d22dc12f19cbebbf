/* linear, conv2d: values and gradients against central differences of a reference in double. */
#include "tests/unit/gpu/op_case.h"

static void linear_reference(const OpCase *c, int32_t rows, double *const x[4], double *const w[4],
                             double *y) {
    const Shape *in = &case_in(c, 0)->shape;
    int64_t d = in->dims[in->n_dims - 1], f = c->model.layers[0].attr.features;
    for (int64_t i = 0; i < rows * c->in_n[0] / d; i++)
        for (int64_t o = 0; o < f; o++) {
            double sum = c->n_params > 1 ? w[1][o] : 0.0;
            for (int64_t k = 0; k < d; k++)
                sum += x[0][i * d + k] * w[0][o * d + k];
            y[i * f + o] = sum;
        }
}

static void linear_case(const char *isa, int threads, Shape in, int64_t features, bool bias,
                        int32_t rows) {
    LayerAttr attr = model_attr_default(LAYER_LINEAR);
    attr.features = features;
    attr.bias = bias;
    const int32_t variants[] = {rows, rows + 2};
    OpCase c;
    case_open(&c, isa, threads, LAYER_LINEAR, in, &attr, rows, variants, 2);
    case_step(&c, rows);
    case_check(&c, rows, linear_reference, 1e-4);
    case_close(&c);
}

ISA_TEST(linear, gradients) {
    linear_case(isa, threads, shape_1d(7), 5, true, 3);
    linear_case(isa, threads, shape_1d(1), 1, true, 1);
    linear_case(isa, threads, shape_1d(129), 67, false, 9);
    linear_case(isa, threads, shape_2d(5, 17), 33, true, 2);
    linear_case(isa, threads, shape_3d(16, 3, 5), 7, true, 2); /* a blocked value */
    linear_case(isa, threads, shape_1d(200), 300, true, 70);
    linear_case(isa, threads, shape_1d(170), 37, true, 18); /* from here on y^T = w x^T */
    linear_case(isa, threads, shape_1d(200), 66, false, 21);
    linear_case(isa, threads, shape_2d(3, 144), 130, true, 6);
}

static void conv_reference(const OpCase *c, int32_t rows, double *const x[4], double *const w[4],
                           double *y) {
    const Shape *in = &case_in(c, 0)->shape, *out = &case_out(c)->shape;
    const LayerAttr *a = &c->model.layers[0].attr;
    int64_t ci = in->dims[0], h = in->dims[1], wi = in->dims[2];
    int64_t f = out->dims[0], oh = out->dims[1], ow = out->dims[2], k = a->kernel;
    for (int64_t n = 0; n < rows; n++)
        for (int64_t o = 0; o < f; o++)
            for (int64_t p = 0; p < oh; p++)
                for (int64_t q = 0; q < ow; q++) {
                    double sum = c->n_params > 1 ? w[1][o] : 0.0;
                    for (int64_t ch = 0; ch < ci; ch++)
                        for (int64_t i = 0; i < k; i++)
                            for (int64_t j = 0; j < k; j++) {
                                int64_t r = p * a->stride - a->pad + i;
                                int64_t s = q * a->stride - a->pad + j;
                                if (r >= 0 && r < h && s >= 0 && s < wi)
                                    sum += x[0][((n * ci + ch) * h + r) * wi + s] *
                                           w[0][((o * ci + ch) * k + i) * k + j];
                            }
                    y[((n * f + o) * oh + p) * ow + q] = sum;
                }
}

static void conv_case(const char *isa, int threads, Shape in, int64_t features, int kernel,
                      int stride, int pad, bool bias, int32_t rows) {
    LayerAttr attr = model_attr_default(LAYER_CONV2D);
    attr.features = features;
    attr.kernel = kernel;
    attr.stride = stride;
    attr.pad = pad;
    attr.bias = bias;
    const int32_t variants[] = {rows, rows + 3};
    OpCase c;
    case_open(&c, isa, threads, LAYER_CONV2D, in, &attr, rows, variants, 2);
    case_step(&c, rows);
    case_check(&c, rows, conv_reference, 1e-4);
    case_close(&c);
}

ISA_TEST(conv2d, gradients) {
    conv_case(isa, threads, shape_3d(3, 7, 6), 16, 3, 1, 1, false, 2);  /* plain -> blocked */
    conv_case(isa, threads, shape_3d(1, 6, 6), 5, 3, 1, 0, true, 2);    /* plain -> plain */
    conv_case(isa, threads, shape_3d(16, 5, 5), 32, 3, 1, 1, false, 2); /* blocked */
    conv_case(isa, threads, shape_3d(16, 5, 5), 16, 1, 2, 0, true, 1);
    conv_case(isa, threads, shape_3d(16, 4, 5), 10, 3, 2, 1, true, 2); /* blocked -> plain */
    conv_case(isa, threads, shape_3d(24, 4, 4), 8, 3, 1, 1, true, 1);
    conv_case(isa, threads, shape_3d(6, 5, 5), 16, 5, 1, 2, true, 2);
    conv_case(isa, threads, shape_3d(3, 9, 9), 16, 7, 2, 3, false, 1);
}

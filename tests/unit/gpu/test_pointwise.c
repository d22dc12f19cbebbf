/* relu, gelu, add, flatten, position, delay, dropout. */
#include "core/clock.h"
#include "core/rng.h"
#include "tests/unit/gpu/op_case.h"

static void relu_reference(const OpCase *c, int32_t rows, double *const x[4], double *const w[4],
                           double *y) {
    (void)w;
    for (int64_t i = 0; i < rows * c->in_n[0]; i++)
        y[i] = x[0][i] > 0 ? x[0][i] : 0;
}

static void gelu_reference(const OpCase *c, int32_t rows, double *const x[4], double *const w[4],
                           double *y) {
    (void)w;
    for (int64_t i = 0; i < rows * c->in_n[0]; i++) {
        double v = x[0][i];
        y[i] = v / 2 * (1 + tanh(sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    }
}

static void add_reference(const OpCase *c, int32_t rows, double *const x[4], double *const w[4],
                          double *y) {
    (void)w;
    for (int64_t i = 0; i < rows * c->in_n[0]; i++)
        y[i] = x[0][i] + x[1][i];
}

static void same_reference(const OpCase *c, int32_t rows, double *const x[4], double *const w[4],
                           double *y) {
    (void)w;
    memcpy(y, x[0], (size_t)(rows * c->in_n[0]) * sizeof *y);
}

static void position_reference(const OpCase *c, int32_t rows, double *const x[4],
                               double *const w[4], double *y) {
    for (int64_t i = 0; i < rows * c->in_n[0]; i++)
        y[i] = x[0][i] + w[0][i % c->in_n[0]];
}

static void check_case(const char *isa, int threads, LayerKind kind, Shape in, int32_t rows,
                       CaseReference reference, float spread) {
    LayerAttr attr = model_attr_default(kind);
    OpCase c;
    case_open(&c, isa, threads, kind, in, &attr, rows, NULL, 0);
    for (int64_t i = 0; i < rows * c.in_n[0]; i++)
        c.x[0][i] *= spread;
    case_step(&c, rows);
    case_check(&c, rows, reference, 1e-4);
    case_close(&c);
}

static void all_shapes(const char *isa, int threads, LayerKind kind, CaseReference reference,
                       float spread) {
    check_case(isa, threads, kind, shape_1d(1), 1, reference, spread);
    check_case(isa, threads, kind, shape_1d(77), 3, reference, spread);
    check_case(isa, threads, kind, shape_3d(16, 3, 5), 2, reference, spread);
    check_case(isa, threads, kind, shape_3d(3, 3, 5), 2, reference, spread);
    check_case(isa, threads, kind, shape_2d(33, 301), 5, reference, spread);
}

ISA_TEST(pointwise, relu) {
    all_shapes(isa, threads, LAYER_RELU, relu_reference, 1);
}
ISA_TEST(pointwise, gelu) {
    all_shapes(isa, threads, LAYER_GELU, gelu_reference, 6);
}
ISA_TEST(pointwise, add) {
    all_shapes(isa, threads, LAYER_ADD, add_reference, 1);
}
ISA_TEST(pointwise, flatten) {
    all_shapes(isa, threads, LAYER_FLATTEN, same_reference, 1);
    check_case(isa, threads, LAYER_FLATTEN, shape_3d(48, 7, 9), 3, same_reference, 1);
}
ISA_TEST(pointwise, position) {
    check_case(isa, threads, LAYER_POSITION, shape_2d(3, 5), 4, position_reference, 1);
    check_case(isa, threads, LAYER_POSITION, shape_2d(17, 67), 3, position_reference, 1);
}

/* Far from 0 gelu is exactly x or 0, and NaN goes through. */
ISA_TEST(pointwise, gelu_extremes) {
    LayerAttr attr = model_attr_default(LAYER_GELU);
    OpCase c;
    case_open(&c, isa, threads, LAYER_GELU, shape_1d(40), &attr, 1, NULL, 0);
    for (int i = 0; i < 40; i++)
        c.x[0][i] = i % 2 == 0 ? 10.0f + (float)i : -10.0f - (float)i;
    c.x[0][4] = NAN;
    case_step(&c, 1);
    for (int i = 0; i < 40; i++) {
        if (i == 4) {
            cr_assert(isnan(c.y[i]) && isnan(c.dx[0][i]));
            continue;
        }
        cr_assert(!!(fabsf(c.y[i] - (i % 2 == 0 ? c.x[0][i] : 0.0f)) <= 1e-6f));
        cr_assert(!!(fabsf(c.dx[0][i] - (i % 2 == 0 ? c.dy[i] : 0.0f)) <= 1e-6f));
    }
    case_close(&c);
}

/* Where an op says so, y may lie over x and dx over dy. */
static void alias_case(const char *isa, int threads, LayerKind kind, Shape in) {
    LayerAttr attr = model_attr_default(kind);
    if (kind == LAYER_DROPOUT)
        attr.p = 0.3f;
    OpCase c;
    case_open(&c, isa, threads, kind, in, &attr, 2, NULL, 0);
    const OpNeeds *needs = c.ops->op_needs(c.op);
    case_step(&c, 2);
    case_forward(&c, 2, OP_FORWARD); /* y again: case_step spoilt what is not kept */
    if (needs->may_alias) {
        cr_assert(!needs->keeps_input[0]);
        case_load(&c, 2);
        OpArgs a = case_args(&c, 2);
        a.y = c.bx[0].mem;
        a.dx[0] = c.bdy.mem;
        OK(c.ops->op_run(c.op, c.stream, OP_FORWARD, &a));
        OK(c.ops->op_run(c.op, c.stream, OP_BACKWARD_INPUT, &a));
        cr_assert_arr_eq(a.y, c.by.mem, c.by.bytes);
        cr_assert_arr_eq(a.dx[0], c.bdx[0].mem, c.bdx[0].bytes);
    }
    case_close(&c);
}

ISA_TEST(pointwise, aliases) {
    const LayerKind kinds[] = {LAYER_RELU,    LAYER_GELU,  LAYER_ADD,
                               LAYER_DROPOUT, LAYER_DELAY, LAYER_FLATTEN};
    for (int i = 0; i < 6; i++) {
        alias_case(isa, threads, kinds[i], shape_3d(16, 3, 3));
        alias_case(isa, threads, kinds[i], shape_3d(7, 3, 3));
    }
    alias_case(isa, threads, LAYER_POSITION, shape_2d(5, 9));
}

/* Every element as rng_dropout says, by its plain index, in forward and backward. */
static void dropout_case(const char *isa, int threads, Shape in, float p, int64_t step) {
    enum { ROWS = 3 };
    LayerAttr attr = model_attr_default(LAYER_DROPOUT);
    attr.p = p;
    OpCase c;
    case_open(&c, isa, threads, LAYER_DROPOUT, in, &attr, ROWS, NULL, 0);
    c.step = step;
    case_step(&c, ROWS);
    uint32_t threshold = rng_dropout_threshold(p);
    int64_t n_kept = 0;
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t e = 0; e < c.in_n[0]; e++) {
            RngBlock block = rng_dropout(c.seed, c.step, c.first_row + r, 0, (uint32_t)(e / 4));
            bool keep = block.v[e % 4] >= threshold;
            float scale = 1.0f / (1.0f - p);
            int64_t at = r * c.in_n[0] + e;
            cr_assert_eq(c.y[at], keep ? c.x[0][at] * scale : 0.0f, "row %lld element %lld",
                         (long long)r, (long long)e);
            cr_assert_eq(c.dx[0][at], keep ? c.dy[at] * scale : 0.0f);
            n_kept += keep;
        }
    double share = (double)n_kept / (double)(ROWS * c.in_n[0]);
    if (c.in_n[0] > 1000)
        cr_assert(!!(fabs(share - (1.0 - (double)p)) < 0.05), "kept %g", share);
    case_forward(&c, ROWS, OP_FORWARD_EVAL);
    cr_assert_arr_eq(c.y, c.x[0], (size_t)(ROWS * c.in_n[0]) * 4);
    case_close(&c);
}

ISA_TEST(pointwise, dropout) {
    dropout_case(isa, threads, shape_1d(1), 0.5f, 0);
    dropout_case(isa, threads, shape_1d(67), 0.1f, 5);
    dropout_case(isa, threads, shape_1d(8192 * 2 + 5), 0.25f, INT64_C(0x500000003));
    dropout_case(isa, threads, shape_3d(16, 5, 7), 0.5f, 1);
    dropout_case(isa, threads, shape_3d(32, 13, 11), 0.2f, 1);
    dropout_case(isa, threads, shape_3d(5, 5, 7), 0.5f, 1);
    dropout_case(isa, threads, shape_1d(30), 0.0f, 1);
}

Test(pointwise, delay_sleeps) {
    LayerAttr attr = model_attr_default(LAYER_DELAY);
    attr.forward_us = 20000;
    attr.backward_us = 30000;
    OpCase c;
    case_open(&c, "auto", 1, LAYER_DELAY, shape_1d(5), &attr, 2, NULL, 0);
    int64_t start = clock_now_ns();
    case_forward(&c, 2, OP_FORWARD);
    int64_t middle = clock_now_ns();
    case_backward(&c, 2);
    int64_t end = clock_now_ns();
    cr_assert_geq(middle - start, 20 * CLOCK_NS_PER_MS);
    cr_assert_geq(end - middle, 30 * CLOCK_NS_PER_MS);
    cr_assert_arr_eq(c.y, c.x[0], 2 * 5 * 4);
    cr_assert_arr_eq(c.dx[0], c.dy, 2 * 5 * 4);
    case_close(&c);
}

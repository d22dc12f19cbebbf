/* embedding and attention. */
#include "tests/unit/gpu/op_case.h"

static void attention_reference(const OpCase *c, int32_t rows, double *const x[4],
                                double *const w[4], double *y) {
    (void)w;
    const Shape *in = &case_in(c, 0)->shape;
    const LayerAttr *a = &c->model.layers[0].attr;
    int64_t t = in->dims[0], width = in->dims[1], third = width / 3, d = third / a->heads;
    double *p = case_zeros(t, sizeof *p);
    for (int64_t n = 0; n < rows; n++)
        for (int64_t h = 0; h < a->heads; h++)
            for (int64_t i = 0; i < t; i++) {
                const double *q = x[0] + (n * t + i) * width + h * d;
                int64_t keys = a->causal ? i + 1 : t;
                double sum = 0, max = -INFINITY;
                for (int64_t j = 0; j < keys; j++) {
                    const double *k = x[0] + (n * t + j) * width + third + h * d;
                    p[j] = 0;
                    for (int64_t e = 0; e < d; e++)
                        p[j] += q[e] * k[e] / sqrt((double)d);
                    max = fmax(max, p[j]);
                }
                for (int64_t j = 0; j < keys; j++)
                    sum += p[j] = exp(p[j] - max);
                double *out = y + (n * t + i) * third + h * d;
                for (int64_t e = 0; e < d; e++) {
                    out[e] = 0;
                    for (int64_t j = 0; j < keys; j++)
                        out[e] += p[j] / sum * x[0][(n * t + j) * width + 2 * third + h * d + e];
                }
            }
    free(p);
}

static void attention_case(const char *isa, int threads, int64_t t, int64_t d, int heads,
                           bool causal, int32_t rows) {
    LayerAttr attr = model_attr_default(LAYER_ATTENTION);
    attr.heads = heads;
    attr.causal = causal;
    OpCase c;
    case_open(&c, isa, threads, LAYER_ATTENTION, shape_2d(t, 3 * d * heads), &attr, rows, NULL, 0);
    for (int64_t i = 0; i < rows * c.in_n[0]; i++)
        c.x[0][i] *= 2.0f;
    case_step(&c, rows);
    case_check(&c, rows, attention_reference, 2e-4);
    case_close(&c);
}

ISA_TEST(attention, gradients) {
    attention_case(isa, threads, 1, 1, 1, true, 1);
    attention_case(isa, threads, 5, 4, 2, true, 2);
    attention_case(isa, threads, 7, 3, 3, false, 2);
    attention_case(isa, threads, 33, 17, 2, true, 1);
    attention_case(isa, threads, 70, 8, 2, true, 1); /* more than one block of queries */
    attention_case(isa, threads, 131, 5, 1, true, 1);
    attention_case(isa, threads, 67, 32, 1, false, 2);
    attention_case(isa, threads, 64, 64, 2, true, 1);
}

/* Scores of +-1000 neither overflow nor vanish into NaN. */
ISA_TEST(attention, large_scores) {
    LayerAttr attr = model_attr_default(LAYER_ATTENTION);
    attr.heads = 1;
    OpCase c;
    case_open(&c, isa, threads, LAYER_ATTENTION, shape_2d(40, 24), &attr, 1, NULL, 0);
    for (int64_t i = 0; i < c.in_n[0]; i++)
        c.x[0][i] *= i % 24 < 16 ? 50.0f : 1.0f;
    case_step(&c, 1);
    for (int64_t i = 0; i < c.out_n; i++)
        cr_assert(isfinite(c.y[i]));
    for (int64_t i = 0; i < c.in_n[0]; i++)
        cr_assert(isfinite(c.dx[0][i]));
    case_close(&c);
}

static void embedding_case(const char *isa, int threads, int64_t t, int64_t vocab, int64_t features,
                           int32_t rows) {
    LayerAttr attr = model_attr_default(LAYER_EMBEDDING);
    attr.vocab = vocab;
    attr.features = features;
    OpCase c;
    case_open(&c, isa, threads, LAYER_EMBEDDING, shape_1d(t), &attr, rows, NULL, 0);
    uint64_t state = 5;
    for (int64_t i = 0; i < rows * t; i++)
        c.ids[0][i] = (int32_t)(case_next(&state) % (uint64_t)vocab);
    case_step(&c, rows);
    float *want = case_zeros(vocab * features, sizeof *want);
    for (int64_t i = 0; i < rows * t; i++)
        for (int64_t f = 0; f < features; f++) {
            int64_t at = c.ids[0][i] * features + f;
            cr_assert_eq(c.y[i * features + f], c.w[0][at]);
            want[at] += c.dy[i * features + f]; /* in order of (row, position): exact */
        }
    cr_assert_arr_eq(c.dw[0], want, (size_t)(vocab * features) * 4);
    c.accumulate = true;
    case_backward(&c, rows);
    case_finish(&c);
    for (int64_t i = 0; i < rows * t; i++)
        for (int64_t f = 0; f < features; f++)
            want[c.ids[0][i] * features + f] += c.dy[i * features + f];
    cr_assert_arr_eq(c.dw[0], want, (size_t)(vocab * features) * 4);
    free(want);
    case_close(&c);
}

ISA_TEST(embedding, forward_backward) {
    embedding_case(isa, threads, 5, 7, 3, 2);
    embedding_case(isa, threads, 17, 50, 67, 9);
    embedding_case(isa, threads, 64, 3, 130, 4);
    embedding_case(isa, threads, 1, 1, 1, 1);
}

Test(embedding, id_out_of_range) {
    LayerAttr attr = model_attr_default(LAYER_EMBEDDING);
    attr.vocab = 10;
    attr.features = 4;
    const int32_t bad[] = {10, -1, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        OpCase c;
        case_open(&c, "auto", 2, LAYER_EMBEDDING, shape_1d(6), &attr, 3, NULL, 0);
        c.ids[0][6 + 4] = bad[i];
        case_load(&c, 3);
        OpArgs a = case_args(&c, 3);
        const OpPass passes[] = {OP_FORWARD, OP_FORWARD_EVAL, OP_BACKWARD_WEIGHT};
        for (int p = 0; p < 3; p++) {
            cr_assert_eq(c.ops->op_run(c.op, c.stream, passes[p], &a), ERR_ARGUMENT);
            char want[32];
            snprintf(want, sizeof want, "id %d at row %d", bad[i], 3 + 1);
            cr_assert(strstr(err_text(), want) && strstr(err_text(), "position 4") &&
                          strstr(err_text(), "'layer'"),
                      "%s", err_text());
        }
        case_close(&c);
    }
}

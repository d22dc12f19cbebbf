/* cross_entropy. */
#include "tests/unit/gpu/op_case.h"

static void loss_open(OpCase *c, const char *isa, int threads, Shape logits, int32_t rows,
                      bool has_ignore) {
    LayerAttr attr = model_attr_default(LAYER_CROSS_ENTROPY);
    attr.has_ignore = has_ignore;
    attr.ignore_index = has_ignore ? -100 : attr.ignore_index;
    case_open(c, isa, threads, LAYER_CROSS_ENTROPY, logits, &attr, rows, NULL, 0);
    int64_t v = logits.dims[logits.n_dims - 1];
    uint64_t state = 9;
    for (int64_t i = 0; i < rows * c->in_n[1]; i++)
        c->ids[1][i] = (int32_t)(case_next(&state) % (uint64_t)v);
    for (int64_t i = 0; i < rows * c->in_n[0]; i++)
        c->x[0][i] *= 5.0f;
    c->loss_scale = 0.125;
}

static void run(OpCase *c, int32_t rows) {
    memset(&c->loss, 0, sizeof c->loss);
    case_load(c, rows);
    OpArgs a = case_args(c, rows);
    a.y = NULL;
    a.dy = NULL;
    a.dx[1] = NULL;
    OK(c->ops->op_run(c->op, c->stream, OP_FORWARD, &a));
    memset(c->scratch.mem, 0xA5, c->scratch.bytes);
    OK(c->ops->op_run(c->op, c->stream, OP_BACKWARD_INPUT, &a));
    OK(c->ops->value_to_plain(c->stream, DTYPE_F32, &case_in(c, 0)->shape, rows, c->dx[0],
                              c->bdx[0].mem));
}

static void check(OpCase *c, int32_t rows) {
    const Shape *shape = &case_in(c, 0)->shape;
    int64_t v = shape->dims[shape->n_dims - 1], n_valid = 0, n_correct = 0;
    double loss = 0;
    for (int64_t i = 0; i < rows * c->in_n[1]; i++) {
        const float *z = c->x[0] + i * v, *dz = c->dx[0] + i * v;
        int32_t t = c->ids[1][i];
        double max = -INFINITY, sum = 0;
        int64_t best = 0;
        for (int64_t j = 0; j < v; j++) {
            best = z[j] > z[best] ? j : best;
            max = fmax(max, (double)z[j]);
        }
        for (int64_t j = 0; j < v; j++)
            sum += exp((double)z[j] - max);
        bool ignored = t == -100;
        for (int64_t j = 0; j < v; j++) {
            double want = ignored ? 0 : c->loss_scale * (exp((double)z[j] - max) / sum - (j == t));
            cr_assert(!!(fabs(want - (double)dz[j]) <= 1e-6 * c->loss_scale + 1e-5 * fabs(want)),
                      "dz[%lld] %g, want %g", (long long)j, (double)dz[j], want);
        }
        if (ignored)
            continue;
        loss += log(sum) + max - (double)z[t];
        n_valid++;
        n_correct += best == t;
    }
    cr_assert(!!(fabs(loss - c->loss.loss) <= 1e-6 * (fabs(loss) + 1)), "loss %.9g, want %.9g",
              c->loss.loss, loss);
    cr_assert_eq(c->loss.n_valid, n_valid);
    cr_assert_eq(c->loss.n_correct, n_correct);
}

static void loss_case(const char *isa, int threads, Shape logits, int32_t rows) {
    OpCase c;
    loss_open(&c, isa, threads, logits, rows, false);
    run(&c, rows);
    check(&c, rows);
    case_close(&c);
}

ISA_TEST(cross_entropy, forward_backward) {
    loss_case(isa, threads, shape_1d(10), 7);
    loss_case(isa, threads, shape_1d(1), 2);
    loss_case(isa, threads, shape_1d(1003), 33);
    loss_case(isa, threads, shape_2d(5, 67), 3);
    loss_case(isa, threads, shape_3d(16, 3, 5), 2); /* a blocked value */
}

ISA_TEST(cross_entropy, ignore_index) {
    OpCase c;
    loss_open(&c, isa, threads, shape_2d(9, 13), 4, true);
    for (int i = 0; i < 4 * 9; i += 3)
        c.ids[1][i] = -100;
    run(&c, 4);
    check(&c, 4);
    for (int i = 0; i < 4 * 9; i++)
        c.ids[1][i] = -100;
    run(&c, 4);
    check(&c, 4);
    cr_assert_eq(c.loss.n_valid, 0);
    cr_assert_eq(c.loss.loss, 0.0);
    case_close(&c);
}

/* The first of equal maxima is the answer; sums add up over calls. */
Test(cross_entropy, ties_and_sums) {
    OpCase c;
    loss_open(&c, "auto", 2, shape_1d(40), 4, false);
    for (int i = 0; i < 4 * 40; i++)
        c.x[0][i] = i % 40 == 3 || i % 40 == 30 ? 2.0f : 0.0f;
    const int32_t targets[] = {3, 30, 0, 3};
    memcpy(c.ids[1], targets, sizeof targets);
    run(&c, 4);
    check(&c, 4);
    cr_assert_eq(c.loss.n_correct, 2);
    double once = c.loss.loss;
    OpArgs a = case_args(&c, 4);
    a.y = NULL;
    OK(c.ops->op_run(c.op, c.stream, OP_FORWARD_EVAL, &a));
    cr_assert_eq(c.loss.loss, 2 * once);
    cr_assert_eq(c.loss.n_valid, 8);
    cr_assert_eq(c.loss.n_correct, 4);
    case_close(&c);
}

Test(cross_entropy, target_out_of_range) {
    const int32_t bad[] = {13, -1, -100, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 5; i++) {
        OpCase c;
        loss_open(&c, "auto", 2, shape_2d(3, 13), 2, false);
        c.ids[1][3 + 1] = bad[i];
        case_load(&c, 2);
        OpArgs a = case_args(&c, 2);
        const OpPass passes[] = {OP_FORWARD, OP_FORWARD_EVAL, OP_BACKWARD_INPUT};
        for (int p = 0; p < 3; p++) {
            cr_assert_eq(c.ops->op_run(c.op, c.stream, passes[p], &a), ERR_ARGUMENT);
            char want[64];
            snprintf(want, sizeof want, "target %d at row %d, position 1", bad[i], 3 + 1);
            cr_assert(strstr(err_text(), want), "%s", err_text());
            cr_assert_eq(c.loss.n_valid, 0);
        }
        case_close(&c);
    }
}

/* Non-finite logits: a non-finite loss and gradient, no crash. */
ISA_TEST(cross_entropy, not_finite) {
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++)
        for (int all = 0; all < 2; all++) {
            OpCase c;
            loss_open(&c, isa, threads, shape_1d(37), 3, false);
            for (int j = 0; j < 37; j++)
                if (all || j == 20)
                    c.x[0][37 + j] = bad[i];
            c.ids[1][1] = 20;
            run(&c, 3);
            cr_assert(!isfinite(c.loss.loss), "loss %g with %g", c.loss.loss, (double)bad[i]);
            case_close(&c);
        }
}

/* Logits of -+1e4 are ordinary. */
ISA_TEST(cross_entropy, large_logits) {
    OpCase c;
    loss_open(&c, isa, threads, shape_1d(21), 5, false);
    for (int i = 0; i < 5 * 21; i++)
        c.x[0][i] *= 2000.0f;
    run(&c, 5);
    check(&c, 5);
    case_close(&c);
}

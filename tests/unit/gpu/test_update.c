/* sgd, adamw and the whole-tensor helpers against double. */
#include "tests/unit/gpu/op_case.h"

static const int64_t sizes[] = {0, 1, 15, 67, 8192, 40001};

typedef struct Tensors {
    float *w, *g, *m, *v;
    double *dw, *dm, *dv; /* the same in double */
} Tensors;

static Tensors tensors(int64_t n) {
    Tensors t;
    float **all[] = {&t.w, &t.g, &t.m, &t.v};
    for (int i = 0; i < 4; i++) {
        *all[i] = aligned_alloc(64, device_align((size_t)(n + 1) * 4));
        memset(*all[i], 0, (size_t)n * 4);
    }
    case_fill(t.w, n, 3);
    t.dw = case_doubles(t.w, n);
    t.dm = case_doubles(t.m, n);
    t.dv = case_doubles(t.v, n);
    return t;
}

static void tensors_done(Tensors *t) {
    free(t->w), free(t->g), free(t->m), free(t->v);
    free(t->dw), free(t->dm), free(t->dv);
}

static void close_to(const float *got, const double *want, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++)
        cr_assert(!!(fabs((double)got[i] - want[i]) <= 2e-6 * (fabs(want[i]) + 1)),
                  "%s[%lld] %.9g, want %.9g", what, (long long)i, (double)got[i], want[i]);
}

static void sgd_case(OpCase *c, int64_t n, double momentum, bool nesterov, double wd) {
    Tensors t = tensors(n);
    for (int step = 0; step < 5; step++) {
        case_fill(t.g, n, 50 + (uint64_t)step);
        UpdateArgs a = {.n = n,
                        .w = t.w,
                        .g = t.g,
                        .m = momentum > 0 ? t.m : NULL,
                        .lr = 0.05,
                        .scale = 0.7,
                        .momentum = momentum,
                        .weight_decay = wd,
                        .nesterov = nesterov,
                        .t = step + 1};
        OK(c->ops->update_sgd(c->stream, &a));
        for (int64_t i = 0; i < n; i++) {
            double d = 0.7 * (double)t.g[i] + wd * t.dw[i];
            t.dm[i] = momentum * t.dm[i] + d;
            t.dw[i] -= 0.05 * (momentum > 0 ? nesterov ? d + momentum * t.dm[i] : t.dm[i] : d);
        }
    }
    close_to(t.w, t.dw, n, "w");
    if (momentum > 0)
        close_to(t.m, t.dm, n, "m");
    tensors_done(&t);
}

ISA_TEST(update, sgd) {
    OpCase c;
    case_open_device(&c, isa, threads);
    for (int i = 0; i < 6; i++) {
        sgd_case(&c, sizes[i], 0, false, 0);
        sgd_case(&c, sizes[i], 0, false, 0.01);
        sgd_case(&c, sizes[i], 0.9, false, 0.01);
        sgd_case(&c, sizes[i], 0.9, true, 0.01);
    }
    UpdateArgs a = {.n = 1, .momentum = 0.5};
    cr_assert_eq(c.ops->update_sgd(c.stream, &a), ERR_ARGUMENT);
    c.ops->stream_close(c.stream);
    c.ops->close(c.device);
}

ISA_TEST(update, adamw) {
    OpCase c;
    case_open_device(&c, isa, threads);
    const double lr = 0.01, wd = 0.1, b1 = 0.9, b2 = 0.999, eps = 1e-8, scale = 0.5;
    for (int k = 0; k < 6; k++) {
        int64_t n = sizes[k];
        Tensors t = tensors(n);
        for (int step = 1; step <= 5; step++) {
            case_fill(t.g, n, 50 + (uint64_t)step);
            UpdateArgs a = {.n = n,
                            .w = t.w,
                            .g = t.g,
                            .m = t.m,
                            .v = t.v,
                            .lr = lr,
                            .scale = scale,
                            .weight_decay = wd,
                            .beta1 = b1,
                            .beta2 = b2,
                            .eps = eps,
                            .t = step};
            OK(c.ops->update_adamw(c.stream, &a));
            for (int64_t i = 0; i < n; i++) {
                double g = scale * (double)t.g[i];
                t.dw[i] -= lr * wd * t.dw[i];
                t.dm[i] = b1 * t.dm[i] + (1 - b1) * g;
                t.dv[i] = b2 * t.dv[i] + (1 - b2) * g * g;
                t.dw[i] -= lr / (1 - pow(b1, step)) * t.dm[i] /
                           (sqrt(t.dv[i]) / sqrt(1 - pow(b2, step)) + eps);
            }
        }
        close_to(t.w, t.dw, n, "w");
        close_to(t.m, t.dm, n, "m");
        close_to(t.v, t.dv, n, "v");
        tensors_done(&t);
    }
    UpdateArgs a = {.n = 1, .t = 1};
    cr_assert_eq(c.ops->update_adamw(c.stream, &a), ERR_ARGUMENT);
    c.ops->stream_close(c.stream);
    c.ops->close(c.device);
}

ISA_TEST(update, add_scale_square_sum) {
    OpCase c;
    case_open_device(&c, isa, threads);
    for (int k = 0; k < 6; k++) {
        int64_t n = sizes[k];
        Tensors t = tensors(n);
        case_fill(t.g, n, 8);
        OK(c.ops->add(c.stream, t.w, t.g, n));
        OK(c.ops->scale(c.stream, t.g, 0.25, n));
        double want = 0, sum = -1;
        for (int64_t i = 0; i < n; i++) {
            cr_assert_eq(t.w[i], (float)t.dw[i] + 4.0f * t.g[i]);
            want += (double)t.w[i] * (double)t.w[i];
        }
        OK(c.ops->square_sum(c.stream, t.w, n, &sum));
        cr_assert(!!(fabs(sum - want) <= 1e-12 * want), "%.17g, want %.17g", sum, want);
        tensors_done(&t);
    }
    c.ops->stream_close(c.stream);
    c.ops->close(c.device);
}

/* Same sum for any number of threads and any alignment; not finite if an element is not. */
Test(update, square_sum_bits) {
    enum { N = 2 * 4096 * 512 + 777 };
    float *x = aligned_alloc(64, device_align((N + 16) * 4));
    case_fill(x, N + 16, 4);
    double first = 0;
    for (int threads = 1; threads <= 3; threads++) {
        OpCase c;
        case_open_device(&c, "auto", threads);
        double sum;
        OK(c.ops->square_sum(c.stream, x, N, &sum));
        if (threads == 1)
            first = sum;
        cr_assert_eq(sum, first);
        memmove(x + 1, x, N * 4);
        OK(c.ops->square_sum(c.stream, x + 1, N, &sum));
        cr_assert_eq(sum, first);
        memmove(x, x + 1, N * 4);
        float kept = x[N - 5];
        const float bad[] = {NAN, INFINITY, -INFINITY};
        for (int i = 0; i < 3; i++) {
            x[N - 5] = bad[i];
            OK(c.ops->square_sum(c.stream, x, N, &sum));
            cr_assert(!isfinite(sum));
        }
        x[N - 5] = kept;
        c.ops->stream_close(c.stream);
        c.ops->close(c.device);
    }
    free(x);
}

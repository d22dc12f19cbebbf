/* linear: y (m,F) = x (m,D) w^T + b, m = rows times the leading dims. */
#include "gpu/cpu_internal.h"

static void sizes(const Op *op, int64_t rows, int64_t *out_m, int64_t *out_d, int64_t *out_f) {
    const Shape *in = &op->in[0]->shape;
    *out_d = in->dims[in->n_dims - 1];
    *out_f = op->layer->attr.features;
    *out_m = *out_d > 0 ? rows * (op->in_elements / *out_d) : 0;
}

/* With few rows, oneDNN spends much of y = x w^T on packing w: y^T = w x^T, brought into order
 * afterwards, takes 3 to 40 % less time, 75 % less at the worst (m = 16, two threads, AVX-512). */
static bool goes_transposed(int64_t m, int64_t d, int64_t f) {
    enum { FEWEST_ROWS = 16, MOST_ROWS = 64, LEAST_DEPTH = 8 }; /* d over m */
    return m >= FEWEST_ROWS && m <= MOST_ROWS && d >= LEAST_DEPTH * m && f >= m;
}

static int linear_open(Op *op) {
    op->needs.keeps_input[0] = true;
    for (int32_t v = 0; v < op->n_variants; v++) {
        int64_t m, d, f;
        sizes(op, op->variants[v], &m, &d, &f);
        size_t bytes = goes_transposed(m, d, f) ? (size_t)(m * f) * sizeof(float) : 0;
        if (op->needs.scratch_bytes < bytes)
            op->needs.scratch_bytes = bytes;
    }
    return 0;
}

static void add_bias(Op *op, float *y, const float *b, int64_t m, int64_t f) {
    const int64_t rows = 16;
    int64_t n_pieces = cpu_ceil_div(m, rows);
    CPU_PARALLEL_FOR(cpu_team(op->device, m * f))
    for (int64_t i = 0; i < n_pieces; i++)
        op->device->loops->add_row(y + i * rows * f, b, cpu_min(rows, m - i * rows), f, f);
}

static int run_transposed(Op *op, const OpArgs *args, int64_t m, int64_t d, int64_t f) {
    const int64_t piece = 64; /* features */
    const CpuLoops *loops = op->device->loops;
    const float *b = op->layer->n_params > 1 ? args->w[1] : NULL, *t = args->scratch;
    float *y = args->y;
    TRY(cpu_gemm('N', 'T', f, m, d, 1.0f, args->w[0], d, args->x[0], d, 0.0f, args->scratch, m));
    int64_t n_pieces = cpu_ceil_div(f, piece);
    CPU_PARALLEL_FOR(cpu_team(op->device, m * f))
    for (int64_t i = 0; i < n_pieces; i++) {
        int64_t first = i * piece, n = cpu_min(piece, f - first);
        loops->transpose_lines(y + first, f, t + first * m, m, n, m);
        if (b != NULL)
            loops->add_row(y + first, b + first, m, n, f);
    }
    return 0;
}

static int run_forward(Op *op, const OpArgs *args, int64_t m, int64_t d, int64_t f) {
    if (goes_transposed(m, d, f))
        return run_transposed(op, args, m, d, f);
    TRY(cpu_gemm('N', 'T', m, f, d, 1.0f, args->x[0], d, args->w[0], d, 0.0f, args->y, f));
    if (op->layer->n_params > 1)
        add_bias(op, args->y, args->w[1], m, f);
    return 0;
}

static int linear_run(Op *op, OpPass pass, const OpArgs *args) {
    int64_t m, d, f;
    sizes(op, args->rows, &m, &d, &f);
    bool bias = op->layer->n_params > 1;
    switch (pass) {
    case OP_FORWARD:
    case OP_FORWARD_EVAL:
        return run_forward(op, args, m, d, f);
    case OP_BACKWARD_INPUT:
        if (args->dx[0] == NULL)
            return 0;
        return cpu_gemm('N', 'N', m, d, f, 1.0f, args->dy, f, args->w[0], d, 0.0f, args->dx[0], d);
    case OP_BACKWARD_WEIGHT:
        if (args->dw[0] != NULL)
            TRY(cpu_gemm('T', 'N', f, d, m, 1.0f, args->dy, f, args->x[0], d,
                         args->accumulate ? 1.0f : 0.0f, args->dw[0], d));
        if (bias && args->dw[1] != NULL)
            cpu_column_sums(op->device, args->dw[1], args->dy, m, f, args->accumulate);
        return 0;
    default:
        return 0;
    }
}

const CpuKind cpu_kind_linear = {.open = linear_open, .run = linear_run, .plain = true};

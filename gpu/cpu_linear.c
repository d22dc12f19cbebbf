/* linear: y (m,F) = x (m,D) w^T + b, m = rows times the leading dims. */
#include "gpu/cpu_internal.h"

static void sizes(const Op *op, int64_t rows, int64_t *out_m, int64_t *out_d, int64_t *out_f) {
    const Shape *in = &op->in[0]->shape;
    *out_d = in->dims[in->n_dims - 1];
    *out_f = op->layer->attr.features;
    *out_m = *out_d > 0 ? rows * (op->in_elements / *out_d) : 0;
}

static int linear_open(Op *op) {
    op->needs.keeps_input[0] = true;
    return 0;
}

static void add_bias(Op *op, float *y, const float *b, int64_t m, int64_t f) {
    const int64_t rows = 16;
    int64_t n_pieces = cpu_ceil_div(m, rows);
    CPU_PARALLEL_FOR(cpu_team(op->device, m * f))
    for (int64_t i = 0; i < n_pieces; i++)
        op->device->loops->add_row(y + i * rows * f, b, cpu_min(rows, m - i * rows), f, f);
}

static int linear_run(Op *op, OpPass pass, const OpArgs *args) {
    int64_t m, d, f;
    sizes(op, args->rows, &m, &d, &f);
    bool bias = op->layer->n_params > 1;
    switch (pass) {
    case OP_FORWARD:
    case OP_FORWARD_EVAL:
        TRY(cpu_gemm('N', 'T', m, f, d, 1.0f, args->x[0], d, args->w[0], d, 0.0f, args->y, f));
        if (bias)
            add_bias(op, args->y, args->w[1], m, f);
        return 0;
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

/* layernorm over the last dimension. Saved: mean and 1/std of every row. */
#include "gpu/cpu_internal.h"

static void sizes(const Op *op, int64_t rows, int64_t *out_m, int64_t *out_d) {
    const Shape *in = &op->in[0]->shape;
    *out_d = in->dims[in->n_dims - 1];
    *out_m = *out_d > 0 ? rows * (op->in_elements / *out_d) : 0;
}

static int layernorm_open(Op *op) {
    int64_t m, d;
    sizes(op, cpu_max_rows(op), &m, &d);
    op->needs.saved_bytes = (size_t)m * 2 * sizeof(float);
    op->needs.scratch_bytes = (size_t)m * 2 * sizeof(float);
    op->needs.keeps_input[0] = true;
    return 0;
}

static void forward(Op *op, OpPass pass, const OpArgs *args, int64_t m, int64_t d) {
    float *mean = pass == OP_FORWARD ? args->saved : args->scratch, *istd = mean + m;
    const float *x = args->x[0];
    float *y = args->y;
    CPU_PARALLEL_FOR(cpu_team(op->device, m * d))
    for (int64_t i = 0; i < m; i++)
        op->device->loops->layernorm(y + i * d, x + i * d, args->w[0], args->w[1], d,
                                     op->layer->attr.eps, &mean[i], &istd[i]);
}

static void backward_input(Op *op, const OpArgs *args, int64_t m, int64_t d) {
    const float *mean = args->saved, *istd = mean + m, *x = args->x[0], *dy = args->dy;
    float *dx = args->dx[0];
    CPU_PARALLEL_FOR(cpu_team(op->device, m * d))
    for (int64_t i = 0; i < m; i++)
        op->device->loops->layernorm_grad_input(dx + i * d, dy + i * d, x + i * d, args->w[0], d,
                                                mean[i], istd[i]);
}

static void backward_weight(Op *op, const OpArgs *args, int64_t m, int64_t d) {
    const float *mean = args->saved, *istd = mean + m, *x = args->x[0], *dy = args->dy;
    float *dw = args->dw[0], *db = args->dw[1];
    int64_t n_pieces = cpu_ceil_div(d, CPU_COLUMN_CHUNK);
    CPU_PARALLEL_FOR(cpu_team(op->device, m * d))
    for (int64_t i = 0; i < n_pieces; i++) {
        int64_t first = i * CPU_COLUMN_CHUNK;
        op->device->loops->layernorm_grad_weight(
            dw != NULL ? dw + first : NULL, db != NULL ? db + first : NULL, dy + first, x + first,
            mean, istd, m, cpu_min(CPU_COLUMN_CHUNK, d - first), d, args->accumulate);
    }
}

static int layernorm_run(Op *op, OpPass pass, const OpArgs *args) {
    int64_t m, d;
    sizes(op, args->rows, &m, &d);
    if (pass == OP_FORWARD || pass == OP_FORWARD_EVAL)
        forward(op, pass, args, m, d);
    else if (pass == OP_BACKWARD_INPUT && args->dx[0] != NULL)
        backward_input(op, args, m, d);
    else if (pass == OP_BACKWARD_WEIGHT && (args->dw[0] != NULL || args->dw[1] != NULL))
        backward_weight(op, args, m, d);
    return 0;
}

const CpuKind cpu_kind_layernorm = {.open = layernorm_open, .run = layernorm_run, .plain = true};

/* embedding and position. */
#include "gpu/cpu_internal.h"

static int check_ids(const Op *op, const OpArgs *args) {
    const int32_t *ids = args->x[0];
    int64_t t = op->in_elements, vocab = op->layer->attr.vocab;
    for (int64_t i = 0; i < args->rows * t; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return err_set(ERR_ARGUMENT,
                           "layer '%s': id %d at row %lld, position %lld is outside [0, %lld)",
                           op->layer->name, ids[i], (long long)(args->first_row + i / t),
                           (long long)(i % t), (long long)vocab);
    return 0;
}

static int embedding_open(Op *op) {
    op->needs.keeps_input[0] = true;
    return 0;
}

/* Each piece of columns goes through all positions in order: no two threads share an element. */
static void add_rows(Op *op, const OpArgs *args) {
    const int32_t *ids = args->x[0];
    int64_t n = args->rows * op->in_elements, f = op->layer->attr.features;
    const float *dy = args->dy;
    float *dw = args->dw[0];
    const CpuLoops *loops = op->device->loops;
    int64_t piece = cpu_ceil_div(cpu_ceil_div(f, op->device->threads), 16) * 16;
    int64_t n_pieces = cpu_ceil_div(f, piece);
    CPU_PARALLEL_FOR(cpu_team(op->device, n * f))
    for (int64_t p = 0; p < n_pieces; p++) {
        int64_t first = p * piece, count = cpu_min(piece, f - first);
        for (int64_t i = 0; i < n; i++) {
            float *row = dw + ids[i] * f + first;
            loops->add(row, row, dy + i * f + first, count);
        }
    }
}

static int embedding_run(Op *op, OpPass pass, const OpArgs *args) {
    int64_t n = args->rows * op->in_elements, f = op->layer->attr.features;
    if (pass == OP_FORWARD || pass == OP_FORWARD_EVAL) {
        TRY(check_ids(op, args));
        const int32_t *ids = args->x[0];
        const float *w = args->w[0];
        float *y = args->y;
        CPU_PARALLEL_FOR(cpu_team(op->device, n * f))
        for (int64_t i = 0; i < n; i++)
            memcpy(y + i * f, w + ids[i] * f, (size_t)f * sizeof *y);
    } else if (pass == OP_BACKWARD_WEIGHT && args->dw[0] != NULL) {
        TRY(check_ids(op, args));
        if (!args->accumulate)
            cpu_zero(op->device, args->dw[0], (size_t)(op->layer->attr.vocab * f) * sizeof(float));
        add_rows(op, args);
    }
    return 0;
}

static int position_open(Op *op) {
    op->needs.may_alias = true;
    return 0;
}

static int position_run(Op *op, OpPass pass, const OpArgs *args) {
    int64_t n = op->out_elements;
    if (pass == OP_FORWARD || pass == OP_FORWARD_EVAL) {
        const float *x = args->x[0], *w = args->w[0];
        float *y = args->y;
        for (int64_t r = 0; r < args->rows; r++)
            cpu_add(op->device, y + r * n, x + r * n, w, n);
    } else if (pass == OP_BACKWARD_INPUT && args->dx[0] != NULL) {
        cpu_copy(op->device, args->dx[0], args->dy, (size_t)(args->rows * n) * sizeof(float));
    } else if (pass == OP_BACKWARD_WEIGHT && args->dw[0] != NULL) {
        cpu_column_sums(op->device, args->dw[0], args->dy, args->rows, n, args->accumulate);
    }
    return 0;
}

const CpuKind cpu_kind_embedding = {.open = embedding_open, .run = embedding_run, .plain = true};
const CpuKind cpu_kind_position = {.open = position_open, .run = position_run};

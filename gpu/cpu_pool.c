/* maxpool2d and global_avgpool2d. Pieces as in batchnorm: one sample's (H*W, B) or (H*W). */
#include "gpu/cpu_internal.h"

static PoolShape pool_shape(const Op *op) {
    const Shape *in = &op->in[0]->shape, *out = &op->out->shape;
    const LayerAttr *attr = &op->layer->attr;
    return (PoolShape){(int32_t)in->dims[1],
                       (int32_t)in->dims[2],
                       (int32_t)out->dims[1],
                       (int32_t)out->dims[2],
                       attr->kernel,
                       attr->stride,
                       attr->pad};
}

static int64_t channels_per_piece(const Op *op) {
    const Value *in = op->in[0];
    return cpu_is_blocked(op->device, in->dtype, &in->shape) ? op->device->loops->block : 1;
}

/* Saved: the place of the maximum in its window, 16 bits per output element. */
static int maxpool_open(Op *op) {
    if (op->layer->attr.kernel > 255)
        return err_set(ERR_UNSUPPORTED, "layer '%s': kernel %d, at most 255 on the cpu device",
                       op->layer->name, op->layer->attr.kernel);
    size_t bytes = (size_t)(cpu_max_rows(op) * op->out_elements) * sizeof(uint16_t);
    op->needs.saved_bytes = bytes;
    op->needs.scratch_bytes = bytes; /* for evaluation */
    return 0;
}

static int maxpool_run(Op *op, OpPass pass, const OpArgs *args) {
    const CpuLoops *loops = op->device->loops;
    PoolShape p = pool_shape(op);
    int64_t width = channels_per_piece(op);
    int64_t n_pieces = args->rows * (op->in[0]->shape.dims[0] / width);
    int64_t in = width * p.h * p.w, out = width * p.oh * p.ow;
    if (pass == OP_FORWARD || pass == OP_FORWARD_EVAL) {
        uint16_t *index = pass == OP_FORWARD ? args->saved : args->scratch;
        const float *x = args->x[0];
        float *y = args->y;
        CPU_PARALLEL_FOR(cpu_team(op->device, n_pieces * in))
        for (int64_t i = 0; i < n_pieces; i++)
            (width > 1 ? loops->maxpool_blocked
                       : loops->maxpool_plain)(&p, y + i * out, index + i * out, x + i * in);
    } else if (pass == OP_BACKWARD_INPUT && args->dx[0] != NULL) {
        const uint16_t *index = args->saved;
        const float *dy = args->dy;
        float *dx = args->dx[0];
        CPU_PARALLEL_FOR(cpu_team(op->device, n_pieces * in))
        for (int64_t i = 0; i < n_pieces; i++)
            (width > 1 ? loops->maxpool_grad_blocked
                       : loops->maxpool_grad_plain)(&p, dx + i * in, dy + i * out, index + i * out);
    }
    return 0;
}

static int avgpool_open(Op *op) {
    (void)op; /* needs nothing */
    return 0;
}

static int avgpool_run(Op *op, OpPass pass, const OpArgs *args) {
    const CpuLoops *loops = op->device->loops;
    const Shape *shape = &op->in[0]->shape;
    int64_t width = channels_per_piece(op), hw = shape->dims[1] * shape->dims[2];
    int64_t n_pieces = args->rows * (shape->dims[0] / width);
    if (pass == OP_FORWARD || pass == OP_FORWARD_EVAL) {
        const float *x = args->x[0];
        float *y = args->y;
        CPU_PARALLEL_FOR(cpu_team(op->device, n_pieces * width * hw))
        for (int64_t i = 0; i < n_pieces; i++)
            (width > 1 ? loops->mean_blocked : loops->mean_plain)(y + i * width, x + i * width * hw,
                                                                  hw);
    } else if (pass == OP_BACKWARD_INPUT && args->dx[0] != NULL) {
        const float *dy = args->dy;
        float *dx = args->dx[0];
        CPU_PARALLEL_FOR(cpu_team(op->device, n_pieces * width * hw))
        for (int64_t i = 0; i < n_pieces; i++) {
            float value[CPU_MAX_BLOCK];
            for (int64_t c = 0; c < width; c++)
                value[c] = dy[i * width + c] / (float)hw;
            if (width > 1)
                loops->fill_blocked(dx + i * width * hw, value, hw);
            else
                loops->fill_plain(dx + i * hw, value[0], hw);
        }
    }
    return 0;
}

const CpuKind cpu_kind_maxpool = {.open = maxpool_open, .run = maxpool_run};
const CpuKind cpu_kind_avgpool = {.open = avgpool_open, .run = avgpool_run};

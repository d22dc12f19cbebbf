/* relu, gelu, add, dropout, flatten, delay, and the pointwise helpers. Element order is the same on
 * both sides of a pointwise op, so blocked and plain values are alike to it. */
#include "core/clock.h"
#include "core/rng.h"
#include "gpu/cpu_internal.h"

void cpu_copy(Device *device, void *dst, const void *src, size_t bytes) {
    if (dst == src || bytes == 0)
        return;
    const int64_t piece = CPU_CHUNK * (int64_t)sizeof(float);
    int64_t n_pieces = cpu_ceil_div((int64_t)bytes, piece);
    CPU_PARALLEL_FOR(cpu_team(device, (int64_t)(bytes / sizeof(float))))
    for (int64_t i = 0; i < n_pieces; i++)
        memcpy((char *)dst + i * piece, (const char *)src + i * piece,
               (size_t)cpu_min(piece, (int64_t)bytes - i * piece));
}

void cpu_zero(Device *device, void *dst, size_t bytes) {
    if (bytes == 0)
        return;
    const int64_t piece = CPU_CHUNK * (int64_t)sizeof(float);
    int64_t n_pieces = cpu_ceil_div((int64_t)bytes, piece);
    CPU_PARALLEL_FOR(cpu_team(device, (int64_t)(bytes / sizeof(float))))
    for (int64_t i = 0; i < n_pieces; i++)
        memset((char *)dst + i * piece, 0, (size_t)cpu_min(piece, (int64_t)bytes - i * piece));
}

typedef void (*UnaryLoop)(float *y, const float *x, int64_t n);
typedef void (*BinaryLoop)(float *y, const float *a, const float *b, int64_t n);

static void unary(Device *device, UnaryLoop loop, float *y, const float *x, int64_t n) {
    int64_t n_pieces = cpu_ceil_div(n, CPU_CHUNK);
    CPU_PARALLEL_FOR(cpu_team(device, n))
    for (int64_t i = 0; i < n_pieces; i++)
        loop(y + i * CPU_CHUNK, x + i * CPU_CHUNK, cpu_min(CPU_CHUNK, n - i * CPU_CHUNK));
}

static void binary(Device *device, BinaryLoop loop, float *y, const float *a, const float *b,
                   int64_t n) {
    int64_t n_pieces = cpu_ceil_div(n, CPU_CHUNK);
    CPU_PARALLEL_FOR(cpu_team(device, n))
    for (int64_t i = 0; i < n_pieces; i++)
        loop(y + i * CPU_CHUNK, a + i * CPU_CHUNK, b + i * CPU_CHUNK,
             cpu_min(CPU_CHUNK, n - i * CPU_CHUNK));
}

void cpu_add(Device *device, float *dst, const float *a, const float *b, int64_t n) {
    binary(device, device->loops->add, dst, a, b, n);
}

void cpu_column_sums(Device *device, float *out, const float *x, int64_t n_rows, int64_t n_columns,
                     bool accumulate) {
    int32_t team = cpu_team(device, n_rows * n_columns);
    int64_t piece = cpu_ceil_div(cpu_ceil_div(n_columns, team), CPU_COLUMN_CHUNK);
    piece *= CPU_COLUMN_CHUNK;
    int64_t n_pieces = piece > 0 ? cpu_ceil_div(n_columns, piece) : 0;
    CPU_PARALLEL_FOR(team)
    for (int64_t i = 0; i < n_pieces; i++)
        device->loops->column_sums(out + i * piece, x + i * piece, n_rows,
                                   cpu_min(piece, n_columns - i * piece), n_columns, accumulate);
}

/* relu: the output tells where the gradient flows, so x may be overwritten. */
static int relu_open(Op *op) {
    op->needs.keeps_output = true;
    op->needs.may_alias = true;
    return 0;
}

static int relu_run(Op *op, OpPass pass, const OpArgs *args) {
    int64_t n = args->rows * op->out_elements;
    const CpuLoops *loops = op->device->loops;
    if (pass == OP_FORWARD || pass == OP_FORWARD_EVAL)
        unary(op->device, loops->relu, args->y, args->x[0], n);
    else if (pass == OP_BACKWARD_INPUT && args->dx[0] != NULL)
        binary(op->device, loops->relu_grad, args->dx[0], args->dy, args->y, n);
    return 0;
}

static int gelu_open(Op *op) {
    op->needs.keeps_input[0] = true;
    return 0;
}

static int gelu_run(Op *op, OpPass pass, const OpArgs *args) {
    int64_t n = args->rows * op->out_elements;
    const CpuLoops *loops = op->device->loops;
    if (pass == OP_FORWARD || pass == OP_FORWARD_EVAL)
        unary(op->device, loops->gelu, args->y, args->x[0], n);
    else if (pass == OP_BACKWARD_INPUT && args->dx[0] != NULL)
        binary(op->device, loops->gelu_grad, args->dx[0], args->dy, args->x[0], n);
    return 0;
}

static int alias_open(Op *op) {
    op->needs.may_alias = true;
    return 0;
}

static int add_run(Op *op, OpPass pass, const OpArgs *args) {
    int64_t n = args->rows * op->out_elements;
    if (pass == OP_FORWARD || pass == OP_FORWARD_EVAL) {
        cpu_add(op->device, args->y, args->x[0], args->x[1], n);
    } else if (pass == OP_BACKWARD_INPUT) {
        for (int i = 0; i < 2; i++)
            if (args->dx[i] != NULL)
                cpu_copy(op->device, args->dx[i], args->dy, (size_t)n * sizeof(float));
    }
    return 0;
}

/* dropout: the mask is made again in backward; nothing is saved. */
static int dropout_apply(Op *op, const OpArgs *args, float *y, const float *x) {
    const CpuLoops *loops = op->device->loops;
    const Shape *shape = &op->out->shape;
    bool blocked = cpu_is_blocked(op->device, DTYPE_F32, shape);
    float p = op->layer->attr.p;
    int64_t n = op->out_elements;
    int64_t hw = blocked ? shape->dims[1] * shape->dims[2] : 0;
    int64_t piece = blocked ? hw * loops->block : CPU_CHUNK;
    int64_t pieces_per_row = cpu_ceil_div(n, piece);
    uint64_t step = (uint64_t)args->step;
    DropoutKey base = {
        .key = {(uint32_t)args->seed, (uint32_t)(args->seed >> 32)},
        .layer = (uint32_t)op->index,
        .step = (uint32_t)step ^ 0x9E3779B9u * (uint32_t)(step >> 32),
        .threshold = rng_dropout_threshold(p),
        .scale = 1.0f / (1.0f - p),
    };
    int64_t n_pieces = n > 0 ? args->rows * pieces_per_row : 0;
    CPU_PARALLEL_FOR(cpu_team(op->device, 4 * args->rows * n))
    for (int64_t i = 0; i < n_pieces; i++) {
        int64_t row = i / pieces_per_row, first = i % pieces_per_row * piece;
        DropoutKey key = base;
        key.row = (uint32_t)(args->first_row + row);
        if (blocked)
            loops->dropout_blocked(&key, first / hw, hw, y + row * n + first, x + row * n + first);
        else
            loops->dropout(&key, first, y + row * n + first, x + row * n + first,
                           cpu_min(piece, n - first));
    }
    return 0;
}

static int dropout_run(Op *op, OpPass pass, const OpArgs *args) {
    size_t bytes = (size_t)(args->rows * op->out_elements) * sizeof(float);
    if (pass == OP_FORWARD_EVAL)
        cpu_copy(op->device, args->y, args->x[0], bytes);
    else if (pass == OP_FORWARD)
        return dropout_apply(op, args, args->y, args->x[0]);
    else if (pass == OP_BACKWARD_INPUT && args->dx[0] != NULL)
        return dropout_apply(op, args, args->dx[0], args->dy);
    return 0;
}

/* flatten: a copy, or nothing where the storage is shared, or a reorder of a blocked value. */
static int flatten_open(Op *op) {
    const Value *in = op->in[0];
    op->needs.may_alias = !cpu_is_blocked(op->device, in->dtype, &in->shape);
    return 0;
}

static int flatten_run(Op *op, OpPass pass, const OpArgs *args) {
    const Value *in = op->in[0];
    size_t bytes = cpu_value_bytes(op->device, in->dtype, &in->shape, args->rows);
    bool blocked = cpu_is_blocked(op->device, in->dtype, &in->shape);
    if (pass == OP_FORWARD || pass == OP_FORWARD_EVAL) {
        if (blocked)
            cpu_to_plain(op->device, &in->shape, args->rows, args->y, args->x[0]);
        else
            cpu_copy(op->device, args->y, args->x[0], bytes);
    } else if (pass == OP_BACKWARD_INPUT && args->dx[0] != NULL) {
        if (blocked)
            cpu_from_plain(op->device, &in->shape, args->rows, args->dx[0], args->dy);
        else
            cpu_copy(op->device, args->dx[0], args->dy, bytes);
    }
    return 0;
}

static void sleep_us(int64_t start_ns, int64_t us) {
    if (us > 0)
        clock_sleep_until(start_ns + us * CLOCK_NS_PER_US);
}

static int delay_run(Op *op, OpPass pass, const OpArgs *args) {
    int64_t start = clock_now_ns();
    const Value *in = op->in[0];
    size_t bytes = cpu_value_bytes(op->device, in->dtype, &in->shape, args->rows);
    if (pass == OP_FORWARD || pass == OP_FORWARD_EVAL) {
        cpu_copy(op->device, args->y, args->x[0], bytes);
        sleep_us(start, op->layer->attr.forward_us);
    } else if (pass == OP_BACKWARD_INPUT) {
        if (args->dx[0] != NULL)
            cpu_copy(op->device, args->dx[0], args->dy, bytes);
        sleep_us(start, op->layer->attr.backward_us);
    }
    return 0;
}

const CpuKind cpu_kind_relu = {.open = relu_open, .run = relu_run};
const CpuKind cpu_kind_gelu = {.open = gelu_open, .run = gelu_run};
const CpuKind cpu_kind_add = {.open = alias_open, .run = add_run};
const CpuKind cpu_kind_dropout = {.open = alias_open, .run = dropout_run};
const CpuKind cpu_kind_flatten = {.open = flatten_open, .run = flatten_run};
const CpuKind cpu_kind_delay = {.open = alias_open, .run = delay_run};

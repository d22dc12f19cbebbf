/* cross_entropy. Saved: (max, log of the sum of exponentials) of each target's logits. */
#include <math.h>

#include "gpu/cpu_internal.h"

static int64_t classes(const Op *op) {
    const Shape *shape = &op->in[0]->shape;
    return shape->dims[shape->n_dims - 1];
}

static int64_t targets_per_row(const Op *op) {
    int64_t v = classes(op);
    return v > 0 ? op->in_elements / v : 0;
}

static bool is_ignored(const Op *op, int32_t target) {
    return op->layer->attr.has_ignore && target == op->layer->attr.ignore_index;
}

static int loss_open(Op *op) {
    op->needs.keeps_input[0] = true;
    op->needs.keeps_input[1] = true;
    int64_t n = cpu_max_rows(op) * targets_per_row(op);
    op->needs.saved_bytes = (size_t)n * 2 * sizeof(float);
    op->needs.scratch_bytes = (size_t)n * 3 * sizeof(float);
    return 0;
}

static int check_targets(const Op *op, const OpArgs *args) {
    const int32_t *target = args->x[1];
    int64_t per_row = targets_per_row(op), v = classes(op);
    for (int64_t i = 0; i < args->rows * per_row; i++)
        if (!is_ignored(op, target[i]) && (target[i] < 0 || target[i] >= v))
            return err_set(ERR_ARGUMENT,
                           "layer '%s': target %d at row %lld, position %lld is outside [0, %lld)",
                           op->layer->name, target[i], (long long)(args->first_row + i / per_row),
                           (long long)(i % per_row), (long long)v);
    return 0;
}

/* out: max and log-sum of each target, and whether its logit is the first maximum. */
static void forward(const Op *op, const OpArgs *args, float *out_sums, float *out_correct) {
    const int32_t *target = args->x[1];
    const float *z = args->x[0];
    int64_t v = classes(op), n = args->rows * targets_per_row(op);
    CPU_PARALLEL_FOR(cpu_team(op->device, n * v))
    for (int64_t i = 0; i < n; i++) {
        const float *row = z + i * v;
        float max = 0.0f, sum = 1.0f;
        bool correct = false;
        if (!is_ignored(op, target[i])) {
            op->device->loops->softmax_sums(row, v, &max, &sum);
            correct = row[target[i]] == max && !op->device->loops->has_equal(row, target[i], max);
        }
        out_sums[2 * i] = max;
        out_sums[2 * i + 1] = (float)log((double)sum);
        out_correct[i] = correct ? 1.0f : 0.0f;
    }
}

static int loss_forward(const Op *op, OpPass pass, const OpArgs *args) {
    TRY(check_targets(op, args));
    int64_t v = classes(op), n = args->rows * targets_per_row(op);
    const int32_t *target = args->x[1];
    const float *z = args->x[0];
    float *correct = args->scratch;
    float *sums = pass == OP_FORWARD ? args->saved : correct + n;
    forward(op, args, sums, correct);
    double loss = 0.0;
    int64_t n_valid = 0, n_correct = 0;
    for (int64_t i = 0; i < n; i++) {
        if (is_ignored(op, target[i]))
            continue;
        loss += (double)sums[2 * i + 1] + ((double)sums[2 * i] - (double)z[i * v + target[i]]);
        n_valid++;
        n_correct += correct[i] > 0.0f;
    }
    if (args->loss != NULL) {
        args->loss->loss += loss;
        args->loss->n_valid += n_valid;
        args->loss->n_correct += n_correct;
    }
    return 0;
}

static int loss_backward(const Op *op, const OpArgs *args) {
    TRY(check_targets(op, args));
    int64_t v = classes(op), n = args->rows * targets_per_row(op);
    const int32_t *target = args->x[1];
    const float *z = args->x[0], *sums = args->saved;
    float *dz = args->dx[0];
    float factor = (float)args->loss_scale;
    CPU_PARALLEL_FOR(cpu_team(op->device, n * v))
    for (int64_t i = 0; i < n; i++) {
        float *row = dz + i * v;
        if (is_ignored(op, target[i])) {
            memset(row, 0, (size_t)v * sizeof *row);
            continue;
        }
        op->device->loops->softmax_scaled(row, z + i * v, v, sums[2 * i], sums[2 * i + 1], factor);
        row[target[i]] -= factor;
    }
    return 0;
}

static int loss_run(Op *op, OpPass pass, const OpArgs *args) {
    if (pass == OP_FORWARD || pass == OP_FORWARD_EVAL)
        return loss_forward(op, pass, args);
    if (pass == OP_BACKWARD_INPUT && args->dx[0] != NULL)
        return loss_backward(op, args);
    return 0;
}

const CpuKind cpu_kind_cross_entropy = {.open = loss_open, .run = loss_run, .plain = true};

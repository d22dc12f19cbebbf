/* Whole-tensor helpers and the weight updates. */
#include <math.h>

#include "gpu/cpu_internal.h"

int cpu_op_add(Stream *stream, float *dst, const float *src, int64_t n) {
    cpu_add(stream->device, dst, dst, src, n);
    return 0;
}

int cpu_op_scale(Stream *stream, float *dst, double factor, int64_t n) {
    Device *device = stream->device;
    int64_t n_pieces = cpu_ceil_div(n, CPU_CHUNK);
    CPU_PARALLEL_FOR(cpu_team(device, n))
    for (int64_t i = 0; i < n_pieces; i++)
        device->loops->scale(dst + i * CPU_CHUNK, (float)factor,
                             cpu_min(CPU_CHUNK, n - i * CPU_CHUNK));
    return 0;
}

int cpu_op_square_sum(Stream *stream, const float *src, int64_t n, double *out_sum) {
    enum { BLOCK = 4096, GROUP = 512 };
    Device *device = stream->device;
    double sum = 0.0, parts[GROUP];
    for (int64_t first = 0; first < n; first += (int64_t)BLOCK * GROUP) {
        int64_t count = cpu_min((int64_t)BLOCK * GROUP, n - first);
        int64_t n_blocks = cpu_ceil_div(count, BLOCK);
        CPU_PARALLEL_FOR(cpu_team(device, count))
        for (int64_t i = 0; i < n_blocks; i++)
            parts[i] = device->loops->square_sum(src + first + i * BLOCK,
                                                 cpu_min(BLOCK, count - i * BLOCK));
        for (int64_t i = 0; i < n_blocks; i++)
            sum += parts[i];
    }
    *out_sum = sum;
    return 0;
}

int cpu_op_update_sgd(Stream *stream, const UpdateArgs *args) {
    Device *device = stream->device;
    SgdRule rule = {
        .lr = (float)args->lr,
        .scale = (float)args->scale,
        .momentum = (float)args->momentum,
        .weight_decay = (float)args->weight_decay,
        .nesterov = args->nesterov,
    };
    if (args->momentum != 0.0 && args->m == NULL)
        return err_set(ERR_ARGUMENT, "sgd with momentum needs its state");
    int64_t n = args->n, n_pieces = cpu_ceil_div(n, CPU_CHUNK);
    CPU_PARALLEL_FOR(cpu_team(device, n))
    for (int64_t i = 0; i < n_pieces; i++) {
        int64_t first = i * CPU_CHUNK;
        device->loops->sgd(&rule, args->w + first, args->g + first,
                           args->m != NULL ? args->m + first : NULL, cpu_min(CPU_CHUNK, n - first));
    }
    return 0;
}

int cpu_op_update_adamw(Stream *stream, const UpdateArgs *args) {
    Device *device = stream->device;
    if (args->m == NULL || args->v == NULL || args->t < 1)
        return err_set(ERR_ARGUMENT, "adamw needs its state and an update count from 1");
    double bias1 = 1.0 - pow(args->beta1, (double)args->t);
    double bias2 = 1.0 - pow(args->beta2, (double)args->t);
    AdamRule rule = {
        .scale = (float)args->scale,
        .decay = (float)(1.0 - args->lr * args->weight_decay),
        .beta1 = (float)args->beta1,
        .one_minus_beta1 = (float)(1.0 - args->beta1),
        .beta2 = (float)args->beta2,
        .one_minus_beta2 = (float)(1.0 - args->beta2),
        .step_size = (float)(args->lr / bias1),
        .inv_root_bias2 = (float)(1.0 / sqrt(bias2)),
        .eps = (float)args->eps,
    };
    int64_t n = args->n, n_pieces = cpu_ceil_div(n, CPU_CHUNK);
    CPU_PARALLEL_FOR(cpu_team(device, n))
    for (int64_t i = 0; i < n_pieces; i++) {
        int64_t first = i * CPU_CHUNK;
        device->loops->adamw(&rule, args->w + first, args->g + first, args->m + first,
                             args->v + first, cpu_min(CPU_CHUNK, n - first));
    }
    return 0;
}

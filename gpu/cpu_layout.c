/* Layout of values: (C,H,W) with C a multiple of the block lies blocked, all else plain. */
#include "gpu/cpu_internal.h"

bool cpu_is_blocked(const Device *device, DType dtype, const Shape *shape) {
    return dtype == DTYPE_F32 && shape->n_dims == 3 && shape->dims[0] > 0 &&
           shape->dims[0] % device->loops->block == 0;
}

static void convert(Device *device, const Shape *shape, int64_t rows, void *dst, const void *src,
                    bool to_plain) {
    const CpuLoops *loops = device->loops;
    int64_t hw = shape->dims[1] * shape->dims[2], piece = hw * loops->block;
    int64_t n_pieces = rows * (shape->dims[0] / loops->block);
    float *d = dst;
    const float *s = src;
    CPU_PARALLEL_FOR(cpu_team(device, n_pieces * piece))
    for (int64_t i = 0; i < n_pieces; i++) {
        if (to_plain)
            loops->block_to_plain(d + i * piece, s + i * piece, hw);
        else
            loops->plain_to_block(d + i * piece, s + i * piece, hw);
    }
}

void cpu_to_plain(Device *device, const Shape *shape, int64_t rows, void *plain, const void *src) {
    convert(device, shape, rows, plain, src, true);
}

void cpu_from_plain(Device *device, const Shape *shape, int64_t rows, void *dst,
                    const void *plain) {
    convert(device, shape, rows, dst, plain, false);
}

size_t cpu_value_bytes(const Device *device, DType dtype, const Shape *shape, int64_t rows) {
    (void)device;
    int64_t elements = shape_elements(shape);
    return elements < 0 || rows < 0 ? 0 : (size_t)elements * (size_t)rows * dtype_bytes(dtype);
}

bool cpu_value_is_plain(const Device *device, DType dtype, const Shape *shape) {
    return !cpu_is_blocked(device, dtype, shape);
}

int cpu_value_to_plain(Stream *stream, DType dtype, const Shape *shape, int64_t rows,
                       void *plain_dst, const void *src) {
    if (cpu_is_blocked(stream->device, dtype, shape))
        cpu_to_plain(stream->device, shape, rows, plain_dst, src);
    else
        cpu_copy(stream->device, plain_dst, src,
                 cpu_value_bytes(stream->device, dtype, shape, rows));
    return 0;
}

int cpu_value_from_plain(Stream *stream, DType dtype, const Shape *shape, int64_t rows, void *dst,
                         const void *plain_src) {
    if (cpu_is_blocked(stream->device, dtype, shape))
        cpu_from_plain(stream->device, shape, rows, dst, plain_src);
    else
        cpu_copy(stream->device, dst, plain_src,
                 cpu_value_bytes(stream->device, dtype, shape, rows));
    return 0;
}

/* The CPU device: table, instruction set, memory, streams, and what all ops have in common. */
#include <sys/mman.h>
#include <unistd.h>

#include "core/text.h"
#include "gpu/cpu_internal.h"
#include "gpu/kernels.h"

#ifdef FUNCPIPE_OPENMP
#include <omp.h>
#else
/* oneDNN brings an OpenMP runtime along; its teams obey these. */
int omp_get_max_threads(void) __attribute__((weak));
void omp_set_num_threads(int threads) __attribute__((weak));
#endif

typedef struct CpuIsa {
    const char *name;
    dnnl_cpu_isa_t dnnl;
    const CpuLoops *loops;
} CpuIsa;

/* Best first. */
static const CpuIsa cpu_isas[] = {
    {"avx512_core", dnnl_cpu_isa_avx512_core, &cpu_loops_avx512},
    {"avx2", dnnl_cpu_isa_avx2, &cpu_loops_avx2},
    {"sse41", dnnl_cpu_isa_sse41, &cpu_loops_sse41},
};
enum { CPU_N_ISAS = 3 };

static const CpuKind *const cpu_kinds[LAYER_N_KINDS] = {
    [LAYER_LINEAR] = &cpu_kind_linear,
    [LAYER_CONV2D] = &cpu_kind_conv2d,
    [LAYER_BATCHNORM] = &cpu_kind_batchnorm,
    [LAYER_LAYERNORM] = &cpu_kind_layernorm,
    [LAYER_RELU] = &cpu_kind_relu,
    [LAYER_GELU] = &cpu_kind_gelu,
    [LAYER_ADD] = &cpu_kind_add,
    [LAYER_DROPOUT] = &cpu_kind_dropout,
    [LAYER_MAXPOOL2D] = &cpu_kind_maxpool,
    [LAYER_AVGPOOL2D] = &cpu_kind_avgpool,
    [LAYER_FLATTEN] = &cpu_kind_flatten,
    [LAYER_EMBEDDING] = &cpu_kind_embedding,
    [LAYER_POSITION] = &cpu_kind_position,
    [LAYER_ATTENTION] = &cpu_kind_attention,
    [LAYER_CROSS_ENTROPY] = &cpu_kind_cross_entropy,
    [LAYER_DELAY] = &cpu_kind_delay,
};

static bool machine_has(int isa) {
#if defined(__x86_64__)
    switch (isa) {
    case 0:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case 1:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    default:
        return __builtin_cpu_supports("sse4.1");
    }
#else
    return isa == CPU_N_ISAS - 1;
#endif
}

/* The set oneDNN is limited to; asking fixes it for the rest of the process. */
static int isa_in_force(void) {
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    for (int i = 0; i < CPU_N_ISAS; i++)
        if (((unsigned)isa & (unsigned)cpu_isas[i].dnnl) == (unsigned)cpu_isas[i].dnnl)
            return i;
    return CPU_N_ISAS - 1;
}

static int choose_isa(const char *wanted, int *out_isa) {
    int isa = 0;
    bool automatic = strcmp(wanted, "auto") == 0;
    while (isa < CPU_N_ISAS &&
           !(automatic ? machine_has(isa) : strcmp(wanted, cpu_isas[isa].name) == 0))
        isa++;
    if (isa == CPU_N_ISAS)
        return err_set(automatic ? ERR_UNSUPPORTED : ERR_ARGUMENT,
                       "cpu device: instruction set '%s' is not one of auto, avx512_core, avx2, "
                       "sse41",
                       wanted);
    if (!machine_has(isa))
        return err_set(ERR_UNSUPPORTED, "cpu device: this machine lacks instruction set '%s'",
                       wanted);
    (void)dnnl_set_max_cpu_isa(cpu_isas[isa].dnnl); /* refused once oneDNN has been used */
    int in_force = isa_in_force();
    if (automatic)
        isa = in_force;
    else if (in_force != isa)
        return err_set(ERR_UNSUPPORTED,
                       "cpu device: instruction set '%s' asked for, but this "
                       "process already computes with '%s'",
                       wanted, cpu_isas[in_force].name);
    *out_isa = isa;
    return 0;
}

static void cpu_close(Device *device) {
    if (device == NULL)
        return;
    if (device->stream != NULL)
        dnnl_stream_destroy(device->stream);
    if (device->engine != NULL)
        dnnl_engine_destroy(device->engine);
    free(device);
}

static int cpu_open(const DeviceConfig *config, Device **out_device) {
    if (config->threads < 1 || config->threads > 4096)
        return err_set(ERR_ARGUMENT, "cpu device: %d threads, expected 1 to 4096", config->threads);
    int isa;
    TRY(choose_isa(config->isa != NULL ? config->isa : "auto", &isa));
    Device *device = calloc(1, sizeof *device);
    if (device == NULL)
        return err_set(ERR_MEMORY, "cpu device: no memory");
    device->threads = config->threads;
    device->isa = cpu_isas[isa].name;
    device->loops = cpu_isas[isa].loops;
    device->compute_thread = pthread_self();
    cpu_bind(device);
    dnnl_status_t status = dnnl_engine_create(&device->engine, dnnl_cpu, 0);
    if (status == dnnl_success)
        status = dnnl_stream_create(&device->stream, device->engine, dnnl_stream_default_flags);
    if (status != dnnl_success) {
        cpu_close(device);
        return cpu_dnnl_error(NULL, "engine", status);
    }
    *out_device = device;
    return 0;
}

static const char *cpu_isa(const Device *device) {
    return device->isa;
}

void cpu_bind(const Device *device) {
#ifndef FUNCPIPE_OPENMP
    if (omp_get_max_threads == NULL || omp_set_num_threads == NULL)
        return;
#endif
    if (omp_get_max_threads() != device->threads)
        omp_set_num_threads(device->threads);
}

static int cpu_bind_thread(Device *device) {
    device->compute_thread = pthread_self();
    cpu_bind(device);
    return 0;
}

/* No try again helps. */
static int cpu_too_large(size_t bytes, size_t has_bytes) {
    char need[32], has[32], lack[32];
    size_t lacks = bytes - has_bytes;
    return err_set(
        ERR_INFEASIBLE, "cpu device: %s are needed, the machine has %s: %s too little",
        text_format_bytes(bytes < INT64_MAX ? (int64_t)bytes : INT64_MAX, need, sizeof need),
        text_format_bytes((int64_t)has_bytes, has, sizeof has),
        text_format_bytes(lacks < INT64_MAX ? (int64_t)lacks : INT64_MAX, lack, sizeof lack));
}

/* Memory: 64-byte aligned; large pieces in huge pages where the kernel has them. */
static int cpu_mem_alloc(Device *device, size_t bytes, void **out_mem) {
    (void)device;
    enum { HUGE_BYTES = 2 << 20 };
    size_t align = bytes >= 2 * (size_t)HUGE_BYTES ? HUGE_BYTES : 64;
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page_bytes > 0 && bytes / (size_t)page_bytes > (size_t)pages)
        return cpu_too_large(bytes, (size_t)pages * (size_t)page_bytes);
    size_t rounded = (bytes + align) & ~(align - 1); /* never 0 */
    void *mem = aligned_alloc(align, rounded);
    if (mem == NULL)
        return err_set(ERR_MEMORY, "cpu device: no memory for %zu bytes", bytes);
    if (align == HUGE_BYTES)
        (void)madvise(mem, rounded, MADV_HUGEPAGE); /* a hint */
    memset(mem, 0, rounded);
    *out_mem = mem;
    return 0;
}

static void cpu_mem_free(Device *device, void *mem) {
    (void)device;
    free(mem);
}

static int cpu_stream_open(Device *device, Stream **out_stream) {
    Stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return err_set(ERR_MEMORY, "cpu device: no memory for a stream");
    stream->device = device;
    *out_stream = stream;
    return 0;
}

static void cpu_stream_close(Stream *stream) {
    free(stream);
}

static int cpu_stream_sync(Stream *stream) {
    (void)stream; /* all work is done before its call returns */
    return 0;
}

static int cpu_event_open(Device *device, Event **out_event) {
    Event *event = calloc(1, sizeof *event);
    if (event == NULL)
        return err_set(ERR_MEMORY, "cpu device: no memory for an event");
    event->device = device;
    *out_event = event;
    return 0;
}

static void cpu_event_close(Event *event) {
    free(event);
}

static int cpu_event_record(Event *event, Stream *stream) {
    (void)event, (void)stream;
    return 0;
}

static int cpu_event_sync(Event *event) {
    (void)event;
    return 0;
}

static int cpu_stream_wait(Stream *stream, Event *event) {
    (void)stream, (void)event;
    return 0;
}

static int cpu_stream_copy(Stream *stream, void *dst, const void *src, size_t bytes) {
    cpu_copy(stream->device, dst, src, bytes);
    return 0;
}

static int cpu_fill_zero(Stream *stream, void *dst, size_t bytes) {
    cpu_zero(stream->device, dst, bytes);
    return 0;
}

const DeviceOps *cpu_device_ops(void) {
    static const DeviceOps ops = {
        .name = "cpu",
        .host_memory = true,
        .open = cpu_open,
        .close = cpu_close,
        .isa = cpu_isa,
        .bind_thread = cpu_bind_thread,
        .mem_alloc = cpu_mem_alloc,
        .mem_free = cpu_mem_free,
        .host_alloc = cpu_mem_alloc,
        .host_free = cpu_mem_free,
        .stream_open = cpu_stream_open,
        .stream_close = cpu_stream_close,
        .stream_sync = cpu_stream_sync,
        .event_open = cpu_event_open,
        .event_close = cpu_event_close,
        .event_record = cpu_event_record,
        .event_sync = cpu_event_sync,
        .stream_wait = cpu_stream_wait,
        .copy = cpu_stream_copy,
        .fill_zero = cpu_fill_zero,
        .value_bytes = cpu_value_bytes,
        .value_is_plain = cpu_value_is_plain,
        .value_to_plain = cpu_value_to_plain,
        .value_from_plain = cpu_value_from_plain,
        .op_open = cpu_op_open,
        .op_close = cpu_op_close,
        .op_needs = cpu_op_needs,
        .op_run = cpu_op_run,
        .add = cpu_op_add,
        .scale = cpu_op_scale,
        .square_sum = cpu_op_square_sum,
        .update_sgd = cpu_op_update_sgd,
        .update_adamw = cpu_op_update_adamw,
    };
    return &ops;
}

const CpuKind *cpu_kind_of(LayerKind kind) {
    return (unsigned)kind < LAYER_N_KINDS ? cpu_kinds[kind] : NULL;
}

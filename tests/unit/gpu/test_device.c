/* The device itself: names, instruction sets, memory, layout, rows, accumulation, bits. */
#include <pthread.h>

#include "tests/unit/gpu/op_case.h"

Test(device, unknown_name) {
    const DeviceOps *ops = NULL;
    cr_assert_eq(device_find("tpu", &ops), ERR_UNSUPPORTED);
    cr_assert(strstr(err_text(), "'tpu'") && strstr(err_text(), "cpu"), "%s", err_text());
    cr_assert_null(ops);
    cr_assert_eq(device_align(0), 0);
    cr_assert_eq(device_align(1), 64);
    cr_assert_eq(device_align(64), 64);
}

Test(device, isa_is_pinned_for_the_process) {
    OpCase c;
    case_open_device(&c, "sse41", 1);
    cr_assert_str_eq(c.ops->isa(c.device), "sse41");
    Device *other = NULL;
    DeviceConfig config = {.threads = 1, .isa = "auto"};
    OK(c.ops->open(&config, &other));
    cr_assert_str_eq(c.ops->isa(other), "sse41", "auto takes what is in force");
    c.ops->close(other);
    if (case_has_isa("avx2")) {
        config.isa = "avx2";
        cr_assert_eq(c.ops->open(&config, &other), ERR_UNSUPPORTED);
        cr_assert(strstr(err_text(), "'avx2'") && strstr(err_text(), "'sse41'"), "%s", err_text());
    }
    config.isa = "sse5";
    cr_assert_eq(c.ops->open(&config, &other), ERR_ARGUMENT);
    config.isa = "sse41";
    config.threads = 0;
    cr_assert_eq(c.ops->open(&config, &other), ERR_ARGUMENT);
    c.ops->stream_close(c.stream);
    c.ops->close(c.device);
    c.ops->close(NULL);
}

Test(device, isa_auto_is_the_best) {
    OpCase c;
    case_open_device(&c, "auto", 1);
    const char *want = case_has_isa("avx512_core") ? "avx512_core"
                       : case_has_isa("avx2")      ? "avx2"
                                                   : "sse41";
    cr_assert_str_eq(c.ops->isa(c.device), want);
    c.ops->stream_close(c.stream);
    c.ops->close(c.device);
}

Test(device, memory) {
    OpCase c;
    case_open_device(&c, "auto", 2);
    const size_t bytes[] = {0, 1, 64, 4095, 5 << 20};
    for (int i = 0; i < 5; i++) {
        void *a, *b;
        OK(c.ops->mem_alloc(c.device, bytes[i], &a));
        OK(c.ops->host_alloc(c.device, bytes[i], &b));
        cr_assert_eq((uintptr_t)a % 64, 0);
        for (size_t k = 0; k < bytes[i]; k++)
            cr_assert_eq(((char *)a)[k], 0);
        memset(b, 0x5A, bytes[i]);
        OK(c.ops->copy(c.stream, a, b, bytes[i]));
        OK(c.ops->stream_sync(c.stream));
        cr_assert_eq(memcmp(a, b, bytes[i]), 0);
        OK(c.ops->fill_zero(c.stream, a, bytes[i]));
        for (size_t k = 0; k < bytes[i]; k++)
            cr_assert_eq(((char *)a)[k], 0);
        c.ops->mem_free(c.device, a);
        c.ops->host_free(c.device, b);
    }
    void *none = NULL;
    cr_assert_eq(c.ops->mem_alloc(c.device, SIZE_MAX - 5, &none), ERR_INFEASIBLE);
    cr_assert_eq(c.ops->mem_alloc(c.device, SIZE_MAX / 4, &none), ERR_INFEASIBLE);
    cr_assert(strstr(err_text(), "too little"), "%s", err_text());
    cr_assert_null(none);
    c.ops->mem_free(c.device, NULL);
    Event *event;
    OK(c.ops->event_open(c.device, &event));
    OK(c.ops->event_record(event, c.stream));
    OK(c.ops->event_sync(event));
    OK(c.ops->stream_wait(c.stream, event));
    c.ops->event_close(event);
    c.ops->stream_close(c.stream);
    c.ops->close(c.device);
}

ISA_TEST(device, layout) {
    OpCase c;
    case_open_device(&c, isa, threads);
    const int block = strcmp(isa, "avx512_core") == 0 ? 16 : 8;
    const Shape shapes[] = {shape_1d(16),       shape_2d(16, 4),      shape_3d(16, 3, 5),
                            shape_3d(48, 9, 7), shape_3d(24, 2, 3),   shape_3d(5, 4, 3),
                            shape_3d(16, 1, 1), shape_4d(16, 2, 2, 2)};
    for (int i = 0; i < 8; i++) {
        const Shape *s = &shapes[i];
        int64_t n = shape_elements(s) * 3;
        bool blocked = s->n_dims == 3 && s->dims[0] % block == 0;
        cr_assert_eq(c.ops->value_is_plain(c.device, DTYPE_F32, s), !blocked);
        cr_assert(c.ops->value_is_plain(c.device, DTYPE_I32, s));
        cr_assert_eq(c.ops->value_bytes(c.device, DTYPE_F32, s, 3), (size_t)n * 4);
        float *plain = case_zeros(n, sizeof(float)), *own = case_zeros(n, sizeof(float));
        float *back = case_zeros(n, sizeof(float));
        case_fill(plain, n, 1);
        OK(c.ops->value_from_plain(c.stream, DTYPE_F32, s, 3, own, plain));
        OK(c.ops->value_to_plain(c.stream, DTYPE_F32, s, 3, back, own));
        cr_assert_arr_eq(back, plain, (size_t)n * 4);
        if (!blocked)
            cr_assert_arr_eq(own, plain, (size_t)n * 4);
        int64_t hw = blocked ? s->dims[1] * s->dims[2] : 0, channels = s->dims[0];
        for (int64_t e = 0; blocked && e < n; e++) {
            int64_t r = e / (channels * hw), ch = e / hw % channels, p = e % hw;
            cr_assert_eq(own[((r * (channels / block) + ch / block) * hw + p) * block + ch % block],
                         plain[e]);
        }
        free(plain), free(own), free(back);
    }
    c.ops->stream_close(c.stream);
    c.ops->close(c.device);
}

Test(device, wrong_rows) {
    LayerAttr attr = model_attr_default(LAYER_RELU);
    OpCase c;
    const int32_t variants[] = {2, 5};
    case_open(&c, "auto", 1, LAYER_RELU, shape_1d(3), &attr, 5, variants, 2);
    OpArgs a = case_args(&c, 3);
    cr_assert_eq(c.ops->op_run(c.op, c.stream, OP_FORWARD, &a), ERR_ARGUMENT);
    cr_assert(strstr(err_text(), "3 rows"), "%s", err_text());
    Op *op = NULL;
    const int32_t unordered[] = {5, 2}, zero[] = {0};
    cr_assert_eq(c.ops->op_open(c.device, &c.model, 0, unordered, 2, &op), ERR_ARGUMENT);
    cr_assert_eq(c.ops->op_open(c.device, &c.model, 0, zero, 1, &op), ERR_ARGUMENT);
    cr_assert_eq(c.ops->op_open(c.device, &c.model, 0, variants, 0, &op), ERR_ARGUMENT);
    cr_assert_eq(c.ops->op_open(c.device, &c.model, 1, variants, 1, &op), ERR_ARGUMENT);
    cr_assert_null(op);
    c.ops->op_close(NULL);
    case_close(&c);
}

typedef struct KindCase {
    LayerKind kind;
    Shape in;
} KindCase;

enum { N_KIND_CASES = 17 };
static KindCase kind_case(int i) {
    const KindCase all[N_KIND_CASES] = {
        {LAYER_LINEAR, shape_2d(5, 130)},
        {LAYER_CONV2D, shape_3d(16, 9, 9)},
        {LAYER_CONV2D, shape_3d(3, 9, 9)},
        {LAYER_BATCHNORM, shape_3d(16, 9, 9)},
        {LAYER_BATCHNORM, shape_1d(70)},
        {LAYER_LAYERNORM, shape_2d(5, 130)},
        {LAYER_RELU, shape_3d(16, 5, 5)},
        {LAYER_GELU, shape_1d(500)},
        {LAYER_ADD, shape_1d(500)},
        {LAYER_DROPOUT, shape_3d(16, 5, 5)},
        {LAYER_MAXPOOL2D, shape_3d(16, 8, 8)},
        {LAYER_AVGPOOL2D, shape_3d(16, 5, 5)},
        {LAYER_FLATTEN, shape_3d(16, 5, 5)},
        {LAYER_EMBEDDING, shape_1d(20)},
        {LAYER_POSITION, shape_2d(7, 33)},
        {LAYER_ATTENTION, shape_2d(70, 48)},
        {LAYER_CROSS_ENTROPY, shape_2d(5, 30)},
    };
    return all[i];
}

static LayerAttr kind_attr(LayerKind kind) {
    LayerAttr a = model_attr_default(kind);
    if (kind == LAYER_LINEAR || kind == LAYER_CONV2D || kind == LAYER_EMBEDDING)
        a.features = 48;
    if (kind == LAYER_LINEAR || kind == LAYER_CONV2D)
        a.bias = true;
    if (kind == LAYER_CONV2D || kind == LAYER_MAXPOOL2D) {
        a.kernel = 3;
        a.stride = kind == LAYER_CONV2D ? 1 : 2;
        a.pad = 1;
    }
    if (kind == LAYER_EMBEDDING)
        a.vocab = 30;
    if (kind == LAYER_ATTENTION)
        a.heads = 2;
    if (kind == LAYER_DROPOUT)
        a.p = 0.4f;
    return a;
}

/* Rows 0 writes nothing but zero gradients, and only when it is the first micro-batch. */
Test(device, rows_zero) {
    for (int k = 0; k < N_KIND_CASES; k++) {
        KindCase kc = kind_case(k);
        LayerAttr attr = kind_attr(kc.kind);
        OpCase c;
        case_open(&c, "auto", 2, kc.kind, kc.in, &attr, 2, NULL, 0);
        for (int accumulate = 1; accumulate >= 0; accumulate--) {
            c.accumulate = accumulate;
            OpArgs a = case_args(&c, 0);
            for (int pass = OP_FORWARD; pass <= OP_BACKWARD_WEIGHT; pass++)
                OK(c.ops->op_run(c.op, c.stream, (OpPass)pass, &a));
            for (int i = 0; i < c.n_params; i++)
                for (size_t b = 0; b < c.bdw[i].bytes; b++)
                    cr_assert_eq((unsigned char)c.bdw[i].mem[b], accumulate ? 0xA5 : 0,
                                 "kind %s dw[%d]", layer_kind_name(kc.kind), i);
            const CaseBuf *untouched[] = {&c.by, &c.bdx[0], &c.bdx[1], &c.saved};
            for (int i = 0; i < 4; i++)
                for (size_t b = 0; b < untouched[i]->bytes; b++)
                    cr_assert_eq((unsigned char)untouched[i]->mem[b], 0xA5);
        }
        cr_assert_eq(c.loss.n_valid, 0);
        case_finish(&c);
        for (int i = 0; i < c.n_params; i++)
            for (int64_t e = 0; e < c.param_n[i]; e++)
                cr_assert_eq(c.dw[i][e], 0.0f);
        case_close(&c);
    }
}

/* dw of two micro-batches of different rows = their sum; NULL dw and dx are not written. */
ISA_TEST(device, accumulates) {
    for (int k = 0; k < N_KIND_CASES; k++) {
        KindCase kc = kind_case(k);
        LayerAttr attr = kind_attr(kc.kind);
        const int32_t variants[] = {2, 5};
        OpCase c;
        case_open(&c, isa, threads, kc.kind, kc.in, &attr, 5, variants, 2);
        if (c.n_params == 0) {
            case_close(&c);
            continue;
        }
        float *sum[4];
        case_step(&c, 5);
        for (int i = 0; i < 4; i++) {
            sum[i] = case_zeros(c.param_n[i], sizeof(float));
            if (i < c.n_params)
                memcpy(sum[i], c.dw[i], (size_t)c.param_n[i] * 4);
        }
        case_step(&c, 2);
        for (int i = 0; i < c.n_params; i++)
            for (int64_t e = 0; e < c.param_n[i]; e++)
                sum[i][e] += c.dw[i][e];
        c.accumulate = false;
        case_step(&c, 5);
        c.accumulate = true;
        case_step(&c, 2);
        for (int i = 0; i < c.n_params; i++) {
            double size = case_scale_of(sum[i], c.param_n[i]);
            for (int64_t e = 0; e < c.param_n[i]; e++)
                cr_assert(!!(fabs((double)sum[i][e] - (double)c.dw[i][e]) <= 1e-5 * size),
                          "kind %s dw%d[%lld]: %g, want %g", layer_kind_name(kc.kind), i,
                          (long long)e, (double)c.dw[i][e], (double)sum[i][e]);
        }
        for (int i = 0; i < 4; i++)
            free(sum[i]);
        OpArgs a = case_args(&c, 2);
        memset(a.dx, 0, sizeof a.dx);
        memset(a.dw, 0, sizeof a.dw);
        OK(c.ops->op_run(c.op, c.stream, OP_BACKWARD_INPUT, &a));
        OK(c.ops->op_run(c.op, c.stream, OP_BACKWARD_WEIGHT, &a));
        case_close(&c);
    }
}

static uint64_t hash_floats(uint64_t h, const float *v, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &v[i], 4);
        h = (h ^ u) * 0x100000001B3u;
    }
    return h;
}

static uint64_t run_bits(const char *isa, int threads, KindCase kc, size_t shift) {
    LayerAttr attr = kind_attr(kc.kind);
    OpCase c;
    case_open(&c, isa, threads, kc.kind, kc.in, &attr, 4, NULL, 0);
    void *junk = malloc(shift); /* another heap, another place */
    case_step(&c, 4);
    c.accumulate = true;
    case_step(&c, 4);
    uint64_t h = hash_floats(14695981039346656037u, c.y, 4 * c.out_n);
    for (int i = 0; i < c.n_in; i++)
        h = hash_floats(h, c.dx[i], 4 * c.in_n[i]);
    for (int i = 0; i < c.n_params; i++)
        h = hash_floats(h, c.dw[i], c.param_n[i]);
    double loss = c.loss.loss;
    h ^= (uint64_t)(loss * 1e9);
    free(junk);
    case_close(&c);
    return h;
}

ISA_TEST(device, bits_repeat) {
    for (int k = 0; k < N_KIND_CASES; k++) {
        uint64_t first = run_bits(isa, threads, kind_case(k), 64);
        for (int i = 0; i < 5; i++)
            cr_assert_eq(run_bits(isa, threads, kind_case(k), (size_t)(i + 2) * 4096), first,
                         "kind %s", layer_kind_name(kind_case(k).kind));
    }
}

/* Several workers in one process: each thread has a device of its own, and all get the same bits.
 */
typedef struct Worker {
    pthread_t thread;
    int threads;
    uint64_t bits[N_KIND_CASES];
} Worker;

static void *work(void *arg) {
    Worker *w = arg;
    for (int k = 0; k < N_KIND_CASES; k++)
        w->bits[k] = run_bits("auto", w->threads, kind_case(k), 64);
    return NULL;
}

Test(device, several_at_once) {
    enum { N = 4 };
    Worker alone[2] = {{.threads = 1}, {.threads = 2}}, workers[N] = {0};
    for (int i = 0; i < N; i++) {
        workers[i].threads = 1 + i % 2;
        cr_assert_eq(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < N; i++)
        pthread_join(workers[i].thread, NULL);
    work(&alone[0]);
    work(&alone[1]);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N_KIND_CASES; k++)
            cr_assert_eq(workers[i].bits[k], alone[i % 2].bits[k], "worker %d kind %s", i,
                         layer_kind_name(kind_case(k).kind));
}

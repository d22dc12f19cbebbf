/* Every layer kind and update rule against values of PyTorch 1.13 (tests/golden/make_kernels.py).
 * Tolerance: 2e-5 of the tensor's largest element for values, 5e-5 for gradients; 2e-6 for weights
 * after 5 updates. */
#include "core/json.h"
#include "tests/unit/gpu/op_case.h"

typedef struct Golden {
    cJSON *root;
    float *data;
    size_t n;
} Golden;

static Golden golden_open(void) {
    Golden g;
    const char *folder = FUNCPIPE_SOURCE_DIR "/tests/golden/kernels/";
    char path[512];
    snprintf(path, sizeof path, "%skernels.json", folder);
    OK(json_parse_file(path, 1 << 20, &g.root));
    snprintf(path, sizeof path, "%skernels.bin", folder);
    Buf buf;
    buf_init(&buf, 1 << 20);
    OK(buf_read_file(&buf, path, 1 << 20));
    g.n = buf.bytes / 4;
    g.data = case_zeros((int64_t)g.n, sizeof(float));
    memcpy(g.data, buf.data, g.n * sizeof(float));
    buf_done(&buf);
    return g;
}

static void golden_close(Golden *g) {
    cJSON_Delete(g->root);
    free(g->data);
}

/* NULL: not in this case. */
static const float *tensor(const Golden *g, const cJSON *one, const char *name, int64_t *out_n) {
    const cJSON *at =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(one, "tensors"), name);
    if (at == NULL)
        return NULL;
    size_t first = (size_t)cJSON_GetArrayItem(at, 0)->valuedouble;
    *out_n = (int64_t)cJSON_GetArrayItem(at, 1)->valuedouble;
    cr_assert_leq(first + (size_t)*out_n, g->n);
    return g->data + first;
}

static double number(const cJSON *one, const char *name, double otherwise) {
    const cJSON *v =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(one, "attr"), name);
    return v == NULL ? otherwise : cJSON_IsBool(v) ? cJSON_IsTrue(v) : v->valuedouble;
}

static const char *text(const cJSON *one, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(one, name)->valuestring;
}

static LayerAttr attributes(const cJSON *one, LayerKind kind) {
    LayerAttr a = model_attr_default(kind);
    a.features = (int64_t)number(one, "features", (double)a.features);
    a.vocab = (int64_t)number(one, "vocab", (double)a.vocab);
    a.kernel = (int32_t)number(one, "kernel", a.kernel);
    a.stride = (int32_t)number(one, "stride", a.stride);
    a.pad = (int32_t)number(one, "pad", a.pad);
    a.heads = (int32_t)number(one, "heads", a.heads);
    a.causal = number(one, "causal", a.causal) != 0;
    a.bias = number(one, "bias", a.bias) != 0;
    a.eps = (float)number(one, "eps", (double)a.eps);
    a.momentum = (float)number(one, "momentum", (double)a.momentum);
    a.has_ignore = number(one, "ignore_index", 1e9) < 1e9;
    if (a.has_ignore)
        a.ignore_index = (int32_t)number(one, "ignore_index", 0);
    return a;
}

static void compare(const Golden *g, const cJSON *one, const char *name, const float *got,
                    int64_t n, double tolerance) {
    int64_t want_n;
    const float *want = tensor(g, one, name, &want_n);
    if (want == NULL)
        return;
    cr_assert_eq(n, want_n, "%s %s: %lld elements", text(one, "name"), name, (long long)n);
    double size = case_scale_of(want, n);
    for (int64_t i = 0; i < n; i++)
        cr_assert(!!(fabs((double)got[i] - (double)want[i]) <= tolerance * size),
                  "%s %s[%lld]: %.9g, torch %.9g", text(one, "name"), name, (long long)i,
                  (double)got[i], (double)want[i]);
}

static void load(const Golden *g, const cJSON *one, const char *format, int i, float *out,
                 int64_t n) {
    char name[16];
    snprintf(name, sizeof name, format, i);
    int64_t got;
    const float *from = tensor(g, one, name, &got);
    if (from == NULL)
        return;
    cr_assert_eq(got, n);
    memcpy(out, from, (size_t)n * 4);
}

static void check_loss(OpCase *c, const Golden *g, const cJSON *one, int32_t rows) {
    int64_t n;
    double n_valid = (double)*tensor(g, one, "n_valid", &n);
    c->loss_scale = 1.0 / n_valid;
    case_forward(c, rows, OP_FORWARD);
    case_backward(c, rows);
    float loss = (float)c->loss.loss;
    compare(g, one, "loss", &loss, 1, 1e-6);
    cr_assert_eq((double)c->loss.n_valid, n_valid);
    cr_assert_eq((double)c->loss.n_correct, (double)*tensor(g, one, "n_correct", &n));
}

/* Running statistics after one step, and evaluation with those before it. */
static void check_statistics(OpCase *c, const Golden *g, const cJSON *one, int32_t rows) {
    const double decay = 1 - number(one, "momentum", 0);
    for (int i = 2; i < 4; i++) {
        float after[64];
        for (int64_t e = 0; e < c->param_n[i]; e++)
            after[e] = (float)(decay * (double)c->w[i][e]) + c->dw[i][e];
        compare(g, one, i == 2 ? "after2" : "after3", after, c->param_n[i], 2e-6);
    }
    case_forward(c, rows, OP_FORWARD_EVAL);
    compare(g, one, "eval", c->y, rows * c->out_n, 2e-5);
}

static void check_layer(const Golden *g, const cJSON *one, LayerKind kind, const char *isa,
                        int threads) {
    Shape shape = {0};
    const cJSON *dims = cJSON_GetObjectItemCaseSensitive(one, "shape"), *dim;
    cJSON_ArrayForEach(dim, dims) shape.dims[shape.n_dims++] = (int64_t)dim->valuedouble;
    int32_t rows = (int32_t)cJSON_GetObjectItemCaseSensitive(one, "rows")->valuedouble;
    LayerAttr attr = attributes(one, kind);
    OpCase c;
    case_open(&c, isa, threads, kind, shape, &attr, rows, NULL, 0);
    for (int i = 0; i < c.n_in; i++) {
        load(g, one, "x%d", i, c.x[i], rows * c.in_n[i]);
        if (case_in(&c, i)->dtype == DTYPE_I32)
            for (int64_t e = 0; e < rows * c.in_n[i]; e++)
                c.ids[i][e] = (int32_t)c.x[i][e];
    }
    for (int i = 0; i < c.n_params; i++)
        load(g, one, "w%d", i, c.w[i], c.param_n[i]);
    load(g, one, "dy", 0, c.dy, rows * c.out_n);
    if (kind == LAYER_CROSS_ENTROPY)
        check_loss(&c, g, one, rows);
    else
        case_step(&c, rows);
    if (kind != LAYER_CROSS_ENTROPY)
        compare(g, one, "y", c.y, rows * c.out_n, 2e-5);
    char name[16];
    for (int i = 0; i < c.n_in; i++) {
        snprintf(name, sizeof name, "dx%d", i);
        compare(g, one, name, c.dx[i], rows * c.in_n[i], 5e-5);
    }
    for (int i = 0; i < c.n_params && i < 2; i++) {
        snprintf(name, sizeof name, "dw%d", i);
        compare(g, one, name, c.dw[i], c.param_n[i], 5e-5);
    }
    if (kind == LAYER_BATCHNORM)
        check_statistics(&c, g, one, rows);
    case_close(&c);
}

static void check_update(const Golden *g, const cJSON *one, bool sgd, const char *isa,
                         int threads) {
    OpCase c;
    case_open_device(&c, isa, threads);
    float w[64], m[64] = {0}, v[64] = {0};
    int64_t n;
    memcpy(w, tensor(g, one, "w", &n), sizeof(float) * 37);
    for (int step = 0; step < 5; step++) {
        char name[16];
        snprintf(name, sizeof name, "g%d", step);
        UpdateArgs a = {.w = w,
                        .g = tensor(g, one, name, &n),
                        .m = m,
                        .v = v,
                        .lr = number(one, "lr", 0),
                        .scale = 1,
                        .momentum = number(one, "momentum", 0),
                        .weight_decay = number(one, "weight_decay", 0),
                        .beta1 = number(one, "beta1", 0),
                        .beta2 = number(one, "beta2", 0),
                        .eps = number(one, "eps", 0),
                        .nesterov = number(one, "nesterov", 0) != 0,
                        .t = step + 1};
        a.n = n;
        OK((sgd ? c.ops->update_sgd : c.ops->update_adamw)(c.stream, &a));
        snprintf(name, sizeof name, "w%d", step);
        compare(g, one, name, w, n, 2e-6);
    }
    c.ops->stream_close(c.stream);
    c.ops->close(c.device);
}

static LayerKind kind_named(const char *name) {
    int kind = 0;
    while (kind < LAYER_N_KINDS && strcmp(layer_kind_name((LayerKind)kind), name) != 0)
        kind++;
    return (LayerKind)kind;
}

ISA_TEST(golden, torch) {
    Golden g = golden_open();
    bool seen[LAYER_N_KINDS] = {false};
    const cJSON *one, *cases = cJSON_GetObjectItemCaseSensitive(g.root, "cases");
    cJSON_ArrayForEach(one, cases) {
        const char *name = text(one, "kind");
        if (strcmp(name, "sgd") == 0 || strcmp(name, "adamw") == 0) {
            check_update(&g, one, name[0] == 's', isa, threads);
            continue;
        }
        LayerKind kind = kind_named(name);
        cr_assert_neq(kind, LAYER_N_KINDS, "kind '%s'", name);
        seen[kind] = true;
        check_layer(&g, one, kind, isa, threads);
    }
    for (int kind = 0; kind < LAYER_N_KINDS;
         kind++) /* dropout's words are our own; see pointwise */
        cr_assert(seen[kind] || kind == LAYER_DROPOUT || kind == LAYER_DELAY, "no case of %s",
                  layer_kind_name((LayerKind)kind));
    golden_close(&g);
}

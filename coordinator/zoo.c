#include "coordinator/zoo.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/err.h"
#include "core/text.h"

enum { ZOO_MAX_HIDDEN = 256, ZOO_MAX_WIDTHS = 16, ZOO_MAX_BLOCKS = 256, ZOO_MAX_DEPTH = 1024 };
enum { ZOO_MAX_FEATURES = 1 << 24 };

/* A model under construction. The first failure stays; what follows it does nothing. */
typedef struct Chain {
    Model *model;
    int32_t at; /* the value the next layer reads */
    int rc;
    char prefix[MODEL_NAME_BYTES]; /* of the next layers' names: "h.0." */
} Chain;

__attribute__((format(printf, 2, 3))) static void set_prefix(Chain *chain, const char *format,
                                                             ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(chain->prefix, sizeof chain->prefix, format, args);
    va_end(args);
}

/* Append a layer that reads `inputs`; its output becomes chain->at. */
static void append(Chain *chain, LayerKind kind, const char *name, const int32_t *inputs,
                   int n_inputs, const LayerAttr *attr, const char *tie) {
    char full[2 * MODEL_NAME_BYTES];
    if (chain->rc < 0)
        return;
    snprintf(full, sizeof full, "%s%s", chain->prefix, name);
    chain->rc = model_add(chain->model, kind, full, inputs, n_inputs, attr, tie);
    chain->at = chain->rc;
}

static void next(Chain *chain, LayerKind kind, const char *name, const LayerAttr *attr) {
    int32_t input = chain->at;
    append(chain, kind, name, &input, 1, attr, NULL);
}

static void linear(Chain *chain, const char *name, int64_t features) {
    LayerAttr attr = model_attr_default(LAYER_LINEAR);
    attr.features = features;
    next(chain, LAYER_LINEAR, name, &attr);
}

/* 3x3, without bias as a norm follows */
static void conv(Chain *chain, const char *name, int64_t features, int stride) {
    LayerAttr attr = model_attr_default(LAYER_CONV2D);
    attr.features = features;
    attr.kernel = 3;
    attr.stride = stride;
    attr.pad = 1;
    next(chain, LAYER_CONV2D, name, &attr);
}

static void dropout(Chain *chain, const char *name, double p) {
    LayerAttr attr = model_attr_default(LAYER_DROPOUT);
    attr.p = (float)p;
    if (p > 0)
        next(chain, LAYER_DROPOUT, name, &attr);
}

static void add(Chain *chain, const char *name, int32_t skip) {
    append(chain, LAYER_ADD, name, (int32_t[]){skip, chain->at}, 2, NULL, NULL);
}

/* The loss; the finished model goes to out_model, an unfinished one goes away. */
static int finish(Chain *chain, Model *out_model) {
    chain->prefix[0] = '\0';
    append(chain, LAYER_CROSS_ENTROPY, "loss", (int32_t[]){chain->at, MODEL_VALUE_TARGET}, 2, NULL,
           NULL);
    int rc = chain->rc < 0 ? chain->rc : model_check(chain->model);
    if (rc < 0)
        model_done(chain->model);
    else
        *out_model = *chain->model;
    return rc;
}

static int build_mlp(JsonObject *options, Model *out_model) {
    Shape input = shape_1d(784);
    int64_t hidden[ZOO_MAX_HIDDEN] = {1024, 1024};
    int64_t classes = 10;
    int n_dims = 1;
    int n_hidden = 2;
    TRY(json_opt_i64_array(options, "input", 1, ZOO_MAX_FEATURES, input.dims, SHAPE_MAX_DIMS - 1,
                           &n_dims));
    TRY(json_opt_i64_array(options, "hidden", 1, ZOO_MAX_FEATURES, hidden, ZOO_MAX_HIDDEN,
                           &n_hidden));
    TRY(json_opt_i64(options, "classes", 2, ZOO_MAX_FEATURES, &classes));
    TRY(json_end(options));
    input.n_dims = n_dims;
    Model model;
    TRY(model_init(&model, "mlp", DTYPE_F32, &input, DTYPE_I32, &(Shape){0}));
    Chain chain = {.model = &model, .at = MODEL_VALUE_INPUT};
    if (n_dims > 1)
        next(&chain, LAYER_FLATTEN, "flatten", NULL);
    char name[32];
    for (int i = 0; i < n_hidden; i++) {
        snprintf(name, sizeof name, "fc%d", i + 1);
        linear(&chain, name, hidden[i]);
        snprintf(name, sizeof name, "relu%d", i + 1);
        next(&chain, LAYER_RELU, name, NULL);
    }
    snprintf(name, sizeof name, "fc%d", n_hidden + 1);
    linear(&chain, name, classes);
    return finish(&chain, out_model);
}

static void conv_norm_relu(Chain *chain, int64_t features, int stride) {
    conv(chain, "conv", features, stride);
    next(chain, LAYER_BATCHNORM, "bn", NULL);
    next(chain, LAYER_RELU, "relu", NULL);
}

/* He et al., "Deep residual learning for image recognition", CVPR 2016: the basic block. */
static void residual_block(Chain *chain, int64_t features) {
    int32_t skip = chain->at;
    conv(chain, "conv1", features, 1);
    next(chain, LAYER_BATCHNORM, "bn1", NULL);
    next(chain, LAYER_RELU, "relu1", NULL);
    conv(chain, "conv2", features, 1);
    next(chain, LAYER_BATCHNORM, "bn2", NULL);
    add(chain, "add", skip);
    next(chain, LAYER_RELU, "relu2", NULL);
}

typedef struct CnnOptions {
    int64_t image[3]; /* (C, H, W) */
    int64_t channels[ZOO_MAX_WIDTHS];
    int n_widths;
    int64_t blocks, classes;
    double dropout;
} CnnOptions;

static int parse_cnn(JsonObject *options, CnnOptions *cnn) {
    int n_dims = 3;
    TRY(json_opt_i64_array(options, "image", 1, ZOO_MAX_FEATURES, cnn->image, 3, &n_dims));
    TRY(json_opt_i64_array(options, "channels", 1, ZOO_MAX_FEATURES, cnn->channels, ZOO_MAX_WIDTHS,
                           &cnn->n_widths));
    TRY(json_opt_i64(options, "blocks", 1, ZOO_MAX_BLOCKS, &cnn->blocks));
    TRY(json_opt_i64(options, "classes", 2, ZOO_MAX_FEATURES, &cnn->classes));
    TRY(json_opt_f64(options, "dropout", 0, 0.99, &cnn->dropout));
    TRY(json_end(options));
    if (n_dims != 3)
        return err_set(ERR_ARGUMENT, "%s.image: %d %s, expected 3: channels, height, width",
                       options->path, n_dims, text_plural(n_dims, "dimension", "dimensions"));
    if (cnn->n_widths == 0)
        return err_set(ERR_ARGUMENT, "%s.channels: expected at least one width", options->path);
    return 0;
}

static int build_cnn(JsonObject *options, Model *out_model) {
    CnnOptions cnn = {.image = {1, 28, 28},
                      .channels = {32, 64},
                      .n_widths = 2,
                      .blocks = 1,
                      .classes = 10,
                      .dropout = 0.1};
    TRY(parse_cnn(options, &cnn));
    Shape input = shape_3d(cnn.image[0], cnn.image[1], cnn.image[2]);
    Model model;
    TRY(model_init(&model, "cnn", DTYPE_F32, &input, DTYPE_I32, &(Shape){0}));
    Chain chain = {.model = &model, .at = MODEL_VALUE_INPUT};
    set_prefix(&chain, "stem.");
    conv_norm_relu(&chain, cnn.channels[0], 1);
    next(&chain, LAYER_MAXPOOL2D, "pool", NULL);
    for (int i = 0; i < cnn.n_widths; i++) {
        set_prefix(&chain, "layer%d.down.", i + 1);
        if (i > 0)
            conv_norm_relu(&chain, cnn.channels[i], 2);
        for (int b = 0; b < cnn.blocks; b++) {
            set_prefix(&chain, "layer%d.%d.", i + 1, b);
            residual_block(&chain, cnn.channels[i]);
        }
    }
    set_prefix(&chain, "%s", "");
    next(&chain, LAYER_AVGPOOL2D, "pool", NULL);
    dropout(&chain, "dropout", cnn.dropout);
    linear(&chain, "fc", cnn.classes);
    return finish(&chain, out_model);
}

typedef struct GptOptions {
    int64_t vocab, context, width, heads, depth;
    double dropout;
} GptOptions;

static int parse_gpt(JsonObject *options, GptOptions *gpt) {
    TRY(json_opt_i64(options, "vocab", 2, ZOO_MAX_FEATURES, &gpt->vocab));
    TRY(json_opt_i64(options, "context", 1, 1 << 20, &gpt->context));
    TRY(json_opt_i64(options, "width", 1, 1 << 20, &gpt->width));
    TRY(json_opt_i64(options, "heads", 1, 1 << 16, &gpt->heads));
    TRY(json_opt_i64(options, "depth", 1, ZOO_MAX_DEPTH, &gpt->depth));
    TRY(json_opt_f64(options, "dropout", 0, 0.99, &gpt->dropout));
    TRY(json_end(options));
    if (gpt->width % gpt->heads != 0)
        return err_set(ERR_ARGUMENT, "%s.width: %lld, expected a multiple of the %lld heads",
                       options->path, (long long)gpt->width, (long long)gpt->heads);
    return 0;
}

static void gpt_block(Chain *chain, const GptOptions *gpt) {
    int32_t skip = chain->at;
    LayerAttr attention = model_attr_default(LAYER_ATTENTION);
    attention.heads = (int32_t)gpt->heads;
    next(chain, LAYER_LAYERNORM, "ln_1", NULL);
    linear(chain, "attn.c_attn", 3 * gpt->width);
    next(chain, LAYER_ATTENTION, "attn.heads", &attention);
    linear(chain, "attn.c_proj", gpt->width);
    dropout(chain, "attn.dropout", gpt->dropout);
    add(chain, "add_1", skip);
    skip = chain->at;
    next(chain, LAYER_LAYERNORM, "ln_2", NULL);
    linear(chain, "mlp.c_fc", 4 * gpt->width);
    next(chain, LAYER_GELU, "mlp.gelu", NULL);
    linear(chain, "mlp.c_proj", gpt->width);
    dropout(chain, "mlp.dropout", gpt->dropout);
    add(chain, "add_2", skip);
}

/* Radford et al., "Language models are unsupervised multitask learners", 2019 (GPT-2). */
static int build_gpt(JsonObject *options, Model *out_model) {
    GptOptions gpt = {
        .vocab = 256, .context = 128, .width = 128, .heads = 4, .depth = 4, .dropout = 0.1};
    TRY(parse_gpt(options, &gpt));
    Shape tokens = shape_1d(gpt.context);
    Model model;
    TRY(model_init(&model, "tiny_gpt", DTYPE_I32, &tokens, DTYPE_I32, &tokens));
    Chain chain = {.model = &model, .at = MODEL_VALUE_INPUT};
    LayerAttr embedding = model_attr_default(LAYER_EMBEDDING);
    embedding.vocab = gpt.vocab;
    embedding.features = gpt.width;
    next(&chain, LAYER_EMBEDDING, "wte", &embedding);
    next(&chain, LAYER_POSITION, "wpe", NULL);
    dropout(&chain, "drop", gpt.dropout);
    for (int i = 0; i < gpt.depth; i++) {
        set_prefix(&chain, "h.%d.", i);
        gpt_block(&chain, &gpt);
    }
    set_prefix(&chain, "%s", "");
    next(&chain, LAYER_LAYERNORM, "ln_f", NULL);
    LayerAttr head = model_attr_default(LAYER_LINEAR);
    head.features = gpt.vocab;
    head.bias = false;
    append(&chain, LAYER_LINEAR, "lm_head", (int32_t[]){chain.at}, 1, &head, "wte.weight");
    return finish(&chain, out_model);
}

static const char *const NAMES[] = {"mlp", "cnn", "tiny_gpt"};
static int (*const BUILDERS[])(JsonObject *options, Model *out_model) = {build_mlp, build_cnn,
                                                                         build_gpt};
enum { N_NAMES = sizeof NAMES / sizeof NAMES[0] };

const char *const *zoo_names(int *out_n) {
    *out_n = N_NAMES;
    return NAMES;
}

static int build(int index, const cJSON *options, const char *path, Model *out_model) {
    JsonObject object;
    TRY(json_object(options, path, &object));
    int rc = BUILDERS[index](&object, out_model);
    return rc < 0 ? err_context(rc, "zoo model '%s'", NAMES[index]) : 0;
}

int zoo_build(const char *name, const cJSON *options, const char *path, Model *out_model) {
    int index = 0;
    while (index < N_NAMES && strcmp(name, NAMES[index]) != 0)
        index++;
    if (index == N_NAMES) {
        const char *nearest = text_nearest(name, NAMES, N_NAMES);
        if (nearest)
            return err_set(ERR_NOT_FOUND, "no zoo model is named '%s' (did you mean '%s'?)", name,
                           nearest);
        return err_set(ERR_NOT_FOUND, "no zoo model is named '%s' (there are mlp, cnn, tiny_gpt)",
                       name);
    }
    if (options)
        return build(index, options, path, out_model);
    cJSON *none = cJSON_CreateObject();
    int rc = none ? build(index, none, path, out_model)
                  : err_set(ERR_MEMORY, "no memory for a zoo model's options");
    cJSON_Delete(none);
    return rc;
}

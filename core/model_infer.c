/* The rules of each layer kind: which inputs it takes, the shape it makes, its parameters with
 * their initialisation, and its floating point operations. */
#include "core/model_parts.h"

#include <math.h>
#include <stdio.h>

#include "core/err.h"

static int64_t last_dim(const Shape *shape) {
    return shape->dims[shape->n_dims - 1];
}

static int want(const Value *value, DType dtype, int min_dims, int max_dims, const char *expected) {
    char text[160];
    if (value->dtype != dtype)
        return err_set(ERR_ARGUMENT, "input '%s' is %s, expected %s %s", value->name,
                       dtype_name(value->dtype), dtype_name(dtype), expected);
    if (value->shape.n_dims < min_dims || value->shape.n_dims > max_dims)
        return err_set(ERR_ARGUMENT, "input '%s' has shape %s, expected %s", value->name,
                       shape_format(&value->shape, text, sizeof text), expected);
    return 0;
}

static Param *new_param(LayerMade *made, const char *suffix, Shape shape, InitKind init,
                        float init_scale) {
    Param *param = &made->params[made->n_params++];
    *param = (Param){.shape = shape, .init = init, .init_scale = init_scale};
    snprintf(param->name, sizeof param->name, "%s", suffix);
    return param;
}

/* weight and bias of a layer whose outputs each sum fan_in products. */
static void new_affine(LayerMade *made, Shape weight, int64_t fan_in, bool bias) {
    float bound = (float)(1.0 / sqrt((double)fan_in));
    new_param(made, "weight", weight, INIT_UNIFORM, bound);
    if (bias)
        new_param(made, "bias", shape_1d(weight.dims[0]), INIT_UNIFORM, bound)->no_decay = true;
}

static void new_norm(LayerMade *made, int64_t features, bool statistics) {
    Shape shape = shape_1d(features);
    new_param(made, "weight", shape, INIT_ONES, 0)->no_decay = true;
    new_param(made, "bias", shape, INIT_ZEROS, 0)->no_decay = true;
    if (!statistics)
        return;
    new_param(made, "running_mean", shape, INIT_ZEROS, 0)->role = PARAM_STATISTIC;
    new_param(made, "running_var", shape, INIT_ONES, 0)->role = PARAM_STATISTIC;
    made->params[2].no_decay = made->params[3].no_decay = true;
}

static int infer_linear(const Value *const *in, const LayerAttr *attr, LayerMade *made) {
    TRY(want(in[0], DTYPE_F32, 1, MODEL_MAX_DIMS, "(..., D)"));
    int64_t fan_in = last_dim(&in[0]->shape);
    made->shape = in[0]->shape;
    made->shape.dims[made->shape.n_dims - 1] = attr->features;
    new_affine(made, shape_2d(attr->features, fan_in), fan_in, attr->bias);
    return 0;
}

/* Height and width after a window of attr's kernel, stride and pad. */
static int slide_window(const Value *in, const LayerAttr *attr, Shape *shape) {
    for (int i = 1; i < 3; i++) {
        int64_t room = shape->dims[i] + 2 * (int64_t)attr->pad - attr->kernel;
        char text[160];
        if (room < 0)
            return err_set(
                ERR_ARGUMENT, "kernel %d with pad %d does not fit into input '%s' of shape %s",
                attr->kernel, attr->pad, in->name, shape_format(&in->shape, text, sizeof text));
        shape->dims[i] = room / attr->stride + 1;
    }
    return 0;
}

static int infer_conv2d(const Value *const *in, const LayerAttr *attr, LayerMade *made) {
    TRY(want(in[0], DTYPE_F32, 3, 3, "(C, H, W)"));
    int64_t channels = in[0]->shape.dims[0];
    int64_t kernel = attr->kernel;
    made->shape = in[0]->shape;
    made->shape.dims[0] = attr->features;
    TRY(slide_window(in[0], attr, &made->shape));
    new_affine(made, shape_4d(attr->features, channels, kernel, kernel), channels * kernel * kernel,
               attr->bias);
    return 0;
}

static int infer_batchnorm(const Value *const *in, const LayerAttr *attr, LayerMade *made) {
    (void)attr;
    TRY(want(in[0], DTYPE_F32, 1, 3, "(C, H, W) or (C)"));
    if (in[0]->shape.n_dims == 2)
        return want(in[0], DTYPE_F32, 3, 3, "(C, H, W) or (C)");
    made->shape = in[0]->shape;
    new_norm(made, in[0]->shape.dims[0], true);
    return 0;
}

static int infer_layernorm(const Value *const *in, const LayerAttr *attr, LayerMade *made) {
    (void)attr;
    TRY(want(in[0], DTYPE_F32, 1, MODEL_MAX_DIMS, "(..., D)"));
    made->shape = in[0]->shape;
    new_norm(made, last_dim(&in[0]->shape), false);
    return 0;
}

/* relu, gelu, dropout, delay */
static int infer_same(const Value *const *in, const LayerAttr *attr, LayerMade *made) {
    (void)attr;
    TRY(want(in[0], DTYPE_F32, 1, MODEL_MAX_DIMS, "at least one dimension"));
    made->shape = in[0]->shape;
    return 0;
}

static int infer_add(const Value *const *in, const LayerAttr *attr, LayerMade *made) {
    TRY(infer_same(in, attr, made));
    TRY(want(in[1], DTYPE_F32, 1, MODEL_MAX_DIMS, "at least one dimension"));
    char text[2][160];
    if (!shape_equal(&in[0]->shape, &in[1]->shape))
        return err_set(ERR_ARGUMENT, "inputs '%s' %s and '%s' %s, expected one shape", in[0]->name,
                       shape_format(&in[0]->shape, text[0], sizeof text[0]), in[1]->name,
                       shape_format(&in[1]->shape, text[1], sizeof text[1]));
    return 0;
}

static int infer_maxpool2d(const Value *const *in, const LayerAttr *attr, LayerMade *made) {
    TRY(want(in[0], DTYPE_F32, 3, 3, "(C, H, W)"));
    if (attr->pad > attr->kernel / 2) /* a window must hold at least one element */
        return err_set(ERR_ARGUMENT, "pad is %d, expected at most half the kernel of %d", attr->pad,
                       attr->kernel);
    made->shape = in[0]->shape;
    return slide_window(in[0], attr, &made->shape);
}

static int infer_avgpool2d(const Value *const *in, const LayerAttr *attr, LayerMade *made) {
    (void)attr;
    TRY(want(in[0], DTYPE_F32, 3, 3, "(C, H, W)"));
    made->shape = shape_1d(in[0]->shape.dims[0]);
    return 0;
}

static int infer_flatten(const Value *const *in, const LayerAttr *attr, LayerMade *made) {
    (void)attr;
    TRY(want(in[0], DTYPE_F32, 1, MODEL_MAX_DIMS, "at least one dimension"));
    int64_t elements = shape_elements(&in[0]->shape);
    if (elements < 0)
        return (int)elements;
    made->shape = shape_1d(elements);
    return 0;
}

static int infer_embedding(const Value *const *in, const LayerAttr *attr, LayerMade *made) {
    TRY(want(in[0], DTYPE_I32, 1, 1, "(T)"));
    made->shape = shape_2d(in[0]->shape.dims[0], attr->features);
    new_param(made, "weight", shape_2d(attr->vocab, attr->features), INIT_NORMAL, 0.02F);
    return 0;
}

static int infer_position(const Value *const *in, const LayerAttr *attr, LayerMade *made) {
    (void)attr;
    TRY(want(in[0], DTYPE_F32, 2, 2, "(T, D)"));
    made->shape = in[0]->shape;
    new_param(made, "weight", in[0]->shape, INIT_NORMAL, 0.02F);
    return 0;
}

static int infer_attention(const Value *const *in, const LayerAttr *attr, LayerMade *made) {
    TRY(want(in[0], DTYPE_F32, 2, 2, "(T, 3D)"));
    int64_t width = in[0]->shape.dims[1];
    char text[160];
    if (width % (3 * (int64_t)attr->heads) != 0)
        return err_set(ERR_ARGUMENT,
                       "input '%s' has shape %s, expected (T, 3D) with D a multiple of %d heads",
                       in[0]->name, shape_format(&in[0]->shape, text, sizeof text), attr->heads);
    made->shape = shape_2d(in[0]->shape.dims[0], width / 3);
    return 0;
}

static int infer_cross_entropy(const Value *const *in, const LayerAttr *attr, LayerMade *made) {
    (void)attr;
    TRY(want(in[0], DTYPE_F32, 1, MODEL_MAX_DIMS, "logits (..., V)"));
    if (in[1]->dtype != DTYPE_I32 || in[1]->producer >= 0)
        return err_set(ERR_ARGUMENT, "second input '%s' is %s, expected the I32 value 'target'",
                       in[1]->name, dtype_name(in[1]->dtype));
    Shape expected = in[0]->shape;
    expected.dims[--expected.n_dims] = 0;
    char text[2][160];
    if (!shape_equal(&expected, &in[1]->shape))
        return err_set(ERR_ARGUMENT, "'%s' has shape %s, but the logits '%s' ask for %s",
                       in[1]->name, shape_format(&in[1]->shape, text[0], sizeof text[0]),
                       in[0]->name, shape_format(&expected, text[1], sizeof text[1]));
    if (last_dim(&in[0]->shape) >= MODEL_MAX_DIM)
        return err_set(ERR_LIMIT, "more classes than an I32 target can name");
    made->shape = (Shape){0};
    return 0;
}

typedef struct KindRow {
    int n_inputs;
    int (*infer)(const Value *const *in, const LayerAttr *attr, LayerMade *made);
} KindRow;

static const KindRow KINDS[LAYER_N_KINDS] = {
    [LAYER_LINEAR] = {1, infer_linear},
    [LAYER_CONV2D] = {1, infer_conv2d},
    [LAYER_BATCHNORM] = {1, infer_batchnorm},
    [LAYER_LAYERNORM] = {1, infer_layernorm},
    [LAYER_RELU] = {1, infer_same},
    [LAYER_GELU] = {1, infer_same},
    [LAYER_ADD] = {2, infer_add},
    [LAYER_DROPOUT] = {1, infer_same},
    [LAYER_MAXPOOL2D] = {1, infer_maxpool2d},
    [LAYER_AVGPOOL2D] = {1, infer_avgpool2d},
    [LAYER_FLATTEN] = {1, infer_flatten},
    [LAYER_EMBEDDING] = {1, infer_embedding},
    [LAYER_POSITION] = {1, infer_position},
    [LAYER_ATTENTION] = {1, infer_attention},
    [LAYER_DELAY] = {1, infer_same},
    [LAYER_CROSS_ENTROPY] = {2, infer_cross_entropy},
};

int model_infer_n_inputs(LayerKind kind) {
    return KINDS[kind].n_inputs;
}

int model_infer_check_shape(const char *what, const Shape *shape) {
    if (shape->n_dims < 0 || shape->n_dims > MODEL_MAX_DIMS)
        return err_set(ERR_LIMIT, "%s has %d dimensions, expected at most %d", what, shape->n_dims,
                       MODEL_MAX_DIMS);
    char text[160];
    for (int i = 0; i < shape->n_dims; i++)
        if (shape->dims[i] < 1 || shape->dims[i] > MODEL_MAX_DIM)
            return err_set(ERR_LIMIT, "%s has shape %s, expected dimensions from 1 to 2^31", what,
                           shape_format(shape, text, sizeof text));
    if (shape_elements(shape) < 0)
        return err_context(ERR_LIMIT, "%s", what);
    return 0;
}

int model_infer(LayerKind kind, const Value *const *inputs, const LayerAttr *attr,
                LayerMade *out_made) {
    LayerMade made = {0};
    TRY(KINDS[kind].infer(inputs, attr, &made));
    TRY(model_infer_check_shape("the output", &made.shape));
    for (int32_t i = 0; i < made.n_params; i++)
        TRY(model_infer_check_shape(made.params[i].name, &made.params[i].shape));
    *out_made = made;
    return 0;
}

/* Operations per element of the element-wise kinds; rough, as they are bound by memory. */
static double flops_per_element(LayerKind kind) {
    switch (kind) {
    case LAYER_RELU:
    case LAYER_ADD:
    case LAYER_POSITION:
    case LAYER_AVGPOOL2D:
        return 1;
    case LAYER_DROPOUT:
        return 2;
    case LAYER_CROSS_ENTROPY:
        return 5;
    case LAYER_BATCHNORM:
    case LAYER_LAYERNORM:
        return 8;
    case LAYER_GELU:
        return 10;
    default:
        return 0;
    }
}

double model_layer_forward_flops(const Model *model, int32_t layer) {
    const Layer *l = &model->layers[layer];
    const Shape *in = &model->values[l->inputs[0]].shape;
    double n_in = (double)shape_elements(in);
    double n_out = (double)shape_elements(&model->values[l->output].shape);
    double kernel = (double)l->attr.kernel * l->attr.kernel;
    double length = (double)in->dims[0];
    switch (l->kind) {
    case LAYER_LINEAR:
        return 2 * n_out * (double)last_dim(in);
    case LAYER_CONV2D:
        return 2 * kernel * (double)in->dims[0] * n_out;
    case LAYER_MAXPOOL2D:
        return kernel * n_out;
    case LAYER_ATTENTION: {
        /* q k^T and P v over each head's pairs, and the softmax of every pair */
        double pairs = l->attr.causal ? length * (length + 1) / 2 : length * length;
        return pairs * (4 * n_out / length + 5.0 * l->attr.heads);
    }
    default:
        return flops_per_element(l->kind) * n_in;
    }
}

double model_layer_backward_flops(const Model *model, int32_t layer) {
    const Layer *l = &model->layers[layer];
    double forward = model_layer_forward_flops(model, layer);
    bool input_grad = false;
    for (int32_t i = 0; i < l->n_inputs; i++)
        input_grad |= model->values[l->inputs[i]].needs_grad;
    if (l->kind == LAYER_LINEAR || l->kind == LAYER_CONV2D)
        return input_grad ? 2 * forward : forward; /* the weight's gradient, and the input's */
    if (l->kind == LAYER_ATTENTION)
        return input_grad ? 2 * forward : 0;
    if (l->kind == LAYER_EMBEDDING) /* adds rows to the table's gradient */
        return (double)shape_elements(&model->values[l->output].shape);
    return input_grad || l->n_params > 0 ? forward : 0;
}

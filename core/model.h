/* A Model is a topologically ordered DAG of layers over named values.
 *
 *     values    what flows: value 0 is the input, value 1 the target, then one output per layer
 *     layers    operations; layer i reads values made before it, and makes exactly one
 *     params    named tensors that layers use; several layers may use one (tied)
 *
 * Shapes are per sample: the micro-batch's rows stand in front of every value at run time, so a
 * value of shape (32, 14, 14) is a tensor (rows, 32, 14, 14). Invariant after model_check: layers
 * are in topological order, every value but input and target has one producer, the last layer is
 * the loss. Names are those of PyTorch's modules ("conv1.weight", "bn1.running_mean").
 *
 * JSON form: {"name": "...", "input": {"dtype": "F32", "shape": [784]},
 *   "target": {"dtype": "I32", "shape": []},
 *   "layers": [{"name": "fc1", "kind": "linear", "inputs": ["input"], "features": 1024}, ...]}
 * A layer's output value has the layer's name. "inputs" may be left out: the previous layer. */
#ifndef FUNCPIPE_CORE_MODEL_H
#define FUNCPIPE_CORE_MODEL_H

#include "core/dtype.h"
#include "core/json.h"

enum { MODEL_NAME_BYTES = 96, LAYER_MAX_INPUTS = 4, LAYER_MAX_PARAMS = 4 };
enum { MODEL_MAX_LAYERS = 20000, MODEL_VALUE_INPUT = 0, MODEL_VALUE_TARGET = 1 };

/*    enum, JSON name. Parameters are in role order; shapes per sample; D, C, H, W, T, V sizes.
 *    The formula of each stands in gpu/kernels.h. */
/* clang-format off */
#define LAYER_TABLE(X)                                                                             \
    X(LAYER_LINEAR, "linear")            /* (..., D) -> (..., features); weight (features, D), bias */ \
    X(LAYER_CONV2D, "conv2d")            /* (C,H,W) -> (features,H',W'); weight (features,C,k,k), bias */ \
    X(LAYER_BATCHNORM, "batchnorm")      /* (C,H,W) or (C); weight bias running_mean running_var (C) */ \
    X(LAYER_LAYERNORM, "layernorm")      /* (..., D); weight bias (D) */                           \
    X(LAYER_RELU, "relu")                                                                          \
    X(LAYER_GELU, "gelu")                /* tanh form */                                           \
    X(LAYER_ADD, "add")                  /* two inputs of one shape */                             \
    X(LAYER_DROPOUT, "dropout")          /* p */                                                   \
    X(LAYER_MAXPOOL2D, "maxpool2d")      /* kernel, stride, pad */                                 \
    X(LAYER_AVGPOOL2D, "global_avgpool2d") /* (C,H,W) -> (C) */                                    \
    X(LAYER_FLATTEN, "flatten")          /* (...) -> (product) */                                  \
    X(LAYER_EMBEDDING, "embedding")      /* I32 (T) -> (T,features); weight (vocab,features) */    \
    X(LAYER_POSITION, "position")        /* (T,D) -> (T,D): adds weight (T,D) */                   \
    X(LAYER_ATTENTION, "attention")      /* (T,3D) -> (T,D): heads, causal */                      \
    X(LAYER_CROSS_ENTROPY, "cross_entropy") /* logits (..., V), target I32 (...) -> loss () */     \
    X(LAYER_DELAY, "delay")              /* identity that sleeps: emulated compute */

/* clang-format on */
typedef enum LayerKind {
#define LAYER_ENUM(name, text) name,
    LAYER_TABLE(LAYER_ENUM)
#undef LAYER_ENUM
        LAYER_N_KINDS
} LayerKind;

/* The attributes of all kinds; those a kind does not know are 0. */
typedef struct LayerAttr {
    int64_t features;                /* linear, conv2d, embedding: output features */
    int64_t vocab;                   /* embedding: rows of the table */
    int32_t kernel, stride, pad;     /* conv2d, maxpool2d (square) */
    int32_t heads;                   /* attention */
    bool causal;                     /* attention; default true */
    bool bias;                       /* linear, conv2d; default true (conv2d: false) */
    float p;                         /* dropout: probability to drop, [0, 1) */
    float eps;                       /* batchnorm, layernorm; default 1e-5 */
    float momentum;                  /* batchnorm; default 0.1 */
    int32_t ignore_index;            /* cross_entropy: targets of this value do not count */
    bool has_ignore;                 /* cross_entropy: ignore_index is set */
    int64_t forward_us, backward_us; /* delay, per micro-batch whatever its rows */
} LayerAttr;

typedef struct Value {
    char name[MODEL_NAME_BYTES];
    DType dtype;
    Shape shape;      /* per sample */
    int32_t producer; /* layer, or -1 for input and target */
    bool needs_grad;  /* float, and a parameter stands somewhere above it (or its maker has one) */
    int32_t n_consumers;
} Value;

typedef struct Layer {
    char name[MODEL_NAME_BYTES];
    LayerKind kind;
    int32_t n_inputs;
    int32_t inputs[LAYER_MAX_INPUTS]; /* value ids */
    int32_t output;                   /* value id */
    int32_t n_params;
    int32_t params[LAYER_MAX_PARAMS]; /* param ids, in the kind's role order */
    LayerAttr attr;
} Layer;

typedef enum ParamRole {
    PARAM_WEIGHT,   /* learned: has a gradient and update state */
    PARAM_STATISTIC /* running statistic: moved by its own rule, no gradient (BatchNorm) */
} ParamRole;

typedef enum InitKind { INIT_ZEROS, INIT_ONES, INIT_UNIFORM, INIT_NORMAL } InitKind;

typedef struct Param {
    char name[MODEL_NAME_BYTES];
    Shape shape;
    ParamRole role;
    InitKind init;
    float init_scale; /* uniform: bound; normal: standard deviation */
    bool no_decay;    /* biases and norm weights: no weight decay */
    int32_t n_uses;   /* layers that use it; over 1: tied */
} Param;

typedef struct Model {
    char name[MODEL_NAME_BYTES];
    int32_t n_values, n_layers, n_params;
    Value *values;
    Layer *layers;
    Param *params;
    int32_t cap_values, cap_layers, cap_params;
    int32_t *name_slots; /* hash table over the values' names: value id + 1, 0 where empty */
    int32_t n_name_slots;
} Model;

/* Builder. Values input and target exist after init. */
int model_init(Model *model, const char *name, DType input_dtype, const Shape *input_shape,
               DType target_dtype, const Shape *target_shape);
void model_done(Model *model);
int model_copy(const Model *model, Model *out_model);
/* Append a layer that reads `inputs`; infers its output's shape, creates its parameters with the
 * kind's usual initialisation (PyTorch's: uniform with bound 1/sqrt(fan_in) for linear and conv2d
 * weights and biases, normal(0, 0.02) for embedding and position). `tie_weight`: NULL, or the name
 * of an existing parameter to use as role 0. Returns the output's value id; errors name the layer,
 * the shapes and what was expected. */
int model_add(Model *model, LayerKind kind, const char *name, const int32_t *inputs, int n_inputs,
              const LayerAttr *attr, const char *tie_weight);
/* attr with every kind's defaults. */
LayerAttr model_attr_default(LayerKind kind);
/* The finished model: last layer is the loss, every value is used, and so on; fills needs_grad. */
int model_check(Model *model);

int model_parse(const cJSON *value, const char *path, Model *out_model);
cJSON *model_to_json(const Model *model); /* NULL when out of memory */

const char *layer_kind_name(LayerKind kind);
int32_t model_find_param(const Model *model, const char *name); /* -1: none */
int32_t model_find_value(const Model *model, const char *name); /* -1: none */
int64_t model_param_elements(const Model *model, int32_t param);
/* FLOPs per sample of one layer, multiply and add counted as two (conv: 2*K*K*C*F*H'*W'). */
double model_layer_forward_flops(const Model *model, int32_t layer);
double model_layer_backward_flops(const Model *model, int32_t layer);
uint64_t model_hash(const Model *model); /* over its canonical JSON */

#endif

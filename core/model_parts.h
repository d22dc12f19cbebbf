/* What the files behind model.h share: the rules of each layer kind (model_infer.c) and the table
 * of attributes (model_attr.c). Not for other code. */
#ifndef FUNCPIPE_CORE_MODEL_PARTS_H
#define FUNCPIPE_CORE_MODEL_PARTS_H

#include "core/model.h"

/* Rows stand in front of a value at run time, so a sample may have one dimension less. */
enum { MODEL_MAX_DIMS = SHAPE_MAX_DIMS - 1 };
static const int64_t MODEL_MAX_DIM = (int64_t)1 << 31;

/* What a new layer brings: its output's shape (always F32) and its parameters, whose names are
 * still without the layer's ("weight"). */
typedef struct LayerMade {
    Shape shape;
    int32_t n_params;
    Param params[LAYER_MAX_PARAMS];
} LayerMade;

int model_infer_n_inputs(LayerKind kind);
/* `inputs`: as many values as the kind reads. Errors do not name the layer; the caller does. */
int model_infer(LayerKind kind, const Value *const *inputs, const LayerAttr *attr,
                LayerMade *out_made);
/* Refuse shapes of too many dimensions, dimensions out of [1, 2^31], too many elements. */
int model_infer_check_shape(const char *what, const Shape *shape);

/* Every attribute the kind knows in its range, every other one zero. */
int model_attr_check(LayerKind kind, const LayerAttr *attr);
/* Read the kind's attributes from a layer's object over the defaults; json_end is the caller's. */
int model_attr_parse(LayerKind kind, JsonObject *object, LayerAttr *out_attr);
/* Write all attributes the kind knows; ERR_MEMORY. */
int model_attr_format(LayerKind kind, const LayerAttr *attr, cJSON *object);

#endif

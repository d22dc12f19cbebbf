/* The attributes of the layer kinds: one table gives name, type, range and the kinds that know it,
 * and so the defaults' check, the JSON form and its errors. */
#include "core/model_parts.h"

#include "core/err.h"
#include "core/text.h"

typedef enum AttrType { ATTR_I64, ATTR_I32, ATTR_BOOL, ATTR_F32, ATTR_IGNORE } AttrType;

typedef struct AttrRow {
    const char *name;
    AttrType type;
    bool required; /* in the JSON form */
    size_t offset;
    uint32_t kinds; /* bit k: kind k knows it */
    double min, max;
} AttrRow;

#define BIT(kind) (UINT32_C(1) << (kind))
#define AT(field) offsetof(LayerAttr, field)

static const AttrRow ATTRS[] = {
    {"vocab", ATTR_I64, true, AT(vocab), BIT(LAYER_EMBEDDING), 1, 2147483647.0},
    {"features", ATTR_I64, true, AT(features),
     BIT(LAYER_LINEAR) | BIT(LAYER_CONV2D) | BIT(LAYER_EMBEDDING), 1, 2147483648.0},
    {"kernel", ATTR_I32, true, AT(kernel), BIT(LAYER_CONV2D) | BIT(LAYER_MAXPOOL2D), 1, 4096},
    {"stride", ATTR_I32, false, AT(stride), BIT(LAYER_CONV2D) | BIT(LAYER_MAXPOOL2D), 1, 4096},
    {"pad", ATTR_I32, false, AT(pad), BIT(LAYER_CONV2D) | BIT(LAYER_MAXPOOL2D), 0, 4096},
    {"heads", ATTR_I32, true, AT(heads), BIT(LAYER_ATTENTION), 1, 65536},
    {"causal", ATTR_BOOL, false, AT(causal), BIT(LAYER_ATTENTION), 0, 1},
    {"bias", ATTR_BOOL, false, AT(bias), BIT(LAYER_LINEAR) | BIT(LAYER_CONV2D), 0, 1},
    /* the largest float below 1 */
    {"p", ATTR_F32, true, AT(p), BIT(LAYER_DROPOUT), 0, 0.999999940395355224609375},
    {"eps", ATTR_F32, false, AT(eps), BIT(LAYER_BATCHNORM) | BIT(LAYER_LAYERNORM), 1e-12, 1},
    {"momentum", ATTR_F32, false, AT(momentum), BIT(LAYER_BATCHNORM), 0, 1},
    {"ignore_index", ATTR_IGNORE, false, AT(ignore_index), BIT(LAYER_CROSS_ENTROPY), -2147483648.0,
     2147483647.0},
    {"forward_us", ATTR_I64, false, AT(forward_us), BIT(LAYER_DELAY), 0, 3.6e9},
    {"backward_us", ATTR_I64, false, AT(backward_us), BIT(LAYER_DELAY), 0, 3.6e9},
};
enum { N_ATTRS = sizeof ATTRS / sizeof ATTRS[0] };

LayerAttr model_attr_default(LayerKind kind) {
    LayerAttr attr = {0};
    switch (kind) {
    case LAYER_LINEAR:
        attr.bias = true;
        break;
    case LAYER_CONV2D:
        attr.stride = 1;
        break;
    case LAYER_MAXPOOL2D:
        attr.kernel = 2;
        attr.stride = 2;
        break;
    case LAYER_BATCHNORM:
        attr.eps = 1e-5F;
        attr.momentum = 0.1F;
        break;
    case LAYER_LAYERNORM:
        attr.eps = 1e-5F;
        break;
    case LAYER_DROPOUT:
        attr.p = 0.5F;
        break;
    case LAYER_ATTENTION:
        attr.causal = true;
        break;
    default:
        break;
    }
    return attr;
}

static double attr_get(const AttrRow *row, const LayerAttr *attr) {
    const void *at = (const char *)attr + row->offset;
    switch (row->type) {
    case ATTR_I64:
        return (double)*(const int64_t *)at;
    case ATTR_BOOL:
        return *(const bool *)at ? 1 : 0;
    case ATTR_F32:
        return (double)*(const float *)at;
    case ATTR_I32:
    case ATTR_IGNORE:
        break;
    }
    return (double)*(const int32_t *)at;
}

static void attr_set(const AttrRow *row, LayerAttr *attr, double value) {
    void *at = (char *)attr + row->offset;
    switch (row->type) {
    case ATTR_I64:
        *(int64_t *)at = (int64_t)value;
        break;
    case ATTR_BOOL:
        *(bool *)at = value != 0;
        break;
    case ATTR_F32:
        *(float *)at = (float)value;
        break;
    case ATTR_IGNORE:
        attr->has_ignore = true;
        *(int32_t *)at = (int32_t)value;
        break;
    case ATTR_I32:
        *(int32_t *)at = (int32_t)value;
        break;
    }
}

int model_attr_check(LayerKind kind, const LayerAttr *attr) {
    for (int i = 0; i < N_ATTRS; i++) {
        const AttrRow *row = &ATTRS[i];
        double value = attr_get(row, attr);
        if (!(row->kinds & BIT(kind))) {
            if (value != 0)
                return err_set(ERR_ARGUMENT, "the kind has no attribute '%s'", row->name);
            continue;
        }
        if (row->type == ATTR_IGNORE) {
            if (!attr->has_ignore && value != 0)
                return err_set(ERR_ARGUMENT, "ignore_index %.0f is given, but not has_ignore",
                               value);
            continue;
        }
        double min = row->type == ATTR_F32 ? (double)(float)row->min : row->min;
        if (!(value >= min && value <= row->max)) /* also refuses NaN */
            return err_set(ERR_ARGUMENT, "%s is %.9g, expected %.9g to %.9g", row->name, value,
                           row->min, row->max);
    }
    if (attr->has_ignore && kind != LAYER_CROSS_ENTROPY)
        return err_set(ERR_ARGUMENT, "the kind has no attribute 'ignore_index'");
    return 0;
}

static int parse_one(const AttrRow *row, JsonObject *object, LayerAttr *attr) {
    double value = 0;
    int rc;
    if (row->type == ATTR_BOOL) {
        bool flag = false;
        rc = json_opt_bool(object, row->name, &flag);
        value = flag ? 1 : 0;
    } else if (row->type == ATTR_F32) {
        rc = row->required ? json_get_f64(object, row->name, row->min, row->max, &value)
                           : json_opt_f64(object, row->name, row->min, row->max, &value);
    } else {
        int64_t number = 0;
        int64_t min = (int64_t)row->min;
        int64_t max = (int64_t)row->max;
        rc = row->required ? json_get_i64(object, row->name, min, max, &number)
                           : json_opt_i64(object, row->name, min, max, &number);
        value = (double)number;
    }
    if (rc >= 0 && row->required)
        rc = 1;
    if (rc > 0)
        attr_set(row, attr, value);
    return rc;
}

int model_attr_parse(LayerKind kind, JsonObject *object, LayerAttr *out_attr) {
    LayerAttr attr = model_attr_default(kind);
    for (int i = 0; i < N_ATTRS; i++) {
        const AttrRow *row = &ATTRS[i];
        if (!(row->kinds & BIT(kind)))
            continue;
        TRY(parse_one(row, object, &attr));
        if (kind == LAYER_MAXPOOL2D && row->offset == AT(kernel))
            attr.stride = attr.kernel; /* PyTorch's default */
    }
    *out_attr = attr;
    return 0;
}

int model_attr_format(LayerKind kind, const LayerAttr *attr, cJSON *object) {
    for (int i = 0; i < N_ATTRS; i++) {
        const AttrRow *row = &ATTRS[i];
        if (!(row->kinds & BIT(kind)) || (row->type == ATTR_IGNORE && !attr->has_ignore))
            continue;
        double value = attr_get(row, attr);
        cJSON *made;
        if (row->type == ATTR_BOOL)
            made = cJSON_AddBoolToObject(object, row->name, value != 0);
        else if (row->type == ATTR_F32)
            made = cJSON_AddNumberToObject(object, row->name, text_decimal_f32((float)value));
        else
            made = cJSON_AddNumberToObject(object, row->name, value);
        if (!made)
            return err_set(ERR_MEMORY, "no memory for a model's JSON form");
    }
    return 0;
}

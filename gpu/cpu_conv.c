/* conv2d: oneDNN convolutions on values in the device's layout. Where only its reference code takes
 * that layout, the primitive chooses its own and the values are reordered through scratch. Weights
 * are packed in whatever formats the primitives ask for (OP_PREPARE); all row variants share one
 * gradient format, that of the largest, so that micro-batches of any rows add up (OP_FINISH). */
#include "gpu/cpu_internal.h"

typedef enum ConvPass { CONV_FORWARD, CONV_INPUT, CONV_WEIGHT, CONV_N_PASSES } ConvPass;
enum { CONV_MAX_FORMATS = CONV_N_PASSES * OP_MAX_ROW_VARIANTS };

/* A value beside a primitive: in place, or reordered through scratch. */
typedef struct ConvValue {
    CpuPrim reorder; /* prim NULL: in place */
    size_t bytes;    /* of the reordered copy */
} ConvValue;

typedef struct ConvPrim {
    CpuPrim prim;
    ConvValue x, y;     /* x or dx, y or dy */
    int32_t format;     /* packed weights; -1: plain ones */
    CpuPrim dw_reorder; /* this variant's gradient -> the accumulator's format */
    size_t dw_bytes;    /* of this variant's own gradient format */
} ConvPrim;

typedef struct ConvFormat {
    dnnl_memory_desc_t md;
    CpuPrim reorder; /* from plain */
    size_t offset;   /* in packed */
} ConvFormat;

typedef struct ConvState {
    ConvPrim prims[CONV_N_PASSES][OP_MAX_ROW_VARIANTS];
    int32_t n_formats;
    ConvFormat formats[CONV_MAX_FORMATS];
    dnnl_memory_desc_t plain_w, bias, dw; /* dw: the accumulator's format */
    bool dw_known, dw_packed;
    size_t dw_bytes;
    CpuPrim finish;
} ConvState;

static int value_md(const Op *op, const Shape *shape, int64_t rows, dnnl_memory_desc_t *out_md) {
    dnnl_dims_t dims = {rows, shape->dims[0], shape->dims[1], shape->dims[2]};
    dnnl_format_tag_t tag = dnnl_nchw;
    if (cpu_is_blocked(op->device, DTYPE_F32, shape))
        tag = op->device->loops->block == 16 ? dnnl_nChw16c : dnnl_nChw8c;
    dnnl_status_t status = dnnl_memory_desc_init_by_tag(out_md, 4, dims, dnnl_f32, tag);
    return status == dnnl_success ? 0 : cpu_dnnl_error(op, "value layout", status);
}

static int any_md(const Op *op, const dnnl_memory_desc_t *of, dnnl_memory_desc_t *out_md) {
    dnnl_status_t status =
        dnnl_memory_desc_init_by_tag(out_md, of->ndims, of->dims, dnnl_f32, dnnl_format_tag_any);
    return status == dnnl_success ? 0 : cpu_dnnl_error(op, "layout", status);
}

/* A primitive description, or NULL with the status where oneDNN has none for these layouts. */
static dnnl_status_t describe(const Op *op, const ConvState *state, ConvPass pass,
                              const dnnl_memory_desc_t *x, const dnnl_memory_desc_t *w,
                              const dnnl_memory_desc_t *y, dnnl_primitive_desc_t *out_desc) {
    const LayerAttr *attr = &op->layer->attr;
    dnnl_dims_t strides = {attr->stride, attr->stride}, pads = {attr->pad, attr->pad};
    const dnnl_memory_desc_t *b = op->layer->n_params > 1 ? &state->bias : NULL;
    dnnl_convolution_desc_t conv;
    dnnl_status_t status;
    *out_desc = NULL;
    if (pass == CONV_FORWARD)
        status = dnnl_convolution_forward_desc_init(
            &conv, dnnl_forward_training, dnnl_convolution_direct, x, w, b, y, strides, pads, pads);
    else if (pass == CONV_INPUT)
        status = dnnl_convolution_backward_data_desc_init(&conv, dnnl_convolution_direct, x, w, y,
                                                          strides, pads, pads);
    else
        status = dnnl_convolution_backward_weights_desc_init(&conv, dnnl_convolution_direct, x, w,
                                                             b, y, strides, pads, pads);
    dnnl_primitive_attr_t scratchpad = NULL;
    if (status == dnnl_success)
        status = dnnl_primitive_attr_create(&scratchpad);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(scratchpad, dnnl_scratchpad_mode_user);
    if (status == dnnl_success)
        status = dnnl_primitive_desc_create(out_desc, &conv, scratchpad, op->device->engine, NULL);
    if (scratchpad != NULL)
        dnnl_primitive_attr_destroy(scratchpad);
    return status;
}

/* The best description: known weight format and the values' own layout first, then any weight
 * format, then any layout at all. `known_w` may be NULL. */
static int choose(const Op *op, const ConvState *state, ConvPass pass, const dnnl_memory_desc_t *x,
                  const dnnl_memory_desc_t *y, const dnnl_memory_desc_t *known_w,
                  dnnl_primitive_desc_t *out_desc) {
    dnnl_memory_desc_t any_w, any_x, any_y;
    TRY(any_md(op, &state->plain_w, &any_w));
    TRY(any_md(op, x, &any_x));
    TRY(any_md(op, y, &any_y));
    const dnnl_memory_desc_t *tries[3][3] = {
        {x, known_w, y}, {x, &any_w, y}, {&any_x, &any_w, &any_y}};
    dnnl_primitive_desc_t found = NULL;
    dnnl_status_t status = dnnl_unimplemented;
    for (int i = known_w != NULL ? 0 : 1; i < 3; i++) {
        dnnl_primitive_desc_t desc = NULL;
        status = describe(op, state, pass, tries[i][0], tries[i][1], tries[i][2], &desc);
        if (status != dnnl_success)
            continue;
        if (found != NULL)
            dnnl_primitive_desc_destroy(found);
        found = desc;
        if (!cpu_prim_is_reference(desc))
            break;
    }
    if (found == NULL)
        return cpu_dnnl_error(op, "convolution", status);
    *out_desc = found;
    return 0;
}

/* `own` is the device's layout, `wanted` the primitive's. */
static int open_value(const Op *op, const dnnl_memory_desc_t *own, const dnnl_memory_desc_t *wanted,
                      bool is_result, ConvValue *out) {
    if (dnnl_memory_desc_equal(own, wanted))
        return 0;
    out->bytes = dnnl_memory_desc_get_size(wanted);
    return is_result ? cpu_reorder_open(op, wanted, own, &out->reorder)
                     : cpu_reorder_open(op, own, wanted, &out->reorder);
}

/* The index of weight format `md`, added if new; -1 for the plain one. */
static int open_format(Op *op, ConvState *state, const dnnl_memory_desc_t *md, int32_t *out) {
    *out = -1;
    if (dnnl_memory_desc_equal(md, &state->plain_w))
        return 0;
    for (*out = 0; *out < state->n_formats; ++*out)
        if (dnnl_memory_desc_equal(md, &state->formats[*out].md))
            return 0;
    ConvFormat *format = &state->formats[state->n_formats];
    TRY(cpu_reorder_open(op, &state->plain_w, md, &format->reorder));
    format->md = *md;
    format->offset = op->needs.packed_bytes;
    op->needs.packed_bytes += device_align(dnnl_memory_desc_get_size(md));
    if (op->needs.scratch_bytes < format->reorder.scratch_bytes)
        op->needs.scratch_bytes = format->reorder.scratch_bytes;
    state->n_formats++;
    return 0;
}

/* The gradient's format: the first variant opened (the largest) decides. */
static int open_gradient(Op *op, ConvState *state, ConvPrim *conv, const dnnl_memory_desc_t *md) {
    conv->dw_bytes = device_align(dnnl_memory_desc_get_size(md));
    if (state->dw_known)
        return dnnl_memory_desc_equal(md, &state->dw)
                   ? 0
                   : cpu_reorder_open(op, md, &state->dw, &conv->dw_reorder);
    state->dw = *md;
    state->dw_known = true;
    state->dw_bytes = dnnl_memory_desc_get_size(md);
    state->dw_packed = !dnnl_memory_desc_equal(md, &state->plain_w);
    if (!state->dw_packed)
        return 0;
    op->needs.dw_packed_bytes[0] = state->dw_bytes;
    TRY(cpu_reorder_open(op, &state->dw, &state->plain_w, &state->finish));
    if (op->needs.scratch_bytes < state->finish.scratch_bytes)
        op->needs.scratch_bytes = state->finish.scratch_bytes;
    return 0;
}

/* Scratch of a pass: the primitive's, the values' copies, own and reordered gradient, bias. */
static size_t pass_scratch(const Op *op, const ConvState *state, const ConvPrim *conv) {
    size_t prim = conv->prim.scratch_bytes;
    const CpuPrim *others[] = {&conv->x.reorder, &conv->y.reorder, &conv->dw_reorder};
    for (int i = 0; i < 3; i++)
        if (prim < others[i]->scratch_bytes)
            prim = others[i]->scratch_bytes;
    size_t bytes = device_align(prim) + device_align(conv->x.bytes) + device_align(conv->y.bytes);
    if (conv->dw_bytes > 0)
        bytes += conv->dw_bytes + device_align(state->dw_bytes) +
                 device_align((size_t)op->layer->attr.features * sizeof(float));
    return bytes;
}

static const dnnl_memory_desc_t *query(const ConvPrim *conv, dnnl_query_t what) {
    return dnnl_primitive_desc_query_md(conv->prim.desc, what, 0);
}

static int open_args(Op *op, ConvPass pass, ConvPrim *conv, const dnnl_memory_desc_t *x,
                     const dnnl_memory_desc_t *w, const dnnl_memory_desc_t *y,
                     const dnnl_memory_desc_t *bias) {
    static const int args[CONV_N_PASSES][4] = {
        {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
        {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST, 0},
        {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_BIAS}};
    TRY(cpu_prim_arg(&conv->prim, op, args[pass][0], x));
    TRY(cpu_prim_arg(&conv->prim, op, args[pass][1], w));
    TRY(cpu_prim_arg(&conv->prim, op, args[pass][2], y));
    if (bias != NULL && pass != CONV_INPUT)
        TRY(cpu_prim_arg(&conv->prim, op, args[pass][3], bias));
    return 0;
}

static int open_prim(Op *op, ConvState *state, ConvPass pass, int32_t variant) {
    static const dnnl_query_t queries[CONV_N_PASSES][3] = {
        {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
        {dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
        {dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md}};
    ConvPrim *conv = &state->prims[pass][variant];
    const ConvPrim *largest = &state->prims[pass][op->n_variants - 1];
    dnnl_memory_desc_t x, y;
    TRY(value_md(op, &op->in[0]->shape, op->variants[variant], &x));
    TRY(value_md(op, &op->out->shape, op->variants[variant], &y));
    dnnl_primitive_desc_t desc = NULL;
    TRY(choose(op, state, pass, &x, &y, conv == largest ? NULL : query(largest, queries[pass][1]),
               &desc));
    TRY(cpu_prim_open(op, desc, &conv->prim));
    const dnnl_memory_desc_t *px = query(conv, queries[pass][0]);
    const dnnl_memory_desc_t *pw = query(conv, queries[pass][1]);
    const dnnl_memory_desc_t *py = query(conv, queries[pass][2]);
    TRY(open_args(op, pass, conv, px, pw, py, op->layer->n_params > 1 ? &state->bias : NULL));
    TRY(open_value(op, &x, px, pass == CONV_INPUT, &conv->x));
    TRY(open_value(op, &y, py, pass == CONV_FORWARD, &conv->y));
    if (pass == CONV_WEIGHT)
        TRY(open_gradient(op, state, conv, pw));
    else
        TRY(open_format(op, state, pw, &conv->format));
    size_t scratch = pass_scratch(op, state, conv);
    if (op->needs.scratch_bytes < scratch)
        op->needs.scratch_bytes = scratch;
    return 0;
}

static int conv_open(Op *op) {
    ConvState *state = calloc(1, sizeof *state);
    if (state == NULL)
        return err_set(ERR_MEMORY, "layer '%s': no memory", op->layer->name);
    op->state = state;
    const LayerAttr *attr = &op->layer->attr;
    dnnl_dims_t w = {attr->features, op->in[0]->shape.dims[0], attr->kernel, attr->kernel};
    dnnl_dims_t b = {attr->features};
    dnnl_status_t status = dnnl_memory_desc_init_by_tag(&state->plain_w, 4, w, dnnl_f32, dnnl_oihw);
    if (status == dnnl_success)
        status = dnnl_memory_desc_init_by_tag(&state->bias, 1, b, dnnl_f32, dnnl_a);
    if (status != dnnl_success)
        return cpu_dnnl_error(op, "weight layout", status);
    for (int pass = 0; pass < CONV_N_PASSES; pass++) {
        if (pass == CONV_INPUT && !op->in[0]->needs_grad)
            continue;
        for (int32_t v = op->n_variants - 1; v >= 0; v--)
            TRY(open_prim(op, state, (ConvPass)pass, v));
    }
    op->needs.keeps_input[0] = true;
    return 0;
}

static void conv_close(Op *op) {
    ConvState *state = op->state;
    for (int pass = 0; pass < CONV_N_PASSES; pass++)
        for (int32_t v = 0; v < op->n_variants; v++) {
            ConvPrim *conv = &state->prims[pass][v];
            cpu_prim_close(&conv->prim);
            cpu_prim_close(&conv->x.reorder);
            cpu_prim_close(&conv->y.reorder);
            cpu_prim_close(&conv->dw_reorder);
        }
    for (int32_t i = 0; i < CONV_MAX_FORMATS; i++)
        cpu_prim_close(&state->formats[i].reorder);
    cpu_prim_close(&state->finish);
}

/* The weights as the primitive wants them. */
static const void *weights(const ConvState *state, const ConvPrim *conv, const OpArgs *args) {
    return conv->format < 0 ? args->w[0]
                            : (const char *)args->packed + state->formats[conv->format].offset;
}

/* Where a value lies for the primitive; takes from *next if it is a copy. */
static void *place(const ConvValue *value, const void *own, char **next) {
    if (value->reorder.prim == NULL)
        return (void *)(uintptr_t)own;
    void *copy = *next;
    *next += device_align(value->bytes);
    return copy;
}

/* Scratch behind the primitives' own scratchpad. */
static char *behind_scratchpad(const ConvPrim *conv, const OpArgs *args) {
    size_t bytes = conv->prim.scratch_bytes;
    const CpuPrim *others[] = {&conv->x.reorder, &conv->y.reorder, &conv->dw_reorder};
    for (int i = 0; i < 3; i++)
        if (bytes < others[i]->scratch_bytes)
            bytes = others[i]->scratch_bytes;
    return (char *)args->scratch + device_align(bytes);
}

static int run_forward(Op *op, ConvState *state, const OpArgs *args) {
    ConvPrim *conv = &state->prims[CONV_FORWARD][op->variant];
    char *next = behind_scratchpad(conv, args);
    void *x = place(&conv->x, args->x[0], &next), *y = place(&conv->y, args->y, &next);
    if (x != args->x[0])
        TRY(cpu_reorder_run(&conv->x.reorder, op, args->x[0], x, args->scratch));
    TRY(cpu_prim_set(&conv->prim, DNNL_ARG_SRC, x));
    TRY(cpu_prim_set(&conv->prim, DNNL_ARG_WEIGHTS, weights(state, conv, args)));
    TRY(cpu_prim_set(&conv->prim, DNNL_ARG_DST, y));
    if (op->layer->n_params > 1)
        TRY(cpu_prim_set(&conv->prim, DNNL_ARG_BIAS, args->w[1]));
    TRY(cpu_prim_run(&conv->prim, op, args->scratch));
    if (y != args->y)
        TRY(cpu_reorder_run(&conv->y.reorder, op, y, args->y, args->scratch));
    return 0;
}

static int run_input(Op *op, ConvState *state, const OpArgs *args) {
    ConvPrim *conv = &state->prims[CONV_INPUT][op->variant];
    if (args->dx[0] == NULL)
        return 0;
    if (conv->prim.prim == NULL)
        return err_set(ERR_ARGUMENT, "layer '%s': its input needs no gradient", op->layer->name);
    char *next = behind_scratchpad(conv, args);
    void *dx = place(&conv->x, args->dx[0], &next), *dy = place(&conv->y, args->dy, &next);
    if (dy != args->dy)
        TRY(cpu_reorder_run(&conv->y.reorder, op, args->dy, dy, args->scratch));
    TRY(cpu_prim_set(&conv->prim, DNNL_ARG_DIFF_DST, dy));
    TRY(cpu_prim_set(&conv->prim, DNNL_ARG_WEIGHTS, weights(state, conv, args)));
    TRY(cpu_prim_set(&conv->prim, DNNL_ARG_DIFF_SRC, dx));
    TRY(cpu_prim_run(&conv->prim, op, args->scratch));
    if (dx != args->dx[0])
        TRY(cpu_reorder_run(&conv->x.reorder, op, dx, args->dx[0], args->scratch));
    return 0;
}

/* Written in place for the first micro-batch; the others are computed in scratch and added. */
static int run_weight(Op *op, ConvState *state, const OpArgs *args) {
    ConvPrim *conv = &state->prims[CONV_WEIGHT][op->variant];
    bool bias = op->layer->n_params > 1;
    bool reordered = conv->dw_reorder.prim != NULL;
    char *next = behind_scratchpad(conv, args);
    void *x = place(&conv->x, args->x[0], &next), *dy = place(&conv->y, args->dy, &next);
    char *own = next, *common = own + conv->dw_bytes;
    char *db = common + device_align(state->dw_bytes);
    void *dw_into = args->accumulate || args->dw[0] == NULL ? common : args->dw[0];
    void *db_into = !bias || args->accumulate || args->dw[1] == NULL ? db : args->dw[1];
    if (x != args->x[0])
        TRY(cpu_reorder_run(&conv->x.reorder, op, args->x[0], x, args->scratch));
    if (dy != args->dy)
        TRY(cpu_reorder_run(&conv->y.reorder, op, args->dy, dy, args->scratch));
    TRY(cpu_prim_set(&conv->prim, DNNL_ARG_SRC, x));
    TRY(cpu_prim_set(&conv->prim, DNNL_ARG_DIFF_DST, dy));
    TRY(cpu_prim_set(&conv->prim, DNNL_ARG_DIFF_WEIGHTS, reordered ? own : dw_into));
    if (bias)
        TRY(cpu_prim_set(&conv->prim, DNNL_ARG_DIFF_BIAS, db_into));
    TRY(cpu_prim_run(&conv->prim, op, args->scratch));
    if (reordered)
        TRY(cpu_reorder_run(&conv->dw_reorder, op, own, dw_into, args->scratch));
    if (args->accumulate && args->dw[0] != NULL)
        cpu_add(op->device, args->dw[0], args->dw[0], dw_into,
                (int64_t)(state->dw_bytes / sizeof(float)));
    if (args->accumulate && bias && args->dw[1] != NULL)
        cpu_add(op->device, args->dw[1], args->dw[1], db_into, op->layer->attr.features);
    return 0;
}

static int conv_run(Op *op, OpPass pass, const OpArgs *args) {
    ConvState *state = op->state;
    switch (pass) {
    case OP_PREPARE:
        for (int32_t i = 0; i < state->n_formats; i++)
            TRY(cpu_reorder_run(&state->formats[i].reorder, op, args->w[0],
                                (char *)args->packed + state->formats[i].offset, args->scratch));
        return 0;
    case OP_FORWARD:
    case OP_FORWARD_EVAL:
        return run_forward(op, state, args);
    case OP_BACKWARD_INPUT:
        return run_input(op, state, args);
    case OP_BACKWARD_WEIGHT:
        if (args->dw[0] == NULL && args->dw[1] == NULL)
            return 0;
        return run_weight(op, state, args);
    case OP_FINISH:
        if (!state->dw_packed || args->dw[0] == NULL || args->dw_plain[0] == NULL)
            return 0;
        return cpu_reorder_run(&state->finish, op, args->dw[0], args->dw_plain[0], args->scratch);
    }
    return err_set(ERR_INTERNAL, "layer '%s': unknown pass %d", op->layer->name, (int)pass);
}

const CpuKind cpu_kind_conv2d = {.open = conv_open, .run = conv_run, .close = conv_close};

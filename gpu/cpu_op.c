/* What all ops have in common: row variants, rows 0, and plain copies of blocked values for the
 * kinds that know plain order only. */
#include "gpu/cpu_internal.h"

static size_t input_bytes(const Op *op, int input, int64_t rows) {
    const Value *v = op->in[input];
    return cpu_value_bytes(op->device, v->dtype, &v->shape, rows);
}

static bool input_blocked(const Op *op, int input) {
    return cpu_is_blocked(op->device, op->in[input]->dtype, &op->in[input]->shape);
}

static bool output_blocked(const Op *op) {
    return cpu_is_blocked(op->device, op->out->dtype, &op->out->shape);
}

/* Scratch behind the kind's own, for plain copies of the blocked inputs and the blocked output. */
static void add_convert_scratch(Op *op) {
    size_t bytes = 0;
    int64_t rows = cpu_max_rows(op);
    for (int i = 0; i < op->layer->n_inputs; i++)
        if (input_blocked(op, i))
            bytes += device_align(input_bytes(op, i, rows));
    if (output_blocked(op))
        bytes += device_align(cpu_value_bytes(op->device, op->out->dtype, &op->out->shape, rows));
    op->convert_offset = device_align(op->needs.scratch_bytes);
    if (bytes > 0) {
        op->needs.scratch_bytes = op->convert_offset + bytes;
        op->needs.may_alias = false;
    }
}

static int check_rows(Op *op, const int32_t *rows, int32_t n_rows) {
    if (n_rows < 1 || n_rows > OP_MAX_ROW_VARIANTS)
        return err_set(ERR_ARGUMENT, "layer '%s': %d row variants, expected 1 to %d",
                       op->layer->name, n_rows, OP_MAX_ROW_VARIANTS);
    for (int32_t i = 0; i < n_rows; i++) {
        if (rows[i] < 1 || (i > 0 && rows[i] <= rows[i - 1]))
            return err_set(ERR_ARGUMENT, "layer '%s': row variants must be positive and ascending",
                           op->layer->name);
        op->variants[i] = rows[i];
    }
    op->n_variants = n_rows;
    return 0;
}

int cpu_op_open(Device *device, const Model *model, int32_t layer, const int32_t *rows,
                int32_t n_rows, Op **out_op) {
    if (layer < 0 || layer >= model->n_layers)
        return err_set(ERR_ARGUMENT, "cpu device: layer %d of a model with %d", layer,
                       model->n_layers);
    Op *op = calloc(1, sizeof *op);
    if (op == NULL)
        return err_set(ERR_MEMORY, "cpu device: no memory for an op");
    op->device = device;
    op->model = model;
    op->layer = &model->layers[layer];
    op->index = layer;
    for (int i = 0; i < op->layer->n_inputs; i++)
        op->in[i] = &model->values[op->layer->inputs[i]];
    op->out = &model->values[op->layer->output];
    cpu_bind(device);
    int rc;
    TRY_DONE(check_rows(op, rows, n_rows));
    op->kind = cpu_kind_of(op->layer->kind);
    if (op->kind == NULL) {
        rc = err_set(ERR_UNSUPPORTED, "layer '%s': the cpu device has no kind '%s'",
                     op->layer->name, layer_kind_name(op->layer->kind));
        goto done;
    }
    op->in_elements = shape_elements(&op->in[0]->shape);
    op->out_elements = shape_elements(&op->out->shape);
    if (op->in_elements < 0 || op->out_elements < 0) {
        rc = ERR_LIMIT;
        goto done;
    }
    TRY_DONE(op->kind->open(op));
    if (op->kind->plain)
        add_convert_scratch(op);
    *out_op = op;
    return 0;
done:
    cpu_op_close(op);
    return rc;
}

void cpu_op_close(Op *op) {
    if (op == NULL)
        return;
    if (op->kind != NULL && op->kind->close != NULL && op->state != NULL)
        op->kind->close(op);
    free(op->state);
    free(op);
}

const OpNeeds *cpu_op_needs(const Op *op) {
    return &op->needs;
}

/* Rows 0: nothing to add; what would be written becomes zeros. */
static void zero_gradients(Op *op, OpPass pass, const OpArgs *args) {
    if (args->accumulate || (pass != OP_FORWARD && pass != OP_BACKWARD_WEIGHT))
        return;
    for (int i = 0; i < op->layer->n_params; i++) {
        bool statistic = op->model->params[op->layer->params[i]].role == PARAM_STATISTIC;
        if (args->dw[i] == NULL || statistic != (pass == OP_FORWARD))
            continue;
        size_t bytes = op->needs.dw_packed_bytes[i];
        if (bytes == 0)
            bytes = (size_t)model_param_elements(op->model, op->layer->params[i]) * sizeof(float);
        cpu_zero(op->device, args->dw[i], bytes);
    }
}

/* Run a kind that knows plain order only: blocked x, y, dy, dx live in scratch meanwhile. */
static int run_plain(Op *op, OpPass pass, const OpArgs *args) {
    OpArgs plain = *args;
    char *next = (char *)args->scratch + op->convert_offset;
    char *dx_plain[LAYER_MAX_INPUTS] = {NULL};
    for (int i = 0; i < op->layer->n_inputs; i++) {
        if (!input_blocked(op, i))
            continue;
        /* x and dx of one input share the storage only where the kind does not read x. */
        if (args->x[i] != NULL && pass != OP_BACKWARD_INPUT) {
            cpu_to_plain(op->device, &op->in[i]->shape, args->rows, next, args->x[i]);
            plain.x[i] = next;
        } else if (args->dx[i] != NULL && pass == OP_BACKWARD_INPUT) {
            plain.dx[i] = dx_plain[i] = next;
            if (args->x[i] != NULL) {
                cpu_to_plain(op->device, &op->in[i]->shape, args->rows, next, args->x[i]);
                plain.x[i] = next;
            }
        }
        next += device_align(input_bytes(op, i, cpu_max_rows(op)));
    }
    bool out_blocked = output_blocked(op);
    if (out_blocked && pass >= OP_BACKWARD_INPUT && args->dy != NULL) {
        cpu_to_plain(op->device, &op->out->shape, args->rows, next, args->dy);
        plain.dy = next;
    }
    if (out_blocked && pass < OP_BACKWARD_INPUT)
        plain.y = next;
    TRY(op->kind->run(op, pass, &plain));
    if (out_blocked && pass < OP_BACKWARD_INPUT)
        cpu_from_plain(op->device, &op->out->shape, args->rows, args->y, next);
    for (int i = 0; i < op->layer->n_inputs; i++)
        if (dx_plain[i] != NULL)
            cpu_from_plain(op->device, &op->in[i]->shape, args->rows, args->dx[i], dx_plain[i]);
    return 0;
}

int cpu_op_run(Op *op, Stream *stream, OpPass pass, const OpArgs *args) {
    (void)stream; /* done before the call returns */
    cpu_bind(op->device);
    if (pass == OP_PREPARE || pass == OP_FINISH)
        return op->kind->run(op, pass, args);
    if (args->rows == 0) {
        zero_gradients(op, pass, args);
        return 0;
    }
    op->variant = 0;
    while (op->variant < op->n_variants && op->variants[op->variant] != args->rows)
        op->variant++;
    if (op->variant == op->n_variants)
        return err_set(ERR_ARGUMENT, "layer '%s': opened for no micro-batch of %d rows",
                       op->layer->name, args->rows);
    if (op->kind->plain)
        return run_plain(op, pass, args);
    return op->kind->run(op, pass, args);
}

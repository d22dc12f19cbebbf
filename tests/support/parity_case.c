#include "tests/support/parity_case.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/config.h"
#include "core/err.h"
#include "core/hash.h"
#include "core/rng.h"
#include "core/text.h"
#include "storage/dataset.h"

enum { PARITY_JOB_BYTES = 1 << 20 };

int parity_job_init(SimJob *job, const char *path) {
    JobConfig config;
    memset(job, 0, sizeof *job);
    TRY(config_load(path, NULL, 0, 0, &config));
    int rc = order_copy(&config.order, &job->order);
    config_done(&config);
    TRY(rc);
    Order *order = &job->order;
    order->generation = 1;
    order->end_step = order->n_steps;
    TRY(text_copy(order->relay_url, sizeof order->relay_url, "file:///nowhere"));
    TRY(text_copy(job->schedule, sizeof job->schedule, "1f1b"));
    job->wait_ms = 60000;
    return sim_job_stages(job, 1);
}

/* ---- tensors ---- */

/* Zeroed memory for one more tensor (rows, shape...), or (shape...) where rows is 0. */
__attribute__((format(printf, 6, 7))) static int parity_add(ParityTensors *tensors, DType dtype,
                                                            const Shape *shape, int64_t rows,
                                                            void **out_data,
                                                            const char *name_format, ...) {
    char name[SAFETENSORS_NAME_BYTES];
    va_list args;
    va_start(args, name_format);
    vsnprintf(name, sizeof name, name_format, args);
    va_end(args);
    if (tensors->n == tensors->capacity) {
        int capacity = tensors->capacity * 2 + 64;
        SafetensorsTensor *grown =
            realloc(tensors->tensors, (size_t)capacity * sizeof *tensors->tensors);
        if (grown == NULL) {
            return err_set(ERR_MEMORY, "the list of tensors does not fit into memory");
        }
        tensors->tensors = grown;
        tensors->capacity = capacity;
    }
    Shape full = *shape;
    if (rows > 0) {
        memmove(full.dims + 1, full.dims, (SHAPE_MAX_DIMS - 1) * sizeof full.dims[0]);
        full.dims[0] = rows;
        full.n_dims++;
    }
    char *copy = strdup(name);
    *out_data = calloc((size_t)shape_elements(&full) + 1, dtype_bytes(dtype));
    if (copy == NULL || *out_data == NULL) {
        free(copy);
        free(*out_data);
        return err_set(ERR_MEMORY, "tensor '%s' does not fit into memory", name);
    }
    tensors->tensors[tensors->n++] = (SafetensorsTensor){copy, dtype, full, *out_data};
    return 0;
}

static int parity_add_weights(ParityTensors *tensors, const Order *order) {
    for (int32_t p = 0; p < order->model.n_params; p++) {
        const Param *param = &order->model.params[p];
        const size_t n = (size_t)model_param_elements(&order->model, p);
        void *data;
        TRY(parity_add(tensors, DTYPE_F32, &param->shape, 0, &data, "weight.%s", param->name));
        float *values = data;
        for (size_t i = 0; i < n && param->init == INIT_ONES; i++) {
            values[i] = 1.0F;
        }
        if (param->init == INIT_UNIFORM) {
            rng_fill_uniform(order->seed, param->name, param->init_scale, values, n);
        } else if (param->init == INIT_NORMAL) {
            rng_fill_normal(order->seed, param->name, param->init_scale, values, n);
        }
    }
    return 0;
}

static int parity_add_mask(ParityTensors *tensors, const Order *order, int64_t step,
                           int32_t layer_index) {
    const Layer *layer = &order->model.layers[layer_index];
    const Value *value = &order->model.values[layer->output];
    const int64_t rows = order_batch_rows(order->train_samples, order->batch, step);
    const int64_t n = shape_elements(&value->shape);
    const uint32_t threshold = rng_dropout_threshold(layer->attr.p);
    void *data;
    TRY(parity_add(tensors, DTYPE_U8, &value->shape, rows, &data, "mask.%lld.%s", (long long)step,
                   layer->name));
    for (int64_t row = 0; row < rows; row++) {
        uint8_t *keep = (uint8_t *)data + row * n;
        for (int64_t e = 0; e < n; e++) {
            RngBlock block =
                rng_dropout(order->seed, step, row, layer_index, (uint32_t)((uint64_t)e / 4));
            keep[e] = block.v[e % 4] >= threshold;
        }
    }
    return 0;
}

/* Samples [first, first + rows) of the data set, or those of `step` where step >= 0. */
static int parity_add_batch(ParityTensors *tensors, const Order *order, const Dataset *dataset,
                            int64_t step, int64_t rows, const char *input_name,
                            const char *target_name) {
    const Value *input = &order->model.values[MODEL_VALUE_INPUT];
    const Value *target = &order->model.values[MODEL_VALUE_TARGET];
    const int64_t input_bytes = shape_elements(&input->shape) * (int64_t)dtype_bytes(input->dtype);
    const int64_t n_targets = shape_elements(&target->shape);
    void *inputs, *targets;
    TRY(parity_add(tensors, input->dtype, &input->shape, rows, &inputs, "%s", input_name));
    TRY(parity_add(tensors, DTYPE_I32, &target->shape, rows, &targets, "%s", target_name));
    for (int64_t row = 0; row < rows; row++) {
        int64_t sample = row;
        if (step >= 0) {
            sample = order_sample(order->seed, order->shuffle, order->train_samples, order->batch,
                                  step, row);
        }
        TRY(dataset_read_input(dataset, sample, (char *)inputs + row * input_bytes));
        TRY(dataset_read_target(dataset, sample, (int32_t *)targets + row * n_targets));
    }
    return 0;
}

static int parity_add_steps(ParityTensors *tensors, const Order *order, const Dataset *dataset) {
    for (int64_t step = 0; step < order->n_steps; step++) {
        char input[32], target[32];
        snprintf(input, sizeof input, "input.%lld", (long long)step);
        snprintf(target, sizeof target, "target.%lld", (long long)step);
        const int64_t rows = order_batch_rows(order->train_samples, order->batch, step);
        TRY(parity_add_batch(tensors, order, dataset, step, rows, input, target));
        for (int32_t l = 0; l < order->model.n_layers; l++) {
            if (order->model.layers[l].kind == LAYER_DROPOUT) {
                TRY(parity_add_mask(tensors, order, step, l));
            }
        }
    }
    return 0;
}

int parity_tensors_init(ParityTensors *tensors, const Order *order) {
    Dataset *train = NULL, *eval = NULL;
    int rc = 0;
    memset(tensors, 0, sizeof *tensors);
    TRY_DONE(parity_add_weights(tensors, order));
    TRY_DONE(dataset_open(&order->train, true, true, &train));
    TRY_DONE(parity_add_steps(tensors, order, train));
    if (order->has_eval) {
        TRY_DONE(dataset_open(&order->eval, true, true, &eval));
        TRY_DONE(parity_add_batch(tensors, order, eval, -1, order->eval_samples, "eval.input",
                                  "eval.target"));
    }
done:
    dataset_close(train);
    dataset_close(eval);
    if (rc < 0) {
        parity_tensors_done(tensors);
    }
    return rc;
}

void parity_tensors_done(ParityTensors *tensors) {
    for (int i = 0; i < tensors->n; i++) {
        free((void *)(uintptr_t)tensors->tensors[i].name);
        free((void *)(uintptr_t)tensors->tensors[i].data);
    }
    free(tensors->tensors);
    memset(tensors, 0, sizeof *tensors);
}

int parity_hash(const char *path, const ParityTensors *tensors, char out_hex[17]) {
    HashState *state = NULL;
    Buf text;
    int rc = 0;
    buf_init(&text, PARITY_JOB_BYTES);
    TRY_DONE(buf_read_file(&text, path, PARITY_JOB_BYTES));
    TRY_DONE(hash_open(&state));
    hash_add(state, text.data, text.bytes);
    for (int i = 0; i < tensors->n; i++) {
        const SafetensorsTensor *tensor = &tensors->tensors[i];
        hash_add(state, tensor->name, strlen(tensor->name) + 1);
        hash_add(state, tensor->data,
                 (size_t)shape_elements(&tensor->shape) * dtype_bytes(tensor->dtype));
    }
    snprintf(out_hex, 17, "%016llx", (unsigned long long)hash_value(state));
done:
    hash_close(state);
    buf_done(&text);
    return rc;
}

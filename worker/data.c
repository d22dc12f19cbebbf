#include "worker/data.h"

#include <stdlib.h>
#include <string.h>

#include "core/err.h"

static int data_check_form(const Order *order, const Dataset *dataset, bool want_input,
                           bool want_target, const char *which) {
    DType dtype;
    Shape shape;
    const Value *input = &order->model.values[MODEL_VALUE_INPUT];
    const Value *target = &order->model.values[MODEL_VALUE_TARGET];
    if (want_input) {
        TRY(dataset_input_form(dataset, &dtype, &shape));
        if (dtype != input->dtype || !shape_equal(&shape, &input->shape)) {
            char got[96], expected[96];
            return err_set(ERR_ARGUMENT, "%s data: samples are %s %s, the model's input is %s %s",
                           which, dtype_name(dtype), shape_format(&shape, got, sizeof got),
                           dtype_name(input->dtype),
                           shape_format(&input->shape, expected, sizeof expected));
        }
    }
    if (want_target) {
        TRY(dataset_target_form(dataset, &shape));
        if (!shape_equal(&shape, &target->shape)) {
            char got[96], expected[96];
            return err_set(ERR_ARGUMENT, "%s data: targets are %s, the model's target is %s", which,
                           shape_format(&shape, got, sizeof got),
                           shape_format(&target->shape, expected, sizeof expected));
        }
    }
    return 0;
}

static int data_open_one(const Order *order, const DataSpec *spec, int64_t samples, bool want_input,
                         bool want_target, const char *which, Dataset **out_dataset) {
    TRY(dataset_open(spec, want_input, want_target, out_dataset));
    TRY(data_check_form(order, *out_dataset, want_input, want_target, which));
    if (dataset_samples(*out_dataset) < samples) {
        return err_set(ERR_ARGUMENT, "%s data: %lld samples, the order says %lld", which,
                       (long long)dataset_samples(*out_dataset), (long long)samples);
    }
    return 0;
}

int data_open(Data *data, const Order *order, const Stage *stage) {
    memset(data, 0, sizeof *data);
    data->order = order;
    data->reads_input = stage->reads_input;
    data->reads_target = stage->reads_target;
    const Value *input = &order->model.values[MODEL_VALUE_INPUT];
    const Value *target = &order->model.values[MODEL_VALUE_TARGET];
    data->input_bytes = (size_t)shape_elements(&input->shape) * dtype_bytes(input->dtype);
    data->target_elements = shape_elements(&target->shape);
    data->target_row = calloc((size_t)data->target_elements + 1, sizeof *data->target_row);
    if (data->target_row == NULL) {
        return err_set(ERR_MEMORY, "a sample's targets do not fit into memory");
    }
    if (!stage->reads_input && !stage->reads_target) {
        return 0;
    }
    if (!order->eval_only) {
        TRY(data_open_one(order, &order->train, order->train_samples, stage->reads_input,
                          stage->reads_target, "training", &data->train));
    }
    if (order->has_eval) {
        TRY(data_open_one(order, &order->eval, order->eval_samples, stage->reads_input,
                          stage->reads_target, "evaluation", &data->eval));
    }
    return 0;
}

void data_close(Data *data) {
    if (data == NULL) {
        return;
    }
    dataset_close(data->train);
    dataset_close(data->eval);
    free(data->target_row);
    memset(data, 0, sizeof *data);
}

int data_check(const Data *data, bool eval) {
    const Dataset *dataset = eval ? data->eval : data->train;
    return dataset != NULL ? dataset_check_files(dataset) : 0;
}

MicroPlace data_place(const Order *order, int64_t step, int32_t micro, bool eval) {
    MicroPlace place = {.step = step, .micro = micro, .eval = eval};
    if (eval) {
        int64_t left = order->eval_samples - step * order->batch;
        place.batch_rows = left < order->batch ? (left < 0 ? 0 : left) : order->batch;
    } else {
        place.batch_rows = order_batch_rows(order->train_samples, order->batch, step);
    }
    place.rows =
        order_micro_rows(place.batch_rows, order->plan.micro_rows, micro, &place.first_row);
    return place;
}

static int64_t data_sample(const Data *data, MicroPlace place, int64_t row) {
    const Order *order = data->order;
    if (place.eval) {
        return place.step * order->batch + row;
    }
    return order_sample(order->seed, order->shuffle, order->train_samples, order->batch, place.step,
                        row);
}

int data_load_input(const Data *data, MicroPlace place, void *out) {
    const Dataset *dataset = place.eval ? data->eval : data->train;
    for (int32_t i = 0; i < place.rows; i++) {
        int64_t sample = data_sample(data, place, place.first_row + i);
        TRY(dataset_read_input(dataset, sample, (char *)out + (size_t)i * data->input_bytes));
    }
    return 0;
}

int data_load_target(const Data *data, MicroPlace place, int32_t *out) {
    const Dataset *dataset = place.eval ? data->eval : data->train;
    for (int32_t i = 0; i < place.rows; i++) {
        int64_t sample = data_sample(data, place, place.first_row + i);
        TRY(dataset_read_target(dataset, sample, out + i * data->target_elements));
    }
    return 0;
}

int data_valid_targets(const Data *data, int64_t step, int64_t *out_valid) {
    const Order *order = data->order;
    MicroPlace place = data_place(order, step, 0, false);
    const LayerAttr *loss = &order->model.layers[order->model.n_layers - 1].attr;
    if (!loss->has_ignore) {
        *out_valid = place.batch_rows * data->target_elements;
        return 0;
    }
    int64_t valid = 0;
    for (int64_t row = 0; row < place.batch_rows; row++) {
        TRY(dataset_read_target(data->train, data_sample(data, place, row), data->target_row));
        for (int64_t i = 0; i < data->target_elements; i++) {
            valid += data->target_row[i] != loss->ignore_index;
        }
    }
    *out_valid = valid;
    return 0;
}

/* Data: the micro-batches of this worker's share, straight from the data set. A stage that reads
 * the model's input, or its target, loads just that. Which sample stands in which row of which step
 * is a pure function of (seed, epoch, step), so nothing is remembered between steps. */
#ifndef FUNCPIPE_WORKER_DATA_H
#define FUNCPIPE_WORKER_DATA_H

#include "core/order.h"
#include "core/stage.h"
#include "storage/dataset.h"

/* One micro-batch: rows [first_row, first_row + rows) of the global batch of `step`, or of
 * evaluation batch `step` when eval. */
typedef struct MicroPlace {
    int64_t step;
    int32_t micro;
    int32_t rows;
    int64_t first_row;
    int64_t batch_rows; /* rows of the whole batch */
    bool eval;
} MicroPlace;

typedef struct Data {
    const Order *order;
    Dataset *train, *eval;
    size_t input_bytes;      /* per sample */
    int64_t target_elements; /* per sample */
    bool reads_input, reads_target;
    int32_t *target_row; /* one sample, for counting */
} Data;

int data_open(Data *data, const Order *order, const Stage *stage);
void data_close(Data *data);
/* Is all that was read what was there when the job began? Called before anything is made of it that
 * lasts: an update, a figure of an evaluation. */
int data_check(const Data *data, bool eval);
/* Where micro-batch `micro` of a step lies. */
MicroPlace data_place(const Order *order, int64_t step, int32_t micro, bool eval);
/* Fill `out` with the rows' inputs (plain, in the model's dtype) or targets. */
int data_load_input(const Data *data, MicroPlace place, void *out);
int data_load_target(const Data *data, MicroPlace place, int32_t *out);
/* Targets that count (are not ignore_index) in the whole global batch of `step`. */
int data_valid_targets(const Data *data, int64_t step, int64_t *out_valid);

#endif

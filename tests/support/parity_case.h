/* A parity case: a job of tests/golden/jobs, which PyTorch runs too, from the same weights, batches
 * and dropout masks. All of these are pure functions of the job; here they are made straight from
 * core/rng.h, core/order.h and the data set, without the worker. */
#ifndef FUNCPIPE_TESTS_SUPPORT_PARITY_CASE_H
#define FUNCPIPE_TESTS_SUPPORT_PARITY_CASE_H

#include "core/order.h"
#include "storage/safetensors.h"
#include "tests/support/sim.h"

/* Read a job file into a simulation of one stage. */
int parity_job_init(SimJob *job, const char *path);

/* What a trainer needs beside the job file:
 *     weight.PARAMETER     F32  initial values, running statistics too
 *     input.STEP           F32 or I32 (rows, input...)
 *     target.STEP          I32  (rows, target...)
 *     mask.STEP.LAYER      U8   (rows, value...): 1 keep, 0 drop
 *     eval.input, eval.target   the evaluation data in order */
typedef struct ParityTensors {
    SafetensorsTensor *tensors; /* names and data are owned */
    int n, capacity;
} ParityTensors;

int parity_tensors_init(ParityTensors *tensors, const Order *order);
void parity_tensors_done(ParityTensors *tensors);
/* 16 hexadecimal digits over the job file's bytes and all names and elements: golden curves carry
 * it, so that curves of another job or other numbers are found out. */
int parity_hash(const char *path, const ParityTensors *tensors, char out_hex[17]);

#endif

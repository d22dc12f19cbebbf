/* One worker's part in a sum over n workers, by worker/exchange.h with as many threads as
 * worker/reduce.c gives it, but without a model around it. */
#ifndef FUNCPIPE_TESTS_BENCH_REDUCER_H
#define FUNCPIPE_TESTS_BENCH_REDUCER_H

#include "worker/exchange.h"

enum { REDUCER_MAX_WORKERS = 8, REDUCER_WAIT_MS = 120000 };

typedef struct Reducer {
    Order order; /* Transfers points at it: a Reducer stays where it is */
    const char *url;
    int64_t n_floats;
    Transfers *transfers;
    Exchange *exchange;
} Reducer;

/* Worker `self` of n; `url` is borrowed, the keys are those of `job`. */
int reducer_open(Reducer *reducer, const char *url, const char *job, int n, int self,
                 int64_t n_floats, const ReduceSpec *spec);
void reducer_close(Reducer *reducer);
/* The sum of all workers' gradients; each calls it. */
int reducer_run(Reducer *reducer, int64_t step, const float *gradient, float *out_sum);

#endif

/* Contributions to sums, of numbers where the order of addition shows, and what must come of them.
 */
#ifndef FUNCPIPE_TESTS_SUM_CASES_H
#define FUNCPIPE_TESTS_SUM_CASES_H

#include "storage/blob.h"

typedef struct SumCase {
    unsigned char *data; /* free it */
    size_t bytes;
} SumCase;

/* The two tensors of a case with n_elements together. */
void sum_case_form(size_t n_elements, BlobTensor out_tensors[2]);
SumCase sum_case_part(const char *key, int index, size_t n_elements); /* contribution `index` */
SumCase sum_case_sum(const char *key, int n, size_t n_elements);      /* what n of them make */
/* Contributions first..end-1 added up, sealed under whatever key. */
SumCase sum_case_blob(const char *sealed_under, int first, int end, size_t n_elements);

/* The next order of 0..n-1 after the one in `order`; false behind the last. */
bool sum_case_next_order(int *order, int n);

#endif

/* Sum: contributions 0..n-1 become one object. A contribution is a blob of f32 tensors sealed under
 * key_part(key, index); all have one form. The object is a blob of the same tensors sealed under
 * the key, each element ((c0 + c1) + c2) + ... in f32: in the order of the indices, whatever order
 * they came in, and contribution 0 as it is when n = 1. (Where two NaNs meet, a NaN comes out;
 * which one's bits is the processor's choice, as in any addition.)
 *
 * What has come in order is added up at once: the prefix. What came early is held until its turn,
 * up to a bound; beyond it only the next contribution is taken, so that the sum always goes on.
 *
 * No I/O, no locks: the memory relay and the Redis module keep one Sum a key, the file relay makes
 * one when all contributions are there. */
#ifndef FUNCPIPE_STORAGE_SUM_H
#define FUNCPIPE_STORAGE_SUM_H

#include "core/buf.h"
#include "core/reduction.h"
#include "storage/key.h"

enum { SUM_MAX_PARTS = REDUCE_MAX_ADDED };
#define SUM_MAX_PART_BYTES ((size_t)256 << 20) /* of one contribution */
#define SUM_MAX_HELD_BYTES ((size_t)256 << 20) /* of what came early, usually */

/* What all contributions to a sum have in common. */
typedef struct SumForm {
    int n; /* contributions */
    int n_tensors;
    size_t bytes;  /* of a contribution, and of the sum */
    uint64_t hash; /* of what describes the tensors */
} SumForm;

/* ERR_ARGUMENT unless n is 1..SUM_MAX_PARTS, index 0..n-1 and the key short enough for key_part;
 * ERR_LIMIT when a contribution of `bytes` is too large. Names the key. */
int sum_check_place(const char *key, int index, int n, size_t bytes);
/* Check a contribution by itself: ERR_CORRUPT names key and reason. */
int sum_check(const char *key, int index, int n, const void *blob, size_t bytes, SumForm *out_form);
/* ERR_CORRUPT unless contribution `index`, of form `form`, fits the first one that came. */
int sum_check_form(const char *key, int index, const SumForm *form, const SumForm *first);

typedef struct SumMemory { /* where it comes from; NULL instead of one: malloc and free */
    void *(*allocate)(size_t bytes);
    void (*release)(void *memory);
} SumMemory;

typedef struct Sum Sum;
/* An empty sum. `memory` is borrowed until the close. */
int sum_open(const char *key, int n, size_t max_held_bytes, const SumMemory *memory, Sum **out_sum);
void sum_close(Sum *sum); /* NULL is fine */
/* Count contribution `index` of n in: 0, or 1 when it was there already (not looked at, then). The
 * blob is borrowed for the call and needs no alignment. ERR_CORRUPT as above; ERR_FULL: too much is
 * held already, come again when more of what is before it is there. An error changes nothing. */
int sum_add(Sum *sum, int index, int n, const void *blob, size_t bytes);
bool sum_complete(const Sum *sum);
/* Would counting in contribution `index`, 0 <= index < n, take more memory for good? */
bool sum_grows(const Sum *sum, int index);
size_t sum_bytes(const Sum *sum); /* of memory in use */

/* What is added up so far, sealed under the key: the object when the sum is complete. Empty before
 * contribution 0. Borrowed, until the next sum_add. *out_n (when not NULL): contributions in it. */
Slice sum_prefix(Sum *sum, int *out_n);
/* Contribution `index` as it came, when it is held; else empty. */
Slice sum_held(const Sum *sum, int index);
int sum_n(const Sum *sum); /* contributions there will be */
const char *sum_key(const Sum *sum);
/* A sum that goes on from a prefix of n_added contributions, 0 < n_added < n. */
int sum_resume(const char *key, int n, int n_added, const void *prefix, size_t bytes,
               size_t max_held_bytes, const SumMemory *memory, Sum **out_sum);

#endif

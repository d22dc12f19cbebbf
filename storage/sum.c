#include "storage/sum.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/hash.h"
#include "storage/blob.h"

enum { DESCRIBED_FROM = 32 }; /* in a blob, see blob.h */

struct Sum {
    SumMemory memory;
    SumForm form; /* bytes 0: nothing came yet */
    size_t begin; /* of elements in a blob */
    size_t max_held_bytes;
    int n_added, n_held;
    unsigned char *prefix; /* of form.bytes bytes; NULL before contribution 0 */
    char key[RELAY_KEY_BYTES];
    unsigned char *held[]; /* (form.n) NULL: not here, or added */
};

/* ---- contributions by themselves ---- */

int sum_check_place(const char *key, int index, int n, size_t bytes) {
    if (strnlen(key, RELAY_KEY_BYTES) >= RELAY_KEY_BYTES - KEY_PART_BYTES)
        return err_set(ERR_ARGUMENT, "the key '%.60s...' of a sum is longer than %d characters",
                       key, RELAY_KEY_BYTES - 1 - KEY_PART_BYTES);
    if (n < 1 || n > SUM_MAX_PARTS)
        return err_set(ERR_ARGUMENT, "the sum '%s' of %d contributions (1 to %d)", key, n,
                       SUM_MAX_PARTS);
    if (index < 0 || index >= n)
        return err_set(ERR_ARGUMENT, "contribution %d to the sum '%s' of %d (0 to %d)", index, key,
                       n, n - 1);
    if (bytes > SUM_MAX_PART_BYTES)
        return err_set(ERR_LIMIT, "contribution %d to the sum '%s' has %zu bytes (at most %zu)",
                       index, key, bytes, SUM_MAX_PART_BYTES);
    return 0;
}

static int check_blob(int n, const char *sealed_under, const void *blob, size_t bytes,
                      SumForm *out_form, size_t *out_begin) {
    int n_tensors = 0;
    TRY(blob_check_all(blob, bytes, sealed_under, DTYPE_F32, &n_tensors, out_begin));
    uint64_t hash =
        hash_bytes((const unsigned char *)blob + DESCRIBED_FROM, *out_begin - DESCRIBED_FROM);
    *out_form = (SumForm){.n = n, .n_tensors = n_tensors, .bytes = bytes, .hash = hash};
    return 0;
}

static int check_part(const char *key, int index, int n, const void *blob, size_t bytes,
                      SumForm *out_form, size_t *out_begin) {
    int rc = check_blob(n, key_part(key, index).text, blob, bytes, out_form, out_begin);
    return rc < 0 ? err_context(rc, "contribution %d to the sum '%s'", index, key) : 0;
}

int sum_check(const char *key, int index, int n, const void *blob, size_t bytes,
              SumForm *out_form) {
    size_t begin = 0;
    TRY(sum_check_place(key, index, n, bytes));
    return check_part(key, index, n, blob, bytes, out_form, &begin);
}

static int check_n(const char *key, int index, int n, int first_n) {
    return n == first_n ? 0
                        : err_set(ERR_CORRUPT,
                                  "contribution %d to the sum '%s' is one of %d, the first one was "
                                  "one of %d",
                                  index, key, n, first_n);
}

int sum_check_form(const char *key, int index, const SumForm *form, const SumForm *first) {
    TRY(check_n(key, index, form->n, first->n));
    if (form->n_tensors != first->n_tensors || form->bytes != first->bytes)
        return err_set(ERR_CORRUPT,
                       "contribution %d to the sum '%s' has another form than the first one: %d "
                       "tensors in %zu bytes, not %d in %zu",
                       index, key, form->n_tensors, form->bytes, first->n_tensors, first->bytes);
    if (form->hash != first->hash)
        return err_set(ERR_CORRUPT,
                       "contribution %d to the sum '%s' has tensors of other shapes than the first "
                       "one",
                       index, key);
    return 0;
}

/* ---- a sum ---- */

int sum_open(const char *key, int n, size_t max_held_bytes, const SumMemory *memory,
             Sum **out_sum) {
    static const SumMemory usual = {malloc, free};
    memory = memory ? memory : &usual;
    TRY(sum_check_place(key, 0, n, 0));
    size_t bytes = sizeof(Sum) + (size_t)n * sizeof(unsigned char *);
    Sum *sum = memory->allocate(bytes);
    if (!sum)
        return err_set(ERR_MEMORY, "the sum '%s' of %d contributions", key, n);
    memset(sum, 0, bytes);
    sum->memory = *memory;
    sum->form.n = n;
    sum->max_held_bytes = max_held_bytes;
    memcpy(sum->key, key, strlen(key) + 1);
    *out_sum = sum;
    return 0;
}

void sum_close(Sum *sum) {
    if (!sum)
        return;
    for (int i = 0; i < sum->form.n; i++) {
        if (sum->held[i])
            sum->memory.release(sum->held[i]);
    }
    if (sum->prefix)
        sum->memory.release(sum->prefix);
    sum->memory.release(sum);
}

static unsigned char *copy_of(const Sum *sum, const void *blob, size_t bytes) {
    unsigned char *copy = sum->memory.allocate(bytes);
    if (copy)
        memcpy(copy, blob, bytes);
    else
        err_set(ERR_MEMORY, "a contribution of %zu bytes to the sum '%s'", bytes, sum->key);
    return copy;
}

/* The elements of a blob, and the zeros between its tensors, onto those of the prefix. */
static void add_up(const Sum *sum, const unsigned char *blob) {
    float *restrict to = (float *)(void *)(sum->prefix + sum->begin);
    const unsigned char *restrict from = blob + sum->begin;
    size_t n = (sum->form.bytes - sum->begin) / sizeof(float);
    for (size_t i = 0; i < n; i++) {
        float more; /* perhaps not aligned */
        memcpy(&more, from + i * sizeof more, sizeof more);
        to[i] += more;
    }
}

/* What is held and now next. */
static void add_held(Sum *sum) {
    while (sum->n_added < sum->form.n && sum->held[sum->n_added]) {
        add_up(sum, sum->held[sum->n_added]);
        sum->memory.release(sum->held[sum->n_added]);
        sum->held[sum->n_added++] = NULL;
        sum->n_held--;
    }
}

static int hold(Sum *sum, int index, const void *blob, size_t bytes) {
    size_t held_bytes = (size_t)sum->n_held * bytes;
    if (held_bytes + bytes > sum->max_held_bytes)
        return err_set(ERR_FULL,
                       "contribution %d to the sum '%s' is too early: contribution %d has not come "
                       "and %d later ones are held",
                       index, sum->key, sum->n_added, sum->n_held);
    sum->held[index] = copy_of(sum, blob, bytes);
    if (!sum->held[index])
        return ERR_MEMORY;
    sum->n_held++;
    return 0;
}

int sum_add(Sum *sum, int index, int n, const void *blob, size_t bytes) {
    SumForm form = {0};
    size_t begin = 0;
    TRY(sum_check_place(sum->key, index, n, bytes));
    TRY(check_n(sum->key, index, n, sum->form.n));
    if (index < sum->n_added || sum->held[index])
        return 1;
    TRY(check_part(sum->key, index, n, blob, bytes, &form, &begin));
    if (sum->form.bytes > 0)
        TRY(sum_check_form(sum->key, index, &form, &sum->form));
    if (index > sum->n_added) {
        TRY(hold(sum, index, blob, bytes));
    } else if (index == 0) {
        sum->prefix = copy_of(sum, blob, bytes);
        if (!sum->prefix)
            return ERR_MEMORY;
    }
    sum->form = form;
    sum->begin = begin;
    if (index == sum->n_added) {
        if (index > 0)
            add_up(sum, blob);
        sum->n_added++;
        add_held(sum);
    }
    return 0;
}

bool sum_complete(const Sum *sum) {
    return sum->n_added == sum->form.n;
}

bool sum_grows(const Sum *sum, int index) {
    if (index < sum->n_added || sum->held[index])
        return false; /* counted already */
    return index > sum->n_added || (index == 0 && (sum->form.n == 1 || !sum->held[1]));
}

size_t sum_bytes(const Sum *sum) {
    size_t n_blobs = (size_t)sum->n_held + (sum->prefix != NULL);
    return sizeof *sum + (size_t)sum->form.n * sizeof sum->held[0] + n_blobs * sum->form.bytes;
}

/* ---- taking apart and going on ---- */

Slice sum_prefix(Sum *sum, int *out_n) {
    if (out_n)
        *out_n = sum->n_added;
    if (!sum->prefix)
        return (Slice){NULL, 0};
    blob_reseal(sum->prefix, sum->form.bytes, sum->key);
    return (Slice){sum->prefix, sum->form.bytes};
}

Slice sum_held(const Sum *sum, int index) {
    assert(index >= 0 && index < sum->form.n);
    return sum->held[index] ? (Slice){sum->held[index], sum->form.bytes} : (Slice){NULL, 0};
}

int sum_n(const Sum *sum) {
    return sum->form.n;
}

const char *sum_key(const Sum *sum) {
    return sum->key;
}

int sum_resume(const char *key, int n, int n_added, const void *prefix, size_t bytes,
               size_t max_held_bytes, const SumMemory *memory, Sum **out_sum) {
    Sum *sum = NULL;
    SumForm form = {0};
    size_t begin = 0;
    int rc = 0;
    TRY(sum_open(key, n, max_held_bytes, memory, &sum));
    if (n_added < 1 || n_added >= n)
        TRY_DONE(err_set(ERR_CORRUPT, "the sum '%s' of %d goes on from %d", key, n, n_added));
    TRY_DONE(sum_check_place(key, 0, n, bytes));
    TRY_DONE(check_blob(n, key, prefix, bytes, &form, &begin));
    sum->prefix = copy_of(sum, prefix, bytes);
    if (!sum->prefix)
        TRY_DONE(ERR_MEMORY);
    sum->form = form;
    sum->begin = begin;
    sum->n_added = n_added;
    *out_sum = sum;
    return 0;
done:
    sum_close(sum);
    return rc;
}

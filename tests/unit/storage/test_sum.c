/* Sums: in the order of the indices whatever order they come in, bit for bit, and nothing else is
 * taken. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/hash.h"
#include "storage/blob.h"
#include "storage/sum.h"
#include "tests/support/sum_cases.h"

#define KEY "job/g1/t0/r.0"
enum { N_TENSORS = 3, MAX_N = 8 };

static const BlobTensor forms[N_TENSORS] = {
    {DTYPE_F32, {2, {3, 5}}}, {DTYPE_F32, {1, {0}}}, {DTYPE_F32, {1, {1021}}}};

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Element i of contribution `index`: numbers of very different sizes, so that the order shows;
 * among them zeros of both signs, denormals, infinities, and a NaN at most once an element. */
static float element(int index, size_t i) {
    uint64_t at[2] = {(uint64_t)index, i};
    uint64_t hash = hash_bytes(at, sizeof at);
    uint32_t mantissa = (uint32_t)(hash >> 32) & 0x807FFFFFU;
    if (i % 97 == 5)
        return -0.0F;
    if (i % 97 == 6)
        return index % 2 ? 0.0F : -0.0F;
    if (i % 97 == 7)
        return from_bits(mantissa); /* denormal */
    if (i % 97 == 8)
        return index == 1 ? INFINITY : 1.0F;
    if (i % 97 == 9)
        return index == 2 ? from_bits(0x7FC12345) : 1.0F;
    if (i % 97 == 10)
        return from_bits(0x7F7FFFFF); /* two of them overflow */
    return from_bits(mantissa | (uint32_t)(107 + hash % 41) << 23);
}

static size_t layout(const BlobTensor *tensors, int n, size_t *offsets) {
    int64_t total = blob_layout(tensors, n, offsets);
    cr_assert_gt(total, 0, "%s", err_text());
    return (size_t)total;
}

/* A contribution on a place of its own, `shift` bytes from an aligned one. Free what *out_memory
 * is. */
static unsigned char *part(const char *key, int index, const BlobTensor *tensors, int n_tensors,
                           size_t shift, void **out_memory, size_t *out_bytes) {
    size_t offsets[N_TENSORS];
    size_t bytes = layout(tensors, n_tensors, offsets);
    unsigned char *blob = malloc(bytes);
    unsigned char *memory = malloc(bytes + shift);
    size_t at = 0;
    for (int t = 0; t < n_tensors; t++) {
        for (int64_t i = 0; i < shape_elements(&tensors[t].shape); i++) {
            float value = element(index, at++);
            memcpy(blob + offsets[t] + 4 * (size_t)i, &value, 4);
        }
    }
    blob_seal(blob, key_part(key, index).text, tensors, n_tensors);
    memcpy(memory + shift, blob, bytes);
    free(blob);
    *out_memory = memory;
    *out_bytes = bytes;
    return memory + shift;
}

static int add_part(Sum *sum, int index, int n) {
    void *memory = NULL;
    size_t bytes = 0;
    unsigned char *blob =
        part(KEY, index, forms, N_TENSORS, (size_t)index % 5 + 1, &memory, &bytes);
    int rc = sum_add(sum, index, n, blob, bytes);
    free(memory);
    return rc;
}

/* The sum of the first n, by the book. */
static void expect_sum(Sum *sum, int n) {
    size_t offsets[N_TENSORS];
    size_t bytes = layout(forms, N_TENSORS, offsets);
    int n_added = 0;
    Slice sealed = sum_prefix(sum, &n_added);
    const unsigned char *got = sealed.data;
    cr_assert_eq(n_added, n);
    cr_assert_eq(sealed.bytes, bytes);
    cr_assert_eq(blob_check(got, bytes, KEY, forms, N_TENSORS), 0, "%s", err_text());
    size_t at = 0;
    for (int t = 0; t < N_TENSORS; t++) {
        for (int64_t i = 0; i < shape_elements(&forms[t].shape); i++, at++) {
            float expected = element(0, at);
            for (int c = 1; c < n; c++)
                expected = expected + element(c, at);
            cr_assert(memcmp(got + offsets[t] + 4 * (size_t)i, &expected, 4) == 0,
                      "tensor %d, element %lld of %d contributions", t, (long long)i, n);
        }
    }
}

Test(sum, all_orders) {
    int n_orders = 0;
    for (int n = 1; n <= 5; n++) {
        int order[MAX_N] = {0, 1, 2, 3, 4};
        do {
            Sum *sum = NULL;
            cr_assert_eq(sum_open(KEY, n, SUM_MAX_HELD_BYTES, NULL, &sum), 0, "%s", err_text());
            for (int i = 0; i < n; i++) {
                cr_assert_not(sum_complete(sum));
                cr_assert_eq(add_part(sum, order[i], n), 0, "%s", err_text());
                cr_assert_eq(add_part(sum, order[i / 2], n), 1);
            }
            cr_assert(sum_complete(sum));
            expect_sum(sum, n);
            sum_close(sum);
            n_orders++;
        } while (sum_case_next_order(order, n));
    }
    cr_expect_eq(n_orders, 1 + 2 + 6 + 24 + 120);
}

Test(sum, the_first_content_stays) {
    Sum *sum = NULL;
    void *memory = NULL;
    size_t bytes = 0;
    cr_assert_eq(sum_open(KEY, 2, SUM_MAX_HELD_BYTES, NULL, &sum), 0);
    cr_assert_eq(add_part(sum, 1, 2), 0);
    unsigned char *other = part(KEY, 1, forms, N_TENSORS, 0, &memory, &bytes);
    memset(other + bytes - 8, 0x3F, 8);
    blob_reseal(other, bytes, key_part(KEY, 1).text);
    cr_expect_eq(sum_add(sum, 1, 2, other, bytes), 1);
    cr_expect_eq(sum_add(sum, 1, 2, "", 0), 1, "what is there already is not looked at");
    cr_assert_eq(add_part(sum, 0, 2), 0);
    expect_sum(sum, 2);
    cr_expect_eq(sum_add(sum, 0, 2, other, bytes), 1);
    expect_sum(sum, 2);
    free(memory);
    sum_close(sum);
}

/* ---- what is refused ---- */

static void refused(Sum *sum, int index, int n, const void *blob, size_t bytes, int code,
                    const char *words) {
    size_t before = sum_bytes(sum);
    cr_expect_eq(sum_add(sum, index, n, blob, bytes), code, "%s", err_text());
    cr_expect(strstr(err_text(), KEY) && strstr(err_text(), words), "'%s' and not '%s'", words,
              err_text());
    cr_expect_eq(sum_bytes(sum), before);
}

Test(sum, wrong_contributions_change_nothing) {
    static const BlobTensor longer[] = {
        {DTYPE_F32, {2, {3, 5}}}, {DTYPE_F32, {1, {0}}}, {DTYPE_F32, {1, {1022}}}};
    static const BlobTensor turned[] = {
        {DTYPE_F32, {2, {5, 3}}}, {DTYPE_F32, {1, {0}}}, {DTYPE_F32, {1, {1021}}}};
    static const BlobTensor doubles[] = {
        {DTYPE_F32, {2, {3, 5}}}, {DTYPE_F32, {1, {0}}}, {DTYPE_I32, {1, {1021}}}};
    const struct {
        const BlobTensor *tensors;
        int n_tensors;
        const char *words;
    } wrong[] = {{longer, 3, "another form"},
                 {turned, 3, "other shapes"},
                 {doubles, 3, "tensor 2 is I32, expected F32"},
                 {forms, 2, "2 tensors in"}};
    Sum *sum = NULL;
    void *memory = NULL;
    size_t bytes = 0;
    cr_assert_eq(sum_open(KEY, 3, SUM_MAX_HELD_BYTES, NULL, &sum), 0);
    refused(sum, 0, 3, "no blob", 7, ERR_CORRUPT, "less than a header");
    cr_assert_eq(add_part(sum, 1, 3), 0);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        unsigned char *blob =
            part(KEY, 0, wrong[i].tensors, wrong[i].n_tensors, 0, &memory, &bytes);
        refused(sum, 0, 3, blob, bytes, ERR_CORRUPT, wrong[i].words);
        free(memory);
    }
    unsigned char *blob = part(KEY, 0, forms, N_TENSORS, 0, &memory, &bytes);
    refused(sum, 2, 3, blob, bytes, ERR_CORRUPT, "another key");
    refused(sum, 0, 4, blob, bytes, ERR_CORRUPT, "one of 4, the first one was one of 3");
    refused(sum, 1, 4, blob, bytes, ERR_CORRUPT, "one of 4");
    refused(sum, 3, 3, blob, bytes, ERR_ARGUMENT, "contribution 3");
    refused(sum, -1, 3, blob, bytes, ERR_ARGUMENT, "contribution -1");
    refused(sum, 0, 3, blob, SUM_MAX_PART_BYTES + 1, ERR_LIMIT, "at most");
    refused(sum, 0, 3, blob, bytes - 1, ERR_CORRUPT, "its header says");
    for (size_t bit = 0; bit < 8 * bytes; bit += 61) {
        blob[bit / 8] ^= (unsigned char)(1U << bit % 8);
        refused(sum, 0, 3, blob, bytes, ERR_CORRUPT, "contribution 0");
        blob[bit / 8] ^= (unsigned char)(1U << bit % 8);
    }
    free(memory);
    cr_assert_eq(add_part(sum, 0, 3), 0, "%s", err_text());
    cr_assert_eq(add_part(sum, 2, 3), 0, "%s", err_text());
    expect_sum(sum, 3);
    sum_close(sum);
}

Test(sum, places) {
    char key[RELAY_KEY_BYTES];
    Sum *sum = NULL;
    memset(key, 'k', sizeof key);
    key[RELAY_KEY_BYTES - KEY_PART_BYTES] = '\0';
    cr_expect_eq(sum_open(key, 2, 0, NULL, &sum), ERR_ARGUMENT);
    key[RELAY_KEY_BYTES - KEY_PART_BYTES - 1] = '\0';
    cr_assert_eq(sum_open(key, SUM_MAX_PARTS, 0, NULL, &sum), 0, "%s", err_text());
    cr_expect_eq(strlen(key_part(key, SUM_MAX_PARTS - 1).text), RELAY_KEY_BYTES - 1);
    sum_close(sum);
    cr_expect_eq(sum_open(KEY, 0, 0, NULL, &sum), ERR_ARGUMENT);
    cr_expect_eq(sum_open(KEY, SUM_MAX_PARTS + 1, 0, NULL, &sum), ERR_ARGUMENT);
    cr_expect_str_eq(key_part("a/b", 7).text, "a/b.7");
    sum_close(NULL);
}

/* ---- memory ---- */

static size_t n_allocated, n_until_failure;

static void *limited_allocate(size_t bytes) {
    if (n_until_failure-- == 0)
        return NULL;
    n_allocated++;
    return malloc(bytes);
}

static void counted_release(void *memory) {
    n_allocated--;
    free(memory);
}

static const SumMemory limited = {limited_allocate, counted_release};

Test(sum, without_memory_nothing_changes) {
    for (size_t fail_at = 0;; fail_at++) {
        static const int order[] = {2, 0, 1, 3};
        Sum *sum = NULL;
        int n_failed = 0;
        n_until_failure = fail_at;
        if (sum_open(KEY, 4, SUM_MAX_HELD_BYTES, &limited, &sum) == ERR_MEMORY) {
            cr_assert_eq(sum_open(KEY, 4, SUM_MAX_HELD_BYTES, &limited, &sum), 0);
            n_failed++;
        }
        for (int i = 0; i < 4; i++) {
            int rc = add_part(sum, order[i], 4);
            if (rc == ERR_MEMORY) {
                n_failed++;
                rc = add_part(sum, order[i], 4);
            }
            cr_assert_eq(rc, 0, "%s", err_text());
        }
        expect_sum(sum, 4);
        sum_close(sum);
        cr_assert_eq(n_allocated, 0);
        if (n_failed == 0) {
            cr_assert_gt(fail_at, 2);
            return;
        }
    }
}

Test(sum, what_is_early_is_bounded) {
    size_t bytes = layout(forms, N_TENSORS, NULL);
    Sum *sum = NULL;
    cr_assert_eq(sum_open(KEY, 5, 2 * bytes, NULL, &sum), 0);
    cr_assert_eq(add_part(sum, 4, 5), 0);
    cr_assert_eq(add_part(sum, 2, 5), 0);
    cr_expect_eq(add_part(sum, 3, 5), ERR_FULL);
    cr_expect(strstr(err_text(), KEY) && strstr(err_text(), "contribution 0 has not come"), "%s",
              err_text());
    cr_expect(sum_grows(sum, 0));
    cr_expect(sum_grows(sum, 1) && sum_grows(sum, 3));
    cr_expect_not(sum_grows(sum, 2), "it is there");
    cr_assert_eq(add_part(sum, 0, 5), 0);
    cr_expect_eq(add_part(sum, 3, 5), ERR_FULL);
    cr_expect_not(sum_grows(sum, 1));
    size_t before = sum_bytes(sum);
    cr_assert_eq(add_part(sum, 1, 5), 0);
    cr_expect_eq(sum_bytes(sum), before - bytes);
    cr_assert_eq(add_part(sum, 3, 5), 0, "%s", err_text());
    expect_sum(sum, 5);
    sum_close(sum);
}

/* ---- taken apart, and on with it ---- */

Test(sum, goes_on_from_what_was_saved) {
    for (int n_first = 0; n_first < 4; n_first++) {
        static const int order[] = {0, 3, 1, 2};
        Sum *sum = NULL;
        Sum *on = NULL;
        int n_added = 0;
        cr_assert_eq(sum_open(KEY, 4, SUM_MAX_HELD_BYTES, NULL, &sum), 0);
        for (int i = 0; i < n_first; i++)
            cr_assert_eq(add_part(sum, order[i], 4), 0);
        Slice prefix = sum_prefix(sum, &n_added);
        cr_expect_eq(prefix.data == NULL, n_first == 0);
        if (n_first > 0)
            cr_assert_eq(sum_resume(sum_key(sum), sum_n(sum), n_added, prefix.data, prefix.bytes,
                                    SUM_MAX_HELD_BYTES, NULL, &on),
                         0, "%s", err_text());
        else
            cr_assert_eq(sum_open(KEY, 4, SUM_MAX_HELD_BYTES, NULL, &on), 0);
        for (int i = 0; i < 4; i++) {
            Slice held = sum_held(sum, i);
            cr_expect_eq(held.data != NULL, n_first > 1 && n_first < 4 && i == 3);
            if (held.data)
                cr_assert_eq(sum_add(on, i, 4, held.data, held.bytes), 0, "%s", err_text());
        }
        sum_close(sum);
        for (int i = 0; i < 4; i++)
            cr_assert_eq(add_part(on, order[i], 4), i < n_first, "%d of %d: %s", i, n_first,
                         err_text());
        expect_sum(on, 4);
        sum_close(on);
    }
}

Test(sum, does_not_go_on_from_nonsense) {
    Sum *sum = NULL;
    Sum *on = NULL;
    cr_assert_eq(sum_open(KEY, 3, SUM_MAX_HELD_BYTES, NULL, &sum), 0);
    cr_assert_eq(add_part(sum, 0, 3), 0);
    Slice prefix = sum_prefix(sum, NULL);
    cr_expect_eq(sum_resume(KEY, 3, 0, prefix.data, prefix.bytes, 0, NULL, &on), ERR_CORRUPT);
    cr_expect_eq(sum_resume(KEY, 3, 3, prefix.data, prefix.bytes, 0, NULL, &on), ERR_CORRUPT);
    cr_expect_eq(sum_resume("other", 3, 1, prefix.data, prefix.bytes, 0, NULL, &on), ERR_CORRUPT);
    cr_expect_eq(sum_resume(KEY, 3, 1, prefix.data, prefix.bytes - 4, 0, NULL, &on), ERR_CORRUPT);
    cr_expect_eq(sum_resume(KEY, 3, 1, "", 0, 0, NULL, &on), ERR_CORRUPT);
    cr_expect_null(on);
    sum_close(sum);
}

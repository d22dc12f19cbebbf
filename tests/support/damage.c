#include "tests/support/damage.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_DESCRIPTOR = 32 };

typedef struct Right { /* what is damaged */
    const char *key;
    const BlobTensor *tensors;
    int n;
} Right;

static void fill(unsigned char *bytes, size_t n, uint64_t state) {
    for (size_t i = 0; i < n; i++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407U;
        bytes[i] = (unsigned char)(state >> 56);
    }
}

static void seal(Damaged *object, const char *key, const BlobTensor *tensors, int n) {
    int64_t total = blob_layout(tensors, n, NULL);
    if (total < 0 || total >= DAMAGED_BYTES)
        abort();
    object->n = (size_t)total;
    fill(object->bytes, object->n, 1);
    (void)blob_seal(object->bytes, key, tensors, n);
}

static void flip(Damaged *object, size_t at) {
    object->bytes[at] ^= 0x10;
}

/* ---- the ways: each begins with what was right ---- */

static void none(Damaged *object, const Right *right) {
    (void)object;
    (void)right;
}

static void empty(Damaged *object, const Right *right) {
    (void)right;
    object->n = 0;
}

static void garbage(Damaged *object, const Right *right) {
    (void)right;
    fill(object->bytes, object->n, 2);
}

static void zeros(Damaged *object, const Right *right) {
    (void)right;
    memset(object->bytes, 0, object->n);
}

static void pickled(Damaged *object, const Right *right) { /* what some readers would run */
    (void)right;
    static const char text[] = "\x80\4\x95"
                               "cos\nsystem\n(S'true'\ntR.";
    object->n = sizeof text - 1;
    memcpy(object->bytes, text, object->n);
}

static void cut_in_the_header(Damaged *object, const Right *right) {
    (void)right;
    object->n = FIRST_DESCRIPTOR - 1;
}

static void cut_in_a_tensor(Damaged *object, const Right *right) {
    (void)right;
    object->n /= 2;
}

static void a_byte_less(Damaged *object, const Right *right) {
    (void)right;
    object->n--;
}

static void a_byte_more(Damaged *object, const Right *right) {
    (void)right;
    object->bytes[object->n++] = 0;
}

static void flipped_magic(Damaged *object, const Right *right) {
    (void)right;
    flip(object, 1);
}

static void flipped_size(Damaged *object, const Right *right) {
    (void)right;
    flip(object, 12);
}

static void flipped_dims(Damaged *object, const Right *right) {
    (void)right;
    flip(object, FIRST_DESCRIPTOR + 9);
}

static void flipped_element(Damaged *object, const Right *right) {
    (void)right;
    flip(object, object->n - 3);
}

static void of_another_key(Damaged *object, const Right *right) {
    seal(object, "job/g1/t0/a.0-1.99", right->tensors, right->n);
}

static BlobTensor *copy(const Right *right, BlobTensor out[DAMAGED_TENSORS]) {
    memcpy(out, right->tensors, (size_t)right->n * sizeof *out);
    return out;
}

static void of_another_dtype(Damaged *object, const Right *right) { /* of the same size */
    BlobTensor other[DAMAGED_TENSORS];
    copy(right, other)[0].dtype = DTYPE_I32;
    seal(object, right->key, other, right->n);
}

static void of_other_dims(Damaged *object, const Right *right) { /* of the same size */
    BlobTensor other[DAMAGED_TENSORS];
    Shape *shape = &copy(right, other)[0].shape;
    shape->dims[0] = right->tensors[0].shape.dims[1];
    shape->dims[1] = right->tensors[0].shape.dims[0];
    seal(object, right->key, other, right->n);
}

static void of_fewer_rows(Damaged *object, const Right *right) {
    BlobTensor other[DAMAGED_TENSORS];
    copy(right, other)[0].shape.dims[0]--;
    seal(object, right->key, other, right->n);
}

static void of_fewer_tensors(Damaged *object, const Right *right) {
    seal(object, right->key, right->tensors, right->n - 1);
}

static const struct {
    void (*make)(Damaged *object, const Right *right);
    const char *name, *reason;
} damages[] = {
    {none, "none", NULL},
    {empty, "empty", "0 bytes"},
    {garbage, "garbage", "FPB1"},
    {zeros, "zeros", "FPB1"},
    {pickled, "pickled", "bytes"},
    {cut_in_the_header, "cut_in_the_header", "31 bytes"},
    {cut_in_a_tensor, "cut_in_a_tensor", "bytes"},
    {a_byte_less, "a_byte_less", "bytes"},
    {a_byte_more, "a_byte_more", ""},
    {flipped_magic, "flipped_magic", "FPB1"},
    {flipped_size, "flipped_size", "bytes"},
    {flipped_dims, "flipped_dims", "checksum"},
    {flipped_element, "flipped_element", "checksum"},
    {of_another_key, "of_another_key", "another key"},
    {of_another_dtype, "of_another_dtype", "expected F32"},
    {of_other_dims, "of_other_dims", "expected F32"},
    {of_fewer_rows, "of_fewer_rows", "expected F32"},
    {of_fewer_tensors, "of_fewer_tensors", "tensors, expected"},
};
_Static_assert(sizeof damages / sizeof damages[0] == N_DAMAGES, "as many as the header says");

const char *damage_name(int i) {
    return damages[i].name;
}

const char *damage_reason(int i) {
    return damages[i].reason;
}

void damage_make(int i, const char *key, const BlobTensor *tensors, int n, Damaged *out) {
    const Right right = {key, tensors, n};
    if (n < 1 || n > DAMAGED_TENSORS || tensors[0].shape.n_dims < 2)
        abort();
    seal(out, key, tensors, n);
    damages[i].make(out, &right);
}

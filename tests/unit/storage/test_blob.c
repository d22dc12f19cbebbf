#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/hash.h"
#include "storage/blob.h"
#include "storage/relay.h"

#define KEY "job/g1/t0/a.0-1.0"
enum { N = 4, ROOM = 4096 };

static const BlobTensor tensors[N] = {{DTYPE_F32, {3, {2, 3, 5}}},
                                      {DTYPE_I32, {0, {0}}},
                                      {DTYPE_BOOL, {2, {7, 0}}},
                                      {DTYPE_BF16, {1, {33}}}};

/* A sealed blob with something in its tensors; the rest of the buffer was dirty before. */
static size_t make(unsigned char *out) {
    size_t offsets[N];
    memset(out, 0xA5, ROOM);
    int64_t total = blob_layout(tensors, N, offsets);
    cr_assert(total > 0 && total <= ROOM, "%s", err_text());
    memset(out + offsets[0], 1, 120);
    memset(out + offsets[1], 2, 4);
    memset(out + offsets[3], 3, 66);
    cr_assert_eq(blob_seal(out, KEY, tensors, N), total);
    return (size_t)total;
}

/* Make the checksum right again, so that what lies behind it is looked at. */
static void reseal(unsigned char *blob, size_t bytes) {
    uint64_t hash = hash_bytes(blob + 32, bytes - 32);
    for (int i = 0; i < 8; i++)
        blob[24 + i] = (unsigned char)(hash >> 8 * i);
}

/* It is refused as ERR_CORRUPT that names the key, by both readers. */
static void refused(const unsigned char *blob, size_t bytes, const char *what) {
    static BlobTensor got[BLOB_MAX_TENSORS];
    int n = 0;
    cr_assert_eq(blob_check(blob, bytes, KEY, tensors, N), ERR_CORRUPT, "%s: accepted", what);
    cr_assert(strstr(err_text(), KEY), "%s: no key in '%s'", what, err_text());
    cr_assert_eq(blob_parse(blob, bytes, KEY, got, NULL, BLOB_MAX_TENSORS, &n), ERR_CORRUPT,
                 "%s: parsed", what);
    cr_assert(strstr(err_text(), KEY), "%s: no key in '%s'", what, err_text());
}

Test(blob, layout) {
    size_t offsets[N];
    /* 32 + 4 * 72 = 320 bytes in front; each tensor at a multiple of 64. */
    cr_expect_eq(blob_layout(tensors, N, offsets), 512 + 66);
    cr_expect_eq(offsets[0], 320);
    cr_expect_eq(offsets[1], 448);
    cr_expect_eq(offsets[2], 512);
    cr_expect_eq(offsets[3], 512);
    cr_expect_eq(blob_layout(NULL, 0, NULL), 64);
    BlobTensor one = {DTYPE_U8, {1, {1}}};
    cr_expect_eq(blob_layout(&one, 1, offsets), 129);
}

Test(blob, layout_limits) {
    BlobTensor t = {DTYPE_F32, {1, {INT64_C(1) << 32}}};
    cr_expect_eq(blob_layout(&t, 1, NULL), ERR_LIMIT, "16 GiB and a header");
    t.shape.dims[0] = INT64_MAX;
    cr_expect_eq(blob_layout(&t, 1, NULL), ERR_LIMIT);
    t.shape.dims[0] = -1;
    cr_expect_lt(blob_layout(&t, 1, NULL), 0);
    t = (BlobTensor){DTYPE_U8, {2, {INT64_C(1) << 40, INT64_C(1) << 40}}};
    cr_expect_eq(blob_layout(&t, 1, NULL), ERR_LIMIT, "a product beyond 64 bits");
    t = (BlobTensor){DTYPE_NONE, {1, {1}}};
    cr_expect_eq(blob_layout(&t, 1, NULL), ERR_ARGUMENT, "no element type");
    t = (BlobTensor){(DType)99, {1, {1}}};
    cr_expect_eq(blob_layout(&t, 1, NULL), ERR_ARGUMENT, "an unknown element type");
    static BlobTensor many[BLOB_MAX_TENSORS + 1];
    for (int i = 0; i <= BLOB_MAX_TENSORS; i++)
        many[i] = (BlobTensor){DTYPE_U8, {1, {1}}};
    cr_expect_eq(blob_layout(many, BLOB_MAX_TENSORS + 1, NULL), ERR_LIMIT);
    cr_expect_gt(blob_layout(many, BLOB_MAX_TENSORS, NULL), 0, "%s", err_text());
    cr_expect_eq(blob_layout(many, -1, NULL), ERR_LIMIT);
    for (int i = 0; i < 3; i++)
        many[i] = (BlobTensor){DTYPE_U8, {1, {INT64_C(1) << 33}}};
    cr_expect_eq(blob_layout(many, 3, NULL), ERR_LIMIT, "too much together");
}

Test(blob, header_bytes) {
    unsigned char blob[ROOM];
    size_t bytes = make(blob);
    cr_expect_arr_eq(blob, "FPB1\1\0\4\0", 8);
    cr_expect_eq(blob[8] | blob[9] << 8, (int)bytes);
    uint64_t key_hash = 0;
    memcpy(&key_hash, blob + 16, 8);
    cr_expect_eq(key_hash, hash_text(KEY));
    cr_expect_arr_eq(blob + 32, "\1\3\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3", 17);
    cr_expect_eq(blob[32 + 56] | blob[32 + 57] << 8, 320);
    cr_expect_eq(blob[32 + 64], 120);
    for (size_t i = 440; i < 448; i++)
        cr_expect_eq(blob[i], 0, "padding at %zu", i);
    cr_expect_eq(blob[bytes], 0xA5, "written behind the end");
}

Test(blob, round_trip) {
    unsigned char blob[ROOM];
    BlobTensor got[N];
    size_t offsets[N];
    size_t expected[N];
    int n = 0;
    size_t bytes = make(blob);
    cr_assert_eq(blob_check(blob, bytes, KEY, tensors, N), 0, "%s", err_text());
    cr_assert_eq(blob_check(blob, bytes, NULL, tensors, N), 0, "any key: %s", err_text());
    cr_assert_eq(blob_parse(blob, bytes, NULL, got, offsets, N, &n), 0, "%s", err_text());
    cr_assert_eq(n, N);
    blob_layout(tensors, N, expected);
    for (int i = 0; i < N; i++) {
        cr_expect_eq(got[i].dtype, tensors[i].dtype);
        cr_expect(shape_equal(&got[i].shape, &tensors[i].shape));
        cr_expect_eq(offsets[i], expected[i]);
    }
    cr_expect_eq(blob_parse(blob, bytes, KEY, got, NULL, N - 1, &n), ERR_LIMIT);
    cr_expect(strstr(err_text(), KEY) && strstr(err_text(), "4") && strstr(err_text(), "3"));
}

Test(blob, same_tensors_same_bytes) {
    unsigned char a[ROOM];
    unsigned char b[ROOM];
    size_t bytes = make(a);
    memset(b, 0, sizeof b);
    memcpy(b + 320, a + 320, bytes - 320);
    memset(b + 440, 0x77, 8); /* what a former blob left in the padding */
    cr_assert_eq(blob_seal(b, KEY, tensors, N), (int64_t)bytes);
    cr_expect_arr_eq(a, b, bytes);
}

Test(blob, no_tensors) {
    unsigned char blob[64];
    int n = 7;
    memset(blob, 0xFF, sizeof blob);
    cr_assert_eq(blob_seal(blob, KEY, NULL, 0), 64);
    cr_expect_eq(blob_check(blob, 64, KEY, NULL, 0), 0, "%s", err_text());
    cr_expect_eq(blob_parse(blob, 64, KEY, NULL, NULL, 0, &n), 0, "%s", err_text());
    cr_expect_eq(n, 0);
    blob[40] = 1;
    reseal(blob, 64);
    cr_expect_eq(blob_check(blob, 64, KEY, NULL, 0), ERR_CORRUPT);
}

Test(blob, most_tensors) {
    static BlobTensor many[BLOB_MAX_TENSORS];
    for (int i = 0; i < BLOB_MAX_TENSORS; i++)
        many[i] = (BlobTensor){DTYPE_F32, {1, {i % 20}}};
    int64_t total = blob_layout(many, BLOB_MAX_TENSORS, NULL);
    unsigned char *blob = calloc(1, (size_t)total);
    cr_assert_eq(blob_seal(blob, KEY, many, BLOB_MAX_TENSORS), total);
    cr_expect_eq(blob_check(blob, (size_t)total, KEY, many, BLOB_MAX_TENSORS), 0, "%s", err_text());
    free(blob);
}

Test(blob, every_length_cut) {
    unsigned char blob[ROOM];
    size_t bytes = make(blob);
    for (size_t n = 0; n < bytes; n++) {
        unsigned char *cut = malloc(n ? n : 1); /* of its own, so that ASan sees a read beyond */
        memcpy(cut, blob, n);
        refused(cut, n, "cut");
        free(cut);
    }
    refused(blob, bytes + 1, "a byte more");
}

Test(blob, every_bit_flipped) {
    unsigned char blob[ROOM];
    size_t bytes = make(blob);
    for (size_t i = 0; i < bytes * 8; i++) {
        blob[i / 8] ^= (unsigned char)(1U << i % 8);
        refused(blob, bytes, "flipped");
        blob[i / 8] ^= (unsigned char)(1U << i % 8);
    }
    cr_expect_eq(blob_check(blob, bytes, KEY, tensors, N), 0);
}

/* Each byte of descriptors and padding matters even under a right checksum. */
Test(blob, every_byte_forged) {
    unsigned char blob[ROOM];
    size_t bytes = make(blob);
    for (size_t i = 32; i < bytes; i++) {
        bool tensor = (i >= 320 && i < 440) || (i >= 448 && i < 452) || (i >= 512 && i < 578);
        unsigned char kept = blob[i];
        blob[i] ^= 0x40;
        reseal(blob, bytes);
        if (tensor)
            cr_expect_eq(blob_check(blob, bytes, KEY, tensors, N), 0, "%s", err_text());
        else
            cr_expect_eq(blob_check(blob, bytes, KEY, tensors, N), ERR_CORRUPT, "byte %zu", i);
        blob[i] = kept;
    }
}

static void says(const char *words) {
    cr_expect(strstr(err_text(), words), "'%s' is not in '%s'", words, err_text());
    cr_expect(strstr(err_text(), KEY), "no key in '%s'", err_text());
}

Test(blob, reasons) {
    unsigned char blob[ROOM];
    size_t bytes = make(blob);
    cr_expect_eq(blob_check(blob, bytes, "job/g1/t0/a.0-1.1", tensors, N), ERR_CORRUPT);
    cr_expect(strstr(err_text(), "another key"), "%s", err_text());
    blob[4] = 2;
    refused(blob, bytes, "version");
    says("version 2, expected 1");
    blob[4] = 1;
    blob[0] = 'X';
    refused(blob, bytes, "magic");
    says("FPB1");
    blob[0] = 'F';
    blob[6] = 3;
    cr_expect_eq(blob_check(blob, bytes, KEY, tensors, N), ERR_CORRUPT);
    says("3 tensors, expected 4");
    blob[6] = blob[7] = 0xFF;
    refused(blob, bytes, "count");
    says("65535 tensors");
    blob[6] = 4;
    blob[7] = 0;
    blob[400] ^= 1;
    refused(blob, bytes, "payload");
    says("checksum");
    blob[400] ^= 1;
    blob[32] = 77;
    reseal(blob, bytes);
    refused(blob, bytes, "dtype");
    says("element type 77");
    refused(blob, 31, "short");
    says("31 bytes");
}

Test(blob, other_tensors_than_expected) {
    unsigned char blob[ROOM];
    size_t bytes = make(blob);
    for (int i = 0; i < N; i++) {
        BlobTensor other[N];
        memcpy(other, tensors, sizeof other);
        other[i].dtype = DTYPE_F64;
        cr_expect_eq(blob_check(blob, bytes, KEY, other, N), ERR_CORRUPT, "tensor %d's type", i);
        says("expected F64");
        other[i] = tensors[i];
        other[i].shape.n_dims++;
        other[i].shape.dims[other[i].shape.n_dims - 1] = 1;
        cr_expect_eq(blob_check(blob, bytes, KEY, other, N), ERR_CORRUPT, "tensor %d's dims", i);
        says("expected");
    }
    BlobTensor other[N + 1] = {{DTYPE_F32, {3, {2, 5, 3}}}, tensors[1], tensors[2], tensors[3]};
    cr_expect_eq(blob_check(blob, bytes, KEY, other, N), ERR_CORRUPT);
    says("tensor 0 is F32 (2, 3, 5), expected F32 (2, 5, 3)");
    cr_expect_eq(blob_check(blob, bytes, KEY, tensors, N - 1), ERR_CORRUPT);
    says("4 tensors, expected 3");
    memcpy(other, tensors, sizeof tensors);
    cr_expect_eq(blob_check(blob, bytes, KEY, other, N + 1), ERR_CORRUPT);
    says("4 tensors, expected 5");
}

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>

#include "core/err.h"
#include "storage/dataset.h"
#include "tests/support/german.h"
#include "tests/support/temp_folder.h"

/* An NPY file of this header text, padded as NumPy does, and body; returns its size. */
static size_t make_npy(uint8_t *out, int major, const char *dict, const void *body, size_t bytes) {
    size_t front = major == 1 ? 10 : 12;
    size_t length = strlen(dict) + 1;
    length += (64 - (front + length) % 64) % 64;
    memset(out, ' ', front + length);
    memcpy(out, "\x93NUMPY", 6);
    out[6] = (uint8_t)major;
    out[7] = 0;
    for (size_t i = 8; i < front; i++)
        out[i] = (uint8_t)(length >> (8 * (i - 8)));
    memcpy(out + front, dict, strlen(dict));
    out[front + length - 1] = '\n';
    if (bytes)
        memcpy(out + front + length, body, bytes);
    return front + length + bytes;
}

static void expect_header(int major, const char *dict, DType dtype, bool big, Shape shape) {
    uint8_t file[1024];
    NpyHeader header = {0};
    size_t bytes = make_npy(file, major, dict, NULL, 0);
    cr_expect_eq(dataset_parse_npy("x.npy", file, bytes, &header), 0, "%s: %s", dict, err_text());
    cr_expect_eq(header.dtype, dtype, "%s", dict);
    cr_expect_eq(header.big_endian, big, "%s", dict);
    cr_expect(shape_equal(&header.shape, &shape), "%s", dict);
    cr_expect_eq(header.data_offset, bytes);
}

static void expect_refused(int major, const char *dict, int code, const char *words) {
    uint8_t file[1024];
    NpyHeader header;
    size_t bytes = make_npy(file, major, dict, NULL, 0);
    cr_expect_eq(dataset_parse_npy("x.npy", file, bytes, &header), code, "%s", dict);
    cr_expect(strstr(err_text(), words), "'%s' is not in '%s'", words, err_text());
    cr_expect(strstr(err_text(), "x.npy"), "%s", err_text());
}

#define DICT(descr, fortran, shape)                                                                \
    "{'descr': '" descr "', 'fortran_order': " fortran ", 'shape': " shape ", }"

static void check_headers(void) {
    expect_header(1, DICT("<f4", "False", "(60000, 28, 28)"), DTYPE_F32, false,
                  shape_3d(60000, 28, 28));
    expect_header(2, DICT(">f4", "False", "(768,)"), DTYPE_F32, true, shape_1d(768));
    expect_header(3, DICT("|u1", "False", "()"), DTYPE_U8, false, (Shape){0});
    expect_header(1, DICT("<f8", "True", "(768,)"), DTYPE_F64, false, shape_1d(768));
    expect_header(1, DICT("<i8", "True", "()"), DTYPE_I64, false, (Shape){0});
    expect_header(1, DICT("=i4", "False", "(1, 2)"), DTYPE_I32, false, shape_2d(1, 2));
    expect_header(1, DICT(">u2", "False", "(1, 2,)"), DTYPE_U16, true, shape_2d(1, 2));
    expect_header(1, DICT("|b1", "False", "(0,)"), DTYPE_BOOL, false, shape_1d(0));
    expect_header(1, DICT("<f2", "False", "(3,)"), DTYPE_F16, false, shape_1d(3));
    expect_header(1, "{\"shape\":(2,),\"fortran_order\":False,\"descr\":\"<i2\"}", DTYPE_I16, false,
                  shape_1d(2));
}

Test(dataset_npy, headers) {
    check_headers();
}

Test(dataset_npy, headers_in_a_german_locale) {
    if (!german_set())
        cr_skip_test("headers_in_a_german_locale: de_DE.UTF-8 cannot be had here");
    char probe[8];
    snprintf(probe, sizeof probe, "%.1f", 1.5);
    cr_assert_str_eq(probe, "1,5");
    check_headers();
    expect_refused(1, DICT("<f4", "False", "(1.000, 2)"), ERR_FORMAT, "',' or ')' was expected");
}

Test(dataset_npy, hostile_headers) {
    expect_refused(1, DICT("<f4", "True", "(2, 3)"), ERR_FORMAT, "(2, 3) is in Fortran order");
    expect_refused(1, DICT("<c8", "False", "(2,)"), ERR_FORMAT, "'<c8'");
    expect_refused(1, DICT("|f4", "False", "(2,)"), ERR_FORMAT, "'|f4'");
    expect_refused(1, DICT("|O", "False", "(2,)"), ERR_FORMAT, "'|O'");
    expect_refused(1, DICT("f4", "False", "(2,)"), ERR_FORMAT, "'f4'");
    expect_refused(1, DICT("", "False", "(2,)"), ERR_FORMAT, "''");
    expect_refused(1, DICT("<f4aaaaaaaaaaaaaaaaaaaaa", "False", "(2,)"), ERR_FORMAT, "too long");
    expect_refused(1, "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}",
                   ERR_FORMAT, "no structured one");
    expect_refused(1, DICT("<f4", "0", "(2,)"), ERR_FORMAT, "True or False");
    expect_refused(1, DICT("<f4", "False", "(2)"), ERR_FORMAT, "no tuple");
    expect_refused(1, DICT("<f4", "False", "2"), ERR_FORMAT, "'('");
    expect_refused(1, DICT("<f4", "False", "[2]"), ERR_FORMAT, "'('");
    expect_refused(1, DICT("<f4", "False", "(-2,)"), ERR_FORMAT, "a dim");
    expect_refused(1, DICT("<f4", "False", "(2 3)"), ERR_FORMAT, "',' or ')'");
    expect_refused(1, DICT("<f4", "False", "(2,,3)"), ERR_FORMAT, "a dim");
    expect_refused(1, DICT("<f4", "False", "(,)"), ERR_FORMAT, "a dim");
    expect_refused(1, DICT("<f4", "False", "(99999999999999999999,)"), ERR_LIMIT, "63 bits");
    expect_refused(1, DICT("<f4", "False", "(4294967296, 4294967296)"), ERR_LIMIT, "2^48");
    expect_refused(1, DICT("<f4", "False", "(1, 1, 1, 1, 1, 1, 1)"), ERR_LIMIT, "6 dims");
    expect_refused(1, "{'descr': '<f4', 'shape': (2,), }", ERR_FORMAT, "no key 'fortran_order'");
    expect_refused(1, "{'descr': '<f4', 'descr': '<f4', 'shape': (2,)}", ERR_FORMAT,
                   "duplicate key 'descr'");
    expect_refused(1, "{'descr': '<f4', 'order': True}", ERR_FORMAT, "unknown key 'order'");
    expect_refused(1, "{'descr' '<f4'}", ERR_FORMAT, "':' was expected");
    expect_refused(1, "{'descr': '<f4' 'shape': ()}", ERR_FORMAT, "',' or '}'");
    expect_refused(1, "{'descr", ERR_FORMAT, "end of the text");
    expect_refused(1, "{'descr': '<f\\x34'", ERR_FORMAT, "end of the text");
    expect_refused(1, DICT("<f4", "False", "(2,)") " x", ERR_FORMAT, "end of the header");
    expect_refused(1, DICT("<f4", "False", "(2,"), ERR_FORMAT, "a dim");
    expect_refused(1, "(2,)", ERR_FORMAT, "'{'");
    expect_refused(1, "", ERR_FORMAT, "'{'");
    expect_refused(3, DICT("<f4", "False", "(2,)") "\xff", ERR_FORMAT, "not UTF-8");
    expect_refused(4, DICT("<f4", "False", "(2,)"), ERR_FORMAT, "version 4.0");
    expect_refused(0, DICT("<f4", "False", "(2,)"), ERR_FORMAT, "version 0.0");
}

Test(dataset_npy, every_cut_of_the_header_is_refused) {
    uint8_t file[256];
    for (int major = 1; major <= 3; major++) {
        size_t bytes = make_npy(file, major, DICT("<f4", "False", "(2,)"), NULL, 0);
        for (size_t cut = 0; cut < bytes; cut++) {
            uint8_t *exact = malloc(cut + 1);
            NpyHeader header;
            memcpy(exact, file, cut);
            cr_expect_eq(dataset_parse_npy("x.npy", exact, cut, &header), ERR_FORMAT);
            free(exact);
        }
    }
    NpyHeader header;
    cr_expect_eq(dataset_parse_npy("x.npy", "PK\x03\x04 no array", 13, &header), ERR_FORMAT);
    memset(file + 8, 0xff, 4);
    cr_expect_eq(dataset_parse_npy("x.npy", file, sizeof file, &header), ERR_FORMAT);
    cr_expect(strstr(err_text(), "4294967295"), "%s", err_text());
}

/* ---- values ---- */

static DataSpec npy_spec(const char *inputs, const char *targets) {
    DataSpec spec = {.kind = DATA_NPY, .classes = 10};
    snprintf(spec.input_path, sizeof spec.input_path, "%s", inputs);
    snprintf(spec.target_path, sizeof spec.target_path, "%s", targets);
    return spec;
}

static const char *write_npy(const char *name, const char *dict, const void *body, size_t bytes) {
    static uint8_t file[1024];
    return temp_write(name, file, make_npy(file, 1, dict, body, bytes));
}

/* The three numbers 1, -2, 3 (or what `want` says) come out of this array of one sample each. */
static void expect_values(const char *dict, const void *body, size_t bytes, const float *want) {
    DataSpec spec = npy_spec(write_npy("v.npy", dict, body, bytes), "");
    Dataset *dataset = NULL;
    cr_assert_eq(dataset_open(&spec, true, false, &dataset), 0, "%s", err_text());
    cr_assert_eq(dataset_samples(dataset), 3);
    for (int i = 0; i < 3; i++) {
        float got = NAN;
        cr_expect_eq(dataset_read_input(dataset, i, &got), 0, "%s", err_text());
        cr_expect_eq(got, want[i], "%s: element %d is %g", dict, i, (double)got);
    }
    dataset_close(dataset);
}

static void check_values(void) {
    static const float want[] = {1, -2, 3};
    static const float positive[] = {1, 200, 3};
    static const float scaled[] = {1 / 255.0F, 200 / 255.0F, 3 / 255.0F};
    float f4[] = {1, -2, 3};
    double f8[] = {1, -2, 3};
    int16_t i2[] = {1, -2, 3};
    int64_t i8[] = {1, -2, 3};
    uint32_t u4[] = {1, 200, 3};
    uint64_t u8[] = {1, 200, 3};
    expect_values(DICT("<f4", "False", "(3,)"), f4, sizeof f4, want);
    expect_values(DICT("<f4", "True", "(3,)"), f4, sizeof f4, want);
    expect_values(DICT("<f4", "False", "(3, 1)"), f4, sizeof f4, want);
    expect_values(DICT(">f4", "False", "(3,)"), "\x3f\x80\0\0\xc0\0\0\0\x40\x40\0\0", 12, want);
    expect_values(DICT("<f8", "False", "(3,)"), f8, sizeof f8, want);
    expect_values(DICT(">f8", "False", "(3,)"),
                  "\x3f\xf0\0\0\0\0\0\0\xc0\0\0\0\0\0\0\0\x40\x08\0\0\0\0\0\0", 24, want);
    expect_values(DICT("<f2", "False", "(3,)"), "\x00\x3c\x00\xc0\x00\x42", 6, want);
    expect_values(DICT("|i1", "False", "(3,)"), "\x01\xfe\x03", 3, want);
    expect_values(DICT("<i2", "False", "(3,)"), i2, sizeof i2, want);
    expect_values(DICT(">i4", "False", "(3,)"), "\0\0\0\1\xff\xff\xff\xfe\0\0\0\3", 12, want);
    expect_values(DICT("<i8", "False", "(3,)"), i8, sizeof i8, want);
    expect_values(DICT("<u4", "False", "(3,)"), u4, sizeof u4, positive);
    expect_values(DICT("<u8", "False", "(3,)"), u8, sizeof u8, positive);
    expect_values(DICT("|u1", "False", "(3,)"), "\x01\xc8\x03", 3, scaled);
    float half[] = {0x1p-24F, 65504, -0x1.004p-14F};
    expect_values(DICT("<f2", "False", "(3,)"), "\x01\x00\xff\x7b\x01\x84", 6, half);
}

Test(dataset_npy, values, .init = temp_enter, .fini = temp_leave) {
    check_values();
}

Test(dataset_npy, values_in_a_german_locale, .init = temp_enter, .fini = temp_leave) {
    if (!german_set())
        cr_skip_test("values_in_a_german_locale: de_DE.UTF-8 cannot be had here");
    check_values();
}

static void expect_open_fails(const char *dict, const void *body, size_t bytes, const char *words) {
    DataSpec spec = npy_spec(write_npy("v.npy", dict, body, bytes), "");
    Dataset *dataset = NULL;
    cr_expect_eq(dataset_open(&spec, true, false, &dataset), ERR_FORMAT, "%s", dict);
    cr_expect(strstr(err_text(), words) && strstr(err_text(), spec.input_path), "%s", err_text());
    cr_expect_null(dataset);
}

Test(dataset_npy, bodies_that_do_not_fit, .init = temp_enter, .fini = temp_leave) {
    static const uint8_t body[64] = {0};
    expect_open_fails(DICT("<f4", "False", "(3,)"), body, 11, "cut short: F32 (3) needs 12 bytes");
    expect_open_fails(DICT("<f4", "False", "(3,)"), body, 0, "there are 0");
    expect_open_fails(DICT("<f4", "False", "(3,)"), body, 13, "1 bytes follow");
    expect_open_fails(DICT("<f4", "False", "(16777216, 16777216)"), body, 64, "needs 11258999");
    expect_open_fails(DICT("<f4", "False", "()"), body, 4, "no axis of samples");
    expect_open_fails(DICT("<f4", "False", "(0, 4)"), body, 0, "holds no numbers");
    expect_open_fails(DICT("<f4", "False", "(4, 0)"), body, 0, "holds no numbers");
    expect_open_fails(DICT("<f4", "True", "(2, 2)"), body, 16, "Fortran");
}

Test(dataset_npy, values_that_are_no_numbers, .init = temp_enter, .fini = temp_leave) {
    float inputs[] = {1, NAN, INFINITY, 4};
    double wide[] = {1, 1e300, 1, 1};
    DataSpec spec =
        npy_spec(write_npy("x.npy", DICT("<f4", "False", "(2, 2)"), inputs, sizeof inputs), "");
    Dataset *dataset = NULL;
    float got[2];
    cr_assert_eq(dataset_open(&spec, true, false, &dataset), 0, "%s", err_text());
    cr_expect_eq(dataset_read_input(dataset, 0, got), ERR_FORMAT);
    cr_expect(strstr(err_text(), "x.npy': sample 0, position 1"), "%s", err_text());
    cr_expect_eq(dataset_read_input(dataset, 1, got), ERR_FORMAT);
    cr_expect(strstr(err_text(), "sample 1, position 0"), "%s", err_text());
    dataset_close(dataset);
    write_npy("x.npy", DICT("<f8", "False", "(2, 2)"), wide, sizeof wide);
    cr_assert_eq(dataset_open(&spec, true, false, &dataset), 0, "%s", err_text());
    cr_expect_eq(dataset_read_input(dataset, 0, got), ERR_FORMAT);
    cr_expect_eq(dataset_read_input(dataset, 1, got), 0);
    dataset_close(dataset);
}

static void expect_targets(const char *dict, const void *body, size_t bytes, int code,
                           const char *words) {
    DataSpec spec = npy_spec("", write_npy("y.npy", dict, body, bytes));
    spec.has_ignore = true;
    spec.ignore_index = -100;
    Dataset *dataset = NULL;
    cr_assert_eq(dataset_open(&spec, false, true, &dataset), 0, "%s", err_text());
    int32_t got = 0;
    cr_expect_eq(dataset_read_target(dataset, 0, &got), 0, "%s", err_text());
    cr_expect_eq(got, 9);
    cr_expect_eq(dataset_read_target(dataset, 1, &got), 0, "%s", err_text());
    cr_expect_eq(got, code < 0 ? 0 : -100);
    int rc = dataset_read_target(dataset, 2, &got);
    cr_expect_eq(rc, code < 0 ? code : 0, "%s", err_text());
    if (code < 0)
        cr_expect(strstr(err_text(), words) && strstr(err_text(), "sample 2"), "%s", err_text());
    dataset_close(dataset);
}

Test(dataset_npy, targets, .init = temp_enter, .fini = temp_leave) {
    int64_t wide[] = {9, 0, INT64_C(1) << 32};
    int64_t high[] = {9, 0, 10};
    int16_t ignored[] = {9, -100, 3};
    float whole[] = {9, -100, 3};
    float broken[] = {9, 0, 2.5F};
    double nan[] = {9, 0, (double)NAN};
    uint64_t huge[] = {9, 0, UINT64_MAX};
    expect_targets(DICT("<i8", "False", "(3,)"), wide, sizeof wide, ERR_FORMAT, "4294967296");
    expect_targets(DICT("<i8", "False", "(3, 1)"), high, sizeof high, ERR_FORMAT,
                   "target 10 is not in [0, 10)");
    expect_targets(DICT("|u1", "False", "(3,)"), "\x09\x00\xff", 3, ERR_FORMAT, "target 255");
    expect_targets(DICT("|i1", "False", "(3,)"), "\x09\x00\xff", 3, ERR_FORMAT, "target -1");
    expect_targets(DICT("<i2", "False", "(3,)"), ignored, sizeof ignored, 0, "");
    expect_targets(DICT("<f4", "False", "(3,)"), whole, sizeof whole, 0, "");
    expect_targets(DICT("<f4", "False", "(3,)"), broken, sizeof broken, ERR_FORMAT, "2.5");
    expect_targets(DICT("<f8", "False", "(3,)"), nan, sizeof nan, ERR_FORMAT, "whole number");
    expect_targets(DICT("<u8", "False", "(3,)"), huge, sizeof huge, ERR_FORMAT, "32 bits");
}

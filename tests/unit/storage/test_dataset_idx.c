#include <criterion/criterion.h>
#include <stdint.h>
#include <sys/resource.h>
#include <zlib.h>

#include "core/err.h"
#include "storage/dataset.h"
#include "tests/support/temp_folder.h"

/* ---- headers ---- */

static void expect_refused(const char *data, size_t bytes, int code, const char *words) {
    IdxHeader header;
    char *exact = malloc(bytes + 1);
    memcpy(exact, data, bytes);
    cr_expect_eq(dataset_parse_idx("x-idx", exact, bytes, &header), code, "%s: %s", words,
                 err_text());
    cr_expect(strstr(err_text(), words) && strstr(err_text(), "x-idx"), "'%s' is not in '%s'",
              words, err_text());
    free(exact);
}

Test(dataset_idx, headers) {
    IdxHeader header;
    cr_assert_eq(dataset_parse_idx("x", "\0\0\x08\x03\0\0\0\x02\0\0\0\x1c\0\0\1\0", 16, &header), 0,
                 "%s", err_text());
    Shape shape = shape_3d(2, 28, 256);
    cr_assert(shape_equal(&header.shape, &shape));
    cr_assert_eq(header.dtype, DTYPE_U8);
    cr_assert_eq(header.data_offset, 16);
    static const struct {
        char type;
        DType dtype;
    } types[] = {{9, DTYPE_I8}, {11, DTYPE_I16}, {12, DTYPE_I32}, {13, DTYPE_F32}, {14, DTYPE_F64}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        char file[8] = {0, 0, types[i].type, 1, 0, 0, 0, 9};
        cr_assert_eq(dataset_parse_idx("x", file, 8, &header), 0);
        cr_assert_eq(header.dtype, types[i].dtype);
    }
}

Test(dataset_idx, hostile_headers) {
    expect_refused("\x1f\x8b\x08\x08\0\0\0\0", 8, ERR_FORMAT, "0x1f8b0808");
    expect_refused("\x1f\x8b\x08\x08\0\0\0\0", 8, ERR_FORMAT, "compressed with gzip");
    expect_refused("<!DO", 4, ERR_FORMAT, "0x3c21444f");
    expect_refused("\0\0\x0a\x01\0\0\0\1", 8, ERR_FORMAT, "0x00000a01");
    expect_refused("\0\0\x08\x00\0\0\0\1", 8, ERR_FORMAT, "0 dims");
    expect_refused("\0\0\x08\x07\0\0\0\1", 8, ERR_FORMAT, "7 dims");
    expect_refused("\0\0\x08\xff\0\0\0\1", 8, ERR_FORMAT, "255 dims");
    expect_refused("\0\0\x08\x04\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
                   20, ERR_LIMIT, "2^48");
    const char *good = "\0\0\x08\x03\0\0\0\x02\0\0\0\x1c\0\0\0\x1c";
    for (size_t cut = 0; cut < 16; cut++)
        expect_refused(good, cut, ERR_FORMAT, "cut in its IDX header");
}

/* ---- whole files ---- */

static DataSpec idx_spec(const char *inputs, const char *targets) {
    DataSpec spec = {.kind = DATA_IDX, .classes = 10};
    snprintf(spec.input_path, sizeof spec.input_path, "%s", inputs);
    snprintf(spec.target_path, sizeof spec.target_path, "%s", targets);
    return spec;
}

/* n images of 2 x 3 bytes counting up from 0; its size. */
static size_t make_images(uint8_t *out, uint8_t n) {
    static const uint8_t head[] = {0, 0, 8, 3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3};
    memcpy(out, head, sizeof head);
    out[7] = n;
    for (size_t i = 0; i < (size_t)n * 6; i++)
        out[sizeof head + i] = (uint8_t)(i * 5);
    return sizeof head + (size_t)n * 6;
}

static size_t make_labels(uint8_t *out, uint8_t n) {
    static const uint8_t head[] = {0, 0, 8, 1, 0, 0, 0, 0};
    memcpy(out, head, sizeof head);
    out[7] = n;
    for (size_t i = 0; i < n; i++)
        out[sizeof head + i] = (uint8_t)(i % 10);
    return sizeof head + n;
}

static size_t make_gzip(uint8_t *out, size_t room, const void *data, size_t bytes) {
    z_stream stream = {0};
    cr_assert_eq(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    stream.next_in = (Bytef *)data;
    stream.avail_in = (uInt)bytes;
    stream.next_out = out;
    stream.avail_out = (uInt)room;
    cr_assert_eq(deflate(&stream, Z_FINISH), Z_STREAM_END);
    deflateEnd(&stream);
    return room - stream.avail_out;
}

static void check_images(const DataSpec *spec, int64_t n) {
    Dataset *dataset = NULL;
    cr_assert_eq(dataset_open(spec, true, true, &dataset), 0, "%s", err_text());
    cr_assert_eq(dataset_samples(dataset), n);
    for (int64_t s = 0; s < n; s++) {
        float got[6];
        int32_t label = -1;
        cr_assert_eq(dataset_read_input(dataset, s, got), 0, "%s", err_text());
        cr_assert_eq(dataset_read_target(dataset, s, &label), 0, "%s", err_text());
        cr_assert_eq(label, s % 10);
        for (int i = 0; i < 6; i++)
            cr_assert_eq(got[i], (float)(uint8_t)((s * 6 + i) * 5) / 255.0F);
    }
    dataset_close(dataset);
}

Test(dataset_idx, plain_and_compressed, .init = temp_enter, .fini = temp_leave) {
    uint8_t images[512];
    uint8_t labels[64];
    uint8_t packed[1024];
    size_t n_images = make_images(images, 12);
    size_t n_labels = make_labels(labels, 12);
    DataSpec spec = idx_spec(temp_write("x", images, n_images), temp_write("y", labels, n_labels));
    check_images(&spec, 12);
    size_t bytes = make_gzip(packed, sizeof packed, images, n_images);
    temp_write("x", packed, bytes);
    check_images(&spec, 12);
    bytes = make_gzip(packed, sizeof packed, labels, n_labels);
    temp_write("y", packed, bytes);
    check_images(&spec, 12);
    spec.samples = 5;
    check_images(&spec, 5);
}

static void expect_open(const char *data, size_t bytes, int code, const char *words) {
    DataSpec spec = idx_spec(temp_write("x", data, bytes), "");
    Dataset *dataset = NULL;
    cr_expect_eq(dataset_open(&spec, true, false, &dataset), code, "%s: %s", words, err_text());
    cr_expect(strstr(err_text(), words) && strstr(err_text(), spec.input_path),
              "'%s' is not in '%s'", words, err_text());
    cr_expect_null(dataset);
}

Test(dataset_idx, damaged_files, .init = temp_enter, .fini = temp_leave) {
    uint8_t images[512];
    size_t bytes = make_images(images, 12);
    expect_open((char *)images, 0, ERR_FORMAT, "is empty");
    expect_open((char *)images, bytes - 1, ERR_FORMAT, "cut short: U8 (12, 2, 3) needs 72 bytes");
    expect_open((char *)images, bytes + 1, ERR_FORMAT, "1 bytes follow");
    images[7] = 0;
    expect_open((char *)images, 16, ERR_FORMAT, "holds no numbers");
    memset(images + 4, 0xff, 12);
    expect_open((char *)images, bytes, ERR_LIMIT, "2^48");
    expect_open("\0\0\x0d\x02\0\0\0\2\0\0\0\1\0\0\0\0\0\0", 18, ERR_FORMAT, "F32 (2, 1) needs 8");
}

Test(dataset_idx, damaged_gzip, .init = temp_enter, .fini = temp_leave) {
    uint8_t images[512];
    uint8_t packed[1024];
    uint8_t twice[2048];
    size_t n_images = make_images(images, 12);
    size_t bytes = make_gzip(packed, sizeof packed, images, n_images);
    for (size_t cut = 2; cut < bytes; cut++)
        expect_open((char *)packed, cut, ERR_FORMAT, "cut");
    for (size_t at = 10; at < bytes; at++) { /* behind gzip's own header: every byte counts */
        packed[at] ^= 0x55;
        DataSpec spec = idx_spec(temp_write("x", packed, bytes), "");
        Dataset *dataset = NULL;
        cr_expect_lt(dataset_open(&spec, true, false, &dataset), 0, "byte %zu may be wrong", at);
        packed[at] ^= 0x55;
    }
    packed[bytes] = 0;
    expect_open((char *)packed, bytes + 1, ERR_FORMAT, "1 bytes follow the gzip stream");
    bytes = make_gzip(packed, sizeof packed, images, n_images - 1);
    expect_open((char *)packed, bytes, ERR_FORMAT, "cut short: U8 (12, 2, 3)");
    bytes = make_gzip(packed, sizeof packed, images, n_images + 1);
    expect_open((char *)packed, bytes, ERR_FORMAT, "more than its IDX header declares");
    bytes = make_gzip(packed, sizeof packed, images, 7);
    expect_open((char *)packed, bytes, ERR_FORMAT, "cut in its IDX header");
    bytes = make_gzip(packed, sizeof packed, images, 0);
    expect_open((char *)packed, bytes, ERR_FORMAT, "cut in its IDX header");
    bytes = make_gzip(packed, sizeof packed, "PK\x03\x04 a zip", 10);
    expect_open((char *)packed, bytes, ERR_FORMAT, "0x504b0304");
    bytes = make_gzip(packed, sizeof packed, images, n_images);
    bytes = make_gzip(twice, sizeof twice, packed, bytes);
    expect_open((char *)twice, bytes, ERR_FORMAT, "0x1f8b0800");
}

/* A small file that promises terabytes is refused before they are asked of the machine. */
Test(dataset_idx, gzip_that_promises_too_much, .init = temp_enter, .fini = temp_leave) {
    uint8_t head[] = {0, 0, 8, 3, 0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff, 0, 0, 0x7f, 0xff};
    uint8_t packed[256];
    struct rusage before;
    struct rusage after;
    getrusage(RUSAGE_SELF, &before);
    size_t bytes = make_gzip(packed, sizeof packed, head, sizeof head);
    expect_open((char *)packed, bytes, ERR_FORMAT, "cannot hold them");
    getrusage(RUSAGE_SELF, &after);
    cr_assert_lt(after.ru_maxrss - before.ru_maxrss, 20000, "something large was allocated");
}

Test(dataset_idx, labels_must_be_as_many, .init = temp_enter, .fini = temp_leave) {
    uint8_t images[512];
    uint8_t labels[64];
    uint8_t packed[512];
    size_t n_images = make_images(images, 12);
    size_t n_labels = make_labels(labels, 11);
    DataSpec spec = idx_spec(temp_write("x", images, n_images), temp_write("y", labels, n_labels));
    Dataset *dataset = NULL;
    for (int turn = 0; turn < 2; turn++) {
        /* whichever half is asked for, and both */
        for (int want = 0; want < 4; want++) {
            int rc = dataset_open(&spec, want & 1, want & 2, &dataset);
            cr_assert_eq(rc, ERR_FORMAT);
            cr_assert(
                strstr(err_text(), "holds 12 samples") && strstr(err_text(), "holds 11 targets") &&
                    strstr(err_text(), spec.input_path) && strstr(err_text(), spec.target_path),
                "%s", err_text());
        }
        temp_write("y", packed, make_gzip(packed, sizeof packed, labels, n_labels));
    }
    /* A worker that has only its own half cannot compare. */
    cr_assert_eq(unlink(spec.target_path), 0);
    cr_assert_eq(dataset_open(&spec, true, false, &dataset), 0, "%s", err_text());
    dataset_close(dataset);
    cr_assert_eq(dataset_open(&spec, true, true, &dataset), ERR_NOT_FOUND);
    cr_assert(strstr(err_text(), spec.target_path), "%s", err_text());
    cr_assert_eq(unlink(spec.input_path), 0);
    cr_assert_eq(dataset_open(&spec, false, false, &dataset), ERR_NOT_FOUND);
}

Test(dataset_idx, big_endian_numbers, .init = temp_enter, .fini = temp_leave) {
    static const char floats[] = "\0\0\x0d\x02\0\0\0\2\0\0\0\2"
                                 "\x3f\x80\0\0\xc0\0\0\0\x40\x40\0\0\x3f\0\0\0";
    static const char ints[] = "\0\0\x0c\x01\0\0\0\2\0\0\0\7\xff\xff\xff\xff";
    DataSpec spec = idx_spec(temp_write("x", floats, sizeof floats - 1),
                             temp_write("y", ints, sizeof ints - 1));
    Dataset *dataset = NULL;
    float got[2];
    int32_t label = 0;
    cr_assert_eq(dataset_open(&spec, true, true, &dataset), 0, "%s", err_text());
    cr_assert_eq(dataset_read_input(dataset, 0, got), 0);
    cr_assert(got[0] == 1 && got[1] == -2);
    cr_assert_eq(dataset_read_input(dataset, 1, got), 0);
    cr_assert(got[0] == 3 && got[1] == 0.5F);
    cr_assert_eq(dataset_read_target(dataset, 0, &label), 0);
    cr_assert_eq(label, 7);
    cr_assert_eq(dataset_read_target(dataset, 1, &label), ERR_FORMAT);
    cr_assert(strstr(err_text(), "sample 1") && strstr(err_text(), "-1"), "%s", err_text());
    dataset_close(dataset);
}

/* ---- the real thing ---- */

#define FASHION "/usr/share/datasets/fashion-mnist/"

Test(dataset_idx, fashion_mnist) {
    DataSpec spec =
        idx_spec(FASHION "train-images-idx3-ubyte.gz", FASHION "train-labels-idx1-ubyte.gz");
    if (access(spec.input_path, R_OK) != 0)
        cr_skip_test("fashion_mnist: there is no " FASHION);
    Dataset *dataset = NULL;
    spec.shape = shape_3d(1, 28, 28);
    spec.n_channels = 1;
    spec.mean[0] = 0.2860F;
    spec.std[0] = 0.3530F;
    cr_assert_eq(dataset_open(&spec, true, true, &dataset), 0, "%s", err_text());
    cr_assert_eq(dataset_samples(dataset), 60000);
    DType dtype;
    Shape shape;
    cr_assert_eq(dataset_input_form(dataset, &dtype, &shape), 0);
    cr_assert_eq(dtype, DTYPE_F32);
    cr_assert(shape_equal(&shape, &spec.shape));
    cr_assert_eq(dataset_target_form(dataset, &shape), 0);
    cr_assert_eq(shape.n_dims, 0);
    int counts[10] = {0};
    double sum = 0;
    double squares = 0;
    static float got[784];
    for (int64_t s = 0; s < 60000; s++) {
        int32_t label = -1;
        cr_assert_eq(dataset_read_target(dataset, s, &label), 0);
        cr_assert(label >= 0 && label <= 9);
        counts[label]++;
        cr_assert_eq(dataset_read_input(dataset, s, got), 0);
        for (int i = 0; i < 784; i++) {
            sum += (double)got[i];
            squares += (double)got[i] * (double)got[i];
        }
    }
    for (int i = 0; i < 10; i++)
        cr_assert_eq(counts[i], 6000);
    cr_assert_float_eq(sum / (60000.0 * 784), 0, 1e-3);
    cr_assert_float_eq(squares / (60000.0 * 784), 1, 1e-3);
    dataset_close(dataset);
}

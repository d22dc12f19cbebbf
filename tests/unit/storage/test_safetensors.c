#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/process.h"
#include "storage/safetensors.h"
#include "tests/support/temp_folder.h"

/* ---- hostile headers ---- */

/* A file of this header (its length in front) and n_data bytes of data. */
static uint8_t *make_file(const char *header, size_t n_data, size_t *out_bytes) {
    uint64_t length = strlen(header);
    uint8_t *file = calloc(1, 8 + length + n_data + 1);
    memcpy(file, &length, 8);
    memcpy(file + 8, header, length + 1);
    for (size_t i = 0; i < n_data; i++)
        file[8 + length + i] = (uint8_t)(i * 7 + 1);
    *out_bytes = 8 + length + n_data;
    return file;
}

static void expect_open(const uint8_t *data, size_t bytes, int code, const char *words) {
    Safetensors *file = NULL;
    uint8_t *exact = malloc(bytes ? bytes : 1); /* so that a read beyond the end is seen */
    memcpy(exact, data, bytes);
    int rc = safetensors_open_memory("m.safetensors", exact, bytes, &file);
    cr_expect_eq(rc, code, "%s: got %d (%s)", words, rc, err_text());
    if (code < 0) {
        cr_expect_null(file);
        cr_expect(strstr(err_text(), words), "'%s' is not in '%s'", words, err_text());
        cr_expect(strstr(err_text(), "m.safetensors"), "'%s' names no file", err_text());
    }
    safetensors_close(file);
    free(exact);
}

static void expect_refused(const char *header, size_t n_data, int code, const char *words) {
    size_t bytes;
    uint8_t *file = make_file(header, n_data, &bytes);
    expect_open(file, bytes, code, words);
    free(file);
}

static void expect_raw(const char *data, size_t bytes, const char *words) {
    expect_open((const uint8_t *)data, bytes, ERR_FORMAT, words);
}

static void expect_length(uint64_t length, const char *words) {
    uint8_t file[64] = {[8] = '{', [9] = '}'};
    memcpy(file, &length, 8);
    expect_open(file, sizeof file, ERR_FORMAT, words);
}

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"

Test(safetensors_hostile, header_length) {
    expect_length(0, "header length is 0");
    expect_length(1, "header length is 1");
    expect_length(57, "beyond the file's 64");
    expect_length(UINT64_C(1) << 32, "beyond the file's 64");
    expect_length(UINT64_C(1) << 63, "9223372036854775808");
    expect_length(UINT64_MAX, "18446744073709551615");
    expect_length(UINT64_MAX - 7, "18446744073709551608");
    for (size_t bytes = 0; bytes < 8; bytes++)
        expect_raw("\0\0\0\0\0\0\0", bytes, "it has only");
}

Test(safetensors_hostile, header_over_100_mb, .init = temp_enter, .fini = temp_leave) {
    uint64_t length = 100000001;
    const char *path = temp_write("big", &length, 8);
    cr_assert_eq(truncate(path, 100000100), 0); /* a hole: no bytes on disk */
    Safetensors *file = NULL;
    struct rusage before;
    struct rusage after;
    getrusage(RUSAGE_SELF, &before);
    cr_assert_eq(safetensors_open(path, &file), ERR_LIMIT);
    getrusage(RUSAGE_SELF, &after);
    cr_assert(strstr(err_text(), "100000001") && strstr(err_text(), path), "%s", err_text());
    cr_assert_lt(after.ru_maxrss - before.ru_maxrss, 50000, "something large was allocated");
}

Test(safetensors_hostile, not_the_form) {
    expect_refused("{\"\xff\xfe\":1}", 0, ERR_FORMAT, "not UTF-8");
    expect_refused("{\"\xc0\x80\":1}", 0, ERR_FORMAT, "not UTF-8");
    expect_refused("{oh no", 0, ERR_FORMAT, "safetensors header");
    expect_refused("{} x", 0, ERR_FORMAT, "safetensors header");
    expect_refused("[1, 2]", 0, ERR_FORMAT, "not a JSON object");
    expect_refused(" {}", 0, ERR_FORMAT, "not a JSON object");
    expect_refused("{\"a\":[]}", 0, ERR_FORMAT, "'a' is not described by an object");
    expect_refused("{\"a\":null}", 0, ERR_FORMAT, "'a' is not described by an object");
    char deep[600] = "{\"a\":";
    memset(deep + 5, '[', 500);
    expect_refused(deep, 0, ERR_FORMAT, "safetensors header");
}

Test(safetensors_hostile, duplicate_keys) {
    expect_refused("{" A "," A "}", 8, ERR_FORMAT, "duplicate key 'a'");
    expect_refused("{" A ",\"\\u0061\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
                   16, ERR_FORMAT, "duplicate key 'a'");
    expect_refused("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],"
                   "\"data_offsets\":[0,8]}}",
                   8, ERR_FORMAT, "duplicate key 'dtype'");
    expect_refused("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, ERR_FORMAT,
                   "duplicate key 'k'");
}

#define TENSOR(name, dtype, shape, offsets)                                                        \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

Test(safetensors_hostile, layout) {
    expect_refused("{" A "," TENSOR("b", "F32", "[2]", "[4,12]") "}", 12, ERR_FORMAT,
                   "'a' and 'b' overlap at data byte 4");
    expect_refused("{" A "," TENSOR("b", "F32", "[2]", "[0,8]") "}", 8, ERR_FORMAT, "overlap");
    expect_refused("{" A "," TENSOR("e", "F32", "[0]", "[4,4]") "}", 8, ERR_FORMAT, "overlap");
    expect_refused("{" A "," TENSOR("b", "F32", "[2]", "[12,20]") "}", 20, ERR_FORMAT,
                   "a gap: data bytes 8 to 12 before tensor 'b'");
    expect_refused("{" TENSOR("b", "F32", "[2]", "[4,12]") "}", 12, ERR_FORMAT,
                   "a gap: data bytes 0 to 4");
    expect_refused("{" A "}", 12, ERR_FORMAT, "4 bytes follow the last tensor");
    expect_refused("{}", 1, ERR_FORMAT, "1 bytes follow");
    expect_refused("{" A "}", 7, ERR_FORMAT, "'a' ends at data byte 8, the file has 7");
    expect_refused("{" TENSOR("a", "F32", "[2]", "[8,0]") "}", 8, ERR_FORMAT, "reversed");
    expect_refused("{" TENSOR("a", "F32", "[3]", "[0,8]") "}", 8, ERR_FORMAT,
                   "F32 (3) needs 12 bytes, it has 8");
    expect_refused("{" TENSOR("a", "BF16", "[2]", "[0,8]") "}", 8, ERR_FORMAT, "needs 4 bytes");
    expect_refused("{" TENSOR("a", "F32", "[]", "[0,8]") "}", 8, ERR_FORMAT, "needs 4 bytes");
}

Test(safetensors_hostile, fields) {
    expect_refused("{" TENSOR("a", "F33", "[2]", "[0,8]") "}", 8, ERR_FORMAT, "tensor 'a': 'F33'");
    expect_refused("{\"a\":{\"dtype\":4,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, ERR_FORMAT,
                   "dtype is not text");
    expect_refused("{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, ERR_FORMAT, "no 'dtype'");
    expect_refused("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, ERR_FORMAT,
                   "no 'shape'");
    expect_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, ERR_FORMAT, "no 'data_offsets'");
    expect_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8,
                   ERR_FORMAT, "unknown key 'x'");
    expect_refused("{" TENSOR("a", "F32", "2", "[0,8]") "}", 8, ERR_FORMAT, "not an array");
    expect_refused("{" TENSOR("a", "F32", "[-2]", "[0,8]") "}", 8, ERR_FORMAT, "dim 0");
    expect_refused("{" TENSOR("a", "F32", "[2.5]", "[0,8]") "}", 8, ERR_FORMAT, "dim 0");
    expect_refused("{" TENSOR("a", "F32", "[1,\"2\"]", "[0,8]") "}", 8, ERR_FORMAT, "dim 1");
    expect_refused("{" TENSOR("a", "F32", "[1e300]", "[0,8]") "}", 8, ERR_FORMAT, "dim 0");
    expect_refused("{" TENSOR("a", "F32", "[1,1,1,1,1,1,2]", "[0,8]") "}", 8, ERR_LIMIT,
                   "more than 6 dims");
    expect_refused("{" TENSOR("a", "F32", "[4294967296,4294967296]", "[0,0]") "}", 0, ERR_LIMIT,
                   "tensor 'a'");
    expect_refused("{" TENSOR("a", "F32", "[2]", "[0]") "}", 8, ERR_FORMAT, "data_offsets");
    expect_refused("{" TENSOR("a", "F32", "[2]", "[0,8,8]") "}", 8, ERR_FORMAT, "data_offsets");
    expect_refused("{" TENSOR("a", "F32", "[2]", "[-8,0]") "}", 8, ERR_FORMAT, "data_offsets");
    expect_refused("{" TENSOR("a", "F32", "[2]", "[0,1e19]") "}", 8, ERR_FORMAT, "data_offsets");
    expect_refused("{" TENSOR("a", "F32", "[2]", "{}") "}", 8, ERR_FORMAT, "data_offsets");
    expect_refused("{\"__metadata__\":{\"k\":1}}", 0, ERR_FORMAT, "'k' is not text");
    expect_refused("{\"__metadata__\":\"k\"}", 0, ERR_FORMAT, "not an object");
    char name[400];
    snprintf(name, sizeof name,
             "{\"%0300d\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 7);
    expect_refused(name, 1, ERR_LIMIT, "longer than 255 bytes");
}

Test(safetensors_hostile, says_what_it_looks_like) {
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 9\n";
    static const char html[] = "<!DOCTYPE html><html><body>404</body></html>";
    expect_raw("\x80\x04\x95\x20\x00\x00\x00\x00\x00\x00\x00}q", 13, "pickle");
    expect_raw("\x80\x02}q\x00(X\x06\x00\x00\x00weight", 16, "pickle");
    expect_raw("PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00archive/data.pkl", 28, "zip archive");
    expect_raw(lfs, sizeof lfs - 1, "Git LFS pointer");
    expect_raw(html, sizeof html - 1, "HTML page");
    expect_raw("<html>\n<head></head></html>", 27, "HTML page");
    expect_raw("{\"weights\": [1, 2, 3]}", 22, "JSON text");
    expect_raw("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", 10, "gzip");
    expect_raw("\x93NUMPY\x01\x00v\x00{'descr'", 18, "NumPy");
}

Test(safetensors_hostile, every_cut_is_refused) {
    size_t bytes;
    uint8_t *file = make_file("{" A "," TENSOR("b", "I16", "[3]", "[8,14]") "}  ", 14, &bytes);
    expect_open(file, bytes, 0, "");
    for (size_t cut = 0; cut < bytes; cut++)
        expect_open(file, cut, ERR_FORMAT, "");
    free(file);
}

Test(safetensors_hostile, paths, .init = temp_enter, .fini = temp_leave) {
    Safetensors *file = NULL;
    cr_assert_eq(safetensors_open(temp_path("none"), &file), ERR_NOT_FOUND);
    cr_assert(strstr(err_text(), "none"));
    cr_assert_eq(safetensors_open(temp_folder, &file), ERR_IO);
    cr_assert_eq(mkfifo(temp_path("fifo"), 0600), 0);
    cr_assert_eq(safetensors_open(temp_path("fifo"), &file), ERR_IO);
    cr_assert_null(file);
    safetensors_close(NULL);
}

/* ---- reading and writing ---- */

Test(safetensors, reads_unaligned_data_and_metadata) {
    size_t bytes;
    uint8_t *data =
        make_file("{\"__metadata__\":{\"format\":\"pt\",\"k\":\"\\u00e4 \\\"q\\\"\"},"
                  "\"z\":{\"data_offsets\":[0,1],\"dtype\":\"U8\",\"shape\":[]}," TENSOR(
                      "w", "F32", "[1,2]", "[1,9]") "," TENSOR("e", "F32", "[3,0]", "[9,9]") "}   ",
                  9, &bytes);
    Safetensors *file = NULL;
    cr_assert_eq(safetensors_open_memory("m", data, bytes, &file), 0, "%s", err_text());
    cr_assert_eq(safetensors_count(file), 3);
    cr_assert_str_eq(safetensors_at(file, 0)->name, "z");
    cr_assert_str_eq(safetensors_at(file, 2)->name, "e");
    cr_assert_null(safetensors_at(file, 3));
    cr_assert_null(safetensors_at(file, -1));
    cr_assert_null(safetensors_find(file, "y"));
    cr_assert_null(safetensors_find(file, "__metadata__"));
    const SafetensorsEntry *w = safetensors_find(file, "w");
    cr_assert_eq(w->offset, 1);
    cr_assert_eq(w->shape.n_dims, 2);
    uint8_t got[8];
    cr_assert_eq(safetensors_read(file, w, got, 7), ERR_LIMIT);
    cr_assert_eq(safetensors_read(file, w, got, 8), 0);
    cr_assert_eq(memcmp(got, data + bytes - 8, 8), 0);
    cr_assert_eq(safetensors_read(file, safetensors_find(file, "e"), got, 0), 0);
    cr_assert_str_eq(safetensors_metadata(file, "format"), "pt");
    cr_assert_str_eq(safetensors_metadata(file, "k"), "\xc3\xa4 \"q\"");
    cr_assert_null(safetensors_metadata(file, "none"));
    safetensors_close(file);
    free(data);
}

enum { N_ROUND = 15 };

/* One tensor of each element type, a scalar and an empty one. */
static void make_tensors(SafetensorsTensor *out, void **out_block) {
    static char names[N_ROUND][32];
    uint8_t *block = malloc(N_ROUND * 64);
    for (size_t i = 0; i < N_ROUND * 64; i++)
        block[i] = (uint8_t)(i * 31 + i / 64);
    for (int i = 0; i < N_ROUND; i++) {
        snprintf(names[i], sizeof names[i], i == 3 ? "q\"\\\n\xc3\xa4" : "t%d", i);
        out[i] = (SafetensorsTensor){.name = names[i],
                                     .dtype = i < 13 ? (DType)(i + 1) : DTYPE_F32,
                                     .shape = shape_2d(2, 3),
                                     .data = block + i * 64};
    }
    out[13].shape = (Shape){0};
    out[14].shape = shape_3d(4, 0, 2);
    *out_block = block;
}

Test(safetensors, round_trip_of_every_type, .init = temp_enter, .fini = temp_leave) {
    SafetensorsTensor tensors[N_ROUND];
    void *block;
    make_tensors(tensors, &block);
    SafetensorsMeta meta[] = {{"step", "17"}, {"a\tkey", "line\nand \"quote\" \\ \x01"}};
    const char *path = temp_path("x.safetensors");
    cr_assert_eq(safetensors_write(path, tensors, N_ROUND, meta, 2, NULL), 0, "%s", err_text());
    Safetensors *file = NULL;
    cr_assert_eq(safetensors_open(path, &file), 0, "%s", err_text());
    cr_assert_eq(safetensors_count(file), N_ROUND);
    for (int i = 0; i < N_ROUND; i++) {
        const SafetensorsEntry *entry = safetensors_find(file, tensors[i].name);
        cr_assert_not_null(entry, "%s", tensors[i].name);
        cr_assert_eq(entry->dtype, tensors[i].dtype);
        cr_assert(shape_equal(&entry->shape, &tensors[i].shape));
        uint8_t got[64];
        cr_assert_eq(safetensors_read(file, entry, got, sizeof got), 0);
        cr_assert_eq(memcmp(got, tensors[i].data, entry->bytes), 0);
    }
    for (int i = 1; i < N_ROUND; i++) /* empty tensors sort before their neighbour */
        cr_assert_leq(safetensors_at(file, i - 1)->offset, safetensors_at(file, i)->offset);
    cr_assert_str_eq(safetensors_metadata(file, "step"), "17");
    cr_assert_str_eq(safetensors_metadata(file, "a\tkey"), meta[1].value);
    safetensors_close(file);
    cr_assert_eq(temp_count(temp_folder, ""), 1, "a temporary file was left");
    free(block);
}

Test(safetensors, same_tensors_same_bytes, .init = temp_enter, .fini = temp_leave) {
    SafetensorsTensor tensors[N_ROUND];
    SafetensorsTensor turned[N_ROUND];
    void *block;
    make_tensors(tensors, &block);
    for (int i = 0; i < N_ROUND; i++)
        turned[i] = tensors[N_ROUND - 1 - i];
    SafetensorsMeta meta[] = {{"a", "1"}, {"b", "2"}};
    SafetensorsMeta turned_meta[] = {{"b", "2"}, {"a", "1"}};
    cr_assert_eq(safetensors_write(temp_path("a"), tensors, N_ROUND, meta, 2, NULL), 0);
    cr_assert_eq(safetensors_write(temp_path("b"), turned, N_ROUND, turned_meta, 2, NULL), 0);
    Buf a;
    Buf b;
    buf_init(&a, 0);
    buf_init(&b, 0);
    cr_assert_eq(buf_read_file(&a, temp_path("a"), 1 << 20), 0);
    cr_assert_eq(buf_read_file(&b, temp_path("b"), 1 << 20), 0);
    cr_assert_eq(a.bytes, b.bytes);
    cr_assert_eq(memcmp(a.data, b.data, a.bytes), 0);
    uint64_t length;
    memcpy(&length, a.data, 8);
    cr_assert_eq((8 + length) % 64, 0);
    cr_assert_eq(safetensors_write(temp_path("e"), NULL, 0, NULL, 0, NULL), 0, "%s", err_text());
    Safetensors *file = NULL;
    cr_assert_eq(safetensors_open(temp_path("e"), &file), 0, "%s", err_text());
    cr_assert_eq(safetensors_count(file), 0);
    safetensors_close(file);
    buf_done(&a);
    buf_done(&b);
    free(block);
}

Test(safetensors, many_tensors_are_found_by_name, .init = temp_enter, .fini = temp_leave) {
    enum { N = 20000 };
    SafetensorsTensor *tensors = calloc(N, sizeof *tensors);
    char(*names)[32] = calloc(N, sizeof *names);
    int32_t *values = calloc(N, sizeof *values);
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "layer.%d.weight", i);
        values[i] = i * 3;
        tensors[i] = (SafetensorsTensor){names[i], DTYPE_I32, {0}, &values[i]};
    }
    const char *path = temp_path("many");
    cr_assert_eq(safetensors_write(path, tensors, N, NULL, 0, NULL), 0, "%s", err_text());
    Safetensors *file = NULL;
    cr_assert_eq(safetensors_open(path, &file), 0, "%s", err_text());
    for (int i = 0; i < N; i++) {
        int32_t got = -1;
        const SafetensorsEntry *entry = safetensors_find(file, names[i]);
        cr_assert_not_null(entry);
        cr_assert_eq(safetensors_read(file, entry, &got, sizeof got), 0);
        cr_assert_eq(got, values[i]);
    }
    safetensors_close(file);
    free(values);
    free(names);
    free(tensors);
}

Test(safetensors, writer_refuses_what_no_reader_would_take, .init = temp_enter,
     .fini = temp_leave) {
    float data[4] = {0};
    char long_name[400];
    memset(long_name, 'n', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    SafetensorsTensor good = {"a", DTYPE_F32, shape_1d(4), data};
    SafetensorsTensor twice[] = {good, good};
    SafetensorsMeta meta[] = {{"k", "1"}, {"k", "2"}};
    SafetensorsMeta latin[] = {{"k", "\xe4"}};
    const char *path = temp_path("x");
    cr_assert_eq(safetensors_write(path, twice, 2, NULL, 0, NULL), ERR_ARGUMENT);
    cr_assert(strstr(err_text(), "duplicate tensor 'a'"), "%s", err_text());
    cr_assert_eq(safetensors_write(path, &good, 1, meta, 2, NULL), ERR_ARGUMENT);
    cr_assert_eq(safetensors_write(path, &good, 1, latin, 1, NULL), ERR_ARGUMENT);
    SafetensorsTensor bad = good;
    bad.name = "__metadata__";
    cr_assert_eq(safetensors_write(path, &bad, 1, NULL, 0, NULL), ERR_ARGUMENT);
    bad.name = "\xff";
    cr_assert_eq(safetensors_write(path, &bad, 1, NULL, 0, NULL), ERR_ARGUMENT);
    bad.name = long_name;
    cr_assert_eq(safetensors_write(path, &bad, 1, NULL, 0, NULL), ERR_LIMIT);
    bad = good;
    bad.shape = shape_2d(-1, 4);
    cr_assert_eq(safetensors_write(path, &bad, 1, NULL, 0, NULL), ERR_LIMIT);
    bad = good;
    bad.dtype = DTYPE_NONE;
    cr_assert_eq(safetensors_write(path, &bad, 1, NULL, 0, NULL), ERR_ARGUMENT);
    cr_assert_eq(temp_count(temp_folder, ""), 0);
    char nowhere[300];
    snprintf(nowhere, sizeof nowhere, "%s/none/x", temp_folder);
    cr_assert_eq(safetensors_write(nowhere, &good, 1, NULL, 0, NULL), ERR_NOT_FOUND);
    cr_assert(strstr(err_text(), nowhere), "%s", err_text());
}

/* ---- deaths and full disks ---- */

enum { BIG = 3 << 20 };

static int write_big(const char *path, uint8_t fill) {
    static uint8_t data[BIG];
    memset(data, fill, sizeof data);
    SafetensorsTensor tensor = {"w", DTYPE_U8, shape_1d(BIG), data};
    return safetensors_write(path, &tensor, 1, NULL, 0, NULL);
}

/* The file is whole and filled with one value. */
static uint8_t read_big(const char *path) {
    static uint8_t data[BIG];
    Safetensors *file = NULL;
    cr_assert_eq(safetensors_open(path, &file), 0, "%s", err_text());
    cr_assert_eq(safetensors_read(file, safetensors_find(file, "w"), data, BIG), 0);
    safetensors_close(file);
    cr_assert_eq(memcmp(data, data + 1, BIG - 1), 0, "two contents are mixed");
    return data[0];
}

Test(safetensors_death, a_kill_leaves_a_whole_file, .init = temp_enter, .fini = temp_leave,
     .timeout = 120) {
    char path[256];
    snprintf(path, sizeof path, "%s/w", temp_folder);
    cr_assert_eq(write_big(path, 1), 0, "%s", err_text());
    for (int turn = 0; turn < 40 && (turn < 12 || temp_count(temp_folder, ".tmp-") == 0); turn++) {
        pid_t child = fork();
        cr_assert_geq(child, 0);
        for (uint8_t fill = 2; child == 0; fill = fill < 200 ? fill + 1 : 2) {
            if (write_big(path, fill) < 0)
                _exit(1);
        }
        usleep(2000 + 3700u * (unsigned)turn);
        cr_assert_eq(kill(child, SIGKILL), 0);
        int status;
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert(WIFSIGNALED(status));
        read_big(path);
    }
    cr_assert_gt(temp_count(temp_folder, ".tmp-"), 0, "no write was cut by the kills");
}

Test(safetensors_death, a_file_size_limit_is_full, .init = temp_enter, .fini = temp_leave) {
    const char *path = temp_path("w");
    cr_assert_eq(write_big(path, 9), 0);
    struct rlimit before;
    process_begin(); /* else SIGXFSZ would end this test */
    getrlimit(RLIMIT_FSIZE, &before);
    static const rlim_t limits[] = {0, 64, 4096, BIG};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        struct rlimit limit = {.rlim_cur = limits[i], .rlim_max = before.rlim_max};
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        int rc = write_big(path, 10);
        setrlimit(RLIMIT_FSIZE, &before);
        cr_assert_eq(rc, ERR_FULL);
        cr_assert(strstr(err_text(), path), "%s", err_text());
        cr_assert_eq(temp_count(temp_folder, ""), 1, "a temporary file was left");
        cr_assert_eq(read_big(path), 9);
    }
}

Test(safetensors_death, a_full_disk_is_full, .init = temp_enter, .fini = temp_leave) {
    if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("none", temp_folder, "tmpfs", 0, "size=4m") < 0)
        cr_skip_test("a_full_disk_is_full: no small tmpfs can be mounted here");
    const char *path = temp_path("w");
    int first = write_big(path, 5);
    int second = write_big(path, 6); /* the old file leaves less room than this needs */
    char words[ERR_NOTE_BYTES];
    snprintf(words, sizeof words, "%s", err_text());
    int n_left = temp_count(temp_folder, "");
    uint8_t fill = first == 0 ? read_big(path) : 0;
    umount2(temp_folder, MNT_DETACH);
    cr_assert_eq(first, 0);
    cr_assert_eq(second, ERR_FULL, "%s", words);
    cr_assert_eq(n_left, 1, "a temporary file was left");
    cr_assert_eq(fill, 5);
}

Test(safetensors_death, a_file_cut_after_opening_is_an_error, .init = temp_enter,
     .fini = temp_leave) {
    const char *path = temp_path("w");
    static uint8_t data[BIG];
    cr_assert_eq(write_big(path, 1), 0);
    Safetensors *file = NULL;
    cr_assert_eq(safetensors_open(path, &file), 0);
    cr_assert_eq(truncate(path, 1000), 0);
    cr_assert_eq(safetensors_read(file, safetensors_at(file, 0), data, BIG), ERR_CORRUPT);
    cr_assert(strstr(err_text(), path), "%s", err_text());
    safetensors_close(file);
}

/* ---- a second opinion ---- */

Test(safetensors, python_reads_what_is_written, .init = temp_enter, .fini = temp_leave) {
    float data[3] = {1.5F, -2.0F, 0.25F};
    SafetensorsTensor tensors[] = {{"b", DTYPE_F32, shape_1d(3), data},
                                   {"a", DTYPE_F32, shape_2d(1, 2), data}};
    SafetensorsMeta meta[] = {{"k", "v\"\\"}};
    const char *path = temp_path("p");
    cr_assert_eq(safetensors_write(path, tensors, 2, meta, 1, NULL), 0);
    char command[1024];
    snprintf(command, sizeof command,
             "python3 -c \"import json,struct\n"
             "f=open('%s','rb').read(); n=struct.unpack('<Q',f[:8])[0]; h=json.loads(f[8:8+n])\n"
             "print(h.pop('__metadata__')['k'])\n"
             "for k,t in h.items():\n"
             "  a,b=t['data_offsets']; print(k,t['dtype'],t['shape'],"
             "struct.unpack('<%%df'%%((b-a)//4),f[8+n+a:8+n+b]))\" 2>/dev/null",
             path);
    FILE *pipe = popen(command, "r");
    char got[256] = "";
    size_t n = pipe ? fread(got, 1, sizeof got - 1, pipe) : 0;
    if (!pipe || pclose(pipe) != 0)
        cr_skip_test("python_reads_what_is_written: there is no python3 here");
    got[n] = '\0';
    cr_assert_str_eq(got, "v\"\\\na F32 [1, 2] (1.5, -2.0)\nb F32 [3] (1.5, -2.0, 0.25)\n");
}

#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/stat.h>

#include "core/err.h"
#include "storage/dataset.h"
#include "tests/support/temp_folder.h"

static void expect_open(const DataSpec *spec, bool input, bool target, int code,
                        const char *words) {
    Dataset *dataset = NULL;
    cr_expect_eq(dataset_open(spec, input, target, &dataset), code, "%s: %s", words, err_text());
    cr_expect(strstr(err_text(), words), "'%s' is not in '%s'", words, err_text());
    cr_expect_null(dataset);
}

/* The same bits. */
static bool same(const float *a, const float *b, size_t n) {
    const void *bits_a = a;
    const void *bits_b = b;
    return memcmp(bits_a, bits_b, n * sizeof *a) == 0;
}

/* ---- the common part, over IDX images of shape (2, 2, 3) ---- */

static DataSpec images(void) {
    uint8_t file[4 + 16 + 60] = {0, 0, 8, 4, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3};
    for (size_t i = 20; i < sizeof file; i++)
        file[i] = (uint8_t)(i * 4);
    static const uint8_t labels[] = {0, 0, 8, 1, 0, 0, 0, 5, 0, 1, 2, 3, 4};
    DataSpec spec = {.kind = DATA_IDX, .classes = 5};
    snprintf(spec.input_path, sizeof spec.input_path, "%s", temp_write("x", file, sizeof file));
    snprintf(spec.target_path, sizeof spec.target_path, "%s",
             temp_write("y", labels, sizeof labels));
    return spec;
}

Test(dataset, shapes_adapt_when_the_count_agrees, .init = temp_enter, .fini = temp_leave) {
    DataSpec spec = images();
    static const int n_dims[] = {0, 1, 2, 3};
    Shape shapes[] = {{0}, shape_1d(12), shape_2d(4, 3), shape_3d(12, 1, 1)};
    for (size_t i = 0; i < 4; i++) {
        Dataset *dataset = NULL;
        DType dtype;
        Shape shape;
        spec.shape = shapes[i];
        cr_assert_eq(dataset_open(&spec, true, false, &dataset), 0, "%s", err_text());
        cr_assert_eq(dataset_input_form(dataset, &dtype, &shape), 0);
        cr_assert_eq(shape.n_dims, n_dims[i] ? n_dims[i] : 3);
        cr_assert_eq(dataset_target_form(dataset, &shape), ERR_ARGUMENT);
        dataset_close(dataset);
    }
    spec.shape = shape_2d(1, 11);
    expect_open(&spec, true, false, ERR_FORMAT,
                "a sample has shape (2, 2, 3), the model's input "
                "has (1, 11)");
    spec.shape = shape_1d(-12);
    expect_open(&spec, true, false, ERR_LIMIT, "negative dim");
}

Test(dataset, channels_are_normalised_apart, .init = temp_enter, .fini = temp_leave) {
    DataSpec spec = images();
    spec.n_channels = 2;
    spec.mean[0] = 0.5F;
    spec.mean[1] = 0.25F;
    spec.std[0] = 0.5F;
    spec.std[1] = 0.125F;
    Shape shapes[] = {{0}, shape_1d(12), shape_3d(2, 2, 3)};
    for (size_t i = 0; i < 3; i++) {
        Dataset *dataset = NULL;
        float got[12];
        spec.shape = shapes[i];
        cr_assert_eq(dataset_open(&spec, true, false, &dataset), 0, "%s", err_text());
        cr_assert_eq(dataset_read_input(dataset, 1, got), 0);
        for (int e = 0; e < 12; e++) {
            float x = (float)(uint8_t)((20 + 12 + e) * 4) / 255.0F;
            cr_assert_eq(got[e], (x - spec.mean[e / 6]) / spec.std[e / 6]);
        }
        dataset_close(dataset);
    }
    spec.n_channels = 3;
    spec.std[2] = 1;
    expect_open(&spec, true, false, ERR_ARGUMENT, "mean and std have 3 channels");
    spec.n_channels = 2;
    spec.std[1] = 0;
    expect_open(&spec, true, false, ERR_ARGUMENT, "channel 1");
    spec.n_channels = 9;
    expect_open(&spec, true, false, ERR_ARGUMENT, "9 channels");
}

Test(dataset, samples_are_limited, .init = temp_enter, .fini = temp_leave) {
    DataSpec spec = images();
    Dataset *dataset = NULL;
    float got[12];
    int32_t label;
    spec.samples = 3;
    cr_assert_eq(dataset_open(&spec, true, true, &dataset), 0);
    cr_assert_eq(dataset_samples(dataset), 3);
    cr_assert_eq(dataset_read_input(dataset, 2, got), 0);
    cr_assert_eq(dataset_read_input(dataset, 3, got), ERR_ARGUMENT);
    cr_assert_eq(dataset_read_input(dataset, -1, got), ERR_ARGUMENT);
    cr_assert_eq(dataset_read_target(dataset, 3, &label), ERR_ARGUMENT);
    cr_assert(strstr(err_text(), "sample 3 is asked of 3"), "%s", err_text());
    dataset_close(dataset);
    spec.samples = 6;
    expect_open(&spec, true, true, ERR_ARGUMENT, "6 samples are asked");
    spec.samples = -1;
    expect_open(&spec, true, true, ERR_ARGUMENT, "-1 samples are asked");
}

Test(dataset, halves_that_were_not_asked_for, .init = temp_enter, .fini = temp_leave) {
    DataSpec spec = images();
    Dataset *dataset = NULL;
    float got[12];
    int32_t label;
    cr_assert_eq(dataset_open(&spec, false, false, &dataset), 0, "%s", err_text());
    cr_assert_eq(dataset_samples(dataset), 5);
    cr_assert_eq(dataset_read_input(dataset, 0, got), ERR_ARGUMENT);
    cr_assert_eq(dataset_read_target(dataset, 0, &label), ERR_ARGUMENT);
    dataset_close(dataset);
    dataset_close(NULL);
    spec.classes = 0;
    expect_open(&spec, false, true, ERR_ARGUMENT, "number of classes");
    spec.classes = 4;
    cr_assert_eq(dataset_open(&spec, false, true, &dataset), 0, "%s", err_text());
    cr_assert_eq(dataset_read_target(dataset, 4, &label), ERR_FORMAT);
    cr_assert(strstr(err_text(), "sample 4") && strstr(err_text(), "target 4 is not in [0, 4)"),
              "%s", err_text());
    dataset_close(dataset);
    spec.target_path[0] = '\0';
    expect_open(&spec, true, true, ERR_ARGUMENT, "no file of targets");
    spec.kind = (DataKind)17;
    expect_open(&spec, true, true, ERR_ARGUMENT, "17");
}

Test(dataset, paths_that_are_no_files, .init = temp_enter, .fini = temp_leave) {
    DataSpec spec = {.kind = DATA_TOKENS, .token_dtype = DTYPE_U8, .context = 2, .vocab = 9};
    snprintf(spec.input_path, sizeof spec.input_path, "%s", temp_path("none"));
    for (int kind = DATA_IDX; kind <= DATA_TOKENS; kind++) {
        spec.kind = (DataKind)kind;
        unlink(spec.input_path);
        expect_open(&spec, true, false, ERR_NOT_FOUND, spec.input_path);
        cr_assert_eq(mkfifo(spec.input_path, 0600), 0);
        expect_open(&spec, true, false, ERR_IO, spec.input_path);
    }
}

/* ---- files that change ---- */

static Dataset *open_marked(DataSpec *spec) {
    Dataset *dataset = NULL;
    memset(spec->marks, 0, sizeof spec->marks);
    cr_assert_eq(dataset_open(spec, true, true, &dataset), 0, "%s", err_text());
    dataset_marks(dataset, spec->marks);
    dataset_close(dataset);
    cr_assert_eq(dataset_open(spec, true, true, &dataset), 0, "%s", err_text());
    cr_assert_eq(dataset_check_files(dataset), 0, "%s", err_text());
    return dataset;
}

/* The same bytes, a nanosecond later: how soon after a write a file has another time depends on the
 * kernel's clock. */
static void touch(const char *path) {
    struct stat about;
    cr_assert_eq(stat(path, &about), 0);
    struct timespec times[2] = {about.st_atim, about.st_mtim};
    times[1].tv_nsec = (times[1].tv_nsec + 1) % 1000000000;
    cr_assert_eq(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void expect_changed(const DataSpec *spec, bool input, bool target, const char *path) {
    char words[ORDER_PATH_BYTES + 80];
    snprintf(words, sizeof words, "the data file '%s' changed since the job began", path);
    expect_open(spec, input, target, ERR_FORMAT, words);
}

Test(dataset, rewritten_in_place_is_noticed, .init = temp_enter, .fini = temp_leave) {
    DataSpec spec = images();
    const char *paths[] = {spec.input_path, spec.target_path};
    for (int i = 0; i < 2; i++) {
        Dataset *dataset = open_marked(&spec);
        touch(paths[i]);
        cr_assert_eq(dataset_check_files(dataset), ERR_FORMAT);
        cr_assert(strstr(err_text(), paths[i]), "%s", err_text());
        dataset_close(dataset);
        expect_changed(&spec, true, true, paths[i]);
        expect_changed(&spec, i == 0, i == 1, paths[i]);
    }
    Dataset *dataset = open_marked(&spec);
    cr_assert_eq(truncate(spec.target_path, 9), 0);
    cr_assert_eq(dataset_check_files(dataset), ERR_FORMAT);
    dataset_close(dataset);
}

/* What is open stays what it was; who comes later finds another file. */
Test(dataset, replaced_is_noticed_when_opened, .init = temp_enter, .fini = temp_leave) {
    DataSpec spec = images();
    Dataset *dataset = open_marked(&spec);
    struct stat about;
    cr_assert_eq(stat(spec.input_path, &about), 0);
    uint8_t file[80] = {0, 0, 8, 4, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3};
    const char *other = temp_write("other", file, sizeof file);
    struct timespec times[2] = {about.st_atim, about.st_mtim};
    cr_assert_eq(utimensat(AT_FDCWD, other, times, 0), 0);
    cr_assert_eq(rename(other, spec.input_path), 0);
    cr_assert_eq(dataset_check_files(dataset), 0);
    dataset_close(dataset);
    expect_changed(&spec, true, false, spec.input_path);
}

Test(dataset, tokens_have_a_mark, .init = temp_enter, .fini = temp_leave) {
    static const uint8_t tokens[40] = {1};
    DataSpec spec = {
        .kind = DATA_TOKENS, .token_dtype = DTYPE_U8, .context = 4, .vocab = 8, .classes = 8};
    snprintf(spec.input_path, sizeof spec.input_path, "%s", temp_write("t", tokens, 40));
    Dataset *dataset = open_marked(&spec);
    cr_assert_eq(spec.marks[0].bytes, 40);
    cr_assert_eq(spec.marks[1].bytes, 0);
    touch(spec.input_path);
    cr_assert_eq(dataset_check_files(dataset), ERR_FORMAT);
    dataset_close(dataset);
    expect_changed(&spec, true, false, spec.input_path);
}

/* ---- tokens ---- */

static DataSpec tokens(DType dtype, const void *data, size_t bytes) {
    DataSpec spec = {.kind = DATA_TOKENS, .token_dtype = dtype, .context = 3, .vocab = 10};
    snprintf(spec.input_path, sizeof spec.input_path, "%s", temp_write("t", data, bytes));
    return spec;
}

static void check_tokens(const DataSpec *spec) {
    Dataset *dataset = NULL;
    DType dtype;
    Shape shape;
    int32_t got[3];
    cr_assert_eq(dataset_open(spec, true, true, &dataset), 0, "%s", err_text());
    cr_assert_eq(dataset_samples(dataset), 3);
    cr_assert_eq(dataset_input_form(dataset, &dtype, &shape), 0);
    cr_assert(dtype == DTYPE_I32 && shape.n_dims == 1 && shape.dims[0] == 3);
    for (int s = 0; s < 3; s++) {
        cr_assert_eq(dataset_read_input(dataset, s, got), 0, "%s", err_text());
        cr_assert(got[0] == s * 3 && got[1] == s * 3 + 1 && got[2] == s * 3 + 2);
        cr_assert_eq(dataset_read_target(dataset, s, got), 0, "%s", err_text());
        cr_assert(got[0] == s * 3 + 1 && got[1] == s * 3 + 2 && got[2] == s * 3 + 3);
    }
    dataset_close(dataset);
}

Test(dataset_tokens, every_type_counts_to_nine, .init = temp_enter, .fini = temp_leave) {
    uint8_t u8[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    uint16_t u16[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 300}; /* the rest makes no sample */
    uint32_t u32[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    DataSpec spec = tokens(DTYPE_U8, u8, sizeof u8);
    check_tokens(&spec);
    spec = tokens(DTYPE_U16, u16, sizeof u16);
    check_tokens(&spec);
    spec = tokens(DTYPE_U32, u32, sizeof u32);
    check_tokens(&spec);
    spec = tokens(DTYPE_I32, u32, sizeof u32);
    spec.shape = shape_1d(3);
    spec.classes = 10;
    check_tokens(&spec);
}

Test(dataset_tokens, sizes_that_do_not_fit, .init = temp_enter, .fini = temp_leave) {
    static const uint8_t data[40] = {0};
    DataSpec spec = tokens(DTYPE_U16, data, 21);
    expect_open(&spec, true, false, ERR_FORMAT, "21 bytes are no whole number of U16");
    spec = tokens(DTYPE_U8, data, 3);
    expect_open(&spec, true, false, ERR_FORMAT, "3 tokens make no sample of context 3");
    spec = tokens(DTYPE_U8, data, 0);
    expect_open(&spec, true, false, ERR_FORMAT, "is empty");
    spec = tokens(DTYPE_F32, data, 40);
    expect_open(&spec, true, false, ERR_ARGUMENT, "tokens of type F32");
    spec = tokens(DTYPE_U8, data, 40);
    spec.shape = shape_1d(4);
    expect_open(&spec, true, false, ERR_FORMAT, "the model's input has (4)");
    spec.shape = (Shape){0};
    spec.context = 0;
    expect_open(&spec, true, false, ERR_ARGUMENT, "context");
    spec.context = INT64_MAX;
    expect_open(&spec, true, false, ERR_LIMIT, "");
    spec.context = 3;
    spec.vocab = 0;
    expect_open(&spec, true, false, ERR_ARGUMENT, "vocabulary");
    spec.vocab = INT64_C(1) << 40;
    expect_open(&spec, true, false, ERR_ARGUMENT, "vocabulary");
}

static void expect_bad_token(const DataSpec *spec, bool target, const char *words) {
    Dataset *dataset = NULL;
    int32_t got[3];
    cr_assert_eq(dataset_open(spec, true, true, &dataset), 0, "%s", err_text());
    cr_expect_eq(dataset_read_input(dataset, 0, got), 0, "%s", err_text());
    int rc = target ? dataset_read_target(dataset, 1, got) : dataset_read_input(dataset, 1, got);
    cr_expect_eq(rc, ERR_FORMAT);
    cr_expect(strstr(err_text(), words) && strstr(err_text(), spec->input_path), "%s", err_text());
    dataset_close(dataset);
}

Test(dataset_tokens, ids_outside_the_vocabulary, .init = temp_enter, .fini = temp_leave) {
    int32_t high[] = {0, 1, 2, 3, 4, 10, 6};
    int32_t low[] = {0, 1, 2, 3, -1, 5, 6};
    int32_t last[] = {0, 1, 2, 3, 4, 5, 10};
    uint32_t wrap[] = {0, 1, 2, 3, UINT32_MAX, 5, 6};
    DataSpec spec = tokens(DTYPE_I32, high, sizeof high);
    expect_bad_token(&spec, false, "sample 1, position 2: token 10 is not in [0, 10)");
    expect_bad_token(&spec, true, "sample 1, position 2: token 10");
    spec = tokens(DTYPE_I32, low, sizeof low);
    expect_bad_token(&spec, false, "sample 1, position 1: token -1");
    spec = tokens(DTYPE_I32, last, sizeof last);
    expect_bad_token(&spec, true, "sample 1, position 3: token 10");
    spec = tokens(DTYPE_U32, wrap, sizeof wrap);
    expect_bad_token(&spec, false, "token 4294967295");
    spec = tokens(DTYPE_I32, low, sizeof low);
    spec.has_ignore = true; /* only a target may be ignored */
    spec.ignore_index = -1;
    expect_bad_token(&spec, false, "token -1");
    Dataset *dataset = NULL;
    int32_t got[3];
    cr_assert_eq(dataset_open(&spec, false, true, &dataset), 0);
    cr_assert_eq(dataset_read_target(dataset, 1, got), 0, "%s", err_text());
    cr_assert_eq(got[0], -1);
    dataset_close(dataset);
}

/* ---- generated ---- */

static DataSpec clusters(uint64_t seed) {
    return (DataSpec){.kind = DATA_GENERATED,
                      .samples = 2000,
                      .shape = shape_3d(1, 5, 5),
                      .classes = 7,
                      .seed = seed};
}

Test(dataset_generated, clusters_are_learnable_and_even) {
    DataSpec spec = clusters(3);
    Dataset *dataset = NULL;
    cr_assert_eq(dataset_open(&spec, true, true, &dataset), 0, "%s", err_text());
    static double mean[7][25];
    int counts[7] = {0};
    float x[25];
    int32_t label;
    for (int64_t s = 0; s < 1000; s++) {
        cr_assert_eq(dataset_read_input(dataset, s, x), 0);
        cr_assert_eq(dataset_read_target(dataset, s, &label), 0);
        cr_assert(label >= 0 && label < 7);
        counts[label]++;
        for (int e = 0; e < 25; e++)
            mean[label][e] += (double)x[e];
    }
    int n_right = 0;
    for (int64_t s = 1000; s < 2000; s++) { /* the nearest mean of the first half is the class */
        cr_assert_eq(dataset_read_input(dataset, s, x), 0);
        cr_assert_eq(dataset_read_target(dataset, s, &label), 0);
        int best = 0;
        double least = 1e300;
        for (int c = 0; c < 7; c++) {
            double distance = 0;
            for (int e = 0; e < 25; e++) {
                double d = (double)x[e] - mean[c][e] / counts[c];
                distance += d * d;
            }
            if (distance < least) {
                least = distance;
                best = c;
            }
        }
        n_right += best == label;
    }
    cr_assert_gt(n_right, 950, "%d of 1000", n_right);
    for (int c = 0; c < 7; c++)
        cr_assert(counts[c] > 100 && counts[c] < 190, "class %d: %d", c, counts[c]);
    dataset_close(dataset);
}

Test(dataset_generated, depends_on_seed_and_sample_only) {
    DataSpec spec = clusters(3);
    DataSpec other = clusters(4);
    Dataset *a = NULL;
    Dataset *b = NULL;
    Dataset *c = NULL;
    float x[25];
    float y[25];
    spec.samples = 50;
    cr_assert_eq(dataset_open(&spec, true, false, &a), 0);
    spec.samples = 60;
    cr_assert_eq(dataset_open(&spec, true, true, &b), 0);
    cr_assert_eq(dataset_open(&other, true, true, &c), 0);
    for (int64_t s = 49; s >= 0; s--) {
        cr_assert_eq(dataset_read_input(a, s, x), 0);
        cr_assert_eq(dataset_read_input(b, s, y), 0);
        cr_assert(same(x, y, 25));
        cr_assert_eq(dataset_read_input(c, s, y), 0);
        cr_assert_not(same(x, y, 25));
    }
    /* Golden: the same bits on every machine, for ever. */
    int32_t label;
    cr_assert_eq(dataset_read_input(b, 7, x), 0);
    cr_assert_eq(dataset_read_target(b, 7, &label), 0);
    cr_assert_eq(label, 4);
    cr_assert(x[0] == 0x1.b108p-2F && x[4] == 0x1.a56p-3F && x[24] == -0x1.297p-4F);
    dataset_close(a);
    dataset_close(b);
    dataset_close(c);
}

Test(dataset_generated, tokens_follow_a_rule_mostly) {
    DataSpec spec = {.kind = DATA_GENERATED,
                     .generated_tokens = true,
                     .samples = 200,
                     .shape = shape_1d(64),
                     .vocab = 97,
                     .seed = 11};
    Dataset *dataset = NULL;
    cr_assert_eq(dataset_open(&spec, true, true, &dataset), 0, "%s", err_text());
    int32_t x[64];
    int32_t y[64];
    int n_kept = 0;
    for (int64_t s = 0; s < 200; s++) {
        cr_assert_eq(dataset_read_input(dataset, s, x), 0);
        cr_assert_eq(dataset_read_target(dataset, s, y), 0);
        cr_assert_eq(memcmp(x + 1, y, 63 * sizeof x[0]), 0, "targets are the ids one later");
        for (int i = 0; i < 64; i++) {
            cr_assert(x[i] >= 0 && x[i] < 97 && y[i] >= 0 && y[i] < 97);
            n_kept += y[i] == (5 * x[i] + 3) % 97;
        }
    }
    cr_assert(n_kept > 11800 && n_kept < 12300, "%d of 12800", n_kept);
    dataset_close(dataset);
}

Test(dataset_generated, what_it_needs) {
    DataSpec spec = clusters(1);
    spec.samples = 0;
    expect_open(&spec, true, true, ERR_ARGUMENT, "number of samples");
    spec = clusters(1);
    spec.classes = 0;
    expect_open(&spec, true, true, ERR_ARGUMENT, "number of classes");
    spec = clusters(1);
    spec.shape = (Shape){0};
    expect_open(&spec, true, true, ERR_ARGUMENT, "input shape");
    spec = clusters(1);
    spec.generated_tokens = true;
    expect_open(&spec, true, true, ERR_ARGUMENT, "vocabulary");
    spec.vocab = 8;
    expect_open(&spec, true, true, ERR_ARGUMENT, "do not fit 7 classes");
    spec.vocab = 7;
    spec.context = 26;
    expect_open(&spec, true, true, ERR_FORMAT, "(26)");
    spec.shape = (Shape){0};
    Dataset *dataset = NULL;
    cr_assert_eq(dataset_open(&spec, true, true, &dataset), 0, "%s", err_text());
    dataset_close(dataset);
}

/* ---- threads ---- */

typedef struct Reader {
    const Dataset *dataset;
    const float *want;
    int n_wrong;
} Reader;

static void *read_all(void *argument) {
    Reader *reader = argument;
    float got[12];
    for (int turn = 0; turn < 2000; turn++) {
        int64_t s = turn % 5;
        reader->n_wrong += dataset_read_input(reader->dataset, s, got) != 0 ||
                           !same(got, reader->want + s * 12, 12);
    }
    return NULL;
}

Test(dataset, many_threads_read_one_set, .init = temp_enter, .fini = temp_leave) {
    DataSpec spec = images();
    Dataset *dataset = NULL;
    float want[60];
    pthread_t threads[4];
    Reader readers[4];
    cr_assert_eq(dataset_open(&spec, true, false, &dataset), 0);
    for (int64_t s = 0; s < 5; s++)
        cr_assert_eq(dataset_read_input(dataset, s, want + s * 12), 0);
    for (int i = 0; i < 4; i++) {
        readers[i] = (Reader){.dataset = dataset, .want = want};
        cr_assert_eq(pthread_create(&threads[i], NULL, read_all, &readers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_eq(readers[i].n_wrong, 0);
    }
    dataset_close(dataset);
}

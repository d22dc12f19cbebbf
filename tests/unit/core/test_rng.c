#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"

/* Known-answer vectors of Philox 4x32-10 from Random123's kat_vectors. */
Test(rng, philox_known_answers) {
    static const struct {
        uint32_t counter[4];
        uint32_t key[2];
        uint32_t answer[4];
    } vectors[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        RngBlock block = rng_philox(vectors[i].counter, vectors[i].key);
        cr_assert_arr_eq(block.v, vectors[i].answer, sizeof vectors[i].answer, "vector %zu", i);
    }
}

/* The header's definition, word by word: devices implement it from there. */
Test(rng, dropout_stream_is_the_documented_one) {
    uint64_t seed = UINT64_C(0x0123456789abcdef);
    int64_t step = INT64_C(0x500000007);
    uint32_t counter[4] = {11, 3, 42, 7u ^ 0x9E3779B9u * 5u};
    uint32_t key[2] = {0x89abcdef, 0x01234567};
    RngBlock want = rng_philox(counter, key);
    RngBlock got = rng_dropout(seed, step, 42, 3, 11);
    cr_assert_arr_eq(got.v, want.v, sizeof want.v);
}

Test(rng, dropout_threshold_edges) {
    cr_assert_eq(rng_dropout_threshold(0.0F), 0u);
    cr_assert_eq(rng_dropout_threshold(-1.0F), 0u);
    cr_assert_eq(rng_dropout_threshold(NAN), 0u);
    cr_assert_eq(rng_dropout_threshold(0.5F), 0x80000000u);
    cr_assert_eq(rng_dropout_threshold(0.25F), 0x40000000u);
    cr_assert_eq(rng_dropout_threshold(1.0F), UINT32_MAX);
    cr_assert_eq(rng_dropout_threshold(nextafterf(1.0F, 0.0F)), 0xFFFFFF00u);
}

Test(rng, dropout_keeps_the_asked_share) {
    uint32_t threshold = rng_dropout_threshold(0.1F);
    int kept = 0;
    enum { N_BLOCKS = 50000 };
    for (uint32_t block = 0; block < N_BLOCKS; block++) {
        RngBlock words = rng_dropout(5, 9, 2, 1, block);
        for (int i = 0; i < 4; i++)
            kept += words.v[i] >= threshold;
    }
    cr_assert_float_eq(kept / (4.0 * N_BLOCKS), 0.9, 0.004);
}

enum { N_FILL = 200000 };

Test(rng, uniform_statistics) {
    float *w = malloc(N_FILL * sizeof *w);
    rng_fill_uniform(1, "stem.weight", 0.25F, w, N_FILL);
    double sum = 0;
    double sum2 = 0;
    for (int i = 0; i < N_FILL; i++) {
        cr_assert(w[i] >= -0.25F && w[i] <= 0.25F);
        sum += w[i];
        sum2 += (double)w[i] * w[i];
    }
    /* Standard errors: 0.25/sqrt(3 n) = 3.2e-4 of the mean; about 4.2e-5 of the second moment. */
    cr_assert_float_eq(sum / N_FILL, 0.0, 1.6e-3);
    cr_assert_float_eq(sum2 / N_FILL, 0.25 * 0.25 / 3, 2.1e-4);
    free(w);
}

Test(rng, normal_statistics) {
    float *w = malloc(N_FILL * sizeof *w);
    rng_fill_normal(1, "stem.weight", 2.0F, w, N_FILL);
    double m1 = 0;
    double m2 = 0;
    double m3 = 0;
    double m4 = 0;
    double lag = 0;
    int beyond = 0;
    for (int i = 0; i < N_FILL; i++) {
        double z = w[i] / 2.0;
        cr_assert(isfinite(z) && fabs(z) < 6.8);
        m1 += z;
        m2 += z * z;
        m3 += z * z * z;
        m4 += z * z * z * z;
        lag += i ? z * w[i - 1] / 2.0 : 0;
        beyond += fabs(z) > 1.959964;
    }
    cr_assert_float_eq(m1 / N_FILL, 0.0, 0.011);
    cr_assert_float_eq(m2 / N_FILL, 1.0, 0.016);
    cr_assert_float_eq(m3 / N_FILL, 0.0, 0.045);
    cr_assert_float_eq(m4 / N_FILL, 3.0, 0.11);
    cr_assert_float_eq(lag / N_FILL, 0.0, 0.011);
    cr_assert_float_eq(beyond / (double)N_FILL, 0.05, 0.0025);
    free(w);
}

/* The same formula with the C library's functions, to a float's precision. */
Test(rng, normal_is_box_muller) {
    enum { N = 40000 };
    static float z[N];
    static float u[N];
    rng_fill_normal(77, "w", 1.0F, z, N);
    rng_fill_uniform(77, "w", 1.0F, u, N); /* the same words, as 2u - 1 rounded to float */
    double worst = 0;
    for (int i = 0; i < N; i += 2) {
        double u1 = ((double)u[i] + 1) / 2;
        double u2 = ((double)u[i + 1] + 1) / 2;
        if (u1 < 0.01)
            continue; /* the rounding of u itself is visible there */
        double radius = sqrt(-2 * log(u1));
        if (radius < 0.1)
            continue;
        worst = fmax(worst, fabs(z[i] - radius * cos(2 * M_PI * u2)));
        worst = fmax(worst, fabs(z[i + 1] - radius * sin(2 * M_PI * u2)));
    }
    cr_assert_lt(worst, 2e-5);
}

Test(rng, weights_depend_on_seed_name_and_index_only) {
    float a[103];
    float b[103];
    rng_fill_normal(9, "a", 1.0F, a, 103);
    for (size_t n = 0; n <= 9; n++) {
        memset(b, 0, sizeof b);
        rng_fill_normal(9, "a", 1.0F, b, n);
        cr_assert_arr_eq(a, b, n * sizeof *a);
        cr_assert_eq(b[n], 0.0F);
    }
    rng_fill_normal(9, "b", 1.0F, b, 103);
    cr_assert_neq(memcmp(a, b, sizeof a), 0);
    rng_fill_normal(10, "a", 1.0F, b, 103);
    cr_assert_neq(memcmp(a, b, sizeof a), 0);
}

/* Frozen bits: weights of a job must not change with a new release or another machine. */
Test(rng, weights_are_frozen) {
    float z[4];
    float u[4];
    rng_fill_normal(1234, "layer1.weight", 1.0F, z, 4);
    rng_fill_uniform(1234, "layer1.weight", 1.0F, u, 4);
    static const float want_z[4] = {-0x1.2b5698p+0F, 0x1.f363bcp-3F, -0x1.af40bep+0F,
                                    0x1.070f5ap-1F};
    static const float want_u[4] = {-0x1.47ab4cp-6F, -0x1.0c0d0ap-4F, -0x1.26da5ep-1F,
                                    -0x1.81f794p-4F};
    cr_assert_arr_eq(z, want_z, sizeof z, "%a, %a, %a, %a", z[0], z[1], z[2], z[3]);
    cr_assert_arr_eq(u, want_u, sizeof u, "%a, %a, %a, %a", u[0], u[1], u[2], u[3]);
}

static void check_permutation(uint64_t seed, int64_t epoch, int64_t n) {
    unsigned char *seen = calloc((size_t)n, 1);
    for (int64_t i = 0; i < n; i++) {
        int64_t to = rng_permute(seed, epoch, n, i);
        cr_assert(to >= 0 && to < n, "n %ld index %ld gives %ld", (long)n, (long)i, (long)to);
        cr_assert_eq(seen[to], 0, "n %ld: %ld twice", (long)n, (long)to);
        seen[to] = 1;
    }
    free(seen);
}

Test(rng, permute_is_a_permutation, .timeout = 120) {
    for (int64_t n = 1; n <= 2000; n++)
        check_permutation(3, n % 7, n);
    check_permutation(UINT64_MAX, INT64_C(1) << 40, 65537);
    check_permutation(0, 0, 1281167);
}

static int compare_i64(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

Test(rng, permute_of_large_n_stays_inside_and_apart) {
    enum { N_SAMPLES = 20000 };
    static int64_t to[N_SAMPLES];
    static const int64_t sizes[] = {INT64_C(1) << 40, (INT64_C(1) << 40) - 1,
                                    (INT64_C(1) << 38) + 1, INT64_C(1) << 32, 4294967291};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        double sum = 0;
        for (int i = 0; i < N_SAMPLES; i++) {
            int64_t index = i < N_SAMPLES / 2 ? i : sizes[s] - 1 - (i - N_SAMPLES / 2);
            to[i] = rng_permute(8, 1, sizes[s], index);
            cr_assert(to[i] >= 0 && to[i] < sizes[s]);
            sum += (double)to[i] / (double)sizes[s];
        }
        cr_assert_float_eq(sum / N_SAMPLES, 0.5, 0.012);
        qsort(to, N_SAMPLES, sizeof to[0], compare_i64);
        for (int i = 1; i < N_SAMPLES; i++)
            cr_assert_neq(to[i - 1], to[i]);
    }
}

Test(rng, permute_changes_with_epoch_and_seed_and_is_frozen) {
    int same_epoch = 0;
    int same_seed = 0;
    for (int64_t i = 0; i < 1000; i++) {
        same_epoch += rng_permute(1, 0, 1000, i) == rng_permute(1, 1, 1000, i);
        same_seed += rng_permute(1, 0, 1000, i) == rng_permute(2, 0, 1000, i);
    }
    cr_assert_lt(same_epoch, 10);
    cr_assert_lt(same_seed, 10);
    int64_t first[4];
    for (int64_t i = 0; i < 4; i++)
        first[i] = rng_permute(1234, 2, 60000, i);
    static const int64_t want[4] = {44074, 16365, 51036, 33360};
    cr_assert_arr_eq(first, want, sizeof want, "%ld, %ld, %ld, %ld", (long)first[0], (long)first[1],
                     (long)first[2], (long)first[3]);
}

/* Where an element lands is nearly uniform over the epochs. (Four rounds on the two or three bits
 * of a tiny n are not quite fair: hence a tenth of tolerance.) */
Test(rng, permute_is_fair_over_epochs) {
    static const int64_t sizes[] = {2, 3, 5, 8, 17, 64};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        int64_t n = sizes[s];
        enum { N_EPOCHS = 20000 };
        int count[64] = {0};
        for (int64_t epoch = 0; epoch < N_EPOCHS; epoch++)
            count[rng_permute(4, epoch, n, 1)]++;
        double expected = (double)N_EPOCHS / (double)n;
        for (int64_t i = 0; i < n; i++)
            cr_assert_float_eq(count[i], expected, 5 * sqrt(expected) + expected / 10,
                               "n %ld: %d times at %ld", (long)n, count[i], (long)i);
    }
}

#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

#include "core/err.h"
#include "worker/slab.h"

static uint64_t state;

static int below(int n) {
    uint64_t z = state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return (int)((z ^ z >> 31) % (uint64_t)n);
}

static size_t rounded(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* Largest sum of live bytes over time: the lower bound of any placement. */
static size_t peak_of(const Slab *slab) {
    size_t peak = 0;
    for (int32_t i = 0; i < slab->n_areas; i++) { /* it is reached where some area begins */
        size_t live = 0;
        int32_t now = slab->areas[i].begin;
        for (int32_t k = 0; k < slab->n_areas; k++) {
            const SlabArea *area = &slab->areas[k];
            live += area->begin <= now && now < area->end ? area->bytes : 0;
        }
        peak = live > peak ? live : peak;
    }
    return peak;
}

/* Live areas share no byte; all lie within the slab; its size is between the bounds. */
static void check(const Slab *slab) {
    size_t sum = 0, end = 0;
    for (int32_t i = 0; i < slab->n_areas; i++) {
        const SlabArea *a = &slab->areas[i];
        sum += rounded(a->bytes);
        cr_assert_eq(slab_offset(slab, i) % 64, 0);
        cr_assert(a->bytes > 0 || a->offset == 0);
        end = a->offset + a->bytes > end ? a->offset + a->bytes : end;
        for (int32_t k = 0; k < i; k++) {
            const SlabArea *b = &slab->areas[k];
            bool meet = a->begin < b->end && b->begin < a->end;
            bool share = a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
            cr_assert(!meet || !share || !a->bytes || !b->bytes, "areas %d and %d", i, k);
        }
    }
    cr_assert_eq(slab->bytes, end, "the total is not the end of the last area");
    cr_assert_geq(slab->bytes, peak_of(slab));
    cr_assert_leq(slab->bytes, sum);
}

static void fill(Slab *slab, uint64_t seed, int n, int steps) {
    state = seed;
    for (int i = 0; i < n; i++) {
        int begin = below(steps);
        int life = 1 + below(below(4) ? 5 : steps);
        size_t bytes = below(10) ? (size_t)below(5000) : (size_t)below(200000);
        cr_assert_eq(slab_add(slab, bytes, begin, begin + life), i);
    }
}

Test(slab, live_areas_never_share_bytes) {
    for (uint64_t seed = 1; seed <= 300; seed++) {
        Slab slab;
        slab_init(&slab);
        fill(&slab, seed, (int)(seed % 60), 3 + (int)(seed % 40));
        cr_assert_eq(slab_place(&slab), 0);
        check(&slab);
        slab_done(&slab);
    }
}

Test(slab, same_areas_same_places) {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        Slab a, b;
        slab_init(&a);
        slab_init(&b);
        fill(&a, seed, 50, 20);
        fill(&b, seed, 50, 20);
        cr_assert_eq(slab_place(&a), 0);
        cr_assert_eq(slab_place(&b), 0);
        cr_assert_eq(slab_place(&b), 0, "placing again");
        cr_assert_eq(a.bytes, b.bytes);
        for (int32_t i = 0; i < a.n_areas; i++)
            cr_assert_eq(a.areas[i].offset, b.areas[i].offset);
        slab_done(&a);
        slab_done(&b);
    }
}

Test(slab, as_small_as_can_be_in_plain_cases) {
    Slab slab;
    slab_init(&slab);
    for (int i = 0; i < 20; i++) /* one after another */
        slab_add(&slab, 640, i, i + 1);
    cr_assert_eq(slab_place(&slab), 0);
    cr_assert_eq(slab.bytes, 640);
    for (int i = 0; i < 20; i++) /* nested, as activations of a stage are */
        slab_add(&slab, 128, 100 + i, 200 - i);
    cr_assert_eq(slab_place(&slab), 0);
    cr_assert_eq(slab.bytes, 2560);
    cr_assert_eq(peak_of(&slab), 2560);
    check(&slab);
    slab_done(&slab);
}

Test(slab, near_the_peak_in_random_cases) {
    double worst = 0;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        Slab slab;
        slab_init(&slab);
        fill(&slab, seed, 200, 60);
        cr_assert_eq(slab_place(&slab), 0);
        double ratio = (double)slab.bytes / (double)peak_of(&slab);
        worst = ratio > worst ? ratio : worst;
        slab_done(&slab);
    }
    cr_log_info("worst size / peak: %.3f", worst);
    cr_assert_lt(worst, 1.5);
}

Test(slab, first_fit_by_size_then_order) {
    Slab slab;
    slab_init(&slab);
    slab_add(&slab, 64, 0, 10);
    slab_add(&slab, 100, 0, 10);
    slab_add(&slab, 100, 0, 10);
    slab_add(&slab, 60, 0, 10);
    cr_assert_eq(slab_place(&slab), 0);
    cr_assert_eq(slab_offset(&slab, 1), 0);
    cr_assert_eq(slab_offset(&slab, 2), 128);
    cr_assert_eq(slab_offset(&slab, 0), 256);
    cr_assert_eq(slab_offset(&slab, 3), 320);
    cr_assert_eq(slab.bytes, 380);
    slab_done(&slab);
}

Test(slab, half_open_lives_that_touch_share) {
    Slab slab;
    slab_init(&slab);
    slab_add(&slab, 100, 0, 5);
    slab_add(&slab, 100, 5, 9);
    cr_assert_eq(slab_place(&slab), 0);
    cr_assert_eq(slab.bytes, 100);
    slab_done(&slab);
}

Test(slab, empty_and_zero_byte_areas) {
    Slab slab;
    slab_init(&slab);
    cr_assert_eq(slab_place(&slab), 0);
    cr_assert_eq(slab.bytes, 0);
    cr_assert_eq(slab_add(&slab, 0, 3, 3), 0);
    cr_assert_eq(slab_add(&slab, 10, 0, 9), 1);
    cr_assert_eq(slab_add(&slab, 0, 0, 9), 2);
    cr_assert_eq(slab_place(&slab), 0);
    cr_assert_eq(slab_offset(&slab, 0), 0);
    cr_assert_eq(slab_offset(&slab, 2), 0);
    cr_assert_eq(slab.bytes, 10);
    slab_done(&slab);
    slab_done(&slab);
    slab_done(NULL);
}

Test(slab, refuses_impossible_areas) {
    Slab slab;
    slab_init(&slab);
    cr_assert_eq(slab_add(&slab, 10, 5, 4), ERR_INTERNAL);
    cr_assert_eq(slab_add(&slab, 10, 5, 5), ERR_INTERNAL);
    slab_add(&slab, SIZE_MAX, 0, 1);
    cr_assert_eq(slab_place(&slab), 0);
    slab_add(&slab, 1, 0, 1);
    cr_assert_eq(slab_place(&slab), ERR_LIMIT);
    slab_done(&slab);
    for (int i = 0; i < 3; i++)
        slab_add(&slab, SIZE_MAX / 2, 0, 1);
    cr_assert_eq(slab_place(&slab), ERR_LIMIT, "%s", err_text());
    slab_done(&slab);
}

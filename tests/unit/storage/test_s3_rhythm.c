/* When a store is asked: how many questions an object costs and how late it is found, for waits
 * that are steady, that scatter, that change, and that have outliers. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/rng.h"
#include "storage/s3_rhythm.h"

#define MS CLOCK_NS_PER_MS

typedef struct Waits {
    double mean_ms, scatter_ms, outliers; /* the share of those that take four times as long */
    double later_ms;                      /* the mean after half the steps; 0: the same */
} Waits;

typedef struct Seen {
    double questions, late_ms; /* an object, on the average */
} Seen;

static double uniform(uint32_t word) {
    return (word + 0.5) / 4294967296.0;
}

/* When the object of a step comes, after it was asked for. */
static int64_t comes_ns(const Waits *waits, int step, int n_steps) {
    const uint32_t counter[4] = {(uint32_t)step, 1, 2, 3};
    const uint32_t key[2] = {7, 9};
    RngBlock block = rng_philox(counter, key);
    double normal = sqrt(-2 * log(uniform(block.v[0]))) * cos(6.283185307 * uniform(block.v[1]));
    double mean = waits->later_ms > 0 && step >= n_steps / 2 ? waits->later_ms : waits->mean_ms;
    double ms = mean + waits->scatter_ms * normal;
    if (uniform(block.v[2]) < waits->outliers)
        ms *= 4;
    return ms > 0 ? (int64_t)(ms * (double)MS) : 0;
}

/* As a get does it, in time that is only counted. */
static int ask_until_there(S3Rhythm *rhythm, const char *key, int64_t there_ns, int64_t *out_ns) {
    int64_t now_ns = s3_rhythm_due_ns(rhythm, key);
    int64_t first_ns = now_ns;
    int n_misses = 0;
    while (now_ns < there_ns)
        now_ns += s3_rhythm_pause_ns(rhythm, key, now_ns, ++n_misses) + MS / 2;
    s3_rhythm_learn(rhythm, key, first_ns, now_ns, n_misses);
    *out_ns = now_ns;
    return n_misses + 1;
}

static Seen seen(const Waits *waits) {
    enum { N_STEPS = 1000, N_BEGIN = 50 };
    S3Rhythm *rhythm = NULL;
    Seen sum = {0};
    cr_assert_eq(s3_rhythm_open(&rhythm), 0);
    for (int step = 0; step < N_STEPS; step++) {
        char key[64];
        int64_t found_ns = 0;
        int64_t there_ns = comes_ns(waits, step, N_STEPS);
        snprintf(key, sizeof key, "job/g1/t%d/a.0-1.3", step);
        int n = ask_until_there(rhythm, key, there_ns, &found_ns);
        if (step < N_BEGIN)
            continue;
        sum.questions += (double)n / (N_STEPS - N_BEGIN);
        sum.late_ms += (double)(found_ns - there_ns) / (double)MS / (N_STEPS - N_BEGIN);
    }
    s3_rhythm_close(rhythm);
    return sum;
}

static void expect(Waits waits, double questions, double late_ms) {
    Seen was = seen(&waits);
    cr_log_info("%g ms +- %g, outliers %g, later %g: %.2f questions, %.2f ms late", waits.mean_ms,
                waits.scatter_ms, waits.outliers, waits.later_ms, was.questions, was.late_ms);
    cr_expect_leq(was.questions, questions + 1e-6, "%g ms +- %g: %.2f questions", waits.mean_ms,
                  waits.scatter_ms, was.questions);
    cr_expect_leq(was.late_ms, late_ms, "%g ms +- %g: %.2f ms late", waits.mean_ms,
                  waits.scatter_ms, was.late_ms);
}

Test(s3_rhythm, what_is_there_costs_one_question) {
    expect((Waits){0}, 1.0, 0.0);
}

Test(s3_rhythm, steady_waits) {
    expect((Waits){.mean_ms = 1, .scatter_ms = 0.3}, 1.2, 3);
    expect((Waits){.mean_ms = 5, .scatter_ms = 1}, 1.2, 4);
    expect((Waits){.mean_ms = 20, .scatter_ms = 2}, 1.25, 6);
    expect((Waits){.mean_ms = 100, .scatter_ms = 5}, 1.3, 15);
    expect((Waits){.mean_ms = 1000, .scatter_ms = 30}, 1.3, 100);
}

Test(s3_rhythm, waits_that_scatter) {
    expect((Waits){.mean_ms = 20, .scatter_ms = 6}, 1.3, 15);
    expect((Waits){.mean_ms = 100, .scatter_ms = 30}, 1.35, 60);
}

/* One late object in thirty makes the others little later. */
Test(s3_rhythm, outliers) {
    expect((Waits){.mean_ms = 20, .scatter_ms = 2, .outliers = 0.03}, 1.4, 14);
    expect((Waits){.mean_ms = 100, .scatter_ms = 5, .outliers = 0.03}, 1.45, 50);
}

Test(s3_rhythm, waits_that_change) {
    expect((Waits){.mean_ms = 100, .scatter_ms = 3, .later_ms = 10}, 1.3, 20);
    expect((Waits){.mean_ms = 10, .scatter_ms = 1, .later_ms = 100}, 1.4, 15);
}

/* The first wait of all may last: what comes after is not made to wait as long. */
Test(s3_rhythm, a_late_beginning) {
    S3Rhythm *rhythm = NULL;
    int64_t found_ns = 0;
    cr_assert_eq(s3_rhythm_open(&rhythm), 0);
    int n = ask_until_there(rhythm, "j/t0/x", 20 * CLOCK_NS_PER_S, &found_ns);
    cr_expect_lt(n, 200, "%d questions", n);
    cr_expect_lt(found_ns, 21 * CLOCK_NS_PER_S);
    cr_expect_leq(s3_rhythm_due_ns(rhythm, "j/t1/x"), 10 * MS);
    s3_rhythm_close(rhythm);
}

Test(s3_rhythm, classes) {
    S3Rhythm *rhythm = NULL;
    cr_assert_eq(s3_rhythm_open(&rhythm), 0);
    cr_expect_eq(s3_rhythm_due_ns(rhythm, "j/t1/x"), 0);
    s3_rhythm_learn(rhythm, "j2/g1/t9/a.0-1.3", 0, 50 * MS, 5);
    int64_t due_ns = s3_rhythm_due_ns(rhythm, "j2/g1/t10/a.0-1.3");
    cr_expect_gt(due_ns, 0);
    cr_expect_eq(s3_rhythm_due_ns(rhythm, "j33/g2/t11/a.0-1.3"), due_ns);
    cr_expect_eq(s3_rhythm_due_ns(rhythm, "j2/g1/t10/a.0-1.4"), 0);
    cr_expect_eq(s3_rhythm_due_ns(rhythm, "j2/g1/e10/a.0-1.3"), 0);
    cr_expect_eq(s3_rhythm_due_ns(rhythm, "a.0-1.3"), 0);
    s3_rhythm_close(rhythm);
    s3_rhythm_close(NULL);
}

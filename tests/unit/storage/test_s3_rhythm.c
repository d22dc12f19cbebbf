/* When a store is asked: how many questions an object costs and how late it is found, for waits
 * that are steady, that scatter, that change and that have outliers; and what becomes of workers
 * that wait for each other in a circle. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/rng.h"
#include "storage/s3_rhythm.h"

#define MS CLOCK_NS_PER_MS

enum { MAX_WORKERS = 16 };

static double uniform(uint32_t word) {
    return (word + 0.5) / 4294967296.0;
}

/* Normally distributed number i of a series. */
static double normal(uint32_t series, uint32_t i, double *out_uniform) {
    const uint32_t counter[4] = {i, series, 2, 3};
    const uint32_t key[2] = {7, 9};
    RngBlock block = rng_philox(counter, key);
    if (out_uniform)
        *out_uniform = uniform(block.v[2]);
    return sqrt(-2 * log(uniform(block.v[0]))) * cos(6.283185307 * uniform(block.v[1]));
}

/* A get in time that is only counted: asked for at ask_ns, there at there_ns, stamped by a clock
 * that is skew_ns ahead. Returns the questions, and when it was found. */
static int ask_until_there(S3Rhythm *rhythm, const char *key, int64_t ask_ns, int64_t there_ns,
                           int64_t stamp_ns, int64_t trip_ns, int64_t *out_ns) {
    S3Wait wait = {0};
    int n = 1;
    wait.found_ns = s3_rhythm_due_ns(rhythm, key);
    while (ask_ns + wait.found_ns + trip_ns / 2 < there_ns) {
        wait.missed = true;
        wait.missed_ns = wait.found_ns;
        wait.found_ns += trip_ns + s3_rhythm_pause_ns(rhythm, key, wait.found_ns);
        s3_rhythm_trip(rhythm, trip_ns);
        n++;
    }
    wait.age_ns = ask_ns + wait.found_ns - stamp_ns;
    s3_rhythm_trip(rhythm, trip_ns);
    s3_rhythm_learn(rhythm, key, &wait);
    *out_ns = ask_ns + wait.found_ns + trip_ns;
    return n;
}

/* ---- one reader ---- */

typedef struct Waits {
    double mean_ms, scatter_ms, outliers; /* the share of those that take four times as long */
    double later_ms;                      /* the mean after half the steps; 0: the same */
    double skew_ms;                       /* the writer's clock is ahead */
} Waits;

typedef struct Seen {
    double questions, late_ms; /* an object, on the average */
} Seen;

static Seen seen(const Waits *waits) {
    enum { N_STEPS = 1000, N_BEGIN = 50 };
    S3Rhythm *rhythm = NULL;
    Seen sum = {0};
    cr_assert_eq(s3_rhythm_open(&rhythm), 0);
    for (int step = 0; step < N_STEPS; step++) {
        char key[64];
        double chance = 0;
        int64_t found_ns = 0;
        double mean = waits->later_ms > 0 && step >= N_STEPS / 2 ? waits->later_ms : waits->mean_ms;
        double ms = mean + waits->scatter_ms * normal(1, (uint32_t)step, &chance);
        ms = ms * (chance < waits->outliers ? 4 : 1);
        int64_t there_ns = ms > 0 ? (int64_t)(ms * (double)MS) : 0;
        snprintf(key, sizeof key, "job/g1/t%d/a.0-1.3", step);
        int n = ask_until_there(rhythm, key, 0, there_ns,
                                there_ns - 2 * MS + (int64_t)(waits->skew_ms * (double)MS), MS,
                                &found_ns);
        if (step < N_BEGIN)
            continue;
        sum.questions += (double)n / (N_STEPS - N_BEGIN);
        sum.late_ms += (double)(found_ns - MS - there_ns) / (double)MS / (N_STEPS - N_BEGIN);
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
    cr_expect_leq(was.late_ms, late_ms + 1e-6, "%g ms +- %g: %.2f ms late", waits.mean_ms,
                  waits.scatter_ms, was.late_ms);
}

Test(s3_rhythm, what_is_there_costs_one_question) {
    expect((Waits){0}, 1.0, 0.0);
}

Test(s3_rhythm, steady_waits) {
    expect((Waits){.mean_ms = 5, .scatter_ms = 0.2}, 1.2, 0.5);
    expect((Waits){.mean_ms = 20, .scatter_ms = 0.5}, 1.3, 0.7);
    expect((Waits){.mean_ms = 100, .scatter_ms = 0.5}, 1.3, 0.7);
    expect((Waits){.mean_ms = 1000, .scatter_ms = 0.5}, 1.3, 0.7);
}

/* More than a round trip: more questions, and still hardly late. */
Test(s3_rhythm, waits_that_scatter) {
    expect((Waits){.mean_ms = 20, .scatter_ms = 3}, 2.2, 2);
    expect((Waits){.mean_ms = 100, .scatter_ms = 10}, 3, 5);
}

Test(s3_rhythm, outliers) {
    expect((Waits){.mean_ms = 20, .scatter_ms = 0.5, .outliers = 0.03}, 1.7, 2.5);
    expect((Waits){.mean_ms = 100, .scatter_ms = 0.5, .outliers = 0.03}, 1.9, 8);
}

Test(s3_rhythm, waits_that_change) {
    expect((Waits){.mean_ms = 100, .scatter_ms = 0.5, .later_ms = 10}, 1.4, 1.5);
    expect((Waits){.mean_ms = 10, .scatter_ms = 0.5, .later_ms = 100}, 1.5, 1.5);
}

Test(s3_rhythm, clocks_that_differ) {
    expect((Waits){.mean_ms = 20, .scatter_ms = 0.5, .skew_ms = 5000}, 1.4, 1.5);
    expect((Waits){.mean_ms = 20, .scatter_ms = 0.5, .skew_ms = -5000}, 1.4, 1.5);
}

/* The first wait of all may last: what comes after is not made to wait as long. */
Test(s3_rhythm, a_late_beginning) {
    S3Rhythm *rhythm = NULL;
    int64_t found_ns = 0;
    cr_assert_eq(s3_rhythm_open(&rhythm), 0);
    int n = ask_until_there(rhythm, "j/t0/x", 0, 20 * CLOCK_NS_PER_S, 0, MS, &found_ns);
    cr_expect_lt(n, 200, "%d questions", n);
    cr_expect_lt(found_ns, 21 * CLOCK_NS_PER_S);
    cr_expect_leq(s3_rhythm_due_ns(rhythm, "j/t1/x"), 10 * MS);
    s3_rhythm_close(rhythm);
}

/* ---- a circle ---- */

typedef struct Circle {
    int n_workers;
    double work_ms, scatter_ms, trip_ms, put_ms;
} Circle;

/* Each worker waits for the one before it, works, puts, and asks for the next step's object at
 * once: its wait is nearly the whole round. */
static void expect_circle(Circle circle, double slower, double questions) {
    enum { N_STEPS = 400 };
    S3Rhythm *rhythms[MAX_WORKERS];
    int64_t asked_ns[MAX_WORKERS] = {0};
    int64_t trip_ns = (int64_t)(circle.trip_ms * (double)MS);
    int64_t there_ns = 0;
    int64_t stamp_ns = 0;
    int64_t half_ns = 0;
    int n_questions = 0;
    uint32_t i = 0;
    for (int worker = 0; worker < circle.n_workers; worker++)
        cr_assert_eq(s3_rhythm_open(&rhythms[worker]), 0);
    for (int step = 0; step < N_STEPS; step++) {
        half_ns = step == N_STEPS / 2 ? there_ns : half_ns;
        n_questions = step == N_STEPS / 2 ? 0 : n_questions;
        for (int worker = 0; worker < circle.n_workers; worker++) {
            char key[32];
            int64_t found_ns = 0;
            snprintf(key, sizeof key, "j/t%d/x", step);
            n_questions += ask_until_there(rhythms[worker], key, asked_ns[worker], there_ns,
                                           stamp_ns, trip_ns, &found_ns);
            double work_ms = circle.work_ms + circle.scatter_ms * fabs(normal(2, i++, NULL));
            stamp_ns = found_ns + (int64_t)(work_ms * (double)MS);
            there_ns = stamp_ns + (int64_t)(circle.put_ms * (double)MS);
            asked_ns[worker] = stamp_ns;
        }
    }
    double took_ms = (double)(there_ns - half_ns) / (double)MS / (N_STEPS - N_STEPS / 2);
    double least_ms = circle.n_workers * (circle.work_ms + 0.8 * circle.scatter_ms +
                                          1.5 * circle.trip_ms + circle.put_ms);
    double asked = (double)n_questions / (N_STEPS - N_STEPS / 2) / circle.n_workers;
    cr_log_info("%d workers: a round takes %.1f ms of %.1f, %.2f questions", circle.n_workers,
                took_ms, least_ms, asked);
    cr_expect_leq(took_ms, least_ms * slower, "%d workers: %.1f ms of %.1f", circle.n_workers,
                  took_ms, least_ms);
    cr_expect_leq(asked, questions, "%d workers: %.2f questions", circle.n_workers, asked);
    for (int worker = 0; worker < circle.n_workers; worker++)
        s3_rhythm_close(rhythms[worker]);
}

Test(s3_rhythm, circles_do_not_slow_down) {
    expect_circle((Circle){2, 100, 0.5, 2, 5}, 1.05, 1.3); /* a step of some hundred ms */
    expect_circle((Circle){3, 100, 0.5, 2, 5}, 1.05, 1.3);
    expect_circle((Circle){2, 5, 0.5, 1, 2}, 1.05, 1.3);
    expect_circle((Circle){4, 5, 0.5, 1, 2}, 1.05, 1.4);
    expect_circle((Circle){8, 5, 0.5, 1, 2}, 1.1, 1.5);
    expect_circle((Circle){16, 5, 0.5, 1, 2}, 1.15, 1.8);
    expect_circle((Circle){8, 1, 0.2, 1, 2}, 1.1, 1.5);
    expect_circle((Circle){8, 5, 3, 1, 2}, 1.2, 2.5);
    expect_circle((Circle){8, 50, 5, 1, 2}, 1.1, 2.7);
    expect_circle((Circle){8, 20, 5, 15, 20}, 1.1, 1.6);
}

Test(s3_rhythm, classes) {
    S3Rhythm *rhythm = NULL;
    const S3Wait late = {.found_ns = 50 * MS, .missed = true, .missed_ns = 49 * MS, .age_ns = MS};
    cr_assert_eq(s3_rhythm_open(&rhythm), 0);
    cr_expect_eq(s3_rhythm_due_ns(rhythm, "j/t1/x"), 0);
    s3_rhythm_learn(rhythm, "j2/g1/t9/a.0-1.3", &late);
    int64_t due_ns = s3_rhythm_due_ns(rhythm, "j2/g1/t10/a.0-1.3");
    cr_expect_gt(due_ns, 0);
    cr_expect_lt(due_ns, 10 * MS);
    cr_expect_eq(s3_rhythm_due_ns(rhythm, "j33/g2/t11/a.0-1.3"), due_ns);
    cr_expect_eq(s3_rhythm_due_ns(rhythm, "j2/g1/t10/a.0-1.4"), 0);
    cr_expect_eq(s3_rhythm_due_ns(rhythm, "j2/g1/e10/a.0-1.3"), 0);
    cr_expect_eq(s3_rhythm_due_ns(rhythm, "a.0-1.3"), 0);
    s3_rhythm_close(rhythm);
    s3_rhythm_close(NULL);
}

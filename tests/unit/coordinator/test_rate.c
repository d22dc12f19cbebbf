/* The rate of steps that are seen in bunches. */
#include <criterion/criterion.h>

#include "coordinator/rate.h"
#include "core/clock.h"

static const int64_t start_ns = 7 * CLOCK_NS_PER_S;

static void near(double figure, double wanted) {
    cr_assert(figure > 0.9 * wanted && figure < 1.1 * wanted, "%g instead of %g", figure, wanted);
}

Test(rate, of_steps_that_are_waited_for) {
    Rate rate;
    rate_init(&rate, start_ns);
    near(rate_add(&rate, 100, start_ns + CLOCK_NS_PER_S, true), 100);
    for (int64_t step = 1; step < 3000; step++)
        near(rate_add(&rate, 100, start_ns + CLOCK_NS_PER_S + step * 5 * CLOCK_NS_PER_MS, true),
             20000);
}

/* 5 ms a step; each 300 ms the reader is away for 200 ms, and finds 40 steps at once. */
Test(rate, of_bunches) {
    Rate rate;
    rate_init(&rate, start_ns);
    for (int64_t step = 0; step < 2000; step++) {
        int64_t done_ns = (step + 1) * 5 * CLOCK_NS_PER_MS;
        int64_t phase = done_ns % (300 * CLOCK_NS_PER_MS);
        bool late = phase < 200 * CLOCK_NS_PER_MS && done_ns > 300 * CLOCK_NS_PER_MS;
        int64_t seen_ns =
            late ? done_ns - phase + 200 * CLOCK_NS_PER_MS + step * 15000 % 1000000 : done_ns;
        near(rate_add(&rate, 32, start_ns + seen_ns, !late), 6400);
    }
}

Test(rate, of_one_who_never_waits) {
    Rate rate;
    rate_init(&rate, start_ns);
    double figure = 0;
    for (int64_t step = 1; step < 5000; step++)
        figure = rate_add(&rate, 10, start_ns + step * CLOCK_NS_PER_MS, false);
    near(figure, 10000);
}

/* A change of pace is followed within two seconds; long steps are averaged over four. */
Test(rate, follows) {
    Rate rate;
    double figure = 0;
    int64_t now_ns = start_ns;
    rate_init(&rate, start_ns);
    for (int i = 0; i < 1000; i++)
        rate_add(&rate, 64, now_ns += 10 * CLOCK_NS_PER_MS, true);
    for (int i = 0; i < 110; i++)
        figure = rate_add(&rate, 64, now_ns += 20 * CLOCK_NS_PER_MS, true);
    near(figure, 3200);
    for (int i = 0; i < 8; i++)
        figure = rate_add(&rate, 64, now_ns += (i % 2 ? 12 : 8) * CLOCK_NS_PER_S, true);
    near(figure, 6.4);
}

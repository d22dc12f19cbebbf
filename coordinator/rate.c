#include "coordinator/rate.h"

#include <string.h>

#include "core/clock.h"

enum { RATE_WINDOW_MS = 2000, RATE_SPACING_MS = 50, RATE_LATE_MS = 300, RATE_MIN_MARKS = 4 };

void rate_init(Rate *rate, int64_t start_ns) {
    memset(rate, 0, sizeof *rate);
    rate->start_ns = start_ns;
}

static RateMark *mark_at(Rate *rate, int32_t i) {
    return &rate->marks[(rate->first + i) % RATE_MARKS];
}

static void forget_first(Rate *rate) {
    rate->first = (rate->first + 1) % RATE_MARKS;
    rate->n--;
}

static void add_mark(Rate *rate, int64_t now_ns) {
    if (rate->n > 0 && now_ns - mark_at(rate, rate->n - 1)->ns < RATE_SPACING_MS * CLOCK_NS_PER_MS)
        return;
    if (rate->n == RATE_MARKS)
        forget_first(rate);
    *mark_at(rate, rate->n++) = (RateMark){now_ns, rate->samples};
}

static double per_s(double samples, int64_t ns) {
    return samples * 1e9 / (double)(ns > 0 ? ns : 1);
}

double rate_add(Rate *rate, int64_t samples, int64_t now_ns, bool exact) {
    rate->samples += (double)samples;
    if (rate->n == 0) {
        rate->per_s = per_s(rate->samples, now_ns - rate->start_ns);
        add_mark(rate, now_ns);
        return rate->per_s;
    }
    /* One who never has to wait is the slowest himself: his times are as good as any. */
    if (!exact && now_ns - mark_at(rate, rate->n - 1)->ns < RATE_LATE_MS * CLOCK_NS_PER_MS)
        return rate->per_s;
    while (rate->n > RATE_MIN_MARKS &&
           mark_at(rate, 1)->ns <= now_ns - RATE_WINDOW_MS * CLOCK_NS_PER_MS)
        forget_first(rate);
    const RateMark *since = mark_at(rate, 0);
    rate->per_s = per_s(rate->samples - since->samples, now_ns - since->ns);
    add_mark(rate, now_ns);
    return rate->per_s;
}

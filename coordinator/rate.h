/* Rate: samples a second, from steps that are noticed late and several at a time. Who reads the
 * steps' norms now and then does something else, and then finds a number of steps done: their times
 * say nothing, so only those of steps that were waited for count. The figure is the mean over the
 * last two seconds, over at least four steps that were waited for where there are so many. */
#ifndef FUNCPIPE_COORDINATOR_RATE_H
#define FUNCPIPE_COORDINATOR_RATE_H

#include <stdbool.h>
#include <stdint.h>

enum { RATE_MARKS = 64 };

typedef struct RateMark {
    int64_t ns;
    double samples; /* all that were done by then */
} RateMark;

typedef struct Rate {
    int64_t start_ns;
    double samples, per_s; /* so far; the figure, 0: not known yet */
    int32_t first, n;
    RateMark marks[RATE_MARKS]; /* a ring */
} Rate;

void rate_init(Rate *rate, int64_t start_ns);
/* A step of so many samples was seen at now_ns (monotonic), and was waited for when `exact`.
 * Returns the figure; the first step's is that since start_ns. */
double rate_add(Rate *rate, int64_t samples, int64_t now_ns, bool exact);

#endif

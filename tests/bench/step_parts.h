/* Where the time of a training step goes at each stage of a pipeline without replicas or skips,
 * from the workers' traces. The computing thread is always in one of three:
 *
 *     compute   it executes a computation
 *     exposed   it waits for what has been made: that waits for a link, is in the relay or under
 * way bubble    it waits for what has not been made yet
 *
 * F of micro-batch m waits for what F of m made one stage earlier, B for what B made one stage
 * later, and R for the norms of all, which the last one to come makes. Exposed time ends with the
 * fetch instruction, so what the parts lack of the wall time is the interpreter's (or a mistake).
 */
#ifndef FUNCPIPE_TESTS_BENCH_STEP_PARTS_H
#define FUNCPIPE_TESTS_BENCH_STEP_PARTS_H

#include "tests/bench/work.h"

typedef struct StepParts { /* ms a step, means; wall: from the stage's own update to the next one */
    double wall, compute, exposed, bubble;
} StepParts;

/* Of every stage of the work's last run, over steps [first_step, its last]; first_step >= 1. */
void step_parts(const Work *work, int64_t first_step, StepParts *out_parts /* (n_stages) */);

#endif

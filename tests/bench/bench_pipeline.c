/* Pipelines of real worker processes over the file relay.
 *
 *     pipeline/two-stages           a convolutional network on two workers of one thread each
 *                                   against the same on one worker: ratio of samples per second
 *     pipeline/four-stages-emulated layers that only sleep, F = B, four stages: step time over the
 *                                   least there can be, (M + S - 1) (F + B)
 */
#include <stdio.h>

#include "core/err.h"
#include "tests/bench/bench.h"
#include "tests/bench/work.h"

enum { BATCH = 128, MICRO = 8, N_WARM = 3, N_STEPS = 10, N_ROUNDS = 7, MAX_STEPS = 64 };
enum { DELAY_MS = 8, DELAY_STAGES = 4 };

static double measure(Work *work) {
    double ms[MAX_STEPS];
    work_run(work);
    int n = work_step_ms(work, N_WARM, ms, MAX_STEPS);
    return bench_median(ms, n);
}

static void two_stages(void) {
    static const char name[] = "pipeline/two-stages";
    static const char options[] = "{\"image\":[3,32,32],\"channels\":[32,64,128],\"blocks\":2}";
    Work one;
    Work two;
    BenchRounds rounds = {0};
    double ms[2][BENCH_MAX_ROUNDS];
    work_init_zoo(&one, "cnn", options, 10 * BATCH);
    work_init_zoo(&two, "cnn", options, 10 * BATCH);
    work_batch(&one, BATCH, MICRO);
    work_batch(&two, BATCH, MICRO);
    work_steps(&one, N_WARM + N_STEPS);
    work_steps(&two, N_WARM + N_STEPS);
    two.hoist = 1;
    two.warmup = 3; /* one more than the stages, so that transfers overlap with computing */
    double balance = work_balance(&two, 2);
    const int m = BATCH / MICRO;
    bench_note("cut after layer %d of %d; without transfers the schedule allows %.2f",
               two.order.plan.ends[0], two.order.model.n_layers, balance * m / (m + 1));
    while (!bench_enough(&rounds, N_ROUNDS)) {
        BenchNoise noise;
        bench_noise_begin(&noise);
        ms[0][rounds.n] = measure(&one);
        ms[1][rounds.n] = measure(&two);
        bench_round(&rounds, ms[0][rounds.n] / ms[1][rounds.n], bench_noise_end(&noise));
    }
    double ratio = bench_conclude(&rounds, name);
    bench_note("step of %d samples in %d micro-batches: one worker %.1f ms, two workers %.1f ms",
               BATCH, m, bench_median(ms[0], rounds.n), bench_median(ms[1], rounds.n));
    bench_print(name, ratio, 2, "x", true, 1.7);
    work_done(&one);
    work_done(&two);
}

static void four_stages(void) {
    static const char name[] = "pipeline/four-stages-emulated";
    Work work;
    BenchRounds rounds = {0};
    double ms[BENCH_MAX_ROUNDS];
    const int m = BATCH / MICRO;
    const double ideal = (m + DELAY_STAGES - 1) * 2.0 * DELAY_MS;
    work_init_delays(&work, DELAY_STAGES, DELAY_MS, 10 * BATCH);
    work_batch(&work, BATCH, MICRO);
    work_steps(&work, N_WARM + N_STEPS);
    work.hoist = 1;
    while (!bench_enough(&rounds, N_ROUNDS / 2)) {
        BenchNoise noise;
        bench_noise_begin(&noise);
        ms[rounds.n] = measure(&work);
        bench_round(&rounds, ms[rounds.n] / ideal, bench_noise_end(&noise));
    }
    double ratio = bench_conclude(&rounds, name);
    bench_note("step of %d micro-batches: %.1f ms; (M + S - 1)(F + B) = %.1f ms", m,
               bench_median(ms, rounds.n), ideal);
    bench_print(name, ratio, 3, "x", false, 1.10);
    work_done(&work);
}

int main(int argc, char **argv) {
    bench_begin(argc, argv);
    if (bench_wanted("pipeline/two-stages"))
        two_stages();
    if (bench_wanted("pipeline/four-stages-emulated"))
        four_stages();
    return bench_end();
}

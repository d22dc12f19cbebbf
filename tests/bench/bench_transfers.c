/* Transfers half as long as computations: four stages that sleep instead of computing, F = B,
 * sixteen micro-batches; workers are threads here, over the memory relay, each behind an emulated
 * link that carries one object at a time each way (tests/support/relay_link.h).
 *
 *     transfers/step   step time over that of the same programs when transfers take no time
 *     transfers/parts  % by which computing, exposed relay time and bubble miss the wall time, in
 *                      the stage where that is worst (step_parts.h); they are shown on stderr
 *
 * From publication to delivery an object takes half a forward, one half of that on each link. The
 * first micro-batch's way to the last stage and the last one's way back cannot be hidden; all other
 * transfers can, with a warm-up that is deep enough. The default one is shown beside it. */
#include <math.h>
#include <stdio.h>

#include "coordinator/schedule.h"
#include "core/err.h"
#include "tests/bench/bench.h"
#include "tests/bench/step_parts.h"
#include "tests/support/relay_link.h"

enum { N_STAGES = 4, N_MICRO = 16, MICRO_ROWS = 8, DELAY_MS = 16, TRANSFER_MS = DELAY_MS / 2 };
enum { N_WARM = 2, N_STEPS = 5, N_ROUNDS = 3, LATENCY_US = 250, OBJECT_BYTES = MICRO_ROWS << 14 };

/* The relay of one run: a store, and a link for every worker. */
typedef struct Place {
    RelayMemStore *store;
    RelayLink links[N_STAGES];
} Place;

static int open_relay(void *ctx, const Order *order, Relay **out_relay) {
    Place *place = ctx;
    Relay *relay = NULL;
    TRY(relay_mem_open(place->store, &relay));
    return relay_link_open(relay, &place->links[order->stage], out_relay);
}

/* Step time in ms, the median. */
static double measure(Work *work, bool linked, StepParts *out_parts) {
    Place place;
    const WorkerEnv env = {.ctx = &place, .open_relay = open_relay};
    const double way_s = (TRANSFER_MS / 2.0 - LATENCY_US / 1e3) / 1e3;
    double ms[N_STEPS];
    bench_must(relay_mem_store_open(&place.store), "a relay");
    for (int s = 0; s < N_STAGES; s++)
        relay_link_init(&place.links[s], linked ? LATENCY_US : 0,
                        linked ? (int64_t)(OBJECT_BYTES / way_s) : 0);
    work_run_threads(work, &env);
    for (int s = 0; s < N_STAGES; s++)
        relay_link_done(&place.links[s]);
    relay_mem_store_close(place.store);
    step_parts(work, N_WARM, out_parts);
    return bench_median(ms, work_step_ms(work, N_WARM, ms, N_STEPS));
}

/* How much deeper each stage's warm-up is than the next one's. In 1f1b a stage begins another
 * micro-batch when one has come back, so for what a stage sends back it gets another one only after
 * 2 transfers and the F and B of the stage before, and must have enough to do meanwhile. */
static int32_t deeper(void) {
    return 1 + (2 * TRANSFER_MS + 2 * DELAY_MS - 1) / (2 * DELAY_MS);
}

/* Shows the parts; returns the % that is missing at the worst stage. */
static double show(const char *what, double ms, const StepParts *parts) {
    double worst = 0;
    bench_note("%s: %.1f ms a step; stage: compute + exposed + bubble = sum of wall", what, ms);
    for (int s = 0; s < N_STAGES; s++) {
        const StepParts *it = &parts[s];
        const double sum = it->compute + it->exposed + it->bubble;
        bench_note("    %d: %.1f + %.1f + %.1f = %.1f of %.1f ms", s, it->compute, it->exposed,
                   it->bubble, sum, it->wall);
        worst = fmax(worst, fabs(sum - it->wall) / it->wall * 100);
    }
    return worst;
}

int main(int argc, char **argv) {
    static const char name[] = "transfers/step";
    static StepParts parts[3][N_STAGES];
    const double ideal = (N_MICRO + N_STAGES - 1) * 2.0 * DELAY_MS;
    const double hidden = ideal + 2.0 * (N_STAGES - 1) * TRANSFER_MS;
    double ms[3][BENCH_MAX_ROUNDS];
    BenchRounds rounds = {0};
    Work work;
    bench_begin(argc, argv);
    work_init_delays(&work, N_STAGES, DELAY_MS, 10 * N_MICRO * MICRO_ROWS);
    work_batch(&work, N_MICRO * MICRO_ROWS, MICRO_ROWS);
    work_steps(&work, N_WARM + N_STEPS);
    work.hoist = 1;
    double plain = measure(&work, true, parts[2]);
    work.warmup = 1 + (N_STAGES - 1) * deeper();
    while (!bench_enough(&rounds, N_ROUNDS)) {
        BenchNoise noise;
        bench_noise_begin(&noise);
        ms[0][rounds.n] = measure(&work, false, parts[0]);
        ms[1][rounds.n] = measure(&work, true, parts[1]);
        bench_round(&rounds, ms[1][rounds.n] / ms[0][rounds.n], bench_noise_end(&noise));
    }
    double ratio = bench_conclude(&rounds, name);
    double without = bench_median(ms[0], rounds.n);
    double with = bench_median(ms[1], rounds.n);
    bench_note(
        "S = %d, M = %d, F = B = %d ms, a transfer %d ms; (M + S - 1)(F + B) = %.0f ms, with "
        "2 (S - 1) transfers %.0f ms",
        N_STAGES, N_MICRO, DELAY_MS, TRANSFER_MS, ideal, hidden);
    double missing = show("warm-up of the default depths, with transfers", plain, parts[2]);
    bench_note("warm-up depth %d: depths %d, %d, %d, %d", work.warmup,
               schedule_depth(work.warmup, 0, N_STAGES), schedule_depth(work.warmup, 1, N_STAGES),
               schedule_depth(work.warmup, 2, N_STAGES), schedule_depth(work.warmup, 3, N_STAGES));
    missing = fmax(missing, show("without transfers", without, parts[0]));
    missing = fmax(missing, show("with transfers", with, parts[1]));
    bench_print(name, ratio, 3, "x", false, 1.10);
    bench_print("transfers/parts", missing, 2, "%", false, 5);
    work_done(&work);
    return bench_end();
}

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "coordinator/partition.h"
#include "core/err.h"
#include "core/rng.h"

/* Reproducible numbers: word i of stream `seed`. */
static uint32_t draw(uint32_t seed, uint32_t i) {
    const uint32_t counter[4] = {i, 0, 0, 0};
    const uint32_t key[2] = {seed, 77};
    return rng_philox(counter, key).v[0];
}

/* The least bottleneck over all cuts of layers [first, n) into stages [stage, n_stages). */
static double brute(const double *times, int32_t n, int32_t first, int32_t stage, int32_t n_stages,
                    const int32_t *replicas) {
    double sum = 0;
    double best = INFINITY;
    for (int32_t end = first + 1; end <= n - (n_stages - 1 - stage); end++) {
        sum += times[end - 1];
        if (stage == n_stages - 1 && end < n)
            continue;
        double time = replicas ? sum / replicas[stage] : sum;
        double rest =
            stage == n_stages - 1 ? 0 : brute(times, n, end, stage + 1, n_stages, replicas);
        double slowest = time > rest ? time : rest;
        best = slowest < best ? slowest : best;
    }
    return best;
}

static void check_cut(const double *times, int32_t n, int32_t n_stages, const int32_t *replicas) {
    int32_t ends[16];
    cr_assert_eq(partition_balance(times, n, n_stages, replicas, ends), 0, "%s", err_text());
    for (int32_t i = 0; i < n_stages; i++)
        cr_assert_gt(ends[i], i ? ends[i - 1] : 0, "a stage without layers");
    cr_assert_eq(ends[n_stages - 1], n);
    double found = partition_bottleneck(times, ends, n_stages, replicas);
    double least = brute(times, n, 0, 0, n_stages, replicas);
    cr_assert_float_eq(found, least, 1e-9 * (1 + least), "%d layers, %d stages: %g, least %g", n,
                       n_stages, found, least);
}

Test(partition, equals_brute_force) {
    for (uint32_t instance = 0; instance < 400; instance++) {
        double times[14];
        int32_t replicas[4];
        int32_t n = 1 + (int32_t)(draw(instance, 0) % 14);
        int32_t n_stages = 1 + (int32_t)(draw(instance, 1) % 4);
        if (n_stages > n)
            n_stages = n;
        for (int32_t i = 0; i < n; i++) { /* many equal ones and zeros too */
            uint32_t word = draw(instance, 2 + (uint32_t)i);
            times[i] = instance % 3 == 0 ? word % 3 : word % 1000;
        }
        for (int32_t i = 0; i < n_stages; i++)
            replicas[i] = 1 + (int32_t)(draw(instance, 20 + (uint32_t)i) % 3);
        check_cut(times, n, n_stages, NULL);
        check_cut(times, n, n_stages, replicas);
    }
}

Test(partition, covers_all_layers_for_all_sizes) {
    double times[40];
    int32_t ends[8];
    for (int32_t i = 0; i < 40; i++)
        times[i] = draw(5, (uint32_t)i) % 100;
    for (int32_t n = 1; n <= 40; n++) {
        for (int32_t n_stages = 1; n_stages <= 8; n_stages++) {
            int rc = partition_balance(times, n, n_stages, NULL, ends);
            if (n_stages > n) {
                cr_assert_eq(rc, ERR_INFEASIBLE);
                continue;
            }
            cr_assert_eq(rc, 0);
            int32_t first = 0;
            for (int32_t i = 0; i < n_stages; i++) {
                cr_assert_gt(ends[i], first);
                first = ends[i];
            }
            cr_assert_eq(first, n);
        }
    }
}

Test(partition, the_same_times_give_the_same_cut) {
    const double times[] = {1, 1, 1, 1, 1, 1, 1};
    int32_t a[3];
    int32_t b[3];
    cr_assert_eq(partition_balance(times, 7, 3, NULL, a), 0);
    cr_assert_eq(partition_balance(times, 7, 3, NULL, b), 0);
    cr_assert_arr_eq(a, b, sizeof a);
    cr_assert_float_eq(partition_bottleneck(times, a, 3, NULL), 3, 0);
}

typedef struct Instance {
    double times[12], cuts[13], layers[12];
    int32_t replicas[4];
    int32_t n, n_stages;
} Instance;

static double stage_cost(const Instance *it, int32_t stage, int32_t layer) {
    return it->replicas[stage] > 1 ? it->replicas[stage] * it->layers[layer] : 0;
}

/* The least cost of the cuts of layers [first, n) under a limit of a stage's time. */
static double cheapest(const Instance *it, int32_t first, int32_t stage, double limit) {
    double sum = 0;
    double own = 0;
    double best = INFINITY;
    for (int32_t end = first + 1; end <= it->n - (it->n_stages - 1 - stage); end++) {
        sum += it->times[end - 1];
        own += stage_cost(it, stage, end - 1);
        if (sum / it->replicas[stage] > limit)
            break;
        if (stage == it->n_stages - 1 && end < it->n)
            continue;
        double cost = own;
        if (stage < it->n_stages - 1)
            cost += it->cuts[end] + cheapest(it, end, stage + 1, limit);
        best = cost < best ? cost : best;
    }
    return best;
}

static Instance draw_instance(uint32_t seed) {
    Instance it = {.n = 4 + (int32_t)(draw(seed, 0) % 9),
                   .n_stages = 1 + (int32_t)(draw(seed, 1) % 4)};
    for (int32_t i = 0; i < it.n; i++) {
        it.times[i] = draw(seed, 2 + (uint32_t)i) % 20;
        it.cuts[i] = draw(seed, 40 + (uint32_t)i) % 100;
        it.layers[i] = draw(seed, 60 + (uint32_t)i) % 50;
    }
    for (int32_t i = 0; i < it.n_stages; i++)
        it.replicas[i] = 1 + (int32_t)(draw(seed, 20 + (uint32_t)i) % 2);
    return it;
}

Test(partition, near_ties_go_to_the_cheapest) {
    int n_changed = 0;
    for (uint32_t instance = 0; instance < 400; instance++) {
        const Instance it = draw_instance(instance);
        const PartitionCosts costs = {it.cuts, it.layers};
        int32_t ends[4];
        int32_t before[4];
        cr_assert_eq(partition_balance(it.times, it.n, it.n_stages, it.replicas, ends), 0);
        memcpy(before, ends, sizeof before);
        double limit = 1.1 * partition_bottleneck(it.times, ends, it.n_stages, it.replicas);
        cr_assert_eq(partition_cheapen(it.times, &costs, it.n, it.n_stages, it.replicas, 0.1, ends),
                     0);
        double cost = 0;
        int32_t layer = 0;
        for (int32_t i = 0; i < it.n_stages; i++) {
            cost += i > 0 ? it.cuts[layer] : 0;
            for (; layer < ends[i]; layer++)
                cost += stage_cost(&it, i, layer);
        }
        cr_assert_leq(partition_bottleneck(it.times, ends, it.n_stages, it.replicas), limit);
        cr_assert_eq(ends[it.n_stages - 1], it.n);
        cr_assert_eq(cost, cheapest(&it, 0, 0, limit), "instance %u", instance);
        n_changed += memcmp(before, ends, (size_t)it.n_stages * sizeof *ends) != 0;
    }
    cr_assert_gt(n_changed, 50);
}

Test(partition, refuses_times_that_are_none) {
    int32_t ends[2];
    cr_assert_eq(partition_balance((double[]){1, -1, 1}, 3, 2, NULL, ends), ERR_ARGUMENT);
    cr_assert(strstr(err_text(), "layer 1"));
    cr_assert_eq(partition_balance((double[]){1, NAN, 1}, 3, 2, NULL, ends), ERR_ARGUMENT);
    cr_assert_eq(partition_balance((double[]){1, INFINITY, 1}, 3, 2, NULL, ends), ERR_ARGUMENT);
    cr_assert_eq(partition_balance((double[]){1}, 1, 0, NULL, ends), ERR_INFEASIBLE);
}

Test(partition, many_layers_are_quick_and_too_many_are_refused) {
    static double times[20000];
    static int32_t ends[4096];
    for (int32_t i = 0; i < 20000; i++)
        times[i] = draw(9, (uint32_t)i) % 1000;
    cr_assert_eq(partition_balance(times, 20000, 64, NULL, ends), 0);
    const PartitionCosts costs = {times, NULL};
    cr_assert_eq(partition_cheapen(times, &costs, 20000, 64, NULL, 0.02, ends), 0);
    cr_assert_eq(partition_balance(times, 20000, 4096, NULL, ends), ERR_LIMIT);
}

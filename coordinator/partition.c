#include "coordinator/partition.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "core/err.h"

#define PARTITION_MAX_CELLS ((size_t)1 << 26)
#define PARTITION_MAX_WORK 0x1p33

static double per_replica(double sum, const int32_t *replicas, int32_t stage) {
    return replicas ? sum / replicas[stage] : sum;
}

static double range_time(const double *sums, const int32_t *replicas, int32_t stage, int32_t first,
                         int32_t end) {
    return per_replica(sums[end] - sums[first], replicas, stage);
}

/* The begin of the last range of layers [0, end), at least `least`, that makes the larger of
 * before[begin] and the range's own time least: by looking at all of them. */
static int32_t scan_begin(const double *sums, const int32_t *replicas, int32_t stage, int32_t least,
                          int32_t end, const double *before, double *out_time) {
    int32_t best = least;
    *out_time = INFINITY;
    for (int32_t begin = least; begin < end; begin++) {
        double time = range_time(sums, replicas, stage, begin, end);
        time = time > before[begin] ? time : before[begin];
        if (time < *out_time) {
            *out_time = time;
            best = begin;
        }
    }
    return best;
}

/* The same for stages alike: before[begin] grows with begin then, and the range's own time falls,
 * so the least is where they meet. (With unlike replicas it may fall: one layer more can allow the
 * heavy ones to stand on a stage with many.) */
static int32_t meet_begin(const double *sums, const int32_t *replicas, int32_t stage, int32_t least,
                          int32_t end, const double *before, double *out_time) {
    int32_t low = least;
    int32_t high = end - 1;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (before[middle] >= range_time(sums, replicas, stage, middle, end))
            high = middle;
        else
            low = middle + 1;
    }
    double time = range_time(sums, replicas, stage, low, end);
    *out_time = time > before[low] ? time : before[low];
    if (low > least) { /* just before they meet, the range's own time counts */
        time = range_time(sums, replicas, stage, low - 1, end);
        if (time <= *out_time) {
            *out_time = time;
            low--;
        }
    }
    return low;
}

static bool are_alike(const int32_t *replicas, int32_t n_stages) {
    for (int32_t i = 1; replicas && i < n_stages; i++) {
        if (replicas[i] != replicas[0])
            return false;
    }
    return true;
}

/* best[s][e]: the least bottleneck of layers [0, e) on stages 0 .. s; from[s][e]: where stage s
 * begins then. Rows of n_layers + 1. */
static void fill(const double *sums, int32_t n_layers, int32_t n_stages, const int32_t *replicas,
                 double *best, int32_t *from) {
    size_t width = (size_t)n_layers + 1;
    bool alike = are_alike(replicas, n_stages);
    for (int32_t end = 1; end <= n_layers; end++)
        best[end] = range_time(sums, replicas, 0, 0, end);
    for (int32_t stage = 1; stage < n_stages; stage++) {
        const double *before = best + (size_t)(stage - 1) * width;
        for (int32_t end = stage + 1; end <= n_layers; end++) {
            size_t cell = (size_t)stage * width + (size_t)end;
            from[cell] = (alike ? meet_begin : scan_begin)(sums, replicas, stage, stage, end,
                                                           before, &best[cell]);
        }
    }
}

int partition_balance(const double *times, int32_t n_layers, int32_t n_stages,
                      const int32_t *replicas, int32_t *out_ends) {
    if (n_stages < 1 || n_layers < n_stages)
        return err_set(ERR_INFEASIBLE, "%d layers cannot be cut into %d stages", n_layers,
                       n_stages);
    size_t cells = ((size_t)n_layers + 1) * (size_t)n_stages;
    double work = (double)cells * (are_alike(replicas, n_stages) ? 1 : n_layers);
    if (cells > PARTITION_MAX_CELLS || work > PARTITION_MAX_WORK)
        return err_set(ERR_LIMIT, "%d layers in %d stages are too many to balance; give the cut",
                       n_layers, n_stages);
    double *sums = calloc((size_t)n_layers + 1, sizeof *sums);
    double *best = calloc(cells, sizeof *best);
    int32_t *from = calloc(cells, sizeof *from);
    int rc = sums && best && from
                 ? 0
                 : err_set(ERR_MEMORY, "cutting %d layers into %d stages", n_layers, n_stages);
    for (int32_t i = 0; rc == 0 && i < n_layers; i++) {
        if (!(times[i] >= 0) || !isfinite(times[i]))
            rc = err_set(ERR_ARGUMENT, "the time of layer %d is %g", i, times[i]);
        else
            sums[i + 1] = sums[i] + times[i];
    }
    if (rc == 0) {
        fill(sums, n_layers, n_stages, replicas, best, from);
        int32_t end = n_layers;
        for (int32_t stage = n_stages - 1; stage >= 0; stage--) {
            out_ends[stage] = end;
            end = from[(size_t)stage * ((size_t)n_layers + 1) + (size_t)end];
        }
    }
    free(sums);
    free(best);
    free(from);
    return rc;
}

double partition_bottleneck(const double *times, const int32_t *ends, int32_t n_stages,
                            const int32_t *replicas) {
    double slowest = 0;
    int32_t layer = 0;
    for (int32_t stage = 0; stage < n_stages; stage++) {
        double sum = 0;
        for (; layer < ends[stage]; layer++)
            sum += times[layer];
        sum = per_replica(sum, replicas, stage);
        slowest = sum > slowest ? sum : slowest;
    }
    return slowest;
}

/* ---- near ties ---- */

typedef struct Cheapest {
    const double *sums; /* of times, as layer_sums of layers' costs (n_layers + 1) */
    const double *layer_sums, *cuts;
    const int32_t *replicas;
    int32_t n_layers;
    double limit;   /* of a stage's time */
    int32_t *queue; /* begins of the window, by rising cost (n_layers + 1) */
} Cheapest;

/* Of layers [0, end), were they all on this stage. */
static double layers_cost(const Cheapest *cheapest, int32_t stage, int32_t end) {
    int32_t n = cheapest->replicas ? cheapest->replicas[stage] : 1;
    return n > 1 ? n * cheapest->layer_sums[end] : 0;
}

/* The least cost of what stands before a stage that begins there, less its own layers before. */
static double cost_before(const Cheapest *cheapest, int32_t stage, const double *before,
                          int32_t begin) {
    return before[begin] + cheapest->cuts[begin] - layers_cost(cheapest, stage, begin);
}

/* after[e]: the least cost of layers [0, e) when one stage more, which begins at from[e], is put
 * behind layers [0, from[e]) of cost before[]. What may begin it is a window that moves with e. */
static void cheapest_stage(const Cheapest *cheapest, int32_t stage, const double *before,
                           double *after, int32_t *from) {
    int32_t head = 0;
    int32_t tail = 0;
    for (int32_t end = 0; end <= cheapest->n_layers; end++) {
        while (head < tail && range_time(cheapest->sums, cheapest->replicas, stage,
                                         cheapest->queue[head], end) > cheapest->limit)
            head++;
        int32_t begin = head < tail ? cheapest->queue[head] : 0;
        after[end] = head < tail ? cost_before(cheapest, stage, before, begin) +
                                       layers_cost(cheapest, stage, end)
                                 : INFINITY;
        from[end] = begin;
        if (end == cheapest->n_layers || !isfinite(before[end]))
            continue;
        double cost = cost_before(cheapest, stage, before, end);
        while (head < tail &&
               cost_before(cheapest, stage, before, cheapest->queue[tail - 1]) > cost)
            tail--;
        cheapest->queue[tail++] = end;
    }
}

static double cost_of(const Cheapest *cheapest, const int32_t *ends, int32_t n_stages) {
    double cost = 0;
    int32_t begin = 0;
    for (int32_t i = 0; i < n_stages; i++) {
        cost += begin > 0 ? cheapest->cuts[begin] : 0;
        cost += layers_cost(cheapest, i, ends[i]) - layers_cost(cheapest, i, begin);
        begin = ends[i];
    }
    return cost;
}

static void cheapen(const Cheapest *cheapest, int32_t n_stages, double *least, int32_t *from,
                    int32_t *out_ends) {
    size_t width = (size_t)cheapest->n_layers + 1;
    for (int32_t end = 0; end <= cheapest->n_layers; end++) {
        double time = range_time(cheapest->sums, cheapest->replicas, 0, 0, end);
        least[end] = end > 0 && time <= cheapest->limit ? layers_cost(cheapest, 0, end) : INFINITY;
    }
    for (int32_t stage = 1; stage < n_stages; stage++)
        cheapest_stage(cheapest, stage, least + (size_t)(stage - 1) * width,
                       least + (size_t)stage * width, from + (size_t)stage * width);
    int32_t end = cheapest->n_layers;
    if (least[(size_t)n_stages * width - 1] >= cost_of(cheapest, out_ends, n_stages))
        return;
    for (int32_t stage = n_stages - 1; stage > 0; stage--) {
        end = from[(size_t)stage * width + (size_t)end];
        out_ends[stage - 1] = end;
    }
}

int partition_cheapen(const double *times, const PartitionCosts *costs, int32_t n_layers,
                      int32_t n_stages, const int32_t *replicas, double slack, int32_t *out_ends) {
    size_t cells = ((size_t)n_layers + 1) * (size_t)n_stages;
    double *sums = calloc(2 * ((size_t)n_layers + 1), sizeof *sums);
    int32_t *queue = calloc((size_t)n_layers + 1, sizeof *queue);
    double *least = calloc(cells, sizeof *least);
    int32_t *from = calloc(cells, sizeof *from);
    double *layer_sums = sums ? sums + n_layers + 1 : NULL;
    int rc = sums && queue && least && from
                 ? 0
                 : err_set(ERR_MEMORY, "cutting %d layers into %d stages", n_layers, n_stages);
    for (int32_t i = 0; rc == 0 && i < n_layers; i++) {
        sums[i + 1] = sums[i] + times[i];
        layer_sums[i + 1] = layer_sums[i] + (costs->layers ? costs->layers[i] : 0);
    }
    Cheapest cheapest = {sums, layer_sums, costs->cuts, replicas, n_layers, 0, queue};
    cheapest.limit = (1 + slack) * partition_bottleneck(times, out_ends, n_stages, replicas);
    if (rc == 0)
        cheapen(&cheapest, n_stages, least, from, out_ends);
    free(sums);
    free(queue);
    free(least);
    free(from);
    return rc;
}

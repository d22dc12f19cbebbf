/* Balanced cuts: contiguous ranges of layers whose slowest one is as fast as can be. */
#ifndef FUNCPIPE_COORDINATOR_PARTITION_H
#define FUNCPIPE_COORDINATOR_PARTITION_H

#include <stdint.h>

/* Cut layers 0 .. n_layers-1 with times[] (>= 0, any unit) into n_stages ranges of at least one
 * layer so that the largest sum over a range is the least possible; out_ends[i] is the end layer of
 * stage i. Exact, by dynamic programming: O(n_stages * n_layers * log n_layers) steps, with unlike
 * replicas O(n_stages * n_layers^2). The same times give the same cut.
 * replicas (NULL: all 1): a stage's sum counts divided by its replicas. ERR_INFEASIBLE when there
 * are fewer layers than stages, ERR_LIMIT when that is too much work,
 * ERR_ARGUMENT for a time that is negative or not finite. */
int partition_balance(const double *times, int32_t n_layers, int32_t n_stages,
                      const int32_t *replicas, int32_t *out_ends);
/* What a cut costs (>= 0, any unit): cuts[i] that of one in front of layer i, and layers[i] (NULL:
 * nothing) that of layer i for each replica of a stage which has several. */
typedef struct PartitionCosts {
    const double *cuts, *layers;
} PartitionCosts;

/* Of the cuts whose largest stage time is at most 1 + slack times that of out_ends, which
 * partition_balance made of the same times, take one with the least cost, when it is less than that
 * of out_ends. O(n_stages * n_layers). */
int partition_cheapen(const double *times, const PartitionCosts *costs, int32_t n_layers,
                      int32_t n_stages, const int32_t *replicas, double slack, int32_t *out_ends);
/* The largest stage time of a cut. */
double partition_bottleneck(const double *times, const int32_t *ends, int32_t n_stages,
                            const int32_t *replicas);

#endif

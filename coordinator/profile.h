/* Asking a worker binary about itself: how long each layer takes on its device, and which
 * instruction set it would use. The coordinator holds no tensor, so it runs a worker and reads what
 * that prints:
 *
 *     funcpipe-worker --profile   the order on stdin; prints {"isa": "avx2", "layers":
 *                                 [{"forward_us": 12.5, "backward_us": 20.1}, ...]}
 *     funcpipe-worker --isa NAME  prints the name of the instruction set that it uses when NAME is
 *                                 asked for ("auto": its best)
 *
 * A worker that fails prints its result line (core/report.h) instead: code and words are passed on.
 */
#ifndef FUNCPIPE_COORDINATOR_PROFILE_H
#define FUNCPIPE_COORDINATOR_PROFILE_H

#include <stdatomic.h>

#include "core/order.h"

typedef struct Profile {
    int32_t n_layers;                 /* 0: only the instruction set was asked for */
    double *forward_us, *backward_us; /* (n_layers) per full micro-batch */
    char isa[32];
} Profile;

void profile_done(Profile *profile);
/* Measure the order's layers; `stop` (may be NULL) ends it early with ERR_CANCELLED when set.
 * ERR_TIMEOUT after timeout_ms; the worker's own code and words when it fails, ERR_WORKER when it
 * has none. */
int profile_run(const char *worker_path, const Order *order, int64_t timeout_ms,
                const atomic_bool *stop, Profile *out_profile);
int profile_isa(const char *worker_path, const char *isa, int64_t timeout_ms,
                const atomic_bool *stop, Profile *out_profile);
int profile_parse(const char *text, size_t bytes, Profile *out_profile);

#endif

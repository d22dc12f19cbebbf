/* How gradients are summed over the workers that hold them, through a store that they all reach.
 * Sums are exact: one fixed order of contributions in every form, so that forms differ in time and
 * not in a bit (with the f32 wire).
 *
 *     whole      every holder publishes what it has and reads what all others have
 *     chunked    the vector is cut; each holder adds up its own chunk of it from all contributions
 *                and publishes the sum: no link carries more than 2 s (n-1)/n bytes one way
 *     in_store   the store adds; each holder publishes s and reads s
 *
 * With n holders, s bytes, a link of w bytes/s each way and t seconds a request, one after another:
 *
 *     whole      2 t + s (n-1)/w        chunked    4 t + 2 s (n-1)/(n w)        in_store   2 t +
 * s/w
 *
 * (all transfers overlap: the busier direction of the link counts). All zero is a fine spec. */
#ifndef FUNCPIPE_CORE_REDUCTION_H
#define FUNCPIPE_CORE_REDUCTION_H

#include <stdbool.h>
#include <stdint.h>

enum { REDUCE_MAX_ADDED = 1024 }; /* contributions that a store adds up to one sum */

#define REDUCE_CHUNK_BYTES (INT64_C(256) << 10) /* without any spec */
#define REDUCE_LEAST_CHUNK_BYTES (INT64_C(4) << 10)
#define REDUCE_MAX_CHUNK_BYTES (INT64_C(64) << 20)
/* What is taken for granted of a link: a store in the same data centre. */
#define REDUCE_RATE_BYTES_PER_S INT64_C(100000000)
#define REDUCE_LEAST_RATE_BYTES_PER_S INT64_C(1000)
#define REDUCE_MAX_RATE_BYTES_PER_S INT64_C(1000000000000)

/* Connections to its relay that a worker opens: for its queues, its heartbeat and its saves. Where
 * it sums gradients with others it has more, which move them. */
enum { WORKER_LINKS = 5, WORKER_LINKS_UP = 2, WORKER_LEAST_DOWN = 4, WORKER_MOST_DOWN = 8 };

typedef enum ReduceForm {
    REDUCE_AUTO, /* reduction_choose says which */
    REDUCE_WHOLE,
    REDUCE_CHUNKED,
    REDUCE_IN_STORE,
    REDUCE_N_FORMS
} ReduceForm;

typedef enum ReduceWire {
    REDUCE_F32,
    REDUCE_BF16, /* half the bytes; what rounding takes away is added to the next step's */
    REDUCE_N_WIRES
} ReduceWire;

typedef struct ReduceSpec { /* one for all workers of a job: they must agree */
    ReduceForm form;
    ReduceWire wire;
    int64_t chunk_bytes;      /* the largest object; 0: reduction_chunk_bytes */
    int64_t latency_us;       /* of a request; 0: not known, some 1000 */
    int64_t rate_bytes_per_s; /* of a worker's link, each way; 0: REDUCE_RATE_BYTES_PER_S */
    bool store_adds;          /* relay_adds */
} ReduceSpec;

extern const char *const reduction_form_names[REDUCE_N_FORMS]; /* "auto", "whole", ... */
extern const char *const reduction_wire_names[REDUCE_N_WIRES]; /* "f32", "bf16" */

/* The form for a vector of `bytes` (on the wire), so many holders and contributions (some holders
 * have several): the spec's, or the one with the smallest of the times above. Never AUTO. A 16-bit
 * wire, or more than REDUCE_MAX_ADDED contributions, are not summed in the store. */
ReduceForm reduction_choose(const ReduceSpec *spec, int64_t bytes, int32_t n_holders,
                            int32_t n_members);
/* ERR_ARGUMENT when so many contributions cannot be summed in the spec's form. */
int reduction_check(const ReduceSpec *spec, int32_t n_members);

/* The largest object: the spec's, or what the link moves in five times a request's latency (and in
 * 5 ms at least), so that moving it counts for more than asking; 64 to 256 KiB. More would only
 * make each sum come later and in fewer, larger pieces that servers share less evenly. */
int64_t reduction_chunk_bytes(const ReduceSpec *spec);

/* float -> bf16, to nearest and to even; NaN stays one. And back. */
uint16_t reduction_to_bf16(float value);
float reduction_from_bf16(uint16_t bits);

#endif

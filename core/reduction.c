#include "core/reduction.h"

#include <string.h>

#include "core/err.h"

/* What is taken for granted where nothing was measured: a store in the same data centre. */
enum { TYPICAL_LATENCY_US = 1000 };
enum { CHUNK_LATENCIES = 5, CHUNK_LEAST_BYTES = 64 << 10, CHUNK_MOST_BYTES = REDUCE_CHUNK_BYTES };

const char *const reduction_form_names[REDUCE_N_FORMS] = {"auto", "whole", "chunked", "in_store"};
const char *const reduction_wire_names[REDUCE_N_WIRES] = {"f32", "bf16"};

static double latency_of(const ReduceSpec *spec) { /* in seconds */
    return (double)(spec->latency_us > 0 ? spec->latency_us : TYPICAL_LATENCY_US) / 1e6;
}

static double rate_of(const ReduceSpec *spec) { /* in bytes a second */
    return (double)(spec->rate_bytes_per_s > 0 ? spec->rate_bytes_per_s : REDUCE_RATE_BYTES_PER_S);
}

/* The times of the header. */
static double seconds_of(const ReduceSpec *spec, ReduceForm form, int64_t bytes,
                         int32_t n_holders) {
    double n = n_holders;
    double latency = latency_of(spec);
    double seconds = (double)bytes / rate_of(spec);
    switch (form) {
    case REDUCE_WHOLE:
        return 2 * latency + seconds * (n - 1);
    case REDUCE_CHUNKED:
        return 4 * latency + 2 * seconds * (n - 1) / n;
    default:
        return 2 * latency + seconds;
    }
}

ReduceForm reduction_choose(const ReduceSpec *spec, int64_t bytes, int32_t n_holders,
                            int32_t n_members) {
    const bool store_sums =
        spec->store_adds && spec->wire == REDUCE_F32 && n_members <= REDUCE_MAX_ADDED;
    ReduceForm best = REDUCE_WHOLE;
    if (spec->form != REDUCE_AUTO)
        return spec->form;
    for (int form = REDUCE_CHUNKED; form < REDUCE_N_FORMS; form++) {
        if (form == REDUCE_IN_STORE && !store_sums)
            continue;
        if (seconds_of(spec, (ReduceForm)form, bytes, n_holders) <
            seconds_of(spec, best, bytes, n_holders))
            best = (ReduceForm)form;
    }
    return best;
}

int reduction_check(const ReduceSpec *spec, int32_t n_members) {
    if (spec->form != REDUCE_IN_STORE || n_members <= REDUCE_MAX_ADDED)
        return 0;
    return err_set(ERR_ARGUMENT,
                   "a store sums at most %d contributions, not the %d that there are: the form "
                   "\"in_store\" must be \"auto\", \"whole\" or \"chunked\"",
                   REDUCE_MAX_ADDED, n_members);
}

int64_t reduction_chunk_bytes(const ReduceSpec *spec) {
    double typical = TYPICAL_LATENCY_US / 1e6;
    double latency = latency_of(spec) > typical ? latency_of(spec) : typical;
    double bytes = CHUNK_LATENCIES * latency * rate_of(spec);
    if (spec->chunk_bytes > 0)
        return spec->chunk_bytes;
    if (bytes >= CHUNK_MOST_BYTES)
        return CHUNK_MOST_BYTES;
    return bytes <= CHUNK_LEAST_BYTES ? CHUNK_LEAST_BYTES : (int64_t)bytes;
}

uint16_t reduction_to_bf16(float value) {
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffU) > 0x7f800000U)
        return (uint16_t)(bits >> 16 | 0x40U);
    return (uint16_t)((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

float reduction_from_bf16(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value = 0;
    memcpy(&value, &bits, sizeof value);
    return value;
}

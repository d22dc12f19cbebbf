#include "worker/slab.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>

#include "core/err.h"

#define SLAB_ALIGN ((size_t)64)

void slab_init(Slab *slab) {
    *slab = (Slab){0};
}

void slab_done(Slab *slab) {
    if (!slab)
        return;
    free(slab->areas);
    *slab = (Slab){0};
}

int slab_add(Slab *slab, size_t bytes, int32_t begin, int32_t end) {
    if (begin > end || (bytes > 0 && begin == end))
        return err_set(ERR_INTERNAL, "an area of %zu bytes cannot live from %d to %d", bytes,
                       (int)begin, (int)end);
    if (slab->n_areas == slab->cap_areas) {
        if (slab->cap_areas > INT32_MAX / 2)
            return err_set(ERR_LIMIT, "more than %d areas in a slab", (int)slab->n_areas);
        int32_t cap = slab->cap_areas ? 2 * slab->cap_areas : 32;
        SlabArea *areas = realloc(slab->areas, (size_t)cap * sizeof *areas);
        if (!areas)
            return err_set(ERR_MEMORY, "%d areas of a slab", (int)cap);
        slab->areas = areas;
        slab->cap_areas = cap;
    }
    slab->areas[slab->n_areas] = (SlabArea){.bytes = bytes, .begin = begin, .end = end};
    return slab->n_areas++;
}

typedef struct Placing { /* an area while its place is sought */
    const SlabArea *area;
    int32_t id;
    size_t offset;
} Placing;

static int compare_sizes(const void *left, const void *right) {
    const Placing *a = left, *b = right;
    if (a->area->bytes != b->area->bytes)
        return a->area->bytes > b->area->bytes ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

static bool meet(const SlabArea *a, const SlabArea *b) {
    return a->begin < b->end && b->begin < a->end;
}

static int overflow(size_t bytes) {
    return err_set(ERR_LIMIT, "an area of %zu bytes makes the slab larger than memory can be",
                   bytes);
}

/* The lowest offset where `placing` meets none of the n placed ones, which ascend by offset. Keeps
 * that order: `placing` is put where it belongs among them, so placed[] must have room for it. */
static int place(Placing *placed, int32_t n, Placing placing) {
    size_t offset = 0, end;
    int32_t at = 0;
    if (__builtin_add_overflow(offset, placing.area->bytes, &end))
        return overflow(placing.area->bytes);
    for (; at < n && placed[at].offset < end; at++) {
        if (!meet(placed[at].area, placing.area))
            continue;
        size_t above = placed[at].offset + placed[at].area->bytes;
        if (above <= offset)
            continue;
        if (__builtin_add_overflow(above, SLAB_ALIGN - 1, &above))
            return overflow(placing.area->bytes);
        offset = above / SLAB_ALIGN * SLAB_ALIGN;
        if (__builtin_add_overflow(offset, placing.area->bytes, &end))
            return overflow(placing.area->bytes);
    }
    while (at > 0 && placed[at - 1].offset > offset)
        at--;
    for (int32_t i = n; i > at; i--)
        placed[i] = placed[i - 1];
    placing.offset = offset;
    placed[at] = placing;
    return 0;
}

int slab_place(Slab *slab) {
    size_t n_areas = (size_t)slab->n_areas;
    Placing *sorted = calloc(2 * n_areas + 1, sizeof *sorted);
    if (!sorted)
        return err_set(ERR_MEMORY, "placing %zu areas of a slab", n_areas);
    Placing *placed = sorted + n_areas;
    int32_t n_sorted = 0;
    for (int32_t i = 0; i < slab->n_areas; i++) {
        if (slab->areas[i].bytes > 0)
            sorted[n_sorted++] = (Placing){.area = &slab->areas[i], .id = i};
    }
    qsort(sorted, (size_t)n_sorted, sizeof *sorted, compare_sizes);
    int rc = 0;
    for (int32_t i = 0; i < n_sorted && rc >= 0; i++)
        rc = place(placed, i, sorted[i]);
    if (rc >= 0) {
        slab->bytes = 0;
        for (int32_t i = 0; i < slab->n_areas; i++)
            slab->areas[i].offset = 0;
        for (int32_t i = 0; i < n_sorted; i++) {
            SlabArea *area = &slab->areas[placed[i].id];
            area->offset = placed[i].offset;
            if (area->offset + area->bytes > slab->bytes)
                slab->bytes = area->offset + area->bytes;
        }
    }
    free(sorted);
    return rc;
}

size_t slab_offset(const Slab *slab, int32_t area) {
    assert(area >= 0 && area < slab->n_areas);
    return slab->areas[area].offset;
}

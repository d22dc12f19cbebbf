/* Slab: one block of device memory per stage, planned before the first step. Areas have lifetimes
 * on an abstract time line (half-open [begin, end)); areas whose lifetimes do not meet may share
 * bytes. First fit, in order of size then of adding: deterministic. */
#ifndef FUNCPIPE_WORKER_SLAB_H
#define FUNCPIPE_WORKER_SLAB_H

#include <stddef.h>
#include <stdint.h>

typedef struct SlabArea {
    size_t bytes, offset;
    int32_t begin, end;
} SlabArea;

typedef struct Slab {
    SlabArea *areas;
    int32_t n_areas, cap_areas;
    size_t bytes; /* total after slab_place */
} Slab;

void slab_init(Slab *slab);
void slab_done(Slab *slab);
/* Returns the area's id. Zero-byte areas get offset 0. */
int slab_add(Slab *slab, size_t bytes, int32_t begin, int32_t end);
/* Choose offsets (multiples of 64). ERR_LIMIT when the total overflows. */
int slab_place(Slab *slab);
size_t slab_offset(const Slab *slab, int32_t area);

#endif

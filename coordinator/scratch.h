/* Scratch folders: PLACE/funcpipe-run-PID-XXXXXX, in memory (/dev/shm) where there is room, else in
 * TMPDIR or /tmp. They hold the relay of a local job, which goes away with it; what a killed
 * coordinator left behind goes away when the next one looks. Whoever made one holds a lock (flock)
 * on the folder itself as long as it lives, in whatever PID namespace that is; the number in the
 * name is for people. */
#ifndef FUNCPIPE_COORDINATOR_SCRATCH_H
#define FUNCPIPE_COORDINATOR_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

#include "core/order.h"

typedef struct Scratch {
    char path[ORDER_PATH_BYTES]; /* "": none */
    int fd;                      /* locked; -1: there are no locks in that place */
} Scratch;

/* Make one with at least want_bytes free; ERR_FULL names the places tried. A TMPDIR that is not
 * UTF-8 is not used: orders could not name it. */
int scratch_make(int64_t want_bytes, Scratch *out_scratch);
/* Remove it with all in it, then let go of it; none: nothing. */
void scratch_remove(Scratch *scratch);
/* Remove this user's folders that nobody holds; returns how many. */
int scratch_clean(void);

#endif

/* Scratch folders: PLACE/funcpipe-PID-XXXXXX, in memory (/dev/shm) where there is room, else in
 * TMPDIR or /tmp. They hold the relay of a local job, which goes away with it; what a killed
 * coordinator left behind goes away when the next one looks. */
#ifndef FUNCPIPE_COORDINATOR_SCRATCH_H
#define FUNCPIPE_COORDINATOR_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

/* Make one with at least want_bytes free; ERR_FULL names the places tried. A TMPDIR that is not
 * UTF-8 is not used: orders could not name it. */
int scratch_make(int64_t want_bytes, char *out_path, size_t out_bytes);
/* Remove the folders of this user's processes that no longer exist; returns how many. */
int scratch_clean(void);

#endif

/* What the checkpoint's files share; private to them. */
#ifndef FUNCPIPE_COORDINATOR_CHECKPOINT_PARTS_H
#define FUNCPIPE_COORDINATOR_CHECKPOINT_PARTS_H

#include "coordinator/checkpoint.h"

/* The manifest's files are there with its sizes. */
int checkpoint_check_sizes(const char *directory, const Manifest *manifest);

#endif

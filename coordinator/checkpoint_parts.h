/* What the checkpoint's files share; private to them. */
#ifndef FUNCPIPE_COORDINATOR_CHECKPOINT_PARTS_H
#define FUNCPIPE_COORDINATOR_CHECKPOINT_PARTS_H

#include "coordinator/checkpoint.h"

enum { CHECKPOINT_PATH_BYTES = ORDER_PATH_BYTES + CHECKPOINT_FILE_NAME_BYTES + 2 };

/* "DIRECTORY/NAME"; ERR_LIMIT when it is too long. */
int checkpoint_join(char out[CHECKPOINT_PATH_BYTES], const char *directory, const char *name);
/* update-* holds update state, any other file parameters. */
bool checkpoint_is_update(const char *file_name);
/* The manifest's files are there with its sizes. */
int checkpoint_check_sizes(const char *directory, const CheckpointManifest *manifest);

#endif

/* What the outputs' files share; private to them. */
#ifndef FUNCPIPE_COORDINATOR_OUTPUTS_PARTS_H
#define FUNCPIPE_COORDINATOR_OUTPUTS_PARTS_H

#include <stdbool.h>

#include "coordinator/outputs.h"

#define OUTPUTS_MARK_NAME "events.jsonl"

/* Has a run written its outputs there? Its events.jsonl tells: the first file it makes and the last
 * that is removed, with lines as outputs_event writes them (or none yet). */
bool outputs_is_marked(const char *folder);
/* Is it the name of a worker's trace, as it lies among the logs until it is merged? */
bool outputs_is_trace_name(const char *name);
/* Remove those that an earlier run has left. */
int outputs_remove_traces(const char *logs);
/* ERR_EXISTS: the job file at `job` is one of those that outputs in the folder are made of. NULL:
 * none. */
int outputs_check_job(const char *folder, const char *job);
/* Cut the rows of metrics of steps from `end` on. */
int outputs_cut_rows(const char *folder, int64_t end);
/* ERR_EXISTS names the first thing below the folder that no run makes. */
int outputs_check_own(const char *folder);
/* Remove what runs make, the mark last, and nothing else. */
int outputs_remove_own(const char *folder);

#endif

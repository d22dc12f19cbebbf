/* Chrome trace JSON ("Trace Event Format", complete events "ph":"X", microseconds) of a worker's
 * records: process = "stage.replica", threads compute, fetch, publish; args: step, bytes, wait.
 * The last event is a counter ("ph":"C") with all that the worker has moved through the relay. */
#ifndef FUNCPIPE_WORKER_TRACE_H
#define FUNCPIPE_WORKER_TRACE_H

#include "core/traffic.h"
#include "worker/vm.h"

/* Write {"traceEvents":[...]} for one worker; pid_number distinguishes workers in a merged view. */
int trace_write(const char *path, const Program *program, const VmRecord *records,
                int32_t n_records, const Traffic *traffic, int32_t stage, int32_t replica,
                int32_t pid_number);

#endif

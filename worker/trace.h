/* Chrome trace JSON ("Trace Event Format", complete events "ph":"X", microseconds) of a worker's
 * records: process = "stage.replica", threads compute, fetch, publish; args: step, bytes, wait.
 * What evaluation did is of category "eval"; its step is the number of updates made, and `batch`
 * the evaluation's batch. The process's metadata say how many older instructions were `dropped`.
 * The last event is a counter ("ph":"C") with all that the worker has moved through the relay. */
#ifndef FUNCPIPE_WORKER_TRACE_H
#define FUNCPIPE_WORKER_TRACE_H

#include "core/traffic.h"
#include "worker/vm.h"

enum { TRACE_MAX_PARTS = 2 };

typedef struct TracePart { /* of one interpreter */
    const Program *program;
    const VmRecord *records; /* in order of start */
    int32_t n_records;
    int64_t n_dropped; /* executed, but no longer among the records */
    bool eval;         /* records are labelled with the number of updates made */
} TracePart;

/* Write {"traceEvents":[...]} for one worker, in order of start; pid_number distinguishes workers
 * in a merged view. */
int trace_write(const char *path, const TracePart *parts, int32_t n_parts, const Traffic *traffic,
                int32_t stage, int32_t replica, int32_t pid_number);

#endif

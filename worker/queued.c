#include "worker/queued.h"

#include <stdlib.h>
#include <string.h>

#include "core/err.h"

int queued_open(Queued *queued, const DeviceOps *ops, Device *device, const Program *program) {
    *queued = (Queued){.ops = ops, .program = program};
    queued->events = calloc((size_t)program->n_instrs + 1, sizeof *queued->events);
    if (queued->events == NULL) {
        return err_set(ERR_MEMORY, "the events of %d instructions", program->n_instrs);
    }
    for (int32_t i = 0; i < program->n_instrs; i++) {
        const Instr *instr = &program->instrs[i];
        for (int32_t d = 0; d < instr->n_deps; d++) {
            const int32_t on = program->deps[instr->first_dep + d].instr;
            if (program_queue(instr->op) != QUEUE_COMPUTE &&
                program_queue(program->instrs[on].op) == QUEUE_COMPUTE &&
                queued->events[on] == NULL) {
                TRY(ops->event_open(device, &queued->events[on]));
            }
        }
    }
    return 0;
}

void queued_close(Queued *queued) {
    for (int32_t i = 0; queued->events != NULL && i < queued->program->n_instrs; i++) {
        if (queued->events[i] != NULL) {
            queued->ops->event_close(queued->events[i]);
        }
    }
    free(queued->events);
    memset(queued, 0, sizeof *queued);
}

int queued_record(const Queued *queued, const Instr *instr, Stream *stream) {
    Event *event = queued->events[instr - queued->program->instrs];
    return event != NULL ? queued->ops->event_record(event, stream) : 0;
}

/* stream NULL: the host waits. */
static int queued_wait_all(const Queued *queued, const Instr *instr, Stream *stream) {
    for (int32_t d = 0; d < instr->n_deps; d++) {
        Event *event = queued->events[queued->program->deps[instr->first_dep + d].instr];
        if (event != NULL) {
            TRY(stream != NULL ? queued->ops->stream_wait(stream, event)
                               : queued->ops->event_sync(event));
        }
    }
    return 0;
}

int queued_wait(const Queued *queued, const Instr *instr, Stream *stream) {
    return queued_wait_all(queued, instr, stream);
}

int queued_sync(const Queued *queued, const Instr *instr) {
    return queued_wait_all(queued, instr, NULL);
}

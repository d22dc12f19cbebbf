/* Gc: what coordinators that died left in a relay: the generations of jobs that nobody works at any
 * more, and leftovers of the relay's own. A generation is
 *
 *     running   a note of it has not expired: its workers' heartbeats live for 50 heartbeat
 *               intervals, and the coordinator's wish to stop for longer than it takes
 *     young     something of it was written less than `older` ago: it may be about to begin
 *     unknown   the store does not say when it was last written
 *     dead      none of these
 *
 * Only the dead are removed, the claim last, so that no other run takes the generation's number
 * while any of it is there. A job all of whose processes are stopped (not ended) for longer than
 * that counts as dead, too. */
#ifndef FUNCPIPE_COORDINATOR_GC_H
#define FUNCPIPE_COORDINATOR_GC_H

#include "storage/key.h"
#include "storage/relay_survey.h"

typedef enum GcState { GC_DEAD, GC_RUNNING, GC_YOUNG, GC_UNKNOWN, GC_N_STATES } GcState;

typedef struct GcGeneration {
    KeySpace space;
    GcState state;
    bool claimed;
    bool removed;               /* dead, and gone; with dry_run: never */
    int64_t n_objects, n_notes; /* the claim counts as an object */
    int64_t bytes;              /* -1: not known */
    int64_t idle_ms;            /* since it was last written, at least; -1: not known */
} GcGeneration;

typedef struct GcReport {
    GcGeneration *items; /* by job, then generation */
    int32_t n, capacity;
    int64_t n_foreign; /* items that are no job's */
    RelaySwept swept;  /* what no generation needs, whosesoever; with dry_run: would be */
} GcReport;

enum { GC_LEAST_OLDER_MS = 60000, GC_OLDER_MS = 600000 };

typedef struct GcOptions {
    const char *job;  /* only what is this one's; NULL: of all */
    int64_t older_ms; /* at least GC_LEAST_OLDER_MS */
    bool dry_run;     /* only look */
} GcOptions;

/* Always fills *out_report, also when it fails on the way: what is `removed` is gone. */
int gc_run(Relay *relay, const GcOptions *options, GcReport *out_report);
void gc_done(GcReport *report);
const char *gc_state_name(GcState state);

#endif

/* Plans to try: every combination of two values of any two axes occurs (pairwise), or, in the long
 * form, every combination of all. All deterministic. */
#ifndef FUNCPIPE_TESTS_SUPPORT_PLAN_CASES_H
#define FUNCPIPE_TESTS_SUPPORT_PLAN_CASES_H

#include "tests/support/sim.h"

typedef enum PlanAxis {
    AXIS_GEOMETRY,  /* batch, micro-batches, samples: plan_geometry */
    AXIS_STAGES,    /* 1 to 4 */
    AXIS_SCHEDULE,  /* 1f1b, gpipe */
    AXIS_WARMUP,    /* the schedule's own depth, 1, 6 */
    AXIS_RECOMPUTE, /* no stage, all, every other */
    AXIS_HOIST,     /* 0 to 2 */
    AXIS_CUT,       /* equal numbers of layers, at random */
    AXIS_REPLICAS,  /* of one stage alone, each of four in turn (2, or 3 with hoist 1); 2 of all */
    PLAN_N_AXES
} PlanAxis;

typedef struct PlanCase {
    int value[PLAN_N_AXES];
} PlanCase;

enum { PLAN_N_GEOMETRIES = 8, PLAN_MAX_CASES = 1 << 15 };

typedef struct PlanCases {
    int n;
    PlanCase *items;
} PlanCases;

/* Without replicas AXIS_REPLICAS stays 0 and means nothing. */
int plan_cases_init(PlanCases *cases, bool with_replicas, bool all);
void plan_cases_done(PlanCases *cases);

/* M = geometry + 1 micro-batches; most have a last batch that is not full, some with empty ones. */
void plan_geometry(SimJob *job, int geometry);
/* Set the job's plan; replicas only when asked for. */
int plan_apply(SimJob *job, const PlanCase *plan_case, bool with_replicas);

#endif

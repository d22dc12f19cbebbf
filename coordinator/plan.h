/* Plan: what a job asks for, turned into what each worker does. A cut, replicas, the program of
 * every worker, and what the relay will have to carry and hold. Pure: same job and profile, same
 * plan. Its JSON form stands beside the outputs (plan.json) and reads back:
 *
 *     {"version": 1, "balanced": "measured", "save_every": 100, "step_bytes": .., "held_bytes": ..,
 *      "stage_us": [..], "plan": {"ends": [4, 9], "replicas": [1, 1], ...},
 *      "workers": [{"stage": 0, "replica": 0, "program": "F0 >a0 ...", "eval_program": ".."}]} */
#ifndef FUNCPIPE_COORDINATOR_PLAN_H
#define FUNCPIPE_COORDINATOR_PLAN_H

#include "coordinator/config.h"
#include "coordinator/profile.h"

typedef enum PlanBalance {
    PLAN_GIVEN,    /* the job gives the cut (or there is one stage) */
    PLAN_MEASURED, /* balanced by the profile's times */
    PLAN_FLOPS     /* balanced by floating-point operations: no profile */
} PlanBalance;

typedef struct PlanWorker {
    int32_t stage, replica;
    char *program;      /* text, core/program.h */
    char *eval_program; /* NULL without evaluation data */
} PlanWorker;

typedef struct Plan {
    PlanSpec spec;
    int32_t n_workers;
    PlanWorker *workers; /* by stage, then replica */
    PlanBalance balance;
    double *stage_us;   /* (n_stages) measured time of a micro-batch; NULL: not measured */
    int64_t save_every; /* steps between saves; 0: only at the end */
    int64_t step_bytes; /* published through the relay in a full step */
    int64_t held_bytes; /* what the relay holds at most between saves, its objects rounded up to
                           pages of memory; saves by time may only make it less */
} Plan;

/* Ask the worker binary for what plan_make needs: the layers' times where the cut is automatic and
 * there are several stages, else the instruction set alone. */
int plan_profile(const JobConfig *config, const char *worker_path, int64_t timeout_ms,
                 const atomic_bool *stop, Profile *out_profile);
/* How long that may take: timeouts.wait, and two minutes at least. */
int64_t plan_profile_ms(const JobConfig *config);
/* Make and check the plan. profile NULL, or without layers: an automatic cut goes by floating-point
 * operations. ERR_INFEASIBLE: more stages than layers, or a save interval given by the job under
 * which the relay would hold more than limits.relay. The isa stays "auto" without a profile. */
int plan_make(const JobConfig *config, const Profile *profile, Plan *out_plan);
void plan_done(Plan *plan);
const PlanWorker *plan_worker(const Plan *plan, int32_t stage, int32_t replica);
/* Write the plan's choices (cut, isa, save interval) into the job, so that the resolved job file
 * makes the same plan again. */
int plan_pin(const Plan *plan, JobConfig *config);

cJSON *plan_to_json(const Plan *plan); /* NULL when out of memory */
int plan_parse(const cJSON *value, const char *path, Plan *out_plan);
/* For people: stages, layers, parameters, bytes on every edge, replicas, and the programs. */
int plan_describe(const Plan *plan, const JobConfig *config, bool with_programs, Buf *out_text);
/* The same as JSON: plan_to_json's members and "stages": [{"stage": 0, "layers": ["fc1", ..],
 * "parameters": .., "buffers": .., "replicas": 1, "edges": [{"to_stage": 1, "forward_bytes": ..,
 * "backward_bytes": ..}]}], bytes of a full micro-batch. NULL when out of memory. */
cJSON *plan_describe_json(const Plan *plan, const JobConfig *config);

#endif

/* Between the files of a plan. */
#ifndef FUNCPIPE_COORDINATOR_PLAN_PARTS_H
#define FUNCPIPE_COORDINATOR_PLAN_PARTS_H

#include "coordinator/plan.h"

/* Fill spec.ends, balance and stage_us. The rest of the spec is set. An automatic cut is the best
 * balanced one (nearly: PLAN_NEAR_TIE) under which the relay holds no more than limits.relay. */
int plan_cut(const JobConfig *config, const Profile *profile, Plan *plan);
/* Fill save_every, step_bytes and held_bytes from the spec. ERR_INFEASIBLE: held_bytes is more than
 * limits.relay. */
int plan_fill_relay(const JobConfig *config, Plan *plan);
/* 0 for what is no weight, so has no gradient. */
int64_t plan_weight_bytes(const Model *model, int32_t param);

#endif

/* Workers killed anywhere: the job ends with the same bits, as scenarios (scenario.h). */
#ifndef FUNCPIPE_TESTS_SUPPORT_KILL_SCENARIOS_H
#define FUNCPIPE_TESTS_SUPPORT_KILL_SCENARIOS_H

#include "tests/support/scenario.h"

#define KILL_SCENARIOS(X)                                                                          \
    X(mlp_each_worker_at_each_instruction)                                                         \
    X(cnn_each_worker_at_each_instruction)                                                         \
    X(tiny_gpt_each_worker_at_each_instruction)                                                    \
    X(gpipe_with_recompute_at_each_instruction)                                                    \
    X(replicas_at_each_instruction)                                                                \
    X(each_instruction_of_an_evaluation)                                                           \
    X(replicas_at_each_instruction_of_an_evaluation)                                               \
    X(at_every_step)                                                                               \
    X(before_the_first_checkpoint)                                                                 \
    X(all_workers_at_once)                                                                         \
    X(several_workers_at_once)                                                                     \
    X(again_in_the_next_attempts)                                                                  \
    X(workers_at_different_steps)                                                                  \
    X(adamw_with_clipping_and_ties)                                                                \
    X(storm)                                                                                       \
    X(leader_that_decided_to_stop)                                                                 \
    X(leader_that_decided_to_save)                                                                 \
    X(restarted_middle_stage_uses_each_micro_batch_once)

#define KILL_SCENARIO_DECLARE(name) int kill_##name(char *why, size_t why_bytes);
KILL_SCENARIOS(KILL_SCENARIO_DECLARE)
#undef KILL_SCENARIO_DECLARE

extern const ScenarioTable kill_scenarios;

#endif

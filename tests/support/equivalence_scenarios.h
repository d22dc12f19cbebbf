/* Any cut, micro-batch size, schedule and number of replicas trains as one stage does: as scenarios
 * (scenario.h). */
#ifndef FUNCPIPE_TESTS_SUPPORT_EQUIVALENCE_SCENARIOS_H
#define FUNCPIPE_TESTS_SUPPORT_EQUIVALENCE_SCENARIOS_H

#include "tests/support/scenario.h"

#define EQUIVALENCE_SCENARIOS(X)                                                                   \
    X(mlp_any_plan_gives_equal_bits)                                                               \
    X(cnn_any_plan_gives_equal_bits)                                                               \
    X(tiny_gpt_any_plan_gives_equal_bits)                                                          \
    X(mlp_replicas_give_the_same_bits_every_run)                                                   \
    X(cnn_replicas_give_the_same_bits_every_run)                                                   \
    X(tiny_gpt_replicas_give_the_same_bits_every_run)                                              \
    X(mlp_cut_at_every_boundary)                                                                   \
    X(cnn_cut_at_every_boundary)                                                                   \
    X(tiny_gpt_cut_at_every_boundary)                                                              \
    X(mlp_cut_at_random_into_many_stages)                                                          \
    X(cnn_cut_at_random_into_many_stages)                                                          \
    X(tiny_gpt_cut_at_random_into_many_stages)                                                     \
    X(losses_agree_across_numbers_of_micro_batches)                                                \
    X(replicas_agree_after_many_steps)                                                             \
    X(more_replicas_than_micro_batches)                                                            \
    X(value_that_layers_of_many_stages_read)                                                       \
    X(sum_of_a_value_with_itself)                                                                  \
    X(parameter_tied_over_three_stages)                                                            \
    X(batchnorm_first_in_a_stage)                                                                  \
    X(stages_without_parameters)                                                                   \
    X(stage_that_holds_only_the_loss)

#define EQUIVALENCE_SCENARIO_DECLARE(name) int equivalence_##name(char *why, size_t why_bytes);
EQUIVALENCE_SCENARIOS(EQUIVALENCE_SCENARIO_DECLARE)
#undef EQUIVALENCE_SCENARIO_DECLARE

extern const ScenarioTable equivalence_scenarios;

#endif

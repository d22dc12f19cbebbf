/* What pipelined training must mean, whatever the plan, as scenarios (scenario.h). Each is a way in
 * which public systems went wrong. */
#ifndef FUNCPIPE_TESTS_SUPPORT_SEMANTICS_SCENARIOS_H
#define FUNCPIPE_TESTS_SUPPORT_SEMANTICS_SCENARIOS_H

#include "tests/support/scenario.h"

#define SEMANTICS_SCENARIOS(X)                                                                     \
    /* semantics_batch.c: micro-batches, losses, data, evaluation */                               \
    X(every_number_of_stages_and_micro_batches_ends)                                               \
    X(batch_of_8_in_micro_batches_of_3)                                                            \
    X(data_that_the_batch_does_not_divide)                                                         \
    X(ignored_targets_count_nowhere)                                                               \
    X(micro_batches_and_batches_without_a_valid_target)                                            \
    X(logged_loss_is_the_mean_over_the_batch)                                                      \
    X(gradient_is_that_of_the_logged_loss)                                                         \
    X(partial_batch_is_a_full_batch_of_its_size)                                                   \
    X(one_update_moves_as_far_for_any_number_of_micro_batches)                                     \
    X(an_epoch_uses_each_sample_once_in_order)                                                     \
    X(a_resume_in_mid_epoch_goes_on_with_the_next_sample)                                          \
    X(evaluation_over_stages_equals_one_stage)                                                     \
    X(evaluation_has_no_dropout_and_uses_running_statistics)                                       \
    X(evaluation_leaves_training_alone)                                                            \
    /* semantics_update.c: norms, ties, statistics, random numbers */                              \
    X(clipping_scales_all_stages_alike)                                                            \
    X(a_gradient_of_one_stage_that_is_infinite_skips_the_step_everywhere)                          \
    X(an_infinite_gradient_on_the_wire_skips_the_step_everywhere)                                  \
    X(skips_are_counted_over_a_restart)                                                            \
    X(training_that_overflows_goes_on_and_counts)                                                  \
    X(training_that_is_to_stop_when_not_finite_stops)                                              \
    X(tied_copies_stay_equal_over_stages)                                                          \
    X(a_tie_is_one_tensor_in_the_checkpoint)                                                       \
    X(running_statistics_move_once_per_micro_batch)                                                \
    X(recompute_does_not_move_statistics_again)                                                    \
    X(dropout_masks_are_equal_under_recompute)                                                     \
    X(dropout_masks_are_equal_after_a_restart_before_the_backward)                                 \
    X(initial_weights_depend_on_seed_and_name_only)                                                \
    /* semantics_reduce.c: forms of the reduction */                                               \
    X(every_form_of_the_reduction_gives_the_same_bits)                                             \
    X(every_form_of_the_reduction_survives_kills)                                                  \
    X(a_part_of_a_sum_is_put_while_the_last_backward_runs)                                         \
    X(a_16_bit_wire_is_near_and_repeats)                                                           \
    /* semantics_device.c: programs with a split backward, devices that do their work later */     \
    X(split_backward_gives_the_bits_of_a_whole_one)                                                \
    X(split_backward_with_recompute_gives_the_bits_of_a_whole_one)                                 \
    X(device_with_its_own_memory_that_works_later_gives_the_same_bits)                             \
    X(device_that_works_later_gives_the_same_bits_where_little_waits)                              \
    X(device_that_works_later_gives_the_same_bits_with_a_split_backward)                           \
    /* semantics_resume.c: checkpoints, cuts, messages of others */                                \
    X(learning_rate_goes_on_after_a_resume)                                                        \
    X(adamw_state_resumes_under_another_cut)                                                       \
    X(momentum_resumes_under_another_cut_and_replicas)                                             \
    X(sgd_checkpoint_is_refused_by_adamw)                                                          \
    X(seven_layers_of_three_stages_load_into_any_cut)                                              \
    X(checkpoint_with_a_missing_tensor_is_refused)                                                 \
    X(checkpoint_with_a_surplus_tensor_is_refused)                                                 \
    X(every_layer_is_in_one_stage)                                                                 \
    X(messages_of_earlier_generations_are_not_read)                                                \
    X(messages_of_other_jobs_are_not_read)                                                         \
    X(the_same_job_twice_in_one_relay_with_another_learning_rate)

#define SEMANTICS_SCENARIO_DECLARE(name) int semantics_##name(char *why, size_t why_bytes);
SEMANTICS_SCENARIOS(SEMANTICS_SCENARIO_DECLARE)
#undef SEMANTICS_SCENARIO_DECLARE

extern const ScenarioTable semantics_scenarios;

#endif

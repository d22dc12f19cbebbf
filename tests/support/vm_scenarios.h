/* What the interpreter must do, as scenarios (scenario.h). */
#ifndef FUNCPIPE_TESTS_SUPPORT_VM_SCENARIOS_H
#define FUNCPIPE_TESTS_SUPPORT_VM_SCENARIOS_H

#include "tests/support/scenario.h"

#define VM_SCENARIOS(X)                                                                            \
    X(dependencies_hold_in_random_programs)                                                        \
    X(every_step_runs_once_in_order)                                                               \
    X(error_at_every_instruction_ends_the_run)                                                     \
    X(error_wakes_a_waiting_fetch)                                                                 \
    X(first_of_two_errors_wins)                                                                    \
    X(error_at_the_end_of_a_step)                                                                  \
    X(thread_that_cannot_start)                                                                    \
    X(abort_in_the_middle)                                                                         \
    X(abort_before_a_run_ends_the_next)                                                            \
    X(abort_at_any_moment)                                                                         \
    X(early_end_at_every_step)                                                                     \
    X(early_end_waits_for_publications)                                                            \
    X(early_end_with_a_failing_publication)                                                        \
    X(fetch_runs_ahead_as_far_as_slots_allow)                                                      \
    X(queues_without_instructions_have_no_thread)                                                  \
    X(records_and_totals_agree)                                                                    \
    X(records_keep_the_newest)                                                                     \
    X(bad_programs_and_steps_are_refused)                                                          \
    X(two_workers_with_two_chunks_over_a_narrow_relay)                                             \
    X(overhead_of_an_instruction)

#define VM_SCENARIO_DECLARE(name) int vm_##name(char *why, size_t why_bytes);
VM_SCENARIOS(VM_SCENARIO_DECLARE)
#undef VM_SCENARIO_DECLARE

extern const ScenarioTable vm_scenarios;

#endif

/* Relay operations that fail or answer wrongly: the job ends with the same bits, as scenarios
 * (scenario.h). */
#ifndef FUNCPIPE_TESTS_SUPPORT_RELAY_FAULT_SCENARIOS_H
#define FUNCPIPE_TESTS_SUPPORT_RELAY_FAULT_SCENARIOS_H

#include "storage/relay_faulty.h"
#include "tests/support/scenario.h"

#define RELAY_FAULT_SCENARIOS(X)                                                                   \
    X(each_operation_of_the_compute_handle)                                                        \
    X(each_operation_of_the_fetch_handle)                                                          \
    X(each_operation_of_the_publish_handle)                                                        \
    X(each_operation_of_the_pulse_handle)                                                          \
    X(each_operation_of_the_save_handle)                                                           \
    X(each_operation_of_a_chunked_reduction)                                                       \
    X(each_operation_of_a_reduction_in_the_store)                                                  \
    X(pulse_that_never_gets_through)                                                               \
    X(operation_that_fails_until_the_worker_gives_up)                                              \
    X(answer_that_stays_damaged_until_the_worker_gives_up)                                         \
    X(several_faults_at_once)                                                                      \
    X(faults_and_kills_together)

#define RELAY_FAULT_SCENARIO_DECLARE(name) int relay_fault_##name(char *why, size_t why_bytes);
RELAY_FAULT_SCENARIOS(RELAY_FAULT_SCENARIO_DECLARE)
#undef RELAY_FAULT_SCENARIO_DECLARE

extern const ScenarioTable relay_fault_scenarios;

#endif

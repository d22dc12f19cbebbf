#include "tests/support/relay_fault_scenarios.h"

#include <stdio.h>
#include <string.h>

#include "core/err.h"
#include "tests/support/sim_check.h"
#include "worker/fetch.h"

#define RELAY_FAULT_SCENARIO_ROW(name) {#name, relay_fault_##name},
static const Scenario rows[] = {RELAY_FAULT_SCENARIOS(RELAY_FAULT_SCENARIO_ROW)};
#undef RELAY_FAULT_SCENARIO_ROW
const ScenarioTable relay_fault_scenarios = {"relay_fault", rows, sizeof rows / sizeof rows[0]};

enum { SAMPLED = 8, SAMPLED_SLOW = 10, MAX_FAULTS = 16 };

static const char *const fault_names[] = {[RELAY_FAULT_NONE] = "none",
                                          [RELAY_FAULT_FAIL] = "fails",
                                          [RELAY_FAULT_FAIL_DONE] = "is done, but fails",
                                          [RELAY_FAULT_DELAY] = "is late",
                                          [RELAY_FAULT_TWICE] = "is done twice",
                                          [RELAY_FAULT_FLIP] = "flips a bit",
                                          [RELAY_FAULT_TRUNCATE] = "cuts a byte",
                                          [RELAY_FAULT_GARBAGE] = "gives noise"};

/* A job with ties, replicas, evaluations and saves, and its undisturbed run. */
typedef struct FaultRig {
    SimJob job;
    SimResult undisturbed;
    int32_t n_workers;
    int32_t stage[SIM_MAX_WORKERS], replica[SIM_MAX_WORKERS];
} FaultRig;

static int rig_init(FaultRig *rig, const ReduceSpec *reduce, char *why, size_t why_bytes) {
    memset(rig, 0, sizeof *rig);
    EXPECT(sim_job_init(&rig->job, "tiny_gpt") == 0, "%s", err_text());
    EXPECT(sim_job_stages(&rig->job, 3) == 0, "%s", err_text());
    PlanSpec *plan = &rig->job.order.plan;
    plan->replicas[1] = 2;
    if (reduce != NULL) {
        plan->reduce = *reduce;
    }
    sim_job_steps(&rig->job, 3, 2);
    sim_job_samples(&rig->job, 19);
    sim_job_eval(&rig->job, 11, 2);
    for (int32_t s = 0; s < plan->n_stages; s++) {
        for (int32_t r = 0; r < plan->replicas[s]; r++) {
            rig->stage[rig->n_workers] = s;
            rig->replica[rig->n_workers++] = r;
        }
    }
    return sim_check_run(&rig->job, NULL, &rig->undisturbed, why, why_bytes);
}

static void rig_done(FaultRig *rig) {
    sim_result_done(&rig->undisturbed);
    sim_job_done(&rig->job);
}

static SimFault rig_fault(const FaultRig *rig, int32_t worker, int32_t handle, int64_t operation,
                          RelayFault fault, int64_t n_operations) {
    return (SimFault){.stage = rig->stage[worker],
                      .replica = rig->replica[worker],
                      .attempt = 1,
                      .handle = handle,
                      .rule = {.fault = fault,
                               .at_operation = operation,
                               .n_operations = n_operations,
                               .delay_ms = 5}};
}

/* n_restarts < 0: any number. */
static int check_faults(const FaultRig *rig, const SimFaults *faults, int32_t n_restarts, char *why,
                        size_t why_bytes) {
    char what[512] = "";
    int32_t restarts = 0;
    for (int32_t f = 0; f < faults->n_faults && strlen(what) + 128 < sizeof what; f++) {
        const SimFault *fault = &faults->faults[f];
        size_t used = strlen(what);
        snprintf(what + used, sizeof what - used, "worker %d.%d handle %d operation %d %s; ",
                 fault->stage, fault->replica, fault->handle, (int)fault->rule.at_operation,
                 fault_names[fault->rule.fault]);
    }
    TRY(sim_check_same(&rig->job, faults, &rig->undisturbed, what, &restarts, why, why_bytes));
    EXPECT(n_restarts < 0 || restarts == n_restarts, "%s%d restarts, expected %d", what, restarts,
           n_restarts);
    return 0;
}

typedef struct FaultSweep {
    int32_t handle;
    const RelayFault *kinds;
    int32_t n_kinds;
    const ReduceSpec *reduce; /* NULL: the default */
    int64_t n_operations;     /* in a row, each time */
    int32_t n_restarts;       /* that follow */
} FaultSweep;

static int32_t rig_operations(const FaultRig *rig, int32_t worker, int32_t handle) {
    return (int32_t)rig->undisturbed.operations[worker][handle];
}

/* A stride that takes about so many of the cases, in which the kinds follow one another. It has no
 * common divisor with their number, so that it goes round all of them. */
static int32_t sample_stride(int32_t n_cases, int32_t n_kinds, int32_t n_sampled) {
    int32_t stride = sim_long() ? 1 : n_cases / n_sampled * sim_stride() + 1;
    for (int32_t d = 2; d <= n_kinds; d++) {
        if (n_kinds % d == 0 && stride % d == 0) {
            stride++;
            d = 1; /* once more from the smallest divisor */
        }
    }
    return stride;
}

/* Of each worker in turn, every operation of the handle fails once (under a sanitizer: each n-th);
 * of the other kinds of fault, and of those that take long, a sample. The long form: all of them.
 */
static int sweep(const FaultSweep *it, char *why, size_t why_bytes) {
    FaultRig rig;
    TRY(rig_init(&rig, it->reduce, why, why_bytes));
    const bool slow = it->n_operations > 1;
    const int32_t n_plain = slow ? 0 : 1; /* kinds that take place at each operation */
    int32_t n_operations = 0;
    for (int32_t w = 0; w < rig.n_workers; w++) {
        n_operations += rig_operations(&rig, w, it->handle);
    }
    EXPECT(n_operations > 0, "no worker has operations on handle %d", it->handle);
    const int32_t n_kinds = it->n_kinds - n_plain;
    const int32_t stride =
        sample_stride(n_operations * n_kinds, n_kinds, slow ? SAMPLED_SLOW : SAMPLED);
    int32_t n_failed = 0, n_others = 0;
    for (int32_t w = 0; w < rig.n_workers; w++) {
        for (int32_t i = 0; i < rig_operations(&rig, w, it->handle) * it->n_kinds; i++) {
            if (i % it->n_kinds < n_plain ? n_failed++ % sim_stride() != 0
                                          : n_others++ % stride != 0) {
                continue;
            }
            const SimFault fault = rig_fault(&rig, w, it->handle, i / it->n_kinds,
                                             it->kinds[i % it->n_kinds], it->n_operations);
            const SimFaults faults = {.faults = &fault, .n_faults = 1};
            TRY(check_faults(&rig, &faults, it->n_restarts, why, why_bytes));
        }
    }
    rig_done(&rig);
    return 0;
}

/* The plain failure is the first of each. */
static const RelayFault every_kind[] = {
    RELAY_FAULT_FAIL,    RELAY_FAULT_FAIL_DONE, RELAY_FAULT_FLIP, RELAY_FAULT_TRUNCATE,
    RELAY_FAULT_GARBAGE, RELAY_FAULT_TWICE,     RELAY_FAULT_DELAY};
static const RelayFault of_puts[] = {RELAY_FAULT_FAIL, RELAY_FAULT_FAIL_DONE, RELAY_FAULT_TWICE,
                                     RELAY_FAULT_DELAY};

static int sweep_handle(int32_t handle, bool gets, char *why, size_t why_bytes) {
    const FaultSweep it = {.handle = handle,
                           .kinds = gets ? every_kind : of_puts,
                           .n_kinds = gets ? 7 : 4,
                           .n_operations = 1};
    return sweep(&it, why, why_bytes);
}

/* Norms and evaluations. */
int relay_fault_each_operation_of_the_compute_handle(char *why, size_t why_bytes) {
    return sweep_handle(SIM_HANDLE_COMPUTE, true, why, why_bytes);
}

int relay_fault_each_operation_of_the_fetch_handle(char *why, size_t why_bytes) {
    return sweep_handle(SIM_HANDLE_FETCH, true, why, why_bytes);
}

int relay_fault_each_operation_of_the_publish_handle(char *why, size_t why_bytes) {
    return sweep_handle(SIM_HANDLE_PUBLISH, false, why, why_bytes);
}

int relay_fault_each_operation_of_the_pulse_handle(char *why, size_t why_bytes) {
    return sweep_handle(SIM_HANDLE_PULSE, true, why, why_bytes);
}

int relay_fault_each_operation_of_the_save_handle(char *why, size_t why_bytes) {
    return sweep_handle(SIM_HANDLE_SAVE, false, why, why_bytes);
}

/* The threads that move gradients: two up, then those down. Which of them does what differs from
 * run to run. */
static int sweep_reduction(ReduceForm form, char *why, size_t why_bytes) {
    const ReduceSpec reduce = {.form = form, .chunk_bytes = 4096};
    for (int32_t i = 0; i < 4; i++) {
        const bool gets = i >= 2;
        const FaultSweep it = {.handle = SIM_HANDLE_REDUCE + i,
                               .kinds = gets ? every_kind : of_puts,
                               .n_kinds = gets ? 7 : 4,
                               .reduce = &reduce,
                               .n_operations = 1};
        TRY(sweep(&it, why, why_bytes));
    }
    return 0;
}

int relay_fault_each_operation_of_a_chunked_reduction(char *why, size_t why_bytes) {
    return sweep_reduction(REDUCE_CHUNKED, why, why_bytes);
}

int relay_fault_each_operation_of_a_reduction_in_the_store(char *why, size_t why_bytes) {
    return sweep_reduction(REDUCE_IN_STORE, why, why_bytes);
}

/* The mark that the worker runs, then no heartbeat, no fence, no control note: the work goes on. */
int relay_fault_pulse_that_never_gets_through(char *why, size_t why_bytes) {
    FaultRig rig;
    TRY(rig_init(&rig, NULL, why, why_bytes));
    rig.job.order.heartbeat_ms = 2;
    for (size_t kind = 0; kind < 5; kind++) {
        SimFault all[MAX_FAULTS];
        for (int32_t w = 0; w < rig.n_workers; w++) {
            all[w] = rig_fault(&rig, w, SIM_HANDLE_PULSE, 1, every_kind[kind], 1 << 20);
        }
        const SimFaults faults = {.faults = all, .n_faults = rig.n_workers};
        TRY(check_faults(&rig, &faults, 0, why, why_bytes));
    }
    rig_done(&rig);
    return 0;
}

/* ---- faults that stay ---- */

/* As often as a transfer is tried: the worker ends with an error that a restart may help. */
int relay_fault_operation_that_fails_until_the_worker_gives_up(char *why, size_t why_bytes) {
    static const RelayFault kinds[] = {RELAY_FAULT_FAIL, RELAY_FAULT_FAIL_DONE};
    static const int32_t handles[] = {SIM_HANDLE_COMPUTE, SIM_HANDLE_FETCH, SIM_HANDLE_PUBLISH,
                                      SIM_HANDLE_SAVE};
    for (size_t h = 0; h < sizeof handles / sizeof handles[0]; h++) {
        const FaultSweep it = {.handle = handles[h],
                               .kinds = kinds,
                               .n_kinds = 2,
                               .n_operations = FETCH_TRIES,
                               .n_restarts = 1};
        TRY(sweep(&it, why, why_bytes));
    }
    return 0;
}

int relay_fault_answer_that_stays_damaged_until_the_worker_gives_up(char *why, size_t why_bytes) {
    static const RelayFault kinds[] = {RELAY_FAULT_FLIP, RELAY_FAULT_TRUNCATE, RELAY_FAULT_GARBAGE};
    const FaultSweep it = {.handle = SIM_HANDLE_FETCH, /* all of its operations are gets */
                           .kinds = kinds,
                           .n_kinds = 3,
                           .n_operations = FETCH_TRIES,
                           .n_restarts = 1};
    return sweep(&it, why, why_bytes);
}

/* ---- more than one ---- */

static SimFault draw_fault(const FaultRig *rig, uint64_t *state) {
    const int32_t w = (int32_t)sim_draw(state, (uint32_t)rig->n_workers);
    const int32_t handle = (int32_t)sim_draw(state, 5);
    const int32_t n = rig_operations(rig, w, handle) + 1;
    SimFault fault = rig_fault(rig, w, handle, sim_draw(state, (uint32_t)n),
                               every_kind[sim_draw(state, 7)], 1 + sim_draw(state, 2));
    fault.attempt = 1 + sim_draw(state, 2);
    return fault;
}

int relay_fault_several_faults_at_once(char *why, size_t why_bytes) {
    FaultRig rig;
    uint64_t state = 23;
    TRY(rig_init(&rig, NULL, why, why_bytes));
    for (int i = 0; i < (sim_long() ? 500 : sim_stride() > 1 ? 4 : 20); i++) {
        SimFault some[MAX_FAULTS];
        for (int32_t f = 0; f < MAX_FAULTS; f++) {
            some[f] = draw_fault(&rig, &state);
        }
        const SimFaults faults = {.faults = some, .n_faults = MAX_FAULTS};
        TRY(check_faults(&rig, &faults, -1, why, why_bytes));
    }
    rig_done(&rig);
    return 0;
}

int relay_fault_faults_and_kills_together(char *why, size_t why_bytes) {
    FaultRig rig;
    uint64_t state = 29;
    TRY(rig_init(&rig, NULL, why, why_bytes));
    for (int i = 0; i < (sim_long() ? 500 : sim_stride() > 1 ? 4 : 20); i++) {
        SimFault some[MAX_FAULTS / 2];
        for (int32_t f = 0; f < MAX_FAULTS / 2; f++) {
            some[f] = draw_fault(&rig, &state);
        }
        SimKill kills[2];
        for (int32_t k = 0; k < 2; k++) {
            const int32_t w = (int32_t)sim_draw(&state, (uint32_t)rig.n_workers);
            kills[k] = (SimKill){.stage = rig.stage[w],
                                 .replica = rig.replica[w],
                                 .attempt = 1 + k,
                                 .step = sim_draw(&state, 3),
                                 .instr = (int32_t)sim_draw(&state, 8)};
        }
        const SimFaults faults = {
            .faults = some, .n_faults = MAX_FAULTS / 2, .kills = kills, .n_kills = 2};
        TRY(check_faults(&rig, &faults, -1, why, why_bytes));
    }
    rig_done(&rig);
    return 0;
}

/* Semantics: a backward in two halves, and devices that do their work later than they are told. */
#include "core/err.h"
#include "tests/support/semantics_scenarios.h"
#include "tests/support/sim_check.h"

static const char *const models[] = {"mlp", "cnn", "tiny_gpt"};
enum { N_MODELS = 3, N_STAGES = 3 };

/* By hand, 4 micro-batches: weight gradients directly behind, one later, all at the end. */
static const char *const split_compute[N_STAGES] = {
    "F0 F1 F2 F3 I0 I1 I2 I3 W0 W1 W2 W3",
    "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3",
    "F0 I0 W0 F1 I1 F2 W1 I2 W2 F3 I3 W3",
};

static int open_staged(SimJob *job, const char *model, bool recompute, char *why,
                       size_t why_bytes) {
    EXPECT(sim_job_init(job, model) == 0, "%s", err_text());
    EXPECT(sim_job_stages(job, N_STAGES) == 0, "%s", err_text());
    sim_job_steps(job, 3, 2);
    for (int32_t s = 0; s < N_STAGES; s++) {
        job->order.plan.recompute[s] = recompute;
    }
    return 0;
}

static int same_as_whole(bool recompute, char *why, size_t why_bytes) {
    for (int i = 0; i < N_MODELS; i++) {
        SimJob job;
        SimResult whole;
        TRY(open_staged(&job, models[i], false, why, why_bytes));
        TRY(sim_check_run(&job, NULL, &whole, why, why_bytes));
        job.compute = split_compute;
        for (int32_t s = 0; s < N_STAGES; s++) {
            job.order.plan.recompute[s] = recompute;
        }
        TRY(sim_check_same(&job, NULL, &whole, "split", NULL, why, why_bytes));
        sim_result_done(&whole);
        sim_job_done(&job);
    }
    return 0;
}

int semantics_split_backward_gives_the_bits_of_a_whole_one(char *why, size_t why_bytes) {
    return same_as_whole(false, why, why_bytes);
}

int semantics_split_backward_with_recompute_gives_the_bits_of_a_whole_one(char *why,
                                                                          size_t why_bytes) {
    return same_as_whole(true, why, why_bytes);
}

/* ---- devices that work later ---- */

static int same_later(const SimJob *cpu, const SimFaults *faults, const char *what, char *why,
                      size_t why_bytes) {
    SimResult expected;
    DeferredSetup device = {0};
    SimJob job = *cpu;
    TRY(sim_check_run(cpu, NULL, &expected, why, why_bytes));
    job.device = &device;
    TRY(sim_check_same(&job, faults, &expected, what, NULL, why, why_bytes));
    EXPECT(atomic_load(&device.n_late) > 0, "%s: nothing was done later", what);
    EXPECT(atomic_load(&device.n_left) == 0, "%s: %lld pieces of work were never done", what,
           atomic_load(&device.n_left));
    sim_result_done(&expected);
    return 0;
}

static int open_later(SimJob *job, const char *model, char *why, size_t why_bytes) {
    TRY(open_staged(job, model, true, why, why_bytes));
    sim_job_micro(job, 16, 2); /* more micro-batches than slots */
    sim_job_samples(job, 44);  /* and a last batch that is not full */
    sim_job_eval(job, 48, 1);
    job->hoist = 1;
    return 0;
}

int semantics_device_with_its_own_memory_that_works_later_gives_the_same_bits(char *why,
                                                                              size_t why_bytes) {
    for (int i = 0; i < N_MODELS; i++) {
        SimJob job;
        TRY(open_later(&job, models[i], why, why_bytes));
        TRY(same_later(&job, NULL, "one replica", why, why_bytes));
        job.order.plan.replicas[1] = 2;
        job.order.plan.replicas[2] = 2;
        TRY(same_later(&job, NULL, "replicas", why, why_bytes));
        sim_job_done(&job);
    }
    return 0;
}

/* Stages in which few things wait for the device: one that is all there is, one without gradients.
 */
int semantics_device_that_works_later_gives_the_same_bits_where_little_waits(char *why,
                                                                             size_t why_bytes) {
    SimJob job;
    TRY(open_later(&job, "mlp", why, why_bytes));
    EXPECT(sim_job_stages(&job, 1) == 0, "%s", err_text());
    TRY(same_later(&job, NULL, "one stage", why, why_bytes));
    const SimKill kill = {.attempt = 1, .step = 2, .instr = 5};
    const SimFaults faults = {.kills = &kill, .n_kills = 1};
    TRY(same_later(&job, &faults, "one stage, killed with work in the queue", why, why_bytes));
    const int32_t ends[] = {job.order.model.n_layers - 1, job.order.model.n_layers};
    EXPECT(sim_job_cut(&job, ends, 2) == 0, "%s", err_text());
    job.order.plan.replicas[1] = 2;
    TRY(same_later(&job, NULL, "replicas of the loss alone", why, why_bytes));
    sim_job_done(&job);
    return 0;
}

int semantics_device_that_works_later_gives_the_same_bits_with_a_split_backward(char *why,
                                                                                size_t why_bytes) {
    SimJob job;
    TRY(open_staged(&job, "tiny_gpt", false, why, why_bytes));
    job.compute = split_compute;
    TRY(same_later(&job, NULL, "split", why, why_bytes));
    sim_job_done(&job);
    return 0;
}

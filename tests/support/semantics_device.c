/* Semantics: a backward in two halves. */
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

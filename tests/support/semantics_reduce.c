/* Semantics: the forms in which gradients are summed. */
#include <math.h>
#include <stdio.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/key.h"
#include "tests/support/semantics_scenarios.h"
#include "tests/support/sim_check.h"

/* Replicas that share the micro-batches unevenly, and embeddings tied over stages. */
static int open_replicated(SimJob *job, const char *model, char *why, size_t why_bytes) {
    EXPECT(sim_job_init(job, model) == 0, "%s", err_text());
    EXPECT(sim_job_stages(job, 3) == 0, "%s", err_text());
    PlanSpec *plan = &job->order.plan;
    plan->replicas[0] = 2;
    plan->replicas[1] = 4;
    plan->replicas[2] = 3;
    sim_job_micro(job, 10, 2); /* 5 micro-batches */
    sim_job_samples(job, 23);
    sim_job_steps(job, 5, 2);
    return 0;
}

static const ReduceSpec forms[] = {
    {.form = REDUCE_AUTO},
    {.form = REDUCE_WHOLE, .chunk_bytes = 1024},
    {.form = REDUCE_CHUNKED},
    {.form = REDUCE_CHUNKED, .chunk_bytes = 1024},
    {.form = REDUCE_CHUNKED, .chunk_bytes = 44},
    {.form = REDUCE_IN_STORE},
    {.form = REDUCE_IN_STORE, .chunk_bytes = 1000},
    {.form = REDUCE_AUTO, .store_adds = true},
};
enum { N_FORMS = sizeof forms / sizeof forms[0] };

static const char *form_text(const ReduceSpec *spec, char *out, size_t out_bytes) {
    snprintf(out, out_bytes, "%s, %s, chunks of %lld: ", reduction_form_names[spec->form],
             reduction_wire_names[spec->wire], (long long)spec->chunk_bytes);
    return out;
}

static int same_bits(const char *model, char *why, size_t why_bytes) {
    SimJob job;
    SimResult whole;
    char what[128];
    TRY(open_replicated(&job, model, why, why_bytes));
    job.order.plan.reduce = (ReduceSpec){.form = REDUCE_WHOLE};
    TRY(sim_check_run(&job, NULL, &whole, why, why_bytes));
    for (int i = 0; i < N_FORMS; i++) {
        if (sim_stride() > 1 && i != 1 && i != 3 && i != 6) {
            continue; /* in the thin form one of each kind, in chunks */
        }
        job.order.plan.reduce = forms[i];
        TRY(sim_check_same(&job, NULL, &whole, form_text(&forms[i], what, sizeof what), NULL, why,
                           why_bytes));
    }
    sim_result_done(&whole);
    sim_job_done(&job);
    return 0;
}

int semantics_every_form_of_the_reduction_gives_the_same_bits(char *why, size_t why_bytes) {
    static const char *const models[] = {"mlp", "cnn", "tiny_gpt"};
    for (int i = sim_stride() > 1 ? 2 : 0; i < 3; i++) {
        TRY(same_bits(models[i], why, why_bytes));
    }
    return 0;
}

/* Each worker killed at its reduction, and at the backward before it. */
static int survives(SimJob *job, const SimResult *expected, const char *what, char *why,
                    size_t why_bytes) {
    int n = 0;
    for (int32_t stage = 0; stage < 3; stage++) {
        for (int32_t replica = 0; replica < job->order.plan.replicas[stage]; replica++) {
            Program train, eval;
            int32_t n_restarts = 0;
            if (n++ % sim_stride() != 0) {
                continue;
            }
            EXPECT(sim_programs(job, stage, replica, &train, &eval) == 0, "%s", err_text());
            const SimKill kill = {.stage = stage,
                                  .replica = replica,
                                  .attempt = 1,
                                  .step = 3,
                                  .instr = train.n_instrs - 2 - replica % 2 * 2};
            const SimFaults faults = {.kills = &kill, .n_kills = 1};
            program_done(&train);
            program_done(&eval);
            TRY(sim_check_same(job, &faults, expected, what, &n_restarts, why, why_bytes));
            EXPECT(n_restarts == 1, "%s%d restarts", what, n_restarts);
        }
    }
    return 0;
}

int semantics_every_form_of_the_reduction_survives_kills(char *why, size_t why_bytes) {
    char what[128];
    for (int i = 1; i < N_FORMS; i += 2) {
        SimJob job;
        SimResult undisturbed;
        TRY(open_replicated(&job, "tiny_gpt", why, why_bytes));
        job.order.plan.reduce = forms[i];
        TRY(sim_check_run(&job, NULL, &undisturbed, why, why_bytes));
        TRY(survives(&job, &undisturbed, form_text(&forms[i], what, sizeof what), why, why_bytes));
        sim_result_done(&undisturbed);
        sim_job_done(&job);
    }
    return 0;
}

/* Half the bytes: near the f32 run, and its own bits whoever dies. */
int semantics_a_16_bit_wire_is_near_and_repeats(char *why, size_t why_bytes) {
    static const ReduceForm wire_forms[] = {REDUCE_WHOLE, REDUCE_CHUNKED};
    for (int i = 0; i < 2; i++) {
        SimJob job;
        SimResult exact, half;
        TRY(open_replicated(&job, "tiny_gpt", why, why_bytes));
        TRY(sim_check_run(&job, NULL, &exact, why, why_bytes));
        job.order.plan.reduce =
            (ReduceSpec){.form = wire_forms[i], .wire = REDUCE_BF16, .chunk_bytes = 500};
        TRY(sim_check_run(&job, NULL, &half, why, why_bytes));
        const double difference = sim_model_difference(&exact, &half);
        EXPECT(difference > 0.0 && difference < 1e-3, "%s: %g", reduction_form_names[wire_forms[i]],
               difference);
        TRY(survives(&job, &half, reduction_form_names[wire_forms[i]], why, why_bytes));
        sim_result_done(&exact);
        sim_result_done(&half);
        sim_job_done(&job);
    }
    return 0;
}

/* ---- while the last backward runs ---- */

typedef struct EarlyPart {
    RelayMemStore *store;
    KeySpace space;
    int64_t first_row;  /* of every replica's last micro-batch, or before it */
    atomic_int n_found; /* parts that were there before a last backward's last layer */
} EarlyPart;

/* In front of the first layer's backward of each replica's last micro-batch: the later layers'
 * gradients are final, so both replicas' first parts of the sum must appear, however long this
 * backward takes. */
static int expect_parts(void *ctx, int32_t layer, OpPass pass, const OpArgs *args) {
    EarlyPart *early = ctx;
    Relay *relay = NULL;
    char bytes[4096];
    size_t n = 0;
    int rc = 0;
    if (layer != 0 || pass != OP_BACKWARD_WEIGHT || args->first_row < early->first_row) {
        return 0;
    }
    TRY(relay_mem_open(early->store, &relay));
    for (int32_t replica = 0; replica < 2 && rc >= 0; replica++) {
        const Key sum = key_sum(&early->space, args->step, 'r', 0, 0);
        const Key part = key_part(sum.text, replica);
        rc = relay_get(relay, part.text, bytes, sizeof bytes, clock_deadline_ms(20000), &n);
        if (rc < 0) {
            rc = err_set(ERR_INTERNAL, "'%s' is not put before the last backward ends", part.text);
        }
    }
    relay_close(relay);
    atomic_fetch_add(&early->n_found, rc >= 0);
    return rc;
}

int semantics_a_part_of_a_sum_is_put_while_the_last_backward_runs(char *why, size_t why_bytes) {
    SimJob job;
    SimResult behind;
    EarlyPart early = {.first_row = 4};
    DeferredSetup device = {.ctx = &early, .before_op = expect_parts};
    EXPECT(sim_job_init(&job, "mlp") == 0, "%s", err_text());
    job.order.plan.replicas[0] = 2; /* micro-batches 0 and 2, 1 and 3, of 2 rows each */
    sim_job_steps(&job, 3, 2);
    job.order.plan.reduce = (ReduceSpec){.form = REDUCE_WHOLE, .chunk_bytes = 1 << 20};
    TRY(sim_check_run(&job, NULL, &behind, why, why_bytes)); /* one part: behind the last layer */
    job.order.plan.reduce.chunk_bytes = 256;
    EXPECT(relay_mem_store_open(&early.store) == 0, "%s", err_text());
    const SimFaults faults = {.store = early.store};
    snprintf(early.space.job, sizeof early.space.job, "%s", job.order.job);
    early.space.generation = job.order.generation;
    job.device = &device;
    TRY(sim_check_same(&job, &faults, &behind, "in parts", NULL, why, why_bytes));
    EXPECT(atomic_load(&early.n_found) == 2 * 3, "found in %d last backwards, not in 6",
           atomic_load(&early.n_found));
    relay_mem_store_close(early.store);
    sim_result_done(&behind);
    sim_job_done(&job);
    return 0;
}

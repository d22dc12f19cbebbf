#include "tests/support/equivalence_scenarios.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/text.h"
#include "tests/support/plan_cases.h"
#include "tests/support/sim_check.h"

#define EQUIVALENCE_SCENARIO_ROW(name) {#name, equivalence_##name},
static const Scenario rows[] = {EQUIVALENCE_SCENARIOS(EQUIVALENCE_SCENARIO_ROW)};
#undef EQUIVALENCE_SCENARIO_ROW
const ScenarioTable equivalence_scenarios = {"equivalence", rows, sizeof rows / sizeof rows[0]};

/* Gradients of replicas are added in another order than one replica adds them, so values differ by
 * rounding, and the difference grows with the steps. Relative to a tensor's largest magnitude it is
 * at most this after 20 steps of the mlp and tiny_gpt. In the cnn, a BatchNorm's bias starts at
 * zero and its gradient is a sum in which nearly all cancels: there that holds for 2 steps only,
 * and after 12 steps for the parameters taken together. */
static const double across_replicas = 1e-6;
typedef double (*Measure)(const SimResult *a, const SimResult *b);

/* ---- any plan ---- */

static int open_job(SimJob *job, const char *model, int64_t n_steps, char *why, size_t why_bytes) {
    EXPECT(sim_job_init(job, model) == 0, "%s", err_text());
    sim_job_steps(job, n_steps, 4);
    sim_job_eval(job, 10, 3);
    return 0;
}

/* One stage's results of every geometry. */
typedef struct Oracles {
    SimResult results[PLAN_N_GEOMETRIES];
} Oracles;

static int open_oracles(const char *model, int64_t n_steps, Oracles *oracles, char *why,
                        size_t why_bytes) {
    for (int g = 0; g < PLAN_N_GEOMETRIES; g++) {
        SimJob job;
        TRY(open_job(&job, model, n_steps, why, why_bytes));
        plan_geometry(&job, g);
        TRY(sim_check_oracle(&job, &oracles->results[g], why, why_bytes));
        sim_job_done(&job);
    }
    return 0;
}

static void close_oracles(Oracles *oracles) {
    for (int g = 0; g < PLAN_N_GEOMETRIES; g++) {
        sim_result_done(&oracles->results[g]);
    }
}

static int any_plan(const char *model, char *why, size_t why_bytes) {
    const int64_t n_steps = 6;
    Oracles oracles;
    PlanCases cases;
    TRY(open_oracles(model, n_steps, &oracles, why, why_bytes));
    EXPECT(plan_cases_init(&cases, false, sim_long()) == 0, "%s", err_text());
    for (int i = 0; i < cases.n; i += sim_stride()) {
        SimJob job;
        const PlanCase *one = &cases.items[i];
        TRY(open_job(&job, model, n_steps, why, why_bytes));
        EXPECT(plan_apply(&job, one, false) == 0, "%s", err_text());
        TRY(sim_check_same(&job, NULL, &oracles.results[one->value[AXIS_GEOMETRY]], "", NULL, why,
                           why_bytes));
        sim_job_done(&job);
    }
    plan_cases_done(&cases);
    close_oracles(&oracles);
    return 0;
}

int equivalence_mlp_any_plan_gives_equal_bits(char *why, size_t why_bytes) {
    return any_plan("mlp", why, why_bytes);
}

int equivalence_cnn_any_plan_gives_equal_bits(char *why, size_t why_bytes) {
    return any_plan("cnn", why, why_bytes);
}

int equivalence_tiny_gpt_any_plan_gives_equal_bits(char *why, size_t why_bytes) {
    return any_plan("tiny_gpt", why, why_bytes);
}

/* ---- replicas ---- */

/* Run twice: the same bits; and near the result of one stage and replica. */
static int check_replicas(const SimJob *job, const SimResult *oracle, Measure measure, char *why,
                          size_t why_bytes) {
    SimResult result;
    char text[SIM_DESCRIBE_BYTES];
    TRY(sim_check_run(job, NULL, &result, why, why_bytes));
    TRY(sim_check_same(job, NULL, &result, "the second run", NULL, why, why_bytes));
    const double difference = measure(oracle, &result);
    const double losses = sim_loss_difference(oracle, &result);
    EXPECT(difference <= across_replicas && losses <= across_replicas,
           "%s: parameters differ by %g, losses by %g", sim_describe(job, text, sizeof text),
           difference, losses);
    sim_result_done(&result);
    return 0;
}

static int any_replicas(const char *model, int64_t n_steps, Measure measure, char *why,
                        size_t why_bytes) {
    Oracles oracles;
    PlanCases cases;
    TRY(open_oracles(model, n_steps, &oracles, why, why_bytes));
    EXPECT(plan_cases_init(&cases, true, sim_long()) == 0, "%s", err_text());
    /* The long form: of all 17280 combinations every seventh, which goes round each axis. */
    for (int i = 0; i < cases.n; i += sim_long() ? 7 : sim_stride()) {
        SimJob job;
        const PlanCase *one = &cases.items[i];
        TRY(open_job(&job, model, n_steps, why, why_bytes));
        EXPECT(plan_apply(&job, one, true) == 0, "%s", err_text());
        TRY(check_replicas(&job, &oracles.results[one->value[AXIS_GEOMETRY]], measure, why,
                           why_bytes));
        sim_job_done(&job);
    }
    plan_cases_done(&cases);
    close_oracles(&oracles);
    return 0;
}

int equivalence_mlp_replicas_give_the_same_bits_every_run(char *why, size_t why_bytes) {
    return any_replicas("mlp", 6, sim_difference, why, why_bytes);
}

int equivalence_cnn_replicas_give_the_same_bits_every_run(char *why, size_t why_bytes) {
    return any_replicas("cnn", 6, sim_model_difference, why, why_bytes);
}

int equivalence_tiny_gpt_replicas_give_the_same_bits_every_run(char *why, size_t why_bytes) {
    return any_replicas("tiny_gpt", 6, sim_difference, why, why_bytes);
}

int equivalence_replicas_agree_after_many_steps(char *why, size_t why_bytes) {
    static const struct {
        const char *model;
        int64_t n_steps;
        Measure measure;
    } table[] = {{"mlp", 20, sim_difference},
                 {"tiny_gpt", 20, sim_difference},
                 {"cnn", 2, sim_difference},
                 {"cnn", 12, sim_model_difference}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        for (int32_t replicas = 2; replicas <= (sim_stride() > 1 ? 2 : 4); replicas++) {
            SimJob job;
            SimResult oracle;
            TRY(open_job(&job, table[i].model, table[i].n_steps, why, why_bytes));
            TRY(sim_check_oracle(&job, &oracle, why, why_bytes));
            EXPECT(sim_job_stages(&job, 2) == 0, "%s", err_text());
            job.order.plan.replicas[0] = replicas;
            job.order.plan.replicas[1] = 2;
            TRY(check_replicas(&job, &oracle, table[i].measure, why, why_bytes));
            sim_result_done(&oracle);
            sim_job_done(&job);
        }
    }
    return 0;
}

/* Workers without a micro-batch publish zeros and update as all do. */
int equivalence_more_replicas_than_micro_batches(char *why, size_t why_bytes) {
    static const int32_t replicas[][3] = {{3, 1, 1}, {1, 3, 1}, {1, 1, 3}, {4, 3, 5}};
    static const char *const models[] = {"mlp", "cnn", "tiny_gpt"};
    for (size_t i = 0; i<3 * sizeof replicas / sizeof replicas[0]; i += sim_stride()> 1
                           ? 5
                           : 1) { /* each of the models, or all */
        SimJob job;
        SimResult oracle;
        TRY(open_job(&job, models[i % 3], 6, why, why_bytes));
        sim_job_micro(&job, 8, 4);
        sim_job_samples(&job, 19); /* the last batch has one micro-batch that is not empty */
        TRY(sim_check_oracle(&job, &oracle, why, why_bytes));
        EXPECT(sim_job_stages(&job, 3) == 0, "%s", err_text());
        memcpy(job.order.plan.replicas, replicas[i / 3], sizeof replicas[0]);
        TRY(check_replicas(&job, &oracle, i % 3 == 1 ? sim_model_difference : sim_difference, why,
                           why_bytes));
        sim_result_done(&oracle);
        sim_job_done(&job);
    }
    return 0;
}

/* ---- micro-batches ---- */

/* Dropout is keyed by the row in the batch, so its masks are the same too; BatchNorm is not in
 * these. */
int equivalence_losses_agree_across_numbers_of_micro_batches(char *why, size_t why_bytes) {
    static const char *const models[] = {"mlp", "tiny_gpt"};
    for (size_t m = 0; m < 2; m++) {
        SimResult whole = {0};
        for (int32_t n_micro = 1; n_micro <= 8; n_micro *= 2) {
            SimJob job;
            SimResult result;
            TRY(open_job(&job, models[m], 6, why, why_bytes));
            EXPECT(sim_job_stages(&job, 3) == 0, "%s", err_text());
            sim_job_micro(&job, 8, 8 / n_micro);
            sim_job_samples(&job, 21);
            TRY(sim_check_run(&job, NULL, &result, why, why_bytes));
            if (n_micro == 1) {
                whole = result;
            } else {
                const double losses = sim_loss_difference(&whole, &result);
                const double params = sim_difference(&whole, &result);
                EXPECT(losses <= 1e-6 && params <= 1e-5,
                       "%s, M=%d: losses differ by %g, parameters by %g", models[m], n_micro,
                       losses, params);
                sim_result_done(&result);
            }
            sim_job_done(&job);
        }
        sim_result_done(&whole);
    }
    return 0;
}

/* ---- cuts ---- */

static void vary(SimJob *job, int32_t i) {
    const char *schedule = i % 3 == 0 ? "gpipe" : "1f1b";
    text_copy(job->schedule, sizeof job->schedule, schedule);
    job->hoist = i % 2;
    for (int32_t s = 0; s < job->order.plan.n_stages; s++) {
        job->order.plan.recompute[s] = (i + s) % 4 == 0;
    }
}

static int open_cut_job(SimJob *job, const char *model, char *why, size_t why_bytes) {
    TRY(open_job(job, model, 4, why, why_bytes));
    sim_job_micro(job, 8, 3);
    sim_job_samples(job, 20);
    return 0;
}

/* Every cut into 2 to max_stages stages; the job is done with. */
static int cut_everywhere(SimJob *job, int32_t max_stages, char *why, size_t why_bytes) {
    SimResult oracle;
    const int32_t n_layers = job->order.model.n_layers;
    int32_t n_cuts = 0;
    TRY(sim_check_oracle(job, &oracle, why, why_bytes));
    for (int32_t n_stages = 2; n_stages <= max_stages; n_stages++) {
        int32_t ends[16];
        for (int32_t s = 0; s < n_stages; s++) {
            ends[s] = s + 1 < n_stages ? s + 1 : n_layers;
        }
        do {
            if (n_cuts++ % sim_stride() != 0) {
                continue;
            }
            EXPECT(sim_job_cut(job, ends, n_stages) == 0, "%s", err_text());
            vary(job, n_cuts - 1);
            TRY(sim_check_same(job, NULL, &oracle, "", NULL, why, why_bytes));
        } while (sim_next_cut(ends, n_stages, n_layers));
    }
    sim_result_done(&oracle);
    sim_job_done(job);
    return 0;
}

static int cut_model_everywhere(const char *model, char *why, size_t why_bytes) {
    SimJob job;
    TRY(open_cut_job(&job, model, why, why_bytes));
    return cut_everywhere(&job, sim_long() ? 3 : 2, why, why_bytes);
}

int equivalence_mlp_cut_at_every_boundary(char *why, size_t why_bytes) {
    return cut_model_everywhere("mlp", why, why_bytes);
}

int equivalence_cnn_cut_at_every_boundary(char *why, size_t why_bytes) {
    return cut_model_everywhere("cnn", why, why_bytes);
}

int equivalence_tiny_gpt_cut_at_every_boundary(char *why, size_t why_bytes) {
    return cut_model_everywhere("tiny_gpt", why, why_bytes);
}

static int cut_at_random(const char *model, char *why, size_t why_bytes) {
    SimJob job;
    SimResult oracle;
    uint64_t state = 5;
    const int32_t n_cuts = sim_long() ? 300 : sim_stride() > 1 ? 3 : 15;
    TRY(open_cut_job(&job, model, why, why_bytes));
    TRY(sim_check_oracle(&job, &oracle, why, why_bytes));
    for (int32_t i = 0; i < n_cuts; i++) {
        int32_t n_stages = 3 + (int32_t)sim_draw(&state, 6);
        EXPECT(sim_job_random_cut(&job, n_stages, &state) == 0, "%s", err_text());
        vary(&job, i);
        TRY(sim_check_same(&job, NULL, &oracle, "", NULL, why, why_bytes));
    }
    sim_result_done(&oracle);
    sim_job_done(&job);
    return 0;
}

int equivalence_mlp_cut_at_random_into_many_stages(char *why, size_t why_bytes) {
    return cut_at_random("mlp", why, why_bytes);
}

int equivalence_cnn_cut_at_random_into_many_stages(char *why, size_t why_bytes) {
    return cut_at_random("cnn", why, why_bytes);
}

int equivalence_tiny_gpt_cut_at_random_into_many_stages(char *why, size_t why_bytes) {
    return cut_at_random("tiny_gpt", why, why_bytes);
}

/* ---- models with something special ---- */

/* ' for ", and every cut into 2 to 4 stages. */
static int open_special(SimJob *job, const char *layers, int features, char *why,
                        size_t why_bytes) {
    char text[4096];
    int n = snprintf(text, sizeof text,
                     "{'name':'special','input':{'dtype':'F32','shape':[%d]},"
                     "'target':{'dtype':'I32','shape':[]},'layers':[%s]}",
                     features, layers);
    EXPECT(n > 0 && (size_t)n < sizeof text, "the model's text is too long");
    for (char *c = text; *c != '\0'; c++) {
        *c = *c == '\'' ? '"' : *c;
    }
    EXPECT(sim_job_init_text(job, text, false, 5) == 0, "%s", err_text());
    sim_job_steps(job, 4, 2);
    sim_job_eval(job, 7, 2);
    sim_job_micro(job, 6, 2);
    sim_job_samples(job, 15); /* the last batch: 2, 1, 0 */
    return 0;
}

static int check_special(const char *layers, int features, char *why, size_t why_bytes) {
    SimJob job;
    TRY(open_special(&job, layers, features, why, why_bytes));
    return cut_everywhere(&job, 4, why, why_bytes);
}

/* Replicas of the cut at `ends` agree, too. */
static int check_special_replicas(const char *layers, int features, const int32_t ends[3],
                                  char *why, size_t why_bytes) {
    for (int32_t first = 1; first <= 2; first++) {
        SimJob job;
        SimResult oracle;
        TRY(open_special(&job, layers, features, why, why_bytes));
        TRY(sim_check_oracle(&job, &oracle, why, why_bytes));
        EXPECT(sim_job_cut(&job, ends, 3) == 0, "%s", err_text());
        job.order.plan.replicas[0] = first;
        job.order.plan.replicas[1] = 2;
        job.order.plan.replicas[2] = 3 - first;
        TRY(check_replicas(&job, &oracle, sim_difference, why, why_bytes));
        sim_result_done(&oracle);
        sim_job_done(&job);
    }
    return 0;
}

int equivalence_value_that_layers_of_many_stages_read(char *why, size_t why_bytes) {
    static const char layers[] = "{'name':'a','kind':'linear','features':16},"
                                 "{'name':'r','kind':'relu'},"
                                 "{'name':'b','kind':'linear','features':16},"
                                 "{'name':'c','kind':'linear','features':16,'inputs':['b']},"
                                 "{'name':'s1','kind':'add','inputs':['c','r']},"
                                 "{'name':'d','kind':'linear','features':16,'inputs':['r']},"
                                 "{'name':'s2','kind':'add','inputs':['s1','d']},"
                                 "{'name':'s3','kind':'add','inputs':['r','s2']},"
                                 "{'name':'f','kind':'linear','features':5},"
                                 "{'name':'loss','kind':'cross_entropy'}";
    static const int32_t ends[] = {3, 6, 10};
    TRY(check_special(layers, 12, why, why_bytes));
    return check_special_replicas(layers, 12, ends, why, why_bytes);
}

int equivalence_sum_of_a_value_with_itself(char *why, size_t why_bytes) {
    static const char layers[] = "{'name':'a','kind':'linear','features':16},"
                                 "{'name':'twice','kind':'add','inputs':['a','a']},"
                                 "{'name':'r','kind':'gelu'},"
                                 "{'name':'again','kind':'add','inputs':['r','r']},"
                                 "{'name':'b','kind':'linear','features':16},"
                                 "{'name':'both','kind':'add','inputs':['again','r']},"
                                 "{'name':'late','kind':'add','inputs':['r','r']},"
                                 "{'name':'sum','kind':'add','inputs':['late','b']},"
                                 "{'name':'all','kind':'add','inputs':['sum','both']},"
                                 "{'name':'f','kind':'linear','features':5},"
                                 "{'name':'loss','kind':'cross_entropy'}";
    static const int32_t ends[] = {3, 6, 11};
    TRY(check_special(layers, 12, why, why_bytes));
    return check_special_replicas(layers, 12, ends, why, why_bytes);
}

/* Four uses: every cut into three stages has one stage, or more, with several. */
int equivalence_parameter_tied_over_three_stages(char *why, size_t why_bytes) {
    static const char layers[] =
        "{'name':'a','kind':'linear','features':16},{'name':'r1','kind':'relu'},"
        "{'name':'b','kind':'linear','features':16,'tie':'a.weight'},{'name':'r2','kind':'relu'},"
        "{'name':'c','kind':'linear','features':16,'tie':'a.weight'},{'name':'r3','kind':'relu'},"
        "{'name':'d','kind':'linear','features':16,'tie':'a.weight'},"
        "{'name':'f','kind':'linear','features':5},{'name':'loss','kind':'cross_entropy'}";
    static const int32_t ends[] = {3, 5, 9}; /* two uses, one, one */
    TRY(check_special(layers, 16, why, why_bytes));
    return check_special_replicas(layers, 16, ends, why, why_bytes);
}

int equivalence_batchnorm_first_in_a_stage(char *why, size_t why_bytes) {
    static const char layers[] = "{'name':'bn0','kind':'batchnorm'},"
                                 "{'name':'a','kind':'linear','features':16},"
                                 "{'name':'bn1','kind':'batchnorm'},{'name':'r1','kind':'relu'},"
                                 "{'name':'b','kind':'linear','features':16},"
                                 "{'name':'bn2','kind':'batchnorm'},"
                                 "{'name':'s','kind':'add','inputs':['r1','bn2']},"
                                 "{'name':'bn3','kind':'batchnorm'},"
                                 "{'name':'f','kind':'linear','features':5},"
                                 "{'name':'loss','kind':'cross_entropy'}";
    return check_special(layers, 12, why, why_bytes);
}

/* Every layer a stage of its own: most have no parameters. */
int equivalence_stages_without_parameters(char *why, size_t why_bytes) {
    static const char *const layers =
        "{'name':'flat','kind':'flatten'},{'name':'a','kind':'linear','features':16},"
        "{'name':'r1','kind':'relu'},{'name':'drop','kind':'dropout','p':0.4},"
        "{'name':'g','kind':'gelu'},{'name':'s','kind':'add','inputs':['g','r1']},"
        "{'name':'f','kind':'linear','features':5},{'name':'loss','kind':'cross_entropy'}";
    static const int32_t ends[] = {1, 2, 3, 4, 5, 6, 7, 8};
    SimJob job;
    SimResult oracle;
    TRY(open_special(&job, layers, 12, why, why_bytes));
    TRY(sim_check_oracle(&job, &oracle, why, why_bytes));
    EXPECT(sim_job_cut(&job, ends, 8) == 0, "%s", err_text());
    for (int32_t i = 0; i < 4; i++) {
        vary(&job, i);
        TRY(sim_check_same(&job, NULL, &oracle, "", NULL, why, why_bytes));
    }
    job.order.plan.replicas[3] = 2; /* of a stage without parameters */
    job.order.plan.replicas[7] = 2;
    TRY(check_replicas(&job, &oracle, sim_difference, why, why_bytes));
    sim_result_done(&oracle);
    sim_job_done(&job);
    return check_special(layers, 12, why, why_bytes);
}

int equivalence_stage_that_holds_only_the_loss(char *why, size_t why_bytes) {
    static const char *const models[] = {"mlp", "cnn", "tiny_gpt"};
    for (size_t m = 0; m < 3; m++) {
        SimJob job;
        SimResult oracle;
        TRY(open_cut_job(&job, models[m], why, why_bytes));
        TRY(sim_check_oracle(&job, &oracle, why, why_bytes));
        const int32_t n_layers = job.order.model.n_layers;
        const int32_t ends[] = {n_layers / 2, n_layers - 1, n_layers};
        EXPECT(sim_job_cut(&job, ends, 3) == 0, "%s", err_text());
        for (int32_t i = 0; i < 4; i++) {
            vary(&job, i);
            TRY(sim_check_same(&job, NULL, &oracle, "", NULL, why, why_bytes));
        }
        job.order.plan.replicas[2] = 2;
        TRY(check_replicas(&job, &oracle, sim_model_difference, why, why_bytes));
        sim_result_done(&oracle);
        sim_job_done(&job);
    }
    return 0;
}

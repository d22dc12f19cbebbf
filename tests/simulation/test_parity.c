/* The jobs of tests/golden/jobs, by one stage and by three, against PyTorch's curves of the same
 * jobs (tests/golden/make_curves.py): same weights, batches and dropout masks.
 *
 * Tolerances, relative, against PyTorch in float32 and in float64: losses 1e-5 at each step;
 * gradient norms 1e-5; final parameters and running statistics 2e-5 of the tensor's largest. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/err.h"
#include "core/json.h"
#include "core/text.h"
#include "tests/support/parity_case.h"

enum { CURVE_BYTES = 1 << 20 };

#define OK(call) cr_assert_geq((call), 0, "%s", err_text())

static const double LOSS_TOLERANCE = 1e-5, NORM_TOLERANCE = 1e-5, FINAL_TOLERANCE = 2e-5;

typedef struct Variant {
    int32_t stages;
    const char *isa;
} Variant;

typedef struct Worst {
    double loss, norm, eval_loss, final;
} Worst;

static const cJSON *part(const cJSON *object, const char *key) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
    cr_assert_not_null(value, "the curve has no '%s'", key);
    return value;
}

/* |got - want| / |want|; what is not finite is infinitely far. */
static double apart(double got, double want) {
    double distance = fabs(got - want) / fabs(want);
    return isfinite(distance) ? distance : INFINITY;
}

static double compare_curve(const char *what, const cJSON *want, const double *got, int32_t n,
                            double tolerance) {
    double worst = 0.0;
    cr_assert_eq(cJSON_GetArraySize(want), n, "%d steps of PyTorch, %d of FuncPipe",
                 cJSON_GetArraySize(want), n);
    for (int32_t step = 0; step < n; step++) {
        double golden = cJSON_GetArrayItem(want, step)->valuedouble;
        double distance = apart(got[step], golden);
        cr_expect(!!(distance <= tolerance), "step %d: %s %.10g, PyTorch %.10g: %.3g apart", step,
                  what, got[step], golden, distance);
        worst = fmax(worst, distance);
    }
    return worst;
}

static double compare_final(const Model *model, const cJSON *finals, const SimResult *result) {
    double worst = 0.0;
    cr_assert_eq(cJSON_GetArraySize(finals), model->n_params);
    for (int32_t p = 0; p < model->n_params; p++) {
        const cJSON *values = part(finals, model->params[p].name);
        const int64_t n = result->sizes[p];
        const int64_t stride = (n + 31) / 32; /* as make_curves.py takes them */
        double largest = 0.0;
        cr_assert_eq(cJSON_GetArraySize(values), (n + stride - 1) / stride);
        for (int64_t i = 0; i < n; i++)
            largest = fmax(largest, fabs((double)result->params[p][i]));
        for (int i = 0; i < cJSON_GetArraySize(values); i++) {
            const cJSON *value = cJSON_GetArrayItem(values, i);
            if (cJSON_IsNull(value))
                continue;
            double got = (double)result->params[p][i * stride];
            double distance = fabs(got - value->valuedouble) / largest;
            cr_expect(!!(distance <= FINAL_TOLERANCE), "%s[%lld]: %.9g, PyTorch %.9g",
                      model->params[p].name, (long long)(i * stride), got, value->valuedouble);
            worst = fmax(worst, distance);
        }
    }
    return worst;
}

static Worst compare_run(const Model *model, const cJSON *run, const SimResult *result) {
    Worst worst;
    worst.loss =
        compare_curve("loss", part(run, "loss"), result->loss, result->n_steps, LOSS_TOLERANCE);
    worst.norm =
        compare_curve("norm", part(run, "norm"), result->norm, result->n_steps, NORM_TOLERANCE);
    double golden = part(run, "eval_loss")->valuedouble;
    cr_assert_eq(result->n_evals, 1);
    worst.eval_loss = apart(result->eval_loss[0], golden);
    cr_expect(!!(worst.eval_loss <= LOSS_TOLERANCE), "evaluation: loss %.10g, PyTorch %.10g",
              result->eval_loss[0], golden);
    worst.final = compare_final(model, part(run, "final"), result);
    return worst;
}

static void check_hash(const char *job_path, const Order *order, const cJSON *curve) {
    ParityTensors tensors;
    char hash[17];
    OK(parity_tensors_init(&tensors, order));
    OK(parity_hash(job_path, &tensors, hash));
    parity_tensors_done(&tensors);
    cr_assert_str_eq(hash, part(curve, "hash")->valuestring,
                     "the curve is of another job, or of other weights, batches or masks; "
                     "tests/golden/README.md says how to make it again");
}

static void run(const char *name, const Variant *variant, SimJob *job, const cJSON *curve) {
    const char *kinds[] = {"float32", "float64"};
    SimResult result;
    OK(sim_job_stages(job, variant->stages));
    OK(text_copy(job->order.plan.isa, sizeof job->order.plan.isa, variant->isa));
    int rc = sim_run(job, NULL, &result);
    if (rc == ERR_UNSUPPORTED && strcmp(variant->isa, "auto") != 0)
        cr_skip("%s", err_text());
    OK(rc);
    for (int k = 0; k < 2; k++) {
        Worst worst = compare_run(&job->order.model, part(curve, kinds[k]), &result);
        cr_log_info("%s, %d stages, %s, from %s: loss %.3g, norm %.3g, evaluation "
                    "%.3g, final %.3g",
                    name, variant->stages, variant->isa, kinds[k], worst.loss, worst.norm,
                    worst.eval_loss, worst.final);
    }
    sim_result_done(&result);
}

static void check(const char *name, Variant variant) {
    const char *folder = FUNCPIPE_SOURCE_DIR "/tests/golden";
    char path[512];
    cJSON *curve;
    SimJob job;
    snprintf(path, sizeof path, "%s/curves/%s.json", folder, name);
    OK(json_parse_file(path, CURVE_BYTES, &curve));
    snprintf(path, sizeof path, "%s/jobs/%s.json", folder, name);
    OK(parity_job_init(&job, path));
    check_hash(path, &job.order, curve);
    run(name, &variant, &job, curve);
    sim_job_done(&job);
    cJSON_Delete(curve);
}

#define VARIANTS(name)                                                                             \
    Test(parity, name##_of_one_stage) {                                                            \
        check(#name, (Variant){1, "auto"});                                                        \
    }                                                                                              \
    Test(parity, name##_of_three_stages) {                                                         \
        check(#name, (Variant){3, "auto"});                                                        \
    }                                                                                              \
    Test(parity, name##_with_avx2) {                                                               \
        check(#name, (Variant){1, "avx2"});                                                        \
    }                                                                                              \
    Test(parity, name##_with_sse41) {                                                              \
        check(#name, (Variant){1, "sse41"});                                                       \
    }

VARIANTS(mlp)
VARIANTS(cnn)
VARIANTS(tiny_gpt)

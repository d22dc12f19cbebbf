#include "tests/support/sim_check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"

bool sim_long(void) {
    const char *text = getenv("FUNCPIPE_LONG");
    return text != NULL && strcmp(text, "1") == 0;
}

const char *sim_describe(const SimJob *job, char *out, size_t out_bytes) {
    const Order *order = &job->order;
    const PlanSpec *plan = &order->plan;
    char replicas[64] = "", recompute[32] = "";
    for (int32_t s = 0; s < plan->n_stages && s < 16; s++) {
        size_t used = strlen(replicas);
        snprintf(replicas + used, sizeof replicas - used, "%s%d", s > 0 ? "," : "",
                 plan->replicas[s]);
        recompute[s] = plan->recompute[s] ? '1' : '0';
    }
    int n = snprintf(out, out_bytes,
                     "%s S=%d R=%s M=%d of %d (batch %lld, %lld samples) %s warmup %d hoist %d "
                     "recompute %s ends",
                     order->model.name, plan->n_stages, replicas, plan->n_micro, plan->micro_rows,
                     (long long)order->batch, (long long)order->train_samples, job->schedule,
                     job->warmup, job->hoist, recompute);
    for (int32_t s = 0; s < plan->n_stages && n > 0 && (size_t)n < out_bytes; s++) {
        n += snprintf(out + n, out_bytes - (size_t)n, " %d", plan->ends[s]);
    }
    return out;
}

int32_t sim_stride(void) {
#if defined(__SANITIZE_THREAD__)
    return sim_long() ? 1 : 37;
#elif defined(__SANITIZE_ADDRESS__)
    return sim_long() ? 1 : 19;
#else
    return 1;
#endif
}

int32_t sim_times(int32_t n) {
    int32_t times = n / sim_stride();
    return sim_long() ? 500 : times < 2 ? 2 : times;
}

/* Put "the job: words" into why, and be done with the result. */
static __attribute__((format(printf, 5, 6))) int sim_check_failed(const SimJob *job,
                                                                  SimResult *result, char *why,
                                                                  size_t why_bytes,
                                                                  const char *format, ...) {
    char text[SIM_DESCRIBE_BYTES];
    va_list args;
    int n = snprintf(why, why_bytes, "%s: ", sim_describe(job, text, sizeof text));
    va_start(args, format);
    if (n > 0 && (size_t)n < why_bytes) {
        vsnprintf(why + n, why_bytes - (size_t)n, format, args);
    }
    va_end(args);
    sim_result_done(result);
    return -1;
}

int sim_check_run(const SimJob *job, const SimFaults *faults, SimResult *out_result, char *why,
                  size_t why_bytes) {
    char words[SCENARIO_WHY_BYTES / 2];
    if (sim_run(job, faults, out_result) < 0) {
        return sim_check_failed(job, out_result, why, why_bytes, "%s", err_text());
    }
    if (out_result->n_left != 0) {
        return sim_check_failed(job, out_result, why, why_bytes, "%lld objects are left",
                                (long long)out_result->n_left);
    }
    if (sim_check_history(job, out_result, words, sizeof words) < 0) {
        return sim_check_failed(job, out_result, why, why_bytes, "%s", words);
    }
    return 0;
}

int sim_check_same(const SimJob *job, const SimFaults *faults, const SimResult *expected,
                   const char *what, int32_t *out_restarts, char *why, size_t why_bytes) {
    char words[SCENARIO_WHY_BYTES / 2];
    SimResult result;
    int n = snprintf(why, why_bytes, "%s%s", what, what[0] != '\0' ? ": " : "");
    char *rest = why + n;
    const size_t rest_bytes = why_bytes - (size_t)n;
    if (sim_check_run(job, faults, &result, rest, rest_bytes) < 0) {
        return -1;
    }
    if (sim_same(expected, &result, true, words, sizeof words) < 0) {
        return sim_check_failed(job, &result, rest, rest_bytes, "%s", words);
    }
    if (out_restarts != NULL) {
        *out_restarts = result.n_restarts;
    }
    sim_result_done(&result);
    return 0;
}

int sim_check_equal(const SimResult *expected, const SimResult *result, const char *what, char *why,
                    size_t why_bytes) {
    int n = snprintf(why, why_bytes, "%s: ", what);
    return sim_same(expected, result, true, why + n, why_bytes - (size_t)n);
}

int sim_check_oracle(const SimJob *job, SimResult *out_result, char *why, size_t why_bytes) {
    SimJob oracle;
    if (sim_job_copy(job, &oracle) < 0 || sim_job_stages(&oracle, 1) < 0) {
        snprintf(why, why_bytes, "%s", err_text());
        return -1;
    }
    oracle.hoist = oracle.warmup = 0;
    int rc = sim_check_run(&oracle, NULL, out_result, why, why_bytes);
    sim_job_done(&oracle);
    return rc;
}

uint32_t sim_draw(uint64_t *state, uint32_t n) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*state >> 33) % n);
}

int sim_job_random_cut(SimJob *job, int32_t n_stages, uint64_t *state) {
    int32_t ends[16];
    const int32_t n_layers = job->order.model.n_layers;
    int32_t left = n_stages; /* selection sampling (Knuth, TAOCP 2, 3.4.2, algorithm S) */
    for (int32_t end = 1; end < n_layers && left > 1; end++) {
        if ((int32_t)sim_draw(state, (uint32_t)(n_layers - end)) < left - 1) {
            ends[n_stages - left--] = end;
        }
    }
    ends[n_stages - 1] = n_layers;
    return sim_job_cut(job, ends, n_stages);
}

bool sim_next_cut(int32_t *ends, int32_t n_stages, int32_t n_layers) {
    for (int32_t s = n_stages - 2; s >= 0; s--) {
        if (ends[s] < n_layers - (n_stages - 1 - s)) {
            ends[s]++;
            for (int32_t t = s + 1; t < n_stages - 1; t++) {
                ends[t] = ends[t - 1] + 1;
            }
            return true;
        }
    }
    return false;
}

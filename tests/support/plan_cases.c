#include "tests/support/plan_cases.h"

#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/text.h"
#include "tests/support/sim_check.h"

enum { N_CANDIDATES = 24, MAX_LEVELS = 8 };

static const int levels[PLAN_N_AXES] = {
    [AXIS_GEOMETRY] = PLAN_N_GEOMETRIES,
    [AXIS_STAGES] = 4,
    [AXIS_SCHEDULE] = 2,
    [AXIS_WARMUP] = 3,
    [AXIS_RECOMPUTE] = 3,
    [AXIS_HOIST] = 3,
    [AXIS_CUT] = 2,
    [AXIS_REPLICAS] = 5,
};

/* Which pairs of values occurred. */
typedef struct Pairs {
    bool seen[PLAN_N_AXES][MAX_LEVELS][PLAN_N_AXES][MAX_LEVELS];
} Pairs;

static int pairs_count_new(const Pairs *pairs, const PlanCase *one, int n_axes) {
    int n = 0;
    for (int a = 0; a < n_axes; a++) {
        for (int b = a + 1; b < n_axes; b++) {
            n += !pairs->seen[a][one->value[a]][b][one->value[b]];
        }
    }
    return n;
}

static void pairs_add(Pairs *pairs, const PlanCase *one, int n_axes) {
    for (int a = 0; a < n_axes; a++) {
        for (int b = a + 1; b < n_axes; b++) {
            pairs->seen[a][one->value[a]][b][one->value[b]] = true;
        }
    }
}

/* The first pair that did not occur yet; false: all did. */
static bool pairs_missing(const Pairs *pairs, int n_axes, PlanCase *out_case, int out_axes[2]) {
    for (int a = 0; a < n_axes; a++) {
        for (int b = a + 1; b < n_axes; b++) {
            for (int i = 0; i < levels[a] * levels[b]; i++) {
                if (!pairs->seen[a][i / levels[b]][b][i % levels[b]]) {
                    out_axes[0] = a;
                    out_axes[1] = b;
                    out_case->value[a] = i / levels[b];
                    out_case->value[b] = i % levels[b];
                    return true;
                }
            }
        }
    }
    return false;
}

/* Fill the axes that are not fixed: of some random cases the one with most new pairs. */
static PlanCase choose(const Pairs *pairs, PlanCase fixed, int first, int second, int n_axes,
                       uint64_t *state) {
    PlanCase best = fixed;
    int most = -1;
    for (int c = 0; c < N_CANDIDATES; c++) {
        PlanCase one = fixed;
        for (int a = 0; a < n_axes; a++) {
            if (a != first && a != second) {
                one.value[a] = (int)sim_draw(state, (uint32_t)levels[a]);
            }
        }
        int n = pairs_count_new(pairs, &one, n_axes);
        if (n > most) {
            most = n;
            best = one;
        }
    }
    return best;
}

static void choose_pairwise(PlanCases *cases, int n_axes) {
    Pairs pairs = {0};
    uint64_t state = 11;
    PlanCase one = {{0}};
    for (int i = 0; i < levels[AXIS_GEOMETRY] * levels[AXIS_STAGES]; i++) {
        one.value[AXIS_GEOMETRY] = i / levels[AXIS_STAGES];
        one.value[AXIS_STAGES] = i % levels[AXIS_STAGES];
        one = choose(&pairs, one, AXIS_GEOMETRY, AXIS_STAGES, n_axes, &state);
        pairs_add(&pairs, &one, n_axes);
        cases->items[cases->n++] = one;
    }
    int axes[2];
    while (cases->n < PLAN_MAX_CASES && pairs_missing(&pairs, n_axes, &one, axes)) {
        one = choose(&pairs, one, axes[0], axes[1], n_axes, &state);
        pairs_add(&pairs, &one, n_axes);
        cases->items[cases->n++] = one;
    }
}

static void choose_all(PlanCases *cases, int n_axes) {
    int n = 1;
    for (int a = 0; a < n_axes; a++) {
        n *= levels[a];
    }
    for (; cases->n < n && cases->n < PLAN_MAX_CASES; cases->n++) {
        int rest = cases->n;
        for (int a = n_axes - 1; a >= 0; a--) {
            cases->items[cases->n].value[a] = rest % levels[a];
            rest /= levels[a];
        }
    }
}

int plan_cases_init(PlanCases *cases, bool with_replicas, bool all) {
    const int n_axes = with_replicas ? PLAN_N_AXES : PLAN_N_AXES - 1;
    cases->n = 0;
    cases->items = calloc(PLAN_MAX_CASES, sizeof *cases->items);
    if (cases->items == NULL) {
        return err_set(ERR_MEMORY, "the cases of a test");
    }
    if (all) {
        choose_all(cases, n_axes);
    } else {
        choose_pairwise(cases, n_axes);
    }
    return 0;
}

void plan_cases_done(PlanCases *cases) {
    free(cases->items);
    cases->items = NULL;
}

void plan_geometry(SimJob *job, int geometry) {
    static const struct {
        int64_t batch, samples;
        int32_t micro_rows;
    } table[PLAN_N_GEOMETRIES] = {
        {8, 24, 8}, /* one micro-batch */
        {8, 21, 4}, /* the last batch: 4, 1 */
        {8, 20, 3}, /* 3, 3, 2; the last batch: 3, 1, 0 */
        {8, 19, 2}, /* the last batch: 2, 1, 0, 0 */
        {5, 12, 1}, /* the last batch: 1, 1, 0, 0, 0 */
        {6, 13, 1}, /* the last batch: 1 and five empty ones */
        {7, 21, 1}, /* 7 */
        {8, 24, 1}, /* 8 */
    };
    sim_job_micro(job, table[geometry].batch, table[geometry].micro_rows);
    sim_job_samples(job, table[geometry].samples);
}

/* 2 of each stage, or some of one alone, so that those before and behind it have none. */
static void set_replicas(PlanSpec *plan, int how, int32_t of_one) {
    enum { EACH = 4 };
    for (int32_t s = 0; s < plan->n_stages; s++) {
        plan->replicas[s] = how == EACH ? 2 : s == how % plan->n_stages ? of_one : 1;
    }
}

int plan_apply(SimJob *job, const PlanCase *plan_case, bool with_replicas) {
    static const int32_t warmups[] = {0, 1, 6};
    const int *value = plan_case->value;
    PlanSpec *plan = &job->order.plan;
    uint64_t state = (uint64_t)(value[AXIS_GEOMETRY] * 64 + value[AXIS_WARMUP] * 8 +
                                value[AXIS_HOIST] + value[AXIS_RECOMPUTE] * 512);
    plan_geometry(job, value[AXIS_GEOMETRY]);
    if (value[AXIS_CUT] == 0) {
        TRY(sim_job_stages(job, value[AXIS_STAGES] + 1));
    } else {
        TRY(sim_job_random_cut(job, value[AXIS_STAGES] + 1, &state));
    }
    TRY(text_copy(job->schedule, sizeof job->schedule,
                  value[AXIS_SCHEDULE] == 0 ? "1f1b" : "gpipe"));
    job->warmup = warmups[value[AXIS_WARMUP]];
    job->hoist = value[AXIS_HOIST];
    for (int32_t s = 0; s < plan->n_stages; s++) {
        plan->recompute[s] = value[AXIS_RECOMPUTE] == 1 ||
                             (value[AXIS_RECOMPUTE] == 2 && s % 2 == value[AXIS_WARMUP] % 2);
    }
    if (with_replicas) {
        set_replicas(plan, value[AXIS_REPLICAS], value[AXIS_HOIST] == 1 ? 3 : 2);
    }
    return 0;
}

/* Runs every scenario as a plain program, for -fsanitize=thread:
 *
 *     tsan_main            all of them
 *     tsan_main vm abort   those whose "table/name" contains every word
 *     tsan_main --list
 *
 * By hand: TSAN_OPTIONS=suppressions=tests/simulation/tsan.supp.
 * The last line is "N passed, M failed"; it fails when M > 0. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "tests/support/equivalence_scenarios.h"
#include "tests/support/kill_scenarios.h"
#include "tests/support/relay_fault_scenarios.h"
#include "tests/support/semantics_scenarios.h"
#include "tests/support/vm_scenarios.h"

static const ScenarioTable *const tables[] = {
    &vm_scenarios,          &equivalence_scenarios, &kill_scenarios,
    &relay_fault_scenarios, &semantics_scenarios,
};
enum { N_TABLES = sizeof tables / sizeof tables[0] };

static bool chosen(const char *name, char **words, int n_words) {
    for (int i = 0; i < n_words; i++) {
        if (!strstr(name, words[i]))
            return false;
    }
    return true;
}

/* 0 passed, 1 skipped, < 0 failed. */
static int run(const Scenario *scenario, const char *name) {
    char why[SCENARIO_WHY_BYTES] = "";
    printf("%s ...", name);
    fflush(stdout);
    int64_t begin_ns = clock_now_ns();
    int rc = scenario->run(why, sizeof why);
    long long ms = (long long)((clock_now_ns() - begin_ns) / CLOCK_NS_PER_MS);
    printf(" %s (%lld ms)%s%s\n",
           rc < 0 ? "FAILED"
           : rc   ? "skipped"
                  : "passed",
           ms, rc ? ": " : "", rc ? why : "");
    return rc;
}

int main(int argc, char **argv) {
    bool list = argc == 2 && strcmp(argv[1], "--list") == 0;
    int n_passed = 0, n_skipped = 0, n_failed = 0;
    for (int t = 0; t < N_TABLES; t++) {
        for (int i = 0; i < tables[t]->n_scenarios; i++) {
            const Scenario *scenario = &tables[t]->scenarios[i];
            char name[200];
            snprintf(name, sizeof name, "%s/%s", tables[t]->name, scenario->name);
            if (list) {
                puts(name);
            } else if (chosen(name, argv + 1, argc - 1)) {
                int rc = run(scenario, name);
                n_passed += rc == 0;
                n_skipped += rc > 0;
                n_failed += rc < 0;
            }
        }
    }
    if (list)
        return 0;
    if (n_skipped)
        printf("%d skipped\n", n_skipped);
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed > 0 || n_passed + n_skipped == 0;
}

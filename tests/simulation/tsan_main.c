/* Runs every scenario as a plain program, for -fsanitize=thread:
 *
 *     tsan_main            all of them
 *     tsan_main vm abort   those whose "table/name" contains every word
 *     tsan_main --list
 *
 * To the tables of scenarios come the tests of files that are compiled against plain/criterion.
 * By hand: TSAN_OPTIONS=suppressions=tests/simulation/tsan.supp.
 * The last line is "N passed, M failed"; it fails when M > 0. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "tests/simulation/plain/criterion/criterion.h"
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

/* ---- tests for Criterion ---- */

enum { MAX_PLAIN = 64 };
static struct {
    const char *name;
    void (*run)(void);
} plain[MAX_PLAIN];
static int n_plain;
static jmp_buf end_of_test;

void plain_add(const char *name, void (*run)(void)) {
    if (n_plain == MAX_PLAIN)
        abort();
    plain[n_plain].name = name;
    plain[n_plain++].run = run;
}

void plain_fail(const char *file, int line, const char *what, const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf(" FAILED\n%s:%d: %s: ", file, line, what);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    exit(1);
}

void plain_skip(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    longjmp(end_of_test, 1);
}

static int run_plain(void (*test)(void)) {
    if (setjmp(end_of_test) != 0)
        return 1;
    test();
    return 0;
}

/* ---- all of them ---- */

/* "one|another": does any of these stand in the name? */
static bool holds_one(const char *name, const char *words) {
    char word[100];
    for (const char *at = words;; at++) {
        const size_t n = strcspn(at, "|");
        snprintf(word, sizeof word, "%.*s", (int)n, at);
        if (strstr(name, word))
            return true;
        at += n;
        if (!*at)
            return false;
    }
}

static bool chosen(const char *name, char **words, int n_words) {
    for (int i = 0; i < n_words; i++) {
        if (!holds_one(name, words[i]))
            return false;
    }
    return true;
}

typedef struct Counts {
    int n_passed, n_skipped, n_failed;
} Counts;

/* Run a scenario, or else a plain test, when it is among the chosen ones. */
static void run(const char *name, const Scenario *scenario, void (*test)(void), Counts *counts) {
    char why[SCENARIO_WHY_BYTES] = "";
    printf("%s ...", name);
    fflush(stdout);
    int64_t begin_ns = clock_now_ns();
    int rc = scenario ? scenario->run(why, sizeof why) : run_plain(test);
    long long ms = (long long)((clock_now_ns() - begin_ns) / CLOCK_NS_PER_MS);
    printf(" %s (%lld ms)%s%s\n",
           rc < 0 ? "FAILED"
           : rc   ? "skipped"
                  : "passed",
           ms, rc ? ": " : "", rc ? why : "");
    counts->n_passed += rc == 0;
    counts->n_skipped += rc > 0;
    counts->n_failed += rc < 0;
}

int main(int argc, char **argv) {
    bool list = argc == 2 && strcmp(argv[1], "--list") == 0;
    Counts counts = {0};
    for (int t = 0; t < N_TABLES; t++) {
        for (int i = 0; i < tables[t]->n_scenarios; i++) {
            const Scenario *scenario = &tables[t]->scenarios[i];
            char name[200];
            snprintf(name, sizeof name, "%s/%s", tables[t]->name, scenario->name);
            if (list)
                puts(name);
            else if (chosen(name, argv + 1, argc - 1))
                run(name, scenario, NULL, &counts);
        }
    }
    for (int i = 0; i < n_plain; i++) {
        if (list)
            puts(plain[i].name);
        else if (chosen(plain[i].name, argv + 1, argc - 1))
            run(plain[i].name, NULL, plain[i].run, &counts);
    }
    if (list)
        return 0;
    if (counts.n_skipped)
        printf("%d skipped\n", counts.n_skipped);
    printf("%d passed, %d failed\n", counts.n_passed, counts.n_failed);
    return counts.n_failed > 0 || counts.n_passed + counts.n_skipped == 0;
}

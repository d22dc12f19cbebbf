/* A scenario: a story that runs as a plain function. The Criterion programs call it, and so does
 * the driver that is built with -fsanitize=thread, under which Criterion cannot run
 * (tests/simulation/tsan_main.c). A file of scenarios exports one table. */
#ifndef FUNCPIPE_TESTS_SUPPORT_SCENARIO_H
#define FUNCPIPE_TESTS_SUPPORT_SCENARIO_H

#include <stddef.h>

typedef struct Scenario {
    const char *name;
    /* 0 passed, 1 skipped, < 0 failed; the last two say why. */
    int (*run)(char *why, size_t why_bytes);
} Scenario;

typedef struct ScenarioTable {
    const char *name; /* "vm" */
    const Scenario *scenarios;
    int n_scenarios;
} ScenarioTable;

enum { SCENARIO_WHY_BYTES = 2048 };

/* Put "file:line: words" into why and return -1. */
int scenario_fail(char *why, size_t why_bytes, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Inside a scenario (or a helper with the same parameters): leave it unless the condition holds. */
#define EXPECT(condition, ...)                                                                     \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return scenario_fail(why, why_bytes, __FILE__, __LINE__, __VA_ARGS__);                 \
    } while (0)

#endif

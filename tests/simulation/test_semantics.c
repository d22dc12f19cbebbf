/* What pipelined training must mean, whatever the plan. */
#include <criterion/criterion.h>

#include "tests/support/semantics_scenarios.h"

#define SEMANTICS_TEST(name)                                                                       \
    Test(semantics, name) {                                                                        \
        char why[SCENARIO_WHY_BYTES] = "";                                                         \
        int rc = semantics_##name(why, sizeof why);                                                \
        cr_assert(rc == 0, "%s", why);                                                             \
    }
SEMANTICS_SCENARIOS(SEMANTICS_TEST)

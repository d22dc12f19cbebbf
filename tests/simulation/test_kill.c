/* Workers killed anywhere: the job ends with the same bits. FUNCPIPE_LONG=1 kills in every step. */
#include <criterion/criterion.h>

#include "tests/support/kill_scenarios.h"

#define KILL_TEST(name)                                                                            \
    Test(kill, name) {                                                                             \
        char why[SCENARIO_WHY_BYTES] = "";                                                         \
        int rc = kill_##name(why, sizeof why);                                                     \
        cr_assert(rc == 0, "%s", why);                                                             \
    }
KILL_SCENARIOS(KILL_TEST)

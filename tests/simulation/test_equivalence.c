/* Any cut, schedule and number of replicas trains as one stage does. FUNCPIPE_LONG=1 tries every
 * combination instead of every pair. */
#include <criterion/criterion.h>

#include "tests/support/equivalence_scenarios.h"

#define EQUIVALENCE_TEST(name)                                                                     \
    Test(equivalence, name) {                                                                      \
        char why[SCENARIO_WHY_BYTES] = "";                                                         \
        int rc = equivalence_##name(why, sizeof why);                                              \
        cr_assert(rc == 0, "%s", why);                                                             \
    }
EQUIVALENCE_SCENARIOS(EQUIVALENCE_TEST)

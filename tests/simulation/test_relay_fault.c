/* Relay operations that fail or answer wrongly: the job ends with the same bits. Every
 * operation fails once in turn; the other kinds of fault are sampled, FUNCPIPE_LONG=1 tries all. */
#include <criterion/criterion.h>

#include "storage/relay_faulty.h"
#include "tests/support/relay_fault_scenarios.h"

#define RELAY_FAULT_TEST(name)                                                                     \
    Test(relay_fault, name) {                                                                      \
        char why[SCENARIO_WHY_BYTES] = "";                                                         \
        int rc = relay_fault_##name(why, sizeof why);                                              \
        cr_assert(rc == 0, "%s", why);                                                             \
    }
RELAY_FAULT_SCENARIOS(RELAY_FAULT_TEST)

#include <criterion/criterion.h>

#include "tests/support/vm_scenarios.h"

#define VM_TEST(name)                                                                              \
    Test(vm, name) {                                                                               \
        char why[SCENARIO_WHY_BYTES] = "";                                                         \
        int rc = vm_##name(why, sizeof why);                                                       \
        cr_assert(rc == 0, "%s", why);                                                             \
    }
VM_SCENARIOS(VM_TEST)

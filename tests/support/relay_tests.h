/* The relay suite as Criterion tests: RELAY_TEST(mem, get_waits) is Test(mem, get_waits) over
 * relay_factory_mem. */
#ifndef FUNCPIPE_TESTS_RELAY_TESTS_H
#define FUNCPIPE_TESTS_RELAY_TESTS_H

#include <criterion/criterion.h>

#include "tests/support/relay_suite.h"

static inline void relay_test(const RelayFactory *factory, bool (*scenario)(RelayRig *rig)) {
    RelayRig rig;
    bool ok = relay_suite_run(factory, scenario, &rig);
    if (ok && rig.skipped)
        cr_skip_test("%s", rig.why);
    cr_assert(ok, "%s: %s", factory->name, rig.why);
}

#define RELAY_TEST(suite, name)                                                                    \
    Test(suite, name) {                                                                            \
        relay_test(&relay_factory_##suite, relay_suite_##name);                                    \
    }

#endif

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

/* Those in which it counts how far away a relay is; all of them in the long form (relay_main). */
#define RELAY_FAR_SCENARIOS(X)                                                                     \
    X(first_content_stays)                                                                         \
    X(all_sizes)                                                                                   \
    X(drop_keeps_neighbours)                                                                       \
    X(notes_last_wins)                                                                             \
    X(get_waits)                                                                                   \
    X(deadline_passes)                                                                             \
    X(interrupt_wakes)                                                                             \
    X(drop_under_a_waiter)                                                                         \
    X(damaged_objects)

#define RELAY_TEST(suite, name)                                                                    \
    Test(suite, name) {                                                                            \
        relay_test(&relay_factory_##suite, relay_suite_##name);                                    \
    }

#endif

/* Every scenario of tests/support/relay_suite.h over every relay. */
#include <criterion/criterion.h>

#include "tests/support/relay_suite.h"

static void run(const RelayFactory *factory, bool (*scenario)(RelayRig *rig)) {
    RelayRig rig;
    bool ok = relay_suite_run(factory, scenario, &rig);
    if (ok && rig.skipped)
        cr_skip_test("%s", rig.why);
    cr_assert(ok, "%s: %s", factory->name, rig.why);
}

#define RELAY_TESTS(suite, name)                                                                   \
    Test(suite, name) {                                                                            \
        run(&relay_factory_##suite, relay_suite_##name);                                           \
    }
#define MEM_TEST(name) RELAY_TESTS(mem, name)
#define FILE_TEST(name) RELAY_TESTS(file, name)
#define FILE_NAMED_TEST(name) RELAY_TESTS(file_named, name)
#define FAULTY_TEST(name) RELAY_TESTS(faulty, name)
#define DELAYED_TEST(name) RELAY_TESTS(delayed, name)

RELAY_SCENARIOS(MEM_TEST)
RELAY_SCENARIOS(FILE_TEST)
RELAY_SCENARIOS(FILE_NAMED_TEST)
RELAY_SCENARIOS(FAULTY_TEST)
RELAY_SCENARIOS(DELAYED_TEST)

/* Every scenario of tests/support/relay_suite.h over relays of real Redis servers. */
#include <criterion/criterion.h>

#include "core/err.h"
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
#define PLAIN_TEST(name) RELAY_TESTS(redis_plain, name)
#define PASSWORD_TEST(name) RELAY_TESTS(redis_password, name)
#define TLS_TEST(name) RELAY_TESTS(redis_tls, name)
#define SMALL_TEST(name) RELAY_TESTS(redis_small, name)
#define TWO_TEST(name) RELAY_TESTS(redis_two, name)

RELAY_SCENARIOS(PLAIN_TEST)
RELAY_SCENARIOS(PASSWORD_TEST)
RELAY_SCENARIOS(TLS_TEST)
RELAY_SCENARIOS(SMALL_TEST)
RELAY_SCENARIOS(TWO_TEST)

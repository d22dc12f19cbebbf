/* Every scenario of tests/support/relay_suite.h over relays of real Redis servers. */
#include "tests/support/relay_tests.h"

#define PLAIN_TEST(name) RELAY_TEST(redis_plain, name)
#define PASSWORD_TEST(name) RELAY_TEST(redis_password, name)
#define TLS_TEST(name) RELAY_TEST(redis_tls, name)
#define SMALL_TEST(name) RELAY_TEST(redis_small, name)
#define TWO_TEST(name) RELAY_TEST(redis_two, name)
#define SLOW_TEST(name) RELAY_TEST(redis_slow, name)

RELAY_SCENARIOS(PLAIN_TEST)
RELAY_SCENARIOS(PASSWORD_TEST)
RELAY_SCENARIOS(TLS_TEST)
RELAY_SCENARIOS(SMALL_TEST)
RELAY_SCENARIOS(TWO_TEST)
RELAY_FAR_SCENARIOS(SLOW_TEST)

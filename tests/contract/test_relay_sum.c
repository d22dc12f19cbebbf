/* Every scenario of sums in tests/support/relay_suite.h over every relay that adds. */
#include "tests/support/relay_tests.h"

#define MEM_TEST(name) RELAY_TEST(mem, name)
#define FILE_TEST(name) RELAY_TEST(file, name)
#define FILE_NAMED_TEST(name) RELAY_TEST(file_named, name)
#define FAULTY_TEST(name) RELAY_TEST(faulty, name)
#define DELAYED_TEST(name) RELAY_TEST(delayed, name)
#define PASSWORD_TEST(name) RELAY_TEST(redis_password, name)
#define TWO_TEST(name) RELAY_TEST(redis_two, name)

RELAY_SUM_SCENARIOS(MEM_TEST)
RELAY_SUM_SCENARIOS(FILE_TEST)
RELAY_SUM_SCENARIOS(FILE_NAMED_TEST)
RELAY_SUM_SCENARIOS(FAULTY_TEST)
RELAY_SUM_SCENARIOS(DELAYED_TEST)
RELAY_SUM_SCENARIOS(PASSWORD_TEST)
RELAY_SUM_SCENARIOS(TWO_TEST)

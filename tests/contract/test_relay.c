/* Every scenario of tests/support/relay_suite.h over every relay. */
#include "tests/support/relay_tests.h"

#define MEM_TEST(name) RELAY_TEST(mem, name)
#define FILE_TEST(name) RELAY_TEST(file, name)
#define FILE_NAMED_TEST(name) RELAY_TEST(file_named, name)
#define FAULTY_TEST(name) RELAY_TEST(faulty, name)
#define DELAYED_TEST(name) RELAY_TEST(delayed, name)

RELAY_SCENARIOS(MEM_TEST)
RELAY_SCENARIOS(FILE_TEST)
RELAY_SCENARIOS(FILE_NAMED_TEST)
RELAY_SCENARIOS(FAULTY_TEST)
RELAY_SCENARIOS(DELAYED_TEST)

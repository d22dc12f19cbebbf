/* The scenarios of tests/support/relay_suite.h over relays of a real S3 store: all of them once,
 * and those in which names and signatures count for other prefixes and addresses. */
#include <stdio.h>

#include "core/err.h"
#include "tests/support/relay_tests.h"
#include "tests/support/s3_server.h"

#define PLAIN_TEST(name) RELAY_TEST(s3_plain, name)
#define ODD_TEST(name) RELAY_TEST(s3_odd, name)
#define VIRTUAL_TEST(name) RELAY_TEST(s3_virtual, name)

/* Every kind of request: put, get in ranges, multipart, list, delete, notes, waits. */
#define NAMED_SCENARIOS(X)                                                                         \
    X(first_content_stays)                                                                         \
    X(all_sizes)                                                                                   \
    X(into_a_buf)                                                                                  \
    X(long_keys)                                                                                   \
    X(one_name_three_uses)                                                                         \
    X(drop_keeps_neighbours)                                                                       \
    X(count_objects)                                                                               \
    X(notes_last_wins)                                                                             \
    X(get_waits)

S3_SERVER_STARTS
S3_SERVER_STOPS

RELAY_SCENARIOS(PLAIN_TEST)
NAMED_SCENARIOS(ODD_TEST)
NAMED_SCENARIOS(VIRTUAL_TEST)

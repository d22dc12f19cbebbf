#include <criterion/criterion.h>
#include <string.h>

#include "storage/prefix_set.h"

static bool covers(const PrefixSet *set, const char *key) {
    return prefix_set_covers(set, key, strlen(key));
}

Test(prefix_set, at_or_under) {
    static const char *const prefixes[] = {"j/g1/t10", "j/g1/t1", "k", "j/g1/t1", "j/g1/e2.0"};
    static const char *const in[] = {"j/g1/t1", "j/g1/t1/a.0-1.0", "j/g1/t10/x/y",
                                     "k",       "k/claim",         "j/g1/e2.0/a"};
    static const char *const out[] = {"j",         "j/g1", "j/g1/t",  "j/g1/t11/a", "j/g1/t1.x",
                                      "j/g1/t100", "k1",   "kk/k",    "j/g1/e2/v",  "j/g1/e2.01",
                                      "t1",        "j/k",  "j/g10/t1"};
    PrefixSet set;
    cr_assert_eq(prefix_set_init(&set, prefixes, 5), 0);
    for (size_t i = 0; i < sizeof in / sizeof in[0]; i++)
        cr_expect(covers(&set, in[i]), "'%s' is not covered", in[i]);
    for (size_t i = 0; i < sizeof out / sizeof out[0]; i++)
        cr_expect(!covers(&set, out[i]), "'%s' is covered", out[i]);
    cr_expect(prefix_set_covers(&set, "k:piece", 1), "only the characters that were given count");
    cr_expect_eq(prefix_set_common(&set), 0);
    prefix_set_done(&set);
}

Test(prefix_set, nothing_and_everything) {
    static const char *const all[] = {"a", ""};
    static const char *const steps[] = {"j/g1/t12", "j/g1/t1", "j/g1/t19"};
    PrefixSet set;
    cr_assert_eq(prefix_set_init(&set, NULL, 0), 0);
    cr_expect(!covers(&set, "a"));
    prefix_set_done(&set);
    cr_assert_eq(prefix_set_init(&set, all, 2), 0);
    cr_expect(covers(&set, "b/c"));
    prefix_set_done(&set);
    cr_assert_eq(prefix_set_init(&set, steps, 3), 0);
    cr_expect_eq(prefix_set_common(&set), strlen("j/g1/t1"));
    prefix_set_done(&set);
}

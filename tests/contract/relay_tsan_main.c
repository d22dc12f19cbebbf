/* The relay scenarios without Criterion, for -fsanitize=thread and for stores that take long: a
 * line each, exit status 1 when one does not hold. Arguments: names of factories to run. */
#include <stdio.h>
#include <string.h>

#include "tests/support/relay_suite.h"

typedef struct Scenario {
    const char *name;
    bool (*run)(RelayRig *rig);
    bool sums;
} Scenario;

static const Scenario scenarios[] = {
#define SCENARIO_ROW(name) {#name, relay_suite_##name, false},
#define SUM_SCENARIO_ROW(name) {#name, relay_suite_##name, true},
    RELAY_SCENARIOS(SCENARIO_ROW) RELAY_SUM_SCENARIOS(SUM_SCENARIO_ROW)
#undef SCENARIO_ROW
#undef SUM_SCENARIO_ROW
};

static bool wanted(const char *name, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], name) == 0)
            return true;
    }
    return false;
}

int main(int argc, char **argv) {
    const RelayFactory *const factories[] = {
        &relay_factory_mem,          &relay_factory_file,           &relay_factory_file_named,
        &relay_factory_faulty,       &relay_factory_delayed,        &relay_factory_redis_plain,
        &relay_factory_redis_small,  &relay_factory_redis_password, &relay_factory_redis_two,
        &relay_factory_redis_tls,    &relay_factory_redis_slow,     &relay_factory_s3_plain,
        &relay_factory_s3_announced, &relay_factory_s3_swift,       &relay_factory_s3_slow,
        &relay_factory_s3_busy};
    int n_failed = 0;
    int n_run = 0;
    for (size_t f = 0; f < sizeof factories / sizeof factories[0]; f++) {
        if (!wanted(factories[f]->name, argc, argv))
            continue;
        for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
            if (scenarios[i].sums && !factories[f]->adds)
                continue;
            RelayRig rig;
            bool ok = relay_suite_run(factories[f], scenarios[i].run, &rig);
            printf("%-15s %-24s %s %s\n", factories[f]->name, scenarios[i].name,
                   rig.skipped ? "skip"
                   : ok        ? "ok"
                               : "FAIL",
                   rig.why);
            n_failed += !ok;
            n_run++;
        }
    }
    return n_run > 0 && n_failed == 0 ? 0 : 1;
}

/* What every relay must do, as plain functions: each scenario gets an empty store, opens handles of
 * it, and says in one sentence what it saw instead. Criterion programs and the plain driver for
 * ThreadSanitizer run the same list. */
#ifndef FUNCPIPE_TESTS_RELAY_SUITE_H
#define FUNCPIPE_TESTS_RELAY_SUITE_H

#include <stdbool.h>

#include "storage/relay.h"

typedef struct RelayFactory {
    const char *name;
    int (*place_open)(void **out_place); /* an empty store of its own */
    void (*place_close)(void *place);    /* after all handles; leaves nothing behind */
    int (*open)(void *place, Relay **out_relay);
    bool across_processes; /* a forked child can open handles of the same place */
    bool adds;             /* RELAY_SUM_SCENARIOS hold, too */
    bool over_network;     /* what a process sent may arrive after its death */
    bool overwrites;       /* writers that race with different bytes may all be the first */
    int slowness;          /* multiplies patience and divides repetitions; 0: 1 */
} RelayFactory;

enum { RELAY_RIG_HANDLES = 20, RELAY_WHY_BYTES = 1024 };

typedef struct RelayRig {
    const RelayFactory *factory;
    void *place;
    Relay *handles[RELAY_RIG_HANDLES];
    bool skipped;
    char why[RELAY_WHY_BYTES]; /* what was wrong, or why it was skipped */
} RelayRig;

#define RELAY_SCENARIOS(X)                                                                         \
    X(first_content_stays)                                                                         \
    X(parts_are_joined)                                                                            \
    X(empty_objects)                                                                               \
    X(all_sizes)                                                                                   \
    X(into_a_buf)                                                                                  \
    X(capacity_too_small)                                                                          \
    X(bad_keys_are_refused)                                                                        \
    X(long_keys)                                                                                   \
    X(one_name_three_uses)                                                                         \
    X(drop_keeps_neighbours)                                                                       \
    X(drop_many_prefixes)                                                                          \
    X(count_objects)                                                                               \
    X(many_objects)                                                                                \
    X(survey)                                                                                      \
    X(counters)                                                                                    \
    X(notes_last_wins)                                                                             \
    X(notes_expire)                                                                                \
    X(notes_limits)                                                                                \
    X(notes_never_half)                                                                            \
    X(get_waits)                                                                                   \
    X(deadline_passes)                                                                             \
    X(present_after_deadline)                                                                      \
    X(interrupt_wakes)                                                                             \
    X(waits_cost_no_cpu)                                                                           \
    X(many_threads)                                                                                \
    X(writers_race)                                                                                \
    X(drop_under_a_waiter)                                                                         \
    X(puts_race_drops)                                                                             \
    X(killed_writer)                                                                               \
    X(damaged_objects)

/* For those that add. */
#define RELAY_SUM_SCENARIOS(X)                                                                     \
    X(sum_all_orders)                                                                              \
    X(sum_all_sizes)                                                                               \
    X(sum_in_parts)                                                                                \
    X(sum_duplicates)                                                                              \
    X(sum_refusals)                                                                                \
    X(sum_dropped_between)                                                                         \
    X(sum_threads)                                                                                 \
    X(sum_twins)                                                                                   \
    X(sum_killed_adder)

/* bool relay_suite_NAME(RelayRig *rig): true when it holds; else rig->why says what did not. */
#define RELAY_SCENARIO_DECLARE(name) bool relay_suite_##name(RelayRig *rig);
RELAY_SCENARIOS(RELAY_SCENARIO_DECLARE)
RELAY_SUM_SCENARIOS(RELAY_SCENARIO_DECLARE)
#undef RELAY_SCENARIO_DECLARE

/* Run one on a fresh store: true when it holds or was skipped; out_rig tells. */
bool relay_suite_run(const RelayFactory *factory, bool (*scenario)(RelayRig *rig),
                     RelayRig *out_rig);

/* ---- for the scenarios ---- */
/* Handle `index` of the rig, opened when first asked for. NULL when that failed (why is set). */
Relay *relay_rig(RelayRig *rig, int index);
/* The largest objects: a sanitizer makes them long, and neither threads nor bounds differ there. */
#if defined(__SANITIZE_THREAD__)
enum { RELAY_SUITE_MOST_BYTES = 2 << 20 };
#elif defined(__SANITIZE_ADDRESS__)
enum { RELAY_SUITE_MOST_BYTES = 32 << 20 };
#else
enum { RELAY_SUITE_MOST_BYTES = 64 << 20 };
#endif

bool relay_rig_fail(RelayRig *rig, const char *format, ...) __attribute__((format(printf, 2, 3)));
int64_t relay_rig_patience_ms(const RelayRig *rig); /* what surely comes, comes within it */
int relay_rig_repeat(const RelayRig *rig, int n);   /* n, fewer on slow relays, at least 1 */

#define RIG_CHECK(condition, ...)                                                                  \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return relay_rig_fail(rig, __VA_ARGS__);                                               \
    } while (0)

/* ---- the factories of this repository ---- */
extern const RelayFactory relay_factory_mem;
extern const RelayFactory relay_factory_file;       /* in /dev/shm, else in the temporary folder */
extern const RelayFactory relay_factory_file_named; /* as where O_TMPFILE is unknown */
extern const RelayFactory relay_factory_faulty;     /* over mem, without a fault */
extern const RelayFactory relay_factory_delayed;    /* over mem, answers come late */
/* Over real Redis servers: nothing special; a password, database 3 and our module; TLS with a
 * client's certificate; values of at most 1 MiB; two servers with our module. */
extern const RelayFactory relay_factory_redis_plain, relay_factory_redis_password,
    relay_factory_redis_tls, relay_factory_redis_small, relay_factory_redis_two;
/* With our module, and milliseconds away. */
extern const RelayFactory relay_factory_redis_slow;
/* Over a real S3 store: nothing special; a prefix of odd characters; the bucket as part of the
 * host's name; TLS; objects announced in Redis; a store without conditional puts, in a program of
 * its own. */
extern const RelayFactory relay_factory_s3_plain, relay_factory_s3_odd, relay_factory_s3_virtual,
    relay_factory_s3_tls, relay_factory_s3_announced, relay_factory_s3_swift;
/* Milliseconds away; a store of our own that refuses a third of all requests for a moment. */
extern const RelayFactory relay_factory_s3_slow, relay_factory_s3_busy;

/* A fresh empty folder, on tmpfs where there is one: 0, or -1. */
int relay_suite_folder(char *out_path, size_t path_bytes);
void relay_suite_remove_folder(const char *path);

#endif

/* The scenarios of sums: for every relay that adds. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/blob.h"
#include "storage/sum.h"
#include "tests/support/relay_suite.h"
#include "tests/support/sim_check.h"
#include "tests/support/sum_cases.h"

#define NAME "job/g1/t7/r.0"

static int64_t soon(const RelayRig *rig) {
    return clock_deadline_ms(relay_rig_patience_ms(rig));
}

/* ---- shorthands ---- */

static int add_bytes(RelayRig *rig, int handle, const char *key, int index, int n, SumCase blob) {
    Slice part = {blob.data, blob.bytes};
    return relay_add(relay_rig(rig, handle), key, index, n, &part, 1, soon(rig));
}

static int add(RelayRig *rig, int handle, const char *key, int index, int n, size_t n_elements) {
    SumCase blob = sum_case_part(key, index, n_elements);
    int rc = add_bytes(rig, handle, key, index, n, blob);
    free(blob.data);
    return rc;
}

/* The sum is there and right, to the bit. */
static bool is_sum(RelayRig *rig, int handle, const char *key, int n, size_t n_elements) {
    SumCase expected = sum_case_sum(key, n, n_elements);
    Buf got;
    buf_init(&got, 0);
    bool ok = false;
    if (relay_get_buf(relay_rig(rig, handle), key, &got, soon(rig)) < 0)
        relay_rig_fail(rig, "reading the sum '%s': %s", key, err_text());
    else if (got.bytes != expected.bytes || memcmp(got.data, expected.data, got.bytes) != 0)
        relay_rig_fail(rig, "the sum '%s' of %d contributions of %zu elements is another", key, n,
                       n_elements);
    else
        ok = true;
    buf_done(&got);
    free(expected.data);
    return ok;
}

/* ---- one after the other ---- */

bool relay_suite_sum_all_orders(RelayRig *rig) {
    int n_sums = 0;
    int64_t count = 0;
    RIG_CHECK(relay_adds(relay_rig(rig, 0)), "it says that it cannot sum");
    for (int n = 1; n <= 4; n++) {
        int order[4] = {0, 1, 2, 3};
        do {
            char key[32];
            snprintf(key, sizeof key, "s/t%d/r.%d", n_sums % 5, n_sums);
            for (int i = 0; i < n; i++) {
                RIG_CHECK(relay_has(relay_rig(rig, 9), key) == 0, "'%s' is there before its last",
                          key);
                int rc = add(rig, order[i], key, order[i], n, 100);
                RIG_CHECK(rc == 0, "adding %d of %d to '%s': %d %s", order[i], n, key, rc,
                          err_text());
            }
            RIG_CHECK(relay_has(relay_rig(rig, 9), key) == 1, "'%s' is not there", key);
            if (!is_sum(rig, 9, key, n, 100))
                return false;
            n_sums++;
        } while (sum_case_next_order(order, n));
    }
    RIG_CHECK(relay_count(relay_rig(rig, 0), "s", &count) == 0 && count == n_sums,
              "%lld objects for %d sums", (long long)count, n_sums);
    RIG_CHECK(relay_drop_one(relay_rig(rig, 0), "s", &count) == 0 && count == n_sums,
              "dropped %lld objects of %d sums", (long long)count, n_sums);
    return true;
}

bool relay_suite_sum_all_sizes(RelayRig *rig) {
    static const size_t sizes[] = {0,     1,     2,       17,     1001,    16320,
                                   16336, 16384, 1 << 18, 333333, 5 << 18, (17 << 18) + 3};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i] * sizeof(float) > RELAY_SUITE_MOST_BYTES)
            continue;
        char key[32];
        size_t bytes = 0;
        snprintf(key, sizeof key, "sizes/%zu", sizes[i]);
        for (int index = 2; index >= 0; index--) {
            int rc = add(rig, index, key, index, 3, sizes[i]);
            RIG_CHECK(rc == 0, "%zu elements: %d %s", sizes[i], rc, err_text());
        }
        Relay *relay = relay_rig(rig, 4);
        RIG_CHECK(relay->ops->size(relay, key, soon(rig), &bytes) == 0 && bytes >= 4 * sizes[i],
                  "%zu elements in %zu bytes", sizes[i], bytes);
        if (!is_sum(rig, 4, key, 3, sizes[i]))
            return false;
        RIG_CHECK(relay_drop_one(relay, "sizes", NULL) == 0, "%s", err_text());
    }
    return true;
}

bool relay_suite_sum_in_parts(RelayRig *rig) {
    SumCase blob = sum_case_part(NAME, 0, 1000);
    Slice parts[RELAY_MAX_PARTS];
    size_t at = 0;
    for (int i = 0; i < RELAY_MAX_PARTS; i++) {
        size_t end = i + 1 < RELAY_MAX_PARTS ? (size_t)i * 61 : blob.bytes;
        parts[i] = (Slice){end > at ? blob.data + at : NULL, end - at};
        at = end;
    }
    int rc = relay_add(relay_rig(rig, 0), NAME, 0, 2, parts, RELAY_MAX_PARTS, soon(rig));
    free(blob.data);
    RIG_CHECK(rc == 0, "%d %s", rc, err_text());
    rc = relay_add(relay_rig(rig, 0), NAME, 1, 2, NULL, 0, soon(rig));
    RIG_CHECK(rc == ERR_CORRUPT, "no parts at all: %d", rc);
    RIG_CHECK(add(rig, 0, NAME, 1, 2, 1000) == 0, "%s", err_text());
    return is_sum(rig, 1, NAME, 2, 1000);
}

bool relay_suite_sum_duplicates(RelayRig *rig) {
    Relay *relay = relay_rig(rig, 0);
    SumCase other =
        sum_case_blob(key_part(NAME, 1).text, 5, 6, 100); /* what is no longer looked at */
    const int64_t n_bytes = (int64_t)other.bytes;
    for (int round = 0; round < 2; round++) {
        RIG_CHECK(add(rig, 0, NAME, 1, 3, 100) == round, "contribution 1, round %d: %s", round,
                  err_text());
        RIG_CHECK(add(rig, 0, NAME, 0, 3, 100) == round, "contribution 0, round %d: %s", round,
                  err_text());
        RIG_CHECK(add_bytes(rig, 1, NAME, 1, 3, other) == 1, "another content: %s", err_text());
        RIG_CHECK(relay_has(relay, NAME) == 0, "two of three make a sum");
    }
    RIG_CHECK(add(rig, 0, NAME, 2, 3, 100) == 0, "%s", err_text());
    for (int index = 0; index < 3; index++)
        RIG_CHECK(add(rig, 0, NAME, index, 3, 100) == 1, "%d after the sum: %s", index, err_text());
    int late = add_bytes(rig, 1, NAME, 1, 3, other);
    free(other.data);
    RIG_CHECK(late == 1, "another content after the sum: %d", late);
    RIG_CHECK(relay->counters.n_duplicates == 5 && relay->counters.n_adds == 8,
              "duplicates %lld, adds %lld", (long long)relay->counters.n_duplicates,
              (long long)relay->counters.n_adds);
    RIG_CHECK(relay->counters.put_bytes == 0 && relay->counters.n_puts == 0 &&
                  relay->counters.add_bytes == 8 * n_bytes,
              "put %lld bytes, added %lld", (long long)relay->counters.put_bytes,
              (long long)relay->counters.add_bytes);
    if (rig->factory->over_network)
        RIG_CHECK(relay->counters.n_add_requests >= 8, "%lld requests for 8 adds",
                  (long long)relay->counters.n_add_requests);
    Slice part = {"x", 1};
    RIG_CHECK(relay_put(relay, NAME, &part, 1, soon(rig)) == 1, "a put after the sum");
    if (!is_sum(rig, 1, NAME, 3, 100))
        return false;
    RIG_CHECK(relay_put(relay, "an/object", &part, 1, soon(rig)) == 0, "%s", err_text());
    RIG_CHECK(add(rig, 0, "an/object", 0, 2, 100) == 1, "adding to an object that was put: %s",
              err_text());
    return true;
}

/* ---- what is refused ---- */

static bool refuses(RelayRig *rig, int index, int n, SumCase blob, int code, const char *what) {
    int rc = add_bytes(rig, 1, NAME, index, n, blob);
    RIG_CHECK(rc == code, "%s: returned %d (%s), expected %d", what, rc, rc < 0 ? err_text() : "",
              code);
    RIG_CHECK(strstr(err_text(), NAME), "%s: no key in '%s'", what, err_text());
    return true;
}

static bool refuses_damage(RelayRig *rig, SumCase blob) {
    static const SumCase nothing = {NULL, 0};
    bool ok = refuses(rig, 0, 3, nothing, ERR_CORRUPT, "an empty contribution");
    for (size_t bytes = 1; ok && bytes < blob.bytes; bytes += 1 + bytes / 3)
        ok = refuses(rig, 0, 3, (SumCase){blob.data, bytes}, ERR_CORRUPT, "a truncated one");
    for (size_t bit = 3; ok && bit < 8 * blob.bytes; bit += 1 + bit / 4) {
        blob.data[bit / 8] ^= (unsigned char)(1U << bit % 8);
        ok = refuses(rig, 0, 3, blob, ERR_CORRUPT, "one with a flipped bit");
        blob.data[bit / 8] ^= (unsigned char)(1U << bit % 8);
    }
    return ok && refuses(rig, 2, 3, blob, ERR_CORRUPT, "one of another index") &&
           refuses(rig, 0, 4, blob, ERR_CORRUPT, "one of another n") &&
           refuses(rig, 3, 3, blob, ERR_ARGUMENT, "an index beyond n") &&
           refuses(rig, -1, 3, blob, ERR_ARGUMENT, "an index below 0") &&
           refuses(rig, 0, 0, blob, ERR_ARGUMENT, "n = 0") &&
           refuses(rig, 0, SUM_MAX_PARTS + 1, blob, ERR_ARGUMENT, "a large n");
}

static bool refuses_forms(RelayRig *rig) {
    BlobTensor tensors[2];
    bool ok = true;
    sum_case_form(100, tensors);
    for (int i = 0; ok && i < 3; i++) {
        BlobTensor wrong[2] = {tensors[0], tensors[1]};
        if (i == 0)
            wrong[1].dtype = DTYPE_I32; /* of the same size */
        else if (i == 1)
            wrong[1].shape = shape_1d(wrong[1].shape.dims[1]);
        else
            wrong[0].shape.dims[0]++;
        size_t bytes = (size_t)blob_layout(wrong, 2, NULL);
        SumCase blob = {calloc(1, bytes), bytes};
        if (!blob.data)
            abort();
        blob_seal(blob.data, key_part(NAME, 0).text, wrong, 2);
        ok = refuses(rig, 0, 3, blob, ERR_CORRUPT, "another form");
        free(blob.data);
    }
    return ok;
}

bool relay_suite_sum_refusals(RelayRig *rig) {
    char key[RELAY_KEY_BYTES];
    SumCase blob = sum_case_part(NAME, 0, 100);
    int64_t count = 0;
    bool ok = refuses(rig, 0, 3, (SumCase){blob.data, blob.bytes - 1}, ERR_CORRUPT, "a first one");
    ok = ok && add(rig, 0, NAME, 1, 3, 100) == 0; /* the one that counts as the first */
    ok = ok && refuses_damage(rig, blob) && refuses_forms(rig);
    free(blob.data);
    if (!ok)
        return rig->why[0] ? false : relay_rig_fail(rig, "%s", err_text());
    RIG_CHECK(add(rig, 0, NAME, 0, 3, 100) == 0 && add(rig, 0, NAME, 2, 3, 100) == 0,
              "afterwards: %s", err_text());
    if (!is_sum(rig, 2, NAME, 3, 100))
        return false;
    memset(key, 'k', sizeof key);
    key[RELAY_KEY_BYTES - KEY_PART_BYTES] = '\0';
    RIG_CHECK(add(rig, 0, "a//b", 0, 1, 1) == ERR_ARGUMENT, "a bad key");
    Slice part = {"x", 1};
    RIG_CHECK(relay_add(relay_rig(rig, 0), key, 0, 1, &part, 1, soon(rig)) == ERR_ARGUMENT,
              "too long a key");
    key[RELAY_KEY_BYTES - KEY_PART_BYTES - 1] = '\0';
    RIG_CHECK(add(rig, 0, key, 1, 2, 10) == 0 && add(rig, 0, key, 0, 2, 10) == 0, "%s", err_text());
    if (!is_sum(rig, 2, key, 2, 10))
        return false;
    RIG_CHECK(relay_count(relay_rig(rig, 0), "", &count) == 0 && count == 2, "%lld objects",
              (long long)count);
    return true;
}

/* ---- drops ---- */

bool relay_suite_sum_dropped_between(RelayRig *rig) {
    static const char *const prefixes[] = {NAME, "job/g1/t7", "job"};
    int64_t n = 0;
    RIG_CHECK(add(rig, 0, "job/g1/t70/r.0", 1, 2, 50) == 0, "%s", err_text());
    RIG_CHECK(add(rig, 0, "job/g1/t7/r.00", 1, 2, 50) == 0, "%s", err_text());
    for (int i = 0; i < 3; i++) {
        RIG_CHECK(add(rig, 0, NAME, 2, 3, 100) == 0 && add(rig, 0, NAME, 0, 3, 100) == 0, "%s",
                  err_text());
        RIG_CHECK(relay_count(relay_rig(rig, 1), "", &n) == 0 && n == 0,
                  "%lld objects, though there are only contributions", (long long)n);
        RIG_CHECK(relay_drop_one(relay_rig(rig, 1), prefixes[i], &n) == 0 && n == 0,
                  "dropped %lld: %s", (long long)n, err_text());
        if (i == 0)
            RIG_CHECK(add(rig, 0, "job/g1/t7/r.00", 1, 2, 50) == 1, "a neighbour went, too");
        /* Another form and another n: nothing is left of the first ones. */
        for (int index = 1; index >= 0; index--)
            RIG_CHECK(add(rig, 2, NAME, index, 2, 200) == 0, "anew: %s", err_text());
        if (!is_sum(rig, 3, NAME, 2, 200))
            return false;
        RIG_CHECK(relay_drop_one(relay_rig(rig, 1), NAME, &n) == 0 && n == 1, "dropped %lld: %s",
                  (long long)n, err_text());
        RIG_CHECK(relay_has(relay_rig(rig, 1), NAME) == 0, "the sum is still there");
        if (i == 1)
            RIG_CHECK(add(rig, 0, "job/g1/t70/r.0", 1, 2, 50) == 1, "a neighbour went, too");
    }
    RIG_CHECK(relay_drop_one(relay_rig(rig, 1), "job", &n) == 0 && n == 0,
              "dropped %lld at the end", (long long)n);
    return true;
}

/* ---- at once ---- */

enum { N_ADDERS = 8, ADDER_ELEMENTS = 3000 };

typedef struct Adder {
    pthread_t thread;
    RelayRig *rig;
    int handle, index, n, n_rounds;
    int n_first; /* adds that returned 0 */
    char why[300];
} Adder;

static void *adder_main(void *arg) {
    Adder *adder = arg;
    RelayRig rig = *adder->rig; /* its own `why` */
    for (int round = 0; round < adder->n_rounds; round++) {
        char key[32];
        size_t n_elements = round % 3 == 0 ? 30000 : ADDER_ELEMENTS;
        snprintf(key, sizeof key, "all/t%d/r", round);
        int rc = add(&rig, adder->handle, key, adder->index, adder->n, n_elements);
        adder->n_first += rc == 0;
        if (rc >= 0 && is_sum(&rig, adder->handle, key, adder->n, n_elements))
            continue;
        snprintf(adder->why, sizeof adder->why, "contribution %d, round %d: %d %.200s",
                 adder->index, round, rc, rc < 0 ? err_text() : rig.why);
        break;
    }
    return NULL;
}

static bool run_adders(RelayRig *rig, Adder *adders, int n_adders, int *out_first) {
    for (int i = 0; i < n_adders; i++) {
        if (pthread_create(&adders[i].thread, NULL, adder_main, &adders[i]) != 0)
            abort();
    }
    for (int i = 0; i < n_adders; i++)
        pthread_join(adders[i].thread, NULL);
    *out_first = 0;
    for (int i = 0; i < n_adders; i++) {
        RIG_CHECK(!adders[i].why[0], "%s", adders[i].why);
        *out_first += adders[i].n_first;
    }
    return true;
}

bool relay_suite_sum_threads(RelayRig *rig) {
    Adder adders[N_ADDERS];
    int n_rounds = relay_rig_repeat(rig, 40);
    int n_first = 0;
    for (int i = 0; i < N_ADDERS; i++)
        adders[i] =
            (Adder){.rig = rig, .handle = i, .index = i, .n = N_ADDERS, .n_rounds = n_rounds};
    if (!run_adders(rig, adders, N_ADDERS, &n_first))
        return false;
    RIG_CHECK(n_first == N_ADDERS * n_rounds, "%d of %d contributions were counted", n_first,
              N_ADDERS * n_rounds);
    return true;
}

/* Each contribution by two at once, as when a gateway delivers twice. */
bool relay_suite_sum_twins(RelayRig *rig) {
    Adder adders[N_ADDERS];
    int n_rounds = relay_rig_repeat(rig, 40);
    int n_first = 0;
    for (int i = 0; i < N_ADDERS; i++)
        adders[i] = (Adder){
            .rig = rig, .handle = i, .index = i / 2, .n = N_ADDERS / 2, .n_rounds = n_rounds};
    if (!run_adders(rig, adders, N_ADDERS, &n_first))
        return false;
    RIG_CHECK(n_first >= N_ADDERS / 2 * n_rounds, "%d of %d contributions were counted", n_first,
              N_ADDERS / 2 * n_rounds);
    return true;
}

/* ---- processes that die ---- */

static void child_adds(const RelayFactory *factory, void *place, int index, int n) {
    RelayRig rig = {.factory = factory, .place = place};
    for (int round = 0; round < sim_times(1000); round++) {
        char key[32];
        snprintf(key, sizeof key, "dying/t%d/r", round);
        if (add(&rig, 0, key, index, n, 20000) < 0)
            _exit(1);
    }
    _exit(0);
}

/* A contributor is killed at any moment; its successor adds the same again, from the start. */
bool relay_suite_sum_killed_adder(RelayRig *rig) {
    enum { N = 3, KILLS = 12 };
    pid_t children[N] = {0};
    if (!rig->factory->across_processes) {
        rig->skipped = true;
        return relay_rig_fail(rig, "this relay lives in one process") || true;
    }
    fflush(NULL); /* what waits in our buffers is not the children's to write */
    for (int kills = 0; kills <= KILLS; kills++) {
        int victim = kills % N;
        for (int i = 0; i < N; i++) {
            if (children[i] > 0)
                continue;
            children[i] = fork();
            if (children[i] < 0)
                abort();
            if (children[i] == 0)
                child_adds(rig->factory, rig->place, i, N);
        }
        if (kills == KILLS)
            break;
        clock_sleep_until(clock_deadline_ms(3 + kills * 7 % 20));
        kill(children[victim], SIGKILL);
        waitpid(children[victim], NULL, 0);
        children[victim] = 0;
    }
    bool fine = true;
    for (int i = 0; i < N; i++) {
        int status = 0;
        waitpid(children[i], &status, 0);
        fine = fine && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    RIG_CHECK(fine, "a successor failed");
    for (int round = 0; round < sim_times(1000); round++) {
        char key[32];
        snprintf(key, sizeof key, "dying/t%d/r", round);
        RIG_CHECK(relay_has(relay_rig(rig, 0), key) == 1, "'%s' is not there", key);
        if (round % 37 == 0 && !is_sum(rig, 0, key, N, 20000))
            return false;
    }
    return true;
}

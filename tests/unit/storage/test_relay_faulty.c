#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/blob.h"
#include "storage/key.h"
#include "storage/relay_faulty.h"

static RelayMemStore *store;
static Relay *plain;

static void open_store(void) {
    cr_assert_eq(relay_mem_store_open(&store), 0);
    cr_assert_eq(relay_mem_open(store, &plain), 0);
}

static void close_store(void) {
    relay_close(plain);
    relay_mem_store_close(store);
}

TestSuite(relay_faulty, .init = open_store, .fini = close_store);

static Relay *faulty(const RelayFaultRule *rules, int n_rules) {
    Relay *inner = NULL;
    Relay *relay = NULL;
    cr_assert_eq(relay_mem_open(store, &inner), 0);
    cr_assert_eq(relay_faulty_open(inner, rules, n_rules, &relay), 0, "%s", err_text());
    return relay;
}

static int64_t soon(void) {
    return clock_deadline_ms(5000);
}

static int put(Relay *relay, const char *key) {
    Slice part = {"0123456789", 10};
    return relay_put(relay, key, &part, 1, soon());
}

static int get(Relay *relay, const char *key, char out[32], size_t *out_bytes) {
    memset(out, 0, 32);
    return relay_get(relay, key, out, 32, soon(), out_bytes);
}

Test(relay_faulty, fails_before_and_after) {
    RelayFaultRule rules[] = {{.fault = RELAY_FAULT_FAIL, .at_operation = 1},
                              {.fault = RELAY_FAULT_FAIL_DONE, .at_operation = 3}};
    Relay *relay = faulty(rules, 2);
    cr_expect_eq(put(relay, "k/0"), 0);
    cr_expect_eq(put(relay, "k/1"), ERR_IO);
    cr_expect(strstr(err_text(), "k/1") && strstr(err_text(), "injected"), "%s", err_text());
    cr_expect_eq(relay_has(plain, "k/1"), 0, "it took place");
    cr_expect_eq(put(relay, "k/2"), 0);
    cr_expect_eq(put(relay, "k/3"), ERR_IO);
    cr_expect_eq(relay_has(plain, "k/3"), 1, "it did not take place");
    cr_expect_eq(put(relay, "k/3"), 1, "a retry finds the first content");
    cr_expect_eq(relay_faulty_operations(relay), 5);
    relay_close(relay);
}

/* One rule at each place in turn hits each kind of operation. */
Test(relay_faulty, every_operation_is_counted) {
    for (int at = 0; at < 8; at++) {
        RelayFaultRule rule = {.fault = RELAY_FAULT_FAIL, .at_operation = at};
        Relay *relay = faulty(&rule, 1);
        char buf[32];
        size_t bytes = 0;
        int64_t n = 0;
        Buf text;
        buf_init(&text, 0);
        cr_assert_eq(put(plain, "o/a") < 0, 0);
        int rcs[7];
        rcs[0] = put(relay, "o/b");
        rcs[1] = get(relay, "o/a", buf, &bytes);
        rcs[2] = relay_has(relay, "o/a");
        rcs[3] = relay_note_put(relay, "o/n", "x", 1, 60000);
        rcs[4] = relay_note_get(relay, "o/n", buf, sizeof buf, &bytes);
        rcs[5] = relay_get_buf(relay, "o/a", &text, soon()); /* size and get */
        cr_expect_eq(relay_count(relay, "o", &n), 0, "counting is no counted operation");
        rcs[6] = relay_drop_one(relay, "o", &n);
        for (int i = 0; i < 7; i++) {
            bool hit = i < 5 ? at == i : i == 5 ? at == 5 || at == 6 : at == (at == 5 ? 6 : 7);
            if (at == 5 && i == 6)
                hit = false; /* size failed, so get was never asked */
            if (at == 3 && i == 4)
                continue; /* the note was not written */
            cr_expect_eq(rcs[i] == ERR_IO, hit, "rule at %d, operation %d: %d", at, i, rcs[i]);
        }
        cr_expect_eq(relay_faulty_operations(relay), at == 5 ? 7 : 8);
        buf_done(&text);
        relay_close(relay);
        relay_drop_one(plain, "o", NULL);
    }
}

Test(relay_faulty, several_in_a_row) {
    RelayFaultRule rule = {.fault = RELAY_FAULT_FAIL, .at_operation = 1, .n_operations = 3};
    Relay *relay = faulty(&rule, 1);
    int expected[] = {0, ERR_IO, ERR_IO, ERR_IO, 0, 0};
    for (int i = 0; i < 6; i++)
        cr_expect_eq(relay_has(relay, "k"), expected[i], "operation %d", i);
    relay_close(relay);
}

/* A drop of several prefixes is one operation, of all their keys. */
Test(relay_faulty, drop_of_several) {
    static const char *const prefixes[] = {"d/1", "d/2"};
    RelayFaultRule rule = {.fault = RELAY_FAULT_FAIL, .key_part = "d/2"};
    Relay *relay = faulty(&rule, 1);
    int64_t n = 0;
    cr_assert_geq(put(plain, "d/2/x"), 0);
    cr_expect_eq(relay_drop_one(relay, "d/1", &n), 0, "%s", err_text());
    cr_expect_eq(relay_drop(relay, prefixes, 2, &n), ERR_IO);
    cr_expect_eq(relay_drop(relay, prefixes, 2, &n), 0, "%s", err_text());
    cr_expect_eq(n, 1);
    cr_expect_eq(relay_faulty_operations(relay), 3);
    relay_close(relay);
}

/* With a key part, a rule counts the operations whose key contains it. */
Test(relay_faulty, key_part) {
    char part[] = "/a.0-1.";
    RelayFaultRule rule = {.fault = RELAY_FAULT_FAIL, .at_operation = 1, .key_part = part};
    Relay *relay = faulty(&rule, 1);
    memset(part, 'x', sizeof part - 1); /* the rule was copied */
    cr_expect_eq(put(relay, "t0/g.1-0.0"), 0);
    cr_expect_eq(put(relay, "t0/g.1-0.1"), 0);
    cr_expect_eq(put(relay, "t0/a.0-1.0"), 0);
    cr_expect_eq(put(relay, "t0/g.1-0.2"), 0);
    cr_expect_eq(put(relay, "t0/a.0-1.1"), ERR_IO);
    cr_expect_eq(put(relay, "t0/a.0-1.2"), 0);
    relay_close(relay);
}

Test(relay_faulty, first_rule_wins) {
    RelayFaultRule rules[] = {{.fault = RELAY_FAULT_FAIL_DONE, .at_operation = 0},
                              {.fault = RELAY_FAULT_FAIL, .at_operation = 0, .n_operations = 2}};
    Relay *relay = faulty(rules, 2);
    cr_expect_eq(put(relay, "k/0"), ERR_IO);
    cr_expect_eq(relay_has(plain, "k/0"), 1);
    cr_expect_eq(put(relay, "k/1"), ERR_IO);
    cr_expect_eq(relay_has(plain, "k/1"), 0);
    relay_close(relay);
}

Test(relay_faulty, twice_stays_once) {
    RelayFaultRule rule = {.fault = RELAY_FAULT_TWICE};
    Relay *relay = faulty(&rule, 1);
    int64_t n = 0;
    cr_expect_eq(put(relay, "k/0"), 0, "the first of both tells");
    cr_expect_eq(relay_count(plain, "k", &n), 0);
    cr_expect_eq(n, 1);
    relay_close(relay);
}

/* ---- adding ---- */

static int add(Relay *relay, const char *key, int index, int n) {
    static const BlobTensor tensor = {DTYPE_F32, {1, {3}}};
    _Alignas(BLOB_ALIGN) unsigned char blob[512] = {0};
    size_t offset = 0;
    int64_t bytes = blob_layout(&tensor, 1, &offset);
    float value = (float)(index + 1);
    cr_assert(bytes > 0 && bytes <= (int64_t)sizeof blob);
    memcpy(blob + offset, &value, sizeof value);
    blob_seal(blob, key_part(key, index).text, &tensor, 1);
    Slice part = {blob, (size_t)bytes};
    return relay_add(relay, key, index, n, &part, 1, soon());
}

Test(relay_faulty, adding_fails_before_and_after) {
    RelayFaultRule rules[] = {{.fault = RELAY_FAULT_FAIL, .at_operation = 0},
                              {.fault = RELAY_FAULT_FAIL_DONE, .at_operation = 2},
                              {.fault = RELAY_FAULT_DELAY, .at_operation = 3, .delay_ms = 60}};
    Relay *relay = faulty(rules, 3);
    cr_expect_eq(add(relay, "s", 0, 2), ERR_IO);
    cr_expect(strstr(err_text(), "'s'") && strstr(err_text(), "injected"), "%s", err_text());
    cr_expect_eq(add(relay, "s", 0, 2), 0, "it took place");
    cr_expect_eq(add(relay, "s", 1, 2), ERR_IO);
    cr_expect_eq(relay_has(plain, "s"), 1, "it did not take place");
    int64_t begin_ns = clock_now_ns();
    cr_expect_eq(add(relay, "s", 1, 2), 1, "a retry finds the first content");
    cr_expect_geq(clock_now_ns() - begin_ns, 59 * CLOCK_NS_PER_MS);
    cr_expect_eq(relay_faulty_operations(relay), 4);
    relay_close(relay);
}

Test(relay_faulty, added_twice_counts_once) {
    RelayFaultRule rule = {.fault = RELAY_FAULT_TWICE, .n_operations = INT64_MAX};
    Relay *relay = faulty(&rule, 1);
    cr_expect_eq(add(relay, "s", 1, 2), 0, "the first of both tells");
    cr_expect_eq(relay_has(plain, "s"), 0);
    cr_expect_eq(add(relay, "s", 0, 2), 0);
    cr_expect_eq(relay_has(plain, "s"), 1);
    relay_close(relay);
}

Test(relay_faulty, adds_only_where_its_inner_does) {
    Relay *inner = NULL;
    Relay *relay = NULL;
    cr_assert_eq(relay_mem_open(store, &inner), 0);
    RelayOps without = *inner->ops;
    without.add = NULL;
    inner->ops = &without;
    cr_assert_eq(relay_faulty_open(inner, NULL, 0, &relay), 0, "%s", err_text());
    cr_expect_not(relay_adds(relay));
    cr_expect_eq(add(relay, "s", 0, 1), ERR_UNSUPPORTED);
    cr_expect(strstr(err_text(), "'s'") && strstr(err_text(), "cannot sum"), "%s", err_text());
    cr_expect_eq(put(relay, "k"), 0);
    relay_close(relay);
    relay = faulty(NULL, 0);
    cr_expect(relay_adds(relay));
    relay_close(relay);
}

static int bits_that_differ(const char *a, const char *b, size_t bytes) {
    int n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += __builtin_popcount((unsigned char)(a[i] ^ b[i]));
    return n;
}

Test(relay_faulty, spoiled_answers) {
    RelayFaultRule rules[] = {{.fault = RELAY_FAULT_FLIP, .at_operation = 0},
                              {.fault = RELAY_FAULT_TRUNCATE, .at_operation = 1},
                              {.fault = RELAY_FAULT_GARBAGE, .at_operation = 2},
                              {.fault = RELAY_FAULT_FLIP, .at_operation = 4, .n_operations = 9}};
    Relay *relay = faulty(rules, 4);
    char buf[32];
    size_t bytes = 0;
    cr_assert_eq(put(plain, "k/x"), 0);
    cr_assert_eq(relay_put(plain, "k/empty", NULL, 0, soon()), 0);
    cr_expect_eq(get(relay, "k/x", buf, &bytes), 0);
    cr_expect_eq(bytes, 10);
    cr_expect_eq(bits_that_differ(buf, "0123456789", 10), 1);
    cr_expect_eq(get(relay, "k/x", buf, &bytes), 0);
    cr_expect_eq(bytes, 9);
    cr_expect_eq(bits_that_differ(buf, "0123456789", 9), 0);
    cr_expect_eq(get(relay, "k/x", buf, &bytes), 0);
    cr_expect_eq(bytes, 10);
    cr_expect_gt(bits_that_differ(buf, "0123456789", 10), 10);
    cr_expect_eq(get(relay, "k/x", buf, &bytes), 0);
    cr_expect_eq(bits_that_differ(buf, "0123456789", 10), 0, "the object itself was spoiled");
    cr_expect_eq(get(relay, "k/empty", buf, &bytes), 0);
    cr_expect_eq(bytes, 0);
    cr_expect_eq(relay_note_put(relay, "k/n", "0123", 4, 60000), 0);
    cr_expect_eq(relay_note_get(relay, "k/n", buf, sizeof buf, &bytes), 0);
    cr_expect_eq(bits_that_differ(buf, "0123", 4), 1, "notes are spoiled too");
    relay_close(relay);
}

Test(relay_faulty, delays) {
    RelayFaultRule rule = {.fault = RELAY_FAULT_DELAY, .n_operations = 99, .delay_ms = 80};
    Relay *relay = faulty(&rule, 1);
    char buf[8];
    size_t bytes = 0;
    int64_t begin = clock_now_ns();
    cr_expect_eq(put(relay, "k/x"), 0);
    int64_t took_ms = (clock_now_ns() - begin) / CLOCK_NS_PER_MS;
    cr_expect(took_ms >= 80 && took_ms < 1000, "%lld ms", (long long)took_ms);
    begin = clock_now_ns();
    cr_expect_eq(relay_get(relay, "k/y", buf, 8, clock_deadline_ms(20), &bytes), ERR_TIMEOUT);
    took_ms = (clock_now_ns() - begin) / CLOCK_NS_PER_MS;
    cr_expect_lt(took_ms, 75, "a delay went beyond the deadline: %lld ms", (long long)took_ms);
    relay_close(relay);
}

static void *interrupt_later(void *arg) {
    clock_sleep_until(clock_deadline_ms(50));
    relay_interrupt(arg, true);
    return NULL;
}

Test(relay_faulty, interrupt_ends_a_delay) {
    RelayFaultRule rule = {.fault = RELAY_FAULT_DELAY, .delay_ms = 60000};
    Relay *relay = faulty(&rule, 1);
    pthread_t thread;
    pthread_create(&thread, NULL, interrupt_later, relay);
    cr_expect_eq(put(relay, "k/x"), ERR_CANCELLED);
    pthread_join(thread, NULL);
    relay_close(relay);
}

Test(relay_faulty, bad_rules) {
    char part[RELAY_KEY_BYTES + 1];
    memset(part, 'p', RELAY_KEY_BYTES);
    part[RELAY_KEY_BYTES] = '\0';
    RelayFaultRule rule = {.fault = RELAY_FAULT_FAIL, .key_part = part};
    Relay *inner = NULL;
    Relay *relay = NULL;
    cr_assert_eq(relay_mem_open(store, &inner), 0);
    cr_expect_eq(relay_faulty_open(inner, &rule, 1, &relay),
                 ERR_ARGUMENT); /* and inner is closed */
    cr_expect_null(relay);
}

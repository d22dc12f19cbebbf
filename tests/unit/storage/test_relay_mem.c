/* What only the memory relay has: the window, and the bound of what a sum holds. The rest is in
 * tests/contract/test_relay.c. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/blob.h"
#include "storage/relay.h"
#include "storage/sum.h"

static RelayMemStore *store;
static Relay *relay, *other;

static void open_both(void) {
    cr_assert_eq(relay_mem_store_open(&store), 0);
    cr_assert_eq(relay_mem_open(store, &relay), 0);
    cr_assert_eq(relay_mem_open(store, &other), 0);
}

static void close_both(void) {
    relay_close(relay);
    relay_close(other);
    relay_mem_store_close(store);
}

TestSuite(relay_mem, .init = open_both, .fini = close_both);

static int put(Relay *to, const char *key, int64_t wait_ms) {
    Slice part = {key, strlen(key)};
    return relay_put(to, key, &part, 1, clock_deadline_ms(wait_ms));
}

static int get(Relay *from, const char *key) {
    char buf[64];
    size_t bytes = 0;
    return relay_get(from, key, buf, sizeof buf, clock_deadline_ms(5000), &bytes);
}

Test(relay_mem, no_window_no_bound) {
    for (int i = 0; i < 100; i++) {
        char key[32];
        snprintf(key, sizeof key, "t0/a.0-1.%d", i);
        cr_assert_eq(put(relay, key, 0), 0, "%s", err_text());
    }
}

Test(relay_mem, window_bounds_an_edge) {
    relay_mem_store_window(store, 2);
    cr_assert_eq(put(relay, "t0/a.0-1.0", 0), 0);
    cr_assert_eq(put(relay, "t0/a.0-1.1", 0), 0);
    cr_expect_eq(put(relay, "t0/a.0-1.2", 50), ERR_TIMEOUT);
    cr_expect(strstr(err_text(), "t0/a.0-1.2"), "%s", err_text());
    cr_expect_eq(relay->counters.n_waits, 1);
    cr_expect_eq(put(relay, "t0/a.0-1.1", 0), 1, "a duplicate needs no room");
    cr_expect_eq(put(relay, "t0/a.0-10.0", 0), 0, "another edge: %s", err_text());
    cr_expect_eq(put(relay, "t1/a.0-1.0", 0), 0, "another step: %s", err_text());
    cr_expect_eq(put(relay, "plain", 0), 0, "no edge: %s", err_text());
    cr_assert_eq(get(other, "t0/a.0-1.1"), 0);
    cr_assert_eq(get(other, "t0/a.0-1.1"), 0);
    cr_expect_eq(put(relay, "t0/a.0-1.2", 0), 0, "after a read: %s", err_text());
    cr_expect_eq(put(relay, "t0/a.0-1.3", 0), ERR_TIMEOUT, "two reads of one made room for two");
    cr_assert_eq(relay_drop_one(other, "t0", NULL), 0);
    cr_expect_eq(put(relay, "t0/a.0-1.3", 0), 0, "after a drop: %s", err_text());
}

static void *read_later(void *arg) {
    clock_sleep_until(clock_deadline_ms(50));
    cr_assert_eq(get(other, arg), 0);
    return NULL;
}

Test(relay_mem, a_read_wakes_the_put) {
    pthread_t thread;
    relay_mem_store_window(store, 1);
    cr_assert_eq(put(relay, "t0/a.0-1.0", 0), 0);
    pthread_create(&thread, NULL, read_later, (void *)"t0/a.0-1.0");
    cr_expect_eq(put(relay, "t0/a.0-1.1", 5000), 0, "%s", err_text());
    pthread_join(thread, NULL);
}

static void *interrupt_later(void *arg) {
    (void)arg;
    clock_sleep_until(clock_deadline_ms(50));
    relay_interrupt(relay, true);
    return NULL;
}

Test(relay_mem, interrupt_ends_a_waiting_put) {
    pthread_t thread;
    relay_mem_store_window(store, 1);
    cr_assert_eq(put(relay, "t0/a.0-1.0", 0), 0);
    pthread_create(&thread, NULL, interrupt_later, NULL);
    cr_expect_eq(put(relay, "t0/a.0-1.1", 5000), ERR_CANCELLED);
    pthread_join(thread, NULL);
    cr_expect_eq(relay_has(relay, "t0/a.0-1.1"), 0);
}

Test(relay_mem, window_taken_away_wakes) {
    relay_mem_store_window(store, 1);
    cr_assert_eq(put(relay, "t0/a.0-1.0", 0), 0);
    cr_expect_eq(put(relay, "t0/a.0-1.1", 0), ERR_TIMEOUT);
    relay_mem_store_window(store, 0);
    cr_expect_eq(put(relay, "t0/a.0-1.1", 0), 0, "%s", err_text());
}

/* ---- a contribution that comes too early waits for those before it ---- */

typedef struct Early {
    pthread_t thread;
    Slice blob;
    int64_t wait_ms;
    int rc;
} Early;

static void *early_main(void *arg) {
    Early *early = arg;
    early->rc = relay_add(other, "s", 3, 4, &early->blob, 1, clock_deadline_ms(early->wait_ms));
    return NULL;
}

Test(relay_mem, too_early_waits) {
    size_t n_elements = SUM_MAX_HELD_BYTES / sizeof(float) * 2 / 5; /* two can be held */
    BlobTensor tensor = {DTYPE_F32, shape_1d((int64_t)n_elements)};
    size_t bytes = (size_t)blob_layout(&tensor, 1, NULL);
    unsigned char *blobs[2] = {calloc(1, bytes), calloc(1, bytes)};
    Early early = {.blob = {blobs[1], bytes}, .wait_ms = 100};
    Slice part = {blobs[0], bytes};
    cr_assert(blobs[0] && blobs[1]);
    for (int i = 2; i >= 1; i--) {
        blob_seal(blobs[0], key_part("s", i).text, &tensor, 1);
        cr_assert_eq(relay_add(relay, "s", i, 4, &part, 1, 0), 0, "%s", err_text());
    }
    blob_seal(blobs[1], key_part("s", 3).text, &tensor, 1);
    early_main(&early);
    cr_expect_eq(early.rc, ERR_TIMEOUT);
    cr_expect(strstr(err_text(), "'s'"), "%s", err_text());
    early.wait_ms = 20000;
    cr_assert_eq(pthread_create(&early.thread, NULL, early_main, &early), 0);
    clock_sleep_until(clock_deadline_ms(100));
    relay_interrupt(other, true);
    pthread_join(early.thread, NULL);
    cr_expect_eq(early.rc, ERR_CANCELLED);
    relay_interrupt(other, false);
    cr_assert_eq(pthread_create(&early.thread, NULL, early_main, &early), 0);
    clock_sleep_until(clock_deadline_ms(100));
    blob_seal(blobs[0], key_part("s", 0).text, &tensor, 1);
    cr_expect_eq(relay_add(relay, "s", 0, 4, &part, 1, 0), 0, "%s", err_text());
    pthread_join(early.thread, NULL);
    cr_expect_eq(early.rc, 0);
    cr_expect_eq(other->counters.n_waits, 3);
    cr_expect_geq(other->counters.waited_ns, 100 * CLOCK_NS_PER_MS);
    cr_expect_eq(relay_has(relay, "s"), 1);
    free(blobs[0]);
    free(blobs[1]);
}

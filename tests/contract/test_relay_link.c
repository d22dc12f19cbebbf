/* The emulated link: benchmarks rely on its times. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "tests/support/relay_link.h"

enum {
    LATENCY_MS = 3,
    BYTES = 100000,
    RATE = 10 * 1000 * 1000,
    BYTES_MS = 10,
    PATIENCE_MS = 20000
};

typedef struct Sender { /* a thread with a handle of its own */
    Relay *relay;
    const char *key;
    int64_t begin_ns, end_ns;
    int rc;
    pthread_t thread;
} Sender;

static RelayMemStore *store;
static RelayLink link_of_worker;
static char content[BYTES];

static void setup(void) {
    cr_assert_eq(relay_mem_store_open(&store), 0);
    relay_link_init(&link_of_worker, LATENCY_MS * 1000, RATE);
    memset(content, 'x', sizeof content);
}

static void teardown(void) {
    relay_link_done(&link_of_worker);
    relay_mem_store_close(store);
}

static Relay *open_handle(void) {
    Relay *relay = NULL;
    cr_assert_eq(relay_mem_open(store, &relay), 0);
    cr_assert_eq(relay_link_open(relay, &link_of_worker, &relay), 0);
    return relay;
}

static void *send(void *arg) {
    Sender *sender = arg;
    const Slice part = {content, sizeof content};
    sender->begin_ns = clock_now_ns();
    sender->rc = relay_put(sender->relay, sender->key, &part, 1, clock_deadline_ms(PATIENCE_MS));
    sender->end_ns = clock_now_ns();
    return NULL;
}

static void start(Sender *sender, const char *key) {
    *sender = (Sender){.relay = open_handle(), .key = key};
    cr_assert_eq(pthread_create(&sender->thread, NULL, send, sender), 0);
}

static void finish(Sender *sender) {
    pthread_join(sender->thread, NULL);
    relay_close(sender->relay);
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

Test(relay_link, carries_one_object_at_a_time_each_way, .init = setup, .fini = teardown) {
    Sender senders[2];
    static char buf[BYTES];
    size_t bytes = 0;
    start(&senders[0], "j/a");
    start(&senders[1], "j/b");
    finish(&senders[0]);
    finish(&senders[1]);
    cr_assert_eq(senders[0].rc, 0);
    cr_assert_eq(senders[1].rc, 0);
    int64_t begin_ns = least(senders[0].begin_ns, senders[1].begin_ns);
    int64_t first_ns = least(senders[0].end_ns, senders[1].end_ns);
    int64_t last_ns = most(senders[0].end_ns, senders[1].end_ns);
    cr_assert_geq(first_ns - begin_ns, (BYTES_MS + LATENCY_MS) * CLOCK_NS_PER_MS);
    cr_assert_geq(last_ns - begin_ns, (2 * BYTES_MS + LATENCY_MS) * CLOCK_NS_PER_MS);

    Relay *relay = open_handle();
    begin_ns = clock_now_ns();
    cr_assert_eq(relay_get(relay, "j/b", buf, sizeof buf, clock_deadline_ms(PATIENCE_MS), &bytes),
                 0);
    cr_assert_geq(clock_now_ns() - begin_ns, (BYTES_MS + LATENCY_MS) * CLOCK_NS_PER_MS);
    cr_assert_eq(bytes, sizeof buf);
    cr_assert_arr_eq(buf, content, sizeof buf);
    relay_close(relay);
}

Test(relay_link, an_interruption_ends_a_transfer, .init = setup, .fini = teardown) {
    Sender sender;
    link_of_worker.rate_bytes_per_s = BYTES / 1000; /* 1,000 s */
    start(&sender, "j/a");
    relay_interrupt(sender.relay, true);
    finish(&sender);
    cr_assert_eq(sender.rc, ERR_CANCELLED);
}

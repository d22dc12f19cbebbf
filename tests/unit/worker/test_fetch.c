/* How long a transfer waits, and for whom. */
#include "worker/fetch.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/report.h"

enum { N_FLOATS = 4, BEAT_MS = 10 };

typedef struct Rig {
    RelayMemStore *store;
    Order order;
    Fetch fetch;
    BlobTensor tensor;
    size_t offset;
    _Alignas(BLOB_ALIGN) char bytes[4096];
    FetchBlob blob;
} Rig;

static void rig_open(Rig *rig, int64_t wait_ms) {
    Relay *relay = NULL;
    memset(rig, 0, sizeof *rig);
    cr_assert_eq(relay_mem_store_open(&rig->store), 0);
    cr_assert_eq(relay_mem_open(rig->store, &relay), 0);
    order_init(&rig->order);
    strcpy(rig->order.job, "j");
    rig->order.wait_timeout_ms = wait_ms;
    cr_assert_eq(fetch_init(&rig->fetch, &rig->order, relay), 0);
    rig->tensor = (BlobTensor){DTYPE_F32, shape_1d(N_FLOATS)};
    const int64_t bytes = blob_layout(&rig->tensor, 1, &rig->offset);
    cr_assert(bytes > 0 && bytes <= (int64_t)sizeof rig->bytes);
    rig->blob = (FetchBlob){rig->bytes, (size_t)bytes, &rig->tensor, &rig->offset, 1};
}

static void rig_close(Rig *rig) {
    fetch_done(&rig->fetch);
    order_done(&rig->order);
    relay_mem_store_close(rig->store);
}

static Key the_key(void) {
    const KeySpace space = {.job = "j"};
    return key_norms(&space, 3, 1, 0);
}

/* Worker 1.0, of whom there is a heartbeat every BEAT_MS. */
typedef struct Peer {
    RelayMemStore *store;
    const char *state;
    bool moves, computes; /* between heartbeats it moves an object; it spends time */
    int64_t puts_ms;      /* it puts the object after so long; 0: never */
    atomic_bool closing;
    pthread_t thread;
} Peer;

static void beat(const Peer *peer, Relay *relay, int64_t n) {
    const KeySpace space = {.job = "j"};
    Heartbeat heartbeat = {.attempt = 1, .step = 2, .wall_ms = clock_wall_ms()};
    Buf text;
    snprintf(heartbeat.state, sizeof heartbeat.state, "%s", peer->state);
    heartbeat.traffic.puts = peer->moves ? n : 7;
    heartbeat.busy_us = heartbeat.wait_us = peer->computes ? n : 0;
    buf_init(&text, 0);
    cr_assert_geq(report_format_heartbeat(&heartbeat, &text), 0, "%s", err_text());
    cr_assert_eq(
        relay_note_put(relay, key_heartbeat(&space, 1, 0).text, text.data, text.bytes, 60000), 0);
    buf_done(&text);
}

static void *peer_main(void *arg) {
    Peer *peer = arg;
    Rig rig;
    Relay *relay = NULL;
    const int64_t put_ns = peer->puts_ms > 0 ? clock_deadline_ms(peer->puts_ms) : CLOCK_NEVER;
    bool has_put = false;
    rig_open(&rig, 1000);
    cr_assert_eq(relay_mem_open(peer->store, &relay), 0);
    for (int64_t n = 1; !atomic_load(&peer->closing); n++) {
        beat(peer, relay, n);
        if (!has_put && clock_now_ns() >= put_ns) {
            has_put = true;
            const int64_t total = blob_seal(rig.bytes, the_key().text, &rig.tensor, 1);
            const Slice part = {rig.bytes, (size_t)total};
            cr_assert_eq(relay_put(relay, the_key().text, &part, 1, CLOCK_NEVER), 0);
        }
        clock_sleep_until(clock_deadline_ms(BEAT_MS));
    }
    relay_close(relay);
    rig_close(&rig);
    return NULL;
}

/* Wait for what worker 1.0 is to put: the result, and how many milliseconds it took. */
static int wait_for(Peer peer, int64_t wait_ms, int64_t *out_ms) {
    Rig rig;
    int64_t bytes = 0;
    rig_open(&rig, wait_ms);
    peer.store = rig.store;
    if (peer.state != NULL)
        cr_assert_eq(pthread_create(&peer.thread, NULL, peer_main, &peer), 0);
    const int64_t begin_ns = clock_now_ns();
    int rc = fetch_get(&rig.fetch, the_key(), (FetchPeer){1, 0}, &rig.blob, &bytes);
    *out_ms = (clock_now_ns() - begin_ns) / CLOCK_NS_PER_MS;
    atomic_store(&peer.closing, true);
    if (peer.state != NULL)
        pthread_join(peer.thread, NULL);
    rig_close(&rig);
    return rc;
}

/* It comes after three wait timeouts, in which its worker is seen to be at work. */
Test(fetch, one_at_work_is_waited_for) {
    static const Peer peers[] = {{.state = "running", .moves = true},
                                 {.state = "evaluating", .computes = true},
                                 {.state = "loading"}};
    for (int i = 0; i < 3; i++) {
        Peer peer = peers[i];
        int64_t ms = 0;
        peer.puts_ms = 900;
        cr_expect_eq(wait_for(peer, 300, &ms), 0, "%s: %s", peer.state, err_text());
        cr_expect_geq(ms, 890);
    }
}

/* Signs of life alone, such as of one that waits in its turn, do not lengthen a wait. */
Test(fetch, one_that_does_nothing_is_given_up) {
    static const Peer peers[] = {{.state = NULL},
                                 {.state = "running", .computes = true},
                                 {.state = "evaluating"},
                                 {.state = "failed", .moves = true},
                                 {.state = "done", .moves = true}};
    for (int i = 0; i < 5; i++) {
        int64_t ms = 0;
        cr_expect_eq(wait_for(peers[i], 100, &ms), ERR_TIMEOUT);
        cr_expect(ms >= 95 && ms < 2000, "%d: %lld ms", i, (long long)ms);
        cr_expect(strstr(err_text(), "waiting for worker 1.0"), "%s", err_text());
        cr_expect(!peers[i].state || strstr(err_text(), peers[i].state), "%s", err_text());
    }
}

/* However busy it is: what is lost never comes. */
Test(fetch, every_wait_ends) {
    int64_t ms = 0;
    cr_expect_eq(wait_for((Peer){.state = "running", .moves = true}, 50, &ms), ERR_TIMEOUT);
    cr_expect(ms >= 50 * FETCH_MAX_WAITS - 5 && ms < 50 * (FETCH_MAX_WAITS + 20), "%lld ms",
              (long long)ms);
}

/* ---- a relay that is full for a while ---- */

static RelayOps ops_that_are_full;
static int64_t full_until_ns;
static int (*put_at_once)(Relay *relay, const char *key, const Slice *parts, int n_parts,
                          int64_t deadline_ns);

static int put_when_room(Relay *relay, const char *key, const Slice *parts, int n_parts,
                         int64_t deadline_ns) {
    if (clock_now_ns() < full_until_ns)
        return err_set(ERR_FULL, "putting '%s': no room", key);
    return put_at_once(relay, key, parts, n_parts, deadline_ns);
}

static void rig_fill(Rig *rig, int64_t full_ms) {
    ops_that_are_full = *rig->fetch.relay->ops;
    put_at_once = ops_that_are_full.put;
    ops_that_are_full.put = put_when_room;
    rig->fetch.relay->ops = &ops_that_are_full;
    full_until_ns = clock_deadline_ms(full_ms);
}

Test(fetch, a_full_relay_may_get_room) {
    Rig rig;
    int64_t bytes = 0;
    rig_open(&rig, 60000);
    rig_fill(&rig, 500);
    cr_expect_eq(fetch_put(&rig.fetch, the_key(), &rig.blob, &bytes), 0, "%s", err_text());
    cr_expect_geq(clock_now_ns(), full_until_ns);
    rig_close(&rig);
}

/* It is given up, with the reason, before those give up that wait for the object. */
Test(fetch, a_full_relay_that_stays_full) {
    Rig rig;
    int64_t bytes = 0;
    rig_open(&rig, 400);
    rig_fill(&rig, 60000);
    const int64_t begin_ns = clock_now_ns();
    cr_expect_eq(fetch_put(&rig.fetch, the_key(), &rig.blob, &bytes), ERR_FULL);
    cr_expect_geq(clock_now_ns() - begin_ns, 290 * CLOCK_NS_PER_MS);
    rig_close(&rig);
}

static void *interrupt_main(void *arg) {
    clock_sleep_until(clock_deadline_ms(100));
    fetch_interrupt(arg, true);
    return NULL;
}

Test(fetch, a_pause_can_be_interrupted) {
    Rig rig;
    pthread_t thread;
    int64_t bytes = 0;
    rig_open(&rig, 60000);
    rig_fill(&rig, 60000);
    const int64_t begin_ns = clock_now_ns();
    cr_assert_eq(pthread_create(&thread, NULL, interrupt_main, &rig.fetch), 0);
    cr_expect_eq(fetch_put(&rig.fetch, the_key(), &rig.blob, &bytes), ERR_CANCELLED);
    cr_expect_lt(clock_now_ns() - begin_ns, 5 * CLOCK_NS_PER_S);
    pthread_join(thread, NULL);
    rig_close(&rig);
}

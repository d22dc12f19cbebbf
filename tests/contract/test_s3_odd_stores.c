/* The S3 relay over stores that are crowded by others, that go on saying "not there", or that hand
 * out damaged objects: what is there is read, what is not ends at its deadline, and damage is named
 * with key and reason by who reads blobs. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/relay.h"
#include "tests/support/s3_fake.h"
#include "worker/fetch.h"

static S3Fake *fake;
static Relay *relay, *other;
static char url[256];

static void enter(void) {
    setenv("AWS_ACCESS_KEY_ID", "AKTEST", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    cr_assert_eq(s3_fake_start(&fake), 0, "%s", err_text());
    snprintf(url, sizeof url, "s3://bucket/jobs?endpoint=http://127.0.0.1:%d&timeout=2s",
             s3_fake_port(fake));
    cr_assert_eq(relay_open(url, &relay), 0, "%s", err_text());
    cr_assert_eq(relay_open(url, &other), 0, "%s", err_text());
    s3_fake_rules(fake, NULL);
}

static void leave(void) {
    relay_close(relay);
    relay_close(other);
    s3_fake_stop(fake);
}

#define STORE_TEST(suite, name) Test(suite, name, .init = enter, .fini = leave)

static int put(Relay *to, const char *key) {
    Slice part = {key, strlen(key)};
    return relay_put(to, key, &part, 1, clock_deadline_ms(20000));
}

static int get(Relay *from, const char *key, int64_t ms) {
    char buf[64];
    size_t bytes = 0;
    int rc = relay_get(from, key, buf, sizeof buf, clock_deadline_ms(ms), &bytes);
    if (rc >= 0)
        cr_expect(bytes == strlen(key) && memcmp(buf, key, bytes) == 0, "%s: other bytes", key);
    return rc;
}

static void *put_later(void *key) {
    clock_sleep_until(clock_deadline_ms(150));
    cr_expect_eq(put(other, key), 0, "%s", err_text());
    return NULL;
}

/* It waits for it while it is put. */
static void wait_for(const char *key) {
    pthread_t thread;
    pthread_create(&thread, NULL, put_later, (void *)key);
    cr_expect_eq(get(relay, key, 20000), 0, "%s", err_text());
    pthread_join(thread, NULL);
}

static void deadline_ends(const char *key) {
    int64_t begin_ns = clock_now_ns();
    cr_expect_eq(get(relay, key, 300), ERR_TIMEOUT, "%s", err_text());
    cr_expect(strstr(err_text(), key), "%s", err_text());
    int64_t took_ms = (clock_now_ns() - begin_ns) / CLOCK_NS_PER_MS;
    cr_expect(took_ms >= 290 && took_ms < 2000, "%lld ms", (long long)took_ms);
}

/* ---- among thousands, and alone ---- */

static void no_listing(int n_foreign) {
    s3_fake_fill(fake, n_foreign);
    wait_for("k/waited");
    cr_expect_eq(relay_has(relay, "k/waited"), 1, "%s", err_text());
    cr_expect_eq(relay_has(relay, "k/absent"), 0, "%s", err_text());
    deadline_ends("k/absent");
    cr_expect_eq(relay_note_put(relay, "k/n", "x", 1, 60000), 0, "%s", err_text());
    cr_expect_eq(s3_fake_count(fake, "GET list-type"), 0, "the store was listed");
    int64_t n = 0;
    cr_expect_eq(relay_count(relay, "", &n), 0, "%s", err_text());
    cr_expect_eq(n, 1, "%lld", (long long)n);
    cr_expect_eq(relay_drop_one(relay, "k", &n), 0, "%s", err_text());
    cr_expect_eq(n, 2, "%lld", (long long)n);
    cr_expect_eq(s3_fake_count(fake, "GET list-type"), 2, "others' objects were listed");
    cr_expect_eq(s3_fake_objects(fake), n_foreign, "%d objects", s3_fake_objects(fake));
}

STORE_TEST(s3_crowded, five_thousand_of_others) {
    no_listing(5000);
}

STORE_TEST(s3_crowded, nothing_at_all) {
    no_listing(0);
}

/* ---- a store that remembers what was not there ---- */

STORE_TEST(s3_stale, absent_for_seconds) {
    const int64_t stale_ms = getenv("FUNCPIPE_LONG") ? 5000 : 1500;
    int64_t n = 0;
    s3_fake_stale(fake, stale_ms);
    int64_t begin_ns = clock_now_ns();
    wait_for("k/waited"); /* who waits has missed it once, and so has its writer, who looks first */
    int64_t took_ms = (clock_now_ns() - begin_ns) / CLOCK_NS_PER_MS;
    cr_expect(took_ms >= stale_ms - 100 && took_ms < stale_ms + 3000, "%lld ms",
              (long long)took_ms);
    cr_expect_lt(relay->counters.n_read_requests, 100, "%lld questions",
                 (long long)relay->counters.n_read_requests);
    deadline_ends("k/absent");
    cr_expect_eq(put(relay, "k/late"), 0, "%s", err_text());
    cr_expect_eq(put(other, "k/late"), 1, "the second one was not told: %s", err_text());
    cr_expect_eq(get(relay, "k/late", 20000), 0, "%s", err_text());
    cr_expect_eq(s3_fake_count(fake, "GET list-type"), 0, "the store was listed");
    clock_sleep_until(clock_deadline_ms(stale_ms));
    cr_expect_eq(relay_count(relay, "k", &n), 0, "%s", err_text());
    cr_expect_eq(n, 2, "%lld", (long long)n);
}

/* ---- damage, as a worker sees it ---- */

enum { N_FLOATS = 100, ROOM = 2048 };

static const BlobTensor expected = {DTYPE_F32, {.n_dims = 1, .dims = {N_FLOATS}}};
static Fetch fetch;
static Order *order;
static char blob_bytes[ROOM];

static void enter_fetching(void) {
    enter();
    order = calloc(1, sizeof *order);
    snprintf(order->job, sizeof order->job, "job");
    order->generation = 1;
    order->wait_timeout_ms = 5000;
    cr_assert_eq(fetch_init(&fetch, order, relay), 0, "%s", err_text());
}

static void leave_fetching(void) {
    fetch_done(&fetch);
    free(order);
    relay_close(other);
    s3_fake_stop(fake);
}

#define DAMAGE_TEST(name) Test(s3_damage, name, .init = enter_fetching, .fini = leave_fetching)

static Key key_of(int micro) {
    return key_activation(&fetch.space, (KeyPlace){3, -1}, 0, 1, micro);
}

static Key put_blob(int micro, DType dtype, int64_t n) {
    const BlobTensor tensor = {dtype, {.n_dims = 1, .dims = {n}}};
    size_t offset = 0;
    int64_t bytes = 0;
    cr_assert_geq(blob_layout(&tensor, 1, &offset), 0);
    memset(blob_bytes, 1, sizeof blob_bytes);
    FetchBlob blob = {blob_bytes, sizeof blob_bytes, &tensor, &offset, 1};
    cr_assert_eq(fetch_put(&fetch, key_of(micro), &blob, &bytes), 0, "%s", err_text());
    return key_of(micro);
}

static int get_blob(Key key) {
    size_t offset = 0;
    int64_t bytes = 0;
    cr_assert_geq(blob_layout(&expected, 1, &offset), 0);
    FetchBlob blob = {blob_bytes, sizeof blob_bytes, &expected, &offset, 1};
    return fetch_get(&fetch, key, (FetchPeer){0, 0}, &blob, &bytes);
}

static void expect_corrupt(Key key, const char *reason) {
    cr_expect_eq(get_blob(key), ERR_CORRUPT, "%s", err_text());
    cr_expect(strstr(err_text(), key.text), "%s", err_text());
    cr_expect(strstr(err_text(), reason), "'%s' and not '%s'", err_text(), reason);
}

/* Damaged in every answer: named, after some tries. In one: nobody notices. */
static void damaged(S3FakeWay way, const char *garbage, const char *reason) {
    static int micro;
    Key key = put_blob(micro++, DTYPE_F32, N_FLOATS);
    const S3FakeRule always[] = {{"GET", way, 0, garbage, 0, 0, 0}, {0}};
    const S3FakeRule once[] = {{"GET", way, 0, garbage, 0, 1, 0}, {0}};
    s3_fake_rules(fake, always);
    expect_corrupt(key, reason);
    cr_expect_eq(s3_fake_count(fake, "GET"), FETCH_TRIES, "%d", s3_fake_count(fake, "GET"));
    s3_fake_rules(fake, once);
    cr_expect_eq(get_blob(key), 0, "%s", err_text());
    cr_expect_eq(s3_fake_count(fake, "GET"), 2, "%d", s3_fake_count(fake, "GET"));
    s3_fake_rules(fake, NULL);
}

DAMAGE_TEST(a_bit) {
    damaged(S3_FAKE_FLIP, NULL, "checksum");
}

DAMAGE_TEST(half_an_object) {
    damaged(S3_FAKE_TRUNCATE, NULL, "its header says");
}

DAMAGE_TEST(a_page_of_a_proxy) {
    damaged(S3_FAKE_GARBAGE, "<html>502</html>", "less than a header");
    damaged(S3_FAKE_GARBAGE, "", "less than a header");
    damaged(S3_FAKE_GARBAGE,
            "<html><body>The gateway is sorry to say that it cannot.</body></html>",
            "not with FPB1");
}

DAMAGE_TEST(another_form) {
    expect_corrupt(put_blob(100, DTYPE_I32, N_FLOATS), "expected F32");
    expect_corrupt(put_blob(101, DTYPE_F32, N_FLOATS - 1), "tensor 0 is");
    Key from = put_blob(102, DTYPE_F32, N_FLOATS);
    size_t bytes = 0;
    cr_assert_eq(relay_get(other, from.text, blob_bytes, ROOM, clock_deadline_ms(5000), &bytes), 0);
    Slice part = {blob_bytes, bytes};
    cr_assert_eq(relay_put(other, key_of(103).text, &part, 1, clock_deadline_ms(5000)), 0);
    expect_corrupt(key_of(103), "another key");
}

/* What becomes of a relay that announces its objects in Redis when announcements are missing or
 * wrong, objects late, Redis empty, silent or gone: every object is read all the same, and without
 * a fault by one request. */
#include "storage/relay_announced.h"
#include "storage/relay_survey.h"
#include "tests/support/redis_place.h"
#include "tests/support/s3_fake.h"

static S3Fake *fake;
static RedisServerProcess server;
static Proxy *proxy;                 /* in front of Redis */
static Relay *relay, *other, *plain; /* plain: the store without announcements */
static char url[512], plain_url[256], redis_url[128];

static Relay *opened(const char *what) {
    Relay *out = NULL;
    cr_assert_eq(relay_open(what, &out), 0, "%s", err_text());
    return out;
}

static void begin(int port) {
    snprintf(plain_url, sizeof plain_url,
             "s3://bucket/jobs?endpoint=http://127.0.0.1:%d&timeout=2s", s3_fake_port(fake));
    snprintf(url, sizeof url, "%s&announce=redis://127.0.0.1:%d/2?prefix=a:", plain_url, port);
    snprintf(redis_url, sizeof redis_url, "redis://127.0.0.1:%d/2?prefix=a:", server.port);
    relay = opened(url);
    other = opened(url);
    plain = opened(plain_url);
}

/* `other` again, past the proxy. */
static void begin_direct(void) {
    char direct[512];
    snprintf(direct, sizeof direct, "%s&announce=redis://127.0.0.1:%d/2?prefix=a:", plain_url,
             server.port);
    other = opened(direct);
}

static void enter(void) {
    setenv("AWS_ACCESS_KEY_ID", "AKTEST", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    cr_assert_eq(s3_fake_start(&fake), 0, "%s", err_text());
    cr_assert_eq(redis_server_start(&server, NULL), 0, "%s", err_text());
    begin(server.port);
}

static void enter_by_proxy(void) {
    setenv("AWS_ACCESS_KEY_ID", "AKTEST", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    cr_assert_eq(s3_fake_start(&fake), 0, "%s", err_text());
    cr_assert_eq(redis_server_start(&server, NULL), 0, "%s", err_text());
    cr_assert_eq(proxy_start(server.port, &proxy), 0, "%s", err_text());
    begin(proxy_port(proxy));
}

static void leave(void) {
    relay_close(relay);
    relay_close(other);
    relay_close(plain);
    proxy_stop(proxy);
    redis_server_stop(&server);
    s3_fake_stop(fake);
}

#define ANNOUNCED_TEST(name) Test(announced_faults, name, .init = enter, .fini = leave)

static int put(Relay *to, const char *key) {
    return place_put(to, key, key, strlen(key), 20000);
}

static void get_at(Relay *from, const char *key) {
    place_expect(from, key, key, strlen(key));
}

/* A get that waits in a thread of its own. */
static void start_get(Doing *doing, Relay *from, const char *key) {
    *doing = (Doing){.relay = from, .key = key, .bytes = 64, .ms = 20000};
    doing_start(doing);
    sleep_ms(100);
}

static int64_t announced(void) {
    return redis_server_ask(server.port, "SELECT 2\r\nDBSIZE");
}

static int64_t reads(const Relay *of) {
    return of->counters.n_read_requests;
}

ANNOUNCED_TEST(one_request_an_object) {
    for (int i = 0; i < 20; i++) {
        char key[32];
        Doing doing;
        snprintf(key, sizeof key, "j/t%d/a", i);
        doing = (Doing){.relay = other, .key = key, .bytes = 64, .ms = 20000};
        doing_start(&doing);
        sleep_ms(i % 4 * 10);
        cr_assert_eq(put(relay, key), 0, "%s", err_text());
        cr_assert_eq(doing_join(&doing), 0, "%s", err_text());
        snprintf(key, sizeof key, "j/t%d/b", i);
        cr_assert_eq(put(relay, key), 0, "%s", err_text());
        get_at(other, key);
    }
    cr_expect_eq(reads(other), 40, "%lld requests for 40 objects", (long long)reads(other));
    cr_expect_geq(other->counters.n_announce_requests, 40, "%lld questions for announcements",
                  (long long)other->counters.n_announce_requests);
    cr_expect_geq(relay->counters.n_announce_requests, 40);
    cr_expect_eq(other->counters.n_retries, 0);
    cr_expect_gt(other->counters.n_waits, 10);
    cr_expect_eq(relay_note_put(relay, "j/n", "x", 1, 60000), 0, "%s", err_text());
    cr_expect_eq(announced(), 41, "no note in Redis");
    cr_expect_eq(relay_drop_one(relay, "j", NULL), 0, "%s", err_text());
    cr_expect_eq(announced(), 0, "announcements are left");
}

/* Its writer died between the object and its announcement: who waits finds it, tells others, and
 * does not wait again for what else was not announced. */
ANNOUNCED_TEST(announcement_missing) {
    Doing doing;
    char key[32];
    start_get(&doing, other, "k");
    cr_assert_eq(put(plain, "k"), 0, "%s", err_text());
    cr_expect_eq(doing_join(&doing), 0, "%s", err_text());
    cr_expect_eq(announced(), 1, "nobody told the others");
    get_at(relay, "k");
    cr_expect_eq(reads(relay), 1);
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "lost/%d", i);
        cr_assert_eq(put(plain, key), 0, "%s", err_text());
    }
    int64_t begin_ns = clock_now_ns();
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof key, "lost/%d", i);
        get_at(other, key);
    }
    cr_expect_lt(clock_now_ns() - begin_ns, 10 * CLOCK_NS_PER_S, "each of them waited");
}

/* Also by many short waits, which end in time, and by one that is no wait at all. */
ANNOUNCED_TEST(announcement_missing_in_short_waits) {
    char buf[8];
    size_t bytes = 0;
    int rc = ERR_TIMEOUT;
    int64_t begin_ns = clock_now_ns();
    cr_expect_eq(relay_get(other, "k", buf, sizeof buf, clock_deadline_ms(20), &bytes),
                 ERR_TIMEOUT);
    cr_expect(strstr(err_text(), "'k'"), "%s", err_text());
    cr_assert_eq(put(plain, "k"), 0, "%s", err_text());
    for (int i = 0; i < 500 && rc == ERR_TIMEOUT; i++)
        rc = relay_get(other, "k", buf, sizeof buf, clock_deadline_ms(20), &bytes);
    cr_expect_eq(rc, 0, "%s", err_text());
    cr_expect_lt(clock_now_ns() - begin_ns, 8 * CLOCK_NS_PER_S);
    cr_expect_leq(reads(other), 4, "%lld requests", (long long)reads(other));
    cr_assert_eq(put(plain, "l"), 0, "%s", err_text());
    cr_expect_eq(relay_get(relay, "l", buf, sizeof buf, 0, &bytes), 0, "%s", err_text());
}

/* The second writer announces what the first one could not. */
ANNOUNCED_TEST(writer_started_again) {
    Doing doing;
    cr_assert_eq(put(plain, "k"), 0, "%s", err_text());
    start_get(&doing, other, "k");
    cr_expect_eq(put(relay, "k"), 1, "%s", err_text());
    cr_expect_eq(announced(), 1, "it was not announced");
    cr_expect_eq(doing_join(&doing), 0, "%s", err_text());
    cr_expect_eq(reads(other), 1);
}

ANNOUNCED_TEST(first_content_stays) {
    cr_assert_eq(put(relay, "k"), 0, "%s", err_text());
    cr_expect_eq(place_put(other, "k", "xx", 2, 5000), 1, "%s", err_text());
    get_at(other, "k");
    cr_expect_eq(relay->counters.n_duplicates + other->counters.n_duplicates, 1);
}

/* Announced before the store shows it: asked for again; for ever: the deadline ends it. */
ANNOUNCED_TEST(object_late_or_missing) {
    const S3FakeRule late[] = {{"GET", S3_FAKE_REFUSE, 404, "NoSuchKey", 0, 5, 0}, {0}};
    Relay *redis = opened(redis_url);
    Doing doing;
    char buf[8];
    size_t bytes = 0;
    cr_assert_eq(put(relay, "first"), 0, "%s", err_text()); /* the store is known by now */
    cr_assert_eq(put(relay, "late"), 0, "%s", err_text());
    s3_fake_rules(fake, late);
    get_at(other, "late");
    cr_expect_eq(s3_fake_count(fake, "GET"), 6, "%d", s3_fake_count(fake, "GET"));
    cr_assert_eq(relay_put(redis, "gone", NULL, 0, clock_deadline_ms(5000)), 0);
    cr_expect_eq(relay_get(other, "gone", buf, sizeof buf, clock_deadline_ms(300), &bytes),
                 ERR_TIMEOUT);
    cr_expect(strstr(err_text(), "it was announced") && strstr(err_text(), "'gone'"), "%s",
              err_text());
    start_get(&doing, other, "gone");
    cr_assert_eq(put(plain, "gone"), 0, "%s", err_text());
    cr_expect_eq(doing_join(&doing), 0, "%s", err_text());
    relay_close(redis);
}

/* A store that is busy at that moment is asked again, too. */
ANNOUNCED_TEST(store_busy) {
    const S3FakeRule busy[] = {{"GET", S3_FAKE_REFUSE, 503, "SlowDown", 0, 4, 0}, {0}};
    cr_assert_eq(put(relay, "k"), 0, "%s", err_text());
    s3_fake_rules(fake, busy);
    get_at(other, "k");
    cr_expect_eq(s3_fake_count(fake, "GET"), 5);
}

/* What can be done without Redis, through both handles. */
static void works(const char *key) {
    Doing doing;
    char note[8];
    size_t bytes = 0;
    int64_t n = 0;
    start_get(&doing, other, key);
    cr_expect_eq(put(relay, key), 0, "%s", err_text());
    cr_expect_eq(doing_join(&doing), 0, "%s", err_text());
    cr_expect_eq(put(other, key), 1, "%s", err_text());
    cr_expect_eq(relay_note_put(relay, "j/n", key, 2, 60000), 0, "%s", err_text());
    cr_expect_eq(relay_note_get(other, "j/n", note, sizeof note, &bytes), 0, "%s", err_text());
    cr_expect(bytes == 2 && memcmp(note, key, 2) == 0, "an old note");
    cr_expect_eq(relay_count(relay, key, &n), 0, "%s", err_text());
    cr_expect_eq(n, 1);
    cr_expect_eq(relay_drop_one(relay, key, &n), 0, "%s", err_text());
    cr_expect_eq(relay_has(relay, key), 0, "%s", err_text());
}

ANNOUNCED_TEST(redis_gone_and_back) {
    works("before");
    redis_server_kill(&server);
    works("without");
    works("still/without");
    Relay *late = NULL;
    int rc = relay_open(url, &late);
    cr_expect_eq(rc, ERR_UNREACHABLE, "%s", err_text());
    cr_expect(strstr(err_text(), "where objects are announced"), "%s", err_text());
    cr_assert_eq(relay_open_again(url, &late), 0, "%s", err_text());
    cr_assert_eq(put(late, "late"), 0, "%s", err_text());
    cr_assert_eq(redis_server_again(&server), 0, "%s", err_text());
    for (int i = 0; i < 200; i++) { /* until it is noticed */
        char key[32];
        snprintf(key, sizeof key, "back/%d", i);
        cr_assert_eq(put(late, key), 0, "%s", err_text());
        if (announced() > 0)
            break;
        sleep_ms(100);
    }
    cr_expect_gt(announced(), 0, "never noticed");
    get_at(other, "late");
    works("again");
    relay_close(late);
}

static void expect_note(const char *key, const char *text, int64_t ms) {
    char note[16];
    size_t bytes = 0;
    int64_t deadline_ns = clock_deadline_ms(ms);
    bool right = false;
    do {
        int rc = relay_note_get(other, key, note, sizeof note, &bytes);
        right = rc >= 0 && bytes == strlen(text) && memcmp(note, text, bytes) == 0;
        if (!right)
            sleep_ms(50);
    } while (!right && clock_now_ns() < deadline_ns);
    cr_expect(right, "never '%s'", text);
}

/* Only one of two cannot reach Redis: the other one sees its notes, never goes back to an older
 * one, and seldom asks the store for what does not change. */
Test(announced_faults, redis_gone_for_one, .init = enter_by_proxy, .fini = leave) {
    relay_close(other);
    begin_direct();
    cr_expect_eq(relay_note_put(relay, "j/h", "one", 3, 60000), 0, "%s", err_text());
    s3_fake_rules(fake, NULL);
    for (int i = 0; i < 50; i++)
        expect_note("j/h", "one", 0);
    cr_expect_leq(s3_fake_count(fake, "GET"), 2, "%d questions", s3_fake_count(fake, "GET"));
    proxy_stop(proxy);
    proxy = NULL;
    cr_expect_eq(relay_note_put(relay, "j/h", "two", 3, 60000), 0, "%s", err_text());
    cr_expect_eq(relay_note_put(relay, "j/new", "new", 3, 60000), 0, "%s", err_text());
    expect_note("j/new", "new", 0);
    expect_note("j/h", "two", 5000);
    for (int i = 0; i < 20; i++)
        expect_note("j/h", "two", 0);
    cr_expect_eq(relay_note_put(other, "j/h", "three", 5, 60000), 0, "%s", err_text());
    for (int i = 0; i < 30; i++, sleep_ms(50))
        expect_note("j/h", "three", 0);
}

/* Emptied, or restarted without its memory: what was announced before is found in the store. */
ANNOUNCED_TEST(redis_emptied) {
    char key[32];
    for (int i = 0; i < 30; i++) {
        snprintf(key, sizeof key, "k/%d", i);
        cr_assert_eq(put(relay, key), 0, "%s", err_text());
    }
    get_at(other, "k/0");
    cr_assert_eq(redis_server_ask(server.port, "FLUSHALL"), 0);
    int64_t begin_ns = clock_now_ns();
    for (int i = 0; i < 30; i++) {
        snprintf(key, sizeof key, "k/%d", i);
        get_at(other, key);
    }
    cr_expect_lt(clock_now_ns() - begin_ns, 10 * CLOCK_NS_PER_S, "each of them waited");
    works("after");
}

/* Nothing comes from Redis any more, and no word that it is so. */
Test(announced_faults, redis_silent, .init = enter_by_proxy, .fini = leave) {
    works("before");
    proxy_swallow(proxy, true);
    int64_t begin_ns = clock_now_ns();
    for (int i = 0; i < 5; i++) {
        char key[32];
        snprintf(key, sizeof key, "silent/%d", i);
        cr_expect_eq(put(relay, key), 0, "%s", err_text());
        get_at(relay, key);
    }
    cr_expect_lt(clock_now_ns() - begin_ns, 30 * CLOCK_NS_PER_S, "each of them waited");
    proxy_swallow(proxy, false);
}

ANNOUNCED_TEST(interrupted) {
    Doing doing;
    for (int gone = 0; gone < 2; gone++) {
        if (gone)
            redis_server_kill(&server);
        start_get(&doing, other, "k");
        relay_interrupt(other, true);
        cr_expect_eq(doing_join(&doing), ERR_CANCELLED, "%s", err_text());
        relay_interrupt(other, false);
    }
}

static int count_item(void *ctx, const RelayItem *item) {
    ((int *)ctx)[item->kind]++;
    return 0;
}

/* Who looks after the store must see the notes: without them running jobs look dead. */
ANNOUNCED_TEST(surveyed) {
    int n[8] = {0};
    RelaySwept swept = {0};
    cr_assert_eq(put(relay, "j/a"), 0, "%s", err_text());
    cr_assert_eq(relay_note_put(relay, "j/n", "x", 1, 60000), 0, "%s", err_text());
    cr_expect_eq(relay_survey_visit(relay, "", count_item, n), 0, "%s", err_text());
    cr_expect(n[RELAY_ITEM_OBJECT] == 1 && n[RELAY_ITEM_NOTE] == 1, "%d objects, %d notes",
              n[RELAY_ITEM_OBJECT], n[RELAY_ITEM_NOTE]);
    cr_expect_eq(relay_survey_sweep(relay, "", 60000, false, &swept), 0, "%s", err_text());
    redis_server_kill(&server);
    cr_expect_eq(relay_survey_visit(relay, "", count_item, n), ERR_UNREACHABLE, "%s", err_text());
}

ANNOUNCED_TEST(sums_are_refused) {
    Slice part = {"0123456789", 10};
    cr_expect_not(relay_adds(relay));
    cr_expect_eq(relay_add(relay, "s", 0, 2, &part, 1, clock_deadline_ms(1000)), ERR_UNSUPPORTED);
    cr_expect(strstr(err_text(), "cannot sum"), "%s", err_text());
}

/* What gc removes from an S3 store, with objects announced in Redis and without, and what it leaves
 * alone there: uploads that nobody ended, too. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/gc.h"
#include "core/clock.h"
#include "core/err.h"
#include "tests/support/redis_server.h"
#include "tests/support/s3_fake.h"

static S3Fake *fake;
static RedisServerProcess server;
static Relay *relay;

static void enter(void) {
    char url[256];
    setenv("AWS_ACCESS_KEY_ID", "AKTEST", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    cr_assert_eq(s3_fake_start(&fake), 0, "%s", err_text());
    int n = snprintf(url, sizeof url, "s3://bucket/jobs?endpoint=http://127.0.0.1:%d&timeout=2s",
                     s3_fake_port(fake));
    if (server.port > 0)
        snprintf(url + n, sizeof url - (size_t)n, "&announce=redis://127.0.0.1:%d", server.port);
    cr_assert_eq(relay_open(url, &relay), 0, "%s", err_text());
}

static void enter_announced(void) {
    cr_assert_eq(redis_server_start(&server, NULL), 0, "%s", err_text());
    enter();
}

static void leave(void) {
    relay_close(relay);
    s3_fake_stop(fake);
    redis_server_stop(&server);
}

static void put(const char *key) {
    Slice part = {"0123456789", 10};
    cr_assert_eq(relay_put(relay, key, &part, 1, clock_deadline_ms(20000)), 0, "%s", err_text());
}

static void note(const char *key, int64_t ttl_ms) {
    cr_assert_eq(relay_note_put(relay, key, "n", 1, ttl_ms), 0, "%s", err_text());
}

static int64_t count(const char *prefix) {
    int64_t n = -1;
    cr_assert_eq(relay_count(relay, prefix, &n), 0, "%s", err_text());
    return n;
}

/* All there is came two hours ago. */
static void age(void) {
    s3_fake_age(fake, 7200000);
    if (server.port > 0)
        cr_assert_eq(redis_server_ask(server.port, REDIS_SERVER_AGE), 1);
}

/* "digits 1 dead+, ...; 2 uploads": + was removed. */
static const char *told(const GcOptions *options) {
    static char text[512];
    GcReport report;
    int n = 0;
    cr_assert_eq(gc_run(relay, options, &report), 0, "%s", err_text());
    for (int32_t i = 0; i < report.n; i++) {
        const GcGeneration *item = &report.items[i];
        n += snprintf(text + n, sizeof text - (size_t)n, "%s %lld %s%s, ", item->space.job,
                      (long long)item->space.generation, gc_state_name(item->state),
                      item->removed ? "+" : "");
    }
    snprintf(text + n, sizeof text - (size_t)n, "%lld uploads", (long long)report.swept.n_uploads);
    gc_done(&report);
    return text;
}

#define EXPECT_TOLD(expected, ...)                                                                 \
    do {                                                                                           \
        const char *text = told(&(GcOptions){.older_ms = GC_OLDER_MS, __VA_ARGS__});               \
        cr_expect_str_eq(text, expected);                                                          \
    } while (0)

/* One that is dead, one that lives by a heartbeat alone, one that is old but for an upload, one
 * that is young, one of another job. */
static void fill(void) {
    put("digits/claim.1");
    put("digits/g1/t0/a.0-1.0");
    note("digits/g1/n/h.0.0", 1);
    note("digits/g1/n/w.0", 600000);
    put("digits/claim.2");
    put("digits/g2/t0/a.0-1.0");
    note("digits/g2/n/h.0.0", 600000);
    put("digits/claim.3");
    put("lost/claim.1");
    s3_fake_begin(fake, "jobs/digits/g1/t1/a.0-1.0/.o");
    s3_fake_begin(fake, "jobs/digits/g2/t1/a.0-1.0/.o");
    s3_fake_begin(fake, "jobs/gone/g7/t0/a.0-1.0/.o");
    s3_fake_begin(fake, "jobs/lost/g1/t1/a.0-1.0/.o");
    s3_fake_begin(fake, "photos/2020/.o");
    age();
    s3_fake_begin(fake, "jobs/digits/g3/t0/a.0-1.0/.o");
    put("digits/claim.4");
    clock_sleep_until(clock_deadline_ms(5)); /* the dead one's heartbeat expires */
}

static void check(void) {
    fill();
    EXPECT_TOLD("digits 1 dead, digits 2 running, digits 3 young, digits 4 young, lost 1 dead, "
                "4 uploads",
                .dry_run = true);
    cr_expect_eq(s3_fake_uploads(fake), 6);
    EXPECT_TOLD("lost 1 dead, 1 uploads", .job = "lost", .dry_run = true);
    EXPECT_TOLD("lost 1 dead+, 1 uploads", .job = "lost");
    cr_expect_eq(s3_fake_uploads(fake), 5, "those of other jobs went, too");
    cr_expect_eq(count("digits"), 6, "those of other jobs went, too");
    EXPECT_TOLD("digits 1 dead+, digits 2 running, digits 3 young, digits 4 young, 3 uploads");
    EXPECT_TOLD("digits 2 running, digits 3 young, digits 4 young, 0 uploads");
    cr_expect_eq(s3_fake_uploads(fake), 2, "what is young, and what is not ours, stays");
    cr_expect_eq(count(""), 4);
    cr_expect_eq(count("digits/g1") + count("digits/claim.1"), 0);
    age();
    cr_expect_eq(relay_drop_one(relay, "digits/g2/n", NULL), 0, "%s", err_text());
    EXPECT_TOLD("digits 2 dead+, digits 3 dead+, digits 4 dead+, 1 uploads");
    cr_expect_eq(count(""), 0);
    cr_expect_eq(s3_fake_uploads(fake), 1);
}

Test(gc_s3, only_the_dead_go, .init = enter, .fini = leave) {
    check();
    cr_expect_eq(s3_fake_objects(fake), 0, "a note is left");
}

Test(gc_s3, announced, .init = enter_announced, .fini = leave) {
    check();
    cr_expect_eq(redis_server_ask(server.port, "DBSIZE"), 0, "an announcement, or a note, is left");
    redis_server_kill(&server);
    GcReport report;
    put("digits/claim.5");
    s3_fake_age(fake, 7200000);
    cr_expect_eq(gc_run(relay, &(GcOptions){.older_ms = GC_OLDER_MS}, &report), ERR_UNREACHABLE);
    gc_done(&report);
    cr_expect_eq(count(""), 1, "nobody could say whether it runs");
}

/* Uploads of which the store does not say when they began, or not so that it can be read: they are
 * not old, not even behind one that is, and their generation is not dead. */
Test(gc_s3, uploads_without_a_date, .init = enter, .fini = leave) {
#define UPLOAD(key, id, rest)                                                                      \
    "<Upload><Key>jobs/" key "/.o</Key><UploadId>" id "</UploadId>" rest "</Upload>"
#define OLD "<Initiated>2020-01-01T00:00:00.000Z</Initiated>"
    static const char list[] = "<ListMultipartUploadsResult>" UPLOAD("digits/g1/t0/a", "old", OLD)
        UPLOAD("digits/g2/t0/a", "silent", "") UPLOAD(
            "digits/g3/t0/a", "odd",
            "<Initiated>yesterday</Initiated>") "<Upload><Key>jobs/digits/g1/t0/b/.o</Key>" OLD
                                                "</Upload>"
                                                "<Upload><UploadId>nameless</UploadId>" OLD
                                                "</Upload>"
                                                "<IsTruncated>false</IsTruncated></"
                                                "ListMultipartUploadsResult>";
#undef UPLOAD
#undef OLD
    static const S3FakeRule rules[] = {{"GET uploads", S3_FAKE_GARBAGE, 0, list, 0, 0, 0}, {0}};
    for (int i = 1; i <= 3; i++) {
        char key[32];
        snprintf(key, sizeof key, "digits/claim.%d", i);
        put(key);
    }
    age();
    s3_fake_rules(fake, rules);
    EXPECT_TOLD("digits 1 dead, digits 2 unknown, digits 3 unknown, 1 uploads", .dry_run = true);
    cr_expect_eq(s3_fake_count(fake, "DELETE"), 0);
    RelaySwept swept;
    cr_expect_eq(relay_survey_sweep(relay, "", GC_OLDER_MS, false, &swept), 0, "%s", err_text());
    cr_expect_eq(swept.n_uploads, 1);
    cr_expect_eq(s3_fake_count(fake, "DELETE uploadId=old"), 1);
    cr_expect_eq(s3_fake_count(fake, "DELETE"), 1);
}

/* Uploads cannot be ended: it is said, and the dead go all the same. */
Test(gc_s3, uploads_that_cannot_be_ended, .init = enter, .fini = leave) {
    static const S3FakeRule rules[] = {{"DELETE", S3_FAKE_REFUSE, 403, "AccessDenied", 0, 0, 0},
                                       {0}};
    GcReport report;
    put("digits/claim.1");
    s3_fake_begin(fake, "jobs/digits/g1/t1/a.0-1.0/.o");
    age();
    s3_fake_rules(fake, rules);
    cr_expect_eq(gc_run(relay, &(GcOptions){.older_ms = GC_OLDER_MS}, &report), ERR_AUTH);
    cr_expect(strstr(err_text(), "AccessDenied"), "%s", err_text());
    cr_expect(report.n == 1 && report.items[0].removed && report.swept.n_uploads == 0);
    gc_done(&report);
    cr_expect_eq(s3_fake_objects(fake), 0);
}

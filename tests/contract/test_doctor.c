/* What the doctor says of stores that are slow, or unlike what they should be. */
#include "coordinator/doctor.h"
#include "storage/relay_survey.h"
#include "tests/support/redis_place.h"
#include "tests/support/s3_fake.h"

/* ---- S3 ---- */

static S3Fake *fake;
static char url[256];

static void enter(void) {
    setenv("AWS_ACCESS_KEY_ID", "AKTEST", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    cr_assert_eq(s3_fake_start(&fake), 0, "%s", err_text());
    snprintf(url, sizeof url, "s3://bucket/jobs?endpoint=http://127.0.0.1:%d", s3_fake_port(fake));
}

static void leave(void) {
    s3_fake_stop(fake);
}

/* "name=value" of each, with "!problem" where there is one. */
static void tell(void *ctx, const char *name, const char *value, const char *problem) {
    char *all = ctx;
    size_t at = strlen(all);
    snprintf(all + at, 4096 - at, "%s=%s%s%s;", name, value, problem ? "!" : "",
             problem ? problem : "");
}

/* All that is told after so many puts. */
static const char *told(int n_puts) {
    static char all[4096];
    Relay *relay = NULL;
    all[0] = '\0';
    cr_assert_eq(relay_open(url, &relay), 0, "%s", err_text());
    for (int i = 0; i < n_puts; i++) {
        char key[16];
        snprintf(key, sizeof key, "k/%d", i);
        cr_assert_eq(place_put(relay, key, key, strlen(key), 20000), 0, "%s", err_text());
    }
    cr_assert_eq(relay_survey_about(relay, tell, all), 0, "%s", err_text());
    relay_survey_learned(relay, tell, all);
    cr_assert_eq(relay_drop_one(relay, "k", NULL), 0, "%s", err_text());
    relay_close(relay);
    return all;
}

static void expect_told(int n_puts, const char *words) {
    const char *all = told(n_puts);
    cr_expect(strstr(all, words), "'%s' is not in %s", words, all);
}

#define OVERWRITES "conditional_put=no!the store overwrites: start one run of a job at a time"

Test(doctor_s3, conditional_put, .init = enter, .fini = leave) {
    expect_told(0, "conditional_put=not known: no object could be put;");
    expect_told(1, "conditional_put=yes;");
    s3_fake_create(fake, S3_FAKE_CREATE_501);
    expect_told(1, OVERWRITES);
    s3_fake_create(fake, S3_FAKE_CREATE_IGNORED);
    expect_told(10, OVERWRITES);
}

Test(doctor_s3, login_and_limits, .init = enter, .fini = leave) {
    expect_told(0, "login=with an access key;");
    expect_told(0, "longest_value=16 MiB in one request; longer objects, up to 16 GiB, in parts "
                   "of 8 MiB;");
    setenv("AWS_SESSION_TOKEN", "token", 1);
    expect_told(0, "login=with an access key and a session token");
}

Test(doctor_s3, clocks, .init = enter, .fini = leave) {
    expect_told(1, "clock_skew=less than 3 s;");
    s3_fake_clock(fake, 25);
    expect_told(20, "clock_skew=2"); /* 24 s and some milliseconds: the store tells seconds */
    expect_told(0, " ms;");
    s3_fake_clock(fake, -3600);
    expect_told(1, " ms!this machine's clock is off the store's");
}

/* What the measurement has shown is told behind it. */
Test(doctor_s3, after_the_measurement, .init = enter, .fini = leave) {
    DoctorReport report;
    int n_create = 0;
    s3_fake_create(fake, S3_FAKE_CREATE_501);
    cr_assert_eq(doctor_run(url, &report), 0, "%s", err_text());
    for (int i = 0; i < report.n; i++) {
        if (strcmp(report.facts[i].name, "conditional_put") != 0)
            continue;
        n_create++;
        cr_expect_str_eq(report.facts[i].value, "no");
        cr_expect(strstr(report.facts[i].problem, "overwrites"), "%s", report.facts[i].problem);
    }
    cr_expect_eq(n_create, 1);
    doctor_done(&report);
    cr_expect_eq(s3_fake_objects(fake), 0);
}

/* ---- a store that is far away ---- */

Test(doctor_slow, far_away) {
    static const char *const slow[] = {"put", "get", "drop", "bandwidth"};
    static const char *const words[] = {"nearer to the workers", "nearer to the workers",
                                        "a database of its own", "less than 4 MiB/s"};
    RedisPlace place;
    DoctorReport report;
    char far[64];
    int n = 0;
    place_open(&place, NULL, "", "");
    proxy_delay(place.proxy, PROXY_UP, 270);
    snprintf(far, sizeof far, "redis://127.0.0.1:%d", proxy_port(place.proxy));
    cr_assert_eq(doctor_run(far, &report), 0, "%s", err_text());
    for (int i = 0; i < report.n; i++) {
        for (int j = 0; j < 4; j++) {
            if (strcmp(report.facts[i].name, slow[j]) != 0)
                continue;
            n++;
            cr_expect(strstr(report.facts[i].problem, words[j]), "%s: '%s'", slow[j],
                      report.facts[i].problem);
        }
    }
    cr_expect_eq(n, 4);
    doctor_done(&report);
    cr_expect_eq(place_ask(&place, "DBSIZE"), 0, "the doctor left something");
    place_close(&place);
}

/* What is removed from a relay of files and of memory, and what is left alone. */
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>

#include "coordinator/gc.h"
#include "core/clock.h"
#include "core/err.h"
#include "tests/support/temp_folder.h"

static Relay *relay;

static void enter(void) {
    char url[128];
    temp_enter();
    snprintf(url, sizeof url, "file://%s/relay", temp_folder);
    cr_assert_eq(relay_open(url, &relay), 0, "%s", err_text());
}

static void leave(void) {
    relay_close(relay);
    temp_leave();
}

TestSuite(gc, .init = enter, .fini = leave);

static void put(const char *key) {
    Slice part = {"0123456789", 10};
    cr_assert_eq(relay_put(relay, key, &part, 1, CLOCK_NEVER), 0, "%s", err_text());
}

static void note(const char *key, int64_t ttl_ms) {
    cr_assert_eq(relay_note_put(relay, key, "n", 1, ttl_ms), 0, "%s", err_text());
}

static int make_old(const char *path, const struct stat *about, int type, struct FTW *where) {
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {about->st_mtim.tv_sec - 7200, 0}};
    (void)type, (void)where;
    return utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW);
}

/* All below that folder of the relay was last written two hours ago. */
static void age(const char *name) {
    cr_assert_eq(nftw(temp_path(name), make_old, 16, FTW_PHYS | FTW_DEPTH), 0);
}

static const GcGeneration *of(const GcReport *report, const char *job, int64_t generation) {
    for (int32_t i = 0; i < report->n; i++) {
        if (strcmp(report->items[i].space.job, job) == 0 &&
            report->items[i].space.generation == generation)
            return &report->items[i];
    }
    cr_assert_fail("%s generation %lld is not in the report", job, (long long)generation);
    return NULL;
}

static void run(const char *job, bool dry_run, GcReport *report) {
    GcOptions options = {.job = job, .older_ms = GC_OLDER_MS, .dry_run = dry_run};
    cr_assert_eq(gc_run(relay, &options, report), 0, "%s", err_text());
}

static int64_t count(const char *prefix) {
    int64_t n = -1;
    cr_assert_eq(relay_count(relay, prefix, &n), 0, "%s", err_text());
    return n;
}

/* A dead generation, one that lives by its heartbeat alone, a young one, and one without a claim.
 */
static void fill(void) {
    put("digits/claim.1");
    put("digits/g1/t0/a.0-1.0");
    put("digits/g1/t12/s.0.0");
    note("digits/g1/n/h.0.0", 1);
    note("digits/g1/n/w.0", 60000);
    put("digits/claim.2");
    put("digits/g2/t0/a.0-1.0");
    note("digits/g2/n/h.0.0", 60000);
    put("lost/g7/t0/a.0-1.0");
    put("loose");
    age("relay");
    put("digits/claim.3");
    put("digits/g3/t0/a.0-1.0");
    clock_sleep_until(clock_deadline_ms(5));
}

Test(gc, only_the_dead_go) {
    GcReport report;
    fill();
    run(NULL, true, &report);
    cr_expect_eq(report.n, 4);
    cr_expect_eq(of(&report, "digits", 1)->state, GC_DEAD);
    cr_expect(!of(&report, "digits", 1)->removed);
    gc_done(&report);
    cr_expect_eq(count(""), 9, "a dry run removed something");
    run(NULL, false, &report);
    const GcGeneration *dead = of(&report, "digits", 1);
    cr_expect(dead->removed && dead->claimed && dead->state == GC_DEAD);
    cr_expect_eq(dead->n_objects, 3);
    cr_expect_eq(dead->n_notes, 2);
    cr_expect_geq(dead->bytes, 30);
    cr_expect(dead->idle_ms >= 7190000 && dead->idle_ms < 7300000);
    cr_expect_eq(of(&report, "digits", 2)->state, GC_RUNNING);
    cr_expect_eq(of(&report, "digits", 3)->state, GC_YOUNG);
    cr_expect(of(&report, "lost", 7)->removed && !of(&report, "lost", 7)->claimed);
    cr_expect_eq(report.n_foreign, 1);
    gc_done(&report);
    cr_expect_eq(count("digits/g1") + count("digits/claim.1") + count("lost"), 0);
    cr_expect_eq(count(""), 5);
    cr_expect_eq(access(temp_path("relay/lost"), F_OK), -1, "an empty folder is left");
    char data[8];
    size_t bytes = 0;
    cr_expect_eq(relay_note_get(relay, "digits/g2/n/h.0.0", data, sizeof data, &bytes), 0);
}

Test(gc, one_job_only) {
    GcReport report;
    fill();
    run("lost", false, &report);
    cr_expect_eq(report.n, 1);
    cr_expect(report.items[0].removed);
    gc_done(&report);
    cr_expect_eq(count("digits"), 7);
    cr_expect_eq(count("lost"), 0);
}

/* Empty folders of jobs go when they are old; others' folders and files do not. */
Test(gc, empty_folders) {
    static const char *const folders[] = {"relay/job",       "relay/job/g1", "relay/job/g1/t1",
                                          "relay/job/g1/t2", "relay/photos", "relay/photos/2020"};
    GcReport report;
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        cr_assert_eq(mkdir(temp_path(folders[i]), 0700), 0);
    put("job/g2/t1/a");
    age("relay");
    cr_assert_eq(mkdir(temp_path("relay/job/g1/t3"), 0700), 0); /* and with it g1 is young */
    run(NULL, true, &report);
    cr_expect_eq(report.swept.n_folders, 2);
    gc_done(&report);
    run("jo", false, &report);
    cr_expect_eq(report.swept.n_folders, 0, "another job's folders went");
    gc_done(&report);
    run("job", false, &report);
    cr_expect_eq(report.swept.n_folders, 2);
    gc_done(&report);
    cr_expect_eq(access(temp_path("relay/job/g1/t1"), F_OK), -1);
    cr_expect_eq(access(temp_path("relay/job/g1/t3"), F_OK), 0);
    age("relay");
    run(NULL, false, &report);
    cr_expect_eq(report.swept.n_folders, 2); /* t3 and g1 */
    gc_done(&report);
    cr_expect_eq(access(temp_path("relay/job/g1"), F_OK), -1);
    cr_expect_eq(access(temp_path("relay/photos/2020"), F_OK), 0, "a foreign folder is gone");
}

/* More generations than are removed together. */
Test(gc, many_generations) {
    enum { MANY = 70 };
    GcReport report;
    char key[64];
    for (int i = 1; i <= MANY; i++) {
        snprintf(key, sizeof key, "job/claim.%d", i);
        put(key);
        snprintf(key, sizeof key, "job/g%d/t0/a", i);
        put(key);
    }
    age("relay");
    run(NULL, false, &report);
    cr_expect_eq(report.n, MANY);
    for (int32_t i = 0; i < report.n; i++)
        cr_expect(report.items[i].removed);
    gc_done(&report);
    cr_expect_eq(count(""), 0);
}

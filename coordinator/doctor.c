#include "coordinator/doctor.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/text.h"
#include "storage/key.h"
#include "storage/relay_survey.h"

enum {
    SMALL_BYTES = 64,
    SMALL_ROUNDS = 200,
    DROP_ROUNDS = 20,
    WAKE_ROUNDS = 15,
    PHASE_MS = 2000,       /* no measurement goes on for longer, but for the round under way */
    OPERATION_MS = 5000,   /* of one operation */
    WAKE_PAUSE_MS = 15,    /* until the other one surely waits */
    LEAST_BYTES = 1 << 20, /* of the first long object */
    MOST_BYTES = 32 << 20, /* of the last */
    LONG_MS = 500,         /* a put of such length tells enough */
    SLOW_US = 20000,       /* of a small object */
    SLOW_DROP_US = 50000,
    SLOW_BYTES_PER_S = 4 << 20,
    NOT_PUSHED_US = 3000 /* later than put and get together: it was looked for */
};

typedef struct Doctor {
    DoctorReport *report;
    Relay *relay, *other;
    KeySpace space;
    int rc; /* of what was told */
} Doctor;

void doctor_done(DoctorReport *report) {
    free(report->facts);
    *report = (DoctorReport){0};
}

/* ---- facts ---- */

static void tell(void *ctx, const char *name, const char *value, const char *problem) {
    Doctor *doctor = ctx;
    DoctorReport *report = doctor->report;
    if (report->n == report->capacity) {
        int capacity = report->capacity ? 2 * report->capacity : 32;
        DoctorFact *facts = realloc(report->facts, (size_t)capacity * sizeof *facts);
        if (!facts) {
            doctor->rc = err_set(ERR_MEMORY, "%d facts", capacity);
            return;
        }
        report->facts = facts;
        report->capacity = capacity;
    }
    DoctorFact *fact = &report->facts[report->n++];
    snprintf(fact->name, sizeof fact->name, "%s", name);
    text_printable(value, fact->value, sizeof fact->value);
    text_printable(problem ? problem : "", fact->problem, sizeof fact->problem);
    report->n_problems += problem != NULL;
}

static void tell_times(Doctor *doctor, const char *name, const DoctorTimes *times,
                       const char *problem) {
    char value[96];
    snprintf(value, sizeof value, "median %lld us, p99 %lld us", (long long)times->median_us,
             (long long)times->p99_us);
    tell(doctor, name, value, problem);
}

/* ---- small objects ---- */

static int compare(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static DoctorTimes times_of(int64_t *ns, int n) {
    if (n == 0)
        return (DoctorTimes){-1, -1};
    qsort(ns, (size_t)n, sizeof *ns, compare);
    return (DoctorTimes){ns[n / 2] / CLOCK_NS_PER_US, ns[(n * 99) / 100] / CLOCK_NS_PER_US};
}

static Key key_of(const Doctor *doctor, int64_t phase, int index) {
    return key_activation(&doctor->space, (KeyPlace){phase, -1}, 0, 1, index);
}

static int put(const Doctor *doctor, Key key, const void *data, size_t bytes) {
    Slice part = {data, bytes};
    return relay_put(doctor->relay, key.text, &part, 1, clock_deadline_ms(OPERATION_MS));
}

static int measure_small(Doctor *doctor) {
    char data[SMALL_BYTES] = "small";
    char back[SMALL_BYTES];
    size_t bytes = 0;
    static const char slow[] =
        "each object of a step waits for that: bring the relay nearer to the "
        "workers";
    int64_t put_ns[SMALL_ROUNDS];
    int64_t get_ns[SMALL_ROUNDS];
    int n = 0;
    for (int64_t end_ns = clock_deadline_ms(PHASE_MS); n < SMALL_ROUNDS; n++) {
        Key key = key_of(doctor, 0, n);
        int64_t begin_ns = clock_now_ns();
        if (begin_ns >= end_ns && n > 0)
            break;
        TRY(put(doctor, key, data, sizeof data));
        int64_t middle_ns = clock_now_ns();
        TRY(relay_get(doctor->relay, key.text, back, sizeof back, clock_deadline_ms(OPERATION_MS),
                      &bytes));
        put_ns[n] = middle_ns - begin_ns;
        get_ns[n] = clock_now_ns() - middle_ns;
        if (bytes != sizeof data || memcmp(data, back, sizeof data) != 0)
            return err_set(ERR_CORRUPT, "a small object came back otherwise");
    }
    doctor->report->put = times_of(put_ns, n);
    doctor->report->get = times_of(get_ns, n);
    tell_times(doctor, "put", &doctor->report->put,
               doctor->report->put.median_us > SLOW_US ? slow : NULL);
    tell_times(doctor, "get", &doctor->report->get,
               doctor->report->get.median_us > SLOW_US ? slow : NULL);
    return 0;
}

/* Of the small objects, one after the other: over Redis each is a pass over all its keys. */
static int measure_drops(Doctor *doctor) {
    int64_t ns[DROP_ROUNDS];
    int n = 0;
    for (int64_t end_ns = clock_deadline_ms(PHASE_MS); n < DROP_ROUNDS; n++) {
        int64_t begin_ns = clock_now_ns();
        int64_t dropped = 0;
        if (begin_ns >= end_ns && n > 0)
            break;
        TRY(relay_drop_one(doctor->relay, key_of(doctor, 0, n).text, &dropped));
        ns[n] = clock_now_ns() - begin_ns;
        if (relay_has(doctor->relay, key_of(doctor, 0, n).text) != 0)
            return err_set(ERR_CORRUPT, "an object that was dropped is still there");
    }
    doctor->report->drop = times_of(ns, n);
    tell_times(doctor, "drop", &doctor->report->drop,
               doctor->report->drop.median_us > SLOW_DROP_US
                   ? "there are very many keys, and each drop looks at all of them: give the relay "
                     "a database of its own"
                   : NULL);
    return 0;
}

/* ---- long objects ---- */

static int move(Doctor *doctor, int index, char *data, size_t bytes, double *put_s, double *get_s) {
    size_t back = 0;
    Key key = key_of(doctor, 1, index);
    for (size_t i = 0; i < bytes; i += 512)
        data[i] = (char)(i / 512 * 31 + bytes);
    int64_t begin_ns = clock_now_ns();
    TRY(put(doctor, key, data, bytes));
    int64_t middle_ns = clock_now_ns();
    memset(data, 0, bytes);
    int64_t again_ns = clock_now_ns();
    TRY(relay_get(doctor->relay, key.text, data, bytes, clock_deadline_ms(OPERATION_MS), &back));
    *put_s = (double)(middle_ns - begin_ns) / (double)CLOCK_NS_PER_S;
    *get_s = (double)(clock_now_ns() - again_ns) / (double)CLOCK_NS_PER_S;
    for (size_t i = 0; i < bytes; i += 512) {
        if (back != bytes || data[i] != (char)(i / 512 * 31 + bytes))
            return err_set(ERR_CORRUPT, "an object of %zu bytes came back otherwise", bytes);
    }
    return relay_drop_one(doctor->relay, key.text, NULL);
}

static int measure_long(Doctor *doctor) {
    DoctorReport *report = doctor->report;
    char value[160];
    char text[3][32];
    double put_s = 0;
    double get_s = 0;
    char *data = calloc(1, MOST_BYTES);
    int rc = data ? 0 : err_set(ERR_MEMORY, "an object of %d bytes", MOST_BYTES);
    int64_t end_ns = clock_deadline_ms(PHASE_MS);
    for (int64_t bytes = LEAST_BYTES, i = 0; rc >= 0 && bytes <= MOST_BYTES; bytes *= 2, i++) {
        rc = move(doctor, (int)i, data, (size_t)bytes, &put_s, &get_s);
        if (rc < 0)
            break;
        report->longest_bytes = bytes;
        report->put_bytes_per_s = (double)bytes / (put_s > 0 ? put_s : 1e-9);
        report->get_bytes_per_s = (double)bytes / (get_s > 0 ? get_s : 1e-9);
        if (put_s * 1000 > LONG_MS || get_s * 1000 > LONG_MS || clock_now_ns() >= end_ns)
            break;
    }
    free(data);
    if (report->longest_bytes > 0) {
        bool slow = report->put_bytes_per_s < SLOW_BYTES_PER_S ||
                    report->get_bytes_per_s < SLOW_BYTES_PER_S;
        snprintf(value, sizeof value, "%s/s out, %s/s in, with an object of %s",
                 text_format_bytes((int64_t)report->put_bytes_per_s, text[0], sizeof text[0]),
                 text_format_bytes((int64_t)report->get_bytes_per_s, text[1], sizeof text[1]),
                 text_format_bytes(report->longest_bytes, text[2], sizeof text[2]));
        tell(doctor, "bandwidth", value,
             slow ? "less than 4 MiB/s: every activation goes through it twice" : NULL);
    }
    return rc;
}

/* ---- waiting ---- */

typedef struct Waiter {
    Doctor *doctor;
    int64_t came_ns[WAKE_ROUNDS];
    int64_t get_ns[WAKE_ROUNDS]; /* how long the same takes without a wait, in the same moment */
    int n, rc;
    ErrNote failure;
} Waiter;

static void *wait_main(void *arg) {
    Waiter *waiter = arg;
    char back[SMALL_BYTES];
    size_t bytes = 0;
    for (; waiter->n < WAKE_ROUNDS; waiter->n++) {
        Key key = key_of(waiter->doctor, 2, waiter->n);
        waiter->rc = relay_get(waiter->doctor->other, key.text, back, sizeof back,
                               clock_deadline_ms(OPERATION_MS), &bytes);
        waiter->came_ns[waiter->n] = clock_now_ns();
        if (waiter->rc >= 0)
            waiter->rc = relay_get(waiter->doctor->other, key.text, back, sizeof back,
                                   clock_deadline_ms(OPERATION_MS), &bytes);
        if (waiter->rc < 0)
            break;
        waiter->get_ns[waiter->n] = clock_now_ns() - waiter->came_ns[waiter->n];
    }
    err_copy(&waiter->failure);
    return NULL;
}

/* late_ns: how much later than a put and a get the waiting get came, a quarter of the times at the
 * most; the rest is a busy machine's. */
static void tell_wakes(Doctor *doctor, int64_t n_looks, int64_t late_ns) {
    DoctorReport *report = doctor->report;
    char value[160];
    report->pushes = n_looks == 0 && late_ns <= NOT_PUSHED_US * CLOCK_NS_PER_US;
    snprintf(value, sizeof value,
             "%s: a get that waits has the object %lld us (p99 %lld us) after "
             "its put begins",
             report->pushes ? "yes" : "no", (long long)report->wake.median_us,
             (long long)report->wake.p99_us);
    const RelaySurvey *survey = doctor->other->ops->survey;
    tell(doctor, "pushes", value,
         report->pushes || (survey && survey->asks)
             ? NULL
             : "waiting workers look again and again, and each step is longer by "
               "that");
}

static void tell_sums(Doctor *doctor) {
    tell(doctor, "sums", relay_adds(doctor->other) ? "yes" : "no: workers sum gradients themselves",
         NULL);
}

static int measure_wakes(Doctor *doctor) {
    Waiter waiter = {.doctor = doctor};
    pthread_t thread;
    int64_t ns[WAKE_ROUNDS];
    int64_t late_ns[WAKE_ROUNDS];
    int64_t begun_ns[WAKE_ROUNDS];
    int64_t ended_ns[WAKE_ROUNDS];
    int64_t n_looks = doctor->other->counters.n_retries;
    int n = 0;
    int rc = 0;
    if (pthread_create(&thread, NULL, wait_main, &waiter) != 0)
        return err_set(ERR_MEMORY, "a thread that waits");
    for (; rc >= 0 && n < WAKE_ROUNDS; n += rc >= 0) {
        clock_sleep_until(clock_deadline_ms(WAKE_PAUSE_MS));
        begun_ns[n] = clock_now_ns();
        rc = put(doctor, key_of(doctor, 2, n), "wake", 4);
        ended_ns[n] = clock_now_ns();
    }
    if (rc < 0)
        relay_interrupt(doctor->other, true);
    pthread_join(thread, NULL);
    TRY(rc);
    if (waiter.rc < 0)
        return err_restore(&waiter.failure);
    for (int i = 0; i < n; i++) {
        ns[i] = waiter.came_ns[i] - begun_ns[i];
        late_ns[i] = waiter.came_ns[i] - ended_ns[i] - waiter.get_ns[i];
    }
    doctor->report->wake = times_of(ns, n);
    qsort(late_ns, (size_t)n, sizeof *late_ns, compare);
    tell_wakes(doctor, doctor->other->counters.n_retries - n_looks, late_ns[n / 4]);
    return 0;
}

/* ---- all of it ---- */

static int measure(Doctor *doctor) {
    TRY(measure_small(doctor));
    TRY(measure_drops(doctor));
    tell_sums(doctor);
    TRY(measure_wakes(doctor));
    return measure_long(doctor);
}

static int examine(Doctor *doctor) {
    int rc = relay_survey_about(doctor->relay, tell, doctor);
    if (rc >= 0 || rc == ERR_UNSUPPORTED)
        rc = measure(doctor);
    relay_survey_learned(doctor->relay, tell, doctor); /* of puts that failed, too */
    if (rc < 0 && rc != ERR_UNREACHABLE && rc != ERR_AUTH) {
        char problem[ERR_NOTE_BYTES];
        snprintf(problem, sizeof problem, "%s", err_text());
        tell(doctor, "use", "it does not work", problem);
        rc = 0;
    }
    ErrNote failure;
    err_copy(&failure);
    int dropped = relay_drop_one(doctor->relay, key_space_prefix(&doctor->space).text, NULL);
    relay_tidy(doctor->relay, doctor->space.job);
    if (rc < 0)
        return err_restore(&failure);
    return doctor->rc < 0 ? doctor->rc : dropped;
}

int doctor_run(const char *url, DoctorReport *out_report) {
    static const DoctorTimes none = {-1, -1};
    Doctor doctor = {.report = out_report, .space.generation = 1};
    *out_report = (DoctorReport){.put = none,
                                 .get = none,
                                 .drop = none,
                                 .wake = none,
                                 .put_bytes_per_s = -1,
                                 .get_bytes_per_s = -1};
    snprintf(doctor.space.job, sizeof doctor.space.job, "doctor.%lld-%lld", (long long)getpid(),
             (long long)(clock_now_ns() % CLOCK_NS_PER_S));
    int rc = relay_open(url, &doctor.relay);
    if (rc == ERR_UNSUPPORTED) { /* such as a server that throws keys away */
        tell(&doctor, "use", "it cannot be a relay", err_text());
        return doctor.rc;
    }
    TRY(rc);
    rc = relay_open(url, &doctor.other);
    if (rc >= 0)
        rc = examine(&doctor);
    relay_close(doctor.other);
    relay_close(doctor.relay);
    return rc;
}

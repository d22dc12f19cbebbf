#include "storage/s3_rhythm.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/hash.h"
#include "storage/relay.h"

enum { N_CLASSES = 4096 }; /* where two meet, the newer one stays: it only costs questions */
#define MARGIN_NS (3 * CLOCK_NS_PER_MS / 10)
#define LEAST_DUE_NS (CLOCK_NS_PER_MS / 2)
#define LEAST_PAUSE_NS CLOCK_NS_PER_MS
#define MOST_PAUSE_NS (250 * CLOCK_NS_PER_MS)
#define LEAST_RISE_NS (2 * CLOCK_NS_PER_MS)
#define FIRST_TRIP_NS CLOCK_NS_PER_MS

typedef struct Class {
    uint64_t name;        /* 0: none */
    int64_t mean_ns;      /* from asked for to there */
    int64_t deviation_ns; /* the mean distance from it */
    int64_t least_age_ns; /* of one that has just appeared */
    int64_t doubt_ns;     /* so much less it may be, for all we have seen */
    int32_t n_risen;      /* waits in a row that were much longer than the mean */
} Class;

struct S3Rhythm {
    int64_t trip_ns; /* of a short question; 0 not known */
    Class classes[N_CLASSES];
};

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t lesser(int64_t a, int64_t b) {
    return a < b ? a : b;
}

int s3_rhythm_open(S3Rhythm **out_rhythm) {
    *out_rhythm = calloc(1, sizeof **out_rhythm);
    return *out_rhythm ? 0 : err_set(ERR_MEMORY, "a table of key classes");
}

void s3_rhythm_close(S3Rhythm *rhythm) {
    free(rhythm);
}

void s3_rhythm_trip(S3Rhythm *rhythm, int64_t took_ns) {
    rhythm->trip_ns =
        rhythm->trip_ns == 0
            ? took_ns
            : rhythm->trip_ns + (lesser(took_ns, 4 * rhythm->trip_ns) - rhythm->trip_ns) / 8;
}

static int64_t trip(const S3Rhythm *rhythm) {
    return rhythm->trip_ns > 0 ? rhythm->trip_ns : FIRST_TRIP_NS;
}

/* The hash of a key's class: every run of digits in front of the last part is one '#'. */
static uint64_t class_name(const char *key) {
    char text[RELAY_KEY_BYTES];
    size_t n = 0;
    const char *last = strrchr(key, '/');
    for (const char *at = key; *at && n < sizeof text; at++) {
        bool digit = *at >= '0' && *at <= '9' && last && at < last;
        if (!digit)
            text[n++] = *at;
        else if (n == 0 || text[n - 1] != '#')
            text[n++] = '#';
    }
    uint64_t hash = hash_bytes(text, n);
    return hash ? hash : 1;
}

static const Class *find(const S3Rhythm *rhythm, const char *key) {
    uint64_t name = class_name(key);
    const Class *class = &rhythm->classes[name % N_CLASSES];
    return class->name == name ? class : NULL;
}

int64_t s3_rhythm_due_ns(const S3Rhythm *rhythm, const char *key) {
    const Class *class = find(rhythm, key);
    if (!class || class->mean_ns < LEAST_DUE_NS)
        return 0;
    int64_t trip_ns = trip(rhythm);
    int64_t later_ns = lesser(3 * class->deviation_ns / 2, trip_ns / 2) + MARGIN_NS;
    int64_t earlier_ns = larger(class->deviation_ns - trip_ns, 0) / 2;
    return larger(class->mean_ns + later_ns - earlier_ns, 0);
}

int64_t s3_rhythm_pause_ns(const S3Rhythm *rhythm, const char *key, int64_t waited_ns) {
    const Class *class = find(rhythm, key);
    int64_t trip_ns = trip(rhythm);
    int64_t overdue_ns = waited_ns - s3_rhythm_due_ns(rhythm, key);
    if (!class)
        return lesser(larger(larger(2 * LEAST_PAUSE_NS, trip_ns / 4), overdue_ns / 4),
                      MOST_PAUSE_NS);
    int64_t scatter_ns = lesser(class->deviation_ns / 2, 4 * trip_ns);
    int64_t least_ns = larger(larger(LEAST_PAUSE_NS, trip_ns / 4), scatter_ns);
    return lesser(larger(least_ns, overdue_ns / 3), MOST_PAUSE_NS);
}

/* When it appeared, as far as it can be known. The least age is doubted a little whenever an object
 * was there at the first question, so that it cannot be too high for ever; and more at first, when
 * it comes from questions that were far apart. */
static int64_t appeared(Class *class, int64_t trip_ns, const S3Wait *wait) {
    int64_t gap_ns = wait->found_ns - wait->missed_ns; /* when there was a question before */
    int64_t doubt_ns = larger(trip_ns / 32, class->doubt_ns / 8);
    class->least_age_ns += larger(wait->age_ns - class->least_age_ns, 0) / 64; /* clocks drift */
    class->least_age_ns = lesser(class->least_age_ns, wait->age_ns);
    if (!wait->missed) {
        class->least_age_ns -= doubt_ns;
        class->doubt_ns = larger(class->doubt_ns - doubt_ns, 0);
    } else { /* at that age it was not there yet */
        class->least_age_ns = larger(class->least_age_ns, wait->age_ns - gap_ns);
        class->doubt_ns = lesser(class->doubt_ns, gap_ns);
    }
    int64_t at_ns = wait->found_ns - (wait->age_ns - class->least_age_ns);
    return larger(at_ns, wait->missed ? wait->missed_ns : 0);
}

/* The mean follows down at once, up with doubt: one late object is no news. */
void s3_rhythm_learn(S3Rhythm *rhythm, const char *key, const S3Wait *wait) {
    uint64_t name = class_name(key);
    Class *class = &rhythm->classes[name % N_CLASSES];
    if (class->name != name)
        *class = (Class){.name = name,
                         .deviation_ns = CLOCK_NS_PER_MS,
                         .least_age_ns = wait->age_ns,
                         .doubt_ns = wait->missed ? wait->found_ns - wait->missed_ns : 0};
    int64_t off_ns = appeared(class, trip(rhythm), wait) - class->mean_ns;
    int64_t most_ns = larger(larger(3 * class->deviation_ns, class->mean_ns / 8), LEAST_RISE_NS);
    int64_t distance_ns = lesser(off_ns < 0 ? -off_ns : off_ns, most_ns);
    int64_t step_ns = off_ns > 0 ? off_ns / 3 : off_ns / 2;
    if (off_ns <= most_ns)
        class->n_risen = 0;
    else if (class->n_risen++ == 0)
        step_ns = lesser(step_ns, most_ns / 2);
    else
        step_ns = lesser(off_ns, most_ns << lesser(class->n_risen - 2, 16));
    class->deviation_ns += (distance_ns - class->deviation_ns) / 8;
    class->mean_ns = larger(class->mean_ns + step_ns, 0);
}

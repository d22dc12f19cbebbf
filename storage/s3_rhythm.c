#include "storage/s3_rhythm.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/hash.h"
#include "storage/relay.h"

enum {
    N_CLASSES = 4096, /* where two meet, the newer one stays: it only costs questions */
    MOST_DOUBLINGS = 20,
    HITS_A_DOUBLING = 6
};
#define LEAST_SPREAD_NS (CLOCK_NS_PER_MS / 4)
#define LEAST_RISE_NS (4 * CLOCK_NS_PER_MS)
#define LEAST_PAUSE_NS (2 * CLOCK_NS_PER_MS)
#define MOST_PAUSE_NS (250 * CLOCK_NS_PER_MS)

typedef struct Class {
    uint64_t name; /* 0: none */
    int64_t due_ns, spread_ns;
    int32_t n_hits, n_lates; /* in a row */
} Class;

struct S3Rhythm {
    Class classes[N_CLASSES];
};

int s3_rhythm_open(S3Rhythm **out_rhythm) {
    *out_rhythm = calloc(1, sizeof **out_rhythm);
    return *out_rhythm ? 0 : err_set(ERR_MEMORY, "a table of key classes");
}

void s3_rhythm_close(S3Rhythm *rhythm) {
    free(rhythm);
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
    return class ? class->due_ns : 0;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t lesser(int64_t a, int64_t b) {
    return a < b ? a : b;
}

int64_t s3_rhythm_pause_ns(const S3Rhythm *rhythm, const char *key, int64_t waited_ns,
                           int n_misses) {
    const Class *class = find(rhythm, key);
    bool expected = class && class->due_ns > 0 && n_misses <= 3; /* it may come any moment */
    int64_t pause_ns = expected ? larger(class->spread_ns / 2, waited_ns / 16) : waited_ns / 4;
    return lesser(larger(pause_ns, LEAST_PAUSE_NS), MOST_PAUSE_NS);
}

static int64_t doubled(int64_t ns, int64_t times) {
    return ns << lesser(times, MOST_DOUBLINGS);
}

static void learn_hit(Class *class) {
    int64_t step_ns = larger(class->spread_ns / 8, class->due_ns / 64);
    class->n_lates = 0;
    class->n_hits++;
    step_ns = doubled(step_ns, class->n_hits / HITS_A_DOUBLING);
    class->due_ns -= lesser(step_ns, class->due_ns / 4);
    if (class->due_ns < CLOCK_NS_PER_MS / 20)
        class->due_ns = 0;
    class->spread_ns = larger(class->spread_ns - class->spread_ns / 32, LEAST_SPREAD_NS);
}

static void learn_miss(Class *class, int64_t late_ns) {
    int64_t rise_ns = larger(larger(class->spread_ns, class->due_ns / 4), LEAST_RISE_NS);
    class->n_hits = 0;
    class->due_ns += lesser(late_ns, doubled(rise_ns, class->n_lates)) + class->spread_ns / 2;
    class->n_lates++;
    class->spread_ns += (lesser(late_ns, rise_ns) - class->spread_ns) / 4;
    class->spread_ns = larger(class->spread_ns, LEAST_SPREAD_NS);
}

void s3_rhythm_learn(S3Rhythm *rhythm, const char *key, int64_t first_ns, int64_t waited_ns,
                     int n_misses) {
    uint64_t name = class_name(key);
    Class *class = &rhythm->classes[name % N_CLASSES];
    if (class->name != name)
        *class = (Class){.name = name, .spread_ns = CLOCK_NS_PER_MS};
    if (n_misses == 0)
        learn_hit(class);
    else
        learn_miss(class, waited_ns - first_ns);
}

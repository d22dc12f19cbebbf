#include "tests/bench/bench.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"

enum {
    MAX_NAMES = 32,
    ENOUGH_QUIET = 3,
    PATIENCE_S = 60,
    LIMIT_S = 90,
    LOOK_MS = 300,
    MAX_ROUNDS_FACTOR = 3
};
static const double quiet_share = 0.1;

static struct {
    const char *program;
    bool json, missed;
    int n_names;
    const char *names[MAX_NAMES];
} bench;

void bench_begin(int argc, char **argv) {
    const char *slash = strrchr(argv[0], '/');
    bench.program = slash ? slash + 1 : argv[0];
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            bench.json = true;
        else if (bench.n_names < MAX_NAMES)
            bench.names[bench.n_names++] = argv[i];
    }
}

int bench_end(void) {
    return bench.missed ? 1 : 0;
}

void bench_child_ended(int status) {
    if (!WIFEXITED(status) || WEXITSTATUS(status) > 1)
        exit(2);
    bench.missed = bench.missed || WEXITSTATUS(status) == 1;
}

bool bench_wanted(const char *name) {
    for (int i = 0; i < bench.n_names; i++) {
        size_t n = strlen(bench.names[i]);
        if (strncmp(name, bench.names[i], n) == 0 && (name[n] == '\0' || name[n] == '/'))
            return true;
    }
    return bench.n_names == 0;
}

void bench_print(const char *name, double value, int digits, const char *unit, bool at_least,
                 double goal) {
    bool ok = at_least ? value >= goal : value <= goal;
    bench.missed = bench.missed || !ok;
    if (bench.json)
        printf("{\"name\": \"%s\", \"value\": %.*f, \"unit\": \"%s\", \"at_least\": %s, "
               "\"goal\": %g, \"ok\": %s}\n",
               name, digits + 2, value, unit, at_least ? "true" : "false", goal,
               ok ? "true" : "false");
    else
        printf("%s %.*f %s goal %s %g %s\n", name, digits, value, unit,
               at_least ? ">=" : "<=", goal, ok ? "ok" : "MISSED");
    fflush(stdout);
}

void bench_note(const char *format, ...) {
    va_list args;
    fputs("    ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}

void bench_die(const char *doing) {
    fprintf(stderr, "%s: %s: %s\n", bench.program, doing, err_text());
    exit(2);
}

void bench_must(int rc, const char *doing) {
    if (rc < 0)
        bench_die(doing);
}

/* ---- statistics ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(const double *values, int n) {
    if (n <= 0)
        return 0;
    double *sorted = malloc((size_t)n * sizeof *sorted);
    if (!sorted)
        bench_die("sorting");
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    double middle = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    free(sorted);
    return middle;
}

/* Processor time of the whole machine, all but idling. */
static double machine_busy_s(void) {
    unsigned long long v[8] = {0};
    FILE *file = fopen("/proc/stat", "re");
    if (!file || fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2],
                        &v[3], &v[4], &v[5], &v[6], &v[7]) != 8)
        bench_die("reading /proc/stat");
    fclose(file);
    return (double)(v[0] + v[1] + v[2] + v[5] + v[6] + v[7]) / (double)sysconf(_SC_CLK_TCK);
}

static double usage_s(int who) {
    struct rusage usage;
    getrusage(who, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static double seconds(const char *name, double otherwise) {
    const char *text = getenv(name);
    return text ? strtod(text, NULL) : otherwise;
}

static void look(BenchNoise *noise) {
    *noise = (BenchNoise){.wall_s = (double)clock_now_ns() * 1e-9,
                          .busy_s = machine_busy_s(),
                          .own_s = usage_s(RUSAGE_SELF) + usage_s(RUSAGE_CHILDREN)};
}

/* Until nothing else has run for a moment, or the program's patience is at an end. */
static void wait_for_quiet(void) {
    static double waited_s;
    const double patience_s = seconds("BENCH_PATIENCE_S", PATIENCE_S);
    while (waited_s < patience_s) {
        BenchNoise noise;
        look(&noise);
        clock_sleep_until(clock_deadline_ms(LOOK_MS));
        if (bench_noise_end(&noise, 0) <= quiet_share)
            return;
        waited_s += LOOK_MS / 1000.0;
    }
}

void bench_noise_begin(BenchNoise *noise) {
    wait_for_quiet();
    look(noise);
}

double bench_noise_end(const BenchNoise *noise, double own_s) {
    BenchNoise now;
    look(&now);
    double others = now.busy_s - noise->busy_s - (now.own_s - noise->own_s) - own_s;
    double wall = now.wall_s - noise->wall_s;
    return others > 0 && wall > 0 ? others / wall : 0;
}

void bench_round(BenchRounds *rounds, double value, double noise) {
    if (rounds->n == BENCH_MAX_ROUNDS)
        return;
    rounds->value[rounds->n] = value;
    rounds->noise[rounds->n++] = noise;
}

static int count_quiet(const BenchRounds *rounds, double *out_values) {
    int n = 0;
    for (int i = 0; i < rounds->n; i++) {
        if (rounds->noise[i] <= quiet_share)
            out_values[n++] = rounds->value[i];
    }
    return n;
}

bool bench_enough(BenchRounds *rounds, int wanted) {
    double values[BENCH_MAX_ROUNDS];
    const double now_s = (double)clock_now_ns() * 1e-9;
    if (rounds->n == 0)
        rounds->begin_s = now_s;
    if (rounds->n >= ENOUGH_QUIET && now_s - rounds->begin_s > seconds("BENCH_LIMIT_S", LIMIT_S))
        return true;
    return rounds->n >= MAX_ROUNDS_FACTOR * wanted || rounds->n == BENCH_MAX_ROUNDS ||
           count_quiet(rounds, values) >= wanted;
}

double bench_conclude(const BenchRounds *rounds, const char *name) {
    double values[BENCH_MAX_ROUNDS];
    int n = count_quiet(rounds, values);
    double noise = bench_median(rounds->noise, rounds->n);
    bench_note("%s: %d of %d rounds on a quiet machine, others took %.0f %% of a core (median)",
               name, n, rounds->n, noise * 100);
    return n >= ENOUGH_QUIET ? bench_median(values, n) : bench_median(rounds->value, rounds->n);
}

#include "tests/bench/bench.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
    MAX_ROUNDS_FACTOR = 3,
    MAX_PROCESSES = 4096,
    KERNEL_THREAD = 0x00200000 /* in a process's flags (proc(5)) */
};
static const double quiet_share = 0.1;

static struct {
    const char *program;
    bool json, missed;
    pid_t pid;        /* of the program; its children inherit it, and share: */
    double *waited_s; /* for quiet */
    int n_names;
    const char *names[MAX_NAMES];
} bench;

void bench_begin(int argc, char **argv) {
    const char *slash = strrchr(argv[0], '/');
    bench.program = slash ? slash + 1 : argv[0];
    bench.pid = getpid();
    bench.waited_s = mmap(NULL, sizeof *bench.waited_s, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (bench.waited_s == MAP_FAILED)
        bench_must(err_set(ERR_MEMORY, "shared memory"), "beginning");
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

void bench_show(const char *name, double value, int digits, const char *unit) {
    if (bench.json)
        printf("{\"name\": \"%s\", \"value\": %.*f, \"unit\": \"%s\"}\n", name, digits + 2, value,
               unit);
    else
        printf("%s %.*f %s\n", name, digits, value, unit);
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

typedef struct Process {
    int pid, parent;
    bool of_kernel;
    double busy_s; /* with its children that have ended */
} Process;

/* False: it has ended. */
static bool read_process(const char *pid, Process *out) {
    char path[64];
    char text[512];
    unsigned long flags = 0;
    unsigned long long ticks[4] = {0};
    snprintf(path, sizeof path, "/proc/%.16s/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    const char *rest = strrchr(text, ')'); /* the name before it may hold anything */
    *out = (Process){.pid = atoi(pid)};
    if (!rest || sscanf(rest, ") %*c %d %*d %*d %*d %*d %lu %*u %*u %*u %*u %llu %llu %llu %llu",
                        &out->parent, &flags, &ticks[0], &ticks[1], &ticks[2], &ticks[3]) != 6)
        return false;
    out->of_kernel = (flags & KERNEL_THREAD) != 0;
    out->busy_s =
        (double)(ticks[0] + ticks[1] + ticks[2] + ticks[3]) / (double)sysconf(_SC_CLK_TCK);
    return true;
}

static const Process *find_process(const Process *processes, int n, int pid) {
    for (int i = 0; i < n; i++) {
        if (processes[i].pid == pid)
            return &processes[i];
    }
    return NULL;
}

/* Is it this program or does it descend from it? */
static bool is_own(const Process *processes, int n, const Process *process) {
    for (; process; process = find_process(processes, n, process->parent)) {
        if (process->pid == bench.pid)
            return true;
    }
    return false;
}

/* Processor time of all other processes so far. What the kernel does on its own is left out: it is
 * mostly network traffic, which may be the program's. */
static double others_busy_s(void) {
    static Process processes[MAX_PROCESSES];
    int n = 0;
    double busy_s = 0;
    DIR *folder = opendir("/proc");
    if (!folder)
        bench_die("reading /proc");
    for (struct dirent *entry = readdir(folder); entry && n < MAX_PROCESSES;
         entry = readdir(folder)) {
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
            read_process(entry->d_name, &processes[n]))
            n++;
    }
    closedir(folder);
    for (int i = 0; i < n; i++) {
        if (!processes[i].of_kernel && !is_own(processes, n, &processes[i]))
            busy_s += processes[i].busy_s;
    }
    return busy_s;
}

static double seconds(const char *name, double otherwise) {
    const char *text = getenv(name);
    return text ? strtod(text, NULL) : otherwise;
}

static double wall_s(void) {
    return (double)clock_now_ns() * 1e-9;
}

static void look(BenchNoise *noise) {
    *noise = (BenchNoise){.wall_s = wall_s(), .others_s = others_busy_s()};
}

/* Until nothing else has run for a moment, or the program's patience is at an end. */
static void wait_for_quiet(void) {
    const double patience_s = seconds("BENCH_PATIENCE_S", PATIENCE_S);
    while (*bench.waited_s < patience_s) {
        BenchNoise noise;
        look(&noise);
        clock_sleep_until(clock_deadline_ms(LOOK_MS));
        if (bench_noise_end(&noise) <= quiet_share)
            return;
        *bench.waited_s += LOOK_MS / 1000.0;
    }
}

void bench_noise_begin(BenchNoise *noise) {
    wait_for_quiet();
    look(noise);
}

double bench_noise_end(const BenchNoise *noise) {
    BenchNoise now;
    look(&now);
    double others = now.others_s - noise->others_s;
    double wall = now.wall_s - noise->wall_s;
    return others > 0 && wall > 0 ? others / wall : 0;
}

void bench_busy_begin(BenchNoise *noise) {
    *noise = (BenchNoise){.wall_s = wall_s(), .busy_s = machine_busy_s()};
}

double bench_busy_end(const BenchNoise *noise) {
    double wall = (wall_s() - noise->wall_s) * (double)sysconf(_SC_NPROCESSORS_ONLN);
    return wall > 0 ? (machine_busy_s() - noise->busy_s) / wall : 0;
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
    const double now_s = wall_s();
    if (rounds->n == 0)
        rounds->begin_s = now_s;
    if (rounds->n >= ENOUGH_QUIET && now_s - rounds->begin_s > seconds("BENCH_LIMIT_S", LIMIT_S))
        return true;
    return rounds->n >= MAX_ROUNDS_FACTOR * wanted || rounds->n == BENCH_MAX_ROUNDS ||
           count_quiet(rounds, values) >= wanted;
}

int bench_quiet_rounds(const BenchRounds *rounds) {
    double values[BENCH_MAX_ROUNDS];
    return count_quiet(rounds, values);
}

double bench_quiet_median(const BenchRounds *rounds) {
    double values[BENCH_MAX_ROUNDS];
    int n = count_quiet(rounds, values);
    return n >= ENOUGH_QUIET ? bench_median(values, n) : bench_median(rounds->value, rounds->n);
}

double bench_conclude(const BenchRounds *rounds, const char *name) {
    bench_note("%s: %d of %d rounds on a quiet machine, others took %.0f %% of a core (median)",
               name, bench_quiet_rounds(rounds), rounds->n,
               bench_median(rounds->noise, rounds->n) * 100);
    return bench_quiet_median(rounds);
}

/* What the benchmarks share: figures, medians, and how busy the rest of the machine was.
 *
 * A figure is a number with a goal, and most are ratios of two sides measured in one run, in turns,
 * so that both see the same machine. It is printed as one line on stdout,
 *
 *     pipeline/two-stages 1.78 x goal >= 1.7 ok        (or MISSED)
 *
 * or, with --json, {"name": "pipeline/two-stages", "value": 1.78, "unit": "x", "at_least": true,
 * "goal": 1.7, "ok": true}. What explains a figure goes to stderr, indented. */
#ifndef FUNCPIPE_TESTS_BENCH_H
#define FUNCPIPE_TESTS_BENCH_H

#include <stdbool.h>
#include <stdint.h>

enum { BENCH_MAX_ROUNDS = 64 };

/* Options and names from the command line; a program's exit status is bench_end(). */
void bench_begin(int argc, char **argv);
int bench_end(void); /* 0: all goals held, 1: one was missed */
/* A child printed figures and ended with bench_end()'s status (waitpid's): they count here, too. */
void bench_child_ended(int status);
/* Was this figure asked for? Names and their beginnings up to a '/' count; none: all. */
bool bench_wanted(const char *name);
void bench_print(const char *name, double value, int digits, const char *unit, bool at_least,
                 double goal);
/* A figure without a goal. */
void bench_show(const char *name, double value, int digits, const char *unit);
void bench_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Print the error note and end with status 2: nothing was measured. */
void bench_die(const char *doing) __attribute__((noreturn));
/* bench_die when a call failed. */
void bench_must(int rc, const char *doing);

double bench_median(const double *values, int n);

/* Processor time that other processes took meanwhile, as a share of one processor: those that can
 * be seen and do not descend from this program, with their children; not the kernel's own. It
 * begins at a quiet moment; a program waits BENCH_PATIENCE_S seconds (60) for such in all. */
typedef struct BenchNoise {
    double wall_s, busy_s, others_s;
} BenchNoise;
void bench_noise_begin(BenchNoise *noise);
double bench_noise_end(const BenchNoise *noise);

/* How busy all processors are, whoever keeps them so: from now on (begin), 0 to 1 (end). */
void bench_busy_begin(BenchNoise *noise);
double bench_busy_end(const BenchNoise *noise);

/* Rounds of a comparison, each with both sides and its noise. */
typedef struct BenchRounds {
    int n;
    double begin_s;
    double value[BENCH_MAX_ROUNDS], noise[BENCH_MAX_ROUNDS];
} BenchRounds;
void bench_round(BenchRounds *rounds, double value, double noise);
/* Enough: `wanted` quiet rounds, or three times as many as wanted in all, or at least three after
 * BENCH_LIMIT_S seconds (90). */
bool bench_enough(BenchRounds *rounds, int wanted);
/* Median of the quiet rounds; of all where fewer than three were quiet. */
double bench_quiet_median(const BenchRounds *rounds);
int bench_quiet_rounds(const BenchRounds *rounds);
/* The same median; says how many rounds were quiet. */
double bench_conclude(const BenchRounds *rounds, const char *name);

#endif

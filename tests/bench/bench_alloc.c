/* Nothing is allocated and nothing is logged inside a step.
 *
 *     worker/no-allocation  own allocations a step on the compute, fetch and publish threads of
 * both workers of a two-stage job: a long run's count less a short one's, over the steps between
 *     worker/no-log         the same for lines on stderr and stdout
 *
 * Only shown, on stderr: what oneDNN (the argument table of every execute call) and libgomp (a team
 * of one thread) allocate, and the heartbeat and save threads, which are no part of a step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/err.h"
#include "tests/bench/bench.h"
#include "tests/bench/work.h"

enum { SHORT_STEPS = 5, LONG_STEPS = 25, MAX_ROWS = 64, N_STAGES = 2 };

typedef struct Counts {
    int n;
    char name[MAX_ROWS][32], owner[MAX_ROWS][32];
    long long count[MAX_ROWS];
    long long lines;
} Counts;

static void read_counts(const Work *work, int stage, Counts *counts) {
    char path[128];
    Buf log;
    memset(counts, 0, sizeof *counts);
    snprintf(path, sizeof path, "%s/allocations-%d", work->folder, stage);
    FILE *file = fopen(path, "re");
    if (!file)
        bench_must(err_set(ERR_IO, "'%s' is missing", path), "counting");
    while (counts->n < MAX_ROWS && fscanf(file, "%31s %31s %lld", counts->name[counts->n],
                                          counts->owner[counts->n], &counts->count[counts->n]) == 3)
        counts->n++;
    fclose(file);
    if (counts->n == 0)
        bench_must(err_set(ERR_FORMAT, "'%s' holds no counts", path), "counting");
    snprintf(path, sizeof path, "%s/log-%d", work->folder, stage);
    buf_init(&log, 1 << 20);
    bench_must(buf_read_file(&log, path, 1 << 20), "reading the log");
    for (size_t i = 0; i < log.bytes; i++)
        counts->lines += log.data[i] == '\n';
    buf_done(&log);
}

static void run(Work *work, int64_t n_steps, Counts *counts) {
    work_steps(work, n_steps);
    work_run(work);
    for (int s = 0; s < N_STAGES; s++)
        read_counts(work, s, &counts[s]);
}

static long long earlier(const Counts *counts, const char *name, const char *owner) {
    for (int i = 0; i < counts->n; i++) {
        if (strcmp(counts->name[i], name) == 0 && strcmp(counts->owner[i], owner) == 0)
            return counts->count[i];
    }
    return 0;
}

static bool in_step(const char *thread) {
    return strcmp(thread, "pulse") != 0 && strcmp(thread, "save") != 0;
}

/* Own allocations on the threads of a step, of all steps between the two runs. */
static long long compare(const Counts *few, const Counts *many, int stage) {
    long long own = 0;
    for (int i = 0; i < many->n; i++) {
        long long more = many->count[i] - earlier(few, many->name[i], many->owner[i]);
        if (more != 0)
            bench_note("stage %d, thread %s, %s: %.2f allocations a step", stage, many->name[i],
                       many->owner[i], (double)more / (LONG_STEPS - SHORT_STEPS));
        if (in_step(many->name[i]) && strcmp(many->owner[i], "own") == 0)
            own += llabs(more);
    }
    return own;
}

int main(int argc, char **argv) {
    bench_begin(argc, argv);
    Work work;
    Counts few[N_STAGES];
    Counts many[N_STAGES];
    long long allocations = 0;
    long long lines = 0;
    work_init_zoo(&work, "cnn", NULL, 640);
    snprintf(work.preload, sizeof work.preload, "%s", FUNCPIPE_BENCH_PRELOAD);
    work.untraced = true;
    work_batch(&work, 64, 8);
    work_cut(&work, (int32_t[]){12, work.order.model.n_layers}, N_STAGES);
    run(&work, SHORT_STEPS, few);
    run(&work, LONG_STEPS, many);
    for (int s = 0; s < N_STAGES; s++) {
        lines += llabs(many[s].lines - few[s].lines);
        allocations += compare(&few[s], &many[s], s);
    }
    bench_print("worker/no-allocation", (double)allocations / (LONG_STEPS - SHORT_STEPS), 2,
                "allocations/step", false, 0);
    bench_print("worker/no-log", (double)lines / (LONG_STEPS - SHORT_STEPS), 2, "lines/step", false,
                0);
    work_done(&work);
    return bench_end();
}

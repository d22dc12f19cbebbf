/* What it costs to start a worker.
 *
 *     worker/start         ms from starting the process until its first instruction begins: the
 *                          zoo's default convolutional network, weights made from the seed
 *     worker/start-memory  MB resident with the device open and no model (peak)
 *
 * Beside it, on stderr, what `import torch` takes of both. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "tests/bench/bench.h"
#include "tests/bench/work.h"

enum { N_ROUNDS = 15, N_TORCH = 3 };

extern char **environ;

typedef struct Run {
    int status;
    double ms, mb;
} Run;

static Run run(char *const argv[]) {
    Run result = {.status = -1};
    pid_t pid = -1;
    struct rusage usage;
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    int64_t begin = clock_now_ns();
    int errnum = posix_spawn(&pid, argv[0], &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (errnum)
        return result;
    while (wait4(pid, &result.status, 0, &usage) < 0 && errno == EINTR) {
    }
    result.ms = (double)(clock_now_ns() - begin) / 1e6;
    result.mb = (double)usage.ru_maxrss * 1024 / 1e6;
    return result;
}

static double first_instruction_ms(Work *work) {
    WorkRecord *records = NULL;
    work_run(work);
    int32_t n = work_trace(work, 0, &records);
    if (n == 0)
        bench_must(err_set(ERR_INTERNAL, "the trace is empty"), "reading it");
    int64_t first = records[0].start_ns;
    for (int32_t i = 1; i < n; i++)
        first = records[i].start_ns < first ? records[i].start_ns : first;
    free(records);
    return (double)(first - work->spawn_ns) / 1e6;
}

static void start(void) {
    Work work;
    BenchRounds rounds = {0};
    work_init_zoo(&work, "cnn", NULL, 640);
    (void)first_instruction_ms(&work); /* from here on the files are in memory */
    while (!bench_enough(&rounds, N_ROUNDS)) {
        BenchNoise noise;
        bench_noise_begin(&noise);
        double ms = first_instruction_ms(&work);
        bench_round(&rounds, ms, bench_noise_end(&noise));
    }
    bench_print("worker/start", bench_conclude(&rounds, "worker/start"), 1, "ms", false, 50);
    work_done(&work);
}

static void memory(void) {
    char *argv[] = {(char *)work_worker_path(), "--isa", NULL};
    double mb[N_ROUNDS];
    for (int i = 0; i < N_ROUNDS; i++) {
        Run result = run(argv);
        if (result.status != 0)
            bench_must(err_set(ERR_WORKER, "%s --isa failed", argv[0]), "starting it");
        mb[i] = result.mb;
    }
    bench_print("worker/start-memory", bench_median(mb, N_ROUNDS), 1, "MB", false, 25);
}

static void torch(void) {
    char *argv[] = {"/usr/bin/python3", "-c", "import torch", NULL};
    double ms[N_TORCH];
    double mb[N_TORCH];
    for (int i = 0; i < N_TORCH; i++) {
        Run result = run(argv);
        if (result.status != 0) {
            bench_note("beside it: python3-torch is not installed");
            return;
        }
        ms[i] = result.ms;
        mb[i] = result.mb;
    }
    bench_note("beside it: python3 -c 'import torch' %.0f ms, %.0f MB", bench_median(ms, N_TORCH),
               bench_median(mb, N_TORCH));
}

int main(int argc, char **argv) {
    bench_begin(argc, argv);
    if (bench_wanted("worker/start"))
        start();
    if (bench_wanted("worker/start-memory"))
        memory();
    torch();
    return bench_end();
}

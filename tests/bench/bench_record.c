/* What the interpreter's records of its instructions cost.
 *
 *     worker/record-cost  % that a step takes longer with records than without: a program of one
 * stage with 16 micro-batches, whose instructions each do 50 us of arithmetic, less than any real
 * one; in processor time of the compute thread
 *
 * On stderr: what an instruction costs that does nothing. */
#include <time.h>

#include "coordinator/schedule.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/stage.h"
#include "tests/bench/bench.h"
#include "worker/vm.h"

enum { N_MICRO = 16, N_STEPS = 10, N_RECORDS = 1 << 10, N_PAIRS = 50, N_ROUNDS = 4, N_LAYERS = 4 };
enum { WORK_TURNS = 16384, WORK_US = 50 };

typedef struct Host {
    int64_t n_turns;
    volatile uint32_t sink;
} Host;

static int run_instr(void *ctx, const Instr *instr, int64_t step, int64_t *bytes) {
    Host *host = ctx;
    uint32_t x = (uint32_t)step + (uint32_t)instr->micro + 1;
    for (int64_t i = 0; i < host->n_turns; i++)
        x = x * 1664525u + 1013904223u;
    host->sink = x;
    *bytes += 1;
    return 0;
}

/* Turns of the loop that take WORK_US. */
static int64_t calibrate(Host *host) {
    const Instr instr = {0};
    double best_us = 1e9;
    int64_t bytes = 0;
    host->n_turns = WORK_TURNS;
    for (int i = 0; i < 50; i++) {
        int64_t begin = clock_now_ns();
        run_instr(host, &instr, 0, &bytes);
        double us = (double)(clock_now_ns() - begin) / 1e3;
        best_us = us < best_us ? us : best_us;
    }
    return (int64_t)(WORK_TURNS * WORK_US / best_us);
}

static void make_program(Program *program) {
    Model model;
    const Shape shape = shape_1d(4);
    int32_t at = MODEL_VALUE_INPUT;
    LayerAttr attr = model_attr_default(LAYER_LINEAR);
    attr.features = 4;
    bench_must(model_init(&model, "chain", DTYPE_F32, &shape, DTYPE_I32, &(Shape){0}), "a model");
    for (int i = 0; i < N_LAYERS - 1; i++) {
        char name[8] = {'f', 'c', (char)('0' + i), '\0'};
        at = model_add(&model, LAYER_LINEAR, name, &at, 1, &attr, NULL);
        bench_must(at, "a model");
    }
    at = model_add(&model, LAYER_CROSS_ENTROPY, "loss", (int32_t[]){at, MODEL_VALUE_TARGET}, 2,
                   NULL, NULL);
    bench_must(at < 0 ? at : model_check(&model), "a model");
    Stage stage;
    const ScheduleSpec spec = {.name = "1f1b", .hoist = 1};
    bench_must(stage_init(&stage, &model, &model.n_layers, 1, 0), "a stage");
    bench_must(schedule_build(&spec, &stage, 0, 1, N_MICRO, program), "a program");
    stage_done(&stage);
    model_done(&model);
}

static double thread_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static double step_us(Vm *vm) {
    double begin = thread_us();
    bench_must(vm_run(vm, 0, N_STEPS), "running the program");
    return (thread_us() - begin) / N_STEPS;
}

/* Medians of the steps' times, and of the ratios of neighbours. */
static double compare(Vm *const vms[2], int n_pairs, double *out_us) {
    static double us[2][N_PAIRS];
    static double ratios[N_PAIRS];
    for (int i = 0; i < n_pairs; i++) {
        int first = i % 2;
        us[first][i] = step_us(vms[first]);
        us[!first][i] = step_us(vms[!first]);
        ratios[i] = us[1][i] / us[0][i];
    }
    out_us[0] = bench_median(us[0], n_pairs);
    out_us[1] = bench_median(us[1], n_pairs);
    return bench_median(ratios, n_pairs);
}

int main(int argc, char **argv) {
    static const char name[] = "worker/record-cost";
    BenchRounds rounds = {0};
    bench_begin(argc, argv);
    Host host = {0};
    const VmHost table = {.ctx = &host, .run = run_instr};
    Program program;
    Vm *vms[2];
    double us[2];
    make_program(&program);
    const int32_t n = program.n_instrs;
    bench_must(vm_open(&program, &table, 0, &vms[0]), "the interpreter");
    bench_must(vm_open(&program, &table, N_RECORDS, &vms[1]), "the interpreter");
    (void)compare(vms, N_PAIRS / 2, us);
    (void)compare(vms, N_PAIRS / 2, us);
    bench_note("an instruction that does nothing: %.0f ns, with records %.0f ns", us[0] * 1e3 / n,
               us[1] * 1e3 / n);
    host.n_turns = calibrate(&host);
    while (!bench_enough(&rounds, N_ROUNDS)) {
        BenchNoise noise;
        bench_noise_begin(&noise);
        const double ratio = compare(vms, N_PAIRS, us);
        bench_round(&rounds, (ratio - 1) * 100, bench_noise_end(&noise));
    }
    const double percent = bench_conclude(&rounds, name);
    bench_note("a step of %d instructions: %.1f us, with records %.1f us", n, us[0], us[1]);
    bench_print(name, percent, 2, "%", false, 1);
    vm_close(vms[0]);
    vm_close(vms[1]);
    program_done(&program);
    return bench_end();
}

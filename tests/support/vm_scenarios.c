#include "tests/support/vm_scenarios.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "tests/support/vm_host.h"

#define VM_SCENARIO_ROW(name) {#name, vm_##name},
static const Scenario rows[] = {VM_SCENARIOS(VM_SCENARIO_ROW)};
#undef VM_SCENARIO_ROW
const ScenarioTable vm_scenarios = {"vm", rows, sizeof rows / sizeof rows[0]};

enum { N_STEPS = 4 };

typedef struct Bench { /* a program, a host that watches it and the interpreter */
    VmHostProgram program;
    VmWatch watch;
    Vm *vm;
} Bench;

static int bench_open(Bench *bench, uint64_t seed, int32_t n_records, char *why, size_t why_bytes) {
    vm_watch_init(&bench->watch, &bench->program.program, seed);
    VmHost host = vm_watch_host(&bench->watch);
    int rc = vm_open(&bench->program.program, &host, n_records, &bench->vm);
    EXPECT(rc == 0, "vm_open: %s", err_text());
    return 0;
}

static int bench_open_two_micros(Bench *bench, char *why, size_t why_bytes) {
    vm_host_two_micros(&bench->program);
    return bench_open(bench, 1, 0, why, why_bytes);
}

static void bench_close(Bench *bench) {
    vm_close(bench->vm);
    vm_watch_done(&bench->watch);
}

/* Run, and check what must hold after any run. *out_rc = its result. */
static int run(Bench *bench, int64_t first_step, int64_t end_step, int *out_rc, char *why,
               size_t why_bytes) {
    vm_watch_begin(&bench->watch, first_step);
    *out_rc = vm_run(bench->vm, first_step, end_step);
    EXPECT(bench->watch.violation[0] == '\0', "%s", bench->watch.violation);
    EXPECT(!bench->watch.interrupted, "the host stayed interrupted");
    EXPECT(*out_rc != 0 || bench->watch.n_interrupts == 0, "a full run was interrupted");
    return 0;
}

/* Everything runs from first_step on. */
static int run_well(Bench *bench, int64_t first_step, int64_t end_step, char *why,
                    size_t why_bytes) {
    int rc;
    TRY(run(bench, first_step, end_step, &rc, why, why_bytes));
    EXPECT(rc == 0, "the run ended with %d: %s", rc, err_text());
    int64_t n_done = 0;
    for (int q = 0; q < QUEUE_N; q++)
        n_done += bench->watch.n_done[q];
    int64_t expected = (end_step - first_step) * bench->program.program.n_instrs;
    EXPECT(n_done == expected, "%" PRId64 " of %" PRId64 " instructions ran", n_done, expected);
    EXPECT(bench->watch.n_step_ends == end_step - first_step, "%" PRId64 " steps ended",
           bench->watch.n_step_ends);
    return 0;
}

/* vm_run on a thread of its own. */
typedef struct Runner {
    Bench *bench;
    int64_t first_step, end_step;
    pthread_t thread;
    int rc;
    ErrNote note;
} Runner;

static void *runner_main(void *arg) {
    Runner *runner = arg;
    vm_watch_begin(&runner->bench->watch, runner->first_step);
    runner->rc = vm_run(runner->bench->vm, runner->first_step, runner->end_step);
    err_copy(&runner->note);
    return NULL;
}

static int start(Runner *runner, char *why, size_t why_bytes) {
    EXPECT(pthread_create(&runner->thread, NULL, runner_main, runner) == 0, "no thread");
    return 0;
}

static int join(Runner *runner, char *why, size_t why_bytes) {
    pthread_join(runner->thread, NULL);
    EXPECT(runner->bench->watch.violation[0] == '\0', "%s", runner->bench->watch.violation);
    EXPECT(!runner->bench->watch.interrupted, "the host stayed interrupted");
    return 0;
}

/* ---- order ---- */

int vm_dependencies_hold_in_random_programs(char *why, size_t why_bytes) {
    for (uint64_t seed = 1; seed <= 30; seed++) {
        Bench bench;
        vm_host_random(&bench.program, seed, 4 + (int)(seed % 5) * 11);
        TRY(bench_open(&bench, seed, 0, why, why_bytes));
        bench.watch.max_sleep_us = seed % 3 == 0 ? 0 : 150;
        TRY(run_well(&bench, 5, 11, why, why_bytes));
        bench_close(&bench);
    }
    return 0;
}

int vm_every_step_runs_once_in_order(char *why, size_t why_bytes) {
    Bench bench;
    TRY(bench_open_two_micros(&bench, why, why_bytes));
    TRY(run_well(&bench, 0, 200, why, why_bytes));
    TRY(run_well(&bench, 200, 200, why, why_bytes)); /* nothing to do */
    bench.watch.max_sleep_us = 100;
    TRY(run_well(&bench, 7, 30, why, why_bytes)); /* steps are only numbers */
    bench_close(&bench);
    return 0;
}

/* ---- errors ---- */

int vm_error_at_every_instruction_ends_the_run(char *why, size_t why_bytes) {
    Bench bench;
    TRY(bench_open_two_micros(&bench, why, why_bytes));
    bench.watch.max_sleep_us = 20;
    for (int32_t instr = 0; instr < VM_HOST_TWO_MICROS; instr++) {
        for (int64_t step = 0; step < N_STEPS; step++) {
            int rc;
            char text[100];
            snprintf(text, sizeof text, "instruction %d of step %" PRId64 " failed", instr, step);
            bench.watch.error = (VmHostSpot){instr, step};
            err_set(ERR_INTERNAL, "an older note");
            TRY(run(&bench, 0, N_STEPS, &rc, why, why_bytes));
            EXPECT(rc == ERR_IO && strcmp(err_text(), text) == 0, "%s: got %d, %s", text, rc,
                   err_text());
            EXPECT(bench.watch.n_interrupts == 1, "%d interrupts", bench.watch.n_interrupts);
            bench.watch.error.instr = -1;
            TRY(run_well(&bench, step, step + 2, why, why_bytes));
        }
    }
    bench_close(&bench);
    return 0;
}

/* The fetch thread waits for what never comes while another thread fails. */
int vm_error_wakes_a_waiting_fetch(char *why, size_t why_bytes) {
    static const int32_t instrs[] = {VM_HOST_R, VM_HOST_B1 + 1, VM_HOST_B0};
    Bench bench;
    TRY(bench_open_two_micros(&bench, why, why_bytes));
    for (size_t i = 0; i < sizeof instrs / sizeof instrs[0]; i++) {
        int rc;
        bench.watch.error = (VmHostSpot){instrs[i], 1};
        bench.watch.fetchable_step = 1;
        bench.watch.max_sleep_us = 500;
        TRY(run(&bench, 0, N_STEPS, &rc, why, why_bytes));
        EXPECT(rc == ERR_IO, "got %d, %s", rc, err_text());
        bench.watch.error.instr = -1;
        bench.watch.fetchable_step = INT64_MAX;
        TRY(run_well(&bench, 1, N_STEPS, why, why_bytes));
    }
    bench_close(&bench);
    return 0;
}

/* The gate's cancellation comes after the error that interrupted it, and must not replace it. */
int vm_first_of_two_errors_wins(char *why, size_t why_bytes) {
    Bench bench;
    int rc;
    TRY(bench_open_two_micros(&bench, why, why_bytes));
    bench.watch.gate = (VmHostSpot){VM_HOST_B1, 2};      /* compute waits */
    bench.watch.error = (VmHostSpot){VM_HOST_B0 + 1, 2}; /* publish fails */
    for (int i = 0; i < 20; i++) {
        bench.watch.max_sleep_us = 10 * i;
        TRY(run(&bench, 0, N_STEPS, &rc, why, why_bytes));
        EXPECT(rc == ERR_IO && strstr(err_text(), "instruction 8 of step 2"), "got %d, %s", rc,
               err_text());
    }
    bench_close(&bench);
    return 0;
}

int vm_error_at_the_end_of_a_step(char *why, size_t why_bytes) {
    Bench bench;
    TRY(bench_open_two_micros(&bench, why, why_bytes));
    for (int64_t step = 0; step < N_STEPS; step++) {
        int rc;
        bench.watch.step_end_error = step;
        bench.watch.fetchable_step = step;
        TRY(run(&bench, 0, N_STEPS, &rc, why, why_bytes));
        EXPECT(rc == ERR_DIVERGED, "got %d, %s", rc, err_text());
        EXPECT(bench.watch.n_step_ends == step + 1, "%" PRId64 " ends", bench.watch.n_step_ends);
    }
    bench_close(&bench);
    return 0;
}

int vm_thread_that_cannot_start(char *why, size_t why_bytes) {
    Bench bench;
    TRY(bench_open_two_micros(&bench, why, why_bytes));
    for (int q = QUEUE_FETCH; q <= QUEUE_PUBLISH; q++) {
        int rc;
        bench.watch.thread_start_error = (Queue)q;
        TRY(run(&bench, 0, N_STEPS, &rc, why, why_bytes));
        EXPECT(rc == ERR_UNSUPPORTED, "got %d, %s", rc, err_text());
    }
    bench.watch.thread_start_error = QUEUE_N;
    TRY(run_well(&bench, 0, N_STEPS, why, why_bytes));
    bench_close(&bench);
    return 0;
}

/* ---- abort ---- */

int vm_abort_in_the_middle(char *why, size_t why_bytes) {
    Bench bench;
    TRY(bench_open_two_micros(&bench, why, why_bytes));
    for (int32_t instr = 0; instr < VM_HOST_TWO_MICROS; instr++) {
        Runner runner = {.bench = &bench, .end_step = N_STEPS};
        bench.watch.gate = (VmHostSpot){instr, 1};
        TRY(start(&runner, why, why_bytes));
        EXPECT(vm_watch_await_gate(&bench.watch), "instruction %d did not begin", instr);
        vm_abort(bench.vm, ERR_SUPERSEDED, "attempt 2 has begun");
        TRY(join(&runner, why, why_bytes));
        EXPECT(runner.rc == ERR_SUPERSEDED && strcmp(runner.note.text, "attempt 2 has begun") == 0,
               "got %d, %s", runner.rc, runner.note.text);
        bench.watch.gate.instr = -1;
        TRY(run_well(&bench, 1, N_STEPS, why, why_bytes));
    }
    bench_close(&bench);
    return 0;
}

int vm_abort_before_a_run_ends_the_next(char *why, size_t why_bytes) {
    Bench bench;
    int rc;
    TRY(bench_open_two_micros(&bench, why, why_bytes));
    vm_abort(bench.vm, ERR_SUPERSEDED, "first");
    vm_abort(bench.vm, ERR_CANCELLED, "second");
    TRY(run(&bench, 0, N_STEPS, &rc, why, why_bytes));
    EXPECT(rc == ERR_SUPERSEDED && strcmp(err_text(), "first") == 0, "got %d, %s", rc, err_text());
    EXPECT(bench.watch.n_done[QUEUE_FETCH] == 0, "something ran");
    TRY(run_well(&bench, 0, N_STEPS, why, why_bytes));
    bench_close(&bench);
    return 0;
}

/* Against races: no matter when it comes, the run ends and the next one works. */
int vm_abort_at_any_moment(char *why, size_t why_bytes) {
    Bench bench;
    TRY(bench_open_two_micros(&bench, why, why_bytes));
    bench.watch.fetchable_step = 30;
    for (int i = 0; i < 300; i++) {
        Runner runner = {.bench = &bench, .end_step = 32};
        bench.watch.end_at_step = i % 2 ? 30 : -1;
        TRY(start(&runner, why, why_bytes));
        clock_sleep_until(clock_now_ns() + i * 5 * CLOCK_NS_PER_US);
        vm_abort(bench.vm, ERR_SUPERSEDED, "any moment");
        TRY(join(&runner, why, why_bytes));
        EXPECT(runner.rc == ERR_SUPERSEDED || (runner.rc == 1 && i % 2), "got %d, %s", runner.rc,
               runner.note.text);
        if (runner.rc == 1) { /* the abort waits for the next run */
            int rc;
            TRY(run(&bench, 0, 1, &rc, why, why_bytes));
            EXPECT(rc == ERR_SUPERSEDED, "got %d", rc);
        }
    }
    bench.watch.fetchable_step = INT64_MAX;
    bench.watch.end_at_step = -1;
    TRY(run_well(&bench, 0, N_STEPS, why, why_bytes));
    bench_close(&bench);
    return 0;
}

/* ---- early end ---- */

int vm_early_end_at_every_step(char *why, size_t why_bytes) {
    enum { END = 8 };
    int n_waited = 0;
    Bench bench;
    TRY(bench_open_two_micros(&bench, why, why_bytes));
    for (int64_t step = 0; step < END; step++) {
        for (int waiting = 0; waiting < 2; waiting++) {
            int rc;
            bench.watch.max_sleep_us = 50 * (step % 3);
            bench.watch.end_at_step = step;
            bench.watch.fetchable_step = waiting ? step : INT64_MAX;
            bench.watch.end_awaits_fetch = waiting && step % 2 && step + 1 < END;
            TRY(run(&bench, 0, END, &rc, why, why_bytes));
            EXPECT(rc == 1, "got %d, %s", rc, err_text());
            int64_t n = step + 1;
            EXPECT(bench.watch.n_done[QUEUE_COMPUTE] == 6 * n, "compute went on");
            EXPECT(bench.watch.n_done[QUEUE_PUBLISH] == 4 * n, "%" PRId64 " publications",
                   bench.watch.n_done[QUEUE_PUBLISH]);
            EXPECT(bench.watch.n_done[QUEUE_FETCH] >= 4 * n, "fetches are missing");
            EXPECT(!bench.watch.n_interrupts || bench.watch.published_at_interrupt == 4 * n,
                   "interrupted before the publications were done");
            EXPECT(!waiting || bench.watch.n_interrupts == bench.watch.fetch_waited,
                   "%d interrupts", bench.watch.n_interrupts);
            n_waited += bench.watch.fetch_waited;
            bench.watch.end_at_step = -1;
            bench.watch.fetchable_step = INT64_MAX;
            TRY(run_well(&bench, step + 1, END + 2, why, why_bytes));
        }
    }
    EXPECT(n_waited > 0, "no fetch ever ran ahead");
    bench_close(&bench);
    return 0;
}

/* The last publication is held up; the fetch of the next step must wait on meanwhile. */
int vm_early_end_waits_for_publications(char *why, size_t why_bytes) {
    Bench bench;
    TRY(bench_open_two_micros(&bench, why, why_bytes));
    Runner runner = {.bench = &bench, .end_step = N_STEPS};
    bench.watch.gate = (VmHostSpot){VM_HOST_B1 + 1, 1};
    bench.watch.end_at_step = bench.watch.fetchable_step = 1;
    bench.watch.end_awaits_fetch = true;
    TRY(start(&runner, why, why_bytes));
    EXPECT(vm_watch_await_gate(&bench.watch), "the last publication did not begin");
    EXPECT(vm_watch_await_done(&bench.watch, QUEUE_COMPUTE, 12), "compute did not end");
    clock_sleep_until(clock_deadline_ms(30));
    vm_watch_open_gate(&bench.watch);
    TRY(join(&runner, why, why_bytes));
    EXPECT(runner.rc == 1, "got %d, %s", runner.rc, runner.note.text);
    EXPECT(bench.watch.published_at_interrupt == 8, "interrupted after %" PRId64 " publications",
           bench.watch.published_at_interrupt);
    bench_close(&bench);
    return 0;
}

int vm_early_end_with_a_failing_publication(char *why, size_t why_bytes) {
    Bench bench;
    int rc;
    TRY(bench_open_two_micros(&bench, why, why_bytes));
    bench.watch.end_at_step = bench.watch.fetchable_step = 2;
    bench.watch.error = (VmHostSpot){VM_HOST_B1 + 1, 2};
    TRY(run(&bench, 0, N_STEPS, &rc, why, why_bytes));
    EXPECT(rc == ERR_IO, "got %d, %s", rc, err_text());
    bench_close(&bench);
    return 0;
}

/* ---- running ahead ---- */

int vm_fetch_runs_ahead_as_far_as_slots_allow(char *why, size_t why_bytes) {
    /* While compute stands at `instr` of step 1, the slots let this many fetches happen: */
    static const struct {
        int32_t instr;
        int64_t n_fetches;
    } cases[] = {{1, 8}, {VM_HOST_B0, 8}, {VM_HOST_B1, 9}, {VM_HOST_R, 12}, {VM_HOST_U, 12}};
    Bench bench;
    TRY(bench_open_two_micros(&bench, why, why_bytes));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Runner runner = {.bench = &bench, .end_step = N_STEPS};
        bench.watch.gate = (VmHostSpot){cases[i].instr, 1};
        TRY(start(&runner, why, why_bytes));
        EXPECT(vm_watch_await_gate(&bench.watch), "compute did not come to the gate");
        EXPECT(vm_watch_await_done(&bench.watch, QUEUE_FETCH, cases[i].n_fetches),
               "fewer than %" PRId64 " fetches", cases[i].n_fetches);
        clock_sleep_until(clock_deadline_ms(30));
        pthread_mutex_lock(&bench.watch.mutex);
        int64_t n = bench.watch.n_done[QUEUE_FETCH];
        pthread_mutex_unlock(&bench.watch.mutex);
        EXPECT(n == cases[i].n_fetches, "%" PRId64 " fetches with compute at %d", n,
               cases[i].instr);
        vm_watch_open_gate(&bench.watch);
        TRY(join(&runner, why, why_bytes));
        EXPECT(runner.rc == 0, "got %d, %s", runner.rc, runner.note.text);
    }
    bench_close(&bench);
    return 0;
}

/* ---- threads, records, arguments ---- */

int vm_queues_without_instructions_have_no_thread(char *why, size_t why_bytes) {
    static const Opcode ops[] = {INSTR_FETCH_ACT, INSTR_PUBLISH_ACT, INSTR_FORWARD};
    for (int mask = 0; mask < 8; mask++) {
        Bench bench;
        vm_host_program(&bench.program);
        for (int i = 0; i < 3; i++) {
            if (mask & 1 << i)
                vm_host_add(&bench.program, ops[i], 0);
        }
        TRY(bench_open(&bench, 1, 0, why, why_bytes));
        TRY(run_well(&bench, 0, 50, why, why_bytes));
        int expected = (mask & 1) + (mask >> 1 & 1);
        EXPECT(bench.watch.n_thread_starts == expected, "%d threads for queues %d",
               bench.watch.n_thread_starts, mask);
        bench_close(&bench);
    }
    return 0;
}

int vm_records_and_totals_agree(char *why, size_t why_bytes) {
    enum { STEPS = 5, ALL = STEPS * VM_HOST_TWO_MICROS };
    Bench bench;
    VmRecord records[ALL + 1];
    VmTotals totals;
    vm_host_two_micros(&bench.program);
    TRY(bench_open(&bench, 1, ALL, why, why_bytes));
    bench.watch.max_sleep_us = 200;
    int64_t before_ns = clock_now_ns();
    TRY(run_well(&bench, 3, 3 + STEPS, why, why_bytes));
    int64_t wall_ns = clock_now_ns() - before_ns, busy_ns = 0, wait_ns = 0;
    EXPECT(vm_records(bench.vm, records, ALL + 1) == ALL, "not all are recorded");
    for (int i = 0; i < ALL; i++) {
        const VmRecord *r = &records[i];
        EXPECT(i == 0 || records[i - 1].start_ns <= r->start_ns, "not in order of start");
        EXPECT(r->start_ns <= r->end_ns && r->wait_ns >= 0 && r->bytes == 8, "record %d", i);
        EXPECT(r->queue == (int32_t)program_queue(bench.program.instrs[r->instr].op), "queue");
        busy_ns += r->queue == QUEUE_COMPUTE ? r->end_ns - r->start_ns : 0;
        wait_ns += r->queue == QUEUE_COMPUTE ? r->wait_ns : 0;
    }
    vm_totals(bench.vm, &totals);
    EXPECT(totals.busy_ns == busy_ns && totals.wait_ns == wait_ns, "totals differ from records");
    EXPECT(busy_ns + wait_ns <= wall_ns, "more time than there was");
    EXPECT(totals.n_steps == STEPS && totals.step == 2 + STEPS, "%" PRId64 " steps, at %" PRId64,
           totals.n_steps, totals.step);
    bench_close(&bench);
    return 0;
}

int vm_records_keep_the_newest(char *why, size_t why_bytes) {
    Bench bench;
    VmRecord records[16];
    vm_host_program(&bench.program);
    vm_host_add(&bench.program, INSTR_FORWARD, 0);
    TRY(bench_open(&bench, 1, 5, why, why_bytes)); /* 8 */
    EXPECT(vm_records(bench.vm, records, 16) == 0, "records of nothing");
    TRY(run_well(&bench, 0, 3, why, why_bytes));
    EXPECT(vm_records(bench.vm, records, 16) == 3 && records[0].step == 0, "of 3 steps");
    EXPECT(records[2].label == 0, "a label of nobody");
    vm_label(bench.vm, 77);
    TRY(run_well(&bench, 3, 100, why, why_bytes));
    EXPECT(vm_records(bench.vm, records, 16) == 8, "not as many as there is room for");
    EXPECT(vm_executed(bench.vm) == 100, "what is recorded no longer does not count");
    EXPECT(records[0].step == 92 && records[7].step == 99, "not the newest");
    EXPECT(records[0].label == 77 && records[7].label == 77, "not the run's label");
    EXPECT(vm_records(bench.vm, records, 2) == 2 && records[0].step == 98, "not the newest two");
    bench_close(&bench);
    return 0;
}

int vm_bad_programs_and_steps_are_refused(char *why, size_t why_bytes) {
    Bench bench;
    Vm *vm = NULL;
    TRY(bench_open_two_micros(&bench, why, why_bytes));
    Program program = bench.program.program;
    VmHost host = vm_watch_host(&bench.watch);
    EXPECT(vm_run(bench.vm, 3, 2) == ERR_ARGUMENT, "steps backwards");
    EXPECT(vm_run(bench.vm, -1, 2) == ERR_ARGUMENT, "a negative step");
    EXPECT(vm_open(&program, &host, -1, &vm) == ERR_ARGUMENT, "negative records");
    program.linked = false;
    EXPECT(vm_open(&program, &host, 0, &vm) == ERR_INTERNAL, "not linked");
    program.linked = true;
    program.n_deps--;
    EXPECT(vm_open(&program, &host, 0, &vm) == ERR_INTERNAL, "a dependency beyond the end");
    program.n_deps++;
    bench.program.deps[3].instr = VM_HOST_TWO_MICROS;
    EXPECT(vm_open(&program, &host, 0, &vm) == ERR_INTERNAL, "a dependency on nothing");
    EXPECT(!vm, "a result in spite of the error");
    vm_close(NULL);
    bench_close(&bench);
    return 0;
}

/* ---- cost ---- */

static int run_nothing(void *ctx, const Instr *instr, int64_t step, int64_t *bytes) {
    (void)ctx, (void)instr, (void)step;
    *bytes += 1;
    return 0;
}

static int measure(VmHostProgram *program, const char *what, char *why, size_t why_bytes) {
    enum { STEPS = 5000 };
    VmHost host = {.run = run_nothing};
    Vm *vm;
    int rc = vm_open(&program->program, &host, 1024, &vm);
    EXPECT(rc == 0, "%s", err_text());
    int64_t begin_ns = clock_now_ns();
    rc = vm_run(vm, 0, STEPS);
    int64_t ns = clock_now_ns() - begin_ns;
    EXPECT(rc == 0, "%s", err_text());
    fprintf(stderr, "vm: %s: %.2f us for an instruction\n", what,
            (double)ns / 1e3 / STEPS / program->program.n_instrs);
    vm_close(vm);
    return 0;
}

/* Printed, not judged: the machine may be busy. */
int vm_overhead_of_an_instruction(char *why, size_t why_bytes) {
    VmHostProgram program;
    vm_host_program(&program);
    for (int32_t i = 0; i < 20; i++) {
        vm_host_add(&program, INSTR_FORWARD, i);
        if (i > 0)
            vm_host_depend(&program, i - 1, 0);
    }
    TRY(measure(&program, "compute only", why, why_bytes));
    vm_host_two_micros(&program);
    return measure(&program, "three queues handing on every instruction", why, why_bytes);
}

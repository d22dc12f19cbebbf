/* Schedules: golden programs, and a sweep that finds no deadlock in any plan. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/schedule.h"
#include "core/err.h"
#include "tests/support/stages.h"

static ScheduleSpec spec_of(const char *name, int32_t warmup, bool recompute, int32_t hoist) {
    ScheduleSpec spec = {.warmup = warmup, .recompute = recompute, .hoist = hoist};
    snprintf(spec.name, sizeof spec.name, "%s", name);
    return spec;
}

static void expect_program(const ScheduleSpec *spec, int32_t stage, int32_t n_stages,
                           int32_t replica, int32_t replicas, int32_t n_micro,
                           const char *expected) {
    TestStage test;
    Program program;
    Buf text;
    buf_init(&text, 0);
    cr_assert(eq(int,
                 schedule_build(spec, test_stage(&test, stage, n_stages, false), replica, replicas,
                                n_micro, &program),
                 0),
              "%s", err_text());
    cr_assert(eq(int, program_format(&program, stage, &text), 0));
    cr_expect(eq(str, (char *)buf_string(&text), (char *)expected));
    cr_expect(program.linked);
    buf_done(&text);
    program_done(&program);
}

Test(schedule, golden_1f1b) {
    ScheduleSpec spec = spec_of("1f1b", 0, false, 0);
    expect_program(&spec, 0, 3, 0, 1, 4,
                   "F0 >a0 F1 >a1 F2 >a2 <g0 B0 F3 >a3 <g1 B1 <g2 B2 <g3 B3 R U");
    expect_program(&spec, 1, 3, 0, 1, 4,
                   "<a0 F0 >a0 <a1 F1 >a1 <g0 B0 >g0 <a2 F2 >a2 <g1 B1 >g1 <a3 F3 >a3 <g2 B2 >g2 "
                   "<g3 B3 >g3 R U");
    expect_program(&spec, 2, 3, 0, 1, 4,
                   "<a0 F0 B0 >g0 <a1 F1 B1 >g1 <a2 F2 B2 >g2 <a3 F3 B3 >g3 R U");
    spec.recompute = true;
    spec.hoist = 1;
    expect_program(&spec, 1, 3, 0, 1, 3,
                   "<a0 <a1 F0 >a0 F1 >a1 <g0 <a2 C0 <g1 B0 >g0 F2 >a2 C1 <g2 B1 >g1 C2 B2 >g2 R "
                   "U");
}

Test(schedule, golden_replicas) {
    ScheduleSpec spec = spec_of("1f1b", 0, false, 0);
    expect_program(&spec, 0, 3, 1, 2, 6, "F1 >a1 F3 >a3 <g1 B1 F5 >a5 <g3 B3 <g5 B5 R U");
    expect_program(&spec, 2, 3, 1, 2, 4, "<a1 F1 B1 >g1 <a3 F3 B3 >g3 R U");
    expect_program(&spec, 2, 3, 2, 3, 2, "R U"); /* nothing of its own */
}

Test(schedule, golden_gpipe) {
    ScheduleSpec spec = spec_of("gpipe", 0, false, 0);
    expect_program(&spec, 1, 2, 0, 1, 3, "<a0 F0 <a1 F1 <a2 F2 B0 >g0 B1 >g1 B2 >g2 R U");
    expect_program(&spec, 0, 1, 0, 1, 2, "F0 F1 B0 B1 R U");
}

Test(schedule, golden_evaluation) {
    ScheduleSpec spec = spec_of("1f1b", 0, true, 1);
    TestStage test;
    Program program;
    Buf text;
    buf_init(&text, 0);
    cr_assert(
        eq(int, schedule_build_eval(&spec, test_stage(&test, 1, 3, false), 1, 2, 6, &program), 0),
        "%s", err_text());
    cr_assert(eq(int, program_format(&program, 1, &text), 0));
    cr_expect(eq(str, (char *)buf_string(&text), "<a1 <a3 F1 >a1 <a5 F3 >a3 F5 >a5"));
    cr_expect(program.forward_only);
    cr_expect(eq(i32, program.n_slots, 2));
    buf_done(&text);
    program_done(&program);
}

Test(schedule, depth_goes_down_to_one) {
    for (int32_t n = 1; n < 9; n++) {
        for (int32_t s = 0; s < n; s++)
            cr_expect(eq(i32, schedule_depth(0, s, n), n - s));
        for (int32_t warmup = 1; warmup < 20; warmup++) {
            cr_expect(eq(i32, schedule_depth(warmup, 0, n), n == 1 ? 1 : warmup));
            cr_expect(eq(i32, schedule_depth(warmup, n - 1, n), 1));
            for (int32_t s = 1; s < n; s++)
                cr_expect(le(i32, schedule_depth(warmup, s, n), schedule_depth(warmup, s - 1, n)));
        }
    }
    cr_expect(eq(i32, schedule_depth(7, 1, 4), 5));
    cr_expect(eq(i32, schedule_depth(PROGRAM_MAX_MICRO, 0, STAGE_MAX), PROGRAM_MAX_MICRO));
}

Test(schedule, in_flight_is_bounded) {
    for (int32_t n = 1; n < 7; n++) {
        for (int32_t s = 0; s < n; s++) {
            for (int32_t m = 1; m < 10; m++) {
                ScheduleSpec spec = spec_of("1f1b", 0, false, 0);
                TestStage test;
                Program program;
                int32_t bound = m < n - s ? m : n - s;
                cr_assert(eq(
                    int, schedule_build(&spec, test_stage(&test, s, n, false), 0, 1, m, &program),
                    0));
                cr_expect(eq(i32, program.n_slots, bound));
                program_done(&program);
                spec = spec_of("gpipe", 0, false, 0);
                cr_assert(eq(int, schedule_build(&spec, &test.stage, 0, 1, m, &program), 0));
                cr_expect(eq(i32, program.n_slots, m));
                program_done(&program);
            }
        }
    }
}

Test(schedule, errors) {
    TestStage test;
    Program program;
    const Stage *stage = test_stage(&test, 0, 2, false);
    ScheduleSpec spec = spec_of("1f1", 0, false, 0);
    cr_expect(eq(int, schedule_build(&spec, stage, 0, 1, 4, &program), ERR_ARGUMENT));
    cr_expect(eq(str, (char *)err_text(), "unknown schedule '1f1' (did you mean '1f1b'?)"));
    spec = spec_of("zero-bubble", 0, false, 0);
    cr_expect(eq(int, schedule_build(&spec, stage, 0, 1, 4, &program), ERR_ARGUMENT));
    cr_expect(eq(str, (char *)err_text(),
                 "unknown schedule 'zero-bubble' (expected one of: 1f1b, gpipe)"));
    spec = spec_of("gpipe", -1, false, 0);
    cr_expect(eq(int, schedule_build(&spec, stage, 0, 1, 4, &program), ERR_ARGUMENT));
    spec = spec_of("gpipe", 0, false, -1);
    cr_expect(eq(int, schedule_build(&spec, stage, 0, 1, 4, &program), ERR_ARGUMENT));
    spec = spec_of("gpipe", 0, false, 0);
    cr_expect(eq(int, schedule_build(&spec, stage, 0, 1, 0, &program), ERR_ARGUMENT));
    cr_expect(eq(int, schedule_build(&spec, stage, 1, 1, 4, &program), ERR_ARGUMENT));
    cr_expect(
        eq(int, schedule_build(&spec, stage, 0, 1, PROGRAM_MAX_MICRO + 1, &program), ERR_ARGUMENT));
}

/* ---- every plan ends ---- */

enum { MAX_WORKERS = 64 };

typedef struct TestPlan {
    ScheduleSpec spec;
    int32_t n_stages, n_micro, window;
    int32_t replicas[8];
    bool skip, eval;
} TestPlan;

static void describe(const TestPlan *plan, char *buf, size_t bytes) {
    int at = snprintf(buf, bytes, "%s warmup %d recompute %d hoist %d M %d skip %d eval %d R",
                      plan->spec.name, plan->spec.warmup, plan->spec.recompute, plan->spec.hoist,
                      plan->n_micro, plan->skip, plan->eval);
    for (int32_t s = 0; s < plan->n_stages && at > 0 && (size_t)at < bytes; s++)
        at += snprintf(buf + at, bytes - (size_t)at, " %d", plan->replicas[s]);
}

static void expect_reads_back(const Program *program, int32_t stage, const char *words) {
    Program again;
    Buf text;
    Buf second;
    buf_init(&text, 0);
    buf_init(&second, 0);
    cr_assert(eq(int, program_format(program, stage, &text), 0));
    cr_assert(eq(int, program_parse("p", buf_string(&text), text.bytes, stage, &again), 0));
    cr_assert(eq(int, program_format(&again, stage, &second), 0));
    cr_expect(eq(int, strcmp(buf_string(&text), buf_string(&second)), 0), "%s", words);
    buf_done(&text);
    buf_done(&second);
    program_done(&again);
}

/* Build all workers' programs; they read back equal and get through together. */
static void expect_ends(const TestPlan *plan) {
    static Program programs[MAX_WORKERS];
    const Program *list[MAX_WORKERS];
    int32_t n = 0;
    char words[256];
    describe(plan, words, sizeof words);
    for (int32_t s = 0; s < plan->n_stages; s++) {
        TestStage test;
        const Stage *stage = test_stage(&test, s, plan->n_stages, plan->skip);
        for (int32_t r = 0; r < plan->replicas[s]; r++) {
            cr_assert(lt(i32, n, MAX_WORKERS));
            int rc = (plan->eval ? schedule_build_eval : schedule_build)(
                &plan->spec, stage, r, plan->replicas[s], plan->n_micro, &programs[n]);
            cr_assert(eq(int, rc, 0), "%s: stage %d.%d: %s", words, s, r, err_text());
            expect_reads_back(&programs[n], s, words);
            list[n] = &programs[n];
            n++;
        }
    }
    cr_expect(eq(int, program_check_all(list, n, plan->window), 0), "%s: %s", words, err_text());
    while (n > 0)
        program_done(&programs[--n]);
}

static void sweep_options(TestPlan *plan, const char *name, int32_t n_warmups) {
    for (int32_t warmup = 0; warmup < n_warmups; warmup++) {
        for (int32_t recompute = 0; recompute < 2; recompute++) {
            for (int32_t hoist = 0; hoist < 3; hoist++) {
                plan->spec = spec_of(name, warmup, recompute != 0, hoist);
                expect_ends(plan);
            }
        }
    }
}

static void sweep(int32_t n_stages, bool skip) {
    TestPlan plan = {.n_stages = n_stages, .skip = skip};
    for (int32_t doubled = 0; doubled < 1 << n_stages; doubled++) {
        for (int32_t s = 0; s < n_stages; s++)
            plan.replicas[s] = 1 + (doubled >> s & 1);
        for (plan.n_micro = 1; plan.n_micro <= 6; plan.n_micro++) {
            plan.window = (doubled + plan.n_micro) % 3;
            plan.eval = false;
            sweep_options(&plan, "gpipe", 1);
            sweep_options(&plan, "1f1b", plan.n_micro + 2);
            plan.eval = true;
            sweep_options(&plan, "1f1b", 1);
        }
    }
}

Test(schedule, every_plan_of_1_to_4_stages_ends) {
    for (int32_t n = 1; n <= 4; n++)
        sweep(n, n == 4);
}

Test(schedule, every_plan_of_5_stages_ends) {
    sweep(5, false);
}

Test(schedule, uneven_replicas_end) {
    uint32_t state = 1;
    for (int i = 0; i < 1500; i++) {
        TestPlan plan = {.n_stages = 1};
        uint32_t v[16];
        for (int k = 0; k < 16; k++) {
            state = state * 1664525u + 1013904223u;
            v[k] = state >> 16;
        }
        plan.n_stages = 1 + (int32_t)(v[0] % 8);
        plan.n_micro = 1 + (int32_t)(v[1] % 40);
        for (int32_t s = 0; s < plan.n_stages; s++)
            plan.replicas[s] = 1 + (int32_t)(v[2 + s] % 6);
        plan.skip = v[10] % 2;
        plan.eval = v[11] % 8 == 0;
        plan.window = (int32_t)(v[12] % 3);
        plan.spec = spec_of(schedule_names[v[13] % SCHEDULE_N], (int32_t)(v[14] % 12), v[15] % 2,
                            (int32_t)(v[15] / 2 % 4));
        expect_ends(&plan);
    }
}

/* Why 1F1B counts micro-batches of the whole batch: with a warm-up of S - s own micro-batches each,
 * three replicas in the middle want micro-batch 3 before the first stage has sent it. */
Test(schedule, counting_own_micro_batches_would_hang) {
    static const char *const texts[] = {
        "F0 >a0 F1 >a1 F2 >a2 <g0 B0 F3 >a3 <g1 B1 <g2 B2 <g3 B3 R U",
        "1<a0 1F0 1>a0 1<a3 1F3 1>a3 1<g0 1B0 1>g0 1<g3 1B3 1>g3 1R 1U",
        "1<a1 1F1 1>a1 1<g1 1B1 1>g1 1R 1U",
        "1<a2 1F2 1>a2 1<g2 1B2 1>g2 1R 1U",
        "2<a0 2F0 2B0 2>g0 2<a1 2F1 2B1 2>g1 2<a2 2F2 2B2 2>g2 2<a3 2F3 2B3 2>g3 2R 2U",
    };
    Program programs[5];
    const Program *list[5];
    for (int i = 0; i < 5; i++) {
        cr_assert(eq(int, program_parse("p", texts[i], strlen(texts[i]), 0, &programs[i]), 0));
        cr_assert(eq(int, program_link(&programs[i]), 0));
        list[i] = &programs[i];
    }
    cr_expect(eq(int, program_check_all(list, 5, 0), ERR_ARGUMENT));
    cr_expect(eq(str, (char *)err_text(),
                 "the programs wait for one another: worker 0 (stage 0) stands at <g0 of step 0 "
                 "and waits for worker 1; worker 1 (stage 1) stands at <a3 of step 0 and waits for "
                 "worker 0"));
    for (int i = 0; i < 5; i++)
        program_done(&programs[i]);
}

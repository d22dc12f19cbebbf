/* Programs: text, passes, slots and dependencies, and every refusal of the two checkers. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/program.h"
#include "tests/support/stages.h"

static Program parse(const char *text, int32_t stage) {
    Program program;
    cr_assert(eq(int, program_parse("p", text, strlen(text), stage, &program), 0), "%s",
              err_text());
    return program;
}

static void expect_text(const Program *program, int32_t stage, const char *expected) {
    Buf text;
    buf_init(&text, 0);
    cr_assert(eq(int, program_format(program, stage, &text), 0));
    cr_expect(eq(str, (char *)buf_string(&text), (char *)expected));
    buf_done(&text);
}

/* ---- text ---- */

Test(program, text_reads_back_equal) {
    static const char *const texts[] = {
        "",
        "F0",
        "<a0 F0 >a0 <g0 B0 >g0 R U",
        "<a0@0 <a0 F0 >a0 >a0@4 <g0@4 <g0 C0 I0 >g0 >g0@0 W0 R U",
        "0F0 2<a0 2F0 3F65535 2R 0U",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        Program program = parse(texts[i], 2);
        expect_text(&program, 2, texts[i]);
        program_done(&program);
    }
}

Test(program, text_is_made_canonical) {
    Program program = parse("# one line\n\t2<a7@1   F7# and\n\r\n>a7@3\n", 2);
    expect_text(&program, 2, "<a7 F7 >a7");
    expect_text(&program, 0, "2<a7 2F7 2>a7");
    cr_expect(eq(i32, program.n_micro, 8));
    cr_expect(program.forward_only);
    cr_expect(not(program.linked));
    program_done(&program);
    program_done(&program); /* twice is harmless */
    program_done(NULL);
}

Test(program, text_errors_show_line_and_column) {
    static const char *const cases[][2] = {
        {"F0 f1", "p:1:4: 'f1': not an instruction (expected <a <g F C B I W >a >g with a "
                  "micro-batch, R or U)"},
        {"F0\n  # no\n  F", "p:3:3: 'F': expected a micro-batch from 0 to 65535 behind the letter"},
        {"F65536", "p:1:1: 'F65536': expected a micro-batch from 0 to 65535 behind the letter"},
        {"F00", "p:1:1: 'F00': expected a micro-batch from 0 to 65535 behind the letter"},
        {"F-1", "p:1:1: 'F-1': expected a micro-batch from 0 to 65535 behind the letter"},
        {"F0x", "p:1:1: 'F0x': expected a blank behind it"},
        {"F0@1", "p:1:1: 'F0@1': expected a blank behind it"},
        {"R0", "p:1:1: 'R0': expected a blank behind it"},
        {"<a0@", "p:1:1: '<a0@': expected nothing, or @ and a stage, behind the micro-batch"},
        {"<a0@4096",
         "p:1:1: '<a0@4096': expected nothing, or @ and a stage, behind the micro-batch"},
        {"4096F0", "p:1:1: '4096F0': the stage in front is not a number from 0 to 4095"},
        {"12", "p:1:1: '12': not an instruction (expected <a <g F C B I W >a >g with a "
               "micro-batch, R or U)"},
        {"<a0@2", "p:1:1: '<a0@2': stage 2: 2 cannot be at the other end (it must be an earlier "
                  "stage)"},
        {"0<a0", "p:1:1: '0<a0': stage 0: -1 cannot be at the other end (it must be an earlier "
                 "stage)"},
        {">a0@1", "p:1:1: '>a0@1': stage 2: 1 cannot be at the other end (it must be a later "
                  "stage)"},
        {"\x01\xff", "p:1:1: '\?\?': not an instruction (expected <a <g F C B I W >a >g with a "
                     "micro-batch, R or U)"},
        {"FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF",
         "p:1:1: 'FFFFFFFFFFFFFFFFFFFFFFFFFFFF...': expected a micro-batch from 0 to 65535 behind "
         "the letter"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Program program;
        cr_expect(
            eq(int, program_parse("p", cases[i][0], strlen(cases[i][0]), 2, &program), ERR_FORMAT));
        cr_expect(eq(str, (char *)err_text(), (char *)cases[i][1]));
    }
    Program program;
    cr_expect(eq(int, program_parse("p", "F0\0F1", 5, 2, &program), ERR_FORMAT)); /* a NUL byte */
}

Test(program, add_refuses_what_cannot_be) {
    Program program;
    program_init(&program);
    cr_expect(eq(int, program_add(&program, INSTR_FORWARD, -1, 0, -1), ERR_ARGUMENT));
    cr_expect(eq(int, program_add(&program, INSTR_FORWARD, STAGE_MAX, 0, -1), ERR_ARGUMENT));
    cr_expect(eq(int, program_add(&program, INSTR_FORWARD, 0, -1, -1), ERR_ARGUMENT));
    cr_expect(
        eq(int, program_add(&program, INSTR_FORWARD, 0, PROGRAM_MAX_MICRO, -1), ERR_ARGUMENT));
    cr_expect(eq(int, program_add(&program, INSTR_FORWARD, 0, 0, 1), ERR_ARGUMENT));
    cr_expect(eq(int, program_add(&program, INSTR_REDUCE, 0, 0, -1), ERR_ARGUMENT));
    cr_expect(eq(int, program_add(&program, INSTR_FETCH_GRAD, 1, 0, 0), ERR_ARGUMENT));
    cr_expect(eq(int, program_add(&program, INSTR_N_OPCODES, 1, 0, 0), ERR_ARGUMENT));
    cr_expect(eq(i32, program.n_instrs, 0));
    program_done(&program);
}

Test(program, queues) {
    cr_expect(eq(int, program_queue(INSTR_FETCH_ACT), QUEUE_FETCH));
    cr_expect(eq(int, program_queue(INSTR_FETCH_GRAD), QUEUE_FETCH));
    cr_expect(eq(int, program_queue(INSTR_PUBLISH_ACT), QUEUE_PUBLISH));
    cr_expect(eq(int, program_queue(INSTR_PUBLISH_GRAD), QUEUE_PUBLISH));
    cr_expect(eq(int, program_queue(INSTR_RECOMPUTE), QUEUE_COMPUTE));
    cr_expect(eq(int, program_queue(INSTR_UPDATE), QUEUE_COMPUTE));
}

/* ---- passes ---- */

static Program lower(const char *compute, int32_t index, int32_t n_stages, bool skip) {
    TestStage test;
    Program from = parse(compute, index);
    Program program;
    const Stage *stage = test_stage(&test, index, n_stages, skip);
    cr_assert(eq(int, program_lower(stage, &from, &program), 0), "%s", err_text());
    program_done(&from);
    return program;
}

static const char middle_text[] = "<a0 F0 >a0 <a1 F1 >a1 <g0 B0 >g0 <a2 F2 >a2 <g1 B1 >g1 <a3 F3 "
                                  ">a3 <g2 B2 >g2 <g3 B3 >g3 R U";

Test(program, lower_adds_what_moves) {
    Program program = lower("F0 F1 B0 F2 B1 F3 B2 B3", 1, 3, false);
    expect_text(&program, 1, middle_text);
    program_done(&program);
    program = lower("F0 F1 B0 B1", 0, 3, false);
    expect_text(&program, 0, "F0 >a0 F1 >a1 <g0 B0 <g1 B1 R U");
    program_done(&program);
    program = lower("F0 B0", 2, 3, false);
    expect_text(&program, 2, "<a0 F0 B0 >g0 R U");
    program_done(&program);
    program = lower("F0 I0 F1 I1 W0 W1", 1, 3, false);
    expect_text(&program, 1, "<a0 F0 >a0 <g0 I0 >g0 <a1 F1 >a1 <g1 I1 >g1 W0 W1 R U");
    program_done(&program);
    program = lower("F0 F1", 1, 3, false); /* evaluation */
    expect_text(&program, 1, "<a0 F0 >a0 <a1 F1 >a1");
    cr_expect(program.forward_only);
    program_done(&program);
}

Test(program, lower_names_stages_that_are_no_neighbours) {
    Program program = lower("F0 B0", 0, 4, true);
    expect_text(&program, 0, "F0 >a0 >a0@3 <g0@3 <g0 B0 R U");
    program_done(&program);
    program = lower("F0 B0", 3, 4, true);
    expect_text(&program, 3, "<a0@0 <a0 F0 B0 >g0 >g0@0 R U");
    program_done(&program);
    program = lower("F0 B0", 1, 4, true);
    expect_text(&program, 1, "<a0 F0 >a0 <g0 B0 >g0 R U");
    program_done(&program);
}

Test(program, lower_takes_several_stages_in_turn) {
    TestStage first;
    TestStage third;
    Program compute = parse("0F0 2F0 2B0 0B0", 0);
    Program half;
    Program whole;
    cr_assert(eq(int, program_lower(test_stage(&first, 0, 3, false), &compute, &half), 0));
    cr_assert(eq(int, program_lower(test_stage(&third, 2, 3, false), &half, &whole), 0));
    expect_text(&whole, 0, "0F0 0>a0 2<a0 2F0 2B0 2>g0 0<g0 0B0 0R 2R 0U 2U");
    cr_expect(eq(int, program_link(&whole), 0));
    cr_expect(eq(int, program_check(&whole, &first.stage, 0, 1, 1), 0), "%s", err_text());
    cr_expect(eq(int, program_check(&whole, &third.stage, 0, 1, 1), 0), "%s", err_text());
    Program again;
    cr_expect(eq(int, program_lower(&third.stage, &whole, &again), ERR_ARGUMENT));
    cr_expect(eq(str, (char *)err_text(), "cannot lower '2<a0': stage 2 is lowered already"));
    program_done(&compute);
    program_done(&half);
    program_done(&whole);
}

Test(program, recompute_stands_before_backwards) {
    Program program = lower("F0 F1 B0 I1 W1", 1, 3, false);
    cr_assert(eq(int, program_recompute(&program, 0), 0)); /* another stage: nothing */
    cr_assert(eq(int, program_recompute(&program, 1), 0));
    expect_text(&program, 1, "<a0 F0 >a0 <a1 F1 >a1 <g0 C0 B0 >g0 <g1 C1 I1 >g1 W1 R U");
    program_done(&program);
}

Test(program, hoist_moves_fetches_but_keeps_their_order) {
    static const char *const expected[] = {
        middle_text,
        "<a0 <a1 F0 >a0 F1 >a1 <g0 <a2 <g1 B0 >g0 <a3 F2 >a2 <g2 B1 >g1 F3 >a3 <g3 B2 >g2 B3 >g3 "
        "R U",
        "<a0 <a1 F0 >a0 F1 >a1 <g0 <a2 <g1 <a3 B0 >g0 F2 >a2 <g2 B1 >g1 F3 >a3 <g3 B2 >g2 B3 >g3 "
        "R U",
    };
    for (int32_t depth = 0; depth < 3; depth++) {
        Program program = parse(middle_text, 1);
        cr_assert(eq(int, program_hoist(&program, depth), 0));
        expect_text(&program, 1, expected[depth]);
        cr_assert(eq(int, program_link(&program), 0));
        cr_expect(eq(i32, program.n_slots, 2 + depth));
        program_done(&program);
    }
    Program forward = parse("<a0 F0 <a1 F1 <a2 F2", 1);
    cr_assert(eq(int, program_hoist(&forward, 1), 0));
    expect_text(&forward, 1, "<a0 <a1 F0 <a2 F1 F2");
    cr_expect(eq(int, program_hoist(&forward, -1), ERR_ARGUMENT));
    program_done(&forward);
}

/* ---- link ---- */

/* "F2/0<-<a2,B0'": instruction, slot, dependencies; ' marks the step before. */
static void expect_links(const char *text, int32_t stage, const char *expected) {
    Program program = parse(text, stage);
    Buf links;
    buf_init(&links, 0);
    cr_assert(eq(int, program_link(&program), 0), "%s", err_text());
    cr_expect(program.linked);
    for (int32_t i = 0; i < program.n_instrs; i++) {
        const Instr *instr = &program.instrs[i];
        char token[40];
        program_instr_text(instr, stage, token, sizeof token);
        buf_printf(&links, i ? " %s" : "%s", token);
        if (instr->slot >= 0)
            buf_printf(&links, "/%d", instr->slot);
        for (int32_t d = 0; d < instr->n_deps; d++) {
            Dep dep = program.deps[instr->first_dep + d];
            program_instr_text(&program.instrs[dep.instr], stage, token, sizeof token);
            buf_printf(&links, "%s%s%s", d ? "," : "<-", token, dep.steps_back ? "'" : "");
        }
    }
    cr_expect(eq(str, (char *)buf_string(&links), (char *)expected));
    buf_done(&links);
    program_done(&program);
}

Test(program, link_gives_slots_in_turn) {
    expect_links("<a0 F0 >a0 <a1 F1 >a1 <g0 B0 >g0 <a2 F2 >a2 <g1 B1 >g1 <g2 B2 >g2 R U", 1,
                 "<a0/0<-B2',>a2',>g2' F0/0<-<a0 >a0/0<-F0 <a1/1<-B1',>a1',>g1' F1/1<-<a1 "
                 ">a1/1<-F1 <g0/0 B0/0<-<g0 >g0/0<-B0 <a2/0<-B0,>a0,>g0 F2/0<-<a2 >a2/0<-F2 "
                 "<g1/1 B1/1<-<g1 >g1/1<-B1 <g2/0 B2/0<-<g2 >g2/0<-B2 R U");
}

/* Nothing to fetch before the forward: the forward takes the slot, and the gradient's fetch waits
 * for the owner before as well. */
static const char first_text[] = "F0 >a0 <g0 B0 F1 >a1 <g1 B1 R U";
Test(program, link_of_a_first_stage) {
    expect_links(first_text, 0,
                 "F0/0<->a1' >a0/0<-F0 <g0/0<-B1',>a1' B0/0<-<g0 F1/0<->a0 >a1/0<-F1 "
                 "<g1/0<-B0,>a0 B1/0<-<g1 R U");
}

Test(program, link_of_split_backwards_and_evaluation) {
    expect_links("<a0 F0 I0 >g0 <a1 F1 I1 >g1 W0 W1 R U", 2,
                 "<a0/0<-W0',>g0' F0/0<-<a0 I0/0 >g0/0<-I0 <a1/1<-W1',>g1' F1/1<-<a1 I1/1 "
                 ">g1/1<-I1 W0/0 W1/1 R U");
    expect_links("<a0 F0 >a0 <a2 F2 >a2", 1,
                 "<a0/0<-F2',>a2' F0/0<-<a0 >a0/0<-F0 <a2/0<-F0,>a0 F2/0<-<a2 >a2/0<-F2");
}

Test(program, link_takes_the_slot_that_was_free_longest) {
    expect_links("F0 F1 F2 B1 B0 F3 F4 B2 B3 B4 R U", 0,
                 "F0/0 F1/1 F2/2 B1/1 B0/0 F3/1 F4/0 B2/2 B3/1 B4/0 R U");
}

Test(program, link_counts_slots_per_stage) {
    Program program = parse("0F0 0F1 2F0 2B0 0B0 2F1 2B1 0B1 0R 2R 0U 2U", 0);
    cr_assert(eq(int, program_link(&program), 0));
    cr_expect(eq(i32, program.n_slots, 2));
    cr_expect(eq(i32, program.instrs[5].slot, 0)); /* 2F1: stage 2 needs only one */
    program_done(&program);
}

Test(program, link_refuses_nonsense) {
    Program program = parse("F0 F0", 1);
    cr_expect(eq(int, program_link(&program), ERR_ARGUMENT));
    cr_expect(eq(str, (char *)err_text(), "cannot link: 1F0 is there twice"));
    cr_expect(not(program.linked));
    program_done(&program);
    program = parse("F0 >g1", 1);
    cr_expect(eq(int, program_link(&program), ERR_ARGUMENT));
    cr_expect(eq(str, (char *)err_text(), "cannot link: nothing computes what 1>g1 publishes"));
    program_done(&program);
    program = parse("", 1);
    cr_expect(eq(int, program_link(&program), 0));
    cr_expect(eq(i32, program.n_slots, 0));
    program_done(&program);
}

/* ---- program_check ---- */

typedef struct Refusal {
    const char *text, *message;
} Refusal;

static void expect_refusals(const Refusal *cases, size_t n, int32_t n_stages, bool skip,
                            int32_t replica, int32_t replicas, int32_t n_micro) {
    TestStage test;
    const Stage *stage = test_stage(&test, 1, n_stages, skip);
    for (size_t i = 0; i < n; i++) {
        Program program = parse(cases[i].text, 1);
        int rc = program_check(&program, stage, replica, replicas, n_micro);
        cr_expect(eq(int, rc, cases[i].message ? ERR_ARGUMENT : 0), "%s", cases[i].text);
        if (cases[i].message)
            cr_expect(eq(str, (char *)err_text(), (char *)cases[i].message));
        program_done(&program);
    }
}

#define N_OF(array) (sizeof(array) / sizeof(array)[0])

Test(program, check_accepts) {
    static const Refusal cases[] = {
        {middle_text, NULL},
        {"<a0 <a1 <a2 <a3 F0 >a0 F1 >a1 F2 F3 >a2 >a3 <g0 <g1 <g2 <g3 C0 B0 >g0 I1 >g1 W1 B2 I3 W3 "
         ">g2 >g3 R U",
         NULL},
        {"<a0 F0 >a0 <a1 F1 >a1 <a2 F2 >a2 <a3 F3 >a3", NULL}, /* evaluation */
    };
    expect_refusals(cases, N_OF(cases), 3, false, 0, 1, 4);
}

Test(program, check_refuses_one_micro_batch) {
    static const Refusal cases[] = {
        {"<a0 F0 >a0 B0 <g0 >g0 R U", "<a0 F0 >a0 [B0] ...: B0 comes before <g0"},
        {"F0 <a0 >a0 <g0 B0 >g0 R U", "[F0] ...: F0 comes before <a0"},
        {"<a0 >a0 F0 <g0 B0 >g0 R U", "<a0 [>a0] ...: >a0 comes before F0"},
        {"<a0 F0 >a0 <g0 >g0 B0 R U", "<a0 F0 >a0 <g0 [>g0] ...: >g0 comes before B0"},
        {"<g0 B0 >g0 <a0 F0 >a0 R U", "<g0 [B0] ...: B0 comes before F0"},
        {"<a0 C0 F0 >a0 <g0 B0 >g0 R U", "<a0 [C0] ...: C0 comes before F0"},
        {"<a0 F0 >a0 <g0 B0 C0 >g0 R U", "<a0 F0 >a0 <g0 [B0] ...: B0 comes before C0"},
        {"<a0 F0 >a0 <g0 W0 I0 >g0 R U", "<a0 F0 >a0 <g0 [W0] ...: W0 comes before I0"},
        {"<a0 F0 F0 >a0 <g0 B0 >g0 R U", "<a0 F0 [F0] ...: F0 is there twice"},
        {"<a0 F0 >a0 <g0 B0 >g0 >g0 R U", "<a0 F0 >a0 <g0 B0 >g0 [>g0] ...: >g0 is there twice"},
        {"<a0 F0 >a0 <g0 B0 W0 >g0 R U",
         "<a0 F0 >a0 <g0 B0 [W0] ...: W0: B0 computes both gradients already"},
        {"F0 >a0 <g0 B0 >g0 R U", "F0 >a0 <g0 B0 >g0 R U: <a0 is missing"},
        {"<a0 F0 <g0 B0 >g0 R U", "<a0 F0 <g0 B0 >g0 R U: >a0 is missing"},
        {"<a0 F0 >a0 B0 >g0 R U", "<a0 F0 >a0 B0 >g0 R U: <g0 is missing"},
        {"<a0 F0 >a0 <g0 B0 R U", "<a0 F0 >a0 <g0 B0 R U: >g0 is missing"},
        {"<a0 F0 >a0 <g0 >g0 R U", "<a0 F0 >a0 <g0 >g0 R U: B0 is missing"},
        {"<a0 F0 >a0 <g0 I0 >g0 R U", "<a0 F0 >a0 <g0 I0 >g0 R U: W0 is missing"},
        {"<a0 F0 >a0 <g0 W0 >g0 R U", "<a0 F0 >a0 <g0 W0 >g0 R U: I0 is missing"},
        {"R U", "R U: F0 is missing"},
        {"", "F0 is missing"},
        {"2F0", "2F0: 1F0 is missing"},
        {"<a0 F0 >a0 <g0 B0 >g0", "<a0 F0 >a0 <g0 B0 >g0: R is missing"},
        {"<a0 F0 >a0 <g0 B0 >g0 R", "<a0 F0 >a0 <g0 B0 >g0 R: U is missing"},
        {"<a0 F0 >a0 <g0 B0 >g0 U", "<a0 F0 >a0 <g0 B0 >g0 [U]: U comes before the gradients are "
                                    "reduced (R)"},
        {"<a0 F0 >a0 <g0 B0 R >g0 U", "<a0 F0 >a0 <g0 B0 R [>g0] ...: >g0 comes after R"},
        {"<a0 F0 >a0 <g0 B0 >g0 R R U", "<a0 F0 >a0 <g0 B0 >g0 R [R] ...: R comes after R"},
        {"<a0 F0 >a0 <g0 B0 >g0 R U R U", "<a0 F0 >a0 <g0 B0 >g0 R U [R] ...: R comes after U"},
        {"<a0 F0 >a0 <g0 B0 >g0 R U U", "<a0 F0 >a0 <g0 B0 >g0 R U [U]: U comes after U"},
        {"<a0 F0 C0 >a0", "<a0 F0 [C0] ...: C0: nothing to compute again without a backward"},
        {"<a0 F0 >a0 <g0", "<a0 F0 >a0 <g0: micro-batch 0 moves gradients, but there is no "
                           "backward"},
    };
    expect_refusals(cases, N_OF(cases), 3, false, 0, 1, 1);
}

Test(program, check_refuses_order_and_ownership) {
    static const Refusal two[] = {
        {"<a0 F0 >a0 <a1 F1 >a1 <g1 B1 >g1 <g0 B0 >g0 R U",
         "... >a0 <a1 F1 >a1 <g1 B1 >g1 <g0 [B0] ...: B0 comes after B1: they must go in ascending "
         "order"},
        {"<a0 F0 >a0 <a1 F1 >a1 <g0 I0 >g0 <g1 I1 >g1 W1 W0 R U",
         "... >a1 <g0 I0 >g0 <g1 I1 >g1 W1 [W0] ...: W0 comes after W1: they must go in ascending "
         "order"},
        {"<a1 F1 >a1 <a0 F0 >a0 <g0 B0 >g0 <g1 B1 >g1 R U",
         "<a1 F1 >a1 <a0 [F0] ...: F0 comes after F1: they must go in ascending order"},
        {"<a0 F0 >a0 <a1 F1 >a1 <g0 B0 >g0 R U", "... <a1 F1 >a1 <g0 B0 >g0 R U: B1 is missing"},
    };
    expect_refusals(two, N_OF(two), 3, false, 0, 1, 2);
    static const Refusal others[] = {
        {"<a0 F0 >a0 <g0 B0 >g0 F2 R U",
         "<a0 F0 >a0 <g0 B0 >g0 [F2] ...: F2: there are only 2 micro-batches"},
        {"<a0 F0 >a0 <g0 B0 >g0 F1 R U",
         "<a0 F0 >a0 <g0 B0 >g0 [F1] ...: F1: micro-batch 1 belongs to replica 1 of 2, this is 0"},
        {"F1 <a0 F0 >a0 <g0 B0 >g0 R U",
         "[F1] ...: F1: micro-batch 1 belongs to replica 1 of 2, this is 0"},
        {"<a0 F0 >a0 <g0 B0 >g0 R U", NULL},
    };
    expect_refusals(others, N_OF(others), 3, false, 0, 2, 2);
    static const Refusal last[] = {
        {"F0 <a1 F1 >a1 <g1 B1 >g1 R U",
         "[F0] ...: F0: micro-batch 0 belongs to replica 0 of 2, this is 1"},
        {"<a1 F1 >a1 <g1 B1 >g1 R U", NULL},
    };
    expect_refusals(last, N_OF(last), 3, false, 1, 2, 2);
    static const Refusal none[] = {{"R U", NULL}, {"", NULL}, {"R", "R: U is missing"}};
    expect_refusals(none, N_OF(none), 3, false, 2, 3, 2); /* more replicas than micro-batches */
}

Test(program, check_shows_the_programs_example) {
    static const Refusal example[] = {
        {"<a0 F0 >a0 B1 <g0 B0 >g0 <a1 F1 >a1 <g1 >g1 R U",
         "<a0 F0 >a0 [B1] ...: B1 comes before F1"},
    };
    expect_refusals(example, 1, 3, false, 0, 1, 2);
}

Test(program, check_refuses_edges_that_do_not_exist) {
    static const Refusal cases[] = {
        {"<a0 F0 >a0 >a0@3 <g0 B0 >g0 R U",
         "<a0 F0 >a0 [>a0@3] ...: >a0@3: no value crosses between stages 1 and 3"},
        {"<a0 F0 >a0 <g0 <g0@3 B0 >g0 R U",
         "<a0 F0 >a0 <g0 [<g0@3] ...: <g0@3: no value crosses between stages 1 and 3"},
    };
    expect_refusals(cases, N_OF(cases), 4, true, 0, 1, 1);
    TestStage test;
    test_stage(&test, 1, 2, false);
    test.in[0].n_grads = 0; /* nothing behind needs gradients there */
    Program program = parse("<a0 F0 B0 >g0 R U", 1);
    cr_expect(eq(int, program_check(&program, &test.stage, 0, 1, 1), ERR_ARGUMENT));
    cr_expect(eq(str, (char *)err_text(),
                 "<a0 F0 B0 [>g0] ...: >g0: no gradient comes back from stage 1 to stage 0"));
    program_done(&program);
    program = parse("<a0 F0 B0 R U", 1);
    cr_expect(eq(int, program_check(&program, &test.stage, 0, 1, 1), 0), "%s", err_text());
    program_done(&program);
}

Test(program, check_names_the_edge_that_is_missing) {
    TestStage test;
    const Stage *stage = test_stage(&test, 3, 4, true);
    Program program = parse("<a0 F0 B0 >g0 >g0@0 R U", 3);
    cr_expect(eq(int, program_check(&program, stage, 0, 1, 1), ERR_ARGUMENT));
    cr_expect(eq(str, (char *)err_text(), "<a0 F0 B0 >g0 >g0@0 R U: <a0@0 is missing"));
    program_done(&program);
}

Test(program, check_refuses_sizes) {
    TestStage test;
    const Stage *stage = test_stage(&test, 0, 1, false);
    Program program = parse("F0 B0 R U", 0);
    cr_expect(eq(int, program_check(&program, stage, 0, 1, 0), ERR_ARGUMENT));
    cr_expect(eq(str, (char *)err_text(), "0 micro-batches, expected 1 to 65536"));
    cr_expect(eq(int, program_check(&program, stage, 1, 1, 1), ERR_ARGUMENT));
    cr_expect(eq(str, (char *)err_text(), "replica 1 of 1"));
    cr_expect(eq(int, program_check(&program, stage, 0, 0, 1), ERR_ARGUMENT));
    program_done(&program);
}

/* ---- program_check_all ---- */

/* Texts by worker; NULL ends. message NULL: accepted. */
static void expect_all(const char *const *texts, int32_t window, const char *message) {
    Program programs[8];
    const Program *list[8];
    int32_t n = 0;
    for (; texts[n]; n++) {
        programs[n] = parse(texts[n], n);
        cr_assert(eq(int, program_link(&programs[n]), 0), "%s", err_text());
        list[n] = &programs[n];
    }
    int rc = program_check_all(list, n, window);
    cr_expect(eq(int, rc, message ? ERR_ARGUMENT : 0));
    if (message || rc)
        cr_expect(eq(str, (char *)err_text(), (char *)(message ? message : "")));
    while (n > 0)
        program_done(&programs[--n]);
}

Test(program, all_accepts_a_pipeline) {
    static const char *const texts[] = {"F0 >a0 F1 >a1 <g0 B0 <g1 B1 R U",
                                        "<a0 F0 B0 >g0 <a1 F1 B1 >g1 R U", NULL};
    expect_all(texts, 0, NULL);
    expect_all(texts, 1, NULL);
}

Test(program, all_refuses_two_that_wait_for_each_other) {
    static const char *const texts[] = {"F0 >a0 <g0 B0 F1 >a1 <g1 B1 R U",
                                        "<a0 F0 <a1 F1 B0 >g0 B1 >g1 R U", NULL};
    expect_all(texts, 0,
               "the programs wait for one another: worker 0 (stage 0) stands at <g0 of step 0 and "
               "waits for worker 1; worker 1 (stage 1) stands at <a1 of step 0 and waits for "
               "worker 0");
}

Test(program, all_sees_the_step_before) {
    /* One slot: the second step's <a0 waits for the first step's >g0, which is there. */
    static const char *const good[] = {"F0 >a0 <g0 B0 R U", "<a0 F0 B0 >g0 R U", NULL};
    expect_all(good, 1, NULL);
    /* Worker 0 publishes only in its next step what worker 1 needs in this one: by text order the
     * publication waits for F0, F0 for the reduction, which worker 1 never reaches. */
    static const char *const bad[] = {"R U F0 >a0 <g0 B0", "<a0 F0 B0 >g0 R U", NULL};
    expect_all(bad, 0,
               "the programs wait for one another: worker 0 (stage 0) stands at R of step 0 and "
               "waits for worker 1; worker 1 (stage 1) stands at <a0 of step 0 and waits for "
               "worker 0");
}

Test(program, all_names_what_nobody_gives_or_takes) {
    static const char *const nobody[] = {"F0 B0 R U", "<a0 F0 B0 R U", NULL};
    expect_all(nobody, 0, "worker 1 (stage 1): nobody publishes what its <a0 fetches");
    static const char *const unread[] = {"F0 >a0 B0 R U", "F0 B0 R U", NULL};
    expect_all(unread, 0, "worker 0 (stage 0): nobody fetches what its >a0 publishes");
    static const char *const twice[] = {"F0 >a0 B0 R U", "<a0 F0 B0 R U", "1<a0 1F0 1B0 1R 1U",
                                        NULL};
    expect_all(twice, 0, "worker 1 (stage 1) and worker 2 (stage 1) both have <a0");
    static const char *const writers[] = {"F0 >a0 B0 R U", "<a0 F0 B0 R U", "0F0 0>a0 0B0 0R 0U",
                                          NULL};
    expect_all(writers, 0, "worker 0 (stage 0) and worker 2 (stage 0) both have >a0");
}

Test(program, all_refuses_what_is_not_linked) {
    Program program = parse("F0 B0 R U", 0);
    const Program *list[] = {&program};
    cr_expect(eq(int, program_check_all(list, 1, 0), ERR_ARGUMENT));
    cr_expect(eq(str, (char *)err_text(), "the program of worker 0 is not linked"));
    cr_expect(eq(int, program_check_all(list, 0, 0), ERR_ARGUMENT));
    cr_expect(eq(int, program_check_all(list, 1, -1), ERR_ARGUMENT));
    program_done(&program);
}

Test(program, all_bounds_the_window) {
    /* Fetched in another order than published: needs a window of two. */
    static const char *const texts[] = {"F0 >a0 F1 >a1 <g0 B0 <g1 B1 R U",
                                        "<a1 <a0 F0 F1 B0 >g0 B1 >g1 R U", NULL};
    expect_all(texts, 0, NULL);
    expect_all(texts, 2, NULL);
    expect_all(texts, 1,
               "the programs wait for one another: worker 0 (stage 0) stands at >a1 of step 0 and "
               "waits for worker 1; worker 1 (stage 1) stands at <a1 of step 0 and waits for "
               "worker 0");
}

Test(program, all_reduces_every_stage_before_an_update) {
    static const char *const good[] = {"0F0 1F0 1B0 0B0 0R 1R 0U 1U", NULL};
    static const char *const bad[] = {"0F0 1F0 1B0 0B0 0R 0U 1R 1U", NULL};
    expect_all(good, 0, NULL);
    expect_all(bad, 0,
               "the programs wait for one another: worker 0 (stage 0,1) stands at 0U of step 0 and "
               "waits for itself");
}

/* ---- interleaved: worker 0 holds stages 0 and 2, worker 1 holds 1 and 3 ---- */

static const char chunks_0[] =
    "0F0 0>a0 0F1 0>a1 2<a0 2F0 2>a0 2<a1 2F1 2>a1 0F2 0>a2 2<g0 2B0 2>g0 0F3 0>a3 2<g1 2B1 2>g1 "
    "2<a2 2F2 2>a2 0<g0 0B0 2<a3 2F3 2>a3 0<g1 0B1 2<g2 2B2 2>g2 2<g3 2B3 2>g3 0<g2 0B2 0<g3 0B3 "
    "0R 2R 0U 2U";
static const char chunks_1[] =
    "1<a0 1F0 1>a0 1<a1 1F1 1>a1 3<a0 3F0 3B0 3>g0 3<a1 3F1 3B1 3>g1 1<a2 1F2 1>a2 1<g0 1B0 1>g0 "
    "1<a3 1F3 1>a3 1<g1 1B1 1>g1 3<a2 3F2 3B2 3>g2 3<a3 3F3 3B3 3>g3 1<g2 1B2 1>g2 1<g3 1B3 1>g3 "
    "1R 3R 1U 3U";

Test(program, interleaved_with_window_one) {
    static const char *const texts[] = {chunks_0, chunks_1, NULL};
    expect_all(texts, 0, NULL);
    expect_all(texts, 1, NULL);
    for (int32_t s = 0; s < 4; s++) {
        TestStage test;
        Program program = parse(texts[s % 2], 0);
        cr_expect(eq(int, program_check(&program, test_stage(&test, s, 4, false), 0, 1, 4), 0),
                  "%s", err_text());
        expect_text(&program, 0, texts[s % 2]);
        program_done(&program);
    }
}

Test(program, interleaved_the_naive_way_is_refused) {
    /* Worker 1 wants stage 3's first micro-batch before it has made what it comes from. */
    static const char *const texts[] = {"0F0 0>a0 2<a0 2F0 2>a0 2<g0 2B0 2>g0 0<g0 0B0 0R 2R 0U 2U",
                                        "3<a0 3F0 3B0 3>g0 1<a0 1F0 1>a0 1<g0 1B0 1>g0 1R 3R 1U 3U",
                                        NULL};
    expect_all(texts, 0,
               "the programs wait for one another: worker 0 (stage 0,2) stands at 2<a0 of step 0 "
               "and waits for worker 1; worker 1 (stage 3,1) stands at 3<a0 of step 0 and waits "
               "for worker 0");
}

/* Any bytes: program_parse says yes or no; what it accepts prints, and reads back as the same text.
 * What links has dependencies inside itself, and hoisting keeps all that stands in it. The checkers
 * see every program. */
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/program.h"
#include "tests/support/stages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { STAGE = 1 };

static void require(int truth) {
    if (!truth)
        abort();
}

static void read_back(const Program *program) {
    Buf text;
    Buf second;
    Program again;
    buf_init(&text, 0);
    buf_init(&second, 0);
    require(program_format(program, STAGE, &text) >= 0);
    require(program_parse("again", buf_string(&text), text.bytes, STAGE, &again) >= 0);
    require(again.n_instrs == program->n_instrs && again.n_micro == program->n_micro);
    require(again.forward_only == program->forward_only);
    require(program_format(&again, STAGE, &second) >= 0);
    require(strcmp(buf_string(&text), buf_string(&second)) == 0);
    buf_done(&text);
    buf_done(&second);
    program_done(&again);
}

static void link_and_check(Program *program) {
    const Program *list[] = {program};
    if (program_link(program) < 0)
        return;
    for (int32_t i = 0; i < program->n_instrs; i++) {
        const Instr *instr = &program->instrs[i];
        require(instr->slot < program->n_slots && (instr->slot >= 0) == (instr->micro >= 0));
        for (int32_t d = 0; d < instr->n_deps; d++) {
            Dep dep = program->deps[instr->first_dep + d];
            require(dep.instr >= 0 && dep.instr < program->n_instrs);
            require(dep.steps_back == 0 || dep.steps_back == 1);
        }
    }
    program_check_all(list, 1, 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    Program program;
    TestStage test;
    const Stage *stage = test_stage(&test, STAGE, 3, false);
    if (program_parse("fuzz", (const char *)data, bytes, STAGE, &program) < 0) {
        require(strncmp(err_text(), "fuzz:", 5) == 0 || strstr(err_text(), "more than") != NULL);
        return 0;
    }
    read_back(&program);
    link_and_check(&program);
    int checked = program_check(&program, stage, 0, 1, 4);
    int32_t n_instrs = program.n_instrs;
    require(program_hoist(&program, 1) >= 0);
    require(program.n_instrs == n_instrs);
    if (checked >= 0) /* what was right before is right after */
        require(program_check(&program, stage, 0, 1, 4) >= 0);
    link_and_check(&program);
    require(program_recompute(&program, STAGE) >= 0);
    read_back(&program);
    program_done(&program);
    return 0;
}

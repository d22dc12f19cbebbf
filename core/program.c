#include "core/program.h"

#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/program_parts.h"

void program_init(Program *program) {
    memset(program, 0, sizeof *program);
    program->forward_only = true; /* until something that trains is added */
}

void program_done(Program *program) {
    if (!program)
        return;
    free(program->instrs);
    free(program->deps);
    program_init(program);
}

Queue program_queue(Opcode op) {
    if (program_is_fetch(op))
        return QUEUE_FETCH;
    return program_is_publish(op) ? QUEUE_PUBLISH : QUEUE_COMPUTE;
}

bool program_is_fetch(Opcode op) {
    return op == INSTR_FETCH_ACT || op == INSTR_FETCH_GRAD;
}

bool program_is_publish(Opcode op) {
    return op == INSTR_PUBLISH_ACT || op == INSTR_PUBLISH_GRAD;
}

bool program_is_grad_input(Opcode op) {
    return op == INSTR_BACKWARD || op == INSTR_BACKWARD_I;
}

bool program_is_grad_weight(Opcode op) {
    return op == INSTR_BACKWARD || op == INSTR_BACKWARD_W;
}

static bool is_training(Opcode op) {
    return program_is_grad_input(op) || program_is_grad_weight(op) || op == INSTR_REDUCE ||
           op == INSTR_UPDATE;
}

int program_append(Program *program, const Instr *instr) {
    if (program->n_instrs == program->cap_instrs) {
        if (program->n_instrs >= PROGRAM_MAX_INSTRS)
            return err_set(ERR_LIMIT, "a program of more than %d instructions", PROGRAM_MAX_INSTRS);
        int32_t cap = program->cap_instrs ? program->cap_instrs * 2 : 64;
        Instr *instrs = realloc(program->instrs, (size_t)cap * sizeof *instrs);
        if (!instrs)
            return err_set(ERR_MEMORY, "a program of %d instructions", cap);
        program->instrs = instrs;
        program->cap_instrs = cap;
    }
    Instr *added = &program->instrs[program->n_instrs++];
    *added = *instr;
    added->slot = -1;
    added->first_dep = 0;
    added->n_deps = 0;
    if (instr->micro >= program->n_micro)
        program->n_micro = instr->micro + 1;
    if (is_training(instr->op))
        program->forward_only = false;
    program->linked = false;
    return 0;
}

int program_add(Program *program, Opcode op, int32_t stage, int32_t micro, int32_t peer) {
    bool whole_step = op == INSTR_REDUCE || op == INSTR_UPDATE;
    bool moves = program_is_fetch(op) || program_is_publish(op);
    if (op >= INSTR_N_OPCODES || stage < 0 || stage >= STAGE_MAX)
        return err_set(ERR_ARGUMENT, "instruction %d of stage %d: stages are 0 to %d", (int)op,
                       stage, STAGE_MAX - 1);
    if (whole_step ? micro != -1 : micro < 0 || micro >= PROGRAM_MAX_MICRO)
        return err_set(ERR_ARGUMENT, "micro-batch %d: they are 0 to %d", micro,
                       PROGRAM_MAX_MICRO - 1);
    bool from_below = op == INSTR_FETCH_ACT || op == INSTR_PUBLISH_GRAD;
    bool fits = !moves       ? peer == -1
                : from_below ? peer >= 0 && peer < stage
                             : peer > stage && peer < STAGE_MAX;
    if (!fits)
        return err_set(ERR_ARGUMENT, "stage %d: %d cannot be at the other end (%s)", stage, peer,
                       !moves       ? "a computation has none"
                       : from_below ? "it must be an earlier stage"
                                    : "it must be a later stage");
    Instr instr = {.op = op, .stage = stage, .micro = micro, .peer = peer};
    return program_append(program, &instr);
}

void program_replace(Program *program, Program *take_other) {
    free(program->instrs);
    free(program->deps);
    *program = *take_other;
    program_init(take_other);
}

int32_t program_only_stage(const Program *program) {
    int32_t stage = program->n_instrs > 0 ? program->instrs[0].stage : -1;
    for (int32_t i = 1; i < program->n_instrs; i++) {
        if (program->instrs[i].stage != stage)
            return -1;
    }
    return stage;
}

/* Bits: stage 12, micro + 1 17, opcode 4, peer + 1 13. */
enum { KEY_OP_SHIFT = 13, KEY_MICRO_SHIFT = 17, KEY_STAGE_SHIFT = 34 };

static uint64_t index_key(const Instr *instr) {
    return (uint64_t)instr->stage << KEY_STAGE_SHIFT |
           (uint64_t)(instr->micro + 1) << KEY_MICRO_SHIFT | (uint64_t)instr->op << KEY_OP_SHIFT |
           (uint64_t)(instr->peer + 1);
}

static int compare_entries(const void *a, const void *b) {
    const IndexEntry *x = a;
    const IndexEntry *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->instr < y->instr ? -1 : x->instr > y->instr;
}

int program_index_init(ProgramIndex *index, const Program *program) {
    index->n = program->n_instrs;
    index->entries = malloc((size_t)(index->n > 0 ? index->n : 1) * sizeof *index->entries);
    if (!index->entries)
        return err_set(ERR_MEMORY, "a program of %d instructions", index->n);
    for (int32_t i = 0; i < index->n; i++)
        index->entries[i] = (IndexEntry){index_key(&program->instrs[i]), i};
    qsort(index->entries, (size_t)index->n, sizeof *index->entries, compare_entries);
    return 0;
}

void program_index_done(ProgramIndex *index) {
    free(index->entries);
    index->entries = NULL;
    index->n = 0;
}

int32_t program_index_end(const ProgramIndex *index, int32_t first) {
    int32_t end = first + 1;
    while (end < index->n && index->entries[end].key >> KEY_MICRO_SHIFT ==
                                 index->entries[first].key >> KEY_MICRO_SHIFT)
        end++;
    return end;
}

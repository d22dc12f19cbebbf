/* Shared by the program_*.c files; nobody else includes it. */
#ifndef FUNCPIPE_CORE_PROGRAM_PARTS_H
#define FUNCPIPE_CORE_PROGRAM_PARTS_H

#include "core/program.h"

enum { PROGRAM_TOKEN_BYTES = 40, PROGRAM_MAX_DEPS = 1 << 24 };

/* The instructions sorted by (stage, micro, opcode, peer, place in the text), so that what belongs
 * to one micro-batch of one stage stands together and what is there twice stands side by side. */
typedef struct IndexEntry {
    uint64_t key;
    int32_t instr;
} IndexEntry;

typedef struct ProgramIndex {
    int32_t n;
    IndexEntry *entries;
} ProgramIndex;

int program_index_init(ProgramIndex *index, const Program *program);
void program_index_done(ProgramIndex *index);
/* End of the group (same stage and micro) that begins at entry `first`. */
int32_t program_index_end(const ProgramIndex *index, int32_t first);

/* Which opcodes are they? */
bool program_is_fetch(Opcode op);
bool program_is_publish(Opcode op);
/* B or I: what needs the fetched gradients and makes those that are published. */
bool program_is_grad_input(Opcode op);
/* B or W: what adds to the parameters' gradients. */
bool program_is_grad_weight(Opcode op);

/* The stage that all instructions are of, or -1 (several, or none at all). */
int32_t program_only_stage(const Program *program);
int program_append(Program *program, const Instr *instr);
/* Replace the instructions of `program` by those of `take_other`, which is done afterwards. */
void program_replace(Program *program, Program *take_other);

#endif

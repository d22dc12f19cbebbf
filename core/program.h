/* Program: all that one worker does in one training step, as a straight line of instructions.
 *
 *     <a0 F0 >a0 <a1 F1 >a1 <g0 B0 >g0 <a2 F2 >a2 <g1 B1 >g1 ... R U
 *
 * `<a0` fetch the activations of micro-batch 0, `F` forward, `C` compute the forward again (before
 * a backward, when activations were not kept), `B` backward (or `I` input gradient and `W` weight
 * gradient apart), `>` publish, `<g0 >g0` the same for gradients, `R` reduce, `U` update. An edge
 * to or from a stage that is not the neighbour names it: `<a0@1`, `>g0@0`. A worker that holds
 * several stages writes the stage in front of every instruction: `3F0`, `3<a0`. Whitespace
 * separates; `#` starts a comment to the end of the line.
 *
 * Compute instructions run in text order on one thread, fetches in text order on a second,
 * publications on a third. Between threads the only order is that of the dependencies, which
 * program_link derives: instruction i of step k may start when each dependency d is done in step
 * k - d.steps_back. They are the data (F after its fetches, ...) and the slots: micro-batches of a
 * stage share n_slots slots in turn, and what fills a slot waits until its last user is done. A
 * micro-batch owns its slot from its first instruction in the text to its last.
 * A forward-only program (evaluation) has F but no B. */
#ifndef FUNCPIPE_CORE_PROGRAM_H
#define FUNCPIPE_CORE_PROGRAM_H

#include "core/buf.h"
#include "core/stage.h"

typedef enum Opcode {
    INSTR_FETCH_ACT,    /* <a */
    INSTR_FETCH_GRAD,   /* <g */
    INSTR_FORWARD,      /* F */
    INSTR_RECOMPUTE,    /* C */
    INSTR_BACKWARD,     /* B */
    INSTR_BACKWARD_I,   /* I */
    INSTR_BACKWARD_W,   /* W */
    INSTR_PUBLISH_ACT,  /* >a */
    INSTR_PUBLISH_GRAD, /* >g */
    INSTR_REDUCE,       /* R */
    INSTR_UPDATE,       /* U */
    INSTR_N_OPCODES
} Opcode;

typedef enum Queue { QUEUE_COMPUTE, QUEUE_FETCH, QUEUE_PUBLISH, QUEUE_N } Queue;

enum { PROGRAM_MAX_INSTRS = 1 << 20, PROGRAM_MAX_MICRO = 1 << 16 };

typedef struct Instr {
    Opcode op;
    int32_t stage;
    int32_t micro;             /* -1 for R, U */
    int32_t peer;              /* the other stage of a fetch or publication; -1 else */
    int32_t slot;              /* set by program_link; -1 for R, U */
    int32_t first_dep, n_deps; /* into Program.deps */
} Instr;

typedef struct Dep {
    int32_t instr;
    int32_t steps_back; /* 0: this step; 1: the step before */
} Dep;

typedef struct Program {
    int32_t n_instrs, cap_instrs;
    Instr *instrs;
    int32_t n_deps, cap_deps;
    Dep *deps;
    int32_t n_micro; /* 1 + the largest micro number in it (a replica has only some) */
    int32_t n_slots; /* per stage; set by program_link */
    bool forward_only;
    bool linked;
} Program;

/* Empty (and forward-only until something that trains is added). */
void program_init(Program *program);
void program_done(Program *program);
/* Append one. ERR_ARGUMENT when stage, micro or peer is impossible, ERR_LIMIT when too long. */
int program_add(Program *program, Opcode op, int32_t stage, int32_t micro, int32_t peer);

/* Text both ways. `stage`: the stage of instructions without a number in front; in formatting, a
 * program that holds only `stage` is written without numbers. Errors show "WHAT:LINE:COLUMN".
 * out_program need not be initialised (nor in program_lower); it is not linked. */
int program_parse(const char *what, const char *text, size_t bytes, int32_t stage,
                  Program *out_program);
int program_format(const Program *program, int32_t stage, Buf *out_text);

/* Passes. lower: takes compute only (F C B I W in order) and adds, from the stage's edges, fetches
 * in front of their first use and publications behind, then R and U (not for forward-only ones).
 * Other stages' instructions stay as they are: a worker with several stages lowers one after the
 * other, which ends in "0R 2R 0U 2U".
 * hoist: moves fetches up to `depth` micro-batches earlier in the text (more slots, more overlap),
 * without changing their order, so it never makes a deadlock. recompute: puts C in front of every B
 * (I) of a stage. Passes come before program_link. */
int program_lower(const Stage *stage, const Program *compute, Program *out_program);
int program_hoist(Program *program, int32_t depth);
int program_recompute(Program *program, int32_t stage);
/* Give slots (as few as the text allows) and dependencies. The program need not be a checked one;
 * ERR_ARGUMENT where an instruction is there twice or publishes what nothing computes. */
int program_link(Program *program);

/* Check one worker's program against its stage and the micro-batches it owns: every micro forward
 * and backward once, F and B (or W) ascending, I before W, fetches before use, everything needed
 * fetched and published exactly once, R then U at the end. Only the instructions of that stage
 * count: a worker's program with several stages is checked once for each. The error shows the
 * program with the guilty instruction marked, e.g. "<a0 F0 >a0 [B1] ...: B1 comes before F1". */
int program_check(const Program *program, const Stage *stage, int32_t replica, int32_t replicas,
                  int32_t n_micro);
/* Check all workers of a plan together: what one fetches another publishes, and no cyclic wait over
 * two steps; R waits for every worker's R. `window` > 0: the relay holds at most that many unread
 * objects per edge, direction and pair of workers, and publications wait (0: no bound). Programs
 * are linked. Error: names the workers that wait for one another and the instruction each stands
 * at. */
int program_check_all(const Program *const *programs, int32_t n_programs, int32_t window);

Queue program_queue(Opcode op);
/* "<a0@1" into buf. */
const char *program_instr_text(const Instr *instr, int32_t stage, char *buf, size_t buf_bytes);

#endif

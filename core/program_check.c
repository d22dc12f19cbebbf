/* The rules of one worker's program; what each refuses stands beside it. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/err.h"
#include "core/order.h"
#include "core/program_parts.h"

enum { SHOWN_BEFORE = 8 };

typedef struct Check {
    const Program *program;
    const Stage *stage;
    int32_t replica, replicas, n_micro;
    int32_t bare; /* the stage whose instructions are shown without a number in front */
    ProgramIndex index;
} Check;

/* Places in the text of what one micro-batch does; -1: not there. */
typedef struct Micro {
    int32_t micro;
    int32_t forward, recompute, backward, input_grad, weight_grad;
    int32_t n_fetch_act, n_fetch_grad, n_publish_act, n_publish_grad;
} Micro;

static const char *token_of(const Check *check, int32_t instr, char *buf) {
    return program_instr_text(&check->program->instrs[instr], check->bare, buf,
                              PROGRAM_TOKEN_BYTES);
}

/* Show the program up to the guilty instruction (-1: something is missing, show its end). */
static int refuse(const Check *check, int32_t guilty, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int refuse(const Check *check, int32_t guilty, const char *format, ...) {
    char why[256];
    char token[PROGRAM_TOKEN_BYTES];
    Buf shown;
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    int32_t n = check->program->n_instrs;
    int32_t end = guilty >= 0 ? guilty : n;
    int32_t first = end > SHOWN_BEFORE ? end - SHOWN_BEFORE : 0;
    buf_init(&shown, 0);
    if (first > 0)
        buf_text(&shown, "... ");
    for (int32_t i = first; i < end; i++)
        buf_printf(&shown, "%s%s", i > first ? " " : "", token_of(check, i, token));
    if (guilty >= 0)
        buf_printf(&shown, "%s[%s]%s", end > first ? " " : "", token_of(check, guilty, token),
                   guilty + 1 < n ? " ..." : "");
    int rc = err_set(ERR_ARGUMENT, "%s%s%s", buf_string(&shown), shown.bytes ? ": " : "", why);
    buf_done(&shown);
    return rc;
}

/* `later` must stand behind `earlier` in the text. */
static int in_order(const Check *check, int32_t earlier, int32_t later) {
    char a[PROGRAM_TOKEN_BYTES];
    char b[PROGRAM_TOKEN_BYTES];
    if (earlier < 0 || later < 0 || earlier < later)
        return 0;
    return refuse(check, later, "%s comes before %s", token_of(check, later, a),
                  token_of(check, earlier, b));
}

static int missing(const Check *check, Opcode op, int32_t micro, int32_t peer) {
    char token[PROGRAM_TOKEN_BYTES];
    Instr instr = {.op = op, .stage = check->stage->index, .micro = micro, .peer = peer};
    return refuse(check, -1, "%s is missing",
                  program_instr_text(&instr, check->bare, token, sizeof token));
}

/* ---- edges ---- */

static const Edge *find_edge(const Stage *stage, const Instr *instr) {
    bool in = instr->op == INSTR_FETCH_ACT || instr->op == INSTR_PUBLISH_GRAD;
    const Edge *edges = in ? stage->in : stage->out;
    int32_t n = in ? stage->n_in : stage->n_out;
    for (int32_t e = 0; e < n; e++) {
        if ((in ? edges[e].producer : edges[e].consumer) == instr->peer)
            return &edges[e];
    }
    return NULL;
}

static bool is_grad(Opcode op) {
    return op == INSTR_FETCH_GRAD || op == INSTR_PUBLISH_GRAD;
}

static int check_edge(const Check *check, int32_t i) {
    char token[PROGRAM_TOKEN_BYTES];
    const Instr *instr = &check->program->instrs[i];
    const Edge *edge = find_edge(check->stage, instr);
    if (!edge)
        return refuse(check, i, "%s: no value crosses between stages %d and %d",
                      token_of(check, i, token), instr->stage, instr->peer);
    if (is_grad(instr->op) && edge->n_grads == 0)
        return refuse(check, i, "%s: no gradient comes back from stage %d to stage %d",
                      token_of(check, i, token), edge->consumer, edge->producer);
    return 0;
}

/* All edges have their instruction: the number is right, or find the one without. */
static int check_complete(const Check *check, int32_t first, int32_t end, const Micro *m, Opcode op,
                          int32_t n_there) {
    const Stage *stage = check->stage;
    bool in = op == INSTR_FETCH_ACT || op == INSTR_PUBLISH_GRAD;
    const Edge *edges = in ? stage->in : stage->out;
    int32_t n = in ? stage->n_in : stage->n_out;
    int32_t n_wanted = 0;
    for (int32_t e = 0; e < n; e++)
        n_wanted += !is_grad(op) || edges[e].n_grads > 0;
    for (int32_t e = 0; e < n && n_there < n_wanted; e++) {
        int32_t peer = in ? edges[e].producer : edges[e].consumer;
        bool found = is_grad(op) && edges[e].n_grads == 0;
        for (int32_t i = first; i < end && !found; i++) {
            const Instr *instr = &check->program->instrs[check->index.entries[i].instr];
            found = instr->op == op && instr->peer == peer;
        }
        if (!found)
            return missing(check, op, m->micro, peer);
    }
    return 0;
}

/* ---- one micro-batch ---- */

static int check_member(const Check *check, int32_t i) {
    char token[PROGRAM_TOKEN_BYTES];
    int32_t micro = check->program->instrs[i].micro;
    if (micro >= check->n_micro)
        return refuse(check, i, "%s: there are only %d micro-batches", token_of(check, i, token),
                      check->n_micro);
    int32_t owner = order_micro_owner(check->replicas, micro);
    if (owner != check->replica)
        return refuse(check, i, "%s: micro-batch %d belongs to replica %d of %d, this is %d",
                      token_of(check, i, token), micro, owner, check->replicas, check->replica);
    return 0;
}

static int note_instr(const Check *check, int32_t i, Micro *m) {
    switch (check->program->instrs[i].op) {
    case INSTR_FORWARD:
        m->forward = i;
        return 0;
    case INSTR_RECOMPUTE:
        m->recompute = i;
        return 0;
    case INSTR_BACKWARD:
        m->backward = i;
        return 0;
    case INSTR_BACKWARD_I:
        m->input_grad = i;
        return 0;
    case INSTR_BACKWARD_W:
        m->weight_grad = i;
        return 0;
    case INSTR_FETCH_ACT:
        m->n_fetch_act++;
        return check_edge(check, i);
    case INSTR_FETCH_GRAD:
        m->n_fetch_grad++;
        return check_edge(check, i);
    case INSTR_PUBLISH_ACT:
        m->n_publish_act++;
        return check_edge(check, i);
    case INSTR_PUBLISH_GRAD:
        m->n_publish_grad++;
        return check_edge(check, i);
    default:
        return 0;
    }
}

/* Fetched before use, published after making, forward before backward. */
static int check_micro_order(const Check *check, int32_t first, int32_t end, const Micro *m) {
    int32_t back = m->backward >= 0 ? m->backward : m->input_grad;
    TRY(in_order(check, m->forward, m->recompute));
    TRY(in_order(check, m->forward, back));
    TRY(in_order(check, m->recompute, back));
    TRY(in_order(check, m->input_grad, m->weight_grad));
    for (int32_t e = first; e < end; e++) {
        int32_t i = check->index.entries[e].instr;
        switch (check->program->instrs[i].op) {
        case INSTR_FETCH_ACT:
            TRY(in_order(check, i, m->forward));
            break;
        case INSTR_FETCH_GRAD:
            TRY(in_order(check, i, back));
            break;
        case INSTR_PUBLISH_ACT:
            TRY(in_order(check, m->forward, i));
            break;
        case INSTR_PUBLISH_GRAD:
            TRY(in_order(check, back, i));
            break;
        default:
            break;
        }
    }
    return 0;
}

static int check_micro_computes(const Check *check, const Micro *m) {
    char a[PROGRAM_TOKEN_BYTES];
    char b[PROGRAM_TOKEN_BYTES];
    int32_t split = m->input_grad >= 0 ? m->input_grad : m->weight_grad;
    if (m->forward < 0)
        return missing(check, INSTR_FORWARD, m->micro, -1);
    if (check->program->forward_only) {
        if (m->recompute >= 0)
            return refuse(check, m->recompute, "%s: nothing to compute again without a backward",
                          token_of(check, m->recompute, a));
        return 0;
    }
    if (m->backward >= 0 && split >= 0)
        return refuse(check, split, "%s: %s computes both gradients already",
                      token_of(check, split, a), token_of(check, m->backward, b));
    if (m->backward < 0 && split < 0)
        return missing(check, INSTR_BACKWARD, m->micro, -1);
    if (m->backward < 0 && m->input_grad < 0)
        return missing(check, INSTR_BACKWARD_I, m->micro, -1);
    if (m->backward < 0 && m->weight_grad < 0)
        return missing(check, INSTR_BACKWARD_W, m->micro, -1);
    return 0;
}

/* The entries [first, end) are all of one micro-batch. */
static int check_micro(const Check *check, int32_t first, int32_t end, int32_t micro) {
    char token[PROGRAM_TOKEN_BYTES];
    Micro m = {micro, -1, -1, -1, -1, -1, 0, 0, 0, 0};
    bool trains = !check->program->forward_only;
    for (int32_t e = first; e < end; e++) {
        int32_t i = check->index.entries[e].instr;
        TRY(check_member(check, i));
        if (e > first && check->index.entries[e].key == check->index.entries[e - 1].key)
            return refuse(check, i, "%s is there twice", token_of(check, i, token));
        TRY(note_instr(check, i, &m));
    }
    TRY(check_micro_order(check, first, end, &m));
    TRY(check_micro_computes(check, &m));
    TRY(check_complete(check, first, end, &m, INSTR_FETCH_ACT, m.n_fetch_act));
    TRY(check_complete(check, first, end, &m, INSTR_PUBLISH_ACT, m.n_publish_act));
    if (trains)
        TRY(check_complete(check, first, end, &m, INSTR_FETCH_GRAD, m.n_fetch_grad));
    if (trains)
        TRY(check_complete(check, first, end, &m, INSTR_PUBLISH_GRAD, m.n_publish_grad));
    if (!trains && m.n_fetch_grad + m.n_publish_grad > 0)
        return refuse(check, -1, "micro-batch %d moves gradients, but there is no backward", micro);
    return 0;
}

static int check_micros(const Check *check) {
    const ProgramIndex *index = &check->index;
    int32_t e = 0;
    for (int32_t micro = check->replica; micro < check->n_micro; micro += check->replicas) {
        const Instr *instr = NULL;
        for (; e < index->n; e = program_index_end(index, e)) { /* to this micro or beyond */
            instr = &check->program->instrs[index->entries[e].instr];
            if (instr->stage > check->stage->index ||
                (instr->stage == check->stage->index && instr->micro >= 0))
                break;
        }
        if (!instr || e == index->n || instr->stage != check->stage->index || instr->micro > micro)
            return missing(check, INSTR_FORWARD, micro, -1);
        int32_t end = program_index_end(index, e);
        TRY(check_micro(check, e, end, micro));
        e = end;
    }
    for (; e < index->n; e++) { /* what is left of the stage is not ours */
        const Instr *instr = &check->program->instrs[index->entries[e].instr];
        if (instr->stage == check->stage->index && instr->micro >= 0)
            TRY(check_member(check, index->entries[e].instr));
    }
    return 0;
}

/* ---- the text as a whole ---- */

/* Gradients add up, and running statistics move, in micro order. */
static int check_ascending(const Check *check, int32_t i, int32_t *last) {
    char a[PROGRAM_TOKEN_BYTES];
    char b[PROGRAM_TOKEN_BYTES];
    const Instr *instr = &check->program->instrs[i];
    if (*last >= 0 && instr->micro <= check->program->instrs[*last].micro)
        return refuse(check, i, "%s comes after %s: they must go in ascending order",
                      token_of(check, i, a), token_of(check, *last, b));
    *last = i;
    return 0;
}

static int check_text(const Check *check) {
    char a[PROGRAM_TOKEN_BYTES];
    char b[PROGRAM_TOKEN_BYTES];
    int32_t last_forward = -1;
    int32_t last_grad = -1;
    int32_t closing = -1; /* R, then U */
    for (int32_t i = 0; i < check->program->n_instrs; i++) {
        const Instr *instr = &check->program->instrs[i];
        if (instr->stage != check->stage->index)
            continue;
        bool update = instr->op == INSTR_UPDATE;
        bool reduced = closing >= 0 && check->program->instrs[closing].op == INSTR_REDUCE;
        if (closing >= 0 && !(update && reduced))
            return refuse(check, i, "%s comes after %s", token_of(check, i, a),
                          token_of(check, closing, b));
        if (update && !reduced)
            return refuse(check, i, "%s comes before the gradients are reduced (R)",
                          token_of(check, i, a));
        if (instr->op == INSTR_REDUCE || update)
            closing = i;
        if (instr->op == INSTR_FORWARD)
            TRY(check_ascending(check, i, &last_forward));
        if (program_is_grad_weight(instr->op))
            TRY(check_ascending(check, i, &last_grad));
    }
    if (check->program->forward_only)
        return 0;
    if (closing < 0)
        return missing(check, INSTR_REDUCE, -1, -1);
    if (check->program->instrs[closing].op != INSTR_UPDATE)
        return missing(check, INSTR_UPDATE, -1, -1);
    return 0;
}

int program_check(const Program *program, const Stage *stage, int32_t replica, int32_t replicas,
                  int32_t n_micro) {
    if (n_micro < 1 || n_micro > PROGRAM_MAX_MICRO)
        return err_set(ERR_ARGUMENT, "%d micro-batches, expected 1 to %d", n_micro,
                       PROGRAM_MAX_MICRO);
    if (replicas < 1 || replica < 0 || replica >= replicas)
        return err_set(ERR_ARGUMENT, "replica %d of %d", replica, replicas);
    int32_t only = program_only_stage(program);
    bool bare = program->n_instrs == 0 || only == stage->index;
    Check check = {program, stage, replica, replicas, n_micro, bare ? stage->index : -1, {0}};
    int rc = program_index_init(&check.index, program);
    if (rc >= 0)
        rc = check_micros(&check);
    if (rc >= 0)
        rc = check_text(&check);
    program_index_done(&check.index);
    return rc < 0 ? rc : 0;
}

/* Passes over programs: lower, recompute, hoist. */
#include <stdlib.h>

#include "core/err.h"
#include "core/program_parts.h"

/* Fetches stand in the order in which the other stages can have made their objects (activations:
 * earlier stages first; gradients: later stages first), publications in the order in which they are
 * wanted (nearest stage first). */
static int add_before(const Stage *stage, const Instr *instr, Program *program) {
    if (instr->op == INSTR_FORWARD) {
        for (int32_t e = 0; e < stage->n_in; e++)
            TRY(program_add(program, INSTR_FETCH_ACT, stage->index, instr->micro,
                            stage->in[e].producer));
    } else if (program_is_grad_input(instr->op)) {
        for (int32_t e = stage->n_out - 1; e >= 0; e--) {
            if (stage->out[e].n_grads > 0)
                TRY(program_add(program, INSTR_FETCH_GRAD, stage->index, instr->micro,
                                stage->out[e].consumer));
        }
    }
    return 0;
}

static int add_behind(const Stage *stage, const Instr *instr, Program *program) {
    if (instr->op == INSTR_FORWARD) {
        for (int32_t e = 0; e < stage->n_out; e++)
            TRY(program_add(program, INSTR_PUBLISH_ACT, stage->index, instr->micro,
                            stage->out[e].consumer));
    } else if (program_is_grad_input(instr->op)) {
        for (int32_t e = stage->n_in - 1; e >= 0; e--) {
            if (stage->in[e].n_grads > 0)
                TRY(program_add(program, INSTR_PUBLISH_GRAD, stage->index, instr->micro,
                                stage->in[e].producer));
        }
    }
    return 0;
}

/* A worker with several stages reduces them all before it updates the first: "0R 2R 0U 2U", since
 * an update may wait for the norm over all stages. */
static int lower_into(const Stage *stage, const Program *compute, Program *program) {
    bool reduced = compute->forward_only;
    for (int32_t i = 0; i < compute->n_instrs; i++) {
        const Instr *instr = &compute->instrs[i];
        bool own = instr->stage == stage->index;
        if (own && (program_queue(instr->op) != QUEUE_COMPUTE || instr->micro < 0)) {
            char token[PROGRAM_TOKEN_BYTES];
            return err_set(ERR_ARGUMENT, "cannot lower '%s': stage %d is lowered already",
                           program_instr_text(instr, -1, token, sizeof token), stage->index);
        }
        if (!reduced && instr->op == INSTR_UPDATE) {
            TRY(program_add(program, INSTR_REDUCE, stage->index, -1, -1));
            reduced = true;
        }
        if (own)
            TRY(add_before(stage, instr, program));
        TRY(program_append(program, instr));
        if (own)
            TRY(add_behind(stage, instr, program));
    }
    if (compute->forward_only)
        return 0;
    if (!reduced)
        TRY(program_add(program, INSTR_REDUCE, stage->index, -1, -1));
    return program_add(program, INSTR_UPDATE, stage->index, -1, -1);
}

int program_lower(const Stage *stage, const Program *compute, Program *out_program) {
    Program program;
    program_init(&program);
    int rc = lower_into(stage, compute, &program);
    if (rc < 0)
        program_done(&program);
    else
        *out_program = program;
    return rc;
}

static int recompute_into(const Program *program, int32_t stage, Program *out) {
    for (int32_t i = 0; i < program->n_instrs; i++) {
        const Instr *instr = &program->instrs[i];
        if (instr->stage == stage && program_is_grad_input(instr->op))
            TRY(program_add(out, INSTR_RECOMPUTE, stage, instr->micro, -1));
        TRY(program_append(out, instr));
    }
    return 0;
}

int program_recompute(Program *program, int32_t stage) {
    Program out;
    program_init(&out);
    int rc = recompute_into(program, stage, &out);
    if (rc < 0) {
        program_done(&out);
        return rc;
    }
    program_replace(program, &out);
    return 0;
}

/* ---- hoist ----
 *
 * The order of the fetches among themselves stays: they share one queue, so a fetch that jumped
 * over another might wait for an object that is made only after that other one was used. What moves
 * is their place among the computations, and so the slots: a fetch that stands earlier gets a slot
 * that was free earlier. A program that could run before can therefore run after it. */

typedef struct Hoist {
    const Program *program;
    int32_t depth;
    int32_t *anchor; /* per F, B, I: the one `depth` before it in its stage (or the first) */
    int32_t *lowest; /* per fetch: in front of which instruction it may stand at the earliest */
} Hoist;

static int compare_keys(const void *a, const void *b) {
    const IndexEntry *x = a;
    const IndexEntry *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->instr < y->instr ? -1 : x->instr > y->instr;
}

static int find_anchors(const Hoist *hoist) {
    const Program *program = hoist->program;
    IndexEntry *entries = malloc((size_t)program->n_instrs * sizeof *entries);
    if (!entries)
        return err_set(ERR_MEMORY, "a program of %d instructions", program->n_instrs);
    int32_t n = 0;
    for (int32_t i = 0; i < program->n_instrs; i++) {
        const Instr *instr = &program->instrs[i];
        bool back = program_is_grad_input(instr->op);
        if (instr->op == INSTR_FORWARD || back)
            entries[n++] = (IndexEntry){(uint64_t)instr->stage * 2 + back, i};
    }
    qsort(entries, (size_t)n, sizeof *entries, compare_keys);
    int32_t first = 0;
    for (int32_t i = 0; i < n; i++) {
        if (entries[i].key != entries[first].key)
            first = i;
        int32_t at = i - first > hoist->depth ? i - hoist->depth : first;
        hoist->anchor[entries[i].instr] = entries[at].instr;
    }
    free(entries);
    return 0;
}

/* The fetches of one micro-batch of one stage. Gradients cannot come before its activations went
 * out, so those fetches stay behind. */
static void find_lowest(const Hoist *hoist, const ProgramIndex *index, int32_t first, int32_t end) {
    int32_t forward = -1;
    int32_t backward = -1;
    int32_t behind = 0;
    for (int32_t e = first; e < end; e++) {
        int32_t i = index->entries[e].instr;
        Opcode op = hoist->program->instrs[i].op;
        if (op == INSTR_FORWARD && forward < 0)
            forward = i;
        if (program_is_grad_input(op) && backward < 0)
            backward = i;
        if ((op == INSTR_FORWARD || op == INSTR_PUBLISH_ACT) && i >= behind)
            behind = i + 1;
    }
    for (int32_t e = first; e < end; e++) {
        int32_t i = index->entries[e].instr;
        Opcode op = hoist->program->instrs[i].op;
        hoist->lowest[i] = i;
        if (op == INSTR_FETCH_ACT && forward >= 0)
            hoist->lowest[i] = hoist->anchor[forward];
        if (op == INSTR_FETCH_GRAD && backward >= 0)
            hoist->lowest[i] = behind > hoist->anchor[backward] ? behind : hoist->anchor[backward];
    }
}

static int32_t next_fetch(const Program *program, int32_t from) {
    while (from < program->n_instrs && !program_is_fetch(program->instrs[from].op))
        from++;
    return from;
}

/* Where the fetch goes, after the one in front of it went to `previous`. */
static int32_t fetch_target(const Hoist *hoist, int32_t fetch, int32_t previous) {
    if (fetch >= hoist->program->n_instrs)
        return fetch;
    int32_t target = hoist->lowest[fetch] > previous ? hoist->lowest[fetch] : previous;
    return target < fetch ? target : fetch;
}

static int hoist_into(const Hoist *hoist, Program *out) {
    const Program *program = hoist->program;
    int32_t fetch = next_fetch(program, 0);
    int32_t target = fetch_target(hoist, fetch, 0);
    for (int32_t i = 0; i < program->n_instrs; i++) {
        while (fetch < program->n_instrs && target == i) {
            TRY(program_append(out, &program->instrs[fetch]));
            fetch = next_fetch(program, fetch + 1);
            target = fetch_target(hoist, fetch, target);
        }
        if (!program_is_fetch(program->instrs[i].op))
            TRY(program_append(out, &program->instrs[i]));
    }
    return 0;
}

int program_hoist(Program *program, int32_t depth) {
    if (depth < 0)
        return err_set(ERR_ARGUMENT, "hoisting by %d micro-batches", depth);
    if (depth == 0 || program->n_instrs == 0)
        return 0;
    size_t n = (size_t)program->n_instrs;
    Hoist hoist = {program, depth, calloc(n, sizeof(int32_t)), calloc(n, sizeof(int32_t))};
    ProgramIndex index = {0};
    Program out;
    program_init(&out);
    int rc = hoist.anchor && hoist.lowest ? 0 : err_set(ERR_MEMORY, "hoisting fetches");
    TRY_DONE(rc);
    TRY_DONE(find_anchors(&hoist));
    TRY_DONE(program_index_init(&index, program));
    for (int32_t e = 0; e < index.n; e = program_index_end(&index, e))
        find_lowest(&hoist, &index, e, program_index_end(&index, e));
    TRY_DONE(hoist_into(&hoist, &out));
    program_replace(program, &out);
done:
    free(hoist.anchor);
    free(hoist.lowest);
    program_index_done(&index);
    program_done(&out);
    return rc < 0 ? rc : 0;
}

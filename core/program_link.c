/* Slots and dependencies.
 *
 * A micro-batch of a stage lives from its first instruction in the text to its last; while it lives
 * it owns a slot. Slots are given in order of first instruction, each time the one that has been
 * free the longest, and a new one only when all are taken: so there are as many as live at once.
 * The previous owner of the first owner's slot is the slot's last owner in the text, one step back.
 *
 * Dependencies are: a forward on its fetches, a backward on its gradients' fetches, a publication
 * on the computation that made it, a second forward on the publications of the first; and for the
 * slot: the micro-batch's first fetch (its later fetches stand behind that in the same queue), and
 * its forward when it fetches no activations, on the previous owner's last users, which are its
 * last computation and its publications. A gradient fetch is thus held back until the slot is its
 * own, but not until its forward is done. What the order of the compute queue gives already is left
 * out. All dependencies within a step point backwards in the text of a program that program_check
 * accepts. */
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/program_parts.h"

/* What a micro-batch of a stage does: places in the text, or -1. */
typedef struct Life {
    int32_t first_entry, end_entry; /* in the index */
    int32_t first, last;            /* instructions */
    int32_t forward, grad_input, first_fetch, last_compute;
    bool fetches_act;
    int32_t previous; /* the slot's owner before: a life; steps_back says of which step */
    int32_t steps_back;
} Life;

typedef struct Linker {
    Program *program;
    ProgramIndex index;
    int32_t n_lives, n_open;
    Life *lives;      /* by stage, then micro */
    int32_t *life_of; /* per instruction */
    int32_t *owner;   /* per slot of the stage at hand: its latest life, or -1 */
    int32_t *first;   /* per slot of the stage at hand: its first life */
} Linker;

static int describe_life(const Linker *linker, Life *life) {
    const Program *program = linker->program;
    for (int32_t e = life->first_entry; e < life->end_entry; e++) {
        int32_t i = linker->index.entries[e].instr;
        const Instr *instr = &program->instrs[i];
        if (e > life->first_entry &&
            linker->index.entries[e].key == linker->index.entries[e - 1].key) {
            char token[PROGRAM_TOKEN_BYTES];
            return err_set(ERR_ARGUMENT, "cannot link: %s is there twice",
                           program_instr_text(instr, -1, token, sizeof token));
        }
        life->first = i < life->first ? i : life->first;
        life->last = i > life->last ? i : life->last;
        if (instr->op == INSTR_FORWARD)
            life->forward = i;
        if (program_is_grad_input(instr->op))
            life->grad_input = i;
        if (program_queue(instr->op) == QUEUE_COMPUTE && i > life->last_compute)
            life->last_compute = i;
        if (program_is_fetch(instr->op) && (life->first_fetch < 0 || i < life->first_fetch))
            life->first_fetch = i;
        life->fetches_act |= instr->op == INSTR_FETCH_ACT;
    }
    return 0;
}

static int find_lives(Linker *linker) {
    const ProgramIndex *index = &linker->index;
    for (int32_t e = 0; e < index->n;) {
        int32_t end = program_index_end(index, e);
        const Instr *instr = &linker->program->instrs[index->entries[e].instr];
        Life life = {.first_entry = e,
                     .end_entry = end,
                     .first = index->entries[e].instr,
                     .last = -1,
                     .forward = -1,
                     .grad_input = -1,
                     .first_fetch = -1,
                     .last_compute = -1,
                     .previous = -1};
        e = end;
        if (instr->micro < 0)
            continue; /* R and U */
        TRY(describe_life(linker, &life));
        for (int32_t i = life.first_entry; i < end; i++)
            linker->life_of[index->entries[i].instr] = linker->n_lives;
        linker->lives[linker->n_lives++] = life;
    }
    return 0;
}

/* ---- slots ---- */

typedef struct FreeSlots { /* a ring: the one that has been free the longest comes first */
    int32_t *slots;
    int32_t first, n, capacity;
} FreeSlots;

static int32_t take_slot(FreeSlots *ring, int32_t *n_slots) {
    if (ring->n == 0)
        return (*n_slots)++;
    int32_t slot = ring->slots[ring->first];
    ring->first = (ring->first + 1) % ring->capacity;
    ring->n--;
    return slot;
}

static void give_slot(FreeSlots *ring, int32_t slot) {
    ring->slots[(ring->first + ring->n) % ring->capacity] = slot;
    ring->n++;
}

/* Begin or end of a life, in text order. */
typedef struct Event {
    int32_t instr, life;
    bool ends;
} Event;

static int compare_events(const void *a, const void *b) {
    const Event *x = a;
    const Event *y = b;
    if (x->instr != y->instr)
        return x->instr < y->instr ? -1 : 1;
    return (int)x->ends - (int)y->ends; /* a life of one instruction: it begins first */
}

/* The lives [first, end) are those of one stage. */
static void give_stage_slots(Linker *linker, int32_t first, int32_t end, Event *events,
                             FreeSlots *ring) {
    int32_t n_slots = 0;
    int32_t n_events = 0;
    for (int32_t l = first; l < end; l++) {
        events[n_events++] = (Event){linker->lives[l].first, l, false};
        events[n_events++] = (Event){linker->lives[l].last, l, true};
    }
    qsort(events, (size_t)n_events, sizeof *events, compare_events);
    ring->first = 0;
    ring->n = 0;
    for (int32_t i = 0; i < n_events; i++) {
        Life *life = &linker->lives[events[i].life];
        Instr *instr = &linker->program->instrs[life->first];
        if (events[i].ends) {
            give_slot(ring, instr->slot);
            continue;
        }
        int32_t before = n_slots;
        instr->slot = take_slot(ring, &n_slots);
        if (n_slots > before)
            linker->first[instr->slot] = events[i].life;
        else
            life->previous = linker->owner[instr->slot];
        linker->owner[instr->slot] = events[i].life;
    }
    for (int32_t slot = 0; slot < n_slots; slot++) {
        Life *life = &linker->lives[linker->first[slot]];
        life->previous = linker->owner[slot];
        life->steps_back = 1;
    }
    if (n_slots > linker->program->n_slots)
        linker->program->n_slots = n_slots;
}

static int32_t life_stage(const Linker *linker, int32_t life) {
    return linker->program->instrs[linker->lives[life].first].stage;
}

static int give_slots(Linker *linker) {
    size_t n = (size_t)linker->n_lives;
    if (n == 0)
        return 0;
    Event *events = malloc(2 * n * sizeof *events);
    FreeSlots ring = {malloc(n * sizeof(int32_t)), 0, 0, linker->n_lives};
    int rc = events && ring.slots ? 0 : err_set(ERR_MEMORY, "the slots of a program");
    for (int32_t first = 0; rc == 0 && first < linker->n_lives;) {
        int32_t end = first + 1;
        while (end < linker->n_lives && life_stage(linker, end) == life_stage(linker, first))
            end++;
        give_stage_slots(linker, first, end, events, &ring);
        first = end;
    }
    free(events);
    free(ring.slots);
    return rc;
}

/* ---- dependencies ---- */

static int add_dep(Program *program, Instr *instr, int32_t on, int32_t steps_back) {
    if (program->n_deps == program->cap_deps) {
        int32_t cap = program->cap_deps ? program->cap_deps * 2 : 64;
        if (cap > PROGRAM_MAX_DEPS)
            return err_set(ERR_LIMIT, "a program of more than %d dependencies", PROGRAM_MAX_DEPS);
        Dep *deps = realloc(program->deps, (size_t)cap * sizeof *deps);
        if (!deps)
            return err_set(ERR_MEMORY, "a program of %d dependencies", cap);
        program->deps = deps;
        program->cap_deps = cap;
    }
    program->deps[program->n_deps++] = (Dep){on, steps_back};
    instr->n_deps++;
    return 0;
}

/* On every instruction of the life with opcode `op`. */
static int depend_on_all(Linker *linker, Instr *instr, const Life *life, Opcode op,
                         int32_t steps_back) {
    for (int32_t e = life->first_entry; e < life->end_entry; e++) {
        int32_t i = linker->index.entries[e].instr;
        if (linker->program->instrs[i].op == op)
            TRY(add_dep(linker->program, instr, i, steps_back));
    }
    return 0;
}

static int depend_on_slot(Linker *linker, Instr *instr, const Life *life) {
    const Life *previous = &linker->lives[life->previous];
    if (program_queue(instr->op) != QUEUE_COMPUTE && previous->last_compute >= 0)
        TRY(add_dep(linker->program, instr, previous->last_compute, life->steps_back));
    TRY(depend_on_all(linker, instr, previous, INSTR_PUBLISH_ACT, life->steps_back));
    return depend_on_all(linker, instr, previous, INSTR_PUBLISH_GRAD, life->steps_back);
}

static int depend_on_maker(Linker *linker, Instr *instr, int32_t maker) {
    char token[PROGRAM_TOKEN_BYTES];
    if (maker < 0)
        return err_set(ERR_ARGUMENT, "cannot link: nothing computes what %s publishes",
                       program_instr_text(instr, -1, token, sizeof token));
    return add_dep(linker->program, instr, maker, 0);
}

static int link_instr(Linker *linker, int32_t i) {
    Instr *instr = &linker->program->instrs[i];
    instr->first_dep = linker->program->n_deps;
    instr->n_deps = 0;
    if (instr->micro < 0) {
        instr->slot = -1;
        return 0;
    }
    const Life *life = &linker->lives[linker->life_of[i]];
    instr->slot = linker->program->instrs[life->first].slot;
    if (i == life->first_fetch || (i == life->forward && !life->fetches_act))
        TRY(depend_on_slot(linker, instr, life));
    switch (instr->op) {
    case INSTR_FORWARD:
        return depend_on_all(linker, instr, life, INSTR_FETCH_ACT, 0);
    case INSTR_BACKWARD:
    case INSTR_BACKWARD_I:
        return depend_on_all(linker, instr, life, INSTR_FETCH_GRAD, 0);
    case INSTR_RECOMPUTE: /* it writes again what those publications read */
        return depend_on_all(linker, instr, life, INSTR_PUBLISH_ACT, 0);
    case INSTR_PUBLISH_ACT:
        return depend_on_maker(linker, instr, life->forward);
    case INSTR_PUBLISH_GRAD:
        return depend_on_maker(linker, instr, life->grad_input);
    default:
        return 0; /* the order of the queues says it all */
    }
}

int program_link(Program *program) {
    size_t n = (size_t)program->n_instrs + 1;
    Linker linker = {.program = program,
                     .lives = malloc(n * sizeof(Life)),
                     .life_of = malloc(n * sizeof(int32_t)),
                     .owner = malloc(n * sizeof(int32_t)),
                     .first = malloc(n * sizeof(int32_t))};
    int rc = 0;
    program->linked = false;
    program->n_deps = 0;
    program->n_slots = 0;
    if (!linker.lives || !linker.life_of || !linker.owner || !linker.first) {
        rc = err_set(ERR_MEMORY, "a program of %d instructions", program->n_instrs);
        goto done;
    }
    TRY_DONE(program_index_init(&linker.index, program));
    TRY_DONE(find_lives(&linker));
    TRY_DONE(give_slots(&linker));
    for (int32_t i = 0; i < program->n_instrs; i++)
        TRY_DONE(link_instr(&linker, i));
    program->linked = true;
done:
    program_index_done(&linker.index);
    free(linker.lives);
    free(linker.life_of);
    free(linker.owner);
    free(linker.first);
    return rc < 0 ? rc : 0;
}

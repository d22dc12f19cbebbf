/* All workers of a plan at once: run their queues in the abstract, over two steps so that the
 * dependencies on the step before count too, and see whether they come to the end.
 *
 * An instruction of a queue's head is done as soon as nothing holds it back: a dependency, an
 * object that is not published, a full window, a reduction that not all have reached. Nothing is
 * ever taken back and no choice is made (an object has one writer and one reader, a window belongs
 * to one pair of workers and one direction of an edge), so the order of trying does not matter:
 * what gets stuck here gets stuck always, and the other way round. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/program_parts.h"

enum { N_STEPS = 2, SHOWN_WORKERS = 6 };

typedef struct Worker {
    const Program *program;
    int32_t *queue[QUEUE_N]; /* instructions, in text order */
    int64_t length[QUEUE_N];
    int64_t done[QUEUE_N];             /* over all steps */
    int32_t *place;                    /* per instruction: its place in its queue */
    int32_t *object;                   /* per fetch and publication: its object */
    int64_t first_reduce, last_reduce; /* places in the compute queue, or -1 */
} Worker;

/* What one worker publishes for another, once a step. */
typedef struct Object {
    bool grad;
    int32_t producer, consumer, micro; /* stages of the edge */
    int32_t writer, write_instr;       /* worker -1: nobody */
    int32_t reader, read_instr;
    int32_t channel;
    int64_t written; /* steps */
} Object;

typedef struct Sim {
    int32_t n_workers, window;
    Worker *workers;
    int32_t n_objects;
    Object *objects;
    int64_t *unread; /* per channel */
} Sim;

/* Whose progress is waited for. worker -1: for nobody's, it can go on. */
typedef struct Wait {
    int32_t worker;
    Queue queue;
} Wait;

static const Wait GO = {-1, QUEUE_COMPUTE};

/* ---- building ---- */

static int init_worker(Worker *worker, const Program *program) {
    size_t n = (size_t)program->n_instrs + 1;
    worker->program = program;
    worker->first_reduce = -1;
    worker->last_reduce = -1;
    worker->place = malloc(n * sizeof *worker->place);
    worker->object = malloc(n * sizeof *worker->object);
    for (int q = 0; q < QUEUE_N; q++) {
        worker->queue[q] = malloc(n * sizeof *worker->queue[q]);
        if (!worker->queue[q])
            return err_set(ERR_MEMORY, "the queues of a worker");
    }
    if (!worker->place || !worker->object)
        return err_set(ERR_MEMORY, "the queues of a worker");
    for (int32_t i = 0; i < program->n_instrs; i++) {
        Opcode op = program->instrs[i].op;
        Queue q = program_queue(op);
        worker->place[i] = (int32_t)worker->length[q];
        if (op == INSTR_REDUCE && worker->first_reduce < 0)
            worker->first_reduce = worker->length[q];
        if (op == INSTR_REDUCE)
            worker->last_reduce = worker->length[q];
        worker->queue[q][worker->length[q]++] = i;
    }
    return 0;
}

static Object object_of(const Instr *instr, int32_t worker, int32_t i) {
    bool reads = program_is_fetch(instr->op);
    bool grad = instr->op == INSTR_FETCH_GRAD || instr->op == INSTR_PUBLISH_GRAD;
    bool is_producer = reads == grad; /* publishes activations or fetches gradients */
    return (Object){.grad = grad,
                    .producer = is_producer ? instr->stage : instr->peer,
                    .consumer = is_producer ? instr->peer : instr->stage,
                    .micro = instr->micro,
                    .writer = reads ? -1 : worker,
                    .write_instr = reads ? -1 : i,
                    .reader = reads ? worker : -1,
                    .read_instr = reads ? i : -1};
}

static int compare_i32(int32_t a, int32_t b) {
    return a < b ? -1 : a > b;
}

static int compare_edges(const Object *x, const Object *y) {
    if (x->grad != y->grad)
        return x->grad ? 1 : -1;
    int order = compare_i32(x->producer, y->producer);
    return order ? order : compare_i32(x->consumer, y->consumer);
}

/* By edge, micro-batch, writers before readers. */
static int compare_objects(const void *a, const void *b) {
    const Object *x = a;
    const Object *y = b;
    int order = compare_edges(x, y);
    if (order == 0)
        order = compare_i32(x->micro, y->micro);
    if (order == 0)
        order = compare_i32(x->writer < 0, y->writer < 0);
    return order ? order : compare_i32(x->writer + x->reader, y->writer + y->reader);
}

static int compare_channels(const void *a, const void *b) {
    const Object *x = *(const Object *const *)a;
    const Object *y = *(const Object *const *)b;
    int order = compare_edges(x, y);
    if (order == 0)
        order = compare_i32(x->writer, y->writer);
    return order ? order : compare_i32(x->reader, y->reader);
}

/* "worker 1 (stage 1)" */
static const char *worker_text(const Sim *sim, int32_t worker, char *buf, size_t buf_bytes) {
    Buf text;
    buf_init(&text, 0);
    const Program *program = sim->workers[worker].program;
    assert(program);
    int32_t last = -1;
    int32_t n = 0;
    buf_printf(&text, "worker %d (stage", worker);
    for (int32_t i = 0; i < program->n_instrs && n < 4;
         i++) { /* each stage where it first stands */
        int32_t stage = program->instrs[i].stage;
        bool seen = stage == last;
        for (int32_t j = 0; j < i && !seen; j++)
            seen = program->instrs[j].stage == stage;
        if (!seen)
            buf_printf(&text, "%s%d", n++ ? "," : " ", stage);
        last = stage;
    }
    buf_text(&text, ")");
    size_t bytes = text.bytes < buf_bytes ? text.bytes : buf_bytes - 1;
    memcpy(buf, buf_string(&text), bytes);
    buf[bytes] = '\0';
    buf_done(&text);
    return buf;
}

static const char *instr_text(const Sim *sim, int32_t worker, int32_t instr, char *buf) {
    const Program *program = sim->workers[worker].program;
    return program_instr_text(&program->instrs[instr], program_only_stage(program), buf,
                              PROGRAM_TOKEN_BYTES);
}

/* Objects without both ends, or with an end too many. */
static int object_error(const Sim *sim, const Object *object, const Object *second) {
    char who[64];
    char other[64];
    char token[PROGRAM_TOKEN_BYTES];
    int32_t worker = object->writer >= 0 ? object->writer : object->reader;
    int32_t i = object->writer >= 0 ? object->write_instr : object->read_instr;
    worker_text(sim, worker, who, sizeof who);
    instr_text(sim, worker, i, token);
    if (!second)
        return err_set(ERR_ARGUMENT, "%s: nobody %s what its %s %s", who,
                       object->writer >= 0 ? "fetches" : "publishes", token,
                       object->writer >= 0 ? "publishes" : "fetches");
    worker = second->writer >= 0 ? second->writer : second->reader;
    return err_set(ERR_ARGUMENT, "%s and %s both have %s", who,
                   worker_text(sim, worker, other, sizeof other), token);
}

/* Join every writer with its reader. */
static int join_objects(Sim *sim) {
    int32_t n = 0;
    for (int32_t i = 0; i < sim->n_objects;) {
        Object *writer = &sim->objects[i];
        Object *reader = writer + 1;
        bool pair = i + 1 < sim->n_objects && compare_edges(writer, reader) == 0 &&
                    writer->micro == reader->micro;
        if (!pair)
            return object_error(sim, writer, NULL);
        if ((writer->writer < 0) == (reader->writer < 0))
            return object_error(sim, writer, reader);
        Object *third = reader + 1;
        if (i + 2 < sim->n_objects && compare_edges(reader, third) == 0 &&
            reader->micro == third->micro)
            return object_error(sim, reader, third);
        Object joined = *writer;
        assert(joined.writer >= 0 && reader->reader >= 0); /* writers sort before readers */
        assert(sim->workers[joined.writer].object && sim->workers[reader->reader].object);
        joined.reader = reader->reader;
        joined.read_instr = reader->read_instr;
        sim->workers[joined.writer].object[joined.write_instr] = n;
        sim->workers[joined.reader].object[joined.read_instr] = n;
        sim->objects[n++] = joined;
        i += 2;
    }
    sim->n_objects = n;
    return 0;
}

static int give_channels(Sim *sim) {
    size_t n = (size_t)sim->n_objects;
    Object **sorted = malloc((n + 1) * sizeof(Object *));
    sim->unread = calloc(n + 1, sizeof *sim->unread);
    if (!sorted || !sim->unread) {
        free(sorted);
        return err_set(ERR_MEMORY, "the objects of a plan");
    }
    for (size_t i = 0; i < n; i++)
        sorted[i] = &sim->objects[i];
    qsort(sorted, n, sizeof(Object *), compare_channels);
    for (size_t i = 1; i < n; i++) {
        bool same = compare_channels(&sorted[i - 1], &sorted[i]) == 0;
        sorted[i]->channel = sorted[i - 1]->channel + !same;
    }
    free(sorted);
    return 0;
}

static int init_objects(Sim *sim) {
    int64_t n = 0;
    for (int32_t w = 0; w < sim->n_workers; w++)
        n += sim->workers[w].length[QUEUE_FETCH] + sim->workers[w].length[QUEUE_PUBLISH];
    if (n > INT32_MAX / 2)
        return err_set(ERR_LIMIT, "a plan that moves %lld objects a step", (long long)n);
    sim->objects = malloc((size_t)(n + 1) * sizeof *sim->objects);
    if (!sim->objects)
        return err_set(ERR_MEMORY, "the objects of a plan");
    for (int32_t w = 0; w < sim->n_workers; w++) {
        const Program *program = sim->workers[w].program;
        for (int32_t i = 0; i < program->n_instrs; i++) {
            if (program_queue(program->instrs[i].op) != QUEUE_COMPUTE)
                sim->objects[sim->n_objects++] = object_of(&program->instrs[i], w, i);
        }
    }
    qsort(sim->objects, (size_t)sim->n_objects, sizeof *sim->objects, compare_objects);
    TRY(join_objects(sim));
    return give_channels(sim);
}

static void sim_done(Sim *sim) {
    for (int32_t w = 0; sim->workers && w < sim->n_workers; w++) {
        for (int q = 0; q < QUEUE_N; q++)
            free(sim->workers[w].queue[q]);
        free(sim->workers[w].place);
        free(sim->workers[w].object);
    }
    free(sim->workers);
    free(sim->objects);
    free(sim->unread);
}

/* ---- running ---- */

static bool is_done(const Worker *worker, int32_t instr, int64_t step) {
    Queue q = program_queue(worker->program->instrs[instr].op);
    return step < 0 || worker->done[q] > step * worker->length[q] + worker->place[instr];
}

static bool has_reached(const Worker *worker, int64_t place, int64_t step) {
    return place < 0 || worker->done[QUEUE_COMPUTE] >= step * worker->length[QUEUE_COMPUTE] + place;
}

/* Workers agree on norms and on whether the step counts: a reduction ends when every worker has
 * come to its first, an update when every worker has come to its last. */
static Wait wait_for_all(const Sim *sim, bool update, int64_t step) {
    for (int32_t w = 0; w < sim->n_workers; w++) {
        const Worker *worker = &sim->workers[w];
        if (!has_reached(worker, update ? worker->last_reduce : worker->first_reduce, step))
            return (Wait){w, QUEUE_COMPUTE};
    }
    return GO;
}

static bool is_finished(const Worker *worker, Queue queue) {
    return worker->done[queue] >= N_STEPS * worker->length[queue];
}

/* What the head of the queue waits for. */
static Wait wait_of(const Sim *sim, int32_t w, Queue queue) {
    const Worker *worker = &sim->workers[w];
    int64_t step = worker->done[queue] / worker->length[queue];
    int32_t i = worker->queue[queue][worker->done[queue] % worker->length[queue]];
    const Instr *instr = &worker->program->instrs[i];
    for (int32_t d = 0; d < instr->n_deps; d++) {
        Dep dep = worker->program->deps[instr->first_dep + d];
        if (!is_done(worker, dep.instr, step - dep.steps_back))
            return (Wait){w, program_queue(worker->program->instrs[dep.instr].op)};
    }
    if (instr->op == INSTR_REDUCE || instr->op == INSTR_UPDATE)
        return wait_for_all(sim, instr->op == INSTR_UPDATE, step);
    if (queue == QUEUE_COMPUTE)
        return GO;
    const Object *object = &sim->objects[worker->object[i]];
    if (queue == QUEUE_FETCH)
        return object->written > step ? GO : (Wait){object->writer, QUEUE_PUBLISH};
    if (sim->window > 0 && sim->unread[object->channel] >= sim->window)
        return (Wait){object->reader, QUEUE_FETCH};
    return GO;
}

/* Do what can be done of one queue; true when that was anything. */
static bool advance(Sim *sim, int32_t w, Queue queue) {
    Worker *worker = &sim->workers[w];
    int64_t before = worker->done[queue];
    while (!is_finished(worker, queue) && wait_of(sim, w, queue).worker < 0) {
        int32_t i = worker->queue[queue][worker->done[queue] % worker->length[queue]];
        worker->done[queue]++;
        if (queue == QUEUE_COMPUTE)
            continue;
        Object *object = &sim->objects[worker->object[i]];
        object->written += queue == QUEUE_PUBLISH;
        sim->unread[object->channel] += queue == QUEUE_FETCH ? -1 : 1;
    }
    return worker->done[queue] > before;
}

/* The head that is stuck, of the first queue that is; false when all have finished. */
static bool find_stuck(const Sim *sim, Wait *out_stuck) {
    for (int32_t w = 0; w < sim->n_workers; w++) {
        for (int q = 0; q < QUEUE_N; q++) {
            if (!is_finished(&sim->workers[w], (Queue)q)) {
                *out_stuck = (Wait){w, (Queue)q};
                return true;
            }
        }
    }
    return false;
}

/* Everyone stuck waits for someone stuck, so following leads into a ring. Find where to begin to
 * tell of it: where the worker with the least number waits for another one. */
static Wait find_ring(const Sim *sim, Wait stuck, bool *out_alone) {
    for (int64_t i = 0; i < (int64_t)sim->n_workers * QUEUE_N; i++)
        stuck = wait_of(sim, stuck.worker, stuck.queue); /* now surely in the ring */
    const Wait first = stuck;
    Wait start = stuck;
    *out_alone = true;
    do {
        Wait next = wait_of(sim, stuck.worker, stuck.queue);
        if (next.worker != stuck.worker && (*out_alone || stuck.worker < start.worker)) {
            start = stuck;
            *out_alone = false;
        }
        stuck = next;
    } while (stuck.worker != first.worker || stuck.queue != first.queue);
    return start;
}

static void describe_wait(const Sim *sim, Wait stuck, Wait next, Buf *text) {
    char who[64];
    char token[PROGRAM_TOKEN_BYTES];
    const Worker *worker = &sim->workers[stuck.worker];
    int64_t done = worker->done[stuck.queue];
    int64_t length = worker->length[stuck.queue];
    int32_t instr = worker->queue[stuck.queue][done % length];
    buf_printf(text, "%s%s stands at %s of step %lld and waits for ", text->bytes ? "; " : "",
               worker_text(sim, stuck.worker, who, sizeof who),
               instr_text(sim, stuck.worker, instr, token), (long long)(done / length));
    if (next.worker == stuck.worker)
        buf_text(text, "itself");
    else
        buf_printf(text, "worker %d", next.worker);
}

/* Of the ring, tell the instructions at which one worker waits for another. */
static int describe_ring(const Sim *sim, Wait stuck) {
    Buf text;
    buf_init(&text, 0);
    bool alone;
    Wait start = find_ring(sim, stuck, &alone);
    int32_t n = 0;
    stuck = start;
    do {
        Wait next = wait_of(sim, stuck.worker, stuck.queue);
        if ((alone || next.worker != stuck.worker) && n++ < SHOWN_WORKERS)
            describe_wait(sim, stuck, next, &text);
        stuck = next;
    } while (stuck.worker != start.worker || stuck.queue != start.queue);
    int rc = err_set(ERR_ARGUMENT, "the programs wait for one another: %s%s", buf_string(&text),
                     n > SHOWN_WORKERS ? "; ..." : "");
    buf_done(&text);
    return rc;
}

static int run(Sim *sim) {
    bool moved = true;
    while (moved) {
        moved = false;
        for (int32_t w = 0; w < sim->n_workers; w++) {
            for (int q = 0; q < QUEUE_N; q++)
                moved |= advance(sim, w, (Queue)q);
        }
    }
    Wait stuck;
    return find_stuck(sim, &stuck) ? describe_ring(sim, stuck) : 0;
}

int program_check_all(const Program *const *programs, int32_t n_programs, int32_t window) {
    Sim sim = {.n_workers = n_programs, .window = window};
    int rc = 0;
    if (n_programs < 1 || window < 0)
        return err_set(ERR_ARGUMENT, "%d programs and a window of %d", n_programs, window);
    for (int32_t w = 0; w < n_programs; w++) {
        if (!programs[w]->linked)
            return err_set(ERR_ARGUMENT, "the program of worker %d is not linked", w);
    }
    sim.workers = calloc((size_t)n_programs, sizeof *sim.workers);
    if (!sim.workers)
        return err_set(ERR_MEMORY, "%d workers", n_programs);
    for (int32_t w = 0; w < n_programs; w++)
        TRY_DONE(init_worker(&sim.workers[w], programs[w]));
    TRY_DONE(init_objects(&sim));
    TRY_DONE(run(&sim));
done:
    sim_done(&sim);
    return rc < 0 ? rc : 0;
}

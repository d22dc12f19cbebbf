/* Two workers with two chunks each (stages 0 and 2, 1 and 3) hand tiny objects through a memory
 * relay that holds one unread object per edge. Both must come to the end. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/relay.h"
#include "tests/support/vm_scenarios.h"
#include "worker/vm.h"

enum { N_STEPS = 40, N_MICRO = 4, N_STAGES = 4, N_WORKERS = 2, TIMEOUT_MS = 60000 };

/* Interleaved 1F1B by hand: chunks change every two micro-batches. */
static const char *const texts[N_WORKERS] = {
    "0F0 0>a0 0F1 0>a1 2<a0 2F0 2>a0 2<a1 2F1 2>a1 0F2 0>a2 0F3 0>a3\n"
    "2<g0 2B0 2>g0 2<a2 2F2 2>a2 2<g1 2B1 2>g1 2<a3 2F3 2>a3 0<g0 0B0 0<g1 0B1\n"
    "2<g2 2B2 2>g2 2<g3 2B3 2>g3 0<g2 0B2 0<g3 0B3 0R 0U 2R 2U",
    "1<a0 1F0 1>a0 1<a1 1F1 1>a1 3<a0 3F0 3B0 3>g0 1<a2 1F2 1>a2 3<a1 3F1 3B1 3>g1\n"
    "1<a3 1F3 1>a3 1<g0 1B0 1>g0 3<a2 3F2 3B2 3>g2 1<g1 1B1 1>g1 3<a3 3F3 3B3 3>g3\n"
    "1<g2 1B2 1>g2 1<g3 1B3 1>g3 1R 1U 3R 3U"};

typedef struct Worker {
    Program program;
    Relay *relays[QUEUE_N]; /* fetch's and publish's own */
    Vm *vm;
    pthread_t thread;
    bool started;
    int rc;
    ErrNote note;
    VmTotals totals;
} Worker;

typedef struct Object {
    int64_t step;
    int32_t from, to, micro;
} Object;

static int move(void *ctx, const Instr *instr, int64_t step, int64_t *bytes) {
    Worker *worker = ctx;
    Queue queue = program_queue(instr->op);
    if (queue == QUEUE_COMPUTE)
        return 0;
    bool fetch = queue == QUEUE_FETCH;
    bool gradient = instr->op == INSTR_FETCH_GRAD || instr->op == INSTR_PUBLISH_GRAD;
    Object object = {.step = step,
                     .from = fetch ? instr->peer : instr->stage,
                     .to = fetch ? instr->stage : instr->peer,
                     .micro = instr->micro};
    char key[RELAY_KEY_BYTES];
    snprintf(key, sizeof key, "j/g1/t%" PRId64 "/%c.%d-%d.%d", step, gradient ? 'g' : 'a',
             object.from, object.to, object.micro);
    int64_t deadline_ns = clock_deadline_ms(TIMEOUT_MS);
    *bytes += (int64_t)sizeof object;
    if (!fetch) {
        Slice part = {&object, sizeof object};
        return relay_put(worker->relays[queue], key, &part, 1, deadline_ns);
    }
    Object found;
    size_t n_bytes = 0;
    TRY(relay_get(worker->relays[queue], key, &found, sizeof found, deadline_ns, &n_bytes));
    if (n_bytes != sizeof found || found.step != step || found.from != object.from ||
        found.to != object.to || found.micro != object.micro)
        return err_set(ERR_CORRUPT, "%s holds something else", key);
    return 0;
}

static void interrupt(void *ctx, bool on) {
    Worker *worker = ctx;
    relay_interrupt(worker->relays[QUEUE_FETCH], on);
    relay_interrupt(worker->relays[QUEUE_PUBLISH], on);
}

static int worker_open(Worker *worker, const char *text, RelayMemStore *store) {
    TRY(program_parse("program", text, strlen(text), 0, &worker->program));
    TRY(program_link(&worker->program));
    TRY(relay_mem_open(store, &worker->relays[QUEUE_FETCH]));
    TRY(relay_mem_open(store, &worker->relays[QUEUE_PUBLISH]));
    VmHost host = {.ctx = worker, .run = move, .interrupt = interrupt};
    return vm_open(&worker->program, &host, 64, &worker->vm);
}

static void worker_close(Worker *worker) {
    vm_close(worker->vm);
    relay_close(worker->relays[QUEUE_FETCH]);
    relay_close(worker->relays[QUEUE_PUBLISH]);
    program_done(&worker->program);
}

static void *worker_main(void *arg) {
    Worker *worker = arg;
    worker->rc = vm_run(worker->vm, 0, N_STEPS);
    if (worker->rc < 0)
        err_copy(&worker->note);
    vm_totals(worker->vm, &worker->totals);
    return NULL;
}

static int run_workers(Worker workers[N_WORKERS], RelayMemStore *store, char *why,
                       size_t why_bytes) {
    for (int i = 0; i < N_WORKERS; i++)
        EXPECT(worker_open(&workers[i], texts[i], store) == 0, "worker %d: %s", i, err_text());
    for (int i = 0; i < N_WORKERS; i++)
        workers[i].started =
            pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]) == 0;
    for (int i = 0; i < N_WORKERS; i++) {
        if (workers[i].started)
            pthread_join(workers[i].thread, NULL);
    }
    for (int i = 0; i < N_WORKERS; i++) {
        EXPECT(workers[i].started, "worker %d: no thread", i);
        EXPECT(workers[i].rc == 0, "worker %d: %s", i, workers[i].note.text);
        EXPECT(workers[i].totals.n_steps == N_STEPS, "worker %d: %" PRId64 " steps", i,
               workers[i].totals.n_steps);
    }
    return 0;
}

int vm_two_workers_with_two_chunks_over_a_narrow_relay(char *why, size_t why_bytes) {
    RelayMemStore *store = NULL;
    Worker workers[N_WORKERS] = {0};
    EXPECT(relay_mem_store_open(&store) == 0, "%s", err_text());
    relay_mem_store_window(store, 1);
    for (int i = 0; i < N_WORKERS; i++)
        program_init(&workers[i].program);
    int64_t begin_ns = clock_now_ns();
    int rc = run_workers(workers, store, why, why_bytes);
    int64_t ms = (clock_now_ns() - begin_ns) / CLOCK_NS_PER_MS;
    for (int i = 0; i < N_WORKERS; i++)
        worker_close(&workers[i]);
    relay_mem_store_close(store);
    TRY(rc);
    EXPECT(ms < TIMEOUT_MS, "it took %" PRId64 " ms", ms);
    return 0;
}

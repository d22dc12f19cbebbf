#include "tests/support/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/text.h"
#include "tests/support/sim_internal.h"
#include "tests/support/temp.h"
#include "worker/run.h"

enum { SIM_MAX_ATTEMPTS = 64, SIM_MAX_RULES = 8 };

static int sim_folder_make(char *out, size_t out_bytes) {
    return temp_make(out, out_bytes, "sim") < 0 ? err_set(ERR_IO, "no temporary folder '%s'", out)
                                                : 0;
}

/* ---- a worker's relay ---- */

/* Called on the worker's thread; note how many operations the handle has seen. */
static void sim_close_relay(Relay *relay) {
    SimWorker *worker = (SimWorker *)((uintptr_t)relay->ops - offsetof(SimWorker, ops));
    for (int h = 0; h < SIM_MAX_HANDLES; h++) {
        if (worker->handles[h] == relay && worker->order.attempt == 1) {
            worker->sim->result->operations[worker->index][h] = relay_faulty_operations(relay);
        }
    }
    worker->faulty_ops->close(relay);
}

static int sim_open_relay(void *ctx, const Order *order, Relay **out_relay) {
    SimWorker *worker = ctx;
    Relay *relay = NULL;
    TRY(relay_mem_open(worker->sim->store, &relay));
    const int handle = atomic_fetch_add(&worker->n_handles, 1);
    RelayFaultRule rules[SIM_MAX_RULES];
    int n = 0;
    const SimFaults *faults = worker->sim->faults;
    for (int32_t i = 0; faults != NULL && i < faults->n_faults && n < SIM_MAX_RULES; i++) {
        const SimFault *fault = &faults->faults[i];
        if (fault->stage == worker->stage && fault->replica == worker->replica &&
            fault->attempt == order->attempt && fault->handle == handle) {
            rules[n++] = fault->rule;
        }
    }
    TRY(relay_faulty_open(relay, rules, n, &relay));
    if (handle < SIM_MAX_HANDLES) {
        worker->handles[handle] = relay;
    }
    if (worker->faulty_ops == NULL) { /* the first handle of all: nobody uses one yet */
        worker->faulty_ops = relay->ops;
        worker->ops = *relay->ops;
        worker->ops.close = sim_close_relay;
    }
    relay->ops = &worker->ops;
    *out_relay = relay;
    return 0;
}

/* ---- a worker's instructions ---- */

static int32_t sim_find_instr(const Program *program, const Instr *instr) {
    for (int32_t i = 0; i < program->n_instrs; i++) {
        const Instr *it = &program->instrs[i];
        if (it->op == instr->op && it->micro == instr->micro && it->peer == instr->peer) {
            return i;
        }
    }
    return -1;
}

static int sim_note_use(const SimWorker *worker, int32_t instr, int64_t step, bool eval) {
    SimResult *result = worker->sim->result;
    int rc = 0;
    pthread_mutex_lock(&worker->sim->lock);
    if (result->n_uses == result->cap_uses) {
        int32_t cap = result->cap_uses > 0 ? result->cap_uses * 2 : 256;
        SimUse *uses = realloc(result->uses, (size_t)cap * sizeof *uses);
        if (uses == NULL) {
            rc = err_set(ERR_MEMORY, "the history of a simulation");
            goto done;
        }
        result->uses = uses;
        result->cap_uses = cap;
    }
    result->uses[result->n_uses++] =
        (SimUse){worker->index, instr, worker->order.attempt, step, eval};
done:
    pthread_mutex_unlock(&worker->sim->lock);
    return rc;
}

static int sim_write_control(const SimWorker *worker) {
    const SimFaults *faults = worker->sim->faults;
    Relay *relay = NULL;
    Buf text;
    buf_init(&text, RELAY_NOTE_MAX_BYTES);
    TRY(report_format_control(&faults->control, &text));
    TRY(relay_mem_open(worker->sim->store, &relay));
    Key key = key_control(&worker->sim->space);
    int rc = relay_note_put(relay, key.text, text.data, text.bytes, faults->control_ms);
    relay_close(relay);
    buf_done(&text);
    return rc;
}

static int sim_before(void *ctx, const Instr *instr, int64_t step, bool eval) {
    SimWorker *worker = ctx;
    const SimFaults *faults = worker->sim->faults;
    const int32_t at = sim_find_instr(eval ? &worker->eval : &worker->train, instr);
    for (int32_t i = 0; faults != NULL && i < faults->n_kills; i++) {
        const SimKill *kill = &faults->kills[i];
        if (kill->stage == worker->stage && kill->replica == worker->replica &&
            kill->attempt == worker->order.attempt && kill->step == step && kill->eval == eval &&
            kill->instr == at) {
            return err_set(ERR_KILLED, "killed before instruction %d of step %lld", kill->instr,
                           (long long)step);
        }
    }
    if (!eval && program_queue(instr->op) == QUEUE_COMPUTE) {
        atomic_store(&worker->passed, step);
        if (faults != NULL && faults->control_ms > 0 && worker->index == 0 &&
            worker->order.attempt == 1 && step == faults->control_step) {
            TRY(sim_write_control(worker));
        }
    }
    return instr->micro >= 0 ? sim_note_use(worker, at, step, eval) : 0;
}

static int sim_find_device(void *ctx, const char *name, const DeviceOps **out_ops) {
    const SimWorker *worker = ctx;
    DeferredSetup *setup = worker->sim->job->device;
    return setup != NULL ? device_deferred_find(setup, name, out_ops) : device_find(name, out_ops);
}

/* ---- a worker's life ---- */

/* The run has failed: let those who wait find that they were replaced, and the conductor wake. */
static void sim_fail(Sim *sim, const ErrNote *note) {
    Relay *relay = NULL;
    pthread_mutex_lock(&sim->lock);
    if (sim->failure.code == 0) {
        sim->failure = *note;
    }
    pthread_mutex_unlock(&sim->lock);
    if (atomic_exchange(&sim->failed, true) || sim->relay == NULL) {
        return;
    }
    relay_interrupt(sim->relay, true);
    if (relay_mem_open(sim->store, &relay) < 0) {
        return;
    }
    for (int32_t w = 0; w < sim->n_workers; w++) {
        for (int64_t attempt = 2; attempt <= SIM_MAX_ATTEMPTS; attempt++) {
            const SimWorker *worker = &sim->workers[w];
            Key key = key_fence(&sim->space, worker->stage, worker->replica, attempt);
            relay_put(relay, key.text, NULL, 0, 0);
        }
    }
    relay_close(relay);
}

static void sim_begin_attempt(SimWorker *worker) {
    Sim *sim = worker->sim;
    Order *order = &worker->order;
    order->attempt++;
    atomic_store(&worker->n_handles, 0);
    memset(worker->handles, 0, sizeof worker->handles);
    pthread_mutex_lock(&sim->lock);
    if (order->attempt > 1 && sim->committed >= 0) {
        char number[24];
        snprintf(number, sizeof number, "/%lld", (long long)sim->committed);
        order->first_step = sim->committed;
        text_copy(order->resume_path, sizeof order->resume_path, order->store_path);
        const size_t used = strlen(order->resume_path);
        text_copy(order->resume_path + used, sizeof order->resume_path - used, number);
    }
    atomic_store(&worker->passed, order->first_step);
    pthread_mutex_unlock(&sim->lock);
}

static void *sim_worker_thread(void *arg) {
    SimWorker *worker = arg;
    const WorkerEnv env = {.ctx = worker,
                           .open_relay = sim_open_relay,
                           .before = sim_before,
                           .find_device = sim_find_device};
    for (;;) {
        WorkerResult result;
        sim_begin_attempt(worker);
        int rc = worker_run(&worker->order, &env, &result);
        if (rc >= 0) {
            atomic_store(&worker->passed, INT64_MAX);
            return NULL;
        }
        ErrNote note;
        err_copy(&note);
        if (!err_retry(rc) || worker->order.attempt >= SIM_MAX_ATTEMPTS ||
            atomic_load(&worker->sim->failed)) {
            sim_fail(worker->sim, &note);
            return NULL;
        }
        atomic_fetch_add(&worker->sim->n_restarts, 1);
    }
}

static int sim_program_text(const Program *program, int32_t stage, char **out_text) {
    Buf text;
    buf_init(&text, 0);
    TRY(program_format(program, stage, &text));
    TRY(buf_reserve(&text, 0)); /* a replica may have nothing to do: "" */
    *out_text = buf_take(&text, NULL);
    return 0;
}

static int sim_prepare_worker(Sim *sim, int32_t stage, int32_t replica) {
    if (sim->n_workers == SIM_MAX_WORKERS) {
        return err_set(ERR_LIMIT, "more than %d workers", SIM_MAX_WORKERS);
    }
    SimWorker *worker = &sim->workers[sim->n_workers];
    worker->sim = sim;
    worker->stage = stage;
    worker->replica = replica;
    worker->index = sim->n_workers;
    program_init(&worker->train);
    program_init(&worker->eval);
    TRY(order_copy(&sim->job->order, &worker->order));
    sim->n_workers++;
    TRY(sim_programs(sim->job, stage, replica, &worker->train, &worker->eval));
    worker->order.stage = stage;
    worker->order.replica = replica;
    TRY(text_copy(worker->order.store_path, sizeof worker->order.store_path, sim->result->store));
    TRY(sim_program_text(&worker->train, stage, &worker->order.program));
    return sim_program_text(&worker->eval, stage, &worker->order.eval_program);
}

/* ---- a run ---- */

static int sim_open(Sim *sim) {
    const Order *order = &sim->job->order;
    TRY(sim_folder_make(sim->result->store, sizeof sim->result->store));
    sim->space.generation = order->generation;
    TRY(text_copy(sim->space.job, sizeof sim->space.job, order->job));
    sim->committed = -1;
    sim->dropped = order->first_step;
    if (sim->faults != NULL && sim->faults->store != NULL) {
        sim->store = sim->faults->store;
    } else {
        TRY(relay_mem_store_open(&sim->store));
    }
    TRY(relay_mem_open(sim->store, &sim->relay));
    if (sim->faults != NULL && sim->faults->seed != NULL) {
        TRY(sim->faults->seed(sim->relay, sim->job));
    }
    for (int32_t s = 0; s < order->plan.n_stages; s++) {
        for (int32_t r = 0; r < order->plan.replicas[s]; r++) {
            TRY(sim_prepare_worker(sim, s, r));
        }
    }
    for (int32_t w = 0; w < sim->n_workers; w++) {
        SimWorker *worker = &sim->workers[w];
        atomic_store(&worker->passed, order->first_step);
    }
    for (int32_t w = 0; w < sim->n_workers; w++) {
        SimWorker *worker = &sim->workers[w];
        if (pthread_create(&worker->thread, NULL, sim_worker_thread, worker) != 0) {
            return err_set(ERR_MEMORY, "a worker's thread could not be started");
        }
        worker->started = true;
    }
    return 0;
}

static void sim_join(Sim *sim) {
    for (int32_t w = 0; w < sim->n_workers; w++) {
        if (sim->workers[w].started) {
            pthread_join(sim->workers[w].thread, NULL);
            sim->workers[w].started = false;
        }
    }
}

static void sim_close(Sim *sim) {
    for (int32_t w = 0; w < sim->n_workers; w++) {
        program_done(&sim->workers[w].train);
        program_done(&sim->workers[w].eval);
        order_done(&sim->workers[w].order);
    }
    relay_close(sim->relay);
    if (sim->faults == NULL || sim->faults->store == NULL) {
        relay_mem_store_close(sim->store);
    }
    pthread_mutex_destroy(&sim->lock);
    free(sim);
}

/* What is to be seen when all workers have ended. */
static int sim_conclude(Sim *sim) {
    SimResult *result = sim->result;
    Key key = key_space_prefix(&sim->space);
    int64_t dropped = 0;
    if (!sim->job->order.eval_only) {
        TRY(sim_read_checkpoint(&sim->job->order.model, result->last_checkpoint, result));
    }
    if (sim->faults != NULL && sim->faults->keep) {
        return 0;
    }
    TRY(sim_drop_before(sim, sim->job->order.end_step + 1)); /* the last save's objects too */
    char marks[RELAY_KEY_BYTES + 8]; /* of attempts: they stay as long as the generation */
    snprintf(marks, sizeof marks, "%s/c", key.text);
    TRY(relay_drop_one(sim->relay, marks, &dropped));
    TRY(relay_count(sim->relay, key.text, &result->n_left));
    return relay_drop_one(sim->relay, key.text, &dropped);
}

int sim_run(const SimJob *job, const SimFaults *faults, SimResult *out_result) {
    memset(out_result, 0, sizeof *out_result);
    Sim *sim = calloc(1, sizeof *sim);
    if (sim == NULL) {
        return err_set(ERR_MEMORY, "a simulation does not fit into memory");
    }
    sim->job = job;
    sim->faults = faults;
    sim->result = out_result;
    pthread_mutex_init(&sim->lock, NULL);
    ErrNote note = {0};
    if (sim_open(sim) < 0 || sim_conduct(sim) < 0) {
        err_copy(&note);
        sim_fail(sim, &note);
    }
    sim_join(sim);
    out_result->n_restarts = atomic_load(&sim->n_restarts);
    note = sim->failure;
    if (note.code == 0 && sim_conclude(sim) < 0) {
        err_copy(&note);
    }
    sim_close(sim);
    return note.code < 0 ? err_restore(&note) : 0;
}

#include "tests/support/sim.h"

#include <ftw.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/checkpoint.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/report.h"
#include "core/text.h"
#include "storage/blob.h"
#include "storage/key.h"
#include "storage/safetensors.h"
#include "worker/run.h"

enum { SIM_MAX_ATTEMPTS = 64, SIM_BLOB_BYTES = 1 << 20 };

typedef struct Sim Sim;

typedef struct SimWorker {
    Sim *sim;
    int32_t stage, replica, index;
    pthread_t thread;
    bool started;
    Program train, eval; /* to recognise instructions */
    Order order;
    atomic_int n_handles; /* opened in this attempt */
    Relay *handles[8];
    ErrNote note;
} SimWorker;

struct Sim {
    const SimJob *job;
    const SimFaults *faults;
    RelayMemStore *store;
    Relay *relay; /* the conductor's */
    KeySpace space;
    SimWorker workers[SIM_MAX_WORKERS];
    int32_t n_workers;
    pthread_mutex_t lock;
    int64_t committed; /* step of the last committed checkpoint; -1 none */
    ErrNote failure;   /* first error that may not be restarted */
    atomic_bool failed;
    atomic_int n_restarts;
    SimResult *result;
};

/* ---- the store ---- */

static int sim_folder_make(char *out, size_t out_bytes) {
    snprintf(out, out_bytes, "%s/funcpipe-sim.XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    return mkdtemp(out) == NULL ? err_set(ERR_IO, "no temporary folder '%s'", out) : 0;
}

static int sim_folder_remove_one(const char *path, const struct stat *about, int flag,
                                 struct FTW *ftw) {
    (void)about, (void)flag, (void)ftw;
    return remove(path);
}

/* ---- workers ---- */

static int sim_open_relay(void *ctx, const Order *order, Relay **out_relay) {
    SimWorker *worker = ctx;
    Relay *relay = NULL;
    TRY(relay_mem_open(worker->sim->store, &relay));
    const int handle = atomic_fetch_add(&worker->n_handles, 1);
    RelayFaultRule rules[8];
    int n = 0;
    const SimFaults *faults = worker->sim->faults;
    for (int32_t i = 0; faults != NULL && i < faults->n_faults && n < 8; i++) {
        const SimFault *fault = &faults->faults[i];
        if (fault->stage == worker->stage && fault->replica == worker->replica &&
            fault->attempt == order->attempt && fault->handle == handle) {
            rules[n++] = fault->rule;
        }
    }
    TRY(relay_faulty_open(relay, rules, n, out_relay));
    if (handle < 8) {
        worker->handles[handle] = *out_relay;
    }
    return 0;
}

static bool sim_is_instr(const Program *program, int32_t index, const Instr *instr) {
    if (index < 0 || index >= program->n_instrs) {
        return false;
    }
    const Instr *it = &program->instrs[index];
    return it->op == instr->op && it->micro == instr->micro && it->peer == instr->peer;
}

static int sim_before(void *ctx, const Instr *instr, int64_t step) {
    const SimWorker *worker = ctx;
    const SimFaults *faults = worker->sim->faults;
    for (int h = 0; h < 8; h++) { /* operations so far, for those who want to fail each */
        if (worker->order.attempt == 1 && worker->handles[h] != NULL && h < 3) {
            worker->sim->result->operations[worker->index][h] =
                relay_faulty_operations(worker->handles[h]);
        }
    }
    for (int32_t i = 0; faults != NULL && i < faults->n_kills; i++) {
        const SimKill *kill = &faults->kills[i];
        const Program *program = kill->eval ? &worker->eval : &worker->train;
        if (kill->stage == worker->stage && kill->replica == worker->replica &&
            kill->attempt == worker->order.attempt && kill->step == step &&
            sim_is_instr(program, kill->instr, instr)) {
            return err_set(ERR_KILLED, "killed before instruction %d of step %lld", kill->instr,
                           (long long)step);
        }
    }
    return 0;
}

static void sim_fail(Sim *sim, const ErrNote *note) {
    pthread_mutex_lock(&sim->lock);
    if (sim->failure.code == 0) {
        sim->failure = *note;
    }
    pthread_mutex_unlock(&sim->lock);
    atomic_store(&sim->failed, true);
    relay_interrupt(sim->relay, true);
}

static void sim_set_start(SimWorker *worker) {
    Sim *sim = worker->sim;
    pthread_mutex_lock(&sim->lock);
    if (sim->committed >= 0) {
        worker->order.first_step = sim->committed;
        snprintf(worker->order.resume_path, sizeof worker->order.resume_path, "%s/%lld",
                 worker->order.store_path, (long long)sim->committed);
    }
    pthread_mutex_unlock(&sim->lock);
}

static void *sim_worker_thread(void *arg) {
    SimWorker *worker = arg;
    const WorkerEnv env = {.ctx = worker, .open_relay = sim_open_relay, .before = sim_before};
    for (;;) {
        WorkerResult result;
        worker->order.attempt++;
        atomic_store(&worker->n_handles, 0);
        memset(worker->handles, 0, sizeof worker->handles);
        if (worker->order.attempt > 1) {
            sim_set_start(worker);
        }
        int rc = worker_run(&worker->order, &env, &result);
        if (rc >= 0) {
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

static int sim_prepare_worker(Sim *sim, int32_t stage, int32_t replica) {
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
    Buf text;
    buf_init(&text, 0);
    TRY(program_format(&worker->train, stage, &text));
    worker->order.program = buf_take(&text, NULL);
    TRY(program_format(&worker->eval, stage, &text));
    worker->order.eval_program = buf_take(&text, NULL);
    return 0;
}

/* ---- the small conductor ---- */

static int sim_get(Sim *sim, Key key, void **out_blob, BlobTensor *tensors, size_t *offsets,
                   int max_n, int *out_n) {
    static _Thread_local _Alignas(64) char blob[SIM_BLOB_BYTES];
    size_t bytes = 0;
    TRY(relay_get(sim->relay, key.text, blob, sizeof blob, clock_deadline_ms(sim->job->wait_ms),
                  &bytes));
    *out_blob = blob;
    return blob_parse(blob, bytes, key.text, tensors, offsets, max_n, out_n);
}

static int sim_watch_norms(Sim *sim, int64_t step, int32_t stage, int32_t replica, double *square,
                           double *loss, int64_t *counts) {
    BlobTensor tensors[3];
    size_t offsets[3];
    void *blob;
    int n = 0;
    TRY(sim_get(sim, key_norms(&sim->space, step, stage, replica), &blob, tensors, offsets, 3, &n));
    const double *squares = (const double *)(const void *)((char *)blob + offsets[0]);
    for (int64_t i = 0; i < tensors[0].shape.dims[0]; i++) {
        *square += squares[i];
    }
    const int64_t *got = (const int64_t *)(const void *)((char *)blob + offsets[2]);
    *loss += *(const double *)(const void *)((char *)blob + offsets[1]);
    counts[0] += got[0];
    counts[1] += got[1];
    counts[3] = got[3];
    return 0;
}

static int sim_watch_step(Sim *sim, int64_t step) {
    const PlanSpec *plan = &sim->job->order.plan;
    const int32_t last = plan->n_stages - 1;
    double square = 0.0, loss = 0.0;
    int64_t counts[4] = {0};
    for (int32_t s = 0; s <= last; s++) {
        TRY(sim_watch_norms(sim, step, s, 0, &square, &loss, counts));
    }
    for (int32_t r = 1; r < plan->replicas[last]; r++) {
        TRY(sim_watch_norms(sim, step, last, r, &square, &loss, counts));
    }
    SimResult *result = sim->result;
    if (result->n_steps < SIM_MAX_STEPS) {
        int32_t at = result->n_steps++;
        result->norm[at] = sqrt(square);
        result->valid[at] = counts[0];
        result->correct[at] = counts[1];
        result->skipped[at] = counts[3];
        result->loss[at] = counts[0] > 0 ? loss / (double)counts[0] : 0.0;
    }
    return 0;
}

static int sim_watch_eval(Sim *sim, int64_t step) {
    const PlanSpec *plan = &sim->job->order.plan;
    const int32_t last = plan->n_stages - 1;
    double loss = 0.0;
    int64_t valid = 0, correct = 0;
    for (int32_t r = 0; r < plan->replicas[last]; r++) {
        BlobTensor tensors[2];
        size_t offsets[2];
        void *blob;
        int n = 0;
        TRY(sim_get(sim, key_eval(&sim->space, step, last, r), &blob, tensors, offsets, 2, &n));
        loss += *(const double *)(const void *)((char *)blob + offsets[0]);
        valid += ((const int64_t *)(const void *)((char *)blob + offsets[1]))[0];
        correct += ((const int64_t *)(const void *)((char *)blob + offsets[1]))[1];
    }
    SimResult *result = sim->result;
    if (result->n_evals < SIM_MAX_EVALS) {
        result->eval_loss[result->n_evals] = loss / (double)valid;
        result->eval_accuracy[result->n_evals++] = (double)correct / (double)valid;
    }
    return 0;
}

static int sim_drop_older(Sim *sim, int64_t from, int64_t to) {
    int64_t dropped = 0;
    for (int64_t step = from; step < to; step++) {
        Key key = key_step_prefix(&sim->space, step);
        TRY(relay_drop(sim->relay, key.text, &dropped));
    }
    for (int64_t step = from + 1; step <= to && sim->job->order.has_eval; step++) {
        const Order *order = &sim->job->order;
        for (int64_t b = -1; b < order_steps_per_epoch(order->eval_samples, order->batch); b++) {
            Key key = key_eval_prefix(&sim->space, (KeyPlace){step, b});
            TRY(relay_drop(sim->relay, key.text, &dropped));
        }
    }
    return 0;
}

static int sim_commit(Sim *sim, int64_t step) {
    const Order *order = &sim->job->order;
    Buf text;
    buf_init(&text, SIM_BLOB_BYTES);
    int rc = 0;
    for (int32_t s = 0; rc >= 0 && s < order->plan.n_stages; s++) {
        for (int32_t r = 0; rc >= 0 && r < order->plan.replicas[s]; r++) {
            Key key = key_saved(&sim->space, step, s, r);
            rc = relay_get_buf(sim->relay, key.text, &text, clock_deadline_ms(sim->job->wait_ms));
        }
    }
    buf_done(&text);
    TRY(rc);
    snprintf(sim->result->last_checkpoint, sizeof sim->result->last_checkpoint, "%s/%lld",
             sim->result->store, (long long)step);
    TRY(checkpoint_commit(sim->result->last_checkpoint, order->job, step, &order->model,
                          order->update.kind, order->plan.n_stages));
    pthread_mutex_lock(&sim->lock);
    int64_t before = sim->committed < 0 ? order->first_step : sim->committed;
    sim->committed = step;
    pthread_mutex_unlock(&sim->lock);
    return sim_drop_older(sim, before, step);
}

static int sim_conduct(Sim *sim) {
    const Order *order = &sim->job->order;
    for (int64_t step = order->first_step; step < order->end_step; step++) {
        TRY(sim_watch_step(sim, step));
        if (order->has_eval && order_eval_due(order, step)) {
            TRY(sim_watch_eval(sim, step + 1));
        }
        if (order_save_due(order, step) || step + 1 == order->end_step) {
            TRY(sim_commit(sim, step + 1));
        }
    }
    return 0;
}

/* ---- results ---- */

static int sim_read_params(Sim *sim) {
    const Model *model = &sim->job->order.model;
    SimResult *result = sim->result;
    result->n_params = model->n_params;
    result->params = calloc((size_t)model->n_params + 1, sizeof *result->params);
    result->sizes = calloc((size_t)model->n_params + 1, sizeof *result->sizes);
    for (int32_t s = 0; s < sim->job->order.plan.n_stages; s++) {
        char path[1024];
        Safetensors *file = NULL;
        snprintf(path, sizeof path, "%s/model-%05d-of-%05d.safetensors", result->last_checkpoint,
                 s + 1, sim->job->order.plan.n_stages);
        TRY(safetensors_open(path, &file));
        int rc = 0;
        for (int i = 0; rc >= 0 && i < safetensors_count(file); i++) {
            const SafetensorsEntry *entry = safetensors_at(file, i);
            int32_t param = model_find_param(model, entry->name);
            if (param < 0 || result->params[param] != NULL) {
                rc = err_set(ERR_FORMAT, "tensor '%s' is surplus", entry->name);
                break;
            }
            result->sizes[param] = (int64_t)(entry->bytes / sizeof(float));
            result->params[param] = malloc(entry->bytes + 1);
            rc = safetensors_read(file, entry, result->params[param], entry->bytes);
        }
        safetensors_close(file);
        TRY(rc);
    }
    return 0;
}

void sim_result_done(SimResult *result) {
    for (int32_t p = 0; result->params != NULL && p < result->n_params; p++) {
        free(result->params[p]);
    }
    free(result->params);
    free(result->sizes);
    if (result->store[0] != '\0') {
        nftw(result->store, sim_folder_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    }
    memset(result, 0, sizeof *result);
}

static int sim_open(Sim *sim) {
    const Order *order = &sim->job->order;
    TRY(sim_folder_make(sim->result->store, sizeof sim->result->store));
    sim->space.generation = order->generation;
    TRY(text_copy(sim->space.job, sizeof sim->space.job, order->job));
    sim->committed = -1;
    TRY(relay_mem_store_open(&sim->store));
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
        if (pthread_create(&sim->workers[w].thread, NULL, sim_worker_thread, &sim->workers[w]) !=
            0) {
            return err_set(ERR_MEMORY, "a worker's thread could not be started");
        }
        sim->workers[w].started = true;
    }
    return 0;
}

static void sim_close(Sim *sim) {
    for (int32_t w = 0; w < sim->n_workers; w++) {
        if (sim->workers[w].started) {
            pthread_join(sim->workers[w].thread, NULL);
        }
    }
    for (int32_t w = 0; w < sim->n_workers; w++) {
        program_done(&sim->workers[w].train);
        program_done(&sim->workers[w].eval);
        order_done(&sim->workers[w].order);
    }
    relay_close(sim->relay);
    relay_mem_store_close(sim->store);
    pthread_mutex_destroy(&sim->lock);
    free(sim);
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
    int rc = sim_open(sim);
    if (rc >= 0) {
        rc = sim_conduct(sim);
    }
    ErrNote note = {0};
    if (rc < 0) {
        err_copy(&note);
        atomic_store(&sim->failed, true);
    }
    for (int32_t w = 0; w < sim->n_workers; w++) {
        if (sim->workers[w].started) {
            pthread_join(sim->workers[w].thread, NULL);
            sim->workers[w].started = false;
        }
    }
    out_result->n_restarts = atomic_load(&sim->n_restarts);
    if (sim->failure.code < 0) {
        note = sim->failure;
    } else if (rc >= 0) {
        rc = sim_read_params(sim);
        if (rc >= 0) {
            Key key = key_space_prefix(&sim->space);
            int64_t dropped = 0;
            relay_drop(sim->relay, key.text, &dropped);
            rc = relay_count(sim->relay, key.text, &out_result->n_left);
        }
        if (rc < 0) {
            err_copy(&note);
        }
    }
    sim_close(sim);
    if (note.code < 0) {
        return err_restore(&note);
    }
    return 0;
}

int sim_same(const SimResult *a, const SimResult *b, bool with_losses, char *why,
             size_t why_bytes) {
    for (int32_t p = 0; p < a->n_params; p++) {
        if (a->sizes[p] != b->sizes[p] ||
            memcmp(a->params[p], b->params[p], (size_t)a->sizes[p] * sizeof(float)) != 0) {
            snprintf(why, why_bytes, "parameter %d differs (largest relative difference %g)", p,
                     sim_difference(a, b));
            return -1;
        }
    }
    for (int32_t s = 0; with_losses && s < a->n_steps; s++) {
        if (a->n_steps != b->n_steps || a->loss[s] != b->loss[s]) {
            snprintf(why, why_bytes, "step %d: loss %.17g and %.17g", s, a->loss[s], b->loss[s]);
            return -1;
        }
    }
    return 0;
}

double sim_difference(const SimResult *a, const SimResult *b) {
    double worst = 0.0;
    for (int32_t p = 0; p < a->n_params; p++) {
        double largest = 0.0, difference = 0.0;
        for (int64_t i = 0; i < a->sizes[p]; i++) {
            double x = (double)a->params[p][i], y = (double)b->params[p][i];
            largest = fmax(largest, fmax(fabs(x), fabs(y)));
            difference = fmax(difference, fabs(x - y));
            if (!isfinite(x) || !isfinite(y)) {
                return INFINITY;
            }
        }
        if (largest > 0.0) {
            worst = fmax(worst, difference / largest);
        }
    }
    return worst;
}

#include "worker/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "worker/layers.h"
#include "worker/pulse.h"
#include "worker/queued.h"
#include "worker/reduce.h"
#include "worker/save.h"
#include "worker/trace.h"
#include "worker/vm.h"

enum { RUN_TRACE_RECORDS = 1 << 17 };

typedef struct Worker {
    const Order *order;
    const WorkerEnv *env;
    Stage stage;
    Program train, eval;
    Vm *train_vm, *eval_vm;
    const DeviceOps *ops;
    Device *device;
    Stream *streams[QUEUE_N];
    Queued train_queued, eval_queued;
    Fetch fetches[QUEUE_N];
    Data data;
    Params params;
    Layers *layers;
    Slab slab;
    void *base;
    Reduce *reduce;
    const Instr *last_backward; /* of the training program: weight gradients are final behind it */
    Save *save;
    Pulse pulse;
    ReduceResult result; /* of the last reduced step */
    bool evaluating;
    int64_t eval_step;   /* updates made before the evaluation under way */
    int64_t segment_end; /* of the training segment under way */
    int64_t step;        /* steps finished, counted from the job's start */
    int64_t begun_step;  /* the last one begun */
} Worker;

/* ---- what the interpreter calls ---- */

static KeyPlace run_key_place(const Worker *worker, int64_t step) {
    return worker->evaluating ? (KeyPlace){worker->eval_step, step} : (KeyPlace){step, -1};
}

static FetchPeer run_peer(const Worker *worker, const Instr *instr) {
    int32_t replicas = worker->order->plan.replicas[instr->peer];
    return (FetchPeer){instr->peer, order_micro_owner(replicas, instr->micro)};
}

static const Queued *run_queued(const Worker *worker) {
    return worker->evaluating ? &worker->eval_queued : &worker->train_queued;
}

static int run_transfer(Worker *worker, const Instr *instr, int64_t step, MicroPlace place,
                        int64_t *bytes) {
    FetchBlob blob;
    Fetch *fetch = &worker->fetches[program_queue(instr->op)];
    Stream *stream = worker->streams[QUEUE_PUBLISH];
    const KeyPlace at = run_key_place(worker, step);
    const int stage = instr->stage, peer = instr->peer, micro = instr->micro;
    const Queued *queued = run_queued(worker);
    int rc;
    TRY(program_queue(instr->op) == QUEUE_PUBLISH ? queued_wait(queued, instr, stream)
                                                  : queued_sync(queued, instr));
    switch (instr->op) {
    case INSTR_FETCH_ACT:
        TRY(layers_act_in(worker->layers, peer, place.rows, instr->slot, &blob));
        return fetch_get(fetch, key_activation(&fetch->space, at, peer, stage, micro),
                         run_peer(worker, instr), &blob, bytes);
    case INSTR_FETCH_GRAD:
        TRY(layers_grad_in(worker->layers, peer, place.rows, instr->slot, &blob));
        return fetch_get(fetch, key_gradient(&fetch->space, at, peer, stage, micro),
                         run_peer(worker, instr), &blob, bytes);
    case INSTR_PUBLISH_ACT:
        TRY(layers_act_out(worker->layers, stream, peer, place.rows, instr->slot, &blob));
        rc = fetch_put(fetch, key_activation(&fetch->space, at, stage, peer, micro), &blob, bytes);
        return rc < 0 ? rc : 0;
    default:
        TRY(layers_grad_out(worker->layers, stream, peer, place.rows, instr->slot, &blob));
        rc = fetch_put(fetch, key_gradient(&fetch->space, at, stage, peer, micro), &blob, bytes);
        return rc < 0 ? rc : 0;
    }
}

static bool run_save_due(const Worker *worker, int64_t step) {
    return order_save_due(worker->order, step) || step + 1 == worker->order->end_step ||
           (worker->result.decision & (DECISION_SAVE | DECISION_STOP)) != 0;
}

static int run_begin_step(Worker *worker, int64_t step) {
    double scale = 1.0;
    if (worker->stage.has_loss) {
        int64_t valid = 0;
        TRY(data_valid_targets(&worker->data, step, &valid));
        scale = valid > 0 ? 1.0 / (double)valid : 0.0;
    }
    layers_begin_step(worker->layers, step, scale);
    reduce_begin(worker->reduce, step,
                 step == worker->order->first_step || run_save_due(worker, step - 1));
    return 0;
}

static int run_layer_done(void *ctx, int32_t layer, Stream *stream) {
    return reduce_layer(((Worker *)ctx)->reduce, stream, layer);
}

/* The last backward of a step: gradients go their way layer by layer, unless the data are not what
 * they were. */
static int run_last_backward(Worker *worker, const Instr *instr, MicroPlace place) {
    TRY(data_check(&worker->data, false));
    layers_on_backward(worker->layers, run_layer_done, worker);
    int rc = layers_backward(worker->layers, worker->streams[QUEUE_COMPUTE], place, instr->slot,
                             instr->op == INSTR_BACKWARD, true);
    layers_on_backward(worker->layers, NULL, NULL);
    return rc;
}

static int run_reduce(Worker *worker, int64_t *bytes) {
    Stream *stream = worker->streams[QUEUE_COMPUTE];
    TRY(layers_end_step(worker->layers, stream));
    const int32_t wish = atomic_exchange(&worker->pulse.decision, 0);
    TRY(reduce_run(worker->reduce, stream, layers_loss(worker->layers), wish, &worker->result,
                   bytes));
    /* What an earlier attempt decided for this step stays; the wish is for the next one then. */
    atomic_fetch_or(&worker->pulse.decision, wish & ~worker->result.decision);
    return 0;
}

/* What is not a number has no sign for people. */
static double run_no_sign(double value) {
    return isnan(value) ? (double)NAN : value;
}

static int run_update(Worker *worker, int64_t step) {
    Stream *stream = worker->streams[QUEUE_COMPUTE];
    if (!worker->result.finite) {
        worker->params.n_skipped++;
        if (worker->order->update.stop_on_nonfinite) {
            return err_set(ERR_DIVERGED, "step %lld: loss %g, gradient norm %g are not both finite",
                           (long long)step, run_no_sign(worker->result.loss),
                           run_no_sign(worker->result.norm));
        }
        return 0;
    }
    const int64_t rows = order_batch_rows(worker->order->train_samples, worker->order->batch, step);
    const int32_t micro_rows = worker->order->plan.micro_rows;
    TRY(params_update(&worker->params, stream, step, worker->result.scale,
                      (rows + micro_rows - 1) / micro_rows));
    return params_prepare(&worker->params, worker->layers, stream);
}

static int run_compute(Worker *worker, const Instr *instr, int64_t step, MicroPlace place,
                       int64_t *bytes) {
    Stream *stream = worker->streams[QUEUE_COMPUTE];
    if (instr == worker->last_backward) {
        return run_last_backward(worker, instr, place);
    }
    switch (instr->op) {
    case INSTR_FORWARD:
        return layers_forward(worker->layers, stream, place, instr->slot);
    case INSTR_RECOMPUTE:
        return layers_recompute(worker->layers, stream, place, instr->slot);
    case INSTR_BACKWARD:
        return layers_backward(worker->layers, stream, place, instr->slot, true, true);
    case INSTR_BACKWARD_I:
        return layers_backward(worker->layers, stream, place, instr->slot, true, false);
    case INSTR_BACKWARD_W:
        return layers_backward(worker->layers, stream, place, instr->slot, false, true);
    case INSTR_REDUCE:
        return run_reduce(worker, bytes);
    case INSTR_UPDATE:
        return run_update(worker, step);
    default:
        return err_set(ERR_INTERNAL, "instruction %d is not a computation", (int)instr->op);
    }
}

static int run_instr(void *ctx, const Instr *instr, int64_t step, int64_t *bytes) {
    Worker *worker = ctx;
    if (worker->env->before != NULL) {
        TRY(worker->env->before(worker->env->ctx, instr, step, worker->evaluating));
    }
    MicroPlace place = {.step = step, .eval = worker->evaluating};
    if (instr->micro >= 0) {
        place = data_place(worker->order, step, instr->micro, worker->evaluating);
    }
    if (program_queue(instr->op) != QUEUE_COMPUTE) {
        return run_transfer(worker, instr, step, place, bytes);
    }
    if (!worker->evaluating && worker->begun_step != step) {
        TRY(run_begin_step(worker, step));
        worker->begun_step = step;
    }
    TRY(run_compute(worker, instr, step, place, bytes));
    return queued_record(run_queued(worker), instr, worker->streams[QUEUE_COMPUTE]);
}

static int run_step_end(void *ctx, int64_t step) {
    Worker *worker = ctx;
    if (worker->evaluating) {
        return 0;
    }
    worker->step = step + 1;
    /* A wish to stop that comes with the last step is too late: the job ends as if it had not. */
    if ((worker->result.decision & DECISION_STOP) != 0 && step + 1 < worker->order->end_step) {
        return 1;
    }
    if (step + 1 < worker->segment_end && run_save_due(worker, step)) {
        return save_begin(worker->save, worker->streams[QUEUE_COMPUTE], step + 1);
    }
    return 0;
}

static void run_interrupt(void *ctx, bool on) {
    Worker *worker = ctx;
    for (int q = 0; q < QUEUE_N; q++) {
        fetch_interrupt(&worker->fetches[q], on);
    }
    reduce_interrupt(worker->reduce, on);
}

/* ---- opening and closing ---- */

static int run_open_relay(const Worker *worker, Relay **out_relay) {
    if (worker->env->open_relay != NULL) {
        return worker->env->open_relay(worker->env->ctx, worker->order, out_relay);
    }
    return relay_open_again(worker->order->relay_url, out_relay);
}

static int run_open_reduce_relay(void *ctx, Relay **out_relay) {
    return run_open_relay(ctx, out_relay);
}

static int run_open_reduce(Worker *worker) {
    const ReduceSetup setup = {.order = worker->order,
                               .stage = &worker->stage,
                               .ops = worker->ops,
                               .layers = worker->layers,
                               .params = &worker->params,
                               .fetch = &worker->fetches[QUEUE_COMPUTE],
                               .open_relay = run_open_reduce_relay,
                               .ctx = worker};
    for (int32_t i = 0; i < worker->train.n_instrs; i++) {
        const Instr *instr = &worker->train.instrs[i];
        if (instr->op == INSTR_BACKWARD || instr->op == INSTR_BACKWARD_W) {
            worker->last_backward = instr;
        }
    }
    TRY(reduce_open(&setup, &worker->reduce));
    for (int i = 0; reduce_fetch(worker->reduce, i) != NULL; i++) {
        pulse_count(&worker->pulse, reduce_fetch(worker->reduce, i));
    }
    return 0;
}

static int run_open_pulse(Worker *worker) {
    _Static_assert(WORKER_LINKS == QUEUE_N + 2, "its queues, its heartbeat and its saves");
    Relay *relay = NULL;
    for (int q = 0; q < QUEUE_N; q++) {
        TRY(run_open_relay(worker, &relay));
        TRY(fetch_init(&worker->fetches[q], worker->order, relay));
    }
    TRY(run_open_relay(worker, &relay));
    TRY(pulse_start(&worker->pulse, worker->order, &worker->fetches[QUEUE_FETCH], relay));
    for (int q = 0; q < QUEUE_N; q++) {
        pulse_count(&worker->pulse, &worker->fetches[q]);
    }
    return 0;
}

static int run_open_programs(Worker *worker) {
    const Order *order = worker->order;
    const PlanSpec *plan = &order->plan;
    const int32_t stage = order->stage, replicas = plan->replicas[stage];
    TRY(program_parse("training program", order->program, strlen(order->program), stage,
                      &worker->train));
    TRY(program_link(&worker->train));
    TRY(program_check(&worker->train, &worker->stage, order->replica, replicas, plan->n_micro));
    if (order->has_eval) {
        TRY(program_parse("evaluation program", order->eval_program, strlen(order->eval_program),
                          stage, &worker->eval));
        TRY(program_link(&worker->eval));
        TRY(program_check(&worker->eval, &worker->stage, order->replica, replicas, plan->n_micro));
    }
    return 0;
}

static int run_check_order(const Order *order) {
    if (order->stage < 0 || order->stage >= order->plan.n_stages || order->replica < 0 ||
        order->replica >= order->plan.replicas[order->stage]) {
        return err_set(ERR_ARGUMENT, "order: there is no worker %d.%d in the plan", order->stage,
                       order->replica);
    }
    if (order->first_step > 0 && order->resume_path[0] == '\0') {
        return err_set(ERR_ARGUMENT, "order: first_step is %lld, but there is no checkpoint",
                       (long long)order->first_step);
    }
    if (order->program == NULL || (order->has_eval && order->eval_program == NULL)) {
        return err_set(ERR_ARGUMENT, "order: the program of worker %d.%d is missing", order->stage,
                       order->replica);
    }
    return stage_check_cut(&order->model, order->plan.ends, order->plan.n_stages);
}

static bool run_program_has(const Program *program, Opcode op) {
    for (int32_t i = 0; i < program->n_instrs; i++) {
        if (program->instrs[i].op == op) {
            return true;
        }
    }
    return false;
}

static int run_open_memory(Worker *worker) {
    const int32_t n_slots = worker->order->has_eval && worker->eval.n_slots > worker->train.n_slots
                                ? worker->eval.n_slots
                                : worker->train.n_slots;
    const LayersSetup setup = {.order = worker->order,
                               .stage = &worker->stage,
                               .ops = worker->ops,
                               .device = worker->device,
                               .data = &worker->data,
                               .n_slots = n_slots,
                               .recompute = run_program_has(&worker->train, INSTR_RECOMPUTE),
                               .split_backward = run_program_has(&worker->train, INSTR_BACKWARD_I)};
    TRY(layers_open(&setup, &worker->layers));
    TRY(params_init(&worker->params, worker->order, &worker->stage, worker->ops));
    TRY(params_plan(&worker->params, worker->layers, &worker->slab));
    TRY(layers_plan(worker->layers, &worker->slab));
    TRY(slab_place(&worker->slab));
    TRY(worker->ops->mem_alloc(worker->device, worker->slab.bytes + 1, &worker->base));
    TRY(params_bind(&worker->params, worker->layers, &worker->slab, worker->base));
    return layers_bind(worker->layers, &worker->slab, worker->base, &worker->params);
}

static int run_open_device(Worker *worker) {
    const DeviceConfig config = {.threads = worker->order->plan.threads,
                                 .isa = worker->order->plan.isa};
    const char *name = worker->order->plan.device;
    TRY(worker->env->find_device != NULL
            ? worker->env->find_device(worker->env->ctx, name, &worker->ops)
            : device_find(name, &worker->ops));
    TRY(worker->ops->open(&config, &worker->device));
    TRY(worker->ops->bind_thread(worker->device));
    for (int q = 0; q < QUEUE_N; q++) {
        TRY(worker->ops->stream_open(worker->device, &worker->streams[q]));
    }
    TRY(queued_open(&worker->train_queued, worker->ops, worker->device, &worker->train));
    return queued_open(&worker->eval_queued, worker->ops, worker->device, &worker->eval);
}

static int run_load_state(Worker *worker) {
    Stream *stream = worker->streams[QUEUE_COMPUTE];
    if (worker->order->resume_path[0] != '\0') {
        TRY(params_load(&worker->params, stream, worker->order->resume_path));
    } else {
        TRY(params_initialise(&worker->params, stream));
    }
    return params_prepare(&worker->params, worker->layers, stream);
}

static int run_open(Worker *worker) {
    const VmHost host = {
        .ctx = worker, .run = run_instr, .step_end = run_step_end, .interrupt = run_interrupt};
    const Order *order = worker->order;
    Relay *relay = NULL;
    TRY(run_check_order(order));
    TRY(run_open_pulse(worker));
    TRY(stage_init(&worker->stage, &order->model, order->plan.ends, order->plan.n_stages,
                   order->stage));
    TRY(run_open_programs(worker));
    TRY(run_open_device(worker));
    TRY(data_open(&worker->data, order, &worker->stage));
    TRY(run_open_memory(worker));
    TRY(run_load_state(worker));
    TRY(run_open_relay(worker, &relay));
    TRY(save_open(order, &worker->stage, &worker->params, worker->env, relay, &worker->save));
    pulse_count(&worker->pulse, save_fetch(worker->save));
    TRY(run_open_reduce(worker));
    const int32_t n_records = order->trace_path[0] != '\0' ? RUN_TRACE_RECORDS : 0;
    TRY(vm_open(&worker->train, &host, n_records, &worker->train_vm));
    return order->has_eval ? vm_open(&worker->eval, &host, n_records, &worker->eval_vm) : 0;
}

static void run_close(Worker *worker) {
    for (int q = 0; q < QUEUE_N; q++) { /* nothing is taken away that queued work uses */
        if (worker->streams[q] != NULL) {
            (void)worker->ops->stream_sync(worker->streams[q]);
        }
    }
    save_close(worker->save);
    vm_close(worker->train_vm);
    vm_close(worker->eval_vm);
    reduce_close(worker->reduce);
    layers_close(worker->layers);
    params_done(&worker->params);
    data_close(&worker->data);
    slab_done(&worker->slab);
    queued_close(&worker->train_queued);
    queued_close(&worker->eval_queued);
    for (int q = 0; q < QUEUE_N; q++) {
        fetch_done(&worker->fetches[q]);
        if (worker->streams[q] != NULL) {
            worker->ops->stream_close(worker->streams[q]);
        }
    }
    if (worker->base != NULL) {
        worker->ops->mem_free(worker->device, worker->base);
    }
    if (worker->device != NULL) {
        worker->ops->close(worker->device);
    }
    program_done(&worker->train);
    program_done(&worker->eval);
    stage_done(&worker->stage);
}

/* ---- the slice ---- */

/* Evaluate all of the evaluation data with the weights after `step` updates. */
static int run_evaluate(Worker *worker, int64_t step) {
    const Order *order = worker->order;
    const int64_t n_batches = order_steps_per_epoch(order->eval_samples, order->batch);
    pulse_set_state(&worker->pulse, "evaluating");
    TRY(pulse_set_vm(&worker->pulse, worker->eval_vm, false));
    worker->evaluating = true;
    worker->eval_step = step;
    vm_label(worker->eval_vm, step);
    layers_begin_step(worker->layers, step, 0.0);
    int rc = vm_run(worker->eval_vm, 0, n_batches);
    worker->evaluating = false;
    TRY(rc);
    /* The sums are there then; and training's fetches know nothing of what this has queued. */
    TRY(worker->ops->stream_sync(worker->streams[QUEUE_COMPUTE]));
    TRY(data_check(&worker->data, true));
    if (worker->stage.has_loss) {
        TRY(reduce_publish_eval(worker->reduce, step, layers_loss(worker->layers)));
    }
    pulse_set_state(&worker->pulse, "running");
    return pulse_set_vm(&worker->pulse, NULL, false);
}

static int64_t run_segment_end(const Order *order, int64_t step) {
    while (step < order->end_step - 1 && !(order->has_eval && order_eval_due(order, step))) {
        step++;
    }
    return step + 1;
}

static int run_slice(Worker *worker) {
    const Order *order = worker->order;
    bool stopped = false;
    pulse_set_state(&worker->pulse, "running");
    if (order->eval_only) {
        return run_evaluate(worker, order->first_step);
    }
    while (worker->step < order->end_step && !stopped) {
        worker->segment_end = run_segment_end(order, worker->step);
        TRY(pulse_set_vm(&worker->pulse, worker->train_vm, true));
        int rc = vm_run(worker->train_vm, worker->step, worker->segment_end);
        TRY(rc);
        TRY(pulse_set_vm(&worker->pulse, NULL, false));
        stopped = rc == 1;
        if (!stopped && order->has_eval && order_eval_due(order, worker->step - 1)) {
            TRY(run_evaluate(worker, worker->step));
        }
        if (run_save_due(worker, worker->step - 1)) {
            TRY(save_begin(worker->save, worker->streams[QUEUE_COMPUTE], worker->step));
        }
    }
    pulse_set_state(&worker->pulse, "saving");
    return save_wait(worker->save);
}

/* What one interpreter has recorded; nothing where it was never opened. */
static int run_trace_part(const Vm *vm, const Program *program, bool eval, TracePart *out_part) {
    VmRecord *records = calloc(RUN_TRACE_RECORDS, sizeof *records);
    if (records == NULL) {
        return err_set(ERR_MEMORY, "the trace does not fit into memory");
    }
    const int32_t n = vm != NULL ? vm_records(vm, records, RUN_TRACE_RECORDS) : 0;
    *out_part = (TracePart){.program = program,
                            .records = records,
                            .n_records = n,
                            .n_dropped = vm != NULL ? vm_executed(vm) - n : 0,
                            .eval = eval};
    return 0;
}

static int run_write_trace(const Worker *worker) {
    const Order *order = worker->order;
    TracePart parts[TRACE_MAX_PARTS] = {0};
    Traffic traffic = {0};
    int32_t number = order->replica;
    for (int32_t s = 0; s < order->stage; s++) {
        number += order->plan.replicas[s];
    }
    for (int i = 0; i < worker->pulse.n_counted; i++) {
        fetch_traffic(worker->pulse.counted[i], &traffic);
    }
    int rc = run_trace_part(worker->train_vm, &worker->train, false, &parts[0]);
    if (rc >= 0) {
        rc = run_trace_part(worker->eval_vm, &worker->eval, true, &parts[1]);
    }
    if (rc >= 0) {
        rc = trace_write(order->trace_path, parts, 2, &traffic, order->stage, order->replica,
                         number);
    }
    free((void *)parts[0].records);
    free((void *)parts[1].records);
    return rc;
}

/* What a failed attempt did is what one wants to see, too. That it could not be written changes
 * nothing about how the worker ends. */
static void run_end_trace(const Worker *worker) {
    const WorkerEnv *env = worker->env;
    ErrNote note;
    if (worker->order->trace_path[0] == '\0' || worker->train_vm == NULL) {
        return;
    }
    err_copy(&note);
    if (run_write_trace(worker) < 0 && env->say != NULL) {
        char line[ERR_NOTE_BYTES + 64];
        snprintf(line, sizeof line, "there is no trace: %s", err_text());
        env->say(env->ctx, line);
    }
    (void)err_restore(&note);
}

int worker_run(const Order *order, const WorkerEnv *env, WorkerResult *out_result) {
    const WorkerEnv none = {0};
    Worker *worker = calloc(1, sizeof *worker);
    if (worker == NULL) {
        return err_set(ERR_MEMORY, "a worker does not fit into memory");
    }
    worker->order = order;
    worker->env = env != NULL ? env : &none;
    worker->step = order->first_step;
    worker->begun_step = -1;
    program_init(&worker->train);
    program_init(&worker->eval);
    slab_init(&worker->slab);
    int rc = run_open(worker);
    if (rc >= 0) {
        rc = run_slice(worker);
    }
    run_end_trace(worker);
    memset(out_result, 0, sizeof *out_result);
    out_result->code = rc < 0 ? rc : 0;
    out_result->step = worker->step;
    if (rc < 0) {
        snprintf(out_result->text, sizeof out_result->text, "%s", err_text());
    }
    ErrNote note;
    err_copy(&note);
    pulse_stop(&worker->pulse, rc < 0 ? "failed" : "done");
    out_result->has_traffic = true;
    out_result->traffic = worker->pulse.traffic;
    run_close(worker);
    free(worker);
    if (rc < 0) {
        err_restore(&note);
        return rc;
    }
    return 0;
}

#include "tests/bench/work.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "coordinator/partition.h"
#include "coordinator/profile.h"
#include "coordinator/schedule.h"
#include "coordinator/zoo.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/file.h"
#include "core/stage.h"
#include "core/text.h"
#include "tests/bench/bench.h"
#include "tests/support/temp.h"

enum { MAX_JOBS = 8 };
enum { MAX_TRACE_BYTES = 256 << 20, PROFILE_RUNS = 3, PROFILE_MS = 120000 };

extern char **environ;

const char *work_worker_path(void) {
    return FUNCPIPE_BINARY_DIR "/funcpipe-worker";
}

/* ---- folders ---- */

/* Folders that a program which ends early leaves; BENCH_KEEP in the environment keeps all. */
static char folders[MAX_JOBS][sizeof((Work *)0)->folder];

static void remove_folders(void) {
    for (int i = 0; i < MAX_JOBS; i++) {
        if (folders[i][0] && !getenv("BENCH_KEEP"))
            temp_remove(folders[i]);
    }
}

static void make_folder(Work *work) {
    static bool registered;
    int i = 0;
    while (i < MAX_JOBS - 1 && folders[i][0])
        i++;
    if (temp_make(work->folder, sizeof work->folder, "bench") < 0)
        bench_must(err_errno(ERR_IO, errno, "'%s'", work->folder), "making a folder");
    memcpy(folders[i], work->folder, sizeof work->folder);
    if (!registered)
        atexit(remove_folders);
    registered = true;
}

/* ---- the job ---- */

static void set_defaults(Work *work, int64_t samples) {
    Order *order = &work->order;
    PlanSpec *plan = &order->plan;
    UpdateSpec *update = &order->update;
    text_copy(order->job, sizeof order->job, "bench");
    text_copy(work->schedule, sizeof work->schedule, "1f1b");
    order->generation = 1;
    order->attempt = 1;
    order->train_samples = samples;
    order->seed = 1;
    order->save_every = 0;
    order->wait_timeout_ms = 60000;
    order->heartbeat_ms = 1000;
    *update = (UpdateSpec){
        .kind = UPDATE_SGD, .lr = 0.01, .schedule = LR_CONSTANT, .momentum = 0.9, .eps = 1e-8};
    plan->threads = 1;
    text_copy(plan->device, sizeof plan->device, "cpu");
    text_copy(plan->isa, sizeof plan->isa, "auto");
    snprintf(order->relay_url, sizeof order->relay_url, "file://%s/relay", work->folder);
    snprintf(order->store_path, sizeof order->store_path, "%s/store", work->folder);
}

static void set_data(Work *work, int64_t samples) {
    Order *order = &work->order;
    const Value *input = &order->model.values[MODEL_VALUE_INPUT];
    const Layer *loss = &order->model.layers[order->model.n_layers - 1];
    const Shape *logits = &order->model.values[loss->inputs[0]].shape;
    order->train = (DataSpec){.kind = DATA_GENERATED,
                              .samples = samples,
                              .shape = input->shape,
                              .classes = logits->dims[logits->n_dims - 1],
                              .seed = 3};
    if (input->dtype == DTYPE_I32) {
        order->train.generated_tokens = true;
        order->train.vocab = order->train.classes;
        order->train.context = input->shape.dims[0];
    }
}

void work_init(Work *work, Model *take_model, int64_t samples) {
    memset(work, 0, sizeof *work);
    make_folder(work);
    order_init(&work->order);
    model_done(&work->order.model);
    work->order.model = *take_model;
    set_defaults(work, samples);
    set_data(work, samples);
    work_batch(work, 64, 64);
    work_steps(work, 1);
    work_cut(work, &work->order.model.n_layers, 1);
}

void work_init_zoo(Work *work, const char *name, const char *options, int64_t samples) {
    Model model;
    cJSON *parsed = NULL;
    if (options)
        bench_must(json_parse("options", options, strlen(options), 4096, &parsed), "the options");
    bench_must(zoo_build(name, parsed, "$", &model), "the model");
    cJSON_Delete(parsed);
    work_init(work, &model, samples);
}

/* A linear layer (there must be a parameter), the sleepers, a classifier: little else than sleep.
 */
static void build_delays(Model *out_model, int32_t *ends, int32_t n_stages, int delay_ms) {
    const Shape input = shape_1d(16);
    const Shape scalar = {0};
    LayerAttr wide = model_attr_default(LAYER_LINEAR);
    wide.features = 4096;
    int32_t at = MODEL_VALUE_INPUT;
    bench_must(model_init(out_model, "delays", DTYPE_F32, &input, DTYPE_I32, &scalar), "the model");
    at = model_add(out_model, LAYER_LINEAR, "spread", &at, 1, &wide, NULL);
    for (int32_t i = 0; i < n_stages; i++) {
        char name[32];
        LayerAttr attr = model_attr_default(LAYER_DELAY);
        attr.forward_us = attr.backward_us = delay_ms * 1000;
        snprintf(name, sizeof name, "delay%d", i);
        bench_must(at, "the model");
        at = model_add(out_model, LAYER_DELAY, name, &at, 1, &attr, NULL);
        ends[i] = out_model->n_layers;
    }
    LayerAttr attr = model_attr_default(LAYER_LINEAR);
    attr.features = 10;
    at = model_add(out_model, LAYER_LINEAR, "fc", &at, 1, &attr, NULL);
    bench_must(at, "the model");
    at = model_add(out_model, LAYER_CROSS_ENTROPY, "loss", (int32_t[]){at, MODEL_VALUE_TARGET}, 2,
                   NULL, NULL);
    bench_must(at, "the model");
    bench_must(model_check(out_model), "the model");
    ends[n_stages - 1] = out_model->n_layers;
}

void work_init_delays(Work *work, int32_t n_stages, int delay_ms, int64_t samples) {
    int32_t ends[WORK_MAX_STAGES];
    Model model;
    build_delays(&model, ends, n_stages, delay_ms);
    work_init(work, &model, samples);
    work_cut(work, ends, n_stages);
}

void work_done(Work *work) {
    for (int i = 0; i < MAX_JOBS && !getenv("BENCH_KEEP"); i++) {
        if (strcmp(folders[i], work->folder) == 0) {
            temp_remove(work->folder);
            folders[i][0] = '\0';
        }
    }
    order_done(&work->order);
}

void work_batch(Work *work, int64_t batch, int32_t micro_rows) {
    work->order.batch = batch;
    work->order.plan.micro_rows = micro_rows;
    work->order.plan.n_micro = (int32_t)((batch + micro_rows - 1) / micro_rows);
}

void work_steps(Work *work, int64_t n_steps) {
    work->order.n_steps = work->order.end_step = n_steps;
}

void work_cut(Work *work, const int32_t *ends, int32_t n_stages) {
    PlanSpec *plan = &work->order.plan;
    free(plan->ends);
    free(plan->replicas);
    free(plan->recompute);
    plan->n_stages = n_stages;
    plan->ends = calloc((size_t)n_stages, sizeof *plan->ends);
    plan->replicas = calloc((size_t)n_stages, sizeof *plan->replicas);
    plan->recompute = calloc((size_t)n_stages, sizeof *plan->recompute);
    if (!plan->ends || !plan->replicas || !plan->recompute)
        bench_must(err_set(ERR_MEMORY, "a plan"), "cutting");
    for (int32_t s = 0; s < n_stages; s++) {
        plan->ends[s] = ends[s];
        plan->replicas[s] = 1;
    }
    bench_must(stage_check_cut(&work->order.model, plan->ends, n_stages), "cutting");
}

static void make_program(const Work *work, Order *order) {
    const PlanSpec *plan = &order->plan;
    ScheduleSpec spec = {.warmup = work->warmup, .hoist = work->hoist};
    Stage stage;
    Program program;
    Buf text;
    buf_init(&text, 0);
    bench_must(text_copy(spec.name, sizeof spec.name, work->schedule), "the schedule");
    bench_must(stage_init(&stage, &order->model, plan->ends, plan->n_stages, order->stage),
               "the stage");
    bench_must(schedule_build(&spec, &stage, 0, 1, plan->n_micro, &program), "the schedule");
    bench_must(program_format(&program, order->stage, &text), "the program");
    free(order->program);
    order->program = buf_take(&text, NULL);
    program_done(&program);
    stage_done(&stage);
}

double work_balance(Work *work, int32_t n_stages) {
    const int32_t n = work->order.model.n_layers;
    int32_t ends[WORK_MAX_STAGES];
    Order order;
    Profile profiles[PROFILE_RUNS];
    double *times = calloc((size_t)n, sizeof *times);
    bench_must(order_copy(&work->order, &order), "copying the order");
    make_program(work, &order);
    for (int r = 0; r < PROFILE_RUNS; r++)
        bench_must(profile_run(work_worker_path(), &order, PROFILE_MS, NULL, &profiles[r]),
                   "profiling");
    double sum = 0;
    for (int32_t l = 0; times && l < n; l++) {
        double runs[PROFILE_RUNS];
        for (int r = 0; r < PROFILE_RUNS; r++)
            runs[r] = profiles[r].forward_us[l] + profiles[r].backward_us[l];
        times[l] = bench_median(runs, PROFILE_RUNS);
        sum += times[l];
    }
    bench_must(partition_balance(times, n, n_stages, NULL, ends), "balancing");
    double slowest = partition_bottleneck(times, ends, n_stages, NULL);
    work_cut(work, ends, n_stages);
    for (int r = 0; r < PROFILE_RUNS; r++)
        profile_done(&profiles[r]);
    order_done(&order);
    free(times);
    return sum / slowest;
}

/* ---- running ---- */

static void make_order(const Work *work, int32_t stage, Order *order) {
    bench_must(order_copy(&work->order, order), "copying the order");
    order->stage = stage;
    make_program(work, order);
    if (!work->untraced)
        snprintf(order->trace_path, sizeof order->trace_path, "%s/trace-%d.json", work->folder,
                 stage);
}

static void write_order(const Work *work, int32_t stage, char *path, size_t path_bytes) {
    Order order;
    Buf text;
    buf_init(&text, 0);
    make_order(work, stage, &order);
    bench_must(order_format(&order, &text), "the order");
    snprintf(path, path_bytes, "%s/order-%d.json", work->folder, stage);
    bench_must(file_write(path, text.data, text.bytes), "writing the order");
    buf_done(&text);
    order_done(&order);
}

static pid_t start_worker(const Work *work, int32_t stage, const char *order_path) {
    char log[96];
    char number[96];
    char preload[300];
    snprintf(log, sizeof log, "%s/log-%d", work->folder, stage);
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", work->preload);
    snprintf(number, sizeof number, "COUNT_MALLOC=%s/allocations-%d", work->folder, stage);
    char *argv[] = {(char *)work_worker_path(), "--order", (char *)order_path, NULL};
    char *env[256];
    int n = 0;
    for (; environ[n] && n < 250; n++)
        env[n] = environ[n];
    if (work->preload[0]) {
        env[n++] = preload;
        env[n++] = number;
    }
    env[n] = NULL;
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    pid_t pid = -1;
    int errnum = posix_spawn(&pid, argv[0], &files, NULL, argv, env);
    posix_spawn_file_actions_destroy(&files);
    if (errnum)
        bench_must(err_errno(ERR_IO, errnum, "'%s'", argv[0]), "starting a worker");
    return pid;
}

/* 0 when it ended well. */
static int await_worker(Work *work, pid_t pid) {
    int status = 0;
    struct rusage usage;
    while (wait4(pid, &status, 0, &usage) < 0 && errno == EINTR) {
    }
    work->busy_s += (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                    (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
    if ((int64_t)usage.ru_maxrss * 1024 > work->peak_bytes)
        work->peak_bytes = (int64_t)usage.ru_maxrss * 1024;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static void show_log(const Work *work, int32_t stage) {
    char path[96];
    Buf text;
    buf_init(&text, 1 << 20);
    snprintf(path, sizeof path, "%s/log-%d", work->folder, stage);
    if (buf_read_file(&text, path, 1 << 20) >= 0)
        fputs(buf_string(&text), stderr);
    buf_done(&text);
}

static void remove_relay(const Work *work) {
    char relay[96];
    snprintf(relay, sizeof relay, "%s/relay", work->folder);
    temp_remove(relay);
}

/* The coordinator's part: the last save's folder. */
static void make_store(const Work *work) {
    char store[96];
    snprintf(store, sizeof store, "%s/store", work->folder);
    temp_remove(store);
    mkdir(store, 0700);
    snprintf(store, sizeof store, "%s/store/%lld", work->folder, (long long)work->order.end_step);
    mkdir(store, 0700);
}

void work_run(Work *work) {
    char paths[WORK_MAX_STAGES][128];
    pid_t pids[WORK_MAX_STAGES];
    const int32_t n = work->order.plan.n_stages;
    remove_relay(work);
    make_store(work);
    for (int32_t s = 0; s < n; s++)
        write_order(work, s, paths[s], sizeof paths[s]);
    work->spawn_ns = clock_now_ns();
    work->busy_s = 0;
    work->peak_bytes = 0;
    for (int32_t s = 0; s < n; s++)
        pids[s] = start_worker(work, s, paths[s]);
    bool failed = false;
    for (int32_t s = 0; s < n; s++) {
        if (await_worker(work, pids[s]) != 0) {
            show_log(work, s);
            failed = true;
        }
    }
    if (failed)
        bench_must(err_set(ERR_WORKER, "a worker failed, see above"), "running the workers");
    remove_relay(work);
}

typedef struct ThreadedWorker {
    Order order;
    const WorkerEnv *env;
    pthread_t thread;
    int rc;
    ErrNote note;
} ThreadedWorker;

static void *worker_main(void *arg) {
    ThreadedWorker *worker = arg;
    WorkerResult result;
    worker->rc = worker_run(&worker->order, worker->env, &result);
    if (worker->rc < 0)
        err_copy(&worker->note);
    return NULL;
}

void work_run_threads(const Work *work, const WorkerEnv *env) {
    static ThreadedWorker workers[WORK_MAX_STAGES];
    const int32_t n = work->order.plan.n_stages;
    make_store(work);
    for (int32_t s = 0; s < n; s++) {
        workers[s] = (ThreadedWorker){.env = env};
        make_order(work, s, &workers[s].order);
        bench_must(pthread_create(&workers[s].thread, NULL, worker_main, &workers[s]) == 0
                       ? 0
                       : err_set(ERR_MEMORY, "a thread"),
                   "starting a worker");
    }
    for (int32_t s = 0; s < n; s++) {
        pthread_join(workers[s].thread, NULL);
        order_done(&workers[s].order);
    }
    for (int32_t s = 0; s < n; s++) {
        if (workers[s].rc < 0)
            bench_must(err_restore(&workers[s].note), "running a worker");
    }
}

/* ---- traces ---- */

static int64_t ns_at(const char *line, const char *key) {
    const char *at = strstr(line, key);
    return at ? (int64_t)(strtod(at + strlen(key), NULL) * 1000.0 + 0.5) : 0;
}

static bool parse_record(const char *line, WorkRecord *record) {
    const char *step = strstr(line, "\"step\":");
    if (!step || sscanf(line, "{\"name\":\"%23[^\"]\"", record->name) != 1)
        return false;
    record->step = strtoll(step + strlen("\"step\":"), NULL, 10);
    record->start_ns = ns_at(line, "\"ts\":");
    record->end_ns = record->start_ns + ns_at(line, "\"dur\":");
    record->wait_ns = ns_at(line, "\"wait_us\":");
    return true;
}

int32_t work_trace(const Work *work, int32_t stage, WorkRecord **out_records) {
    char path[96];
    Buf text;
    buf_init(&text, MAX_TRACE_BYTES);
    snprintf(path, sizeof path, "%s/trace-%d.json", work->folder, stage);
    bench_must(buf_read_file(&text, path, MAX_TRACE_BYTES), "reading a trace");
    size_t n_lines = 1;
    for (size_t i = 0; i < text.bytes; i++)
        n_lines += text.data[i] == '\n';
    WorkRecord *records = calloc(n_lines, sizeof *records);
    if (!records)
        bench_must(err_set(ERR_MEMORY, "a trace"), "reading a trace");
    int32_t n = 0;
    char *rest = text.data;
    for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n"))
        n += parse_record(line, &records[n]);
    buf_done(&text);
    *out_records = records;
    return n;
}

int work_step_ms(const Work *work, int n_warm, double *out_ms, int max_n) {
    const int64_t n_steps = work->order.end_step;
    int64_t *ends = calloc((size_t)n_steps, sizeof *ends);
    if (!ends)
        bench_must(err_set(ERR_MEMORY, "the steps"), "reading a trace");
    for (int32_t s = 0; s < work->order.plan.n_stages; s++) {
        WorkRecord *records = NULL;
        int32_t n = work_trace(work, s, &records);
        for (int32_t i = 0; i < n; i++) {
            const WorkRecord *record = &records[i];
            if (strcmp(record->name, "U") == 0 && record->step < n_steps &&
                record->end_ns > ends[record->step])
                ends[record->step] = record->end_ns;
        }
        free(records);
    }
    int n_ms = 0;
    for (int64_t step = n_warm > 0 ? n_warm : 1; step < n_steps && n_ms < max_n; step++)
        out_ms[n_ms++] = (double)(ends[step] - ends[step - 1]) / 1e6;
    free(ends);
    return n_ms;
}

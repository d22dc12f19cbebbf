/* Two Redis servers against one, each behind a link of 10 MB/s each way (a network namespace),
 * which is the bottleneck: slow enough that two cores are not, although they carry the servers, the
 * shaping and all workers. These are threads here, with as many relay handles as a worker has, and
 * nothing slows their side. The relay is "redis://H1:P,H2:P/0", which spreads keys by hashing.
 *
 *     servers/reduce/N/ours, /in-store   16 MB of gradients summed over N = 2, 4 workers
 *     servers/pipeline                   the activations and gradients of a pipeline of six stages
 *                                        with four replicas each, 1f1b programs run by worker/vm.h,
 *                                        whose computations take no time
 *
 * The figure is the time with two servers over that with one, in turns. On stderr: how much of the
 * time the one server's link was in use, how busy the processors were, and how the bytes were
 * spread over the two. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "coordinator/schedule.h"
#include "core/clock.h"
#include "core/err.h"
#include "tests/bench/bench.h"
#include "tests/bench/net.h"
#include "tests/bench/reducer.h"
#include "tests/support/stages.h"
#include "worker/vm.h"

enum { RATE_MB = 10, N_SERVERS = 2, N_ROUNDS = 3, PORT = 6379, GOAL_PERCENT = 55 };
enum { N_FLOATS = 4 * 1000 * 1000, N_FORMS = 2 };
enum { N_STAGES = 6, N_REPLICAS = 4, N_MICRO = 256, WARMUP = 64, OBJECT_BYTES = 64 << 10 };
enum { MAX_WORKERS = N_STAGES * N_REPLICAS };
static const char job[] = "bench";

/* [0] one server, [1] both. */
static char urls[2][128];
static Relay *dropper;

typedef struct Crew { /* workers that begin together */
    int n;
    pthread_barrier_t barrier;
    int64_t begin_ns[MAX_WORKERS], end_ns[MAX_WORKERS];
} Crew;

/* Each worker's thread calls it around what is timed. */
static void begin_together(Crew *crew, int self) {
    pthread_barrier_wait(&crew->barrier);
    crew->begin_ns[self] = clock_now_ns();
}

/* From the first one's begin to the last one's end. */
static double crew_seconds(const Crew *crew) {
    int64_t begin_ns = crew->begin_ns[0];
    int64_t end_ns = crew->end_ns[0];
    for (int w = 1; w < crew->n; w++) {
        begin_ns = crew->begin_ns[w] < begin_ns ? crew->begin_ns[w] : begin_ns;
        end_ns = crew->end_ns[w] > end_ns ? crew->end_ns[w] : end_ns;
    }
    return (double)(end_ns - begin_ns) / 1e9;
}

typedef struct LinkBytes { /* to the servers and from them */
    int64_t to[N_SERVERS], from[N_SERVERS];
} LinkBytes;

static LinkBytes look(void) {
    LinkBytes traffic;
    for (int s = 0; s < N_SERVERS; s++)
        bench_must(net_traffic(s, &traffic.to[s], &traffic.from[s]), "counting bytes");
    return traffic;
}

typedef struct Run {
    double seconds, busy; /* of all processors */
    LinkBytes before, after;
} Run;

static Run run_threads(Crew *crew, void *(*body)(void *), void *workers, size_t worker_bytes) {
    pthread_t threads[MAX_WORKERS];
    BenchNoise busy;
    Run run = {.before = look()};
    bench_busy_begin(&busy);
    pthread_barrier_init(&crew->barrier, NULL, (unsigned)crew->n);
    for (int w = 0; w < crew->n; w++)
        bench_must(
            pthread_create(&threads[w], NULL, body, (char *)workers + (size_t)w * worker_bytes) == 0
                ? 0
                : err_set(ERR_MEMORY, "a thread"),
            "starting a worker");
    for (int w = 0; w < crew->n; w++)
        pthread_join(threads[w], NULL);
    run.busy = bench_busy_end(&busy);
    run.after = look();
    run.seconds = crew_seconds(crew);
    pthread_barrier_destroy(&crew->barrier);
    return run;
}

/* ---- sums ---- */

typedef struct Summer {
    Crew *crew;
    Reducer reducer;
    float *gradient, *sum;
    int self;
} Summer;

static void *sum_main(void *arg) {
    Summer *summer = arg;
    begin_together(summer->crew, summer->self);
    bench_must(reducer_run(&summer->reducer, 0, summer->gradient, summer->sum), "summing");
    summer->crew->end_ns[summer->self] = clock_now_ns();
    return NULL;
}

static Run run_sum(const char *url, int n, ReduceForm form) {
    static Summer summers[REDUCER_MAX_WORKERS];
    const ReduceSpec spec = {
        .form = form, .rate_bytes_per_s = RATE_MB * 1000000, .store_adds = true};
    Crew crew = {.n = n};
    for (int w = 0; w < n; w++) {
        Summer *it = &summers[w];
        it->crew = &crew;
        it->self = w;
        it->gradient = malloc(N_FLOATS * sizeof(float));
        it->sum = calloc(N_FLOATS, sizeof(float));
        if (!it->gradient || !it->sum)
            bench_must(err_set(ERR_MEMORY, "gradients"), "summing");
        for (int i = 0; i < N_FLOATS; i++)
            it->gradient[i] = (float)((i + w) % 1009); /* sums of such are exact */
        bench_must(reducer_open(&it->reducer, url, job, n, w, N_FLOATS, &spec), "opening");
    }
    const Run run = run_threads(&crew, sum_main, summers, sizeof summers[0]);
    for (int w = 0; w < n; w++) {
        Summer *it = &summers[w];
        for (int i = 0; i < N_FLOATS; i++) {
            float expected = 0;
            for (int k = 0; k < n; k++)
                expected += (float)((i + k) % 1009);
            if (it->sum[i] != expected)
                bench_must(err_set(ERR_CORRUPT, "worker %d: element %d of the sum", w, i), "");
        }
        reducer_close(&it->reducer);
        free(it->gradient);
        free(it->sum);
    }
    return run;
}

/* ---- pipeline ---- */

typedef struct Stager { /* a worker that computes nothing */
    Crew *crew;
    TestStage test;
    const Stage *stage;
    int self, replica;
    Order order;
    Program program;
    Vm *vm;
    Fetch fetches[QUEUE_N]; /* the computing one's stays unused */
    char *blobs[QUEUE_N];
    BlobTensor tensor;
    size_t offset, bytes;
} Stager;

static int run_instr(void *ctx, const Instr *instr, int64_t step, int64_t *bytes) {
    Stager *stager = ctx;
    const Queue queue = program_queue(instr->op);
    if (queue == QUEUE_COMPUTE)
        return 0;
    Fetch *fetch = &stager->fetches[queue];
    const FetchBlob blob = {stager->blobs[queue], stager->bytes, &stager->tensor, &stager->offset,
                            1};
    const KeyPlace place = {step, -1};
    const bool gradient = instr->op == INSTR_FETCH_GRAD || instr->op == INSTR_PUBLISH_GRAD;
    const int from = queue == QUEUE_FETCH ? instr->peer : instr->stage;
    const int to = queue == QUEUE_FETCH ? instr->stage : instr->peer;
    const Key key = gradient ? key_gradient(&fetch->space, place, from, to, instr->micro)
                             : key_activation(&fetch->space, place, from, to, instr->micro);
    if (queue == QUEUE_FETCH)
        return fetch_get(fetch, key, (FetchPeer){from, instr->micro % N_REPLICAS}, &blob, bytes);
    int rc = fetch_put(fetch, key, &blob, bytes);
    return rc < 0 ? rc : 0;
}

static void interrupt(void *ctx, bool on) {
    Stager *stager = ctx;
    relay_interrupt(stager->fetches[QUEUE_FETCH].relay, on);
    relay_interrupt(stager->fetches[QUEUE_PUBLISH].relay, on);
}

static int stager_open(Stager *stager, const char *url) {
    const ScheduleSpec spec = {.name = "1f1b", .warmup = WARMUP, .hoist = WARMUP};
    const VmHost host = {.ctx = stager, .run = run_instr, .interrupt = interrupt};
    order_init(&stager->order);
    snprintf(stager->order.job, sizeof stager->order.job, "%s", job);
    stager->order.wait_timeout_ms = REDUCER_WAIT_MS;
    stager->stage = test_stage(&stager->test, stager->self / N_REPLICAS, N_STAGES, false);
    stager->replica = stager->self % N_REPLICAS;
    stager->tensor = (BlobTensor){DTYPE_F32, shape_1d(OBJECT_BYTES / sizeof(float))};
    stager->bytes = (size_t)blob_layout(&stager->tensor, 1, &stager->offset);
    for (int q = QUEUE_FETCH; q < QUEUE_N; q++) {
        Relay *relay = NULL;
        TRY(relay_open(url, &relay));
        TRY(fetch_init(&stager->fetches[q], &stager->order, relay));
        stager->blobs[q] =
            aligned_alloc(BLOB_ALIGN, stager->bytes + BLOB_ALIGN - stager->bytes % BLOB_ALIGN);
        if (!stager->blobs[q])
            return err_set(ERR_MEMORY, "activations");
        memset(stager->blobs[q], 0, stager->bytes);
    }
    TRY(schedule_build(&spec, stager->stage, stager->replica, N_REPLICAS, N_MICRO,
                       &stager->program));
    return vm_open(&stager->program, &host, 0, &stager->vm);
}

static void stager_close(Stager *stager) {
    vm_close(stager->vm);
    program_done(&stager->program);
    for (int q = QUEUE_FETCH; q < QUEUE_N; q++) {
        fetch_done(&stager->fetches[q]);
        free(stager->blobs[q]);
    }
    order_done(&stager->order);
}

static void *stage_main(void *arg) {
    Stager *stager = arg;
    begin_together(stager->crew, stager->self);
    bench_must(vm_run(stager->vm, 0, 1), "running a pipeline");
    stager->crew->end_ns[stager->self] = clock_now_ns();
    return NULL;
}

static Run run_pipeline(const char *url) {
    static Stager stagers[MAX_WORKERS];
    Crew crew = {.n = MAX_WORKERS};
    for (int w = 0; w < crew.n; w++) {
        stagers[w] = (Stager){.crew = &crew, .self = w};
        bench_must(stager_open(&stagers[w], url), "opening");
    }
    const Run run = run_threads(&crew, stage_main, stagers, sizeof stagers[0]);
    for (int w = 0; w < crew.n; w++)
        stager_close(&stagers[w]);
    return run;
}

/* ---- figures ---- */

/* % of the bytes that went over the busier of the links. */
static double busier_share(const int64_t *before, const int64_t *after) {
    int64_t sum = 0;
    int64_t most = 0;
    for (int s = 0; s < N_SERVERS; s++) {
        int64_t bytes = after[s] - before[s];
        sum += bytes;
        most = bytes > most ? bytes : most;
    }
    return 100.0 * (double)most / (double)sum;
}

/* % of the time that the first server's link was in use, the busier way. */
static double link_use(const Run *run) {
    int64_t to = run->after.to[0] - run->before.to[0];
    int64_t from = run->after.from[0] - run->before.from[0];
    return 100.0 * (double)(to > from ? to : from) / (RATE_MB * 1e6 * run->seconds);
}

static Run measure(const char *url, int n, ReduceForm form) {
    const char *const prefix = job;
    Run run = n > 0 ? run_sum(url, n, form) : run_pipeline(url);
    bench_must(relay_drop(dropper, &prefix, 1, NULL), "dropping");
    return run;
}

/* n 0: the pipeline. */
static void figure(const char *name, int n, ReduceForm form) {
    double seconds[2][BENCH_MAX_ROUNDS];
    BenchRounds rounds = {0};
    Run runs[2];
    if (!bench_wanted(name))
        return;
    while (!bench_enough(&rounds, N_ROUNDS)) {
        BenchNoise noise;
        bench_noise_begin(&noise);
        for (int i = 0; i < 2; i++) {
            runs[i] = measure(urls[i], n, form);
            seconds[i][rounds.n] = runs[i].seconds;
        }
        bench_round(&rounds, runs[1].seconds / runs[0].seconds, bench_noise_end(&noise));
    }
    double ratio = bench_conclude(&rounds, name);
    bench_note("one server %.2f s, two %.2f s; in the last round one server's link was in use "
               "%.0f %% of the time, the processors busy %.0f %% and %.0f %%, the busier of two "
               "links carried %.1f %% up, %.1f %% down",
               bench_median(seconds[0], rounds.n), bench_median(seconds[1], rounds.n),
               link_use(&runs[0]), runs[0].busy * 100, runs[1].busy * 100,
               busier_share(runs[1].before.to, runs[1].after.to),
               busier_share(runs[1].before.from, runs[1].after.from));
    bench_print(name, ratio, 3, "x", false, GOAL_PERCENT / 100.0);
}

/* In the hub's network, which the program itself does not enter. */
static void measure_all(const Net *net) {
    char addresses[N_SERVERS][NET_ADDRESS_BYTES];
    bench_must(net_enter(net, -1), "entering the hub");
    for (int s = 0; s < N_SERVERS; s++)
        net_address(s, addresses[s]);
    snprintf(urls[0], sizeof urls[0], "redis://%s:%d/0", addresses[0], PORT);
    snprintf(urls[1], sizeof urls[1], "redis://%s:%d,%s:%d/0", addresses[0], PORT, addresses[1],
             PORT);
    bench_must(net_await_relay(urls[1], &dropper), "opening the relay");
    figure("servers/reduce/2/ours", 2, REDUCE_CHUNKED);
    figure("servers/reduce/4/ours", 4, REDUCE_CHUNKED);
    figure("servers/reduce/2/in-store", 2, REDUCE_IN_STORE);
    figure("servers/reduce/4/in-store", 4, REDUCE_IN_STORE);
    figure("servers/pipeline", 0, REDUCE_AUTO);
    relay_close(dropper);
}

int main(int argc, char **argv) {
    static const int rates[N_SERVERS] = {RATE_MB, RATE_MB};
    Net net;
    pid_t servers[N_SERVERS];
    int status = 0;
    bench_begin(argc, argv);
    bench_must(net_open(rates, N_SERVERS, &net), "making networks");
    for (int s = 0; s < N_SERVERS; s++)
        bench_must(net_start_redis(&net, s, PORT, FUNCPIPE_MODULE, &servers[s]), "starting Redis");
    pid_t measurer = fork();
    if (measurer == 0) {
        measure_all(&net);
        fflush(stdout);
        _exit(bench_end());
    }
    waitpid(measurer, &status, 0);
    for (int s = 0; s < N_SERVERS; s++) {
        kill(servers[s], SIGTERM);
        waitpid(servers[s], NULL, 0);
    }
    net_close(&net);
    bench_child_ended(status);
    return bench_end();
}

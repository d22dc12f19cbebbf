/* reduce/SIZE/N/...: the sum of N workers' gradients over a real Redis, each worker a process
 * behind a link of 70 MB/s each way (a network namespace), in four forms side by side, in turns:
 *
 *     three-phase  LambdaML's scatter-reduce: send each other worker its part, read and add one's
 *                  own, send the sum; read the other sums. One after the other: 3s/w - 2s/(nw)
 *     two-phase    FuncPipe's pipelined scatter-reduce: the same, sending and reading of the first
 *                  two at once: about 2s/w
 *     chunked      ours (worker/exchange.h): small chunks, everything at once: 2s(n-1)/(nw)
 *     in-store     ours, the server adds: s/w
 *
 * The first two are written here from their papers' descriptions, over the same relay. SIZE is
 * 64MB, 64MB-35MBps (links half as fast: what the processors lack shows in the difference), 4KB,
 * and 4KB-20ms (every request takes 20 ms more). What counts at 4 KB is round trips: a sum takes
 * one at the least, from putting to being told, and two where a worker adds up for the others.
 *
 * At the end all forms and their bounds are printed side by side, as a table for people. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/hash.h"
#include "tests/bench/bench.h"
#include "tests/bench/net.h"
#include "tests/bench/reducer.h"
#include "tests/support/proxy.h"

enum { RATE_MB = 70, N_ROUNDS = 3, MAX_N = 8, N_TRIPS = 15, PORT = 6379 };
#define LARGE_BYTES (INT64_C(64) * 1000 * 1000)
#define SMALL_BYTES INT64_C(4096)

typedef enum Form { THREE_PHASE, TWO_PHASE, CHUNKED, IN_STORE, N_REDUCTIONS } Form;
static const char *const form_names[] = {"three-phase", "two-phase", "ours", "in-store"};

typedef struct Row {
    const char *size;
    int64_t bytes;
    int n, rate_mb, latency_ms;
    int n_turns; /* a round; each runs every form once */
    bool gated;  /* its figures have goals */
} Row;

static const Row rows[] = {
    {"64MB", LARGE_BYTES, 2, RATE_MB, 0, 1, true},
    {"64MB", LARGE_BYTES, 4, RATE_MB, 0, 1, true},
    {"64MB", LARGE_BYTES, 8, RATE_MB, 0, 1, true},
    {"64MB-35MBps", LARGE_BYTES, 8, RATE_MB / 2, 0, 1, false},
    {"4KB", SMALL_BYTES, 2, RATE_MB, 0, 15, true},
    {"4KB", SMALL_BYTES, 4, RATE_MB, 0, 15, true},
    {"4KB", SMALL_BYTES, 8, RATE_MB, 0, 15, true},
    {"4KB-20ms", SMALL_BYTES, 2, RATE_MB, 20, 3, true},
    {"4KB-20ms", SMALL_BYTES, 4, RATE_MB, 20, 3, true},
    {"4KB-20ms", SMALL_BYTES, 8, RATE_MB, 20, 3, true},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

typedef struct Result {
    bool measured;
    int n_quiet, n_rounds;
    double s[N_REDUCTIONS], bound_s[N_REDUCTIONS], busy[N_REDUCTIONS];
    double trip_s; /* of a request */
    ReduceForm ours;
} Result;

typedef struct Shared { /* between the processes */
    pthread_barrier_t barrier;
    bool over; /* read behind the first barrier of a turn */
    int64_t trip_ns;
    ReduceForm ours;
    int64_t begin_ns[MAX_N], end_ns[MAX_N];
    uint64_t hash[MAX_N]; /* of the sum that each has */
    int rc[MAX_N];
    char text[MAX_N][256];
} Shared;

typedef struct Setup {
    const Row *row;
    int n;
    ReduceSpec ours;
    char url[128];
    const Net *net;
    Shared *shared;
} Setup;

/* One worker process. */
typedef struct Peer {
    const Setup *setup;
    int self;
    int64_t n_floats, step;
    Order order;
    Fetch up, down; /* of the first two forms */
    float *gradient, *sum;
    char *out, *in;      /* a part's blobs */
    Reducer reducers[2]; /* ours, in-store */
} Peer;

static float element(int worker, int64_t i) {
    return (float)((i * 37 + worker * 11) % 1009) / 64.0F;
}

/* ---- the published forms ---- */

typedef struct Part { /* n-th part of the vector */
    int64_t first, n;
    BlobTensor tensor;
    size_t offset, bytes;
} Part;

static Part part_of(const Peer *peer, int index) {
    Part part = {.first = peer->n_floats * index / peer->setup->n};
    part.n = peer->n_floats * (index + 1) / peer->setup->n - part.first;
    part.tensor = (BlobTensor){DTYPE_F32, shape_1d(part.n)};
    part.bytes = (size_t)blob_layout(&part.tensor, 1, &part.offset);
    return part;
}

static FetchBlob blob_of(const Part *part, void *bytes) {
    return (FetchBlob){bytes, part->bytes, &part->tensor, &part->offset, 1};
}

static int send_part(Peer *peer, Fetch *fetch, Key key, int index, const float *from) {
    Part part = part_of(peer, index);
    int64_t bytes = 0;
    memcpy(peer->out + part.offset, from + part.first, (size_t)part.n * sizeof(float));
    const FetchBlob blob = blob_of(&part, peer->out);
    return fetch_put(fetch, key, &blob, &bytes);
}

static int read_part(Peer *peer, Fetch *fetch, Key key, int index, float *to, bool add) {
    Part part = part_of(peer, index);
    int64_t bytes = 0;
    const FetchBlob blob = blob_of(&part, peer->in);
    TRY(fetch_get(fetch, key, (FetchPeer){0, 0}, &blob, &bytes));
    const float *from = (const float *)(const void *)(peer->in + part.offset);
    for (int64_t i = 0; i < part.n; i++)
        to[part.first + i] = add ? to[part.first + i] + from[i] : from[i];
    return 0;
}

static Key part_key_of(const Peer *peer, int part, int worker) {
    return key_part(key_sum(&peer->up.space, peer->step, 'r', 0, part).text, worker);
}

static int scatter(Peer *peer) {
    const int n = peer->setup->n;
    for (int k = 1; k < n; k++) {
        int part = (peer->self + k) % n;
        TRY(send_part(peer, &peer->up, part_key_of(peer, part, peer->self), part, peer->gradient));
    }
    return 0;
}

/* The own part's sum, in the order of workers. */
static int gather(Peer *peer) {
    Part part = part_of(peer, peer->self);
    for (int w = 0; w < peer->setup->n; w++) {
        if (w != peer->self) {
            TRY(read_part(peer, &peer->down, part_key_of(peer, peer->self, w), peer->self,
                          peer->sum, w > 0));
            continue;
        }
        for (int64_t i = part.first; i < part.first + part.n; i++)
            peer->sum[i] = w > 0 ? peer->sum[i] + peer->gradient[i] : peer->gradient[i];
    }
    return 0;
}

static int spread(Peer *peer) {
    const int n = peer->setup->n;
    Key own = key_sum(&peer->up.space, peer->step, 'r', 0, peer->self);
    TRY(send_part(peer, &peer->up, own, peer->self, peer->sum));
    for (int k = 1; k < n; k++) {
        int part = (peer->self + k) % n;
        TRY(read_part(peer, &peer->down, key_sum(&peer->up.space, peer->step, 'r', 0, part), part,
                      peer->sum, false));
    }
    return 0;
}

static int three_phase(Peer *peer) {
    TRY(scatter(peer));
    TRY(gather(peer));
    return spread(peer);
}

typedef struct Scatter {
    Peer *peer;
    int rc;
} Scatter;

static void *scatter_main(void *arg) {
    Scatter *it = arg;
    it->rc = scatter(it->peer);
    return NULL;
}

static int two_phase(Peer *peer) {
    Scatter it = {.peer = peer};
    pthread_t thread;
    if (pthread_create(&thread, NULL, scatter_main, &it) != 0)
        return err_set(ERR_MEMORY, "a thread");
    int rc = gather(peer);
    pthread_join(thread, NULL);
    TRY(rc);
    TRY(it.rc);
    return spread(peer);
}

/* ---- all forms ---- */

static int run_form(Peer *peer, Form form) {
    switch (form) {
    case THREE_PHASE:
        return three_phase(peer);
    case TWO_PHASE:
        return two_phase(peer);
    default:
        return reducer_run(&peer->reducers[form == IN_STORE], peer->step, peer->gradient,
                           peer->sum);
    }
}

/* ---- a worker ---- */

static int open_reducer(Peer *peer, int which, ReduceForm form) {
    const Setup *setup = peer->setup;
    ReduceSpec spec = setup->ours;
    spec.form = form;
    return reducer_open(&peer->reducers[which], setup->url, peer->order.job, setup->n, peer->self,
                        peer->n_floats, &spec);
}

static int peer_open(Peer *peer) {
    const Setup *setup = peer->setup;
    Relay *relay = NULL;
    order_init(&peer->order);
    snprintf(peer->order.job, sizeof peer->order.job, "bench%d", setup->n);
    peer->order.wait_timeout_ms = REDUCER_WAIT_MS;
    const size_t bytes = (size_t)setup->row->bytes;
    peer->n_floats = setup->row->bytes / (int64_t)sizeof(float);
    peer->gradient = malloc(bytes);
    peer->sum = calloc(1, bytes);
    peer->out = aligned_alloc(BLOB_ALIGN, bytes + 4096);
    peer->in = aligned_alloc(BLOB_ALIGN, bytes + 4096);
    if (!peer->gradient || !peer->sum || !peer->out || !peer->in)
        return err_set(ERR_MEMORY, "%zu bytes", bytes);
    memset(peer->out, 0, bytes + 4096);
    for (int64_t i = 0; i < peer->n_floats; i++)
        peer->gradient[i] = element(peer->self, i);
    TRY(relay_open(setup->url, &relay));
    TRY(fetch_init(&peer->up, &peer->order, relay));
    TRY(relay_open(setup->url, &relay));
    TRY(fetch_init(&peer->down, &peer->order, relay));
    TRY(open_reducer(peer, 0, setup->ours.form));
    return open_reducer(peer, 1, REDUCE_IN_STORE);
}

static int measure_trip(Peer *peer, int64_t *out_ns) {
    double ns[N_TRIPS];
    for (int i = 0; i < N_TRIPS; i++) {
        int64_t begin_ns = clock_now_ns();
        TRY(relay_has(peer->down.relay, "nothing"));
        ns[i] = (double)(clock_now_ns() - begin_ns);
    }
    *out_ns = (int64_t)bench_median(ns, N_TRIPS);
    return 0;
}

/* Form after form, all workers at the same time, until the parent says that it is over. What is
 * timed lies between the first two barriers of each. */
static int peer_run(Peer *peer) {
    Shared *shared = peer->setup->shared;
    const size_t bytes = (size_t)peer->setup->row->bytes;
    TRY(peer_open(peer));
    pthread_barrier_wait(&shared->barrier); /* all others do nothing now */
    if (peer->self == 0) {
        shared->ours = exchange_form(peer->reducers[0].exchange);
        TRY(measure_trip(peer, &shared->trip_ns));
    }
    for (;; peer->step++) {
        memset(peer->sum, 0, bytes);
        pthread_barrier_wait(&shared->barrier);
        if (shared->over)
            return 0;
        shared->begin_ns[peer->self] = clock_now_ns();
        TRY(run_form(peer, (Form)(peer->step % N_REDUCTIONS)));
        shared->end_ns[peer->self] = clock_now_ns();
        pthread_barrier_wait(&shared->barrier);
        shared->hash[peer->self] = hash_bytes(peer->sum, bytes);
        pthread_barrier_wait(&shared->barrier);
    }
}

static void peer_main(const Setup *setup, int self) {
    Peer peer = {.setup = setup, .self = self};
    int rc = net_enter(setup->net, self);
    if (rc >= 0)
        rc = peer_run(&peer);
    setup->shared->rc[self] = rc;
    if (rc < 0)
        snprintf(setup->shared->text[self], sizeof setup->shared->text[self], "%s", err_text());
    _exit(rc < 0);
}

/* ---- all of them ---- */

static Shared *open_shared(int n) {
    Shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attributes;
    if (shared == MAP_FAILED)
        bench_must(err_set(ERR_MEMORY, "shared memory"), "starting workers");
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attributes, (unsigned)n + 1);
    return shared;
}

/* A worker that failed would never come to the barrier. */
static void watch(const Setup *setup, const pid_t *pids) {
    for (int w = 0; w < setup->n; w++) {
        if (waitpid(pids[w], NULL, WNOHANG) == pids[w]) {
            bench_note("worker %d: %s", w, setup->shared->text[w]);
            bench_must(err_set(ERR_IO, "worker %d ended: %s", w, setup->shared->text[w]),
                       "reducing");
        }
    }
}

static void *watch_main(void *arg) {
    void **args = arg;
    for (;;) {
        watch(args[0], args[1]);
        clock_sleep_until(clock_deadline_ms(200));
    }
    return NULL;
}

static pthread_t start_workers(Setup *setup, pid_t *pids, void **watched) {
    pthread_t watcher;
    setup->shared = open_shared(setup->n);
    for (int w = 0; w < setup->n; w++) {
        pids[w] = fork();
        if (pids[w] == 0)
            peer_main(setup, w);
        bench_must(pids[w] > 0 ? 0 : err_set(ERR_MEMORY, "a process"), "starting workers");
    }
    watched[0] = setup;
    watched[1] = pids;
    bench_must(pthread_create(&watcher, NULL, watch_main, watched) == 0
                   ? 0
                   : err_set(ERR_MEMORY, "a thread"),
               "watching workers");
    return watcher;
}

static void end_workers(Setup *setup, const pid_t *pids, pthread_t watcher) {
    pthread_cancel(watcher);
    pthread_join(watcher, NULL);
    setup->shared->over = true;
    pthread_barrier_wait(&setup->shared->barrier);
    for (int w = 0; w < setup->n; w++)
        waitpid(pids[w], NULL, 0);
    munmap(setup->shared, sizeof *setup->shared);
}

/* Seconds from the first worker's begin to the last one's end. */
static double time_form(const Setup *setup, int form, Relay *dropper, double *out_busy) {
    Shared *shared = setup->shared;
    char job[32];
    const char *const prefix = job;
    BenchNoise busy;
    pthread_barrier_wait(&shared->barrier);
    bench_busy_begin(&busy);
    pthread_barrier_wait(&shared->barrier);
    *out_busy = bench_busy_end(&busy);
    pthread_barrier_wait(&shared->barrier);
    int64_t begin = shared->begin_ns[0];
    int64_t end = shared->end_ns[0];
    for (int w = 1; w < setup->n; w++) {
        begin = shared->begin_ns[w] < begin ? shared->begin_ns[w] : begin;
        end = shared->end_ns[w] > end ? shared->end_ns[w] : end;
        if (shared->hash[w] != shared->hash[0])
            bench_must(err_set(ERR_CORRUPT, "%s: workers have different sums", form_names[form]),
                       "reducing");
    }
    snprintf(job, sizeof job, "bench%d", setup->n);
    bench_must(relay_drop(dropper, &prefix, 1, NULL), "dropping");
    return (double)(end - begin) / 1e9;
}

/* A round: the median of its turns for every form. */
static void run_round(const Setup *setup, Relay *dropper, double *out_s, double *busy_s) {
    double s[N_REDUCTIONS][BENCH_MAX_ROUNDS];
    const int n_turns = setup->row->n_turns;
    for (int i = 0; i < n_turns * N_REDUCTIONS; i++) {
        const int form = i % N_REDUCTIONS;
        double busy = 0;
        s[form][i / N_REDUCTIONS] = time_form(setup, form, dropper, &busy);
        busy_s[form] += busy * s[form][i / N_REDUCTIONS];
    }
    for (int form = 0; form < N_REDUCTIONS; form++)
        out_s[form] = bench_median(s[form], n_turns);
}

static Result measure(Setup *setup, const char *drop_url) {
    Result result = {.measured = true};
    pid_t pids[MAX_N];
    void *watched[2];
    static BenchRounds rounds[N_REDUCTIONS];
    double busy_s[N_REDUCTIONS] = {0};
    double all_s[N_REDUCTIONS] = {0};
    Relay *dropper = NULL;
    bench_must(net_await_relay(drop_url, &dropper), "opening the relay");
    pthread_t watcher = start_workers(setup, pids, watched);
    pthread_barrier_wait(&setup->shared->barrier);
    while (!bench_enough(&rounds[0], N_ROUNDS)) {
        BenchNoise noise;
        double s[N_REDUCTIONS];
        bench_noise_begin(&noise);
        run_round(setup, dropper, s, busy_s);
        const double others = bench_noise_end(&noise);
        for (int form = 0; form < N_REDUCTIONS; form++) {
            bench_round(&rounds[form], s[form], others);
            all_s[form] += s[form] * setup->row->n_turns;
        }
    }
    result.trip_s = (double)setup->shared->trip_ns / 1e9;
    result.ours = setup->shared->ours;
    result.n_quiet = bench_quiet_rounds(&rounds[0]);
    result.n_rounds = rounds[0].n;
    for (int form = 0; form < N_REDUCTIONS; form++) {
        result.s[form] = bench_quiet_median(&rounds[form]);
        result.busy[form] = busy_s[form] / all_s[form];
    }
    end_workers(setup, pids, watcher);
    relay_close(dropper);
    return result;
}

/* ---- figures ---- */

static double least(const Result *result, Form a, Form b) {
    return result->s[a] < result->s[b] ? result->s[a] : result->s[b];
}

static double most(const Result *result, Form a, Form b) {
    return result->s[a] > result->s[b] ? result->s[a] : result->s[b];
}

static const char *name_of(const Row *row, const char *what) {
    static char name[64];
    snprintf(name, sizeof name, "reduce/%s/%d/%s", row->size, row->n, what);
    return name;
}

static bool row_wanted(const Row *row) {
    static const char *const suffixes[] = {"ours", "in-store", "fastest", "speed-up"};
    for (int i = 0; i < 4; i++) {
        if (bench_wanted(name_of(row, suffixes[i])))
            return true;
    }
    return false;
}

/* What the links need for the bytes. */
static double link_s(const Row *row, Form form) {
    const double s_w = (double)row->bytes / (row->rate_mb * 1e6);
    switch (form) {
    case THREE_PHASE:
        return 3 * s_w - 2 * s_w / row->n;
    case TWO_PHASE:
        return 2 * s_w;
    case CHUNKED:
        return 2 * s_w * (row->n - 1) / row->n;
    default:
        return s_w;
    }
}

/* That, and the requests of which each must wait for another one's answer. */
static double bound_s(const Row *row, const Result *result, Form form) {
    const bool one_adds = form == THREE_PHASE || form == TWO_PHASE ||
                          (form == CHUNKED && result->ours == REDUCE_CHUNKED);
    return link_s(row, form) + (one_adds ? 2 : 1) * result->trip_s;
}

static void print_ratio(const Row *row, const char *what, double value, int digits, bool at_least,
                        double goal) {
    if (row->gated)
        bench_print(name_of(row, what), value, digits, "x", at_least, goal);
    else
        bench_show(name_of(row, what), value, digits, "x");
}

static void print_figures(const Row *row, const Result *result) {
    const bool large = row->bytes == LARGE_BYTES;
    const double *s = result->s;
    bench_note("%s: %d of %d rounds on a quiet machine; a request takes %.2f ms; ours is '%s'",
               name_of(row, "*"), result->n_quiet, result->n_rounds, result->trip_s * 1e3,
               reduction_form_names[result->ours]);
    if (large) {
        bench_note("all processors were busy for %.0f %% of three-phase, %.0f %% of two-phase, "
                   "%.0f %% of ours, %.0f %% of in-store",
                   result->busy[THREE_PHASE] * 100, result->busy[TWO_PHASE] * 100,
                   result->busy[CHUNKED] * 100, result->busy[IN_STORE] * 100);
        print_ratio(row, "ours", s[CHUNKED] / link_s(row, CHUNKED), 3, false, 1.10);
        print_ratio(row, "in-store", s[IN_STORE] / link_s(row, IN_STORE), 3, false, 1.15);
    }
    print_ratio(row, "fastest",
                least(result, THREE_PHASE, TWO_PHASE) / most(result, CHUNKED, IN_STORE), 2, true,
                1.0);
    if (large && row->n == 4)
        print_ratio(row, "speed-up", s[THREE_PHASE] / s[IN_STORE], 2, true, 1.9);
}

/* ---- rows ---- */

/* In the hub's network, which the program itself does not enter. */
static int measure_row(const Row *row, const Net *net, Result *out_result) {
    char address[NET_ADDRESS_BYTES];
    char drop_url[64];
    int port = PORT;
    Proxy *proxy = NULL;
    Setup setup = {.row = row, .n = row->n, .net = net};
    bench_must(net_enter(net, -1), "entering the hub");
    if (row->latency_ms > 0) {
        bench_must(proxy_start_all(PORT, &proxy), "starting the proxy");
        proxy_delay(proxy, PROXY_DOWN, row->latency_ms);
        port = proxy_port(proxy);
    }
    setup.ours = (ReduceSpec){.latency_us = (1 + row->latency_ms) * 1000,
                              .rate_bytes_per_s = row->rate_mb * 1000000};
    snprintf(setup.url, sizeof setup.url, "redis://%s:%d/0", net_address(-1, address), port);
    snprintf(drop_url, sizeof drop_url, "redis://%s:%d/0", address, PORT);
    Result result = measure(&setup, drop_url);
    for (int form = 0; form < N_REDUCTIONS; form++)
        result.bound_s[form] = bound_s(row, &result, (Form)form);
    print_figures(row, &result);
    proxy_stop(proxy);
    *out_result = result;
    return bench_end();
}

static void run_row(const Row *row, Result *out_result) {
    int rates[MAX_N];
    Net net;
    pid_t redis = 0;
    int status = 0;
    for (int w = 0; w < row->n; w++)
        rates[w] = row->rate_mb;
    bench_must(net_open(rates, row->n, &net), "making networks");
    bench_must(net_start_redis(&net, -1, PORT, FUNCPIPE_MODULE, &redis), "starting Redis");
    pid_t measurer = fork();
    if (measurer == 0) {
        status = measure_row(row, &net, out_result);
        fflush(stdout);
        _exit(status);
    }
    waitpid(measurer, &status, 0);
    kill(redis, SIGTERM);
    waitpid(redis, NULL, 0);
    net_close(&net);
    bench_child_ended(status);
}

/* "2.02 (1.83), 61 % |" for all forms: time, bound, and how busy the processors were where that is
 * long enough to be measured. */
static void format_forms(const Row *row, const Result *result, char *out, size_t out_bytes) {
    const bool large = row->bytes == LARGE_BYTES;
    const double unit = large ? 1 : 1e3;
    size_t n = 0;
    for (int form = 0; form < N_REDUCTIONS; form++) {
        n += (size_t)snprintf(out + n, out_bytes - n, " %.2f (%.2f)", result->s[form] * unit,
                              result->bound_s[form] * unit);
        if (large)
            n += (size_t)snprintf(out + n, out_bytes - n, ", %.0f %%", result->busy[form] * 100);
        n += (size_t)snprintf(out + n, out_bytes - n, " |");
    }
}

/* In Markdown. */
static void print_table(const Result *results) {
    bench_note("64MB: seconds (bound), how busy all processors were; 4KB: milliseconds (bound). "
               "Chunks of %d KiB.",
               (int)(REDUCE_CHUNK_BYTES >> 10));
    bench_note("| s | n | three-phase | two-phase | ours | in-store | quiet rounds |");
    bench_note("|---|---|---|---|---|---|---|");
    for (int i = 0; i < N_ROWS; i++) {
        const Result *it = &results[i];
        char text[512];
        if (!it->measured)
            continue;
        format_forms(&rows[i], it, text, sizeof text);
        bench_note("| %s | %d |%s %d of %d |", rows[i].size, rows[i].n, text, it->n_quiet,
                   it->n_rounds);
    }
}

int main(int argc, char **argv) {
    bench_begin(argc, argv);
    Result *results = mmap(NULL, N_ROWS * sizeof *results, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (results == MAP_FAILED)
        bench_must(err_set(ERR_MEMORY, "shared memory"), "beginning");
    for (int i = 0; i < N_ROWS; i++) {
        if (row_wanted(&rows[i]))
            run_row(&rows[i], &results[i]);
    }
    print_table(results);
    return bench_end();
}

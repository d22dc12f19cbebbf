/* reduce/...: the sum of n workers' gradients over a real Redis, each worker a process behind a
 * link of 70 MB/s each way (a network namespace), in four forms side by side:
 *
 *     three-phase  LambdaML's scatter-reduce: send each other worker its part, read and add one's
 *                  own, send the sum; read the other sums. One after the other: 3s/w - 2s/(nw)
 *     two-phase    FuncPipe's pipelined scatter-reduce: the same, sending and reading of the first
 *                  two at once: about 2s/w
 *     chunked      ours (worker/exchange.h): small chunks, everything at once: 2s(n-1)/(nw)
 *     in-store     ours, the server adds: s/w
 *
 * The first two are written here from their papers' descriptions, over the same relay. */
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
#include "tests/support/loopback.h"
#include "tests/support/proxy.h"

enum { RATE_MB = 70, N_ROUNDS = 3, MAX_N = 8, LATENCY_MS = 20 };
#define LARGE_BYTES (INT64_C(64) * 1000 * 1000)
#define SMALL_BYTES INT64_C(4096)

typedef enum Form { THREE_PHASE, TWO_PHASE, CHUNKED, IN_STORE, N_REDUCTIONS } Form;
static const char *const form_names[] = {"three-phase", "two-phase", "ours", "in-store"};

typedef struct Shared { /* between the processes */
    pthread_barrier_t barrier;
    int64_t begin_ns[MAX_N], end_ns[MAX_N];
    uint64_t hash[MAX_N]; /* of the sum that each has */
    int rc[MAX_N];
    char text[MAX_N][256];
} Shared;

typedef struct Setup {
    int n;
    int64_t bytes;
    ReduceSpec ours;
    char url[128];
    const Net *net; /* NULL: all on loopback */
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
    peer->n_floats = setup->bytes / (int64_t)sizeof(float);
    const size_t bytes = (size_t)setup->bytes;
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

/* Every round runs every form once, all workers at the same time. */
static int peer_run(Peer *peer) {
    Shared *shared = peer->setup->shared;
    TRY(peer_open(peer));
    for (int round = 0; round < N_ROUNDS; round++) {
        for (int form = 0; form < N_REDUCTIONS; form++) {
            memset(peer->sum, 0, (size_t)peer->setup->bytes);
            peer->step++;
            pthread_barrier_wait(&shared->barrier);
            shared->begin_ns[peer->self] = clock_now_ns();
            TRY(run_form(peer, (Form)form));
            shared->end_ns[peer->self] = clock_now_ns();
            shared->hash[peer->self] = hash_bytes(peer->sum, (size_t)peer->setup->bytes);
            pthread_barrier_wait(&shared->barrier);
            pthread_barrier_wait(
                &shared->barrier); /* the parent has read, and dropped the objects */
        }
    }
    return 0;
}

static void peer_main(const Setup *setup, int self) {
    Peer peer = {.setup = setup, .self = self};
    int rc = setup->net ? net_enter(setup->net, self) : 0;
    if (rc >= 0)
        rc = peer_run(&peer);
    setup->shared->rc[self] = rc;
    if (rc < 0)
        snprintf(setup->shared->text[self], sizeof setup->shared->text[self], "%s", err_text());
    _exit(rc < 0);
}

/* ---- all of them ---- */

typedef struct Times {
    double s[N_REDUCTIONS];
} Times;

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

static Times measure(Setup *setup, const char *drop_url) {
    Times times = {{0}};
    pid_t pids[MAX_N];
    double rounds[N_REDUCTIONS][N_ROUNDS];
    Relay *relay = NULL;
    setup->shared = open_shared(setup->n);
    for (int w = 0; w < setup->n; w++) {
        pids[w] = fork();
        if (pids[w] == 0)
            peer_main(setup, w);
        bench_must(pids[w] > 0 ? 0 : err_set(ERR_MEMORY, "a process"), "starting workers");
    }
    pthread_t watcher;
    void *args[] = {setup, pids};
    pthread_create(&watcher, NULL, watch_main, args);
    bench_must(relay_open(drop_url, &relay), "opening the relay");
    Shared *shared = setup->shared;
    for (int i = 0; i < N_ROUNDS * N_REDUCTIONS; i++) {
        char job[32];
        pthread_barrier_wait(&shared->barrier);
        pthread_barrier_wait(&shared->barrier);
        int64_t begin = shared->begin_ns[0];
        int64_t end = shared->end_ns[0];
        for (int w = 1; w < setup->n; w++) {
            begin = shared->begin_ns[w] < begin ? shared->begin_ns[w] : begin;
            end = shared->end_ns[w] > end ? shared->end_ns[w] : end;
            if (shared->hash[w] != shared->hash[0])
                bench_must(err_set(ERR_CORRUPT, "%s: workers have different sums",
                                   form_names[i % N_REDUCTIONS]),
                           "reducing");
        }
        rounds[i % N_REDUCTIONS][i / N_REDUCTIONS] = (double)(end - begin) / 1e9;
        snprintf(job, sizeof job, "bench%d", setup->n);
        const char *const prefix = job;
        bench_must(relay_drop(relay, &prefix, 1, NULL), "dropping");
        if (i == N_ROUNDS * N_REDUCTIONS - 1) {
            pthread_cancel(watcher);
            pthread_join(watcher, NULL);
        }
        pthread_barrier_wait(&shared->barrier);
    }
    for (int w = 0; w < setup->n; w++)
        waitpid(pids[w], NULL, 0);
    relay_close(relay);
    munmap(shared, sizeof *shared);
    for (int form = 0; form < N_REDUCTIONS; form++)
        times.s[form] = bench_median(rounds[form], N_ROUNDS);
    return times;
}

static double fastest_other(const Times *times) {
    return times->s[0] < times->s[1] ? times->s[0] : times->s[1];
}

/* ---- figures ---- */

static bool large_wanted(int n) {
    static const char *const suffixes[] = {"ours", "in-store", "fastest", "speed-up"};
    for (int i = 0; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "reduce/64MB/%d/%s", n, suffixes[i]);
        if (bench_wanted(name))
            return true;
    }
    return false;
}

static void print_large(int n, const Times *times) {
    char name[64];
    const double s_w = (double)LARGE_BYTES / (RATE_MB * 1e6);
    const double bound = 2 * s_w * (n - 1) / n;
    bench_note(
        "n = %d, 64 MB: three-phase %.2f s (its bound %.2f), two-phase %.2f (%.2f), ours %.2f "
        "(%.2f), in-store %.2f (%.2f)",
        n, times->s[0], 3 * s_w - 2 * s_w / n, times->s[1], 2 * s_w, times->s[2], bound,
        times->s[3], s_w);
    snprintf(name, sizeof name, "reduce/64MB/%d/ours", n);
    bench_print(name, times->s[CHUNKED] / bound, 3, "x", false, 1.10);
    snprintf(name, sizeof name, "reduce/64MB/%d/in-store", n);
    bench_print(name, times->s[IN_STORE] / s_w, 3, "x", false, 1.15);
    double slower = times->s[CHUNKED] > times->s[IN_STORE] ? times->s[CHUNKED] : times->s[IN_STORE];
    snprintf(name, sizeof name, "reduce/64MB/%d/fastest", n);
    bench_print(name, fastest_other(times) / slower, 2, "x", true, 1.0);
    if (n == 4) {
        snprintf(name, sizeof name, "reduce/64MB/%d/speed-up", n);
        bench_print(name, times->s[THREE_PHASE] / times->s[IN_STORE], 2, "x", true, 1.9);
    }
}

static void large(void) {
    static const int counts[] = {2, 4, 8};
    for (int i = 0; i < 3; i++) {
        const int n = counts[i];
        int rates[MAX_N];
        Net net;
        pid_t redis = 0;
        char address[NET_ADDRESS_BYTES];
        char drop_url[64];
        if (!large_wanted(n))
            continue;
        for (int w = 0; w < n; w++)
            rates[w] = RATE_MB;
        bench_must(net_open(rates, n, &net), "making networks");
        bench_must(net_start_redis(&net, -1, 6379, FUNCPIPE_MODULE, &redis), "starting Redis");
        Setup setup = {.n = n, .bytes = LARGE_BYTES, .net = &net};
        setup.ours = (ReduceSpec){.latency_us = 1000, .rate_bytes_per_s = RATE_MB * 1000000};
        snprintf(setup.url, sizeof setup.url, "redis://%s:6379/0", net_address(-1, address));
        snprintf(drop_url, sizeof drop_url, "redis://%s:6379/0", address);
        clock_sleep_until(clock_deadline_ms(300));
        pid_t measurer = fork(); /* in the hub's network, which this process does not enter */
        if (measurer == 0) {
            bench_must(net_enter(&net, -1), "entering the hub");
            Times times = measure(&setup, drop_url);
            print_large(n, &times);
            fflush(stdout);
            _exit(bench_end());
        }
        int status = 0;
        waitpid(measurer, &status, 0);
        kill(redis, SIGTERM);
        waitpid(redis, NULL, 0);
        net_close(&net);
        bench_child_ended(status);
    }
}

/* A port that was free a moment ago. */
static int free_port(void) {
    int port = 0;
    int fd = loopback_listen(0, &port);
    bench_must(fd >= 0 ? 0 : err_set(ERR_IO, "no port"), "finding a port");
    close(fd);
    return port;
}

static void small(void) {
    static const int counts[] = {2, 4, 8};
    for (int i = 0; i < 3; i++) {
        char name[64];
        char drop_url[64];
        const int n = counts[i];
        pid_t redis = 0;
        Proxy *proxy = NULL;
        snprintf(name, sizeof name, "reduce/4KB/%d/ours", n);
        if (!bench_wanted(name))
            continue;
        const int port = free_port();
        bench_must(net_start_redis(NULL, -1, port, FUNCPIPE_MODULE, &redis), "starting Redis");
        clock_sleep_until(clock_deadline_ms(300));
        bench_must(proxy_start(port, &proxy), "starting the proxy");
        proxy_delay(proxy, PROXY_DOWN, LATENCY_MS);
        Setup setup = {.n = n, .bytes = SMALL_BYTES};
        setup.ours = (ReduceSpec){.latency_us = LATENCY_MS * 1000,
                                  .rate_bytes_per_s = RATE_MB * 1000000,
                                  .store_adds = true};
        snprintf(setup.url, sizeof setup.url, "redis://127.0.0.1:%d/0", proxy_port(proxy));
        snprintf(drop_url, sizeof drop_url, "redis://127.0.0.1:%d/0", port);
        Times times = measure(&setup, drop_url);
        bench_note(
            "n = %d, 4 KB, +%d ms a request: three-phase %.0f ms, two-phase %.0f, ours %.0f, "
            "in-store %.0f",
            n, LATENCY_MS, times.s[0] * 1e3, times.s[1] * 1e3, times.s[2] * 1e3, times.s[3] * 1e3);
        bench_print(name, times.s[CHUNKED] / fastest_other(&times), 2, "x", false, 1.0);
        proxy_stop(proxy);
        kill(redis, SIGTERM);
        waitpid(redis, NULL, 0);
    }
}

int main(int argc, char **argv) {
    bench_begin(argc, argv);
    large();
    small();
    return bench_end();
}

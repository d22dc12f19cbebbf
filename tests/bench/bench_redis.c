/* redis/...: the Redis relay against redis-benchmark on the same server, in turns: one connection,
 * values of 4 MB, new keys for puts, one key for gets. And how many round trips a small object
 * takes from the begin of its put to the reader that waits for it, over a connection with latency.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/relay.h"
#include "tests/bench/bench.h"
#include "tests/bench/net.h"
#include "tests/support/loopback.h"
#include "tests/support/proxy.h"

enum {
    VALUE_BYTES = 4 * 1000 * 1000,
    N_VALUES = 60,
    N_ROUNDS = 5,
    WAIT_MS = 60000,
    LATENCY_MS = 5,
    N_SMALL = 30
};

typedef struct Server {
    pid_t pid;
    int port;
    char url[64];
} Server;

static Server start_server(void) {
    Server server = {0};
    int fd = loopback_listen(0, &server.port);
    bench_must(fd >= 0 ? 0 : err_set(ERR_IO, "no port"), "finding a port");
    close(fd);
    bench_must(net_start_redis(NULL, -1, server.port, NULL, &server.pid), "starting Redis");
    snprintf(server.url, sizeof server.url, "redis://127.0.0.1:%d/0", server.port);
    return server;
}

static void stop_server(const Server *server) {
    kill(server->pid, SIGTERM);
    waitpid(server->pid, NULL, 0);
}

/* MB/s that redis-benchmark reports for SET or GET. */
static double peer(const Server *server, const char *test, const char *keys) {
    char command[256];
    char line[256];
    double rate = 0;
    snprintf(command, sizeof command,
             "redis-benchmark -p %d -t %s -c 1 -n %d -d %d %s --csv 2>/dev/null", server->port,
             test, N_VALUES, VALUE_BYTES, keys);
    FILE *pipe = popen(command, "r");
    while (pipe && fgets(line, sizeof line, pipe)) {
        const char *comma = strstr(line, "\",\"");
        if (comma && strncmp(line, "\"test", 5) != 0)
            rate = strtod(comma + 3, NULL);
    }
    int status = pipe ? pclose(pipe) : -1;
    bench_must(status == 0 && rate > 0 ? 0 : err_set(ERR_IO, "%s", command), "redis-benchmark");
    return rate * VALUE_BYTES / 1e6;
}

static double ours_put(Relay *relay, const char *value, int round) {
    int64_t start_ns = clock_now_ns();
    for (int i = 0; i < N_VALUES; i++) {
        char key[64];
        Slice part = {value, VALUE_BYTES};
        snprintf(key, sizeof key, "bench/put/%d.%d", round, i);
        bench_must(relay_put(relay, key, &part, 1, clock_deadline_ms(WAIT_MS)), "putting");
    }
    return (double)N_VALUES * VALUE_BYTES / 1e6 / ((double)(clock_now_ns() - start_ns) / 1e9);
}

static double ours_get(Relay *relay, char *value) {
    int64_t start_ns = clock_now_ns();
    for (int i = 0; i < N_VALUES; i++) {
        size_t bytes = 0;
        bench_must(relay_get(relay, "bench/put/0.0", value, VALUE_BYTES, clock_deadline_ms(WAIT_MS),
                             &bytes),
                   "getting");
    }
    return (double)N_VALUES * VALUE_BYTES / 1e6 / ((double)(clock_now_ns() - start_ns) / 1e9);
}

/* One round: the four rates, MB/s. */
static void measure_large(const Server *server, Relay *relay, char *value, double *out_rates) {
    const char *const prefix = "bench";
    out_rates[0] = peer(server, "set", "-r 100000000");
    out_rates[1] = ours_put(relay, value, 0);
    (void)peer(server, "set", "");
    out_rates[2] = peer(server, "get", "");
    out_rates[3] = ours_get(relay, value);
    bench_must(relay_drop(relay, &prefix, 1, NULL), "dropping");
}

static void large(void) {
    static const char *const names[] = {"redis/put-4MB", "redis/get-4MB"};
    static BenchRounds rounds[2];
    Server server = start_server();
    Relay *relay = NULL;
    char *value = malloc(VALUE_BYTES);
    double rates[4][BENCH_MAX_ROUNDS];
    bench_must(value ? net_await_relay(server.url, &relay) : err_set(ERR_MEMORY, "a value"),
               "opening");
    memset(value, 'v', VALUE_BYTES);
    while (!bench_enough(&rounds[0], N_ROUNDS)) {
        const int i = rounds[0].n;
        double now[4];
        BenchNoise noise;
        bench_noise_begin(&noise);
        measure_large(&server, relay, value, now);
        const double others = bench_noise_end(&noise);
        for (int k = 0; k < 4; k++)
            rates[k][i] = now[k];
        for (int k = 0; k < 2; k++)
            bench_round(&rounds[k], now[2 * k + 1] / now[2 * k], others);
    }
    const int n = rounds[0].n;
    bench_note("4 MB values, one connection: SET %.0f MB/s, put %.0f; GET %.0f MB/s, get %.0f",
               bench_median(rates[0], n), bench_median(rates[1], n), bench_median(rates[2], n),
               bench_median(rates[3], n));
    for (int k = 0; k < 2; k++)
        bench_print(names[k], bench_conclude(&rounds[k], names[k]), 2, "x", true, 0.9);
    relay_close(relay);
    free(value);
    stop_server(&server);
}

typedef struct Reader {
    Relay *relay;
    int round;
    int64_t got_ns[N_SMALL];
    int rc;
} Reader;

static void small_key(int round, int i, char *out, size_t out_bytes) {
    snprintf(out, out_bytes, "bench/small/%d.%d", round, i);
}

static void *reader_main(void *arg) {
    Reader *reader = arg;
    for (int i = 0; i < N_SMALL && reader->rc >= 0; i++) {
        char key[32];
        char value[64];
        size_t bytes = 0;
        small_key(reader->round, i, key, sizeof key);
        reader->rc =
            relay_get(reader->relay, key, value, sizeof value, clock_deadline_ms(WAIT_MS), &bytes);
        reader->got_ns[i] = clock_now_ns();
    }
    return NULL;
}

/* One round: ms of a round trip and from put to delivered, medians. */
static void measure_small(Relay *writer, Reader *reader, double *out_trip, double *out_wait) {
    pthread_t thread;
    double trips[N_SMALL];
    double waits[N_SMALL];
    int64_t begun_ns[N_SMALL];
    bench_must(pthread_create(&thread, NULL, reader_main, reader) == 0
                   ? 0
                   : err_set(ERR_MEMORY, "a thread"),
               "reading");
    for (int i = 0; i < N_SMALL; i++) {
        char key[32];
        Slice part = {"0123456789abcdef", 16};
        int64_t start_ns = clock_now_ns();
        bench_must(relay_has(writer, "bench/nothing"), "asking");
        trips[i] = (double)(clock_now_ns() - start_ns) / 1e6;
        clock_sleep_until(clock_deadline_ms(4 * LATENCY_MS)); /* the reader waits by now */
        small_key(reader->round, i, key, sizeof key);
        begun_ns[i] = clock_now_ns();
        bench_must(relay_put(writer, key, &part, 1, clock_deadline_ms(WAIT_MS)), "putting");
    }
    pthread_join(thread, NULL);
    bench_must(reader->rc, "getting");
    for (int i = 0; i < N_SMALL; i++)
        waits[i] = (double)(reader->got_ns[i] - begun_ns[i]) / 1e6;
    *out_trip = bench_median(trips, N_SMALL);
    *out_wait = bench_median(waits, N_SMALL);
}

static void small(void) {
    static const char name[] = "redis/small-object";
    Server server = start_server();
    Proxy *proxy = NULL;
    Reader reader = {0};
    Relay *writer = NULL;
    char url[64];
    BenchRounds rounds = {0};
    double trip = 0;
    double wait = 0;
    bench_must(net_await_relay(server.url, &writer), "opening");
    relay_close(writer);
    bench_must(proxy_start(server.port, &proxy), "starting the proxy");
    proxy_delay(proxy, PROXY_UP, LATENCY_MS);
    proxy_delay(proxy, PROXY_DOWN, LATENCY_MS);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d/0", proxy_port(proxy));
    bench_must(relay_open(url, &writer), "opening");
    bench_must(relay_open(url, &reader.relay), "opening");
    for (; !bench_enough(&rounds, N_ROUNDS); reader.round++) {
        BenchNoise noise;
        bench_noise_begin(&noise);
        measure_small(writer, &reader, &trip, &wait);
        bench_round(&rounds, wait / trip, bench_noise_end(&noise));
    }
    double trips = bench_conclude(&rounds, name);
    bench_note("in the last round a round trip %.2f ms, from put to delivered %.2f ms", trip, wait);
    bench_print(name, trips, 2, "round trips", false, 1.5);
    relay_close(writer);
    relay_close(reader.relay);
    proxy_stop(proxy);
    stop_server(&server);
}

int main(int argc, char **argv) {
    bench_begin(argc, argv);
    if (bench_wanted("redis/put-4MB") || bench_wanted("redis/get-4MB"))
        large();
    if (bench_wanted("redis/small-object"))
        small();
    return bench_end();
}

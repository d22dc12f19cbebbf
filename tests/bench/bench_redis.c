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
    clock_sleep_until(clock_deadline_ms(300));
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

static void large(void) {
    Server server = start_server();
    Relay *relay = NULL;
    char *value = malloc(VALUE_BYTES);
    double rates[4][N_ROUNDS];
    double puts[N_ROUNDS];
    double gets[N_ROUNDS];
    bench_must(value ? relay_open(server.url, &relay) : err_set(ERR_MEMORY, "a value"), "opening");
    memset(value, 'v', VALUE_BYTES);
    for (int i = 0; i < N_ROUNDS; i++) {
        const char *const prefix = "bench";
        rates[0][i] = peer(&server, "set", "-r 100000000");
        rates[1][i] = ours_put(relay, value, 0);
        (void)peer(&server, "set", "");
        rates[2][i] = peer(&server, "get", "");
        rates[3][i] = ours_get(relay, value);
        puts[i] = rates[1][i] / rates[0][i];
        gets[i] = rates[3][i] / rates[2][i];
        bench_must(relay_drop(relay, &prefix, 1, NULL), "dropping");
    }
    bench_note("4 MB values, one connection: SET %.0f MB/s, put %.0f; GET %.0f MB/s, get %.0f",
               bench_median(rates[0], N_ROUNDS), bench_median(rates[1], N_ROUNDS),
               bench_median(rates[2], N_ROUNDS), bench_median(rates[3], N_ROUNDS));
    bench_print("redis/put-4MB", bench_median(puts, N_ROUNDS), 2, "x", true, 0.9);
    bench_print("redis/get-4MB", bench_median(gets, N_ROUNDS), 2, "x", true, 0.9);
    relay_close(relay);
    free(value);
    stop_server(&server);
}

typedef struct Reader {
    Relay *relay;
    int64_t got_ns[N_SMALL];
    int rc;
} Reader;

static void *reader_main(void *arg) {
    Reader *reader = arg;
    for (int i = 0; i < N_SMALL && reader->rc >= 0; i++) {
        char key[32];
        char value[64];
        size_t bytes = 0;
        snprintf(key, sizeof key, "bench/small/%d", i);
        reader->rc =
            relay_get(reader->relay, key, value, sizeof value, clock_deadline_ms(WAIT_MS), &bytes);
        reader->got_ns[i] = clock_now_ns();
    }
    return NULL;
}

static void small(void) {
    Server server = start_server();
    Proxy *proxy = NULL;
    Reader reader = {0};
    Relay *writer = NULL;
    pthread_t thread;
    char url[64];
    double trips[N_SMALL];
    double waits[N_SMALL];
    bench_must(proxy_start(server.port, &proxy), "starting the proxy");
    proxy_delay(proxy, PROXY_UP, LATENCY_MS);
    proxy_delay(proxy, PROXY_DOWN, LATENCY_MS);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d/0", proxy_port(proxy));
    bench_must(relay_open(url, &writer), "opening");
    bench_must(relay_open(url, &reader.relay), "opening");
    bench_must(pthread_create(&thread, NULL, reader_main, &reader) == 0
                   ? 0
                   : err_set(ERR_MEMORY, "a thread"),
               "reading");
    int64_t begun_ns[N_SMALL];
    for (int i = 0; i < N_SMALL; i++) {
        char key[32];
        Slice part = {"0123456789abcdef", 16};
        int64_t start_ns = clock_now_ns();
        bench_must(relay_has(writer, "bench/nothing"), "asking");
        trips[i] = (double)(clock_now_ns() - start_ns) / 1e6;
        clock_sleep_until(clock_deadline_ms(4 * LATENCY_MS)); /* the reader waits by now */
        snprintf(key, sizeof key, "bench/small/%d", i);
        begun_ns[i] = clock_now_ns();
        bench_must(relay_put(writer, key, &part, 1, clock_deadline_ms(WAIT_MS)), "putting");
    }
    pthread_join(thread, NULL);
    bench_must(reader.rc, "getting");
    for (int i = 0; i < N_SMALL; i++)
        waits[i] = (double)(reader.got_ns[i] - begun_ns[i]) / 1e6;
    double trip = bench_median(trips, N_SMALL);
    double wait = bench_median(waits, N_SMALL);
    bench_note("a round trip %.2f ms, from put to delivered %.2f ms", trip, wait);
    bench_print("redis/small-object", wait / trip, 2, "round trips", false, 1.5);
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

/* How much of the bare speed of a tmpfs the file relay keeps: 8 MB objects, put by one process and
 * got by another, against write(2) and read(2) of the same bytes through a fresh file by the same
 * two processes. Both sides reuse the same buffers, and both count making the file and removing it.
 * The sides alternate; a round's ratio is the median of those of neighbours, which see one load.
 *
 *     relay/file-8MB 0.97 x goal >= 0.9 ok
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/relay.h"
#include "tests/bench/bench.h"
#include "tests/support/temp.h"

enum { OBJECT_BYTES = 8000000, N_WARM = 20, N_TURNS = 100, N_ROUNDS = 4, N_SIDES = 2 };
enum { PLAIN, RELAY };

typedef struct Bench {
    Relay *relay;
    char folder[64], url[80];
    char *data;
    int peer; /* socket to the other process */
} Bench;

static void die(const char *what) {
    fprintf(stderr, "bench_relay_file: %s: %s\n", what, err_text());
    _exit(2);
}

static void name_of(const Bench *bench, int round, char *out, size_t bytes) {
    snprintf(out, bytes, "%s/plain.%d", bench->folder, round);
}

/* Each returns the nanoseconds it took. */

static int64_t write_one(Bench *bench, int side, int round) {
    char name[128];
    int64_t begin = clock_now_ns();
    if (side == PLAIN) {
        name_of(bench, round, name, sizeof name);
        int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0 || write(fd, bench->data, OBJECT_BYTES) != OBJECT_BYTES || close(fd) < 0)
            die("writing");
    } else {
        Slice parts[] = {{bench->data, 64}, {bench->data + 64, OBJECT_BYTES - 64}};
        snprintf(name, sizeof name, "job/g1/t%d/a.0-1.0", round);
        if (relay_put(bench->relay, name, parts, 2, clock_deadline_ms(10000)) != 0)
            die("putting");
    }
    return clock_now_ns() - begin;
}

static int64_t read_one(Bench *bench, int side, int round) {
    char name[128];
    int64_t begin = clock_now_ns();
    if (side == PLAIN) {
        name_of(bench, round, name, sizeof name);
        int fd = open(name, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || read(fd, bench->data, OBJECT_BYTES) != OBJECT_BYTES || close(fd) < 0)
            die("reading");
    } else {
        size_t bytes = 0;
        snprintf(name, sizeof name, "job/g1/t%d/a.0-1.0", round);
        if (relay_get(bench->relay, name, bench->data, OBJECT_BYTES, clock_deadline_ms(10000),
                      &bytes) != 0 ||
            bytes != OBJECT_BYTES)
            die("getting");
    }
    return clock_now_ns() - begin;
}

static int64_t remove_one(Bench *bench, int side, int round) {
    char name[128];
    int64_t begin = clock_now_ns();
    if (side == PLAIN) {
        name_of(bench, round, name, sizeof name);
        if (unlink(name) < 0)
            die("removing");
    } else {
        snprintf(name, sizeof name, "job/g1/t%d", round);
        if (relay_drop_one(bench->relay, name, NULL) < 0)
            die("dropping");
    }
    return clock_now_ns() - begin;
}

/* The other process: reads what it is told of, and answers with the time it took. */
static void reader_main(Bench *bench) {
    int order[2];
    if (relay_open(bench->url, &bench->relay) < 0)
        die("opening");
    while (read(bench->peer, order, sizeof order) == (ssize_t)sizeof order) {
        int64_t took = read_one(bench, order[0], order[1]);
        if (write(bench->peer, &took, sizeof took) != (ssize_t)sizeof took)
            break;
    }
    relay_close(bench->relay);
    _exit(0);
}

static int64_t move_one(Bench *bench, int side, int round) {
    int64_t took = write_one(bench, side, round);
    int order[2] = {side, round};
    int64_t reading = 0;
    if (write(bench->peer, order, sizeof order) != (ssize_t)sizeof order ||
        read(bench->peer, &reading, sizeof reading) != (ssize_t)sizeof reading)
        die("talking to the reader");
    return took + reading + remove_one(bench, side, round);
}

/* One round: turns [first, first + n). The median ratio, and both sides' times. */
static double run_round(Bench *bench, int first, int n, double *out_ms) {
    static double ms[N_SIDES][N_TURNS];
    static double ratios[N_TURNS];
    for (int turn = 0; turn < n; turn++) {
        for (int i = 0; i < N_SIDES; i++) {
            int side = (turn + i) % N_SIDES; /* each is the first one every other time */
            ms[side][turn] = (double)move_one(bench, side, first + turn) / 1e6;
        }
        ratios[turn] = ms[PLAIN][turn] / ms[RELAY][turn];
    }
    for (int side = 0; side < N_SIDES; side++)
        out_ms[side] = bench_median(ms[side], n);
    return bench_median(ratios, n);
}

static double measure(Bench *bench, const char *name) {
    BenchRounds rounds = {0};
    double ms[N_SIDES];
    int turn = N_WARM;
    (void)run_round(bench, 0, N_WARM, ms);
    for (; !bench_enough(&rounds, N_ROUNDS); turn += N_TURNS) {
        BenchNoise noise;
        bench_noise_begin(&noise);
        const double ratio = run_round(bench, turn, N_TURNS, ms);
        bench_round(&rounds, ratio, bench_noise_end(&noise));
    }
    const double value = bench_conclude(&rounds, name);
    bench_note("in the last round write+read+unlink %.3f ms, put+get+drop %.3f ms", ms[PLAIN],
               ms[RELAY]);
    return value;
}

int main(int argc, char **argv) {
    static const char name[] = "relay/file-8MB";
    bench_begin(argc, argv);
    Bench bench = {.data = malloc(OBJECT_BYTES)};
    int ends[2];
    if (!bench.data || temp_make(bench.folder, sizeof bench.folder, "bench") < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0)
        die("beginning");
    memset(bench.data, 'b', OBJECT_BYTES);
    snprintf(bench.url, sizeof bench.url, "file://%s/relay", bench.folder);
    pid_t reader = fork();
    bench.peer = ends[reader == 0];
    close(ends[reader != 0]);
    if (reader == 0)
        reader_main(&bench);
    if (reader < 0 || relay_open(bench.url, &bench.relay) < 0)
        die("opening");
    double value = measure(&bench, name);
    (void)relay_drop_one(bench.relay, "job", NULL);
    relay_close(bench.relay);
    close(bench.peer);
    waitpid(reader, NULL, 0);
    rmdir(bench.url + strlen("file://"));
    rmdir(bench.folder);
    bench_print(name, value, 2, "x", true, 0.9);
    free(bench.data);
    return bench_end();
}

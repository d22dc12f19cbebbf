/* How many requests an object costs that is waited for in an S3 store (a real one, Ceph's gateway),
 * which cannot push: a whole job by the coordinator, in two workers, whose computations sleep, so
 * that they take what they take however busy the machine is. The workers' traffic counters say it
 * (the "traffic" events of a run), in the steps after those in which they learn when objects come.
 *
 *     s3/requests  requests on behalf of gets over objects read, on the average */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/file.h"
#include "core/json.h"
#include "tests/bench/bench.h"
#include "tests/support/s3_server.h"
#include "tests/support/temp.h"

/* Every N_WINDOW steps there is a save, at which the counters are told as of the last heartbeat. */
enum { N_WARM = 30, N_WINDOW = 10, N_ROUNDS = 3, N_STEPS = N_WARM + N_ROUNDS * N_WINDOW };
enum { N_STAGES = 2, DELAY_MS = 60, MAX_EVENTS_BYTES = 8 << 20 };

static const char job[] =
    "{\"version\":1,\"name\":\"s3\",\"model\":{\"name\":\"delays\",\"input\":{\"dtype\":\"F32\","
    "\"shape\":[16]},\"target\":{\"dtype\":\"I32\",\"shape\":[]},\"layers\":["
    "{\"name\":\"fc0\",\"kind\":\"linear\",\"features\":256},"
    "{\"name\":\"d0\",\"kind\":\"delay\",\"forward_us\":%d,\"backward_us\":%d},"
    "{\"name\":\"d1\",\"kind\":\"delay\",\"forward_us\":%d,\"backward_us\":%d},"
    "{\"name\":\"fc1\",\"kind\":\"linear\",\"features\":4},"
    "{\"name\":\"loss\",\"kind\":\"cross_entropy\",\"inputs\":[\"fc1\",\"target\"]}]},"
    "\"data\":{\"train\":{\"kind\":\"generated\",\"samples\":64,\"seed\":3}},"
    "\"batch\":64,\"micro_batch\":16,\"steps\":%d,"
    "\"update\":{\"kind\":\"sgd\",\"lr\":0.05},\"save\":{\"every_steps\":%d},"
    "\"plan\":{\"stages\":2,\"cut\":[2]},\"timeouts\":{\"heartbeat\":\"100ms\"},\"relay\":\"%s\"}";

typedef struct Counts {
    double gets, read_requests;
} Counts;

static char folder[64]; /* of the job */

static void remove_folder(void) {
    if (folder[0])
        temp_remove(folder);
}

/* The text of a file there. */
static Buf read_text(const char *name) {
    char path[128];
    Buf text;
    buf_init(&text, MAX_EVENTS_BYTES);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    bench_must(buf_read_file(&text, path, MAX_EVENTS_BYTES), "reading what the job said");
    return text;
}

/* Count in what one event says, if it is one of `step`'s counters; there may be another one at the
 * run's end, which replaces it. */
static void read_event(const char *line, size_t bytes, int64_t step, Counts *stages) {
    cJSON *event = cJSON_ParseWithLength(line, bytes);
    const char *kind = cJSON_GetStringValue(cJSON_GetObjectItem(event, "event"));
    if (kind && strcmp(kind, "traffic") == 0 &&
        cJSON_GetNumberValue(cJSON_GetObjectItem(event, "step")) == (double)step) {
        int stage = (int)cJSON_GetNumberValue(cJSON_GetObjectItem(event, "stage"));
        if (stage >= 0 && stage < N_STAGES)
            stages[stage] =
                (Counts){cJSON_GetNumberValue(cJSON_GetObjectItem(event, "gets")),
                         cJSON_GetNumberValue(cJSON_GetObjectItem(event, "read_requests"))};
    }
    cJSON_Delete(event);
}

/* What all workers had counted when the save of `step` was there. */
static Counts counts_at(const Buf *events, int64_t step) {
    Counts stages[N_STAGES] = {0};
    Counts sum = {0};
    const char *end = events->data + events->bytes;
    for (const char *line = events->data; line < end;) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        stop = stop ? stop : end;
        read_event(line, (size_t)(stop - line), step, stages);
        line = stop + 1;
    }
    for (int s = 0; s < N_STAGES; s++) {
        sum.gets += stages[s].gets;
        sum.read_requests += stages[s].read_requests;
    }
    return sum;
}

static void write_job(const char *path) {
    char url[256];
    char text[2048];
    const int us = DELAY_MS * 1000;
    s3_server_url("bench", 0, url, sizeof url);
    int n = snprintf(text, sizeof text, job, us, us, us, us, (int)N_STEPS, (int)N_WINDOW, url);
    bench_must(file_write(path, text, (size_t)n), "writing the job");
}

static void run_job(void) {
    extern char **environ;
    char path[96];
    char out[96];
    char log[96];
    int status = 0;
    pid_t pid = -1;
    snprintf(path, sizeof path, "%s/job.json", folder);
    snprintf(out, sizeof out, "%s/run", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    write_job(path);
    char *argv[] = {FUNCPIPE_BINARY_DIR "/funcpipe", "train", path, "--out", out, NULL};
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    int errnum = posix_spawn(&pid, argv[0], &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (errnum)
        bench_must(err_errno(ERR_IO, errnum, "'%s'", argv[0]), "starting the job");
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (status != 0) {
        Buf text = read_text("log");
        fputs(buf_string(&text), stderr);
        bench_must(err_set(ERR_WORKER, "the job failed, see above"), "running a job over S3");
    }
}

/* Each window of steps is a round; the noise is that of the whole run. */
static void measure(BenchRounds *rounds) {
    BenchNoise noise;
    bench_noise_begin(&noise);
    run_job();
    const double others = bench_noise_end(&noise);
    Buf events = read_text("run/events.jsonl");
    for (int i = 0; i < N_ROUNDS; i++) {
        const Counts from = counts_at(&events, N_WARM + i * N_WINDOW);
        const Counts to = counts_at(&events, N_WARM + (i + 1) * N_WINDOW);
        const double gets = to.gets - from.gets;
        if (gets <= 0)
            bench_must(err_set(ERR_FORMAT, "the job's events do not say what it read"), "counting");
        bench_note("steps %d to %d: %.0f requests for %.0f objects read", N_WARM + i * N_WINDOW,
                   N_WARM + (i + 1) * N_WINDOW, to.read_requests - from.read_requests, gets);
        bench_round(rounds, (to.read_requests - from.read_requests) / gets, others);
    }
    buf_done(&events);
}

int main(int argc, char **argv) {
    static const char name[] = "s3/requests";
    BenchRounds rounds = {0};
    bench_begin(argc, argv);
    bench_must(s3_server_start(), "starting an S3 store");
    atexit(s3_server_stop);
    atexit(remove_folder);
    while (!bench_enough(&rounds, N_ROUNDS)) {
        if (temp_make(folder, sizeof folder, "bench") < 0)
            bench_must(err_errno(ERR_IO, errno, "a folder in memory"), "making a folder");
        measure(&rounds);
        remove_folder();
    }
    bench_print(name, bench_conclude(&rounds, name), 2, "requests/object", false, 1.3);
    return bench_end();
}

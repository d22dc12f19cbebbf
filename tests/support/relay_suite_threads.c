/* The scenarios of several threads and processes. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "tests/support/relay_suite.h"

static int64_t soon(const RelayRig *rig) {
    return clock_deadline_ms(relay_rig_patience_ms(rig));
}

static void sleep_ms(int64_t ms) {
    clock_sleep_until(clock_deadline_ms(ms));
}

static int put_text(RelayRig *rig, int handle, const char *key, const char *text) {
    Slice part = {text, strlen(text)};
    return relay_put(relay_rig(rig, handle), key, &part, 1, soon(rig));
}

/* One get in a thread of its own. */
typedef struct Getter {
    pthread_t thread;
    Relay *relay;
    const char *key;
    int64_t deadline_ns;
    char buf[64];
    size_t bytes;
    int rc;
    ErrNote note;
    int64_t ended_ns, cpu_ns;
} Getter;

static int64_t thread_cpu_ns(void) {
    struct timespec spent;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return (int64_t)spent.tv_sec * CLOCK_NS_PER_S + spent.tv_nsec;
}

static void *getter_main(void *arg) {
    Getter *getter = arg;
    int64_t cpu_ns = thread_cpu_ns();
    getter->rc = relay_get(getter->relay, getter->key, getter->buf, sizeof getter->buf,
                           getter->deadline_ns, &getter->bytes);
    getter->ended_ns = clock_now_ns();
    getter->cpu_ns = thread_cpu_ns() - cpu_ns;
    err_copy(&getter->note);
    return NULL;
}

static void getter_start(Getter *getter, Relay *relay, const char *key, int64_t deadline_ns) {
    *getter = (Getter){.relay = relay, .key = key, .deadline_ns = deadline_ns};
    if (pthread_create(&getter->thread, NULL, getter_main, getter) != 0)
        abort();
}

static void getter_join(Getter *getter) {
    pthread_join(getter->thread, NULL);
}

static bool getter_has(const Getter *getter, const char *text) {
    return getter->rc == 0 && getter->bytes == strlen(text) &&
           memcmp(getter->buf, text, getter->bytes) == 0;
}

/* ---- waiting ---- */

bool relay_suite_get_waits(RelayRig *rig) {
    Getter getters[6];
    static const char *const keys[] = {"w/t0/a", "w/t0/a", "w/t0/b", "w/t1/a", "top", "w/deep/e/r"};
    for (int i = 0; i < 6; i++)
        getter_start(&getters[i], relay_rig(rig, i + 1), keys[i], soon(rig));
    sleep_ms(60);
    static const int order[] = {5, 3, 0, 4, 2};
    int64_t put_ns[6] = {0}; /* when it was there */
    bool put = put_text(rig, 0, "w/t0/other", "no") == 0;
    for (int i = 0; i < 5; i++) {
        const char *key = keys[order[i]];
        put = put && put_text(rig, 0, key, key) == 0;
        put_ns[order[i]] = clock_now_ns();
    }
    put_ns[1] = put_ns[0];
    for (int i = 0; i < 6; i++)
        getter_join(&getters[i]);
    RIG_CHECK(put, "putting: %s", err_text());
    for (int i = 0; i < 6; i++) {
        RIG_CHECK(getter_has(&getters[i], keys[i]), "waiting for '%s': %d %s", keys[i],
                  getters[i].rc, getters[i].note.text);
        int64_t after_ns = getters[i].ended_ns - put_ns[i];
        RIG_CHECK(after_ns < 2 * CLOCK_NS_PER_S, "'%s' woke after %lld ms", keys[i],
                  (long long)(after_ns / CLOCK_NS_PER_MS));
        RIG_CHECK(getters[i].relay->counters.n_waits == 1, "n_waits is %lld",
                  (long long)getters[i].relay->counters.n_waits);
    }
    return true;
}

bool relay_suite_deadline_passes(RelayRig *rig) {
    Relay *relay = relay_rig(rig, 0);
    const int slowness = rig->factory->slowness > 0 ? rig->factory->slowness : 1;
    char buf[8];
    size_t bytes = 5;
    Buf text;
    buf_init(&text, 0);
    for (int i = 0; i < 3; i++) {
        int64_t begin = clock_now_ns();
        int rc = i < 2 ? relay_get(relay, "job/g1/t0/a.0-1.0", buf, sizeof buf,
                                   clock_deadline_ms(100), &bytes)
                       : relay_get_buf(relay, "job/g1/t0/a.0-1.0", &text, clock_deadline_ms(100));
        int64_t took_ms = (clock_now_ns() - begin) / CLOCK_NS_PER_MS;
        RIG_CHECK(rc == ERR_TIMEOUT, "returned %d: %s", rc, err_text());
        RIG_CHECK(strstr(err_text(), "job/g1/t0/a.0-1.0"), "names no key: %s", err_text());
        RIG_CHECK(took_ms >= 50 && took_ms <= 500 * slowness, "100 ms took %lld ms",
                  (long long)took_ms);
        RIG_CHECK(put_text(rig, 1, "job/g1/t0/b", "x") >= 0, "%s", err_text());
    }
    buf_done(&text);
    RIG_CHECK(bytes == 5, "out_bytes was written though it failed");
    int64_t begin = clock_now_ns();
    RIG_CHECK(relay_get(relay, "never", buf, 8, 0, &bytes) == ERR_TIMEOUT &&
                  relay_get(relay, "never", buf, 8, begin - 1, &bytes) == ERR_TIMEOUT,
              "a deadline of long ago: %s", err_text());
    RIG_CHECK(clock_now_ns() - begin < 500 * CLOCK_NS_PER_MS, "a passed deadline was waited for");
    return true;
}

bool relay_suite_present_after_deadline(RelayRig *rig) {
    char buf[8];
    size_t bytes = 0;
    RIG_CHECK(put_text(rig, 0, "x", "here") == 0, "%s", err_text());
    RIG_CHECK(relay_get(relay_rig(rig, 0), "x", buf, 8, CLOCK_NEVER, &bytes) == 0 && bytes == 4,
              "without a deadline: %s", err_text());
    int rc = relay_get(relay_rig(rig, 0), "x", buf, 8, clock_now_ns(), &bytes);
    RIG_CHECK((rc == 0 && bytes == 4) || rc == ERR_TIMEOUT, "at the deadline: %d %s", rc,
              err_text());
    return true;
}

bool relay_suite_interrupt_wakes(RelayRig *rig) {
    Getter getter;
    Getter other;
    char buf[8];
    size_t bytes = 0;
    getter_start(&getter, relay_rig(rig, 1), "i/x", CLOCK_NEVER);
    getter_start(&other, relay_rig(rig, 2), "i/x", soon(rig));
    sleep_ms(50);
    int64_t begin = clock_now_ns();
    relay_interrupt(relay_rig(rig, 1), true);
    getter_join(&getter);
    int64_t took_ms = (getter.ended_ns - begin) / CLOCK_NS_PER_MS;
    int again = relay_get(relay_rig(rig, 1), "i/x", buf, 8, CLOCK_NEVER, &bytes);
    relay_interrupt(relay_rig(rig, 1), true); /* twice on is on, once off is off */
    relay_interrupt(relay_rig(rig, 1), false);
    relay_interrupt(relay_rig(rig, 1), false);
    int off = relay_get(relay_rig(rig, 1), "i/x", buf, 8, clock_deadline_ms(60), &bytes);
    int put = put_text(rig, 0, "i/x", "late");
    getter_join(&other);
    RIG_CHECK(getter.rc == ERR_CANCELLED && strstr(getter.note.text, "i/x"), "returned %d: %s",
              getter.rc, getter.note.text);
    RIG_CHECK(took_ms < 500, "the interruption took %lld ms", (long long)took_ms);
    RIG_CHECK(again == ERR_CANCELLED, "a wait begun while interrupted returned %d", again);
    RIG_CHECK(off == ERR_TIMEOUT, "after the interruption ended: %d", off);
    RIG_CHECK(put == 0 && getter_has(&other, "late"), "another handle was disturbed: %d %s",
              other.rc, other.note.text);
    RIG_CHECK(relay_get(relay_rig(rig, 1), "i/x", buf, 8, soon(rig), &bytes) == 0, "afterwards: %s",
              err_text());
    return true;
}

bool relay_suite_waits_cost_no_cpu(RelayRig *rig) {
    Getter getter;
    RIG_CHECK(put_text(rig, 0, "z/other", "x") == 0, "%s", err_text());
    getter_start(&getter, relay_rig(rig, 1), "z/x", clock_deadline_ms(300));
    getter_join(&getter);
    RIG_CHECK(getter.rc == ERR_TIMEOUT, "returned %d: %s", getter.rc, getter.note.text);
    RIG_CHECK(getter.cpu_ns < 20 * CLOCK_NS_PER_MS, "waiting 300 ms cost %lld ms of CPU time",
              (long long)(getter.cpu_ns / CLOCK_NS_PER_MS));
    return true;
}

/* ---- many threads ---- */

enum { N_PEERS = 8, PEER_BYTES = 5000 };

typedef struct Peer {
    pthread_t thread;
    RelayRig *rig;
    int index, n_rounds;
    char why[256];
} Peer;

static void peer_content(int writer, int round, unsigned char *out, size_t *out_bytes) {
    *out_bytes = (size_t)(1 + (writer * 977 + round * 131) % PEER_BYTES);
    memset(out, writer * 16 + round % 16, *out_bytes);
}

static bool peer_round(Peer *peer, int round) {
    Relay *relay = peer->rig->handles[peer->index];
    unsigned char data[PEER_BYTES];
    unsigned char got[PEER_BYTES];
    size_t bytes = 0;
    size_t got_bytes = 0;
    char key[64];
    peer_content(peer->index, round, data, &bytes);
    Slice parts[2] = {{data, bytes / 2}, {data + bytes / 2, bytes - bytes / 2}};
    snprintf(key, sizeof key, "all/t%d/o.%d", round, peer->index);
    if (relay_put(relay, key, parts, 2, soon(peer->rig)) != 0)
        return false;
    for (int i = 1; i < N_PEERS; i++) {
        int writer = (peer->index + i) % N_PEERS;
        snprintf(key, sizeof key, "all/t%d/o.%d", round, writer);
        peer_content(writer, round, data, &bytes);
        err_set(ERR_INTERNAL, "'%s' came out otherwise", key);
        if (relay_get(relay, key, got, sizeof got, soon(peer->rig), &got_bytes) < 0 ||
            got_bytes != bytes || memcmp(got, data, bytes) != 0)
            return false;
    }
    return true;
}

static void *peer_main(void *arg) {
    Peer *peer = arg;
    for (int round = 0; round < peer->n_rounds; round++) {
        if (!peer_round(peer, round)) {
            snprintf(peer->why, sizeof peer->why, "thread %d, round %d: %.200s", peer->index, round,
                     err_text());
            break;
        }
    }
    return NULL;
}

bool relay_suite_many_threads(RelayRig *rig) {
    Peer peers[N_PEERS];
    int64_t n = 0;
    int n_rounds = relay_rig_repeat(rig, 60);
    for (int i = 0; i < N_PEERS; i++) {
        peers[i] = (Peer){.rig = rig, .index = i, .n_rounds = n_rounds};
        if (pthread_create(&peers[i].thread, NULL, peer_main, &peers[i]) != 0)
            abort();
    }
    for (int i = 0; i < N_PEERS; i++)
        pthread_join(peers[i].thread, NULL);
    for (int i = 0; i < N_PEERS; i++)
        RIG_CHECK(!peers[i].why[0], "%s", peers[i].why);
    RIG_CHECK(relay_count(relay_rig(rig, 0), "all", &n) == 0 && n == N_PEERS * n_rounds,
              "%lld objects", (long long)n);
    return true;
}

/* ---- writers that race for one key ---- */

enum { N_WRITERS = 3, N_READERS = 3 };

typedef struct Racer {
    pthread_t thread;
    RelayRig *rig;
    pthread_barrier_t *barrier;
    int index, n_rounds;
    unsigned char *log; /* per round: a writer's result, a reader's first byte */
    bool failed;
} Racer;

static size_t race_bytes(int writer) {
    return 20000 + (size_t)writer * 10000;
}

static bool race_round(Racer *racer, const char *key, unsigned char *data, unsigned char *out_log) {
    Relay *relay = racer->rig->handles[racer->index];
    if (racer->index < N_WRITERS) {
        memset(data, 'A' + racer->index, race_bytes(racer->index));
        Slice part = {data, race_bytes(racer->index)};
        int rc = relay_put(relay, key, &part, 1, soon(racer->rig));
        *out_log = (unsigned char)rc;
        return rc >= 0;
    }
    size_t bytes = 0;
    if (relay_get(relay, key, data, race_bytes(N_WRITERS), soon(racer->rig), &bytes) < 0)
        return false;
    *out_log = data[0];
    for (size_t i = 1; i < bytes; i++) {
        if (data[i] != data[0])
            return false;
    }
    return bytes == race_bytes(data[0] - 'A');
}

static void *racer_main(void *arg) {
    Racer *racer = arg;
    unsigned char *data = malloc(race_bytes(N_WRITERS));
    if (!data)
        abort();
    for (int round = 0; round < racer->n_rounds; round++) {
        char key[32];
        snprintf(key, sizeof key, "race/o.%d", round);
        pthread_barrier_wait(racer->barrier);
        racer->failed |= !race_round(racer, key, data, &racer->log[round]);
    }
    free(data);
    return NULL;
}

bool relay_suite_writers_race(RelayRig *rig) {
    enum { N = N_WRITERS + N_READERS, MAX_ROUNDS = 100 };
    Racer racers[N];
    unsigned char log[N][MAX_ROUNDS];
    pthread_barrier_t barrier;
    int n_rounds = relay_rig_repeat(rig, MAX_ROUNDS);
    if (rig->factory->overwrites) {
        rig->skipped = true;
        relay_rig_fail(rig, "%s keeps the last of different bytes", rig->factory->name);
        return true;
    }
    pthread_barrier_init(&barrier, NULL, N);
    for (int i = 0; i < N; i++) {
        racers[i] = (Racer){
            .rig = rig, .barrier = &barrier, .index = i, .n_rounds = n_rounds, .log = log[i]};
        if (pthread_create(&racers[i].thread, NULL, racer_main, &racers[i]) != 0)
            abort();
    }
    for (int i = 0; i < N; i++)
        pthread_join(racers[i].thread, NULL);
    pthread_barrier_destroy(&barrier);
    for (int i = 0; i < N; i++)
        RIG_CHECK(!racers[i].failed, "racer %d failed, or read mixed bytes", i);
    for (int round = 0; round < n_rounds; round++) {
        int n_first = 0;
        int winner = -1;
        for (int i = 0; i < N_WRITERS; i++) {
            n_first += log[i][round] == 0;
            winner = log[i][round] == 0 ? i : winner;
        }
        RIG_CHECK(n_first == 1, "round %d: %d writers were the first", round, n_first);
        for (int i = N_WRITERS; i < N; i++)
            RIG_CHECK(log[i][round] == 'A' + winner, "round %d: a reader read another's bytes",
                      round);
    }
    return true;
}

/* ---- drops beside waits and puts ---- */

bool relay_suite_drop_under_a_waiter(RelayRig *rig) {
    Getter getters[2];
    bool ok = true;
    getter_start(&getters[0], relay_rig(rig, 1), "d/t1/x", soon(rig));
    getter_start(&getters[1], relay_rig(rig, 2), "d/t1/below/x", soon(rig));
    for (int i = 0; ok && i < 10; i++) {
        sleep_ms(i);
        ok = put_text(rig, 0, "d/t1/y", "x") == 0 && put_text(rig, 0, "d/t1/below/y", "x") == 0;
        sleep_ms(i % 3);
        ok = ok && relay_drop_one(relay_rig(rig, 0), i % 2 ? "d" : "d/t1", NULL) == 0;
    }
    sleep_ms(30);
    ok = ok && put_text(rig, 0, "d/t1/x", "there") == 0 &&
         put_text(rig, 0, "d/t1/below/x", "there") == 0;
    for (int i = 0; i < 2; i++)
        getter_join(&getters[i]);
    RIG_CHECK(ok, "%s", err_text());
    for (int i = 0; i < 2; i++)
        RIG_CHECK(getter_has(&getters[i], "there"), "the waiter of '%s' got %d: %s", getters[i].key,
                  getters[i].rc, getters[i].note.text);
    return true;
}

typedef struct Dropper {
    pthread_t thread;
    Relay *relay;
    atomic_bool stop;
    int rc;
    ErrNote note;
} Dropper;

static void *dropper_main(void *arg) {
    Dropper *dropper = arg;
    while (!atomic_load(&dropper->stop) && dropper->rc == 0)
        dropper->rc = relay_drop_one(dropper->relay, "late", NULL);
    err_copy(&dropper->note);
    return NULL;
}

bool relay_suite_puts_race_drops(RelayRig *rig) {
    Dropper dropper = {.relay = relay_rig(rig, 1)};
    int many = relay_rig_repeat(rig, 2000);
    char key[64] = "";
    char buf[8];
    int rc = 0;
    if (pthread_create(&dropper.thread, NULL, dropper_main, &dropper) != 0)
        abort();
    for (int i = 0; i < many && rc == 0; i++) {
        snprintf(key, sizeof key, "late/t%d/deep/o.%d", i % 3, i);
        rc = put_text(rig, 0, key, "x");
        if (rc == 0 && i % 10 == 0)
            rc = relay_note_put(relay_rig(rig, 0), "late/n/h", "x", 1, 60000);
        size_t bytes = 0;
        int got = relay_get(relay_rig(rig, 0), key, buf, 8, clock_deadline_ms(0), &bytes);
        if (rc == 0 && got < 0 && got != ERR_TIMEOUT)
            rc = got;
    }
    ErrNote note;
    err_copy(&note);
    atomic_store(&dropper.stop, true);
    pthread_join(dropper.thread, NULL);
    RIG_CHECK(rc == 0, "'%s' beside drops: %d %s", key, rc, note.text);
    RIG_CHECK(dropper.rc == 0, "dropping beside puts: %s", dropper.note.text);
    return true;
}

/* ---- notes ---- */

typedef struct Scribe {
    pthread_t thread;
    Relay *relay;
    atomic_bool stop;
    int rc;
} Scribe;

static size_t scribe_bytes(int letter) {
    return letter % 2 ? RELAY_NOTE_MAX_BYTES : 100;
}

static void *scribe_main(void *arg) {
    Scribe *scribe = arg;
    char data[RELAY_NOTE_MAX_BYTES];
    for (int i = 0; !atomic_load(&scribe->stop) && scribe->rc == 0; i++) {
        memset(data, 'a' + i % 26, sizeof data);
        scribe->rc = relay_note_put(scribe->relay, "n/x", data, scribe_bytes('a' + i % 26), 60000);
    }
    return NULL;
}

bool relay_suite_notes_never_half(RelayRig *rig) {
    Scribe scribes[2] = {{.relay = relay_rig(rig, 1)}, {.relay = relay_rig(rig, 2)}};
    char buf[RELAY_NOTE_MAX_BYTES];
    bool whole = relay_note_put(relay_rig(rig, 0), "n/x", "b", 1, 60000) == 0;
    for (int i = 0; i < 2; i++) {
        if (pthread_create(&scribes[i].thread, NULL, scribe_main, &scribes[i]) != 0)
            abort();
    }
    int64_t until = clock_deadline_ms(150);
    while (whole && clock_now_ns() < until) {
        size_t bytes = 0;
        whole = relay_note_get(relay_rig(rig, 0), "n/x", buf, sizeof buf, &bytes) == 0 &&
                (bytes == scribe_bytes(buf[0]) || bytes == 1);
        for (size_t i = 1; whole && i < bytes; i++)
            whole = buf[i] == buf[0];
    }
    for (int i = 0; i < 2; i++)
        atomic_store(&scribes[i].stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(scribes[i].thread, NULL);
    RIG_CHECK(scribes[0].rc == 0 && scribes[1].rc == 0, "writing: %d %d", scribes[0].rc,
              scribes[1].rc);
    RIG_CHECK(whole, "a note was read half, or not at all");
    return true;
}

/* ---- killed writer ---- */

enum { KILLED_BYTES = RELAY_SUITE_MOST_BYTES < 16 << 20 ? RELAY_SUITE_MOST_BYTES : 16 << 20 };

/* In the child: never returns. Says through the pipe that the put begins. */
static void put_until_killed(RelayRig *rig, const char *key, const char *data, int pipe_fd) {
    Relay *relay = NULL;
    Slice part = {data, KILLED_BYTES};
    if (rig->factory->open(rig->place, &relay) == 0 && write(pipe_fd, "b", 1) == 1)
        (void)relay_put(relay, key, &part, 1, CLOCK_NEVER);
    _exit(0);
}

/* Start a writer, kill it after `us` microseconds; true when the object is not there, or whole. */
static bool kill_one(RelayRig *rig, const char *key, char *data, char *got, int64_t us) {
    int ends[2];
    char begun;
    if (pipe(ends) < 0)
        return relay_rig_fail(rig, "no pipe");
    pid_t child = fork();
    if (child == 0)
        put_until_killed(rig, key, data, ends[1]);
    close(ends[1]);
    bool began = read(ends[0], &begun, 1) == 1;
    close(ends[0]);
    clock_sleep_until(clock_now_ns() + us * CLOCK_NS_PER_US);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    RIG_CHECK(child > 0 && began, "no child writer");
    int there = relay_has(relay_rig(rig, 0), key);
    int64_t n = -1;
    bool late = rig->factory->over_network;
    RIG_CHECK(there >= 0 && relay_count(relay_rig(rig, 0), "", &n) == 0, "%s", err_text());
    RIG_CHECK(n == there || (late && n == 1), "%lld objects are counted, has says %d", (long long)n,
              there);
    size_t bytes = 0;
    Slice part = {data, KILLED_BYTES};
    int put = relay_put(relay_rig(rig, 0), key, &part, 1, soon(rig));
    RIG_CHECK(put == there || (late && put == 1), "putting it again returned %d, has said %d", put,
              there);
    RIG_CHECK(relay_get(relay_rig(rig, 1), key, got, KILLED_BYTES, soon(rig), &bytes) == 0 &&
                  bytes == KILLED_BYTES && memcmp(data, got, bytes) == 0,
              "it is not whole: %zu bytes, %s", bytes, err_text());
    RIG_CHECK(relay_drop_one(relay_rig(rig, 0), key, &n) == 0 && n == 1, "%s", err_text());
    return true;
}

bool relay_suite_killed_writer(RelayRig *rig) {
    if (!rig->factory->across_processes) {
        rig->skipped = true;
        relay_rig_fail(rig, "%s lives in one process", rig->factory->name);
        return true;
    }
    char *data = malloc(KILLED_BYTES);
    char *got = malloc(KILLED_BYTES);
    bool ok = data && got;
    if (ok)
        memset(data, 'k', KILLED_BYTES);
    static const int64_t after_us[] = {0, 100, 500, 1000, 2000, 4000, 8000, 16000, 60000};
    for (size_t i = 0; ok && i < sizeof after_us / sizeof after_us[0]; i++)
        ok = kill_one(rig, "k/large", data, got, after_us[i]);
    free(data);
    free(got);
    return ok;
}

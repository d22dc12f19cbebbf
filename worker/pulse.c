#include "worker/pulse.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/text.h"

enum { PULSE_TTL_BEATS = 50, PULSE_TRIES = 4, PULSE_TRY_MS = 20, PULSE_MARK_BYTES = 24 };

/* Resident memory from /proc/self/statm; 0 where it cannot be read. */
static int64_t pulse_rss_bytes(void) {
    Buf text;
    int64_t pages = 0;
    buf_init(&text, 4096);
    if (buf_read_file(&text, "/proc/self/statm", 4095) >= 0) {
        char *first = strchr(buf_string(&text), ' ');
        if (first != NULL) {
            char *end = strchr(first + 1, ' ');
            if (end != NULL) {
                *end = '\0';
            }
            if (text_parse_i64(first + 1, 0, INT64_MAX / 65536, &pages) < 0) {
                pages = 0;
            }
        }
    }
    buf_done(&text);
    return pages * sysconf(_SC_PAGESIZE);
}

static void pulse_add_up(Pulse *pulse) {
    memset(&pulse->traffic, 0, sizeof pulse->traffic);
    for (int i = 0; i < pulse->n_counted; i++) {
        fetch_traffic(pulse->counted[i], &pulse->traffic);
    }
    relay_add_up(&pulse->relay->counters, &pulse->traffic);
}

static void pulse_beat(Pulse *pulse, const char *state, Vm *vm) {
    Heartbeat beat = {.attempt = pulse->order->attempt,
                      .pid = getpid(),
                      .step = pulse->before.step,
                      .wall_ms = clock_wall_ms(),
                      .rss_bytes = pulse_rss_bytes()};
    VmTotals totals = {0};
    if (vm != NULL) {
        vm_totals(vm, &totals);
        beat.step = pulse->training ? totals.step : pulse->before.step;
    }
    beat.busy_us = (pulse->before.busy_ns + totals.busy_ns) / CLOCK_NS_PER_US;
    beat.wait_us = (pulse->before.wait_ns + totals.wait_ns) / CLOCK_NS_PER_US;
    snprintf(beat.state, sizeof beat.state, "%s", state);
    pulse_add_up(pulse);
    beat.traffic = pulse->traffic;
    if (pulse->watched != NULL) {
        fetch_waiting(pulse->watched, beat.waiting, sizeof beat.waiting);
    }
    Buf text;
    buf_init(&text, RELAY_NOTE_MAX_BYTES);
    if (report_format_heartbeat(&beat, &text) >= 0) {
        Key key = key_heartbeat(&pulse->space, pulse->order->stage, pulse->order->replica);
        relay_note_put(pulse->relay, key.text, text.data, text.bytes,
                       pulse->order->heartbeat_ms * PULSE_TTL_BEATS);
    }
    buf_done(&text);
}

static void pulse_read_control(Pulse *pulse) {
    char text[RELAY_NOTE_MAX_BYTES];
    size_t bytes = 0;
    Control control;
    if (pulse->order->stage != 0 || pulse->order->replica != 0) {
        return;
    }
    Key key = key_control(&pulse->space);
    memset(&control, 0, sizeof control);
    if (relay_note_get(pulse->relay, key.text, text, sizeof text, &bytes) >= 0 &&
        report_parse_control(text, bytes, &control) < 0) {
        memset(&control, 0, sizeof control);
    }
    if (control.stop) {
        atomic_fetch_or(&pulse->decision, DECISION_STOP);
    }
    if (control.save && !pulse->save_wished) { /* once for each time the wish comes up */
        atomic_fetch_or(&pulse->decision, DECISION_SAVE);
    }
    pulse->save_wished = control.save;
}

static bool pulse_fenced(Pulse *pulse) {
    Key key = key_fence(&pulse->space, pulse->order->stage, pulse->order->replica,
                        pulse->order->attempt + 1);
    return relay_has(pulse->relay, key.text) == 1;
}

static void pulse_supersede(Pulse *pulse) {
    char text[128];
    pulse->superseded = true;
    snprintf(text, sizeof text, "attempt %lld of worker %d.%d has been started; attempt %lld ends",
             (long long)pulse->order->attempt + 1, pulse->order->stage, pulse->order->replica,
             (long long)pulse->order->attempt);
    if (pulse->vm != NULL) {
        vm_abort(pulse->vm, ERR_SUPERSEDED, text);
    }
}

static void *pulse_thread(void *arg) {
    Pulse *pulse = arg;
    pthread_setname_np(pthread_self(), "pulse");
    pthread_mutex_lock(&pulse->lock);
    while (!pulse->closing) {
        if (!pulse->superseded && pulse_fenced(pulse)) {
            pulse_supersede(pulse);
        }
        if (!pulse->superseded) {
            pulse_read_control(pulse);
            pulse_beat(pulse, pulse->state, pulse->vm);
        }
        int64_t until = clock_deadline_ms(pulse->order->heartbeat_ms);
        struct timespec deadline = {.tv_sec = until / CLOCK_NS_PER_S,
                                    .tv_nsec = until % CLOCK_NS_PER_S};
        while (!pulse->closing &&
               pthread_cond_timedwait(&pulse->changed, &pulse->lock, &deadline) == 0) {
        }
    }
    pthread_mutex_unlock(&pulse->lock);
    return NULL;
}

/* 0: the mark there is ours; 1: it is another one's. */
static int pulse_put_mark(Pulse *pulse, Key key, const char *mark) {
    const int64_t deadline = clock_deadline_ms(pulse->order->wait_timeout_ms);
    const Slice part = {mark, strlen(mark)};
    char there[PULSE_MARK_BYTES] = "";
    size_t bytes = 0;
    int rc = 0;
    int n_tries = 0;
    do {
        if (n_tries > 0) {
            clock_sleep_until(clock_deadline_ms(PULSE_TRY_MS * n_tries));
        }
        rc = relay_put(pulse->relay, key.text, &part, 1, deadline);
        if (rc == 1) { /* ours, too, where the answer to it was lost */
            rc = relay_get(pulse->relay, key.text, there, sizeof there - 1, deadline, &bytes);
        }
    } while (rc < 0 && err_retry(rc) && rc != ERR_TIMEOUT && ++n_tries < PULSE_TRIES);
    TRY(rc);
    return there[0] != '\0' && strcmp(there, mark) != 0;
}

static int pulse_claim(Pulse *pulse) {
    const Order *order = pulse->order;
    char mark[PULSE_MARK_BYTES];
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) {
        return err_errno(ERR_IO, errno, "drawing a mark");
    }
    snprintf(mark, sizeof mark, "%016" PRIx64, random);
    int taken = pulse_put_mark(
        pulse, key_run(&pulse->space, order->stage, order->replica, order->attempt), mark);
    if (taken == 1) {
        return err_set(ERR_SUPERSEDED,
                       "attempt %lld of worker %d.%d is already running: its order came twice",
                       (long long)order->attempt, order->stage, order->replica);
    }
    return taken;
}

int pulse_start(Pulse *pulse, const Order *order, Fetch *watched, Relay *take_relay) {
    memset(pulse, 0, sizeof *pulse);
    pulse->order = order;
    pulse->relay = take_relay;
    pulse->watched = watched;
    pulse->state = "loading";
    pulse->before.step = order->first_step;
    pulse->space.generation = order->generation;
    atomic_init(&pulse->decision, 0);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&pulse->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&pulse->lock, NULL);
    int rc = text_copy(pulse->space.job, sizeof pulse->space.job, order->job);
    if (rc >= 0) {
        rc = pulse_claim(pulse);
    }
    if (rc >= 0 && pthread_create(&pulse->thread, NULL, pulse_thread, pulse) != 0) {
        rc = err_set(ERR_MEMORY, "the heartbeat's thread could not be started");
    }
    if (rc < 0) {
        relay_close(take_relay);
        pulse->relay = NULL;
        return rc;
    }
    pulse->thread_started = true;
    return 0;
}

void pulse_stop(Pulse *pulse, const char *state) {
    if (!pulse->thread_started) {
        return;
    }
    pthread_mutex_lock(&pulse->lock);
    pulse->closing = true;
    pthread_cond_broadcast(&pulse->changed);
    pthread_mutex_unlock(&pulse->lock);
    pthread_join(pulse->thread, NULL);
    if (!pulse->superseded && state != NULL) {
        pulse_beat(pulse, state, pulse->vm);
    }
    pulse_add_up(pulse);
    relay_close(pulse->relay);
    pthread_mutex_destroy(&pulse->lock);
    pthread_cond_destroy(&pulse->changed);
    pulse->thread_started = false;
}

void pulse_count(Pulse *pulse, Fetch *fetch) {
    pthread_mutex_lock(&pulse->lock);
    pulse->counted[pulse->n_counted++] = fetch;
    pthread_mutex_unlock(&pulse->lock);
}

void pulse_set_state(Pulse *pulse, const char *state) {
    pthread_mutex_lock(&pulse->lock);
    pulse->state = state;
    pthread_mutex_unlock(&pulse->lock);
}

int pulse_set_vm(Pulse *pulse, Vm *vm, bool training) {
    pthread_mutex_lock(&pulse->lock);
    if (pulse->vm != NULL) {
        VmTotals totals;
        vm_totals(pulse->vm, &totals);
        pulse->before.busy_ns += totals.busy_ns;
        pulse->before.wait_ns += totals.wait_ns;
        pulse->before.step = pulse->training ? totals.step : pulse->before.step;
    }
    if (vm != NULL) { /* what it has done before is counted */
        VmTotals totals;
        vm_totals(vm, &totals);
        pulse->before.busy_ns -= totals.busy_ns;
        pulse->before.wait_ns -= totals.wait_ns;
    }
    pulse->vm = vm;
    pulse->training = training;
    bool superseded = pulse->superseded;
    pthread_mutex_unlock(&pulse->lock);
    return superseded ? err_set(ERR_SUPERSEDED, "a newer attempt of worker %d.%d has been started",
                                pulse->order->stage, pulse->order->replica)
                      : 0;
}

/* Relays that cannot be reached, by the coordinator or by its workers alone: nobody waits for ever.
 * Within 15 s the job's events have an error that names the place, and the exit code is 3; where
 * workers are started again, after as long for each start. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "tests/support/e2e.h"
#include "tests/support/loopback.h"
#include "tests/support/redis_server.h"

enum { LIMIT_MS = 15000, MAX_RUNS = 8 };

typedef struct Reach {
    E2e run;
    char out[32], place[96]; /* "127.0.0.1:1234" */
    int64_t begin_ns;
} Reach;

static Reach runs[MAX_RUNS];
static int n_runs;
static int n_restarts; /* limits.restarts */

/* Begin a job; all are waited for together, because each may take ten seconds. */
static void begin(const char *relay, const char *place) {
    char set[E2E_PATH_BYTES];
    char restarts[32];
    Reach *reach = &runs[n_runs];
    snprintf(set, sizeof set, "relay=%s", relay);
    snprintf(restarts, sizeof restarts, "limits.restarts=%d", n_restarts);
    snprintf(reach->out, sizeof reach->out, "out%d", n_runs++);
    snprintf(reach->place, sizeof reach->place, "%s", place);
    reach->begin_ns = clock_now_ns();
    reach->run =
        e2e_train(e2e_path("mlp.json"), reach->out, E2E_ARGS("--set", set, "--set", restarts));
}

/* `event` says so; NULL: the workers never ran, and nothing is left of the start. */
static void expect_unreachable(const char *event) {
    int64_t limit_ns = LIMIT_MS * (1 + n_restarts) * e2e_slowness() * CLOCK_NS_PER_MS;
    for (int i = 0; i < n_runs; i++) {
        Reach *reach = &runs[i];
        int status = e2e_wait(&reach->run);
        int64_t took_ns = clock_now_ns() - reach->begin_ns;
        const char *text = e2e_read(reach->run.err);
        cr_expect_eq(status, 3, "%s: %d: %s", reach->place, status, text);
        cr_expect_lt(took_ns, limit_ns, "%s: %lld ms", reach->place,
                     (long long)(took_ns / CLOCK_NS_PER_MS));
        cr_expect(strstr(text, reach->place), "not '%s' but: %s", reach->place, text);
        e2e_check_clean(&reach->run);
        if (!event) {
            cr_expect_eq(e2e_files_in(reach->out), 0, "%s", reach->place);
            continue;
        }
        const cJSON *last = e2e_event(reach->out, event, -1, -1, 0);
        cr_assert(last != NULL, "%s: no event '%s'", reach->place, event);
        cr_expect(strstr(e2e_text(last, "text"), reach->place), "not '%s' but: %s", reach->place,
                  e2e_text(last, "text"));
    }
}

static void begin_at(const char *form, int port) {
    char relay[E2E_PATH_BYTES];
    char place[32];
    snprintf(relay, sizeof relay, form, port);
    snprintf(place, sizeof place, "127.0.0.1:%d", port);
    begin(relay, place);
}

/* Refused, dropped on the way, silent behind the connection, no such host. */
Test(relay_reach, by_nobody, .init = e2e_enter, .fini = e2e_leave) {
    static const char *const forms[] = {"redis://127.0.0.1:%d",
                                        "s3://bucket?endpoint=http://127.0.0.1:%d"};
    int refusing = 0;
    int dropping = 0;
    int silent = 0;
    close(loopback_listen(0, &refusing));
    cr_assert_geq(loopback_drop(&dropping), 0);
    cr_assert_geq(loopback_listen(0, &silent), 0);
    setenv("AWS_ACCESS_KEY_ID", "AKTEST", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    e2e_job("mlp", e2e_mlp);
    for (int i = 0; i < 2; i++) {
        begin_at(forms[i], refusing);
        begin_at(forms[i], dropping);
        begin_at(forms[i], silent);
    }
    begin("redis://no.such.host.invalid", "no.such.host.invalid:6379");
    begin("s3://bucket?endpoint=http://no.such.host.invalid:81", "no.such.host.invalid:81");
    expect_unreachable(NULL);
}

/* The first worker that gave up has said why. */
static void expect_said_early(void) {
    int64_t limit_ns = LIMIT_MS * e2e_slowness() * CLOCK_NS_PER_MS;
    for (int i = 0; i < n_runs; i++) {
        Reach *reach = &runs[i];
        cr_assert(e2e_await_event(&reach->run, reach->out, "worker_died", 1), "%s", reach->place);
        int64_t took_ns = clock_now_ns() - reach->begin_ns;
        cr_expect_lt(took_ns, limit_ns, "%s: %lld ms", reach->place,
                     (long long)(took_ns / CLOCK_NS_PER_MS));
        const char *text = e2e_text(e2e_event(reach->out, "worker_died", -1, -1, 0), "text");
        cr_expect(strstr(text, reach->place), "not '%s' but: %s", reach->place, text);
    }
}

/* The coordinator reaches it, and its workers, elsewhere, do not. */
static void by_the_coordinator_alone(void) {
    RedisServerProcess server;
    int ports[2];
    char text[256];
    cr_assert_eq(redis_server_start(&server, NULL), 0, "%s", err_text());
    close(loopback_listen(0, &ports[0]));
    cr_assert_geq(loopback_drop(&ports[1]), 0);
    snprintf(text, sizeof text, "sed -i \"s#127.0.0.1:%d#127.0.0.1:$ELSEWHERE#\" \"$ORDER\"",
             server.port);
    e2e_wrap_worker(text);
    e2e_job("mlp", e2e_mlp);
    for (int i = 0; i < 2; i++) {
        char port[16];
        char place[32];
        snprintf(port, sizeof port, "%d", ports[i]);
        setenv("ELSEWHERE", port, 1);
        snprintf(text, sizeof text, "redis://127.0.0.1:%d/%d", server.port, i);
        snprintf(place, sizeof place, "127.0.0.1:%d", ports[i]);
        begin(text, place);
    }
    if (n_restarts > 0)
        expect_said_early();
    expect_unreachable("state");
    cr_expect_eq(redis_server_ask(server.port, "DBSIZE"), 0);
    redis_server_stop(&server);
}

Test(relay_reach, by_the_coordinator_alone, .init = e2e_enter, .fini = e2e_leave) {
    by_the_coordinator_alone();
}

/* As often as a job that says nothing starts its workers again. */
Test(relay_reach, by_the_coordinator_alone_with_restarts, .init = e2e_enter, .fini = e2e_leave) {
    n_restarts = 2;
    by_the_coordinator_alone();
}

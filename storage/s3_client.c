#include "storage/s3_client.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/s3_flight.h"

enum {
    BACKOFF_FIRST_MS = 20,
    BACKOFF_LAST_MS = 1000,
    READ_GRACE_MS = 300, /* for an answer after an interruption */
    WRITE_GRACE_MS = 2000,
    LOOK_MS = 1000
};

/* ---- repeating ---- */

/* Sometime within a span that doubles with every try. */
static int64_t back_off_ns(S3Client *client, int n_tries) {
    int64_t ms = BACKOFF_FIRST_MS;
    for (int i = 1; i < n_tries && ms < BACKOFF_LAST_MS; i++)
        ms *= 2;
    ms = ms < BACKOFF_LAST_MS ? ms : BACKOFF_LAST_MS;
    client->jitter = client->jitter * UINT64_C(6364136223846793005) + 1442695040888963407U;
    return (int64_t)((client->jitter >> 33) % (uint64_t)(ms * 1000)) * CLOCK_NS_PER_US;
}

bool s3_client_temporary(const S3Client *client) {
    return client->credentials.token[0] != '\0';
}

/* Temporary credentials are over, and there are others by now: in their place, or, when another
 * flight has found them since this one was signed, here? */
static bool renewed(S3Client *client, const S3Flight *flight, const char *code) {
    S3Url url = *client->url;
    S3Credentials fresh;
    if (strcmp(code, "ExpiredToken") != 0 && strcmp(code, "InvalidToken") != 0)
        return false;
    if (flight->n_renewed != client->n_renewed)
        return true;
    bool others = s3_credentials_find(&url, &fresh) >= 0 &&
                  (strcmp(fresh.key_id, client->credentials.key_id) != 0 ||
                   strcmp(fresh.token, client->credentials.token) != 0);
    if (others) {
        client->credentials = fresh;
        client->n_renewed++;
    }
    explicit_bzero(&fresh, sizeof fresh);
    return others;
}

/* A try has ended: 1 when its request has its answer, 0 when it is to be repeated. */
static int end_try(S3Flight *flight, CURLcode result, const S3Limits *limits) {
    S3Client *client = flight->client;
    S3Request *request = flight->request;
    S3Verdict verdict = s3_flight_end(flight, result);
    if (verdict == S3_DONE)
        return 1;
    err_copy(&client->said);
    int64_t now_ns = clock_now_ns();
    if (verdict == S3_FAILED && renewed(client, flight, request->answer.code))
        verdict = S3_SKEWED;
    err_restore(&client->said);
    bool nobody = result == CURLE_COULDNT_CONNECT || result == CURLE_COULDNT_RESOLVE_HOST ||
                  result == CURLE_OPERATION_TIMEDOUT;
    if (verdict == S3_FAILED || now_ns >= limits->retry_until_ns || (limits->once && nobody))
        return err_negative(client->said.code);
    client->counters->n_waits += client->said.code == ERR_FULL; /* for room */
    request->not_before_ns = now_ns;
    if (verdict != S3_SKEWED)
        request->not_before_ns += back_off_ns(client, request->n_tries);
    if (verdict == S3_SLOWER && request->not_before_ns > client->calm_ns)
        client->calm_ns = request->not_before_ns;
    return 0;
}

/* ---- all requests of a call ---- */

typedef struct Run {
    S3Client *client;
    S3Request *requests;
    size_t n, n_answered;
    size_t first; /* all in front of it have their answers */
    const S3Limits *limits;
    int64_t cut_ns; /* when what is not done ends after an interruption; 0: there was none */
    int64_t next_ns;
} Run;

static void wake_at(Run *run, int64_t ns) {
    run->next_ns = ns < run->next_ns ? ns : run->next_ns;
}

static int late(const Run *run) {
    return run->client->said.code < 0
               ? err_restore(&run->client->said)
               : err_set(ERR_TIMEOUT, "the S3 store %s has not answered in time",
                         run->client->url->host);
}

/* Requests whose time has come, into free flights. */
static int begin_some(Run *run) {
    S3Client *client = run->client;
    int64_t now_ns = clock_now_ns();
    int flight = 0;
    while (run->first < run->n && run->requests[run->first].stage == S3_ANSWERED)
        run->first++;
    for (size_t i = run->first; i < run->n; i++) {
        S3Request *request = &run->requests[i];
        while (flight < S3_FLIGHTS && client->flights[flight].request)
            flight++;
        if (flight == S3_FLIGHTS)
            return 0;
        if (request->stage != S3_WAITING)
            continue;
        int64_t from_ns =
            request->not_before_ns > client->calm_ns ? request->not_before_ns : client->calm_ns;
        if (from_ns > run->limits->retry_until_ns && request->n_tries == 0)
            from_ns = now_ns; /* each is tried once */
        if (from_ns > now_ns) {
            wake_at(run, from_ns);
        } else if (request->n_tries > 0 && now_ns >= run->limits->retry_until_ns) {
            return late(run);
        } else {
            TRY(s3_flight_begin(&client->flights[flight], request));
        }
    }
    return 0;
}

/* Answers that have begun and come too slowly: those tries have ended, too. How many? */
static int end_slow(Run *run) {
    int64_t now_ns = clock_now_ns();
    int n_ended = 0;
    for (int i = 0; i < S3_FLIGHTS; i++) {
        S3Flight *flight = &run->client->flights[i];
        if (!flight->request || flight->status == 0)
            continue;
        int64_t until_ns = s3_flight_until_ns(flight);
        if (now_ns < until_ns) {
            wake_at(run, until_ns);
            continue;
        }
        snprintf(flight->why, sizeof flight->why, "its answer began and came too slowly");
        int rc = end_try(flight, CURLE_OPERATION_TIMEDOUT, run->limits);
        TRY(rc);
        run->n_answered += (size_t)rc;
        n_ended++;
    }
    return n_ended;
}

/* How many tries have ended. */
static int take_answers(Run *run) {
    CURLMsg *message = NULL;
    int n_left = 0;
    int n_ended = 0;
    while ((message = curl_multi_info_read(run->client->multi, &n_left))) {
        S3Flight *flight = NULL;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &flight);
        int rc = end_try(flight, message->data.result, run->limits);
        TRY(rc);
        run->n_answered += (size_t)rc;
        n_ended++;
    }
    int n_slow = end_slow(run);
    return n_slow < 0 ? n_slow : n_ended + n_slow;
}

/* Do the limits and interruptions leave time? */
static int check_time(Run *run) {
    S3Client *client = run->client;
    int64_t now_ns = clock_now_ns();
    bool interrupted = atomic_load(client->interrupted);
    bool writes = false;
    bool unanswered = false;
    bool reads = false;
    for (int i = 0; i < S3_FLIGHTS; i++) {
        const S3Flight *flight = &client->flights[i];
        if (!flight->request)
            continue;
        writes |= flight->request->method[0] == 'P';
        reads |= flight->request->method[0] == 'G';
        unanswered |= flight->status == 0;
    }
    if (unanswered && now_ns >= run->limits->answer_by_ns)
        return late(run);
    if (unanswered)
        wake_at(run, run->limits->answer_by_ns);
    if (!interrupted)
        return 0;
    for (size_t i = run->first; i < run->n; i++) {
        if (run->requests[i].stage == S3_WAITING && run->requests[i].n_tries > 0)
            return err_set(ERR_CANCELLED, "interrupted");
    }
    if (run->cut_ns == 0)
        run->cut_ns = clock_deadline_ms(writes ? WRITE_GRACE_MS : READ_GRACE_MS);
    if ((unanswered || reads) && now_ns >= run->cut_ns)
        return err_set(ERR_CANCELLED, "interrupted");
    if (unanswered || reads)
        wake_at(run, run->cut_ns);
    return 0;
}

static int run_all(Run *run) {
    S3Client *client = run->client;
    while (run->n_answered < run->n) {
        int n_running = 0;
        run->next_ns = clock_deadline_ms(LOOK_MS);
        TRY(begin_some(run));
        if (curl_multi_perform(client->multi, &n_running) != CURLM_OK)
            return err_set(ERR_INTERNAL, "libcurl's multi interface failed");
        int n_ended = take_answers(run);
        TRY(n_ended);
        if (n_ended > 0)
            continue; /* there may be room for the next ones, or something to repeat */
        TRY(check_time(run));
        int64_t left_ms = (run->next_ns - clock_now_ns() + CLOCK_NS_PER_MS - 1) / CLOCK_NS_PER_MS;
        struct curl_waitfd wake = {.fd = client->wake_fd, .events = CURL_WAIT_POLLIN};
        if (left_ms > 0) /* an interruption that is known wakes nobody */
            curl_multi_poll(client->multi, &wake, run->cut_ns == 0 ? 1 : 0, (int)left_ms, NULL);
    }
    return 0;
}

int s3_client_run(S3Client *client, S3Request *requests, size_t n, const S3Limits *limits) {
    Run run = {.client = client, .requests = requests, .n = n, .limits = limits};
    client->said.code = 0;
    for (size_t i = 0; i < n; i++) {
        requests[i].stage = S3_WAITING;
        requests[i].n_tries = requests[i].n_skewed = 0;
        requests[i].not_before_ns = 0;
    }
    int rc = run_all(&run);
    if (rc >= 0)
        return 0;
    for (int i = 0; i < S3_FLIGHTS; i++)
        s3_flight_abort(&client->flights[i]);
    return rc;
}

bool s3_client_pause(S3Client *client, int64_t until_ns, int64_t deadline_ns) {
    int64_t end_ns = until_ns < deadline_ns ? until_ns : deadline_ns;
    struct pollfd wake = {client->wake_fd, POLLIN, 0};
    int64_t left_ns = end_ns - clock_now_ns();
    struct timespec left = {.tv_sec = left_ns / CLOCK_NS_PER_S,
                            .tv_nsec = left_ns % CLOCK_NS_PER_S};
    if (left_ns > 0)
        ppoll(&wake, 1, &left, NULL);
    return !atomic_load(client->interrupted);
}

/* ---- handles ---- */

static void init_library(void) {
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

int s3_client_open(S3Url *url, int wake_fd, const atomic_bool *interrupted, RelayCounters *counters,
                   S3Client **out_client) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    S3Client *client = calloc(1, sizeof *client);
    int rc = 0;
    if (!client)
        return err_set(ERR_MEMORY, "a client of an S3 store");
    client->url = url;
    client->wake_fd = wake_fd;
    client->interrupted = interrupted;
    client->counters = counters;
    for (int i = 0; i < S3_FLIGHTS; i++) {
        client->flights[i].client = client;
        buf_init(&client->flights[i].text, S3_MAX_ANSWER_BYTES);
    }
    TRY_DONE(s3_credentials_find(url, &client->credentials));
    if (getrandom(&client->jitter, sizeof client->jitter, 0) != (ssize_t)sizeof client->jitter)
        TRY_DONE(err_errno(ERR_IO, errno, "opening an S3 relay"));
    pthread_once(&once, init_library);
    client->multi = curl_multi_init();
    for (int i = 0; i < S3_FLIGHTS; i++)
        client->flights[i].easy = curl_easy_init();
    for (int i = 0; i < S3_FLIGHTS; i++) {
        if (!client->multi || !client->flights[i].easy)
            TRY_DONE(err_set(ERR_MEMORY, "a client of an S3 store"));
    }
    *out_client = client;
    return 0;
done:
    s3_client_close(client);
    return rc;
}

void s3_client_close(S3Client *client) {
    if (!client)
        return;
    for (int i = 0; i < S3_FLIGHTS; i++) {
        s3_flight_abort(&client->flights[i]);
        curl_easy_cleanup(client->flights[i].easy);
        buf_done(&client->flights[i].text);
    }
    curl_multi_cleanup(client->multi);
    explicit_bzero(&client->credentials, sizeof client->credentials);
    free(client);
}

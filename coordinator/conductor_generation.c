/* Generations: a run's number in the relay, which is in every key. A run takes one at its
 * beginning, and another one whenever the relay has lost objects. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "coordinator/conductor_parts.h"
#include "core/clock.h"
#include "core/err.h"

enum { CONDUCT_MAX_CLAIMS = 1 << 20, CONDUCT_NEXT_BELOW = 1 << 20 };

/* ---- claims ---- */

/* May a write into the relay that failed be tried again? Waits a little: 150 ms in all, for the
 * loop stands still. */
static bool try_again(int rc, int n_tries) {
    static const int wait_ms[] = {10, 40, 100};
    if (rc >= 0 || rc == ERR_TIMEOUT || !err_retry(rc) || n_tries >= 3)
        return false;
    clock_sleep_until(clock_deadline_ms(wait_ms[n_tries]));
    return true;
}

/* Like relay_put; *out_again: it was tried more than once, so what is there may be ours. */
static int put(Conductor *conductor, Key key, const char *text, bool *out_again) {
    Slice part = {text, strlen(text)};
    int rc = 0;
    int n_tries = 0;
    do {
        rc = relay_put(conductor->relay, key.text, &part, 1, clock_deadline_ms(CONDUCT_RELAY_MS));
    } while (try_again(rc, n_tries++));
    *out_again = n_tries > 1;
    return rc;
}

static int drop(Conductor *conductor, Key key) {
    int rc = 0;
    int n_tries = 0;
    do {
        rc = relay_drop_one(conductor->relay, key.text, NULL);
    } while (try_again(rc, n_tries++));
    return rc;
}

/* Is it our claim? The answer to a put that took place may have been lost. */
static bool is_ours(Conductor *conductor, Key key, const char *text) {
    char there[64];
    size_t bytes = 0;
    return relay_get(conductor->relay, key.text, there, sizeof there,
                     clock_deadline_ms(CONDUCT_RELAY_MS), &bytes) >= 0 &&
           bytes == strlen(text) && memcmp(there, text, bytes) == 0;
}

/* Keep in mind that it is to be dropped in the end. */
static int keep_generation(Conductor *conductor, int64_t generation) {
    size_t bytes = (conductor->n_generations + 1) * sizeof conductor->generations[0];
    int64_t *generations = realloc(conductor->generations, bytes);
    if (!generations)
        return err_set(ERR_MEMORY, "a generation");
    generations[conductor->n_generations++] = generation;
    conductor->generations = generations;
    return 0;
}

/* A claim may have expired before the objects of its run, and while the run goes on: where any are,
 * the generation is taken. */
static int try_claim(Conductor *conductor, int64_t generation, const char *text) {
    bool again = false;
    int64_t n_left = 0;
    KeySpace space = conductor->space;
    space.generation = generation;
    Key key = key_claim(space.job, generation);
    int rc = put(conductor, key, text, &again);
    TRY(rc);
    if (rc == 1 && !(again && is_ours(conductor, key, text)))
        return 0;
    TRY(relay_count(conductor->relay, key_space_prefix(&space).text, &n_left));
    if (n_left == 0)
        return 1;
    TRY(drop(conductor, key));
    return 0;
}

int conductor_claim(Conductor *conductor, int64_t first) {
    char text[64];
    snprintf(text, sizeof text, "%lld %lld", (long long)getpid(), (long long)clock_now_ns());
    for (int64_t generation = first; generation < first + CONDUCT_MAX_CLAIMS; generation++) {
        int rc = try_claim(conductor, generation, text);
        TRY(rc);
        if (rc == 0)
            continue;
        TRY(keep_generation(conductor, generation));
        conductor->space.generation = generation;
        conductor->order.generation = generation;
        return 0;
    }
    return err_set(ERR_LIMIT, "job '%s' has had %d generations in this relay", conductor->space.job,
                   CONDUCT_MAX_CLAIMS);
}

int conductor_drop_generations(Conductor *conductor) {
    KeySpace space = conductor->space;
    for (size_t i = 0; i < conductor->n_generations; i++) {
        space.generation = conductor->generations[i];
        TRY(drop(conductor, key_space_prefix(&space)));
        /* Only now: nobody may claim the generation while any of it is there. */
        TRY(drop(conductor, key_claim(space.job, space.generation)));
    }
    return 0;
}

/* Not all of the job: another run of it may be under way. */
void conductor_tidy_generations(Conductor *conductor) {
    KeySpace space = conductor->space;
    size_t i = 0;
    do {
        space.generation = i < conductor->n_generations ? conductor->generations[i] : 0;
        relay_tidy(conductor->relay, key_space_prefix(&space).text);
    } while (++i < conductor->n_generations);
}

/* ---- going back to the last save ---- */

static void notify(void *ctx) {
    Conductor *conductor = ctx;
    uv_async_send(&conductor->reported);
}

int conductor_watch(Conductor *conductor, int64_t old_generation) {
    return watch_open(&conductor->order, old_generation, notify, conductor, &conductor->watch);
}

/* Whoever still runs is killed; what was to be done later was the old generation's. */
void conductor_act_resume(Conductor *conductor) {
    const Job *job = &conductor->job;
    char members[96];
    snprintf(members, sizeof members, "\"generation\":%lld,\"step\":%lld",
             (long long)conductor->space.generation, (long long)job->next_step);
    int rc = outputs_event(conductor->outputs, "relay_lost", job->lost_text, "%s", members);
    progress_say_with(&conductor->progress, "relay_lost", members, "%s", job->lost_text);
    conductor->resuming = true;
    conductor->resume_ms = conductor_now_ms();
    conductor->n_delayed = 0;
    conductor_stop_writing(conductor);
    watch_close(conductor->watch, &conductor->own);
    conductor->watch = NULL;
    invoke_kill_all(conductor->invoker);
    if (rc < 0)
        conductor_fail(conductor, rc);
}

/* The relay may have forgotten which numbers other runs of this job hold, whose workers still write
 * under them: the next one is not counted up but drawn. */
static int next_generation(const Conductor *conductor, int64_t *out_generation) {
    uint32_t random = 0;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return err_set(ERR_IO, "drawing a generation");
    *out_generation = conductor->space.generation + 1 + random % CONDUCT_NEXT_BELOW;
    return 0;
}

static int begin_generation(Conductor *conductor) {
    int64_t generation = 0;
    int64_t old = conductor->space.generation;
    int64_t step = conductor->job.committed;
    char members[96];
    TRY(next_generation(conductor, &generation));
    TRY(conductor_claim(conductor, generation));
    conductor->order.first_step = step;
    conductor->result->step = step;
    conductor->n_parts = 0;
    TRY(outputs_cut(conductor->outputs, step));
    TRY(conductor_watch(conductor, old));
    snprintf(members, sizeof members, "\"generation\":%lld,\"step\":%lld",
             (long long)conductor->space.generation, (long long)step);
    progress_say_with(&conductor->progress, "resumed", members,
                      "all workers go on from step %lld, as generation %lld", (long long)step,
                      (long long)conductor->space.generation);
    return outputs_event(conductor->outputs, "resumed", NULL, "%s", members);
}

/* A save that is being committed is waited for: it is what to go on from. */
void conductor_try_resume(Conductor *conductor) {
    if (!conductor->resuming || conductor->finishing)
        return;
    int64_t waited_ms = conductor_now_ms() - conductor->resume_ms;
    bool running = invoke_running(conductor->invoker) > 0;
    if ((running && waited_ms < CONDUCT_REAP_MS) || conductor->stores || conductor->write.running)
        return;
    int rc = begin_generation(conductor);
    if (rc < 0 && err_retry(rc) && waited_ms < conductor->config->order.wait_timeout_ms)
        return; /* the relay may be away again */
    conductor->resuming = false;
    if (rc < 0)
        conductor_fail(conductor, rc);
    else
        conductor_event(conductor, &(JobEvent){.kind = JOB_EV_RESUMED}, NULL);
}

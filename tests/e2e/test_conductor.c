/* The conductor against a worker that misbehaves on command (fake_worker.c). */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

#include "coordinator/checkpoint.h"
#include "coordinator/conductor.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/report.h"
#include "storage/relay_faulty.h"
#include "tests/support/temp_folder.h"

TestSuite(conductor, .init = temp_enter, .fini = temp_leave);

/* The next `n` links or renames of the coordinator to a path that ends in `end` fail; the first
 * one takes place all the same when `done`. */
static struct {
    const char *end;
    int n;
    bool done;
} fault;

static bool fails(const char *path) {
    size_t length = strlen(path);
    size_t wanted = fault.end ? strlen(fault.end) : SIZE_MAX;
    if (wanted > length || fault.n == 0 || strcmp(path + length - wanted, fault.end) != 0)
        return false;
    fault.n--;
    errno = EIO;
    return true;
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags) {
    int (*real)(int, const char *, int, const char *, int) =
        (int (*)(int, const char *, int, const char *, int))dlsym(RTLD_NEXT, "linkat");
    if (!fails(to))
        return real(from_fd, from, to_fd, to, flags);
    if (fault.done)
        real(from_fd, from, to_fd, to, flags);
    fault.done = false;
    errno = EIO;
    return -1;
}

int rename(const char *from, const char *to) {
    int (*real)(const char *, const char *) =
        (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    return fails(to) ? -1 : real(from, to);
}

/* The relay handles that the coordinator opens while `faults.on`: its own, then the watch's. The
 * operations `first`, `first` + `every`, ... of `handle` fail, one after the other. */
enum { MAX_FAULTS = 256, N_HANDLES = 2 };
static struct {
    bool on;
    int handle, first, every;
    int n_opened;
    Relay *handles[N_HANDLES];
    int64_t n_operations[N_HANDLES]; /* of those that are closed */
    const RelayOps *faulty;
    RelayOps ops; /* the faulty relay's, but close counts */
} faults;

static void close_counted(Relay *relay) {
    for (int h = 0; h < N_HANDLES; h++) {
        if (faults.handles[h] == relay)
            faults.n_operations[h] = relay_faulty_operations(relay);
    }
    faults.faulty->close(relay);
}

static int with_faults(int rc, Relay **relay) {
    RelayFaultRule rules[MAX_FAULTS];
    const int handle = faults.n_opened++;
    int n = 0;
    if (rc < 0 || !faults.on)
        return rc;
    for (int64_t at = faults.first; handle == faults.handle && n < MAX_FAULTS; at += faults.every)
        rules[n++] = (RelayFaultRule){.fault = RELAY_FAULT_FAIL, .at_operation = at};
    TRY(relay_faulty_open(*relay, rules, n, relay));
    if (handle < N_HANDLES)
        faults.handles[handle] = *relay;
    if (!faults.faulty) {
        faults.faulty = (*relay)->ops;
        faults.ops = *faults.faulty;
        faults.ops.close = close_counted;
    }
    (*relay)->ops = &faults.ops;
    return rc;
}

/* The linker puts these in the place of relay_open and relay_open_again. */
int __real_relay_open(const char *url, Relay **out_relay);
int __real_relay_open_again(const char *url, Relay **out_relay);

int __wrap_relay_open(const char *url, Relay **out_relay) {
    return with_faults(__real_relay_open(url, out_relay), out_relay);
}

int __wrap_relay_open_again(const char *url, Relay **out_relay) {
    return with_faults(__real_relay_open_again(url, out_relay), out_relay);
}

static const char base[] =
    "{\"version\": 1, \"name\": \"job\","
    " \"model\": {\"zoo\": \"mlp\", \"options\": {\"input\": [8], \"hidden\": [16, 16],"
    "                                            \"classes\": 3}},"
    " \"data\": {\"train\": {\"kind\": \"generated\", \"samples\": 100},"
    "            \"eval\": {\"kind\": \"generated\", \"samples\": 50}},"
    " \"batch\": 32, \"micro_batch\": 8, \"steps\": 20, \"save\": {\"every_steps\": 5},"
    " \"evaluate\": {\"every_steps\": 10}, \"update\": {\"kind\": \"sgd\", \"lr\": 0.1},"
    " \"plan\": {\"cut\": [2, 4], \"replicas\": [1, 2, 1]}, \"relay\": \"file://relay\","
    " \"timeouts\": {\"heartbeat\": \"50ms\", \"silence\": \"1s\", \"wait\": \"60s\"}}";

static char out[128]; /* folder of the outputs */

static JobConfig load(const ConfigSet *sets, int n_sets) {
    JobConfig config;
    snprintf(out, sizeof out, "%s/out", temp_folder);
    cr_assert_eq(config_parse("job", base, strlen(base), temp_folder, sets, n_sets, 0, &config), 0,
                 "%s", err_text());
    return config;
}

static ConductOptions options_of(const char *resume) {
    return (ConductOptions){
        .out_folder = out, .resume = resume, .quiet = true, .worker_path = FAKE_WORKER_PATH};
}

static void check_relay_is_empty(void) {
    Relay *relay = NULL;
    int64_t n = 0;
    char url[160];
    snprintf(url, sizeof url, "file://%s/relay", temp_folder);
    cr_assert_eq(relay_open(url, &relay), 0, "%s", err_text());
    cr_assert_eq(relay_count(relay, "", &n), 0);
    cr_expect_eq(n, 0, "%lld objects are left in the relay", (long long)n);
    relay_close(relay);
}

static ConductResult run_sets(const char *rules, const ConfigSet *sets, int n_sets,
                              const char *resume) {
    ConductResult result;
    JobConfig config = load(sets, n_sets);
    ConductOptions options = options_of(resume);
    setenv("FAKE_WORKER", rules, 1);
    conduct(&config, &options, &result);
    config_done(&config);
    check_relay_is_empty();
    return result;
}

static ConductResult run(const char *rules) {
    return run_sets(rules, NULL, 0, NULL);
}

static const char *read_out(const char *name) {
    static Buf text;
    char path[160];
    buf_clear(&text);
    snprintf(path, sizeof path, "%s/%s", out, name);
    cr_assert_geq(buf_read_file(&text, path, 1 << 24), 0, "%s", err_text());
    return buf_string(&text);
}

static int count(const char *text, const char *words) {
    int n = 0;
    for (const char *at = strstr(text, words); at; at = strstr(at + 1, words))
        n++;
    return n;
}

/* Every step has exactly one row, in order, with the fake worker's loss. */
static void check_rows(int64_t n_steps) {
    const char *text = read_out("metrics.csv");
    cr_assert_eq(count(text, "\n"), n_steps + 1);
    const char *line = strchr(text, '\n') + 1;
    for (int64_t step = 0; step < n_steps; step++, line = strchr(line, '\n') + 1) {
        long long found = -1;
        double loss = 0;
        cr_assert_eq(sscanf(line, "%lld,%*d,%*[^,],%lf", &found, &loss), 2, "%s", line);
        cr_assert_eq(found, step);
        cr_assert_float_eq(loss, 10.0 / (double)(step + 1), 1e-12);
    }
}

static void check_done(const ConductResult *result) {
    cr_assert_eq(result->state, JOB_DONE, "%s", result->failure.text);
    cr_expect_eq(result->exit_code, 0);
    cr_expect_eq(result->step, 20);
    cr_expect_eq(result->saved_step, 20);
    cr_expect(result->has_eval);
    cr_expect_float_eq(result->eval_loss, 0.5, 0);
    cr_expect_float_eq(result->eval_accuracy, 0.75, 0);
    check_rows(20);
}

Test(conductor, runs_a_job_to_its_end) {
    ConductResult result = run("");
    check_done(&result);
    cr_expect_eq(result.n_restarts, 0);
    const char *events = read_out("events.jsonl");
    cr_expect_eq(count(events, "\"event\":\"worker_started\""), 4);
    cr_expect_eq(count(events, "\"event\":\"worker_ended\""), 4);
    cr_expect_eq(count(events, "\"event\":\"saved\""), 4);
    cr_expect_eq(count(events, "\"event\":\"evaluated\""), 2);
    cr_expect_eq(count(events, "\"state\":\"done\""), 2);
    cr_expect(strstr(read_out("metrics.csv"), ",0.5,0.75"
                                              ",0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0\n"));
    cr_expect(strstr(read_out("metrics.jsonl"), "\"grad_norm\":2.449489742783178"), "sqrt(6)");
    cr_expect(strstr(read_out("logs/worker-1.1.1.log"), "fake worker 1.1 attempt 1"));
    char folder[160];
    char latest[ORDER_PATH_BYTES];
    int64_t step = 0;
    snprintf(folder, sizeof folder, "%s/checkpoints", out);
    cr_expect_eq(temp_count(folder, ""), 3, "keep_last");
    cr_assert_eq(checkpoint_latest(folder, latest, &step), 0);
    cr_expect_eq(step, 20);
    cr_expect_eq(checkpoint_verify(latest), 0);
}

Test(conductor, replaces_workers_that_die) {
    ConductResult result = run("1.0.1:7:kill;0.0.1:3:exit=9;2.0.1:12:error=ERR_TIMEOUT;"
                               "1.1.1:19:kill;1.1.2:19:kill");
    check_done(&result);
    cr_expect_eq(result.n_restarts, 5);
    const char *events = read_out("events.jsonl");
    cr_expect(strstr(events, "killed by signal 9"));
    cr_expect(strstr(events, "ended with status 9 and without a result; see "));
    cr_expect(strstr(events, "\"attempt\":3,\"pid\""));
}

/* One failure of the relay is no failure of the job. */
Test(conductor, tries_again_to_write_into_the_relay) {
    fault.end = "/+claim.1";
    fault.n = 3;
    fault.done = true; /* the claim is ours though we heard of a failure */
    ConductResult result = run("");
    check_done(&result);
    cr_expect_eq(fault.n, 0);
}

Test(conductor, tries_again_to_fence) {
    fault.end = "/+f.1.0.2";
    fault.n = 3;
    ConductResult result = run("1.0.1:7:kill");
    check_done(&result);
    cr_expect_eq(fault.n, 0);
}

/* A full relay, for a second or so. */
Test(conductor, waits_for_room_for_a_fence) {
    fault.end = "/+f.1.0.2";
    fault.n = 8;
    ConductResult result = run("1.0.1:7:kill");
    check_done(&result);
    cr_expect_eq(result.n_restarts, 1);
    cr_expect_eq(fault.n, 0);
    cr_expect_eq(count(read_out("events.jsonl"), "\"event\":\"worker_died\""), 1);
}

/* As long as anything is waited for. */
Test(conductor, gives_up_on_a_fence_in_the_end) {
    static const ConfigSet set = {"timeouts.wait", "3s"};
    int64_t begin_ns = clock_now_ns();
    fault.end = "/+f.1.0.2";
    fault.n = 1000;
    ConductResult result = run_sets("1.0.1:7:kill", &set, 1, NULL);
    int64_t took_ms = (clock_now_ns() - begin_ns) / CLOCK_NS_PER_MS;
    cr_expect(took_ms >= 3000 && took_ms < 8000, "%lld ms", (long long)took_ms);
    cr_expect_eq(result.state, JOB_FAILED);
    cr_expect_eq(result.failure.code, ERR_IO);
    cr_expect(strstr(result.failure.text, "/c/f.1.0.2' in file:///"), "%s", result.failure.text);
    cr_expect_lt(fault.n, 985);
    cr_expect_eq(count(read_out("events.jsonl"), "\"event\":\"worker_started\",\"stage\":1,"
                                                 "\"replica\":0"),
                 1, "nobody starts unfenced");
}

Test(conductor, does_not_try_for_ever) {
    fault.end = "/+claim.1";
    fault.n = 4;
    ConductResult result = run("");
    cr_expect_eq(result.state, JOB_FAILED);
    cr_expect_eq(result.failure.code, ERR_IO, "%s", result.failure.text);
    cr_expect_eq(fault.n, 0);
}

/* A short job in which one worker dies, with the operations of `handle` that `first` and `every`
 * say failing. Returns how many it had. */
static int64_t run_with_faults(int handle, int first, int every) {
    static const ConfigSet sets[] = {{"steps", "2"},
                                     {"save.every_steps", "1"},
                                     {"evaluate.every_steps", "1"},
                                     {"timeouts.heartbeat", "500ms"}};
    ConductResult result;
    JobConfig config = load(sets, 4);
    ConductOptions options = options_of(NULL);
    options.overwrite = true;
    setenv("FAKE_WORKER", "1.0.1:1:kill", 1);
    faults.on = true;
    faults.n_opened = 0;
    faults.handle = handle;
    faults.first = first;
    faults.every = every;
    conduct(&config, &options, &result);
    faults.on = false;
    config_done(&config);
    cr_assert_eq(result.state, JOB_DONE, "handle %d, operation %d and each %d: %s", handle, first,
                 every, result.failure.text);
    cr_expect_eq(result.saved_step, 2);
    cr_expect_eq(result.n_restarts, 1);
    check_rows(2);
    check_relay_is_empty();
    return faults.n_operations[handle];
}

/* Every operation fails once: one in `apart` in each of as many runs, so that what is tried again
 * works. The long form takes them one by one. */
static void check_each_operation(int handle, int apart, int64_t least) {
    const char *form = getenv("FUNCPIPE_LONG");
    const bool one_by_one = form != NULL && strcmp(form, "1") == 0;
    const int64_t n = run_with_faults(handle, INT_MAX / 2, INT_MAX / 2);
    cr_assert_geq(n, least, "the job has only %lld operations", (long long)n);
    for (int i = 0; i < (one_by_one ? (int)n : apart); i++)
        run_with_faults(handle, i, one_by_one ? INT_MAX / 2 : apart);
}

/* The claim, questions about the relay's latency, a fence, what is dropped in the end. */
Test(conductor, each_operation_of_its_relay_fails_once) {
    check_each_operation(0, 3, 9);
}

/* Norms, saves, evaluations, heartbeats, drops. */
Test(conductor, each_operation_of_the_watch_fails_once) {
    check_each_operation(1, 5, 30);
}

Test(conductor, gives_up_on_a_worker_that_keeps_dying) {
    ConductResult result = run("1.1.*:7:error=ERR_IO");
    cr_expect_eq(result.state, JOB_FAILED);
    cr_expect_eq(result.exit_code, 1);
    cr_expect_eq(result.failure.code, ERR_WORKER);
    cr_expect_str_eq(result.failure.text, "stage 1, replica 1 failed 3 times in a row at step 7: "
                                          "as it was told");
    cr_expect_eq(result.saved_step, 5);
    cr_expect_eq(count(read_out("events.jsonl"), "\"event\":\"finished\",\"state\":\"failed\""), 1);
}

Test(conductor, fails_at_once_where_no_retry_helps) {
    ConductResult result = run("2.0.1:4:error=ERR_DIVERGED");
    cr_expect_eq(result.state, JOB_FAILED);
    cr_expect_eq(result.exit_code, EXIT_CODE_DIVERGED);
    cr_expect_str_eq(result.failure.text, "stage 2, replica 0 at step 4: as it was told");
    cr_expect_eq(result.n_restarts, 0);
}

Test(conductor, does_not_believe_a_worker_that_is_done_too_early) {
    ConductResult result = run("1.0.1:9:done");
    check_done(&result);
    cr_expect_eq(result.n_restarts, 1);
}

Test(conductor, replaces_a_silent_worker) {
    ConductResult result = run("1.0.1:7:mute");
    check_done(&result);
    cr_expect_eq(result.n_restarts, 1);
    const char *events = read_out("events.jsonl");
    cr_expect(strstr(events, "no heartbeat for"));
    cr_expect(strstr(events, "\"attempt\":1,\"code\":\"ERR_SUPERSEDED\""), "the fence ended it");
}

Test(conductor, replaces_a_stopped_worker_and_kills_it_in_the_end) {
    ConductResult result = run("0.0.1:7:stop");
    check_done(&result);
    cr_expect_eq(result.n_restarts, 1);
    cr_expect(strstr(read_out("events.jsonl"),
                     "\"stage\":0,\"replica\":0,\"attempt\":1,\"code\":\"ERR_KILLED\""));
}

Test(conductor, replaces_a_worker_that_never_starts) {
    static const ConfigSet set = {"timeouts.start", "2s"};
    ConductResult result = run_sets("1.1.1:-1:mute", &set, 1, NULL);
    check_done(&result);
    cr_expect(strstr(read_out("events.jsonl"), "of its start"));
}

Test(conductor, slow_workers_are_not_dead) {
    ConductResult result = run("1.0.1:*:slow=40;0.0.1:6:slow=600");
    check_done(&result);
    cr_expect_eq(result.n_restarts, 0);
}

Test(conductor, nonsense_in_the_relay_fails_by_name) {
    ConductResult result = run("1.0.1:3:garbage");
    cr_expect_eq(result.state, JOB_FAILED);
    cr_expect(strstr(result.failure.text, "job/g1/t3/n.1.0"), "%s", result.failure.text);
}

Test(conductor, a_chatty_worker_is_understood) {
    ConductResult result = run("*.*.*:0:chatty");
    check_done(&result);
}

Test(conductor, says_which_save_never_came) {
    static const ConfigSet set = {"timeouts.wait", "2s"};
    ConductResult result = run_sets("1.1.*:19:nosave", &set, 1, NULL);
    cr_expect_eq(result.state, JOB_FAILED);
    cr_expect(strstr(result.failure.text, "the save of step 20 by stage 1, replica 1 never came"),
              "%s", result.failure.text);
    cr_expect_eq(result.saved_step, 15);
}

/* It was lost, perhaps: once all do it again. */
Test(conductor, a_save_that_never_came_is_made_again) {
    static const ConfigSet set = {"timeouts.wait", "1s"};
    ConductResult result = run_sets("1.1.1:19:nosave", &set, 1, NULL);
    check_done(&result);
    cr_expect_eq(result.n_resumes, 1);
    cr_expect_eq(count(read_out("events.jsonl"), "\"event\":\"resumed\""), 1);
}

Test(conductor, says_when_there_is_no_worker_program) {
    ConductResult result;
    JobConfig config = load(&(ConfigSet){"plan.isa", "avx2"}, 1);
    ConductOptions options = options_of(NULL);
    options.worker_path = "/no/such/worker";
    cr_expect_eq(conduct(&config, &options, &result), ERR_NOT_FOUND);
    cr_expect(strstr(result.failure.text, "/no/such/worker"), "%s", result.failure.text);
    config_done(&config);
    check_relay_is_empty();
}

Test(conductor, an_unreachable_relay_is_exit_code_3) {
    static const ConfigSet set = {"relay", "file:///no/such/place/relay"};
    ConductResult result;
    JobConfig config = load(&set, 1);
    ConductOptions options = options_of(NULL);
    conduct(&config, &options, &result);
    cr_expect_eq(result.state, JOB_FAILED);
    cr_expect_eq(result.exit_code, EXIT_CODE_UNREACHABLE);
    cr_expect(strstr(result.failure.text, "/no/such/place"), "%s", result.failure.text);
    config_done(&config);
}

/* The bits on the store are not those that the worker wrote: no manifest vouches for them. */
Test(conductor, a_save_that_was_damaged_is_not_committed) {
    ConductResult result = run("1.0.*:7:damage");
    cr_expect_eq(result.state, JOB_FAILED);
    cr_expect_eq(result.exit_code, EXIT_CODE_FAILED);
    cr_expect_eq(result.saved_step, 5);
    cr_expect(strstr(result.failure.text, "saving step 1"), "%s", result.failure.text);
    cr_expect(strstr(result.failure.text, "'model-00002-of-00003.safetensors' has "), "%s",
              result.failure.text);
    check_relay_is_empty();
}

/* ---- signals ---- */

typedef struct Signals {
    int first, second; /* second 0: none */
} Signals;

static int count_rows(void) {
    char path[160];
    char text[4096];
    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    FILE *file = fopen(path, "r");
    size_t n = file ? fread(text, 1, sizeof text, file) : 0;
    int rows = 0;
    for (size_t i = 0; i < n; i++)
        rows += text[i] == '\n';
    if (file)
        fclose(file);
    return rows;
}

/* Send them when the metrics have three rows. */
static void *send_signals(void *arg) {
    const Signals *signals = arg;
    for (int i = 0; i < 2000 && count_rows() < 3; i++)
        usleep(10000);
    kill(getpid(), signals->first);
    if (signals->second) {
        usleep(300000);
        kill(getpid(), signals->second);
    }
    return NULL;
}

static ConductResult run_signalled(const char *rules, Signals signals) {
    static const ConfigSet set = {"steps", "100000"};
    pthread_t thread;
    snprintf(out, sizeof out, "%s/out", temp_folder);
    cr_assert_eq(pthread_create(&thread, NULL, send_signals, &signals), 0);
    ConductResult result = run_sets(rules, &set, 1, NULL);
    pthread_join(thread, NULL);
    return result;
}

Test(conductor, ctrl_c_saves_and_ends_and_a_resume_goes_on) {
    ConductResult result = run_signalled("*.*.*:*:slow=20", (Signals){SIGINT, 0});
    cr_assert_eq(result.state, JOB_CANCELLED, "%s", result.failure.text);
    cr_expect_eq(result.exit_code, EXIT_CODE_INTERRUPTED);
    cr_expect_eq(result.saved_step, result.step);
    cr_expect_gt(result.step, 2);
    check_rows(result.step);
    char steps[24];
    snprintf(steps, sizeof steps, "%lld", (long long)result.step + 10);
    ConfigSet set = {"steps", steps};
    int64_t before = result.step;
    result = run_sets("", &set, 1, "latest");
    cr_assert_eq(result.state, JOB_DONE, "%s", result.failure.text);
    check_rows(before + 10);
    const char *events = read_out("events.jsonl");
    char words[64];
    snprintf(words, sizeof words, "\"first_step\":%lld}", (long long)before);
    cr_expect_eq(count(events, words), 4);
}

Test(conductor, sigterm_is_exit_code_6) {
    ConductResult result = run_signalled("*.*.*:*:slow=20", (Signals){SIGTERM, 0});
    cr_assert_eq(result.state, JOB_CANCELLED, "%s", result.failure.text);
    cr_expect_eq(result.exit_code, EXIT_CODE_CANCELLED);
    cr_expect_eq(result.saved_step, result.step);
}

Test(conductor, twice_ends_at_once) {
    ConductResult result =
        run_signalled("0.0.1:3:slow=5000;*.*.*:*:slow=20", (Signals){SIGTERM, SIGINT});
    cr_expect_eq(result.state, JOB_CANCELLED);
    cr_expect_eq(result.exit_code, EXIT_CODE_INTERRUPTED);
    cr_expect_str_eq(result.failure.text, "cancelled at once");
}

/* ---- outputs, resuming, leftovers ---- */

Test(conductor, refuses_a_folder_with_outputs) {
    ConductResult result = run("");
    check_done(&result);
    result = run("");
    cr_expect_eq(result.state, JOB_FAILED);
    cr_expect_not(result.ran);
    cr_expect_eq(result.exit_code, EXIT_CODE_USAGE);
    cr_expect(strstr(result.failure.text, "--overwrite"), "%s", result.failure.text);
    JobConfig config = load(NULL, 0);
    ConductOptions options = options_of(NULL);
    options.overwrite = true;
    cr_expect_eq(conduct(&config, &options, &result), 0, "%s", err_text());
    check_done(&result);
    config_done(&config);
    char older[160];
    snprintf(older, sizeof older, "%s/checkpoints/10", out);
    result = run_sets("", NULL, 0, older);
    cr_expect(strstr(result.failure.text, "newer than step 10"), "%s", result.failure.text);
}

/* A command that fails before its workers run has changed nothing. */
Test(conductor, a_start_that_fails_leaves_the_folder_as_it_was) {
    static const ConfigSet wrong[] = {{"limits.relay", "4KiB"},
                                      {"relay", "file:///no/such/place/relay"}};
    static const int codes[] = {EXIT_CODE_INFEASIBLE, EXIT_CODE_UNREACHABLE};
    char folder[160];
    ConductResult result;
    for (int i = 0; i < 4; i++) { /* in a new folder, then in one with outputs */
        JobConfig config = load(&wrong[i % 2], 1);
        ConductOptions options = options_of(NULL);
        options.overwrite = i >= 2;
        conduct(&config, &options, &result);
        config_done(&config);
        cr_expect_eq(result.exit_code, codes[i % 2], "%s", result.failure.text);
        if (i == 1) {
            result = run("");
            check_done(&result);
        }
    }
    snprintf(folder, sizeof folder, "%s/checkpoints", out);
    cr_expect_eq(temp_count(folder, ""), 3);
    cr_expect_eq(count(read_out("events.jsonl"), "\"event\":\"finished\""), 1);
    check_rows(20);
    result = run_sets("", wrong, 1, "latest");
    cr_expect_eq(result.exit_code, EXIT_CODE_INFEASIBLE);
    check_rows(20);
}

Test(conductor, resumes_under_another_cut) {
    ConductResult result = run("0.0.*:7:slow=500;0.0.*:8:error=ERR_ARGUMENT"); /* time to commit */
    cr_expect_eq(result.state, JOB_FAILED);
    cr_expect_eq(result.saved_step, 5);
    static const ConfigSet sets[] = {{"plan.cut", "[3]"}, {"plan.replicas", "[1, 1]"}};
    result = run_sets("", sets, 2, "latest");
    check_done(&result);
    cr_expect_eq(count(read_out("events.jsonl"), "\"first_step\":5}"), 2);
    static const ConfigSet adamw = {"update", "{\"kind\": \"adamw\", \"lr\": 0.1}"};
    result = run_sets("", &adamw, 1, "latest");
    cr_expect_eq(result.exit_code, EXIT_CODE_USAGE);
    cr_expect(strstr(result.failure.text, "was made with sgd"), "%s", result.failure.text);
}

Test(conductor, resuming_what_is_finished_is_done) {
    ConductResult result = run("");
    check_done(&result);
    result = run_sets("", NULL, 0, "latest");
    cr_expect_eq(result.state, JOB_DONE);
    check_rows(20);
}

Test(conductor, leftovers_of_others_are_never_read) {
    Relay *relay = NULL;
    char url[160];
    snprintf(url, sizeof url, "file://%s/relay", temp_folder);
    cr_assert_eq(relay_open(url, &relay), 0);
    static const char *const keys[] = {"job/claim.1", "job/claim.2", "job/g1/t0/n.0.0",
                                       "other/g3/t0/n.0.0"};
    Slice part = {"leftover", 8};
    for (int i = 0; i < 4; i++)
        cr_assert_eq(relay_put(relay, keys[i], &part, 1, INT64_MAX), 0);
    ConductResult result;
    JobConfig config = load(NULL, 0);
    ConductOptions options = options_of(NULL);
    setenv("FAKE_WORKER", "", 1);
    cr_expect_eq(conduct(&config, &options, &result), 0, "%s", err_text());
    check_done(&result);
    config_done(&config);
    int64_t n = 0;
    cr_assert_eq(relay_count(relay, "", &n), 0);
    cr_expect_eq(n, 4, "what belongs to others stays");
    relay_close(relay);
}

Test(conductor, a_relay_of_its_own_goes_away) {
    static const ConfigSet set = {"relay", "auto"};
    char prefix[64];
    char dead[] = "/dev/shm/funcpipe-run-2147483000-XXXXXX"; /* nobody holds it */
    cr_assert_not_null(mkdtemp(dead));
    snprintf(prefix, sizeof prefix, "funcpipe-run-%d-", (int)getpid());
    JobConfig config = load(&set, 1);
    ConductOptions options = options_of(NULL);
    ConductResult result;
    setenv("FAKE_WORKER", "1.0.1:7:kill", 1);
    cr_expect_eq(conduct(&config, &options, &result), 0, "%s", err_text());
    config_done(&config);
    cr_expect_eq(temp_count("/dev/shm", prefix), 0);
    cr_expect_lt(access(dead, F_OK), 0, "what a killed coordinator left goes away");
}

static void *hang_up(void *unused) {
    struct timespec pause = {.tv_nsec = 300000000};
    nanosleep(&pause, NULL);
    kill(getpid(), SIGHUP);
    return unused;
}

static ConductResult run_hung_up(void) {
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, hang_up, NULL), 0);
    ConductResult result = run("*.*.*:*:slow=40");
    pthread_join(thread, NULL);
    return result;
}

Test(conductor, a_hang_up_cancels) {
    signal(SIGHUP, SIG_DFL);
    ConductResult result = run_hung_up();
    cr_expect_eq(result.state, JOB_CANCELLED, "%s", result.failure.text);
    cr_expect_eq(result.exit_code, EXIT_CODE_CANCELLED);
}

Test(conductor, a_hang_up_is_nothing_under_nohup) {
    signal(SIGHUP, SIG_IGN);
    ConductResult result = run_hung_up();
    check_done(&result);
}

Test(conductor, saves_by_time) {
    static const ConfigSet sets[] = {{"save", "{\"every\": \"500ms\", \"every_steps\": 1000}"},
                                     {"steps", "60"},
                                     {"data.eval", "null"},
                                     {"evaluate", "null"}};
    fault.end = "/@control";
    fault.n = 6;
    ConductResult result = run_sets("*.*.*:*:slow=40", sets, 4, NULL);
    cr_expect_eq(fault.n, 0, "the wish to save is written again");
    cr_assert_eq(result.state, JOB_DONE, "%s", result.failure.text);
    cr_expect_geq(count(read_out("events.jsonl"), "\"event\":\"saved\""), 3);
}

Test(conductor, evaluates_a_checkpoint) {
    ConductResult result = run("");
    check_done(&result);
    char folder[160];
    snprintf(folder, sizeof folder, "%s/checkpoints/15", out);
    static const ConfigSet sets[] = {{"plan", "{}"}, {"relay", "auto"}, {"steps", "12"}};
    JobConfig config = load(sets, 3); /* the job has fewer steps than the checkpoint */
    config.order.eval_only = true;
    ConductOptions options = options_of(folder);
    options.out_folder = NULL;
    cr_expect_eq(conduct(&config, &options, &result), 0, "%s", err_text());
    cr_expect(result.has_eval);
    cr_expect_float_eq(result.eval_loss, 0.5, 0);
    cr_expect_eq(result.step, 15);
    setenv("FAKE_WORKER", "0.0.*:-1:exit=7", 1); /* its log goes with the scratch folder */
    cr_expect_lt(conduct(&config, &options, &result), 0);
    cr_expect(strstr(result.failure.text,
                     "ended with status 7 and without a result; its log ends: fake worker 0.0 "),
              "%s", result.failure.text);
    config_done(&config);
}

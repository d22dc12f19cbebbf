/* A worker that computes nothing and speaks the whole protocol: it takes an order, sends
 * heartbeats, publishes norms, saves and evaluations, and misbehaves as FAKE_WORKER says. For the
 * conductor's tests; FUNCPIPE_WORKER names it.
 *
 * FAKE_WORKER is a list of rules "STAGE.REPLICA.ATTEMPT:STEP:ACTION", split by ';', '*' for any:
 *     kill          SIGKILL to itself             stop     SIGSTOP to itself
 *     exit=N        exit status N, no result      error=E  result with error code E
 *     done          result "done", too early      mute     no sign of life, until fenced off
 *     garbage       nonsense as norms object      slow=MS  sleep before the step
 *     nosave        never tell of saves           chatty   fill stdout first
 *     damage        from now on, turn a bit of what it saved before it tells of it
 * STEP -1 is before the first heartbeat. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/order.h"
#include "core/report.h"
#include "core/stage.h"
#include "core/text.h"
#include "storage/blob.h"
#include "storage/key.h"
#include "storage/relay.h"
#include "storage/safetensors.h"

typedef struct Fake {
    Order order;
    Stage stage;
    KeySpace space;
    Relay *relay;
    Buf object;
    int64_t step;
    bool saves_told, damages;
} Fake;

static void result_and_exit(int code, int64_t step, const char *text) {
    WorkerResult result = {.code = code, .step = step};
    Buf line;
    buf_init(&line, 0);
    snprintf(result.text, sizeof result.text, "%s", text);
    report_format_result(&result, &line);
    printf("%s\n", buf_string(&line));
    fflush(stdout);
    _exit(code < 0 ? 1 : 0);
}

static void must(int rc) {
    if (rc < 0)
        result_and_exit(rc, -1, err_text());
}

/* ---- misbehaving ---- */

static bool fits(const char *part, size_t length, int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return (length == 1 && *part == '*') ||
           (strlen(text) == length && !strncmp(part, text, length));
}

/* The action of the first rule for this worker and step, or "". */
static const char *rule_for(const Fake *fake, int64_t step, char *action, size_t bytes) {
    const char *at = getenv("FAKE_WORKER");
    const int64_t values[] = {fake->order.stage, fake->order.replica, fake->order.attempt, step};
    action[0] = '\0';
    while (at && *at) {
        size_t length = strcspn(at, ";");
        const char *part = at;
        bool fit = true;
        for (int i = 0; i < 4; i++) {
            size_t n = strcspn(part, i < 2 ? "." : ":");
            fit = fit && fits(part, n, values[i]);
            part += n + 1;
        }
        if (fit) {
            snprintf(action, bytes, "%.*s", (int)(length - (size_t)(part - at)), part);
            return action;
        }
        at += length + (at[length] == ';');
    }
    return action;
}

static bool fenced(const Fake *fake) {
    Key key =
        key_fence(&fake->space, fake->order.stage, fake->order.replica, fake->order.attempt + 1);
    return relay_has(fake->relay, key.text) == 1;
}

static void wait_for_fence(const Fake *fake) {
    while (!fenced(fake))
        usleep(20000);
    result_and_exit(ERR_SUPERSEDED, fake->step, "fenced off");
}

static void chatter(void) {
    for (int i = 0; i < 20000; i++)
        printf("{\"result\":\"nonsense\"} %d\n", i);
    fflush(stdout);
}

static void misbehave(Fake *fake, int64_t step) {
    char action[64];
    rule_for(fake, step, action, sizeof action);
    if (strcmp(action, "kill") == 0)
        raise(SIGKILL);
    if (strcmp(action, "stop") == 0)
        raise(SIGSTOP);
    if (strncmp(action, "exit=", 5) == 0)
        _exit(atoi(action + 5));
    if (strncmp(action, "error=", 6) == 0)
        result_and_exit(err_from_name(action + 6), step, "as it was told");
    if (strcmp(action, "done") == 0)
        result_and_exit(0, step, "");
    if (strcmp(action, "mute") == 0)
        wait_for_fence(fake);
    if (strncmp(action, "slow=", 5) == 0)
        usleep((useconds_t)atoi(action + 5) * 1000);
    if (strcmp(action, "nosave") == 0)
        fake->saves_told = false;
    if (strcmp(action, "damage") == 0)
        fake->damages = true;
    if (strcmp(action, "chatty") == 0)
        chatter();
    if (strcmp(action, "garbage") == 0) {
        Slice part = {"nonsense", 8};
        must(relay_put(fake->relay,
                       key_norms(&fake->space, step, fake->order.stage, fake->order.replica).text,
                       &part, 1, clock_deadline_ms(5000)));
    }
}

/* ---- behaving ---- */

static void beat(const Fake *fake, const char *state) {
    Heartbeat heartbeat = {.attempt = fake->order.attempt,
                           .pid = getpid(),
                           .step = fake->step,
                           .busy_us = 1000,
                           .wait_us = 500,
                           .wall_ms = clock_wall_ms()};
    Buf text;
    buf_init(&text, 0);
    snprintf(heartbeat.state, sizeof heartbeat.state, "%s", state);
    must(report_format_heartbeat(&heartbeat, &text));
    must(relay_note_put(fake->relay,
                        key_heartbeat(&fake->space, fake->order.stage, fake->order.replica).text,
                        text.data, text.bytes, 60000));
    buf_done(&text);
}

/* Wait for an object, with signs of life. */
static void await(Fake *fake, Key key) {
    int64_t deadline = clock_deadline_ms(fake->order.wait_timeout_ms);
    for (;;) {
        int rc = relay_get_buf(fake->relay, key.text, &fake->object, clock_deadline_ms(50));
        if (rc >= 0)
            return;
        if (rc != ERR_TIMEOUT || clock_now_ns() > deadline)
            must(rc);
        if (fenced(fake))
            result_and_exit(ERR_SUPERSEDED, fake->step, "fenced off");
        beat(fake, "running");
    }
}

static int owned_weights(const Fake *fake) {
    int n = 0;
    for (int32_t i = 0; i < fake->stage.n_params; i++) {
        const StageParam *param = &fake->stage.params[i];
        n += param->owner && fake->order.model.params[param->param].role == PARAM_WEIGHT;
    }
    return n;
}

/* A blob of F64 and I64 vectors. */
static void put_blob(Fake *fake, Key key, const BlobTensor *tensors, int n,
                     const void *const *values) {
    size_t offsets[3];
    int64_t bytes = blob_layout(tensors, n, offsets);
    char *blob = calloc(1, (size_t)bytes);
    for (int i = 0; i < n; i++)
        memcpy(blob + offsets[i], values[i], (size_t)tensors[i].shape.dims[0] * 8);
    blob_seal(blob, key.text, tensors, n);
    Slice part = {blob, (size_t)bytes};
    must(relay_put(fake->relay, key.text, &part, 1, clock_deadline_ms(5000)));
    free(blob);
}

static int64_t control(const Fake *fake) {
    char text[RELAY_NOTE_MAX_BYTES];
    size_t bytes = 0;
    Control wish = {0};
    if (fake->order.stage > 0 || fake->order.replica > 0 ||
        relay_note_get(fake->relay, key_control(&fake->space).text, text, sizeof text, &bytes) < 0)
        return 0;
    must(report_parse_control(text, bytes, &wish));
    return (wish.stop ? DECISION_STOP : 0) | (wish.save ? DECISION_SAVE : 0);
}

static void put_norms(Fake *fake) {
    const Order *order = &fake->order;
    double squares[4096];
    int n = order->replica == 0 ? owned_weights(fake) : 0;
    for (int i = 0; i < n; i++)
        squares[i] = 1;
    int64_t rows = order_batch_rows(order->train_samples, order->batch, fake->step);
    bool counts = fake->stage.has_loss && order->replica == 0;
    double loss = counts ? (double)rows * 10.0 / (double)(fake->step + 1) : 0;
    int64_t numbers[4] = {counts ? rows : 0, 0, control(fake), 0};
    BlobTensor tensors[] = {
        {DTYPE_F64, shape_1d(n)}, {DTYPE_F64, shape_1d(1)}, {DTYPE_I64, shape_1d(4)}};
    const void *values[] = {squares, &loss, numbers};
    put_blob(fake, key_norms(&fake->space, fake->step, order->stage, order->replica), tensors, 3,
             values);
}

static void put_eval(Fake *fake, int64_t updates) {
    double loss = 50;
    int64_t numbers[2] = {100, 75};
    BlobTensor tensors[] = {{DTYPE_F64, shape_1d(1)}, {DTYPE_I64, shape_1d(2)}};
    const void *values[] = {&loss, numbers};
    if (fake->stage.has_loss && fake->order.replica == 0)
        put_blob(fake, key_eval(&fake->space, updates, fake->order.stage, 0), tensors, 2, values);
    else if (fake->stage.has_loss)
        must(ERR_UNSUPPORTED);
}

static SavedFile write_file(const Fake *fake, int64_t updates, bool update) {
    char path[ORDER_PATH_BYTES + 128];
    SafetensorsTensor tensors[4096];
    int n = 0;
    snprintf(path, sizeof path, "%s/%lld", fake->order.store_path, (long long)updates);
    if (mkdir(path, 0777) < 0 && errno != EEXIST)
        must(err_errno(ERR_IO, errno, "%s", path));
    for (int32_t i = 0; i < fake->stage.n_params && !update; i++) {
        const Param *param = &fake->order.model.params[fake->stage.params[i].param];
        int64_t elements = shape_elements(&param->shape);
        if (!fake->stage.params[i].owner)
            continue;
        float *data = calloc((size_t)elements, sizeof *data);
        for (int64_t e = 0; e < elements; e++)
            data[e] = (float)updates;
        tensors[n++] = (SafetensorsTensor){param->name, DTYPE_F32, param->shape, data};
    }
    char step[24];
    snprintf(step, sizeof step, "%lld", (long long)updates);
    SafetensorsMeta metadata[] = {{"format", "pt"}, {"step", step}};
    SavedFile file = {0};
    SafetensorsWritten written = {0};
    snprintf(file.name, sizeof file.name, "%s-%05d-of-%05d.safetensors",
             update ? "update" : "model", fake->order.stage + 1, fake->stage.n_stages);
    size_t length = strlen(path);
    snprintf(path + length, sizeof path - length, "/%s", file.name);
    must(safetensors_write(path, tensors, n, metadata, 2, &written));
    for (int i = 0; i < n; i++)
        free((void *)tensors[i].data);
    file.bytes = written.bytes;
    file.xxh3 = written.xxh3;
    return file;
}

static void turn_last_bit(const Fake *fake, int64_t updates, const char *name) {
    char path[ORDER_PATH_BYTES + 128];
    snprintf(path, sizeof path, "%s/%lld/%s", fake->order.store_path, (long long)updates, name);
    FILE *file = fopen(path, "r+b");
    fseek(file, -1, SEEK_END);
    int byte = fgetc(file);
    fseek(file, -1, SEEK_END);
    fputc(byte ^ 1, file);
    fclose(file);
}

static void save(Fake *fake, int64_t updates) {
    Saved saved = {0};
    Buf text;
    buf_init(&text, 0);
    if (fake->order.replica == 0) {
        saved.n_files = 2;
        saved.files[0] = write_file(fake, updates, false);
        saved.files[1] = write_file(fake, updates, true);
    }
    if (fake->damages)
        turn_last_bit(fake, updates, saved.files[0].name);
    must(report_format_saved(&saved, &text));
    Slice part = {text.data, text.bytes};
    if (fake->saves_told)
        must(
            relay_put(fake->relay,
                      key_saved(&fake->space, updates, fake->order.stage, fake->order.replica).text,
                      &part, 1, clock_deadline_ms(5000)));
    buf_done(&text);
}

/* The leader's decision, when all have published. */
static int64_t agree(Fake *fake) {
    BlobTensor tensors[3];
    size_t offsets[3];
    int64_t decision = 0;
    int n = 0;
    for (int32_t stage = fake->stage.n_stages - 1; stage >= 0; stage--)
        await(fake, key_norms(&fake->space, fake->step, stage, 0));
    must(blob_parse(fake->object.data, fake->object.bytes, NULL, tensors, offsets, 3, &n));
    memcpy(&decision, fake->object.data + offsets[2] + 16, sizeof decision);
    return decision;
}

static void run_steps(Fake *fake) {
    const Order *order = &fake->order;
    for (fake->step = order->first_step; fake->step < order->end_step; fake->step++) {
        beat(fake, "running");
        misbehave(fake, fake->step);
        if (fenced(fake))
            result_and_exit(ERR_SUPERSEDED, fake->step, "fenced off");
        if (order->replica == 0 || fake->stage.has_loss)
            put_norms(fake);
        int64_t decision = agree(fake);
        bool stop = (decision & DECISION_STOP) != 0 && fake->step + 1 < order->end_step;
        if (!stop && order_eval_due(order, fake->step))
            put_eval(fake, fake->step + 1);
        if (decision || order_save_due(order, fake->step))
            save(fake, fake->step + 1);
        if (stop) {
            fake->step++;
            return;
        }
    }
}

static void run_order(void) {
    Fake fake = {.saves_told = true};
    Buf text;
    char part[65536];
    buf_init(&text, 0);
    buf_init(&fake.object, 0);
    for (size_t n = fread(part, 1, sizeof part, stdin); n > 0;
         n = fread(part, 1, sizeof part, stdin))
        must(buf_add(&text, part, n));
    must(order_parse("order", text.data, text.bytes, &fake.order));
    buf_done(&text);
    fprintf(stderr, "fake worker %d.%d attempt %lld\n", fake.order.stage, fake.order.replica,
            (long long)fake.order.attempt);
    must(stage_init(&fake.stage, &fake.order.model, fake.order.plan.ends, fake.order.plan.n_stages,
                    fake.order.stage));
    fake.space.generation = fake.order.generation;
    must(text_copy(fake.space.job, sizeof fake.space.job, fake.order.job));
    must(relay_open(fake.order.relay_url, &fake.relay));
    fake.step = fake.order.first_step;
    misbehave(&fake, -1);
    beat(&fake, "loading");
    if (fake.order.eval_only)
        put_eval(&fake, fake.order.first_step);
    else
        run_steps(&fake);
    int64_t step = fake.step;
    beat(&fake, "done");
    relay_close(fake.relay);
    stage_done(&fake.stage);
    order_done(&fake.order);
    buf_done(&fake.object);
    result_and_exit(0, step, "");
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--isa") == 0) {
        puts("fake");
        return 0;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc == 5 && strcmp(argv[1], "--order") == 0 && strcmp(argv[3], "--parent-pid") == 0 &&
        atoi(argv[4]) == getppid())
        run_order();
    fprintf(stderr, "fake worker: unexpected arguments\n");
    return 2;
}

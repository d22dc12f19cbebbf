/* What runs leave in their outputs: read, waited for, and compared. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/checkpoint.h"
#include "core/clock.h"
#include "core/err.h"
#include "tests/support/e2e.h"
#include "tests/support/e2e_parts.h"

#define E2E_MAX_FILE_BYTES ((size_t)256 << 20)

/* ---- reading ---- */

/* OUT/name, until the test leaves. */
static const char *path_in(const char *out, const char *name) {
    char *path = e2e_keep(calloc(1, 2 * E2E_PATH_BYTES), free);
    snprintf(path, 2 * E2E_PATH_BYTES, "%s/%s", out, name);
    return path;
}

const char *e2e_checkpoint(const char *out, int64_t step) {
    char name[48];
    snprintf(name, sizeof name, "checkpoints/%lld", (long long)step);
    return path_in(out, name);
}

/* The file's text, to be freed; NULL when it cannot be read. */
static char *load(const char *path) {
    Buf text;
    buf_init(&text, 0);
    if (buf_read_file(&text, path, E2E_MAX_FILE_BYTES) < 0 || text.data == NULL) {
        buf_done(&text);
        return NULL;
    }
    return buf_take(&text, NULL);
}

const char *e2e_read(const char *path) {
    char *text = load(path);
    return text != NULL ? e2e_keep(text, free) : "";
}

static void delete_json(void *value) {
    cJSON_Delete(value);
}

cJSON *e2e_lines(const char *path) {
    char *text = load(path);
    cJSON *lines = e2e_keep(cJSON_CreateArray(), delete_json);
    char *line = text;
    for (char *end = text ? strchr(text, '\n') : NULL; end != NULL; end = strchr(line, '\n')) {
        cJSON *value = NULL;
        int rc = json_parse(path, line, (size_t)(end - line), 1 << 20, &value);
        cr_assert(rc >= 0, "%s", err_text());
        cJSON_AddItemToArray(lines, value);
        line = end + 1;
    }
    free(text);
    return lines;
}

double e2e_number(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    cr_assert(cJSON_IsNumber(item), "there is no number '%s'", key);
    return item->valuedouble;
}

const char *e2e_text(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) ? item->valuestring : "";
}

static bool fits(const cJSON *line, const char *key, int64_t wanted, int64_t any_below) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(line, key);
    return wanted < any_below ||
           (cJSON_IsNumber(item) && (int64_t)llround(item->valuedouble) == wanted);
}

const cJSON *e2e_event(const char *out, const char *event, int stage, int replica,
                       int64_t attempt) {
    const cJSON *found = NULL;
    const cJSON *line = NULL;
    cJSON_ArrayForEach(line, e2e_lines(path_in(out, "events.jsonl"))) {
        if (strcmp(e2e_text(line, "event"), event) == 0 && fits(line, "stage", stage, 0) &&
            fits(line, "replica", replica, 0) && fits(line, "attempt", attempt, 1))
            found = line;
    }
    return found;
}

/* Whole lines that contain `words`; `last` gets the last of them, to be freed. */
static int count_lines(const char *path, const char *words, char **last) {
    int n = 0;
    char *text = load(path);
    char *line = text;
    for (char *end = text ? strchr(text, '\n') : NULL; end != NULL; end = strchr(line, '\n')) {
        *end = '\0';
        if (strstr(line, words) != NULL) {
            n++;
            if (last != NULL) {
                free(*last);
                *last = strdup(line);
            }
        }
        line = end + 1;
    }
    free(text);
    return n;
}

static int count_in(const char *out, const char *name, const char *words, char **last) {
    char path[2 * E2E_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", out, name);
    return count_lines(path, words, last);
}

int e2e_count(const char *out, const char *event) {
    char words[80];
    snprintf(words, sizeof words, "\"event\":\"%s\"", event);
    return count_in(out, "events.jsonl", words, NULL);
}

int64_t e2e_rows(const char *out) {
    return count_in(out, "metrics.jsonl", "", NULL);
}

pid_t e2e_worker(const char *out, int stage, int replica) {
    char words[120];
    char *line = NULL;
    long pid = 0;
    snprintf(words, sizeof words, "\"event\":\"worker_started\",\"stage\":%d,\"replica\":%d,",
             stage, replica);
    if (count_in(out, "events.jsonl", words, &line) > 0) {
        const char *at = strstr(line, "\"pid\":");
        cr_assert(at != NULL && sscanf(at, "\"pid\":%ld", &pid) == 1, "%s", line);
    }
    free(line);
    return (pid_t)pid;
}

/* ---- waiting ---- */

typedef struct Awaited {
    const char *out, *event, *path;
    int64_t n;
} Awaited;

static bool is_there(const Awaited *what) {
    if (what->path != NULL)
        return access(what->path, F_OK) == 0;
    if (what->event != NULL)
        return e2e_count(what->out, what->event) >= what->n;
    return e2e_rows(what->out) >= what->n;
}

static bool await(E2e *run, const Awaited *what) {
    int64_t deadline = e2e_deadline();
    while (!is_there(what)) {
        bool over = !e2e_is_running(run) || clock_now_ns() > deadline;
        if (over && !is_there(what))
            return false;
        clock_sleep_until(clock_now_ns() + CLOCK_NS_PER_MS / 2);
    }
    return true;
}

bool e2e_await_rows(E2e *run, const char *out, int64_t rows) {
    return await(run, &(Awaited){.out = out, .n = rows});
}

bool e2e_await_event(E2e *run, const char *out, const char *event, int count) {
    return await(run, &(Awaited){.out = out, .event = event, .n = count});
}

bool e2e_await_path(E2e *run, const char *path) {
    return await(run, &(Awaited){.path = path});
}

/* ---- checks ---- */

/* Every tensor of both is equal, bit by bit. */
static void check_no_difference(const char *a, const char *b) {
    CheckpointDiff diff;
    int rc = checkpoint_diff(a, b, &diff);
    cr_assert(rc >= 0, "%s", err_text());
    bool equal = checkpoint_diff_equal(&diff);
    double worst = diff.worst_abs >= 0 ? diff.rows[diff.worst_abs].max_abs : 0.0;
    const char *name = diff.worst_abs >= 0 ? diff.rows[diff.worst_abs].name : "";
    cr_assert(equal, "'%s' and '%s' differ: %lld tensors, worst %s by %g", a, b,
              (long long)diff.n_rows, name, worst);
    checkpoint_diff_done(&diff);
}

/* The update files that both have. */
static void check_updates(const char *a, const char *b, const Manifest *manifest) {
    char path_a[2 * E2E_PATH_BYTES];
    char path_b[2 * E2E_PATH_BYTES];
    for (int32_t i = 0; i < manifest->n_files; i++) {
        const char *name = manifest->files[i].name;
        snprintf(path_a, sizeof path_a, "%s/%s", a, name);
        snprintf(path_b, sizeof path_b, "%s/%s", b, name);
        if (strncmp(name, "update-", 7) == 0 && access(path_b, F_OK) == 0)
            check_no_difference(path_a, path_b);
    }
}

void e2e_check_equal(const char *out_a, const char *out_b, int64_t step) {
    Manifest manifest;
    const char *a = e2e_checkpoint(out_a, step);
    const char *b = e2e_checkpoint(out_b, step);
    cr_assert(checkpoint_verify(a) >= 0, "%s", err_text());
    cr_assert(checkpoint_verify(b) >= 0, "%s", err_text());
    check_no_difference(a, b);
    cr_assert(manifest_read(a, &manifest) >= 0, "%s", err_text());
    check_updates(a, b, &manifest);
    manifest_done(&manifest);
}

static bool same_member(const cJSON *a, const cJSON *b, const char *key) {
    return cJSON_Compare(cJSON_GetObjectItemCaseSensitive(a, key),
                         cJSON_GetObjectItemCaseSensitive(b, key), true) ||
           (cJSON_GetObjectItemCaseSensitive(a, key) == NULL &&
            cJSON_GetObjectItemCaseSensitive(b, key) == NULL);
}

/* The rows of steps [first, end) in order, each once. */
static const cJSON *first_row(const char *out, int64_t first, int64_t end) {
    cJSON *rows = e2e_lines(path_in(out, "metrics.jsonl"));
    const cJSON *begin = NULL;
    int64_t expected = first;
    const cJSON *row = NULL;
    cJSON_ArrayForEach(row, rows) {
        int64_t step = (int64_t)llround(e2e_number(row, "step"));
        if (step < first || step >= end)
            continue;
        cr_assert_eq(step, expected, "%s: row of step %lld instead of %lld", out, (long long)step,
                     (long long)expected);
        begin = expected == first ? row : begin;
        expected++;
    }
    cr_assert_eq(expected, end, "%s: the rows end at step %lld, not %lld", out, (long long)expected,
                 (long long)end);
    return begin;
}

void e2e_check_same_rows(const char *out_a, const char *out_b, int64_t first, int64_t end) {
    static const char *const keys[] = {"step",      "epoch",     "loss",          "lr",
                                       "grad_norm", "eval_loss", "eval_accuracy", "skipped"};
    const cJSON *a = first_row(out_a, first, end);
    const cJSON *b = first_row(out_b, first, end);
    for (int64_t step = first; step < end; step++, a = a->next, b = b->next) {
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
            cr_assert(same_member(a, b, keys[i]), "%s and %s differ at step %lld in %s", out_a,
                      out_b, (long long)step, keys[i]);
    }
}

/* One line of metrics.csv against its JSON row: step, epoch, time, loss, lr, ... */
static void check_csv_line(const char *line, const cJSON *row) {
    long long step = -1;
    long long epoch = -1;
    char time[40] = "";
    double loss = 0;
    double lr = 0;
    cr_assert_eq(sscanf(line, "%lld,%lld,%39[^,],%lf,%lf", &step, &epoch, time, &loss, &lr), 5,
                 "%s", line);
    cr_assert_eq(step, (long long)e2e_number(row, "step"));
    cr_assert_eq(epoch, (long long)e2e_number(row, "epoch"));
    cr_assert_str_eq(time, e2e_text(row, "time"));
    cr_assert_eq(lr, e2e_number(row, "lr"), "%s", line);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(row, "loss");
    cr_assert(cJSON_IsNumber(item) ? item->valuedouble == loss : isnan(loss), "%s", line);
}

void e2e_check_rows(const char *out, int64_t end) {
    const cJSON *row = first_row(out, 0, end);
    cr_assert_eq(e2e_rows(out), end);
    char *text = load(path_in(out, "metrics.csv"));
    cr_assert(text != NULL && strncmp(text, "step,", 5) == 0, "%s/metrics.csv has no head", out);
    char *line = strchr(text, '\n') + 1;
    for (int64_t step = 0; step < end; step++, row = row->next) {
        char *newline = strchr(line, '\n');
        cr_assert(newline != NULL, "%s/metrics.csv ends at step %lld", out, (long long)step);
        *newline = '\0';
        check_csv_line(line, row);
        line = newline + 1;
    }
    cr_assert_eq(*line, '\0', "%s/metrics.csv goes on: %s", out, line);
    free(text);
}

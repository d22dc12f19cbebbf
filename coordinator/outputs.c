#include "coordinator/outputs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/checkpoint.h"
#include "coordinator/outputs_parts.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/file.h"
#include "core/text.h"

enum { OUTPUTS_MAX_JOB_BYTES = 64 << 20, OUTPUTS_MAX_EARLY_BYTES = 1 << 20 };

static const char csv_head[] =
    "step,epoch,time,loss,lr,grad_norm,samples_per_s,eval_loss,eval_accuracy,"
#define TRAFFIC_COLUMN(name) "," #name
    "skipped" TRAFFIC_TABLE(TRAFFIC_COLUMN) "\n";
#undef TRAFFIC_COLUMN

struct Outputs {
    char folder[ORDER_PATH_BYTES];
    char checkpoints[ORDER_PATH_BYTES];
    char logs[ORDER_PATH_BYTES];
    OutputsMode mode;
    int64_t resume_step;
    Buf early;              /* events of before the beginning */
    int csv, jsonl, events; /* -1: not open */
    MetricsRow *rows;       /* that wait */
    size_t n_rows, cap_rows;
};

const char *outputs_folder(const Outputs *outputs) {
    return outputs->folder;
}

const char *outputs_checkpoints(const Outputs *outputs) {
    return outputs->checkpoints;
}

const char *outputs_logs(const Outputs *outputs) {
    return outputs->logs;
}

static int join(char *out, size_t out_bytes, const char *folder, const char *name) {
    int n = snprintf(out, out_bytes, "%s/%s", folder, name);
    if (n < 0 || (size_t)n >= out_bytes)
        return err_set(ERR_LIMIT, "the path '%s/%s' is too long", folder, name);
    return 0;
}

/* ---- folders ---- */

/* 1: nothing is in it, but for the lock. */
static int is_empty(const char *folder) {
    DIR *dir = opendir(folder);
    if (!dir)
        return err_errno(ERR_IO, errno, "reading folder '%s'", folder);
    int empty = 1;
    for (const struct dirent *entry = readdir(dir); entry && empty; entry = readdir(dir))
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
                strcmp(entry->d_name, OUTPUTS_LOCK_NAME) == 0;
    closedir(dir);
    return empty;
}

/* Is it a checkpoint of this folder? */
static bool is_inside(const Outputs *outputs, const char *from) {
    size_t length = strlen(outputs->folder);
    return strncmp(from, outputs->folder, length) == 0 && from[length] == '/';
}

/* A folder that a job goes on in is empty, or holds the outputs of a job of that name. */
static int check_resumed(const Outputs *outputs, const OutputsStart *start) {
    char path[ORDER_PATH_BYTES];
    cJSON *root = NULL;
    ErrNote before;
    if (!outputs_is_marked(outputs->folder))
        return err_set(ERR_EXISTS,
                       "'%s' is not empty and holds no job's outputs: choose another --out",
                       outputs->folder);
    if (start->from && start->from[0] && !is_inside(outputs, start->from))
        return err_set(ERR_EXISTS,
                       "'%s' holds the outputs of another run than checkpoint '%s': choose another "
                       "--out, or begin there anew with --overwrite",
                       outputs->folder, start->from);
    TRY(join(path, sizeof path, outputs->folder, "job.json"));
    err_copy(&before);
    if (json_parse_file(path, OUTPUTS_MAX_JOB_BYTES, &root) < 0) {
        err_restore(&before); /* a job that ended early wrote none */
        return 0;
    }
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(root, "name");
    int rc = 0;
    if (start->job && cJSON_IsString(name) && strcmp(name->valuestring, start->job) != 0)
        rc = err_set(ERR_EXISTS,
                     "'%s' holds the outputs of job '%s', not of '%s': choose another --out",
                     outputs->folder, name->valuestring, start->job);
    cJSON_Delete(root);
    return rc;
}

/* All that is there is a run's, and may go. */
static int check_overwritten(const Outputs *outputs, const char *from) {
    if (from && is_inside(outputs, from))
        return err_set(ERR_ARGUMENT,
                       "--overwrite would remove checkpoint '%s', which the job is to go on from: "
                       "leave it out, or choose another --out",
                       from);
    if (!outputs_is_marked(outputs->folder))
        return err_set(ERR_EXISTS, "'%s' is not empty and holds no job's outputs: not overwritten",
                       outputs->folder);
    return outputs_check_own(outputs->folder);
}

/* ---- checkpoints of before ---- */

/* Newer checkpoints than the one to go on from are damaged, or not to be written over. */
static int check_newer(const Outputs *outputs) {
    char newer[ORDER_PATH_BYTES];
    int64_t step = INT64_MAX;
    ErrNote before;
    err_copy(&before);
    while (checkpoint_latest_before(outputs->checkpoints, step, newer, &step) >= 0 &&
           step > outputs->resume_step) {
        int rc = checkpoint_verify(newer);
        if (rc != ERR_CORRUPT && rc != ERR_IO)
            return rc < 0
                       ? rc
                       : err_set(ERR_EXISTS,
                                 "'%s' has checkpoints up to step %lld, newer than step %lld: "
                                 "resume the latest, or choose another --out",
                                 outputs->folder, (long long)step, (long long)outputs->resume_step);
    }
    err_restore(&before);
    return 0;
}

/* They go out of the way, so that they do not count as the newest. */
static int set_newer_aside(const Outputs *outputs) {
    char newer[ORDER_PATH_BYTES];
    int64_t step = 0;
    ErrNote before;
    err_copy(&before);
    while (checkpoint_latest(outputs->checkpoints, newer, &step) >= 0 &&
           step > outputs->resume_step)
        TRY(checkpoint_set_aside(newer));
    err_restore(&before);
    return 0;
}

/* ---- opening ---- */

static int append_to(const Outputs *outputs, const char *name, int *out_fd) {
    char path[ORDER_PATH_BYTES];
    TRY(join(path, sizeof path, outputs->folder, name));
    *out_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    return *out_fd < 0 ? err_errno(ERR_IO, errno, "opening '%s'", path) : 0;
}

/* Half a line would be joined to the next one: it goes again. */
static void take_back(int fd, size_t bytes) {
    struct stat about;
    if (bytes > 0 && fstat(fd, &about) == 0 && about.st_size >= (off_t)bytes)
        (void)!ftruncate(fd, about.st_size - (off_t)bytes);
}

/* At the end of the file: all of it, or nothing. */
static int write_text(const Outputs *outputs, const char *name, int fd, const char *text,
                      size_t bytes) {
    size_t n_written = 0;
    while (n_written < bytes) {
        ssize_t n = write(fd, text + n_written, bytes - n_written);
        if (n >= 0) {
            n_written += (size_t)n;
        } else if (errno != EINTR) {
            int errnum = errno;
            take_back(fd, n_written);
            return err_errno(errnum == ENOSPC || errnum == EDQUOT || errnum == EFBIG ? ERR_FULL
                                                                                     : ERR_IO,
                             errnum, "writing '%s/%s'", outputs->folder, name);
        }
    }
    return 0;
}

static int check_folder(const Outputs *outputs, const OutputsStart *start) {
    int empty = is_empty(outputs->folder);
    TRY(empty);
    /* In a folder that it goes on in, job.json is the resolved one of the run before. */
    if (start->mode != OUTPUTS_RESUME || !outputs_is_marked(outputs->folder))
        TRY(outputs_check_job(outputs->folder, start->job_file));
    if (!empty && start->mode == OUTPUTS_NEW)
        return err_set(ERR_EXISTS,
                       "'%s' is not empty: go on with --resume latest, begin anew with "
                       "--overwrite, or choose another --out",
                       outputs->folder);
    if (!empty && start->mode == OUTPUTS_OVERWRITE)
        TRY(check_overwritten(outputs, start->from));
    if (!empty && start->mode == OUTPUTS_RESUME)
        TRY(check_resumed(outputs, start));
    return start->mode == OUTPUTS_RESUME ? check_newer(outputs) : 0;
}

static int open_metrics(Outputs *outputs) {
    TRY(append_to(outputs, "metrics.csv", &outputs->csv));
    return append_to(outputs, "metrics.jsonl", &outputs->jsonl);
}

static int find_folder(Outputs *outputs, const char *folder) {
    char resolved[PATH_MAX];
    TRY(outputs_make_folder(folder));
    if (!realpath(folder, resolved))
        return err_errno(ERR_IO, errno, "finding folder '%s'", folder);
    TRY(text_copy(outputs->folder, sizeof outputs->folder, resolved));
    TRY(join(outputs->checkpoints, sizeof outputs->checkpoints, resolved, "checkpoints"));
    return join(outputs->logs, sizeof outputs->logs, resolved, "logs");
}

int outputs_open(const char *folder, const OutputsStart *start, Outputs **out_outputs) {
    Outputs *outputs = calloc(1, sizeof *outputs);
    if (!outputs)
        return err_set(ERR_MEMORY, "the outputs");
    outputs->csv = outputs->jsonl = outputs->events = -1;
    outputs->mode = start->mode;
    outputs->resume_step = start->resume_step;
    buf_init(&outputs->early, OUTPUTS_MAX_EARLY_BYTES);
    int rc = find_folder(outputs, folder);
    if (rc >= 0)
        rc = check_folder(outputs, start);
    if (rc < 0) {
        outputs_close(outputs);
        return rc;
    }
    *out_outputs = outputs;
    return 0;
}

int outputs_begin(Outputs *outputs) {
    struct stat about;
    if (outputs->mode == OUTPUTS_OVERWRITE)
        TRY(outputs_remove_own(outputs->folder));
    if (outputs->mode == OUTPUTS_RESUME)
        TRY(set_newer_aside(outputs));
    TRY(append_to(outputs, OUTPUTS_MARK_NAME, &outputs->events)); /* before all others */
    TRY(outputs_make_folder(outputs->checkpoints));
    TRY(outputs_make_folder(outputs->logs));
    TRY(outputs_remove_traces(outputs->logs));
    if (outputs->mode == OUTPUTS_RESUME)
        TRY(outputs_cut_rows(outputs->folder, outputs->resume_step));
    TRY(open_metrics(outputs));
    if (fstat(outputs->csv, &about) == 0 && about.st_size == 0)
        TRY(write_text(outputs, "metrics.csv", outputs->csv, csv_head, sizeof csv_head - 1));
    TRY(write_text(outputs, OUTPUTS_MARK_NAME, outputs->events, outputs->early.data,
                   outputs->early.bytes));
    buf_done(&outputs->early);
    return 0;
}

int outputs_write_json(Outputs *outputs, const char *name, const cJSON *value) {
    char path[ORDER_PATH_BYTES];
    Buf text;
    buf_init(&text, 0);
    int rc = value ? json_format(value, true, &text) : err_set(ERR_MEMORY, "writing %s", name);
    if (rc >= 0)
        rc = buf_text(&text, "\n");
    if (rc >= 0)
        rc = join(path, sizeof path, outputs->folder, name);
    if (rc >= 0)
        rc = file_write(path, text.data, text.bytes);
    buf_done(&text);
    return rc < 0 ? rc : 0;
}

/* ---- lines ---- */

/* "text" as a JSON string. */
static int add_quoted(Buf *line, const char *text) {
    cJSON *value = cJSON_CreateString(text);
    int rc = value ? json_format(value, false, line) : err_set(ERR_MEMORY, "a line of the outputs");
    cJSON_Delete(value);
    return rc;
}

/* A number in the shortest form that reads back equal; `none` where it is not finite. */
static int add_number(Buf *line, double value, const char *none) {
    if (!isfinite(value))
        return buf_text(line, none);
    cJSON *number = cJSON_CreateNumber(value);
    int rc = number ? json_format(number, false, line) : err_set(ERR_MEMORY, "a line of metrics");
    cJSON_Delete(number);
    return rc;
}

int outputs_event(Outputs *outputs, const char *kind, const char *text, const char *members, ...) {
    char wall[32];
    char words[1024];
    Buf line;
    va_list args;
    va_start(args, members);
    vsnprintf(words, sizeof words, members, args);
    va_end(args);
    buf_init(&line, 0);
    clock_format_wall(clock_wall_ms(), wall, sizeof wall);
    int rc = buf_printf(&line, "{\"time\":\"%s\",\"event\":\"%s\"%s%s", wall, kind,
                        words[0] ? "," : "", words);
    if (rc >= 0 && text) {
        rc = buf_text(&line, ",\"text\":");
        if (rc >= 0)
            rc = add_quoted(&line, text);
    }
    if (rc >= 0)
        rc = buf_text(&line, "}\n");
    if (rc >= 0)
        rc = outputs->events < 0
                 ? buf_add(&outputs->early, line.data, line.bytes)
                 : write_text(outputs, OUTPUTS_MARK_NAME, outputs->events, line.data, line.bytes);
    buf_done(&line);
    return rc;
}

static int add_csv(Buf *line, const MetricsRow *row, const char *wall) {
    TRY(buf_printf(line, "%lld,%lld,%s,", (long long)row->step, (long long)row->epoch, wall));
    TRY(add_number(line, row->loss, "nan"));
    TRY(buf_text(line, ","));
    TRY(add_number(line, row->lr, "nan"));
    TRY(buf_text(line, ","));
    TRY(add_number(line, row->grad_norm, "nan"));
    TRY(buf_printf(line, ",%.1f,", row->samples_per_s));
    if (row->has_eval)
        TRY(add_number(line, row->eval_loss, "nan"));
    TRY(buf_text(line, ","));
    if (row->has_eval)
        TRY(add_number(line, row->eval_accuracy, "nan"));
    TRY(buf_printf(line, ",%lld", (long long)row->skipped));
#define TRAFFIC_FIGURE(name) TRY(buf_printf(line, ",%lld", (long long)row->traffic.name));
    TRAFFIC_TABLE(TRAFFIC_FIGURE)
#undef TRAFFIC_FIGURE
    return buf_text(line, "\n");
}

static int add_jsonl(Buf *line, const MetricsRow *row, const char *wall) {
    struct {
        const char *key;
        double value;
    } numbers[] = {{"loss", row->loss}, {"lr", row->lr}, {"grad_norm", row->grad_norm}};
    TRY(buf_printf(line, "{\"step\":%lld,\"epoch\":%lld,\"time\":\"%s\"", (long long)row->step,
                   (long long)row->epoch, wall));
    for (int i = 0; i < 3; i++) {
        TRY(buf_printf(line, ",\"%s\":", numbers[i].key));
        TRY(add_number(line, numbers[i].value, "null"));
    }
    TRY(buf_printf(line, ",\"samples_per_s\":%.1f", row->samples_per_s));
    if (row->has_eval) {
        TRY(buf_text(line, ",\"eval_loss\":"));
        TRY(add_number(line, row->eval_loss, "null"));
        TRY(buf_text(line, ",\"eval_accuracy\":"));
        TRY(add_number(line, row->eval_accuracy, "null"));
    }
    TRY(buf_printf(line, ",\"skipped\":%lld,", (long long)row->skipped));
    TRY(traffic_format(&row->traffic, line));
    return buf_text(line, "}\n");
}

static int write_row(Outputs *outputs, const MetricsRow *row) {
    char wall[32];
    Buf line;
    buf_init(&line, 0);
    clock_format_wall(row->wall_ms, wall, sizeof wall);
    int rc = add_csv(&line, row, wall);
    if (rc >= 0)
        rc = write_text(outputs, "metrics.csv", outputs->csv, line.data, line.bytes);
    buf_clear(&line);
    if (rc >= 0)
        rc = add_jsonl(&line, row, wall);
    if (rc >= 0)
        rc = write_text(outputs, "metrics.jsonl", outputs->jsonl, line.data, line.bytes);
    buf_done(&line);
    return rc;
}

/* Write the rows in front that do not wait, or all. */
static int write_rows(Outputs *outputs, bool all) {
    size_t n = 0;
    int rc = 0;
    while (rc >= 0 && n < outputs->n_rows &&
           (all || !outputs->rows[n].wants_eval || outputs->rows[n].has_eval))
        rc = write_row(outputs, &outputs->rows[n++]);
    outputs->n_rows -= n;
    memmove(outputs->rows, outputs->rows + n, outputs->n_rows * sizeof *outputs->rows);
    return rc < 0 ? rc : 0;
}

int outputs_row(Outputs *outputs, const MetricsRow *row) {
    if (outputs->n_rows == outputs->cap_rows) {
        size_t capacity = outputs->cap_rows ? 2 * outputs->cap_rows : 16;
        MetricsRow *rows = realloc(outputs->rows, capacity * sizeof *rows);
        if (!rows)
            return err_set(ERR_MEMORY, "%zu rows of metrics", capacity);
        outputs->rows = rows;
        outputs->cap_rows = capacity;
    }
    outputs->rows[outputs->n_rows++] = *row;
    return write_rows(outputs, false);
}

int outputs_cut(Outputs *outputs, int64_t step) {
    while (outputs->n_rows > 0 && outputs->rows[outputs->n_rows - 1].step >= step)
        outputs->n_rows--;
    return outputs_cut_rows(outputs->folder, step); /* what is written goes to the end */
}

int outputs_evaluation(Outputs *outputs, int64_t step, double loss, double accuracy) {
    for (size_t i = 0; i < outputs->n_rows; i++) {
        MetricsRow *row = &outputs->rows[i];
        if (row->step != step)
            continue;
        row->has_eval = true;
        row->eval_loss = loss;
        row->eval_accuracy = accuracy;
    }
    return write_rows(outputs, false);
}

void outputs_close(Outputs *outputs) {
    if (!outputs)
        return;
    if (outputs->n_rows > 0)
        write_rows(outputs, true);
    int fds[] = {outputs->csv, outputs->jsonl, outputs->events};
    for (int i = 0; i < 3; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    buf_done(&outputs->early);
    free(outputs->rows);
    free(outputs);
}

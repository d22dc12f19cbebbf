#include "coordinator/progress.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/json.h"
#include "core/text.h"

enum { TERMINAL_EVERY_MS = 200, PLAIN_EVERY_MS = 5000, JSON_EVERY_MS = 1000 };

void progress_init(Progress *progress, bool json, bool quiet) {
    *progress = (Progress){
        .json = json, .quiet = quiet, .terminal = !json && !quiet && isatty(STDERR_FILENO)};
}

static void end_json(Progress *progress) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return;
    progress->lost = true;
    if (errno != EPIPE)
        fprintf(stderr, "funcpipe: warning: progress on stdout is lost, the job goes on: %s\n",
                strerror(errno));
}

static void show_json(const ProgressView *view) {
    char loss[40] = "null";
    char left[32] = "null";
    char bubble[32] = "null";
    if (isfinite(view->loss))
        snprintf(loss, sizeof loss, "%.9g", view->loss);
    if (view->left_ms >= 0)
        snprintf(left, sizeof left, "%.1f", (double)view->left_ms / 1000);
    if (view->bubble >= 0)
        snprintf(bubble, sizeof bubble, "%.4f", view->bubble);
    printf("{\"event\":\"progress\",\"state\":\"%s\",\"step\":%lld,\"end_step\":%lld,\"loss\":%s,"
           "\"samples_per_s\":%.1f,\"left_s\":%s,\"bubble\":%s,\"alive\":%d,\"workers\":%d,"
           "\"restarts\":%lld,\"skipped\":%lld}\n",
           view->state, (long long)view->step, (long long)view->end_step, loss, view->samples_per_s,
           left, bubble, view->n_alive, view->n_workers, (long long)view->n_restarts,
           (long long)view->n_skipped);
}

static void format_line(const ProgressView *view, char *line, size_t line_bytes) {
    char loss[40] = "";
    char left[48] = "";
    char bubble[32] = "";
    char skipped[32] = "";
    char words[32];
    if (isfinite(view->loss))
        snprintf(loss, sizeof loss, "  loss %.4g", view->loss);
    if (view->left_ms >= 0)
        snprintf(left, sizeof left, "  %s left",
                 text_format_duration(view->left_ms / 1000 * 1000, words, sizeof words));
    if (view->bubble >= 0)
        snprintf(bubble, sizeof bubble, "  bubble %.0f %%", 100 * view->bubble);
    if (view->n_skipped > 0)
        snprintf(skipped, sizeof skipped, "  skipped %lld", (long long)view->n_skipped);
    snprintf(line, line_bytes,
             "%s  step %lld/%lld%s  %.0f samples/s%s%s  workers %d/%d  restarts %lld%s",
             view->state, (long long)view->step, (long long)view->end_step, loss,
             view->samples_per_s, left, bubble, view->n_alive, view->n_workers,
             (long long)view->n_restarts, skipped);
}

void progress_show(Progress *progress, const ProgressView *view, int64_t now_ms) {
    char line[400];
    int64_t every = progress->json       ? JSON_EVERY_MS
                    : progress->terminal ? TERMINAL_EVERY_MS
                                         : PLAIN_EVERY_MS;
    if (progress->quiet || progress->lost ||
        (progress->shown_ms && now_ms - progress->shown_ms < every))
        return;
    progress->shown_ms = now_ms;
    if (progress->json) {
        show_json(view);
        end_json(progress);
        return;
    }
    format_line(view, line, sizeof line);
    if (progress->terminal)
        fprintf(stderr, "\r\033[K%s", line);
    else
        fprintf(stderr, "%s\n", line);
    progress->line_open = progress->terminal;
}

void progress_end(Progress *progress) {
    if (progress->line_open)
        fputc('\n', stderr);
    progress->line_open = false;
}

static void say_json(const char *event, const char *members, const char *text) {
    Buf quoted;
    buf_init(&quoted, 0);
    cJSON *value = cJSON_CreateString(text);
    if (value && json_format(value, false, &quoted) >= 0)
        printf("{\"event\":\"%s\"%s%s,\"text\":%s}\n", event, members[0] ? "," : "", members,
               buf_string(&quoted));
    cJSON_Delete(value);
    buf_done(&quoted);
}

__attribute__((format(printf, 4, 0))) static void
say(Progress *progress, const char *event, const char *members, const char *format, va_list args) {
    char text[1200];
    if (progress->quiet || progress->lost)
        return;
    vsnprintf(text, sizeof text, format, args);
    if (progress->json) {
        say_json(event, members, text);
        end_json(progress);
        return;
    }
    fprintf(stderr, "%s%s\n", progress->line_open ? "\r\033[K" : "", text);
    progress->line_open = false;
}

void progress_say(Progress *progress, const char *event, const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(progress, event, "", format, args);
    va_end(args);
}

void progress_say_with(Progress *progress, const char *event, const char *members,
                       const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(progress, event, members, format, args);
    va_end(args);
}

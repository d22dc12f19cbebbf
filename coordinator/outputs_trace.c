/* Merging the workers' traces. Each is {"traceEvents":[...]}: the arrays' texts are joined, because
 * a tree of a long run's events would take a hundred times the memory. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/outputs_parts.h"
#include "core/err.h"
#include "core/file.h"

enum { TRACE_MAX_BYTES = 1 << 30 };

/* The text between the array's brackets; bytes 0 when there are no events. */
static Slice events_of(const Buf *text) {
    const char *begin = strchr(buf_string(text), '[');
    const char *end = strrchr(buf_string(text), ']');
    if (!begin || !end || end < begin)
        return (Slice){NULL, 0};
    begin++;
    while (begin < end && strchr(" \t\r\n", *begin))
        begin++;
    while (end > begin && strchr(" \t\r\n", end[-1]))
        end--;
    return (Slice){begin, (size_t)(end - begin)};
}

static int add_trace(const char *path, Buf *merged, bool *any) {
    Buf text;
    buf_init(&text, 0);
    int rc = buf_read_file(&text, path, TRACE_MAX_BYTES);
    Slice events = rc < 0 ? (Slice){NULL, 0} : events_of(&text);
    if (events.bytes > 0) {
        rc = buf_text(merged, *any ? ",\n" : "\n");
        if (rc >= 0)
            rc = buf_add(merged, events.data, events.bytes);
        *any = true;
    }
    buf_done(&text);
    return rc;
}

static int merge(const char *logs, DIR *dir, Buf *merged) {
    char path[ORDER_PATH_BYTES + 300];
    bool any = false;
    TRY(buf_text(merged, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":["));
    for (const struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        if (!outputs_is_trace_name(entry->d_name))
            continue;
        snprintf(path, sizeof path, "%s/%s", logs, entry->d_name);
        TRY(add_trace(path, merged, &any));
        unlink(path);
    }
    return buf_text(merged, "\n]}\n");
}

int outputs_remove_traces(const char *logs) {
    char path[ORDER_PATH_BYTES + 300];
    DIR *dir = opendir(logs);
    if (!dir)
        return err_errno(ERR_IO, errno, "reading folder '%s'", logs);
    int rc = 0;
    for (const struct dirent *entry = readdir(dir); entry && rc >= 0; entry = readdir(dir)) {
        snprintf(path, sizeof path, "%s/%s", logs, entry->d_name);
        if (outputs_is_trace_name(entry->d_name) && unlink(path) < 0 && errno != ENOENT)
            rc = err_errno(ERR_IO, errno, "removing '%s'", path);
    }
    closedir(dir);
    return rc;
}

int outputs_merge_traces(Outputs *outputs) {
    char path[ORDER_PATH_BYTES + 32];
    Buf merged;
    DIR *dir = opendir(outputs_logs(outputs));
    if (!dir)
        return err_errno(ERR_IO, errno, "reading folder '%s'", outputs_logs(outputs));
    buf_init(&merged, 0);
    int rc = merge(outputs_logs(outputs), dir, &merged);
    snprintf(path, sizeof path, "%s/trace.json", outputs_folder(outputs));
    if (rc >= 0)
        rc = file_write(path, merged.data, merged.bytes);
    buf_done(&merged);
    closedir(dir);
    return rc;
}

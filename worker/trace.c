#include "worker/trace.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/file.h"

static const char *const queue_names[QUEUE_N] = {"compute", "fetch", "publish"};

/* A name event: "process_name" of the worker, "thread_name" of a queue. */
static int add_name(Buf *buf, const char *kind, const char *name, int32_t pid, int32_t tid) {
    return buf_printf(buf,
                      "{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%" PRId32 ",\"tid\":%" PRId32
                      ",\"args\":{\"name\":\"%s\"",
                      kind, pid, tid, name);
}

/* Nanoseconds as microseconds: by whole numbers, so that the locale has no say. */
static int add_us(Buf *buf, const char *key, int64_t ns) {
    int64_t positive = ns > 0 ? ns : 0;
    return buf_printf(buf, ",\"%s\":%" PRId64 ".%03d", key, positive / 1000,
                      (int)(positive % 1000));
}

/* An instruction's text is digits, letters and "<>@": nothing in it needs escaping. */
static int add_record(Buf *buf, const TracePart *part, const VmRecord *record, int32_t stage,
                      int32_t pid) {
    char name[64];
    if (record->instr < 0 || record->instr >= part->program->n_instrs || record->queue < 0 ||
        record->queue >= QUEUE_N)
        return err_set(ERR_INTERNAL, "a record of instruction %" PRId32 ", which the program lacks",
                       record->instr);
    program_instr_text(&part->program->instrs[record->instr], stage, name, sizeof name);
    TRY(buf_printf(buf, ",\n{\"name\":\"%s\",\"ph\":\"X\",%s\"pid\":%" PRId32 ",\"tid\":%" PRId32,
                   name, part->eval ? "\"cat\":\"eval\"," : "", pid, record->queue));
    TRY(add_us(buf, "ts", record->start_ns));
    TRY(add_us(buf, "dur", record->end_ns - record->start_ns));
    TRY(buf_printf(buf, ",\"args\":{\"step\":%" PRId64, part->eval ? record->label : record->step));
    if (part->eval)
        TRY(buf_printf(buf, ",\"batch\":%" PRId64, record->step));
    TRY(buf_printf(buf, ",\"bytes\":%" PRId64, record->bytes));
    TRY(add_us(buf, "wait_us", record->wait_ns));
    return buf_text(buf, "}}");
}

static int add_traffic(Buf *buf, const Traffic *traffic, int64_t ns, int32_t pid) {
    TRY(buf_printf(buf, ",\n{\"name\":\"relay\",\"ph\":\"C\",\"pid\":%" PRId32 ",\"tid\":0", pid));
    TRY(add_us(buf, "ts", ns));
    TRY(buf_text(buf, ",\"args\":{"));
    TRY(traffic_format(traffic, buf));
    return buf_text(buf, "}}");
}

static int add_names(Buf *buf, const TracePart *parts, int32_t n_parts, int32_t stage,
                     int32_t replica, int32_t pid) {
    char worker[32];
    int64_t n_dropped = 0;
    for (int32_t p = 0; p < n_parts; p++)
        n_dropped += parts[p].n_dropped;
    snprintf(worker, sizeof worker, "%" PRId32 ".%" PRId32, stage, replica);
    TRY(add_name(buf, "process_name", worker, pid, 0));
    TRY(buf_printf(buf, ",\"dropped\":%" PRId64 "}}", n_dropped));
    for (int32_t q = 0; q < QUEUE_N; q++) {
        TRY(buf_text(buf, ",\n"));
        TRY(add_name(buf, "thread_name", queue_names[q], pid, q));
        TRY(buf_text(buf, "}}"));
    }
    return 0;
}

/* The earliest record that is not taken yet (first[p] of part p are): its part; -1: none. */
static int32_t next_part(const TracePart *parts, int32_t n_parts, const int32_t *first) {
    int32_t next = -1;
    for (int32_t p = 0; p < n_parts; p++) {
        if (first[p] < parts[p].n_records &&
            (next < 0 ||
             parts[p].records[first[p]].start_ns < parts[next].records[first[next]].start_ns))
            next = p;
    }
    return next;
}

static int format(Buf *buf, const TracePart *parts, int32_t n_parts, const Traffic *traffic,
                  int32_t stage, int32_t replica, int32_t pid) {
    int32_t first[TRACE_MAX_PARTS] = {0};
    int64_t last_ns = 0;
    assert(n_parts <= TRACE_MAX_PARTS);
    TRY(buf_text(buf, "{\"traceEvents\":[\n"));
    TRY(add_names(buf, parts, n_parts, stage, replica, pid));
    for (int32_t p; (p = next_part(parts, n_parts, first)) >= 0;) {
        const VmRecord *record = &parts[p].records[first[p]++];
        TRY(add_record(buf, &parts[p], record, stage, pid));
        last_ns = record->end_ns > last_ns ? record->end_ns : last_ns;
    }
    TRY(add_traffic(buf, traffic, last_ns, pid));
    return buf_text(buf, "\n]}\n");
}

int trace_write(const char *path, const TracePart *parts, int32_t n_parts, const Traffic *traffic,
                int32_t stage, int32_t replica, int32_t pid_number) {
    Buf buf;
    buf_init(&buf, 0);
    int rc = format(&buf, parts, n_parts, traffic, stage, replica, pid_number);
    if (rc >= 0)
        rc = file_write(path, buf_string(&buf), buf.bytes);
    buf_done(&buf);
    return rc;
}

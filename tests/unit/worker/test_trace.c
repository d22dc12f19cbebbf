#include <criterion/criterion.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/err.h"
#include "core/json.h"
#include "worker/trace.h"

static const char *const text = "1<a0 1F0 1>a0@3 3B0 3R 3U";

static const VmRecord records[] = {
    {.step = 7,
     .start_ns = 1000001,
     .end_ns = 1002501,
     .bytes = 64,
     .wait_ns = 999,
     .instr = 0,
     .queue = QUEUE_FETCH},
    {.step = 7, .start_ns = 2000000, .end_ns = 3000000, .instr = 1, .queue = QUEUE_COMPUTE},
    {.step = 8,
     .start_ns = INT64_C(9000000000123456),
     .end_ns = INT64_C(9000000000123456),
     .bytes = INT64_C(1) << 40,
     .instr = 2,
     .queue = QUEUE_PUBLISH},
};
enum { N_RECORDS = sizeof records / sizeof records[0] };

static const Traffic traffic = {.puts = 4, .duplicates = 1, .retries = 2};
static char path[64];

static void open_program(Program *program) {
    program_init(program);
    cr_assert_eq(program_parse("test", text, strlen(text), 1, program), 0, "%s", err_text());
    snprintf(path, sizeof path, "/tmp/funcpipe-trace-%d.json", (int)getpid());
}

static cJSON *write_and_read(const Program *program, int32_t n) {
    cJSON *root = NULL;
    const TracePart part = {.program = program, .records = records, .n_records = n};
    cr_assert_eq(trace_write(path, &part, 1, &traffic, 1, 2, 5), 0, "%s", err_text());
    cr_assert_geq(json_parse_file(path, 1 << 20, &root), 0, "%s", err_text());
    unlink(path);
    return root;
}

static const char *string(const cJSON *event, const char *key) {
    return cJSON_GetStringValue(cJSON_GetObjectItem(event, key));
}

static double number(const cJSON *event, const char *key) {
    return cJSON_GetNumberValue(cJSON_GetObjectItem(event, key));
}

Test(trace, names_the_process_and_its_threads) {
    static const char *const names[] = {"1.2", "compute", "fetch", "publish"};
    Program program;
    open_program(&program);
    cJSON *root = write_and_read(&program, 0);
    const cJSON *events = cJSON_GetObjectItem(root, "traceEvents");
    cr_assert_eq(cJSON_GetArraySize(events), 5);
    for (int i = 0; i < 4; i++) {
        const cJSON *event = cJSON_GetArrayItem(events, i);
        cr_assert_str_eq(string(event, "ph"), "M");
        cr_assert_str_eq(string(event, "name"), i ? "thread_name" : "process_name");
        cr_assert_str_eq(string(cJSON_GetObjectItem(event, "args"), "name"), names[i]);
        cr_assert_eq(number(event, "pid"), 5);
        cr_assert_eq(number(event, "tid"), i ? i - 1 : 0);
    }
    cJSON_Delete(root);
    program_done(&program);
}

Test(trace, events_are_complete) {
    Program program;
    open_program(&program);
    cJSON *root = write_and_read(&program, N_RECORDS);
    const cJSON *events = cJSON_GetObjectItem(root, "traceEvents");
    cr_assert_eq(cJSON_GetArraySize(events), 5 + N_RECORDS);
    const cJSON *fetch = cJSON_GetArrayItem(events, 4);
    cr_assert_str_eq(string(fetch, "name"), "<a0");
    cr_assert_str_eq(string(fetch, "ph"), "X");
    cr_assert_eq(number(fetch, "pid"), 5);
    cr_assert_eq(number(fetch, "tid"), QUEUE_FETCH);
    cr_assert_float_eq(number(fetch, "ts"), 1000.001, 1e-9);
    cr_assert_float_eq(number(fetch, "dur"), 2.5, 1e-9);
    const cJSON *args = cJSON_GetObjectItem(fetch, "args");
    cr_assert_eq(number(args, "step"), 7);
    cr_assert_eq(number(args, "bytes"), 64);
    cr_assert_float_eq(number(args, "wait_us"), 0.999, 1e-9);
    const cJSON *publish = cJSON_GetArrayItem(events, 6);
    cr_assert_str_eq(string(publish, "name"), ">a0@3");
    cr_assert_eq(number(cJSON_GetObjectItem(publish, "args"), "bytes"), 1099511627776.0);
    const cJSON *relay = cJSON_GetArrayItem(events, 4 + N_RECORDS);
    cr_assert_str_eq(string(relay, "name"), "relay");
    cr_assert_str_eq(string(relay, "ph"), "C");
    cr_assert_eq(number(cJSON_GetObjectItem(relay, "args"), "puts"), 4);
    cr_assert_eq(number(cJSON_GetObjectItem(relay, "args"), "duplicates"), 1);
    cr_assert_eq(number(cJSON_GetObjectItem(relay, "args"), "retries"), 2);
    cJSON_Delete(root);
    program_done(&program);
}

Test(trace, tells_evaluation_and_what_was_dropped) {
    const VmRecord second = {
        .step = 3, .start_ns = 2000000, .instr = 1, .queue = QUEUE_COMPUTE, .label = 40};
    cJSON *root = NULL;
    Program program;
    open_program(&program);
    const TracePart parts[] = {
        {.program = &program, .records = records, .n_records = 1, .n_dropped = 5},
        {.program = &program, .records = &second, .n_records = 1, .n_dropped = 2, .eval = true}};
    cr_assert_eq(trace_write(path, parts, 2, &traffic, 1, 2, 5), 0, "%s", err_text());
    cr_assert_geq(json_parse_file(path, 1 << 20, &root), 0, "%s", err_text());
    unlink(path);
    const cJSON *events = cJSON_GetObjectItem(root, "traceEvents");
    cr_assert_eq(cJSON_GetArraySize(events), 5 + 2);
    const cJSON *name = cJSON_GetArrayItem(events, 0);
    cr_assert_eq(number(cJSON_GetObjectItem(name, "args"), "dropped"), 7);
    const cJSON *trained = cJSON_GetArrayItem(events, 4);
    const cJSON *evaluated = cJSON_GetArrayItem(events, 5);
    cr_assert_null(cJSON_GetObjectItem(trained, "cat"));
    cr_assert_null(cJSON_GetObjectItem(cJSON_GetObjectItem(trained, "args"), "batch"));
    cr_assert_str_eq(string(evaluated, "cat"), "eval");
    cr_assert_eq(number(cJSON_GetObjectItem(evaluated, "args"), "step"), 40);
    cr_assert_eq(number(cJSON_GetObjectItem(evaluated, "args"), "batch"), 3);
    cJSON_Delete(root);
    program_done(&program);
}

Test(trace, does_not_depend_on_the_locale) {
    static const char *const locales[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE.utf8"};
    for (int i = 0; i < 3; i++)
        setlocale(LC_ALL, locales[i]);
    Program program;
    open_program(&program);
    cJSON_Delete(write_and_read(&program, N_RECORDS));
    program_done(&program);
}

Test(trace, failures_name_the_reason) {
    Program program;
    open_program(&program);
    VmRecord record = {.instr = 99};
    TracePart part = {.program = &program, .records = &record, .n_records = 1};
    cr_assert_eq(trace_write(path, &part, 1, &traffic, 0, 0, 1), ERR_INTERNAL);
    cr_assert_neq(access(path, F_OK), 0, "a file in spite of the error");
    part.records = records;
    cr_assert_lt(trace_write("/nonexistent/t.json", &part, 1, &traffic, 0, 0, 1), 0);
    cr_assert(strstr(err_text(), "/nonexistent"), "%s", err_text());
    program_done(&program);
}

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "core/report.h"

static Buf buf;

static void init(void) {
    buf_init(&buf, 0);
}

static void done(void) {
    buf_done(&buf);
}

TestSuite(report, .init = init, .fini = done);

static const Heartbeat sample = {.attempt = 1,
                                 .pid = 77,
                                 .state = "running",
                                 .step = 12,
                                 .busy_us = 4000,
                                 .wait_us = 5000,
                                 .wall_ms = INT64_C(1767225600123),
                                 .rss_bytes = INT64_C(3) << 32,
                                 .waiting = "job/g1/t12/a.0-1.3",
                                 .traffic = {.puts = 1,
                                             .gets = 2,
                                             .adds = 12,
                                             .put_bytes = 3,
                                             .get_bytes = INT64_C(1) << 40,
                                             .add_bytes = 13,
                                             .waits = 5,
                                             .waited_us = 6,
                                             .duplicates = 7,
                                             .retries = 8,
                                             .notes = 9,
                                             .drops = 14,
                                             .requests = 10,
                                             .read_requests = 11,
                                             .write_requests = 15,
                                             .add_requests = 16,
                                             .note_requests = 17,
                                             .look_requests = 20,
                                             .drop_requests = 18,
                                             .announce_requests = 19}};

Test(report, heartbeat_round_trip) {
    static const char *const states[] = {"loading", "running", "evaluating",
                                         "saving",  "done",    "failed"};
    for (int i = 0; i < 6; i++) {
        Heartbeat in = sample, out;
        strcpy(in.state, states[i]);
        if (i == 0)
            in.waiting[0] = '\0';
        buf_clear(&buf);
        cr_assert_geq(report_format_heartbeat(&in, &buf), 0, "%s", err_text());
        cr_assert_leq(buf.bytes, HEARTBEAT_MAX_BYTES);
        cr_assert_eq(report_parse_heartbeat(buf.data, buf.bytes, &out), 0, "%s", err_text());
        cr_assert_str_eq(out.state, in.state);
        cr_assert_str_eq(out.waiting, in.waiting);
        cr_assert(out.attempt == in.attempt && out.pid == in.pid && out.step == in.step);
        cr_assert(out.busy_us == in.busy_us && out.wait_us == in.wait_us);
        cr_assert(out.wall_ms == in.wall_ms && out.rss_bytes == in.rss_bytes);
        cr_assert_eq(memcmp(&out.traffic, &in.traffic, sizeof in.traffic), 0);
    }
}

Test(report, heartbeat_text) {
    cr_assert_geq(report_format_heartbeat(&sample, &buf), 0);
    cr_assert_str_eq(buf.data,
                     "{\"attempt\":1,\"pid\":77,\"state\":\"running\",\"step\":12,\"busy_us\":4000,"
                     "\"wait_us\":5000,\"wall_ms\":1767225600123,\"rss_bytes\":12884901888,"
                     "\"waiting\":\"job/g1/t12/a.0-1.3\",\"traffic\":{\"puts\":1,\"gets\":2,"
                     "\"adds\":12,\"put_bytes\":3,\"get_bytes\":1099511627776,"
                     "\"add_bytes\":13,\"waits\":5,\"waited_us\":6,\"duplicates\":7,"
                     "\"retries\":8,\"notes\":9,\"drops\":14,\"requests\":10,"
                     "\"read_requests\":11,\"write_requests\":15,\"add_requests\":16,"
                     "\"note_requests\":17,\"look_requests\":20,\"drop_requests\":18,"
                     "\"announce_requests\":19}}");
}

Test(report, heartbeat_with_largest_values_fits) {
    Heartbeat in = sample;
    in.attempt = in.pid = in.step = in.busy_us = in.wait_us = in.wall_ms = in.rss_bytes =
        (INT64_C(1) << 53) - 1;
#define LARGEST(name) in.traffic.name = (INT64_C(1) << 53) - 1;
    TRAFFIC_TABLE(LARGEST)
#undef LARGEST
    strcpy(in.state, "evaluating");
    memset(in.waiting, 'k', sizeof in.waiting - 1);
    cr_assert_geq(report_format_heartbeat(&in, &buf), 0, "%s", err_text());
    cr_assert_eq(report_parse_heartbeat(buf.data, buf.bytes, &in), 0, "%s", err_text());
    cr_assert_eq(in.rss_bytes, (INT64_C(1) << 53) - 1);
}

Test(report, heartbeat_that_cannot_be_written) {
    Heartbeat in = sample;
    strcpy(in.state, "lost");
    buf_text(&buf, "before");
    cr_assert_eq(report_format_heartbeat(&in, &buf), ERR_ARGUMENT);
    in = sample;
    in.busy_us = -2;
    cr_assert_eq(report_format_heartbeat(&in, &buf), ERR_ARGUMENT);
    in = sample;
    memset(in.waiting, 1, sizeof in.waiting - 1);
    cr_assert_eq(report_format_heartbeat(&in, &buf), ERR_LIMIT);
    cr_assert_str_eq(buf.data, "before");
}

static void refuse_heartbeat(const char *text, int code, const char *words) {
    Heartbeat out = sample;
    int rc = report_parse_heartbeat(text, strlen(text), &out);
    cr_assert_eq(rc, code, "%s: got %d, %s", text, rc, err_text());
    cr_assert(strstr(err_text(), words), "'%s' is not in: %s", words, err_text());
    cr_assert_eq(out.pid, 77, "written in spite of the error");
}

Test(report, heartbeat_from_outside_is_checked) {
#define FRONT "{\"attempt\":1,\"pid\":2,\"state\":"
#define BACK                                                                                       \
    ",\"step\":0,\"busy_us\":0,\"wait_us\":0,\"wall_ms\":0,\"rss_bytes\":0,\"waiting\":\"\"}"
    refuse_heartbeat("", ERR_FORMAT, "heartbeat");
    refuse_heartbeat("[]", ERR_FORMAT, "heartbeat");
    refuse_heartbeat("{\"attempt\":1}", ERR_FORMAT, "pid");
    refuse_heartbeat(FRONT "\"runing\"" BACK, ERR_ARGUMENT, "running");
    refuse_heartbeat(FRONT "7" BACK, ERR_FORMAT, "heartbeat.state");
    refuse_heartbeat("{\"attempt\":1.5}", ERR_FORMAT, "heartbeat.attempt");
    refuse_heartbeat("{\"attempt\":-7}", ERR_ARGUMENT, "heartbeat.attempt");
    const Traffic nothing = {0};
    char text[HEARTBEAT_MAX_BYTES + 76];
    snprintf(text, sizeof text, "%s,\"x\":1}", FRONT "\"done\",\"step\":0");
    refuse_heartbeat(text, ERR_FORMAT, "busy_us");
    memset(text, ' ', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    refuse_heartbeat(text, ERR_LIMIT, "heartbeat");
    int n = snprintf(text, sizeof text,
                     FRONT "\"done\",\"step\":0,\"busy_us\":0,\"wait_us\":0,"
                           "\"wall_ms\":0,\"rss_bytes\":0,\"waiting\":\"");
    memset(text + n, 'k', 200);
    cr_assert_geq(traffic_format(&nothing, &buf), 0);
    snprintf(text + n + 200, sizeof text - (size_t)n - 200, "\",\"traffic\":{%s}}", buf.data);
    refuse_heartbeat(text, ERR_LIMIT, "heartbeat.waiting");
    snprintf(text, sizeof text,
             FRONT "\"done\",\"step\":0,\"busy_us\":0,\"wait_us\":0,"
                   "\"wall_ms\":0,\"rss_bytes\":0,\"waiting\":\"\"}");
    refuse_heartbeat(text, ERR_FORMAT, "traffic");
    snprintf(text, sizeof text,
             FRONT "\"done\",\"step\":0,\"busy_us\":0,\"wait_us\":0,"
                   "\"wall_ms\":0,\"rss_bytes\":0,\"waiting\":\"\","
                   "\"traffic\":{\"puts\":-1}}");
    refuse_heartbeat(text, ERR_ARGUMENT, "heartbeat.traffic.puts");
}

Test(report, heartbeat_of_any_bytes_never_crashes) {
    cr_assert_geq(report_format_heartbeat(&sample, &buf), 0);
    for (size_t at = 0; at < buf.bytes; at++) {
        Heartbeat out;
        for (int value = 0; value < 256; value += 5) {
            char kept = buf.data[at];
            buf.data[at] = (char)value;
            report_parse_heartbeat(buf.data, buf.bytes, &out);
            buf.data[at] = kept;
        }
        cr_assert_lt(report_parse_heartbeat(buf.data, at, &out), 0, "cut at %zu", at);
    }
}

Test(report, result_round_trip) {
    WorkerResult in = {.step = 100}, out;
    cr_assert_geq(report_format_result(&in, &buf), 0);
    cr_assert_str_eq(buf.data, "{\"result\":\"done\",\"step\":100}");
    cr_assert_eq(report_parse_result(buf.data, buf.bytes, &out), 0);
    cr_assert(out.code == 0 && out.step == 100 && out.text[0] == '\0' && !out.has_traffic);

    buf_clear(&buf);
    in.has_traffic = true;
    in.traffic = sample.traffic;
    cr_assert_geq(report_format_result(&in, &buf), 0);
    cr_assert_eq(report_parse_result(buf.data, buf.bytes, &out), 0, "%s", err_text());
    cr_assert(out.has_traffic && memcmp(&out.traffic, &in.traffic, sizeof in.traffic) == 0);

    buf_clear(&buf);
    in = (WorkerResult){.code = ERR_TIMEOUT, .step = 57, .text = "key 'a'\n\"quoted\""};
    cr_assert_geq(report_format_result(&in, &buf), 0);
    cr_assert_not(strchr(buf.data, '\n'), "more than a line");
    buf_text(&buf, "\n");
    cr_assert_eq(report_parse_result(buf.data, buf.bytes, &out), 0);
    cr_assert(out.code == ERR_TIMEOUT && out.step == 57);
    cr_assert_str_eq(out.text, in.text);
}

Test(report, result_carries_every_code) {
    for (int code = -1; code >= -20; code--) {
        WorkerResult in = {.code = code, .step = -1}, out;
        buf_clear(&buf);
        cr_assert_geq(report_format_result(&in, &buf), 0);
        cr_assert_eq(report_parse_result(buf.data, buf.bytes, &out), 0);
        cr_assert_eq(out.code, code);
        cr_assert_eq(out.step, -1);
    }
}

/* Bytes that are no UTF-8 grow when written; the text is then cut between characters. */
Test(report, result_with_a_long_text_of_any_bytes) {
    WorkerResult in = {.code = ERR_CORRUPT, .step = 1}, out;
    memset(in.text, 0xFF, sizeof in.text - 1);
    cr_assert_geq(report_format_result(&in, &buf), 0);
    cr_assert_eq(report_parse_result(buf.data, buf.bytes, &out), 0, "%s", err_text());
    cr_assert_eq(strlen(out.text), 1023);
    buf_clear(&buf);
    memset(in.text, 1, sizeof in.text - 1);
    in.has_traffic = true;
    in.traffic = sample.traffic;
    cr_assert_geq(report_format_result(&in, &buf), 0);
    cr_assert_eq(report_parse_result(buf.data, buf.bytes, &out), 0, "%s", err_text());
    cr_assert_str_eq(out.text, in.text);
    buf_clear(&buf);
    buf_text(&buf, "{\"result\":\"error\",\"code\":\"ERR_NEW\",\"text\":\"a");
    for (int i = 0; i < 600; i++)
        buf_text(&buf, "\xC3\xA4");
    buf_text(&buf, "\",\"step\":3}");
    cr_assert_eq(report_parse_result(buf.data, buf.bytes, &out), 0, "%s", err_text());
    cr_assert_eq(strlen(out.text), 1023);
    cr_assert_eq(out.code, ERR_INTERNAL, "a code this build does not know");
}

Test(report, result_from_outside_is_checked) {
    static const char *const bad[] = {
        "",
        "null",
        "{\"result\":\"done\"}",
        "{\"result\":\"don\",\"step\":1}",
        "{\"result\":\"error\",\"step\":1}",
        "{\"result\":\"error\",\"code\":\"ERR_IO\",\"step\":1}",
        "{\"result\":\"done\",\"step\":1,\"more\":2}",
        "{\"result\":\"done\",\"step\":1} {}",
        "{\"result\":\"done\",\"step\":1,\"traffic\":{}}",
        "{\"result\":\"done\",\"step\":1,\"traffic\":3}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        WorkerResult out = {.step = 42};
        cr_assert_lt(report_parse_result(bad[i], strlen(bad[i]), &out), 0, "%s", bad[i]);
        cr_assert(strstr(err_text(), "result"), "%s", err_text());
        cr_assert_eq(out.step, 42);
    }
}

Test(report, control_round_trip) {
    for (int i = 0; i < 4; i++) {
        Control in = {.stop = i & 1, .save = i & 2}, out;
        buf_clear(&buf);
        cr_assert_geq(report_format_control(&in, &buf), 0);
        cr_assert_eq(report_parse_control(buf.data, buf.bytes, &out), 0);
        cr_assert(out.stop == in.stop && out.save == in.save);
    }
    cr_assert_str_eq(buf.data, "{\"stop\":true,\"save\":true}");
}

Test(report, control_from_outside_is_checked) {
    static const char *const bad[] = {"{}", "{\"stop\":true}", "{\"stop\":1,\"save\":false}",
                                      "{\"stop\":true,\"save\":false,\"sav\":true}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        Control out = {.stop = true, .save = true};
        cr_assert_eq(report_parse_control(bad[i], strlen(bad[i]), &out), ERR_FORMAT);
        cr_assert(strstr(err_text(), "control note"), "%s", err_text());
        cr_assert(out.stop && out.save);
    }
}

/* ---- what was saved ---- */

Test(report, saved_round_trip) {
    Saved in = {.n_files = 2,
                .files = {{"model-00001-of-00003.safetensors", 12, 0},
                          {"update-00001-of-00003.safetensors", INT64_C(1) << 52, UINT64_MAX}}};
    for (in.n_files = 0; in.n_files <= 2; in.n_files++) {
        Saved out = {.n_files = 9};
        buf_clear(&buf);
        cr_assert_geq(report_format_saved(&in, &buf), 0, "%s", err_text());
        cr_assert_eq(report_parse_saved(buf.data, buf.bytes, &out), 0, "%s", err_text());
        cr_assert_eq(out.n_files, in.n_files);
        for (int i = 0; i < in.n_files; i++) {
            cr_assert_str_eq(out.files[i].name, in.files[i].name);
            cr_assert(out.files[i].bytes == in.files[i].bytes);
            cr_assert(out.files[i].xxh3 == in.files[i].xxh3);
        }
    }
}

Test(report, saved_refuses) {
    static const char *const texts[] = {
        "",
        "{}",
        "[]",
        "{\"files\":{}}",
        "{\"files\":[1]}",
        "{\"files\":[{}]}",
        "{\"files\":[],\"more\":1}",
        "{\"files\":[{\"name\":\"../x\",\"bytes\":1,\"xxh3\":\"0123456789abcdef\"}]}",
        "{\"files\":[{\"name\":\"x\",\"bytes\":-1,\"xxh3\":\"0123456789abcdef\"}]}",
        "{\"files\":[{\"name\":\"x\",\"bytes\":1,\"xxh3\":\"0123456789abcde\"}]}",
        "{\"files\":[{\"name\":\"x\",\"bytes\":1,\"xxh3\":\"0123456789ABCDEF\"}]}",
        "{\"files\":[{\"name\":\"x\",\"bytes\":1,\"xxh3\":\"0123456789abcdef0\"}]}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        Saved out;
        cr_assert_lt(report_parse_saved(texts[i], strlen(texts[i]), &out), 0, "%s", texts[i]);
    }
    char many[1000] = "{\"files\":[";
    for (int i = 0; i < 3; i++)
        strcat(many, &",{\"name\":\"x\",\"bytes\":1,\"xxh3\":\"0123456789abcdef\"}"[i == 0]);
    strcat(many, "]}");
    Saved out;
    cr_assert_eq(report_parse_saved(many, strlen(many), &out), ERR_FORMAT);
}

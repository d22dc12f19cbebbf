#include "core/report.h"

#include <string.h>

#include "core/hash.h"
#include "core/text.h"

enum { RESULT_MAX_BYTES = 8 * ERR_NOTE_BYTES, CONTROL_MAX_BYTES = 256 };
enum { SAVED_MAX_BYTES = 1024 };

/* JSON numbers are doubles: whole ones are exact below 2^53. */
#define WHOLE_MAX ((INT64_C(1) << 53) - 1)

static const char *const states[] = {"loading", "running", "evaluating",
                                     "saving",  "done",    "failed"};
enum { N_STATES = sizeof states / sizeof states[0] };
static const char *const results[] = {"done", "error"};

static int add_number(cJSON *object, const char *key, int64_t value) {
    if (value < -1 || value > WHOLE_MAX)
        return err_set(ERR_ARGUMENT, "report: %s cannot be %lld", key, (long long)value);
    return cJSON_AddNumberToObject(object, key, (double)value)
               ? 0
               : err_set(ERR_MEMORY, "report: %s", key);
}

static int add_string(cJSON *object, const char *key, const char *value) {
    return cJSON_AddStringToObject(object, key, value) ? 0 : err_set(ERR_MEMORY, "report: %s", key);
}

static int add_bool(cJSON *object, const char *key, bool value) {
    return cJSON_AddBoolToObject(object, key, value) ? 0 : err_set(ERR_MEMORY, "report: %s", key);
}

static int add_traffic(cJSON *object, const Traffic *traffic) {
    cJSON *item = traffic_to_json(traffic);
    if (item && cJSON_AddItemToObject(object, "traffic", item))
        return 0;
    cJSON_Delete(item);
    return err_set(ERR_MEMORY, "report: traffic");
}

/* The root to read from; the caller frees *out_root in any case. */
static int open_text(const char *what, const char *text, size_t bytes, size_t max_bytes,
                     cJSON **out_root, JsonObject *out_object) {
    *out_root = NULL;
    TRY(json_parse(what, text, bytes, max_bytes, out_root));
    return json_object(*out_root, what, out_object);
}

static int fill_heartbeat(cJSON *root, const Heartbeat *heartbeat) {
    bool known = false;
    for (int i = 0; i < N_STATES; i++)
        known = known || strcmp(states[i], heartbeat->state) == 0;
    if (!known)
        return err_set(ERR_ARGUMENT, "report: a heartbeat's state cannot be '%s'",
                       heartbeat->state);
    TRY(add_number(root, "attempt", heartbeat->attempt));
    TRY(add_number(root, "pid", heartbeat->pid));
    TRY(add_string(root, "state", heartbeat->state));
    TRY(add_number(root, "step", heartbeat->step));
    TRY(add_number(root, "busy_us", heartbeat->busy_us));
    TRY(add_number(root, "wait_us", heartbeat->wait_us));
    TRY(add_number(root, "wall_ms", heartbeat->wall_ms));
    TRY(add_number(root, "rss_bytes", heartbeat->rss_bytes));
    TRY(add_string(root, "waiting", heartbeat->waiting));
    return add_traffic(root, &heartbeat->traffic);
}

int report_format_heartbeat(const Heartbeat *heartbeat, Buf *out_text) {
    cJSON *root = cJSON_CreateObject();
    size_t before = out_text->bytes;
    int rc;
    TRY_DONE(root ? 0 : err_set(ERR_MEMORY, "report: a heartbeat"));
    TRY_DONE(fill_heartbeat(root, heartbeat));
    TRY_DONE(json_format(root, false, out_text));
    if (out_text->bytes - before > HEARTBEAT_MAX_BYTES) {
        rc = err_set(ERR_LIMIT, "report: a heartbeat of %zu bytes, at most %d are allowed",
                     out_text->bytes - before, HEARTBEAT_MAX_BYTES);
        out_text->bytes = before;
        out_text->data[before] = '\0';
    }
done:
    cJSON_Delete(root);
    return rc;
}

static int read_heartbeat(JsonObject *object, Heartbeat *heartbeat) {
    int state;
    const char *waiting;
    const cJSON *traffic;
    TRY(json_get_i64(object, "attempt", -1, WHOLE_MAX, &heartbeat->attempt));
    TRY(json_get_i64(object, "pid", -1, WHOLE_MAX, &heartbeat->pid));
    TRY(json_get_choice(object, "state", states, N_STATES, &state));
    TRY(json_get_i64(object, "step", -1, WHOLE_MAX, &heartbeat->step));
    TRY(json_get_i64(object, "busy_us", -1, WHOLE_MAX, &heartbeat->busy_us));
    TRY(json_get_i64(object, "wait_us", -1, WHOLE_MAX, &heartbeat->wait_us));
    TRY(json_get_i64(object, "wall_ms", -1, WHOLE_MAX, &heartbeat->wall_ms));
    TRY(json_get_i64(object, "rss_bytes", -1, WHOLE_MAX, &heartbeat->rss_bytes));
    TRY(json_get_string(object, "waiting", &waiting));
    TRY(json_get(object, "traffic", &traffic, NULL));
    TRY(traffic_read(traffic, "heartbeat.traffic", &heartbeat->traffic));
    TRY(json_end(object));
    TRY(text_copy(heartbeat->state, sizeof heartbeat->state, states[state]));
    if (text_copy(heartbeat->waiting, sizeof heartbeat->waiting, waiting) < 0)
        return err_set(ERR_LIMIT, "heartbeat.waiting: a key of %zu bytes, at most %zu are allowed",
                       strlen(waiting), sizeof heartbeat->waiting - 1);
    return 0;
}

int report_parse_heartbeat(const char *text, size_t bytes, Heartbeat *out_heartbeat) {
    Heartbeat heartbeat = {0};
    cJSON *root;
    JsonObject object;
    int rc = open_text("heartbeat", text, bytes, HEARTBEAT_MAX_BYTES, &root, &object);
    if (rc >= 0)
        rc = read_heartbeat(&object, &heartbeat);
    if (rc >= 0)
        *out_heartbeat = heartbeat;
    cJSON_Delete(root);
    return rc;
}

static int fill_result(cJSON *root, const WorkerResult *result) {
    TRY(add_string(root, "result", results[result->code < 0]));
    if (result->code < 0) {
        TRY(add_string(root, "code", err_name(result->code)));
        TRY(add_string(root, "text", result->text));
    }
    TRY(add_number(root, "step", result->step));
    return result->has_traffic ? add_traffic(root, &result->traffic) : 0;
}

int report_format_result(const WorkerResult *result, Buf *out_text) {
    cJSON *root = cJSON_CreateObject();
    int rc;
    TRY_DONE(root ? 0 : err_set(ERR_MEMORY, "report: a result"));
    TRY_DONE(fill_result(root, result));
    TRY_DONE(json_format(root, false, out_text));
done:
    cJSON_Delete(root);
    return rc;
}

/* What of `text` fits, without half a character at the end. */
static void copy_note(char out_text[ERR_NOTE_BYTES], const char *text) {
    size_t bytes = strnlen(text, ERR_NOTE_BYTES - 1);
    if (text[bytes] != '\0') {
        while (bytes > 0 && ((unsigned char)text[bytes] & 0xC0) == 0x80)
            bytes--;
    }
    memcpy(out_text, text, bytes);
    out_text[bytes] = '\0';
}

static int read_result(JsonObject *object, WorkerResult *result) {
    int kind;
    TRY(json_get_choice(object, "result", results, 2, &kind));
    if (kind == 1) {
        const char *code, *text;
        TRY(json_get_string(object, "code", &code));
        TRY(json_get_string(object, "text", &text));
        result->code = err_from_name(code);
        copy_note(result->text, text);
    }
    const cJSON *traffic;
    TRY(json_get_i64(object, "step", -1, WHOLE_MAX, &result->step));
    int given = json_opt(object, "traffic", &traffic, NULL);
    TRY(given);
    if (given)
        TRY(traffic_read(traffic, "result.traffic", &result->traffic));
    result->has_traffic = given == 1;
    return json_end(object);
}

int report_parse_result(const char *text, size_t bytes, WorkerResult *out_result) {
    WorkerResult result = {0};
    cJSON *root;
    JsonObject object;
    int rc = open_text("result", text, bytes, RESULT_MAX_BYTES, &root, &object);
    if (rc >= 0)
        rc = read_result(&object, &result);
    if (rc >= 0)
        *out_result = result;
    cJSON_Delete(root);
    return rc;
}

int report_format_control(const Control *control, Buf *out_text) {
    cJSON *root = cJSON_CreateObject();
    int rc;
    TRY_DONE(root ? 0 : err_set(ERR_MEMORY, "report: a control note"));
    TRY_DONE(add_bool(root, "stop", control->stop));
    TRY_DONE(add_bool(root, "save", control->save));
    TRY_DONE(json_format(root, false, out_text));
done:
    cJSON_Delete(root);
    return rc;
}

static int read_control(JsonObject *object, Control *control) {
    TRY(json_get_bool(object, "stop", &control->stop));
    TRY(json_get_bool(object, "save", &control->save));
    return json_end(object);
}

int report_parse_control(const char *text, size_t bytes, Control *out_control) {
    Control control = {0};
    cJSON *root;
    JsonObject object;
    int rc = open_text("control note", text, bytes, CONTROL_MAX_BYTES, &root, &object);
    if (rc >= 0)
        rc = read_control(&object, &control);
    if (rc >= 0)
        *out_control = control;
    cJSON_Delete(root);
    return rc;
}

static int fill_saved(cJSON *root, const Saved *saved) {
    char hex[HASH_HEX_BYTES];
    cJSON *files = cJSON_AddArrayToObject(root, "files");
    for (int32_t i = 0; i < saved->n_files; i++) {
        const SavedFile *file = &saved->files[i];
        cJSON *item = cJSON_CreateObject();
        if (!files || !item || !cJSON_AddItemToArray(files, item)) {
            cJSON_Delete(item);
            return err_set(ERR_MEMORY, "report: a save");
        }
        TRY(add_string(item, "name", file->name));
        TRY(add_number(item, "bytes", file->bytes));
        TRY(add_string(item, "xxh3", hash_format(file->xxh3, hex)));
    }
    return files ? 0 : err_set(ERR_MEMORY, "report: a save");
}

int report_format_saved(const Saved *saved, Buf *out_text) {
    cJSON *root = cJSON_CreateObject();
    int rc;
    TRY_DONE(root ? 0 : err_set(ERR_MEMORY, "report: a save"));
    TRY_DONE(fill_saved(root, saved));
    TRY_DONE(json_format(root, false, out_text));
done:
    cJSON_Delete(root);
    return rc;
}

static int read_saved(JsonObject *object, Saved *saved) {
    const cJSON *files;
    const cJSON *item;
    TRY(json_get(object, "files", &files, NULL));
    TRY(json_end(object));
    if (!cJSON_IsArray(files) || cJSON_GetArraySize(files) > SAVED_MAX_FILES)
        return err_set(ERR_FORMAT, "saved.files: expected an array of at most %d files",
                       SAVED_MAX_FILES);
    cJSON_ArrayForEach(item, files) {
        SavedFile *file = &saved->files[saved->n_files++];
        JsonObject entry;
        const char *name, *hex;
        TRY(json_object(item, "saved.files", &entry));
        TRY(json_get_string(&entry, "name", &name));
        TRY(json_get_i64(&entry, "bytes", 0, WHOLE_MAX, &file->bytes));
        TRY(json_get_string(&entry, "xxh3", &hex));
        TRY(json_end(&entry));
        TRY(text_check_name("file name in a save", name, sizeof file->name - 1));
        TRY(text_copy(file->name, sizeof file->name, name));
        TRY(hash_parse(hex, &file->xxh3));
    }
    return 0;
}

int report_parse_saved(const char *text, size_t bytes, Saved *out_saved) {
    Saved saved = {0};
    cJSON *root;
    JsonObject object;
    int rc = open_text("saved", text, bytes, SAVED_MAX_BYTES, &root, &object);
    if (rc >= 0)
        rc = read_saved(&object, &saved);
    if (rc >= 0)
        *out_saved = saved;
    cJSON_Delete(root);
    return rc;
}

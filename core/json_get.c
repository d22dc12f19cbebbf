/* Path-aware getters. ERR_FORMAT: a key is missing or unknown, or its value has another type;
 * ERR_ARGUMENT: the value has the right type and is not allowed. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/json.h"
#include "core/text.h"

static const char *type_name(const cJSON *value) {
    if (!value)
        return "nothing";
    if (cJSON_IsObject(value))
        return "an object";
    if (cJSON_IsArray(value))
        return "an array";
    if (cJSON_IsString(value))
        return "a string";
    if (cJSON_IsNumber(value))
        return "a number";
    if (cJSON_IsBool(value))
        return "true or false";
    return cJSON_IsNull(value) ? "null" : "an unknown value";
}

static int type_error(const JsonObject *object, const char *key, const char *expected,
                      const cJSON *value) {
    return err_set(ERR_FORMAT, "%s.%s: expected %s, found %s", object->path, key, expected,
                   type_name(value));
}

int json_object(const cJSON *value, const char *path, JsonObject *out_object) {
    if (!cJSON_IsObject(value))
        return err_set(ERR_FORMAT, "%s: expected an object, found %s", path, type_name(value));
    TRY(text_copy(out_object->path, sizeof out_object->path, path));
    out_object->value = value;
    out_object->n_asked = 0;
    return 0;
}

static bool was_asked(const JsonObject *object, const char *key) {
    for (int i = 0; i < object->n_asked; i++) {
        if (strcmp(object->asked[i], key) == 0)
            return true;
    }
    return false;
}

int json_end(JsonObject *object) {
    for (const cJSON *item = object->value->child; item; item = item->next) {
        if (was_asked(object, item->string))
            continue;
        const char *nearest = text_nearest(item->string, object->asked, (size_t)object->n_asked);
        if (nearest)
            return err_set(ERR_FORMAT, "%s: unknown key '%s' (did you mean '%s'?)", object->path,
                           item->string, nearest);
        return err_set(ERR_FORMAT, "%s: unknown key '%s'", object->path, item->string);
    }
    return 0;
}

/* 1 and the node, or 0 when the key is absent. */
static int find(JsonObject *object, const char *key, const cJSON **out) {
    if (!was_asked(object, key)) {
        if (object->n_asked >= JSON_MAX_KEYS)
            return err_set(ERR_INTERNAL, "%s: more than %d keys asked for", object->path,
                           JSON_MAX_KEYS);
        object->asked[object->n_asked++] = key;
    }
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object->value, key);
    if (!item)
        return 0;
    *out = item;
    return 1;
}

static int find_required(JsonObject *object, const char *key, const cJSON **out) {
    int found = find(object, key, out);
    if (found != 0)
        return found;
    /* A key that resembles it and was not asked for is probably a slip. */
    for (const cJSON *item = object->value->child; item; item = item->next) {
        if (!was_asked(object, item->string) && text_nearest(item->string, &key, 1))
            return err_set(ERR_FORMAT, "%s: the key '%s' is missing (is '%s' meant to be it?)",
                           object->path, key, item->string);
    }
    return err_set(ERR_FORMAT, "%s: the key '%s' is missing", object->path, key);
}

/* JSON numbers are doubles: whole numbers are exact below 2^53 only, and 2^53 itself may have been
 * 2^53 + 1 in the text. `index` < 0: not in an array. */
static int read_i64(const JsonObject *object, const char *key, int index, const cJSON *value,
                    int64_t min, int64_t max, int64_t *out) {
    char place[24] = "";
    if (index >= 0)
        snprintf(place, sizeof place, "[%d]", index);
    if (!cJSON_IsNumber(value))
        return err_set(ERR_FORMAT, "%s.%s%s: expected a whole number, found %s", object->path, key,
                       place, type_name(value));
    double number = value->valuedouble;
    if (number != floor(number))
        return err_set(ERR_FORMAT, "%s.%s%s: expected a whole number, found %.15g", object->path,
                       key, place, number);
    if (fabs(number) >= 0x1p53)
        return err_set(ERR_ARGUMENT, "%s.%s%s: whole numbers must be below 2^53", object->path, key,
                       place);
    int64_t whole = (int64_t)number;
    if (whole < min || whole > max)
        return err_set(ERR_ARGUMENT, "%s.%s%s: %lld is outside %lld to %lld", object->path, key,
                       place, (long long)whole, (long long)min, (long long)max);
    *out = whole;
    return 0;
}

int json_get_i64(JsonObject *object, const char *key, int64_t min, int64_t max, int64_t *out) {
    const cJSON *value;
    TRY(find_required(object, key, &value));
    return read_i64(object, key, -1, value, min, max, out);
}

int json_opt_i64(JsonObject *object, const char *key, int64_t min, int64_t max, int64_t *out) {
    const cJSON *value;
    int found = find(object, key, &value);
    if (found > 0)
        TRY(read_i64(object, key, -1, value, min, max, out));
    return found;
}

static int read_f64(const JsonObject *object, const char *key, const cJSON *value, double min,
                    double max, double *out) {
    if (!cJSON_IsNumber(value))
        return type_error(object, key, "a number", value);
    double number = value->valuedouble;
    if (!(number >= min && number <= max))
        return err_set(ERR_ARGUMENT, "%s.%s: %g is outside %g to %g", object->path, key, number,
                       min, max);
    *out = number;
    return 0;
}

int json_get_f64(JsonObject *object, const char *key, double min, double max, double *out) {
    const cJSON *value;
    TRY(find_required(object, key, &value));
    return read_f64(object, key, value, min, max, out);
}

int json_opt_f64(JsonObject *object, const char *key, double min, double max, double *out) {
    const cJSON *value;
    int found = find(object, key, &value);
    if (found > 0)
        TRY(read_f64(object, key, value, min, max, out));
    return found;
}

static int read_bool(const JsonObject *object, const char *key, const cJSON *value, bool *out) {
    if (!cJSON_IsBool(value))
        return type_error(object, key, "true or false", value);
    *out = cJSON_IsTrue(value);
    return 0;
}

int json_get_bool(JsonObject *object, const char *key, bool *out) {
    const cJSON *value;
    TRY(find_required(object, key, &value));
    return read_bool(object, key, value, out);
}

int json_opt_bool(JsonObject *object, const char *key, bool *out) {
    const cJSON *value;
    int found = find(object, key, &value);
    if (found > 0)
        TRY(read_bool(object, key, value, out));
    return found;
}

static int read_string(const JsonObject *object, const char *key, const cJSON *value,
                       const char **out) {
    if (!cJSON_IsString(value))
        return type_error(object, key, "a string", value);
    *out = value->valuestring;
    return 0;
}

int json_get_string(JsonObject *object, const char *key, const char **out) {
    const cJSON *value;
    TRY(find_required(object, key, &value));
    return read_string(object, key, value, out);
}

int json_opt_string(JsonObject *object, const char *key, const char **out) {
    const cJSON *value;
    int found = find(object, key, &value);
    if (found > 0)
        TRY(read_string(object, key, value, out));
    return found;
}

static int read_choice(const JsonObject *object, const char *key, const cJSON *value,
                       const char *const *names, int n_names, int *out) {
    const char *text;
    TRY(read_string(object, key, value, &text));
    for (int i = 0; i < n_names; i++) {
        if (strcmp(names[i], text) == 0) {
            *out = i;
            return 0;
        }
    }
    const char *nearest = text_nearest(text, names, (size_t)n_names);
    if (nearest)
        return err_set(ERR_ARGUMENT, "%s.%s: unknown value '%s' (did you mean '%s'?)", object->path,
                       key, text, nearest);
    char list[400] = "";
    size_t at = 0;
    for (int i = 0; i < n_names && at < sizeof list; i++) {
        int n = snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", names[i]);
        at += n > 0 ? (size_t)n : 0;
    }
    return err_set(ERR_ARGUMENT, "%s.%s: unknown value '%s' (expected one of: %s)", object->path,
                   key, text, list);
}

int json_get_choice(JsonObject *object, const char *key, const char *const *names, int n_names,
                    int *out) {
    const cJSON *value;
    TRY(find_required(object, key, &value));
    return read_choice(object, key, value, names, n_names, out);
}

int json_opt_choice(JsonObject *object, const char *key, const char *const *names, int n_names,
                    int *out) {
    const cJSON *value;
    int found = find(object, key, &value);
    if (found > 0)
        TRY(read_choice(object, key, value, names, n_names, out));
    return found;
}

/* A string that `parse` (of core/text.h) turns into a number; `expected` says what it looks like.
 */
static int opt_units(JsonObject *object, const char *key, const char *expected,
                     int (*parse)(const char *, int64_t *), int64_t *out) {
    const cJSON *value;
    int found = find(object, key, &value);
    if (found <= 0)
        return found;
    if (!cJSON_IsString(value))
        return type_error(object, key, expected, value);
    int rc = parse(value->valuestring, out);
    if (rc < 0)
        return err_context(rc, "%s.%s", object->path, key);
    return 1;
}

int json_opt_duration_ms(JsonObject *object, const char *key, int64_t *out_ms) {
    char most[32];
    int64_t ms = 0;
    int found = opt_units(object, key, "a duration with its unit, such as \"5s\"",
                          text_parse_duration_ms, &ms);
    if (found <= 0)
        return found;
    if (ms > JSON_MAX_DURATION_MS)
        return err_set(ERR_ARGUMENT, "%s.%s: '%s' is more than %s", object->path, key,
                       cJSON_GetObjectItemCaseSensitive(object->value, key)->valuestring,
                       text_exact_duration(JSON_MAX_DURATION_MS, most, sizeof most));
    *out_ms = ms;
    return 1;
}

int json_opt_bytes(JsonObject *object, const char *key, int64_t *out_bytes) {
    return opt_units(object, key, "a size with its unit, such as \"512MiB\"", text_parse_bytes,
                     out_bytes);
}

/* out_path (JSON_PATH_BYTES, may be NULL) = the object's path and the key, cut where too long. */
static void path_of(const JsonObject *object, const char *key, char *out_path) {
    if (!out_path)
        return;
    size_t length = strlen(object->path);
    size_t key_length = strnlen(key, JSON_PATH_BYTES);
    memmove(out_path, object->path, length + 1);
    if (length + 1 + key_length >= JSON_PATH_BYTES)
        return;
    out_path[length] = '.';
    memcpy(out_path + length + 1, key, key_length);
    out_path[length + 1 + key_length] = '\0';
}

int json_get(JsonObject *object, const char *key, const cJSON **out, char *out_path) {
    TRY(find_required(object, key, out));
    path_of(object, key, out_path);
    return 0;
}

int json_opt(JsonObject *object, const char *key, const cJSON **out, char *out_path) {
    int found = find(object, key, out);
    if (found > 0)
        path_of(object, key, out_path);
    return found;
}

static int read_i64_array(const JsonObject *object, const char *key, const cJSON *value,
                          int64_t min, int64_t max, int64_t *out, int max_n, int *out_n) {
    if (!cJSON_IsArray(value))
        return type_error(object, key, "an array of whole numbers", value);
    int n = 0;
    int64_t element;
    for (const cJSON *item = value->child; item; item = item->next, n++) {
        if (n >= max_n)
            return err_set(ERR_LIMIT, "%s.%s: more than %d elements", object->path, key, max_n);
        TRY(read_i64(object, key, n, item, min, max, &element));
    }
    n = 0; /* all are right: only now is anything written */
    for (const cJSON *item = value->child; item; item = item->next)
        out[n++] = (int64_t)item->valuedouble;
    *out_n = n;
    return 0;
}

int json_get_i64_array(JsonObject *object, const char *key, int64_t min, int64_t max, int64_t *out,
                       int max_n, int *out_n) {
    const cJSON *value;
    TRY(find_required(object, key, &value));
    return read_i64_array(object, key, value, min, max, out, max_n, out_n);
}

int json_opt_i64_array(JsonObject *object, const char *key, int64_t min, int64_t max, int64_t *out,
                       int max_n, int *out_n) {
    const cJSON *value;
    int found = find(object, key, &value);
    if (found > 0)
        TRY(read_i64_array(object, key, value, min, max, out, max_n, out_n));
    return found;
}

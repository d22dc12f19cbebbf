/* Strict JSON over cJSON. Parsing refuses: more than max_bytes, nesting over 64, duplicate keys,
 * trailing text, comments, numbers that are not finite, invalid UTF-8 - each with line and column
 * or the JSON path. Reading is by path-aware getters that name the path ("$.plan.cut[2]") in errors
 * and find unknown keys with the nearest valid name:
 *
 *     JsonObject o;
 *     TRY(json_object(value, "$.data", &o));
 *     TRY(json_get_i64(&o, "batch", 1, 1 << 20, &batch));        required
 *     TRY(json_opt_i64(&o, "epochs", 1, 1000, &epochs));         optional: out keeps its default
 *     TRY(json_end(&o));                                         unknown keys are errors
 *
 * Writing uses cJSON's builders and json_format (doubles round-trip; depth limited too). */
#ifndef FUNCPIPE_CORE_JSON_H
#define FUNCPIPE_CORE_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"

#define JSON_MAX_DURATION_MS (INT64_C(12725) * 24 * 60 * 60 * 1000) /* below 2^40 */
enum { JSON_MAX_DEPTH = 64, JSON_MAX_KEYS = 64, JSON_PATH_BYTES = 256 };

/* `what` names the source in errors ("job.json"). Caller frees with cJSON_Delete. */
int json_parse(const char *what, const char *text, size_t bytes, size_t max_bytes,
               cJSON **out_value);
int json_parse_file(const char *path, size_t max_bytes, cJSON **out_value);
/* Append the text to buf (indented when pretty); numbers in the shortest form that reads back
 * equal. ERR_LIMIT beyond JSON_MAX_DEPTH. */
int json_format(const cJSON *value, bool pretty, Buf *buf);

typedef struct JsonObject {
    const cJSON *value;
    char path[JSON_PATH_BYTES];
    const char *asked[JSON_MAX_KEYS]; /* keys asked for so far: the valid names for json_end */
    int n_asked;
} JsonObject;

int json_object(const cJSON *value, const char *path, JsonObject *out_object);
int json_end(JsonObject *object);

/* Getters. get: the key is required. opt: returns 1 when present, 0 when absent (out untouched).
 * Strings are borrowed from the tree. */
int json_get_i64(JsonObject *object, const char *key, int64_t min, int64_t max, int64_t *out);
int json_opt_i64(JsonObject *object, const char *key, int64_t min, int64_t max, int64_t *out);
int json_get_f64(JsonObject *object, const char *key, double min, double max, double *out);
int json_opt_f64(JsonObject *object, const char *key, double min, double max, double *out);
int json_get_bool(JsonObject *object, const char *key, bool *out);
int json_opt_bool(JsonObject *object, const char *key, bool *out);
int json_get_string(JsonObject *object, const char *key, const char **out);
int json_opt_string(JsonObject *object, const char *key, const char **out);
/* One of `names`: *out = its index; the error names the nearest. */
int json_get_choice(JsonObject *object, const char *key, const char *const *names, int n_names,
                    int *out);
int json_opt_choice(JsonObject *object, const char *key, const char *const *names, int n_names,
                    int *out);
/* At most JSON_MAX_DURATION_MS: what a Stage order can carry, and no sum of a few overflows. */
int json_opt_duration_ms(JsonObject *object, const char *key, int64_t *out_ms);
int json_opt_bytes(JsonObject *object, const char *key, int64_t *out_bytes);
/* Any value (object, array, ...): *out = borrowed node; its path into out_path when not NULL. */
int json_get(JsonObject *object, const char *key, const cJSON **out, char *out_path);
int json_opt(JsonObject *object, const char *key, const cJSON **out, char *out_path);
/* Array of integers: at most max_n; *out_n elements written. */
int json_get_i64_array(JsonObject *object, const char *key, int64_t min, int64_t max, int64_t *out,
                       int max_n, int *out_n);
int json_opt_i64_array(JsonObject *object, const char *key, int64_t min, int64_t max, int64_t *out,
                       int max_n, int *out_n);

/* Set the value at a dotted path ("plan.cut", "update.lr"), creating objects on the way; `text` is
 * JSON or, when it does not parse, a string. For --set. */
int json_set(cJSON *root, const char *dotted_path, const char *text);

#endif

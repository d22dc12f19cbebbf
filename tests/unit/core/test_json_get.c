#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "core/err.h"
#include "core/json.h"

static cJSON *parsed(const char *text) {
    cJSON *value = NULL;
    cr_assert_eq(json_parse("job.json", text, strlen(text), 1 << 20, &value), 0, "%s: %s", text,
                 err_text());
    return value;
}

static const char *const schedules[] = {"gpipe", "1f1b", "zero-bubble"};

Test(json_get, reads_every_kind) {
    cJSON *value = parsed("{\"i\":7,\"f\":0.5,\"b\":true,\"s\":\"x\",\"c\":\"1f1b\",\"d\":\"10s\","
                          "\"z\":\"2KiB\",\"v\":{\"w\":1},\"a\":[1,2,3]}");
    JsonObject o;
    int64_t i = 0, d = 0, z = 0, a[3] = {0};
    double f = 0;
    bool b = false;
    const char *s = NULL;
    int c = -1, n = 0;
    const cJSON *v = NULL;
    char path[JSON_PATH_BYTES];
    cr_assert_eq(json_object(value, "$.plan", &o), 0);
    cr_assert_eq(json_get_i64(&o, "i", 0, 10, &i), 0);
    cr_assert_eq(json_get_f64(&o, "f", 0, 1, &f), 0);
    cr_assert_eq(json_get_bool(&o, "b", &b), 0);
    cr_assert_eq(json_get_string(&o, "s", &s), 0);
    cr_assert_eq(json_get_choice(&o, "c", schedules, 3, &c), 0);
    cr_assert_eq(json_opt_duration_ms(&o, "d", &d), 1);
    cr_assert_eq(json_opt_bytes(&o, "z", &z), 1);
    cr_assert_eq(json_get(&o, "v", &v, path), 0);
    cr_assert_str_eq(path, "$.plan.v");
    cr_assert_eq(json_get_i64_array(&o, "a", 0, 3, a, 3, &n), 0);
    cr_assert_eq(json_end(&o), 0);
    cr_assert(i == 7 && f == 0.5 && b && strcmp(s, "x") == 0 && c == 1 && d == 10000 && z == 2048);
    cr_assert(cJSON_IsObject(v) && n == 3 && a[0] == 1 && a[2] == 3);
    /* Asking twice is one key. */
    cr_assert_eq(json_opt_i64(&o, "i", 0, 10, &i), 1);
    cr_assert_eq(o.n_asked, 9);
    cJSON_Delete(value);
}

Test(json_get, absent_optionals_keep_their_default) {
    cJSON *value = parsed("{}");
    JsonObject o;
    int64_t i = 41, a[2] = {5, 6};
    double f = 4.5;
    bool b = true;
    const char *s = "default";
    int c = 2, n = 9;
    const cJSON *v = value;
    char path[JSON_PATH_BYTES] = "untouched";
    cr_assert_eq(json_object(value, "$", &o), 0);
    cr_assert_eq(json_opt_i64(&o, "i", 0, 10, &i), 0);
    cr_assert_eq(json_opt_f64(&o, "f", 0, 1, &f), 0);
    cr_assert_eq(json_opt_bool(&o, "b", &b), 0);
    cr_assert_eq(json_opt_string(&o, "s", &s), 0);
    cr_assert_eq(json_opt_choice(&o, "c", schedules, 3, &c), 0);
    cr_assert_eq(json_opt_duration_ms(&o, "d", &i), 0);
    cr_assert_eq(json_opt_bytes(&o, "z", &i), 0);
    cr_assert_eq(json_opt(&o, "v", &v, path), 0);
    cr_assert_eq(json_opt_i64_array(&o, "a", 0, 3, a, 2, &n), 0);
    cr_assert(i == 41 && f == 4.5 && b && strcmp(s, "default") == 0 && c == 2 && n == 9 &&
              a[0] == 5);
    cr_assert(v == value && strcmp(path, "untouched") == 0);
    cr_assert_eq(json_end(&o), 0);
    cJSON_Delete(value);
}

#define REFUSES(code, words, call)                                                                 \
    do {                                                                                           \
        cr_assert_eq((call), (code), "%s: %s", #call, err_text());                                 \
        cr_assert_str_eq(err_text(), words);                                                       \
    } while (0)

Test(json_get, errors_name_the_path) {
    cJSON *value = parsed("{\"i\":7,\"f\":0.5,\"s\":\"x\",\"a\":[1,2.5],\"n\":null,\"c\":\"1f1c\","
                          "\"e\":\"none\",\"d\":\"10\",\"o\":{}}");
    JsonObject o;
    int64_t i = 42, a[4] = {0};
    double f = 42;
    bool b = false;
    const char *s = NULL;
    int c = 42, n = 42;
    cr_assert_eq(json_object(value, "$.plan", &o), 0);
    REFUSES(ERR_ARGUMENT, "$.plan.i: 7 is outside 8 to 9", json_get_i64(&o, "i", 8, 9, &i));
    REFUSES(ERR_ARGUMENT, "$.plan.i: 7 is outside 0 to 6", json_opt_i64(&o, "i", 0, 6, &i));
    REFUSES(ERR_FORMAT, "$.plan.f: expected a whole number, found 0.5",
            json_get_i64(&o, "f", 0, 9, &i));
    REFUSES(ERR_FORMAT, "$.plan.s: expected a whole number, found a string",
            json_get_i64(&o, "s", 0, 9, &i));
    REFUSES(ERR_FORMAT, "$.plan.n: expected a whole number, found null",
            json_opt_i64(&o, "n", 0, 9, &i));
    REFUSES(ERR_ARGUMENT, "$.plan.f: 0.5 is outside 1 to 2", json_get_f64(&o, "f", 1, 2, &f));
    REFUSES(ERR_FORMAT, "$.plan.s: expected a number, found a string",
            json_opt_f64(&o, "s", 1, 2, &f));
    REFUSES(ERR_FORMAT, "$.plan.i: expected true or false, found a number",
            json_get_bool(&o, "i", &b));
    REFUSES(ERR_FORMAT, "$.plan.o: expected a string, found an object",
            json_get_string(&o, "o", &s));
    REFUSES(ERR_ARGUMENT, "$.plan.c: unknown value '1f1c' (did you mean '1f1b'?)",
            json_get_choice(&o, "c", schedules, 3, &c));
    REFUSES(ERR_ARGUMENT,
            "$.plan.e: unknown value 'none' (expected one of: gpipe, 1f1b, zero-bubble)",
            json_opt_choice(&o, "e", schedules, 3, &c));
    REFUSES(ERR_FORMAT, "$.plan.d: '10' is not a duration such as 250ms, 10s, 10m, 2h or 1d",
            json_opt_duration_ms(&o, "d", &i));
    REFUSES(ERR_FORMAT,
            "$.plan.i: expected a size with its unit, such as \"512MiB\", found a number",
            json_opt_bytes(&o, "i", &i));
    REFUSES(ERR_FORMAT, "$.plan.a[1]: expected a whole number, found 2.5",
            json_get_i64_array(&o, "a", 0, 9, a, 4, &n));
    REFUSES(ERR_ARGUMENT, "$.plan.a[0]: 1 is outside 2 to 9",
            json_get_i64_array(&o, "a", 2, 9, a, 4, &n));
    REFUSES(ERR_LIMIT, "$.plan.a: more than 1 elements",
            json_opt_i64_array(&o, "a", 0, 9, a, 1, &n));
    REFUSES(ERR_FORMAT, "$.plan.o: expected an array of whole numbers, found an object",
            json_get_i64_array(&o, "o", 0, 9, a, 4, &n));
    cr_assert(i == 42 && f == 42 && !b && !s && c == 42 && n == 42 && a[0] == 0);
    JsonObject inner;
    REFUSES(ERR_FORMAT, "$.plan.i: expected an object, found a number",
            json_object(cJSON_GetObjectItem(value, "i"), "$.plan.i", &inner));
    REFUSES(ERR_FORMAT, "$.x: expected an object, found nothing", json_object(NULL, "$.x", &inner));
    cJSON_Delete(value);
}

Test(json_get, whole_numbers_end_at_2_to_the_53) {
    cJSON *value = parsed("{\"ok\":9007199254740991,\"neg\":-9007199254740991,"
                          "\"over\":9007199254740993,\"far\":1e300}");
    JsonObject o;
    int64_t i = 0;
    cr_assert_eq(json_object(value, "$", &o), 0);
    cr_assert_eq(json_get_i64(&o, "ok", INT64_MIN, INT64_MAX, &i), 0);
    cr_assert_eq(i, INT64_C(9007199254740991));
    cr_assert_eq(json_get_i64(&o, "neg", INT64_MIN, INT64_MAX, &i), 0);
    cr_assert_eq(i, INT64_C(-9007199254740991));
    REFUSES(ERR_ARGUMENT, "$.over: whole numbers must be below 2^53",
            json_get_i64(&o, "over", INT64_MIN, INT64_MAX, &i));
    REFUSES(ERR_ARGUMENT, "$.far: whole numbers must be below 2^53",
            json_get_i64(&o, "far", INT64_MIN, INT64_MAX, &i));
    cJSON_Delete(value);
}

Test(json_get, missing_and_unknown_keys) {
    cJSON *value = parsed("{\"batch_size\":1,\"epoch\":3,\"zzz\":0}");
    JsonObject o;
    int64_t i = 0;
    const cJSON *v = NULL;
    cr_assert_eq(json_object(value, "$.data", &o), 0);
    REFUSES(ERR_FORMAT,
            "$.data: the key 'batch_sizes' is missing (is 'batch_size' meant to be it?)",
            json_get_i64(&o, "batch_sizes", 0, 9, &i));
    REFUSES(ERR_FORMAT, "$.data: the key 'qqqqqqq' is missing", json_get(&o, "qqqqqqq", &v, NULL));
    cr_assert_eq(json_get_i64(&o, "batch_size", 0, 9, &i), 0);
    cr_assert_eq(json_opt_i64(&o, "epochs", 0, 9, &i), 0);
    REFUSES(ERR_FORMAT, "$.data: unknown key 'epoch' (did you mean 'epochs'?)", json_end(&o));
    cr_assert_eq(json_opt_i64(&o, "epoch", 0, 9, &i), 1);
    REFUSES(ERR_FORMAT, "$.data: unknown key 'zzz'", json_end(&o));
    cJSON_Delete(value);
}

Test(json_get, too_many_keys_is_our_own_mistake) {
    cJSON *value = parsed("{}");
    JsonObject o;
    static char keys[JSON_MAX_KEYS][16];
    bool b = false;
    cr_assert_eq(json_object(value, "$", &o), 0);
    for (int i = 0; i < JSON_MAX_KEYS; i++) {
        snprintf(keys[i], sizeof keys[i], "k%d", i);
        cr_assert_eq(json_opt_bool(&o, keys[i], &b), 0);
    }
    cr_assert_eq(json_opt_bool(&o, "one more", &b), ERR_INTERNAL);
    cJSON_Delete(value);
}

Test(json_get, hostile_keys_only_lengthen_the_message) {
    Buf buf;
    buf_init(&buf, 0);
    cr_assert_eq(buf_text(&buf, "{\""), 0);
    for (int i = 0; i < 5000; i++)
        cr_assert_eq(buf_text(&buf, "%s\xC3\xA9"), 0);
    cr_assert_eq(buf_text(&buf, "\":{}}"), 0);
    cJSON *value = parsed(buf_string(&buf));
    JsonObject o;
    char path[JSON_PATH_BYTES];
    const cJSON *v = NULL;
    cr_assert_eq(json_object(value, "$", &o), 0);
    cr_assert_eq(json_end(&o), ERR_FORMAT);
    cr_assert_eq(json_opt(&o, value->child->string, &v, path), 1);
    cr_assert_str_eq(path, "$");
    cJSON_Delete(value);
    buf_done(&buf);
    char long_path[JSON_PATH_BYTES + 1];
    memset(long_path, 'p', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = '\0';
    value = parsed("{}");
    cr_assert_eq(json_object(value, long_path, &o), ERR_LIMIT);
    cJSON_Delete(value);
}

/* ---- set ---- */

static void set_gives(const char *before, const char *path, const char *text, const char *after) {
    cJSON *root = parsed(before);
    err_set(ERR_IO, "an older note");
    cr_assert_eq(json_set(root, path, text), 0, "%s", err_text());
    cr_assert_str_eq(err_text(), "an older note");
    Buf buf;
    buf_init(&buf, 0);
    cr_assert_eq(json_format(root, false, &buf), 0);
    cr_assert_str_eq(buf_string(&buf), after);
    buf_done(&buf);
    cJSON_Delete(root);
}

Test(json_set, sets_values) {
    set_gives("{}", "a", "1", "{\"a\":1}");
    set_gives("{\"a\":1,\"b\":2}", "a", "[1,2]", "{\"a\":[1,2],\"b\":2}");
    set_gives("{}", "plan.cut.x", "true", "{\"plan\":{\"cut\":{\"x\":true}}}");
    set_gives("{\"plan\":{\"a\":1}}", "plan.b", "words here",
              "{\"plan\":{\"a\":1,\"b\":\"words here\"}}");
    set_gives("{\"plan\":{\"a\":1}}", "plan", "{\"z\":{}}", "{\"plan\":{\"z\":{}}}");
    set_gives("{}", "a", "", "{\"a\":\"\"}");
    set_gives("{}", "a", "10s", "{\"a\":\"10s\"}");
    set_gives("{}", "a", "\"1\"", "{\"a\":\"1\"}");
    set_gives("{\"A\":1}", "a", "null", "{\"A\":1,\"a\":null}");
}

static void set_fails(const char *before, const char *path, const char *text, int code) {
    cJSON *root = parsed(before);
    cr_assert_eq(json_set(root, path, text), code, "%s", err_text());
    Buf buf;
    buf_init(&buf, 0);
    cr_assert_eq(json_format(root, false, &buf), 0);
    cr_assert_str_eq(buf_string(&buf), before);
    buf_done(&buf);
    cJSON_Delete(root);
}

Test(json_set, failures_change_nothing) {
    set_fails("{}", "", "1", ERR_ARGUMENT);
    set_fails("{}", "a..b", "1", ERR_ARGUMENT);
    set_fails("{}", "a.", "1", ERR_ARGUMENT);
    set_fails("{}", ".a", "1", ERR_ARGUMENT);
    set_fails("{\"a\":1}", "a.b", "1", ERR_ARGUMENT);
    set_fails("{\"a\":[]}", "a.b.c", "1", ERR_ARGUMENT);
    set_fails("[]", "a", "1", ERR_ARGUMENT);
    set_fails("{}", "a.b", "\xFF", ERR_FORMAT);
    set_fails("{}", "a.\xFF", "1", ERR_FORMAT);
    char deep[2 * 70];
    for (int i = 0; i < 70; i++)
        memcpy(deep + (ptrdiff_t)2 * i, "a.", 2);
    deep[sizeof deep - 1] = '\0';
    set_fails("{}", deep, "1", ERR_LIMIT);
}

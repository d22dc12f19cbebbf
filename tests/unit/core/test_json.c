#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/err.h"
#include "core/json.h"
#include "tests/support/german.h"

static int parse(const char *text, cJSON **out) {
    return json_parse("job.json", text, strlen(text), 1 << 20, out);
}

static cJSON *parsed(const char *text) {
    cJSON *value = NULL;
    cr_assert_eq(parse(text, &value), 0, "%s: %s", text, err_text());
    return value;
}

/* The text parses, and prints as `want` (NULL: as itself). */
static void round_trip(const char *text, const char *want) {
    cJSON *value = parsed(text);
    Buf buf;
    buf_init(&buf, 0);
    cr_assert_eq(json_format(value, false, &buf), 0, "%s", err_text());
    cr_assert_str_eq(buf_string(&buf), want ? want : text);
    buf_done(&buf);
    cJSON_Delete(value);
}

/* The text is refused with ERR_FORMAT and a note that holds `words`. */
static void refused(const char *text, const char *words) {
    cJSON *value = NULL;
    cr_assert_eq(parse(text, &value), ERR_FORMAT, "%s", text);
    cr_assert_null(value);
    cr_assert(strstr(err_text(), "job.json"), "%s", err_text());
    cr_assert(strstr(err_text(), words), "'%s' gave: %s", text, err_text());
}

Test(json, values_round_trip) {
    round_trip("null", NULL);
    round_trip("true", NULL);
    round_trip(" false \n", "false");
    round_trip("\"text\"", NULL);
    round_trip("[]", NULL);
    round_trip("{}", NULL);
    round_trip("[1,[2,{\"a\":null}],\"x\"]", NULL);
    round_trip(" { \"a\" : [ 1 , 2 ] , \"b\" : { } } ", "{\"a\":[1,2],\"b\":{}}");
    round_trip("{\"\":1}", NULL);
    round_trip("\"\\\" \\\\ \\/ \\b\\f\\n\\r\\t \\u001f \\u00e9\\u20ac\\ud83d\\ude00 \xC3\xA9\"",
               "\"\\\" \\\\ / \\b\\f\\n\\r\\t \\u001f \xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80 "
               "\xC3\xA9\"");
}

Test(json, errors_have_line_and_column) {
    refused("", "line 1, column 1: expected a value, found the end of the text");
    refused("{\n  \"a\": 1,\n  \"b\" 2\n}",
            "line 3, column 7: expected ':' after the key, found '2'");
    refused("[1, 2", "line 1, column 6: expected ',' or ']', found the end of the text");
    refused("{\"a\": 1", "expected ',' or '}'");
    refused("[1 2]", "column 4: expected ',' or ']', found '2'");
    refused("\"\xC3\xA9\xC3\xA9\" x", "column 6: expected the end of the text, found 'x'");
    refused("[1] [2]", "column 5: expected the end of the text");
    refused("{}\n\n}", "line 3, column 1: expected the end of the text");
    refused("nul", "expected a value");
    refused("True", "expected a value, found 'T'");
    refused("truex", "expected the end of the text, found 'x'");
    refused("{a: 1}", "expected a key in double quotes, found 'a'");
    refused("{'a': 1}", "expected a key in double quotes, found '''");
    refused("[1,]", "expected a value, found ']'");
    refused("{\"a\":1,}", "expected a key in double quotes, found '}'");
    refused("{,}", "expected a key");
    refused("[,]", "expected a value");
    refused("// note\n{}", "comments are not allowed");
    refused("[1 /* one */]", "comments are not allowed");
    refused("\xEF\xBB\xBF{}", "found the byte 0xef");
    refused("[\x01]", "found the byte 0x01");
    refused("NaN", "expected a value");
    refused("[Infinity]", "expected a value");
    refused("]", "expected a value");
}

Test(json, nul_bytes_are_no_end) {
    static const char text[] = "{\"a\":1}\0{\"b\":2}";
    cJSON *value = NULL;
    cr_assert_eq(json_parse("job.json", text, sizeof text - 1, 1 << 20, &value), ERR_FORMAT);
    cr_assert(strstr(err_text(), "column 8"), "%s", err_text());
    static const char inside[] = "\"a\0b\"";
    cr_assert_eq(json_parse("job.json", inside, sizeof inside - 1, 1 << 20, &value), ERR_FORMAT);
    /* Only the given bytes are read: what is behind them may be anything. */
    char *exact = malloc(3);
    memcpy(exact, "123", 3);
    for (size_t bytes = 1; bytes <= 3; bytes++) {
        cr_assert_eq(json_parse("x", exact, bytes, 10, &value), 0);
        cr_assert_eq(value->valuedouble, bytes == 1 ? 1 : bytes == 2 ? 12 : 123);
        cJSON_Delete(value);
    }
    cr_assert_eq(json_parse("x", exact, 0, 10, &value), ERR_FORMAT);
    free(exact);
}

Test(json, strings_are_strict) {
    refused("\"abc", "expected '\"' at the end of a string");
    refused("\"a\nb\"", "control character 0x0a in a string must be written \\u000a");
    refused("\"\\x\"", "after the backslash");
    refused("\"\\", "found the end of the text");
    refused("\"\\u12", "four hexadecimal digits");
    refused("\"\\u12g4\"", "four hexadecimal digits after \\u, found 'g'");
    refused("\"\\u0000\"", "\\u0000 is not allowed");
    refused("\"\\ud800\"", "half a surrogate pair: \\ud800");
    refused("\"\\ud800\\n\"", "half a surrogate pair");
    refused("\"\\ud800\\ud800\"", "half a surrogate pair");
    refused("\"\\udc00\"", "half a surrogate pair");
    refused("\"\x80\"", "the byte 0x80 is not valid UTF-8");
    refused("\"\xC3\"", "not valid UTF-8");
    refused("\"\xC3", "not valid UTF-8");
    refused("\"\xC0\xAF\"", "not valid UTF-8");
    refused("\"\xED\xA0\x80\"", "not valid UTF-8");
    refused("\"\xF4\x90\x80\x80\"", "not valid UTF-8");
    refused("\"\xFF\"", "not valid UTF-8");
    refused("{\"\xFF\":1}", "column 3: the byte 0xff is not valid UTF-8");
}

Test(json, numbers_are_strict) {
    round_trip("[0,-1,10,1.5,-0.25,1e3,1E-2,2e+2]", "[0,-1,10,1.5,-0.25,1000,0.01,200]");
    refused("01", "leading zeros");
    refused("-01", "leading zeros");
    refused("+1", "expected a value");
    refused(".5", "expected a value");
    refused("1.", "a digit after the decimal point");
    refused("-", "expected a digit");
    refused("1e", "a digit in the exponent");
    refused("1e+", "a digit in the exponent");
    refused("1.e5", "a digit after the decimal point");
    refused("0x10", "expected the end of the text");
    refused("--1", "expected a digit");
    refused("[1e999]", "column 2: the number 1e999 is not finite");
    refused("-1e400", "not finite");
    char digits[200];
    memset(digits, '3', sizeof digits - 1);
    digits[sizeof digits - 1] = '\0';
    refused(digits, "a number of 199 characters");
    digits[63] = '\0';
    cJSON_Delete(parsed(digits));
    digits[63] = '3';
    digits[64] = '\0';
    refused(digits, "a number of 64 characters");
}

static char *repeated(const char *piece, int n, const char *tail) {
    size_t piece_bytes = strlen(piece);
    size_t tail_bytes = strlen(tail);
    char *text = malloc((piece_bytes + tail_bytes) * (size_t)n + 16);
    char *at = text;
    for (int i = 0; i < n; i++, at += piece_bytes)
        memcpy(at, piece, piece_bytes);
    for (int i = 0; i < n; i++, at += tail_bytes)
        memcpy(at, tail, tail_bytes);
    *at = '\0';
    return text;
}

Test(json, nesting_is_limited) {
    char *deep = repeated("[", 100000, "");
    refused(deep, "column 65: nested deeper than 64");
    free(deep);
    deep = repeated("[", 100000, "]");
    refused(deep, "nested deeper than 64");
    free(deep);
    cJSON *value = NULL;
    deep = repeated("{\"a\":", 100000, "}");
    cr_assert_eq(json_parse("job.json", deep, strlen(deep), 1 << 20, &value), ERR_FORMAT);
    cr_assert(strstr(err_text(), "nested deeper than 64"));
    free(deep);
    deep = repeated("[", JSON_MAX_DEPTH, "]");
    round_trip(deep, NULL);
    free(deep);
    deep = repeated("[", JSON_MAX_DEPTH + 1, "]");
    refused(deep, "nested deeper than 64");
    free(deep);
    /* Brackets in strings and side by side are not nested. */
    deep = repeated("[", 1000, "");
    char *text = malloc(3 * 1000 + 10);
    snprintf(text, 3 * 1000 + 10, "[\"%s\"]", deep);
    round_trip(text, NULL);
    free(text);
    free(deep);
    text = repeated("[],", 5000, "");
    text[strlen(text) - 1] = '\0';
    Buf buf;
    buf_init(&buf, 0);
    cr_assert_eq(buf_printf(&buf, "[%s]", text), 0);
    round_trip(buf_string(&buf), NULL);
    buf_done(&buf);
    free(text);
}

Test(json, output_depth_is_limited) {
    cJSON *root = cJSON_CreateArray();
    cJSON *inner = root;
    for (int i = 1; i < JSON_MAX_DEPTH; i++) {
        cJSON *next = cJSON_CreateArray();
        cJSON_AddItemToArray(inner, next);
        inner = next;
    }
    Buf buf;
    buf_init(&buf, 0);
    cr_assert_eq(json_format(root, true, &buf), 0);
    buf_clear(&buf);
    cr_assert_eq(buf_text(&buf, "before"), 0);
    cJSON_AddItemToArray(inner, cJSON_CreateArray());
    cr_assert_eq(json_format(root, true, &buf), ERR_LIMIT);
    cr_assert_eq(json_format(root, false, &buf), ERR_LIMIT);
    cr_assert_str_eq(buf_string(&buf), "before");
    cJSON_Delete(root);
    /* Far deeper than any stack of printing would bear. */
    root = cJSON_CreateArray();
    for (int i = 0; i < 3000; i++) {
        cJSON *outer = cJSON_CreateArray();
        cJSON_AddItemToArray(outer, root);
        root = outer;
    }
    cr_assert_eq(json_format(root, false, &buf), ERR_LIMIT);
    cJSON_Delete(root);
    buf_done(&buf);
}

Test(json, size_is_limited) {
    cJSON *value = NULL;
    cr_assert_eq(json_parse("x", "[1,2]", 5, 4, &value), ERR_LIMIT);
    cr_assert_eq(json_parse("x", "[1,2]", 5, 5, &value), 0);
    cJSON_Delete(value);
}

Test(json, duplicate_keys_are_refused) {
    refused("{\"a\":1,\"a\":1}", "duplicate key 'a' in $");
    refused("{\"a\":1,\"b\":{\"x\":1,\"y\":2,\"x\":3}}", "duplicate key 'x' in $.b");
    refused("[1,[{},{\"k\":[{\"q\":0,\"q\":0}]}]]", "duplicate key 'q' in $[1][1].k[0]");
    refused("{\"a\":1,\"\\u0061\":2}", "duplicate key 'a'");
    refused("{\"\":1,\"\":2}", "duplicate key ''");
    round_trip("{\"a\":1,\"A\":2,\"b\":{\"a\":1}}", NULL);
    /* Many keys: as fast as sorting. */
    Buf buf;
    buf_init(&buf, 0);
    cr_assert_eq(buf_text(&buf, "{"), 0);
    for (int i = 0; i < 50000; i++)
        cr_assert_eq(buf_printf(&buf, "\"k%d\":%d,", i, i), 0);
    size_t bytes = buf.bytes;
    cr_assert_eq(buf_text(&buf, "\"last\":0}"), 0);
    round_trip(buf_string(&buf), NULL);
    buf.bytes = bytes;
    cr_assert_eq(buf_text(&buf, "\"k777\":0}"), 0);
    refused(buf_string(&buf), "duplicate key 'k777'");
    buf_done(&buf);
}

Test(json, long_paths_are_cut) {
    Buf buf;
    buf_init(&buf, 0);
    for (int i = 0; i < 40; i++)
        cr_assert_eq(buf_text(&buf, "{\"a_rather_long_key\":"), 0);
    cr_assert_eq(buf_text(&buf, "{\"x\":1,\"x\":2}"), 0);
    for (int i = 0; i < 40; i++)
        cr_assert_eq(buf_text(&buf, "}"), 0);
    refused(buf_string(&buf), "duplicate key 'x' in $.a_rather_long_key.a_rather");
    buf_done(&buf);
}

static const struct {
    double value;
    const char *text;
} numbers[] = {
    {0, "0"},
    {-0.0, "-0"},
    {1, "1"},
    {-7, "-7"},
    {0.1, "0.1"},
    {0.3, "0.3"},
    {0.1 + 0.2, "0.30000000000000004"},
    {1.0 / 3, "0.3333333333333333"},
    {1e21, "1e+21"},
    {123456789012345678.0, "1.2345678901234568e+17"},
    {9007199254740991.0, "9007199254740991"},
    {1e15, "1000000000000000"},
    {1e-7, "1e-07"},
    {5e-324, "4.94065645841247e-324"},
    {1.7976931348623157e308, "1.797693134862316e+308"},
    {3.14159, "3.14159"},
};

static void check_numbers(void) {
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        cJSON *value = cJSON_CreateNumber(numbers[i].value);
        Buf buf;
        buf_init(&buf, 0);
        cr_assert_eq(json_format(value, false, &buf), 0);
        cJSON_Delete(value);
        value = parsed(buf_string(&buf));
        cr_assert_eq(value->valuedouble, numbers[i].value, "%s", buf_string(&buf));
        cr_assert_leq(buf.bytes, 25);
        if (fabs(numbers[i].value) < 1e300) /* at the end of the range any equal form will do */
            cr_assert_str_eq(buf_string(&buf), numbers[i].text);
        cJSON_Delete(value);
        buf_done(&buf);
    }
}

Test(json, numbers_read_back_equal) {
    check_numbers();
    uint64_t bits = UINT64_C(0x9E3779B97F4A7C15);
    for (int i = 0; i < 20000; i++) {
        bits = bits * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        double number;
        memcpy(&number, &bits, sizeof number);
        if (!isfinite(number))
            continue;
        cJSON *value = cJSON_CreateNumber(number);
        Buf buf;
        buf_init(&buf, 0);
        cr_assert_eq(json_format(value, false, &buf), 0);
        cJSON_Delete(value);
        value = parsed(buf_string(&buf));
        cr_assert_eq(value->valuedouble, number, "%s", buf_string(&buf));
        cJSON_Delete(value);
        buf_done(&buf);
    }
}

Test(json, numbers_ignore_the_locale) {
    if (!german_set())
        cr_skip_test("no German locale can be had");
    cr_assert_eq(strtod("1,5", NULL), 1.5);
    check_numbers();
    round_trip("[1.5,-2.25e-3]", "[1.5,-0.00225]");
    cr_assert_eq(strtod("1,5", NULL), 1.5); /* and the thread keeps its own */
}

Test(json, what_cannot_be_written) {
    Buf buf;
    buf_init(&buf, 0);
    cJSON *array = cJSON_CreateArray();
    cJSON_AddItemToArray(array, cJSON_CreateNumber(1));
    cJSON_AddItemToArray(array, cJSON_CreateNumber(NAN));
    cr_assert_eq(json_format(array, false, &buf), ERR_ARGUMENT);
    cr_assert_str_eq(buf_string(&buf), "");
    cJSON_Delete(array);
    cr_assert_eq(json_format(NULL, false, &buf), ERR_ARGUMENT);
    cJSON *raw = cJSON_CreateRaw("oops");
    cr_assert_eq(json_format(raw, false, &buf), ERR_ARGUMENT);
    cJSON_Delete(raw);
    /* Bytes from outside stay JSON. */
    cJSON *text = cJSON_CreateString("a\xFF\xC3 \xE2\x82\xAC\xF0\x9F");
    cr_assert_eq(json_format(text, false, &buf), 0);
    cr_assert_str_eq(buf_string(&buf), "\"a\xEF\xBF\xBD\xEF\xBF\xBD \xE2\x82\xAC"
                                       "\xEF\xBF\xBD\xEF\xBF\xBD\"");
    cJSON_Delete(text);
    buf_done(&buf);
    buf_init(&buf, 6);
    array = parsed("[100,200,300]");
    cr_assert_eq(json_format(array, false, &buf), ERR_LIMIT);
    cr_assert_eq(buf.bytes, 0);
    cJSON_Delete(array);
    buf_done(&buf);
}

Test(json, pretty_text) {
    cJSON *value =
        parsed("{\"a\":1,\"cut\":[1,2],\"empty\":{},\"list\":[{\"x\":null},[]],\"n\":[]}");
    Buf buf;
    buf_init(&buf, 0);
    cr_assert_eq(json_format(value, true, &buf), 0);
    cr_assert_str_eq(buf_string(&buf), "{\n"
                                       "  \"a\": 1,\n"
                                       "  \"cut\": [1, 2],\n"
                                       "  \"empty\": {},\n"
                                       "  \"list\": [\n"
                                       "    {\n"
                                       "      \"x\": null\n"
                                       "    },\n"
                                       "    []\n"
                                       "  ],\n"
                                       "  \"n\": []\n"
                                       "}");
    buf_done(&buf);
    cJSON_Delete(value);
}

/* ---- getters ---- */

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
    REFUSES(ERR_FORMAT, "$.plan.i: expected a string, found a number", json_opt_bytes(&o, "i", &i));
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
    char *deep = repeated("a.", 70, "");
    deep[strlen(deep) - 1] = '\0';
    set_fails("{}", deep, "1", ERR_LIMIT);
    free(deep);
}

Test(json, files) {
    char path[] = "/tmp/test_json.XXXXXX";
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, "{\"a\":\n1,}", 9), 9);
    close(fd);
    cJSON *value = NULL;
    cr_assert_eq(json_parse_file(path, 100, &value), ERR_FORMAT);
    cr_assert(strstr(err_text(), path) && strstr(err_text(), "line 2, column 3"), "%s", err_text());
    cr_assert_eq(json_parse_file(path, 5, &value), ERR_LIMIT);
    cr_assert_eq(buf_write_file(path, "{\"a\":1}", 7), 0);
    cr_assert_eq(json_parse_file(path, 100, &value), 0);
    cJSON_Delete(value);
    cr_assert_eq(buf_write_file(path, "", 0), 0);
    cr_assert_eq(json_parse_file(path, 100, &value), ERR_FORMAT);
    unlink(path);
    cr_assert_eq(json_parse_file(path, 100, &value), ERR_NOT_FOUND);
}

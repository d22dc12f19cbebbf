#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/err.h"
#include "core/file.h"
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
    cr_assert_eq(file_write(path, "{\"a\":1}", 7), 0);
    cr_assert_eq(json_parse_file(path, 100, &value), 0);
    cJSON_Delete(value);
    cr_assert_eq(file_write(path, "", 0), 0);
    cr_assert_eq(json_parse_file(path, 100, &value), ERR_FORMAT);
    unlink(path);
    cr_assert_eq(json_parse_file(path, 100, &value), ERR_NOT_FOUND);
}

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/text.h"
#include "tests/support/german.h"

Test(text, parse_i64_accepts_whole_numbers) {
    int64_t v = 0;
    cr_assert_eq(text_parse_i64("0", 0, 0, &v), 0);
    cr_assert_eq(v, 0);
    cr_assert_eq(text_parse_i64("-17", -20, 20, &v), 0);
    cr_assert_eq(v, -17);
    cr_assert_eq(text_parse_i64("9223372036854775807", INT64_MIN, INT64_MAX, &v), 0);
    cr_assert_eq(v, INT64_MAX);
    cr_assert_eq(text_parse_i64("-9223372036854775808", INT64_MIN, INT64_MAX, &v), 0);
    cr_assert_eq(v, INT64_MIN);
}

Test(text, parse_i64_refuses_everything_else) {
    static const char *const bad[] = {"",
                                      " 1",
                                      "1 ",
                                      "+1",
                                      "-",
                                      "--1",
                                      "1.0",
                                      "1e3",
                                      "0x1",
                                      "abc",
                                      "12a",
                                      "\n",
                                      "１",
                                      "9223372036854775808",
                                      "-9223372036854775809",
                                      "99999999999999999999999999"};
    int64_t v = 42;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(text_parse_i64(bad[i], INT64_MIN, INT64_MAX, &v), ERR_FORMAT, "%s", bad[i]);
        char shown[64];
        cr_assert(strstr(err_text(), text_printable(bad[i], shown, sizeof shown)), "%s",
                  err_text());
    }
    cr_assert_eq(text_parse_i64("11", 1, 10, &v), ERR_FORMAT);
    cr_assert_str_eq(err_text(), "'11' is not a whole number from 1 to 10");
    cr_assert_eq(text_parse_i64("0", 1, 10, &v), ERR_FORMAT);
    cr_assert_eq(v, 42);
}

static const struct {
    const char *text;
    double value;
} reals[] = {
    {"0", 0},           {"-0", -0.0},
    {"1.5", 1.5},       {"+1.5", 1.5},
    {"-2.25", -2.25},   {".5", 0.5},
    {"5.", 5},          {"1e3", 1000},
    {"1E-3", 0.001},    {"1e+2", 100},
    {"0.1", 0.1},       {"1e-400", 0},
    {"5e-324", 5e-324}, {"1.7976931348623157e308", 1.7976931348623157e308},
};

static void check_reals(void) {
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++) {
        double v = NAN;
        cr_assert_eq(text_parse_f64(reals[i].text, &v), 0, "%s", reals[i].text);
        cr_assert_eq(v, reals[i].value, "%s", reals[i].text);
    }
    static const char *const bad[] = {
        "",    ".",   "-",    "e5",    "1e",    "1e+",   "1,5",    " 1",       "1 ", "0x10",
        "nan", "inf", "-inf", "1.2.3", "1e5.0", "1e999", "-1e999", "infinity", "1f", "1'000"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        double v = 42;
        cr_assert_eq(text_parse_f64(bad[i], &v), ERR_FORMAT, "%s", bad[i]);
        cr_assert_eq(v, 42);
    }
}

Test(text, parse_f64) {
    check_reals();
}

Test(text, parse_f64_ignores_the_locale) {
    if (!german_set())
        cr_skip_test("no German locale can be had");
    cr_assert_eq(strtod("1,5", NULL), 1.5);
    check_reals();
    char buf[32];
    cr_assert_str_eq(text_format_bytes(1536, buf, sizeof buf), "1.5 KiB");
    int64_t v = 0;
    cr_assert_eq(text_parse_duration_ms("1.5s", &v), 0);
    cr_assert_eq(v, 1500);
}

Test(text, durations) {
    static const struct {
        const char *text;
        int64_t ms;
    } good[] = {{"250ms", 250},   {"10s", 10000},
                {"10m", 600000},  {"2h", 7200000},
                {"1d", 86400000}, {"0s", 0},
                {"1.5s", 1500},   {"0.25h", 900000},
                {"0.001s", 1},    {"36500d", INT64_C(3153600000000)}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        int64_t v = -1;
        cr_assert_eq(text_parse_duration_ms(good[i].text, &v), 0, "%s", err_text());
        cr_assert_eq(v, good[i].ms, "%s", good[i].text);
    }
    static const char *const bad[] = {"",
                                      "10",
                                      "s",
                                      "10 s",
                                      "-1s",
                                      "+1s",
                                      "10S",
                                      "1.s",
                                      ".5s",
                                      "1,5s",
                                      "1e3s",
                                      "10sec",
                                      "0.1ms",
                                      "10s ",
                                      "1h30m",
                                      "0x1s",
                                      "99999999999999999999d",
                                      "9999999999999999999999999999999999s"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t v = 42;
        cr_assert_eq(text_parse_duration_ms(bad[i], &v), ERR_FORMAT, "%s", bad[i]);
        cr_assert(strstr(err_text(), bad[i]), "%s", err_text());
        cr_assert_eq(v, 42);
    }
}

Test(text, sizes) {
    static const struct {
        const char *text;
        int64_t bytes;
    } good[] = {
        {"512B", 512},   {"4KiB", 4096},         {"2MiB", 2097152},         {"2GiB", 2147483648},
        {"10kB", 10000}, {"10MB", 10000000},     {"1GB", 1000000000},       {"1.5KiB", 1536},
        {"0B", 0},       {"1TB", 1000000000000}, {"2TiB", INT64_C(2) << 40}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        int64_t v = -1;
        cr_assert_eq(text_parse_bytes(good[i].text, &v), 0, "%s", err_text());
        cr_assert_eq(v, good[i].bytes, "%s", good[i].text);
    }
    static const char *const bad[] = {"",   "512", "B",    "-1B",          "1KB",  "1 KiB", "1kb",
                                      "1K", "1G",  "0.1B", "999999999TiB", "1e3B", "1..5MB"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t v = 42;
        cr_assert_eq(text_parse_bytes(bad[i], &v), ERR_FORMAT, "%s", bad[i]);
        cr_assert_eq(v, 42);
    }
}

Test(text, format_bytes) {
    char buf[32];
    static const struct {
        int64_t bytes;
        const char *text;
    } rows[] = {{0, "0 B"},           {1023, "1023 B"},
                {1024, "1 KiB"},      {1536, "1.5 KiB"},
                {1572864, "1.5 MiB"}, {1048575, "1 MiB"}, /* not "1024 KiB" */
                {-2048, "-2 KiB"},    {INT64_C(5) << 40, "5 TiB"},
                {INT64_MAX, "8 EiB"}, {INT64_MIN, "-8 EiB"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_assert_str_eq(text_format_bytes(rows[i].bytes, buf, sizeof buf), rows[i].text);
}

Test(text, format_duration) {
    char buf[32];
    static const struct {
        int64_t ms;
        const char *text;
    } rows[] = {{0, "0ms"},          {250, "250ms"},     {1000, "1s"},       {1500, "1s 500ms"},
                {80000, "1m 20s"},   {7200000, "2h"},    {7260000, "2h 1m"}, {7201000, "2h"},
                {90000000, "1d 1h"}, {-80000, "-1m 20s"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_assert_str_eq(text_format_duration(rows[i].ms, buf, sizeof buf), rows[i].text);
    text_format_duration(INT64_MIN, buf, sizeof buf);
    cr_assert_eq(strlen(text_format_duration(80000, buf, 4)), 3);
}

/* Exact, in the largest unit that can say it, and read back. */
Test(text, exact_units) {
    static const struct {
        int64_t value;
        const char *bytes, *duration;
    } rows[] = {{0, "0B", "0ms"},
                {1, "1B", "1ms"},
                {1500, "1500B", "1500ms"},
                {300000, "300kB", "5m"},
                {90000, "90kB", "90s"},
                {3600000, "3600kB", "1h"},
                {1073741824, "1GiB", "1073741824ms"},
                {1073741825, "1073741825B", "1073741825ms"},
                {10000000, "10MB", "10000s"},
                {864000000, "864MB", "10d"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char buf[32];
        int64_t back = -1;
        cr_expect_str_eq(text_exact_bytes(rows[i].value, buf, sizeof buf), rows[i].bytes);
        cr_expect_eq(text_parse_bytes(buf, &back), 0);
        cr_expect_eq(back, rows[i].value);
        cr_expect_str_eq(text_exact_duration(rows[i].value, buf, sizeof buf), rows[i].duration);
        cr_expect_eq(text_parse_duration_ms(buf, &back), 0);
        cr_expect_eq(back, rows[i].value);
    }
}

Test(text, decimals_and_plurals) {
    cr_expect_eq(text_decimal_f32(0.286F), 0.286);
    cr_expect_eq(text_decimal_f32(0.1F), 0.1);
    cr_expect_eq(text_decimal_f32(1.0F / 3), 0.33333334);
    cr_expect_eq(text_decimal_f32(-2.0F), -2);
    cr_expect_str_eq(text_plural(1, "stage", "stages"), "stage");
    cr_expect_str_eq(text_plural(0, "stage", "stages"), "stages");
    cr_expect_str_eq(text_plural(2, "stage", "stages"), "stages");
}

Test(text, nearest_name) {
    static const char *const names[] = {"batch", "epochs", "learning_rate", "lr", "schedule"};
    enum { N = sizeof names / sizeof names[0] };
    cr_assert_str_eq(text_nearest("bach", names, N), "batch");
    cr_assert_str_eq(text_nearest("epoch", names, N), "epochs");
    cr_assert_str_eq(text_nearest("learnig-rat", names, N), "learning_rate");
    cr_assert_str_eq(text_nearest("lr", names, N), "lr");
    cr_assert_str_eq(text_nearest("lrx", names, N), "lr");
    cr_assert_null(text_nearest("xy", names, N)); /* all of it would have to change */
    cr_assert_null(text_nearest("zebra_crossing", names, N));
    cr_assert_null(text_nearest("", names, N) ? "lr" + 2 : NULL);
    cr_assert_null(text_nearest("x", NULL, 0));
    static char big[100000];
    memset(big, 'a', sizeof big - 1);
    cr_assert_null(text_nearest(big, names, N));
    const char *const big_names[] = {big, "batch"};
    cr_assert_str_eq(text_nearest("batch", big_names, 2), "batch");
}

Test(text, copy_fits_or_fails) {
    char dst[5] = "old";
    cr_assert_eq(text_copy(dst, sizeof dst, "four"), 0);
    cr_assert_str_eq(dst, "four");
    cr_assert_eq(text_copy(dst, sizeof dst, "fiver"), ERR_LIMIT);
    cr_assert_str_eq(dst, "four");
    cr_assert_eq(text_copy(dst, 0, ""), ERR_LIMIT);
}

#define UTF8(text) text_is_utf8(text, sizeof(text) - 1)

Test(text, utf8) {
    cr_assert(UTF8(""));
    cr_assert(UTF8("plain \x7f\x00 text"));
    cr_assert(UTF8("\xC2\x80 \xDF\xBF \xE0\xA0\x80 \xED\x9F\xBF \xEE\x80\x80 \xEF\xBF\xBF"));
    cr_assert(UTF8("\xF0\x90\x80\x80 \xF4\x8F\xBF\xBF"));
    cr_assert_not(UTF8("\x80"));
    cr_assert_not(UTF8("\xC0\x80"));         /* overlong */
    cr_assert_not(UTF8("\xC1\xBF"));         /* overlong */
    cr_assert_not(UTF8("\xE0\x9F\xBF"));     /* overlong */
    cr_assert_not(UTF8("\xF0\x8F\xBF\xBF")); /* overlong */
    cr_assert_not(UTF8("\xED\xA0\x80"));     /* surrogate */
    cr_assert_not(UTF8("\xF4\x90\x80\x80")); /* beyond U+10FFFF */
    cr_assert_not(UTF8("\xF5\x80\x80\x80"));
    cr_assert_not(UTF8("\xFF"));
    cr_assert_not(UTF8("a\xC3"));
    cr_assert_not(UTF8("\xE2\x82"));
    cr_assert_not(UTF8("\xE2\x82("));
    cr_assert_not(UTF8("\xF0\x9F\x98"));
    cr_assert_not(UTF8("\xF0\x9F(\x80"));
}

Test(text, names) {
    cr_assert_eq(text_check_name("job name", "mnist-cnn_2.v1", 32), 0);
    cr_assert_eq(text_check_name("job name", "a", 1), 0);
    static const char *const bad[] = {"",    ".", "..",  ".hidden", "-rf",  "a/b", "a b",
                                      "a\n", "ä", "a:b", "a*",      "a%2f", "ab'c"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(text_check_name("job name", bad[i], 32), ERR_ARGUMENT, "%s", bad[i]);
        cr_assert(strstr(err_text(), "job name"));
        char shown[64];
        cr_assert(strstr(err_text(), text_printable(bad[i], shown, sizeof shown)));
    }
    cr_assert_eq(text_check_name("job name", "abcd", 3), ERR_ARGUMENT);
}

/* ---- for people ---- */

static void expect_printable(const char *text, const char *expected) {
    char shown[200];
    cr_expect_str_eq(text_printable(text, shown, sizeof shown), expected);
    char again[200];
    cr_expect_str_eq(text_printable(shown, again, sizeof again), expected, "a second time");
}

Test(text, printable) {
    expect_printable("", "");
    expect_printable("as it is: \"'\\ \xC3\xA4 \xE2\x82\xAC",
                     "as it is: \"'\\ \xC3\xA4 \xE2\x82\xAC");
    expect_printable("\n\r\t\x1b[2J\x01\x7f", "\\n\\r\\t\\x1b[2J\\x01\\x7f");
    expect_printable("\xC2\x9B"
                     "31m",
                     "\\xc2\\x9b31m"); /* a C1 control, which terminals obey */
    expect_printable("cut \xE2\x82", "cut \\xe2\\x82");
    expect_printable("\xFFz\xC0\x80", "\\xffz\\xc0\\x80");
}

Test(text, printable_fits) {
    char text[1000], shown[64];
    for (size_t n = 0; n < sizeof text; n += 7) {
        memset(text, 'a', n);
        text[n] = '\0';
        if (n > 10)
            text[n - 1] = 'z';
        text_printable(text, shown, sizeof shown);
        cr_expect(strlen(shown) < sizeof shown && strlen(shown) <= n);
        cr_expect(n <= 10 || shown[strlen(shown) - 1] == 'z', "%s", shown);
    }
}

#include "core/text.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static const char *skip_digits(const char *at) {
    while (is_digit(*at))
        at++;
    return at;
}

int text_parse_i64(const char *text, int64_t min, int64_t max, int64_t *out_value) {
    bool negative = text[0] == '-';
    const char *digits = text + (negative ? 1 : 0);
    const char *end = skip_digits(digits);
    int64_t value = 0;
    bool fits = true;
    for (const char *at = digits; at < end && fits; at++) {
        int digit = *at - '0';
        fits = !__builtin_mul_overflow(value, 10, &value) &&
               !__builtin_add_overflow(value, negative ? -digit : digit, &value);
    }
    if (end == digits || *end)
        return err_set(ERR_FORMAT, "'%s' is not a whole number", text);
    if (!fits || value < min || value > max)
        return err_set(ERR_FORMAT, "'%s' is not a whole number from %lld to %lld", text,
                       (long long)min, (long long)max);
    *out_value = value;
    return 0;
}

/* strtod in the "C" locale, whatever the process has set. */
static int parse_c(const char *text, double *out_value) {
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c)
        return err_set(ERR_MEMORY, "the C locale");
    *out_value = strtod_l(text, NULL, c);
    freelocale(c);
    return 0;
}

int text_parse_f64(const char *text, double *out_value) {
    const char *at = text + (text[0] == '-' || text[0] == '+' ? 1 : 0);
    const char *whole = at;
    at = skip_digits(at);
    bool digits = at > whole;
    if (*at == '.') {
        const char *fraction = at + 1;
        at = skip_digits(fraction);
        digits = digits || at > fraction;
    }
    if (digits && (*at == 'e' || *at == 'E')) {
        at += at[1] == '-' || at[1] == '+' ? 2 : 1;
        digits = is_digit(*at);
        at = skip_digits(at);
    }
    if (!digits || *at)
        return err_set(ERR_FORMAT, "'%s' is not a number", text);
    double value;
    TRY(parse_c(text, &value));
    if (!isfinite(value))
        return err_set(ERR_FORMAT, "'%s' is too large for a number", text);
    *out_value = value;
    return 0;
}

typedef struct Unit {
    const char *name;
    int64_t factor;
} Unit;

/* "NUMBER UNIT" without the blank, NUMBER with or without decimals; rounded to whole base units. */
static int parse_units(const char *text, const Unit *units, const char *expected,
                       int64_t *out_value) {
    const char *end = skip_digits(text);
    if (end > text && *end == '.' && is_digit(end[1]))
        end = skip_digits(end + 1);
    char number[32];
    size_t length = (size_t)(end - text);
    const Unit *unit = units;
    while (unit->name && strcmp(unit->name, end) != 0)
        unit++;
    if (length == 0 || length >= sizeof number || !unit->name)
        return err_set(ERR_FORMAT, "'%s' is not %s", text, expected);
    memcpy(number, text, length);
    number[length] = '\0';
    double value;
    TRY(parse_c(number, &value));
    double product = nearbyint(value * (double)unit->factor);
    if (product > 0x1p53)
        return err_set(ERR_FORMAT, "'%s' is too large", text);
    if (value > 0 && product < 1)
        return err_set(ERR_FORMAT, "'%s' is too small", text);
    *out_value = (int64_t)product;
    return 0;
}

static const Unit duration_units[] = {{"ms", 1},      {"s", 1000},     {"m", 60000},
                                      {"h", 3600000}, {"d", 86400000}, {NULL, 0}};
static const Unit size_units[] = {{"B", 1},
                                  {"kB", 1000},
                                  {"MB", 1000000},
                                  {"GB", 1000000000},
                                  {"TB", 1000000000000},
                                  {"KiB", INT64_C(1) << 10},
                                  {"MiB", INT64_C(1) << 20},
                                  {"GiB", INT64_C(1) << 30},
                                  {"TiB", INT64_C(1) << 40},
                                  {NULL, 0}};

int text_parse_duration_ms(const char *text, int64_t *out_ms) {
    return parse_units(text, duration_units, "a duration such as 250ms, 10s, 10m, 2h or 1d",
                       out_ms);
}

int text_parse_bytes(const char *text, int64_t *out_bytes) {
    return parse_units(text, size_units, "a size such as 512B, 4KiB, 2GiB or 10MB", out_bytes);
}

/* The largest unit of which the value is a whole number. */
static const char *format_exact(int64_t value, const Unit *units, char *buf, size_t buf_bytes) {
    const Unit *best = units;
    for (const Unit *unit = units; unit->name && value > 0; unit++) {
        if (value % unit->factor == 0 && unit->factor > best->factor)
            best = unit;
    }
    snprintf(buf, buf_bytes, "%lld%s", (long long)(value / best->factor), best->name);
    return buf;
}

const char *text_exact_bytes(int64_t bytes, char *buf, size_t buf_bytes) {
    return format_exact(bytes, size_units, buf, buf_bytes);
}

const char *text_exact_duration(int64_t ms, char *buf, size_t buf_bytes) {
    return format_exact(ms, duration_units, buf, buf_bytes);
}

double text_decimal_f32(float value) {
    for (int digits = 1; digits < 9; digits++) {
        char text[32];
        double number;
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (text_parse_f64(text, &number) >= 0 && (float)number == value)
            return number;
    }
    return (double)value;
}

const char *text_plural(int64_t n, const char *one, const char *many) {
    return n == 1 ? one : many;
}

const char *text_format_bytes(int64_t bytes, char *buf, size_t buf_bytes) {
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    const char *sign = bytes < 0 ? "-" : "";
    uint64_t size = bytes < 0 ? 0 - (uint64_t)bytes : (uint64_t)bytes;
    if (size < 1024) {
        snprintf(buf, buf_bytes, "%s%llu B", sign, (unsigned long long)size);
        return buf;
    }
    int unit = 0;
    uint64_t tenths = 0;
    do { /* until the rounded figure stays below 1024 */
        unit++;
        uint64_t whole = size >> (10 * unit);
        uint64_t rest = size & ((UINT64_C(1) << (10 * unit)) - 1);
        uint64_t per_mille = rest >> (10 * (unit - 1)); /* in 1/1024 */
        tenths = whole * 10 + (per_mille * 10 + 512) / 1024;
    } while (tenths >= 10240 && unit < 6);
    if (tenths % 10)
        snprintf(buf, buf_bytes, "%s%llu.%llu %s", sign, (unsigned long long)(tenths / 10),
                 (unsigned long long)(tenths % 10), names[unit]);
    else
        snprintf(buf, buf_bytes, "%s%llu %s", sign, (unsigned long long)(tenths / 10), names[unit]);
    return buf;
}

const char *text_format_duration(int64_t ms, char *buf, size_t buf_bytes) {
    static const Unit units[] = {
        {"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};
    enum { N_UNITS = sizeof units / sizeof units[0] };
    const char *sign = ms < 0 ? "-" : "";
    uint64_t rest = ms < 0 ? 0 - (uint64_t)ms : (uint64_t)ms;
    int i = 0;
    while (i + 1 < N_UNITS && rest < (uint64_t)units[i].factor)
        i++;
    uint64_t first = rest / (uint64_t)units[i].factor;
    rest %= (uint64_t)units[i].factor;
    uint64_t second = i + 1 < N_UNITS ? rest / (uint64_t)units[i + 1].factor : 0;
    if (second)
        snprintf(buf, buf_bytes, "%s%llu%s %llu%s", sign, (unsigned long long)first, units[i].name,
                 (unsigned long long)second, units[i + 1].name);
    else
        snprintf(buf, buf_bytes, "%s%llu%s", sign, (unsigned long long)first, units[i].name);
    return buf;
}

enum { NEAREST_MAX_LENGTH = 128 };

/* Levenshtein distance of two texts of at most NEAREST_MAX_LENGTH bytes, row by row. */
static size_t edit_distance(const char *a, size_t a_length, const char *b, size_t b_length) {
    size_t row[NEAREST_MAX_LENGTH + 1];
    for (size_t j = 0; j <= b_length; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[b_length];
}

const char *text_nearest(const char *text, const char *const *names, size_t n_names) {
    const char *nearest = NULL;
    size_t least = SIZE_MAX;
    size_t length = strlen(text);
    if (length > NEAREST_MAX_LENGTH)
        return NULL;
    for (size_t i = 0; i < n_names; i++) {
        size_t name_length = strlen(names[i]);
        if (name_length > NEAREST_MAX_LENGTH)
            continue;
        size_t longer = length > name_length ? length : name_length;
        size_t allowed = longer / 3 > 2 ? longer / 3 : 2;
        size_t distance = edit_distance(text, length, names[i], name_length);
        /* A distance of the whole length means that nothing is alike. */
        if (distance <= allowed && distance < longer + (longer == 0) && distance < least) {
            least = distance;
            nearest = names[i];
        }
    }
    return nearest;
}

int text_copy(char *dst, size_t dst_bytes, const char *src) {
    size_t length = strlen(src);
    if (length >= dst_bytes)
        return err_set(ERR_LIMIT, "'%s' is longer than the %zu characters allowed", src,
                       dst_bytes ? dst_bytes - 1 : 0);
    memcpy(dst, src, length + 1);
    return 0;
}

bool text_is_utf8(const char *data, size_t bytes) {
    const unsigned char *at = (const unsigned char *)data;
    const unsigned char *end = at + bytes;
    while (at < end) {
        if (*at < 0x80) {
            at++;
            continue;
        }
        unsigned char lead = *at;
        /* The second byte's range also shuts out overlong forms, surrogates and > U+10FFFF. */
        unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
        unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
        int more = lead >= 0xC2 && lead <= 0xDF   ? 1
                   : lead >= 0xE0 && lead <= 0xEF ? 2
                   : lead >= 0xF0 && lead <= 0xF4 ? 3
                                                  : 0;
        if (more == 0 || end - at <= more || at[1] < low || at[1] > high)
            return false;
        for (int i = 2; i <= more; i++) {
            if ((at[i] & 0xC0) != 0x80)
                return false;
        }
        at += more + 1;
    }
    return true;
}

/* ---- for people ---- */

/* Bytes of the character at `text` that can be shown; 0: none. */
static size_t shown_bytes(const char *text, size_t bytes) {
    unsigned char c = (unsigned char)text[0];
    if (c < 0x80)
        return c >= ' ' && c != 0x7F;
    size_t length = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    if (length > bytes || !text_is_utf8(text, length))
        return 0;
    return c == 0xC2 && (unsigned char)text[1] < 0xA0 ? 0 : length; /* C1 controls */
}

/* Into out, which has room for four times as much; the length there. */
static size_t escape(const char *text, size_t bytes, char *out) {
    static const char hex[] = "0123456789abcdef";
    char *to = out;
    for (size_t at = 0; at < bytes;) {
        size_t shown = shown_bytes(text + at, bytes - at);
        memcpy(to, text + at, shown);
        to += shown;
        at += shown;
        if (shown > 0)
            continue;
        unsigned char c = (unsigned char)text[at++];
        const char *letter = strchr("\nn\tt\rr", c);
        *to++ = '\\';
        if (c && letter) {
            *to++ = letter[1];
        } else {
            *to++ = 'x';
            *to++ = hex[c >> 4];
            *to++ = hex[c & 15];
        }
    }
    *to = '\0';
    return (size_t)(to - out);
}

static bool is_within_character(const char *at) {
    return ((unsigned char)*at & 0xC0) == 0x80;
}

/* Of text[0..bytes) keep the first third or two and the end, so that `most` bytes are left, or a
 * few less; returns how many. */
static size_t leave_out_middle(char *text, size_t bytes, size_t most) {
    static const char gap[] = "...";
    size_t head = (most - sizeof gap) * 2 / 3;
    size_t tail = bytes - (most - sizeof gap - head);
    while (head > 0 && is_within_character(text + head))
        head--;
    while (tail < bytes && is_within_character(text + tail))
        tail++;
    memcpy(text + head, gap, sizeof gap - 1);
    memmove(text + head + sizeof gap - 1, text + tail, bytes - tail);
    return head + sizeof gap - 1 + (bytes - tail);
}

static size_t shorten_words(char *text) {
    char *to = text;
    for (const char *at = text; *at;) {
        size_t blanks = strspn(at, " ");
        memmove(to, at, blanks);
        to += blanks;
        at += blanks;
        size_t length = strcspn(at, " ");
        memmove(to, at, length);
        at += length;
        to += length > TEXT_WORD_BYTES ? leave_out_middle(to, length, TEXT_WORD_BYTES) : length;
    }
    *to = '\0';
    return (size_t)(to - text);
}

const char *text_printable(const char *text, char *out, size_t out_bytes) {
    char few[4096] = "";
    size_t bytes = strlen(text);
    char *work = few;
    if (bytes > (sizeof few - 1) / 4) {
        work = malloc(4 * bytes + 1);
        if (!work) { /* then its beginning */
            work = few;
            bytes = (sizeof few - 1) / 4;
        }
    }
    escape(text, bytes, work);
    size_t length = shorten_words(work);
    if (length >= out_bytes)
        length = leave_out_middle(work, length, out_bytes);
    memcpy(out, work, length);
    out[length] = '\0';
    if (work != few)
        free(work);
    return out;
}

bool text_may_be_secret(const char *text) {
    return strstr(text, "://") || strchr(text, '@');
}

const char *text_unless_secret(const char *text) {
    return text_may_be_secret(text) ? "..." : text;
}

int text_check_name(const char *what, const char *text, size_t max) {
    size_t length = strlen(text);
    if (length == 0)
        return err_set(ERR_ARGUMENT, "the %s is empty", what);
    if (length > max)
        return err_set(ERR_ARGUMENT, "the %s '%s' is longer than %zu characters", what, text, max);
    if (text[0] == '.' || text[0] == '-')
        return err_set(ERR_ARGUMENT, "the %s '%s' may not begin with '%c'", what, text, text[0]);
    for (const char *at = text; *at; at++) {
        bool letter = (*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z');
        if (!letter && !is_digit(*at) && *at != '.' && *at != '_' && *at != '-')
            return err_set(ERR_ARGUMENT,
                           "the %s '%s' may hold only letters, digits, '.', '_' and '-'", what,
                           text);
    }
    return 0;
}

/* Writing text. cJSON's printer is not used: it knows no depth limit, and its numbers follow the
 * locale and do not always read back equal. */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/json.h"
#include "core/text.h"

typedef struct Writer {
    Buf *buf;
    locale_t c; /* the "C" locale, which is the thread's, too, while writing */
    bool pretty;
    int depth;
} Writer;

/* The shortest of 15, 16 and 17 digits that reads back equal; whole numbers without an exponent
 * as long as a double counts them. */
static int write_number(Writer *writer, double value) {
    if (!isfinite(value))
        return err_set(ERR_ARGUMENT, "a number that is not finite cannot be written as JSON");
    char text[40];
    if (value == floor(value) && fabs(value) < 0x1p53 && !(value == 0 && signbit(value))) {
        snprintf(text, sizeof text, "%lld", (long long)value);
        return buf_text(writer->buf, text);
    }
    double back = NAN;
    for (int digits = 15; digits <= 17 && back != value; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        back = strtod_l(text, NULL, writer->c);
    }
    return buf_text(writer->buf, text);
}

/* Bytes that are not UTF-8 (a name from outside in an error message) become U+FFFD, so that the
 * text is JSON whatever it carries. */
static int write_string(Buf *buf, const char *text) {
    static const char escaped[] = "\"\\\b\f\n\r\t";
    static const char letters[] = "\"\\bfnrt";
    size_t bytes = strlen(text);
    TRY(buf_add(buf, "\"", 1));
    for (size_t at = 0; at < bytes;) {
        unsigned char c = (unsigned char)text[at];
        size_t plain = 0;
        while (at + plain < bytes && (unsigned char)text[at + plain] >= ' ' &&
               (unsigned char)text[at + plain] < 0x80 && text[at + plain] != '"' &&
               text[at + plain] != '\\')
            plain++;
        if (plain) {
            TRY(buf_add(buf, text + at, plain));
            at += plain;
            continue;
        }
        if (c >= 0x80) {
            size_t length = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
            bool valid = length <= bytes - at && text_is_utf8(text + at, length);
            TRY(valid ? buf_add(buf, text + at, length) : buf_text(buf, "\xEF\xBF\xBD"));
            at += valid ? length : 1;
            continue;
        }
        const char *letter = strchr(escaped, c);
        if (letter)
            TRY(buf_printf(buf, "\\%c", letters[letter - escaped]));
        else
            TRY(buf_printf(buf, "\\u%04x", c));
        at++;
    }
    return buf_add(buf, "\"", 1);
}

static int write_break(Writer *writer) {
    static const char blanks[2 * JSON_MAX_DEPTH + 1] =
        "                                                                "
        "                                                                ";
    TRY(buf_add(writer->buf, "\n", 1));
    return buf_add(writer->buf, blanks, 2 * (size_t)writer->depth);
}

static bool has_containers(const cJSON *value) {
    for (const cJSON *item = value->child; item; item = item->next) {
        if (cJSON_IsObject(item) || cJSON_IsArray(item))
            return true;
    }
    return false;
}

static int write_value(Writer *writer, const cJSON *value);

/* Pretty: one member a line, but an array of plain values on one line. */
static int write_container(Writer *writer, const cJSON *value) {
    bool object = cJSON_IsObject(value);
    bool lines = writer->pretty && value->child && (object || has_containers(value));
    if (++writer->depth > JSON_MAX_DEPTH)
        return err_set(ERR_LIMIT, "JSON nested deeper than %d cannot be written", JSON_MAX_DEPTH);
    TRY(buf_text(writer->buf, object ? "{" : "["));
    for (const cJSON *item = value->child; item; item = item->next) {
        if (lines)
            TRY(write_break(writer));
        if (object) {
            TRY(write_string(writer->buf, item->string ? item->string : ""));
            TRY(buf_text(writer->buf, writer->pretty ? ": " : ":"));
        }
        TRY(write_value(writer, item));
        if (item->next)
            TRY(buf_text(writer->buf, writer->pretty && !lines ? ", " : ","));
    }
    writer->depth--;
    if (lines)
        TRY(write_break(writer));
    return buf_text(writer->buf, object ? "}" : "]");
}

/* Recursion ends at JSON_MAX_DEPTH. */
static int write_value(Writer *writer, const cJSON *value) {
    if (cJSON_IsObject(value) || cJSON_IsArray(value))
        return write_container(writer, value);
    if (cJSON_IsString(value) && value->valuestring)
        return write_string(writer->buf, value->valuestring);
    if (cJSON_IsNumber(value))
        return write_number(writer, value->valuedouble);
    if (cJSON_IsBool(value))
        return buf_text(writer->buf, cJSON_IsTrue(value) ? "true" : "false");
    if (cJSON_IsNull(value))
        return buf_text(writer->buf, "null");
    return err_set(ERR_ARGUMENT, "a JSON value of an unknown kind cannot be written");
}

int json_format(const cJSON *value, bool pretty, Buf *buf) {
    if (!value)
        return err_set(ERR_ARGUMENT, "no JSON value to write");
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c)
        return err_set(ERR_MEMORY, "the C locale");
    locale_t before = uselocale(c);
    size_t bytes_before = buf->bytes;
    Writer writer = {.buf = buf, .c = c, .pretty = pretty};
    int rc = write_value(&writer, value);
    uselocale(before);
    freelocale(c);
    if (rc < 0 && buf->data) { /* nothing half-done */
        buf->bytes = bytes_before;
        buf->data[bytes_before] = '\0';
    }
    return rc;
}

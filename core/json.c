/* Reading text: a scan by the grammar of RFC 8259 comes first, so that every refusal has its line
 * and column and cJSON, which is more lenient, sees only what it reads right. */
#include "core/json.h"

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/text.h"

/* cJSON keeps a number of at most this many characters. */
enum { JSON_MAX_NUMBER_CHARS = 63 };

typedef struct Scan {
    const char *what;
    const char *text;
    size_t bytes;
    size_t at;
    int depth;
} Scan;

__attribute__((format(printf, 2, 3))) static int scan_error(const Scan *scan, const char *format,
                                                            ...) {
    size_t line = 1;
    size_t column = 1;
    for (size_t i = 0; i < scan->at && i < scan->bytes; i++) {
        if (scan->text[i] == '\n') {
            line++;
            column = 1;
        } else if (((unsigned char)scan->text[i] & 0xC0) != 0x80) {
            column++; /* characters, not bytes */
        }
    }
    char words[256];
    va_list args;
    va_start(args, format);
    vsnprintf(words, sizeof words, format, args);
    va_end(args);
    return err_set(ERR_FORMAT, "%s: line %zu, column %zu: %s", scan->what, line, column, words);
}

/* The byte at the cursor; 0 at the end (a NUL byte in the text is refused everywhere alike). */
static unsigned char scan_peek(const Scan *scan) {
    return scan->at < scan->bytes ? (unsigned char)scan->text[scan->at] : 0;
}

static int scan_expected(const Scan *scan, const char *expected) {
    unsigned char c = scan_peek(scan);
    if (scan->at >= scan->bytes)
        return scan_error(scan, "expected %s, found the end of the text", expected);
    if (c == '/')
        return scan_error(scan, "expected %s, found '/' (comments are not allowed)", expected);
    if (c > ' ' && c < 0x7F)
        return scan_error(scan, "expected %s, found '%c'", expected, c);
    return scan_error(scan, "expected %s, found the byte 0x%02x", expected, c);
}

static void scan_blanks(Scan *scan) {
    for (;;) {
        unsigned char c = scan_peek(scan);
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r')
            return;
        scan->at++;
    }
}

/* Four hexadecimal digits at the cursor, which moves behind them. */
static int scan_hex4(Scan *scan) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        unsigned char c = scan_peek(scan);
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return scan_expected(scan, "four hexadecimal digits after \\u");
        value = value * 16 + digit;
        scan->at++;
    }
    return value;
}

/* The cursor is behind the backslash. */
static int scan_escape(Scan *scan) {
    unsigned char c = scan_peek(scan);
    if (c == 0 || !strchr("\"\\/bfnrtu", c))
        return scan_expected(scan, "one of \"\\/bfnrtu after the backslash");
    scan->at++;
    if (c != 'u')
        return 0;
    int code = scan_hex4(scan);
    TRY(code);
    if (code == 0)
        return scan_error(scan, "\\u0000 is not allowed in a string");
    if (code < 0xD800 || code > 0xDFFF)
        return 0;
    if (code > 0xDBFF || scan_peek(scan) != '\\')
        return scan_error(scan, "half a surrogate pair: \\u%04x", (unsigned)code);
    scan->at++;
    if (scan_peek(scan) != 'u')
        return scan_error(scan, "half a surrogate pair: \\u%04x", (unsigned)code);
    scan->at++;
    int low = scan_hex4(scan);
    TRY(low);
    if (low < 0xDC00 || low > 0xDFFF)
        return scan_error(scan, "half a surrogate pair: \\u%04x", (unsigned)code);
    return 0;
}

static int scan_string(Scan *scan) {
    scan->at++;
    for (;;) {
        if (scan->at >= scan->bytes)
            return scan_error(scan, "expected '\"' at the end of a string, found the end of the "
                                    "text");
        unsigned char c = scan_peek(scan);
        if (c == '"') {
            scan->at++;
            return 0;
        }
        if (c < ' ')
            return scan_error(scan,
                              "the control character 0x%02x in a string must be written "
                              "\\u%04x",
                              c, c);
        if (c == '\\') {
            scan->at++;
            TRY(scan_escape(scan));
            continue;
        }
        size_t length = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
        if (length > scan->bytes - scan->at || !text_is_utf8(scan->text + scan->at, length))
            return scan_error(scan, "the byte 0x%02x is not valid UTF-8 here", c);
        scan->at += length;
    }
}

static int scan_digits(Scan *scan, const char *where) {
    if (scan_peek(scan) < '0' || scan_peek(scan) > '9')
        return scan_expected(scan, where);
    while (scan_peek(scan) >= '0' && scan_peek(scan) <= '9')
        scan->at++;
    return 0;
}

static int scan_number(Scan *scan) {
    size_t first = scan->at;
    Scan begin = *scan;
    if (scan_peek(scan) == '-')
        scan->at++;
    if (scan_peek(scan) == '0') {
        scan->at++;
        if (scan_peek(scan) >= '0' && scan_peek(scan) <= '9')
            return scan_error(scan, "a number may not have leading zeros");
    } else {
        TRY(scan_digits(scan, "a digit"));
    }
    if (scan_peek(scan) == '.') {
        scan->at++;
        TRY(scan_digits(scan, "a digit after the decimal point"));
    }
    if (scan_peek(scan) == 'e' || scan_peek(scan) == 'E') {
        scan->at++;
        if (scan_peek(scan) == '+' || scan_peek(scan) == '-')
            scan->at++;
        TRY(scan_digits(scan, "a digit in the exponent"));
    }
    size_t length = scan->at - first;
    if (length > JSON_MAX_NUMBER_CHARS)
        return scan_error(&begin, "a number of %zu characters (at most %d)", length,
                          JSON_MAX_NUMBER_CHARS);
    char number[JSON_MAX_NUMBER_CHARS + 1];
    memcpy(number, scan->text + first, length);
    number[length] = '\0';
    double value;
    if (text_parse_f64(number, &value) < 0)
        return scan_error(&begin, "the number %s is not finite", number);
    return 0;
}

static int scan_word(Scan *scan, const char *word) {
    size_t length = strlen(word);
    if (scan->bytes - scan->at < length || memcmp(scan->text + scan->at, word, length) != 0)
        return scan_expected(scan, "a value");
    scan->at += length;
    return 0;
}

static int scan_value(Scan *scan);

/* An object or array, the cursor on its opening bracket. */
static int scan_container(Scan *scan, bool object) {
    unsigned char closing = object ? '}' : ']';
    if (++scan->depth > JSON_MAX_DEPTH)
        return scan_error(scan, "nested deeper than %d", JSON_MAX_DEPTH);
    scan->at++;
    scan_blanks(scan);
    bool empty = scan_peek(scan) == closing;
    while (!empty) {
        if (object) {
            if (scan_peek(scan) != '"')
                return scan_expected(scan, "a key in double quotes");
            TRY(scan_string(scan));
            scan_blanks(scan);
            if (scan_peek(scan) != ':')
                return scan_expected(scan, "':' after the key");
            scan->at++;
            scan_blanks(scan);
        }
        TRY(scan_value(scan));
        scan_blanks(scan);
        if (scan_peek(scan) == closing)
            break;
        if (scan_peek(scan) != ',')
            return scan_expected(scan, object ? "',' or '}'" : "',' or ']'");
        scan->at++;
        scan_blanks(scan);
    }
    scan->at++;
    scan->depth--;
    return 0;
}

/* Recursion ends at JSON_MAX_DEPTH. */
static int scan_value(Scan *scan) {
    unsigned char c = scan_peek(scan);
    switch (c) {
    case '{':
        return scan_container(scan, true);
    case '[':
        return scan_container(scan, false);
    case '"':
        return scan_string(scan);
    case 't':
        return scan_word(scan, "true");
    case 'f':
        return scan_word(scan, "false");
    case 'n':
        return scan_word(scan, "null");
    default:
        if (c == '-' || (c >= '0' && c <= '9'))
            return scan_number(scan);
        return scan_expected(scan, "a value");
    }
}

static int compare_keys(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Are the keys of one object all different? `path` names the object in the error. */
static int check_keys(const char *what, const cJSON *object, const char *path) {
    enum { FEW = 32 };
    const char *few[FEW];
    size_t n_keys = 0;
    for (const cJSON *item = object->child; item; item = item->next)
        n_keys++;
    const char **keys = n_keys <= FEW ? few : malloc(n_keys * sizeof *keys);
    if (!keys)
        return err_set(ERR_MEMORY, "%s: %zu keys of %s", what, n_keys, path);
    size_t n = 0;
    for (const cJSON *item = object->child; item; item = item->next)
        keys[n++] = item->string;
    if (n > 1)
        qsort(keys, n, sizeof *keys, compare_keys);
    int rc = 0;
    for (size_t i = 1; i < n && rc == 0; i++) {
        if (strcmp(keys[i - 1], keys[i]) == 0)
            rc = err_set(ERR_FORMAT, "%s: duplicate key '%s' in %s", what, keys[i], path);
    }
    if (keys != few)
        free(keys);
    return rc;
}

/* Check the keys of all objects in `value`. `path` has JSON_PATH_BYTES; the names of children are
 * put behind its first `length` bytes (and cut where they do not fit). */
static int check_all_keys(const char *what, const cJSON *value, char *path, size_t length) {
    if (cJSON_IsObject(value))
        TRY(check_keys(what, value, path));
    int index = 0;
    for (const cJSON *item = value->child; item; item = item->next, index++) {
        if (!item->child)
            continue;
        int n = item->string
                    ? snprintf(path + length, JSON_PATH_BYTES - length, ".%s", item->string)
                    : snprintf(path + length, JSON_PATH_BYTES - length, "[%d]", index);
        size_t end = length + (n > 0 ? (size_t)n : 0);
        TRY(check_all_keys(what, item, path, end < JSON_PATH_BYTES ? end : JSON_PATH_BYTES - 1));
        path[length] = '\0';
    }
    return 0;
}

int json_parse(const char *what, const char *text, size_t bytes, size_t max_bytes,
               cJSON **out_value) {
    if (bytes > max_bytes)
        return err_set(ERR_LIMIT, "%s: %zu bytes of JSON (at most %zu are allowed)", what, bytes,
                       max_bytes);
    Scan scan = {.what = what, .text = text, .bytes = bytes};
    scan_blanks(&scan);
    TRY(scan_value(&scan));
    scan_blanks(&scan);
    if (scan.at < bytes)
        return scan_expected(&scan, "the end of the text");
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c)
        return err_set(ERR_MEMORY, "%s: the C locale", what);
    locale_t before = uselocale(c); /* cJSON reads numbers by the thread's locale */
    cJSON *value = cJSON_ParseWithLength(text, bytes);
    uselocale(before);
    freelocale(c);
    if (!value)
        return err_set(ERR_MEMORY, "%s: the tree of %zu bytes of JSON", what, bytes);
    char path[JSON_PATH_BYTES] = "$";
    int rc = check_all_keys(what, value, path, 1);
    if (rc < 0) {
        cJSON_Delete(value);
        return rc;
    }
    *out_value = value;
    return 0;
}

int json_parse_file(const char *path, size_t max_bytes, cJSON **out_value) {
    Buf text;
    buf_init(&text, 0);
    int rc = buf_read_file(&text, path, max_bytes);
    if (rc >= 0)
        rc = json_parse(path, buf_string(&text), text.bytes, max_bytes, out_value);
    buf_done(&text);
    return rc;
}

/* ---- --set ---- */

/* `text` as JSON, or as a string where it is none; the error note stays as it was. */
static int parse_or_string(const char *dotted_path, const char *text, cJSON **out_value) {
    size_t bytes = strlen(text);
    if (!text_is_utf8(text, bytes))
        return err_set(ERR_FORMAT, "the value of '%s' is not valid UTF-8", dotted_path);
    ErrNote before;
    err_copy(&before);
    cJSON *value = NULL;
    int rc = json_parse(dotted_path, text, bytes, SIZE_MAX, &value);
    if (rc == ERR_MEMORY)
        return rc;
    if (rc < 0) {
        err_restore(&before);
        value = cJSON_CreateString(text);
    }
    if (!value)
        return err_set(ERR_MEMORY, "the value of '%s'", dotted_path);
    *out_value = value;
    return 0;
}

/* Put `value` (taken in every case) under `key`, in the place of what is there. */
static int set_member(cJSON *object, const char *key, cJSON *value) {
    bool done = cJSON_GetObjectItemCaseSensitive(object, key)
                    ? cJSON_ReplaceItemInObjectCaseSensitive(object, key, value)
                    : cJSON_AddItemToObject(object, key, value);
    if (done)
        return 0;
    cJSON_Delete(value);
    return err_set(ERR_MEMORY, "the key '%s'", key);
}

/* keys[first..n) below `object`, whose keys[first] is absent or to be replaced. */
static int set_chain(cJSON *object, char *const *keys, int first, int n, cJSON *value) {
    for (int i = n - 1; i > first; i--) {
        cJSON *parent = cJSON_CreateObject();
        if (!parent) {
            cJSON_Delete(value);
            return err_set(ERR_MEMORY, "the key '%s'", keys[i]);
        }
        int rc = set_member(parent, keys[i], value);
        if (rc < 0) {
            cJSON_Delete(parent);
            return rc;
        }
        value = parent;
    }
    return set_member(object, keys[first], value);
}

int json_set(cJSON *root, const char *dotted_path, const char *text) {
    char *keys[JSON_MAX_DEPTH];
    int n = 0;
    int rc = 0;
    cJSON *value = NULL;
    char *copy = strdup(dotted_path);
    if (!copy)
        return err_set(ERR_MEMORY, "the path '%s'", dotted_path);
    char *rest = copy;
    for (char *key = strsep(&rest, "."); key; key = strsep(&rest, ".")) {
        if (n >= JSON_MAX_DEPTH || !*key) {
            rc = *key ? err_set(ERR_LIMIT, "'%s' has more than %d parts", dotted_path,
                                JSON_MAX_DEPTH)
                      : err_set(ERR_ARGUMENT, "'%s' has an empty part", dotted_path);
            goto done;
        }
        keys[n++] = key;
    }
    cJSON *object = root;
    int first = 0;
    for (;; first++) { /* down to the last object that exists */
        if (!cJSON_IsObject(object)) {
            rc = first ? err_set(ERR_ARGUMENT, "'%s': '%s' is not an object", dotted_path,
                                 keys[first - 1])
                       : err_set(ERR_ARGUMENT, "'%s': the document is not an object", dotted_path);
            goto done;
        }
        cJSON *next = cJSON_GetObjectItemCaseSensitive(object, keys[first]);
        if (!next || first == n - 1)
            break;
        object = next;
    }
    TRY_DONE(text_is_utf8(copy, strlen(dotted_path))
                 ? 0
                 : err_set(ERR_FORMAT, "the path of a setting is not valid UTF-8"));
    TRY_DONE(parse_or_string(dotted_path, text, &value));
    rc = set_chain(object, keys, first, n, value);
done:
    free(copy);
    return rc;
}

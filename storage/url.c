#include "storage/url.h"

#include <string.h>

#include "core/err.h"

enum { MAX_NAME = 32, MAX_VALUE = 1024 };

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

int url_decode(const char *what, const char *from, const char *end, char *out, size_t out_bytes) {
    size_t n = 0;
    while (from < end) {
        char c = *from++;
        if (c == '%') {
            int high = end - from >= 2 ? hex_digit(from[0]) : -1;
            int low = end - from >= 2 ? hex_digit(from[1]) : -1;
            if (high < 0 || low < 0)
                return err_set(ERR_ARGUMENT,
                               "the relay's URL: %s has a '%%' that no two hex digits follow",
                               what);
            c = (char)(high * 16 + low);
            from += 2;
        }
        if ((unsigned char)c < ' ' || c == 127)
            return err_set(ERR_ARGUMENT, "the relay's URL: %s has a control character", what);
        if (n + 1 >= out_bytes)
            return err_set(ERR_ARGUMENT, "the relay's URL: %s is longer than %zu bytes", what,
                           out_bytes - 1);
        out[n++] = c;
    }
    out[n] = '\0';
    return 0;
}

int url_parameters(const char *text, UrlTake take, void *ctx) {
    while (*text) {
        char name[MAX_NAME];
        char value[MAX_VALUE];
        const char *end = text + strcspn(text, "&");
        const char *equals = memchr(text, '=', (size_t)(end - text));
        if (!equals)
            return err_set(ERR_ARGUMENT, "the relay's URL: a parameter without '='");
        TRY(url_decode("a parameter's name", text, equals, name, sizeof name));
        TRY(url_decode(name, equals + 1, end, value, sizeof value));
        TRY(take(ctx, text, name, value));
        text = *end ? end + 1 : end;
    }
    return 0;
}

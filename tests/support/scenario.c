#include "tests/support/scenario.h"

#include <stdarg.h>
#include <stdio.h>

int scenario_fail(char *why, size_t why_bytes, const char *file, int line, const char *format,
                  ...) {
    int n = snprintf(why, why_bytes, "%s:%d: ", file, line);
    if (n < 0 || (size_t)n >= why_bytes)
        return -1;
    va_list args;
    va_start(args, format);
    vsnprintf(why + n, why_bytes - (size_t)n, format, args);
    va_end(args);
    return -1;
}

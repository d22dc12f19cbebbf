#include "core/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"

enum { LOG_LINE_BYTES = 2048 };

static const char *const level_names[] = {"error", "warn", "info"};

static void write_all(const char *line, size_t bytes) {
    while (bytes > 0) {
        ssize_t n = write(STDERR_FILENO, line, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return; /* nowhere left to complain to */
        line += n;
        bytes -= (size_t)n;
    }
}

void log_line(LogLevel level, const char *module, const char *format, ...) {
    int errno_before = errno;
    char wall[32];
    clock_format_wall(clock_wall_ms(), wall, sizeof wall);
    char line[LOG_LINE_BYTES];
    /* "2026-01-31T12:00:00.123Z": the time of day is the part a reader wants. */
    int n =
        snprintf(line, sizeof line, "%.12s %-5s %.32s: ", wall + 11, level_names[level], module);
    size_t at = n > 0 ? (size_t)n : 0;
    va_list args;
    va_start(args, format);
    n = vsnprintf(line + at, sizeof line - at - 1, format, args);
    va_end(args);
    size_t end = at + (n > 0 ? (size_t)n : 0);
    if (end > sizeof line - 2)
        end = sizeof line - 2;
    for (size_t i = at; i < end; i++) {
        if ((unsigned char)line[i] < ' ')
            line[i] = ' '; /* one record stays one line, whatever text it carries */
    }
    line[end] = '\n';
    write_all(line, end + 1);
    errno = errno_before;
}

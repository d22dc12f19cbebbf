/* Log lines to stderr, one write(2) a line: "12:00:00.123 info  conductor: words". Only process
 * edges log (the conductor, the worker's main, the CLI); library code returns errors instead. */
#ifndef FUNCPIPE_CORE_LOG_H
#define FUNCPIPE_CORE_LOG_H

typedef enum LogLevel { LOG_ERROR, LOG_WARN, LOG_INFO } LogLevel;

void log_line(LogLevel level, const char *module, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define LOG_E(module, ...) log_line(LOG_ERROR, module, __VA_ARGS__)
#define LOG_W(module, ...) log_line(LOG_WARN, module, __VA_ARGS__)
#define LOG_I(module, ...) log_line(LOG_INFO, module, __VA_ARGS__)

#endif

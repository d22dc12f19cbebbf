#include "core/clock.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

int64_t clock_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * CLOCK_NS_PER_S + now.tv_nsec;
}

int64_t clock_wall_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / CLOCK_NS_PER_MS;
}

int64_t clock_deadline_ms(int64_t from_now_ms) {
    int64_t now = clock_now_ns();
    if (from_now_ms <= 0)
        return now;
    if (from_now_ms > (CLOCK_NEVER - now) / CLOCK_NS_PER_MS)
        return CLOCK_NEVER;
    return now + from_now_ms * CLOCK_NS_PER_MS;
}

void clock_sleep_until(int64_t deadline_ns) {
    if (deadline_ns <= 0)
        return;
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / CLOCK_NS_PER_S),
                             .tv_nsec = (long)(deadline_ns % CLOCK_NS_PER_S)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
    }
}

const char *clock_format_wall(int64_t wall_ms, char *buf, int buf_bytes) {
    int ms = (int)(wall_ms % 1000);
    time_t seconds = (time_t)(wall_ms / 1000);
    if (ms < 0) { /* before 1970: round down */
        ms += 1000;
        seconds--;
    }
    struct tm utc;
    if (buf_bytes <= 0)
        return buf;
    if (!gmtime_r(&seconds, &utc)) {
        snprintf(buf, (size_t)buf_bytes, "(no time)");
        return buf;
    }
    snprintf(buf, (size_t)buf_bytes, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900,
             utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, ms);
    return buf;
}

/* Time. Deadlines are absolute times of the monotonic clock in nanoseconds. */
#ifndef FUNCPIPE_CORE_CLOCK_H
#define FUNCPIPE_CORE_CLOCK_H

#include <stdint.h>

#define CLOCK_NS_PER_US INT64_C(1000)
#define CLOCK_NS_PER_MS INT64_C(1000000)
#define CLOCK_NS_PER_S INT64_C(1000000000)
#define CLOCK_NEVER INT64_MAX

int64_t clock_now_ns(void);  /* monotonic */
int64_t clock_wall_ms(void); /* since 1970-01-01 UTC; for people and heartbeats only */
int64_t clock_deadline_ms(int64_t from_now_ms); /* absolute; saturates at CLOCK_NEVER */
void clock_sleep_until(int64_t deadline_ns);
/* "2026-01-31T12:00:00.123Z" into buf (>= 32 bytes); returns buf. */
const char *clock_format_wall(int64_t wall_ms, char *buf, int buf_bytes);

#endif

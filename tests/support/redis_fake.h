/* Something on a port that answers as a Redis server might, one connection after the other: fine by
 * default, and by rules else. In a thread of the test. */
#ifndef FUNCPIPE_TESTS_REDIS_FAKE_H
#define FUNCPIPE_TESTS_REDIS_FAKE_H

#include <stdint.h>

typedef enum FakeWay {
    FAKE_SAY,     /* the text */
    FAKE_FOREVER, /* the text again and again, until the client is gone */
    FAKE_SILENT,  /* nothing, from here on */
    FAKE_HANG_UP
} FakeWay;

typedef struct FakeRule {
    const char *command; /* "PING"; NULL: as soon as the connection is there */
    const char *text;    /* bytes of the answer */
    FakeWay way;
    int n_times; /* the first n of these commands; 0: all */
} FakeRule;

enum { FAKE_LOG_BYTES = 4096, FAKE_MAX_RULES = 8 };

typedef struct RedisFake RedisFake;
/* `rules`: ended by one without a command and a text, borrowed until the stop; NULL: none. */
int redis_fake_start(const FakeRule *rules, RedisFake **out_fake);
void redis_fake_stop(RedisFake *fake);
int redis_fake_port(const RedisFake *fake);
/* The first words of the commands so far, with a "(" for each connection: "(AUTH SELECT PING". */
void redis_fake_log(RedisFake *fake, char out_log[FAKE_LOG_BYTES]);

#endif

/* Notice: a line for people when something takes longer than a second, such as reading data. */
#ifndef FUNCPIPE_COORDINATOR_NOTICE_H
#define FUNCPIPE_COORDINATOR_NOTICE_H

#include <pthread.h>
#include <stdbool.h>

typedef struct Notice {
    const char *text;
    bool json, running, ended;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} Notice;

enum { NOTICE_AFTER_MS = 1000 };

/* On stderr, or with `json` as a line {"event":"preparing","text":..} on stdout. `text` is borrowed
 * until notice_end; nothing else is printed in between. */
void notice_begin(Notice *notice, bool json, const char *text);
void notice_end(Notice *notice);

#endif

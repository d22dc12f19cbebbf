#include "coordinator/notice.h"

#include <string.h>
#include <time.h>

#include "coordinator/progress.h"
#include "core/clock.h"

static void *notice_thread(void *arg) {
    Notice *notice = arg;
    Progress progress;
    int64_t end_ns = clock_deadline_ms(NOTICE_AFTER_MS);
    struct timespec end = {.tv_sec = (time_t)(end_ns / CLOCK_NS_PER_S),
                           .tv_nsec = (long)(end_ns % CLOCK_NS_PER_S)};
    pthread_setname_np(pthread_self(), "notice");
    pthread_mutex_lock(&notice->lock);
    while (!notice->ended && pthread_cond_timedwait(&notice->changed, &notice->lock, &end) == 0) {
    }
    if (!notice->ended) {
        progress_init(&progress, notice->json, false);
        progress_say(&progress, "preparing", "%s", notice->text);
    }
    pthread_mutex_unlock(&notice->lock);
    return NULL;
}

void notice_begin(Notice *notice, bool json, const char *text) {
    pthread_condattr_t attributes;
    memset(notice, 0, sizeof *notice);
    notice->json = json;
    notice->text = text;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&notice->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&notice->lock, NULL);
    notice->running = pthread_create(&notice->thread, NULL, notice_thread, notice) == 0;
}

void notice_end(Notice *notice) {
    pthread_mutex_lock(&notice->lock);
    notice->ended = true;
    pthread_cond_broadcast(&notice->changed);
    pthread_mutex_unlock(&notice->lock);
    if (notice->running)
        pthread_join(notice->thread, NULL);
    pthread_mutex_destroy(&notice->lock);
    pthread_cond_destroy(&notice->changed);
}

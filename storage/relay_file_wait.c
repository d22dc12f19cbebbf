/* Waiting in the file relay: inotify on the object's directory, and an eventfd for interruption.
 * The order "watch, then look, then sleep" loses no object: one that appears after the look leaves
 * an event. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/relay_file.h"

/* Without inotify (too many instances or watches of this user) the object is looked for this
 * often; counters.n_retries tells. */
enum { LOOK_EVERY_MS = 5 };

/* Read all events. True when the object may have appeared (its name came, or events were lost) or
 * the watch has gone (then file->watch is -1). */
static bool drain_events(RelayFile *file, const char *name) {
    _Alignas(struct inotify_event) char events[4096];
    bool look = false;
    for (;;) {
        ssize_t n = read(file->inotify_fd, events, sizeof events);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return look;
        for (const char *at = events; at < events + n;) {
            const struct inotify_event *event = (const void *)at;
            at += sizeof *event + event->len;
            bool ours = event->wd == file->watch;
            bool gone = ours && event->mask & (IN_IGNORED | IN_DELETE_SELF | IN_UNMOUNT);
            bool named = ours && event->len > 0 && strcmp(event->name, name) == 0;
            if (gone)
                file->watch = -1;
            look = look || gone || named || event->mask & IN_Q_OVERFLOW;
        }
    }
}

/* Watch the place's directory, made if missing. *out_watched: false when inotify is exhausted. */
static int watch_dir(RelayFile *file, const FilePlace *place, const char *key, bool *out_watched) {
    *out_watched = false;
    if (file->inotify_fd < 0)
        file->inotify_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (file->inotify_fd < 0)
        return 0;
    char dir[PATH_MAX];
    memcpy(dir, place->path, place->dir_bytes);
    dir[place->dir_bytes] = '\0';
    drain_events(file, "");
    if (file->watch >= 0 && strcmp(file->watched_dir, dir) == 0) {
        *out_watched = true;
        return 0;
    }
    if (file->watch >= 0)
        inotify_rm_watch(file->inotify_fd, file->watch);
    for (int tries = 0;; tries++) {
        file->watch =
            inotify_add_watch(file->inotify_fd, dir, IN_CREATE | IN_DELETE_SELF | IN_ONLYDIR);
        if (file->watch >= 0)
            break;
        if (errno == ENOSPC || errno == ENOMEM)
            return 0;
        if (errno != ENOENT || tries == RELAY_FILE_TRIES)
            return relay_file_error(file, "watching for", key);
        if (relay_file_make_dirs(file, place) < 0 && errno != ENOENT)
            return relay_file_error(file, "making the directory of", key);
    }
    memcpy(file->watched_dir, dir, place->dir_bytes + 1);
    *out_watched = true;
    return 0;
}

static int check_wait(RelayFile *file, const char *key, int64_t began_ns, int64_t deadline_ns) {
    if (atomic_load(&file->interrupted))
        return err_set(ERR_CANCELLED, "getting '%s' in file://%s was interrupted", key, file->root);
    int64_t now = clock_now_ns();
    if (now < deadline_ns)
        return 0;
    return err_set(ERR_TIMEOUT, "getting '%s' in file://%s: not there after %lld ms", key,
                   file->root, (long long)((now - began_ns) / CLOCK_NS_PER_MS));
}

/* Sleep until an event may matter, the deadline or an interruption. */
static void sleep_watching(RelayFile *file, const char *name, bool watched, int64_t deadline_ns) {
    struct pollfd fds[2] = {{.fd = file->wake_fd, .events = POLLIN},
                            {.fd = watched ? file->inotify_fd : -1, .events = POLLIN}};
    for (;;) {
        int64_t rest = deadline_ns - clock_now_ns();
        if (rest <= 0)
            return;
        if (!watched && rest > LOOK_EVERY_MS * CLOCK_NS_PER_MS)
            rest = LOOK_EVERY_MS * CLOCK_NS_PER_MS;
        struct timespec timeout = {.tv_sec = (time_t)(rest / CLOCK_NS_PER_S),
                                   .tv_nsec = (long)(rest % CLOCK_NS_PER_S)};
        int n = ppoll(fds, 2, &timeout, NULL);
        if (!watched || n == 0 || (n > 0 && fds[0].revents) || drain_events(file, name))
            return;
    }
}

int relay_file_await(RelayFile *file, const char *key, int64_t deadline_ns) {
    FilePlace place;
    relay_file_place(file, key, '+', &place);
    const char *name = place.path + place.dir_bytes + 1;
    int64_t began_ns = clock_now_ns();
    bool watched = false;
    for (int looks = 0;; looks++) {
        int fd = open(place.path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0)
            return fd;
        if (errno == EINTR)
            continue;
        if (errno != ENOENT)
            return relay_file_error(file, "opening", key);
        TRY(check_wait(file, key, began_ns, deadline_ns));
        if (looks == 0)
            file->base.counters.n_waits++;
        if (!watched || file->watch < 0) { /* watch, then look again before any sleep */
            TRY(watch_dir(file, &place, key, &watched));
            if (watched)
                continue;
            file->base.counters.n_retries++;
        }
        sleep_watching(file, name, watched, deadline_ns);
    }
}

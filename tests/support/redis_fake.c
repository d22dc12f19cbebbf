#include "tests/support/redis_fake.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/err.h"
#include "tests/support/loopback.h"

struct RedisFake {
    pthread_t thread;
    pthread_mutex_t lock; /* over the log */
    int listen_fd, stop_fd, port;
    const FakeRule *rules;
    int n_used[FAKE_MAX_RULES];
    char log[FAKE_LOG_BYTES];
    char input[1 << 20];
    size_t n_input;
};

static void add_log(RedisFake *fake, const char *word) {
    pthread_mutex_lock(&fake->lock);
    size_t n = strlen(fake->log);
    snprintf(fake->log + n, sizeof fake->log - n, "%s%s",
             n > 0 && fake->log[n - 1] != '(' ? " " : "", word);
    pthread_mutex_unlock(&fake->lock);
}

/* Wait for the socket: false when the test is over. */
static bool ready(const RedisFake *fake, int fd, short events) {
    struct pollfd fds[2] = {{fd, events, 0}, {fake->stop_fd, POLLIN, 0}};
    while (poll(fds, 2, -1) < 0)
        ;
    return fds[1].revents == 0;
}

static bool say(const RedisFake *fake, int fd, const char *text) {
    size_t left = strlen(text);
    while (left > 0) {
        if (!ready(fake, fd, POLLOUT))
            return false;
        ssize_t n = send(fd, text, left, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN)
            return false;
        text += n > 0 ? n : 0;
        left -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* Until the client is gone or the test over. */
static bool be_silent(const RedisFake *fake, int fd) {
    char nothing[4096];
    while (ready(fake, fd, POLLIN) && recv(fd, nothing, sizeof nothing, 0) > 0)
        ;
    return false;
}

static const char *usual(const char *command) {
    return strcmp(command, "PING") == 0     ? "+PONG\r\n"
           : strcmp(command, "INFO") == 0   ? "$21\r\nredis_version:7.0.15\n\r\n"
           : strcmp(command, "CONFIG") == 0 ? "*0\r\n"
           : strcmp(command, "EXISTS") == 0 ? ":0\r\n"
           : strcmp(command, "XREAD") == 0  ? "*-1\r\n"
                                            : "+OK\r\n";
}

/* Answer; command "": the connection is new. False: hang up. */
static bool answer(RedisFake *fake, int fd, const char *command) {
    for (int i = 0; fake->rules && (fake->rules[i].command || fake->rules[i].text); i++) {
        const FakeRule *rule = &fake->rules[i];
        if (strcmp(rule->command ? rule->command : "", command) != 0 ||
            (rule->n_times > 0 && fake->n_used[i] >= rule->n_times))
            continue;
        fake->n_used[i]++;
        if (rule->way == FAKE_SILENT)
            return be_silent(fake, fd);
        bool fine = rule->way != FAKE_HANG_UP && say(fake, fd, rule->text);
        while (fine && rule->way == FAKE_FOREVER)
            fine = say(fake, fd, rule->text);
        return fine;
    }
    return !command[0] || say(fake, fd, usual(command));
}

/* Take the next whole command off the input: its first word, or false when there is none yet. */
static bool next_command(RedisFake *fake, char word[32]) {
    char *at = fake->input;
    char *end = NULL;
    long n_args = *at == '*' ? strtol(at + 1, &end, 10) : -1;
    fake->input[fake->n_input] = '\0';
    if (n_args < 1 || end[0] != '\r')
        return false;
    at = end + 2;
    for (long i = 0; i < n_args; i++) {
        if (at >= fake->input + fake->n_input || *at != '$')
            return false;
        long bytes = strtol(at + 1, &end, 10);
        char *text = end + 2;
        if (*end != '\r' || text + bytes + 2 > fake->input + fake->n_input)
            return false;
        if (i == 0)
            snprintf(word, 32, "%.*s", (int)bytes, text);
        at = text + bytes + 2;
    }
    fake->n_input -= (size_t)(at - fake->input);
    memmove(fake->input, at, fake->n_input);
    return true;
}

static void serve(RedisFake *fake, int fd) {
    fake->n_input = 0;
    add_log(fake, "(");
    bool fine = answer(fake, fd, "");
    while (fine && ready(fake, fd, POLLIN)) {
        char word[32];
        ssize_t n =
            recv(fd, fake->input + fake->n_input, sizeof fake->input - fake->n_input - 1, 0);
        if (n <= 0)
            return;
        fake->n_input += (size_t)n;
        while (fine && next_command(fake, word)) {
            add_log(fake, word);
            fine = answer(fake, fd, word);
        }
    }
}

static void *fake_main(void *arg) {
    RedisFake *fake = arg;
    while (ready(fake, fake->listen_fd, POLLIN)) {
        int fd = accept4(fake->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
            serve(fake, fd);
            close(fd);
        }
    }
    return NULL;
}

int redis_fake_start(const FakeRule *rules, RedisFake **out_fake) {
    RedisFake *fake = calloc(1, sizeof *fake);
    if (!fake)
        return err_set(ERR_MEMORY, "a fake of Redis");
    fake->rules = rules;
    pthread_mutex_init(&fake->lock, NULL);
    fake->stop_fd = eventfd(0, EFD_CLOEXEC);
    fake->listen_fd = loopback_listen(0, &fake->port);
    if (fake->listen_fd < 0 || pthread_create(&fake->thread, NULL, fake_main, fake) != 0) {
        int rc = err_errno(ERR_IO, errno, "a fake of Redis");
        close(fake->listen_fd);
        close(fake->stop_fd);
        free(fake);
        return rc;
    }
    *out_fake = fake;
    return 0;
}

void redis_fake_stop(RedisFake *fake) {
    uint64_t one = 1;
    if (!fake)
        return;
    if (write(fake->stop_fd, &one, sizeof one) < 0)
        abort();
    pthread_join(fake->thread, NULL);
    close(fake->listen_fd);
    close(fake->stop_fd);
    pthread_mutex_destroy(&fake->lock);
    free(fake);
}

int redis_fake_port(const RedisFake *fake) {
    return fake->port;
}

void redis_fake_log(RedisFake *fake, char out_log[FAKE_LOG_BYTES]) {
    pthread_mutex_lock(&fake->lock);
    memcpy(out_log, fake->log, FAKE_LOG_BYTES);
    pthread_mutex_unlock(&fake->lock);
}

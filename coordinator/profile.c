#include "coordinator/profile.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/json.h"
#include "core/report.h"
#include "core/text.h"

enum { PROFILE_MAX_BYTES = 16 << 20, PROFILE_TICK_MS = 100 };

extern char **environ;

void profile_done(Profile *profile) {
    if (!profile)
        return;
    free(profile->forward_us);
    free(profile->backward_us);
    profile->forward_us = NULL;
    profile->backward_us = NULL;
    profile->n_layers = 0;
}

/* ---- what it prints ---- */

static int parse_layers(const cJSON *array, const char *path, Profile *profile) {
    if (!cJSON_IsArray(array))
        return err_set(ERR_FORMAT, "%s: expected an array", path);
    int n = cJSON_GetArraySize(array);
    profile->forward_us = calloc((size_t)n + 1, sizeof *profile->forward_us);
    profile->backward_us = calloc((size_t)n + 1, sizeof *profile->backward_us);
    if (!profile->forward_us || !profile->backward_us)
        return err_set(ERR_MEMORY, "the times of %d layers", n);
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, array) {
        JsonObject layer;
        TRY(json_object(item, path, &layer));
        TRY(json_get_f64(&layer, "forward_us", 0, 1e15, &profile->forward_us[profile->n_layers]));
        TRY(json_get_f64(&layer, "backward_us", 0, 1e15, &profile->backward_us[profile->n_layers]));
        TRY(json_end(&layer));
        profile->n_layers++;
    }
    return 0;
}

static int parse_root(const cJSON *root, Profile *profile) {
    JsonObject object;
    const char *isa = NULL;
    const cJSON *layers = NULL;
    char path[JSON_PATH_BYTES];
    TRY(json_object(root, "$", &object));
    TRY(json_get_string(&object, "isa", &isa));
    TRY(text_copy(profile->isa, sizeof profile->isa, isa));
    TRY(json_get(&object, "layers", &layers, path));
    TRY(parse_layers(layers, path, profile));
    return json_end(&object);
}

int profile_parse(const char *text, size_t bytes, Profile *out_profile) {
    cJSON *root = NULL;
    Profile profile = {0};
    TRY(json_parse("the worker's profile", text, bytes, PROFILE_MAX_BYTES, &root));
    int rc = parse_root(root, &profile);
    cJSON_Delete(root);
    if (rc < 0) {
        profile_done(&profile);
        return err_context(rc, "the worker's profile");
    }
    *out_profile = profile;
    return 0;
}

/* ---- running it ---- */

typedef struct Child {
    pid_t pid;
    int in, out; /* our ends; -1: closed */
} Child;

/* stdin and stdout are sockets, so that writing to a worker that has ended raises no SIGPIPE. */
static int child_start(const char *path, const char *flag, const char *value, Child *out_child) {
    int in[2] = {-1, -1};
    int out[2] = {-1, -1};
    int rc = 0;
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    char parent[24];
    snprintf(parent, sizeof parent, "%lld", (long long)getpid());
    char *argv[6] = {(char *)path, (char *)flag};
    int n = 2;
    if (value)
        argv[n++] = (char *)value;
    argv[n++] = (char *)"--parent-pid";
    argv[n++] = parent;
    argv[n] = NULL;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, out) < 0)
        rc = err_errno(ERR_IO, errno, "starting '%s'", path);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    if (rc >= 0) {
        posix_spawn_file_actions_adddup2(&files, in[1], STDIN_FILENO);
        posix_spawn_file_actions_adddup2(&files, out[1], STDOUT_FILENO);
        int errnum = posix_spawn(&out_child->pid, path, &files, &attributes, argv, environ);
        if (errnum)
            rc = err_errno(ERR_NOT_FOUND, errnum, "starting '%s'", path);
    }
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    if (in[1] >= 0)
        close(in[1]);
    if (out[1] >= 0)
        close(out[1]);
    out_child->in = in[0];
    out_child->out = out[0];
    return rc;
}

static void shut(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static int child_write(Child *child, Slice *rest) {
    ssize_t n = send(child->in, rest->data, rest->bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n > 0) {
        rest->data = (const char *)rest->data + n;
        rest->bytes -= (size_t)n;
    }
    if (n < 0 || rest->bytes == 0)
        shut(&child->in); /* a worker that has ended says why on its own */
    return 0;
}

/* 1: the output has ended. */
static int child_read(Child *child, Buf *text) {
    char part[4096];
    ssize_t n = recv(child->out, part, sizeof part, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0)
        return 1;
    return buf_add(text, part, (size_t)n);
}

/* Feed the input, collect the output until it ends. */
static int child_talk(Child *child, Slice input, int64_t timeout_ms, const atomic_bool *stop,
                      Buf *text) {
    const int64_t deadline_ns = clock_deadline_ms(timeout_ms);
    char limit[32];
    for (;;) {
        struct pollfd fds[2] = {{.fd = child->out, .events = POLLIN},
                                {.fd = child->in, .events = POLLOUT}};
        if (stop && atomic_load(stop))
            return err_set(ERR_CANCELLED, "profiling was cancelled");
        if (clock_now_ns() >= deadline_ns)
            return err_set(ERR_TIMEOUT, "the worker did not answer within %s",
                           text_exact_duration(timeout_ms, limit, sizeof limit));
        if (input.bytes == 0)
            shut(&child->in);
        if (poll(fds, child->in >= 0 ? 2 : 1, PROFILE_TICK_MS) <= 0)
            continue;
        if (child->in >= 0 && fds[1].revents)
            TRY(child_write(child, &input));
        if (fds[0].revents) {
            int ended = child_read(child, text);
            if (ended != 0)
                return ended < 0 ? ended : 0;
        }
    }
}

/* What a worker that has failed says: its result on the last line, or no more than words. */
static int failure(const char *path, const char *flag, int status, const char *text) {
    WorkerResult result;
    ErrNote before;
    size_t length = strlen(text);
    while (length > 0 && text[length - 1] == '\n')
        length--;
    size_t first = length;
    while (first > 0 && text[first - 1] != '\n')
        first--;
    err_copy(&before);
    int rc = report_parse_result(text + first, length - first, &result);
    err_restore(&before);
    if (rc >= 0 && result.code < 0)
        return err_set(result.code, "%s", result.text);
    return err_set(ERR_WORKER, "%s %s failed with status %d: %.*s", path, flag, status,
                   (int)(length < 200 ? length : 200), text);
}

/* `value` may be NULL. */
static int run(const char *path, const char *flag, const char *value, Slice input,
               int64_t timeout_ms, const atomic_bool *stop, Buf *text) {
    Child child = {.pid = -1, .in = -1, .out = -1};
    int status = 0;
    int rc = child_start(path, flag, value, &child);
    if (rc >= 0)
        rc = child_talk(&child, input, timeout_ms, stop, text);
    shut(&child.in);
    shut(&child.out);
    if (child.pid <= 0)
        return rc;
    if (rc < 0)
        kill(child.pid, SIGKILL);
    while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (rc < 0)
        return err_context(rc, "%s %s", path, flag);
    if (WIFSIGNALED(status))
        return err_set(ERR_WORKER, "%s %s was killed by signal %d", path, flag, WTERMSIG(status));
    if (WEXITSTATUS(status) != 0)
        return failure(path, flag, WEXITSTATUS(status), buf_string(text));
    return 0;
}

int profile_run(const char *worker_path, const Order *order, int64_t timeout_ms,
                const atomic_bool *stop, Profile *out_profile) {
    Buf input;
    Buf text;
    buf_init(&input, ORDER_MAX_BYTES);
    buf_init(&text, PROFILE_MAX_BYTES);
    int rc = order_format(order, &input);
    if (rc >= 0)
        rc = run(worker_path, "--profile", NULL, (Slice){input.data, input.bytes}, timeout_ms, stop,
                 &text);
    if (rc >= 0)
        rc = profile_parse(buf_string(&text), text.bytes, out_profile);
    buf_done(&input);
    buf_done(&text);
    return rc;
}

int profile_isa(const char *worker_path, const char *isa, int64_t timeout_ms,
                const atomic_bool *stop, Profile *out_profile) {
    Buf text;
    Profile profile = {0};
    buf_init(&text, 4096);
    int rc = run(worker_path, "--isa", isa, (Slice){NULL, 0}, timeout_ms, stop, &text);
    if (rc >= 0) {
        size_t length = strcspn(buf_string(&text), " \r\n");
        if (text.data)
            text.data[length] = '\0';
        rc = text_check_name("worker's instruction set", buf_string(&text), sizeof profile.isa - 1);
    }
    if (rc >= 0)
        rc = text_copy(profile.isa, sizeof profile.isa, buf_string(&text));
    buf_done(&text);
    if (rc >= 0)
        *out_profile = profile;
    return rc;
}

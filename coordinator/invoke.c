#include "coordinator/invoke.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/err.h"
#include "core/text.h"

/* What is kept of a worker's stdout: its result stands in the last line. */
enum { TAIL_BYTES = 16 << 10 };

typedef struct Worker Worker;
struct Worker {
    Invoker *invoker;
    Worker *next;
    WorkerId id;
    uv_process_t process;
    uv_pipe_t in, out;
    uv_write_t write;
    Buf order;
    char tail[TAIL_BYTES + 1];
    size_t tail_bytes;
    char chunk[4096];
    char log_path[PATH_MAX]; /* "": it has none */
    int n_open;              /* handles not yet closed */
    bool running;
};

struct Invoker {
    uv_loop_t *loop;
    char worker_path[PATH_MAX];
    char logs_folder[PATH_MAX];
    InvokeHost host;
    Worker *workers;
    int32_t n_running;
};

int invoke_open(uv_loop_t *loop, const char *worker_path, const char *logs_folder,
                const InvokeHost *host, Invoker **out_invoker) {
    Invoker *invoker = calloc(1, sizeof *invoker);
    if (!invoker)
        return err_set(ERR_MEMORY, "the invoker");
    invoker->loop = loop;
    invoker->host = *host;
    int rc = text_copy(invoker->worker_path, sizeof invoker->worker_path, worker_path);
    if (rc >= 0)
        rc = text_copy(invoker->logs_folder, sizeof invoker->logs_folder, logs_folder);
    if (rc < 0) {
        free(invoker);
        return rc;
    }
    *out_invoker = invoker;
    return 0;
}

void invoke_close(Invoker *invoker) {
    free(invoker);
}

int32_t invoke_running(const Invoker *invoker) {
    return invoker->n_running;
}

void invoke_kill_all(Invoker *invoker) {
    for (Worker *worker = invoker->workers; worker; worker = worker->next) {
        if (worker->running)
            uv_process_kill(&worker->process, SIGKILL);
    }
}

/* ---- the end of a worker ---- */

static void on_closed(uv_handle_t *handle) {
    Worker *worker = handle->data;
    if (--worker->n_open > 0)
        return;
    Worker **at = &worker->invoker->workers;
    while (*at && *at != worker)
        at = &(*at)->next;
    if (*at)
        *at = worker->next;
    buf_done(&worker->order);
    free(worker);
}

static void keep_tail(Worker *worker, const char *data, size_t bytes) {
    if (bytes > TAIL_BYTES) {
        data += bytes - TAIL_BYTES;
        bytes = TAIL_BYTES;
    }
    if (worker->tail_bytes + bytes > TAIL_BYTES) {
        size_t drop = worker->tail_bytes + bytes - TAIL_BYTES;
        memmove(worker->tail, worker->tail + drop, worker->tail_bytes - drop);
        worker->tail_bytes -= drop;
    }
    memcpy(worker->tail + worker->tail_bytes, data, bytes);
    worker->tail_bytes += bytes;
    worker->tail[worker->tail_bytes] = '\0';
}

/* The process has ended, so all it printed lies in the pipe by now. */
static void drain(Worker *worker) {
    uv_os_fd_t fd = -1;
    if (uv_is_closing((uv_handle_t *)&worker->out) ||
        uv_fileno((uv_handle_t *)&worker->out, &fd) < 0)
        return;
    for (;;) {
        ssize_t n = read(fd, worker->chunk, sizeof worker->chunk);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return;
        keep_tail(worker, worker->chunk, (size_t)n);
    }
}

/* The last line that is not empty. */
static const char *last_line(char *text) {
    size_t end = strlen(text);
    while (end > 0 && (text[end - 1] == '\n' || text[end - 1] == '\r'))
        text[--end] = '\0';
    char *newline = strrchr(text, '\n');
    return newline ? newline + 1 : text;
}

/* The end of a log that nobody can read later, its last line; "": there is none. */
static const char *end_of_log(const Worker *worker, char *text, size_t bytes) {
    FILE *file = fopen(worker->log_path, "re");
    if (!file)
        return "";
    if (fseek(file, -(long)(bytes - 1), SEEK_END) < 0)
        rewind(file); /* it is shorter */
    text[fread(text, 1, bytes - 1, file)] = '\0';
    fclose(file);
    return last_line(text);
}

/* A process that said nothing itself: where there is more. */
static void say_status(const Worker *worker, int64_t status, WorkerResult *result) {
    static const char words[] = "and without a result";
    char text[512];
    if (!worker->log_path[0])
        snprintf(result->text, sizeof result->text,
                 "ended with status %lld %s; its log could not be written", (long long)status,
                 words);
    else if (worker->invoker->host.logs_go)
        snprintf(result->text, sizeof result->text, "ended with status %lld %s; its log ends: %s",
                 (long long)status, words, end_of_log(worker, text, sizeof text));
    else
        snprintf(result->text, sizeof result->text, "ended with status %lld %s; see %.600s",
                 (long long)status, words, worker->log_path);
}

static void read_result(Worker *worker, int64_t status, int signal, WorkerResult *result) {
    const char *line = last_line(worker->tail);
    ErrNote before;
    err_copy(&before);
    memset(result, 0, sizeof *result);
    if (signal == 0 && line[0] && report_parse_result(line, strlen(line), result) >= 0) {
        err_restore(&before);
        return;
    }
    err_restore(&before);
    result->code = ERR_KILLED;
    result->step = -1;
    if (signal)
        snprintf(result->text, sizeof result->text, "killed by signal %d (%s)", signal,
                 strsignal(signal));
    else
        say_status(worker, status, result);
}

static void on_ended(uv_process_t *process, int64_t status, int signal) {
    Worker *worker = process->data;
    Invoker *invoker = worker->invoker;
    WorkerResult result;
    worker->running = false;
    invoker->n_running--;
    drain(worker);
    read_result(worker, status, signal, &result);
    WorkerId id = worker->id;
    if (!uv_is_closing((uv_handle_t *)&worker->in))
        uv_close((uv_handle_t *)&worker->in, on_closed);
    if (!uv_is_closing((uv_handle_t *)&worker->out))
        uv_close((uv_handle_t *)&worker->out, on_closed);
    uv_close((uv_handle_t *)process, on_closed);
    invoker->host.ended(invoker->host.ctx, id, &result);
}

/* ---- its beginning ---- */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf) {
    Worker *worker = handle->data;
    (void)suggested;
    *buf = uv_buf_init(worker->chunk, sizeof worker->chunk);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
    Worker *worker = stream->data;
    if (n > 0)
        keep_tail(worker, buf->base, (size_t)n);
    else if (n < 0)
        uv_close((uv_handle_t *)stream, on_closed);
}

/* Written, or the worker has ended and will say why. */
static void on_written(uv_write_t *request, int status) {
    Worker *worker = request->data;
    (void)status;
    if (!uv_is_closing((uv_handle_t *)&worker->in))
        uv_close((uv_handle_t *)&worker->in, on_closed);
}

/* A log is not worth a worker: where it cannot be written, and cannot where its folder is made
 * again, the worker goes without. */
static int open_log(Worker *worker) {
    int n = snprintf(worker->log_path, sizeof worker->log_path, "%s/worker-%d.%d.%lld.log",
                     worker->invoker->logs_folder, worker->id.stage, worker->id.replica,
                     (long long)worker->id.attempt);
    if (n < 0 || (size_t)n >= sizeof worker->log_path)
        return err_set(ERR_LIMIT, "the path of a log under '%s' is too long",
                       worker->invoker->logs_folder);
    static const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
    int fd = open(worker->log_path, flags, 0666);
    if (fd < 0 && errno == ENOENT && mkdir(worker->invoker->logs_folder, 0777) == 0)
        fd = open(worker->log_path, flags, 0666);
    if (fd >= 0)
        return fd;
    int errnum = errno;
    fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(ERR_IO, errnum, "creating '%s'", worker->log_path);
    worker->log_path[0] = '\0';
    return fd;
}

static int spawn(Worker *worker, int log_fd) {
    Invoker *invoker = worker->invoker;
    char parent[24];
    snprintf(parent, sizeof parent, "%lld", (long long)getpid());
    char *args[] = {invoker->worker_path, "--order", "-", "--parent-pid", parent, NULL};
    uv_stdio_container_t stdio[3];
    stdio[0].flags = (uv_stdio_flags)(UV_CREATE_PIPE | UV_READABLE_PIPE);
    stdio[0].data.stream = (uv_stream_t *)&worker->in;
    stdio[1].flags = (uv_stdio_flags)(UV_CREATE_PIPE | UV_WRITABLE_PIPE);
    stdio[1].data.stream = (uv_stream_t *)&worker->out;
    stdio[2].flags = UV_INHERIT_FD;
    stdio[2].data.fd = log_fd;
    uv_process_options_t options = {.exit_cb = on_ended,
                                    .file = invoker->worker_path,
                                    .args = args,
                                    .flags = UV_PROCESS_DETACHED, /* setsid */
                                    .stdio_count = 3,
                                    .stdio = stdio};
    int rc = uv_spawn(invoker->loop, &worker->process, &options);
    if (rc == UV_ENOENT || rc == UV_EACCES || rc == -ENOEXEC)
        return err_set(ERR_NOT_FOUND, "starting '%s': %s", invoker->worker_path, uv_strerror(rc));
    if (rc < 0)
        return err_set(ERR_IO, "starting '%s': %s", invoker->worker_path, uv_strerror(rc));
    return 0;
}

/* The handles exist from here on; they, and the worker with them, go through on_closed. */
static Worker *add_worker(Invoker *invoker, const Order *order) {
    Worker *worker = calloc(1, sizeof *worker);
    if (!worker)
        return NULL;
    worker->invoker = invoker;
    worker->id = (WorkerId){order->stage, order->replica, order->attempt};
    worker->next = invoker->workers;
    invoker->workers = worker;
    buf_init(&worker->order, ORDER_MAX_BYTES);
    uv_pipe_init(invoker->loop, &worker->in, 0);
    uv_pipe_init(invoker->loop, &worker->out, 0);
    worker->in.data = worker->out.data = worker->process.data = worker;
    worker->n_open = 3;
    return worker;
}

int invoke_start(Invoker *invoker, const Order *order, int64_t *out_pid) {
    Worker *worker = add_worker(invoker, order);
    if (!worker)
        return err_set(ERR_MEMORY, "a worker process");
    int rc = order_format(order, &worker->order);
    int log_fd = rc < 0 ? rc : open_log(worker);
    if (log_fd >= 0)
        rc = spawn(worker, log_fd);
    else
        rc = log_fd;
    bool made = log_fd >= 0; /* uv_spawn has initialised the process handle, whatever it returned */
    if (log_fd >= 0)
        close(log_fd);
    if (rc < 0) {
        worker->n_open = made ? 3 : 2;
        uv_close((uv_handle_t *)&worker->in, on_closed);
        uv_close((uv_handle_t *)&worker->out, on_closed);
        if (made)
            uv_close((uv_handle_t *)&worker->process, on_closed);
        return rc;
    }
    worker->running = true;
    invoker->n_running++;
    uv_buf_t bytes = uv_buf_init(worker->order.data, (unsigned)worker->order.bytes);
    worker->write.data = worker;
    uv_read_start((uv_stream_t *)&worker->out, on_alloc, on_read);
    if (uv_write(&worker->write, (uv_stream_t *)&worker->in, &bytes, 1, on_written) < 0)
        on_written(&worker->write, 0);
    *out_pid = worker->process.pid;
    return 0;
}

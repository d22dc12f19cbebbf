#include "tests/support/proxy.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "tests/support/loopback.h"

enum { PIPE_BYTES = 256 << 10, PIPE_MARKS = 64, NO_CUT = -1 };

typedef struct Mark { /* what lies in front of `end` may leave at `at_ns` */
    int64_t end, at_ns;
} Mark;

typedef struct Pipe { /* one way of a connection: a ring of bytes, counted from its beginning */
    char *ring;
    int64_t n_in, n_out; /* bytes read, bytes passed on */
    int64_t cut_at;      /* NO_CUT: never */
    Mark marks[PIPE_MARKS];
    int n_marks;
    bool ended; /* its source has closed */
} Pipe;

typedef struct Connection {
    int fds[2]; /* client, server; -1: free */
    bool reset;
    Pipe pipes[2]; /* PROXY_UP reads fds[0], PROXY_DOWN fds[1] */
} Connection;

struct Proxy {
    pthread_t thread;
    pthread_mutex_t lock; /* over all below */
    int listen_fd, wake_fd, port, server_port;
    bool stopping, swallowing;
    bool cut_next, cut_first, reset_next; /* cut_first: all accepted ones, until one is cut */
    int64_t cut_bytes[2], delay_ms[2], n_connections, n_cuts, last_bytes[2];
    int last; /* the connection accepted last */
    Connection connections[PROXY_MAX_CONNECTIONS];
};

/* ---- connections ---- */

static void set_nonblocking(int fd) {
    int on = 1;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static void hang_up(Proxy *proxy, Connection *connection) {
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    for (int i = 0; i < 2; i++) {
        if (connection->reset)
            setsockopt(connection->fds[i], SOL_SOCKET, SO_LINGER, &now, sizeof now);
        if (connection == &proxy->connections[proxy->last])
            proxy->last_bytes[i] = connection->pipes[i].n_out;
        close(connection->fds[i]);
        free(connection->pipes[i].ring);
        connection->fds[i] = -1;
    }
}

static void take_connection(Proxy *proxy, Connection *connection) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)proxy->server_port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int client = accept4(proxy->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    int server = client < 0 ? -1 : socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (client < 0)
        return;
    if (connect(server, (struct sockaddr *)&address, sizeof address) < 0) {
        close(server);
        close(client);
        return;
    }
    *connection = (Connection){.fds = {client, server}, .reset = proxy->reset_next};
    for (int i = 0; i < 2; i++) {
        set_nonblocking(connection->fds[i]);
        connection->pipes[i].ring = malloc(PIPE_BYTES);
        connection->pipes[i].cut_at = proxy->cut_next ? proxy->cut_bytes[i] : NO_CUT;
        if (!connection->pipes[i].ring)
            abort();
    }
    if (!proxy->cut_first) {
        proxy->cut_next = false;
        proxy->reset_next = true;
    }
    proxy->last = (int)(connection - proxy->connections);
    proxy->n_connections++;
    proxy->last_bytes[0] = proxy->last_bytes[1] = 0;
}

/* ---- bytes ---- */

/* Read what fits: false when the source failed. */
static bool read_some(const Proxy *proxy, Pipe *pipe, ProxyWay way, int fd) {
    int64_t room = PIPE_BYTES - (pipe->n_in - pipe->n_out);
    int64_t at = pipe->n_in % PIPE_BYTES;
    if (room == 0 || pipe->ended || pipe->n_marks == PIPE_MARKS)
        return true;
    size_t most = (size_t)(room < PIPE_BYTES - at ? room : PIPE_BYTES - at);
    ssize_t n = recv(fd, pipe->ring + at, most, 0);
    if (n == 0)
        pipe->ended = true;
    if (n <= 0)
        return n == 0 || errno == EAGAIN || errno == EINTR;
    pipe->n_in += n;
    if (proxy->delay_ms[way] > 0)
        pipe->marks[pipe->n_marks++] = (Mark){pipe->n_in, clock_deadline_ms(proxy->delay_ms[way])};
    return true;
}

/* How many bytes may leave now; *wake_ns: when there are more. */
static int64_t may_leave(Pipe *pipe, int64_t *wake_ns) {
    int64_t now_ns = clock_now_ns();
    int64_t held_from = pipe->n_in;
    int n_past = 0;
    while (n_past < pipe->n_marks && pipe->marks[n_past].at_ns <= now_ns)
        n_past++;
    if (n_past < pipe->n_marks) {
        held_from = n_past > 0 ? pipe->marks[n_past - 1].end : pipe->n_out;
        *wake_ns = pipe->marks[n_past].at_ns < *wake_ns ? pipe->marks[n_past].at_ns : *wake_ns;
    }
    if (pipe->cut_at != NO_CUT && held_from > pipe->cut_at)
        held_from = pipe->cut_at;
    return held_from - pipe->n_out;
}

/* Write what may leave: false when it is over, by a cut or a failure. */
static bool write_some(Pipe *pipe, int fd, int64_t *wake_ns) {
    int64_t left = may_leave(pipe, wake_ns);
    while (left > 0) {
        int64_t at = pipe->n_out % PIPE_BYTES;
        size_t most = (size_t)(left < PIPE_BYTES - at ? left : PIPE_BYTES - at);
        ssize_t n = send(fd, pipe->ring + at, most, MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        pipe->n_out += n;
        left -= n;
    }
    int n_past = 0;
    while (n_past < pipe->n_marks && pipe->marks[n_past].end <= pipe->n_out)
        n_past++;
    pipe->n_marks -= n_past;
    memmove(pipe->marks, pipe->marks + n_past, (size_t)pipe->n_marks * sizeof *pipe->marks);
    if (pipe->ended && pipe->n_out == pipe->n_in)
        shutdown(fd, SHUT_WR);
    return pipe->cut_at == NO_CUT || pipe->n_out < pipe->cut_at;
}

/* Of cut_first, one is enough. */
static void count_cut(Proxy *proxy) {
    proxy->n_cuts++;
    if (!proxy->cut_first)
        return;
    proxy->cut_first = proxy->cut_next = false;
    proxy->reset_next = true;
    for (int i = 0; i < PROXY_MAX_CONNECTIONS; i++) {
        proxy->connections[i].pipes[0].cut_at = NO_CUT;
        proxy->connections[i].pipes[1].cut_at = NO_CUT;
    }
}

static bool pass_on(Proxy *proxy, Connection *connection, int64_t *wake_ns) {
    for (int way = 0; way < 2; way++) {
        Pipe *pipe = &connection->pipes[way];
        if (!read_some(proxy, pipe, (ProxyWay)way, connection->fds[way]) ||
            !write_some(pipe, connection->fds[1 - way], wake_ns)) {
            if (pipe->n_out == pipe->cut_at)
                count_cut(proxy);
            return false;
        }
        if (connection == &proxy->connections[proxy->last])
            proxy->last_bytes[way] = pipe->n_out;
    }
    const Pipe *pipes = connection->pipes;
    return !(pipes[0].ended && pipes[1].ended && pipes[0].n_in == pipes[0].n_out &&
             pipes[1].n_in == pipes[1].n_out);
}

/* What there is to wait for on side `i` of a connection. */
static short events_of(const Proxy *proxy, const Connection *connection, int i) {
    const Pipe *in = &connection->pipes[i];
    const Pipe *out = &connection->pipes[1 - i];
    bool held = out->n_marks > 0 && out->marks[0].at_ns > clock_now_ns();
    if (proxy->swallowing)
        return 0;
    return (short)((!in->ended && in->n_in - in->n_out < PIPE_BYTES && in->n_marks < PIPE_MARKS
                        ? POLLIN
                        : 0) |
                   (out->n_in > out->n_out && !held ? POLLOUT : 0));
}

/* ---- the thread ---- */

static int list_fds(const Proxy *proxy, struct pollfd *fds) {
    int n = 0;
    fds[n++] = (struct pollfd){proxy->wake_fd, POLLIN, 0};
    fds[n++] = (struct pollfd){proxy->listen_fd, POLLIN, 0};
    for (int i = 0; i < PROXY_MAX_CONNECTIONS; i++) {
        const Connection *connection = &proxy->connections[i];
        for (int side = 0; side < 2 && connection->fds[0] >= 0; side++) {
            short events = events_of(proxy, connection, side);
            if (events) /* a fd with POLLHUP would wake us again and again */
                fds[n++] = (struct pollfd){connection->fds[side], events, 0};
        }
    }
    return n;
}

static void *proxy_main(void *arg) {
    Proxy *proxy = arg;
    int64_t wake_ns = CLOCK_NEVER;
    for (;;) {
        struct pollfd fds[2 + 2 * PROXY_MAX_CONNECTIONS];
        uint64_t count = 0;
        pthread_mutex_lock(&proxy->lock);
        int n_fds = list_fds(proxy, fds);
        pthread_mutex_unlock(&proxy->lock);
        int64_t left_ns = wake_ns - clock_now_ns();
        int wait_ms = wake_ns == CLOCK_NEVER ? -1
                      : left_ns > 0          ? (int)(left_ns / CLOCK_NS_PER_MS) + 1
                                             : 0;
        poll(fds, (nfds_t)n_fds, wait_ms);
        wake_ns = CLOCK_NEVER;
        if (fds[0].revents && read(proxy->wake_fd, &count, sizeof count) < 0)
            count = 0;
        pthread_mutex_lock(&proxy->lock);
        bool waiting = fds[1].revents != 0;
        for (int i = 0; i < PROXY_MAX_CONNECTIONS; i++) {
            Connection *connection = &proxy->connections[i];
            if (connection->fds[0] < 0 && waiting) {
                take_connection(proxy, connection);
                waiting = false;
            }
            if (connection->fds[0] >= 0 && !proxy->swallowing &&
                !pass_on(proxy, connection, &wake_ns))
                hang_up(proxy, connection);
        }
        bool stopping = proxy->stopping;
        pthread_mutex_unlock(&proxy->lock);
        if (stopping)
            return NULL;
    }
}

static void wake(Proxy *proxy) {
    uint64_t one = 1;
    pthread_mutex_unlock(&proxy->lock);
    if (write(proxy->wake_fd, &one, sizeof one) < 0)
        abort();
}

static int start(int (*listen_somewhere)(int flags, int *out_port), int server_port,
                 Proxy **out_proxy) {
    Proxy *proxy = calloc(1, sizeof *proxy);
    if (!proxy)
        return err_set(ERR_MEMORY, "a proxy");
    pthread_mutex_init(&proxy->lock, NULL);
    proxy->server_port = server_port;
    proxy->reset_next = true;
    for (int i = 0; i < PROXY_MAX_CONNECTIONS; i++)
        proxy->connections[i].fds[0] = -1;
    proxy->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    proxy->listen_fd = listen_somewhere(SOCK_NONBLOCK, &proxy->port);
    if (proxy->listen_fd < 0 || pthread_create(&proxy->thread, NULL, proxy_main, proxy) != 0) {
        int rc = err_errno(ERR_IO, errno, "a proxy");
        close(proxy->listen_fd);
        close(proxy->wake_fd);
        free(proxy);
        return rc;
    }
    *out_proxy = proxy;
    return 0;
}

int proxy_start(int server_port, Proxy **out_proxy) {
    return start(loopback_listen, server_port, out_proxy);
}

int proxy_start_all(int server_port, Proxy **out_proxy) {
    return start(loopback_listen_all, server_port, out_proxy);
}

void proxy_stop(Proxy *proxy) {
    if (!proxy)
        return;
    pthread_mutex_lock(&proxy->lock);
    proxy->stopping = true;
    wake(proxy);
    pthread_join(proxy->thread, NULL);
    for (int i = 0; i < PROXY_MAX_CONNECTIONS; i++) {
        if (proxy->connections[i].fds[0] >= 0)
            hang_up(proxy, &proxy->connections[i]);
    }
    close(proxy->listen_fd);
    close(proxy->wake_fd);
    pthread_mutex_destroy(&proxy->lock);
    free(proxy);
}

int proxy_port(const Proxy *proxy) {
    return proxy->port;
}

static void cut(Proxy *proxy, ProxyWay way, int64_t bytes, bool reset, bool first) {
    pthread_mutex_lock(&proxy->lock);
    proxy->cut_next = true;
    proxy->cut_first = first;
    proxy->reset_next = reset;
    proxy->cut_bytes[way] = bytes;
    proxy->cut_bytes[1 - way] = NO_CUT;
    wake(proxy);
}

void proxy_cut(Proxy *proxy, ProxyWay way, int64_t bytes, bool reset) {
    cut(proxy, way, bytes, reset, false);
}

void proxy_cut_first(Proxy *proxy, ProxyWay way, int64_t bytes, bool reset) {
    cut(proxy, way, bytes, reset, true);
}

void proxy_cut_all(Proxy *proxy) {
    pthread_mutex_lock(&proxy->lock);
    for (int i = 0; i < PROXY_MAX_CONNECTIONS; i++) {
        proxy->connections[i].reset = true;
        if (proxy->connections[i].fds[0] >= 0)
            hang_up(proxy, &proxy->connections[i]);
    }
    wake(proxy);
}

void proxy_swallow(Proxy *proxy, bool on) {
    pthread_mutex_lock(&proxy->lock);
    proxy->swallowing = on;
    wake(proxy);
}

void proxy_delay(Proxy *proxy, ProxyWay way, int64_t ms) {
    pthread_mutex_lock(&proxy->lock);
    proxy->delay_ms[way] = ms;
    wake(proxy);
}

int64_t proxy_connections(Proxy *proxy) {
    pthread_mutex_lock(&proxy->lock);
    int64_t n = proxy->n_connections;
    pthread_mutex_unlock(&proxy->lock);
    return n;
}

int64_t proxy_cuts(Proxy *proxy) {
    pthread_mutex_lock(&proxy->lock);
    int64_t n = proxy->n_cuts;
    pthread_mutex_unlock(&proxy->lock);
    return n;
}

int64_t proxy_bytes(Proxy *proxy, ProxyWay way) {
    pthread_mutex_lock(&proxy->lock);
    int64_t n = proxy->last_bytes[way];
    pthread_mutex_unlock(&proxy->lock);
    return n;
}

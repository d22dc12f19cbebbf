#include "storage/redis_link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"

enum { LINK_MAX_PARTS = 512, KEEPALIVE_S = 15, KEEPALIVE_PROBES = 4 };

struct RedisLink {
    int fd, wake_fd;
    SSL_CTX *context; /* TLS only */
    SSL *ssl;
    char place[REDIS_HOST_BYTES + 16]; /* "host:port" */
};

/* ---- waiting ---- */

static int timed_out(const RedisLink *link, const char *doing) {
    return err_set(ERR_TIMEOUT, "%s the Redis server %s: the deadline passed", doing, link->place);
}

static int unreachable(const RedisLink *link, int errnum, const char *doing) {
    return err_errno(ERR_UNREACHABLE, errnum, "%s the Redis server %s", doing, link->place);
}

static int wait_for(RedisLink *link, short events, const char *doing, int64_t deadline_ns,
                    bool interruptible) {
    for (;;) {
        struct pollfd fds[2] = {{link->fd, events, 0},
                                {interruptible ? link->wake_fd : -1, POLLIN, 0}};
        int64_t left_ns = deadline_ns - clock_now_ns();
        if (left_ns <= 0)
            return timed_out(link, doing);
        struct timespec left = {left_ns / CLOCK_NS_PER_S, left_ns % CLOCK_NS_PER_S};
        int n = ppoll(fds, 2, deadline_ns == CLOCK_NEVER ? NULL : &left, NULL);
        if (n < 0 && errno != EINTR)
            return unreachable(link, errno, doing);
        if (n > 0 && fds[0].revents)
            return 0;
        if (n > 0 && fds[1].revents)
            return err_set(ERR_CANCELLED, "%s the Redis server %s: interrupted", doing,
                           link->place);
    }
}

/* ---- TLS: OpenSSL over our socket, so that a closed one raises no SIGPIPE ---- */

static int bio_write(BIO *bio, const char *data, int bytes) {
    const RedisLink *link = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    ssize_t n = send(link->fd, data, (size_t)bytes, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_write(bio);
    return (int)n;
}

static int bio_read(BIO *bio, char *data, int bytes) {
    const RedisLink *link = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    ssize_t n = recv(link->fd, data, (size_t)bytes, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_read(bio);
    return (int)n;
}

static long bio_control(BIO *bio, int command, long number, void *pointer) {
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static BIO_METHOD *bio_method(void) {
    static BIO_METHOD *made; /* one for the process; the loser of a race leaks one, once */
    BIO_METHOD *method = __atomic_load_n(&made, __ATOMIC_ACQUIRE);
    if (method)
        return method;
    method = BIO_meth_new(BIO_TYPE_SOURCE_SINK | BIO_get_new_index(), "funcpipe");
    if (!method)
        return NULL;
    BIO_meth_set_write(method, bio_write);
    BIO_meth_set_read(method, bio_read);
    BIO_meth_set_ctrl(method, bio_control);
    __atomic_store_n(&made, method, __ATOMIC_RELEASE);
    return method;
}

/* What OpenSSL complains about, in the code's words. */
static int tls_error(const RedisLink *link, int code, const char *doing) {
    char text[256] = "the connection was closed";
    unsigned long error = ERR_peek_last_error();
    long verified = link->ssl ? SSL_get_verify_result(link->ssl) : X509_V_OK;
    if (verified != X509_V_OK)
        return err_set(ERR_AUTH, "%s the Redis server %s: its certificate is refused: %s", doing,
                       link->place, X509_verify_cert_error_string(verified));
    if (error)
        ERR_error_string_n(error, text, sizeof text);
    ERR_clear_error();
    return err_set(code, "%s the Redis server %s: TLS: %s", doing, link->place, text);
}

/* Wait for what SSL_get_error asks for; negative when it is a failure. */
static int tls_wait(RedisLink *link, int result, const char *doing, int64_t deadline_ns,
                    bool interruptible) {
    switch (SSL_get_error(link->ssl, result)) {
    case SSL_ERROR_WANT_READ:
        return wait_for(link, POLLIN, doing, deadline_ns, interruptible);
    case SSL_ERROR_WANT_WRITE:
        return wait_for(link, POLLOUT, doing, deadline_ns, interruptible);
    default:
        return tls_error(link, ERR_UNREACHABLE, doing);
    }
}

static int tls_trust(RedisLink *link, const RedisUrl *url) {
    SSL_CTX *context = link->context;
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (!SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) ||
        !(url->ca[0] ? SSL_CTX_load_verify_locations(context, url->ca, NULL)
                     : SSL_CTX_set_default_verify_paths(context)))
        return tls_error(link, ERR_ARGUMENT, "reading the certificates to trust for");
    if (url->cert[0] && (SSL_CTX_use_certificate_chain_file(context, url->cert) != 1 ||
                         SSL_CTX_use_PrivateKey_file(context, url->key, SSL_FILETYPE_PEM) != 1 ||
                         SSL_CTX_check_private_key(context) != 1))
        return tls_error(link, ERR_ARGUMENT, "reading the own certificate for");
    return 0;
}

/* The certificate must be for the host that was asked for, a name or an address. */
static int tls_name(RedisLink *link, const char *host) {
    struct in6_addr address;
    bool is_address =
        inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
    bool fine = is_address ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(link->ssl), host) == 1
                           : SSL_set1_host(link->ssl, host) == 1 &&
                                 SSL_set_tlsext_host_name(link->ssl, host) == 1;
    return fine ? 0 : tls_error(link, ERR_ARGUMENT, "naming");
}

static int tls_begin(RedisLink *link, const RedisUrl *url, const char *host, int64_t deadline_ns) {
    ERR_clear_error();
    BIO_METHOD *method = bio_method();
    BIO *bio = method ? BIO_new(method) : NULL;
    link->context = SSL_CTX_new(TLS_client_method());
    if (!bio || !link->context) {
        BIO_free(bio);
        return tls_error(link, ERR_MEMORY, "preparing");
    }
    BIO_set_data(bio, link);
    BIO_set_init(bio, 1);
    int rc = tls_trust(link, url);
    link->ssl = rc >= 0 ? SSL_new(link->context) : NULL;
    if (!link->ssl) {
        BIO_free(bio);
        return rc < 0 ? rc : tls_error(link, ERR_MEMORY, "preparing");
    }
    SSL_set_bio(link->ssl, bio, bio);
    TRY(tls_name(link, host));
    for (;;) {
        ERR_clear_error();
        int result = SSL_connect(link->ssl);
        if (result == 1)
            return 0;
        TRY(tls_wait(link, result, "connecting to", deadline_ns, true));
    }
}

/* ---- connecting ---- */

static int connect_one(RedisLink *link, const struct addrinfo *address, int64_t deadline_ns) {
    int on = 1;
    int idle = KEEPALIVE_S;
    int probes = KEEPALIVE_PROBES;
    int errnum = 0;
    socklen_t length = sizeof errnum;
    link->fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (link->fd < 0)
        return unreachable(link, errno, "making a socket for");
    setsockopt(link->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(link->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(link->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(link->fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
    setsockopt(link->fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    if (connect(link->fd, address->ai_addr, address->ai_addrlen) < 0 && errno != EINPROGRESS)
        return unreachable(link, errno, "connecting to");
    TRY(wait_for(link, POLLOUT, "connecting to", deadline_ns, true));
    if (getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &errnum, &length) < 0)
        errnum = errno;
    return errnum ? unreachable(link, errnum, "connecting to") : 0;
}

/* The first address of the host that answers. */
static int connect_any(RedisLink *link, const RedisServer *server, int64_t deadline_ns) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int error = getaddrinfo(server->host, server->port, &hints, &found);
    if (error)
        return err_set(ERR_UNREACHABLE, "the Redis server %s: no such host: %s", link->place,
                       gai_strerror(error));
    int rc = ERR_UNREACHABLE;
    for (const struct addrinfo *one = found; one; one = one->ai_next) {
        rc = connect_one(link, one, deadline_ns);
        if (rc >= 0 || rc == ERR_CANCELLED || rc == ERR_TIMEOUT)
            break;
        if (link->fd >= 0)
            close(link->fd);
        link->fd = -1;
    }
    freeaddrinfo(found);
    return rc;
}

int redis_link_open(const RedisUrl *url, int server, int wake_fd, int64_t deadline_ns,
                    RedisLink **out_link) {
    const RedisServer *peer = &url->servers[server];
    RedisLink *link = calloc(1, sizeof *link);
    if (!link)
        return err_set(ERR_MEMORY, "a connection");
    link->fd = -1;
    link->wake_fd = wake_fd;
    snprintf(link->place, sizeof link->place, strchr(peer->host, ':') ? "[%s]:%s" : "%s:%s",
             peer->host, peer->port);
    int rc = connect_any(link, peer, deadline_ns);
    if (rc >= 0 && url->tls)
        rc = tls_begin(link, url, peer->host, deadline_ns);
    if (rc < 0) {
        redis_link_close(link);
        return rc;
    }
    *out_link = link;
    return 0;
}

void redis_link_close(RedisLink *link) {
    if (!link)
        return;
    SSL_free(link->ssl);
    SSL_CTX_free(link->context);
    if (link->fd >= 0)
        close(link->fd);
    free(link);
}

/* ---- bytes ---- */

static int tls_send(RedisLink *link, const Slice *part, int64_t deadline_ns) {
    const char *from = part->data;
    size_t left = part->bytes;
    while (left > 0) {
        size_t n = 0;
        ERR_clear_error();
        int result = SSL_write_ex(link->ssl, from, left, &n);
        if (result != 1)
            TRY(tls_wait(link, result, "writing to", deadline_ns, false));
        from += n;
        left -= n;
    }
    return 0;
}

/* Send [*first, n_parts) of `vectors`, at most LINK_MAX_PARTS of them at a time. */
static int plain_send(RedisLink *link, struct iovec *vectors, size_t n, int64_t deadline_ns) {
    while (n > 0) {
        struct msghdr message = {.msg_iov = vectors, .msg_iovlen = n};
        ssize_t sent = sendmsg(link->fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            TRY(wait_for(link, POLLOUT, "writing to", deadline_ns, false));
            continue;
        }
        if (sent < 0 && errno != EINTR)
            return unreachable(link, errno, "writing to");
        while (n > 0 && sent >= (ssize_t)vectors->iov_len) {
            sent -= (ssize_t)vectors->iov_len;
            vectors++;
            n--;
        }
        if (n > 0 && sent > 0) {
            vectors->iov_base = (char *)vectors->iov_base + sent;
            vectors->iov_len -= (size_t)sent;
        }
    }
    return 0;
}

int redis_link_send(RedisLink *link, const Slice *parts, size_t n_parts, int64_t deadline_ns) {
    struct iovec vectors[LINK_MAX_PARTS];
    size_t n = 0;
    for (size_t i = 0; i < n_parts && link->ssl; i++)
        TRY(tls_send(link, &parts[i], deadline_ns));
    for (size_t i = 0; i < n_parts && !link->ssl; i++) {
        if (parts[i].bytes > 0) /* sendmsg only reads: the const may go */
            vectors[n++] = (struct iovec){(void *)(uintptr_t)parts[i].data, parts[i].bytes};
        if (n == LINK_MAX_PARTS || i + 1 == n_parts) {
            TRY(plain_send(link, vectors, n, deadline_ns));
            n = 0;
        }
    }
    return 0;
}

int64_t redis_link_receive(RedisLink *link, void *buf, size_t capacity, int64_t deadline_ns,
                           bool interruptible) {
    for (;;) {
        ssize_t n = 0;
        if (link->ssl) {
            size_t got = 0;
            ERR_clear_error();
            int result = SSL_read_ex(link->ssl, buf, capacity, &got);
            if (result == 1)
                return (int64_t)got;
            TRY(tls_wait(link, result, "reading from", deadline_ns, interruptible));
            continue;
        }
        n = recv(link->fd, buf, capacity, 0);
        if (n > 0)
            return n;
        if (n == 0)
            return err_set(ERR_UNREACHABLE, "the Redis server %s closed the connection",
                           link->place);
        if (errno == EAGAIN)
            TRY(wait_for(link, POLLIN, "reading from", deadline_ns, interruptible));
        else if (errno != EINTR)
            return unreachable(link, errno, "reading from");
    }
}

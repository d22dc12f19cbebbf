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
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"

enum {
    LINK_MAX_PARTS = 512,
    KEEPALIVE_S = 15,
    KEEPALIVE_PROBES = 4,
    SILENCE_S = 30, /* a server that says or takes nothing for this long is gone */
    TLS_MS = 6000,  /* of a handshake: a port without TLS often says nothing at all */
    CUT_MS = 1000   /* after an interruption: for answers to what was sent */
};

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

static int interrupted(const RedisLink *link, const char *doing) {
    return err_set(ERR_CANCELLED, "%s the Redis server %s: interrupted", doing, link->place);
}

/* An interruption ends a wait that is `interruptible` at once, any other one soon. */
static int wait_fd(const RedisLink *link, int fd, short events, const char *doing,
                   int64_t deadline_ns, bool interruptible) {
    int64_t silence_ns = clock_deadline_ms(SILENCE_S * INT64_C(1000));
    int64_t until_ns = deadline_ns < silence_ns ? deadline_ns : silence_ns;
    bool cut = false;
    for (;;) {
        struct pollfd fds[2] = {{fd, events, 0}, {cut ? -1 : link->wake_fd, POLLIN, 0}};
        int64_t left_ns = until_ns - clock_now_ns();
        if (left_ns <= 0 && cut)
            return interrupted(link, doing);
        if (left_ns <= 0 && until_ns == deadline_ns)
            return timed_out(link, doing);
        if (left_ns <= 0)
            return err_set(ERR_UNREACHABLE, "%s the Redis server %s: nothing for %d s", doing,
                           link->place, SILENCE_S);
        struct timespec left = {left_ns / CLOCK_NS_PER_S, left_ns % CLOCK_NS_PER_S};
        int n = ppoll(fds, 2, &left, NULL);
        if (n < 0 && errno != EINTR)
            return unreachable(link, errno, doing);
        if (n > 0 && fds[0].revents)
            return 0;
        if (n > 0 && fds[1].revents && interruptible)
            return interrupted(link, doing);
        if (n > 0 && fds[1].revents) {
            int64_t cut_ns = clock_deadline_ms(CUT_MS);
            cut = true;
            until_ns = cut_ns < until_ns ? cut_ns : until_ns;
        }
    }
}

static int wait_for(const RedisLink *link, short events, const char *doing, int64_t deadline_ns,
                    bool interruptible) {
    return wait_fd(link, link->fd, events, doing, deadline_ns, interruptible);
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

/* Does the server refuse our certificate, or that we have none? */
static bool refuses_ours(unsigned long error) {
    switch (ERR_GET_REASON(error)) {
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
        return ERR_GET_LIB(error) == ERR_LIB_SSL;
    default:
        return false;
    }
}

/* What OpenSSL complains about, in the code's words. */
static int tls_error(const RedisLink *link, int code, const char *doing) {
    char text[256] = "the connection was closed";
    unsigned long error = ERR_peek_last_error();
    long verified = link->ssl ? SSL_get_verify_result(link->ssl) : X509_V_OK;
    ERR_clear_error();
    if (verified != X509_V_OK)
        return err_set(ERR_AUTH, "%s the Redis server %s: its certificate is refused: %s", doing,
                       link->place, X509_verify_cert_error_string(verified));
    if (error)
        ERR_error_string_n(error, text, sizeof text);
    if (refuses_ours(error))
        return err_set(ERR_AUTH, "%s the Redis server %s: it refuses our certificate%s: TLS: %s",
                       doing, link->place,
                       SSL_get_certificate(link->ssl) ? "" : " (there is none: cert=, key=)", text);
    if (ERR_GET_LIB(error) == ERR_LIB_SSL && (ERR_GET_REASON(error) == SSL_R_WRONG_VERSION_NUMBER ||
                                              ERR_GET_REASON(error) == SSL_R_HTTP_REQUEST))
        return err_set(code, "%s the Redis server %s: it does not speak TLS (redis:// is without)",
                       doing, link->place);
    return err_set(code, "%s the Redis server %s: TLS: %s", doing, link->place, text);
}

/* Wait for what SSL_get_error asks for; negative when it is a failure. */
static int tls_wait(const RedisLink *link, int result, const char *doing, int64_t deadline_ns,
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

/* A file of certificates or keys that cannot be used. */
static int bad_file(const RedisLink *link, const char *path) {
    char text[256] = "it is of no use";
    unsigned long error = ERR_peek_error(); /* the first: what began it */
    if (error)
        ERR_error_string_n(error, text, sizeof text);
    ERR_clear_error();
    return err_set(ERR_ARGUMENT, "'%s' for the Redis server %s: TLS: %s",
                   path[0] ? path : "the system's certificates", link->place, text);
}

/* A key under a passphrase is refused: nobody is there to be asked. */
static int no_passphrase(char *buf, int bytes, int writing, void *arg) {
    (void)buf;
    (void)bytes;
    (void)writing;
    (void)arg;
    return -1;
}

static int tls_trust(const RedisLink *link, const RedisUrl *url) {
    SSL_CTX *context = link->context;
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_default_passwd_cb(context, no_passphrase);
    if (!SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION))
        return tls_error(link, ERR_INTERNAL, "preparing");
    if (!(url->ca[0] ? SSL_CTX_load_verify_locations(context, url->ca, NULL)
                     : SSL_CTX_set_default_verify_paths(context)))
        return bad_file(link, url->ca);
    if (url->cert[0] && SSL_CTX_use_certificate_chain_file(context, url->cert) != 1)
        return bad_file(link, url->cert);
    if (url->cert[0] && (SSL_CTX_use_PrivateKey_file(context, url->key, SSL_FILETYPE_PEM) != 1 ||
                         SSL_CTX_check_private_key(context) != 1))
        return bad_file(link, url->key);
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
    int64_t limit_ns = clock_deadline_ms(TLS_MS);
    limit_ns = limit_ns < deadline_ns ? limit_ns : deadline_ns;
    for (;;) {
        ERR_clear_error();
        int result = SSL_connect(link->ssl);
        if (result == 1)
            return 0;
        rc = tls_wait(link, result, "beginning TLS with", limit_ns, true);
        if (rc < 0)
            return rc;
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

/* A name looked up in a thread of its own, because getaddrinfo takes as long as it likes. Whoever
 * is through last, the thread or the one who waits for it, frees this. */
typedef struct Lookup {
    RedisServer server;
    int done_fd; /* readable when done */
    atomic_int n_users;
    atomic_bool done; /* the rest is set */
    int error;
    struct addrinfo *found;
} Lookup;

static void lookup_leave(Lookup *lookup) {
    if (atomic_fetch_sub(&lookup->n_users, 1) > 1)
        return;
    if (lookup->found)
        freeaddrinfo(lookup->found);
    if (lookup->done_fd >= 0)
        close(lookup->done_fd);
    free(lookup);
}

static void *lookup_main(void *arg) {
    Lookup *lookup = arg;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    uint64_t one = 1;
    lookup->error = getaddrinfo(lookup->server.host, lookup->server.port, &hints, &lookup->found);
    atomic_store(&lookup->done, true);
    ssize_t n = write(lookup->done_fd, &one, sizeof one);
    (void)n;
    lookup_leave(lookup);
    return NULL;
}

/* Start the thread; it gets none of the process's signals. */
static bool lookup_start(Lookup *lookup) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all;
    sigfillset(&all);
    if (lookup->done_fd < 0 || pthread_attr_init(&attributes) != 0)
        return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setsigmask_np(&attributes, &all);
    bool fine = pthread_create(&thread, &attributes, lookup_main, lookup) == 0;
    pthread_attr_destroy(&attributes);
    return fine;
}

static int look_up(const RedisLink *link, const RedisServer *server, int64_t deadline_ns,
                   struct addrinfo **out_found) {
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    if (getaddrinfo(server->host, server->port, &hints, out_found) == 0)
        return 0; /* an address */
    Lookup *lookup = calloc(1, sizeof *lookup);
    if (!lookup)
        return err_set(ERR_MEMORY, "looking up the Redis server %s", link->place);
    lookup->server = *server;
    lookup->done_fd = eventfd(0, EFD_CLOEXEC);
    atomic_init(&lookup->n_users, 2);
    if (!lookup_start(lookup)) {
        atomic_store(&lookup->n_users, 1);
        lookup_leave(lookup);
        return err_set(ERR_MEMORY, "looking up the Redis server %s: no thread", link->place);
    }
    int rc = wait_fd(link, lookup->done_fd, POLLIN, "looking up", deadline_ns, true);
    bool done = atomic_load(&lookup->done);
    if (rc >= 0 && done && lookup->error)
        rc = err_set(ERR_UNREACHABLE, "the Redis server %s: no such host: %s", link->place,
                     gai_strerror(lookup->error));
    if (rc >= 0 && done) {
        *out_found = lookup->found;
        lookup->found = NULL;
    }
    lookup_leave(lookup);
    return rc;
}

/* The first address of the host that answers; each of n left may take an n-th of the time left. */
static int connect_any(RedisLink *link, const RedisServer *server, int64_t deadline_ns) {
    struct addrinfo *found = NULL;
    int64_t n_left = 0;
    TRY(look_up(link, server, deadline_ns, &found));
    for (const struct addrinfo *one = found; one; one = one->ai_next)
        n_left++;
    int rc = ERR_UNREACHABLE;
    for (const struct addrinfo *one = found; one; one = one->ai_next, n_left--) {
        int64_t now_ns = clock_now_ns();
        rc = connect_one(link, one,
                         n_left > 1 ? now_ns + (deadline_ns - now_ns) / n_left : deadline_ns);
        if (rc >= 0 || rc == ERR_CANCELLED)
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

bool redis_link_tls(const RedisLink *link, char *out_protocol, size_t protocol_bytes,
                    int *out_days) {
    int seconds = 0;
    if (!link->ssl)
        return false;
    snprintf(out_protocol, protocol_bytes, "%s", SSL_get_version(link->ssl));
    X509 *certificate = SSL_get1_peer_certificate(link->ssl);
    *out_days = 0;
    if (certificate)
        ASN1_TIME_diff(out_days, &seconds, NULL, X509_get0_notAfter(certificate));
    X509_free(certificate);
    return true;
}

/* ---- bytes ---- */

/* The server may have said why it closed: that is an alert not read yet. */
static int why_closed(RedisLink *link, int rc) {
    char byte;
    size_t n = 0;
    ErrNote note;
    err_copy(&note);
    ERR_clear_error();
    if (SSL_read_ex(link->ssl, &byte, 1, &n) != 1 && refuses_ours(ERR_peek_last_error()))
        return tls_error(link, rc, "writing to");
    ERR_clear_error();
    return err_restore(&note);
}

static int tls_send(RedisLink *link, const Slice *part, int64_t deadline_ns) {
    const char *from = part->data;
    size_t left = part->bytes;
    while (left > 0) {
        size_t n = 0;
        ERR_clear_error();
        int result = SSL_write_ex(link->ssl, from, left, &n);
        if (result != 1) {
            int rc = tls_wait(link, result, "writing to", deadline_ns, false);
            if (rc == ERR_UNREACHABLE)
                return why_closed(link, rc);
            TRY(rc);
        }
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

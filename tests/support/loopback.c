#include "tests/support/loopback.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LOOPBACK_BACKLOG = 64 };

struct sockaddr_in loopback_address(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static int listen_at(struct sockaddr_in address, int flags, int *out_port) {
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        listen(fd, LOOPBACK_BACKLOG) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &length) == 0) {
        *out_port = ntohs(address.sin_port);
        return fd;
    }
    int errnum = errno;
    if (fd >= 0)
        close(fd);
    errno = errnum;
    return -1;
}

int loopback_listen(int flags, int *out_port) {
    return listen_at(loopback_address(0), flags, out_port);
}

int loopback_listen_all(int flags, int *out_port) {
    struct sockaddr_in address = loopback_address(0);
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    return listen_at(address, flags, out_port);
}

int loopback_drop(int *out_port) {
    int fd = loopback_listen(0, out_port);
    if (fd < 0 || listen(fd, 0) < 0)
        return -1;
    /* The first of these fills the queue of those that nobody accepts. */
    for (int i = 0; i < 2; i++) {
        struct sockaddr_in address = loopback_address(*out_port);
        int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (connect(client, (struct sockaddr *)&address, sizeof address) < 0 &&
            errno != EINPROGRESS)
            return -1;
    }
    return fd;
}

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

int loopback_listen(int flags, int *out_port) {
    struct sockaddr_in address = loopback_address(0);
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

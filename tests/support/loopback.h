/* TCP on 127.0.0.1 for tests, on ports that the system chooses. */
#ifndef FUNCPIPE_TESTS_LOOPBACK_H
#define FUNCPIPE_TESTS_LOOPBACK_H

#include <netinet/in.h>

struct sockaddr_in loopback_address(int port);
/* A listening socket (flags: SOCK_NONBLOCK or 0) and its port; -1 with errno. */
int loopback_listen(int flags, int *out_port);
/* The same on all addresses: for a network namespace of one's own. */
int loopback_listen_all(int flags, int *out_port);
/* A port where no connection is ever made, as behind a firewall that drops packets. A socket to
 * hold on to; -1 with errno. */
int loopback_drop(int *out_port);

#endif

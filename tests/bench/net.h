/* Hosts of a benchmark: network namespaces on one bridge, each behind a link that may be shaped
 * both ways. Made with ip and tc, so it needs root. They end with net_close, or when the program
 * has ended, however it did. */
#ifndef FUNCPIPE_TESTS_BENCH_NET_H
#define FUNCPIPE_TESTS_BENCH_NET_H

#include <stdint.h>
#include <sys/types.h>

#include "storage/relay.h"

enum { NET_MAX_HOSTS = 16, NET_ADDRESS_BYTES = 32 };

typedef struct Net {
    int n_hosts;
    char name[32]; /* of the hub's namespace; hosts have a number behind it */
    int alive_fd;  /* open as long as this program or a child that works for it lives, ... */
    pid_t remover; /* ... so this process knows when to remove what is left */
} Net;

/* rates_mb[i]: MB/s each way of host i's link; 0: as fast as it goes. */
int net_open(const int *rates_mb, int n_hosts, Net *out_net);
void net_close(Net *net);
/* "10.99.0.10" for host 0, and so on; host -1 is the hub itself, which nothing slows down. */
const char *net_address(int host, char out[NET_ADDRESS_BYTES]);
/* Bytes that went to a host and came from it so far, as the hub sees it; called in the hub. */
int net_traffic(int host, int64_t *out_to, int64_t *out_from);
/* Go there with this process (all it opens from now on is there). */
int net_enter(const Net *net, int host);
/* Start redis-server there (net NULL: here, on loopback), with the module when `module` is not
 * NULL. It dies with this process. */
int net_start_redis(const Net *net, int host, int port, const char *module, pid_t *out_pid);
/* Open a relay on a server that has just been started, as soon as it answers; within 20 s. */
int net_await_relay(const char *url, Relay **out_relay);

#endif

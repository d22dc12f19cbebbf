/* Hosts of a benchmark: network namespaces on one bridge, each behind a link that may be shaped
 * both ways. Made with ip and tc, so it needs root. They end with net_close, or with the program:
 * then `ip netns` still lists names that begin with "fpbench-" and its number. */
#ifndef FUNCPIPE_TESTS_BENCH_NET_H
#define FUNCPIPE_TESTS_BENCH_NET_H

#include <sys/types.h>

enum { NET_MAX_HOSTS = 16, NET_ADDRESS_BYTES = 32 };

typedef struct Net {
    int n_hosts;
    char name[32]; /* of the hub's namespace; hosts have a number behind it */
} Net;

/* rates_mb[i]: MB/s each way of host i's link; 0: as fast as it goes. */
int net_open(const int *rates_mb, int n_hosts, Net *out_net);
void net_close(Net *net);
/* "10.99.0.10" for host 0, and so on; host -1 is the hub itself, which nothing slows down. */
const char *net_address(int host, char out[NET_ADDRESS_BYTES]);
/* Go there with this process (all it opens from now on is there). */
int net_enter(const Net *net, int host);
/* Start redis-server there (net NULL: here, on loopback), with the module when `module` is not
 * NULL. It dies with this process. */
int net_start_redis(const Net *net, int host, int port, const char *module, pid_t *out_pid);

#endif

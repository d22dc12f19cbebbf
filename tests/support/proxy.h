/* A TCP proxy on loopback, in a thread of the test, that can do to a connection what networks do:
 * cut it after so many bytes, swallow everything, be slow. Any number of connections at a time, up
 * to PROXY_MAX_CONNECTIONS; every function may be called from any thread. */
#ifndef FUNCPIPE_TESTS_PROXY_H
#define FUNCPIPE_TESTS_PROXY_H

#include <stdbool.h>
#include <stdint.h>

enum { PROXY_MAX_CONNECTIONS = 256 };

typedef struct Proxy Proxy;
typedef enum ProxyWay { PROXY_UP, PROXY_DOWN } ProxyWay; /* to the server, to the client */

/* Listen on a port of the system's choice, and pass on to `server_port` of 127.0.0.1. */
int proxy_start(int server_port, Proxy **out_proxy);
/* The same, listening on all addresses: for a network namespace of one's own. */
int proxy_start_all(int server_port, Proxy **out_proxy);
void proxy_stop(Proxy *proxy); /* NULL is fine; cuts what is there */
int proxy_port(const Proxy *proxy);

/* The next connection that is accepted is cut on both sides after it passed on `bytes` that way:
 * with a reset, or as if the other end had closed. Only that one. */
void proxy_cut(Proxy *proxy, ProxyWay way, int64_t bytes, bool reset);
/* The same to the first one, of those accepted from now on, that passes on so many bytes. */
void proxy_cut_first(Proxy *proxy, ProxyWay way, int64_t bytes, bool reset);
/* Cut all there are now, with a reset. */
void proxy_cut_all(Proxy *proxy);
/* on: nothing is passed on any more, either way; what comes meanwhile waits. */
void proxy_swallow(Proxy *proxy, bool on);
/* Every byte takes this long that way. */
void proxy_delay(Proxy *proxy, ProxyWay way, int64_t ms);

int64_t proxy_connections(Proxy *proxy); /* accepted so far */
int64_t proxy_cuts(Proxy *proxy);        /* of these, cut where proxy_cut or proxy_cut_first said */
/* Passed on that way by the connection accepted last (0 when there was none). */
int64_t proxy_bytes(Proxy *proxy, ProxyWay way);

#endif

/* A real Redis server on loopback for a test: it lives as long as the test's process at most. */
#ifndef FUNCPIPE_TESTS_REDIS_SERVER_H
#define FUNCPIPE_TESTS_REDIS_SERVER_H

#include <sys/types.h>

enum { REDIS_SERVER_ARGS = 24 };

typedef struct RedisServerProcess {
    pid_t pid;
    int port;
    char folder[64];                     /* its files; removed by redis_server_stop */
    const char *args[REDIS_SERVER_ARGS]; /* NULL-terminated, beside the usual ones */
} RedisServerProcess;

/* Start it on a free port with more arguments (NULL-terminated, borrowed until the stop) and wait
 * until it listens. An argument "PORT" becomes the port's number. 0, or an error that says why. */
int redis_server_start(RedisServerProcess *server, const char *const *more_args);
void redis_server_kill(RedisServerProcess *server); /* SIGKILL; its port and folder stay */
int redis_server_again(RedisServerProcess *server); /* on the same port, with the same files */
void redis_server_stop(RedisServerProcess *server);

/* Certificates for TLS in `folder`: ca.crt, server.crt and server.key (for localhost and
 * 127.0.0.1), other.crt and other.key (for another host), client.crt and client.key. */
int redis_server_certificates(const char *folder);

#endif

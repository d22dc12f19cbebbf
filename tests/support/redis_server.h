/* A real Redis server on loopback for a test: it lives as long as the test's process at most. */
#ifndef FUNCPIPE_TESTS_REDIS_SERVER_H
#define FUNCPIPE_TESTS_REDIS_SERVER_H

#include <stdint.h>
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

/* Our module, for "--loadmodule": of this build, without sanitizers. */
#define REDIS_SERVER_MODULE FUNCPIPE_BINARY_DIR "/funcpipe.so"

/* Send command lines as by hand ("SELECT 3\r\nDBSIZE"; quotes group), to 127.0.0.1:port, and
 * return the last answer when it is a number, 0 for other answers of one line, and -1 for an error
 * (printed) or no connection. */
int64_t redis_server_ask(int port, const char *lines);
/* For it: every key was last used two hours ago. */
#define REDIS_SERVER_AGE                                                                           \
    "EVAL \"for _, k in ipairs(redis.call('KEYS', '*')) do local t = redis.call('PTTL', k) "       \
    "if t > 0 then redis.call('RESTORE', k, t, redis.call('DUMP', k), 'REPLACE', 'IDLETIME', "     \
    "7200) end end return 1\" 0"
/* For it: the keys without a time to live; the pieces of long objects; the memory in use. */
#define REDIS_SERVER_IMMORTAL                                                                      \
    "EVAL \"local n = 0 for _, k in ipairs(redis.call('KEYS', '*')) do "                           \
    "if redis.call('PTTL', k) < 0 then n = n + 1 end end return n\" 0"
#define REDIS_SERVER_PIECES "EVAL \"return #redis.call('KEYS', 'funcpipe:c:*')\" 0"
#define REDIS_SERVER_MEMORY                                                                        \
    "EVAL \"return tonumber(string.match(redis.call('INFO', 'memory'), 'used_memory:(%d+)'))\" 0"

/* Certificates for TLS in `folder`: ca.crt, server.crt and server.key (for localhost and
 * 127.0.0.1), soon.crt and soon.key (the same, valid for five days), other.crt and other.key (for
 * another host), client.crt and client.key. */
int redis_server_certificates(const char *folder);

#endif

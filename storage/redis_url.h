/* The URL of a Redis relay, taken apart:
 *
 *     redis://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]...][/DB][?NAME=VALUE&...]
 *     rediss://...                                     the same over TLS
 *
 *     password_file=PATH   the password is the file's first line (all PATHs are absolute)
 *     prefix=TEXT          in front of every key ("funcpipe:")
 *     ttl=DURATION         an object that nobody dropped goes after this ("1d"): the last net
 *     ca=PATH cert=PATH key=PATH   TLS: whom to trust instead of the system's, own certificate
 *
 * USER, PASSWORD and values may be percent-encoded. Errors name the part that is wrong and never
 * quote the password. */
#ifndef FUNCPIPE_STORAGE_REDIS_URL_H
#define FUNCPIPE_STORAGE_REDIS_URL_H

#include <stdbool.h>
#include <stdint.h>

#include "storage/relay.h"

enum {
    REDIS_MAX_SERVERS = RELAY_MAX_SERVERS,
    REDIS_HOST_BYTES = 256,
    REDIS_SECRET_BYTES = 512,
    REDIS_PREFIX_BYTES = 64,
    REDIS_FILE_BYTES = 1024
};

typedef struct RedisServer {
    char host[REDIS_HOST_BYTES];
    char port[8];
} RedisServer;

typedef struct RedisUrl {
    bool tls;
    bool password_inside; /* it stands in the URL itself */
    int n_servers;
    RedisServer servers[REDIS_MAX_SERVERS];
    char user[REDIS_SECRET_BYTES], password[REDIS_SECRET_BYTES]; /* "" when not given */
    unsigned given;                                              /* parameters, a bit each */
    int64_t db, ttl_ms;
    char prefix[REDIS_PREFIX_BYTES];
    char ca[REDIS_FILE_BYTES], cert[REDIS_FILE_BYTES], key[REDIS_FILE_BYTES]; /* "" not given */
} RedisUrl;

/* `place`: what follows "redis://" or "rediss://". Reads password_file. ERR_ARGUMENT, or what
 * reading the file gives. */
int redis_url_parse(const char *place, bool tls, RedisUrl *out_url);

#endif

/* One byte stream to a server: TCP, or TLS over it with the host's name checked. Nothing blocks
 * beyond its deadline, not even looking up the host, and with an interrupt every wait ends as soon
 * as `wake_fd` is readable. Used by one thread. Errors: ERR_UNREACHABLE (no such host, refused,
 * reset, closed, not TLS, silent for 30 s), ERR_AUTH (a certificate is refused, theirs or ours),
 * ERR_ARGUMENT (a file of certificates), ERR_TIMEOUT, ERR_CANCELLED (interrupted). All name host
 * and port. After an error only redis_link_close is allowed. */
#ifndef FUNCPIPE_STORAGE_REDIS_LINK_H
#define FUNCPIPE_STORAGE_REDIS_LINK_H

#include "core/buf.h"
#include "storage/redis_url.h"

typedef struct RedisLink RedisLink;

/* `wake_fd`: an eventfd, or -1. `url` is only read during the call. */
int redis_link_open(const RedisUrl *url, int server, int wake_fd, int64_t deadline_ns,
                    RedisLink **out_link);
void redis_link_close(RedisLink *link); /* NULL is fine */
/* Send all parts. */
int redis_link_send(RedisLink *link, const Slice *parts, size_t n_parts, int64_t deadline_ns);
/* Wait for bytes, and take as many as are there, at most `capacity`: their number (> 0). */
int64_t redis_link_receive(RedisLink *link, void *buf, size_t capacity, int64_t deadline_ns,
                           bool interruptible);

/* Is it TLS? Its protocol, and for how many days the server's certificate is still valid. */
bool redis_link_tls(const RedisLink *link, char *out_protocol, size_t protocol_bytes,
                    int *out_days);

#endif

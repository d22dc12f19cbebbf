/* The relay over one or several Redis servers (5.0 or newer; a restart of one loses its objects
 * unless it is persistent). */
#ifndef FUNCPIPE_STORAGE_RELAY_REDIS_H
#define FUNCPIPE_STORAGE_RELAY_REDIS_H

#include "storage/relay.h"

/* `place`: what follows redis:// (rediss:// with tls), as storage/redis_url.h says. All servers are
 * asked at once: ERR_UNREACHABLE names the one that is not there, ERR_AUTH the one that refuses. */
int relay_redis_open(const char *place, bool tls, Relay **out_relay);
/* May a job name it? Asks no server. ERR_ARGUMENT also when the password stands in it: orders and
 * outputs keep a job's relay. */
int relay_redis_check(const char *place, bool tls);

#endif

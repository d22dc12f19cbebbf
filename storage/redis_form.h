/* What the Redis relay and our module in the server must agree on: how an object lies there, as
 * relay_redis.c says, and the module's commands:
 *
 *     FUNCPIPE.ADD PREFIXo:KEY INDEX N TTL_MS BLOB
 *         contribute to the sum KEY: 0 counted; 1 counted already, or the object is there; else an
 *         error that begins with the name of ours
 *     FUNCPIPE.RESUME PREFIXo:KEY N N_ADDED BLOB
 *         a sum under way, N_ADDED contributions of it added up: stands in rewritten append files
 *     FUNCPIPE.ABOUT
 *         the version of these */
#ifndef FUNCPIPE_STORAGE_REDIS_FORM_H
#define FUNCPIPE_STORAGE_REDIS_FORM_H

enum {
    REDIS_INLINE_BYTES = 64 << 10,      /* of an object that is its entry */
    REDIS_PIECE_BYTES = 16 << 20,       /* of a longer object, unless the server takes less */
    REDIS_LEAST_PIECE_BYTES = 64 << 10, /* and no server takes less than this */
    REDIS_MODULE_VERSION = 1
};

#endif

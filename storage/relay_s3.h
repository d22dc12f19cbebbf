/* The relay over an S3 store: AWS, or another that speaks the same, such as Ceph, MinIO or Swift.
 *
 * Write-once: where the store takes `If-None-Match: *` it refuses a second put itself, whoever is
 * faster. Whether it does is tried out with the first objects put (it may say 501, and some take
 * the header and do nothing). Where it does not, a put looks first and writes then. That is safe by
 * what a relay is used for: all that is ever written under a key is the same bytes, so two writers
 * that look at the same time overwrite each other with what is there already, and a reader never
 * sees anything else. Only who was first is then not certain: both may be told that they were. The
 * same holds for objects above S3_SINGLE_BYTES on stores that do not check it at the end of an
 * upload in parts (Ceph 16). A claim or a mark, whose bytes are each writer's own, is not safe
 * there, and reading it back does not make it so: a put may arrive however long after its writer
 * looked. A put whose answer was lost is repeated, and told that the object was there.
 *
 * Waiting: a store cannot push. Each handle learns when objects of a kind come (s3_rhythm.h) and
 * asks when one is due, and if it is not there again and again, less and less often. In a steady
 * run that is 1.2 to 1.3 requests for an object read (n_read_requests to n_gets), 2 to 3 where
 * waits scatter by more than a round trip. For this a writer puts the time beside its object, as
 * metadata. */
#ifndef FUNCPIPE_STORAGE_RELAY_S3_H
#define FUNCPIPE_STORAGE_RELAY_S3_H

#include "storage/relay.h"

/* `place`: what follows s3://, as storage/s3_url.h says; credentials come from where
 * storage/s3_credentials.h says. Asks the store once: ERR_UNREACHABLE, ERR_AUTH, ERR_NOT_FOUND (no
 * such bucket) name it. */
int relay_s3_open(const char *place, Relay **out_relay);

#endif

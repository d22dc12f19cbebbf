/* A relay made of two: objects lie in a store that cannot push (S3), and each one put is announced
 * in another relay that can (Redis). Who waits is woken there and asks the store once.
 *
 *     put    the object into the store, then its announcement: an empty object of the same key
 *     get    wait for the announcement, then read the store: at once, and if it is late, as it says
 *     notes  in the announcer; in the store while the announcer cannot be reached. Who reads one
 *            that does not change looks into the store, too: its writer may be the one that cannot
 *     drop   in both; count, has, and what a survey lists are the store's, notes the announcer's
 *     sums   refused: the bytes would be in the announcer alone, and lost with it
 *
 * The store has the truth, an announcement only saves time. One may be missing: its writer died
 * in between, or the announcer was emptied. So who waits looks into the store all the same, after
 * 1 s, then less and less often, and announces what it finds; once one was missing, all that is
 * asked for is looked for at once until it is not there. A writer that is started again announces
 * again. An announcer that does not answer is left alone for a while; until then waiting is as over
 * the store alone, and puts do not fail for it. An announcement without its object (it was dropped
 * at that moment) makes its readers wait as over the store alone; it expires.
 *
 * n_requests and its kinds are those to the store, n_announce_requests those to the announcer;
 * n_waits and n_retries are of both. */
#ifndef FUNCPIPE_STORAGE_RELAY_ANNOUNCED_H
#define FUNCPIPE_STORAGE_RELAY_ANNOUNCED_H

#include "storage/relay.h"

/* Takes both, also when it fails. announcer NULL: it cannot be reached now, and is opened later by
 * announcer_url (copied). */
int relay_announced_open(Relay *take_store, Relay *take_announcer, const char *announcer_url,
                         Relay **out_relay);
/* What follows "s3://" in a URL, with announce= or without (then it is relay_s3_open). again: as
 * relay_open_again. */
int relay_announced_open_s3(const char *place, bool again, Relay **out_relay);
/* May a job name it? Asks nobody. ERR_ARGUMENT. */
int relay_announced_check_s3(const char *place);

#endif

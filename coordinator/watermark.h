/* Watermark: how a run notices that its relay has lost objects. It is a note with a number that the
 * run raises every heartbeat interval, one on each of the relay's servers. When it is gone, or
 * lower than what was acknowledged, that server has lost what was written since: it died without
 * persistence, or was brought back from an older snapshot; or files were removed. A relay that
 * cannot be reached has lost nothing yet.
 *
 * A server that comes back with the very number that was acknowledged may still have lost what was
 * written in the heartbeat interval behind it: who waits for that notices (timeouts.wait). */
#ifndef FUNCPIPE_COORDINATOR_WATERMARK_H
#define FUNCPIPE_COORDINATOR_WATERMARK_H

#include "storage/key.h"

typedef struct Watermark {
    char owner[48]; /* tells our numbers from those of another run in the same place */
    int n;          /* servers; 0: notes of this relay say nothing of its objects */
    Key keys[RELAY_MAX_SERVERS];
    char places[RELAY_MAX_SERVERS][RELAY_PLACE_BYTES]; /* of the servers; "": nothing to say */
    int64_t written[RELAY_MAX_SERVERS]; /* the last number acknowledged; 0: none yet */
    int64_t last;                       /* the last number used */
    int n_older;                        /* looks in a row that found an older number */
    char lost[RELAY_KEY_BYTES + RELAY_PLACE_BYTES + 128]; /* what was found, when something was */
} Watermark;

void watermark_init(Watermark *watermark, const KeySpace *space, const Relay *relay);
/* Look at it, then raise it. 1: the relay has lost objects, watermark->lost says how that is known;
 * 0: it has not; an error of the relay: not known, ask again. */
int watermark_raise(Watermark *watermark, Relay *relay);

#endif

/* Surveying a relay: what lies in it, whosesoever it is, and what the place is like. For the
 * commands that keep a store in order; nothing a job does while it runs needs it. */
#ifndef FUNCPIPE_STORAGE_RELAY_SURVEY_H
#define FUNCPIPE_STORAGE_RELAY_SURVEY_H

#include "storage/relay.h"

typedef enum RelayItemKind {
    RELAY_ITEM_OBJECT,
    RELAY_ITEM_NOTE,
    RELAY_ITEM_EXPIRED, /* a note that nobody gets any more */
    RELAY_ITEM_PIECE,   /* of a long object whose parts lie apart; the key is the object's */
    RELAY_ITEM_UPLOAD   /* of an object, begun then and not ended: there is no object yet */
} RelayItemKind;

typedef struct RelayItem {
    RelayItemKind kind;
    const char *key;
    int64_t bytes;   /* that it takes in the store; -1: not known */
    int64_t idle_ms; /* at least so long ago it was last written (Redis: or read); -1: not known */
} RelayItem;

typedef int (*RelayVisit)(void *ctx, const RelayItem *item); /* < 0 ends the visit */

/* What is of no use to anybody: pieces whose object is nowhere, empty folders, uploads that were
 * begun and not ended (nobody knows how much is in them). */
typedef struct RelaySwept {
    int64_t n_pieces, piece_bytes, n_folders, n_uploads;
} RelaySwept;

/* One fact about the place. problem: what is wrong and what to do, NULL where it is fine. */
typedef void (*RelayTell)(void *ctx, const char *name, const char *value, const char *problem);

typedef struct RelaySurvey { /* of an implementation: RelayOps.survey */
    int (*visit)(Relay *relay, const char *prefix, RelayVisit visit, void *ctx);
    int (*sweep)(Relay *relay, const char *prefix, int64_t older_ms, bool dry_run,
                 RelaySwept *out_swept); /* adds to *out_swept */
    int (*about)(Relay *relay, RelayTell tell, void *ctx);
    void (*learned)(Relay *relay, RelayTell tell, void *ctx); /* NULL: about says all */
    bool asks; /* no store of this kind wakes who waits: a waiting get asks again and again */
} RelaySurvey;

/* Show every item at or under `prefix` ("" for all), each once, in no order. What comes or goes
 * meanwhile may be missing. ERR_UNSUPPORTED where the relay cannot list. */
int relay_survey_visit(Relay *relay, const char *prefix, RelayVisit visit, void *ctx);
/* Remove leftovers at or under `prefix` ("" for all) that have been there for older_ms, which the
 * store must say (dry_run: only count them). Others may use the relay all the while. *out_swept:
 * also what was removed before an error. */
int relay_survey_sweep(Relay *relay, const char *prefix, int64_t older_ms, bool dry_run,
                       RelaySwept *out_swept);
/* Tell what the place is: names are lower case with '_', values short texts. No question to a
 * server takes longer than 10 s. */
int relay_survey_about(Relay *relay, RelayTell tell, void *ctx);
/* Tell what this handle has found out about the place by putting some small objects. Asks nobody.
 */
void relay_survey_learned(Relay *relay, RelayTell tell, void *ctx);

#endif

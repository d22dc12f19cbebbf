/* A note that lies in one of two places: its usual one, and another one while its writer cannot
 * reach that. A content has no time beside it, so which of two is the newer one is known from which
 * of them has changed since both were read. The other place is looked into at the first reading,
 * and where the usual one's content stays: after 1 s, then after twice as long, up to 8 s. Once it
 * has the newer one it is read every time, until the usual one's changes. Pure: no clock in it. */
#ifndef FUNCPIPE_STORAGE_NOTE_SEEN_H
#define FUNCPIPE_STORAGE_NOTE_SEEN_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"

enum { NOTES_SEEN = 256 };

typedef struct NoteSeen {
    uint64_t key;          /* 0: none */
    uint64_t usual, other; /* the last contents; 0: absent */
    bool first;            /* reading: nothing is known of the other place */
    bool from_other;       /* that has the newer one */
    int64_t look_ns, look_ms;
} NoteSeen;

typedef struct NotesSeen { /* zeroed: none */
    NoteSeen items[NOTES_SEEN];
} NotesSeen;

/* What is known of a note. A key that has another one's place takes it: it is then read for the
 * first time. */
NoteSeen *note_seen_find(NotesSeen *notes, const char *key);
/* The usual place has this content (NULL: no note). Is the other place to be looked into? */
bool note_seen_usual(NoteSeen *seen, const Slice *content, int64_t now_ns);
/* So has the other place. Is its content the one to be believed? */
bool note_seen_other(NoteSeen *seen, const Slice *content);

#endif

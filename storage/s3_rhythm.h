/* When to ask an S3 store for an object that is not there yet. A store cannot push, and every
 * question costs; but in training the same objects come again in every step. So for each class of
 * keys (the key without the numbers of its folders, "job/g#/t#/a.0-1.2") the time from being asked
 * for to being there is followed, and the next one is asked for when it is due.
 *
 * Of a class are known the mean m of that time and the mean distance d from it; t is a question's
 * round trip. With p = how long the last question's time was behind the first one's:
 *
 *     first question    m + min(3d/2, t/2) + 0.3 ms - max(d - t, 0)/2
 *     pause after one   max(1 ms, t/4, min(d/2, 4t), p/3), at most 250 ms
 *
 * Where d is at most t this finds four of five objects at the first question (1.2 requests for an
 * object), late by about half of t. Where waits scatter more, what is to be found at the first
 * question would have to be asked for late by all that they scatter, every time; so it is asked for
 * earlier and more often (2 to 3 requests), the questions as far apart as the waits scatter.
 *
 * Not later than that, since workers wait for each other in circles: what one finds late makes all
 * others' waits longer, and any lateness in proportion to the wait grows without end. Two things
 * prevent it. How late an object was found is known, from the time that its writer put beside it;
 * the difference of the two clocks and the time of the upload cancel out, because the shortest age
 * at which an object of the class was ever found counts as none. And what is added to the expected
 * time is of the size of a round trip, what lies between two questions of that, or of the time
 * since it was due.
 *
 * Pure: no clock in it. Times are in nanoseconds after the object was asked for. */
#ifndef FUNCPIPE_STORAGE_S3_RHYTHM_H
#define FUNCPIPE_STORAGE_S3_RHYTHM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct S3Rhythm S3Rhythm;

int s3_rhythm_open(S3Rhythm **out_rhythm);
void s3_rhythm_close(S3Rhythm *rhythm); /* NULL is fine */

/* A question took this long, its answer was short. */
void s3_rhythm_trip(S3Rhythm *rhythm, int64_t took_ns);
/* How long after it is asked for to look for it first. 0, at once, for a class never seen. */
int64_t s3_rhythm_due_ns(const S3Rhythm *rhythm, const char *key);
/* It was not there after waited_ns: how long until the next question. */
int64_t s3_rhythm_pause_ns(const S3Rhythm *rhythm, const char *key, int64_t waited_ns);

typedef struct S3Wait {
    int64_t found_ns;  /* the question that found it was sent */
    int64_t missed_ns; /* the one before it was; when it is `missed` */
    bool missed;
    int64_t age_ns; /* by the clocks: from its writer's beginning to put it to found_ns */
} S3Wait;
void s3_rhythm_learn(S3Rhythm *rhythm, const char *key, const S3Wait *wait);

#endif

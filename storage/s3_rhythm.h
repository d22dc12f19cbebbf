/* When to ask an S3 store for an object that is not there yet. A store cannot push, and every
 * question costs; but in training the same objects come again in every step. So for each class of
 * keys (the key without the numbers of its folders, "job/g#/t#/a.0-1.2") the time from being asked
 * for to being there is followed, and the next one is asked for when it is due.
 *
 * An answer says only "not yet" or "there already": the due time follows a high quantile of the
 * waits, as in stochastic approximation (Robbins and Monro, "A Stochastic Approximation Method",
 * 1951). It goes down a little at every object that was there at the first question, faster the
 * longer that lasts, and up at every one that was not, at most by a part of itself, so that one
 * late object (a save, a restart) delays none of the next ones by much. Pure: no clock in it. */
#ifndef FUNCPIPE_STORAGE_S3_RHYTHM_H
#define FUNCPIPE_STORAGE_S3_RHYTHM_H

#include <stdint.h>

typedef struct S3Rhythm S3Rhythm;

int s3_rhythm_open(S3Rhythm **out_rhythm);
void s3_rhythm_close(S3Rhythm *rhythm); /* NULL is fine */

/* How long after it is asked for to look for it first. A class never seen: at
 * once. */
int64_t s3_rhythm_due_ns(const S3Rhythm *rhythm, const char *key);
/* It was not there after waited_ns, for the n_misses-th time: how long until the next question. */
int64_t s3_rhythm_pause_ns(const S3Rhythm *rhythm, const char *key, int64_t waited_ns,
                           int n_misses);
/* It was there after waited_ns, at the first question (n_misses 0) or later; the first one was sent
 * after first_ns. */
void s3_rhythm_learn(S3Rhythm *rhythm, const char *key, int64_t first_ns, int64_t waited_ns,
                     int n_misses);

#endif

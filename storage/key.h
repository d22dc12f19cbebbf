/* Every key the system uses is made here, so that one place knows what is under which name.
 *
 *     JOB/gGEN/tSTEP/a.P-Q.M     activation of micro-batch M on edge P->Q     (train step STEP)
 *     JOB/gGEN/tSTEP/g.Q-P.M     its gradient, back from Q to P
 *     JOB/gGEN/tSTEP/r.S.K.R     chunk K of replica R's gradients of stage S's own parameters
 *     JOB/gGEN/tSTEP/r.S.K       its sum
 *     JOB/gGEN/tSTEP/u.P.K.I     chunk K of contribution I to the gradient of tied parameter P:
 * its uses in order of layers, in each the replicas; u.P.K its sum
 *     JOB/gGEN/tSTEP/n.S.R       norms, loss, finiteness and the leader's decision
 *     JOB/gGEN/eSTEP.B/a.P-Q.M   activation in evaluation batch B after train step STEP
 *     JOB/gGEN/eSTEP/v.S.R       evaluation sums of a loss stage's replica
 *     JOB/gGEN/tSTEP/s.S.R       worker S.R has passed the save of step STEP (replica 0: has
 * written it); all workers' objects there: commit the manifest, then drop what is older
 *     KEY.I                      contribution I to the sum KEY (relay_add); no object of its own
 *     JOB/gGEN/c/f.S.R.A         fence: attempt A of worker S.R has been started
 *     JOB/gGEN/c/r.S.R.A         mark of the one process that runs attempt A of worker S.R
 *     JOB/gGEN/n/h.S.R           heartbeat note          JOB/gGEN/n/control   control note
 *     JOB/gGEN/n/w.I             watermark note: a rising number that the relay must not forget
 *     JOB/claim.GEN              this generation number is taken (relay_put tells who was first)
 *
 * Numbers are decimal without padding. Step counts from 0 (the first step of the job). */
#ifndef FUNCPIPE_STORAGE_KEY_H
#define FUNCPIPE_STORAGE_KEY_H

#include <stdint.h>

#include "storage/relay.h"

typedef struct Key {
    char text[RELAY_KEY_BYTES];
} Key;

typedef struct KeySpace {
    char job[64]; /* text_check_name */
    int64_t generation;
} KeySpace;

/* Where in the run: a train step (eval_batch < 0), or evaluation batch `eval_batch` after it. */
typedef struct KeyPlace {
    int64_t step;
    int64_t eval_batch;
} KeyPlace;

Key key_activation(const KeySpace *space, KeyPlace place, int producer, int consumer, int micro);
Key key_gradient(const KeySpace *space, KeyPlace place, int consumer, int producer, int micro);
/* kind 'r', id a stage; kind 'u', id a parameter. A contribution to it: key_part. */
Key key_sum(const KeySpace *space, int64_t step, char kind, int id, int chunk);
Key key_norms(const KeySpace *space, int64_t step, int stage, int replica);
Key key_eval(const KeySpace *space, int64_t step, int stage, int replica);
Key key_saved(const KeySpace *space, int64_t step, int stage, int replica);
Key key_fence(const KeySpace *space, int stage, int replica, int64_t attempt);
Key key_run(const KeySpace *space, int stage, int replica, int64_t attempt);
Key key_heartbeat(const KeySpace *space, int stage, int replica);
Key key_control(const KeySpace *space);
Key key_watermark(const KeySpace *space, int index);
bool key_is_watermark(const char *key);
Key key_claim(const char *job, int64_t generation);
/* What contribution `index` to the sum `key` is sealed under. A sum's key has at most
 * RELAY_KEY_BYTES - 1 - KEY_PART_BYTES characters, so that this is a key, too. */
enum { KEY_PART_BYTES = 5 };
Key key_part(const char *key, int index);
/* Prefixes to drop: one train step; one evaluation's batch; the whole generation. */
Key key_step_prefix(const KeySpace *space, int64_t step);
Key key_eval_prefix(const KeySpace *space, KeyPlace place);
Key key_space_prefix(const KeySpace *space);
/* Which job's generation does a key belong to? false: to none. *out_claim: it is the claim. */
bool key_find_space(const char *key, KeySpace *out_space, bool *out_claim);

#endif

/* Save: a stage's share of a checkpoint, written in the background. save_begin copies the owned
 * parameters and their update state into host memory and returns; a thread writes them as
 * STORE/STEP/model-0000I-of-0000S.safetensors and update-..., each atomically, retries a failed
 * write a bounded number of times, and publishes the key_saved object when both are there. The
 * coordinator commits the manifest once every worker's object is there. Replicas other than 0 own
 * no files; they only say that they have passed the save. */
#ifndef FUNCPIPE_WORKER_SAVE_H
#define FUNCPIPE_WORKER_SAVE_H

#include "worker/fetch.h"
#include "worker/params.h"
#include "worker/run.h"

typedef struct Save Save;

/* take_relay: a handle of its own. env->say hears of retried writes. */
int save_open(const Order *order, const Stage *stage, const Params *params, const WorkerEnv *env,
              Relay *take_relay, Save **out_save);
Fetch *save_fetch(Save *save); /* its way to the relay */
void save_close(Save *save);   /* waits for the write under way */
/* Save the state after `step` updates' worth of steps. Waits for an earlier save that is
 * still being written (its tries are bounded), and returns that one's error if it failed. */
int save_begin(Save *save, Stream *stream, int64_t step);
/* Wait for the save under way; its error if it failed. */
int save_wait(Save *save);

#endif

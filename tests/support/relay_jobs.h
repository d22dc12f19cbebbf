/* Whole jobs over any relay that an URL names, for end-to-end tests: the relay must be empty, and
 * is empty afterwards. */
#ifndef FUNCPIPE_TESTS_SUPPORT_RELAY_JOBS_H
#define FUNCPIPE_TESTS_SUPPORT_RELAY_JOBS_H

#include <stdint.h>

/* The demo's job, a worker of it killed, ends with the weights that it has over the file relay
 * undisturbed. n_steps of it; FUNCPIPE_LONG: all of it. */
void relay_jobs_demo(const char *relay, int64_t n_steps);

/* An object of a step to come is there already, damaged in one way of tests/support/damage.h;
 * n_rows steps are made before. The job ends, and says which object and why. */
void relay_jobs_damage(const char *relay, int64_t n_rows, int way);

/* Two runs die in the relay with all that they left; a third one, of the same name and with another
 * learning rate, is as in an empty relay. Nothing of the third is left. */
void relay_jobs_leftovers(const char *relay, int64_t n_steps);

#endif

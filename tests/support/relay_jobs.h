/* Whole jobs over any relay that an URL names, for end-to-end tests: the relay must be empty, and
 * is empty afterwards. */
#ifndef FUNCPIPE_TESTS_SUPPORT_RELAY_JOBS_H
#define FUNCPIPE_TESTS_SUPPORT_RELAY_JOBS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct RelayJobsDemo {
    const char *relay;
    const char *form; /* plan.reduce.form; NULL: as over files */
    void (*disturb)(
        void);  /* what happens to the relay in mid-run; NULL: a worker alone is killed */
    bool loses; /* the objects are gone by that: all go back to the last save */
} RelayJobsDemo;

/* The demo's job, disturbed in each of n_runs ways, ends with the weights that it has over the file
 * relay undisturbed. Unless the relay loses its objects, a worker is killed, too. n_steps of it;
 * FUNCPIPE_LONG: all of it. */
void relay_jobs_demo(const RelayJobsDemo *runs, int n_runs, int64_t n_steps);

/* An object of a step to come is there already, damaged in one way of tests/support/damage.h;
 * n_rows steps are made before. The job ends, and says which object and why. */
void relay_jobs_damage(const char *relay, int64_t n_rows, int way);

/* Two runs die in the relay with all that they left; a third one, of the same name and with another
 * learning rate, is as in an empty relay. Nothing of the third is left. */
void relay_jobs_leftovers(const char *relay, int64_t n_steps);

#endif

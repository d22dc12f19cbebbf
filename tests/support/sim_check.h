/* What the scenarios of simulations share: runs that must hold what every run holds. */
#ifndef FUNCPIPE_TESTS_SUPPORT_SIM_CHECK_H
#define FUNCPIPE_TESTS_SUPPORT_SIM_CHECK_H

#include "tests/support/scenario.h"
#include "tests/support/sim.h"

enum { SIM_DESCRIBE_BYTES = 256 };

/* The environment asks for the long form (FUNCPIPE_LONG=1): everything instead of a sample. */
bool sim_long(void);
/* Of many cases every how many-th is to be taken: 1, more where all is slow (sanitizers). */
int32_t sim_stride(void);
/* How often something random is done: 500 times in the long form, else n times, or fewer (at least
 * 4) in a slow build. */
int32_t sim_times(int32_t n);

/* "tiny_gpt S=3 R=1,2,1 M=4 of 2 (batch 8, 24 samples) 1f1b warmup 0 hoist 1 recompute 010". */
const char *sim_describe(const SimJob *job, char *out, size_t out_bytes);

/* Run it: it must end, use every micro-batch once and leave nothing in the relay. 0, or -1 with
 * the job and what is wrong in `why`; the result is done with then. */
int sim_check_run(const SimJob *job, const SimFaults *faults, SimResult *out_result, char *why,
                  size_t why_bytes);
/* The same, and all losses, norms, counts and parameters must be those of `expected`, bit by bit.
 * `what`: put in front of why; may be "". *out_restarts (may be NULL): how often it restarted. */
int sim_check_same(const SimJob *job, const SimFaults *faults, const SimResult *expected,
                   const char *what, int32_t *out_restarts, char *why, size_t why_bytes);
/* Two results must be the same, bit by bit. */
int sim_check_equal(const SimResult *expected, const SimResult *result, const char *what, char *why,
                    size_t why_bytes);
/* The same job with one stage and one replica: what any cut must equal. */
int sim_check_oracle(const SimJob *job, SimResult *out_result, char *why, size_t why_bytes);

/* A small deterministic stream of numbers below n, for sampled cases. */
uint32_t sim_draw(uint64_t *state, uint32_t n);
/* A random cut into n_stages. */
int sim_job_random_cut(SimJob *job, int32_t n_stages, uint64_t *state);
/* The next cut into n_stages in lexical order, from ends = {1, 2, ..., n_layers}: false at the end.
 */
bool sim_next_cut(int32_t *ends, int32_t n_stages, int32_t n_layers);

#endif

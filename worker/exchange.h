/* Exchange: the sum of one vector of floats over several workers, through the relay, in one of the
 * forms of core/reduction.h.
 *
 * There are n_members contributions (a replica of a stage; or a layer's use of a tied parameter by
 * a replica), made by n_holders workers, each of which wants the sum ((c0 + c1) + c2) + ... in the
 * order of members, so that all copies have the same bits whatever came first. The vector is cut
 * into buckets, which go their way as soon as they are final, while others are still computed. A
 * contribution that is there already (an earlier attempt's) stays and counts once.
 *
 * Per step: write the contributions to exchange_in, say exchange_ready as they become final,
 * transfers_wait, read exchange_out. */
#ifndef FUNCPIPE_WORKER_EXCHANGE_H
#define FUNCPIPE_WORKER_EXCHANGE_H

#include "core/reduction.h"
#include "worker/transfers.h"

typedef struct ExchangeSetup { /* arrays are copied */
    char kind;                 /* of the keys: 'r' a stage's replicas, 'u' a tied parameter */
    int32_t id;                /* stage, parameter */
    int64_t n_floats;
    int32_t n_members, n_holders;
    const FetchPeer *members; /* (n_members) who contributes; to be named in errors */
    const FetchPeer *holders; /* (n_holders) */
    int32_t self;             /* of holders */
    const int32_t *own;       /* (n_own) ascending: the members that this worker contributes */
    int32_t n_own;
    /* The transfers of all holders carry this exchange alone. Then none sends far ahead of the sums
     * it has. Of two exchanges each could wait so for what stands behind the other's. */
    bool alone;
    ReduceSpec spec;
} ExchangeSetup;

typedef struct Exchange Exchange;

int exchange_open(const ExchangeSetup *setup, Transfers *transfers, Exchange **out_exchange);
void exchange_close(Exchange *exchange); /* after the transfers' threads have ended */
/* How many threads down are of use. */
int exchange_threads_down(const ExchangeSetup *setup);
ReduceForm exchange_form(const Exchange *exchange); /* that was chosen */

/* Start `step`. `forget`: nothing is added to it that a 16-bit wire has rounded away before. */
void exchange_begin(Exchange *exchange, int64_t step, bool forget);
/* Where element `at` of own contribution `own` (a number below n_own) is to be written, and how
 * many from there on lie in one piece. */
float *exchange_in(Exchange *exchange, int32_t own, int64_t at, int64_t *out_n);
/* All own contributions are final below element `end`. Never goes back. */
void exchange_ready(Exchange *exchange, int64_t end);
/* The sum, after transfers_wait: element `at`, and how many follow in one piece. */
const float *exchange_out(const Exchange *exchange, int64_t at, int64_t *out_n);

#endif

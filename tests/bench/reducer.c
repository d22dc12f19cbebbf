#include "tests/bench/reducer.h"

#include <stdio.h>
#include <string.h>

#include "core/err.h"

static int open_relay(void *ctx, Relay **out_relay) {
    return relay_open(((const Reducer *)ctx)->url, out_relay);
}

int reducer_open(Reducer *reducer, const char *url, const char *job, int n, int self,
                 int64_t n_floats, const ReduceSpec *spec) {
    enum { N_UP = 2 };
    FetchPeer peers[REDUCER_MAX_WORKERS] = {{0, 0}};
    const int32_t own = self;
    const ExchangeSetup setup = {.kind = 'r',
                                 .alone = true,
                                 .n_floats = n_floats,
                                 .n_members = n,
                                 .n_holders = n,
                                 .members = peers,
                                 .holders = peers,
                                 .self = self,
                                 .own = &own,
                                 .n_own = 1,
                                 .spec = *spec};
    *reducer = (Reducer){.url = url, .n_floats = n_floats};
    order_init(&reducer->order);
    snprintf(reducer->order.job, sizeof reducer->order.job, "%s", job);
    reducer->order.wait_timeout_ms = REDUCER_WAIT_MS;
    TRY(transfers_open(&reducer->order, open_relay, reducer, N_UP, exchange_threads_down(&setup),
                       &reducer->transfers));
    return exchange_open(&setup, reducer->transfers, &reducer->exchange);
}

void reducer_close(Reducer *reducer) {
    transfers_close(reducer->transfers);
    exchange_close(reducer->exchange);
    order_done(&reducer->order);
}

int reducer_run(Reducer *reducer, int64_t step, const float *gradient, float *out_sum) {
    Exchange *exchange = reducer->exchange;
    int64_t bytes = 0;
    exchange_begin(exchange, step, false);
    for (int64_t at = 0, n = 0; at < reducer->n_floats; at += n) {
        float *to = exchange_in(exchange, 0, at, &n);
        memcpy(to, gradient + at, (size_t)n * sizeof(float));
        exchange_ready(exchange, at + n);
    }
    TRY(transfers_wait(reducer->transfers, &bytes));
    for (int64_t at = 0, n = 0; at < reducer->n_floats; at += n) {
        const float *from = exchange_out(exchange, at, &n);
        memcpy(out_sum + at, from, (size_t)n * sizeof(float));
    }
    return 0;
}

/* Sums of vectors over several workers, each a thread, through the memory relay. */
#include "worker/exchange.h"

#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/hash.h"

enum { MAX_HOLDERS = 16, N_STEPS = 3 };

typedef struct Rig {
    RelayMemStore *store;
    Order order;
    ReduceSpec spec;
    int32_t n_holders, n_twice; /* the first n_twice holders contribute two vectors */
    int64_t n_floats;
    bool forget;
    int n_servers; /* among which the relay says that keys are spread; 0: one */
    bool lags;     /* holder 1 has its first bucket before all others, and the rest long after */
} Rig;

typedef struct Holder {
    const Rig *rig;
    int32_t self;
    float *sums; /* (N_STEPS, n_floats) */
    int rc;
    char text[256];
    int64_t n_before; /* one that lags: objects in the relay before its second bucket */
} Holder;

/* Numbers whose sum depends on the order of addition. */
static float element(int64_t step, int32_t member, int64_t i) {
    const uint32_t hash = (uint32_t)(step * 7919 + member * 104729 + i * 31) * UINT32_C(2654435761);
    return ldexpf((float)(hash >> 8) / (float)(1 << 23) - 1.0F, (int)(hash & 15U) - 8);
}

static int n_servers;
static RelayOps ops_with_servers, ops_that_are_slow;

static int server_of(const Relay *relay, const char *key, int *out_n) {
    *out_n = n_servers;
    (void)relay;
    return (int)(hash_text(key) % (uint64_t)n_servers);
}

static int (*put_at_once)(Relay *relay, const char *key, const Slice *parts, int n_parts,
                          int64_t deadline_ns);

static int put_slowly(Relay *relay, const char *key, const Slice *parts, int n_parts,
                      int64_t deadline_ns) {
    clock_sleep_until(clock_deadline_ms(2));
    return put_at_once(relay, key, parts, n_parts, deadline_ns);
}

static int open_handle(void *ctx, Relay **out_relay) {
    const Rig *rig = ctx;
    TRY(relay_mem_open(rig->store, out_relay));
    if (rig->lags)
        (*out_relay)->ops = &ops_that_are_slow;
    if (rig->n_servers > 0)
        (*out_relay)->ops = &ops_with_servers;
    return 0;
}

static void spread_keys(const Rig *rig) {
    Relay *relay = NULL;
    cr_assert_eq(relay_mem_open(rig->store, &relay), 0);
    ops_with_servers = *relay->ops;
    ops_with_servers.server = server_of;
    ops_that_are_slow = *relay->ops;
    put_at_once = relay->ops->put;
    ops_that_are_slow.put = put_slowly;
    n_servers = rig->n_servers;
    relay_close(relay);
}

static int32_t n_members(const Rig *rig) {
    return rig->n_holders + rig->n_twice;
}

/* ---- a holder that lags ---- */

static int64_t count_objects(const Rig *rig) {
    Relay *relay = NULL;
    int64_t n = -1;
    cr_assert_eq(relay_mem_open(rig->store, &relay), 0);
    cr_assert_eq(relay_count(relay, "", &n), 0);
    relay_close(relay);
    return n;
}

enum { LAG_FLOATS = 3 * 256 }; /* what the one that lags has at once: a bucket or some */

/* The others begin when there is something. */
static void await_first(const Rig *rig) {
    while (rig->lags && count_objects(rig) == 0)
        clock_sleep_until(clock_deadline_ms(1));
}

/* The one that lags goes on when nothing more comes. */
static void await_quiet(Holder *holder) {
    for (int quiet = 0; holder->rig->lags && quiet < 30;) {
        int64_t n = count_objects(holder->rig);
        quiet = n > 0 && n == holder->n_before ? quiet + 1 : 0;
        holder->n_before = n;
        clock_sleep_until(clock_deadline_ms(10));
    }
}

static int run_holder(Holder *holder) {
    const Rig *rig = holder->rig;
    FetchPeer peers[2 * MAX_HOLDERS] = {{0, 0}};
    FetchPeer holders[MAX_HOLDERS] = {{0, 0}};
    int32_t own[2] = {holder->self, rig->n_holders + holder->self};
    const ExchangeSetup setup = {.kind = 'r',
                                 .alone = true,
                                 .n_floats = rig->n_floats,
                                 .n_members = n_members(rig),
                                 .n_holders = rig->n_holders,
                                 .members = peers,
                                 .holders = holders,
                                 .self = holder->self,
                                 .own = own,
                                 .n_own = holder->self < rig->n_twice ? 2 : 1,
                                 .spec = rig->spec};
    Transfers *transfers = NULL;
    Exchange *exchange = NULL;
    int64_t bytes = 0;
    int rc = transfers_open(&rig->order, open_handle, (void *)rig, 2, exchange_threads_down(&setup),
                            &transfers);
    if (rc >= 0)
        rc = exchange_open(&setup, transfers, &exchange);
    for (int64_t step = 0; rc >= 0 && step < N_STEPS; step++) {
        exchange_begin(exchange, step, rig->forget);
        for (int64_t at = 0, n = 0; at < rig->n_floats; at += n) {
            if (step == 0 && at == 0 && holder->self != 1)
                await_first(rig);
            for (int32_t k = 0; k < setup.n_own; k++) {
                float *to = exchange_in(exchange, k, at, &n);
                n = n < 1000 ? n : 1000; /* becomes final bit by bit */
                for (int64_t i = 0; i < n; i++)
                    to[i] = element(step, own[k], at + i);
            }
            exchange_ready(exchange, at + n);
            if (step == 0 && at < LAG_FLOATS && at + n >= LAG_FLOATS && holder->self == 1)
                await_quiet(holder);
        }
        rc = transfers_wait(transfers, &bytes);
        for (int64_t at = 0, n = 0; rc >= 0 && at < rig->n_floats; at += n) {
            const float *from = exchange_out(exchange, at, &n);
            memcpy(holder->sums + step * rig->n_floats + at, from, (size_t)n * sizeof(float));
        }
    }
    if (rc < 0)
        snprintf(holder->text, sizeof holder->text, "%s", err_text());
    transfers_close(transfers);
    exchange_close(exchange);
    return rc;
}

static void *holder_main(void *arg) {
    Holder *holder = arg;
    holder->rc = run_holder(holder);
    return NULL;
}

static void run_all(const Rig *rig, Holder *holders) {
    pthread_t threads[MAX_HOLDERS];
    for (int32_t h = 0; h < rig->n_holders; h++) {
        holders[h] = (Holder){.rig = rig, .self = h};
        holders[h].sums = calloc((size_t)(N_STEPS * rig->n_floats) + 1, sizeof(float));
        cr_assert(holders[h].sums &&
                  pthread_create(&threads[h], NULL, holder_main, &holders[h]) == 0);
    }
    for (int32_t h = 0; h < rig->n_holders; h++)
        pthread_join(threads[h], NULL);
}

static void rig_open(Rig *rig) {
    cr_assert_eq(relay_mem_store_open(&rig->store), 0);
    order_init(&rig->order);
    strcpy(rig->order.job, "j");
    rig->order.wait_timeout_ms = 60000;
}

static void rig_close(Rig *rig, Holder *holders) {
    for (int32_t h = 0; h < rig->n_holders; h++)
        free(holders[h].sums);
    relay_mem_store_close(rig->store);
    rig->store = NULL;
}

static float expected(const Rig *rig, int64_t step, int64_t i) {
    float sum = element(step, 0, i);
    for (int32_t m = 1; m < n_members(rig); m++)
        sum += element(step, m, i);
    return sum;
}

static void check_with(Rig rig, Holder *holders) {
    rig_open(&rig);
    spread_keys(&rig);
    run_all(&rig, holders);
    for (int32_t h = 0; h < rig.n_holders; h++) {
        cr_assert_eq(holders[h].rc, 0, "%s", holders[h].text);
        for (int64_t i = 0; i < N_STEPS * rig.n_floats; i++) {
            float want = expected(&rig, i / rig.n_floats, i % rig.n_floats);
            cr_assert(memcmp(&holders[h].sums[i], &want, sizeof want) == 0,
                      "%s, %d holders, %lld floats: holder %d has %a at %lld instead of %a",
                      reduction_form_names[rig.spec.form], rig.n_holders, (long long)rig.n_floats,
                      h, (double)holders[h].sums[i], (long long)i, (double)want);
        }
    }
    rig_close(&rig, holders);
}

static void check(Rig rig) {
    Holder holders[MAX_HOLDERS];
    check_with(rig, holders);
}

static void check_sizes(ReduceForm form) {
    static const int32_t counts[] = {2, 3, 4, 5, 7, 8, 16};
    for (int c = 0; c < (int)(sizeof counts / sizeof counts[0]); c++) {
        const int32_t n = counts[c];
        const int64_t sizes[] = {1, n - 1, n, n + 1, 1000, 4099};
        for (int s = 0; s < 6; s++)
            check((Rig){
                .spec = {.form = form, .chunk_bytes = 1024}, .n_holders = n, .n_floats = sizes[s]});
    }
}

Test(exchange, whole) {
    check_sizes(REDUCE_WHOLE);
}

Test(exchange, chunked) {
    check_sizes(REDUCE_CHUNKED);
}

Test(exchange, in_store) {
    check_sizes(REDUCE_IN_STORE);
}

Test(exchange, a_holder_with_two_contributions) {
    for (int form = REDUCE_WHOLE; form < REDUCE_N_FORMS; form++)
        check((Rig){.spec = {.form = (ReduceForm)form, .chunk_bytes = 256},
                    .n_holders = 3,
                    .n_twice = 2,
                    .n_floats = 777});
}

Test(exchange, chunks_of_the_default_size) {
    for (int form = REDUCE_WHOLE; form < REDUCE_N_FORMS; form++)
        check((Rig){.spec = {.form = (ReduceForm)form}, .n_holders = 3, .n_floats = 1500001});
}

/* Transfers that wait for one another are taken out of turn: nobody may lock up. */
Test(exchange, over_several_servers) {
    static const int servers[] = {2, 3, 16};
    for (int form = REDUCE_WHOLE; form < REDUCE_N_FORMS; form++) {
        for (int32_t n = 2; n <= 8; n *= 2) {
            for (int i = 0; i < 3; i++)
                check((Rig){.spec = {.form = (ReduceForm)form, .chunk_bytes = 256},
                            .n_holders = n,
                            .n_floats = 5000,
                            .n_servers = servers[i]});
        }
    }
}

/* What rounding takes away comes back: the sum over steps is nearer than that of rounded ones. */
static void check_feedback(ReduceForm form) {
    double errors[2] = {0, 0};
    for (int forget = 0; forget < 2; forget++) {
        Holder holders[MAX_HOLDERS];
        Rig rig = {.spec = {.form = form, .wire = REDUCE_BF16, .chunk_bytes = 512},
                   .n_holders = 4,
                   .n_floats = 3000,
                   .forget = forget != 0};
        rig_open(&rig);
        run_all(&rig, holders);
        for (int32_t h = 0; h < rig.n_holders; h++)
            cr_assert_eq(memcmp(holders[h].sums, holders[0].sums,
                                (size_t)(N_STEPS * rig.n_floats) * sizeof(float)),
                         0, "%d: %s", h, holders[h].text);
        for (int64_t i = 0; i < rig.n_floats; i++) {
            double have = 0;
            double want = 0;
            for (int64_t step = 0; step < N_STEPS; step++) {
                have += (double)holders[0].sums[step * rig.n_floats + i];
                want += (double)expected(&rig, step, i);
            }
            errors[forget] += fabs(have - want);
        }
        rig_close(&rig, holders);
    }
    cr_assert(errors[1] > 0 && errors[0] < 0.75 * errors[1], "%g with feedback, %g without",
              errors[0], errors[1]);
}

Test(exchange, bf16_feeds_its_errors_back) {
    check_feedback(REDUCE_WHOLE);
    check_feedback(REDUCE_CHUNKED);
}

/* Those ahead leave the way to the relay to the one behind: of 400 chunks each sends about 32. */
static void check_lag(ReduceForm form) {
    Holder holders[MAX_HOLDERS];
    check_with((Rig){.spec = {.form = form, .chunk_bytes = 1024},
                     .n_holders = 3,
                     .n_floats = 400 * 256,
                     .lags = true},
               holders);
    cr_expect(holders[1].n_before > 32 && holders[1].n_before < 150, "%s: %lld objects",
              reduction_form_names[form], (long long)holders[1].n_before);
}

Test(exchange, nobody_runs_far_ahead) {
    check_lag(REDUCE_WHOLE);
    check_lag(REDUCE_CHUNKED);
}

/* ---- two exchanges on the same transfers ---- */

typedef struct Pair { /* worker `self` of two, which begins with exchange number `self` */
    Rig *rig;
    int32_t self;
    int rc;
    char text[256];
} Pair;

enum { PAIR_FLOATS = 64 * 64 }; /* of each exchange, in chunks of 64: more than there are threads */

static int run_pair(const Pair *pair) {
    FetchPeer peers[2] = {{0, 0}, {1, 0}};
    Transfers *transfers = NULL;
    Exchange *exchanges[2] = {NULL, NULL};
    int64_t bytes = 0;
    int rc =
        transfers_open(&pair->rig->order, open_handle, pair->rig, 2, WORKER_LEAST_DOWN, &transfers);
    for (int32_t e = 0; rc >= 0 && e < 2; e++) {
        const ExchangeSetup setup = {.kind = 'u',
                                     .id = e,
                                     .n_floats = PAIR_FLOATS,
                                     .n_members = 2,
                                     .n_holders = 2,
                                     .members = peers,
                                     .holders = peers,
                                     .self = pair->self,
                                     .own = &pair->self,
                                     .n_own = 1,
                                     .spec = pair->rig->spec};
        rc = exchange_open(&setup, transfers, &exchanges[e]);
    }
    for (int i = 0; rc >= 0 && i < 2; i++) {
        Exchange *exchange = exchanges[(pair->self + i) % 2];
        exchange_begin(exchange, 0, false);
        for (int64_t at = 0, n = 0; at < PAIR_FLOATS; at += n) {
            float *to = exchange_in(exchange, 0, at, &n);
            for (int64_t k = 0; k < n; k++)
                to[k] = element(0, pair->self, at + k);
        }
        exchange_ready(exchange, PAIR_FLOATS);
    }
    if (rc >= 0)
        rc = transfers_wait(transfers, &bytes);
    for (int64_t at = 0, n = 0; rc >= 0 && at < 2 * PAIR_FLOATS; at += n) {
        const int64_t first = at % PAIR_FLOATS;
        const float *from = exchange_out(exchanges[at / PAIR_FLOATS], first, &n);
        for (int64_t k = 0; rc >= 0 && k < n; k++) {
            if (from[k] != element(0, 0, first + k) + element(0, 1, first + k))
                rc = err_set(ERR_INTERNAL, "a wrong sum at %lld", (long long)(first + k));
        }
    }
    transfers_close(transfers);
    for (int e = 0; e < 2; e++)
        exchange_close(exchanges[e]);
    return rc;
}

static void *pair_main(void *arg) {
    Pair *pair = arg;
    pair->rc = run_pair(pair);
    if (pair->rc < 0)
        snprintf(pair->text, sizeof pair->text, "%s", err_text());
    return NULL;
}

/* Each has the sums of one exchange before what the other one's sums need. */
Test(exchange, two_in_opposite_orders) {
    Rig rig = {.spec = {.form = REDUCE_CHUNKED, .chunk_bytes = 256}};
    Pair pairs[2] = {{.rig = &rig, .self = 0}, {.rig = &rig, .self = 1}};
    pthread_t threads[2];
    rig_open(&rig);
    rig.order.wait_timeout_ms = 3000;
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, pair_main, &pairs[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++)
        cr_expect_eq(pairs[i].rc, 0, "worker %d: %s", i, pairs[i].text);
    relay_mem_store_close(rig.store);
}

/* One that does not come ends the others at their deadline, with its name. */
Test(exchange, a_missing_holder_is_named) {
    Rig rig = {.spec = {.form = REDUCE_CHUNKED}, .n_holders = 3, .n_floats = 100};
    rig_open(&rig);
    rig.order.wait_timeout_ms = 300;
    Holder alone = {.rig = &rig, .self = 1};
    alone.sums = calloc(N_STEPS * 100, sizeof(float));
    cr_assert_eq(run_holder(&alone), ERR_TIMEOUT);
    cr_assert(strstr(alone.text, "waiting for worker 0.0, which has no heartbeat"), "%s",
              alone.text);
    rig.n_holders = 1;
    rig_close(&rig, &alone);
}

/* ---- which form ---- */

Test(reduction, the_fastest_form_is_chosen) {
    ReduceSpec spec = {.latency_us = 20000, .rate_bytes_per_s = 70000000};
    cr_expect_eq(reduction_choose(&spec, 4096, 8, 8), REDUCE_WHOLE);
    cr_expect_eq(reduction_choose(&spec, 64 << 20, 2, 2),
                 REDUCE_WHOLE); /* the same bytes, less waiting */
    cr_expect_eq(reduction_choose(&spec, 64 << 20, 4, 4), REDUCE_CHUNKED);
    spec.store_adds = true;
    cr_expect_eq(reduction_choose(&spec, 64 << 20, 4, 4), REDUCE_IN_STORE);
    cr_expect_eq(reduction_choose(&spec, 64 << 20, 2, 2), REDUCE_WHOLE);
    spec.wire = REDUCE_BF16;
    cr_expect_eq(reduction_choose(&spec, 64 << 20, 4, 4), REDUCE_CHUNKED);
    spec.form = REDUCE_WHOLE;
    cr_expect_eq(reduction_choose(&spec, 64 << 20, 4, 4), REDUCE_WHOLE);
}

/* A store adds no more than so many. */
Test(reduction, too_many_for_the_store) {
    ReduceSpec spec = {.store_adds = true};
    cr_expect_eq(reduction_choose(&spec, 64 << 20, 1024, 1024), REDUCE_IN_STORE);
    cr_expect_eq(reduction_choose(&spec, 64 << 20, 1025, 1025), REDUCE_CHUNKED);
    cr_expect_eq(reduction_choose(&spec, 64 << 20, 600, 1200), REDUCE_CHUNKED);
    cr_expect_eq(reduction_check(&spec, 1025), 0);
    spec.form = REDUCE_IN_STORE;
    cr_expect_eq(reduction_check(&spec, 1024), 0);
    cr_expect_eq(reduction_check(&spec, 1025), ERR_ARGUMENT);
    cr_expect(strstr(err_text(), "at most 1024 contributions, not the 1025"), "%s", err_text());
}

Test(reduction, chunks_move_in_some_latencies) {
    cr_expect_eq(reduction_chunk_bytes(&(ReduceSpec){.rate_bytes_per_s = 0}), 256 << 10);
    ReduceSpec spec = {.latency_us = 1000, .rate_bytes_per_s = 20000000};
    cr_expect_eq(reduction_chunk_bytes(&spec), 100000);
    spec.rate_bytes_per_s = 1000000;
    cr_expect_eq(reduction_chunk_bytes(&spec), 64 << 10);
    spec.latency_us = 30000;
    cr_expect_eq(reduction_chunk_bytes(&spec), 150000);
    spec = (ReduceSpec){.latency_us = 30, .rate_bytes_per_s = 70000000};
    cr_expect_eq(reduction_chunk_bytes(&spec), 256 << 10, "a near server is no reason for less");
    spec.rate_bytes_per_s = REDUCE_MAX_RATE_BYTES_PER_S;
    cr_expect_eq(reduction_chunk_bytes(&spec), 256 << 10);
    spec.chunk_bytes = 5000;
    cr_expect_eq(reduction_chunk_bytes(&spec), 5000);
}

Test(reduction, bf16_rounds_to_nearest_and_even) {
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {{0x00000000, 0x0000}, {0x80000000, 0x8000}, {0x3f800000, 0x3f80},
                 {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81},
                 {0x7f7fffff, 0x7f80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
                 {0x7f800001, 0x7fc0}, {0x00000001, 0x0000}};
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); i++) {
        float value = 0;
        memcpy(&value, &cases[i].from, sizeof value);
        cr_expect_eq(reduction_to_bf16(value), cases[i].to, "%08x gives %04x", cases[i].from,
                     reduction_to_bf16(value));
    }
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float value = reduction_from_bf16((uint16_t)bits);
        if (!isnan(value))
            cr_assert_eq(reduction_to_bf16(value), bits);
    }
}

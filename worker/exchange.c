#include "worker/exchange.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "worker/adding.h"

/* How far a worker sends ahead of the sums it has: enough for all its threads, each in the middle
 * of something, and for several servers. */
enum { WINDOW_CHUNKS = 32, WINDOW_LEAST_BUCKETS = 4 };

typedef enum ExchangeOp {
    EXCHANGE_PUT,
    EXCHANGE_ADD,
    EXCHANGE_GET,
    EXCHANGE_PUT_SUM,
    EXCHANGE_GET_SUM
} ExchangeOp;

typedef struct ExchangeTask {
    Transfer transfer;
    Exchange *exchange;
    ExchangeOp op;
    int32_t chunk;
    int32_t member; /* PUT: number among the own ones; GET: the member */
} ExchangeTask;

/* A part of the vector that travels as one object. Its blobs have one form. */
typedef struct ExchangeChunk {
    int64_t first, n; /* floats */
    int32_t holder;   /* who adds it up and publishes the sum; -1: each for itself, or the store */
    BlobTensor wire;  /* of contributions */
    size_t offset, bytes; /* of a contribution's blob: where its tensor lies, all of it */
    BlobTensor sum_wire;
    size_t sum_offset, sum_bytes;
    char *own;                 /* (n_own) contributions' blobs, one behind the other */
    char *in;                  /* (n_members) those of others; NULL where they are not wanted */
    char *sum;                 /* the sum's blob */
    _Atomic int32_t n_missing; /* of others' contributions */
    ExchangeTask *puts, *gets, *sum_task; /* (n_own), (others), one or NULL */
    int32_t bucket;
} ExchangeChunk;

typedef struct ExchangeBucket { /* goes its way when all below `end` is final */
    int64_t end;
    int32_t first_chunk, end_chunk;
    /* Under the exchange's lock: */
    int32_t n_unsent;   /* own contributions on their way */
    int32_t n_unsummed; /* chunks whose sum is not here */
} ExchangeBucket;

struct Exchange {
    ExchangeSetup setup;
    FetchPeer *members, *holders;
    int32_t *own;
    int32_t *own_number; /* (n_members) number among the own ones; -1: another worker's */
    Transfers *transfers;
    ReduceForm form;
    int64_t step;
    int32_t n_buckets, n_chunks;
    ExchangeBucket *buckets; /* (n_buckets) */
    ExchangeChunk *chunks;   /* ascending */
    pthread_mutex_t lock;    /* of how far this step is: */
    int32_t n_final;         /* buckets that are final */
    int32_t n_started;       /* buckets that have gone their way */
    int32_t n_sent;          /* buckets whose own contributions are in the store */
    int32_t n_summed;        /* buckets whose sum is here */
    char *memory;
    ExchangeTask *tasks;
    int32_t n_tasks;
    /* a 16-bit wire's */
    float *exact;        /* (n_own, n_floats) what is to be sent */
    float *residual;     /* (n_own, n_floats) what the last step's rounding took away */
    float *residual_sum; /* (n_floats) the same of sums made here */
    float *sums;         /* (n_floats) what came, as floats */
};

/* ---- where things lie ---- */

static bool is_half(const Exchange *exchange) {
    return exchange->setup.spec.wire == REDUCE_BF16;
}

static char *own_blob(const ExchangeChunk *chunk, int32_t number) {
    return chunk->own + (size_t)number * chunk->bytes;
}

static char *in_blob(const ExchangeChunk *chunk, int32_t member) {
    return chunk->in + (size_t)member * chunk->bytes;
}

static bool gathers(const Exchange *exchange, const ExchangeChunk *chunk) {
    return exchange->form == REDUCE_WHOLE ||
           (exchange->form == REDUCE_CHUNKED && chunk->holder == exchange->setup.self);
}

static FetchBlob part_blob(const ExchangeChunk *chunk, char *bytes) {
    return (FetchBlob){bytes, chunk->bytes, &chunk->wire, &chunk->offset, 1};
}

static FetchBlob sum_blob(const ExchangeChunk *chunk) {
    return (FetchBlob){chunk->sum, chunk->sum_bytes, &chunk->sum_wire, &chunk->sum_offset, 1};
}

/* ---- what the threads do ---- */

static Key task_key(const Exchange *exchange, const ExchangeTask *task, const KeySpace *space) {
    const Key sum =
        key_sum(space, exchange->step, exchange->setup.kind, exchange->setup.id, task->chunk);
    switch (task->op) {
    case EXCHANGE_PUT:
        return key_part(sum.text, exchange->own[task->member]);
    case EXCHANGE_GET:
        return key_part(sum.text, task->member);
    default:
        return sum;
    }
}

static void submit(Exchange *exchange, Direction direction, ExchangeTask *task) {
    const Key key = task_key(exchange, task, &transfers_fetch(exchange->transfers, 0)->space);
    transfers_submit(exchange->transfers, direction, &task->transfer, key.text);
}

/* All contributions to a chunk are here: add them up in order. */
static void add_up(Exchange *exchange, ExchangeChunk *chunk, const KeySpace *space) {
    float *sum = is_half(exchange) ? exchange->sums + chunk->first
                                   : (float *)(void *)(chunk->sum + chunk->sum_offset);
    for (int32_t m = 0; m < exchange->setup.n_members; m++) {
        const int32_t number = exchange->own_number[m];
        const char *blob = number >= 0 ? own_blob(chunk, number) : in_blob(chunk, m);
        const void *from = blob + chunk->offset;
        if (is_half(exchange)) {
            adding_halves(sum, from, chunk->n, m == 0);
        } else if (m == 0) {
            memcpy(sum, from, (size_t)chunk->n * sizeof(float));
        } else {
            adding_floats(sum, from, chunk->n);
        }
    }
    if (chunk->sum_task == NULL) {
        return;
    }
    if (is_half(exchange)) { /* all take what is sent, the sender too */
        uint16_t *halves = (uint16_t *)(void *)(chunk->sum + chunk->sum_offset);
        adding_round(halves, sum, exchange->residual_sum + chunk->first, chunk->n);
        adding_halves(sum, halves, chunk->n, true);
    }
    /* All others wait for it, some of them while contributions lie there unread. */
    const Key key = task_key(exchange, chunk->sum_task, space);
    transfers_submit_first(exchange->transfers, TRANSFER_UP, &chunk->sum_task->transfer, key.text);
}

static int get_sum(Exchange *exchange, ExchangeChunk *chunk, Fetch *fetch, Key key,
                   int64_t *bytes) {
    const FetchBlob blob = sum_blob(chunk);
    TRY(chunk->holder >= 0
            ? fetch_get(fetch, key, exchange->holders[chunk->holder], &blob, bytes)
            : fetch_get_of(fetch, key, exchange->holders, exchange->setup.n_holders, &blob, bytes));
    if (is_half(exchange)) {
        adding_halves(exchange->sums + chunk->first,
                      (const uint16_t *)(const void *)(chunk->sum + chunk->sum_offset), chunk->n,
                      true);
    }
    return 0;
}

/* An own contribution is in the store; a chunk's sum is here: the next buckets may go their way. */
static void have_sent(Exchange *exchange, const ExchangeChunk *chunk);
static void have_sum(Exchange *exchange, const ExchangeChunk *chunk);

static int exchange_run(Transfer *transfer, Fetch *fetch, int64_t *bytes) {
    ExchangeTask *task = (ExchangeTask *)transfer;
    Exchange *exchange = task->exchange;
    ExchangeChunk *chunk = &exchange->chunks[task->chunk];
    FetchBlob blob = sum_blob(chunk);
    const Key key = task_key(exchange, task, &fetch->space);
    switch (task->op) {
    case EXCHANGE_PUT:
        blob = part_blob(chunk, own_blob(chunk, task->member));
        TRY(fetch_put(fetch, key, &blob, bytes));
        have_sent(exchange, chunk);
        return 0;
    case EXCHANGE_ADD:
        blob = part_blob(chunk, own_blob(chunk, task->member));
        TRY(fetch_add(fetch, key, exchange->own[task->member], exchange->setup.n_members, &blob,
                      bytes));
        have_sent(exchange, chunk);
        return 0;
    case EXCHANGE_GET:
        blob = part_blob(chunk, in_blob(chunk, task->member));
        TRY(fetch_get(fetch, key, exchange->members[task->member], &blob, bytes));
        if (atomic_fetch_sub(&chunk->n_missing, 1) == 1) {
            add_up(exchange, chunk, &fetch->space);
            have_sum(exchange, chunk);
        }
        return 0;
    case EXCHANGE_PUT_SUM:
        return fetch_put(fetch, key, &blob, bytes);
    case EXCHANGE_GET_SUM:
    default:
        TRY(get_sum(exchange, chunk, fetch, key, bytes));
        have_sum(exchange, chunk);
        return 0;
    }
}

/* ---- opening ---- */

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* Cut: buckets of about chunk_bytes, or of n_holders such chunks. */
static int cut_vector(Exchange *exchange) {
    const ExchangeSetup *setup = &exchange->setup;
    const int64_t element = is_half(exchange) ? 2 : 4;
    const int64_t chunk_bytes = reduction_chunk_bytes(&setup->spec);
    const int64_t target = chunk_bytes / element > 0 ? chunk_bytes / element : 1;
    const int32_t pieces = exchange->form == REDUCE_CHUNKED ? setup->n_holders : 1;
    const int64_t n_buckets = ceil_div(setup->n_floats, target * pieces);
    if (n_buckets * pieces > INT32_MAX) {
        return err_set(ERR_LIMIT, "%lld gradients in chunks of %lld bytes are too many chunks",
                       (long long)setup->n_floats, (long long)chunk_bytes);
    }
    exchange->n_buckets = (int32_t)n_buckets;
    exchange->buckets = calloc((size_t)n_buckets + 1, sizeof *exchange->buckets);
    exchange->chunks = calloc((size_t)(n_buckets * pieces) + 1, sizeof *exchange->chunks);
    if (exchange->buckets == NULL || exchange->chunks == NULL) {
        return err_set(ERR_MEMORY, "%lld chunks of gradients", (long long)n_buckets * pieces);
    }
    for (int32_t b = 0; b < exchange->n_buckets; b++) {
        const int64_t first = setup->n_floats * b / n_buckets;
        const int64_t end = setup->n_floats * (b + 1) / n_buckets;
        ExchangeBucket *bucket = &exchange->buckets[b];
        *bucket = (ExchangeBucket){.end = end, .first_chunk = exchange->n_chunks};
        for (int32_t p = 0; p < pieces; p++) {
            const int64_t from = first + (end - first) * p / pieces;
            const int64_t to = first + (end - first) * (p + 1) / pieces;
            if (from == to) {
                continue;
            }
            exchange->chunks[exchange->n_chunks++] =
                (ExchangeChunk){.first = from,
                                .n = to - from,
                                .holder = exchange->form == REDUCE_CHUNKED ? p : -1,
                                .bucket = b};
        }
        bucket->end_chunk = exchange->n_chunks;
    }
    return 0;
}

static int lay_out(const Exchange *exchange, ExchangeChunk *chunk) {
    const bool sum_half = is_half(exchange) && exchange->form == REDUCE_CHUNKED;
    chunk->wire = (BlobTensor){is_half(exchange) ? DTYPE_BF16 : DTYPE_F32, shape_1d(chunk->n)};
    chunk->sum_wire = (BlobTensor){sum_half ? DTYPE_BF16 : DTYPE_F32, shape_1d(chunk->n)};
    const int64_t bytes = blob_layout(&chunk->wire, 1, &chunk->offset);
    const int64_t sum_bytes = blob_layout(&chunk->sum_wire, 1, &chunk->sum_offset);
    if (bytes < 0 || sum_bytes < 0) {
        return (int)(bytes < 0 ? bytes : sum_bytes);
    }
    chunk->bytes = (size_t)ceil_div(bytes, BLOB_ALIGN) * BLOB_ALIGN;
    chunk->sum_bytes = (size_t)ceil_div(sum_bytes, BLOB_ALIGN) * BLOB_ALIGN;
    return 0;
}

/* One memory for all blobs. */
static int place_chunks(Exchange *exchange) {
    const ExchangeSetup *setup = &exchange->setup;
    size_t at = 0;
    for (int pass = 0; pass < 2; pass++) {
        at = 0;
        for (int32_t c = 0; c < exchange->n_chunks; c++) {
            ExchangeChunk *chunk = &exchange->chunks[c];
            if (pass == 0) {
                TRY(lay_out(exchange, chunk));
            }
            char *base = exchange->memory;
            chunk->own = base + at;
            at += (size_t)setup->n_own * chunk->bytes;
            if (gathers(exchange, chunk)) {
                chunk->in = base + at;
                at += (size_t)setup->n_members * chunk->bytes;
            }
            chunk->sum = base + at;
            at += chunk->sum_bytes;
        }
        if (pass == 0) {
            exchange->memory = aligned_alloc(BLOB_ALIGN, at + BLOB_ALIGN);
            if (exchange->memory == NULL) {
                return err_set(ERR_MEMORY, "%zu bytes for gradients under way", at);
            }
            memset(exchange->memory, 0, at + BLOB_ALIGN);
        }
    }
    return 0;
}

static ExchangeTask *add_task(Exchange *exchange, ExchangeOp op, int32_t chunk, int32_t member) {
    ExchangeTask *task = &exchange->tasks[exchange->n_tasks++];
    /* A sum comes when its holder has fetched all contributions. */
    const bool patient =
        op == EXCHANGE_GET_SUM && exchange->form == REDUCE_CHUNKED && !exchange->setup.alone;
    *task = (ExchangeTask){.transfer = {.run = exchange_run, .patient = patient},
                           .exchange = exchange,
                           .op = op,
                           .chunk = chunk,
                           .member = member};
    return task;
}

static int make_tasks(Exchange *exchange) {
    const ExchangeSetup *setup = &exchange->setup;
    const size_t per_chunk = (size_t)setup->n_members + 1;
    exchange->tasks = calloc((size_t)exchange->n_chunks * per_chunk + 1, sizeof *exchange->tasks);
    if (exchange->tasks == NULL) {
        return err_set(ERR_MEMORY, "%d chunks of gradients", exchange->n_chunks);
    }
    for (int32_t c = 0; c < exchange->n_chunks; c++) {
        ExchangeChunk *chunk = &exchange->chunks[c];
        const bool gather = gathers(exchange, chunk);
        if (!gather || exchange->form == REDUCE_WHOLE) {
            for (int32_t k = 0; k < setup->n_own; k++) {
                ExchangeTask *task =
                    add_task(exchange,
                             exchange->form == REDUCE_IN_STORE ? EXCHANGE_ADD : EXCHANGE_PUT, c, k);
                chunk->puts = k == 0 ? task : chunk->puts;
            }
        }
        for (int32_t m = 0; gather && m < setup->n_members; m++) {
            if (exchange->own_number[m] < 0) {
                ExchangeTask *task = add_task(exchange, EXCHANGE_GET, c, m);
                chunk->gets = chunk->gets == NULL ? task : chunk->gets;
            }
        }
        if (!gather) {
            chunk->sum_task = add_task(exchange, EXCHANGE_GET_SUM, c, 0);
        } else if (exchange->form == REDUCE_CHUNKED) {
            chunk->sum_task = add_task(exchange, EXCHANGE_PUT_SUM, c, 0);
        }
    }
    return 0;
}

static float *floats(int64_t n) {
    return calloc((size_t)n + 1, sizeof(float));
}

static int open_halves(Exchange *exchange) {
    const int64_t n = exchange->setup.n_floats;
    const int64_t n_own = n * exchange->setup.n_own;
    if (!is_half(exchange)) {
        return 0;
    }
    exchange->exact = floats(n_own);
    exchange->residual = floats(n_own);
    exchange->residual_sum = floats(n);
    exchange->sums = floats(n);
    if (exchange->exact == NULL || exchange->residual == NULL || exchange->residual_sum == NULL ||
        exchange->sums == NULL) {
        return err_set(ERR_MEMORY, "the rounding errors of %lld gradients", (long long)n);
    }
    return 0;
}

static void *copy_array(const void *from, int32_t n, size_t element) {
    void *copy = malloc((size_t)n * element + 1);
    if (copy != NULL) {
        memcpy(copy, from, (size_t)n * element);
    }
    return copy;
}

static int copy_setup(Exchange *exchange, const ExchangeSetup *setup) {
    exchange->setup = *setup;
    exchange->members = copy_array(setup->members, setup->n_members, sizeof *setup->members);
    exchange->holders = copy_array(setup->holders, setup->n_holders, sizeof *setup->holders);
    exchange->own = copy_array(setup->own, setup->n_own, sizeof *setup->own);
    exchange->own_number = calloc((size_t)setup->n_members + 1, sizeof *exchange->own_number);
    if (exchange->members == NULL || exchange->holders == NULL || exchange->own == NULL ||
        exchange->own_number == NULL) {
        return err_set(ERR_MEMORY, "%d contributions to a sum", setup->n_members);
    }
    memset(exchange->own_number, -1, (size_t)setup->n_members * sizeof *exchange->own_number);
    for (int32_t k = 0; k < setup->n_own; k++) {
        exchange->own_number[setup->own[k]] = k;
    }
    return 0;
}

static ReduceForm form_of(const ExchangeSetup *setup) {
    const int64_t bytes = setup->n_floats * (setup->spec.wire == REDUCE_BF16 ? 2 : 4);
    return reduction_choose(&setup->spec, bytes, setup->n_holders, setup->n_members);
}

int exchange_threads_down(const ExchangeSetup *setup) {
    const int32_t n = form_of(setup) == REDUCE_WHOLE ? setup->n_members : 0;
    return n < WORKER_LEAST_DOWN ? WORKER_LEAST_DOWN : n < WORKER_MOST_DOWN ? n : WORKER_MOST_DOWN;
}

int exchange_open(const ExchangeSetup *setup, Transfers *transfers, Exchange **out_exchange) {
    Exchange *exchange = calloc(1, sizeof *exchange);
    if (exchange == NULL) {
        return err_set(ERR_MEMORY, "an exchange of gradients");
    }
    pthread_mutex_init(&exchange->lock, NULL);
    exchange->transfers = transfers;
    exchange->form = form_of(setup);
    int rc = copy_setup(exchange, setup);
    if (rc >= 0) {
        rc = cut_vector(exchange);
    }
    if (rc >= 0) {
        rc = place_chunks(exchange);
    }
    if (rc >= 0) {
        rc = make_tasks(exchange);
    }
    if (rc >= 0) {
        rc = open_halves(exchange);
    }
    if (rc < 0) {
        exchange_close(exchange);
        return rc;
    }
    *out_exchange = exchange;
    return 0;
}

void exchange_close(Exchange *exchange) {
    if (exchange == NULL) {
        return;
    }
    free(exchange->members);
    free(exchange->holders);
    free(exchange->own);
    free(exchange->own_number);
    free(exchange->buckets);
    free(exchange->chunks);
    free(exchange->memory);
    free(exchange->tasks);
    free(exchange->exact);
    free(exchange->residual);
    free(exchange->residual_sum);
    free(exchange->sums);
    pthread_mutex_destroy(&exchange->lock);
    free(exchange);
}

ReduceForm exchange_form(const Exchange *exchange) {
    return exchange->form;
}

/* ---- a step ---- */

void exchange_begin(Exchange *exchange, int64_t step, bool forget) {
    const int64_t n = exchange->setup.n_floats;
    exchange->step = step;
    exchange->n_final = exchange->n_started = exchange->n_sent = exchange->n_summed = 0;
    for (int32_t b = 0; b < exchange->n_buckets; b++) {
        exchange->buckets[b].n_unsent = exchange->buckets[b].n_unsummed = 0;
    }
    for (int32_t c = 0; c < exchange->n_chunks; c++) {
        const ExchangeChunk *chunk = &exchange->chunks[c];
        ExchangeBucket *bucket = &exchange->buckets[chunk->bucket];
        bucket->n_unsent += chunk->puts != NULL ? exchange->setup.n_own : 0;
        bucket->n_unsummed++;
    }
    if (forget && is_half(exchange)) {
        memset(exchange->residual, 0, (size_t)(n * exchange->setup.n_own) * sizeof(float));
        memset(exchange->residual_sum, 0, (size_t)n * sizeof(float));
    }
}

/* The chunk that holds element `at`. */
static const ExchangeChunk *find_chunk(const Exchange *exchange, int64_t at) {
    int32_t first = 0;
    int32_t end = exchange->n_chunks;
    while (end - first > 1) {
        const int32_t middle = first + (end - first) / 2;
        if (exchange->chunks[middle].first <= at) {
            first = middle;
        } else {
            end = middle;
        }
    }
    return &exchange->chunks[first];
}

float *exchange_in(Exchange *exchange, int32_t own, int64_t at, int64_t *out_n) {
    if (is_half(exchange)) {
        *out_n = exchange->setup.n_floats - at;
        return exchange->exact + own * exchange->setup.n_floats + at;
    }
    const ExchangeChunk *chunk = find_chunk(exchange, at);
    *out_n = chunk->first + chunk->n - at;
    return (float *)(void *)(own_blob(chunk, own) + chunk->offset) + (at - chunk->first);
}

const float *exchange_out(const Exchange *exchange, int64_t at, int64_t *out_n) {
    if (is_half(exchange)) {
        *out_n = exchange->setup.n_floats - at;
        return exchange->sums + at;
    }
    const ExchangeChunk *chunk = find_chunk(exchange, at);
    *out_n = chunk->first + chunk->n - at;
    return (const float *)(const void *)(chunk->sum + chunk->sum_offset) + (at - chunk->first);
}

/* Send own contributions, and ask for those that are to be added up here. */
static void start_chunk(Exchange *exchange, ExchangeChunk *chunk) {
    const ExchangeSetup *setup = &exchange->setup;
    const int32_t n_others = setup->n_members - setup->n_own;
    for (int32_t k = 0; is_half(exchange) && k < setup->n_own; k++) {
        const int64_t at = k * setup->n_floats + chunk->first;
        adding_round((uint16_t *)(void *)(own_blob(chunk, k) + chunk->offset), exchange->exact + at,
                     exchange->residual + at, chunk->n);
    }
    atomic_store(&chunk->n_missing, n_others);
    for (int32_t k = 0; chunk->puts != NULL && k < setup->n_own; k++) {
        submit(exchange, TRANSFER_UP, &chunk->puts[k]);
    }
    for (int32_t k = 0; chunk->gets != NULL && k < n_others; k++) {
        submit(exchange, TRANSFER_DOWN, &chunk->gets[k]);
    }
}

/* Ask for the sums that others make. Behind the next bucket's contributions: these are there
 * earlier, and somebody waits for their sum. */
static void ask_sums(Exchange *exchange, const ExchangeBucket *bucket) {
    for (int32_t c = bucket->first_chunk; c < bucket->end_chunk; c++) {
        ExchangeChunk *chunk = &exchange->chunks[c];
        if (chunk->sum_task != NULL && !gathers(exchange, chunk)) {
            submit(exchange, TRANSFER_DOWN, chunk->sum_task);
        }
    }
}

/* Some buckets are on their way at any time. Those that are sent are no more than a window ahead of
 * the sums: a sum is of use when the last contribution has come, and who runs ahead takes the way
 * to the store from those behind. But not while there is no sum at all: the others may begin late.
 */
static bool may_start(const Exchange *exchange) {
    const int64_t n = (int64_t)WINDOW_CHUNKS * exchange->n_buckets / exchange->n_chunks;
    const int64_t window = n > WINDOW_LEAST_BUCKETS ? n : WINDOW_LEAST_BUCKETS;
    if (exchange->n_started == exchange->n_final || !exchange->setup.alone) {
        return exchange->n_started < exchange->n_final;
    }
    return exchange->n_started < exchange->n_sent + window &&
           (exchange->n_summed == 0 || exchange->n_started < exchange->n_summed + window);
}

/* With the lock held. */
static void start_buckets(Exchange *exchange) {
    while (may_start(exchange)) {
        const ExchangeBucket *bucket = &exchange->buckets[exchange->n_started++];
        exchange->n_sent += bucket->n_unsent == 0;
        for (int32_t c = bucket->first_chunk; c < bucket->end_chunk; c++) {
            start_chunk(exchange, &exchange->chunks[c]);
        }
        if (bucket > exchange->buckets) {
            ask_sums(exchange, bucket - 1);
        }
        if (exchange->n_started == exchange->n_buckets) {
            ask_sums(exchange, bucket);
        }
    }
}

/* One less of what a bucket lacks: counted among those that lack nothing, perhaps. */
static void one_less(Exchange *exchange, int32_t *n, int32_t *n_buckets) {
    pthread_mutex_lock(&exchange->lock);
    if (--*n == 0) {
        ++*n_buckets;
        start_buckets(exchange);
    }
    pthread_mutex_unlock(&exchange->lock);
}

static void have_sent(Exchange *exchange, const ExchangeChunk *chunk) {
    one_less(exchange, &exchange->buckets[chunk->bucket].n_unsent, &exchange->n_sent);
}

static void have_sum(Exchange *exchange, const ExchangeChunk *chunk) {
    one_less(exchange, &exchange->buckets[chunk->bucket].n_unsummed, &exchange->n_summed);
}

void exchange_ready(Exchange *exchange, int64_t end) {
    pthread_mutex_lock(&exchange->lock);
    while (exchange->n_final < exchange->n_buckets &&
           exchange->buckets[exchange->n_final].end <= end) {
        exchange->n_final++;
    }
    start_buckets(exchange);
    pthread_mutex_unlock(&exchange->lock);
}

/* Threads spread over the relay's servers. */
#include "worker/transfers.h"

#include <criterion/criterion.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"

enum { PATIENCE_MS = 3000, N_SERVERS = 3 };

typedef struct Board { /* which servers somebody is at, and what must come before a transfer ends */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n_begun[N_SERVERS], n_ended;
    bool open;
} Board;

typedef struct Task {
    Transfer transfer;
    Board *board;
    int server, awaited; /* it ends when somebody has been at `awaited`; -1: when the gate opens */
    int number;          /* as which it ended, from 1 */
} Task;

static RelayOps ops;
static RelayMemStore *store;

/* "j/2.x" is at server 2. */
static int server_of(const Relay *relay, const char *key, int *out_n) {
    *out_n = RELAY_MAX_SERVERS;
    (void)relay;
    return key[2] - '0';
}

static int open_handle(void *ctx, Relay **out_relay) {
    (void)ctx;
    TRY(relay_mem_open(store, out_relay));
    (*out_relay)->ops = &ops;
    return 0;
}

static int run(Transfer *transfer, Fetch *fetch, int64_t *bytes) {
    Task *task = (Task *)transfer;
    Board *board = task->board;
    const int64_t deadline_ns = clock_deadline_ms(PATIENCE_MS);
    const struct timespec until = {.tv_sec = (time_t)(deadline_ns / CLOCK_NS_PER_S),
                                   .tv_nsec = (long)(deadline_ns % CLOCK_NS_PER_S)};
    bool late = false;
    (void)fetch, (void)bytes;
    pthread_mutex_lock(&board->lock);
    board->n_begun[task->server]++;
    pthread_cond_broadcast(&board->changed);
    while (!late && !(task->awaited < 0 ? board->open : board->n_begun[task->awaited] > 0))
        late = pthread_cond_timedwait(&board->changed, &board->lock, &until) != 0;
    task->number = ++board->n_ended;
    pthread_mutex_unlock(&board->lock);
    return late ? err_set(ERR_TIMEOUT, "nobody came to server %d", task->awaited) : 0;
}

static void board_init(Board *board) {
    pthread_condattr_t attributes;
    memset(board, 0, sizeof *board);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&board->lock, NULL);
    pthread_cond_init(&board->changed, &attributes);
}

static void open_gate(Board *board) {
    pthread_mutex_lock(&board->lock);
    board->open = true;
    pthread_cond_broadcast(&board->changed);
    pthread_mutex_unlock(&board->lock);
}

static void submit(Transfers *transfers, Task *task, Board *board, int server, int awaited) {
    char key[] = "j/0.x";
    key[2] = (char)('0' + server);
    *task = (Task){.transfer = {.run = run}, .board = board, .server = server, .awaited = awaited};
    transfers_submit(transfers, TRANSFER_UP, &task->transfer, key);
}

static Transfers *open_transfers(Order *order, int n_threads) {
    Transfers *transfers = NULL;
    Relay *relay = NULL;
    cr_assert_eq(relay_mem_store_open(&store), 0);
    cr_assert_eq(relay_mem_open(store, &relay), 0);
    ops = *relay->ops;
    ops.server = server_of;
    relay_close(relay);
    order_init(order);
    strcpy(order->job, "j");
    cr_assert_eq(transfers_open(order, open_handle, NULL, n_threads, 0, &transfers), 0);
    return transfers;
}

static void close_transfers(Transfers *transfers, Order *order) {
    transfers_close(transfers);
    order_done(order);
    relay_mem_store_close(store);
}

/* Two threads, and all but the last transfer for server 0: it begins while the first is under way.
 */
Test(transfers, no_server_idles_while_another_has_a_queue) {
    Order order;
    Board board;
    Task gates[2];
    Task tasks[9];
    int64_t bytes = 0;
    board_init(&board);
    Transfers *transfers = open_transfers(&order, 2);
    for (int i = 0; i < 2; i++)
        submit(transfers, &gates[i], &board, 2, -1);
    for (int i = 0; i < 8; i++)
        submit(transfers, &tasks[i], &board, 0, 1);
    submit(transfers, &tasks[8], &board, 1, 0);
    open_gate(&board);
    cr_assert_eq(transfers_wait(transfers, &bytes), 0, "%s", err_text());
    close_transfers(transfers, &order);
}

/* One thread takes what is submitted in order, whatever server it is for. */
Test(transfers, order_of_one_thread) {
    Order order;
    Board board;
    Task gate;
    Task tasks[12];
    int64_t bytes = 0;
    board_init(&board);
    Transfers *transfers = open_transfers(&order, 1);
    submit(transfers, &gate, &board, 0, -1);
    for (int i = 0; i < 12; i++)
        submit(transfers, &tasks[i], &board, i * 7 % N_SERVERS, 0);
    open_gate(&board);
    cr_assert_eq(transfers_wait(transfers, &bytes), 0, "%s", err_text());
    for (int i = 0; i < 12; i++)
        cr_expect_eq(tasks[i].number, i + 2, "transfer %d ended as number %d", i, tasks[i].number);
    close_transfers(transfers, &order);
}

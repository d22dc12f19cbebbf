/* Any bytes: order_parse says yes or no; what it accepts prints, and reads back as the same text.
 */
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/order.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(int truth) {
    if (!truth)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    Order order;
    Order copy;
    Order again;
    Buf text;
    Buf second;
    if (order_parse("fuzz", (const char *)data, bytes, &order) < 0) {
        require(err_text()[0] != '\0');
        return 0;
    }
    buf_init(&text, 0);
    buf_init(&second, 0);
    require(order_copy(&order, &copy) >= 0);
    require(order_format(&copy, &text) >= 0);
    require(order_parse("again", buf_string(&text), text.bytes, &again) >= 0);
    require(order_format(&again, &second) >= 0);
    require(strcmp(buf_string(&text), buf_string(&second)) == 0);
    for (int64_t step = 0; step < 3; step++) {
        int64_t rows = order_batch_rows(order.train_samples, order.batch, step);
        int64_t first;
        require(rows > 0 && rows <= order.batch);
        require(order_micro_rows(rows, order.plan.micro_rows, 0, &first) > 0);
        int64_t sample = order_sample(order.seed, order.shuffle, order.train_samples, order.batch,
                                      step, rows - 1);
        require(sample >= 0 && sample < order.train_samples);
        order_lr(&order.update, step, order.n_steps);
    }
    buf_done(&text);
    buf_done(&second);
    order_done(&order);
    order_done(&copy);
    order_done(&again);
    return 0;
}

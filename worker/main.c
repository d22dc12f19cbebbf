/* funcpipe-worker: one worker as a process.
 *
 *     funcpipe-worker --order FILE|-   run the Stage order; the last line on stdout is the result
 *     funcpipe-worker --profile        order on stdin; prints the layers' times as JSON
 *     funcpipe-worker --isa [NAME]     print the CPU instruction set used where NAME (auto) is
 * asked for
 *     --parent-pid N                   end when process N ends
 *
 * What fails prints its result, with code and words, in place of all that.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "core/log.h"
#include "core/process.h"
#include "core/text.h"
#include "gpu/device.h"
#include "worker/run.h"

enum { MAIN_PROFILE_REPEATS = 5, MAIN_READ_BYTES = 65536 };

static int main_read_stdin(Buf *text) {
    for (;;) {
        TRY(buf_reserve(text, MAIN_READ_BYTES));
        size_t n = fread(text->data + text->bytes, 1, MAIN_READ_BYTES, stdin);
        text->bytes += n;
        text->data[text->bytes] = '\0';
        if (n == 0) {
            return ferror(stdin) ? err_set(ERR_IO, "the order could not be read from stdin") : 0;
        }
    }
}

static int main_read_order(const char *path, Order *out_order) {
    Buf text;
    buf_init(&text, ORDER_MAX_BYTES);
    int rc = strcmp(path, "-") == 0 ? main_read_stdin(&text)
                                    : buf_read_file(&text, path, ORDER_MAX_BYTES);
    if (rc >= 0) {
        rc = order_parse(path, buf_string(&text), text.bytes, out_order);
    }
    buf_done(&text);
    return rc;
}

static void main_say(void *ctx, const char *line) {
    (void)ctx;
    LOG_W("worker", "%s", line);
}

static void main_print_result(const WorkerResult *result) {
    Buf text;
    buf_init(&text, 0);
    if (report_format_result(result, &text) >= 0) {
        printf("%s\n", buf_string(&text));
        fflush(stdout);
    }
    buf_done(&text);
}

/* The note of this thread as the result; the exit status. */
static int main_failed(int rc) {
    WorkerResult result = {.code = rc};
    snprintf(result.text, sizeof result.text, "%s", err_text());
    main_print_result(&result);
    return 1;
}

static int main_order(const char *path) {
    Order order;
    WorkerResult result = {0};
    const WorkerEnv env = {.say = main_say};
    order_init(&order);
    int rc = main_read_order(path, &order);
    if (rc >= 0) {
        LOG_I("worker", "%s stage %d replica %d attempt %lld: steps %lld to %lld", order.job,
              order.stage, order.replica, (long long)order.attempt, (long long)order.first_step,
              (long long)order.end_step);
        rc = worker_run(&order, &env, &result);
    } else {
        result.code = rc;
        snprintf(result.text, sizeof result.text, "%s", err_text());
    }
    if (rc < 0) {
        LOG_E("worker", "%s", result.text);
    }
    main_print_result(&result);
    order_done(&order);
    return rc < 0 ? 1 : 0;
}

static int main_print_profile(const Order *order, const LayerTime *times, const char *isa) {
    Buf text;
    buf_init(&text, 0);
    int rc = buf_text(&text, "{\"layers\":[");
    for (int32_t l = 0; rc >= 0 && l < order->model.n_layers; l++) {
        rc = buf_printf(&text, "%s{\"forward_us\":%.3f,\"backward_us\":%.3f}", l > 0 ? "," : "",
                        times[l].forward_us, times[l].backward_us);
    }
    if (rc >= 0) {
        rc = buf_printf(&text, "],\"isa\":\"%s\"}", isa);
    }
    if (rc >= 0) {
        printf("%s\n", buf_string(&text));
    }
    buf_done(&text);
    return rc;
}

/* The instruction set of a CPU device opened with `isa`. */
static int main_find_isa(const char *device_name, const char *isa, char *out, size_t out_bytes) {
    const DeviceOps *ops;
    Device *device = NULL;
    const DeviceConfig config = {.threads = 1, .isa = isa};
    TRY(device_find(device_name, &ops));
    TRY(ops->open(&config, &device));
    int rc = text_copy(out, out_bytes, ops->isa(device));
    ops->close(device);
    return rc;
}

static int main_profile(void) {
    Order order;
    char isa[32];
    LayerTime *times = NULL;
    order_init(&order);
    int rc = main_read_order("-", &order);
    if (rc >= 0) {
        times = calloc((size_t)order.model.n_layers + 1, sizeof *times);
        rc = times == NULL ? err_set(ERR_MEMORY, "the times do not fit into memory")
                           : worker_profile(&order, MAIN_PROFILE_REPEATS, times);
    }
    if (rc >= 0) {
        rc = main_find_isa(order.plan.device, order.plan.isa, isa, sizeof isa);
    }
    if (rc >= 0) {
        rc = main_print_profile(&order, times, isa);
    }
    free(times);
    order_done(&order);
    return rc < 0 ? main_failed(rc) : 0;
}

static int main_isa(const char *asked) {
    char isa[32];
    int rc = main_find_isa("cpu", asked, isa, sizeof isa);
    if (rc < 0) {
        return main_failed(rc);
    }
    printf("%s\n", isa);
    return 0;
}

/* Die with the parent, also when it died before we could ask for that. */
static int main_follow_parent(const char *text) {
    int64_t pid;
    TRY(text_parse_i64(text, 1, INT32_MAX, &pid));
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return getppid() == (pid_t)pid
               ? 0
               : err_set(ERR_CANCELLED, "process %lld has ended", (long long)pid);
}

static int main_usage(void) {
    fprintf(stderr,
            "usage: funcpipe-worker (--order FILE|- | --profile | --isa [NAME] | --version) "
            "[--parent-pid N]\nWorkers are started by funcpipe; see funcpipe --help.\n");
    return 2;
}

int main(int argc, char **argv) {
    const char *order = NULL, *mode = NULL, *isa = "auto";
    process_begin();
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--order") == 0 && i + 1 < argc) {
            order = argv[++i];
        } else if (strcmp(argv[i], "--parent-pid") == 0 && i + 1 < argc) {
            if (main_follow_parent(argv[++i]) < 0) {
                LOG_E("worker", "%s", err_text());
                return 2;
            }
        } else if (strcmp(argv[i], "--profile") == 0 || strcmp(argv[i], "--isa") == 0 ||
                   strcmp(argv[i], "--version") == 0) {
            mode = argv[i];
            if (strcmp(mode, "--isa") == 0 && i + 1 < argc && argv[i + 1][0] != '-') {
                isa = argv[++i];
            }
        } else {
            return main_usage();
        }
    }
    if (order != NULL && mode == NULL) {
        return main_order(order);
    }
    if (order != NULL || mode == NULL) {
        return main_usage();
    }
    if (strcmp(mode, "--version") == 0) {
        printf("funcpipe-worker %s\n", FUNCPIPE_VERSION);
        return 0;
    }
    return strcmp(mode, "--isa") == 0 ? main_isa(isa) : main_profile();
}

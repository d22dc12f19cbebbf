#include "coordinator/interrupt.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/job.h"
#include "core/order.h"

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
enum { N_NUMBERS = sizeof numbers / sizeof numbers[0] };

static atomic_bool holding, with_json, removing;
static atomic_int held; /* a signal's number */
static char to_remove[ORDER_PATH_BYTES];

/* Only what a handler may call. */
static void end_process(int number) {
    static const char text[] = "funcpipe: cancelled before it ran\n";
    static const char json[] =
        "{\"event\":\"error\",\"code\":\"ERR_CANCELLED\",\"text\":\"cancelled before it ran\"}\n";
    if (atomic_load(&removing))
        unlink(to_remove);
    if (!atomic_load(&holding)) {
        (void)!write(STDERR_FILENO, text, sizeof text - 1);
        if (atomic_load(&with_json))
            (void)!write(STDOUT_FILENO, json, sizeof json - 1);
    }
    _exit(number == SIGINT ? EXIT_CODE_INTERRUPTED : EXIT_CODE_CANCELLED);
}

static void on_signal(int number) {
    if (!atomic_load(&holding) || atomic_load(&held))
        end_process(number);
    atomic_store(&held, number);
}

bool interrupt_is_ignored(int number) {
    struct sigaction now;
    return number == SIGHUP && sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

static void take_signals(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < N_NUMBERS; i++) {
        if (!interrupt_is_ignored(numbers[i]))
            sigaction(numbers[i], &action, NULL);
    }
}

void interrupt_begin(bool json) {
    atomic_store(&with_json, json);
    atomic_store(&holding, false);
    take_signals();
}

void interrupt_remove(const char *path) {
    atomic_store(&removing, false);
    if (!path || !path[0] || strlen(path) >= sizeof to_remove)
        return;
    snprintf(to_remove, sizeof to_remove, "%s", path);
    atomic_store(&removing, true);
}

void interrupt_hold(void) {
    atomic_store(&holding, true);
    take_signals();
}

int interrupt_taken(void) {
    return atomic_exchange(&held, 0);
}

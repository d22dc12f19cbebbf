#include "core/process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/err.h"

enum { PROCESS_MAX_PROBES = 64, BRIEF_SLICE_NS = 100000 /* the shortest there is */ };

typedef struct SliceAttr { /* sched_setattr(2): the kernel's form, the policy unchanged */
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
} SliceAttr;

void process_begin(void) {
    int fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd < STDERR_FILENO) /* the lowest free number is given first */
        fd = dup(fd);
    if (fd > STDERR_FILENO)
        close(fd);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

/* ", the limit is N (ulimit -x)", or nothing where there is none. */
static void limit_words(int resource, rlim_t unit, const char *flag, char *out, size_t out_bytes) {
    struct rlimit limit;
    out[0] = '\0';
    if (getrlimit((__rlimit_resource_t)resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        snprintf(out, out_bytes, ", the limit is %llu (ulimit -%s)",
                 (unsigned long long)(limit.rlim_cur / unit), flag);
}

static int check_files(int n_files) {
    int fds[PROCESS_MAX_PROBES];
    char limit[64];
    int n = 0;
    int errnum = 0;
    for (; n < n_files; n++) {
        fds[n] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (fds[n] < 0) {
            errnum = errno;
            break;
        }
    }
    for (int i = 0; i < n; i++)
        close(fds[i]);
    if (n == n_files)
        return 0;
    limit_words(RLIMIT_NOFILE, 1, "n", limit, sizeof limit);
    return err_errno(ERR_IO, errnum, "only %d of %d more files can be opened%s", n, n_files, limit);
}

/* The probe's threads all live until the last one is there. */
static void *wait_for_gate(void *gate) {
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

static int check_threads(int n_threads) {
    pthread_t threads[PROCESS_MAX_PROBES];
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    char processes[64];
    char memory[64];
    int n = 0;
    int errnum = 0;
    pthread_mutex_lock(&gate);
    for (; n < n_threads && errnum == 0; n += errnum == 0)
        errnum = pthread_create(&threads[n], NULL, wait_for_gate, &gate);
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&gate);
    if (n == n_threads)
        return 0;
    limit_words(RLIMIT_NPROC, 1, "u", processes, sizeof processes);
    limit_words(RLIMIT_AS, 1024, "v", memory, sizeof memory);
    return err_errno(ERR_IO, errnum, "only %d of %d more threads can be started%s%s", n, n_threads,
                     processes, memory);
}

int process_check_limits(int n_files, int n_threads) {
    if (n_files > PROCESS_MAX_PROBES || n_threads > PROCESS_MAX_PROBES)
        return err_set(ERR_INTERNAL, "at most %d of a kind can be asked for", PROCESS_MAX_PROBES);
    TRY(check_files(n_files));
    return check_threads(n_threads);
}

void process_work_briefly(void) {
    SliceAttr attr = {.size = sizeof attr, .runtime_ns = BRIEF_SLICE_NS};
    if (sched_getscheduler(0) != SCHED_OTHER)
        return;
    attr.nice = getpriority(PRIO_PROCESS, 0);      /* of this thread: stays as it is */
    (void)syscall(SYS_sched_setattr, 0, &attr, 0); /* only a wish */
}

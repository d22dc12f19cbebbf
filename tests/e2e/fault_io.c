/* A library for LD_PRELOAD that makes file operations go wrong as told by the environment:
 *
 *     FAULT_IO="PROGRAM CALL PART FROM COUNT ACTION; ..."
 *     FAULT_IO_ONCE=PATH
 *
 * In processes named PROGRAM (cut to 15 characters as ps shows it; * means any), the operations
 * CALL (write, fsync, rename, link, open) on a path that contains PART are counted from 1; those
 * from FROM on, COUNT of them (0: all), do ACTION: the name of an error (EIO, ENOSPC, ENOENT), kill
 * or stop (the process gets SIGKILL or SIGSTOP before the operation), killed (SIGKILL behind it),
 * or a number of milliseconds to wait before it. With FAULT_IO_ONCE the i-th rule, from 0, is done
 * once in all processes together: by the one that creates PATH.i, which also tells the test. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RULES = 8 };

typedef struct Rule {
    char program[32], call[16], part[128], action[16];
    int from, count;
    atomic_int seen;
} Rule;

static Rule rules[MAX_RULES];
static int n_rules;

typedef ssize_t Write(int fd, const void *data, size_t bytes);
typedef int Fsync(int fd);
typedef int Rename(const char *from, const char *to);
typedef int Linkat(int from_fd, const char *from, int to_fd, const char *to, int flags);
typedef int Open(const char *path, int flags, ...);

static Write *real_write;
static Fsync *real_fsync;
static Rename *real_rename;
static Linkat *real_linkat;
static Open *real_open;

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("FAULT_IO");
    real_write = (Write *)dlsym(RTLD_NEXT, "write");
    real_fsync = (Fsync *)dlsym(RTLD_NEXT, "fsync");
    real_rename = (Rename *)dlsym(RTLD_NEXT, "rename");
    real_linkat = (Linkat *)dlsym(RTLD_NEXT, "linkat");
    real_open = (Open *)dlsym(RTLD_NEXT, "open");
    for (; text != NULL && *text && n_rules < MAX_RULES; n_rules++) {
        Rule *rule = &rules[n_rules];
        if (sscanf(text, " %31s %15s %127s %d %d %15[^; ]", rule->program, rule->call, rule->part,
                   &rule->from, &rule->count, rule->action) != 6)
            abort();
        text = strchr(text, ';');
        text = text != NULL ? text + 1 : "";
    }
}

/* Is this the process, of all, that does the rule? */
static bool claim(int index) {
    char path[PATH_MAX];
    const char *once = getenv("FAULT_IO_ONCE");
    if (once == NULL)
        return true;
    snprintf(path, sizeof path, "%s.%d", once, index);
    int fd = real_open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    close(fd);
    return true;
}

static bool fits(Rule *rule, const char *call, const char *path) {
    if (strcmp(rule->call, call) != 0 || strstr(path, rule->part) == NULL)
        return false;
    if (strcmp(rule->program, "*") != 0 &&
        strncmp(rule->program, program_invocation_short_name, 15) != 0)
        return false;
    int n = atomic_fetch_add(&rule->seen, 1) + 1;
    return n >= rule->from && (rule->count == 0 || n < rule->from + rule->count);
}

/* Do what the rules say: the error number the operation is to fail with, 0 to go on, or -1 to go on
 * and be killed behind it. */
static int fault(const char *call, const char *path) {
    static const struct {
        const char *name;
        int number;
    } errors[] = {{"EIO", EIO}, {"ENOSPC", ENOSPC}, {"ENOENT", ENOENT}};
    for (int i = 0; i < n_rules; i++) {
        const char *action = rules[i].action;
        if (!fits(&rules[i], call, path) || !claim(i))
            continue;
        for (size_t e = 0; e < sizeof errors / sizeof errors[0]; e++) {
            if (strcmp(action, errors[e].name) == 0)
                return errors[e].number;
        }
        if (strcmp(action, "killed") == 0)
            return -1;
        if (strcmp(action, "kill") == 0 || strcmp(action, "stop") == 0) {
            raise(action[0] == 'k' ? SIGKILL : SIGSTOP);
            continue;
        }
        int ms = atoi(action);
        struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
        nanosleep(&time, NULL);
    }
    return 0;
}

static int fault_fd(const char *call, int fd) {
    char name[64];
    char path[PATH_MAX];
    if (n_rules == 0)
        return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, path, sizeof path - 1);
    if (n <= 0)
        return 0;
    path[n] = '\0';
    return fault(call, path);
}

static int fail(int number) {
    errno = number;
    return -1;
}

static int behind(int number, int result) {
    if (number < 0)
        raise(SIGKILL);
    return result;
}

ssize_t write(int fd, const void *data, size_t bytes) {
    int number = fault_fd("write", fd);
    if (number > 0)
        return fail(number);
    ssize_t n = real_write(fd, data, bytes);
    behind(number, 0);
    return n;
}

int fsync(int fd) {
    int number = fault_fd("fsync", fd);
    return number > 0 ? fail(number) : behind(number, real_fsync(fd));
}

int rename(const char *from, const char *to) {
    int number = fault("rename", to);
    return number > 0 ? fail(number) : behind(number, real_rename(from, to));
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags) {
    int number = fault("link", to);
    return number > 0 ? fail(number) : behind(number, real_linkat(from_fd, from, to_fd, to, flags));
}

int open(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    int number = fault("open", path);
    return number > 0 ? fail(number) : behind(number, real_open(path, flags, mode));
}

/* The same where a program is built with 64-bit file offsets. */
int open64(const char *path, int flags, ...) __attribute__((alias("open")));

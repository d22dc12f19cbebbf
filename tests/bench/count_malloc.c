/* Put in front of malloc with LD_PRELOAD: counts a process's allocations by thread name and by
 * whose they are, and at its end writes lines "THREAD OWNER COUNT" to the file that COUNT_MALLOC
 * names. The owner is told by the caller's object: "libdnnl" (libstdc++'s operator new too, as all
 * else is C), "libgomp", or "own" for the program and whatever else it calls. With
 * COUNT_MALLOC_TRACE, the stacks of own allocations from that number on go to stderr. */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* glibc's own, which these stand in front of */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

enum { MAX_ROWS = 128, NAME_BYTES = 16, MAX_FRAMES = 24 };

static struct {
    char name[NAME_BYTES];
    const char *owner;
    long long n;
} rows[MAX_ROWS];
static int n_rows;
static long long n_own, traced_from = -1;
static atomic_flag lock = ATOMIC_FLAG_INIT;
static _Thread_local int inside;

static void show_stack(const char *name) {
    void *frames[MAX_FRAMES];
    int n = backtrace(frames, MAX_FRAMES);
    (void)!write(2, name, strlen(name));
    (void)!write(2, "\n", 1);
    backtrace_symbols_fd(frames, n, 2);
}

static const char *owner_of(const void *caller) {
    Dl_info info;
    if (!dladdr(caller, &info) || !info.dli_fname)
        return "own";
    const char *slash = strrchr(info.dli_fname, '/');
    const char *object = slash ? slash + 1 : info.dli_fname;
    if (strncmp(object, "libstdc++", 9) == 0 || strncmp(object, "libdnnl", 7) == 0)
        return "libdnnl"; /* all else is C */
    return strncmp(object, "libgomp", 7) == 0 ? "libgomp" : "own";
}

static void count(const void *caller) {
    if (inside)
        return;
    inside = 1;
    int errnum = errno;
    char name[NAME_BYTES] = "";
    const char *owner = owner_of(caller);
    prctl(PR_GET_NAME, name);
    while (atomic_flag_test_and_set(&lock)) {
    }
    int i = 0;
    while (i < n_rows && (strcmp(rows[i].name, name) != 0 || strcmp(rows[i].owner, owner) != 0))
        i++;
    if (i == n_rows && n_rows < MAX_ROWS) {
        memcpy(rows[n_rows].name, name, NAME_BYTES);
        rows[n_rows++].owner = owner;
    }
    if (i < MAX_ROWS)
        rows[i].n++;
    bool own = strcmp(owner, "own") == 0;
    long long number = own ? n_own++ : -1;
    atomic_flag_clear(&lock);
    if (traced_from >= 0 && number >= traced_from)
        show_stack(name);
    errno = errnum;
    inside = 0;
}

__attribute__((constructor)) static void begin(void) {
    const char *from = getenv("COUNT_MALLOC_TRACE");
    if (from)
        traced_from = atoll(from);
}

__attribute__((destructor)) static void report(void) {
    const char *path = getenv("COUNT_MALLOC");
    inside = 1;
    FILE *file = path ? fopen(path, "we") : NULL;
    if (!file)
        return;
    for (int i = 0; i < n_rows; i++)
        fprintf(file, "%s %s %lld\n", rows[i].name, rows[i].owner, rows[i].n);
    fclose(file);
}

void *malloc(size_t bytes) {
    count(__builtin_return_address(0));
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes) {
    count(__builtin_return_address(0));
    return __libc_calloc(n, bytes);
}

void *realloc(void *memory, size_t bytes) {
    count(__builtin_return_address(0));
    return __libc_realloc(memory, bytes);
}

void *memalign(size_t align, size_t bytes) {
    count(__builtin_return_address(0));
    return __libc_memalign(align, bytes);
}

void *aligned_alloc(size_t align, size_t bytes) {
    count(__builtin_return_address(0));
    return __libc_memalign(align, bytes);
}

int posix_memalign(void **out_memory, size_t align, size_t bytes) {
    count(__builtin_return_address(0));
    void *memory = __libc_memalign(align, bytes);
    if (!memory)
        return ENOMEM;
    *out_memory = memory;
    return 0;
}

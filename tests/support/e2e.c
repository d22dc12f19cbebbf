/* Folders, children and waiting; what is read of outputs stands in e2e_outputs.c. */
#include "tests/support/e2e.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pty.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "tests/support/e2e_parts.h"
#include "tests/support/temp.h"

enum {
    E2E_PATIENCE_MS = 60000,
    E2E_LONG_PATIENCE_MS = 1200000,
    E2E_MAX_KEPT = 4096,
    E2E_MAX_RUNS = 256
};

static char folder[64];
static int n_started;
static pid_t running[E2E_MAX_RUNS];
static struct {
    void *thing;
    void (*release)(void *thing);
} kept[E2E_MAX_KEPT];
static int n_kept;

/* The isa of them all is the oldest: what oneDNN generates for it when a worker starts takes half
 * as long, and a tiny model gains nothing from a newer one. */
const char e2e_mlp[] =
    "{\"version\":1,\"name\":\"mlp\",\"model\":{\"zoo\":\"mlp\",\"options\":{\"input\":[16],"
    "\"hidden\":[32,32],\"classes\":4}},"
    "\"data\":{\"train\":{\"kind\":\"generated\",\"samples\":250,\"seed\":3},"
    "\"eval\":{\"kind\":\"generated\",\"samples\":90,\"seed\":4}},"
    "\"batch\":32,\"micro_batch\":8,\"steps\":200,"
    "\"update\":{\"kind\":\"sgd\",\"lr\":0.05,\"momentum\":0.9,\"weight_decay\":1e-3,"
    "\"schedule\":{\"kind\":\"cosine\",\"warmup_steps\":10,\"final_lr\":0.001}},"
    "\"seed\":1,\"save\":{\"every_steps\":10},\"evaluate\":{\"every_steps\":40},"
    "\"plan\":{\"stages\":3,\"cut\":[2,4],\"replicas\":[1,2,1],\"isa\":\"sse41\"},"
    "\"timeouts\":{\"heartbeat\":\"50ms\"}}";

const char e2e_cnn[] =
    "{\"version\":1,\"name\":\"cnn\",\"model\":{\"zoo\":\"cnn\",\"options\":{\"image\":[1,8,8],"
    "\"channels\":[4,8],\"classes\":4,\"dropout\":0.1}},"
    "\"data\":{\"train\":{\"kind\":\"generated\",\"samples\":120,\"seed\":3},"
    "\"eval\":{\"kind\":\"generated\",\"samples\":40,\"seed\":4}},"
    "\"batch\":16,\"micro_batch\":4,\"steps\":120,"
    "\"update\":{\"kind\":\"sgd\",\"lr\":0.05,\"momentum\":0.9,\"clip_norm\":1.0},"
    "\"seed\":2,\"save\":{\"every_steps\":10},\"evaluate\":{\"every_steps\":40},"
    "\"plan\":{\"stages\":3,\"cut\":[5,14],\"replicas\":[1,2,1],\"isa\":\"sse41\"},"
    "\"timeouts\":{\"heartbeat\":\"50ms\"}}";

const char e2e_gpt[] =
    "{\"version\":1,\"name\":\"gpt\",\"model\":{\"zoo\":\"tiny_gpt\",\"options\":{\"vocab\":31,"
    "\"context\":12,\"width\":16,\"heads\":2,\"depth\":2,\"dropout\":0.1}},"
    "\"data\":{\"train\":{\"kind\":\"generated\",\"tokens\":true,\"samples\":64,\"seed\":3},"
    "\"eval\":{\"kind\":\"generated\",\"tokens\":true,\"samples\":24,\"seed\":4}},"
    "\"batch\":16,\"micro_batch\":4,\"steps\":120,"
    "\"update\":{\"kind\":\"adamw\",\"lr\":0.003,\"clip_norm\":1.0},"
    "\"seed\":3,\"save\":{\"every_steps\":10},\"evaluate\":{\"every_steps\":40},"
    "\"plan\":{\"stages\":3,\"cut\":[10,20],\"isa\":\"sse41\"},"
    "\"timeouts\":{\"heartbeat\":\"50ms\"}}";

/* ---- the test's folder ---- */

void *e2e_keep(void *thing, void (*release)(void *thing)) {
    cr_assert(thing != NULL && n_kept < E2E_MAX_KEPT, "%d things are kept", n_kept);
    kept[n_kept].thing = thing;
    kept[n_kept++].release = release;
    return thing;
}

void e2e_enter(void) {
    unsetenv("FUNCPIPE_WORKER");
    cr_assert(temp_make(folder, sizeof folder, "e2e") == 0 && chdir(folder) == 0,
              "no folder for the test");
}

void e2e_leave(void) {
    for (int i = 0; i < n_started; i++) {
        if (running[i] > 0) {
            kill(running[i], SIGKILL);
            waitpid(running[i], NULL, 0);
        }
    }
    while (n_kept > 0) {
        n_kept--;
        kept[n_kept].release(kept[n_kept].thing);
    }
    if (folder[0] && chdir("/") == 0)
        temp_remove(folder);
}

const char *e2e_path(const char *format, ...) {
    char *path = e2e_keep(calloc(1, E2E_PATH_BYTES), free);
    va_list args;
    va_start(args, format);
    int used = snprintf(path, E2E_PATH_BYTES, "%s/", folder);
    int n = vsnprintf(path + used, (size_t)(E2E_PATH_BYTES - used), format, args);
    va_end(args);
    cr_assert(n >= 0 && n < E2E_PATH_BYTES - used, "the path '%s' is too long", path);
    return path;
}

void e2e_write(const char *path, const char *text) {
    FILE *file = fopen(path, "wb");
    cr_assert(file != NULL, "writing '%s': %s", path, strerror(errno));
    bool written = fputs(text, file) >= 0;
    cr_assert(fclose(file) == 0 && written, "writing '%s'", path);
}

const char *e2e_job(const char *name, const char *text) {
    const char *path = e2e_path("%s.json", name);
    e2e_write(path, text);
    return path;
}

/* ---- running ---- */

int e2e_slowness(void) {
#ifdef __SANITIZE_ADDRESS__
    return 5;
#else
    return 1;
#endif
}

bool e2e_long(void) {
    const char *text = getenv("FUNCPIPE_LONG");
    return text != NULL && strcmp(text, "1") == 0;
}

void e2e_sleep_ms(int64_t ms) {
    clock_sleep_until(clock_deadline_ms(ms));
}

static void open_onto(int fd, const char *path, int flags) {
    int from = open(path, flags, 0600);
    if (from < 0 || dup2(from, fd) < 0)
        _exit(126);
    close(from);
}

static char shell_lines[1024];

void e2e_shell(const char *lines) {
    int n = snprintf(shell_lines, sizeof shell_lines, "%s\nexec \"$0\" \"$@\"", lines ? lines : "");
    cr_assert(n > 0 && (size_t)n < sizeof shell_lines);
    if (!lines)
        shell_lines[0] = '\0';
}

/* In the child: become funcpipe. It ends with the test. */
static void become_funcpipe(const E2e *run, const char *const *args) {
    static const char binary[] = FUNCPIPE_BINARY_DIR "/funcpipe";
    const char *all[64] = {"sh", "-c", shell_lines, binary};
    int first = shell_lines[0] ? 0 : 3;
    int n = 4;
    for (; *args != NULL && n < 63; args++)
        all[n++] = *args;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_DFL);
    if (run->terminal < 0) {
        setsid();
        open_onto(STDIN_FILENO, "/dev/null", O_RDONLY);
        open_onto(STDOUT_FILENO, run->out, O_WRONLY | O_CREAT | O_TRUNC);
        open_onto(STDERR_FILENO, run->err, O_WRONLY | O_CREAT | O_TRUNC);
    }
    execv(first == 0 ? "/bin/sh" : binary, (char *const *)(all + first));
    _exit(127);
}

static E2e begin(const char *const *args, bool terminal) {
    E2e run = {.terminal = -1};
    cr_assert(n_started < E2E_MAX_RUNS);
    snprintf(run.out, sizeof run.out, "%s/run%d.stdout", folder, n_started);
    snprintf(run.err, sizeof run.err, "%s/run%d.stderr", folder, n_started);
    fflush(NULL);
    run.pid = terminal ? forkpty(&run.terminal, NULL, NULL, NULL) : fork();
    if (run.pid == 0) {
        run.terminal = terminal ? 0 : -1;
        become_funcpipe(&run, args);
    }
    cr_assert(run.pid > 0, "fork: %s", strerror(errno));
    running[n_started++] = run.pid;
    return run;
}

E2e e2e_start(const char *const *args) {
    return begin(args, false);
}

E2e e2e_start_on_terminal(const char *const *args) {
    return begin(args, true);
}

E2e e2e_train(const char *job, const char *out, const char *const *more) {
    const char *args[48] = {"train", job, "--out", out};
    int n = 4;
    for (; more != NULL && *more != NULL && n < 47; more++)
        args[n++] = *more;
    return e2e_start(args);
}

bool e2e_is_running(E2e *run) {
    int status = 0;
    if (run->ended)
        return false;
    pid_t pid = waitpid(run->pid, &status, WNOHANG);
    if (pid == 0 || (pid < 0 && errno == EINTR))
        return true;
    run->ended = true;
    run->status = WIFEXITED(status) ? WEXITSTATUS(status) : E2E_SIGNALLED + WTERMSIG(status);
    for (int i = 0; i < n_started; i++) {
        if (running[i] == run->pid)
            running[i] = 0;
    }
    return false;
}

int64_t e2e_deadline(void) {
    int64_t ms = e2e_long() ? E2E_LONG_PATIENCE_MS : E2E_PATIENCE_MS;
    return clock_deadline_ms(ms * e2e_slowness());
}

int e2e_wait(E2e *run) {
    int64_t deadline = e2e_deadline();
    while (e2e_is_running(run)) {
        if (clock_now_ns() > deadline) {
            kill(run->pid, SIGKILL);
            cr_assert_fail("funcpipe did not end; it printed: %s", e2e_read(run->err));
        }
        e2e_sleep_ms(2);
    }
    return run->status;
}

int e2e_run(E2e *out_run, const char *const *args) {
    *out_run = e2e_start(args);
    return e2e_wait(out_run);
}

void e2e_train_fully(const char *job, const char *out, const char *const *more) {
    E2e run = e2e_train(job, out, more);
    int status = e2e_wait(&run);
    cr_assert_eq(status, 0, "%s ended with %d: %s", out, status, e2e_read(run.err));
    e2e_check_clean(&run);
}

/* ---- faults ---- */

/* What is preloaded: the faults, behind the sanitizer's library, which has to be the first one. */
static const char *preloaded(void) {
    static const char faults[] = FUNCPIPE_BINARY_DIR "/tests/libfault_io.so";
    Dl_info sanitizer;
    void *entry = dlsym(RTLD_DEFAULT, "__asan_init");
    static char both[PATH_MAX + sizeof faults];
    if (entry == NULL)
        return faults;
    cr_assert(dladdr(entry, &sanitizer) != 0);
    snprintf(both, sizeof both, "%s:%s", sanitizer.dli_fname, faults);
    return both;
}

void e2e_break_files(const char *rules, bool once) {
    char path[64];
    for (int rule = 0; rule < 8; rule++) {
        snprintf(path, sizeof path, "broke.%d", rule);
        remove(path);
    }
    setenv("LD_PRELOAD", preloaded(), 1);
    setenv("FAULT_IO", rules, 1);
    if (once)
        setenv("FAULT_IO_ONCE", e2e_path("broke"), 1);
    else
        unsetenv("FAULT_IO_ONCE");
}

void e2e_mend_files(void) {
    unsetenv("LD_PRELOAD");
    unsetenv("FAULT_IO");
    unsetenv("FAULT_IO_ONCE");
}

bool e2e_file_broke(int rule) {
    char path[64];
    snprintf(path, sizeof path, "broke.%d", rule);
    return access(path, F_OK) == 0;
}

void e2e_wrap_worker(const char *lines) {
    static const char form[] = "#!/bin/sh\n"
                               "REAL=" FUNCPIPE_BINARY_DIR "/funcpipe-worker\n"
                               "[ \"$1\" = --order ] || exec \"$REAL\" \"$@\"\n"
                               "ORDER=%s/order.$$\n"
                               "cat >\"$ORDER\"\n"
                               "shift 2\n"
                               "%s\n"
                               "exec \"$REAL\" --order \"$ORDER\" \"$@\"\n";
    char text[4096];
    const char *path = e2e_path("worker.sh");
    int n = snprintf(text, sizeof text, form, folder, lines);
    cr_assert(n > 0 && n < (int)sizeof text);
    e2e_write(path, text);
    cr_assert(chmod(path, 0700) == 0 && setenv("FUNCPIPE_WORKER", path, 1) == 0);
}

/* ---- processes ---- */

char e2e_process_state(pid_t pid) {
    char path[64];
    char text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    const char *close_bracket = strrchr(text, ')'); /* the name before it may hold anything */
    return close_bracket != NULL && close_bracket[1] == ' ' ? close_bracket[2] : (char)0;
}

/* Does the process have the arguments "--parent-pid", PARENT? (A zombie has none.) */
static bool was_started_for(const char *pid, const char *parent) {
    char path[300];
    char text[4096];
    snprintf(path, sizeof path, "/proc/%s/cmdline", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return false;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    for (size_t at = 0; at < n; at += strlen(text + at) + 1) {
        if (strcmp(text + at, "--parent-pid") == 0)
            return strcmp(text + at + sizeof "--parent-pid", parent) == 0;
    }
    return false;
}

int e2e_processes_of(pid_t pid) {
    char parent[24];
    int n = 0;
    snprintf(parent, sizeof parent, "%d", (int)pid);
    DIR *dir = opendir("/proc");
    cr_assert(dir != NULL);
    for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        n += strspn(entry->d_name, "0123456789") == strlen(entry->d_name) &&
             was_started_for(entry->d_name, parent);
    closedir(dir);
    return n;
}

static int count_named(const char *place, const char *prefix) {
    int n = 0;
    DIR *dir = opendir(place);
    if (dir == NULL)
        return 0;
    for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        n += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(dir);
    return n;
}

int e2e_scratch_folders(pid_t pid) {
    char prefix[40];
    snprintf(prefix, sizeof prefix, "funcpipe-run-%d-", (int)pid);
    return count_named("/dev/shm", prefix) + count_named("/tmp", prefix);
}

void e2e_check_clean(const E2e *run) {
    cr_assert(run->ended);
    cr_assert_eq(e2e_processes_of(run->pid), 0, "workers are left");
    cr_assert_eq(e2e_scratch_folders(run->pid), 0, "a scratch folder is left");
}

static int n_files;

static int count_one(const char *path, const struct stat *about, int flag, struct FTW *ftw) {
    (void)path, (void)about, (void)ftw;
    n_files += flag == FTW_F;
    return 0;
}

int e2e_files_in(const char *place) {
    n_files = 0;
    nftw(place, count_one, 16, FTW_PHYS);
    return n_files;
}

/* What only the file relay has. The rest is in tests/contract/test_relay.c. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/process.h"
#include "storage/blob.h"
#include "storage/key.h"
#include "storage/relay_file.h"

static char folder[64]; /* of this test */
static char root[80];   /* the relay's, below it */
static Relay *relay;

static int remove_entry(const char *path, const struct stat *about, int type, struct FTW *where) {
    (void)about;
    (void)type;
    (void)where;
    return remove(path);
}

static void make_folder(void) {
    const char *above = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(folder, sizeof folder, "%s/funcpipe-unit-XXXXXX", above);
    cr_assert_not_null(mkdtemp(folder));
    snprintf(root, sizeof root, "%s/relay", folder);
    cr_assert_eq(relay_file_open(root, &relay), 0, "%s", err_text());
}

static void remove_folder(void) {
    relay_close(relay);
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

TestSuite(relay_file, .init = make_folder, .fini = remove_folder);

/* Folders that are left empty go: a key's, and the relay's by the handle that made it. */
Test(relay_file, is_tidied) {
    Relay *other = NULL;
    char path[120];
    Slice part = {"x", 1};
    cr_assert_eq(relay_file_open(root, &other), 0);
    cr_assert_eq(relay_put(relay, "job/g1/a", &part, 1, CLOCK_NEVER), 0);
    snprintf(path, sizeof path, "%s/job", root);
    relay_tidy(relay, "job");
    cr_expect_eq(relay_has(relay, "job/g1/a"), 1);
    cr_assert_eq(relay_drop_one(relay, "job/g1", NULL), 0);
    cr_expect_eq(access(path, F_OK), 0);
    relay_tidy(other, "job");
    cr_expect_lt(access(path, F_OK), 0);
    cr_expect_eq(access(root, F_OK), 0, "the other one has made it");
    relay_tidy(relay, "job");
    cr_expect_lt(access(root, F_OK), 0);
    cr_expect_eq(relay_put(other, "job/g1/a", &part, 1, CLOCK_NEVER), 0, "it is made again");
    relay_close(other);
}

static int64_t soon(void) {
    return clock_deadline_ms(10000);
}

static int put(Relay *to, const char *key, const char *text) {
    Slice part = {text, strlen(text)};
    return relay_put(to, key, &part, 1, soon());
}

static int get(Relay *from, const char *key, char out[32], int64_t wait_ms) {
    size_t bytes = 0;
    memset(out, 0, 32);
    return relay_get(from, key, out, 31, clock_deadline_ms(wait_ms), &bytes);
}

/* Files and folders in the root itself, hidden ones included. */
static int n_entries(void) {
    int n = 0;
    DIR *dir = opendir(root);
    cr_assert_not_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return n;
}

/* ---- opening ---- */

Test(relay_file, makes_a_private_directory) {
    struct stat about;
    cr_assert_eq(stat(root, &about), 0);
    cr_expect_eq(about.st_mode & 0777, 0700);
    Relay *again = NULL;
    cr_expect_eq(relay_file_open(root, &again), 0, "it exists now: %s", err_text());
    relay_close(again);
}

Test(relay_file, unreachable_places) {
    char path[200];
    Relay *other = NULL;
    snprintf(path, sizeof path, "%s/no/parent", folder);
    cr_expect_eq(relay_file_open(path, &other), ERR_UNREACHABLE);
    cr_expect(strstr(err_text(), path), "%s", err_text());
    snprintf(path, sizeof path, "%s/plain", folder);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    cr_expect_eq(relay_file_open(path, &other), ERR_UNREACHABLE);
    cr_expect(strstr(err_text(), path), "%s", err_text());
    cr_expect_null(other);
    char *deep = calloc(1, 6000);
    memset(deep, '/', 5000);
    strcat(deep, root + 1);
    cr_expect_lt(relay_file_open(deep, &other), 0);
    free(deep);
}

Test(relay_file, survives_a_change_of_directory) {
    char here[512];
    Relay *other = NULL;
    cr_assert_not_null(getcwd(here, sizeof here));
    cr_assert_eq(chdir(folder), 0);
    cr_assert_eq(relay_file_open("relay", &other), 0, "%s", err_text());
    cr_assert_eq(chdir(here), 0);
    cr_expect_eq(put(other, "a/x", "x"), 0, "%s", err_text());
    cr_expect_eq(relay_has(relay, "a/x"), 1);
    relay_close(other);
}

/* ---- what lies in the directory ---- */

Test(relay_file, leaves_no_temporary_files) {
    for (int named = 0; named < 2; named++) {
        if (named)
            relay_file_forbid_unnamed(relay);
        cr_expect_eq(put(relay, "d/x", "x"), named);
        cr_expect_eq(relay_note_put(relay, "d/n", "n", 1, 1000), 0);
        cr_expect_eq(n_entries(), 1, "only d is in the root");
    }
    cr_expect_eq(relay_drop_one(relay, "d", NULL), 0);
    cr_expect_eq(n_entries(), 0);
}

Test(relay_file, clears_files_of_dead_writers) {
    char path[200];
    snprintf(path, sizeof path, "%s/.tmp-1-1", root);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    Relay *other = NULL;
    cr_assert_eq(relay_file_open(root, &other), 0);
    cr_expect_eq(n_entries(), 0);
    relay_close(other);
}

Test(relay_file, a_killed_named_writer_leaves_nothing_in_the_end) {
    size_t bytes = 64 << 20;
    char *data = calloc(1, bytes);
    int ends[2];
    char begun;
    cr_assert_eq(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        Slice part = {data, bytes};
        relay_file_forbid_unnamed(relay);
        if (write(ends[1], "b", 1) == 1)
            relay_put(relay, "k/x", &part, 1, CLOCK_NEVER);
        _exit(0);
    }
    cr_assert_eq(read(ends[0], &begun, 1), 1);
    clock_sleep_until(clock_deadline_ms(4));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    int there = relay_has(relay, "k/x");
    Relay *other = NULL;
    cr_assert_eq(relay_file_open(root, &other), 0);
    cr_expect_eq(n_entries(), there, "a temporary file stayed");
    relay_close(other);
    free(data);
}

Test(relay_file, foreign_files_are_left_alone) {
    char path[200];
    int64_t n = -1;
    snprintf(path, sizeof path, "%s/README", root);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    snprintf(path, sizeof path, "%s/d", root);
    cr_assert_eq(symlink("/", path), 0);
    cr_expect_eq(relay_count(relay, "", &n), 0, "%s", err_text());
    cr_expect_eq(n, 0);
    cr_expect_eq(relay_drop_one(relay, "d", &n), 0, "%s", err_text());
    cr_expect_eq(n, 0, "a link was followed");
    cr_expect_eq(relay_drop_one(relay, "README", &n), 0, "%s", err_text());
    cr_expect_eq(n_entries(), 2);
}

/* ---- damage ---- */

Test(relay_file, damaged_notes) {
    char path[200];
    char out[32];
    size_t bytes = 0;
    cr_assert_eq(relay_note_put(relay, "d/n", "0123456789", 10, 60000), 0);
    snprintf(path, sizeof path, "%s/d/@n", root);
    for (off_t length = 33; length >= 0; length--) {
        cr_assert_eq(truncate(path, length), 0);
        cr_expect_eq(relay_note_get(relay, "d/n", out, sizeof out, &bytes), ERR_CORRUPT);
        cr_expect(strstr(err_text(), "d/n"), "%s", err_text());
    }
    cr_assert_eq(truncate(path, 1 << 20), 0);
    cr_expect_eq(relay_note_get(relay, "d/n", out, sizeof out, &bytes), ERR_CORRUPT);
}

Test(relay_file, an_object_that_is_a_directory) {
    char path[200];
    char out[32];
    snprintf(path, sizeof path, "%s/+x", root);
    cr_assert_eq(mkdir(path, 0700), 0);
    cr_expect_eq(get(relay, "x", out, 100), ERR_CORRUPT);
    cr_expect(strstr(err_text(), "'x'"), "%s", err_text());
}

static void *restore_later(void *arg) {
    clock_sleep_until(clock_deadline_ms(60));
    cr_assert_eq(put(arg, "t0/x", "back"), 0, "%s", err_text());
    return NULL;
}

Test(relay_file, a_root_that_went_away_comes_back) {
    char out[32];
    cr_assert_eq(put(relay, "t0/w", "w"), 0);
    Relay *other = NULL;
    cr_assert_eq(relay_file_open(root, &other), 0);
    cr_assert_eq(get(relay, "t0/x", out, 30), ERR_TIMEOUT); /* now it watches t0 */
    nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    pthread_t thread;
    pthread_create(&thread, NULL, restore_later, other);
    cr_expect_eq(get(relay, "t0/x", out, 5000), 0, "%s", err_text());
    cr_expect_str_eq(out, "back");
    pthread_join(thread, NULL);
    nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    cr_expect_eq(relay_note_put(relay, "t0/n", "n", 1, 1000), 0, "%s", err_text());
    relay_close(other);
}

/* ---- full ---- */

Test(relay_file, too_large_for_the_limit_is_full) {
    struct rlimit limit = {100000, 100000};
    char *data = calloc(1, 200000);
    Slice part = {data, 200000};
    process_begin();
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (int named = 0; named < 2; named++) {
        if (named)
            relay_file_forbid_unnamed(relay);
        cr_expect_eq(relay_put(relay, "f/x", &part, 1, soon()), ERR_FULL);
        cr_expect(strstr(err_text(), "f/x") && strstr(err_text(), root), "%s", err_text());
        cr_expect_eq(relay_has(relay, "f/x"), 0);
        cr_expect_eq(n_entries(), 0);
    }
    part.bytes = 50000;
    cr_expect_eq(relay_put(relay, "f/x", &part, 1, soon()), 0, "%s", err_text());
    free(data);
}

/* ---- in namespaces of our own ---- */

enum { WHY_BYTES = 512 };

static bool write_text(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return ok;
}

/* This process, of one thread, becomes root of a user namespace. */
static bool enter_namespaces(int flags) {
    char user[64];
    char group[64];
    snprintf(user, sizeof user, "0 %u 1", getuid());
    snprintf(group, sizeof group, "0 %u 1", getgid());
    return unshare(CLONE_NEWUSER | flags) == 0 && write_text("/proc/self/setgroups", "deny") &&
           write_text("/proc/self/uid_map", user) && write_text("/proc/self/gid_map", group);
}

/* Run `body` in a child; it writes what it found wrong. Skips the test where it cannot begin. */
static void run_apart(bool (*begin)(void), void (*body)(char *why)) {
    char *why = mmap(NULL, WHY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status = 0;
    cr_assert(why != MAP_FAILED);
    pid_t child = fork();
    if (child == 0) {
        if (!begin())
            _exit(77);
        body(why);
        _exit(0);
    }
    cr_assert(waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        remove_folder();
        cr_skip_test("no namespaces here");
    }
    cr_expect_eq(WEXITSTATUS(status), 0);
    cr_expect_str_eq(why, "");
}

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition) && !why[0])                                                               \
            snprintf(why, WHY_BYTES, "line %d: %s; %.300s", __LINE__, #condition, err_text());     \
    } while (0)

static bool mount_small(void) {
    return enter_namespaces(CLONE_NEWNS) && mount("tmpfs", root, "tmpfs", 0, "size=1m") == 0;
}

static void fill_small(char *why) {
    char *data = calloc(1, 3 << 20);
    Slice large = {data, 3 << 20};
    Slice small = {data, 200000};
    char key[32] = "";
    int64_t n = -1;
    int rc = 0;
    for (int i = 0; i < 5; i++) {
        EXPECT(relay_put(relay, "f/large", &large, 1, soon()) == ERR_FULL);
        EXPECT(strstr(err_text(), "f/large") && strstr(err_text(), root));
    }
    EXPECT(relay_count(relay, "", &n) == 0 && n == 0);
    for (int i = 0; rc == 0 && i < 20; i++) {
        snprintf(key, sizeof key, "f/small.%d", i);
        rc = relay_put(relay, key, &small, 1, soon());
    }
    EXPECT(rc == ERR_FULL && relay_has(relay, key) == 0);
    EXPECT(relay_drop_one(relay, "f", &n) == 0 && n == 5);
    EXPECT(relay_put(relay, "f/small.0", &small, 1, soon()) == 0);
    free(data);
}

Test(relay_file, full_file_system) {
    run_apart(mount_small, fill_small);
}

static bool forbid_inotify(void) {
    return enter_namespaces(0) && write_text("/proc/sys/user/max_inotify_instances", "0");
}

static void *put_later(void *arg) {
    clock_sleep_until(clock_deadline_ms(60));
    put(arg, "w/x", "late");
    return NULL;
}

static void wait_blind(char *why) {
    char out[32];
    Relay *other = NULL;
    EXPECT(relay_file_open(root, &other) == 0);
    pthread_t thread;
    pthread_create(&thread, NULL, put_later, other);
    int64_t begin = clock_now_ns();
    EXPECT(get(relay, "w/x", out, 5000) == 0 && strcmp(out, "late") == 0);
    EXPECT(clock_now_ns() - begin < CLOCK_NS_PER_S);
    pthread_join(thread, NULL);
    EXPECT(relay->counters.n_retries > 0);
    EXPECT(get(relay, "w/y", out, 50) == ERR_TIMEOUT);
    relay_interrupt(relay, true);
    EXPECT(get(relay, "w/y", out, 5000) == ERR_CANCELLED);
    relay_close(other);
}

Test(relay_file, waits_without_inotify) {
    run_apart(forbid_inotify, wait_blind);
}

/* ---- lost events ---- */

typedef struct Waiting {
    pthread_t thread;
    int rc;
    char out[32];
} Waiting;

static void *get_late(void *arg) {
    Waiting *waiting = arg;
    waiting->rc = get(relay, "q/wanted", waiting->out, 10000);
    return NULL;
}

/* More events than the queue holds come between two waits in one directory. */
Test(relay_file, overflow_of_events) {
    char out[32];
    char key[32];
    Relay *other = NULL;
    cr_assert_eq(relay_file_open(root, &other), 0);
    cr_assert_eq(get(relay, "q/wanted", out, 10), ERR_TIMEOUT); /* now it watches q */
    for (int i = 0; i < 17000; i++) {
        snprintf(key, sizeof key, "q/o.%d", i);
        cr_assert_eq(put(other, key, ""), 0);
    }
    Waiting waiting;
    pthread_create(&waiting.thread, NULL, get_late, &waiting);
    clock_sleep_until(clock_deadline_ms(50));
    cr_expect_eq(put(other, "q/wanted", "found"), 0);
    pthread_join(waiting.thread, NULL);
    cr_expect_eq(waiting.rc, 0);
    cr_expect_str_eq(waiting.out, "found");
    relay_close(other);
}

/* ---- sums ---- */

/* Contribution `index` to "a/s". */
static Slice contribution(int index) {
    static const BlobTensor tensor = {DTYPE_F32, {1, {5}}};
    static unsigned char blob[512];
    size_t offset = 0;
    int64_t bytes = blob_layout(&tensor, 1, &offset);
    float value = (float)(index + 1);
    cr_assert(bytes > 0 && bytes <= (int64_t)sizeof blob);
    memset(blob, 0, sizeof blob);
    memcpy(blob + offset, &value, sizeof value);
    blob_seal(blob, key_part("a/s", index).text, &tensor, 1);
    return (Slice){blob, (size_t)bytes};
}

static int add(int index, int n) {
    Slice part = contribution(index);
    return relay_add(relay, "a/s", index, n, &part, 1, CLOCK_NEVER);
}

static bool is_there(const char *name) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return access(path, F_OK) == 0;
}

static void write_part(int index, size_t bytes) {
    char path[160];
    snprintf(path, sizeof path, "%s/a/=s/%d", root, index);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, contribution(index).data, bytes), (ssize_t)bytes);
    close(fd);
}

Test(relay_file, contributions_go_with_the_sum) {
    cr_assert_eq(add(0, 2), 0, "%s", err_text());
    cr_expect(is_there("a/=s/0") && is_there("a/=s/form"));
    cr_assert_eq(add(1, 2), 0, "%s", err_text());
    cr_expect(is_there("a/+s"));
    cr_expect_not(is_there("a/=s"));
    cr_assert_eq(relay_drop_one(relay, "a", NULL), 0);
    cr_expect_not(is_there("a"));
}

/* The last one died between its contribution and the sum: its successor goes on. */
Test(relay_file, a_successor_makes_the_sum) {
    cr_assert_eq(add(0, 3), 0, "%s", err_text());
    cr_assert_eq(add(2, 3), 0, "%s", err_text());
    write_part(1, contribution(1).bytes);
    cr_expect_eq(relay_has(relay, "a/s"), 0);
    cr_expect_eq(add(1, 3), 1, "%s", err_text());
    cr_expect_eq(relay_has(relay, "a/s"), 1);
    char got[512];
    size_t bytes = 0;
    cr_assert_eq(relay_get(relay, "a/s", got, sizeof got, CLOCK_NEVER, &bytes), 0);
    float sum = 0;
    memcpy(&sum, got + bytes - 5 * sizeof sum, sizeof sum);
    cr_expect_eq(sum, 6.0F);
}

/* It died behind the sum, before it cleared up: that goes with the next drop. */
Test(relay_file, what_is_left_of_a_sum_is_dropped) {
    int64_t n = 0;
    cr_assert_eq(add(0, 2), 0, "%s", err_text());
    cr_assert_eq(add(1, 2), 0, "%s", err_text());
    for (int i = 0; i < 3; i++) {
        static const char *const prefixes[] = {"a/s", "a", "a/s"};
        char path[160];
        snprintf(path, sizeof path, "%s/a", root);
        mkdir(path, 0700);
        snprintf(path, sizeof path, "%s/a/=s", root);
        cr_assert_eq(mkdir(path, 0700), 0);
        write_part(0, contribution(0).bytes);
        cr_expect_eq(relay_count(relay, "", &n), 0);
        cr_expect_eq(n, i == 0);
        if (i == 0)
            cr_expect_eq(add(0, 2), 1, "%s", err_text());
        cr_assert_eq(relay_drop_one(relay, prefixes[i], &n), 0, "%s", err_text());
        cr_expect_eq(n, i == 0);
        cr_expect_not(is_there("a/=s"));
    }
}

Test(relay_file, a_damaged_contribution_is_named) {
    cr_assert_eq(add(0, 3), 0, "%s", err_text());
    write_part(1, contribution(1).bytes - 1);
    cr_expect_eq(add(2, 3), ERR_CORRUPT);
    cr_expect(strstr(err_text(), "contribution 1 to the sum 'a/s'"), "%s", err_text());
    cr_expect_eq(relay_has(relay, "a/s"), 0);
    write_part(1, contribution(1).bytes);
    cr_expect_eq(add(2, 3), 1, "%s", err_text());
    cr_expect_eq(relay_has(relay, "a/s"), 1);
}

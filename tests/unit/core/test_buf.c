#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/file.h"
#include "core/process.h"

Test(buf, builds_text) {
    Buf buf;
    buf_init(&buf, 0);
    cr_assert_str_eq(buf_string(&buf), "");
    cr_assert_null(buf.data);
    cr_assert_eq(buf_text(&buf, ""), 0);
    cr_assert_eq(buf_text(&buf, "a"), 0);
    cr_assert_eq(buf_printf(&buf, "-%d-%s", 7, "x"), 0);
    cr_assert_eq(buf_add(&buf, "zz9", 2), 0);
    cr_assert_str_eq(buf_string(&buf), "a-7-xzz");
    cr_assert_eq(buf.bytes, 7);
    buf_clear(&buf);
    cr_assert_str_eq(buf_string(&buf), "");
    cr_assert_eq(buf.bytes, 0);
    buf_done(&buf);
    buf_done(&buf);
    buf_done(NULL);
}

Test(buf, grows_and_stays_terminated) {
    Buf buf;
    buf_init(&buf, 0);
    for (int i = 0; i < 20000; i++) {
        char c = (char)('a' + i % 26);
        cr_assert_eq(i % 2 ? buf_add(&buf, &c, 1) : buf_printf(&buf, "%c", c), 0);
        cr_assert_eq(buf.data[buf.bytes], '\0');
    }
    cr_assert_eq(buf.bytes, 20000);
    for (int i = 0; i < 20000; i++)
        cr_assert_eq(buf.data[i], 'a' + i % 26);
    size_t bytes = 0;
    char *taken = buf_take(&buf, &bytes);
    cr_assert_eq(bytes, 20000);
    cr_assert_null(buf.data);
    cr_assert_eq(buf.bytes, 0);
    cr_assert_eq(strlen(taken), 20000);
    free(taken);
    cr_assert_null(buf_take(&buf, NULL));
    cr_assert_eq(buf_text(&buf, "again"), 0);
    buf_done(&buf);
}

Test(buf, limit_is_exact_and_leaves_the_content) {
    Buf buf;
    buf_init(&buf, 10);
    cr_assert_eq(buf_text(&buf, "12345"), 0);
    cr_assert_eq(buf_text(&buf, "678901"), ERR_LIMIT);
    cr_assert_eq(buf_printf(&buf, "%s", "678901"), ERR_LIMIT);
    cr_assert_str_eq(buf_string(&buf), "12345");
    cr_assert_eq(buf_text(&buf, "67890"), 0);
    cr_assert_eq(buf_reserve(&buf, 1), ERR_LIMIT);
    cr_assert_eq(buf_printf(&buf, "%s", ""), 0);
    cr_assert_str_eq(buf_string(&buf), "1234567890");
    cr_assert_leq(buf.capacity, 11);
    buf_done(&buf);
}

Test(buf, absurd_sizes_are_errors) {
    Buf buf;
    buf_init(&buf, 0);
    cr_assert_eq(buf_text(&buf, "x"), 0);
    cr_assert_eq(buf_reserve(&buf, SIZE_MAX), ERR_LIMIT);
    cr_assert_eq(buf_reserve(&buf, SIZE_MAX - 1), ERR_LIMIT);
    cr_assert_str_eq(buf_string(&buf), "x");
    buf_done(&buf);
    buf_init(&buf, SIZE_MAX);
    cr_assert_eq(buf_reserve(&buf, SIZE_MAX), ERR_LIMIT);
    cr_assert_eq(buf_text(&buf, "x"), 0);
    buf_done(&buf);
}

/* ---- files, each test in a folder of its own ---- */

static char folder[64];
static char path[128];

static void enter(void) {
    snprintf(folder, sizeof folder, "/tmp/test_buf.XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
}

static int n_files(void) {
    DIR *dir = opendir(folder);
    int n = 0;
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return n;
}

static void leave(void) {
    unlink(path);
    cr_assert_eq(n_files(), 0, "something was left in %s", folder);
    rmdir(folder);
}

static void expect_content(const char *want) {
    Buf buf;
    buf_init(&buf, 0);
    cr_assert_eq(buf_read_file(&buf, path, 1 << 20), 0, "%s", err_text());
    cr_assert_str_eq(buf_string(&buf), want);
    buf_done(&buf);
}

Test(buf_file, write_then_read, .init = enter, .fini = leave) {
    cr_assert_eq(file_write(path, "first", 5), 0, "%s", err_text());
    expect_content("first");
    cr_assert_eq(file_write(path, "2nd", 3), 0);
    expect_content("2nd");
    cr_assert_eq(file_write(path, NULL, 0), 0);
    expect_content("");
    cr_assert_eq(n_files(), 1);
}

Test(buf_file, a_path_without_folder_is_in_the_current_one, .init = enter, .fini = leave) {
    cr_assert_eq(chdir(folder), 0);
    cr_assert_eq(file_write("file", "here", 4), 0, "%s", err_text());
    expect_content("here");
}

Test(buf_file, mode_follows_the_umask, .init = enter, .fini = leave) {
    umask(027);
    cr_assert_eq(file_write(path, "x", 1), 0);
    struct stat about;
    cr_assert_eq(stat(path, &about), 0);
    cr_assert_eq(about.st_mode & 0777, 0640);
}

Test(buf_file, long_names_leave_room_for_the_temporary_one, .init = enter, .fini = leave) {
    char name[256];
    memset(name, 'n', 255);
    name[255] = '\0';
    snprintf(path, sizeof path, "%s/%.60s", folder, name);
    char full[400];
    snprintf(full, sizeof full, "%s/%s", folder, name);
    cr_assert_eq(file_write(full, "x", 1), 0, "%s", err_text());
    unlink(full);
    char absurd[5000];
    memset(absurd, '/', sizeof absurd - 1);
    absurd[sizeof absurd - 1] = '\0';
    cr_assert_eq(file_write(absurd, "x", 1), ERR_LIMIT);
}

Test(buf_file, a_large_file_reads_back_appended, .init = enter, .fini = leave) {
    size_t bytes = 3000001;
    char *data = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (char)(i * 31 + i / 999);
    cr_assert_eq(file_write(path, data, bytes), 0);
    Buf buf;
    buf_init(&buf, 0);
    cr_assert_eq(buf_text(&buf, "head"), 0);
    cr_assert_eq(buf_read_file(&buf, path, bytes), 0);
    cr_assert_eq(buf.bytes, bytes + 4);
    cr_assert_eq(memcmp(buf.data + 4, data, bytes), 0);
    cr_assert_eq(buf_read_file(&buf, path, bytes - 1), ERR_LIMIT);
    cr_assert_eq(buf.bytes, bytes + 4);
    buf_done(&buf);
    buf_init(&buf, bytes - 1);
    cr_assert_eq(buf_read_file(&buf, path, bytes), ERR_LIMIT);
    buf_done(&buf);
    free(data);
}

Test(buf_file, reading_what_is_no_file, .init = enter, .fini = leave) {
    Buf buf;
    buf_init(&buf, 0);
    cr_assert_eq(buf_read_file(&buf, path, 10), ERR_NOT_FOUND);
    cr_assert(strstr(err_text(), path));
    cr_assert_eq(buf_read_file(&buf, folder, 10), ERR_IO);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_eq(buf_read_file(&buf, path, 10), ERR_IO);
    cr_assert_eq(buf_read_file(&buf, "/dev/zero", 10), ERR_IO);
    cr_assert_null(buf.data);
    /* A file of unknown size is read until its end. */
    cr_assert_eq(buf_read_file(&buf, "/proc/self/status", 1 << 20), 0, "%s", err_text());
    cr_assert_gt(buf.bytes, 100);
    buf_clear(&buf);
    cr_assert_eq(buf_read_file(&buf, "/proc/self/status", 20), ERR_LIMIT);
    cr_assert_eq(buf.bytes, 0);
    buf_done(&buf);
}

Test(buf_file, writing_where_no_folder_is, .init = enter, .fini = leave) {
    char nowhere[160];
    snprintf(nowhere, sizeof nowhere, "%s/none/file", folder);
    cr_assert_eq(file_write(nowhere, "x", 1), ERR_NOT_FOUND);
    cr_assert(strstr(err_text(), nowhere));
    cr_assert_lt(file_write(folder, "x", 1), 0); /* a folder in its place */
}

Test(buf_file, no_room_keeps_the_old_content, .init = enter, .fini = leave) {
    cr_assert_eq(file_write(path, "old", 3), 0);
    struct rlimit limit = {.rlim_cur = 4096, .rlim_max = RLIM_INFINITY};
    struct rlimit before;
    process_begin(); /* else SIGXFSZ would end this test */
    getrlimit(RLIMIT_FSIZE, &before);
    limit.rlim_max = before.rlim_max;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    static char big[100000];
    int rc = file_write(path, big, sizeof big);
    setrlimit(RLIMIT_FSIZE, &before);
    cr_assert_eq(rc, ERR_FULL);
    cr_assert(strstr(err_text(), path), "%s", err_text());
    cr_assert_eq(n_files(), 1);
    expect_content("old");
}

Test(buf_file, a_full_disk_is_full, .init = enter, .fini = leave) {
    /* /dev/full cannot be renamed to; the limit of zero stands for the disk without a byte. */
    struct rlimit before;
    process_begin();
    getrlimit(RLIMIT_FSIZE, &before);
    struct rlimit limit = {.rlim_cur = 0, .rlim_max = before.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int rc = file_write(path, "x", 1);
    setrlimit(RLIMIT_FSIZE, &before);
    cr_assert_eq(rc, ERR_FULL);
    cr_assert_eq(n_files(), 0);
}

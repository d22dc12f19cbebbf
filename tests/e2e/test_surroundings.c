/* What a run meets around it: limits on files and their sizes, closed descriptors, data that
 * changes. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/e2e.h"

static E2e expect(const char *const *more, int exit_code, const char *words) {
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), "out", more);
    int status = e2e_wait(&run);
    const char *text = e2e_read(run.err);
    cr_assert_eq(status, exit_code, "%d instead of %d: %s", status, exit_code, text);
    cr_assert(strstr(text, words), "expected '%s' in: %s", words, text);
    e2e_check_clean(&run);
    return run;
}

static const char *const short_job[] = {"--set", "steps=30", "--overwrite", NULL};

Test(surroundings, few_files, .init = e2e_enter, .fini = e2e_leave) {
    for (int n = 7; n <= 31; n += n < 10 ? 1 : 7) {
        char lines[64], words[64];
        snprintf(lines, sizeof lines, "ulimit -c 0; ulimit -n %d", n);
        snprintf(words, sizeof words, "more files can be opened, the limit is %d (ulimit -n)", n);
        e2e_shell(lines);
        expect(short_job, 1, words);
    }
}

Test(surroundings, a_limit_on_file_sizes, .init = e2e_enter, .fini = e2e_leave) {
    e2e_shell("ulimit -f 12");
    expect(E2E_ARGS("--set", "steps=3000"), 1, "': File too large");
}

/* What is printed goes nowhere then, and not into the first files that are opened. */
Test(surroundings, closed_descriptors, .init = e2e_enter, .fini = e2e_leave) {
    static const char *const closings[] = {"exec >&- 2>&-", "exec <&- >&- 2>&-", "exec <&-"};
    for (size_t i = 0; i < sizeof closings / sizeof closings[0]; i++) {
        e2e_shell(closings[i]);
        expect(short_job, 0, "");
        e2e_check_rows("out", 30);
        expect(E2E_ARGS("--json", "--set", "steps=30", "--overwrite"), 0, "");
        e2e_check_rows("out", 30);
        cr_assert_eq(e2e_count("out", "progress"), 0);
    }
}

/* ---- paths that are not UTF-8 ---- */

static void expect_refused(const char *const *args, const char *words) {
    E2e run;
    cr_assert_eq(e2e_run(&run, args), 2, "%s", e2e_read(run.err));
    cr_assert(strstr(e2e_read(run.err), words), "expected '%s' in: %s", words, e2e_read(run.err));
    e2e_check_clean(&run);
}

Test(surroundings, paths_that_no_order_can_name, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    expect_refused(E2E_ARGS("train", job, "--out", "o\xFFut"),
                   "--out: the path 'o\\xffut' is not valid UTF-8");
    cr_assert_eq(access("o\xFFut", F_OK), -1, "a folder was made");
    expect_refused(E2E_ARGS("train", job, "--out", "out", "--resume", "a\xFF"),
                   "--resume: the path 'a\\xff' is not valid UTF-8");
    cr_assert_eq(access("out", F_OK), -1, "a folder was made");
    cr_assert_eq(mkdir("\xFF", 0700), 0);
    cr_assert_eq(rename("mlp.json", "\xFF/mlp.json"), 0);
    job = e2e_path("%s", "\xFF/mlp.json");
    expect_refused(E2E_ARGS("train", job, "--out", "out", "--set", "relay=file://relay"),
                   "which 'relay' is relative to, is not valid UTF-8");
    cr_assert_eq(chdir("\xFF"), 0);
    expect_refused(E2E_ARGS("train", "mlp.json"), "/\\xff' is not valid UTF-8");
    cr_assert_eq(access("funcpipe-out", F_OK), -1, "a folder was made");
    cr_assert_eq(chdir(".."), 0);
    /* Where no path is relative to it, the job may stand there; such a TMPDIR is not used. */
    setenv("TMPDIR", e2e_path("%s", "\xFF"), 1);
    e2e_train_fully(job, "out", E2E_ARGS("--set", "steps=20"));
}

/* ---- data that changes ---- */

enum { DATA_ROWS = 240, DATA_COLUMNS = 4 };

static void write_npy(const char *path, const char *descr, int columns, const void *data,
                      size_t bytes) {
    char shape[32], dict[118], head[128];
    snprintf(shape, sizeof shape, columns ? "(%d, %d)" : "(%d,)", DATA_ROWS, columns);
    snprintf(dict, sizeof dict, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr,
             shape);
    memcpy(head, "\x93NUMPY\1\0\166\0", 10); /* 118 bytes of header */
    snprintf(head + 10, sizeof head - 10, "%-117s", dict);
    head[127] = '\n';
    FILE *file = fopen(path, "r+b"); /* the same file, where there is one */
    file = file ? file : fopen(path, "wb");
    cr_assert(file && fwrite(head, sizeof head, 1, file) == 1 &&
              fwrite(data, bytes, 1, file) == 1 && fclose(file) == 0);
}

static void write_inputs(const char *path, float scale) {
    float x[DATA_ROWS * DATA_COLUMNS];
    for (int i = 0; i < DATA_ROWS * DATA_COLUMNS; i++)
        x[i] = scale * (float)(i * 37 % 11);
    write_npy(path, "<f4", DATA_COLUMNS, x, sizeof x);
}

static const char npy_job[] =
    "{\"version\":1,\"name\":\"npy\",\"model\":{\"name\":\"m\",\"input\":{\"dtype\":\"F32\","
    "\"shape\":[4]},\"target\":{\"dtype\":\"I32\",\"shape\":[]},\"layers\":["
    "{\"name\":\"l0\",\"kind\":\"linear\",\"features\":8},"
    "{\"name\":\"d\",\"kind\":\"delay\",\"forward_us\":1000},"
    "{\"name\":\"l1\",\"kind\":\"linear\",\"features\":3},"
    "{\"name\":\"loss\",\"kind\":\"cross_entropy\"}]},"
    "\"data\":{\"train\":{\"kind\":\"npy\",\"inputs\":\"x.npy\",\"targets\":\"y.npy\"}},"
    "\"batch\":24,\"micro_batch\":12,\"steps\":2000,\"update\":{\"kind\":\"sgd\",\"lr\":0.01},"
    "\"save\":{\"every_steps\":20},\"plan\":{\"cut\":[\"d\"]}}";

static E2e start_npy(const char *const *more) {
    int32_t y[DATA_ROWS];
    for (int i = 0; i < DATA_ROWS; i++)
        y[i] = i % 3;
    write_npy("y.npy", "<i4", 0, y, sizeof y);
    write_inputs("x.npy", 0.1F);
    E2e run = e2e_train(e2e_job("npy", npy_job), "out", more);
    cr_assert(e2e_await_rows(&run, "out", 25), "%s", e2e_read(run.err));
    cr_assert(e2e_await_event(&run, "out", "saved", 1), "%s", e2e_read(run.err));
    return run;
}

static void expect_changed(E2e *run, const char *file) {
    char words[E2E_PATH_BYTES + 64];
    snprintf(words, sizeof words, "/%s' changed since the job began", file);
    cr_assert_eq(e2e_wait(run), 1, "%s", e2e_read(run->err));
    cr_assert(strstr(e2e_read(run->err), words), "%s", e2e_read(run->err));
    e2e_check_clean(run);
}

/* The workers that run keep the file they have; one that starts anew finds another one. */
Test(surroundings, data_replaced, .init = e2e_enter, .fini = e2e_leave) {
    E2e run = start_npy(NULL);
    write_inputs("new.npy", 0.2F);
    cr_assert_eq(rename("new.npy", "x.npy"), 0);
    int64_t rows = e2e_rows("out");
    cr_assert(e2e_await_rows(&run, "out", rows + 5), "%s", e2e_read(run.err));
    kill(e2e_worker("out", 0, 0), SIGKILL);
    expect_changed(&run, "x.npy");
    cr_assert_eq(e2e_count("out", "worker_died"), 1); /* no retry helps */
}

/* No step is made of them: the last row is of the old data. A later run takes the new data. */
Test(surroundings, data_rewritten_in_place, .init = e2e_enter, .fini = e2e_leave) {
    E2e run = start_npy(NULL);
    write_inputs("x.npy", 0.2F);
    expect_changed(&run, "x.npy");
    cr_assert_eq(e2e_count("out", "worker_died"), 0);
    run = e2e_train(e2e_path("npy.json"), "out",
                    E2E_ARGS("--resume", "latest", "--set", "steps=400"));
    cr_assert_eq(e2e_wait(&run), 0, "%s", e2e_read(run.err));
}

/* Reading behind the end of a mapped file is SIGBUS; the successor says what it was. */
Test(surroundings, data_cut_short, .init = e2e_enter, .fini = e2e_leave) {
    E2e run = start_npy(NULL);
    cr_assert_eq(truncate("x.npy", 200), 0);
    expect_changed(&run, "x.npy");
}

Test(surroundings, targets_rewritten_in_place, .init = e2e_enter, .fini = e2e_leave) {
    E2e run = start_npy(NULL);
    int32_t y[DATA_ROWS] = {0};
    write_npy("y.npy", "<i4", 0, y, sizeof y);
    expect_changed(&run, "y.npy");
}

/* End-to-end tests: funcpipe as a child process in a session of its own, what it prints, what it
 * writes, and what it must not leave behind.
 *
 *     Test(cancel, once, .init = e2e_enter, .fini = e2e_leave) {
 *         const char *job = e2e_job("job", e2e_mlp);
 *         E2e run = e2e_train(job, "out", E2E_ARGS("--set", "steps=100"));
 *         e2e_await_rows(&run, "out", 10);
 *         kill(run.pid, SIGINT);
 *         cr_assert_eq(e2e_wait(&run), 130);
 *         e2e_check_clean(&run);
 *     }
 *
 * Criterion runs each test in a process of its own, so setenv in a test reaches the children it
 * starts and nobody else. A failed test ends its children with it. */
#ifndef FUNCPIPE_TESTS_SUPPORT_E2E_H
#define FUNCPIPE_TESTS_SUPPORT_E2E_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/json.h"

enum { E2E_PATH_BYTES = 256, E2E_SIGNALLED = 1000 };

typedef struct E2e {
    pid_t pid;
    bool ended;
    int status;                                    /* exit code, or E2E_SIGNALLED + signal */
    int terminal;                                  /* our side of its terminal; -1: it has none */
    char out[E2E_PATH_BYTES], err[E2E_PATH_BYTES]; /* files with what it printed */
} E2e;

#define E2E_ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* ---- the test's folder (also the current one while a test runs) ---- */

void e2e_enter(void);
void e2e_leave(void);
const char *e2e_path(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A file's text; "" when there is none. Valid until e2e_leave. */
const char *e2e_read(const char *path);
void e2e_write(const char *path, const char *text);
/* Write NAME.json and return its path. Jobs on generated data, about 4 ms a step: e2e_mlp and
 * e2e_cnn have 3 stages with replicas 1, 2, 1, e2e_gpt (tied embeddings, dropout, adamw) 3 stages
 * with one each; saves every 10 steps, an evaluation every 40. */
const char *e2e_job(const char *name, const char *text);
extern const char e2e_mlp[], e2e_cnn[], e2e_gpt[];

/* ---- running ---- */

/* How much slower than usual this build is (sanitizers): multiply patience by it. */
int e2e_slowness(void);
/* FUNCPIPE_LONG=1? */
bool e2e_long(void);
E2e e2e_start(const char *const *args);
/* The same on a terminal of its own; what it prints arrives at `terminal`. */
E2e e2e_start_on_terminal(const char *const *args);
E2e e2e_train(const char *job, const char *out, const char *const *more /* may be NULL */);
/* Wait for its end (a minute at most, FUNCPIPE_LONG: twenty; else the test fails) and return the
 * status. */
int e2e_wait(E2e *run);
/* Start, wait, and return the status. */
int e2e_run(E2e *out_run, const char *const *args);
/* Train to the end; the test fails unless the exit code is 0 and nothing is left behind. */
void e2e_train_fully(const char *job, const char *out, const char *const *more);
/* The run over files that others of e2e_job's `job` are compared with, once for all tests of a
 * program: the first that asks trains it to the end, the others wait for it. `more` is the same in
 * all. Returns its OUT, which nobody changes. */
const char *e2e_reference(const char *job, const char *const *more);
void e2e_references_begin(void);
void e2e_references_end(void);
/* In a Criterion program with references, on lines of their own. */
#define E2E_REFERENCES_BEGIN                                                                       \
    ReportHook(PRE_ALL)(struct criterion_test_set * tests) {                                       \
        (void)tests;                                                                               \
        e2e_references_begin();                                                                    \
    }
#define E2E_REFERENCES_END                                                                         \
    ReportHook(POST_ALL)(struct criterion_global_stats * stats) {                                  \
        (void)stats;                                                                               \
        e2e_references_end();                                                                      \
    }
/* Make file operations of later runs go wrong (tests/e2e/fault_io.c): each rule once in all
 * processes together when `once`. */
void e2e_break_files(const char *rules, bool once);
void e2e_mend_files(void);
bool e2e_file_broke(int rule); /* a rule that is done once has been done */
/* Later runs start a shell script instead of the worker: when it is to run an order, `lines` are
 * done first, with the order's text in the file $ORDER; then it becomes the worker. */
void e2e_wrap_worker(const char *lines);
/* Later runs are started by a shell that does `lines` first ("ulimit -n 8"); NULL: by none. */
void e2e_shell(const char *lines);
bool e2e_is_running(E2e *run);
void e2e_sleep_ms(int64_t ms);

/* ---- outputs: OUT is a path, relative ones to the test's folder ---- */

/* The objects of a .jsonl file, whole lines only; each must parse. Valid until e2e_leave. */
cJSON *e2e_lines(const char *path);
/* Events of OUT/events.jsonl: the last one of that kind, of that worker (stage < 0: any) and
 * attempt (0: any); NULL: none. */
const cJSON *e2e_event(const char *out, const char *event, int stage, int replica, int64_t attempt);
int e2e_count(const char *out, const char *event);
double e2e_number(const cJSON *object, const char *key); /* fails when it is not there */
const char *e2e_text(const cJSON *object, const char *key);
const char *e2e_checkpoint(const char *out, int64_t step); /* its folder */
int64_t e2e_rows(const char *out);                         /* lines of metrics.jsonl so far */
/* Wait until there are that many rows, or events, or until the path is there: false when the run
 * ended before, or after a minute. */
bool e2e_await_rows(E2e *run, const char *out, int64_t rows);
bool e2e_await_event(E2e *run, const char *out, const char *event, int count);
bool e2e_await_path(E2e *run, const char *path);
/* The process of a worker's newest attempt; 0: none was started. */
pid_t e2e_worker(const char *out, int stage, int replica);
/* Its state as ps shows it: 'R', 'S', 'T' (stopped), 'Z', ...; 0: it is gone. */
char e2e_process_state(pid_t pid);

/* ---- checks ---- */

/* Nothing is left of an ended run: no process, no scratch folder. */
void e2e_check_clean(const E2e *run);
/* Scratch folders of process `pid`; processes that were started for it. */
int e2e_scratch_folders(pid_t pid);
int e2e_processes_of(pid_t pid);
int e2e_files_in(const char *folder); /* plain files below it */
/* The checkpoints of that step are sound and bit-equal: parameters, and the update's state where
 * both have the same files (the same cut). */
void e2e_check_equal(const char *out_a, const char *out_b, int64_t step);
/* Rows of steps [first, end) stand in both, once each and in order, with equal figures. */
void e2e_check_same_rows(const char *out_a, const char *out_b, int64_t first, int64_t end);
/* metrics.csv and metrics.jsonl have each step of [0, end) once, in order, and agree. */
void e2e_check_rows(const char *out, int64_t end);

#endif

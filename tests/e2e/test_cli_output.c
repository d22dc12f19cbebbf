/* What the commands print, on terminals and elsewhere, and the files a run leaves. */
#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/err.h"
#include "tests/support/e2e.h"

enum { STEPS = 80, EVERY = 40, EVAL_BATCHES = 3 };

#define SHORT "--set", "steps=80"

static const cJSON *member(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    cr_assert(item != NULL, "there is no '%s'", key);
    return item;
}

/* Run a command: its exit code, and what it printed on stdout as one JSON value. */
static const cJSON *run_json(const char *const *args, int exit_code) {
    E2e run;
    int status = e2e_run(&run, args);
    cr_assert_eq(status, exit_code, "%s: %d: %s", args[0], status, e2e_read(run.err));
    const cJSON *lines = e2e_lines(run.out);
    cr_assert_eq(cJSON_GetArraySize(lines), 1, "%s", e2e_read(run.out));
    return lines->child;
}

static const char *run_text(const char *const *args, int exit_code) {
    E2e run;
    int status = e2e_run(&run, args);
    cr_assert_eq(status, exit_code, "%s: %d: %s", args[0], status, e2e_read(run.err));
    return e2e_read(exit_code == 2 ? run.err : run.out);
}

/* ---- progress ---- */

Test(cli_output, plain_without_a_terminal, .init = e2e_enter, .fini = e2e_leave) {
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), "out", NULL);
    cr_assert(e2e_await_rows(&run, "out", 50));
    kill(e2e_worker("out", 1, 0), SIGKILL);
    cr_assert_eq(e2e_wait(&run), 0);
    const char *err = e2e_read(run.err);
    const char *out = e2e_read(run.out);
    cr_assert_null(strpbrk(err, "\033\r"), "%s", err);
    cr_assert_null(strpbrk(out, "\033\r"), "%s", out);
    cr_assert(strstr(err, "step 0/200"), "%s", err);
    cr_assert(strstr(err, "/4  restarts 0\n"), "%s", err);
    cr_assert(strstr(err, "evaluation after 40 steps: loss "), "%s", err);
    cr_assert(strstr(err, "stage 1, replica 0 died at step "), "%s", err);
    cr_assert_eq(strncmp(out, "done after 200 steps, loss ", 27), 0, "%s", out);
    cr_assert(strstr(out, ", 1 restart\n"), "%s", out);
    cr_assert(strstr(out, "outputs in out\ncheckpoint out/checkpoints/200\n"), "%s", out);
}

/* Read all that comes from a terminal until its program is gone. */
static char *read_terminal(E2e *run) {
    size_t bytes = 0;
    char *text = calloc(1, 1 << 20);
    for (;;) {
        ssize_t n = read(run->terminal, text + bytes, (1 << 20) - 1 - bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return text;
        bytes += (size_t)n;
    }
}

Test(cli_output, in_place_on_a_terminal, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    E2e run = e2e_start_on_terminal(
        E2E_ARGS("train", job, "--out", "out", "--set", "steps=400", "--set", "evaluate=null"));
    char *text = read_terminal(&run);
    cr_assert_eq(e2e_wait(&run), 0, "%s", text);
    int n_updates = 0;
    for (const char *at = text; (at = strstr(at, "\r\033[Krunning  step ")) != NULL; at++)
        n_updates++;
    cr_assert_geq(n_updates, 2, "%s", text);
    const char *end = strstr(text, "done after 400 steps");
    cr_assert(end != NULL && end > text && end[-1] == '\n', "%s", text);
    free(text);
}

/* All of the events have a row in the manual. */
static void check_documented(const cJSON *lines) {
    char words[64];
    const char *manual = e2e_read(FUNCPIPE_SOURCE_DIR "/docs/outputs.md");
    const cJSON *line = NULL;
    cJSON_ArrayForEach(line, lines) {
        snprintf(words, sizeof words, "`%s`", e2e_text(line, "event"));
        cr_assert(strstr(manual, words), "%s", words);
        const cJSON *item = NULL;
        cJSON_ArrayForEach(item, line) {
            snprintf(words, sizeof words, "`%s`", item->string);
            cr_assert(strstr(manual, words), "%s of %s", words, e2e_text(line, "event"));
        }
    }
}

Test(cli_output, json_lines, .init = e2e_enter, .fini = e2e_leave) {
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), "out", E2E_ARGS("--json", "--set", "steps=400"));
    cr_assert(e2e_await_rows(&run, "out", 50));
    kill(e2e_worker("out", 2, 0), SIGKILL);
    cr_assert_eq(e2e_wait(&run), 0);
    cr_assert_str_eq(e2e_read(run.err), "", "%s", e2e_read(run.err));
    const cJSON *lines = e2e_lines(run.out);
    const cJSON *line = NULL;
    int n_progress = 0;
    int n_died = 0;
    check_documented(lines);
    check_documented(e2e_lines("out/events.jsonl"));
    cJSON_ArrayForEach(line, lines) {
        cr_assert_str_neq(e2e_text(line, "event"), "");
        if (strcmp(e2e_text(line, "event"), "evaluated") == 0) {
            const cJSON *event = e2e_event("out", "evaluated", -1, -1, 0);
            bool last_one = e2e_number(line, "step") == e2e_number(event, "step");
            cr_assert(!last_one || e2e_number(line, "loss") == e2e_number(event, "loss"));
            cr_assert(e2e_number(line, "accuracy") >= 0 && e2e_text(line, "text")[0]);
        }
        if (strcmp(e2e_text(line, "event"), "worker_died") == 0)
            cr_assert_eq(e2e_number(line, "stage"), 2);
        n_progress += strcmp(e2e_text(line, "event"), "progress") == 0;
        n_died += strcmp(e2e_text(line, "event"), "worker_died") == 0;
    }
    cr_assert_geq(n_progress, 1);
    cr_assert_eq(n_died, 1);
    const cJSON *last = cJSON_GetArrayItem(lines, cJSON_GetArraySize(lines) - 1);
    cr_assert_str_eq(e2e_text(last, "event"), "finished");
    cr_assert_str_eq(e2e_text(last, "state"), "done");
    cr_assert_str_eq(e2e_text(last, "out"), "out");
    cr_assert_eq(e2e_number(last, "exit_code"), 0);
    cr_assert_eq(e2e_number(last, "saved_step"), 400);
    cr_assert_eq(e2e_number(last, "restarts"), 1);
}

/* The last line says how it ended, whatever that was. */
Test(cli_output, json_of_a_failure, .init = e2e_enter, .fini = e2e_leave) {
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), "out",
                        E2E_ARGS("--json", "--set", "update.lr=1e9", "--set",
                                 "update.on_nonfinite=stop", "--set", "update.schedule=null"));
    cr_assert_eq(e2e_wait(&run), 5);
    const cJSON *lines = e2e_lines(run.out);
    const cJSON *last = cJSON_GetArrayItem(lines, cJSON_GetArraySize(lines) - 1);
    check_documented(lines);
    cr_assert_str_eq(e2e_text(last, "event"), "finished");
    cr_assert_str_eq(e2e_text(last, "state"), "failed");
    cr_assert_eq(e2e_number(last, "exit_code"), 5);
    cr_assert_str_eq(e2e_text(last, "code"), "ERR_DIVERGED");
    cr_assert(strstr(e2e_text(last, "text"), "are not both finite"));
    cr_assert_str_eq(e2e_text(last->prev, "event"), "error");
    cr_assert_str_eq(e2e_text(e2e_event("out", "finished", -1, -1, 0), "text"),
                     e2e_text(last, "text"));
    run = e2e_train("mlp.json", "out", E2E_ARGS("--json")); /* refused */
    cr_assert_eq(e2e_wait(&run), 2);
    lines = e2e_lines(run.out);
    cr_assert_eq(cJSON_GetArraySize(lines), 2);
    cr_assert_eq(e2e_number(cJSON_GetArrayItem(lines, 1), "exit_code"), 2);
}

/* A shell runs "funcpipe ARGS"; the exit code. */
static int shell(const char *format, ...) {
    char line[1024];
    va_list args;
    setenv("FUNCPIPE", FUNCPIPE_BINARY_DIR "/funcpipe", 1);
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    int status = system(line); /* NOLINT(cert-env33-c) */
    cr_assert(WIFEXITED(status), "%s: %d", line, status);
    return WEXITSTATUS(status);
}

/* A job is worth more than its lines. */
Test(cli_output, stdout_that_cannot_be_written, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    cr_assert_eq(shell("$FUNCPIPE train %s --set steps=60 --json --out a >/dev/full 2>err", job),
                 1);
    const char *err = e2e_read("err");
    cr_assert_eq(strncmp(err,
                         "funcpipe: warning: progress on stdout is lost, the job goes on: No "
                         "space",
                         68),
                 0, "%s", err);
    cr_assert_null(strstr(strchr(err, '\n') + 1, "\n"), "%s", err);
    e2e_check_rows("a", 60);
    cr_assert_eq(shell("$FUNCPIPE train %s --set steps=60 --out b >/dev/full 2>err", job), 0);
    cr_assert(strstr(e2e_read("err"), "\nfuncpipe: writing to stdout: No space"));
    e2e_check_rows("b", 60);
    cr_assert_eq(
        shell("{ $FUNCPIPE train %s --set steps=400 --json --out c 2>err; echo $? >code; } "
              "| head -n 1 >line",
              job),
        0);
    cr_assert_str_eq(e2e_read("code"), "0\n");
    cr_assert_str_eq(e2e_read("err"), "");
    e2e_check_rows("c", 400);
    cr_assert_eq(shell("{ $FUNCPIPE plan %s 2>err; echo $? >code; } | true", job), 0);
    cr_assert_str_eq(e2e_read("err"), "");
}

/* Errors are JSON too, beside the words for people. */
Test(cli_output, json_errors, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    const cJSON *error = run_json(E2E_ARGS("train", job, "--json", "--set", "batch=0"), 2);
    cr_assert_str_eq(e2e_text(error, "event"), "error");
    cr_assert_str_eq(e2e_text(error, "code"), "ERR_ARGUMENT");
    cr_assert(strstr(e2e_text(error, "text"), "$.batch"));
    error = run_json(E2E_ARGS("plan", job, "--json", "--set", "plan.cut=null", "--set",
                              "plan.replicas=null", "--set", "plan.stages=9"),
                     4);
    cr_assert_str_eq(e2e_text(error, "code"), "ERR_INFEASIBLE");
    error = run_json(E2E_ARGS("trian", job, "--json"), 2);
    cr_assert(strstr(e2e_text(error, "text"), "did you mean 'train'?"));
    error = run_json(E2E_ARGS("diff", "none", "neither", "--json"), 2);
    cr_assert_str_eq(e2e_text(error, "code"), "ERR_NOT_FOUND");
}

Test(cli_output, one_of_a_kind, .init = e2e_enter, .fini = e2e_leave) {
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), "out", E2E_ARGS("--set", "steps=1"));
    cr_assert_eq(e2e_wait(&run), 0);
    cr_assert(strstr(e2e_read(run.out), "done after 1 step, loss "), "%s", e2e_read(run.out));
    cr_assert(strstr(e2e_read(run.err), "evaluation after 1 step: "), "%s", e2e_read(run.err));
}

/* ---- traces ---- */

typedef struct TraceSeen {
    bool named[4], forward[4], reduced[4], updated[4];
    double end_us[4][3]; /* by thread: where its last event ended */
    int64_t n_events, n_evaluated, n_dropped;
} TraceSeen;

static void see_event(const cJSON *event, TraceSeen *seen) {
    int pid = (int)e2e_number(event, "pid");
    int tid = (int)e2e_number(event, "tid");
    const char *name = e2e_text(event, "name");
    cr_assert(pid >= 0 && pid < 4 && tid >= 0 && tid < 3, "pid %d, tid %d", pid, tid);
    if (strcmp(e2e_text(event, "ph"), "M") == 0) {
        if (strcmp(name, "process_name") == 0) {
            seen->named[pid] = true;
            seen->n_dropped += (int64_t)e2e_number(member(event, "args"), "dropped");
        }
        return;
    }
    if (strcmp(e2e_text(event, "ph"), "C") == 0) {
        cr_assert_geq(e2e_number(cJSON_GetObjectItem(event, "args"), "puts"), 0);
        return;
    }
    cr_assert_str_eq(e2e_text(event, "ph"), "X");
    double start = e2e_number(event, "ts");
    cr_assert_geq(e2e_number(event, "dur"), 0);
    cr_assert_geq(start, seen->end_us[pid][tid] - 0.01, "%s of %d.%d begins at %f, before %f", name,
                  pid, tid, start, seen->end_us[pid][tid]);
    seen->end_us[pid][tid] = start + e2e_number(event, "dur");
    cr_assert_geq(e2e_number(member(event, "args"), "step"), 0);
    seen->forward[pid] = seen->forward[pid] || strchr(name, 'F') != NULL;
    seen->reduced[pid] = seen->reduced[pid] || strchr(name, 'R') != NULL;
    seen->updated[pid] = seen->updated[pid] || strchr(name, 'U') != NULL;
    seen->n_events++;
    if (cJSON_GetObjectItem(event, "cat")) {
        cr_assert_str_eq(e2e_text(event, "cat"), "eval");
        cr_assert_eq((int)e2e_number(member(event, "args"), "step") % EVERY, 0);
        cr_assert_lt(e2e_number(member(event, "args"), "batch"), EVAL_BATCHES);
        seen->n_evaluated++;
    }
}

static int words(const char *text) {
    int n = text[0] != '\0';
    for (; *text; text++)
        n += *text == ' ';
    return n;
}

/* As many as the programs have, in every step and every evaluation's batch. */
static void count_instructions(const char *out, TraceSeen *expected) {
    cJSON *plan = NULL;
    const cJSON *worker = NULL;
    *expected = (TraceSeen){0};
    cr_assert_eq(json_parse_file(e2e_path("%s/plan.json", out), 1 << 20, &plan), 0);
    cJSON_ArrayForEach(worker, member(plan, "workers")) {
        expected->n_events += STEPS * words(e2e_text(worker, "program"));
        expected->n_evaluated +=
            STEPS / EVERY * EVAL_BATCHES * words(e2e_text(worker, "eval_program"));
    }
    expected->n_events += expected->n_evaluated;
    cJSON_Delete(plan);
}

static TraceSeen check_trace(const char *path) {
    cJSON *root = NULL;
    TraceSeen seen = {0};
    cr_assert_eq(json_parse_file(path, (size_t)64 << 20, &root), 0, "%s", err_text());
    const cJSON *event = NULL;
    cJSON_ArrayForEach(event, member(root, "traceEvents")) {
        see_event(event, &seen);
    }
    for (int worker = 0; worker < 4; worker++)
        cr_assert(seen.named[worker] && seen.forward[worker] && seen.reduced[worker] &&
                      seen.updated[worker],
                  "worker %d is not wholly in it", worker);
    cJSON_Delete(root);
    return seen;
}

Test(cli_output, trace, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "out", E2E_ARGS(SHORT, "--trace"));
    TraceSeen seen = check_trace("out/trace.json");
    TraceSeen expected;
    count_instructions("out", &expected);
    cr_assert_eq(seen.n_events, expected.n_events, "%lld events, not %lld",
                 (long long)seen.n_events, (long long)expected.n_events);
    cr_assert_eq(seen.n_evaluated, expected.n_evaluated, "%lld of evaluation, not %lld",
                 (long long)seen.n_evaluated, (long long)expected.n_evaluated);
    cr_assert_gt(seen.n_evaluated, 0);
    cr_assert_eq(seen.n_dropped, 0);
    cr_assert_eq(e2e_files_in("out/logs"), 4, "the workers' traces are left");
    e2e_train_fully(job, "plain", E2E_ARGS(SHORT));
    e2e_check_equal("plain", "out", STEPS);
    cr_assert_eq(access("plain/trace.json", F_OK), -1);
}

/* The newest attempt's events are in it when a worker was killed. */
Test(cli_output, trace_with_a_death, .init = e2e_enter, .fini = e2e_leave) {
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), "out", E2E_ARGS("--set", "steps=200", "--trace"));
    cr_assert(e2e_await_rows(&run, "out", 50));
    kill(e2e_worker("out", 1, 1), SIGKILL);
    cr_assert_eq(e2e_wait(&run), 0);
    cr_assert_geq(check_trace("out/trace.json").n_events, 1000);
}

/* What an attempt did that ended by an error is in it. */
Test(cli_output, trace_of_a_failure, .init = e2e_enter, .fini = e2e_leave) {
    E2e run = e2e_train(e2e_job("mlp", e2e_mlp), "out",
                        E2E_ARGS("--set", "update.lr=1e9", "--set", "update.on_nonfinite=stop",
                                 "--set", "update.schedule=null", "--trace"));
    cr_assert_eq(e2e_wait(&run), 5, "%s", e2e_read(run.err));
    cJSON *root = NULL;
    const cJSON *event = NULL;
    int n_reduced = 0;
    cr_assert_eq(json_parse_file("out/trace.json", (size_t)1 << 20, &root), 0, "%s", err_text());
    cJSON_ArrayForEach(event, member(root, "traceEvents")) {
        n_reduced += strcmp(e2e_text(event, "name"), "R") == 0;
    }
    cJSON_Delete(root);
    cr_assert_gt(n_reduced, 0);
}

/* ---- the other commands ---- */

Test(cli_output, plan, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    const char *text = run_text(E2E_ARGS("plan", job), 0);
    cr_assert(strstr(text, "model mlp: 6 layers in 3 stages, cut as given; 4 workers"), "%s", text);
    cr_assert(strstr(text, "  2.0: <a0 "), "%s", text);
    const cJSON *plan = run_json(E2E_ARGS("plan", job, "--json"), 0);
    cr_assert_eq(cJSON_GetArraySize(member(plan, "workers")), 4);
    plan = run_json(E2E_ARGS("plan", job, "--json", "--set", "plan={\"stages\":2}"), 0);
    cr_assert_eq(cJSON_GetArraySize(member(plan, "workers")), 2);
    cr_assert(strstr(run_text(E2E_ARGS("plan", "none.json"), 2), "none.json"));
    cr_assert_eq(e2e_scratch_folders(getpid()), 0);
    cr_assert_eq(access("funcpipe-out", F_OK), -1, "planning made outputs");
}

Test(cli_output, model_inspect, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    const char *text = run_text(E2E_ARGS("model", "inspect", job), 0);
    cr_assert(strstr(text, "6 layers, 1732 parameters"), "%s", text);
    const cJSON *model = run_json(E2E_ARGS("model", "inspect", job, "--json"), 0);
    cr_assert_eq(e2e_number(model, "parameters"), 1732);
    cr_assert_eq(cJSON_GetArraySize(member(model, "layers")), 6);
    cr_assert(strstr(run_text(E2E_ARGS("model", "inspetc", job), 2), "expected 'inspect'"));
}

Test(cli_output, diff, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "a", E2E_ARGS("--set", "steps=20"));
    const char *a = e2e_checkpoint("a", 10);
    const char *b = e2e_checkpoint("a", 20);
    const char *same = run_text(E2E_ARGS("diff", a, a), 0);
    cr_assert(strstr(same, "= fc1.weight\n") && strstr(same, "= fc1.weight.momentum\n"), "%s",
              same);
    cr_assert(strstr(same, "\n12 tensors: 12 equal, 0 with other"), "%s", same);
    cr_assert(strstr(run_text(E2E_ARGS("diff", a, b), 1), "12 tensors: 0 equal, 12 with other"));
    cr_assert(cJSON_IsTrue(member(run_json(E2E_ARGS("diff", a, a, "--json"), 0), "equal")));
    const cJSON *diff = run_json(E2E_ARGS("diff", a, b, "--json"), 1);
    cr_assert(cJSON_IsFalse(member(diff, "equal")));
    cr_assert_eq(cJSON_GetArraySize(member(diff, "tensors")), 12);
    run_text(E2E_ARGS("diff", a), 2);
    run_text(E2E_ARGS("diff", a, "a/checkpoints/none"), 2);
    cr_assert_eq(truncate(e2e_path("a/checkpoints/20/model-00001-of-00003.safetensors"), 100), 0);
    cr_assert(strstr(run_text(E2E_ARGS("diff", a, b), 2), "model-00001-of-00003.safetensors"));
}

Test(cli_output, version_and_help, .init = e2e_enter, .fini = e2e_leave) {
    static const char *const commands[] = {"train", "eval", "plan",   "model",
                                           "diff",  "gc",   "doctor", "version"};
    E2e run;
    cr_assert_eq(strncmp(run_text(E2E_ARGS("version"), 0), "funcpipe ", 9), 0);
    cr_assert_str_neq(e2e_text(run_json(E2E_ARGS("version", "--json"), 0), "version"), "");
    for (int i = 0; i < 8; i++) {
        const char *text = run_text(E2E_ARGS(commands[i], "--help"), 0);
        cr_assert_eq(strncmp(text, "usage: funcpipe ", 16), 0, "%s", text);
        cr_assert(strstr(run_text(E2E_ARGS("--help"), 0), commands[i]));
    }
    cr_assert_eq(e2e_run(&run, E2E_ARGS(NULL)), 2);
    cr_assert(strstr(run_text(E2E_ARGS("trian"), 2), "did you mean 'train'?"));
    cr_assert(strstr(run_text(E2E_ARGS("train", "--ouy", "x"), 2), "did you mean '--out'?"));
}

/* ---- evaluation ---- */

static void check_figures(const cJSON *figures, const char *out, int64_t step) {
    const cJSON *rows = e2e_lines(e2e_path("%s/metrics.jsonl", out));
    const cJSON *row = cJSON_GetArrayItem(rows, (int)step - 1);
    cr_assert_eq(e2e_number(figures, "loss"), e2e_number(row, "eval_loss"), "%s: %.17g, not %.17g",
                 out, e2e_number(figures, "loss"), e2e_number(row, "eval_loss"));
    cr_assert_eq(e2e_number(figures, "accuracy"), e2e_number(row, "eval_accuracy"));
    cr_assert_eq(e2e_number(figures, "step"), (double)step);
}

/* What eval says of a checkpoint is what the training said, under every plan. */
static void check_evaluations(const char *job, const char *const *more, double samples) {
    const char *plans[] = {"plan={\"stages\":3}", "plan={\"stages\":1}"};
    for (int i = 0; i < 2; i++) {
        const char *out = i == 0 ? "three" : "one";
        const char *all[] = {SHORT, "--set", plans[i], "--set", more[0], NULL};
        e2e_train_fully(job, out, all);
        const cJSON *figures = run_json(E2E_ARGS("eval", out, "--json"), 0);
        check_figures(figures, out, 80);
        cr_assert_eq(e2e_number(figures, "samples"), samples);
        figures = run_json(E2E_ARGS("eval", e2e_checkpoint(out, 70), "--json"), 0);
        check_figures(figures, out, 70);
    }
    e2e_check_same_rows("three", "one", 0, 80);
}

#define EVERY_10 "evaluate.every_steps=10"

Test(cli_output, eval_mlp, .init = e2e_enter, .fini = e2e_leave) {
    check_evaluations(e2e_job("mlp", e2e_mlp), (const char *const[]){EVERY_10}, 90);
    const char *text = run_text(E2E_ARGS("eval", "one"), 0);
    cr_assert(strstr(text, "(90 samples, after 80 steps)"), "%s", text);
    const cJSON *figures =
        run_json(E2E_ARGS("eval", "one", "--json", "--set", "evaluate.samples=33"), 0);
    cr_assert_eq(e2e_number(figures, "samples"), 33);
    run_text(E2E_ARGS("eval", "nowhere"), 2);
    run_text(E2E_ARGS("eval", "one", "--job", "none.json"), 2);
    cr_assert(strstr(
        run_text(E2E_ARGS("eval", "one", "--set", "data.eval=null", "--set", "evaluate=null"), 2),
        "no evaluation data; give some"));
    const char *note =
        run_text(E2E_ARGS("eval", "one/checkpoints/80", "--set", "data.eval=null"), 2);
    cr_assert(strstr(note, "one/job.json") && !strstr(note, ".."), "%s", note);
    cr_assert(strstr(note, "evaluate=null"), "%s", note);
    note = run_text(E2E_ARGS("train", e2e_job("mlp", e2e_mlp), "--resume", "one/checkpoints/80",
                             "--out", "shorter", "--set", "steps=20"),
                    2);
    cr_assert(strstr(note, "stands at step 80, beyond the job's end (20)"), "%s", note);
}

Test(cli_output, eval_cnn, .init = e2e_enter, .fini = e2e_leave) {
    check_evaluations(e2e_job("cnn", e2e_cnn), (const char *const[]){EVERY_10}, 40);
}

Test(cli_output, eval_gpt, .init = e2e_enter, .fini = e2e_leave) {
    check_evaluations(e2e_job("gpt", e2e_gpt), (const char *const[]){EVERY_10}, 24);
}

/* ---- files ---- */

static bool there(const char *name) {
    struct stat about;
    return stat(name, &about) == 0 && about.st_size > 0;
}

/* All that README.md lists; and the resolved job gives the same run again, from anywhere. */
Test(cli_output, outputs, .init = e2e_enter, .fini = e2e_leave) {
    static const char *const names[] = {"job.json",      "plan.json",    "metrics.csv",
                                        "metrics.jsonl", "events.jsonl", "logs/worker-0.0.1.log",
                                        "checkpoints/80"};
    static const char *const files[] = {"manifest.json", "model.safetensors.index.json",
                                        "model-00001-of-00003.safetensors",
                                        "update-00003-of-00003.safetensors"};
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "out", E2E_ARGS(SHORT));
    for (int i = 0; i < 7; i++)
        cr_assert(there(e2e_path("out/%s", names[i])), "%s", names[i]);
    for (int i = 0; i < 4; i++)
        cr_assert(there(e2e_path("out/checkpoints/80/%s", files[i])), "%s", files[i]);
    cr_assert_eq(mkdir("elsewhere", 0755), 0);
    cr_assert_eq(chdir("elsewhere"), 0);
    e2e_train_fully("../out/job.json", "../again", NULL);
    cr_assert_eq(chdir(".."), 0);
    e2e_check_equal("out", "again", STEPS);
    e2e_check_same_rows("out", "again", 0, STEPS);
    cr_assert_str_eq(e2e_read("out/plan.json"), e2e_read("again/plan.json"));
    cr_assert_str_eq(e2e_read("out/job.json"), e2e_read("again/job.json"));
}

/* Paths in a job file are relative to the file, --out to the current folder. */
Test(cli_output, from_another_folder, .init = e2e_enter, .fini = e2e_leave) {
    cr_assert(mkdir("jobs", 0755) == 0 && mkdir("here", 0755) == 0);
    e2e_write("jobs/mlp.json", e2e_mlp);
    cr_assert_eq(chdir("here"), 0);
    E2e run;
    cr_assert_eq(
        e2e_run(&run, E2E_ARGS("train", "../jobs/mlp.json", SHORT, "--set", "relay=file://store")),
        0, "%s", e2e_read(run.err));
    cr_assert(there("funcpipe-out/mlp/job.json"));
    cr_assert(strstr(e2e_read("funcpipe-out/mlp/job.json"), "/jobs/store\""));
    run_text(E2E_ARGS("eval", "funcpipe-out/mlp"), 0);
    cr_assert_eq(chdir("/"), 0);
    run_text(E2E_ARGS("eval", e2e_path("here/funcpipe-out/mlp/checkpoints/80")), 0);
}

/* Outputs that are there are neither mixed nor lost by mistake. */
Test(cli_output, overwrite, .init = e2e_enter, .fini = e2e_leave) {
    const char *job = e2e_job("mlp", e2e_mlp);
    e2e_train_fully(job, "out", E2E_ARGS("--set", "steps=20"));
    const char *before = e2e_read("out/metrics.csv");
    E2e run = e2e_train(job, "out", E2E_ARGS("--set", "steps=20"));
    cr_assert_eq(e2e_wait(&run), 2);
    cr_assert_str_eq(e2e_read("out/metrics.csv"), before);
    e2e_write("out/notes.txt", "mine");
    run = e2e_train(job, "out", E2E_ARGS("--set", "steps=10", "--overwrite"));
    cr_assert_eq(e2e_wait(&run), 2, "something of somebody's own is in there");
    cr_assert_str_eq(e2e_read("out/metrics.csv"), before);
    cr_assert_eq(remove("out/notes.txt"), 0);
    e2e_train_fully(job, "out", E2E_ARGS("--set", "steps=10", "--overwrite"));
    e2e_check_rows("out", 10);
    cr_assert_eq(access("out/checkpoints/20", F_OK), -1);
    cr_assert_eq(mkdir("mine", 0755), 0);
    e2e_write("mine/notes.txt", "mine");
    run = e2e_train(job, "mine", E2E_ARGS("--overwrite"));
    cr_assert_eq(e2e_wait(&run), 2, "a folder that is none of ours was overwritten");
    cr_assert_str_eq(e2e_read("mine/notes.txt"), "mine");
}

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "coordinator/outputs.h"
#include "core/err.h"
#include "tests/support/temp_folder.h"

TestSuite(outputs, .init = temp_enter, .fini = temp_leave);

static int open_in(const char *folder, OutputsMode mode, int64_t resume_step,
                   Outputs **out_outputs) {
    return outputs_open(folder,
                        &(OutputsStart){.job = "job", .mode = mode, .resume_step = resume_step},
                        out_outputs);
}

static Outputs *open_mode(OutputsMode mode, int64_t resume_step) {
    Outputs *outputs = NULL;
    cr_assert_eq(open_in(temp_path("a/b/out"), mode, resume_step, &outputs), 0, "%s", err_text());
    cr_assert_eq(outputs_begin(outputs), 0, "%s", err_text());
    return outputs;
}

static const char *text_of(const char *name) {
    static Buf text;
    char path[256];
    snprintf(path, sizeof path, "%s/a/b/out/%s", temp_folder, name);
    buf_clear(&text);
    cr_assert_geq(buf_read_file(&text, path, 1 << 20), 0, "%s", err_text());
    return buf_string(&text);
}

static void row(Outputs *outputs, int64_t step, bool wants_eval) {
    MetricsRow metrics = {
        .step = step,
        .epoch = step / 4,
        .wall_ms = 1000 * step,
        .loss = 1.5,
        .lr = 0.1,
        .grad_norm = 2,
        .samples_per_s = 10,
        .traffic = {.puts = 3, .put_bytes = 3000, .get_bytes = 2000, .retries = 7},
        .wants_eval = wants_eval};
    cr_assert_eq(outputs_row(outputs, &metrics), 0, "%s", err_text());
}

static int count_lines(const char *text) {
    int n = 0;
    for (; *text; text++)
        n += *text == '\n';
    return n;
}

/* This process's descriptor of an open file. */
static int fd_of(const char *path) {
    struct stat wanted;
    struct stat there;
    cr_assert_eq(stat(path, &wanted), 0, "%s", path);
    for (int fd = 3; fd < 64; fd++) {
        if (fstat(fd, &there) == 0 && there.st_ino == wanted.st_ino &&
            there.st_dev == wanted.st_dev)
            return fd;
    }
    return -1;
}

Test(outputs, rows_wait_for_their_evaluation) {
    Outputs *outputs = open_mode(OUTPUTS_NEW, 0);
    row(outputs, 0, false);
    row(outputs, 1, true);
    row(outputs, 2, false);
    row(outputs, 3, true);
    cr_expect_eq(count_lines(text_of("metrics.csv")), 2, "the head and step 0");
    cr_assert_eq(outputs_evaluation(outputs, 3, 0.25, 0.5), 0);
    cr_expect_eq(count_lines(text_of("metrics.csv")), 2);
    cr_assert_eq(outputs_evaluation(outputs, 1, 0.75, 0.125), 0);
    const char *text = text_of("metrics.csv");
    cr_expect_eq(count_lines(text), 5);
    cr_expect(strstr(text, "\n1,0,1970-01-01T00:00:01"), "of the step, not of the writing: %s",
              text);
    cr_expect(strstr(text, ",0.75,0.125,0,3,0,0,3000,2000,0,0,0,0,7,0,0,0,0,0,0,0,0,0,0\n2,0,"));
    cr_expect(strstr(text, ",10.0,,,0,3,0,0,3000,2000,0,0,0,0,7,0,0,0,0,0,0,0,0,0,0\n3,"));
    cr_expect_eq(count_lines(text_of("metrics.jsonl")), 4);
    cr_expect(strstr(text_of("metrics.jsonl"), "\"eval_loss\":0.75,\"eval_accuracy\":0.125"));
    cr_expect(
        strstr(text_of("metrics.jsonl"),
               ",\"put_bytes\":3000,\"get_bytes\":2000,\"add_bytes\":0,\"waits\":0,"
               "\"waited_us\":0,\"duplicates\":0,\"retries\":7,\"notes\":0,\"drops\":0,"
               "\"requests\":0,\"read_requests\":0,\"write_requests\":0,"
               "\"add_requests\":0,\"note_requests\":0,\"look_requests\":0,\"drop_requests\":0,"
               "\"announce_requests\":0}\n"));
    outputs_close(outputs);
}

Test(outputs, an_end_writes_the_rows_that_wait) {
    Outputs *outputs = open_mode(OUTPUTS_NEW, 0);
    row(outputs, 0, true);
    row(outputs, 1, false);
    outputs_close(outputs);
    cr_expect_eq(count_lines(text_of("metrics.csv")), 3);
}

Test(outputs, numbers_that_are_none) {
    Outputs *outputs = open_mode(OUTPUTS_NEW, 0);
    MetricsRow metrics = {.loss = NAN, .lr = 0.1, .grad_norm = INFINITY};
    cr_assert_eq(outputs_row(outputs, &metrics), 0);
    cr_expect(strstr(text_of("metrics.csv"), ",nan,0.1,nan,"));
    cr_expect(strstr(text_of("metrics.jsonl"), "\"loss\":null,\"lr\":0.1,\"grad_norm\":null"));
    outputs_close(outputs);
}

Test(outputs, a_resume_cuts_the_rows_that_come_again) {
    Outputs *outputs = open_mode(OUTPUTS_NEW, 0);
    for (int64_t step = 0; step < 12; step++)
        row(outputs, step, false);
    outputs_close(outputs);
    FILE *half = fopen(temp_path("a/b/out/metrics.csv"), "a"); /* as a kill leaves it */
    fputs("12,3,20", half);
    fclose(half);
    outputs = open_mode(OUTPUTS_RESUME, 10);
    row(outputs, 10, false);
    outputs_close(outputs);
    const char *text = text_of("metrics.csv");
    cr_expect_eq(count_lines(text), 12);
    cr_expect(strstr(text, "step,epoch,") == text);
    cr_expect(strstr(text, "\n9,"));
    cr_expect_null(strstr(text, "\n11,"));
    cr_expect_eq(count_lines(text_of("metrics.jsonl")), 11);
}

/* The rows of a long run; what comes behind the cut is not even read. */
Test(outputs, a_resume_cuts_metrics_of_any_size) {
    Outputs *outputs = open_mode(OUTPUTS_NEW, 0);
    for (int64_t step = 0; step < 12; step++)
        row(outputs, step, false);
    outputs_close(outputs);
    cr_assert_eq(truncate(temp_path("a/b/out/metrics.csv"), (off_t)3 << 30), 0);
    outputs = open_mode(OUTPUTS_RESUME, 10);
    row(outputs, 10, false);
    cr_assert_eq(outputs_cut(outputs, 9), 0, "%s", err_text());
    row(outputs, 9, false);
    outputs_close(outputs);
    cr_expect_eq(count_lines(text_of("metrics.csv")), 11);
    cr_expect_eq(count_lines(text_of("metrics.jsonl")), 10);
}

Test(outputs, refuses_what_is_not_empty) {
    Outputs *outputs = open_mode(OUTPUTS_NEW, 0);
    outputs_close(outputs);
    cr_expect_eq(open_in(temp_path("a/b/out"), OUTPUTS_NEW, 0, &outputs), ERR_EXISTS);
    cr_expect(strstr(err_text(), "--resume latest"), "%s", err_text());
    outputs = open_mode(OUTPUTS_OVERWRITE, 0);
    outputs_close(outputs);
}

Test(outputs, are_one_runs_at_a_time) {
    OutputsLock lock;
    OutputsLock second;
    Outputs *outputs = NULL;
    char words[64];
    cr_expect_eq(outputs_lock(temp_path("none"), &lock), ERR_NOT_FOUND);
    cr_assert_eq(outputs_make_folder(temp_path("a/b/out")), 0, "%s", err_text());
    temp_write("a/b/out/" OUTPUTS_LOCK_NAME, "77\n", 3); /* as a killed run leaves it */
    cr_assert_eq(outputs_lock(temp_path("a/b/out"), &lock), 0, "%s", err_text());
    cr_assert_eq(outputs_lock(temp_path("a/b/out"), &second), ERR_EXISTS);
    snprintf(words, sizeof words, "another run (process %d) ", (int)getpid());
    cr_expect(strstr(err_text(), words) && strstr(err_text(), "a/b/out"), "%s", err_text());
    outputs = open_mode(OUTPUTS_NEW, 0); /* it counts as nothing in the folder */
    outputs_close(outputs);
    outputs = open_mode(OUTPUTS_OVERWRITE, 0);
    outputs_close(outputs);
    cr_expect_eq(outputs_lock(temp_path("a/b/out"), &second), ERR_EXISTS, "still held");
    outputs_unlock(&lock);
    outputs_unlock(&lock);
    cr_expect_lt(access(temp_path("a/b/out/" OUTPUTS_LOCK_NAME), F_OK), 0);
    cr_assert_eq(outputs_lock(temp_path("a/b/out"), &second), 0, "%s", err_text());
    outputs_unlock(&second);
}

Test(outputs, overwrites_only_what_is_a_jobs) {
    Outputs *outputs = NULL;
    mkdir(temp_path("mine"), 0777);
    temp_write("mine/letter.txt", "dear", 4);
    cr_expect_eq(open_in(temp_path("mine"), OUTPUTS_OVERWRITE, 0, &outputs), ERR_EXISTS);
    cr_expect_eq(access(temp_path("mine/letter.txt"), F_OK), 0);
    temp_write("mine/job.json", "{}", 2); /* that is not enough to be a job's */
    cr_expect_eq(open_in(temp_path("mine"), OUTPUTS_OVERWRITE, 0, &outputs), ERR_EXISTS);
    cr_expect_eq(access(temp_path("mine/job.json"), F_OK), 0);
    temp_write("mine/events.jsonl", "{\"what\":1}\n", 11); /* nor is anybody's file of that name */
    cr_expect_eq(open_in(temp_path("mine"), OUTPUTS_OVERWRITE, 0, &outputs), ERR_EXISTS);
    cr_expect(strstr(err_text(), "holds no job's outputs"), "%s", err_text());
}

/* A folder of outputs, with everything that runs leave in one. */
static void fill_outputs(void) {
    static const char *const folders[] = {"20", "30", "30.damaged-1"};
    static const char *const files[] = {"job.json",
                                        "plan.json",
                                        "trace.json",
                                        ".tmp-0123456789abcdef",
                                        "logs/worker-0.1.12.log",
                                        "logs/trace-2.0.1.json",
                                        "checkpoints/.tmp-00",
                                        "checkpoints/20/manifest.json",
                                        "checkpoints/20/model-00001-of-00001.safetensors",
                                        "checkpoints/30/update-00002-of-00003.safetensors",
                                        "checkpoints/30.damaged-1/.tmp-00ff"};
    char path[64];
    Outputs *outputs = open_mode(OUTPUTS_NEW, 0);
    cr_assert_eq(outputs_event(outputs, "plain", NULL, "%s", ""), 0);
    outputs_close(outputs);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "a/b/out/checkpoints/%s", folders[i]);
        mkdir(temp_path(path), 0777);
    }
    for (int i = 0; i < 11; i++) {
        snprintf(path, sizeof path, "a/b/out/%s", files[i]);
        temp_write(path, "x", 1);
    }
}

Test(outputs, overwriting_removes_all_that_runs_make) {
    fill_outputs();
    outputs_close(open_mode(OUTPUTS_OVERWRITE, 0));
    cr_expect_eq(temp_count(temp_path("a/b/out"), ""), 5, "two folders, three files");
    cr_expect_eq(temp_count(temp_path("a/b/out/logs"), ""), 0);
    cr_expect_eq(temp_count(temp_path("a/b/out/checkpoints"), ""), 0);
}

/* A job may fail after it has opened them, and before it runs. */
Test(outputs, change_nothing_before_they_begin) {
    static const char metrics[] = "step,epoch\n0,0\n6,0\n";
    static const OutputsMode modes[] = {OUTPUTS_OVERWRITE, OUTPUTS_RESUME};
    Outputs *outputs = NULL;
    cr_assert_eq(open_in(temp_path("a/b/out"), OUTPUTS_NEW, 0, &outputs), 0, "%s", err_text());
    cr_assert_eq(outputs_event(outputs, "early", NULL, "%s", ""), 0);
    outputs_close(outputs);
    cr_expect_eq(temp_count(temp_path("a/b/out"), ""), 0, "a new run may begin there");
    fill_outputs();
    temp_write("a/b/out/metrics.csv", metrics, sizeof metrics - 1);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(open_in(temp_path("a/b/out"), modes[i], 6, &outputs), 0, "%s", err_text());
        cr_assert_eq(outputs_event(outputs, "early", NULL, "%s", ""), 0);
        outputs_close(outputs);
        cr_expect_str_eq(text_of("metrics.csv"), metrics);
        cr_expect_str_eq(text_of("job.json"), "x");
        cr_expect_eq(temp_count(temp_path("a/b/out/checkpoints"), ""), 4);
        cr_expect_null(strstr(text_of("events.jsonl"), "early"));
    }
    cr_assert_eq(open_in(temp_path("a/b/out"), OUTPUTS_RESUME, 6, &outputs), 0, "%s", err_text());
    cr_assert_eq(outputs_event(outputs, "early", NULL, "%s", ""), 0);
    cr_assert_eq(outputs_begin(outputs), 0, "%s", err_text());
    cr_expect(strstr(text_of("events.jsonl"), "\"event\":\"early\""));
    cr_expect_eq(count_lines(text_of("metrics.csv")), 2);
    outputs_close(outputs);
}

/* What no run makes is somebody's own: it stays, and with it all the rest. */
Test(outputs, overwrites_nothing_beside_a_foreign_thing) {
    static const char *const foreign[] = {"notes.txt",
                                          "checkpoints/resnet50.pt",
                                          "checkpoints/20/extra.txt",
                                          "checkpoints/20.damaged-",
                                          "checkpoints/020",
                                          "logs/notes.txt",
                                          "logs/worker-0.1.log",
                                          "logs/worker-0.1.1.log.gz"};
    Outputs *outputs = NULL;
    char path[64];
    fill_outputs();
    for (int i = 0; i < 8; i++) {
        snprintf(path, sizeof path, "a/b/out/%s", foreign[i]);
        temp_write(path, "precious", 8);
        cr_expect_eq(open_in(temp_path("a/b/out"), OUTPUTS_OVERWRITE, 0, &outputs), ERR_EXISTS);
        cr_expect(strstr(err_text(), path), "%s: %s", path, err_text());
        cr_expect_eq(access(temp_path("a/b/out/checkpoints/20/manifest.json"), F_OK), 0);
        cr_expect_eq(access(temp_path("a/b/out/job.json"), F_OK), 0);
        cr_assert_eq(remove(temp_path(path)), 0);
    }
    mkdir(temp_path("away"), 0777);
    temp_write("away/worker-0.0.1.log", "precious", 8);
    cr_assert_eq(rename(temp_path("a/b/out/logs"), temp_path("logs")), 0);
    cr_assert_eq(symlink(temp_path("away"), temp_path("a/b/out/logs")), 0);
    cr_expect_eq(open_in(temp_path("a/b/out"), OUTPUTS_OVERWRITE, 0, &outputs), ERR_EXISTS);
    cr_expect_eq(access(temp_path("away/worker-0.0.1.log"), F_OK), 0, "no run makes links");
}

Test(outputs, never_replace_the_job_file_that_was_given) {
    Outputs *outputs = NULL;
    fill_outputs();
    cr_assert_eq(symlink(temp_path("a/b/out/job.json"), temp_path("job")), 0);
    static const OutputsMode modes[] = {OUTPUTS_NEW, OUTPUTS_OVERWRITE, OUTPUTS_RESUME};
    for (int i = 0; i < 3; i++) {
        if (modes[i] == OUTPUTS_RESUME) /* what is marked may be gone on in by its own job.json */
            cr_assert_eq(unlink(temp_path("a/b/out/events.jsonl")), 0);
        OutputsStart start = {
            .job = "job", .mode = modes[i], .resume_step = 20, .job_file = temp_path("job")};
        cr_expect_eq(outputs_open(temp_path("a/b/out"), &start, &outputs), ERR_EXISTS);
        cr_expect(strstr(err_text(), "a/b/out/job.json' lies where"), "%s", err_text());
    }
    cr_expect_str_eq(text_of("job.json"), "x");
    cr_expect_eq(access(temp_path("a/b/out/checkpoints/30"), F_OK), 0);
}

/* Rows and checkpoints of two runs are not mixed. */
Test(outputs, goes_on_only_from_its_own_checkpoint) {
    static const char metrics[] = "step,epoch\n0,0\n6,0\n";
    char own[256];
    OutputsStart start = {.job = "job", .mode = OUTPUTS_RESUME, .resume_step = 6};
    Outputs *outputs = NULL;
    outputs_close(open_mode(OUTPUTS_NEW, 0));
    snprintf(own, sizeof own, "%s/6", temp_path("a/b/out/checkpoints"));
    temp_write("a/b/out/metrics.csv", metrics, sizeof metrics - 1);
    start.from = temp_path("a/b/out2/checkpoints/6");
    cr_expect_eq(outputs_open(temp_path("a/b/out"), &start, &outputs), ERR_EXISTS);
    cr_expect(strstr(err_text(), "a/b/out2/checkpoints/6': choose another --out"), "%s",
              err_text());
    cr_expect_str_eq(text_of("metrics.csv"), metrics, "nothing was touched");
    start.from = own;
    cr_assert_eq(outputs_open(temp_path("a/b/out"), &start, &outputs), 0, "%s", err_text());
    cr_assert_eq(outputs_begin(outputs), 0, "%s", err_text());
    outputs_close(outputs);
    cr_expect_eq(count_lines(text_of("metrics.csv")), 2, "rows beyond the checkpoint are cut");
    start.mode = OUTPUTS_OVERWRITE;
    cr_expect_eq(outputs_open(temp_path("a/b/out"), &start, &outputs), ERR_ARGUMENT);
    cr_expect(strstr(err_text(), "would remove checkpoint"), "%s", err_text());
    start.from = temp_path("a/b/out2/checkpoints/6");
    cr_assert_eq(outputs_open(temp_path("a/b/out"), &start, &outputs), 0, "%s", err_text());
    cr_assert_eq(outputs_begin(outputs), 0, "%s", err_text());
    outputs_close(outputs);
    cr_expect_eq(count_lines(text_of("metrics.csv")), 1);
}

/* A resume cleans checkpoints: never in a folder that was somebody's own before. */
Test(outputs, resumes_only_in_what_is_the_jobs) {
    static const char other[] = "{\"name\":\"other\"}";
    static const char same[] = "{\"name\":\"job\"}";
    Outputs *outputs = NULL;
    mkdir(temp_path("mine"), 0777);
    mkdir(temp_path("mine/checkpoints"), 0777);
    mkdir(temp_path("mine/checkpoints/7"), 0777);
    cr_expect_eq(open_in(temp_path("mine"), OUTPUTS_RESUME, 70, &outputs), ERR_EXISTS);
    cr_expect(strstr(err_text(), "holds no job's outputs"), "%s", err_text());
    cr_expect_lt(access(temp_path("mine/logs"), F_OK), 0, "nothing is made there");
    outputs_close(open_mode(OUTPUTS_RESUME, 70)); /* an empty one will do */
    outputs_close(open_mode(OUTPUTS_RESUME, 70));
    temp_write("a/b/out/job.json", other, sizeof other - 1);
    cr_expect_eq(open_in(temp_path("a/b/out"), OUTPUTS_RESUME, 70, &outputs), ERR_EXISTS);
    cr_expect(strstr(err_text(), "of job 'other', not of 'job'"), "%s", err_text());
    temp_write("a/b/out/job.json", same, sizeof same - 1);
    outputs_close(open_mode(OUTPUTS_RESUME, 70));
    temp_write("a/b/out/job.json", same, 4); /* half of it says nothing */
    outputs_close(open_mode(OUTPUTS_RESUME, 70));
}

Test(outputs, events_are_json_whatever_their_text) {
    Outputs *outputs = open_mode(OUTPUTS_NEW, 0);
    cr_assert_eq(outputs_event(outputs, "plain", NULL, "%s", ""), 0);
    cr_assert_eq(outputs_event(outputs, "worker_died", "say \"no\"\n\tand\\or", "\"step\":%d", 3),
                 0);
    const char *text = text_of("events.jsonl");
    cr_expect_eq(count_lines(text), 2);
    const char *second = strchr(text, '\n') + 1;
    cJSON *root = NULL;
    cr_assert_eq(json_parse("line", second, strlen(second), 1 << 16, &root), 0, "%s", err_text());
    cr_expect_str_eq(cJSON_GetObjectItem(root, "text")->valuestring, "say \"no\"\n\tand\\or");
    cr_expect_float_eq(cJSON_GetObjectItem(root, "step")->valuedouble, 3, 0);
    cJSON_Delete(root);
    outputs_close(outputs);
}

Test(outputs, a_full_disk_names_the_file) {
    static const char *const names[] = {"events.jsonl", "metrics.csv", "metrics.jsonl"};
    char path[64];
    char words[128];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "a/b/out/%s", names[i]);
        Outputs *outputs = open_mode(i == 0 ? OUTPUTS_NEW : OUTPUTS_RESUME, 0);
        int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
        int fd = fd_of(temp_path(path));
        cr_assert(full >= 0 && fd >= 0 && dup2(full, fd) == fd);
        MetricsRow metrics = {.loss = 1};
        int rc = i == 0 ? outputs_event(outputs, "plain", NULL, "%s", "")
                        : outputs_row(outputs, &metrics);
        snprintf(words, sizeof words, "writing '%s': ", temp_path(path));
        cr_expect_eq(rc, ERR_FULL);
        cr_expect(strstr(err_text(), words), "%s", err_text());
        outputs_close(outputs);
        close(full);
    }
}

/* A part of a line still fits: it does not stay, to be joined to the next one. */
Test(outputs, a_line_that_does_not_fit_leaves_nothing) {
    struct rlimit limit;
    Outputs *outputs = open_mode(OUTPUTS_NEW, 0);
    cr_assert_eq(outputs_event(outputs, "first", NULL, "%s", ""), 0);
    char before[256];
    snprintf(before, sizeof before, "%s", text_of("events.jsonl"));
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    struct rlimit small = {.rlim_cur = strlen(before) + 9, .rlim_max = limit.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = outputs_event(outputs, "second", NULL, "%s", "");
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_expect_eq(rc, ERR_FULL, "%s", err_text());
    cr_expect_str_eq(text_of("events.jsonl"), before);
    outputs_close(outputs);
}

/* A run that was killed has left one: it is not the next one's. */
Test(outputs, traces_are_merged) {
    Outputs *outputs = NULL;
    outputs_close(open_mode(OUTPUTS_NEW, 0));
    temp_write("a/b/out/logs/trace-3.0.1.json", "{\"traceEvents\":[{\"d\":4}]}", 25);
    outputs = open_mode(OUTPUTS_RESUME, 0);
    static const char one[] = "{\"traceEvents\":[\n{\"a\":[1]},\n{\"b\":2}\n]}\n";
    static const char none[] = "{\"traceEvents\":[]}";
    static const char two[] = "{\"traceEvents\":[{\"c\":3}]}";
    temp_write("a/b/out/logs/trace-0.0.1.json", one, sizeof one - 1);
    temp_write("a/b/out/logs/trace-1.0.1.json", none, sizeof none - 1);
    temp_write("a/b/out/logs/trace-2.0.1.json", two, sizeof two - 1);
    cr_assert_eq(outputs_merge_traces(outputs), 0, "%s", err_text());
    cJSON *root = NULL;
    cr_assert_eq(json_parse_file(temp_path("a/b/out/trace.json"), 1 << 16, &root), 0, "%s",
                 err_text());
    cr_expect_eq(cJSON_GetArraySize(cJSON_GetObjectItem(root, "traceEvents")), 3);
    cJSON_Delete(root);
    cr_expect_eq(temp_count(outputs_logs(outputs), "trace-"), 0);
    outputs_close(outputs);
}

Test(outputs, a_tree_is_removed_without_following_links) {
    mkdir(temp_path("tree"), 0777);
    mkdir(temp_path("tree/in"), 0777);
    temp_write("tree/in/file", "x", 1);
    temp_write("outside", "x", 1);
    cr_assert_eq(symlink(temp_path("outside"), temp_path("tree/link")), 0);
    cr_assert_eq(outputs_remove_tree(temp_path("tree")), 0, "%s", err_text());
    cr_expect_lt(access(temp_path("tree"), F_OK), 0);
    cr_expect_eq(access(temp_path("outside"), F_OK), 0);
    cr_expect_eq(outputs_remove_tree(temp_path("tree")), 0, "none is no error");
}

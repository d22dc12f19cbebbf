/* The command line, in a child process: what it prints and the exit code. */
#include <stdarg.h>
#include <sys/wait.h>

#include "coordinator/cli.h"
#include "coordinator/job.h"
#include "core/json.h"
#include "tests/support/temp_folder.h"

TestSuite(cli, .init = temp_enter, .fini = temp_leave);

static const char *stdout_path; /* NULL: a file of the test */
static char printed[1 << 16], complained[1 << 16];

static void read_all(const char *name, char *text, size_t bytes) {
    FILE *file = fopen(temp_path(name), "rb");
    size_t n = file ? fread(text, 1, bytes - 1, file) : 0;
    text[n] = '\0';
    if (file)
        fclose(file);
}

/* Run "funcpipe ..." (the last argument NULL) and return its exit code. */
static int run(const char *first, ...) {
    char *argv[32] = {"funcpipe", (char *)first};
    int argc = first ? 2 : 1;
    va_list args;
    va_start(args, first);
    for (char *arg = first ? va_arg(args, char *) : NULL; arg; arg = va_arg(args, char *))
        argv[argc++] = arg;
    va_end(args);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen(stdout_path ? stdout_path : temp_path("stdout"), "wb", stdout) ||
            !freopen(temp_path("stderr"), "wb", stderr))
            _exit(99);
        int code = cli_main(argc, argv);
        fflush(NULL);
        _exit(code);
    }
    int status = 0;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status), "signal %d", WTERMSIG(status));
    read_all("stdout", printed, sizeof printed);
    read_all("stderr", complained, sizeof complained);
    return WEXITSTATUS(status);
}

static const char job[] =
    "{\"version\": 1, \"name\": \"job\", \"model\": {\"zoo\": \"mlp\", \"options\": "
    "{\"input\": [8], \"hidden\": [16], \"classes\": 3}}, \"data\": {\"train\": {\"kind\": "
    "\"generated\", \"samples\": 100}}, \"batch\": 32, \"steps\": 3, \"update\": {\"kind\": "
    "\"sgd\", \"lr\": 0.1}}";

static const char *job_path(void) {
    static char path[256]; /* temp_path's do not last */
    snprintf(path, sizeof path, "%s", temp_write("job.json", job, sizeof job - 1));
    return path;
}

/* A worker that knows every instruction set. */
static void name_worker(void) {
    static const char text[] = "#!/bin/sh\necho \"$2\"\n";
    const char *path = temp_write("worker", text, sizeof text - 1);
    cr_assert_eq(chmod(path, 0755), 0);
    setenv("FUNCPIPE_WORKER", path, 1);
}

#define SAYS(text, words) cr_expect(strstr(text, words), "'%s' does not say '%s'", text, words)

Test(cli, usage) {
    cr_expect_eq(run(NULL), EXIT_CODE_USAGE);
    SAYS(complained, "usage: funcpipe COMMAND");
    cr_expect_eq(run("--help", NULL), 0);
    SAYS(printed, "train");
    SAYS(printed, "Exit codes: 0 done");
    cr_expect_eq(run("trian", NULL), EXIT_CODE_USAGE);
    SAYS(complained, "unknown command 'trian' (did you mean 'train'?)");
    cr_expect_eq(run("xyzzy", NULL), EXIT_CODE_USAGE);
    SAYS(complained, "see funcpipe --help");
}

Test(cli, help_of_each_command_has_examples) {
    static const char *const commands[] = {"train", "eval", "plan",   "model",
                                           "diff",  "gc",   "doctor", "version"};
    for (int i = 0; i < 8; i++) {
        cr_expect_eq(run(commands[i], "--help", NULL), 0);
        SAYS(printed, "usage: funcpipe");
        SAYS(printed, "examples:");
        SAYS(printed, "Exit codes: 0 done");
        cr_expect_str_empty(complained);
    }
    cr_expect_eq(run("train", "-h", NULL), 0);
}

Test(cli, flags) {
    cr_expect_eq(run("train", "--ouput", "x", "job.json", NULL), EXIT_CODE_USAGE);
    SAYS(complained, "unknown flag '--ouput' (did you mean '--out'?)");
    cr_expect_eq(run("train", "--ouput", "x", "job.json", "--json", NULL), EXIT_CODE_USAGE);
    SAYS(printed, "{\"event\":\"error\",\"code\":\"ERR_ARGUMENT\"");
    cr_expect_eq(run("plan", "--resume", "latest", "job.json", NULL), EXIT_CODE_USAGE);
    SAYS(complained, "unknown flag '--resume'");
    cr_expect_eq(run("train", "job.json", "--out", NULL), EXIT_CODE_USAGE);
    SAYS(complained, "'--out' needs a value");
    cr_expect_eq(run("train", "job.json", "--json=yes", NULL), EXIT_CODE_USAGE);
    SAYS(complained, "'--json' takes no value");
    cr_expect_eq(run("train", NULL), EXIT_CODE_USAGE);
    SAYS(complained, "an argument is missing");
    cr_expect_eq(run("train", "a.json", "b.json", NULL), EXIT_CODE_USAGE);
    SAYS(complained, "'b.json' is one argument too many");
    cr_expect_eq(run("train", "a.json", "--set", "steps", NULL), EXIT_CODE_USAGE);
    SAYS(complained, "--set steps: expected PATH=VALUE");
    setenv("FUNCPIPE_WORKER", "/bin/true", 1);
    cr_expect_eq(run("train", "a.json", "--resume", "latest", "--overwrite", NULL),
                 EXIT_CODE_USAGE);
    SAYS(complained, "give one of them");
}

Test(cli, version) {
    cr_expect_eq(run("version", NULL), 0);
    SAYS(printed, "funcpipe " FUNCPIPE_VERSION);
    cr_expect_eq(run("--version", NULL), 0);
    cr_expect_eq(run("version", "--json", NULL), 0);
    SAYS(printed, "{\"version\":\"" FUNCPIPE_VERSION "\"}");
}

Test(cli, model_inspect) {
    const char *path = job_path();
    cr_expect_eq(run("model", "inspect", path, NULL), 0, "%s", complained);
    SAYS(printed, "fc1");
    SAYS(printed, "4 layers, 195 parameters, 0 in buffers");
    SAYS(printed, "        256\n"); /* 2 * 8 * 16 FLOP: no column mixes 256 and 2.56e+02 */
    cr_expect_eq(run("model", "inspect", path, "--json", "--set", "model.options.classes=5", NULL),
                 0);
    cJSON *root = NULL;
    cr_assert_eq(json_parse("out", printed, strlen(printed), 1 << 16, &root), 0, "%s", printed);
    cr_expect_eq(cJSON_GetArraySize(cJSON_GetObjectItem(root, "layers")), 4);
    cr_expect_float_eq(cJSON_GetObjectItem(root, "parameters")->valuedouble, 229, 0);
    cJSON_Delete(root);
    cr_expect_eq(run("model", "inspect", path, "--set", "batchs=3", NULL), EXIT_CODE_USAGE);
    SAYS(complained, "unknown key 'batchs' (did you mean 'batch'?)");
    cr_expect_eq(run("model", "inspect", path, "--set", "batch=-3", NULL), EXIT_CODE_USAGE);
    SAYS(complained, "$.batch");
    cr_expect_eq(run("model", "inspect", path, "--set",
                     "data.train={\"kind\": \"idx\", \"inputs\": \"none\", \"targets\": \"none\"}",
                     NULL),
                 0, "the data files need not be there: %s", complained);
    cr_expect_eq(run("model", "inspcet", path, NULL), EXIT_CODE_USAGE);
    SAYS(complained, "inspect");
    cr_expect_eq(run("model", "inspect", "/no/such.json", NULL), EXIT_CODE_USAGE);
    SAYS(complained, "/no/such.json");
}

/* As PyTorch counts them: running statistics are no parameters. */
Test(cli, statistics_are_buffers) {
    static const char set[] =
        "model={\"zoo\": \"cnn\", \"options\": {\"channels\": [4], \"blocks\": 1}}";
    const char *path = job_path();
    cr_expect_eq(run("model", "inspect", path, "--set", set, NULL), 0, "%s", complained);
    SAYS(printed, "398 parameters, 24 in buffers (running statistics)");
    cr_expect_eq(run("model", "inspect", path, "--set", set, "--json", NULL), 0);
    SAYS(printed, "\"parameters\":398,\"buffers\":24,");
    SAYS(printed, "\"kind\":\"batchnorm\",\"shape\":[4,28,28],\"parameters\":8,\"buffers\":8");
    name_worker();
    cr_expect_eq(run("plan", path, "--set", set, "--set", "plan.isa=avx2", NULL), 0);
    SAYS(printed, "398 parameters, 24 in buffers, 1 replica");
}

Test(cli, plan) {
    const char *path = job_path();
    name_worker();
    cr_expect_eq(run("plan", path, "--set", "plan.isa=avx2", NULL), 0, "%s", complained);
    SAYS(printed, "0.0: F0 B0 R U");
    SAYS(printed, "cpu (avx2)");
    cr_expect_eq(run("plan", path, "--set", "plan.isa=avx2", "--brief", NULL), 0);
    cr_expect_null(strstr(printed, "F0"));
    cr_expect_eq(run("plan", path, "--json", "--set", "plan.isa=avx2", NULL), 0);
    SAYS(printed, "\"workers\":[{\"stage\":0");
    SAYS(printed, "\"stages\":[{\"stage\":0,\"layers\":[\"fc1\",\"relu1\",\"fc2\",\"loss\"],");
    SAYS(printed, "\"parameters\":195,\"buffers\":0,\"replicas\":1,\"edges\":[]}]");
    cr_expect_eq(run("plan", path, "--set", "plan.stages=9", NULL), EXIT_CODE_INFEASIBLE);
    SAYS(complained, "--set plan.stages=9");
    setenv("FUNCPIPE_WORKER", "/bin/false", 1);
    cr_expect_eq(run("plan", path, "--set", "plan.isa=auto", NULL), EXIT_CODE_FAILED);
    SAYS(complained, "/bin/false --isa failed");
    cr_expect_eq(run("plan", path, "--set", "batch=0", "--json", NULL), EXIT_CODE_USAGE);
    SAYS(printed, "{\"event\":\"error\",\"code\":\"ERR_ARGUMENT\"");
    setenv("FUNCPIPE_WORKER", "/no/such/worker", 1);
    cr_expect_eq(run("plan", path, NULL), EXIT_CODE_USAGE);
    SAYS(complained, "FUNCPIPE_WORKER");
    unsetenv("FUNCPIPE_WORKER");
    cr_expect_eq(run("train", path, NULL), EXIT_CODE_USAGE);
    SAYS(complained, "funcpipe-worker");
}

Test(cli, what_cannot_be_printed_is_a_failure) {
    const char *path = job_path();
    name_worker();
    stdout_path = "/dev/full";
    static const char *const json[] = {NULL, "--json"};
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(run("plan", path, "--set", "plan.isa=avx2", json[i], NULL), EXIT_CODE_FAILED);
        cr_expect_str_eq(complained, "funcpipe: writing to stdout: No space left on device\n");
        cr_expect_eq(run("model", "inspect", path, json[i], NULL), EXIT_CODE_FAILED);
        cr_expect_str_eq(complained, "funcpipe: writing to stdout: No space left on device\n");
        cr_expect_eq(run("version", json[i], NULL), EXIT_CODE_FAILED);
        cr_expect_eq(run(i ? "--help" : "help", NULL), EXIT_CODE_FAILED);
    }
    stdout_path = NULL;
}

Test(cli, eval_and_diff_of_nothing) {
    setenv("FUNCPIPE_WORKER", "/bin/true", 1);
    cr_expect_eq(run("eval", "/no/such/folder", NULL), EXIT_CODE_USAGE);
    SAYS(complained, "/no/such/folder");
    cr_expect_eq(run("eval", temp_folder, NULL), EXIT_CODE_USAGE);
    SAYS(complained, "no job.json stands beside");
    job_path();
    cr_expect_eq(run("eval", temp_folder, NULL), EXIT_CODE_USAGE);
    SAYS(complained, "no evaluation data");
    cr_expect_eq(run("diff", "/no/a", "/no/b", NULL), EXIT_CODE_USAGE);
    SAYS(complained, "/no/a");
}

/* A URL in the wrong place is not printed: its password would be. */
Test(cli, no_password_that_was_given_in_the_wrong_place) {
    static const char url[] = "redis://:c4n4ry@host";
    const char *job_file = job_path();
    setenv("FUNCPIPE_WORKER", "/bin/true", 1);
    static const char *const sets[] = {
        "relay=redis://:c4n4ry@host", "relay.url=redis://:c4n4ry@host",  "steps=c4n4ry@host",
        "redis://:c4n4ry@host",       "redis://:c4n4ry@host?timeout=5s", "plan..x=u:c4n4ry@host"};
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        cr_expect_eq(run("plan", job_file, "--set", "relay=auto", "--set", sets[i], "--json", NULL),
                     EXIT_CODE_USAGE, "%s", sets[i]);
        cr_expect_null(strstr(complained, "c4n4ry"), "%s", complained);
        cr_expect_null(strstr(printed, "c4n4ry"), "%s", printed);
        cr_expect(strstr(complained, "--set "), "%s", complained);
    }
    const char *const *wrong[] = {(const char *[]){url, NULL, NULL},
                                  (const char *[]){"plan", job_file, url},
                                  (const char *[]){"plan", url, NULL},
                                  (const char *[]){"train", "--redis://:c4n4ry@host", NULL},
                                  (const char *[]){"eval", url, NULL},
                                  (const char *[]){"model", url, job_file}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cr_expect_eq(run(wrong[i][0], wrong[i][1], wrong[i][1] ? wrong[i][2] : NULL, NULL),
                     EXIT_CODE_USAGE);
        cr_expect_null(strstr(complained, "c4n4ry"), "%s", complained);
    }
}

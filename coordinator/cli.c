#include "coordinator/cli.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/cli_parts.h"
#include "coordinator/interrupt.h"
#include "coordinator/job.h"
#include "core/err.h"
#include "core/text.h"

/* Which flags a command knows. */
enum {
    FLAG_OUT = 1 << 0,
    FLAG_RESUME = 1 << 1,
    FLAG_SET = 1 << 2,
    FLAG_TRACE = 1 << 3,
    FLAG_OVERWRITE = 1 << 4,
    FLAG_JOB = 1 << 5,
    FLAG_JSON = 1 << 6,
    FLAG_HELP = 1 << 7,
    FLAG_BRIEF = 1 << 8,
    FLAG_OLDER = 1 << 9,
    FLAG_DRY_RUN = 1 << 10
};

typedef struct Flag {
    const char *name;
    int bit;
    bool has_value;
} Flag;

static const Flag flags[] = {
    {"--out", FLAG_OUT, true},      {"--resume", FLAG_RESUME, true},
    {"--set", FLAG_SET, true},      {"--job", FLAG_JOB, true},
    {"--trace", FLAG_TRACE, false}, {"--overwrite", FLAG_OVERWRITE, false},
    {"--json", FLAG_JSON, false},   {"--brief", FLAG_BRIEF, false},
    {"--older", FLAG_OLDER, true},  {"--dry-run", FLAG_DRY_RUN, false},
    {"--help", FLAG_HELP, false},
};
enum { N_FLAGS = sizeof flags / sizeof flags[0] };

typedef struct Command {
    const char *name;
    int (*run)(const CliArgs *args, int *out_error);
    int flags;
    int min_words, max_words;
    const char *summary, *help;
} Command;

static int cli_version(const CliArgs *args, int *out_error) {
    *out_error = 0;
    if (args->json)
        printf("{\"version\":\"%s\"}\n", FUNCPIPE_VERSION);
    else
        printf("funcpipe %s\n", FUNCPIPE_VERSION);
    return EXIT_CODE_DONE;
}

static const char train_help[] =
    "usage: funcpipe train JOB.json [--out DIR] [--resume latest|DIR] [--overwrite]\n"
    "                      [--set PATH=VALUE]... [--trace] [--json]\n"
    "\n"
    "Run a training job. Outputs go to DIR (default: funcpipe-out/NAME): job.json, plan.json,\n"
    "metrics.csv, metrics.jsonl, events.jsonl, checkpoints/STEP/, logs/, trace.json.\n"
    "\n"
    "  --out DIR            where the outputs go; a folder with outputs is refused unless\n"
    "                       --resume or --overwrite is given\n"
    "  --resume latest|DIR  go on from the newest checkpoint of the outputs, or from a\n"
    "                       checkpoint's folder; any cut and number of replicas will do. A\n"
    "                       checkpoint of another run wants a new --out, or --overwrite\n"
    "  --overwrite          remove the outputs of an earlier run first; refused where the folder\n"
    "                       holds anything else\n"
    "  --set PATH=VALUE     set a value of the job file; null removes a key\n"
    "  --trace              write trace.json for Chrome's trace viewer\n"
    "  --json               progress as one JSON object a line on stdout, \"finished\" the last;\n"
    "                       docs/outputs.md lists them\n"
    "\n"
    "Updates whose loss or gradients are not finite are skipped (update.on_nonfinite) and "
    "counted;\n"
    "when the last step is one of them the job has diverged: exit code 5.\n"
    "Ctrl-C or SIGTERM once: all workers save and end (before they run: at once); twice: end at\n"
    "once.\n"
    "examples:\n"
    "  funcpipe train docs/examples/generated-mlp.json\n"
    "  funcpipe train job.json --set plan.stages=4 --set update.lr=0.05 --out runs/4\n"
    "  funcpipe train job.json --set plan.stages=2 --resume latest\n";

static const char eval_help[] =
    "usage: funcpipe eval CHECKPOINT [--job JOB.json] [--set PATH=VALUE]... [--json]\n"
    "\n"
    "Evaluate a checkpoint on the evaluation data of its job, in one worker, and print loss and\n"
    "accuracy. CHECKPOINT is a checkpoint's folder, or a job's outputs (their newest one). The\n"
    "job is the one stored with the outputs unless --job names another.\n"
    "\n"
    "examples:\n"
    "  funcpipe eval funcpipe-out/digits\n"
    "  funcpipe eval funcpipe-out/digits/checkpoints/300 --set evaluate.samples=1000\n";

static const char plan_help[] =
    "usage: funcpipe plan JOB.json [--set PATH=VALUE]... [--brief] [--json]\n"
    "\n"
    "Make the plan of a job without running it: stages with their layers and parameters, bytes\n"
    "on every edge, replicas, each worker's program, and what the relay carries and holds.\n"
    "A cut that is \"auto\" is balanced by measuring the layers on this machine.\n"
    "--brief leaves the programs out.\n"
    "\n"
    "examples:\n"
    "  funcpipe plan job.json\n"
    "  funcpipe plan job.json --set plan.stages=4 --json\n";

static const char model_help[] =
    "usage: funcpipe model inspect JOB.json|MODEL.json [--set PATH=VALUE]... [--json]\n"
    "\n"
    "List a model's layers with shapes, parameters and floating-point operations a sample.\n"
    "\n"
    "examples:\n"
    "  funcpipe model inspect job.json\n"
    "  funcpipe model inspect job.json --set model.options.depth=8\n";

static const char diff_help[] =
    "usage: funcpipe diff A B [--json]\n"
    "\n"
    "Compare two checkpoints (folders or .safetensors files), parameters and update state, tensor\n"
    "by tensor: a line for each, and a summary at the end. Exit code 0: every bit is equal; 1:\n"
    "they differ; 2: one of them is missing, unreadable or damaged.\n"
    "\n"
    "examples:\n"
    "  funcpipe diff a/checkpoints/100 b/checkpoints/100\n";

static const char gc_help[] =
    "usage: funcpipe gc RELAY [--older DURATION] [--job NAME] [--dry-run] [--json]\n"
    "\n"
    "Remove what coordinators that died left in a relay: generations of jobs of which no worker\n"
    "has given a sign of life and nothing was written lately; over Redis also pieces of objects\n"
    "that are nowhere, of files also empty folders. Says what was removed, a line for each.\n"
    "RELAY is a URL as in a job file. A running job is left alone.\n"
    "\n"
    "  --older DURATION  nothing of it was written for so long (default 10m, at least 1m)\n"
    "  --job NAME        only this job's\n"
    "  --dry-run         only say what would be removed\n"
    "\n"
    "examples:\n"
    "  funcpipe gc redis://localhost --dry-run\n"
    "  funcpipe gc file:///dev/shm/relay --job digits --older 1h\n";

static const char doctor_help[] =
    "usage: funcpipe doctor RELAY [--json]\n"
    "\n"
    "Look at a relay before a job runs over it: how long a small object takes, bandwidth each "
    "way,\n"
    "whether it pushes to who waits, memory, persistence, login, clock. Says what is wrong and "
    "what\n"
    "to do. Takes some seconds, puts up to 32 MiB at a time and removes what it put. Exit code 0:\n"
    "fine; 1: a problem; 3: unreachable or not authorised.\n"
    "\n"
    "examples:\n"
    "  funcpipe doctor redis://localhost\n"
    "  funcpipe doctor 'rediss://relay.example:6380?password_file=/run/secrets/redis' --json\n";

static const char version_help[] = "usage: funcpipe version [--json]\n"
                                   "\n"
                                   "Print the version.\n"
                                   "\n"
                                   "examples:\n"
                                   "  funcpipe version --json\n";

/* Below the help of every command. */
static const char help_footer[] =
    "\n"
    "Exit codes: 0 done (diff: equal), 1 failed (diff: they differ), 2 usage or configuration,\n"
    "3 unreachable or not authorised, 4 infeasible, 5 diverged, 6 cancelled (SIGTERM),\n"
    "130 interrupted (Ctrl-C).\n";

static const Command commands[] = {
    {"train", cli_train,
     FLAG_OUT | FLAG_RESUME | FLAG_SET | FLAG_TRACE | FLAG_OVERWRITE | FLAG_JSON | FLAG_HELP, 1, 1,
     "run a training job", train_help},
    {"eval", cli_eval, FLAG_JOB | FLAG_SET | FLAG_JSON | FLAG_HELP, 1, 1, "evaluate a checkpoint",
     eval_help},
    {"plan", cli_plan, FLAG_SET | FLAG_BRIEF | FLAG_JSON | FLAG_HELP, 1, 1,
     "show how a job would run", plan_help},
    {"model", cli_model, FLAG_SET | FLAG_JSON | FLAG_HELP, 2, 2, "inspect a model", model_help},
    {"diff", cli_diff, FLAG_JSON | FLAG_HELP, 2, 2, "compare two checkpoints", diff_help},
    {"gc", cli_gc, FLAG_OLDER | FLAG_JOB | FLAG_DRY_RUN | FLAG_JSON | FLAG_HELP, 1, 1,
     "remove what dead coordinators left in a relay", gc_help},
    {"doctor", cli_doctor, FLAG_JSON | FLAG_HELP, 1, 1, "look at a relay and say what is wrong",
     doctor_help},
    {"version", cli_version, FLAG_JSON | FLAG_HELP, 0, 0, "print the version", version_help},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

/* ---- arguments ---- */

static int unknown_flag(const Command *command, const char *given) {
    const char *text = text_unless_secret(given);
    const char *known[N_FLAGS];
    size_t n = 0;
    for (int i = 0; i < N_FLAGS; i++) {
        if (command->flags & flags[i].bit)
            known[n++] = flags[i].name;
    }
    const char *nearest = text_nearest(text, known, n);
    if (nearest)
        return err_set(ERR_ARGUMENT, "%s: unknown flag '%s' (did you mean '%s'?)", command->name,
                       text, nearest);
    return err_set(ERR_ARGUMENT, "%s: unknown flag '%s'; see funcpipe %s --help", command->name,
                   text, command->name);
}

static int add_set(CliArgs *args, const char *value) {
    if (args->n_sets == CLI_MAX_SETS)
        return err_set(ERR_LIMIT, "more than %d times --set", CLI_MAX_SETS);
    char *copy = strdup(value);
    if (!copy)
        return err_set(ERR_MEMORY, "--set %s", text_unless_secret(value));
    args->set_texts[args->n_sets] = copy;
    char *equals = strchr(copy, '=');
    if (equals)
        *equals = '\0';
    if (!equals || equals == copy || text_may_be_secret(copy)) {
        free(copy);
        return err_set(ERR_ARGUMENT, "--set %s: expected PATH=VALUE, such as plan.stages=2",
                       text_unless_secret(value));
    }
    args->sets[args->n_sets++] = (ConfigSet){copy, equals + 1};
    return 0;
}

static int apply_flag(const Flag *flag, const char *value, CliArgs *args) {
    switch (flag->bit) {
    case FLAG_OUT:
        args->out = value;
        return 0;
    case FLAG_RESUME:
        args->resume = value;
        return 0;
    case FLAG_JOB:
        args->job = value;
        return 0;
    case FLAG_OLDER:
        args->older = value;
        return 0;
    case FLAG_SET:
        return add_set(args, value);
    case FLAG_TRACE:
        args->trace = true;
        return 0;
    case FLAG_OVERWRITE:
        args->overwrite = true;
        return 0;
    case FLAG_JSON:
        args->json = true;
        return 0;
    case FLAG_BRIEF:
        args->brief = true;
        return 0;
    case FLAG_DRY_RUN:
        args->dry_run = true;
        return 0;
    default:
        args->help = true;
        return 0;
    }
}

/* One flag at argv[*at], which moves to its value where that stands apart. */
static int parse_flag(const Command *command, int argc, char **argv, int *at, CliArgs *args) {
    char name[64];
    const char *text = strcmp(argv[*at], "-h") == 0 ? "--help" : argv[*at];
    size_t length = strcspn(text, "=");
    snprintf(name, sizeof name, "%.*s", (int)(length < 60 ? length : 60), text);
    for (int i = 0; i < N_FLAGS; i++) {
        if (strcmp(flags[i].name, name) != 0 || !(command->flags & flags[i].bit))
            continue;
        const char *value = text[length] == '=' ? text + length + 1 : NULL;
        if (!flags[i].has_value && value)
            return err_set(ERR_ARGUMENT, "%s: '%s' takes no value", command->name, name);
        if (flags[i].has_value && !value) {
            if (*at + 1 >= argc)
                return err_set(ERR_ARGUMENT, "%s: '%s' needs a value", command->name, name);
            value = argv[++*at];
        }
        return apply_flag(&flags[i], value, args);
    }
    return unknown_flag(command, name);
}

/* Is --json among the flags? It holds for errors in front of it, too. */
static bool wants_json(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            return true;
    }
    return false;
}

static int parse_args(const Command *command, int argc, char **argv, CliArgs *args) {
    for (int i = 2; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1]) {
            TRY(parse_flag(command, argc, argv, &i, args));
            continue;
        }
        if (args->n_words == CLI_MAX_WORDS || args->n_words == command->max_words)
            return err_set(ERR_ARGUMENT, "%s: '%s' is one argument too many", command->name,
                           text_unless_secret(argv[i]));
        args->words[args->n_words++] = argv[i];
    }
    if (!args->help && args->n_words < command->min_words)
        return err_set(ERR_ARGUMENT, "%s: an argument is missing; see funcpipe %s --help",
                       command->name, command->name);
    return 0;
}

/* ---- running ---- */

static void print_usage(FILE *to) {
    fprintf(to, "usage: funcpipe COMMAND ...\n\n");
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  %-9s %s\n", commands[i].name, commands[i].summary);
    fprintf(to, "\nfuncpipe COMMAND --help says more.\n%s", help_footer);
}

static const Command *find_command(const char *name) {
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

static bool reader_has_gone(int errnum) {
    struct pollfd out = {.fd = STDOUT_FILENO};
    return errnum == EPIPE || (poll(&out, 1, 0) > 0 && (out.revents & POLLERR));
}

/* stdout took no more. What is left of it is dropped, so that this is told once. */
static int lost_output(int errnum) {
    clearerr(stdout);
    __fpurge(stdout);
    if (reader_has_gone(errnum))
        return 0;
    return errnum ? err_errno(ERR_IO, errnum, "writing to stdout")
                  : err_set(ERR_IO, "writing to stdout: some of it is lost");
}

int cli_flush(void) {
    errno = 0;
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : lost_output(errno);
}

int cli_print(const char *text) {
    errno = 0;
    return fputs(text, stdout) >= 0 ? 0 : lost_output(errno);
}

int cli_print_json(cJSON *take_value) {
    Buf text;
    buf_init(&text, 0);
    int rc = take_value ? json_format(take_value, false, &text)
                        : err_set(ERR_MEMORY, "the output as JSON");
    if (rc >= 0)
        rc = buf_text(&text, "\n");
    if (rc >= 0)
        rc = cli_print(buf_string(&text));
    buf_done(&text);
    cJSON_Delete(take_value);
    return rc < 0 ? rc : 0;
}

void cli_print_error(bool json, int error) {
    fprintf(stderr, "funcpipe: %s\n", err_text());
    if (!json)
        return;
    cJSON *object = cJSON_CreateObject();
    if (cJSON_AddStringToObject(object, "event", "error") &&
        cJSON_AddStringToObject(object, "code", err_name(error)) &&
        cJSON_AddStringToObject(object, "text", err_text()))
        cli_print_json(object);
    else
        cJSON_Delete(object);
    cli_flush(); /* one that is lost has been told on stderr */
}

static int unknown_command(int argc, char **argv) {
    const char *known[N_COMMANDS];
    for (int i = 0; i < N_COMMANDS; i++)
        known[i] = commands[i].name;
    const char *name = text_unless_secret(argv[1]);
    const char *nearest = text_nearest(name, known, N_COMMANDS);
    int rc = nearest
                 ? err_set(ERR_ARGUMENT, "unknown command '%s' (did you mean '%s'?)", name, nearest)
                 : err_set(ERR_ARGUMENT, "unknown command '%s'; see funcpipe --help", name);
    cli_print_error(wants_json(argc, argv), rc);
    return EXIT_CODE_USAGE;
}

int cli_find_worker(char *out_path, size_t out_bytes) {
    char self[PATH_MAX];
    const char *given = getenv("FUNCPIPE_WORKER");
    if (given && given[0]) {
        if (access(given, X_OK) < 0)
            return err_set(ERR_NOT_FOUND, "FUNCPIPE_WORKER is '%s': there is no such program",
                           given);
        return text_copy(out_path, out_bytes, given);
    }
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return err_set(ERR_NOT_FOUND, "this program's own path is unknown; set FUNCPIPE_WORKER");
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    *slash = '\0';
    int length = snprintf(out_path, out_bytes, "%s/funcpipe-worker", self);
    if (length < 0 || (size_t)length >= out_bytes || access(out_path, X_OK) < 0)
        return err_set(ERR_NOT_FOUND,
                       "there is no funcpipe-worker in '%s'; set FUNCPIPE_WORKER to its path",
                       self);
    return 0;
}

static int run_command(const Command *command, int argc, char **argv) {
    CliArgs args;
    int error = 0;
    memset(&args, 0, sizeof args);
    args.json = wants_json(argc, argv);
    int exit_code = EXIT_CODE_USAGE;
    error = parse_args(command, argc, argv, &args);
    if (error >= 0 && args.help) {
        printf("%s%s", command->help, help_footer);
        exit_code = EXIT_CODE_DONE;
    } else if (error >= 0) {
        exit_code = command->run(&args, &error);
    }
    if (error >= 0)
        error = cli_flush();
    if (error < 0)
        cli_print_error(args.json, error);
    if (error < 0 && exit_code == EXIT_CODE_DONE)
        exit_code = EXIT_CODE_FAILED;
    for (int i = 0; i < args.n_sets; i++)
        free(args.set_texts[i]);
    return exit_code;
}

static int run_words(int argc, char **argv) {
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_CODE_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_usage(stdout);
        return EXIT_CODE_DONE;
    }
    if (strcmp(argv[1], "--version") == 0)
        argv[1] = (char *)"version";
    const Command *command = find_command(argv[1]);
    return command ? run_command(command, argc, argv) : unknown_command(argc, argv);
}

int cli_main(int argc, char **argv) {
    interrupt_begin(wants_json(argc, argv));
    int exit_code = run_words(argc, argv);
    if (cli_flush() >= 0)
        return exit_code;
    cli_print_error(false, ERR_IO);
    return exit_code == EXIT_CODE_DONE ? EXIT_CODE_FAILED : exit_code;
}

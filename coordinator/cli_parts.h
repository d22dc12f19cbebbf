/* What the command line's files share; nobody else includes it. */
#ifndef FUNCPIPE_COORDINATOR_CLI_PARTS_H
#define FUNCPIPE_COORDINATOR_CLI_PARTS_H

#include "coordinator/config.h"

enum { CLI_MAX_SETS = 64, CLI_MAX_WORDS = 8 };

typedef struct CliArgs {
    const char *words[CLI_MAX_WORDS]; /* what is no flag */
    int n_words;
    const char *out, *resume, *job, *older; /* NULL: not given */
    ConfigSet sets[CLI_MAX_SETS];
    int n_sets;
    char *set_texts[CLI_MAX_SETS]; /* owned: PATH and TEXT stand in them */
    bool overwrite, trace, json, brief, dry_run, help;
} CliArgs;

/* Each command: run, return the exit code. The error note says what went wrong when *out_error. */
int cli_train(const CliArgs *args, int *out_error);
int cli_eval(const CliArgs *args, int *out_error);
int cli_plan(const CliArgs *args, int *out_error);
int cli_model(const CliArgs *args, int *out_error);
int cli_diff(const CliArgs *args, int *out_error);
int cli_gc(const CliArgs *args, int *out_error);
int cli_doctor(const CliArgs *args, int *out_error);

/* The worker binary: FUNCPIPE_WORKER, or funcpipe-worker beside this program. ERR_NOT_FOUND. */
int cli_find_worker(char *out_path, size_t out_bytes);
/* Write out what was printed: 0, or ERR_IO when it is lost. A reader that has gone loses nothing.
 */
int cli_flush(void);
/* Print a text on stdout: 0, or ERR_IO. */
int cli_print(const char *text);
/* Say the error note on stderr; with `json` also as an object on stdout. */
void cli_print_error(bool json, int error);
/* Print a JSON value as one line on stdout and delete it. */
int cli_print_json(cJSON *take_value);

#endif

/* funcpipe train, eval and plan. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/cli_parts.h"
#include "coordinator/conductor.h"
#include "coordinator/notice.h"
#include "coordinator/plan.h"
#include "core/err.h"
#include "core/text.h"

static int setup_failed(int rc, int *out_error) {
    *out_error = rc;
    return job_exit_code(rc, false);
}

/* config_load, and a word where it takes long. `json`: stdout has lines of JSON. */
static int load_job(const char *path, const ConfigSet *sets, int n_sets, bool json,
                    JobConfig *config) {
    Notice notice;
    notice_begin(&notice, json, "reading the job and its data ...");
    int rc = config_load(path, sets, n_sets, 0, config);
    notice_end(&notice);
    return rc;
}

static cJSON *number_or_null(double value) {
    return isfinite(value) ? cJSON_CreateNumber(value) : cJSON_CreateNull();
}

/* ---- train ---- */

/* The last line of --json, whatever became of the job. */
static int print_finished(const char *out, const ConductResult *result) {
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "event", "finished");
    cJSON_AddStringToObject(object, "state", job_state_name(result->state));
    cJSON_AddNumberToObject(object, "exit_code", result->exit_code);
    cJSON_AddNumberToObject(object, "step", (double)result->step);
    cJSON_AddNumberToObject(object, "saved_step", (double)result->saved_step);
    cJSON_AddItemToObject(object, "loss", number_or_null(result->loss));
    if (result->has_eval) {
        cJSON_AddItemToObject(object, "eval_loss", number_or_null(result->eval_loss));
        cJSON_AddItemToObject(object, "eval_accuracy", number_or_null(result->eval_accuracy));
    }
    cJSON_AddNumberToObject(object, "skipped", (double)result->n_skipped);
    cJSON_AddNumberToObject(object, "restarts", (double)result->n_restarts);
    cJSON_AddNumberToObject(object, "resumes", (double)result->n_resumes);
    cJSON_AddItemToObject(object, "traffic", traffic_to_json(&result->traffic));
    cJSON_AddStringToObject(object, "out", out);
    if (result->failure.code < 0) {
        cJSON_AddStringToObject(object, "code", err_name(result->failure.code));
        cJSON_AddStringToObject(object, "text", result->failure.text);
    }
    return cli_print_json(object);
}

static void print_train(const char *out, const ConductResult *result) {
    char bytes[2][32];
    printf("%s after %lld %s", job_state_name(result->state), (long long)result->step,
           text_plural(result->step, "step", "steps"));
    if (isfinite(result->loss))
        printf(", loss %.4g", result->loss);
    else if (result->n_skipped > 0)
        printf(", loss not finite");
    if (result->has_eval)
        printf(", evaluation: loss %.4g, accuracy %.4f", result->eval_loss, result->eval_accuracy);
    if (result->n_restarts > 0)
        printf(", %lld %s", (long long)result->n_restarts,
               text_plural(result->n_restarts, "restart", "restarts"));
    if (result->n_resumes > 0)
        printf(", %lld %s of the relay made good", (long long)result->n_resumes,
               text_plural(result->n_resumes, "loss", "losses"));
    printf("\n");
    if (result->n_skipped > 0)
        printf("%lld of %lld %s skipped: loss or gradients were not finite\n",
               (long long)result->n_skipped, (long long)result->step,
               text_plural(result->step, "update was", "updates were"));
    printf("through the relay: %s out, %s in, %lld objects\n",
           text_format_bytes(result->traffic.put_bytes + result->traffic.add_bytes, bytes[0],
                             sizeof bytes[0]),
           text_format_bytes(result->traffic.get_bytes, bytes[1], sizeof bytes[1]),
           (long long)(result->traffic.puts + result->traffic.adds - result->traffic.duplicates));
    printf("outputs in %s\n", out);
    if (result->saved_step >= 0)
        printf("checkpoint %s/checkpoints/%lld\n", out, (long long)result->saved_step);
    if (result->resumable && result->state != JOB_DONE && result->exit_code != EXIT_CODE_DIVERGED)
        printf("to go on: the same command with --resume latest\n");
}

/* A job is worth more than what it printed: that some of it is lost only counts where a program
 * was to read it. */
static int tell_end(const CliArgs *args, const char *out, const ConductResult *result,
                    int *out_error) {
    ErrNote failure;
    err_copy(&failure);
    if (!args->json) {
        if (result->ran)
            print_train(out, result);
        if (cli_flush() < 0)
            cli_print_error(false, ERR_IO);
        err_restore(&failure);
        return result->exit_code;
    }
    bool told = ferror(stdout) != 0; /* by the progress */
    if (*out_error < 0)
        cli_print_error(true, *out_error);
    *out_error = 0;
    bool lost = print_finished(out, result) < 0 || cli_flush() < 0;
    if (lost && !told)
        cli_print_error(false, ERR_IO);
    return lost && result->exit_code == EXIT_CODE_DONE ? EXIT_CODE_FAILED : result->exit_code;
}

int cli_train(const CliArgs *args, int *out_error) {
    char worker[PATH_MAX];
    char out[ORDER_PATH_BYTES];
    JobConfig config;
    ConductResult result;
    *out_error = 0;
    if (args->resume && args->overwrite && strcmp(args->resume, "latest") == 0)
        return setup_failed(
            err_set(ERR_ARGUMENT,
                    "--resume latest goes on and --overwrite begins anew: give one of them"),
            out_error);
    int rc = cli_find_worker(worker, sizeof worker);
    if (rc >= 0)
        rc = load_job(args->words[0], args->sets, args->n_sets, args->json, &config);
    if (rc < 0)
        return setup_failed(rc, out_error);
    if (args->out)
        rc = text_copy(out, sizeof out, args->out);
    else
        snprintf(out, sizeof out, "funcpipe-out/%s", config.order.job);
    if (rc < 0) {
        config_done(&config);
        return setup_failed(rc, out_error);
    }
    ConductOptions options = {.out_folder = out,
                              .resume = args->resume,
                              .job_file = args->words[0],
                              .overwrite = args->overwrite,
                              .trace = args->trace,
                              .json = args->json,
                              .worker_path = worker};
    *out_error = conduct(&config, &options, &result);
    config_done(&config);
    if (result.state == JOB_CANCELLED && result.failure.code == 0)
        *out_error = 0; /* it stopped as asked */
    return tell_end(args, out, &result, out_error);
}

/* ---- eval ---- */

/* The job file stored with a checkpoint: OUT/job.json of OUT or OUT/checkpoints/STEP. */
static int find_job(const char *checkpoint, char *out_path, size_t out_bytes) {
    static const char *const places[] = {"%s/job.json", "%s/../job.json", "%s/../../job.json"};
    char resolved[PATH_MAX];
    char path[PATH_MAX + 32];
    char found[PATH_MAX];
    if (!realpath(checkpoint, resolved))
        return err_set(ERR_NOT_FOUND, "there is no checkpoint '%s'",
                       text_unless_secret(checkpoint));
    for (int i = 0; i < 3; i++) {
        const char *behind = places[i] + 2;
        snprintf(path, sizeof path, "%s%s", resolved, behind);
        if (access(path, R_OK) == 0 && realpath(path, found)) /* errors name it without "/../" */
            return text_copy(out_path, out_bytes, found);
    }
    return err_set(ERR_NOT_FOUND, "no job.json stands beside '%s'; name the job with --job",
                   checkpoint);
}

static int load_eval(const CliArgs *args, const char *job, JobConfig *config) {
    /* One worker for the whole model, whatever the job's plan was. */
    static const ConfigSet whole[] = {{"plan.stages", "1"},
                                      {"plan.cut", "null"},
                                      {"plan.replicas", "null"},
                                      {"plan.recompute", "null"},
                                      {"relay", "auto"}};
    enum { N_WHOLE = sizeof whole / sizeof whole[0] };
    ConfigSet sets[CLI_MAX_SETS + N_WHOLE];
    memcpy(sets, args->sets, (size_t)args->n_sets * sizeof sets[0]);
    memcpy(sets + args->n_sets, whole, sizeof whole);
    TRY(load_job(job, sets, args->n_sets + N_WHOLE, false, config));
    if (!config->order.has_eval) {
        config_done(config);
        return err_set(ERR_ARGUMENT,
                       "%s: the job has no evaluation data; give some with --set data.eval={...}",
                       job);
    }
    config->order.eval_only = true;
    return 0;
}

static void print_eval(const CliArgs *args, const ConductResult *result, int64_t samples) {
    if (args->json) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddItemToObject(object, "loss", number_or_null(result->eval_loss));
        cJSON_AddItemToObject(object, "accuracy", number_or_null(result->eval_accuracy));
        cJSON_AddNumberToObject(object, "step", (double)result->step);
        cJSON_AddNumberToObject(object, "samples", (double)samples);
        cli_print_json(object);
        return;
    }
    printf("loss %.6g  accuracy %.6f  (%lld %s, after %lld %s)\n", result->eval_loss,
           result->eval_accuracy, (long long)samples, text_plural(samples, "sample", "samples"),
           (long long)result->step, text_plural(result->step, "step", "steps"));
}

int cli_eval(const CliArgs *args, int *out_error) {
    char worker[PATH_MAX];
    char job[ORDER_PATH_BYTES];
    JobConfig config;
    ConductResult result;
    int rc = cli_find_worker(worker, sizeof worker);
    if (rc >= 0)
        rc = args->job ? text_copy(job, sizeof job, args->job)
                       : find_job(args->words[0], job, sizeof job);
    if (rc >= 0)
        rc = load_eval(args, job, &config);
    if (rc < 0)
        return setup_failed(rc, out_error);
    ConductOptions options = {
        .resume = args->words[0], .json = args->json, .worker_path = worker, .quiet = true};
    *out_error = conduct(&config, &options, &result);
    if (*out_error >= 0)
        print_eval(args, &result, config.order.eval_samples);
    config_done(&config);
    return result.exit_code;
}

/* ---- plan ---- */

static int make_plan(const CliArgs *args, JobConfig *config, Plan *plan) {
    char worker[PATH_MAX];
    Profile profile;
    Notice notice;
    TRY(cli_find_worker(worker, sizeof worker));
    TRY(load_job(args->words[0], args->sets, args->n_sets, false, config));
    notice_begin(&notice, false, "measuring the layers' times ...");
    int rc = plan_profile(config, worker, plan_profile_ms(config), NULL, &profile);
    notice_end(&notice);
    if (rc >= 0) {
        rc = plan_make(config, &profile, plan);
        profile_done(&profile);
    }
    if (rc < 0)
        config_done(config);
    return rc;
}

int cli_plan(const CliArgs *args, int *out_error) {
    JobConfig config;
    Plan plan;
    Buf text;
    int rc = make_plan(args, &config, &plan);
    if (rc < 0)
        return setup_failed(rc, out_error);
    buf_init(&text, 0);
    if (args->json) {
        rc = cli_print_json(plan_describe_json(&plan, &config));
    } else {
        rc = plan_describe(&plan, &config, !args->brief, &text);
        if (rc >= 0)
            rc = cli_print(buf_string(&text));
    }
    buf_done(&text);
    plan_done(&plan);
    config_done(&config);
    *out_error = rc < 0 ? rc : 0;
    return rc < 0 ? job_exit_code(rc, false) : EXIT_CODE_DONE;
}

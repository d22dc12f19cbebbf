/* funcpipe gc. */
#include <stdio.h>

#include "coordinator/cli_parts.h"
#include "coordinator/gc.h"
#include "coordinator/job.h"
#include "core/err.h"
#include "core/text.h"

static int read_options(const CliArgs *args, GcOptions *options) {
    *options = (GcOptions){.job = args->job, .older_ms = GC_OLDER_MS, .dry_run = args->dry_run};
    if (args->job)
        TRY(text_check_name("job name", args->job, sizeof((KeySpace *)0)->job - 1));
    if (!args->older)
        return 0;
    int rc = text_parse_duration_ms(args->older, &options->older_ms);
    if (rc < 0)
        return err_context(ERR_ARGUMENT, "--older");
    if (options->older_ms < GC_LEAST_OLDER_MS)
        return err_set(ERR_ARGUMENT,
                       "--older %s: at least 1m, so that no job that just begins is taken for dead",
                       args->older);
    return 0;
}

/* ---- for people ---- */

static void print_generation(const GcGeneration *item, bool dry_run) {
    static const char *const why[GC_N_STATES] = {NULL, "it is running", "written too lately",
                                                 "the store does not say when it was written"};
    char bytes[32];
    char idle[32];
    printf("%s generation %lld: ", item->space.job, (long long)item->space.generation);
    if (item->state == GC_DEAD)
        printf("%s", item->removed ? "removed" : dry_run ? "would be removed" : "gone already");
    else
        printf("left alone, %s", why[item->state]);
    printf(" (%lld %s, %lld %s", (long long)item->n_objects,
           text_plural(item->n_objects, "object", "objects"), (long long)item->n_notes,
           text_plural(item->n_notes, "note", "notes"));
    if (item->bytes >= 0)
        printf(", %s", text_format_bytes(item->bytes, bytes, sizeof bytes));
    if (item->idle_ms >= 0)
        printf(", written %s ago", text_format_duration(item->idle_ms, idle, sizeof idle));
    printf(")\n");
}

static void print_report(const GcReport *report, bool dry_run) {
    char bytes[32];
    int64_t n_removed = 0;
    int64_t n_bytes = 0;
    for (int32_t i = 0; i < report->n; i++) {
        const GcGeneration *item = &report->items[i];
        print_generation(item, dry_run);
        if (!item->removed && !(dry_run && item->state == GC_DEAD))
            continue;
        n_removed++;
        n_bytes += item->bytes > 0 ? item->bytes : 0;
    }
    printf("%lld of %d %s %s: %s", (long long)n_removed, report->n,
           text_plural(report->n, "generation", "generations"),
           dry_run ? "would be removed" : "removed",
           text_format_bytes(n_bytes, bytes, sizeof bytes));
    if (report->swept.n_pieces > 0)
        printf("; %lld %s without an object: %s", (long long)report->swept.n_pieces,
               text_plural(report->swept.n_pieces, "piece", "pieces"),
               text_format_bytes(report->swept.piece_bytes, bytes, sizeof bytes));
    if (report->swept.n_uploads > 0)
        printf("; %lld %s that nobody ended", (long long)report->swept.n_uploads,
               text_plural(report->swept.n_uploads, "upload", "uploads"));
    if (report->swept.n_folders > 0)
        printf("; %lld empty %s", (long long)report->swept.n_folders,
               text_plural(report->swept.n_folders, "folder", "folders"));
    if (report->n_foreign > 0)
        printf("; %lld %s of no job: left alone", (long long)report->n_foreign,
               text_plural(report->n_foreign, "key", "keys"));
    printf("\n");
}

/* ---- for programs ---- */

static cJSON *generation_to_json(const GcGeneration *item) {
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "job", item->space.job);
    cJSON_AddNumberToObject(object, "generation", (double)item->space.generation);
    cJSON_AddStringToObject(object, "state", gc_state_name(item->state));
    cJSON_AddBoolToObject(object, "removed", item->removed);
    cJSON_AddBoolToObject(object, "claimed", item->claimed);
    cJSON_AddNumberToObject(object, "objects", (double)item->n_objects);
    cJSON_AddNumberToObject(object, "notes", (double)item->n_notes);
    cJSON_AddItemToObject(object, "bytes",
                          item->bytes < 0 ? cJSON_CreateNull()
                                          : cJSON_CreateNumber((double)item->bytes));
    cJSON_AddItemToObject(object, "idle_s",
                          item->idle_ms < 0 ? cJSON_CreateNull()
                                            : cJSON_CreateNumber((double)item->idle_ms / 1000));
    return object;
}

static cJSON *report_to_json(const GcReport *report, bool dry_run) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddBoolToObject(root, "dry_run", dry_run);
    cJSON *items = cJSON_AddArrayToObject(root, "generations");
    for (int32_t i = 0; items && i < report->n; i++)
        cJSON_AddItemToArray(items, generation_to_json(&report->items[i]));
    cJSON_AddNumberToObject(root, "pieces", (double)report->swept.n_pieces);
    cJSON_AddNumberToObject(root, "piece_bytes", (double)report->swept.piece_bytes);
    cJSON_AddNumberToObject(root, "uploads", (double)report->swept.n_uploads);
    cJSON_AddNumberToObject(root, "folders", (double)report->swept.n_folders);
    cJSON_AddNumberToObject(root, "foreign", (double)report->n_foreign);
    return root;
}

int cli_gc(const CliArgs *args, int *out_error) {
    GcOptions options;
    GcReport report = {0};
    Relay *relay = NULL;
    int rc = read_options(args, &options);
    if (rc >= 0)
        rc = relay_open(args->words[0], &relay);
    *out_error = rc < 0 ? rc : 0;
    if (rc < 0)
        return job_exit_code(rc, false);
    rc = gc_run(relay, &options, &report);
    ErrNote failure; /* what was removed before is told all the same */
    err_copy(&failure);
    relay_tidy(relay, "gc"); /* a folder that was made only now */
    relay_close(relay);
    int told = 0;
    if (args->json)
        told = cli_print_json(report_to_json(&report, options.dry_run));
    else
        print_report(&report, options.dry_run);
    gc_done(&report);
    *out_error = rc < 0 ? err_restore(&failure) : told;
    return rc < 0 ? job_exit_code(rc, true) : EXIT_CODE_DONE;
}

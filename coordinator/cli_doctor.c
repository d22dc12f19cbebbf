/* funcpipe doctor. */
#include <stdio.h>

#include "coordinator/cli_parts.h"
#include "coordinator/doctor.h"
#include "coordinator/job.h"
#include "core/text.h"

static void print_report(const DoctorReport *report) {
    for (int i = 0; i < report->n; i++)
        printf("%-18s %s\n", report->facts[i].name, report->facts[i].value);
    if (report->n_problems == 0) {
        printf("no problem found\n");
        return;
    }
    printf("%d %s:\n", report->n_problems, text_plural(report->n_problems, "problem", "problems"));
    for (int i = 0; i < report->n; i++) {
        if (report->facts[i].problem[0])
            printf("- %s: %s\n", report->facts[i].name, report->facts[i].problem);
    }
}

static void add_number(cJSON *object, const char *name, double value) {
    cJSON_AddItemToObject(object, name, value < 0 ? cJSON_CreateNull() : cJSON_CreateNumber(value));
}

static cJSON *measured_to_json(const DoctorReport *report) {
    cJSON *object = cJSON_CreateObject();
    const struct {
        const char *median, *p99;
        const DoctorTimes *times;
    } rows[] = {{"put_median_us", "put_p99_us", &report->put},
                {"get_median_us", "get_p99_us", &report->get},
                {"drop_median_us", "drop_p99_us", &report->drop},
                {"wake_median_us", "wake_p99_us", &report->wake}};
    for (int i = 0; i < 4; i++) {
        add_number(object, rows[i].median, (double)rows[i].times->median_us);
        add_number(object, rows[i].p99, (double)rows[i].times->p99_us);
    }
    add_number(object, "put_bytes_per_s", report->put_bytes_per_s);
    add_number(object, "get_bytes_per_s", report->get_bytes_per_s);
    add_number(object, "longest_bytes", (double)report->longest_bytes);
    return object;
}

static cJSON *report_to_json(const DoctorReport *report) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddNumberToObject(root, "problems", report->n_problems);
    cJSON_AddBoolToObject(root, "pushes", report->pushes);
    cJSON_AddItemToObject(root, "measured", measured_to_json(report));
    cJSON *facts = cJSON_AddArrayToObject(root, "facts");
    for (int i = 0; facts && i < report->n; i++) {
        const DoctorFact *fact = &report->facts[i];
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "name", fact->name);
        cJSON_AddStringToObject(object, "value", fact->value);
        if (fact->problem[0])
            cJSON_AddStringToObject(object, "problem", fact->problem);
        cJSON_AddItemToArray(facts, object);
    }
    return root;
}

int cli_doctor(const CliArgs *args, int *out_error) {
    DoctorReport report;
    int rc = doctor_run(args->words[0], &report);
    int exit_code = rc < 0                  ? job_exit_code(rc, false)
                    : report.n_problems > 0 ? EXIT_CODE_FAILED
                                            : EXIT_CODE_DONE;
    if (rc >= 0 && args->json)
        rc = cli_print_json(report_to_json(&report));
    else if (rc >= 0)
        print_report(&report);
    doctor_done(&report);
    *out_error = rc < 0 ? rc : 0;
    return exit_code;
}

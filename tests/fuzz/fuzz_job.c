/* Any bytes as a job file: config_parse says yes or no; what it accepts is written as a resolved
 * job that reads back to the same text, and its plan, where it is small enough to make, too. */
#include <stdlib.h>
#include <string.h>

#include "coordinator/config.h"
#include "coordinator/plan.h"
#include "core/err.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { FEW_LAYERS = 100, FEW_WORKERS = 16, FEW_MICRO = 32 };

static void require(int truth) {
    if (!truth)
        abort();
}

static void write_job(const JobConfig *config, Buf *text) {
    cJSON *root = config_to_json(config);
    require(root != NULL);
    require(json_format(root, false, text) >= 0);
    cJSON_Delete(root);
}

static void plan(const JobConfig *config) {
    Plan made;
    Plan again;
    if (config->order.model.n_layers > FEW_LAYERS || config_workers(&config->plan) > FEW_WORKERS ||
        config->order.plan.n_micro > FEW_MICRO)
        return;
    if (plan_make(config, NULL, &made) < 0) {
        require(err_text()[0] != '\0');
        return;
    }
    cJSON *root = plan_to_json(&made);
    require(root != NULL);
    require(plan_parse(root, "$", &again) >= 0);
    require(again.n_workers == made.n_workers);
    cJSON_Delete(root);
    plan_done(&again);
    plan_done(&made);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    JobConfig config;
    JobConfig again;
    Buf first;
    Buf second;
    if (config_parse("fuzz", (const char *)data, bytes, "/nowhere", NULL, 0, CONFIG_WITHOUT_DATA,
                     &config) < 0) {
        require(err_text()[0] != '\0');
        return 0;
    }
    buf_init(&first, 0);
    buf_init(&second, 0);
    write_job(&config, &first);
    require(config_parse("again", first.data, first.bytes, "/elsewhere", NULL, 0,
                         CONFIG_WITHOUT_DATA, &again) >= 0);
    write_job(&again, &second);
    require(strcmp(first.data, second.data) == 0);
    plan(&config);
    buf_done(&first);
    buf_done(&second);
    config_done(&config);
    config_done(&again);
    return 0;
}

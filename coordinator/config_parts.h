/* What the config files share; nobody else includes it. */
#ifndef FUNCPIPE_COORDINATOR_CONFIG_PARTS_H
#define FUNCPIPE_COORDINATOR_CONFIG_PARTS_H

#include "coordinator/config.h"

#define CONFIG_MAX_COUNT (INT64_C(1) << 40)

/* config_model.c: $.model in its three forms; `folder` is that of relative files. */
int config_parse_model(JsonObject *root, const char *folder, Model *out_model);
/* Join a relative path to `folder`, in place; ERR_LIMIT when it does not fit, ERR_ARGUMENT when the
 * folder is not UTF-8. */
int config_absolute(const char *folder, char *path, size_t path_bytes);

/* config_plan.c: $.plan; the model gives the names of layers. */
int config_parse_plan(JsonObject *root, const Model *model, PlanRequest *out_plan);
void config_plan_done(PlanRequest *plan);
cJSON *config_plan_to_json(const PlanRequest *plan);

/* config_data.c: $.data and $.evaluate.samples; fills shape, vocab and classes from the model and
 * the counts from the files. */
int config_parse_data(JsonObject *root, const char *folder, unsigned flags, Order *order);
int config_check_eval_samples(Order *order, int64_t samples, const char *path);

#endif

/* Shared by the two files that read and write orders as JSON; nobody else includes it. */
#ifndef FUNCPIPE_CORE_ORDER_JSON_H
#define FUNCPIPE_CORE_ORDER_JSON_H

#include "core/order.h"

enum { ORDER_MAX_REPLICAS = 1 << 16 };
#define ORDER_MAX_EXACT ((INT64_C(1) << 53) - 1) /* JSON numbers are doubles */
#define ORDER_MAX_COUNT (INT64_C(1) << 40)       /* samples, steps, milliseconds */

/* Add to *object, taking `take_value`; when something is NULL or memory runs out, *object is freed
 * and set to NULL, and later calls do nothing. */
void order_put(cJSON **object, const char *key, cJSON *take_value);
void order_put_number(cJSON **object, const char *key, double value);
void order_put_text(cJSON **object, const char *key, const char *text);
void order_put_bool(cJSON **object, const char *key, bool value);
void order_put_seed(cJSON **object, const char *key, uint64_t seed);

/* 1 present, 0 absent (out untouched); a number below 2^53 or decimal text. */
int order_opt_seed(JsonObject *object, const char *key, uint64_t *out_seed);
/* Copy a string; ERR_LIMIT when it does not fit. Absent and not required: out untouched. */
int order_copy_string(JsonObject *object, const char *key, bool required, char *out_text,
                      size_t text_bytes);

/* The marks of a data set's files, as a member of the order: the job file has none. */
int order_opt_marks(JsonObject *object, const char *key, DataSpec *data);
/* Nothing where the data set has no marks. */
void order_put_marks(cJSON **object, const char *key, const DataSpec *data);

#endif

#include "core/traffic.h"

#include "core/err.h"

/* JSON numbers are doubles: whole ones are exact below 2^53. */
#define WHOLE_MAX ((INT64_C(1) << 53) - 1)

void traffic_add(Traffic *sum, const Traffic *more) {
#define TRAFFIC_ADD(name) sum->name += more->name;
    TRAFFIC_TABLE(TRAFFIC_ADD)
#undef TRAFFIC_ADD
}

int traffic_format(const Traffic *traffic, Buf *out_text) {
    const char *comma = "";
#define TRAFFIC_FORMAT(name)                                                                       \
    TRY(buf_printf(out_text, "%s\"" #name "\":%lld", comma, (long long)traffic->name));            \
    comma = ",";
    TRAFFIC_TABLE(TRAFFIC_FORMAT)
#undef TRAFFIC_FORMAT
    return 0;
}

int traffic_read(const cJSON *value, const char *path, Traffic *out_traffic) {
    Traffic traffic = {0};
    JsonObject object;
    TRY(json_object(value, path, &object));
#define TRAFFIC_READ(name) TRY(json_get_i64(&object, #name, 0, WHOLE_MAX, &traffic.name));
    TRAFFIC_TABLE(TRAFFIC_READ)
#undef TRAFFIC_READ
    TRY(json_end(&object));
    *out_traffic = traffic;
    return 0;
}

cJSON *traffic_to_json(const Traffic *traffic) {
    cJSON *object = cJSON_CreateObject();
#define TRAFFIC_TO_JSON(name)                                                                      \
    if (object && !cJSON_AddNumberToObject(object, #name, (double)traffic->name)) {                \
        cJSON_Delete(object);                                                                      \
        object = NULL;                                                                             \
    }
    TRAFFIC_TABLE(TRAFFIC_TO_JSON)
#undef TRAFFIC_TO_JSON
    return object;
}

/* $.model: {"zoo": NAME, "options": {...}}, {"file": PATH}, or the model itself. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/config_parts.h"
#include "coordinator/zoo.h"
#include "core/err.h"
#include "core/text.h"

int config_absolute(const char *folder, char *path, size_t path_bytes) {
    char joined[PATH_MAX];
    if (!path[0] || path[0] == '/' || !folder[0])
        return 0;
    if (!text_is_utf8(folder, strlen(folder)))
        return err_set(ERR_ARGUMENT,
                       "the folder '%s', which '%s' is relative to, is not valid UTF-8", folder,
                       path);
    int n = snprintf(joined, sizeof joined, "%s/%s", folder, path);
    if (n < 0 || (size_t)n >= sizeof joined)
        return err_set(ERR_LIMIT, "the path '%s' under '%s' is too long", path, folder);
    return text_copy(path, path_bytes, joined);
}

static int model_of_file(const char *file, const char *folder, const char *path, Model *out_model) {
    char full[ORDER_PATH_BYTES];
    cJSON *root = NULL;
    TRY(text_copy(full, sizeof full, file));
    TRY(config_absolute(folder, full, sizeof full));
    int rc = json_parse_file(full, ORDER_MAX_BYTES, &root);
    if (rc >= 0) {
        rc = model_parse(root, "$", out_model);
        cJSON_Delete(root);
        if (rc < 0)
            return err_context(rc, "%s", full);
    }
    return rc < 0 ? err_context(rc, "%s.file", path) : 0;
}

static int model_of_zoo(JsonObject *object, const char *path, Model *out_model) {
    const char *name = NULL;
    const cJSON *options = NULL;
    char options_path[JSON_PATH_BYTES];
    TRY(json_get_string(object, "zoo", &name));
    TRY(text_copy(options_path, sizeof options_path, path));
    TRY(json_opt(object, "options", &options, options_path));
    TRY(json_end(object));
    return zoo_build(name, options, options_path, out_model);
}

static int check_form(const cJSON *model, const char *path) {
    static const char *const forms[] = {"zoo", "file", "layers"};
    int n = 0;
    for (int i = 0; i < 3; i++)
        n += cJSON_GetObjectItemCaseSensitive(model, forms[i]) != NULL;
    if (n != 1)
        return err_set(ERR_FORMAT,
                       "%s: expected exactly one of the keys 'zoo', 'file' and 'layers'", path);
    return 0;
}

int config_parse_model(JsonObject *root, const char *folder, Model *out_model) {
    const cJSON *value = NULL;
    char path[JSON_PATH_BYTES];
    JsonObject object;
    const char *file = NULL;
    TRY(json_get(root, "model", &value, path));
    TRY(json_object(value, path, &object));
    TRY(check_form(value, path));
    if (cJSON_GetObjectItemCaseSensitive(value, "layers"))
        return model_parse(value, path, out_model);
    if (cJSON_GetObjectItemCaseSensitive(value, "zoo"))
        return model_of_zoo(&object, path, out_model);
    TRY(json_get_string(&object, "file", &file));
    TRY(json_end(&object));
    return model_of_file(file, folder, path, out_model);
}

/* Loading a stage's share of a checkpoint: by name, from whatever files hold it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/json.h"
#include "core/text.h"
#include "storage/safetensors.h"
#include "worker/params.h"

enum { LOAD_MANIFEST_MAX_BYTES = 16 << 20 };

typedef struct LoadFiles {
    Safetensors **files;
    int n_files;
    int64_t n_params;  /* tensors in the files that hold no update state */
    UpdateKind update; /* whose state it is */
    const char *path;
} LoadFiles;

static const char *const load_updates[] = {[UPDATE_SGD] = "sgd", [UPDATE_ADAMW] = "adamw"};

static void load_close(LoadFiles *load) {
    for (int i = 0; i < load->n_files; i++) {
        safetensors_close(load->files[i]);
    }
    free(load->files);
}

static int load_open(LoadFiles *load, const char *path) {
    char file_path[ORDER_PATH_BYTES * 2];
    cJSON *root = NULL;
    JsonObject manifest, entry;
    const cJSON *files = NULL;
    int rc = 0, update = 0;
    load->path = path;
    snprintf(file_path, sizeof file_path, "%s/manifest.json", path);
    TRY_DONE(json_parse_file(file_path, LOAD_MANIFEST_MAX_BYTES, &root));
    TRY_DONE(json_object(root, "$", &manifest));
    TRY_DONE(json_get_choice(&manifest, "update", load_updates, 2, &update));
    load->update = (UpdateKind)update;
    TRY_DONE(json_get(&manifest, "files", &files, NULL));
    const int n = cJSON_GetArraySize(files);
    load->files = calloc((size_t)n + 1, sizeof(Safetensors *));
    if (load->files == NULL) {
        rc = err_set(ERR_MEMORY, "the list of a checkpoint's files does not fit into memory");
        goto done;
    }
    for (int i = 0; i < n; i++) {
        const char *name;
        TRY_DONE(json_object(cJSON_GetArrayItem(files, i), "$.files", &entry));
        TRY_DONE(json_get_string(&entry, "name", &name));
        TRY_DONE(text_check_name("file name in a manifest", name, 255));
        snprintf(file_path, sizeof file_path, "%s/%s", path, name);
        TRY_DONE(safetensors_open(file_path, &load->files[load->n_files]));
        if (strncmp(name, "update-", 7) != 0) {
            load->n_params += safetensors_count(load->files[load->n_files]);
        }
        load->n_files++;
    }
done:
    cJSON_Delete(root);
    return rc < 0 ? err_context(rc, "checkpoint '%s'", path) : 0;
}

static int load_tensor(const LoadFiles *load, const DeviceOps *ops, Stream *stream,
                       const ParamState *state, const char *suffix, float *to) {
    char name[SAFETENSORS_NAME_BYTES], got[96], expected[96];
    if (to == NULL) {
        return 0;
    }
    snprintf(name, sizeof name, "%s%s", state->meta->name, suffix);
    for (int i = 0; i < load->n_files; i++) {
        const SafetensorsEntry *entry = safetensors_find(load->files[i], name);
        if (entry == NULL) {
            continue;
        }
        if (entry->dtype != DTYPE_F32 || !shape_equal(&entry->shape, &state->meta->shape)) {
            return err_set(ERR_FORMAT, "checkpoint '%s': tensor '%s' is %s %s, expected F32 %s",
                           load->path, name, dtype_name(entry->dtype),
                           shape_format(&entry->shape, got, sizeof got),
                           shape_format(&state->meta->shape, expected, sizeof expected));
        }
        const size_t bytes = (size_t)state->n * sizeof(float);
        void *copy = malloc(bytes + 1);
        if (copy == NULL) {
            return err_set(ERR_MEMORY, "tensor '%s' does not fit into memory", name);
        }
        int rc = safetensors_read(load->files[i], entry, copy, bytes);
        if (rc >= 0) {
            rc = ops->copy(stream, to, copy, bytes);
        }
        if (rc >= 0) {
            rc = ops->stream_sync(stream);
        }
        free(copy);
        return rc;
    }
    return err_set(ERR_NOT_FOUND, "checkpoint '%s': tensor '%s' is missing", load->path, name);
}

static int load_counts(const LoadFiles *load, Params *params) {
    for (int i = 0; i < load->n_files; i++) {
        const char *updates = safetensors_metadata(load->files[i], "updates");
        const char *skipped = safetensors_metadata(load->files[i], "skipped");
        if (updates != NULL && skipped != NULL) {
            TRY(text_parse_i64(updates, 0, INT64_MAX, &params->n_updates));
            return text_parse_i64(skipped, 0, INT64_MAX, &params->n_skipped);
        }
    }
    return err_set(ERR_FORMAT, "checkpoint '%s': no file says how many updates were made",
                   load->path);
}

/* More tensors than the model has parameters: name one that it does not know. */
static int load_check_surplus(const LoadFiles *load, const Model *model) {
    if (load->n_params <= model->n_params) {
        return 0;
    }
    for (int i = 0; i < load->n_files; i++) {
        for (int k = 0; k < safetensors_count(load->files[i]); k++) {
            const char *name = safetensors_at(load->files[i], k)->name;
            if (model_find_param(model, name) < 0) {
                return err_set(ERR_FORMAT,
                               "checkpoint '%s': tensor '%s' is no parameter of the model",
                               load->path, name);
            }
        }
    }
    return err_set(ERR_FORMAT, "checkpoint '%s' holds a parameter twice", load->path);
}

static int load_check_update(const LoadFiles *load, UpdateKind update) {
    if (load->update == update) {
        return 0;
    }
    return err_set(ERR_ARGUMENT,
                   "checkpoint '%s' holds the update state of %s, but the update is %s", load->path,
                   load_updates[load->update], load_updates[update]);
}

int params_load(Params *params, Stream *stream, const char *path) {
    const bool adamw = params->order->update.kind == UPDATE_ADAMW;
    const bool moments = !params->order->eval_only;
    LoadFiles load = {0};
    int rc = 0;
    TRY_DONE(load_open(&load, path));
    TRY_DONE(load_check_surplus(&load, &params->order->model));
    if (moments) {
        TRY_DONE(load_check_update(&load, params->order->update.kind));
    }
    TRY_DONE(load_counts(&load, params));
    for (int32_t i = 0; i < params->n_states; i++) {
        const ParamState *state = &params->states[i];
        TRY_DONE(load_tensor(&load, params->ops, stream, state, "", state->w));
        if (moments) {
            TRY_DONE(load_tensor(&load, params->ops, stream, state,
                                 adamw ? ".exp_avg" : ".momentum", state->m));
            TRY_DONE(load_tensor(&load, params->ops, stream, state, ".exp_avg_sq", state->v));
        }
    }
done:
    load_close(&load);
    return rc;
}

/* Loading a stage's share of a checkpoint: by name, from whatever files hold it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/text.h"
#include "storage/manifest.h"
#include "storage/safetensors.h"
#include "worker/params.h"

typedef struct LoadFiles {
    const char *path;
    Manifest manifest;
    Safetensors **files; /* in the manifest's order */
    bool *checked;       /* against size and hash of the manifest: only files that are read are */
    int n_files;
    int64_t n_params; /* tensors in the files that hold no update state */
} LoadFiles;

static void load_close(LoadFiles *load) {
    for (int i = 0; i < load->n_files; i++) {
        safetensors_close(load->files[i]);
    }
    free(load->files);
    free(load->checked);
    manifest_done(&load->manifest);
}

static int load_open(LoadFiles *load, const char *path) {
    char file_path[MANIFEST_PATH_BYTES];
    load->path = path;
    TRY(manifest_read(path, &load->manifest));
    const int n = load->manifest.n_files;
    load->files = calloc((size_t)n + 1, sizeof(Safetensors *));
    load->checked = calloc((size_t)n + 1, sizeof *load->checked);
    if (load->files == NULL || load->checked == NULL) {
        return err_set(ERR_MEMORY, "the list of a checkpoint's files does not fit into memory");
    }
    for (; load->n_files < n; load->n_files++) {
        const char *name = load->manifest.files[load->n_files].name;
        TRY(manifest_join(file_path, path, name));
        int rc = safetensors_open(file_path, &load->files[load->n_files]);
        if (rc < 0) {
            return err_context(rc, "checkpoint '%s'", path);
        }
        if (!manifest_is_update(name)) {
            load->n_params += safetensors_count(load->files[load->n_files]);
        }
    }
    return 0;
}

/* Nothing is taken from a file whose bytes are not those that were saved. */
static int load_check_file(LoadFiles *load, int file) {
    if (!load->checked[file]) {
        TRY(manifest_check_file(load->path, &load->manifest.files[file]));
        load->checked[file] = true;
    }
    return 0;
}

static int load_tensor(LoadFiles *load, const DeviceOps *ops, Stream *stream,
                       const ParamState *state, const char *suffix, float *to) {
    char name[SAFETENSORS_NAME_BYTES], got[96], expected[96];
    if (to == NULL || suffix == NULL) {
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
        TRY(load_check_file(load, i));
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

static int load_counts(LoadFiles *load, Params *params) {
    for (int i = 0; i < load->n_files; i++) {
        const char *updates = safetensors_metadata(load->files[i], "updates");
        const char *skipped = safetensors_metadata(load->files[i], "skipped");
        if (updates != NULL && skipped != NULL) {
            TRY(load_check_file(load, i));
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
        const bool update = manifest_is_update(load->manifest.files[i].name);
        for (int k = 0; !update && k < safetensors_count(load->files[i]); k++) {
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
    if (load->manifest.update == update) {
        return 0;
    }
    return err_set(ERR_ARGUMENT,
                   "checkpoint '%s' holds the update state of %s, but the update is %s", load->path,
                   manifest_update_name(load->manifest.update), manifest_update_name(update));
}

int params_load(Params *params, Stream *stream, const char *path) {
    const UpdateKind update = params->order->update.kind;
    const bool moments = !params->order->eval_only;
    LoadFiles load = {0};
    int rc = 0;
    TRY_DONE(load_open(&load, path));
    TRY_DONE(load_check_surplus(&load, &params->order->model));
    if (moments) {
        TRY_DONE(load_check_update(&load, update));
    }
    TRY_DONE(load_counts(&load, params));
    for (int32_t i = 0; i < params->n_states; i++) {
        const ParamState *state = &params->states[i];
        TRY_DONE(load_tensor(&load, params->ops, stream, state, "", state->w));
        if (moments) {
            TRY_DONE(load_tensor(&load, params->ops, stream, state,
                                 manifest_state_suffix(update, 0), state->m));
            TRY_DONE(load_tensor(&load, params->ops, stream, state,
                                 manifest_state_suffix(update, 1), state->v));
        }
    }
done:
    load_close(&load);
    return rc;
}

#include "coordinator/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/checkpoint_parts.h"
#include "core/err.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/text.h"

/* ---- which tensors there must be ---- */

typedef struct Wanted {
    char name[SAFETENSORS_NAME_BYTES];
    const Shape *shape;
    int32_t file; /* that holds it; -1: none yet */
    uint64_t bytes;
} Wanted;

typedef struct WantedList {
    const char *what; /* in errors */
    int32_t n;
    Wanted *items; /* by name */
} WantedList;

static int order_wanted(const void *left, const void *right) {
    return strcmp(((const Wanted *)left)->name, ((const Wanted *)right)->name);
}

enum { NO_UPDATE = -1 };

/* The model's parameters (NO_UPDATE), or the state that `update` keeps of each weight. */
static int list_wanted(const Model *model, int update, WantedList *out_list) {
    bool states = update != NO_UPDATE;
    WantedList list = {.what = states ? "update state" : "parameter"};
    size_t room = (size_t)model->n_params * 2 + 1;
    list.items = calloc(room, sizeof list.items[0]);
    if (!list.items)
        return err_set(ERR_MEMORY, "the tensors that a checkpoint must have");
    for (int32_t i = 0; i < model->n_params; i++) {
        const Param *param = &model->params[i];
        if (states && param->role != PARAM_WEIGHT)
            continue;
        for (int s = 0; s < (states ? 2 : 1); s++) {
            const char *suffix = states ? manifest_state_suffix((UpdateKind)update, s) : "";
            if (!suffix)
                continue;
            Wanted *item = &list.items[list.n++];
            item->shape = &param->shape;
            item->file = -1;
            snprintf(item->name, sizeof item->name, "%s%s", param->name, suffix);
        }
    }
    qsort(list.items, (size_t)list.n, sizeof list.items[0], order_wanted);
    *out_list = list;
    return 0;
}

/* Tick off what one file holds. */
static int tick_file(WantedList *list, const Safetensors *content, const ManifestFile *files,
                     int32_t file) {
    char have[160];
    char want[160];
    for (int i = 0; i < safetensors_count(content); i++) {
        const SafetensorsEntry *entry = safetensors_at(content, i);
        Wanted key;
        memcpy(key.name, entry->name, sizeof key.name);
        Wanted *item = bsearch(&key, list->items, (size_t)list->n, sizeof key, order_wanted);
        if (!item)
            return err_set(ERR_FORMAT, "tensor '%s' in '%s' is no %s of the model", entry->name,
                           files[file].name, list->what);
        if (item->file >= 0)
            return err_set(ERR_FORMAT, "tensor '%s' is in '%s' and again in '%s'", entry->name,
                           files[item->file].name, files[file].name);
        if (entry->dtype != DTYPE_F32 || !shape_equal(&entry->shape, item->shape))
            return err_set(ERR_FORMAT, "tensor '%s' in '%s' is %s %s, the model has F32 %s",
                           entry->name, files[file].name, dtype_name(entry->dtype),
                           shape_format(&entry->shape, have, sizeof have),
                           shape_format(item->shape, want, sizeof want));
        item->file = file;
        item->bytes = entry->bytes;
    }
    return 0;
}

static int check_complete(const WantedList *list) {
    for (int32_t i = 0; i < list->n; i++) {
        if (list->items[i].file < 0)
            return err_set(ERR_FORMAT, "tensor '%s' is missing", list->items[i].name);
    }
    return 0;
}

/* All tensors of the files against the model and its update state; *out_model holds, by name, which
 * file has which parameter (free its items). step >= 0: files that say a step must say this one. */
static int check_tensors(const char *directory, const ManifestFile *files, int32_t n_files,
                         const Model *model, UpdateKind update, int64_t step, WantedList *out_model,
                         int64_t *out_tensors) {
    WantedList lists[2] = {0}; /* parameters, update state */
    int64_t n_tensors[2] = {0};
    int rc = 0;
    char path[MANIFEST_PATH_BYTES];
    TRY_DONE(list_wanted(model, NO_UPDATE, &lists[0]));
    TRY_DONE(list_wanted(model, (int)update, &lists[1]));
    for (int32_t i = 0; i < n_files; i++) {
        Safetensors *content = NULL;
        int which = manifest_is_update(files[i].name) ? 1 : 0;
        int64_t said = step;
        TRY_DONE(manifest_join(path, directory, files[i].name));
        TRY_DONE(safetensors_open(path, &content));
        const char *text = safetensors_metadata(content, "step");
        rc = tick_file(&lists[which], content, files, i);
        if (rc >= 0 && text && step >= 0 &&
            (text_parse_i64(text, 0, INT64_MAX, &said) < 0 || said != step))
            rc = err_set(ERR_FORMAT, "'%s' holds step %s, not %lld", files[i].name, text,
                         (long long)step);
        n_tensors[which] += safetensors_count(content);
        safetensors_close(content);
        if (rc < 0)
            goto done;
    }
    TRY_DONE(check_complete(&lists[0]));
    if (update != UPDATE_SGD || n_tensors[1] > 0) /* sgd without momentum keeps no state */
        TRY_DONE(check_complete(&lists[1]));
    *out_tensors = n_tensors[0] + n_tensors[1];
    *out_model = lists[0];
    lists[0].items = NULL;
done:
    free(lists[0].items);
    free(lists[1].items);
    return rc < 0 ? err_context(rc, "checkpoint '%s'", directory) : 0;
}

/* ---- files ---- */

int checkpoint_check_sizes(const char *directory, const Manifest *manifest) {
    char path[MANIFEST_PATH_BYTES];
    for (int32_t i = 0; i < manifest->n_files; i++) {
        const ManifestFile *file = &manifest->files[i];
        struct stat about;
        TRY(manifest_join(path, directory, file->name));
        if (stat(path, &about) < 0)
            return err_errno(errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, errno,
                             "checkpoint '%s': its file '%s'", directory, file->name);
        if (!S_ISREG(about.st_mode) || about.st_size != file->bytes)
            return err_set(ERR_CORRUPT,
                           "checkpoint '%s': '%s' has %lld bytes, the manifest says %lld",
                           directory, file->name, (long long)about.st_size, (long long)file->bytes);
    }
    return 0;
}

/* ---- writing ---- */

static int write_json(const char *directory, const char *name, cJSON *take_root) {
    char path[MANIFEST_PATH_BYTES];
    Buf text;
    buf_init(&text, 0);
    int rc = take_root ? json_format(take_root, true, &text)
                       : err_set(ERR_MEMORY, "'%s' of '%s'", name, directory);
    if (rc >= 0)
        rc = manifest_join(path, directory, name);
    if (rc >= 0)
        rc = file_write(path, text.data, text.bytes);
    buf_done(&text);
    cJSON_Delete(take_root);
    return rc;
}

static cJSON *build_index(const WantedList *model, const ManifestFile *files) {
    cJSON *root = cJSON_CreateObject();
    cJSON *metadata = cJSON_AddObjectToObject(root, "metadata");
    cJSON *map = cJSON_AddObjectToObject(root, "weight_map");
    uint64_t total = 0;
    bool fine = metadata && map;
    for (int32_t i = 0; i < model->n && fine; i++) {
        const Wanted *item = &model->items[i];
        total += item->bytes;
        fine = cJSON_AddStringToObject(map, item->name, files[item->file].name) != NULL;
    }
    if (fine && cJSON_AddNumberToObject(metadata, "total_size", (double)total))
        return root;
    cJSON_Delete(root);
    return NULL;
}

static bool add_hex(cJSON *object, const char *key, uint64_t value) {
    char hex[HASH_HEX_BYTES];
    return cJSON_AddStringToObject(object, key, hash_format(value, hex)) != NULL;
}

static cJSON *build_manifest(const Manifest *manifest) {
    cJSON *root = cJSON_CreateObject();
    bool fine = cJSON_AddNumberToObject(root, "version", MANIFEST_VERSION) &&
                cJSON_AddStringToObject(root, "job", manifest->job) &&
                cJSON_AddNumberToObject(root, "step", (double)manifest->step) &&
                add_hex(root, "model_hash", manifest->model_hash) &&
                cJSON_AddStringToObject(root, "update", manifest_update_name(manifest->update));
    cJSON *files = cJSON_AddArrayToObject(root, "files");
    fine = fine && files;
    for (int32_t i = 0; i < manifest->n_files && fine; i++) {
        const ManifestFile *file = &manifest->files[i];
        cJSON *item = cJSON_CreateObject();
        fine = cJSON_AddStringToObject(item, "name", file->name) &&
               cJSON_AddNumberToObject(item, "bytes", (double)file->bytes) &&
               add_hex(item, "xxh3", file->xxh3);
        cJSON_AddItemToArray(files, item);
    }
    fine = fine && cJSON_AddNumberToObject(root, "tensors", (double)manifest->n_tensors);
    if (manifest->last_skipped)
        fine = fine && cJSON_AddBoolToObject(root, "last_skipped", true);
    if (fine)
        return root;
    cJSON_Delete(root);
    return NULL;
}

/* Is what lies on the store what a worker says it wrote? */
static int check_said(const char *directory, const ManifestFile *file, const Saved *saved) {
    for (int32_t i = 0; i < saved->n_files; i++) {
        const SavedFile *said = &saved->files[i];
        if (strcmp(said->name, file->name) != 0)
            continue;
        if (said->bytes == file->bytes && said->xxh3 == file->xxh3)
            return 0;
        return err_set(ERR_CORRUPT,
                       "checkpoint '%s': '%s' has %lld bytes and XXH3 %016llx, its worker wrote "
                       "%lld and %016llx",
                       directory, file->name, (long long)file->bytes,
                       (unsigned long long)file->xxh3, (long long)said->bytes,
                       (unsigned long long)said->xxh3);
    }
    return err_set(ERR_CORRUPT, "checkpoint '%s': its worker does not say that it wrote '%s'",
                   directory, file->name);
}

static int write_commit(const char *directory, const WantedList *model, const Saved *saved,
                        int32_t n_stages, Manifest *manifest) {
    char path[MANIFEST_PATH_BYTES];
    for (int32_t i = 0; i < manifest->n_files; i++) {
        ManifestFile *file = &manifest->files[i];
        TRY(manifest_join(path, directory, file->name));
        TRY(manifest_hash_file(path, &file->bytes, &file->xxh3));
        if (saved)
            TRY(check_said(directory, file, &saved[i % n_stages]));
    }
    TRY(write_json(directory, "model.safetensors.index.json", build_index(model, manifest->files)));
    TRY(write_json(directory, "manifest.json", build_manifest(manifest)));
    return file_sync_folder(directory); /* its own name must survive a crash as well */
}

int checkpoint_commit(const char *directory, const char *job, int64_t step, const Model *model,
                      UpdateKind update, int32_t n_stages, const Saved *saved, bool last_skipped) {
    Manifest manifest = {.step = step, .update = update, .last_skipped = last_skipped};
    WantedList parameters = {0};
    if (n_stages < 1 || step < 0)
        return err_set(ERR_ARGUMENT, "a checkpoint of %d stages at step %lld", n_stages,
                       (long long)step);
    TRY(text_copy(manifest.job, sizeof manifest.job, job));
    manifest.model_hash = model_hash(model);
    manifest.files = calloc((size_t)n_stages * 2, sizeof(ManifestFile));
    if (!manifest.files)
        return err_set(ERR_MEMORY, "the manifest of '%s'", directory);
    for (int which = 0; which < 2; which++) {
        for (int32_t i = 0; i < n_stages; i++)
            manifest_file_name(which == 1, i, n_stages, manifest.files[manifest.n_files++].name);
    }
    int rc = check_tensors(directory, manifest.files, manifest.n_files, model, update, step,
                           &parameters, &manifest.n_tensors);
    if (rc >= 0)
        rc = write_commit(directory, &parameters, saved, n_stages, &manifest);
    free(parameters.items);
    manifest_done(&manifest);
    return rc;
}

/* ---- checking ---- */

int checkpoint_check(const char *directory, const Model *model, int update) {
    Manifest manifest;
    WantedList parameters = {0};
    int64_t n_tensors = 0;
    TRY(manifest_read(directory, &manifest));
    int rc = checkpoint_check_sizes(directory, &manifest);
    if (rc >= 0 && update != CHECKPOINT_ANY_UPDATE && (UpdateKind)update != manifest.update)
        rc = err_set(ERR_ARGUMENT, "checkpoint '%s' was made with %s, the job uses %s", directory,
                     manifest_update_name(manifest.update),
                     manifest_update_name((UpdateKind)update));
    if (rc >= 0)
        rc = check_tensors(directory, manifest.files, manifest.n_files, model, manifest.update,
                           manifest.step, &parameters, &n_tensors);
    if (rc >= 0 && n_tensors != manifest.n_tensors)
        rc = err_set(ERR_CORRUPT, "checkpoint '%s' holds %lld tensors, the manifest says %lld",
                     directory, (long long)n_tensors, (long long)manifest.n_tensors);
    free(parameters.items);
    manifest_done(&manifest);
    return rc;
}

int checkpoint_check_momentum(const char *directory, const Model *model, const UpdateSpec *update) {
    Manifest manifest;
    if (update->kind != UPDATE_SGD || update->momentum <= 0)
        return 0;
    TRY(manifest_read(directory, &manifest));
    bool none = manifest.n_tensors == model->n_params;
    manifest_done(&manifest);
    return none ? err_set(ERR_ARGUMENT,
                          "checkpoint '%s' was made with sgd without momentum and has none to go "
                          "on from, the job uses momentum %g (update.momentum)",
                          directory, (double)update->momentum)
                : 0;
}

int checkpoint_verify(const char *directory) {
    Manifest manifest;
    TRY(manifest_read(directory, &manifest));
    int rc = 0;
    for (int32_t i = 0; i < manifest.n_files && rc >= 0; i++)
        rc = manifest_check_file(directory, &manifest.files[i]);
    manifest_done(&manifest);
    return rc;
}

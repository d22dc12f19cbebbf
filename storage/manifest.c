#include "storage/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/err.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/text.h"

enum { HASH_CHUNK_BYTES = 1 << 16 };
#define MANIFEST_MAX_BYTES ((size_t)16 << 20)

static const char *const update_names[] = {[UPDATE_SGD] = "sgd", [UPDATE_ADAMW] = "adamw"};
static const char *const suffixes[][2] = {
    [UPDATE_SGD] = {".momentum", NULL}, [UPDATE_ADAMW] = {".exp_avg", ".exp_avg_sq"}};

/* ---- names ---- */

int manifest_join(char out[MANIFEST_PATH_BYTES], const char *directory, const char *name) {
    if (snprintf(out, MANIFEST_PATH_BYTES, "%s/%s", directory, name) >= MANIFEST_PATH_BYTES)
        return err_set(ERR_LIMIT, "the path '%s/%s' is too long", directory, name);
    return 0;
}

void manifest_file_name(bool update, int32_t stage, int32_t n_stages,
                        char out[MANIFEST_NAME_BYTES]) {
    snprintf(out, MANIFEST_NAME_BYTES, "%s-%05d-of-%05d.safetensors", update ? "update" : "model",
             stage + 1, n_stages);
}

bool manifest_is_update(const char *file_name) {
    return strncmp(file_name, "update-", 7) == 0;
}

const char *manifest_update_name(UpdateKind update) {
    return update_names[update];
}

const char *manifest_state_suffix(UpdateKind update, int state) {
    return suffixes[update][state];
}

/* ---- the manifest ---- */

static int parse_file(const cJSON *item, int32_t index, ManifestFile *file) {
    char path[64];
    JsonObject object;
    const char *name;
    const char *hash;
    snprintf(path, sizeof path, "$.files[%d]", index);
    TRY(json_object(item, path, &object));
    TRY(json_get_string(&object, "name", &name));
    TRY(json_get_i64(&object, "bytes", 0, INT64_C(1) << 53, &file->bytes));
    TRY(json_get_string(&object, "xxh3", &hash));
    TRY(json_end(&object));
    TRY(text_check_name("file name in a manifest", name, sizeof file->name - 1));
    TRY(text_copy(file->name, sizeof file->name, name));
    return hash_parse(hash, &file->xxh3);
}

static int parse_files(const cJSON *files, Manifest *manifest) {
    if (!cJSON_IsArray(files))
        return err_set(ERR_FORMAT, "$.files is no array");
    manifest->files = calloc((size_t)cJSON_GetArraySize(files) + 1, sizeof(ManifestFile));
    if (!manifest->files)
        return err_set(ERR_MEMORY, "the list of files");
    for (const cJSON *item = files->child; item; item = item->next) {
        TRY(parse_file(item, manifest->n_files, &manifest->files[manifest->n_files]));
        manifest->n_files++;
    }
    return 0;
}

static int parse_manifest(const cJSON *root, Manifest *manifest) {
    JsonObject object;
    int64_t version;
    const char *job;
    const char *hash;
    const cJSON *files;
    int update;
    TRY(json_object(root, "$", &object));
    TRY(json_get_i64(&object, "version", MANIFEST_VERSION, MANIFEST_VERSION, &version));
    TRY(json_get_string(&object, "job", &job));
    TRY(json_get_i64(&object, "step", 0, INT64_C(1) << 53, &manifest->step));
    TRY(json_get_string(&object, "model_hash", &hash));
    TRY(json_get_choice(&object, "update", update_names, 2, &update));
    TRY(json_get(&object, "files", &files, NULL));
    TRY(json_get_i64(&object, "tensors", 0, INT64_C(1) << 31, &manifest->n_tensors));
    TRY(json_opt_bool(&object, "last_skipped", &manifest->last_skipped));
    TRY(json_end(&object));
    TRY(text_copy(manifest->job, sizeof manifest->job, job));
    TRY(hash_parse(hash, &manifest->model_hash));
    manifest->update = (UpdateKind)update;
    return parse_files(files, manifest);
}

int manifest_read(const char *directory, Manifest *out_manifest) {
    char path[MANIFEST_PATH_BYTES];
    cJSON *root = NULL;
    Manifest manifest = {0};
    TRY(manifest_join(path, directory, "manifest.json"));
    int rc = json_parse_file(path, MANIFEST_MAX_BYTES, &root);
    if (rc >= 0) {
        rc = parse_manifest(root, &manifest);
        rc = rc < 0 ? err_context(rc, "its manifest") : 0;
    }
    cJSON_Delete(root);
    if (rc < 0) {
        manifest_done(&manifest);
        return err_context(rc, "checkpoint '%s'", directory);
    }
    *out_manifest = manifest;
    return 0;
}

void manifest_done(Manifest *manifest) {
    if (!manifest)
        return;
    free(manifest->files);
    *manifest = (Manifest){0};
}

/* ---- files ---- */

int manifest_hash_file(const char *path, int64_t *out_bytes, uint64_t *out_xxh3) {
    int rc = 0;
    HashState *state = NULL;
    int64_t bytes = 0;
    ssize_t n;
    char *chunk = malloc(HASH_CHUNK_BYTES);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        TRY_DONE(err_errno(errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, errno, "opening '%s'", path));
    if (!chunk)
        TRY_DONE(err_set(ERR_MEMORY, "reading '%s'", path));
    TRY_DONE(hash_open(&state));
    do {
        n = read(fd, chunk, HASH_CHUNK_BYTES);
        if (n < 0 && errno != EINTR)
            TRY_DONE(err_errno(ERR_IO, errno, "reading '%s'", path));
        if (n > 0)
            hash_add(state, chunk, (size_t)n);
        bytes += n > 0 ? n : 0;
    } while (n != 0);
    *out_bytes = bytes;
    *out_xxh3 = hash_value(state);
done:
    if (fd >= 0)
        close(fd);
    hash_close(state);
    free(chunk);
    return rc < 0 ? rc : 0;
}

int manifest_check_file(const char *directory, const ManifestFile *file) {
    char path[MANIFEST_PATH_BYTES];
    int64_t bytes = 0;
    uint64_t xxh3 = 0;
    TRY(manifest_join(path, directory, file->name));
    TRY(manifest_hash_file(path, &bytes, &xxh3));
    if (bytes != file->bytes)
        return err_set(ERR_CORRUPT, "checkpoint '%s': '%s' has %lld bytes, the manifest says %lld",
                       directory, file->name, (long long)bytes, (long long)file->bytes);
    if (xxh3 != file->xxh3)
        return err_set(
            ERR_CORRUPT, "checkpoint '%s': '%s' has XXH3 %016llx, the manifest says %016llx",
            directory, file->name, (unsigned long long)xxh3, (unsigned long long)file->xxh3);
    return 0;
}

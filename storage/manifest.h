/* The form of a checkpoint folder, which the workers that write its tensors and the coordinator
 * that vouches for them share:
 *
 *     model-0000I-of-0000S.safetensors   parameters and statistics of stage I (from 1), by name
 *     update-0000I-of-0000S.safetensors  update state: PARAM.momentum (sgd; none at all without
 *                                        momentum), or PARAM.exp_avg and PARAM.exp_avg_sq (adamw)
 *     manifest.json                      written last: a folder that has none is never read
 *
 * The manifest: {"version":1,"job":"..","step":10,"model_hash":"16 hex digits","update":"sgd",
 * "files":[{"name":"..","bytes":..,"xxh3":"16 hex digits"}],"tensors":N}, N over all files, and
 * "last_skipped":true where the last update before it was skipped: something was not finite. */
#ifndef FUNCPIPE_STORAGE_MANIFEST_H
#define FUNCPIPE_STORAGE_MANIFEST_H

#include "core/order.h"

enum {
    MANIFEST_VERSION = 1,
    MANIFEST_NAME_BYTES = 128,
    MANIFEST_PATH_BYTES = ORDER_PATH_BYTES + MANIFEST_NAME_BYTES + 2
};

typedef struct ManifestFile {
    char name[MANIFEST_NAME_BYTES];
    int64_t bytes;
    uint64_t xxh3; /* hash_bytes of the whole file */
} ManifestFile;

typedef struct Manifest {
    char job[64];
    int64_t step;
    uint64_t model_hash;
    UpdateKind update;
    int64_t n_tensors;
    bool last_skipped;
    int32_t n_files;
    ManifestFile *files;
} Manifest;

/* Read DIRECTORY/manifest.json and check its form. ERR_NOT_FOUND: there is none. */
int manifest_read(const char *directory, Manifest *out_manifest);
void manifest_done(Manifest *manifest);
/* Read a whole file of the checkpoint: ERR_CORRUPT, naming it, when size or hash are others. */
int manifest_check_file(const char *directory, const ManifestFile *file);

/* "DIRECTORY/NAME"; ERR_LIMIT when it is too long. */
int manifest_join(char out[MANIFEST_PATH_BYTES], const char *directory, const char *name);
/* The name of stage `stage`'s file (from 0). */
void manifest_file_name(bool update, int32_t stage, int32_t n_stages,
                        char out[MANIFEST_NAME_BYTES]);
/* Does a file of this name hold update state, not parameters? */
bool manifest_is_update(const char *file_name);
/* "sgd", "adamw". */
const char *manifest_update_name(UpdateKind update);
/* What is added to a parameter's name for its first and second state; NULL: there is none. */
const char *manifest_state_suffix(UpdateKind update, int state);

/* Size and hash of a file. */
int manifest_hash_file(const char *path, int64_t *out_bytes, uint64_t *out_xxh3);

#endif

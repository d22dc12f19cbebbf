/* Checkpoints: CHECKPOINTS/STEP/ holds the state after STEP updates (core/order.h), in the form
 * that storage/manifest.h describes, and model.safetensors.index.json
 * {"metadata":{"total_size":..},"weight_map":{NAME:FILE}}. Everything is F32 and bound to names: a
 * checkpoint resumes under any other cut. Workers write the tensors (worker/save.h); the rest is
 * written here. */
#ifndef FUNCPIPE_COORDINATOR_CHECKPOINT_H
#define FUNCPIPE_COORDINATOR_CHECKPOINT_H

#include "core/order.h"
#include "core/report.h"
#include "storage/manifest.h"
#include "storage/safetensors.h"

enum { CHECKPOINT_ANY_UPDATE = -1 };

/* Check that the workers' files of n_stages are there and together hold every parameter of the
 * model once and the state of `update`, then write index and manifest. A missing, surplus, doubled
 * or misshaped tensor is ERR_FORMAT (a missing file ERR_NOT_FOUND) and named; nothing is written.
 * `saved` (n_stages): what each stage's worker says it wrote; a file that has other bytes by now is
 * ERR_CORRUPT. NULL: nobody says anything. last_skipped: of the manifest. */
int checkpoint_commit(const char *directory, const char *job, int64_t step, const Model *model,
                      UpdateKind update, int32_t n_stages, const Saved *saved, bool last_skipped);
/* Can `model` go on from it? The files have the manifest's sizes and hold exactly the model's
 * tensors. `update`: an UpdateKind, or CHECKPOINT_ANY_UPDATE. ERR_ARGUMENT when it differs. */
int checkpoint_check(const char *directory, const Model *model, int update);
/* Has a checkpoint that passed checkpoint_check the momentum that `update` goes on from? One that
 * has some where none is wanted will do. ERR_ARGUMENT when not. */
int checkpoint_check_momentum(const char *directory, const Model *model, const UpdateSpec *update);
/* Read every byte and compare the files' hashes: ERR_CORRUPT names the file. */
int checkpoint_verify(const char *directory);

/* The highest step whose manifest is sound and agrees with the sizes of its files; others are
 * passed over. ERR_NOT_FOUND: none (or no such folder). out_step may be NULL. */
int checkpoint_latest(const char *checkpoints, char out_directory[ORDER_PATH_BYTES],
                      int64_t *out_step);
/* The same among steps below `before`. */
int checkpoint_latest_before(const char *checkpoints, int64_t before,
                             char out_directory[ORDER_PATH_BYTES], int64_t *out_step);
/* Rename a damaged checkpoint to DIRECTORY.damaged-N, where nothing takes it for a step's. */
int checkpoint_set_aside(const char *directory);
/* Remove partial checkpoints and temporary files, and all but the keep_last newest sound ones
 * (0: keep all). Workers may be reading and writing steps from `before` on, so those, and
 * everything at and above the newest sound checkpoint, are left alone (INT64_MAX: there are no
 * workers, all may go). Entries that are no step's directory are never touched,
 * and neither is a directory with files in it that no checkpoint has. */
int checkpoint_clean(const char *checkpoints, int64_t keep_last, int64_t before);
/* Is it the name of a checkpoint's folder, or of one set aside; of a file in one? */
bool checkpoint_is_folder_name(const char *name);
bool checkpoint_is_file_name(const char *name);

/* ---- differences ---- */

typedef enum CheckpointDiffState {
    CHECKPOINT_EQUAL,  /* every bit */
    CHECKPOINT_VALUES, /* same type and shape, other values */
    CHECKPOINT_FORM,   /* other type or shape */
    CHECKPOINT_ONLY_A,
    CHECKPOINT_ONLY_B
} CheckpointDiffState;

typedef struct CheckpointDiffRow {
    char name[SAFETENSORS_NAME_BYTES];
    CheckpointDiffState state;
    double max_abs; /* largest |a-b|; infinite where only one is not a number */
    double max_rel; /* largest |a-b| / max(|a|,|b|) */
    double l2_rel;  /* |a-b|_2 / max(|a|_2,|b|_2) */
} CheckpointDiffRow;

typedef struct CheckpointDiff {
    int64_t n_rows;
    CheckpointDiffRow *rows;                /* by name */
    int64_t n_states[5];                    /* how many rows have each state */
    int64_t worst_abs, worst_rel, worst_l2; /* rows of the largest differences; -1: all equal */
} CheckpointDiff;

/* Compare two checkpoint directories (their manifests' files; without a manifest all .safetensors),
 * parameters and update state, or two .safetensors files, tensor by tensor. */
int checkpoint_diff(const char *path_a, const char *path_b, CheckpointDiff *out_diff);
void checkpoint_diff_done(CheckpointDiff *diff);
/* Nothing differs, not even a bit. */
bool checkpoint_diff_equal(const CheckpointDiff *diff);

#endif

#include "worker/save.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/clock.h"
#include "core/report.h"
#include "storage/manifest.h"
#include "storage/safetensors.h"

enum { SAVE_TRIES = 4, SAVE_BACKOFF_MS = 100 };

typedef struct SaveTensor {
    const ParamState *state;
    const float *from; /* device */
    float *copy;       /* host */
    bool update;       /* belongs to the update file */
    char name[SAFETENSORS_NAME_BYTES];
} SaveTensor;

struct Save {
    const Order *order;
    const Stage *stage;
    const Params *params;
    const WorkerEnv *env;
    Fetch fetch;
    SaveTensor *tensors;
    int32_t n_tensors;
    float *memory;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool thread_started, writing, closing;
    int64_t step, n_updates, n_skipped;
    ErrNote note; /* of the last write; code 0 when fine */
};

static void save_add(Save *save, const ParamState *state, const float *from, const char *suffix) {
    if (from == NULL) {
        return;
    }
    SaveTensor *tensor = &save->tensors[save->n_tensors++];
    tensor->state = state;
    tensor->from = from;
    tensor->update = suffix != NULL;
    snprintf(tensor->name, sizeof tensor->name, "%s%s", state->meta->name,
             suffix != NULL ? suffix : "");
}

static int save_list(Save *save) {
    const Params *params = save->params;
    const UpdateKind update = save->order->update.kind;
    save->tensors = calloc((size_t)params->n_states * 3 + 1, sizeof *save->tensors);
    if (save->tensors == NULL) {
        return err_set(ERR_MEMORY, "the list of tensors to save does not fit into memory");
    }
    size_t n = 0;
    for (int32_t i = 0; i < params->n_states && save->order->replica == 0; i++) {
        const ParamState *state = &params->states[i];
        if (state->owner) {
            save_add(save, state, state->w, NULL);
            save_add(save, state, state->m, manifest_state_suffix(update, 0));
            save_add(save, state, state->v, manifest_state_suffix(update, 1));
        }
    }
    for (int32_t i = 0; i < save->n_tensors; i++) {
        const ParamState *state = save->tensors[i].state;
        assert(state != NULL);
        n += (size_t)state->n;
    }
    save->memory = calloc(n + 1, sizeof *save->memory);
    if (save->memory == NULL) {
        return err_set(ERR_MEMORY, "a copy of the parameters to save (%zu bytes) does not fit",
                       n * sizeof(float));
    }
    float *at = save->memory;
    for (int32_t i = 0; i < save->n_tensors; i++) {
        save->tensors[i].copy = at;
        at += save->tensors[i].state->n;
    }
    return 0;
}

static int save_make_directory(const char *path) {
    if (mkdir(path, 0755) != 0 && errno != EEXIST) {
        return err_errno(errno == ENOSPC ? ERR_FULL : ERR_IO, errno, "directory '%s'", path);
    }
    return 0;
}

static int save_write_file(Save *save, bool update, SavedFile *out_file) {
    char path[ORDER_PATH_BYTES + MANIFEST_NAME_BYTES + 32], step[24], updates[24], skipped[24];
    SafetensorsWritten written = {0};
    manifest_file_name(update, save->stage->index, save->stage->n_stages, out_file->name);
    int used =
        snprintf(path, sizeof path, "%s/%lld", save->order->store_path, (long long)save->step);
    TRY(save_make_directory(path));
    snprintf(path + used, sizeof path - (size_t)used, "/%s", out_file->name);
    snprintf(step, sizeof step, "%lld", (long long)save->step);
    snprintf(updates, sizeof updates, "%lld", (long long)save->n_updates);
    snprintf(skipped, sizeof skipped, "%lld", (long long)save->n_skipped);
    const SafetensorsMeta metadata[] = {
        {"format", "pt"}, {"step", step}, {"updates", updates}, {"skipped", skipped}};
    SafetensorsTensor *tensors = calloc((size_t)save->n_tensors + 1, sizeof *tensors);
    if (tensors == NULL) {
        return err_set(ERR_MEMORY, "the list of tensors to save does not fit into memory");
    }
    int n = 0;
    for (int32_t i = 0; i < save->n_tensors; i++) {
        const SaveTensor *tensor = &save->tensors[i];
        if (tensor->update == update) {
            tensors[n++] = (SafetensorsTensor){tensor->name, DTYPE_F32, tensor->state->meta->shape,
                                               tensor->copy};
        }
    }
    int rc = safetensors_write(path, tensors, n, metadata, 4, &written);
    free(tensors);
    out_file->bytes = written.bytes;
    out_file->xxh3 = written.xxh3;
    return rc;
}

/* The folder may have gone between its making and its use: a save of this step by an earlier
 * attempt, finished and already old, was cleaned away. */
static bool save_worth_retry(int code) {
    return err_retry(code) || code == ERR_NOT_FOUND;
}

static int save_try_file(Save *save, bool update, SavedFile *out_file) {
    for (int attempt = 1;; attempt++) {
        int rc = save_write_file(save, update, out_file);
        if (rc >= 0 || !save_worth_retry(rc) || attempt == SAVE_TRIES) {
            return rc < 0 ? err_context(rc, "save of step %lld failed %d times",
                                        (long long)save->step, attempt)
                          : rc;
        }
        if (save->env->say != NULL) {
            char line[ERR_NOTE_BYTES + 128];
            snprintf(line, sizeof line, "save of step %lld: try %d of %d failed: %s",
                     (long long)save->step, attempt, SAVE_TRIES, err_text());
            save->env->say(save->env->ctx, line);
        }
        clock_sleep_until(clock_deadline_ms((int64_t)SAVE_BACKOFF_MS << attempt));
    }
}

/* Write both files (replica 0) and say so. */
static int save_write(Save *save) {
    int rc = 0;
    Saved saved = {0};
    Buf text;
    buf_init(&text, 0);
    for (int update = 0; update < 2 && save->order->replica == 0; update++) {
        TRY_DONE(save_try_file(save, update == 1, &saved.files[saved.n_files]));
        saved.n_files++;
    }
    TRY_DONE(report_format_saved(&saved, &text));
    TRY_DONE(fetch_put_bytes(
        &save->fetch,
        key_saved(&save->fetch.space, save->step, save->stage->index, save->order->replica),
        text.data, text.bytes));
done:
    buf_done(&text);
    return rc < 0 ? rc : 0;
}

static void *save_thread(void *arg) {
    Save *save = arg;
    pthread_setname_np(pthread_self(), "save");
    pthread_mutex_lock(&save->lock);
    for (;;) {
        while (!save->writing && !save->closing) {
            pthread_cond_wait(&save->changed, &save->lock);
        }
        if (!save->writing) {
            break;
        }
        pthread_mutex_unlock(&save->lock);
        ErrNote note = {0};
        if (save_write(save) < 0) {
            err_copy(&note);
        }
        pthread_mutex_lock(&save->lock);
        save->note = note;
        save->writing = false;
        pthread_cond_broadcast(&save->changed);
    }
    pthread_mutex_unlock(&save->lock);
    return NULL;
}

int save_open(const Order *order, const Stage *stage, const Params *params, const WorkerEnv *env,
              Relay *take_relay, Save **out_save) {
    int rc = 0;
    Save *save = calloc(1, sizeof *save);
    if (save == NULL) {
        relay_close(take_relay);
        return err_set(ERR_MEMORY, "the saver does not fit into memory");
    }
    save->order = order;
    save->stage = stage;
    save->params = params;
    save->env = env;
    pthread_mutex_init(&save->lock, NULL);
    pthread_cond_init(&save->changed, NULL);
    rc = fetch_init(&save->fetch, order, take_relay);
    if (rc >= 0) {
        rc = save_list(save);
    }
    if (rc >= 0 && pthread_create(&save->thread, NULL, save_thread, save) != 0) {
        rc = err_set(ERR_MEMORY, "the saver's thread could not be started");
    }
    if (rc < 0) {
        save_close(save);
        return rc;
    }
    save->thread_started = true;
    *out_save = save;
    return 0;
}

Fetch *save_fetch(Save *save) {
    return &save->fetch;
}

void save_close(Save *save) {
    if (save == NULL) {
        return;
    }
    if (save->thread_started) {
        pthread_mutex_lock(&save->lock);
        save->closing = true;
        pthread_cond_broadcast(&save->changed);
        pthread_mutex_unlock(&save->lock);
        pthread_join(save->thread, NULL);
    }
    fetch_done(&save->fetch);
    pthread_mutex_destroy(&save->lock);
    pthread_cond_destroy(&save->changed);
    free(save->tensors);
    free(save->memory);
    free(save);
}

int save_wait(Save *save) {
    pthread_mutex_lock(&save->lock);
    while (save->writing) {
        pthread_cond_wait(&save->changed, &save->lock);
    }
    ErrNote note = save->note;
    pthread_mutex_unlock(&save->lock);
    return note.code < 0 ? err_restore(&note) : 0;
}

int save_begin(Save *save, Stream *stream, int64_t step) {
    TRY(save_wait(save));
    for (int32_t i = 0; i < save->n_tensors; i++) {
        const SaveTensor *tensor = &save->tensors[i];
        TRY(save->params->ops->copy(stream, tensor->copy, tensor->from,
                                    (size_t)tensor->state->n * sizeof(float)));
    }
    TRY(save->params->ops->stream_sync(stream));
    pthread_mutex_lock(&save->lock);
    save->step = step;
    save->n_updates = save->params->n_updates;
    save->n_skipped = save->params->n_skipped;
    save->writing = true;
    pthread_cond_broadcast(&save->changed);
    pthread_mutex_unlock(&save->lock);
    return 0;
}

#include <string.h>

#include "core/err.h"
#include "storage/dataset_array.h"

int dataset_tokens_open(const DataSpec *spec, DataTokens *out_tokens) {
    const char *path = spec->input_path;
    DType dtype = spec->token_dtype;
    if (dtype != DTYPE_U8 && dtype != DTYPE_U16 && dtype != DTYPE_I32 && dtype != DTYPE_U32)
        return err_set(ERR_ARGUMENT, "'%s': tokens of type %s (expected U8, U16, I32 or U32)", path,
                       dtype_name(dtype));
    DataTokens tokens = {.dtype = dtype};
    TRY(dataset_file_open(path, &spec->marks[0], &tokens.file));
    tokens.data = tokens.file.map;
    size_t bytes = dtype_bytes(dtype);
    tokens.n_tokens = (int64_t)(tokens.file.bytes / bytes);
    int rc = 0;
    if (tokens.file.bytes % bytes != 0)
        rc = err_set(ERR_FORMAT, "'%s': its %zu bytes are no whole number of %s tokens", path,
                     tokens.file.bytes, dtype_name(dtype));
    else if ((tokens.n_tokens - 1) / spec->context < 1)
        rc = err_set(ERR_FORMAT, "'%s': its %lld tokens make no sample of context %lld and target",
                     path, (long long)tokens.n_tokens, (long long)spec->context);
    if (rc < 0) {
        dataset_tokens_done(&tokens);
        return rc;
    }
    *out_tokens = tokens;
    return 0;
}

void dataset_tokens_done(DataTokens *tokens) {
    if (!tokens)
        return;
    dataset_file_done(&tokens->file);
    *tokens = (DataTokens){0};
}

/* An id as a signed number of 64 bits, so that no token looks valid by wrapping around. */
static int64_t load_token(const DataTokens *tokens, int64_t index) {
    const uint8_t *at = tokens->data + (size_t)index * dtype_bytes(tokens->dtype);
    uint16_t half;
    uint32_t word;
    switch (tokens->dtype) {
    case DTYPE_U8:
        return *at;
    case DTYPE_U16:
        memcpy(&half, at, sizeof half);
        return half;
    case DTYPE_I32:
        memcpy(&word, at, sizeof word);
        return (int32_t)word;
    default:
        memcpy(&word, at, sizeof word);
        return word;
    }
}

int dataset_tokens_read(const DataTokens *tokens, const DataSpec *spec, int64_t sample, int shift,
                        int32_t *out) {
    int64_t first = sample * spec->context + shift;
    int64_t vocab = shift && spec->classes > 0 ? spec->classes : spec->vocab;
    for (int64_t i = 0; i < spec->context; i++) {
        int64_t id = load_token(tokens, first + i);
        bool ignored = shift && spec->has_ignore && id == spec->ignore_index;
        if ((id < 0 || id >= vocab) && !ignored)
            return err_set(ERR_FORMAT,
                           "'%s': sample %lld, position %lld: token %lld is not in [0, %lld)",
                           spec->input_path, (long long)sample, (long long)(i + shift),
                           (long long)id, (long long)vocab);
        out[i] = (int32_t)id;
    }
    return 0;
}

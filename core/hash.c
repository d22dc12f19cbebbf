#include "core/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
/* The library is built for any processor of its kind; this chooses AVX2 or AVX-512 at run time. But
 * where all of it is compiled in (XXH_INLINE_ALL), nothing of it is linked. */
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>) && !defined(XXH_INLINE_ALL)
#include <xxh_x86dispatch.h> /* makes XXH3_64bits a choice */
#endif

#include "core/err.h"

struct HashState {
    XXH3_state_t *xxh3; /* made by the library, which knows its alignment */
};

uint64_t hash_bytes(const void *data, size_t bytes) {
    return XXH3_64bits(data, bytes);
}

uint64_t hash_text(const char *text) {
    return XXH3_64bits(text, strlen(text));
}

const char *hash_format(uint64_t hash, char out_hex[HASH_HEX_BYTES]) {
    snprintf(out_hex, HASH_HEX_BYTES, "%016llx", (unsigned long long)hash);
    return out_hex;
}

int hash_parse(const char *hex, uint64_t *out_hash) {
    uint64_t value = 0;
    size_t n = 0;
    for (; hex[n] && n < HASH_HEX_BYTES; n++) {
        char c = hex[n];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0)
            break;
        value = value << 4 | (uint64_t)digit;
    }
    if (n != HASH_HEX_BYTES - 1 || hex[n])
        return err_set(ERR_FORMAT, "'%.40s' is no hash of 16 hex digits", hex);
    *out_hash = value;
    return 0;
}

int hash_open(HashState **out_state) {
    HashState *state = malloc(sizeof *state);
    XXH3_state_t *xxh3 = XXH3_createState();
    if (!state || !xxh3) {
        free(state);
        XXH3_freeState(xxh3);
        return err_set(ERR_MEMORY, "the state of a hash");
    }
    state->xxh3 = xxh3;
    XXH3_64bits_reset(xxh3);
    *out_state = state;
    return 0;
}

void hash_close(HashState *state) {
    if (!state)
        return;
    XXH3_freeState(state->xxh3);
    free(state);
}

void hash_reset(HashState *state) {
    XXH3_64bits_reset(state->xxh3);
}

void hash_add(HashState *state, const void *data, size_t bytes) {
    if (bytes > 0)
        XXH3_64bits_update(state->xxh3, data, bytes);
}

uint64_t hash_value(const HashState *state) {
    return XXH3_64bits_digest(state->xxh3);
}

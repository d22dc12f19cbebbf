/* Hashes: XXH3 for content (not for secrets). */
#ifndef FUNCPIPE_CORE_HASH_H
#define FUNCPIPE_CORE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t hash_bytes(const void *data, size_t bytes);
uint64_t hash_text(const char *text);
/* As 16 hex digits, and back: ERR_FORMAT names what is none. */
enum { HASH_HEX_BYTES = 17 };
const char *hash_format(uint64_t hash, char out_hex[HASH_HEX_BYTES]);
int hash_parse(const char *hex, uint64_t *out_hash);
/* Streaming form over several pieces: same value as hash_bytes over their concatenation. */
typedef struct HashState HashState;
int hash_open(HashState **out_state);
void hash_close(HashState *state);
void hash_reset(HashState *state);
void hash_add(HashState *state, const void *data, size_t bytes);
uint64_t hash_value(const HashState *state);

#endif

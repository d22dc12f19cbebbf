/* A set of prefixes of keys, asked of many keys: is one at or under any of them? Costs the depth of
 * the key times the logarithm of the set's size, so that one pass over a store's keys serves as
 * many prefixes as there are. */
#ifndef FUNCPIPE_STORAGE_PREFIX_SET_H
#define FUNCPIPE_STORAGE_PREFIX_SET_H

#include <stdbool.h>
#include <stddef.h>

typedef struct PrefixSet {
    int n;
    const char **items; /* sorted */
} PrefixSet;

/* The prefixes are borrowed until prefix_set_done. "" covers every key. ERR_MEMORY. */
int prefix_set_init(PrefixSet *set, const char *const *prefixes, int n);
void prefix_set_done(PrefixSet *set);
/* The key is the first `bytes` characters of `key`. */
bool prefix_set_covers(const PrefixSet *set, const char *key, size_t bytes);
/* How many characters of the first prefix all of them begin with. */
size_t prefix_set_common(const PrefixSet *set);

#endif

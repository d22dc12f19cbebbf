#include "storage/prefix_set.h"

#include <stdlib.h>
#include <string.h>

#include "core/err.h"

static int compare(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int prefix_set_init(PrefixSet *set, const char *const *prefixes, int n) {
    set->n = n;
    set->items = calloc((size_t)n + 1, sizeof *set->items);
    if (!set->items)
        return err_set(ERR_MEMORY, "%d prefixes", n);
    for (int i = 0; i < n; i++)
        set->items[i] = prefixes[i];
    qsort(set->items, (size_t)n, sizeof *set->items, compare);
    return 0;
}

void prefix_set_done(PrefixSet *set) {
    free(set->items);
    *set = (PrefixSet){0};
}

/* Is the text of `bytes` characters one of the prefixes? */
static bool holds(const PrefixSet *set, const char *text, size_t bytes) {
    int first = 0;
    int end = set->n;
    while (first < end) {
        int middle = first + (end - first) / 2;
        const char *item = set->items[middle];
        int order = strncmp(item, text, bytes);
        if (order == 0 && item[bytes] == '\0')
            return true;
        if (order < 0)
            first = middle + 1;
        else
            end = middle;
    }
    return false;
}

bool prefix_set_covers(const PrefixSet *set, const char *key, size_t bytes) {
    if (set->n > 0 && set->items[0][0] == '\0')
        return true;
    for (size_t end = 1; end <= bytes; end++) {
        if ((end == bytes || key[end] == '/') && holds(set, key, end))
            return true;
    }
    return false;
}

size_t prefix_set_common(const PrefixSet *set) {
    size_t n = 0;
    if (set->n == 0)
        return 0;
    const char *first = set->items[0]; /* and the last are the two that differ the most */
    const char *last = set->items[set->n - 1];
    while (first[n] && first[n] == last[n])
        n++;
    return n;
}

#include "storage/relay_mem_table.h"

#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/hash.h"

int relay_mem_table_init(Table *table) {
    table->n_buckets = 64;
    table->n_entries = 0;
    table->buckets = calloc(table->n_buckets, sizeof(Entry *));
    return table->buckets ? 0 : err_set(ERR_MEMORY, "a memory relay");
}

void relay_mem_entry_free(Entry *entry) {
    if (entry->bytes && --entry->bytes->n_refs == 0)
        free(entry->bytes);
    sum_close(entry->sum);
    free(entry);
}

void relay_mem_table_done(Table *table) {
    for (size_t i = 0; table->buckets && i < table->n_buckets; i++) {
        for (Entry *next, *at = table->buckets[i]; at; at = next) {
            next = at->next;
            relay_mem_entry_free(at);
        }
    }
    free(table->buckets);
}

Entry *relay_mem_table_find(const Table *table, const char *key) {
    uint64_t hash = hash_text(key);
    for (Entry *at = table->buckets[hash & (table->n_buckets - 1)]; at; at = at->next) {
        if (at->hash == hash && strcmp(at->key, key) == 0)
            return at;
    }
    return NULL;
}

/* Doubles the buckets; without memory for that the chains only grow longer. */
static void relay_mem_table_grow(Table *table) {
    size_t n_buckets = table->n_buckets * 2;
    Entry **buckets = calloc(n_buckets, sizeof(Entry *));
    if (!buckets)
        return;
    for (size_t i = 0; i < table->n_buckets; i++) {
        for (Entry *next, *at = table->buckets[i]; at; at = next) {
            next = at->next;
            at->next = buckets[at->hash & (n_buckets - 1)];
            buckets[at->hash & (n_buckets - 1)] = at;
        }
    }
    free(table->buckets);
    table->buckets = buckets;
    table->n_buckets = n_buckets;
}

void relay_mem_table_add(Table *table, Entry *take_entry) {
    if (table->n_entries >= table->n_buckets)
        relay_mem_table_grow(table);
    Entry **bucket = &table->buckets[take_entry->hash & (table->n_buckets - 1)];
    take_entry->next = *bucket;
    *bucket = take_entry;
    table->n_entries++;
}

bool relay_mem_under(const char *key, const char *prefix) {
    size_t length = strlen(prefix);
    if (length == 0)
        return true;
    return strncmp(key, prefix, length) == 0 && (key[length] == '/' || key[length] == '\0');
}

int64_t relay_mem_table_drop(Table *table, const PrefixSet *prefixes) {
    int64_t n_dropped = 0;
    for (size_t i = 0; i < table->n_buckets; i++) {
        for (Entry **at = &table->buckets[i]; *at;) {
            Entry *entry = *at;
            if (!prefix_set_covers(prefixes, entry->key, strlen(entry->key))) {
                at = &entry->next;
                continue;
            }
            *at = entry->next;
            relay_mem_entry_free(entry);
            n_dropped++;
        }
    }
    table->n_entries -= (size_t)n_dropped;
    return n_dropped;
}

/* Take one entry out, for the caller to free. */
void relay_mem_table_take(Table *table, const Entry *entry) {
    Entry **at = &table->buckets[entry->hash & (table->n_buckets - 1)];
    while (*at != entry)
        at = &(*at)->next;
    *at = entry->next;
    table->n_entries--;
}

int64_t relay_mem_table_count(const Table *table, const char *prefix) {
    int64_t count = 0;
    for (size_t i = 0; i < table->n_buckets; i++) {
        for (const Entry *at = table->buckets[i]; at; at = at->next)
            count += relay_mem_under(at->key, prefix);
    }
    return count;
}

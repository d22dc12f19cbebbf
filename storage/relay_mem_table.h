/* The memory relay's hash tables: entries by key. Nothing here locks. */
#ifndef FUNCPIPE_STORAGE_RELAY_MEM_TABLE_H
#define FUNCPIPE_STORAGE_RELAY_MEM_TABLE_H

#include "storage/prefix_set.h"
#include "storage/relay.h"
#include "storage/sum.h"

typedef struct Bytes {
    size_t bytes;
    int n_refs; /* under the store's lock */
    unsigned char data[];
} Bytes;

typedef struct Entry {
    struct Entry *next;
    uint64_t hash;
    Bytes *bytes;               /* but of sums */
    Sum *sum;                   /* of sums */
    int64_t put_ns, expires_ns; /* the latter of notes */
    bool read;                  /* objects: some get had it */
    char key[RELAY_KEY_BYTES];
} Entry;

typedef struct Copy { /* of an entry, for a survey */
    bool notes;
    int64_t put_ns, expires_ns;
    size_t bytes;
    char key[RELAY_KEY_BYTES];
} Copy;

typedef struct Table {
    Entry **buckets;
    size_t n_buckets; /* power of two */
    size_t n_entries;
} Table;

int relay_mem_table_init(Table *table);
void relay_mem_table_done(Table *table);
Entry *relay_mem_table_find(const Table *table, const char *key);
void relay_mem_table_add(Table *table, Entry *take_entry);
/* Drop what lies under the prefixes: how many. */
int64_t relay_mem_table_drop(Table *table, const PrefixSet *prefixes);
/* Take one entry out, for the caller to free. */
void relay_mem_table_take(Table *table, const Entry *entry);
int64_t relay_mem_table_count(const Table *table, const char *prefix);
void relay_mem_entry_free(Entry *entry); /* and its bytes, when nobody else has them */
bool relay_mem_under(const char *key, const char *prefix); /* "": all are */

#endif

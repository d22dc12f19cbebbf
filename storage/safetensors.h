/* safetensors files (u64 header length, JSON header, tensor bytes), bounded and strict: duplicate
 * names, overlaps, gaps, sizes that do not fit dtype x shape, headers over 100 MB or beyond the
 * file are refused in one sentence before anything large is allocated. Unaligned data is fine. */
#ifndef FUNCPIPE_STORAGE_SAFETENSORS_H
#define FUNCPIPE_STORAGE_SAFETENSORS_H

#include "core/dtype.h"

enum { SAFETENSORS_NAME_BYTES = 256 };

typedef struct SafetensorsEntry {
    char name[SAFETENSORS_NAME_BYTES];
    DType dtype;
    Shape shape;
    uint64_t offset, bytes; /* offset from the start of the data section */
} SafetensorsEntry;

typedef struct Safetensors Safetensors;

int safetensors_open(const char *path, Safetensors **out_file);
/* From memory (borrowed), `what` names it in errors: for tests and fuzzing. */
int safetensors_open_memory(const char *what, const void *data, size_t bytes,
                            Safetensors **out_file);
void safetensors_close(Safetensors *file);
int safetensors_count(const Safetensors *file);
const SafetensorsEntry *safetensors_at(const Safetensors *file, int index); /* file order */
const SafetensorsEntry *safetensors_find(const Safetensors *file, const char *name); /* or NULL */
/* Value of a __metadata__ key, or NULL. */
const char *safetensors_metadata(const Safetensors *file, const char *key);
int safetensors_read(const Safetensors *file, const SafetensorsEntry *entry, void *out,
                     size_t capacity);

typedef struct SafetensorsTensor {
    const char *name;
    DType dtype;
    Shape shape;
    const void *data; /* borrowed */
} SafetensorsTensor;

typedef struct SafetensorsMeta {
    const char *key, *value;
} SafetensorsMeta;

typedef struct SafetensorsWritten {
    int64_t bytes;
    uint64_t xxh3; /* hash_bytes of what was meant to be written: what is read later can be
                    * compared with it */
} SafetensorsWritten;

/* Write a file as core/file.h does (errors too). Tensors in name order, header padded so that data
 * starts at a multiple of 64. Same tensors, same bytes. out_written may be NULL. */
int safetensors_write(const char *path, const SafetensorsTensor *tensors, int n_tensors,
                      const SafetensorsMeta *metadata, int n_metadata,
                      SafetensorsWritten *out_written);

#endif

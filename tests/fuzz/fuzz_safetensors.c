#include <stdlib.h>

#include "storage/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    Safetensors *file = NULL;
    if (safetensors_open_memory("fuzz", data, bytes, &file) < 0)
        return 0;
    for (int i = 0; i < safetensors_count(file); i++) {
        const SafetensorsEntry *entry = safetensors_at(file, i);
        if (safetensors_find(file, entry->name) != entry || entry->bytes > bytes)
            abort();
        void *out = malloc((size_t)entry->bytes + 1);
        if (!out || safetensors_read(file, entry, out, (size_t)entry->bytes) < 0)
            abort();
        free(out);
    }
    safetensors_metadata(file, "format");
    safetensors_close(file);
    return 0;
}

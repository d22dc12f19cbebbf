#include "storage/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/err.h"
#include "core/json.h"
#include "core/text.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors data is little-endian");

enum { PREFIX_BYTES = 8, MAX_TENSORS = 1 << 20, PEEK_BYTES = 64 };
#define MAX_HEADER_BYTES UINT64_C(100000000)
#define MAX_EXACT 9007199254740992.0 /* 2^53: JSON numbers below it are exact */

struct Safetensors {
    char *what;
    int fd;                /* -1: in memory */
    const uint8_t *memory; /* borrowed */
    uint64_t bytes;        /* of the whole file */
    uint64_t data_start;
    int n_entries;
    SafetensorsEntry *entries;        /* by offset */
    const SafetensorsEntry **by_name; /* the same, sorted by name */
    cJSON *metadata;                  /* NULL: none */
};

static int read_at(const Safetensors *file, uint64_t offset, void *out, size_t bytes) {
    if (file->fd < 0) {
        if (bytes)
            memcpy(out, file->memory + offset, bytes);
        return 0;
    }
    char *to = out;
    while (bytes > 0) {
        ssize_t n = pread(file->fd, to, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(ERR_IO, errno, "reading '%s'", file->what);
        if (n == 0)
            return err_set(ERR_CORRUPT, "'%s' was cut short at byte %llu while it was read",
                           file->what, (unsigned long long)offset);
        to += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* ---- what a file that is no safetensors file may be ---- */

typedef struct Look {
    const char *start;
    size_t bytes;
    const char *words;
} Look;

static const char *look_of(const Safetensors *file) {
    static const Look looks[] = {
        {"\x80\x02", 2, " (it looks like a Python pickle)"},
        {"\x80\x03", 2, " (it looks like a Python pickle)"},
        {"\x80\x04", 2, " (it looks like a Python pickle)"},
        {"\x80\x05", 2, " (it looks like a Python pickle)"},
        {"PK\x03\x04", 4, " (it looks like a zip archive, such as a PyTorch checkpoint)"},
        {"version https://git-lfs", 23,
         " (it looks like a Git LFS pointer: the file itself was not fetched)"},
        {"<!DOCTYPE", 9, " (it looks like an HTML page)"},
        {"<!doctype", 9, " (it looks like an HTML page)"},
        {"<html", 5, " (it looks like an HTML page)"},
        {"<?xml", 5, " (it looks like an XML answer)"},
        {"\x1f\x8b", 2, " (it looks like a gzip file)"},
        {"\x93NUMPY", 6, " (it looks like a NumPy array)"},
        {"\x89HDF", 4, " (it looks like an HDF5 file)"},
        {"GGUF", 4, " (it looks like a GGUF file)"},
        {"{", 1, " (it looks like JSON text)"},
    };
    char start[PEEK_BYTES];
    size_t bytes = file->bytes < PEEK_BYTES ? (size_t)file->bytes : PEEK_BYTES;
    if (read_at(file, 0, start, bytes) < 0)
        return "";
    for (size_t i = 0; i < sizeof looks / sizeof looks[0]; i++) {
        if (bytes >= looks[i].bytes && memcmp(start, looks[i].start, looks[i].bytes) == 0)
            return looks[i].words;
    }
    return "";
}

/* ---- the header ---- */

static bool whole_number(const cJSON *value, uint64_t *out) {
    if (!cJSON_IsNumber(value) || !(value->valuedouble >= 0 && value->valuedouble < MAX_EXACT))
        return false;
    *out = (uint64_t)value->valuedouble;
    return (double)*out == value->valuedouble;
}

static int parse_shape(const Safetensors *file, const cJSON *value, SafetensorsEntry *entry) {
    if (!cJSON_IsArray(value))
        return err_set(ERR_FORMAT, "'%s': tensor '%s': the shape is not an array", file->what,
                       entry->name);
    entry->shape = (Shape){0};
    for (const cJSON *dim = value->child; dim; dim = dim->next) {
        uint64_t size;
        if (!whole_number(dim, &size))
            return err_set(ERR_FORMAT, "'%s': tensor '%s': dim %d is not a whole number",
                           file->what, entry->name, entry->shape.n_dims);
        if (entry->shape.n_dims == SHAPE_MAX_DIMS)
            return err_set(ERR_LIMIT, "'%s': tensor '%s' has more than %d dims", file->what,
                           entry->name, SHAPE_MAX_DIMS);
        entry->shape.dims[entry->shape.n_dims++] = (int64_t)size;
    }
    return 0;
}

static int parse_offsets(const Safetensors *file, const cJSON *value, SafetensorsEntry *entry) {
    const cJSON *first = cJSON_IsArray(value) ? value->child : NULL;
    const cJSON *second = first ? first->next : NULL;
    uint64_t begin;
    uint64_t end;
    if (!second || second->next || !whole_number(first, &begin) || !whole_number(second, &end))
        return err_set(ERR_FORMAT, "'%s': tensor '%s': data_offsets are not two whole numbers",
                       file->what, entry->name);
    if (begin > end)
        return err_set(ERR_FORMAT, "'%s': tensor '%s': data_offsets [%llu, %llu] are reversed",
                       file->what, entry->name, (unsigned long long)begin, (unsigned long long)end);
    uint64_t data_bytes = file->bytes - file->data_start;
    if (end > data_bytes)
        return err_set(ERR_FORMAT, "'%s': tensor '%s' ends at data byte %llu, the file has %llu",
                       file->what, entry->name, (unsigned long long)end,
                       (unsigned long long)data_bytes);
    entry->offset = begin;
    entry->bytes = end - begin;
    return 0;
}

static int check_size(const Safetensors *file, const SafetensorsEntry *entry) {
    char shape[160];
    int64_t elements = shape_elements(&entry->shape);
    if (elements < 0)
        return err_context((int)elements, "'%s': tensor '%s'", file->what, entry->name);
    uint64_t need = (uint64_t)elements * dtype_bytes(entry->dtype);
    if (need != entry->bytes)
        return err_set(ERR_FORMAT, "'%s': tensor '%s': %s %s needs %llu bytes, it has %llu",
                       file->what, entry->name, dtype_name(entry->dtype),
                       shape_format(&entry->shape, shape, sizeof shape), (unsigned long long)need,
                       (unsigned long long)entry->bytes);
    return 0;
}

static int parse_entry(const Safetensors *file, const cJSON *value, SafetensorsEntry *entry) {
    if (text_copy(entry->name, sizeof entry->name, value->string) < 0)
        return err_set(ERR_LIMIT, "'%s': the tensor name '%.80s...' is longer than %d bytes",
                       file->what, value->string, SAFETENSORS_NAME_BYTES - 1);
    if (!cJSON_IsObject(value))
        return err_set(ERR_FORMAT, "'%s': tensor '%s' is not described by an object", file->what,
                       entry->name);
    const cJSON *dtype = NULL;
    const cJSON *shape = NULL;
    const cJSON *offsets = NULL;
    for (const cJSON *field = value->child; field; field = field->next) {
        const cJSON **slot = strcmp(field->string, "dtype") == 0          ? &dtype
                             : strcmp(field->string, "shape") == 0        ? &shape
                             : strcmp(field->string, "data_offsets") == 0 ? &offsets
                                                                          : NULL;
        if (!slot)
            return err_set(ERR_FORMAT, "'%s': tensor '%s' has the unknown key '%s'", file->what,
                           entry->name, field->string);
        *slot = field;
    }
    if (!dtype || !shape || !offsets)
        return err_set(ERR_FORMAT, "'%s': tensor '%s' has no '%s'", file->what, entry->name,
                       !dtype   ? "dtype"
                       : !shape ? "shape"
                                : "data_offsets");
    if (!cJSON_IsString(dtype))
        return err_set(ERR_FORMAT, "'%s': tensor '%s': the dtype is not text", file->what,
                       entry->name);
    int rc = dtype_parse(dtype->valuestring, &entry->dtype);
    if (rc < 0)
        return err_context(rc, "'%s': tensor '%s'", file->what, entry->name);
    TRY(parse_shape(file, shape, entry));
    TRY(parse_offsets(file, offsets, entry));
    return check_size(file, entry);
}

static int check_metadata(const Safetensors *file, const cJSON *metadata) {
    if (!cJSON_IsObject(metadata))
        return err_set(ERR_FORMAT, "'%s': __metadata__ is not an object", file->what);
    for (const cJSON *item = metadata->child; item; item = item->next) {
        if (!cJSON_IsString(item))
            return err_set(ERR_FORMAT, "'%s': __metadata__ '%s' is not text", file->what,
                           item->string);
    }
    return 0;
}

static int order_offset(const void *left, const void *right) {
    const SafetensorsEntry *a = left;
    const SafetensorsEntry *b = right;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    if (a->bytes != b->bytes) /* an empty tensor comes before the one that starts there */
        return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

static int order_name(const void *left, const void *right) {
    const SafetensorsEntry *const *a = left;
    const SafetensorsEntry *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

/* Every byte of the data section belongs to exactly one tensor. */
static int check_cover(Safetensors *file) {
    qsort(file->entries, (size_t)file->n_entries, sizeof file->entries[0], order_offset);
    uint64_t end = 0;
    for (int i = 0; i < file->n_entries; i++) {
        const SafetensorsEntry *entry = &file->entries[i];
        if (entry->offset < end)
            return err_set(ERR_FORMAT, "'%s': tensors '%s' and '%s' overlap at data byte %llu",
                           file->what, file->entries[i - 1].name, entry->name,
                           (unsigned long long)entry->offset);
        if (entry->offset > end)
            return err_set(ERR_FORMAT,
                           "'%s': a gap: data bytes %llu to %llu before tensor '%s' belong to "
                           "no tensor",
                           file->what, (unsigned long long)end, (unsigned long long)entry->offset,
                           entry->name);
        end = entry->offset + entry->bytes;
    }
    uint64_t data_bytes = file->bytes - file->data_start;
    if (end != data_bytes)
        return err_set(ERR_FORMAT, "'%s': %llu bytes follow the last tensor", file->what,
                       (unsigned long long)(data_bytes - end));
    return 0;
}

static int index_entries(Safetensors *file) {
    size_t n = (size_t)file->n_entries;
    file->by_name = malloc((n + 1) * sizeof(SafetensorsEntry *));
    if (!file->by_name)
        return err_set(ERR_MEMORY, "the index of '%s'", file->what);
    for (size_t i = 0; i < n; i++)
        file->by_name[i] = &file->entries[i];
    qsort(file->by_name, n, sizeof(SafetensorsEntry *), order_name);
    for (size_t i = 1; i < n; i++) {
        if (strcmp(file->by_name[i - 1]->name, file->by_name[i]->name) == 0)
            return err_set(ERR_FORMAT, "'%s': duplicate key '%s'", file->what,
                           file->by_name[i]->name);
    }
    return 0;
}

/* Fill entries and metadata from the parsed header (its metadata is detached). */
static int take_header(Safetensors *file, cJSON *root) {
    int n_children = cJSON_GetArraySize(root);
    if (n_children > MAX_TENSORS)
        return err_set(ERR_LIMIT, "'%s' lists %d tensors (at most %d are allowed)", file->what,
                       n_children, MAX_TENSORS);
    file->entries = calloc((size_t)n_children + 1, sizeof file->entries[0]);
    if (!file->entries)
        return err_set(ERR_MEMORY, "the %d tensor entries of '%s'", n_children, file->what);
    cJSON *metadata = NULL;
    for (cJSON *child = root->child; child; child = child->next) {
        if (strcmp(child->string, "__metadata__") == 0) {
            TRY(check_metadata(file, child));
            metadata = child;
        } else {
            TRY(parse_entry(file, child, &file->entries[file->n_entries]));
            file->n_entries++;
        }
    }
    if (metadata)
        file->metadata = cJSON_DetachItemViaPointer(root, metadata);
    TRY(check_cover(file));
    return index_entries(file);
}

static int check_length(const Safetensors *file, uint64_t length) {
    if (length < 2)
        return err_set(ERR_FORMAT, "'%s' is no safetensors file: its header length is %llu%s",
                       file->what, (unsigned long long)length, look_of(file));
    if (length > file->bytes - PREFIX_BYTES)
        return err_set(ERR_FORMAT,
                       "'%s' is no safetensors file: its header length of %llu bytes is beyond "
                       "the file's %llu%s",
                       file->what, (unsigned long long)length, (unsigned long long)file->bytes,
                       look_of(file));
    if (length > MAX_HEADER_BYTES)
        return err_set(ERR_LIMIT, "'%s': the header of %llu bytes is beyond the %llu allowed",
                       file->what, (unsigned long long)length,
                       (unsigned long long)MAX_HEADER_BYTES);
    return 0;
}

static int load_header(Safetensors *file) {
    if (file->bytes < PREFIX_BYTES)
        return err_set(ERR_FORMAT, "'%s' is no safetensors file: it has only %llu bytes%s",
                       file->what, (unsigned long long)file->bytes, look_of(file));
    uint64_t length;
    TRY(read_at(file, 0, &length, sizeof length));
    TRY(check_length(file, length));
    file->data_start = PREFIX_BYTES + length;
    cJSON *root = NULL;
    char *text = malloc((size_t)length);
    if (!text)
        return err_set(ERR_MEMORY, "the header of '%s'", file->what);
    int rc = 0;
    TRY_DONE(read_at(file, PREFIX_BYTES, text, (size_t)length));
    if (!text_is_utf8(text, (size_t)length))
        TRY_DONE(err_set(ERR_FORMAT, "'%s' is no safetensors file: its header is not UTF-8%s",
                         file->what, look_of(file)));
    if (text[0] != '{')
        TRY_DONE(err_set(ERR_FORMAT,
                         "'%s' is no safetensors file: its header is not a JSON object%s",
                         file->what, look_of(file)));
    rc = json_parse(file->what, text, (size_t)length, MAX_HEADER_BYTES, &root);
    if (rc < 0) {
        err_context(rc, "the safetensors header");
        goto done;
    }
    rc = take_header(file, root);
done:
    free(text);
    cJSON_Delete(root);
    return rc;
}

/* ---- life ---- */

static int new_file(const char *what, Safetensors **out_file) {
    Safetensors *file = calloc(1, sizeof *file);
    char *copy = strdup(what);
    if (!file || !copy) {
        free(file);
        free(copy);
        return err_set(ERR_MEMORY, "opening '%s'", what);
    }
    file->what = copy;
    file->fd = -1;
    *out_file = file;
    return 0;
}

static int finish_open(Safetensors *take_file, Safetensors **out_file) {
    int rc = load_header(take_file);
    if (rc < 0) {
        safetensors_close(take_file);
        return rc;
    }
    *out_file = take_file;
    return 0;
}

int safetensors_open(const char *path, Safetensors **out_file) {
    Safetensors *file;
    TRY(new_file(path, &file));
    int rc = 0;
    struct stat about;
    /* Opening a pipe would otherwise wait for a writer. */
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0)
        rc = err_errno(errno == ENOENT || errno == ENOTDIR ? ERR_NOT_FOUND : ERR_IO, errno,
                       "opening '%s'", path);
    else if (fstat(file->fd, &about) < 0)
        rc = err_errno(ERR_IO, errno, "looking at '%s'", path);
    else if (!S_ISREG(about.st_mode))
        rc = err_set(ERR_IO, "'%s' is not a plain file", path);
    if (rc < 0) {
        safetensors_close(file);
        return rc;
    }
    file->bytes = (uint64_t)about.st_size;
    return finish_open(file, out_file);
}

int safetensors_open_memory(const char *what, const void *data, size_t bytes,
                            Safetensors **out_file) {
    Safetensors *file;
    TRY(new_file(what, &file));
    file->memory = data;
    file->bytes = bytes;
    return finish_open(file, out_file);
}

void safetensors_close(Safetensors *file) {
    if (!file)
        return;
    if (file->fd >= 0)
        close(file->fd);
    cJSON_Delete(file->metadata);
    free(file->by_name);
    free(file->entries);
    free(file->what);
    free(file);
}

/* ---- reading ---- */

int safetensors_count(const Safetensors *file) {
    return file->n_entries;
}

const SafetensorsEntry *safetensors_at(const Safetensors *file, int index) {
    return index >= 0 && index < file->n_entries ? &file->entries[index] : NULL;
}

const SafetensorsEntry *safetensors_find(const Safetensors *file, const char *name) {
    int first = 0;
    int end = file->n_entries;
    while (first < end) {
        int middle = first + (end - first) / 2;
        int order = strcmp(name, file->by_name[middle]->name);
        if (order == 0)
            return file->by_name[middle];
        if (order < 0)
            end = middle;
        else
            first = middle + 1;
    }
    return NULL;
}

const char *safetensors_metadata(const Safetensors *file, const char *key) {
    const cJSON *item = file->metadata ? file->metadata->child : NULL;
    while (item && strcmp(item->string, key) != 0)
        item = item->next;
    return item ? item->valuestring : NULL;
}

int safetensors_read(const Safetensors *file, const SafetensorsEntry *entry, void *out,
                     size_t capacity) {
    if (entry->bytes > capacity)
        return err_set(ERR_LIMIT, "'%s': tensor '%s' has %llu bytes, there is room for %zu",
                       file->what, entry->name, (unsigned long long)entry->bytes, capacity);
    return read_at(file, file->data_start + entry->offset, out, (size_t)entry->bytes);
}

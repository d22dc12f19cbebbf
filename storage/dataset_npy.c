#include <string.h>

#include "core/err.h"
#include "core/text.h"
#include "storage/dataset_array.h"

/* The header is the text of a Python dict with exactly the keys descr, fortran_order and shape
 * (NumPy enhancement proposal 1); it is parsed here byte by byte, so no locale has a say. */

enum {
    MAGIC_BYTES = 6,
    VERSION_AT = 6,
    LENGTH_AT = 8,
    MAX_HEADER_BYTES = 1 << 20,
    DESCR_BYTES = 16
};

typedef struct NpyText {
    const char *what;
    const char *start, *at, *end;
} NpyText;

static int fail(const NpyText *text, const char *expected) {
    if (text->at >= text->end)
        return err_set(ERR_FORMAT, "'%s': the NPY header ends where %s was expected", text->what,
                       expected);
    return err_set(ERR_FORMAT, "'%s': NPY header, character %zu: %s was expected, not byte 0x%02x",
                   text->what, (size_t)(text->at - text->start), expected,
                   (unsigned char)*text->at);
}

static void skip_blanks(NpyText *text) {
    while (text->at < text->end &&
           (*text->at == ' ' || *text->at == '\t' || *text->at == '\n' || *text->at == '\r'))
        text->at++;
}

/* Take `c` if it comes next. */
static bool take(NpyText *text, char c) {
    skip_blanks(text);
    if (text->at >= text->end || *text->at != c)
        return false;
    text->at++;
    return true;
}

static int take_word(NpyText *text, char *out, size_t out_bytes, const char *expected) {
    skip_blanks(text);
    if (text->at >= text->end || (*text->at != '\'' && *text->at != '"'))
        return fail(text, expected);
    char quote = *text->at++;
    const char *start = text->at;
    while (text->at < text->end && *text->at != quote && *text->at != '\\' && *text->at >= ' ')
        text->at++;
    if (text->at >= text->end || *text->at != quote)
        return fail(text, "the end of the text");
    size_t length = (size_t)(text->at - start);
    if (length >= out_bytes)
        return err_set(ERR_FORMAT, "'%s': NPY header: the text of %zu characters is too long",
                       text->what, length);
    memcpy(out, start, length);
    out[length] = '\0';
    text->at++;
    return 0;
}

static int parse_bool(NpyText *text, bool *out) {
    skip_blanks(text);
    size_t left = (size_t)(text->end - text->at);
    bool yes = left >= 4 && memcmp(text->at, "True", 4) == 0;
    bool no = left >= 5 && memcmp(text->at, "False", 5) == 0;
    if (!yes && !no)
        return fail(text, "True or False");
    text->at += yes ? 4 : 5;
    *out = yes;
    return 0;
}

static int parse_dim(NpyText *text, int64_t *out) {
    int64_t value = 0;
    const char *start = text->at;
    while (text->at < text->end && *text->at >= '0' && *text->at <= '9') {
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *text->at - '0', &value))
            return err_set(ERR_LIMIT, "'%s': NPY header: a dim does not fit 63 bits", text->what);
        text->at++;
    }
    if (text->at == start)
        return fail(text, "a dim (a number without sign)");
    *out = value;
    return 0;
}

/* "()", "(768,)", "(60000, 28, 28)"; a lone number in parentheses is no tuple. */
static int parse_shape(NpyText *text, Shape *out) {
    Shape shape = {0};
    if (!take(text, '('))
        return fail(text, "the shape's '('");
    bool comma = true;
    while (!take(text, ')')) {
        if (!comma)
            return fail(text, "',' or ')'");
        if (shape.n_dims == SHAPE_MAX_DIMS)
            return err_set(ERR_LIMIT, "'%s': the array has more than %d dims", text->what,
                           SHAPE_MAX_DIMS);
        TRY(parse_dim(text, &shape.dims[shape.n_dims]));
        shape.n_dims++;
        comma = take(text, ',');
    }
    if (shape.n_dims == 1 && !comma)
        return err_set(ERR_FORMAT,
                       "'%s': NPY header: the shape (%lld) is no tuple (expected (%lld,))",
                       text->what, (long long)shape.dims[0], (long long)shape.dims[0]);
    *out = shape;
    return 0;
}

typedef struct Descr {
    const char *name;
    DType dtype;
} Descr;

/* "<f4": byte order, kind, bytes. '|' (no order) goes with one byte only. */
static int parse_descr(NpyText *text, NpyHeader *header) {
    static const Descr known[] = {{"f2", DTYPE_F16}, {"f4", DTYPE_F32}, {"f8", DTYPE_F64},
                                  {"i1", DTYPE_I8},  {"i2", DTYPE_I16}, {"i4", DTYPE_I32},
                                  {"i8", DTYPE_I64}, {"u1", DTYPE_U8},  {"u2", DTYPE_U16},
                                  {"u4", DTYPE_U32}, {"u8", DTYPE_U64}, {"b1", DTYPE_BOOL}};
    char descr[DESCR_BYTES] = "";
    TRY(take_word(text, descr, sizeof descr, "the quoted element type (no structured one)"));
    char order = descr[0];
    for (size_t i = 0; i < sizeof known / sizeof known[0] && order; i++) {
        bool one_byte = dtype_bytes(known[i].dtype) == 1;
        bool ordered = order == '<' || order == '>' || order == '=' || (order == '|' && one_byte);
        if (ordered && strcmp(descr + 1, known[i].name) == 0) {
            header->dtype = known[i].dtype;
            header->big_endian = order == '>';
            return 0;
        }
    }
    return err_set(ERR_FORMAT,
                   "'%s': the element type '%s' cannot be read (expected one such as <f4, >f8, |u1 "
                   "or <i8)",
                   text->what, descr);
}

static int parse_dict(NpyText *text, NpyHeader *header, bool *out_fortran) {
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    bool seen[3] = {false};
    char key[32];
    if (!take(text, '{'))
        return fail(text, "'{'");
    bool comma = true;
    while (!take(text, '}')) {
        if (!comma)
            return fail(text, "',' or '}'");
        TRY(take_word(text, key, sizeof key, "a quoted key"));
        int which = 0;
        while (which < 3 && strcmp(key, keys[which]) != 0)
            which++;
        if (which == 3)
            return err_set(ERR_FORMAT, "'%s': NPY header: unknown key '%s'", text->what, key);
        if (seen[which])
            return err_set(ERR_FORMAT, "'%s': NPY header: duplicate key '%s'", text->what, key);
        seen[which] = true;
        if (!take(text, ':'))
            return fail(text, "':'");
        TRY(which == 0   ? parse_descr(text, header)
            : which == 1 ? parse_bool(text, out_fortran)
                         : parse_shape(text, &header->shape));
        comma = take(text, ',');
    }
    for (int i = 0; i < 3; i++) {
        if (!seen[i])
            return err_set(ERR_FORMAT, "'%s': NPY header: no key '%s'", text->what, keys[i]);
    }
    skip_blanks(text);
    return text->at == text->end ? 0 : fail(text, "the end of the header");
}

/* Where the dict's text lies. */
static int find_text(const char *what, const uint8_t *at, size_t bytes, NpyText *out_text) {
    if (bytes < LENGTH_AT || memcmp(at, "\x93NUMPY", MAGIC_BYTES) != 0)
        return err_set(ERR_FORMAT, "'%s' is no NPY file: it does not start with \\x93NUMPY", what);
    int major = at[VERSION_AT];
    if (major < 1 || major > 3 || at[VERSION_AT + 1] != 0)
        return err_set(ERR_FORMAT, "'%s': NPY version %d.%d (1.0, 2.0 and 3.0 can be read)", what,
                       major, at[VERSION_AT + 1]);
    size_t length_bytes = major == 1 ? 2 : 4;
    if (bytes < LENGTH_AT + length_bytes)
        return err_set(ERR_FORMAT, "'%s' is cut in its NPY header: it has only %zu bytes", what,
                       bytes);
    size_t length = 0;
    for (size_t i = 0; i < length_bytes; i++)
        length |= (size_t)at[LENGTH_AT + i] << (8 * i);
    if (length > bytes - LENGTH_AT - length_bytes)
        return err_set(ERR_FORMAT,
                       "'%s' is cut in its NPY header: it declares %zu bytes, %zu are there", what,
                       length, bytes - LENGTH_AT - length_bytes);
    if (length > MAX_HEADER_BYTES)
        return err_set(ERR_LIMIT, "'%s': the NPY header of %zu bytes is beyond the %d allowed",
                       what, length, MAX_HEADER_BYTES);
    const char *start = (const char *)at + LENGTH_AT + length_bytes;
    if (major == 3 && !text_is_utf8(start, length))
        return err_set(ERR_FORMAT, "'%s': the NPY header is not UTF-8", what);
    *out_text = (NpyText){.what = what, .start = start, .at = start, .end = start + length};
    return 0;
}

int dataset_parse_npy(const char *what, const void *data, size_t bytes, NpyHeader *out_header) {
    NpyText text = {0};
    NpyHeader header = {0};
    bool fortran = false;
    TRY(find_text(what, data, bytes, &text));
    header.data_offset = (size_t)(text.end - (const char *)data);
    TRY(parse_dict(&text, &header, &fortran));
    int64_t elements = shape_elements(&header.shape);
    if (elements < 0)
        return err_context((int)elements, "'%s'", what);
    char shape[160];
    if (fortran && header.shape.n_dims > 1)
        return err_set(ERR_FORMAT,
                       "'%s': the array %s is in Fortran order (expected C order: save "
                       "numpy.ascontiguousarray of it)",
                       what, shape_format(&header.shape, shape, sizeof shape));
    *out_header = header;
    return 0;
}

int dataset_npy_load(const char *what, const void *file, size_t bytes, bool header_only,
                     DataArray *out_array) {
    NpyHeader header;
    TRY(dataset_parse_npy(what, file, bytes, &header));
    DataArray array = {.dtype = header.dtype,
                       .big_endian = header.big_endian,
                       .shape = header.shape,
                       .data = header_only ? NULL : (const uint8_t *)file + header.data_offset};
    TRY(dataset_array_check(what, &array, bytes - header.data_offset));
    *out_array = array;
    return 0;
}

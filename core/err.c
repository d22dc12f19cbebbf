#include "core/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"

static _Thread_local ErrNote thread_note;

/* The words as they are shown, in `out`, which may not be the note: the arguments often point into
 * it. Long ones are formatted whole, since their end says most. */
static void note_format(char out[ERR_NOTE_BYTES], const char *format, va_list args) {
    char words[2 * ERR_NOTE_BYTES];
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(words, sizeof words, format, args);
    size_t bytes = n > 0 ? (size_t)n + 1 : 1;
    char *all = bytes > sizeof words ? malloc(bytes) : NULL;
    if (all)
        vsnprintf(all, bytes, format, again);
    va_end(again);
    text_printable(all ? all : words, out, ERR_NOTE_BYTES);
    free(all);
}

static int note_put(int code, const char *front, const char *between, const char *back) {
    char text[2 * ERR_NOTE_BYTES + 8];
    snprintf(text, sizeof text, "%s%s%s", front, between, back);
    thread_note.code = code;
    text_printable(text, thread_note.text, sizeof thread_note.text);
    return code;
}

int(err_set)(int code, const char *format, ...) {
    char words[ERR_NOTE_BYTES];
    va_list args;
    va_start(args, format);
    note_format(words, format, args);
    va_end(args);
    return note_put(code, words, "", "");
}

int(err_errno)(int code, int errnum, const char *format, ...) {
    char words[ERR_NOTE_BYTES];
    va_list args;
    va_start(args, format);
    note_format(words, format, args);
    va_end(args);
    char sentence[128];
    return note_put(code, words, ": ", strerror_r(errnum, sentence, sizeof sentence));
}

int(err_context)(int code, const char *format, ...) {
    char words[ERR_NOTE_BYTES];
    va_list args;
    va_start(args, format);
    note_format(words, format, args);
    va_end(args);
    return note_put(code, words, ": ", thread_note.text);
}

const char *err_text(void) {
    return thread_note.text;
}

void err_copy(ErrNote *out_note) {
    *out_note = thread_note;
}

int err_restore(const ErrNote *note) {
    thread_note = *note;
    return note->code;
}

typedef struct ErrRow {
    int code;
    int http;
    bool retry;
    const char *name;
    const char *sentence;
} ErrRow;

static const ErrRow rows[] = {
#define ERR_ROW(name, value, http, retry, sentence) {value, http, retry, #name, sentence},
    ERR_TABLE(ERR_ROW)
#undef ERR_ROW
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static const ErrRow *row_of(int code) {
    for (int i = 0; i < N_ROWS; i++) {
        if (rows[i].code == code)
            return &rows[i];
    }
    return NULL;
}

const char *err_name(int code) {
    const ErrRow *row = row_of(code);
    return row ? row->name : "ERR_UNKNOWN";
}

const char *err_sentence(int code) {
    const ErrRow *row = row_of(code);
    return row ? row->sentence : "an unknown error happened";
}

int err_http(int code) {
    const ErrRow *row = row_of(code);
    return row ? row->http : 500;
}

bool err_retry(int code) {
    const ErrRow *row = row_of(code);
    return row && row->retry;
}

int err_from_name(const char *name) {
    for (int i = 0; i < N_ROWS; i++) {
        if (strcmp(rows[i].name, name) == 0)
            return rows[i].code;
    }
    return ERR_INTERNAL;
}

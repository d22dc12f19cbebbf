#include "core/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local ErrNote thread_note;

/* Leave out the last character of a text that was cut within it. */
static void drop_half_character(char *text, size_t length) {
    size_t lead = length;
    while (lead > 0 && length - lead < 3 && ((unsigned char)text[lead - 1] & 0xC0) == 0x80)
        lead--;
    if (lead == 0 || (unsigned char)text[lead - 1] < 0xC0)
        return;
    unsigned char first = (unsigned char)text[lead - 1];
    size_t wanted = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (lead - 1 + wanted > length)
        text[lead - 1] = '\0';
}

/* Format into `out`, which may not be the note: the arguments often point into it. */
static void note_format(char out[ERR_NOTE_BYTES], const char *format, va_list args) {
    if (vsnprintf(out, ERR_NOTE_BYTES, format, args) >= ERR_NOTE_BYTES)
        drop_half_character(out, ERR_NOTE_BYTES - 1);
}

static int note_put(int code, const char *front, const char *between, const char *back) {
    char text[ERR_NOTE_BYTES];
    size_t room = ERR_NOTE_BYTES - 1;
    size_t at = 0;
    const char *parts[] = {front, between, back};
    for (int i = 0; i < 3; i++) {
        size_t length = strnlen(parts[i], room - at);
        memcpy(text + at, parts[i], length);
        at += length;
    }
    text[at] = '\0';
    if (at == room)
        drop_half_character(text, at);
    thread_note.code = code;
    memcpy(thread_note.text, text, at + 1);
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

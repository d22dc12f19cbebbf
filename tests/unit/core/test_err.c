#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/dtype.h"
#include "core/err.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/text.h"

Test(err, nothing_failed_gives_no_text) {
    cr_assert_str_eq(err_text(), "");
}

Test(err, set_describes_and_returns_the_code) {
    cr_assert_eq(err_set(ERR_CORRUPT, "blob '%s': %d", "a", 7), ERR_CORRUPT);
    cr_assert_str_eq(err_text(), "blob 'a': 7");
}

Test(err, set_may_quote_the_note_itself) {
    err_set(ERR_IO, "inner");
    err_set(ERR_WORKER, "outer (%s)", err_text());
    cr_assert_str_eq(err_text(), "outer (inner)");
}

Test(err, errno_adds_the_sentence) {
    cr_assert_eq(err_errno(ERR_IO, ENOENT, "opening '%s'", "x"), ERR_IO);
    cr_assert_str_eq(err_text(), "opening 'x': No such file or directory");
}

Test(err, context_goes_in_front) {
    err_set(ERR_IO, "reading failed");
    cr_assert_eq(err_context(ERR_IO, "stage %d", 3), ERR_IO);
    cr_assert_str_eq(err_text(), "stage 3: reading failed");
}

/* Words of two letters, so that no word is too long, and the reason at the end. */
static void fill(char *big, size_t bytes, const char *word, const char *reason) {
    big[0] = '\0';
    while (strlen(big) + strlen(word) + strlen(reason) + 1 < bytes)
        strcat(big, word);
    strcat(big, reason);
}

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text);
    return length >= strlen(end) && strcmp(text + length - strlen(end), end) == 0;
}

Test(err, long_texts_lose_their_middle) {
    static char big[100000];
    for (size_t bytes = 900; bytes <= sizeof big; bytes = bytes < 2200 ? bytes + 1 : bytes * 4) {
        fill(big, bytes, "xy ", "is the reason");
        err_set(ERR_IO, "%s", big);
        cr_assert_lt(strlen(err_text()), ERR_NOTE_BYTES);
        cr_assert(ends_with(err_text(), "is the reason"), "%s", err_text());
        err_context(ERR_IO, "front");
        cr_assert_lt(strlen(err_text()), ERR_NOTE_BYTES);
        cr_assert_eq(strncmp(err_text(), "front: xy ", 10), 0);
        cr_assert(ends_with(err_text(), "is the reason"), "%s", err_text());
    }
    cr_assert_geq(strlen(err_text()), ERR_NOTE_BYTES - 2);
}

Test(err, a_long_value_leaves_the_words_around_it) {
    static char big[100001];
    memset(big, 'A', sizeof big - 1);
    err_set(ERR_ARGUMENT, "$.plan.isa: '%s' is no name", big);
    cr_assert_lt(strlen(err_text()), 340);
    err_context(ERR_ARGUMENT, "--set plan.isa=%s", big);
    cr_assert_lt(strlen(err_text()), 680);
    cr_assert_eq(strncmp(err_text(), "--set plan.isa=AAA", 18), 0);
    cr_assert(strstr(err_text(), "AAA: $.plan.isa: 'AAA"), "%s", err_text());
    cr_assert(ends_with(err_text(), "AAA' is no name"), "%s", err_text());
}

Test(err, control_characters_are_escaped_once) {
    err_set(ERR_IO, "the key '%s'", "a\x1b[31m\n\x7f\xff");
    cr_assert_str_eq(err_text(), "the key 'a\\x1b[31m\\n\\x7f\\xff'");
    err_context(ERR_IO, "in '%s'", "\t");
    cr_assert_str_eq(err_text(), "in '\\t': the key 'a\\x1b[31m\\n\\x7f\\xff'");
}

Test(err, a_cut_leaves_no_half_character) {
    static const char *const letters[] = {"\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
    for (int letter = 0; letter < 3; letter++) {
        for (int shift = 0; shift < 5; shift++) {
            char big[4096] = "";
            memset(big, '.', (size_t)shift);
            while (strlen(big) < 2000)
                strcat(strcat(big, letters[letter]), strlen(big) % 2 ? " " : "");
            err_set(ERR_IO, "%s", big);
            cr_assert(text_is_utf8(err_text(), strlen(err_text())), "%d %d", letter, shift);
            cr_assert_null(strstr(err_text(), "\\x"), "%s", err_text());
            err_context(ERR_IO, "%.*s", shift, "abcdef");
            cr_assert(text_is_utf8(err_text(), strlen(err_text())), "%d %d", letter, shift);
        }
    }
}

static void *fail_elsewhere(void *arg) {
    ErrNote *note = arg;
    err_set(ERR_TIMEOUT, "in the thread");
    err_copy(note);
    return NULL;
}

Test(err, the_note_belongs_to_a_thread_and_can_be_carried) {
    ErrNote note;
    pthread_t thread;
    err_set(ERR_IO, "here");
    pthread_create(&thread, NULL, fail_elsewhere, &note);
    pthread_join(thread, NULL);
    cr_assert_str_eq(err_text(), "here");
    cr_assert_eq(err_restore(&note), ERR_TIMEOUT);
    cr_assert_str_eq(err_text(), "in the thread");
}

Test(err, every_code_has_its_row) {
    cr_assert_str_eq(err_name(ERR_CORRUPT), "ERR_CORRUPT");
    cr_assert_str_eq(err_name(-999), "ERR_UNKNOWN");
    cr_assert_str_eq(err_name(0), "ERR_UNKNOWN");
    cr_assert_eq(err_http(ERR_NOT_FOUND), 404);
    cr_assert_eq(err_http(-999), 500);
    cr_assert(err_retry(ERR_TIMEOUT));
    cr_assert_not(err_retry(ERR_ARGUMENT));
    for (int code = -20; code <= -1; code++) {
        cr_assert_eq(err_from_name(err_name(code)), code);
        cr_assert_neq(err_sentence(code)[0], '\0');
        cr_assert(err_http(code) >= 400 && err_http(code) < 600);
    }
    cr_assert_eq(err_from_name("ERR_NO_SUCH"), ERR_INTERNAL);
}

static int middle(int inner) {
    TRY(inner);
    return 5;
}

static int with_label(int inner, int *cleaned) {
    int rc;
    TRY_DONE(inner);
    rc = 6;
done:
    (*cleaned)++;
    return rc;
}

Test(err, try_passes_codes_on) {
    int cleaned = 0;
    cr_assert_eq(middle(3), 5);
    cr_assert_eq(middle(ERR_FULL), ERR_FULL);
    cr_assert_eq(with_label(0, &cleaned), 6);
    cr_assert_eq(with_label(ERR_FULL, &cleaned), ERR_FULL);
    cr_assert_eq(cleaned, 2);
}

Test(dtype, names_and_sizes_round_trip) {
    int n = 0;
    for (int value = 1; value <= 13; value++) {
        DType parsed = DTYPE_NONE;
        cr_assert_eq(dtype_parse(dtype_name((DType)value), &parsed), 0);
        cr_assert_eq((int)parsed, value);
        cr_assert_gt(dtype_bytes(parsed), 0);
        n++;
    }
    cr_assert_eq(n, 13);
    cr_assert_eq(dtype_bytes(DTYPE_BF16), 2);
    cr_assert_eq(dtype_bytes((DType)99), 0);
    cr_assert_str_eq(dtype_name((DType)99), "?");
    DType parsed = DTYPE_U8;
    cr_assert_eq(dtype_parse("f32", &parsed), ERR_FORMAT);
    cr_assert_eq(parsed, DTYPE_U8);
}

Test(dtype, elements_are_limited) {
    Shape shape = shape_3d(32, 14, 14);
    cr_assert_eq(shape_elements(&shape), 6272);
    shape = (Shape){0};
    cr_assert_eq(shape_elements(&shape), 1);
    shape = shape_2d(INT64_C(1) << 24, INT64_C(1) << 24);
    cr_assert_eq(shape_elements(&shape), INT64_C(1) << 48);
    shape = shape_3d(INT64_C(1) << 24, INT64_C(1) << 24, 2);
    cr_assert_eq(shape_elements(&shape), ERR_LIMIT);
    shape = shape_4d(INT64_MAX, INT64_MAX, INT64_MAX, 0);
    cr_assert_eq(shape_elements(&shape), 0);
    shape = shape_4d(0, INT64_MAX, INT64_MAX, INT64_MAX);
    cr_assert_eq(shape_elements(&shape), 0);
    shape = shape_2d(4, -1);
    cr_assert_eq(shape_elements(&shape), ERR_LIMIT);
    cr_assert(strstr(err_text(), "(4, -1)"), "%s", err_text());
    shape = (Shape){.n_dims = 7};
    cr_assert_eq(shape_elements(&shape), ERR_LIMIT);
    shape = (Shape){.n_dims = -1};
    cr_assert_eq(shape_elements(&shape), ERR_LIMIT);
}

Test(dtype, shapes_compare_and_print) {
    char text[64];
    Shape a = shape_3d(32, 14, 14);
    Shape b = shape_3d(32, 14, 15);
    Shape c = shape_2d(32, 14);
    cr_assert(shape_equal(&a, &a));
    cr_assert_not(shape_equal(&a, &b));
    cr_assert_not(shape_equal(&a, &c));
    cr_assert_str_eq(shape_format(&a, text, sizeof text), "(32, 14, 14)");
    Shape one = shape_1d(5);
    cr_assert_str_eq(shape_format(&one, text, sizeof text), "(5)");
    Shape scalar = {0};
    cr_assert_str_eq(shape_format(&scalar, text, sizeof text), "()");
    for (size_t bytes = 1; bytes < 12; bytes++)
        cr_assert_eq(strlen(shape_format(&a, text, bytes)), bytes - 1);
}

Test(clock, deadlines_saturate) {
    int64_t before = clock_now_ns();
    int64_t deadline = clock_deadline_ms(50);
    cr_assert_geq(deadline, before + 50 * CLOCK_NS_PER_MS);
    cr_assert_leq(deadline, clock_now_ns() + 50 * CLOCK_NS_PER_MS);
    cr_assert_eq(clock_deadline_ms(INT64_MAX), CLOCK_NEVER);
    cr_assert_leq(clock_deadline_ms(INT64_MIN), clock_now_ns());
}

Test(clock, sleep_ends_at_the_deadline) {
    int64_t deadline = clock_deadline_ms(20);
    clock_sleep_until(deadline);
    cr_assert_geq(clock_now_ns(), deadline);
    clock_sleep_until(0);
    clock_sleep_until(-5);
}

Test(clock, wall_time_prints) {
    char text[32];
    cr_assert_str_eq(clock_format_wall(0, text, sizeof text), "1970-01-01T00:00:00.000Z");
    cr_assert_str_eq(clock_format_wall(-1, text, sizeof text), "1969-12-31T23:59:59.999Z");
    cr_assert_str_eq(clock_format_wall(1769860800123, text, sizeof text),
                     "2026-01-31T12:00:00.123Z");
    cr_assert_gt(clock_wall_ms(), INT64_C(1700000000000));
    clock_format_wall(INT64_MAX, text, sizeof text);
    clock_format_wall(INT64_MIN, text, sizeof text);
}

/* What `format` with `text` leaves in standard error. */
static void captured(char out[8192], LogLevel level, const char *text) {
    FILE *file = tmpfile();
    int stderr_before = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    errno = 77;
    log_line(level, "module", "%s", text);
    int errno_after = errno;
    dup2(stderr_before, STDERR_FILENO);
    close(stderr_before);
    rewind(file);
    out[fread(out, 1, 8191, file)] = '\0';
    fclose(file);
    cr_assert_eq(errno_after, 77);
}

Test(log, a_record_is_one_line) {
    char out[8192];
    captured(out, LOG_INFO, "two\nlines\x1b[31m");
    cr_assert_eq(out[2], ':');
    cr_assert_eq(out[8], '.');
    cr_assert_str_eq(out + 12, " info  module: two lines [31m\n");
    captured(out, LOG_WARN, "");
    cr_assert_str_eq(out + 12, " warn  module: \n");
    char big[6000];
    memset(big, 'y', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    captured(out, LOG_ERROR, big);
    cr_assert_lt(strlen(out), 2100);
    cr_assert_eq(out[strlen(out) - 1], '\n');
    cr_assert(strstr(out, " error module: yyy"));
}

Test(hash, streaming_equals_one_piece) {
    char data[5000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)(i * 7 + i / 256);
    HashState *state = NULL;
    cr_assert_eq(hash_open(&state), 0);
    for (size_t cut = 0; cut <= sizeof data; cut += 613) {
        hash_reset(state);
        hash_add(state, data, cut);
        hash_add(state, NULL, 0);
        hash_add(state, data + cut, sizeof data - cut);
        cr_assert_eq(hash_value(state), hash_bytes(data, sizeof data));
    }
    hash_close(state);
    hash_close(NULL);
    /* XXH3's published value for the empty input: nothing here may ever change it. */
    cr_assert_eq(hash_text(""), UINT64_C(0x2D06800538D394C2));
    cr_assert_neq(hash_text("a"), hash_text("b"));
    cr_assert_eq(hash_text("weight"), hash_bytes("weight", 6));
}

/* Strict text: numbers, durations, sizes, nearest names. Independent of the locale. */
#ifndef FUNCPIPE_CORE_TEXT_H
#define FUNCPIPE_CORE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whole-string decimal integer within [min, max]; ERR_FORMAT names the text. */
int text_parse_i64(const char *text, int64_t min, int64_t max, int64_t *out_value);
/* Whole-string finite real number with a '.' as decimal point. */
int text_parse_f64(const char *text, double *out_value);
/* "250ms" "10s" "10m" "2h" "1d" (a number, at once a unit) -> milliseconds. */
int text_parse_duration_ms(const char *text, int64_t *out_ms);
/* "512" (bytes only with unit "B"), "4KiB" "2MiB" "2GiB" "10kB" "10MB" "1GB" -> bytes. */
int text_parse_bytes(const char *text, int64_t *out_bytes);
const char *text_format_bytes(int64_t bytes, char *buf, size_t buf_bytes); /* "1.5 MiB" */
const char *text_format_duration(int64_t ms, char *buf, size_t buf_bytes); /* "1m 20s" */
/* The same exactly, as the parsers read it, in the unit that makes the number least: "90s", "1GiB";
 * for values from 0. */
const char *text_exact_bytes(int64_t bytes, char *buf, size_t buf_bytes);
const char *text_exact_duration(int64_t ms, char *buf, size_t buf_bytes);
/* The number with the fewest digits that reads back as the same float: 0.1, not 0.10000000149. */
double text_decimal_f32(float value);
/* The word that goes with a number: "1 stage", "2 stages". */
const char *text_plural(int64_t n, const char *one, const char *many);

/* The one of `names` with the least edit distance to `text`; NULL when none is near (distance
 * more than a third of the longer one, at least 2). */
const char *text_nearest(const char *text, const char *const *names, size_t n_names);
/* strlcpy with an error: ERR_LIMIT when src does not fit. */
int text_copy(char *dst, size_t dst_bytes, const char *src);
bool text_is_utf8(const char *data, size_t bytes);
/* `text` as a message shows it, in `out`: control characters and bytes that are not UTF-8 as "\n",
 * "\x1b"; without the middle of words of more than TEXT_WORD_BYTES, and of a text that does not fit
 * ("..."): the end of a message is its reason. Text that is so already stays as it is. */
enum { TEXT_WORD_BYTES = 300 };
const char *text_printable(const char *text, char *out, size_t out_bytes);
/* Words from outside for a message: "..." in the place of those that may hold a password, which are
 * URLs and whatever has an '@'. */
bool text_may_be_secret(const char *text);
const char *text_unless_secret(const char *text);
/* A name of letters, digits and "._-", 1 to max characters, no leading '.' or '-': safe in paths
 * and keys. ERR_ARGUMENT names what (`what` = "job name") and the text. */
int text_check_name(const char *what, const char *text, size_t max);

#endif

/* What the URLs of relays have in common: percent-encoded parts. Errors name the part that is wrong
 * and never quote it. */
#ifndef FUNCPIPE_STORAGE_URL_H
#define FUNCPIPE_STORAGE_URL_H

#include <stddef.h>

/* Percent-decode [from, end) into `out`. ERR_ARGUMENT names `what` ("the password"): a '%' without
 * two hex digits, a control character, more than out_bytes - 1 bytes. */
int url_decode(const char *what, const char *from, const char *end, char *out, size_t out_bytes);

/* Take the NAME=VALUE&... of `text` apart, decoded: `take` gets each, and where it begins. */
typedef int (*UrlTake)(void *ctx, const char *at, const char *name, const char *value);
int url_parameters(const char *text, UrlTake take, void *ctx);

#endif

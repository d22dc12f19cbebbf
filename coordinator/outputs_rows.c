/* Rows of metrics that come again after a resume: they are cut off. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/checkpoint.h"
#include "coordinator/outputs_parts.h"
#include "core/err.h"
#include "core/text.h"

enum { ROW_HEAD_BYTES = 48 }; /* of a line: its step stands there */

static int64_t step_of_csv(const char *line) {
    char digits[24];
    size_t length = strcspn(line, ",");
    int64_t step = -1;
    if (length >= sizeof digits)
        return -1;
    memcpy(digits, line, length);
    digits[length] = '\0';
    return text_parse_i64(digits, 0, INT64_MAX, &step) < 0 ? -1 : step;
}

static int64_t step_of_jsonl(const char *line) {
    static const char head[] = "{\"step\":";
    char digits[24];
    int64_t step = -1;
    if (strncmp(line, head, sizeof head - 1) != 0)
        return -1;
    line += sizeof head - 1;
    size_t length = strspn(line, "0123456789");
    if (length >= sizeof digits)
        return -1;
    memcpy(digits, line, length);
    digits[length] = '\0';
    return text_parse_i64(digits, 0, INT64_MAX, &step) < 0 ? -1 : step;
}

/* Where the lines end that stay: in front of the first row of a step from `end` on, or of a line
 * that is not whole. Files may be of any size. */
static int64_t find_end(FILE *file, int64_t end, int64_t (*step_of)(const char *line)) {
    char head[ROW_HEAD_BYTES];
    size_t n = 0;
    int64_t at = 0;
    int64_t kept = 0;
    for (int c = getc_unlocked(file); c != EOF; c = getc_unlocked(file)) {
        at++;
        if (c != '\n') {
            if (n < sizeof head - 1)
                head[n++] = (char)c;
            continue;
        }
        head[n] = '\0';
        if (step_of(head) >= end)
            break;
        kept = at;
        n = 0;
    }
    return kept;
}

static int cut_file(const char *folder, const char *name, int64_t end,
                    int64_t (*step_of)(const char *line)) {
    char path[MANIFEST_PATH_BYTES];
    TRY(manifest_join(path, folder, name));
    FILE *file = fopen(path, "r+e");
    if (!file)
        return errno == ENOENT ? 0 : err_errno(ERR_IO, errno, "opening '%s'", path);
    errno = 0;
    int64_t kept = find_end(file, end, step_of);
    int rc = 0;
    if (ferror(file))
        rc = err_errno(ERR_IO, errno, "reading '%s'", path);
    else if (ftruncate(fileno(file), kept) < 0)
        rc = err_errno(ERR_IO, errno, "cutting '%s'", path);
    fclose(file);
    return rc;
}

int outputs_cut_rows(const char *folder, int64_t end) {
    TRY(cut_file(folder, "metrics.csv", end, step_of_csv));
    return cut_file(folder, "metrics.jsonl", end, step_of_jsonl);
}

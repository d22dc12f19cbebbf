#include "storage/key.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/text.h"

/* Every key fits: a job of 63 characters, two numbers of 20 and four of 11 are under 200. */
__attribute__((format(printf, 1, 2))) static Key make(const char *format, ...) {
    Key key;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(key.text, sizeof key.text, format, args);
    va_end(args);
    assert(n > 0 && (size_t)n < sizeof key.text);
    (void)n;
    return key;
}

static long long number(int64_t value) {
    assert(value >= 0);
    return value;
}

/* The part of a place: "t7", or "e7.2" for evaluation batch 2 after step 7. */
typedef struct PlaceText {
    char text[48];
} PlaceText;

static PlaceText place_text(KeyPlace place) {
    PlaceText out;
    if (place.eval_batch < 0)
        snprintf(out.text, sizeof out.text, "t%lld", number(place.step));
    else
        snprintf(out.text, sizeof out.text, "e%lld.%lld", number(place.step),
                 number(place.eval_batch));
    return out;
}

#define SPACE "%s/g%lld/"
#define SPACE_OF(space) (space)->job, number((space)->generation)

Key key_activation(const KeySpace *space, KeyPlace place, int producer, int consumer, int micro) {
    return make(SPACE "%s/a.%d-%d.%d", SPACE_OF(space), place_text(place).text, producer, consumer,
                micro);
}

Key key_gradient(const KeySpace *space, KeyPlace place, int consumer, int producer, int micro) {
    return make(SPACE "%s/g.%d-%d.%d", SPACE_OF(space), place_text(place).text, consumer, producer,
                micro);
}

Key key_sum(const KeySpace *space, int64_t step, char kind, int id, int chunk) {
    return make(SPACE "t%lld/%c.%d.%d", SPACE_OF(space), number(step), kind, id, chunk);
}

Key key_norms(const KeySpace *space, int64_t step, int stage, int replica) {
    return make(SPACE "t%lld/n.%d.%d", SPACE_OF(space), number(step), stage, replica);
}

Key key_eval(const KeySpace *space, int64_t step, int stage, int replica) {
    return make(SPACE "e%lld/v.%d.%d", SPACE_OF(space), number(step), stage, replica);
}

Key key_saved(const KeySpace *space, int64_t step, int stage, int replica) {
    return make(SPACE "t%lld/s.%d.%d", SPACE_OF(space), number(step), stage, replica);
}

Key key_fence(const KeySpace *space, int stage, int replica, int64_t attempt) {
    return make(SPACE "c/f.%d.%d.%lld", SPACE_OF(space), stage, replica, number(attempt));
}

Key key_run(const KeySpace *space, int stage, int replica, int64_t attempt) {
    return make(SPACE "c/r.%d.%d.%lld", SPACE_OF(space), stage, replica, number(attempt));
}

Key key_heartbeat(const KeySpace *space, int stage, int replica) {
    return make(SPACE "n/h.%d.%d", SPACE_OF(space), stage, replica);
}

Key key_control(const KeySpace *space) {
    return make(SPACE "n/control", SPACE_OF(space));
}

Key key_watermark(const KeySpace *space, int index) {
    return make(SPACE "n/w.%d", SPACE_OF(space), index);
}

bool key_is_watermark(const char *key) {
    const char *last = strrchr(key, '/');
    return last && strncmp(last, "/w.", 3) == 0;
}

Key key_claim(const char *job, int64_t generation) {
    return make("%s/claim.%lld", job, number(generation));
}

Key key_part(const char *key, int index) {
    return make("%s.%d", key, index);
}

Key key_step_prefix(const KeySpace *space, int64_t step) {
    return make(SPACE "t%lld", SPACE_OF(space), number(step));
}

Key key_eval_prefix(const KeySpace *space, KeyPlace place) {
    return make(SPACE "%s", SPACE_OF(space), place_text(place).text);
}

Key key_space_prefix(const KeySpace *space) {
    return make("%s/g%lld", SPACE_OF(space));
}

/* A number as it stands in keys: "7", not "07", "+7" or "". */
static bool read_number(const char *text, size_t bytes, int64_t *out_value) {
    char digits[24];
    if (bytes == 0 || bytes >= sizeof digits || (text[0] == '0' && bytes > 1) ||
        strspn(text, "0123456789") < bytes)
        return false;
    memcpy(digits, text, bytes);
    digits[bytes] = '\0';
    return text_parse_i64(digits, 0, INT64_MAX, out_value) >= 0;
}

bool key_find_space(const char *key, KeySpace *out_space, bool *out_claim) {
    static const char claim[] = "claim.";
    size_t job_bytes = strcspn(key, "/");
    if (key[job_bytes] != '/' || job_bytes == 0 || job_bytes >= sizeof out_space->job)
        return false;
    const char *rest = key + job_bytes + 1;
    bool is_claim = strncmp(rest, claim, sizeof claim - 1) == 0;
    rest += is_claim ? sizeof claim - 1 : 1;
    if (!is_claim && rest[-1] != 'g')
        return false;
    size_t bytes = strcspn(rest, "/");
    bool ends_there = rest[bytes] == '\0';
    if (ends_there != is_claim || !read_number(rest, bytes, &out_space->generation))
        return false;
    memcpy(out_space->job, key, job_bytes);
    out_space->job[job_bytes] = '\0';
    *out_claim = is_claim;
    return true;
}

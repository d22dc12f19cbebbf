#include "storage/key.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

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

Key key_heartbeat(const KeySpace *space, int stage, int replica) {
    return make(SPACE "n/h.%d.%d", SPACE_OF(space), stage, replica);
}

Key key_control(const KeySpace *space) {
    return make(SPACE "n/control", SPACE_OF(space));
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

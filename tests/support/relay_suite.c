/* The scenarios of one thread. */
#include "tests/support/relay_suite.h"
#include "storage/relay_survey.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/relay_survey.h"

/* ---- rig ---- */

Relay *relay_rig(RelayRig *rig, int index) {
    if (!rig->handles[index] && rig->factory->open(rig->place, &rig->handles[index]) < 0)
        relay_rig_fail(rig, "opening handle %d: %s", index, err_text());
    return rig->handles[index];
}

bool relay_rig_fail(RelayRig *rig, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(rig->why, sizeof rig->why, format, args);
    va_end(args);
    return false;
}

static int slowness(const RelayRig *rig) {
    return rig->factory->slowness > 0 ? rig->factory->slowness : 1;
}

int64_t relay_rig_patience_ms(const RelayRig *rig) {
    return 20000 * (int64_t)slowness(rig);
}

int relay_rig_repeat(const RelayRig *rig, int n) {
    return n > slowness(rig) ? n / slowness(rig) : 1;
}

bool relay_suite_run(const RelayFactory *factory, bool (*scenario)(RelayRig *rig),
                     RelayRig *out_rig) {
    *out_rig = (RelayRig){.factory = factory};
    if (factory->place_open(&out_rig->place) < 0)
        return relay_rig_fail(out_rig, "opening a store: %s", err_text());
    bool ok = true;
    for (int i = 0; ok && i < RELAY_RIG_HANDLES; i++)
        ok = relay_rig(out_rig, i) != NULL; /* here, so that no thread of a scenario opens one */
    ok = ok && scenario(out_rig);
    for (int i = 0; i < RELAY_RIG_HANDLES; i++)
        relay_close(out_rig->handles[i]);
    factory->place_close(out_rig->place);
    return ok;
}

/* ---- shorthands ---- */

static int64_t soon(const RelayRig *rig) {
    return clock_deadline_ms(relay_rig_patience_ms(rig));
}

static int put_text(RelayRig *rig, int handle, const char *key, const char *text) {
    Slice part = {text, strlen(text)};
    return relay_put(relay_rig(rig, handle), key, &part, 1, soon(rig));
}

/* 1 when the object is there with that content. */
static bool is_text(RelayRig *rig, int handle, const char *key, const char *text) {
    char buf[256];
    size_t bytes = 0;
    return relay_get(relay_rig(rig, handle), key, buf, sizeof buf, soon(rig), &bytes) == 0 &&
           bytes == strlen(text) && memcmp(buf, text, bytes) == 0;
}

#define PUT(key, text)                                                                             \
    RIG_CHECK(put_text(rig, 0, key, text) == 0, "putting '%s': %s", key, err_text())

/* ---- objects ---- */

bool relay_suite_first_content_stays(RelayRig *rig) {
    PUT("job/g1/t0/a.0-1.0", "first");
    RIG_CHECK(put_text(rig, 0, "job/g1/t0/a.0-1.0", "second!") == 1, "a second put was not told");
    RIG_CHECK(put_text(rig, 1, "job/g1/t0/a.0-1.0", "") == 1,
              "a put by another handle was not told that the key is there");
    RIG_CHECK(is_text(rig, 0, "job/g1/t0/a.0-1.0", "first"), "the first content did not stay");
    RIG_CHECK(is_text(rig, 1, "job/g1/t0/a.0-1.0", "first"), "another handle reads other bytes");
    RIG_CHECK(relay_rig(rig, 0)->counters.n_duplicates == 1, "n_duplicates is %lld",
              (long long)relay_rig(rig, 0)->counters.n_duplicates);
    RIG_CHECK(relay_has(relay_rig(rig, 1), "job/g1/t0/a.0-1.0") == 1, "has says it is not there");
    RIG_CHECK(relay_has(relay_rig(rig, 1), "job/g1/t0/a.0-1.1") == 0, "has says it is there");
    return true;
}

bool relay_suite_parts_are_joined(RelayRig *rig) {
    Relay *relay = relay_rig(rig, 0);
    Slice parts[RELAY_MAX_PARTS + 1];
    char expected[RELAY_MAX_PARTS * 3];
    char got[RELAY_MAX_PARTS * 3];
    size_t bytes = 0;
    static const char text[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    size_t at = 0;
    for (int i = 0; i <= RELAY_MAX_PARTS; i++) {
        parts[i] = (Slice){text + i % 30, (size_t)(i % 4)}; /* every fourth is empty */
        if (i < RELAY_MAX_PARTS) {
            memcpy(expected + at, parts[i].data, parts[i].bytes);
            at += parts[i].bytes;
        }
    }
    parts[4].data = NULL;
    RIG_CHECK(relay_put(relay, "p/many", parts, RELAY_MAX_PARTS, soon(rig)) == 0, "%s", err_text());
    RIG_CHECK(relay_get(relay, "p/many", got, sizeof got, soon(rig), &bytes) == 0, "%s",
              err_text());
    RIG_CHECK(bytes == at && memcmp(got, expected, at) == 0, "the parts came out otherwise");
    RIG_CHECK(relay_put(relay, "p/more", parts, RELAY_MAX_PARTS + 1, soon(rig)) == ERR_ARGUMENT,
              "too many parts were not refused");
    RIG_CHECK(relay_has(relay, "p/more") == 0, "a refused put left an object");
    return true;
}

bool relay_suite_empty_objects(RelayRig *rig) {
    Relay *relay = relay_rig(rig, 0);
    Slice none = {NULL, 0};
    Slice empties[2] = {{"", 0}, {NULL, 0}};
    size_t bytes = 77;
    RIG_CHECK(relay_put(relay, "e/0", NULL, 0, soon(rig)) == 0, "no parts: %s", err_text());
    RIG_CHECK(relay_put(relay, "e/1", &none, 1, soon(rig)) == 0, "one empty part: %s", err_text());
    RIG_CHECK(relay_put(relay, "e/2", empties, 2, soon(rig)) == 0, "two: %s", err_text());
    for (int i = 0; i < 3; i++) {
        char key[16];
        snprintf(key, sizeof key, "e/%d", i);
        bytes = 77;
        RIG_CHECK(relay_get(relay, key, NULL, 0, soon(rig), &bytes) == 0, "%s", err_text());
        RIG_CHECK(bytes == 0, "an empty object has %zu bytes", bytes);
        RIG_CHECK(relay_has(relay, key) == 1, "an empty object is not there");
        RIG_CHECK(put_text(rig, 0, key, "x") == 1, "an empty object can be overwritten");
    }
    return true;
}

static void fill(unsigned char *data, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407U;
        data[i] = (unsigned char)(seed >> 56);
    }
}

bool relay_suite_all_sizes(RelayRig *rig) {
    static const size_t sizes[] = {1,       2,    63,    64,    65,      511,     4095,
                                   4096,    4097, 65535, 65536, 1000003, 8 << 20, (8 << 20) + 1,
                                   64 << 20};
    unsigned char *data = malloc(RELAY_SUITE_MOST_BYTES);
    unsigned char *got = malloc(RELAY_SUITE_MOST_BYTES + 1);
    bool ok = data && got;
    if (ok)
        fill(data, RELAY_SUITE_MOST_BYTES, 7);
    for (size_t i = 0; ok && i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i] > RELAY_SUITE_MOST_BYTES)
            continue;
        char key[32];
        size_t bytes = 0;
        size_t half = sizes[i] / 3;
        Slice parts[2] = {{data, half}, {data + half, sizes[i] - half}};
        snprintf(key, sizeof key, "sizes/%zu", sizes[i]);
        memset(got, 0xEE, sizes[i] + 1);
        ok = relay_put(relay_rig(rig, 0), key, parts, 2, soon(rig)) == 0 &&
             relay_get(relay_rig(rig, 1), key, got, sizes[i], soon(rig), &bytes) == 0;
        if (!ok)
            relay_rig_fail(rig, "%zu bytes: %s", sizes[i], err_text());
        else if (bytes != sizes[i] || memcmp(data, got, bytes) != 0 || got[bytes] != 0xEE)
            ok = relay_rig_fail(rig, "%zu bytes came out otherwise", sizes[i]);
    }
    free(data);
    free(got);
    return ok;
}

bool relay_suite_into_a_buf(RelayRig *rig) {
    Relay *relay = relay_rig(rig, 0);
    Buf buf;
    buf_init(&buf, 0);
    PUT("b/x", "a text of some length");
    PUT("b/empty", "");
    bool ok = buf_text(&buf, "what was there before, and is longer than the object") == 0 &&
              relay_get_buf(relay, "b/x", &buf, soon(rig)) == 0;
    ok = ok && buf.bytes == 21 && strcmp(buf_string(&buf), "a text of some length") == 0;
    bool empty_ok = relay_get_buf(relay, "b/empty", &buf, soon(rig)) == 0 && buf.bytes == 0;
    buf_done(&buf);
    buf_init(&buf, 20);
    int rc = relay_get_buf(relay, "b/x", &buf, soon(rig));
    buf_done(&buf);
    RIG_CHECK(ok, "the buffer holds something else");
    RIG_CHECK(empty_ok, "an empty object into a buffer");
    RIG_CHECK(rc == ERR_LIMIT && strstr(err_text(), "b/x"), "beyond max_bytes: %d %s", rc,
              err_text());
    return true;
}

bool relay_suite_capacity_too_small(RelayRig *rig) {
    Relay *relay = relay_rig(rig, 0);
    char buf[32];
    size_t bytes = 5;
    memset(buf, 'x', sizeof buf);
    PUT("c/x", "0123456789");
    int rc = relay_get(relay, "c/x", buf, 9, soon(rig), &bytes);
    RIG_CHECK(rc == ERR_LIMIT, "9 of 10 bytes: returned %d", rc);
    RIG_CHECK(strstr(err_text(), "c/x") && strstr(err_text(), "10") && strstr(err_text(), "9"),
              "the error names not key and both sizes: %s", err_text());
    RIG_CHECK(bytes == 5, "out_bytes was written though it failed");
    RIG_CHECK(buf[9] == 'x', "bytes beyond the capacity were written");
    RIG_CHECK(relay_get(relay, "c/x", buf, 10, soon(rig), &bytes) == 0 && bytes == 10,
              "afterwards: %s", err_text());
    return true;
}

/* ---- keys ---- */

bool relay_suite_bad_keys_are_refused(RelayRig *rig) {
    Relay *relay = relay_rig(rig, 0);
    char over_long[RELAY_KEY_BYTES + 1];
    memset(over_long, 'k', sizeof over_long - 1);
    over_long[sizeof over_long - 1] = '\0';
    const char *bad[] = {"",    "/",      "a//b", "/a",    "a/",   ".",      "..",    "../x",
                         "a/.", "a/../b", ".tmp", "a/.x",  "a b",  "a\n",    "a\\b",  "a+b",
                         "@a",  "a:b",    "a*",   "a\xC3", "a/\"", "a/b//c", "a?b=c", over_long};
    char buf[8];
    size_t bytes = 0;
    int64_t n = 0;
    Slice part = {"x", 1};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        RIG_CHECK(relay_check_key(bad[i]) == ERR_ARGUMENT &&
                      relay_put(relay, bad[i], &part, 1, soon(rig)) == ERR_ARGUMENT &&
                      relay_get(relay, bad[i], buf, 8, soon(rig), &bytes) == ERR_ARGUMENT &&
                      relay_has(relay, bad[i]) == ERR_ARGUMENT &&
                      relay_drop_one(relay, bad[i], &n) == ERR_ARGUMENT &&
                      relay_note_put(relay, bad[i], "x", 1, 1000) == ERR_ARGUMENT &&
                      relay_note_get(relay, bad[i], buf, 8, &bytes) == ERR_ARGUMENT,
                  "the key '%s' was accepted", bad[i]);
        if (bad[i][0])
            RIG_CHECK(relay_count(relay, bad[i], &n) == ERR_ARGUMENT, "count took '%s'", bad[i]);
    }
    RIG_CHECK(relay_count(relay, "", &n) == 0 && n == 0, "a refused put left something");
    return true;
}

bool relay_suite_long_keys(RelayRig *rig) {
    char deep[RELAY_KEY_BYTES];
    char flat[RELAY_KEY_BYTES];
    for (int i = 0; i < RELAY_KEY_BYTES - 1; i++) {
        deep[i] = i % 2 ? '/' : 'd';
        flat[i] = (char)('a' + i % 26);
    }
    deep[RELAY_KEY_BYTES - 1] = flat[RELAY_KEY_BYTES - 1] = '\0';
    int64_t n = 0;
    PUT(deep, "deep");
    PUT(flat, "flat");
    PUT("A-b_c.9/-x/_y", "odd");
    RIG_CHECK(is_text(rig, 1, deep, "deep"), "the deepest key: %s", err_text());
    RIG_CHECK(is_text(rig, 1, flat, "flat"), "the longest name: %s", err_text());
    RIG_CHECK(is_text(rig, 1, "A-b_c.9/-x/_y", "odd"), "all characters: %s", err_text());
    RIG_CHECK(relay_drop_one(relay_rig(rig, 1), "d", &n) == 0 && n == 1,
              "dropping the deep one: %lld", (long long)n);
    return true;
}

bool relay_suite_one_name_three_uses(RelayRig *rig) {
    Relay *relay = relay_rig(rig, 0);
    char buf[16];
    size_t bytes = 0;
    PUT("x/y", "object");
    PUT("x/y/z", "below");
    RIG_CHECK(relay_note_put(relay, "x/y", "note", 4, 60000) == 0, "%s", err_text());
    RIG_CHECK(relay_note_put(relay, "x", "above", 5, 60000) == 0, "%s", err_text());
    PUT("x", "top");
    RIG_CHECK(is_text(rig, 0, "x/y", "object") && is_text(rig, 0, "x/y/z", "below") &&
                  is_text(rig, 0, "x", "top"),
              "objects of one name at several depths mix");
    RIG_CHECK(relay_note_get(relay, "x/y", buf, sizeof buf, &bytes) == 0 && bytes == 4 &&
                  memcmp(buf, "note", 4) == 0,
              "a note and an object of one name mix");
    return true;
}

/* ---- drop and count ---- */

bool relay_suite_drop_keeps_neighbours(RelayRig *rig) {
    Relay *relay = relay_rig(rig, 0);
    static const char *const in[] = {"a/t1", "a/t1/x", "a/t1/y/z", "a/t1/y/w"};
    static const char *const out[] = {"a/t10", "a/t10/x", "a/t", "a/t1.x", "a/t1-", "b/t1/x", "t1"};
    char buf[8];
    size_t bytes = 0;
    int64_t n = -1;
    for (size_t i = 0; i < sizeof in / sizeof in[0]; i++)
        PUT(in[i], "in");
    for (size_t i = 0; i < sizeof out / sizeof out[0]; i++)
        PUT(out[i], "out");
    RIG_CHECK(relay_note_put(relay, "a/t1/note", "n", 1, 60000) == 0 &&
                  relay_note_put(relay, "a/t10/note", "n", 1, 60000) == 0,
              "%s", err_text());
    RIG_CHECK(relay_drop_one(relay_rig(rig, 1), "a/t1", &n) == 0, "%s", err_text());
    RIG_CHECK(n == 5, "dropped %lld, expected 4 objects and 1 note", (long long)n);
    for (size_t i = 0; i < sizeof in / sizeof in[0]; i++)
        RIG_CHECK(relay_has(relay, in[i]) == 0, "'%s' is still there", in[i]);
    for (size_t i = 0; i < sizeof out / sizeof out[0]; i++)
        RIG_CHECK(is_text(rig, 0, out[i], "out"), "'%s' went too", out[i]);
    RIG_CHECK(relay_note_get(relay, "a/t1/note", buf, 8, &bytes) == ERR_NOT_FOUND &&
                  relay_note_get(relay, "a/t10/note", buf, 8, &bytes) == 0,
              "notes were dropped otherwise");
    RIG_CHECK(relay_drop_one(relay, "a/t1", &n) == 0 && n == 0, "dropping nothing: %lld %s",
              (long long)n, err_text());
    RIG_CHECK(relay_drop_one(relay, "never/was", NULL) == 0, "dropping nothing: %s", err_text());
    PUT("a/t1/x", "anew");
    RIG_CHECK(is_text(rig, 1, "a/t1/x", "anew"), "a dropped key cannot be put anew");
    return true;
}

/* Several prefixes in one call: some doubled, some within others, some of nothing. */
bool relay_suite_drop_many_prefixes(RelayRig *rig) {
    Relay *relay = relay_rig(rig, 0);
    static const char *const prefixes[] = {"a/t2", "a/t1", "a/t1/x", "b",   "a/t2",
                                           "no",   "c/n",  "a/t3/y", "a/t9"};
    static const char *const bad[] = {"a/t1", "a//t2"};
    static const char *const in[] = {"a/t1", "a/t1/x", "a/t1/z/w", "a/t2/x",
                                     "b",    "b/x/y",  "a/t3/y"};
    static const char *const out[] = {"a/t3/x", "a/t10/x", "a/t", "a/t2.x", "bb", "c/m", "t1"};
    const char *many[RELAY_MAX_PREFIXES + 1];
    int64_t n = -1;
    for (size_t i = 0; i < sizeof in / sizeof in[0]; i++)
        PUT(in[i], "in");
    for (size_t i = 0; i < sizeof out / sizeof out[0]; i++)
        PUT(out[i], "out");
    RIG_CHECK(relay_note_put(relay, "c/n", "n", 1, 60000) == 0, "%s", err_text());
    RIG_CHECK(relay_drop(relay, bad, 2, &n) == ERR_ARGUMENT && relay_has(relay, "a/t1") == 1,
              "one bad prefix of two was taken");
    for (int i = 0; i <= RELAY_MAX_PREFIXES; i++)
        many[i] = "b";
    RIG_CHECK(relay_drop(relay, many, RELAY_MAX_PREFIXES + 1, &n) == ERR_ARGUMENT &&
                  relay_drop(relay, many, -1, &n) == ERR_ARGUMENT && relay_has(relay, "b") == 1,
              "too many prefixes were taken");
    RIG_CHECK(relay_drop(relay, NULL, 0, &n) == 0 && n == 0, "no prefix: %lld", (long long)n);
    RIG_CHECK(relay_drop(relay_rig(rig, 1), prefixes, 9, &n) == 0, "%s", err_text());
    RIG_CHECK(n == 8, "dropped %lld, expected 7 objects and 1 note", (long long)n);
    for (size_t i = 0; i < sizeof in / sizeof in[0]; i++)
        RIG_CHECK(relay_has(relay, in[i]) == 0, "'%s' is still there", in[i]);
    for (size_t i = 0; i < sizeof out / sizeof out[0]; i++)
        RIG_CHECK(is_text(rig, 0, out[i], "out"), "'%s' went too", out[i]);
    RIG_CHECK(relay_drop(relay, many, RELAY_MAX_PREFIXES, &n) == 0 && n == 0,
              "as many prefixes as are allowed: %s", err_text());
    return true;
}

bool relay_suite_count_objects(RelayRig *rig) {
    Relay *relay = relay_rig(rig, 0);
    static const struct {
        const char *prefix;
        int64_t n;
    } expected[] = {{"", 5},      {"a", 4}, {"a/t1", 3}, {"a/t1/x", 1},
                    {"a/t10", 1}, {"b", 1}, {"c", 0}};
    int64_t n = -1;
    RIG_CHECK(relay_count(relay, "", &n) == 0 && n == 0, "an empty relay counts %lld",
              (long long)n);
    PUT("a/t1", "");
    PUT("a/t1/x", "");
    PUT("a/t1/y/z", "");
    PUT("a/t10", "");
    PUT("b", "");
    RIG_CHECK(relay_note_put(relay, "a/t1/note", "n", 1, 60000) == 0, "%s", err_text());
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        RIG_CHECK(relay_count(relay, expected[i].prefix, &n) == 0, "%s", err_text());
        RIG_CHECK(n == expected[i].n, "under '%s': %lld, expected %lld", expected[i].prefix,
                  (long long)n, (long long)expected[i].n);
    }
    return true;
}

bool relay_suite_many_objects(RelayRig *rig) {
    Relay *relay = relay_rig(rig, 0);
    int many = relay_rig_repeat(rig, 3000);
    int64_t n = 0;
    char key[64];
    for (int i = 0; i < many; i++) {
        snprintf(key, sizeof key, "m/t%d/o.%d", i % 7, i);
        PUT(key, key);
    }
    RIG_CHECK(relay_count(relay, "m", &n) == 0 && n == many, "counted %lld", (long long)n);
    for (int i = 0; i < many; i += 13) {
        snprintf(key, sizeof key, "m/t%d/o.%d", i % 7, i);
        RIG_CHECK(is_text(rig, 1, key, key), "'%s' came out otherwise", key);
    }
    RIG_CHECK(relay_drop_one(relay, "m/t3", &n) == 0 && n == (many + 3) / 7, "dropped %lld of t3",
              (long long)n);
    RIG_CHECK(relay_drop_one(relay, "m", &n) == 0 && n == many - (many + 3) / 7,
              "dropped %lld of all", (long long)n);
    return true;
}

typedef struct Seen {
    int n_objects, n_notes, n_other, n_strange;
    int64_t bytes;
} Seen;

static int see(void *ctx, const RelayItem *item) {
    Seen *seen = ctx;
    seen->n_objects += item->kind == RELAY_ITEM_OBJECT;
    seen->n_notes += item->kind == RELAY_ITEM_NOTE;
    seen->n_other += item->kind != RELAY_ITEM_OBJECT && item->kind != RELAY_ITEM_NOTE;
    seen->n_strange += strncmp(item->key, "v/t1", 4) != 0 || item->idle_ms < 0 ||
                       item->idle_ms > 600000 || item->bytes < 0;
    seen->bytes += item->bytes;
    return 0;
}

static int stop_at_once(void *ctx, const RelayItem *item) {
    (void)item;
    ++*(int *)ctx;
    return err_set(ERR_KILLED, "enough");
}

/* A survey shows each item once, with what is known of it; sweeping takes nothing that is of use.
 */
bool relay_suite_survey(RelayRig *rig) {
    Relay *relay = relay_rig(rig, 0);
    Seen seen = {0};
    RelaySwept swept = {0};
    int n = 0;
    PUT("v/t1", "0123456789");
    PUT("v/t1/x", "0123456789");
    PUT("v/t1/y/z", "0123456789");
    PUT("v/t10", "");
    PUT("v/t", "");
    PUT("w/t1", "");
    RIG_CHECK(relay_note_put(relay, "v/t1/y", "n", 1, 60000) == 0, "%s", err_text());
    RIG_CHECK(relay_survey_visit(relay_rig(rig, 1), "v/t1", see, &seen) == 0, "%s", err_text());
    RIG_CHECK(seen.n_objects == 3 && seen.n_notes == 1 && seen.n_other == 0 &&
                  seen.n_strange == 0 && seen.bytes >= 31,
              "seen: %d objects, %d notes, %d others, %d strange, %lld bytes", seen.n_objects,
              seen.n_notes, seen.n_other, seen.n_strange, (long long)seen.bytes);
    seen = (Seen){0};
    RIG_CHECK(relay_survey_visit(relay, "", see, &seen) == 0 && seen.n_objects == 6,
              "of all: %d objects", seen.n_objects);
    seen = (Seen){0};
    RIG_CHECK(relay_survey_visit(relay, "never/was", see, &seen) == 0 && seen.n_objects == 0,
              "of nothing: %s", err_text());
    RIG_CHECK(relay_survey_visit(relay, "v//x", see, &seen) == ERR_ARGUMENT, "a bad prefix");
    RIG_CHECK(relay_survey_visit(relay, "v", stop_at_once, &n) == ERR_KILLED && n == 1,
              "a visit that was ended went on");
    RIG_CHECK(relay_survey_sweep(relay, "", 60000, false, &swept) == 0, "%s", err_text());
    RIG_CHECK(swept.n_pieces + swept.n_folders + swept.n_uploads == 0, "something was swept");
    RIG_CHECK(is_text(rig, 1, "v/t1/y/z", "0123456789"), "an object went");
    return true;
}

bool relay_suite_counters(RelayRig *rig) {
    Relay *relay = relay_rig(rig, 0);
    const RelayCounters begin = relay->counters;
    char buf[16];
    size_t bytes = 0;
    PUT("k/1", "abc");
    PUT("k/2", "defgh");
    (void)put_text(rig, 0, "k/1", "abcd");
    (void)relay_get(relay, "k/2", buf, sizeof buf, soon(rig), &bytes);
    (void)relay_get(relay, "k/3", buf, sizeof buf, clock_deadline_ms(20), &bytes);
    (void)relay_note_put(relay, "k/n", "x", 1, 60000);
    (void)relay_note_get(relay, "k/n", buf, sizeof buf, &bytes);
    (void)relay_has(relay, "k/2");
    (void)relay_drop_one(relay, "k", NULL);
    const RelayCounters *c = &relay->counters;
    RIG_CHECK(c->n_puts == 3 && c->put_bytes == 12 && c->n_duplicates == 1,
              "puts %lld, bytes %lld, duplicates %lld", (long long)c->n_puts,
              (long long)c->put_bytes, (long long)c->n_duplicates);
    RIG_CHECK(c->n_gets == 1 && c->get_bytes == 5 && c->n_waits == 1,
              "gets %lld, bytes %lld, waits %lld", (long long)c->n_gets, (long long)c->get_bytes,
              (long long)c->n_waits);
    RIG_CHECK(c->waited_ns >= 15 * CLOCK_NS_PER_MS && c->waited_ns < 60 * CLOCK_NS_PER_S,
              "waited %lld ns", (long long)c->waited_ns);
    if (rig->factory->over_network) /* 3 puts, 2 gets, 2 notes, a scan and what it found */
        RIG_CHECK(c->n_requests >= 8 && c->n_read_requests >= 2 &&
                      c->n_read_requests <= c->n_requests - 6 && c->n_write_requests >= 3 &&
                      c->n_note_requests + c->n_announce_requests >= 2 && c->n_look_requests >= 1 &&
                      c->n_drop_requests >= 1,
                  "%lld requests: %lld of gets, %lld of puts, %lld of notes, %lld of drops",
                  (long long)c->n_requests, (long long)c->n_read_requests,
                  (long long)c->n_write_requests, (long long)c->n_note_requests,
                  (long long)c->n_drop_requests);
    else
        RIG_CHECK(c->n_requests == 0 && c->n_read_requests == 0, "requests without a server");
    int64_t of_kinds = c->n_read_requests + c->n_write_requests + c->n_add_requests +
                       c->n_note_requests + c->n_look_requests + c->n_drop_requests;
    RIG_CHECK(of_kinds == c->n_requests - begin.n_requests, "%lld requests, by their kinds %lld",
              (long long)(c->n_requests - begin.n_requests), (long long)of_kinds);
    RIG_CHECK(c->n_notes == 2 && c->n_drops == 1, "notes %lld, drops %lld", (long long)c->n_notes,
              (long long)c->n_drops);
    return true;
}

/* ---- notes ---- */

bool relay_suite_notes_last_wins(RelayRig *rig) {
    Relay *relay = relay_rig(rig, 0);
    char buf[RELAY_NOTE_MAX_BYTES];
    size_t bytes = 9;
    int rc = relay_note_get(relay, "job/g1/n/h.0.0", buf, sizeof buf, &bytes);
    RIG_CHECK(rc == ERR_NOT_FOUND && strstr(err_text(), "job/g1/n/h.0.0"), "absent: %d %s", rc,
              err_text());
    for (int i = 0; i < 20; i++) {
        char text[32];
        int length = snprintf(text, sizeof text, "%.*s%d", 20 - i, "--------------------", i);
        RIG_CHECK(relay_note_put(relay_rig(rig, i % 3), "job/g1/n/h.0.0", text, (size_t)length,
                                 60000) == 0,
                  "%s", err_text());
        RIG_CHECK(relay_note_get(relay_rig(rig, 3), "job/g1/n/h.0.0", buf, sizeof buf, &bytes) == 0,
                  "%s", err_text());
        RIG_CHECK(bytes == (size_t)length && memcmp(buf, text, bytes) == 0,
                  "the note is not that of the last writer");
    }
    RIG_CHECK(relay_note_put(relay, "job/g1/n/h.0.0", NULL, 0, 60000) == 0 &&
                  relay_note_get(relay, "job/g1/n/h.0.0", buf, sizeof buf, &bytes) == 0 &&
                  bytes == 0,
              "an empty note: %s", err_text());
    RIG_CHECK(relay_has(relay, "job/g1/n/h.0.0") == 0, "a note counts as an object");
    return true;
}

bool relay_suite_notes_expire(RelayRig *rig) {
    Relay *relay = relay_rig(rig, 0);
    char buf[16];
    size_t bytes = 0;
    int64_t begin = clock_now_ns();
    RIG_CHECK(relay_note_put(relay, "n/short", "s", 1, 150) == 0 &&
                  relay_note_put(relay, "n/long", "l", 1, INT64_MAX) == 0 &&
                  relay_note_put(relay, "n/renewed", "r", 1, 150) == 0 &&
                  relay_note_put(relay, "n/renewed", "R", 1, 60000) == 0,
              "%s", err_text());
    int rc = relay_note_get(relay, "n/short", buf, sizeof buf, &bytes);
    if (clock_now_ns() - begin < 100 * CLOCK_NS_PER_MS)
        RIG_CHECK(rc == 0, "a fresh note: %s", err_text());
    clock_sleep_until(clock_deadline_ms(200));
    rc = relay_note_get(relay_rig(rig, 1), "n/short", buf, sizeof buf, &bytes);
    RIG_CHECK(rc == ERR_NOT_FOUND, "an expired note: %d", rc);
    RIG_CHECK(relay_note_get(relay, "n/long", buf, sizeof buf, &bytes) == 0, "%s", err_text());
    RIG_CHECK(relay_note_get(relay, "n/renewed", buf, sizeof buf, &bytes) == 0 && buf[0] == 'R',
              "a renewed note: %s", err_text());
    RIG_CHECK(relay_note_put(relay, "n/short", "S", 1, 60000) == 0 &&
                  relay_note_get(relay, "n/short", buf, sizeof buf, &bytes) == 0 && buf[0] == 'S',
              "an expired note cannot be written anew: %s", err_text());
    return true;
}

bool relay_suite_notes_limits(RelayRig *rig) {
    Relay *relay = relay_rig(rig, 0);
    char data[RELAY_NOTE_MAX_BYTES + 1];
    char got[RELAY_NOTE_MAX_BYTES];
    size_t bytes = 5;
    fill((unsigned char *)data, sizeof data, 3);
    RIG_CHECK(relay_note_put(relay, "n/x", data, RELAY_NOTE_MAX_BYTES, 60000) == 0, "%s",
              err_text());
    RIG_CHECK(relay_note_get(relay, "n/x", got, sizeof got, &bytes) == 0 &&
                  bytes == RELAY_NOTE_MAX_BYTES && memcmp(data, got, bytes) == 0,
              "the largest note: %s", err_text());
    int rc = relay_note_put(relay, "n/x", data, RELAY_NOTE_MAX_BYTES + 1, 60000);
    RIG_CHECK(rc == ERR_LIMIT && strstr(err_text(), "n/x"), "a too large note: %d", rc);
    rc = relay_note_get(relay, "n/x", got, sizeof got - 1, &bytes);
    RIG_CHECK(rc == ERR_LIMIT && strstr(err_text(), "n/x"), "a too small buffer: %d", rc);
    RIG_CHECK(relay_note_put(relay, "n/x", data, 1, 0) == ERR_ARGUMENT &&
                  relay_note_put(relay, "n/x", data, 1, -5) == ERR_ARGUMENT,
              "a note that never lives was accepted");
    return true;
}

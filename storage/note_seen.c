#include "storage/note_seen.h"

#include "core/clock.h"
#include "core/hash.h"

enum { LOOK_FIRST_MS = 1000, LOOK_LAST_MS = 8000 };

static uint64_t hash_of(const Slice *content) {
    return content ? hash_bytes(content->data, content->bytes) | 1 : 0;
}

NoteSeen *note_seen_find(NotesSeen *notes, const char *key) {
    uint64_t hash = hash_text(key) | 1;
    NoteSeen *seen = &notes->items[(hash >> 1) % NOTES_SEEN];
    if (seen->key != hash)
        *seen = (NoteSeen){.key = hash, .first = true, .look_ms = LOOK_FIRST_MS};
    return seen;
}

bool note_seen_usual(NoteSeen *seen, const Slice *content, int64_t now_ns) {
    uint64_t usual = hash_of(content);
    if (!seen->first && usual != seen->usual) {
        seen->from_other = false;
        seen->look_ms = LOOK_FIRST_MS;
        seen->look_ns = now_ns + (usual ? LOOK_FIRST_MS * CLOCK_NS_PER_MS : 0);
    }
    seen->usual = usual;
    if (!seen->from_other && now_ns < seen->look_ns)
        return false;
    seen->look_ns = now_ns + seen->look_ms * CLOCK_NS_PER_MS;
    seen->look_ms = 2 * seen->look_ms < LOOK_LAST_MS ? 2 * seen->look_ms : LOOK_LAST_MS;
    return true;
}

bool note_seen_other(NoteSeen *seen, const Slice *content) {
    uint64_t other = hash_of(content);
    bool changed = !seen->first && other != seen->other;
    seen->from_other = other && (!seen->usual || seen->from_other || changed);
    seen->first = false;
    seen->other = other;
    return seen->from_other;
}

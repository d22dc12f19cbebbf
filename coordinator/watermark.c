#include "coordinator/watermark.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/text.h"

enum { WATERMARK_TTL_MS = 24 * 3600 * 1000, WATERMARK_KEYS = 4096, WATERMARK_LOOKS = 3 };

/* Of all the keys it may have, the first one that lies on each server. */
void watermark_init(Watermark *watermark, const KeySpace *space, const Relay *relay) {
    int n_found = 0;
    *watermark = (Watermark){.n = 1};
    snprintf(watermark->owner, sizeof watermark->owner, "%lld %lld ", (long long)getpid(),
             (long long)clock_wall_ms());
    for (int i = 0; i < WATERMARK_KEYS && n_found < watermark->n; i++) {
        Key key = key_watermark(space, i);
        int server = relay_server(relay, key.text, &watermark->n);
        if (watermark->keys[server].text[0] || watermark->n == 0)
            continue;
        watermark->keys[server] = key;
        relay_place(relay, server, watermark->places[server]);
        n_found++;
    }
}

__attribute__((format(printf, 3, 4))) static int lost(Watermark *watermark, int server,
                                                      const char *format, ...) {
    va_list args;
    const char *place = watermark->places[server];
    int n =
        snprintf(watermark->lost, sizeof watermark->lost, "%s%s%sits watermark '%s' ",
                 place[0] ? "at " : "", place, place[0] ? " " : "", watermark->keys[server].text);
    va_start(args, format);
    vsnprintf(watermark->lost + n, sizeof watermark->lost - (size_t)n, format, args);
    va_end(args);
    return 1;
}

static int look(Watermark *watermark, int server, Relay *relay, bool *older) {
    char text[RELAY_NOTE_MAX_BYTES + 1];
    size_t bytes = 0;
    size_t owner_bytes = strlen(watermark->owner);
    int64_t number = 0;
    int64_t written = watermark->written[server];
    if (written == 0)
        return 0;
    int rc =
        relay_note_get(relay, watermark->keys[server].text, text, RELAY_NOTE_MAX_BYTES, &bytes);
    if (rc == ERR_NOT_FOUND)
        return lost(watermark, server, "is gone");
    TRY(rc);
    text[bytes] = '\0';
    if (strncmp(text, watermark->owner, owner_bytes) != 0 ||
        text_parse_i64(text + owner_bytes, 1, INT64_MAX, &number) < 0)
        return lost(watermark, server, "is another run's");
    *older = *older || number < written;
    if (number < written && watermark->n_older + 1 >= WATERMARK_LOOKS)
        return lost(watermark, server, "is back at %lld, %lld was written", (long long)number,
                    (long long)written);
    return 0;
}

/* Some stores give an older content back for a while: only where that stays so it is believed. */
int watermark_raise(Watermark *watermark, Relay *relay) {
    char text[80];
    bool older = false;
    for (int i = 0; i < watermark->n; i++) {
        int rc = watermark->keys[i].text[0] ? look(watermark, i, relay, &older) : 0;
        if (rc != 0)
            return rc;
    }
    watermark->n_older = older ? watermark->n_older + 1 : 0;
    if (older)
        return 0; /* it stays as it is, and is looked at again */
    int64_t number = ++watermark->last;
    int bytes = snprintf(text, sizeof text, "%s%lld", watermark->owner, (long long)number);
    for (int i = 0; i < watermark->n; i++) {
        if (!watermark->keys[i].text[0])
            continue;
        TRY(relay_note_put(relay, watermark->keys[i].text, text, (size_t)bytes, WATERMARK_TTL_MS));
        watermark->written[i] = number;
    }
    return 0;
}

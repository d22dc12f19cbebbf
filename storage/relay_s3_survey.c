/* What lies in an S3 store, and what the store is like. */
#include <stdio.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/text.h"
#include "storage/relay_s3_parts.h"

enum { SKEW_MS = 60000 };

typedef struct Survey {
    RelayS3 *s3;
    RelayVisit visit;
    void *ctx;
} Survey;

/* Only its content says until when a note lives. */
static int note_kind(RelayS3 *s3, const char *key, RelayItemKind *out_kind) {
    char content[RELAY_NOTE_MAX_BYTES];
    size_t bytes = 0;
    int rc = relay_s3_note_get(&s3->base, key, content, sizeof content, &bytes);
    if (rc < 0 && rc != ERR_NOT_FOUND)
        return rc;
    *out_kind = rc < 0 ? RELAY_ITEM_EXPIRED : RELAY_ITEM_NOTE;
    return 0;
}

static int show(void *ctx, char kind, const char *key, const S3Fact *fact) {
    const Survey *survey = ctx;
    int64_t idle_ms = s3_client_wall_us() / 1000 - fact->modified_ms;
    RelayItem item = {.kind = RELAY_ITEM_OBJECT, .key = key, .bytes = fact->bytes, .idle_ms = -1};
    if (fact->modified_ms >= 0)
        item.idle_ms = idle_ms > 0 ? idle_ms : 0;
    if (kind == 'u')
        item.kind = RELAY_ITEM_UPLOAD;
    if (kind == 'n')
        TRY(note_kind(survey->s3, key, &item.kind));
    return survey->visit(survey->ctx, &item);
}

static int s3_visit(Relay *relay, const char *prefix, RelayVisit visit, void *ctx) {
    Survey survey = {(RelayS3 *)relay, visit, ctx};
    return relay_s3_list(survey.s3, prefix, show, &survey);
}

/* Uploads in parts that nobody goes on with. How much is in them the store tells only who asks for
 * each. */
static int s3_sweep(Relay *relay, const char *prefix, int64_t older_ms, bool dry_run,
                    RelaySwept *out_swept) {
    return relay_s3_end_uploads((RelayS3 *)relay, prefix, older_ms > 0 ? older_ms : 1, dry_run,
                                &out_swept->n_uploads);
}

static int s3_about(Relay *relay, RelayTell tell, void *ctx) {
    const RelayS3 *s3 = (RelayS3 *)relay;
    char value[96];
    char text[3][32];
    tell(ctx, "host", s3->url.host, NULL);
    tell(ctx, "bucket", s3->url.bucket, NULL);
    tell(ctx, "region", s3->url.region, NULL);
    tell(ctx, "style", s3->url.virtual_style ? "virtual" : "path", NULL);
    tell(ctx, "login",
         s3_client_temporary(s3->client) ? "with an access key and a session token, which ends"
                                         : "with an access key",
         NULL);
    tell(ctx, "tls", s3->url.tls ? "yes" : "no",
         s3->url.tls ? NULL
                     : "requests are signed but not encrypted: use an endpoint with https:// where "
                       "others can read the network");
    snprintf(value, sizeof value, "%s in one request; longer objects, up to %s, in parts of %s",
             text_format_bytes(S3_SINGLE_BYTES, text[0], sizeof text[0]),
             text_format_bytes((int64_t)RELAY_MAX_OBJECT_BYTES, text[1], sizeof text[1]),
             text_format_bytes(S3_PIECE_BYTES, text[2], sizeof text[2]));
    tell(ctx, "longest_value", value, NULL);
    return 0;
}

/* The store tells its time with every answer, in seconds, and some time ago. */
static void tell_clock(RelayTell tell, void *ctx) {
    char value[32];
    int64_t skew_ms = s3_client_wall_us() / 1000 - clock_wall_ms();
    bool small = skew_ms <= S3_CLOCK_OFF_MS && skew_ms >= -S3_CLOCK_OFF_MS;
    if (small)
        snprintf(value, sizeof value, "less than %d s", S3_CLOCK_OFF_MS / 1000);
    else
        snprintf(value, sizeof value, "%lld ms", (long long)skew_ms);
    tell(ctx, "clock_skew", value,
         skew_ms > SKEW_MS || skew_ms < -SKEW_MS
             ? "this machine's clock is off the store's; requests are signed by the store's, but "
               "set the clock (NTP)"
             : NULL);
}

static void s3_learned(Relay *relay, RelayTell tell, void *ctx) {
    static const char *const values[] = {[S3_CREATE_UNKNOWN] = "not known: no object could be put",
                                         [S3_CREATE_CHECKED] = "yes",
                                         [S3_CREATE_IGNORED] = "no"};
    const RelayS3 *s3 = (RelayS3 *)relay;
    tell(ctx, "conditional_put", values[s3->create],
         s3->create == S3_CREATE_IGNORED
             ? "the store overwrites: start one run of a job at a time, as two that begin at the "
               "same moment could take the same generation"
             : NULL);
    tell_clock(tell, ctx);
}

const RelaySurvey relay_s3_survey = {
    .visit = s3_visit, .sweep = s3_sweep, .about = s3_about, .learned = s3_learned, .asks = true};

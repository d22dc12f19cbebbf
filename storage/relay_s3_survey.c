/* What lies in an S3 store, and what the store is like. */
#include <stdio.h>

#include "core/clock.h"
#include "core/err.h"
#include "storage/relay_s3_parts.h"

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
    int64_t skew_ms = s3_client_wall_us() / 1000 - clock_wall_ms();
    tell(ctx, "host", s3->url.host, NULL);
    tell(ctx, "bucket", s3->url.bucket, NULL);
    tell(ctx, "region", s3->url.region, NULL);
    tell(ctx, "style", s3->url.virtual_style ? "virtual" : "path", NULL);
    tell(ctx, "tls", s3->url.tls ? "yes" : "no",
         s3->url.tls ? NULL
                     : "requests are signed but not encrypted: use an endpoint with https:// where "
                       "others can read the network");
    tell(ctx, "conditional_put",
         s3->create == S3_CREATE_CHECKED   ? "yes"
         : s3->create == S3_CREATE_IGNORED ? "no"
                                           : "not tried",
         s3->create == S3_CREATE_IGNORED
             ? "the store overwrites: start one run of a job at a time, as two that begin at the "
               "same moment could take the same generation"
             : NULL);
    snprintf(value, sizeof value, "%lld ms", (long long)skew_ms);
    tell(ctx, "clock_skew", value,
         skew_ms > 60000 || skew_ms < -60000
             ? "this machine's clock is off the store's; requests are signed by the store's, but "
               "set the clock (NTP)"
             : NULL);
    return 0;
}

const RelaySurvey relay_s3_survey = {
    .visit = s3_visit, .sweep = s3_sweep, .about = s3_about, .asks = true};

#include "storage/relay_survey.h"

#include "core/err.h"

static int cannot(const Relay *relay, const char *what) {
    return err_set(ERR_UNSUPPORTED, "a %s relay cannot be %s", relay->ops->name, what);
}

static int check_prefix(const char *prefix) {
    return prefix[0] ? relay_check_key(prefix) : 0;
}

int relay_survey_visit(Relay *relay, const char *prefix, RelayVisit visit, void *ctx) {
    TRY(check_prefix(prefix));
    if (!relay->ops->survey)
        return cannot(relay, "listed");
    return relay->ops->survey->visit(relay, prefix, visit, ctx);
}

int relay_survey_sweep(Relay *relay, const char *prefix, int64_t older_ms, bool dry_run,
                       RelaySwept *out_swept) {
    *out_swept = (RelaySwept){0};
    TRY(check_prefix(prefix));
    if (!relay->ops->survey)
        return cannot(relay, "swept");
    return relay->ops->survey->sweep(relay, prefix, older_ms, dry_run, out_swept);
}

int relay_survey_about(Relay *relay, RelayTell tell, void *ctx) {
    if (!relay->ops->survey)
        return cannot(relay, "described");
    return relay->ops->survey->about(relay, tell, ctx);
}

void relay_survey_learned(Relay *relay, RelayTell tell, void *ctx) {
    const RelaySurvey *survey = relay->ops->survey;
    if (survey && survey->learned)
        survey->learned(relay, tell, ctx);
}

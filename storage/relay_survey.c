#include "storage/relay_survey.h"

#include "core/err.h"

static int cannot(const Relay *relay, const char *what) {
    return err_set(ERR_UNSUPPORTED, "a %s relay cannot be %s", relay->ops->name, what);
}

int relay_survey_visit(Relay *relay, const char *prefix, RelayVisit visit, void *ctx) {
    if (prefix[0])
        TRY(relay_check_key(prefix));
    if (!relay->ops->survey)
        return cannot(relay, "listed");
    return relay->ops->survey->visit(relay, prefix, visit, ctx);
}

int relay_survey_sweep(Relay *relay, int64_t older_ms, bool dry_run, RelaySwept *out_swept) {
    RelaySwept swept = {0};
    if (!relay->ops->survey)
        return cannot(relay, "swept");
    TRY(relay->ops->survey->sweep(relay, older_ms, dry_run, &swept));
    *out_swept = swept;
    return 0;
}

int relay_survey_about(Relay *relay, RelayTell tell, void *ctx) {
    if (!relay->ops->survey)
        return cannot(relay, "described");
    return relay->ops->survey->about(relay, tell, ctx);
}

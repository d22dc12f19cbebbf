#include "coordinator/gc.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"

enum { GC_RELAY_MS = 10000, GC_BATCH = 64 };

const char *gc_state_name(GcState state) {
    static const char *const names[GC_N_STATES] = {"dead", "running", "young", "unknown"};
    return names[state];
}

void gc_done(GcReport *report) {
    free(report->items);
    *report = (GcReport){0};
}

/* ---- looking ---- */

/* Items of a generation come in runs: the last one looked up is tried first. */
static GcGeneration *find(GcReport *report, const KeySpace *space) {
    for (int32_t i = report->n - 1; i >= 0; i--) {
        GcGeneration *item = &report->items[i];
        if (item->space.generation == space->generation && strcmp(item->space.job, space->job) == 0)
            return item;
    }
    if (report->n == report->capacity) {
        int32_t capacity = report->capacity ? 2 * report->capacity : 16;
        GcGeneration *items = realloc(report->items, (size_t)capacity * sizeof *items);
        if (!items)
            return NULL;
        report->items = items;
        report->capacity = capacity;
    }
    GcGeneration *item = &report->items[report->n++];
    *item = (GcGeneration){.space = *space, .idle_ms = INT64_MAX};
    return item;
}

static int see(void *ctx, const RelayItem *seen) {
    GcReport *report = ctx;
    KeySpace space;
    bool claim = false;
    if (!key_find_space(seen->key, &space, &claim)) {
        report->n_foreign += seen->kind != RELAY_ITEM_UPLOAD;
        return 0;
    }
    GcGeneration *item = find(report, &space);
    if (!item)
        return err_set(ERR_MEMORY, "%d generations of jobs", report->n);
    item->claimed |= claim;
    item->n_objects += seen->kind == RELAY_ITEM_OBJECT;
    item->n_notes += seen->kind == RELAY_ITEM_NOTE || seen->kind == RELAY_ITEM_EXPIRED;
    if (seen->kind != RELAY_ITEM_UPLOAD) /* nobody knows how much is in one */
        item->bytes = seen->bytes < 0 || item->bytes < 0 ? -1 : item->bytes + seen->bytes;
    if (seen->idle_ms < item->idle_ms) /* -1, not known, is the least */
        item->idle_ms = seen->idle_ms;
    /* The watermark outlives its run long: it is no sign of life. */
    if (seen->kind == RELAY_ITEM_NOTE && !key_is_watermark(seen->key))
        item->state = GC_RUNNING;
    return 0;
}

static GcState state_of(const GcGeneration *item, int64_t older_ms) {
    if (item->state == GC_RUNNING)
        return GC_RUNNING;
    if (item->idle_ms < 0)
        return GC_UNKNOWN;
    return item->idle_ms < older_ms ? GC_YOUNG : GC_DEAD;
}

static int compare(const void *a, const void *b) {
    const GcGeneration *one = a;
    const GcGeneration *other = b;
    int order = strcmp(one->space.job, other->space.job);
    if (order != 0)
        return order;
    return (one->space.generation > other->space.generation) -
           (one->space.generation < other->space.generation);
}

static const char *place_of(const GcOptions *options) {
    return options->job ? options->job : "";
}

/* What is only pieces and uploads is no generation, but leftovers, which the sweep takes. */
static int look(Relay *relay, const GcOptions *options, GcReport *report) {
    int32_t n = 0;
    TRY(relay_survey_visit(relay, place_of(options), see, report));
    for (int32_t i = 0; i < report->n; i++) {
        GcGeneration *item = &report->items[i];
        item->state = state_of(item, options->older_ms);
        if (item->n_objects + item->n_notes > 0)
            report->items[n++] = *item;
    }
    report->n = n;
    if (report->n > 0)
        qsort(report->items, (size_t)report->n, sizeof *report->items, compare);
    return 0;
}

/* ---- removing ---- */

/* Dead generations that are removed together: their prefixes, and then their claims. */
typedef struct Batch {
    GcGeneration *items[GC_BATCH];
    Key prefixes[GC_BATCH], claims[GC_BATCH];
    const char *prefix_texts[GC_BATCH], *claim_texts[GC_BATCH];
    int n;
} Batch;

/* Is it still dead? Another gc may have removed it meanwhile, and a run taken its number anew. One
 * that nobody claims is claimed, so that no run can take it while it is being removed. */
static int is_still_dead(Relay *relay, GcGeneration *item, const GcReport *now) {
    static const Slice name = {"gc", 2};
    const GcGeneration *same =
        now->n > 0 ? bsearch(item, now->items, (size_t)now->n, sizeof *now->items, compare) : NULL;
    if (!same || same->state != GC_DEAD) {
        item->state = same ? same->state : GC_DEAD;
        return 0;
    }
    if (item->claimed)
        return 1;
    int rc = relay_put(relay, key_claim(item->space.job, item->space.generation).text, &name, 1,
                       clock_deadline_ms(GC_RELAY_MS));
    if (rc == 1)
        item->state = GC_YOUNG;
    return rc < 0 ? rc : rc == 0;
}

static int add(Relay *relay, Batch *batch, GcGeneration *item, const GcReport *now) {
    int rc = is_still_dead(relay, item, now);
    if (rc <= 0)
        return rc;
    int i = batch->n++;
    batch->items[i] = item;
    batch->prefixes[i] = key_space_prefix(&item->space);
    batch->claims[i] = key_claim(item->space.job, item->space.generation);
    batch->prefix_texts[i] = batch->prefixes[i].text;
    batch->claim_texts[i] = batch->claims[i].text;
    return 0;
}

/* The dead ones of items [*at, n), as many as a batch takes; *at: how far it came. */
static int remove_some(Relay *relay, const GcOptions *options, GcReport *report, Batch *batch,
                       int32_t *at) {
    GcReport now = {0};
    int rc = look(relay, options, &now);
    batch->n = 0;
    for (; rc >= 0 && *at < report->n && batch->n < GC_BATCH; ++*at) {
        if (report->items[*at].state == GC_DEAD)
            rc = add(relay, batch, &report->items[*at], &now);
    }
    gc_done(&now);
    TRY(rc);
    TRY(relay_drop(relay, batch->prefix_texts, batch->n, NULL));
    TRY(relay_drop(relay, batch->claim_texts, batch->n, NULL));
    for (int i = 0; i < batch->n; i++) {
        batch->items[i]->removed = true;
        relay_tidy(relay, key_space_prefix(&batch->items[i]->space).text);
    }
    return 0;
}

static int remove_dead(Relay *relay, const GcOptions *options, GcReport *report) {
    int rc = 0;
    Batch *batch = malloc(sizeof *batch);
    if (!batch)
        return err_set(ERR_MEMORY, "generations to remove");
    for (int32_t at = 0; rc >= 0 && at < report->n;) {
        if (report->items[at].state == GC_DEAD)
            rc = remove_some(relay, options, report, batch, &at);
        else
            at++;
    }
    free(batch);
    return rc;
}

/* Leftovers are swept, and counted, before the dead are removed, with whom theirs would go
 * uncounted: so a dry run tells what the real one will. */
int gc_run(Relay *relay, const GcOptions *options, GcReport *out_report) {
    *out_report = (GcReport){0};
    ErrNote failure;
    TRY(look(relay, options, out_report));
    int swept = relay_survey_sweep(relay, place_of(options), options->older_ms, options->dry_run,
                                   &out_report->swept);
    err_copy(&failure); /* the dead can be removed all the same */
    if (!options->dry_run)
        TRY(remove_dead(relay, options, out_report));
    return swept < 0 ? err_restore(&failure) : 0;
}

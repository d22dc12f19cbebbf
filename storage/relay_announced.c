#include "storage/relay_announced.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/hash.h"
#include "core/text.h"
#include "storage/note_seen.h"
#include "storage/relay_s3.h"
#include "storage/relay_survey.h"
#include "storage/s3_url.h"

enum {
    LISTEN_MS = 500,      /* at a time: a dead announcer is noticed about so soon */
    LATE_MS = 2000,       /* an answer later than that beyond its deadline is none */
    LOOK_FIRST_MS = 1000, /* into the store for what was not announced; then twice as late */
    LOOK_LAST_MS = 8000,
    ANNOUNCE_MS = 1000,   /* for one announcement, a note */
    DEAF_FIRST_MS = 1000, /* an announcer that failed is left alone; then twice as long */
    DEAF_LAST_MS = 16000,
    DOUBT_MS = 60000, /* others may have found it dead for longer than we did */
    URL_BYTES = 2048
};

typedef struct RelayAnnounced {
    Relay base;
    Relay *store;
    pthread_mutex_t lock; /* of the next two */
    Relay *announcer;     /* NULL: not open yet */
    bool interrupted;
    int64_t deaf_until_ns, deaf_ms; /* the announcer failed: not before; so long the next time */
    int64_t doubt_until_ns;         /* notes may lie in the store */
    bool lossy;                     /* the last announcement looked for was missing */
    /* Who comes back after a deadline goes on waiting. */
    char asked_key[RELAY_KEY_BYTES]; /* "" none */
    int64_t look_ns, look_ms;        /* into the store: when next, and how long after that */
    char known_key[RELAY_KEY_BYTES]; /* its size was asked for last; "" none */
    NotesSeen notes;
    char announcer_url[URL_BYTES];
} RelayAnnounced;

static int64_t lesser(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* ---- the announcer ---- */

/* It failed, and is asked again later. */
static void turn_deaf(RelayAnnounced *both) {
    both->deaf_ms = both->deaf_ms == 0 ? DEAF_FIRST_MS : lesser(2 * both->deaf_ms, DEAF_LAST_MS);
    both->deaf_until_ns = clock_deadline_ms(both->deaf_ms);
    both->doubt_until_ns = clock_deadline_ms(both->deaf_ms + DOUBT_MS);
    both->lossy = true; /* others' announcements have got as little through */
}

static void open_announcer(RelayAnnounced *both) {
    Relay *announcer = NULL;
    if (relay_open(both->announcer_url, &announcer) < 0)
        return;
    pthread_mutex_lock(&both->lock);
    both->announcer = announcer;
    if (both->interrupted)
        relay_interrupt(announcer, true);
    pthread_mutex_unlock(&both->lock);
}

/* It was to answer until then, or soon after, and gave rc. Has it answered? Interruptions, and what
 * is wrong with the question, are answers. */
static bool answered(RelayAnnounced *both, int rc, int64_t deadline_ns) {
    bool late = rc < 0 && clock_now_ns() > deadline_ns + LATE_MS * CLOCK_NS_PER_MS;
    bool fine = rc >= 0 || rc == ERR_TIMEOUT || rc == ERR_CANCELLED || rc == ERR_NOT_FOUND ||
                rc == ERR_LIMIT || rc == ERR_ARGUMENT;
    if (!fine || late)
        turn_deaf(both);
    else if (rc != ERR_CANCELLED)
        both->deaf_ms = 0;
    return fine && !late;
}

/* One that failed is asked for nothing, whether it answers by now. */
static bool probe(RelayAnnounced *both, int64_t now_ns) {
    char byte;
    size_t bytes = 0;
    return both->announcer &&
           answered(both, relay_get(both->announcer, "probe", &byte, sizeof byte, 0, &bytes),
                    now_ns);
}

/* Is it to be asked? */
static bool hears(RelayAnnounced *both) {
    int64_t now_ns = clock_now_ns();
    if (now_ns < both->deaf_until_ns)
        return false;
    if (both->announcer && both->deaf_ms == 0)
        return true;
    if (!both->announcer)
        open_announcer(both);
    if (probe(both, now_ns))
        return true;
    if (!both->announcer)
        turn_deaf(both);
    both->deaf_until_ns += 10 * (clock_now_ns() - now_ns); /* what takes long is seldom done */
    return false;
}

/* Whether it works does not matter: who waits for the object looks for it all the same. */
static void announce(RelayAnnounced *both, const char *key, int64_t deadline_ns) {
    ErrNote note;
    err_copy(&note);
    if (hears(both)) {
        int64_t until_ns = lesser(deadline_ns, clock_deadline_ms(ANNOUNCE_MS));
        int rc = relay_put(both->announcer, key, NULL, 0, until_ns);
        if (rc == ERR_TIMEOUT && until_ns < deadline_ns)
            turn_deaf(both);
        else if (rc != ERR_TIMEOUT) /* else it had less time than that */
            (void)answered(both, rc, until_ns);
    }
    err_restore(&note);
}

/* ---- reading ---- */

typedef struct Get {
    const char *key;
    void *buf;
    size_t capacity;
    bool sizes; /* only the size is wanted */
    size_t bytes;
} Get;

static int read_store(RelayAnnounced *both, Get *get, int64_t deadline_ns) {
    return get->sizes ? both->store->ops->size(both->store, get->key, deadline_ns, &get->bytes)
                      : relay_get(both->store, get->key, get->buf, get->capacity, deadline_ns,
                                  &get->bytes);
}

/* It has been announced: it is there, or will be in a moment. */
static int read_announced(RelayAnnounced *both, Get *get, int64_t deadline_ns) {
    int rc = read_store(both, get, 0); /* at once, whenever the store would be asked */
    if (rc == ERR_TIMEOUT || rc == ERR_UNREACHABLE)
        rc = read_store(both, get, deadline_ns);
    return rc == ERR_TIMEOUT ? err_context(rc, "it was announced") : rc;
}

/* Wait for the announcement until then: 1 there, 0 not. */
static int listen(RelayAnnounced *both, const char *key, int64_t until_ns) {
    char byte;
    size_t bytes = 0;
    int64_t begin_ns = clock_now_ns();
    int rc = relay_get(both->announcer, key, &byte, sizeof byte, until_ns, &bytes);
    if (!answered(both, rc, until_ns > begin_ns ? until_ns : begin_ns) || rc == ERR_TIMEOUT)
        return 0;
    return rc == ERR_CANCELLED ? rc : 1;
}

/* Some operations of an announcer that does not answer would go on trying for long. Does it? */
static bool hears_now(RelayAnnounced *both, const char *key) {
    if (hears(both))
        (void)listen(both, key, 0);
    return hears(both);
}

/* Look into the store for what has not been announced. */
static int look(RelayAnnounced *both, Get *get) {
    int rc = read_store(both, get, 0);
    both->lossy = rc >= 0;
    both->look_ns = clock_deadline_ms(both->look_ms);
    both->look_ms = lesser(2 * both->look_ms, LOOK_LAST_MS);
    if (rc >= 0)
        announce(both, get->key, CLOCK_NEVER);
    return rc;
}

static bool is_absent(int rc) {
    return rc == ERR_TIMEOUT || rc == ERR_UNREACHABLE;
}

/* Who asks for another object than the last time begins a wait. */
static void begin_wait(RelayAnnounced *both, const char *key) {
    if (strcmp(both->asked_key, key) == 0)
        return;
    (void)text_copy(both->asked_key, sizeof both->asked_key, key);
    both->look_ms = LOOK_FIRST_MS;
    both->look_ns = clock_deadline_ms(both->lossy ? 0 : LOOK_FIRST_MS);
}

/* Listen once. 1: the wait has ended with *out_rc. */
static int await_once(RelayAnnounced *both, Get *get, int64_t deadline_ns, int *out_rc) {
    int64_t until_ns = lesser(lesser(deadline_ns, both->look_ns), clock_deadline_ms(LISTEN_MS));
    int heard = listen(both, get->key, until_ns);
    if (heard != 0) {
        *out_rc = heard < 0 ? heard : read_announced(both, get, deadline_ns);
        return 1;
    }
    if (!hears(both))
        return 0;
    bool ends = clock_now_ns() >= deadline_ns;
    bool never_looked = both->look_ms == LOOK_FIRST_MS;
    if (clock_now_ns() >= both->look_ns || (ends && never_looked))
        *out_rc = look(both, get);
    else
        *out_rc = err_set(ERR_TIMEOUT, "'%s' was not announced, and the deadline passed", get->key);
    return ends || !is_absent(*out_rc);
}

static int await(RelayAnnounced *both, Get *get, int64_t deadline_ns) {
    int rc = ERR_TIMEOUT;
    begin_wait(both, get->key);
    for (;;) {
        if (hears(both)) {
            if (await_once(both, get, deadline_ns, &rc))
                return rc;
            continue;
        }
        int64_t until_ns = lesser(deadline_ns, both->deaf_until_ns);
        rc = read_store(both, get, until_ns);
        if (!is_absent(rc) || until_ns == deadline_ns || clock_now_ns() < until_ns)
            return rc;
    }
}

/* What both have counted so far, requests apart. */
static RelayCounters counted(const RelayAnnounced *both) {
    RelayCounters sum = both->store->counters;
    if (both->announcer) {
        sum.n_waits += both->announcer->counters.n_waits;
        sum.n_retries += both->announcer->counters.n_retries;
        sum.n_announce_requests = both->announcer->counters.n_requests;
    }
    return sum;
}

/* Count what both have counted since. */
static int count_since(RelayAnnounced *both, const RelayCounters *before, int rc) {
    const RelayCounters now = counted(both);
    RelayCounters *sum = &both->base.counters;
    sum->n_waits += now.n_waits - before->n_waits;
    sum->n_retries += now.n_retries - before->n_retries;
    sum->n_requests += now.n_requests - before->n_requests;
    sum->n_announce_requests += now.n_announce_requests - before->n_announce_requests;
    return rc;
}

static int get_any(RelayAnnounced *both, Get *get, int64_t deadline_ns) {
    RelayCounters before = counted(both);
    bool known = strcmp(both->known_key, get->key) == 0;
    both->known_key[0] = '\0';
    int rc = known ? read_store(both, get, deadline_ns) : await(both, get, deadline_ns);
    if (rc >= 0)
        both->asked_key[0] = '\0';
    return count_since(both, &before, rc);
}

static int announced_get(Relay *relay, const char *key, void *buf, size_t capacity,
                         int64_t deadline_ns, size_t *out_bytes) {
    Get get = {.key = key, .buf = buf, .capacity = capacity};
    TRY(get_any((RelayAnnounced *)relay, &get, deadline_ns));
    *out_bytes = get.bytes;
    return 0;
}

static int announced_size(Relay *relay, const char *key, int64_t deadline_ns, size_t *out_bytes) {
    RelayAnnounced *both = (RelayAnnounced *)relay;
    Get get = {.key = key, .sizes = true};
    TRY(get_any(both, &get, deadline_ns));
    (void)text_copy(both->known_key, sizeof both->known_key, key);
    *out_bytes = get.bytes;
    return 0;
}

/* ---- the rest ---- */

static int announced_put(Relay *relay, const char *key, const Slice *parts, int n_parts,
                         int64_t deadline_ns) {
    RelayAnnounced *both = (RelayAnnounced *)relay;
    RelayCounters before = counted(both);
    int rc = relay_put(both->store, key, parts, n_parts, deadline_ns);
    if (rc >= 0) /* also what was there: its writer may have died before it announced it */
        announce(both, key, deadline_ns);
    return count_since(both, &before, rc);
}

static int announced_has(Relay *relay, const char *key) {
    RelayAnnounced *both = (RelayAnnounced *)relay;
    RelayCounters before = counted(both);
    return count_since(both, &before, relay_has(both->store, key));
}

/* Every object is announced, and notes are with the announcements: the larger number is that of
 * both. */
static int drop_both(RelayAnnounced *both, const char *const *prefixes, int n_prefixes,
                     int64_t *out_dropped) {
    int64_t n_announced = 0;
    both->known_key[0] = '\0';
    int rc = relay_drop(both->store, prefixes, n_prefixes, out_dropped);
    TRY(rc);
    if (hears_now(both, prefixes[0])) {
        int64_t until_ns = clock_deadline_ms(ANNOUNCE_MS);
        rc = relay_drop(both->announcer, prefixes, n_prefixes, &n_announced);
        if (rc == ERR_CANCELLED)
            return rc;
        if (rc < 0)
            (void)answered(both, rc, until_ns);
    }
    if (n_announced > *out_dropped)
        *out_dropped = n_announced;
    return 0;
}

static int announced_drop(Relay *relay, const char *const *prefixes, int n_prefixes,
                          int64_t *out_dropped) {
    RelayAnnounced *both = (RelayAnnounced *)relay;
    RelayCounters before = counted(both);
    return count_since(both, &before, drop_both(both, prefixes, n_prefixes, out_dropped));
}

static int announced_count(Relay *relay, const char *prefix, int64_t *out_count) {
    RelayAnnounced *both = (RelayAnnounced *)relay;
    RelayCounters before = counted(both);
    return count_since(both, &before, relay_count(both->store, prefix, out_count));
}

static int note_put(RelayAnnounced *both, const char *key, const void *data, size_t bytes,
                    int64_t ttl_ms) {
    if (hears_now(both, key)) {
        int64_t until_ns = clock_deadline_ms(ANNOUNCE_MS);
        int rc = relay_note_put(both->announcer, key, data, bytes, ttl_ms);
        if (answered(both, rc, until_ns))
            return rc;
    }
    return relay_note_put(both->store, key, data, bytes, ttl_ms);
}

static int announced_note_put(Relay *relay, const char *key, const void *data, size_t bytes,
                              int64_t ttl_ms) {
    RelayAnnounced *both = (RelayAnnounced *)relay;
    RelayCounters before = counted(both);
    return count_since(both, &before, note_put(both, key, data, bytes, ttl_ms));
}

/* The store's note, where its writer is the one that cannot reach the announcer, which gave rc. */
static int later_note(RelayAnnounced *both, NoteSeen *seen, const char *key, void *buf,
                      size_t capacity, int rc, size_t *out_bytes) {
    char text[RELAY_NOTE_MAX_BYTES];
    Slice content = {text, 0};
    ErrNote said;
    err_copy(&said);
    int there = relay_note_get(both->store, key, text,
                               capacity < sizeof text ? capacity : sizeof text, &content.bytes);
    bool known = there >= 0 || there == ERR_NOT_FOUND;
    if (known && note_seen_other(seen, there >= 0 ? &content : NULL)) {
        memcpy(buf, text, content.bytes);
        *out_bytes = content.bytes;
        return 0;
    }
    err_restore(&said);
    return rc;
}

static int note_get(RelayAnnounced *both, const char *key, void *buf, size_t capacity,
                    size_t *out_bytes) {
    NoteSeen *seen = note_seen_find(&both->notes, key);
    if (hears_now(both, key)) {
        int64_t until_ns = clock_deadline_ms(ANNOUNCE_MS);
        int rc = relay_note_get(both->announcer, key, buf, capacity, out_bytes);
        if (answered(both, rc, until_ns)) {
            int64_t now_ns = clock_now_ns();
            Slice content = {buf, rc >= 0 ? *out_bytes : 0};
            bool doubt = rc == ERR_NOT_FOUND && now_ns < both->doubt_until_ns;
            bool looks = (rc >= 0 || rc == ERR_NOT_FOUND) &&
                         note_seen_usual(seen, rc >= 0 ? &content : NULL, now_ns);
            return looks || doubt ? later_note(both, seen, key, buf, capacity, rc, out_bytes) : rc;
        }
    }
    return relay_note_get(both->store, key, buf, capacity, out_bytes);
}

static int announced_note_get(Relay *relay, const char *key, void *buf, size_t capacity,
                              size_t *out_bytes) {
    RelayAnnounced *both = (RelayAnnounced *)relay;
    RelayCounters before = counted(both);
    return count_since(both, &before, note_get(both, key, buf, capacity, out_bytes));
}

/* An announcer that has lost its notes has lost no object. */
static int announced_server(const Relay *relay, const char *key, int *out_n) {
    (void)relay, (void)key;
    *out_n = 0;
    return 0;
}

static void announced_tidy(Relay *relay, const char *prefix) {
    RelayAnnounced *both = (RelayAnnounced *)relay;
    RelayCounters before = counted(both);
    relay_tidy(both->store, prefix);
    if (hears_now(both, prefix))
        relay_tidy(both->announcer, prefix);
    (void)count_since(both, &before, 0);
}

static void announced_interrupt(Relay *relay, bool on) {
    RelayAnnounced *both = (RelayAnnounced *)relay;
    pthread_mutex_lock(&both->lock);
    both->interrupted = on;
    relay_interrupt(both->store, on);
    if (both->announcer)
        relay_interrupt(both->announcer, on);
    pthread_mutex_unlock(&both->lock);
}

static void announced_close(Relay *relay) {
    RelayAnnounced *both = (RelayAnnounced *)relay;
    relay_close(both->store);
    relay_close(both->announcer);
    pthread_mutex_destroy(&both->lock);
    explicit_bzero(both->announcer_url, sizeof both->announcer_url);
    free(both);
}

/* ---- survey ---- */

/* Without it nobody can say which job still runs. */
static int must_hear(RelayAnnounced *both) {
    char byte;
    size_t bytes = 0;
    if (!both->announcer)
        TRY(relay_open(both->announcer_url, &both->announcer));
    int rc = relay_get(both->announcer, "probe", &byte, sizeof byte, 0, &bytes);
    return rc < 0 && rc != ERR_TIMEOUT && rc != ERR_LIMIT
               ? err_context(rc, "where objects are announced")
               : 0;
}

typedef struct Visit {
    RelayVisit visit;
    void *ctx;
} Visit;

static int visit_notes(void *ctx, const RelayItem *item) {
    const Visit *visit = ctx;
    bool note = item->kind == RELAY_ITEM_NOTE || item->kind == RELAY_ITEM_EXPIRED;
    return note ? visit->visit(visit->ctx, item) : 0;
}

static int survey_visit(Relay *relay, const char *prefix, RelayVisit visit, void *ctx) {
    RelayAnnounced *both = (RelayAnnounced *)relay;
    Visit notes = {visit, ctx};
    TRY(must_hear(both));
    TRY(relay_survey_visit(both->store, prefix, visit, ctx));
    return relay_survey_visit(both->announcer, prefix, visit_notes, &notes);
}

/* No announcement, and no note, has pieces. */
static int survey_sweep(Relay *relay, const char *prefix, int64_t older_ms, bool dry_run,
                        RelaySwept *out_swept) {
    RelayAnnounced *both = (RelayAnnounced *)relay;
    return relay_survey_sweep(both->store, prefix, older_ms, dry_run, out_swept);
}

typedef struct Telling {
    RelayTell tell;
    void *ctx;
} Telling;

/* What does not matter for announcements is left out. */
static void tell_announcer(void *ctx, const char *name, const char *value, const char *problem) {
    const Telling *telling = ctx;
    char whole[64];
    if (strcmp(name, "persistence") == 0 || strcmp(name, "longest_value") == 0)
        return;
    snprintf(whole, sizeof whole, "announce_%s", name);
    telling->tell(telling->ctx, whole, value, problem);
}

static int survey_about(Relay *relay, RelayTell tell, void *ctx) {
    RelayAnnounced *both = (RelayAnnounced *)relay;
    Telling telling = {tell, ctx};
    TRY(relay_survey_about(both->store, tell, ctx));
    TRY(must_hear(both));
    return relay_survey_about(both->announcer, tell_announcer, &telling);
}

static void survey_learned(Relay *relay, RelayTell tell, void *ctx) {
    relay_survey_learned(((RelayAnnounced *)relay)->store, tell, ctx);
}

int relay_announced_open(Relay *take_store, Relay *take_announcer, const char *announcer_url,
                         Relay **out_relay) {
    static const RelaySurvey survey = {.visit = survey_visit,
                                       .sweep = survey_sweep,
                                       .about = survey_about,
                                       .learned = survey_learned};
    static const RelayOps ops = {.name = "announced",
                                 .close = announced_close,
                                 .put = announced_put,
                                 .get = announced_get,
                                 .size = announced_size,
                                 .has = announced_has,
                                 .drop = announced_drop,
                                 .count = announced_count,
                                 .note_put = announced_note_put,
                                 .note_get = announced_note_get,
                                 .interrupt = announced_interrupt,
                                 .tidy = announced_tidy,
                                 .server = announced_server,
                                 .survey = &survey};
    RelayAnnounced *both = calloc(1, sizeof *both);
    int rc = both ? text_copy(both->announcer_url, sizeof both->announcer_url, announcer_url)
                  : err_set(ERR_MEMORY, "a handle of a relay");
    if (rc < 0 || pthread_mutex_init(&both->lock, NULL) != 0) {
        relay_close(take_store);
        relay_close(take_announcer);
        free(both);
        return rc < 0 ? rc : err_set(ERR_MEMORY, "a lock could not be made");
    }
    both->base.ops = &ops;
    both->store = take_store;
    both->announcer = take_announcer;
    both->base.counters.n_requests = take_store->counters.n_requests;
    both->base.counters.n_announce_requests =
        take_announcer ? take_announcer->counters.n_requests : 0;
    both->lossy = !take_announcer;
    *out_relay = &both->base;
    return 0;
}

/* ---- a URL of S3 ---- */

/* Announcements of different buckets may be in one Redis, and beside the objects of Redis relays:
 * those whose URL names no prefix get one of their bucket's own. */
static int announcer_url(const S3Url *url, char *out, size_t out_bytes) {
    char place[S3_BUCKET_BYTES + S3_PREFIX_BYTES];
    char prefix[64] = "";
    const char *question = strchr(url->announce, '?');
    if (!question || (strncmp(question, "?prefix=", 8) != 0 && !strstr(question, "&prefix="))) {
        snprintf(place, sizeof place, "%s/%s", url->bucket, url->prefix);
        snprintf(prefix, sizeof prefix, "%cprefix=funcpipe-s3:%016" PRIx64 ":",
                 question ? '&' : '?', hash_text(place));
    }
    int n = snprintf(out, out_bytes, "%s%s", url->announce, prefix);
    return n < (int)out_bytes ? 0 : err_set(ERR_ARGUMENT, "the relay's URL: announce is too long");
}

int relay_announced_open_s3(const char *place, bool again, Relay **out_relay) {
    char announcer_place[URL_BYTES];
    Relay *store = NULL;
    Relay *announcer = NULL;
    S3Url url;
    TRY(s3_url_parse(place, &url));
    if (!url.announce[0])
        return relay_s3_open(place, out_relay);
    int rc = announcer_url(&url, announcer_place, sizeof announcer_place);
    if (rc >= 0)
        rc = relay_s3_open(place, &store);
    if (rc >= 0) {
        rc = relay_open(announcer_place, &announcer);
        if (rc < 0 && !(again && (rc == ERR_UNREACHABLE || rc == ERR_TIMEOUT))) {
            relay_close(store);
            rc = err_context(rc, "where objects are announced");
        } else {
            rc = relay_announced_open(store, announcer, announcer_place, out_relay);
        }
    }
    explicit_bzero(announcer_place, sizeof announcer_place); /* a password may be in them */
    explicit_bzero(&url, sizeof url);
    return rc;
}

int relay_announced_check_s3(const char *place) {
    char announcer[URL_BYTES];
    S3Url url;
    TRY(s3_url_parse(place, &url));
    if (!url.announce[0])
        return 0;
    TRY(announcer_url(&url, announcer, sizeof announcer));
    int rc = relay_check_url(announcer);
    return rc < 0 ? err_context(rc, "where objects are announced") : 0;
}

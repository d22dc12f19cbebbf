/* A relay that misbehaves as told. An operation is counted by every rule whose key_part its key (or
 * one of its keys) contains; a rule acts on those it counts from at_operation on. The first rule
 * that acts wins. */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/hash.h"
#include "storage/relay_faulty.h"
#include "storage/relay_survey.h"

typedef struct Rule {
    RelayFaultRule rule;
    char key_part[RELAY_KEY_BYTES]; /* "": all */
    int64_t n_seen;
} Rule;

typedef struct RelayFaulty {
    Relay base;
    Relay *inner;
    int64_t n_operations;
    atomic_bool interrupted;
    int wake_fd; /* eventfd, readable while interrupted */
    int n_rules;
    Rule rules[];
} RelayFaulty;

static bool concerns(const Rule *rule, const char *const *keys, int n_keys) {
    for (int i = 0; i < n_keys; i++) {
        if (strstr(keys[i], rule->key_part))
            return true;
    }
    return false;
}

/* Count the operation, and return the rule that acts on it, or NULL. */
static const RelayFaultRule *next_rule(RelayFaulty *faulty, const char *const *keys, int n_keys) {
    const RelayFaultRule *acting = NULL;
    faulty->n_operations++;
    for (int i = 0; i < faulty->n_rules; i++) {
        Rule *rule = &faulty->rules[i];
        if (!concerns(rule, keys, n_keys))
            continue;
        int64_t n = rule->n_seen++;
        int64_t many = rule->rule.n_operations > 0 ? rule->rule.n_operations : 1;
        if (!acting && n >= rule->rule.at_operation && n - rule->rule.at_operation < many)
            acting = &rule->rule;
    }
    return acting;
}

static int sleep_delay(RelayFaulty *faulty, const char *key, int64_t delay_ms,
                       int64_t deadline_ns) {
    int64_t until = clock_deadline_ms(delay_ms);
    struct pollfd wake = {.fd = faulty->wake_fd, .events = POLLIN};
    if (until > deadline_ns)
        until = deadline_ns;
    for (;;) {
        if (atomic_load(&faulty->interrupted))
            return err_set(ERR_CANCELLED, "the delayed '%s' was interrupted", key);
        int64_t rest = until - clock_now_ns();
        if (rest <= 0)
            return 0;
        struct timespec timeout = {.tv_sec = (time_t)(rest / CLOCK_NS_PER_S),
                                   .tv_nsec = (long)(rest % CLOCK_NS_PER_S)};
        ppoll(&wake, 1, &timeout, NULL);
    }
}

/* Before an operation on one key or several: the fault to apply to its answer, or an error. */
static int before_all(RelayFaulty *faulty, const char *what, const char *const *keys, int n_keys,
                      int64_t deadline_ns, RelayFault *out_fault) {
    const RelayFaultRule *rule = next_rule(faulty, keys, n_keys);
    const char *key = keys[0];
    RelayFault fault = rule ? rule->fault : RELAY_FAULT_NONE;
    if (fault == RELAY_FAULT_FAIL)
        return err_set(ERR_IO, "%s '%s': injected failure", what, key);
    if (fault == RELAY_FAULT_DELAY)
        TRY(sleep_delay(faulty, key, rule->delay_ms, deadline_ns));
    *out_fault = fault;
    return 0;
}

static int before(RelayFaulty *faulty, const char *what, const char *key, int64_t deadline_ns,
                  RelayFault *out_fault) {
    return before_all(faulty, what, &key, 1, deadline_ns, out_fault);
}

/* After it: rc, or the lost answer. Takes over what the inner relay counts of its own. */
static int after(RelayFaulty *faulty, const char *what, const char *key, RelayFault fault, int rc) {
    faulty->base.counters.n_waits = faulty->inner->counters.n_waits;
    faulty->base.counters.n_retries = faulty->inner->counters.n_retries;
    faulty->base.counters.n_requests = faulty->inner->counters.n_requests;
    faulty->base.counters.n_announce_requests = faulty->inner->counters.n_announce_requests;
    if (rc >= 0 && fault == RELAY_FAULT_FAIL_DONE)
        return err_set(ERR_IO, "%s '%s': injected loss of the answer", what, key);
    return rc;
}

/* Spoil an answer of *bytes bytes; what is spoiled depends on key and size only. */
static void spoil(RelayFault fault, const char *key, unsigned char *data, size_t *bytes) {
    uint64_t state = hash_text(key);
    if (*bytes == 0)
        return;
    if (fault == RELAY_FAULT_FLIP)
        data[state % *bytes] ^= (unsigned char)(1U << (state >> 32) % 8);
    if (fault == RELAY_FAULT_TRUNCATE)
        *bytes -= 1;
    if (fault == RELAY_FAULT_GARBAGE) {
        for (size_t i = 0; i < *bytes; i++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            data[i] = (unsigned char)(state >> 56);
        }
    }
}

static int faulty_put(Relay *relay, const char *key, const Slice *parts, int n_parts,
                      int64_t deadline_ns) {
    RelayFaulty *faulty = (RelayFaulty *)relay;
    RelayFault fault = RELAY_FAULT_NONE;
    TRY(before(faulty, "putting", key, deadline_ns, &fault));
    int rc = relay_put(faulty->inner, key, parts, n_parts, deadline_ns);
    if (rc >= 0 && fault == RELAY_FAULT_TWICE) {
        int again = relay_put(faulty->inner, key, parts, n_parts, deadline_ns);
        rc = again < 0 ? again : rc;
    }
    return after(faulty, "putting", key, fault, rc);
}

static int faulty_add(Relay *relay, const char *key, int index, int n, const Slice *parts,
                      int n_parts, int64_t deadline_ns) {
    RelayFaulty *faulty = (RelayFaulty *)relay;
    RelayFault fault = RELAY_FAULT_NONE;
    TRY(before(faulty, "adding to", key, deadline_ns, &fault));
    int rc = relay_add(faulty->inner, key, index, n, parts, n_parts, deadline_ns);
    if (rc >= 0 && fault == RELAY_FAULT_TWICE) {
        int again = relay_add(faulty->inner, key, index, n, parts, n_parts, deadline_ns);
        rc = again < 0 ? again : rc;
    }
    return after(faulty, "adding to", key, fault, rc);
}

static int faulty_get(Relay *relay, const char *key, void *buf, size_t capacity,
                      int64_t deadline_ns, size_t *out_bytes) {
    RelayFaulty *faulty = (RelayFaulty *)relay;
    RelayFault fault = RELAY_FAULT_NONE;
    TRY(before(faulty, "getting", key, deadline_ns, &fault));
    int rc = relay_get(faulty->inner, key, buf, capacity, deadline_ns, out_bytes);
    if (rc >= 0)
        spoil(fault, key, buf, out_bytes);
    return after(faulty, "getting", key, fault, rc);
}

static int faulty_size(Relay *relay, const char *key, int64_t deadline_ns, size_t *out_bytes) {
    RelayFaulty *faulty = (RelayFaulty *)relay;
    RelayFault fault = RELAY_FAULT_NONE;
    TRY(before(faulty, "sizing", key, deadline_ns, &fault));
    int rc = faulty->inner->ops->size(faulty->inner, key, deadline_ns, out_bytes);
    return after(faulty, "sizing", key, fault, rc);
}

static int faulty_has(Relay *relay, const char *key) {
    RelayFaulty *faulty = (RelayFaulty *)relay;
    RelayFault fault = RELAY_FAULT_NONE;
    TRY(before(faulty, "looking for", key, CLOCK_NEVER, &fault));
    return after(faulty, "looking for", key, fault, relay_has(faulty->inner, key));
}

static int faulty_drop(Relay *relay, const char *const *prefixes, int n_prefixes,
                       int64_t *out_dropped) {
    RelayFaulty *faulty = (RelayFaulty *)relay;
    RelayFault fault = RELAY_FAULT_NONE;
    TRY(before_all(faulty, "dropping", prefixes, n_prefixes, CLOCK_NEVER, &fault));
    int rc = relay_drop(faulty->inner, prefixes, n_prefixes, out_dropped);
    return after(faulty, "dropping", prefixes[0], fault, rc);
}

static void faulty_tidy(Relay *relay, const char *prefix) {
    relay_tidy(((RelayFaulty *)relay)->inner, prefix);
}

static int faulty_count(Relay *relay, const char *prefix, int64_t *out_count) {
    return relay_count(((RelayFaulty *)relay)->inner, prefix, out_count);
}

static int faulty_note_put(Relay *relay, const char *key, const void *data, size_t bytes,
                           int64_t ttl_ms) {
    RelayFaulty *faulty = (RelayFaulty *)relay;
    RelayFault fault = RELAY_FAULT_NONE;
    TRY(before(faulty, "writing the note", key, CLOCK_NEVER, &fault));
    int rc = relay_note_put(faulty->inner, key, data, bytes, ttl_ms);
    return after(faulty, "writing the note", key, fault, rc);
}

static int faulty_note_get(Relay *relay, const char *key, void *buf, size_t capacity,
                           size_t *out_bytes) {
    RelayFaulty *faulty = (RelayFaulty *)relay;
    RelayFault fault = RELAY_FAULT_NONE;
    TRY(before(faulty, "reading the note", key, CLOCK_NEVER, &fault));
    size_t bytes = 0;
    int rc = relay_note_get(faulty->inner, key, buf, capacity, &bytes);
    if (rc >= 0) {
        spoil(fault, key, buf, &bytes);
        *out_bytes = bytes;
    }
    return after(faulty, "reading the note", key, fault, rc);
}

static void faulty_interrupt(Relay *relay, bool on) {
    RelayFaulty *faulty = (RelayFaulty *)relay;
    uint64_t one = 1;
    atomic_store(&faulty->interrupted, on);
    ssize_t n =
        on ? write(faulty->wake_fd, &one, sizeof one) : read(faulty->wake_fd, &one, sizeof one);
    (void)n; /* EAGAIN: it is in the state asked for */
    relay_interrupt(faulty->inner, on);
}

static void faulty_close(Relay *relay) {
    RelayFaulty *faulty = (RelayFaulty *)relay;
    relay_close(faulty->inner);
    close(faulty->wake_fd);
    free(faulty);
}

/* Surveys are no counted operations: no rule is about them. */
static int faulty_visit(Relay *relay, const char *prefix, RelayVisit visit, void *ctx) {
    return relay_survey_visit(((RelayFaulty *)relay)->inner, prefix, visit, ctx);
}

static int faulty_sweep(Relay *relay, const char *prefix, int64_t older_ms, bool dry_run,
                        RelaySwept *out_swept) {
    return relay_survey_sweep(((RelayFaulty *)relay)->inner, prefix, older_ms, dry_run, out_swept);
}

static int faulty_about(Relay *relay, RelayTell tell, void *ctx) {
    return relay_survey_about(((RelayFaulty *)relay)->inner, tell, ctx);
}

static void faulty_learned(Relay *relay, RelayTell tell, void *ctx) {
    relay_survey_learned(((RelayFaulty *)relay)->inner, tell, ctx);
}

static const RelaySurvey faulty_survey = {
    .visit = faulty_visit, .sweep = faulty_sweep, .about = faulty_about, .learned = faulty_learned};

static int faulty_server(const Relay *relay, const char *key, int *out_n) {
    return relay_server(((const RelayFaulty *)relay)->inner, key, out_n);
}

static void faulty_place(const Relay *relay, int server, char *out, size_t bytes) {
    const Relay *inner = ((const RelayFaulty *)relay)->inner;
    if (inner->ops->place)
        inner->ops->place(inner, server, out, bytes);
}

#define FAULTY_OPS                                                                                 \
    .name = "faulty", .close = faulty_close, .put = faulty_put, .get = faulty_get,                 \
    .size = faulty_size, .has = faulty_has, .drop = faulty_drop, .count = faulty_count,            \
    .tidy = faulty_tidy, .note_put = faulty_note_put, .note_get = faulty_note_get,                 \
    .interrupt = faulty_interrupt, .server = faulty_server, .place = faulty_place,                 \
    .survey = &faulty_survey
static const RelayOps ops_without_add = {FAULTY_OPS};
static const RelayOps ops_with_add = {FAULTY_OPS, .add = faulty_add};
#undef FAULTY_OPS

int relay_faulty_open(Relay *take_inner, const RelayFaultRule *rules, int n_rules,
                      Relay **out_relay) {
    int rc = 0;
    RelayFaulty *faulty = calloc(1, sizeof *faulty + (size_t)n_rules * sizeof faulty->rules[0]);
    if (!faulty) {
        rc = err_set(ERR_MEMORY, "a faulty relay");
        goto done;
    }
    faulty->base.ops = relay_adds(take_inner) ? &ops_with_add : &ops_without_add;
    faulty->n_rules = n_rules;
    for (int i = 0; i < n_rules; i++) {
        const char *part = rules[i].key_part ? rules[i].key_part : "";
        size_t length = strlen(part);
        if (length >= RELAY_KEY_BYTES) {
            rc = err_set(ERR_ARGUMENT, "a fault rule's key part '%.60s...' is too long", part);
            goto done;
        }
        memcpy(faulty->rules[i].key_part, part, length + 1);
        faulty->rules[i].rule = rules[i];
        faulty->rules[i].rule.key_part = NULL; /* borrowed; the copy counts */
    }
    faulty->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (faulty->wake_fd < 0) {
        rc = err_errno(ERR_IO, errno, "opening a faulty relay");
        goto done;
    }
    faulty->inner = take_inner;
    *out_relay = &faulty->base;
    return 0;
done:
    free(faulty);
    relay_close(take_inner);
    return rc;
}

int64_t relay_faulty_operations(const Relay *relay) {
    return ((const RelayFaulty *)relay)->n_operations;
}

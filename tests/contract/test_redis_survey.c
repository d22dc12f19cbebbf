/* What a survey of a Redis relay shows, and the pieces it sweeps: those of objects that are
 * nowhere, and of writers that lost. */
#include "storage/relay_survey.h"
#include "tests/support/redis_place.h"

enum { BYTES = (2 << 20) + 100 }; /* three pieces of 1 MiB */

static const char *const small_values[] = {"--proto-max-bulk-len", "1mb", NULL};
static RedisPlace place;
static char *data;

static void enter(void) {
    place_open(&place, small_values, "", "");
    data = malloc(BYTES);
    place_fill(data, BYTES, 1);
}

static void leave(void) {
    place_close(&place);
    free(data);
}

static void sweep_under(const char *prefix, bool dry_run, int64_t expected) {
    RelaySwept swept = {.n_pieces = -1};
    cr_assert_eq(relay_survey_sweep(place.direct, prefix, 60000, dry_run, &swept), 0, "%s",
                 err_text());
    cr_expect_eq(swept.n_pieces, expected, "%lld pieces, not %lld", (long long)swept.n_pieces,
                 (long long)expected);
    cr_expect(expected == 0 || swept.piece_bytes >= 100 * expected);
}

static void sweep(bool dry_run, int64_t expected) {
    sweep_under("", dry_run, expected);
}

Test(redis_survey, orphan_pieces_go, .init = enter, .fini = leave) {
    cr_assert_eq(place_put(place.direct, "job/g1/t0/whole", data, BYTES, 5000), 0);
    cr_assert_eq(place_put(place.direct, "job/g1/t0/lost", data, BYTES, 5000), 0);
    place_ask(&place, "DEL funcpipe:o:job/g1/t0/lost");
    sweep(false, 0); /* its writer may be about to put the entry */
    place_ask(&place, REDIS_SERVER_AGE);
    sweep(true, 3);
    sweep_under("jo", false, 0);
    sweep_under("job/g1", true, 3);
    sweep(false, 3);
    sweep(false, 0);
    cr_expect_eq(place_ask(&place, REDIS_SERVER_PIECES), 3);
    place_expect(place.proxied, "job/g1/t0/whole", data, BYTES);
}

Test(redis_survey, pieces_of_a_writer_that_lost, .init = enter, .fini = leave) {
    static const char *const tokens[] = {"00", "ffffffffffffffffffff"}; /* in front and behind */
    char line[320];
    cr_assert_eq(place_put(place.direct, "job/g1/t0/whole", data, BYTES, 5000), 0);
    for (int i = 0; i < 2; i++) {
        snprintf(line, sizeof line, "SET funcpipe:c:job/g1/t0/whole:%s:0 %0150d PX 900000",
                 tokens[i], 0);
        place_ask(&place, line);
    }
    place_ask(&place, REDIS_SERVER_AGE);
    sweep(false, 2);
    cr_expect_eq(place_ask(&place, REDIS_SERVER_PIECES), 3);
    place_expect(place.proxied, "job/g1/t0/whole", data, BYTES);
}

typedef struct Seen {
    int n[4];
    int64_t bytes, idle_ms;
} Seen;

static int see(void *ctx, const RelayItem *item) {
    Seen *seen = ctx;
    seen->n[item->kind]++;
    seen->bytes += item->bytes;
    seen->idle_ms = item->idle_ms;
    cr_expect(strncmp(item->key, "job/g1/", 7) == 0 && !strchr(item->key, ':'), "%s", item->key);
    return 0;
}

Test(redis_survey, looking_leaves_no_trace, .init = enter, .fini = leave) {
    cr_assert_eq(place_put(place.direct, "job/g1/t0/long", data, BYTES, 5000), 0);
    cr_assert_eq(place_put(place.direct, "job/g1/t0/short", data, 10, 5000), 0);
    cr_assert_eq(place_put(place.direct, "job/g10/t0/other", data, 10, 5000), 0);
    cr_assert_eq(relay_note_put(place.direct, "job/g1/n/h.0.0", "x", 1, 60000), 0);
    place_ask(&place, REDIS_SERVER_AGE);
    for (int round = 0; round < 2; round++) {
        Seen seen = {0};
        cr_assert_eq(relay_survey_visit(place.direct, "job/g1", see, &seen), 0, "%s", err_text());
        cr_expect(seen.n[RELAY_ITEM_OBJECT] == 2 && seen.n[RELAY_ITEM_NOTE] == 1 &&
                  seen.n[RELAY_ITEM_PIECE] == 3);
        cr_expect(seen.bytes >= BYTES && seen.bytes < 3 * BYTES, "%lld bytes",
                  (long long)seen.bytes);
        cr_expect_geq(seen.idle_ms, 7200000);
        sweep(false, 0);
    }
}

static void tell(void *ctx, const char *name, const char *value, const char *problem) {
    char *all = ctx;
    size_t at = strlen(all);
    snprintf(all + at, 4096 - at, "%s=%s%s;", name, value, problem ? "!" : "");
}

Test(redis_survey, about) {
    static const char *const args[] = {
        "--appendonly", "yes", "--requirepass", "secret", "--maxmemory", "32mb", NULL};
    char all[4096] = "";
    place_open(&place, args, ":secret@", "");
    cr_assert_eq(relay_survey_about(place.direct, tell, all), 0, "%s", err_text());
    cr_expect(strstr(all, "login=with a password;"), "%s", all);
    cr_expect(strstr(all, "persistence=append-only file"), "%s", all);
    cr_expect(strstr(all, " of 32 MiB!;"), "%s", all);
    cr_expect(strstr(all, "eviction=noeviction;"), "%s", all);
    cr_expect(strstr(all, "clock_skew="), "%s", all);
    cr_expect(!strstr(all, "secret"), "%s", all);
    place_close(&place);
}

/* What is said of the login, as a problem or not. */
static void expect_login(const char *host, bool open) {
    char url[64];
    char all[4096] = "";
    Relay *relay = NULL;
    snprintf(url, sizeof url, "redis://%s:%d", host, place.server.port);
    cr_assert_eq(relay_open(url, &relay), 0, "%s", err_text());
    cr_assert_eq(relay_survey_about(relay, tell, all), 0, "%s", err_text());
    cr_expect(strstr(all, open ? "login=none!;" : "login=none;"), "%s: %s", host, all);
    relay_close(relay);
}

/* Without a password: over the network, and where the server would let others in. It is asked to
 * listen at an address that this machine has not. */
Test(redis_survey, open_to_everybody) {
    static const char *const args[] = {"--bind", "127.0.0.1", "-192.0.2.1", NULL};
    place_open(&place, args, "", "");
    expect_login("127.0.0.1", false);
    expect_login("0.0.0.0", true);
    place_ask(&place, "CONFIG SET protected-mode no");
    expect_login("127.0.0.1", true);
    place_ask(&place, "CONFIG SET bind 127.0.0.1");
    expect_login("localhost", false);
    place_close(&place);
}

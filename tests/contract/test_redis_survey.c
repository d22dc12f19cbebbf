/* What a survey of a Redis relay shows, and the pieces it sweeps: those of objects that are
 * nowhere, and of writers that lost. */
#include "storage/relay_survey.h"
#include "tests/support/redis_fake.h"
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

/* ---- what is wrong ---- */

typedef struct Told { /* the fact of that name */
    const char *name;
    char value[256], problem[512];
} Told;

static void tell_one(void *ctx, const char *name, const char *value, const char *problem) {
    Told *told = ctx;
    if (strcmp(name, told->name) != 0)
        return;
    snprintf(told->value, sizeof told->value, "%s", value);
    snprintf(told->problem, sizeof told->problem, "%s", problem ? problem : "");
}

#define LIVELY "connected_clients:91\r\nmaxclients:100\r\n"

/* What a server says, and what is told of it; problem NULL: none. The clock is not ours but for
 * `off_s`. */
static const struct {
    const char *info;
    int off_s;
    const char *name, *value, *problem;
} cases[] = {
    {"connected_clients:90\r\nmaxclients:100\r\n", 0, "connections", "90 of at most 100", NULL},
    {LIVELY, 0, "connections", "91 of at most 100",
     "each worker needs 5, 11 to 15 where it sums gradients with others"},
    {"connected_clients:7\r\n", 0, "connections", "7", NULL},
    {"aof_enabled:0\r\nrdb_last_bgsave_status:ok\r\n", 0, "persistence", "not known", NULL},
    {"aof_enabled:0\r\nrdb_last_bgsave_status:err\r\n", 0, "persistence", "not known",
     "the last snapshot failed"},
    {"used_memory:104857600\r\nmaxmemory:171966464\r\n", 0, "memory", "100 MiB used of 164 MiB",
     NULL},
    {"used_memory:104857600\r\nmaxmemory:171966463\r\n", 0, "memory", "100 MiB used of 164 MiB",
     "less than 64 MiB are free"},
    {"", 0, "memory", "not known", NULL},
    {"", 0, "clock_skew", "ms", NULL},
    {"", 600, "clock_skew", "59", "set both by NTP"},
    {"", -600, "clock_skew", "-60", "set both by NTP"},
    {"", 0, "tls", "none", NULL},
};

Test(redis_survey, what_is_wrong) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char info[256];
        char now[64];
        char url[64];
        Relay *relay = NULL;
        RedisFake *fake = NULL;
        Told told = {.name = cases[i].name};
        snprintf(info, sizeof info, "$%zu\r\nredis_version:7.0.15\r\n%s\r\n",
                 strlen("redis_version:7.0.15\r\n") + strlen(cases[i].info), cases[i].info);
        snprintf(now, sizeof now, "*2\r\n$10\r\n%010lld\r\n$6\r\n000000\r\n",
                 (long long)(clock_wall_ms() / 1000 + cases[i].off_s));
        const FakeRule rules[] = {{"INFO", info, FAKE_SAY, 0}, {"TIME", now, FAKE_SAY, 0}, {0}};
        cr_assert_eq(redis_fake_start(rules, &fake), 0, "%s", err_text());
        snprintf(url, sizeof url, "redis://127.0.0.1:%d", redis_fake_port(fake));
        cr_assert_eq(relay_open(url, &relay), 0, "%s", err_text());
        cr_assert_eq(relay_survey_about(relay, tell_one, &told), 0, "%s", err_text());
        relay_close(relay);
        redis_fake_stop(fake);
        cr_expect(strstr(told.value, cases[i].value), "%zu: '%s'", i, told.value);
        cr_expect(cases[i].problem ? strstr(told.problem, cases[i].problem) != NULL
                                   : !told.problem[0],
                  "%zu: '%s'", i, told.problem);
    }
}

static void expect_tls(const char *value, const char *problem) {
    char url[256];
    Relay *relay = NULL;
    Told told = {.name = "tls"};
    snprintf(url, sizeof url, "rediss://127.0.0.1:%d%s", proxy_port(place.proxy), place.rest);
    cr_assert_eq(relay_open(url, &relay), 0, "%s", err_text());
    cr_assert_eq(relay_survey_about(relay, tell_one, &told), 0, "%s", err_text());
    cr_expect(strstr(told.value, value), "%s", told.value);
    cr_expect_str_eq(told.problem, problem);
    relay_close(relay);
}

Test(redis_survey, a_certificate_expires) {
    char line[320];
    place_open_tls(&place);
    expect_tls("TLSv1.3, the certificate is valid for 36", "");
    snprintf(line, sizeof line, "CONFIG SET tls-cert-file %s/soon.crt tls-key-file %s/soon.key",
             place.folder, place.folder);
    place_ask(&place, line);
    expect_tls("TLSv1.3, the certificate is valid for ",
               "the server's certificate expires within two weeks: renew it");
    place_close(&place);
}

/* The watermark over the memory relay, and over one that is taken for several servers. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/watermark.h"
#include "core/err.h"
#include "storage/relay_faulty.h"

static const KeySpace space = {.job = "job", .generation = 7};
static RelayMemStore *store;
static Relay *relay;
static Watermark mark;

static void enter(void) {
    cr_assert_eq(relay_mem_store_open(&store), 0);
    cr_assert_eq(relay_mem_open(store, &relay), 0);
    watermark_init(&mark, &space, relay);
}

static void leave(void) {
    relay_close(relay);
    relay_mem_store_close(store);
}

TestSuite(watermark, .init = enter, .fini = leave);

static void raise_to(int64_t number) {
    while (mark.last < number)
        cr_assert_eq(watermark_raise(&mark, relay), 0, "%s", mark.lost);
}

static void write_mark(const char *text) {
    cr_assert_eq(relay_note_put(relay, "job/g7/n/w.0", text, strlen(text), 60000), 0);
}

/* An older one is believed at the third look. */
static void expect_older(const char *words) {
    cr_expect_eq(watermark_raise(&mark, relay), 0);
    cr_expect_eq(watermark_raise(&mark, relay), 0);
    cr_expect_eq(watermark_raise(&mark, relay), 1);
    cr_expect(strstr(mark.lost, words), "%s", mark.lost);
}

static void expect_lost(const char *words) {
    cr_expect_eq(watermark_raise(&mark, relay), 1);
    cr_expect(strstr(mark.lost, words), "%s", mark.lost);
}

Test(watermark, rises_while_nothing_is_lost) {
    raise_to(3);
    cr_expect_eq(mark.written[0], 3);
}

Test(watermark, gone) {
    raise_to(3);
    cr_assert_eq(relay_drop_one(relay, "job", NULL), 0);
    expect_lost("its watermark 'job/g7/n/w.0' is gone");
}

Test(watermark, older) {
    char text[RELAY_NOTE_MAX_BYTES] = "";
    size_t bytes = 0;
    raise_to(3);
    cr_assert_eq(relay_note_get(relay, "job/g7/n/w.0", text, sizeof text, &bytes), 0);
    raise_to(5);
    write_mark(text);
    expect_older("is back at 3, 5 was written");
}

Test(watermark, of_others) {
    raise_to(3);
    write_mark("1 2 3");
    expect_lost("is another run's");
}

/* A write whose answer was lost has taken place all the same; one that failed has not. */
Test(watermark, an_outage_is_no_loss) {
    for (int done = 0; done < 2; done++) {
        Relay *inner = NULL;
        Relay *faulty = NULL;
        RelayFaultRule rule = {.fault = done ? RELAY_FAULT_FAIL_DONE : RELAY_FAULT_FAIL,
                               .at_operation = 2,
                               .n_operations = 3};
        cr_assert_eq(relay_mem_open(store, &inner), 0);
        cr_assert_eq(relay_faulty_open(inner, &rule, 1, &faulty), 0);
        watermark_init(&mark, &space, faulty);
        int n_failed = 0;
        for (int i = 0; i < 10; i++) {
            int rc = watermark_raise(&mark, faulty);
            cr_expect(rc == 0 || rc == ERR_IO, "%d", rc);
            n_failed += rc < 0;
        }
        cr_expect_geq(n_failed, 2);
        cr_expect_eq(mark.written[0], mark.last);
        relay_close(faulty);
    }
}

/* ---- several servers ---- */

static RelayOps ops; /* the memory relay's, and three servers: by the key's last digit */

static int of_three(const Relay *unused, const char *key, int *out_n) {
    (void)unused;
    *out_n = 3;
    return key[strlen(key) - 1] % 3;
}

static void number_of(const Relay *unused, int server, char *out, size_t bytes) {
    (void)unused;
    snprintf(out, bytes, "host-%d:1", server);
}

static int of_none(const Relay *unused, const char *key, int *out_n) {
    (void)unused, (void)key;
    *out_n = 0;
    return 0;
}

Test(watermark, none_where_notes_say_nothing_of_objects) {
    int64_t n = 0;
    ops = *relay->ops;
    ops.server = of_none;
    relay->ops = &ops;
    watermark_init(&mark, &space, relay);
    for (int i = 0; i < 3; i++)
        cr_expect_eq(watermark_raise(&mark, relay), 0, "%s", mark.lost);
    cr_assert_eq(relay_drop_one(relay, key_space_prefix(&space).text, &n), 0);
    cr_expect_eq(n, 0);
}

Test(watermark, each_server_has_one) {
    ops = *relay->ops;
    ops.server = of_three;
    ops.place = number_of;
    relay->ops = &ops;
    watermark_init(&mark, &space, relay);
    cr_expect_eq(mark.n, 3);
    raise_to(2);
    for (int i = 0; i < 3; i++) {
        int n = 0;
        char words[RELAY_KEY_BYTES + 64];
        cr_expect_eq(of_three(relay, mark.keys[i].text, &n), i);
        cr_assert_eq(relay_drop_one(relay, mark.keys[i].text, NULL), 0);
        snprintf(words, sizeof words, "at host-%d:1 its watermark '%s' is gone", i,
                 mark.keys[i].text);
        expect_lost(words);
        watermark_init(&mark, &space, relay);
        raise_to(2);
    }
}

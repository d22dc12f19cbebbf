#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "storage/key.h"

static const KeySpace space = {.job = "mnist", .generation = 3};
static const KeyPlace train = {.step = 7, .eval_batch = -1};
static const KeyPlace evaluation = {.step = 7, .eval_batch = 2};

#define IS(key, expected) cr_expect_str_eq((key).text, expected)

Test(key, texts) {
    IS(key_activation(&space, train, 0, 1, 4), "mnist/g3/t7/a.0-1.4");
    IS(key_activation(&space, evaluation, 0, 1, 4), "mnist/g3/e7.2/a.0-1.4");
    IS(key_activation(&space, (KeyPlace){0, 0}, 0, 2, 0), "mnist/g3/e0.0/a.0-2.0");
    IS(key_gradient(&space, train, 1, 0, 4), "mnist/g3/t7/g.1-0.4");
    IS(key_sum(&space, 7, 'r', 1, 2), "mnist/g3/t7/r.1.2");
    IS(key_part(key_sum(&space, 7, 'u', 1, 2).text, 3), "mnist/g3/t7/u.1.2.3");
    IS(key_norms(&space, 7, 1, 2), "mnist/g3/t7/n.1.2");
    IS(key_eval(&space, 7, 1, 2), "mnist/g3/e7/v.1.2");
    IS(key_saved(&space, 7, 1, 2), "mnist/g3/t7/s.1.2");
    IS(key_fence(&space, 1, 2, 12), "mnist/g3/c/f.1.2.12");
    IS(key_run(&space, 1, 2, 12), "mnist/g3/c/r.1.2.12");
    IS(key_heartbeat(&space, 1, 2), "mnist/g3/n/h.1.2");
    IS(key_control(&space), "mnist/g3/n/control");
    IS(key_watermark(&space, 2), "mnist/g3/n/w.2");
    cr_expect(key_is_watermark("mnist/g3/n/w.2") && !key_is_watermark("mnist/g3/n/h.1.0"));
    IS(key_claim("mnist", 3), "mnist/claim.3");
    IS(key_step_prefix(&space, 7), "mnist/g3/t7");
    IS(key_eval_prefix(&space, evaluation), "mnist/g3/e7.2");
    IS(key_space_prefix(&space), "mnist/g3");
}

/* All of a step's keys, at numbers whose digits could run together. */
static int all_keys(Key *out, int64_t step) {
    static const int numbers[] = {1, 11, 111, 2, 12};
    int n = 0;
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < 5; j++) {
            int a = numbers[i];
            int b = numbers[j];
            KeyPlace t = {step, -1};
            KeyPlace e = {step, a};
            out[n++] = key_sum(&space, step, 'r', a, b);
            out[n++] = key_sum(&space, step, 'u', a, b);
            out[n++] = key_norms(&space, step, a, b);
            out[n++] = key_saved(&space, step, a, b);
            out[n++] = key_eval(&space, step, a, b);
            for (int k = 0; k < 5; k++) {
                int c = numbers[k];
                out[n++] = key_activation(&space, t, a, b, c);
                out[n++] = key_gradient(&space, t, a, b, c);
                out[n++] = key_activation(&space, e, b, c, 1);
                out[n++] = key_gradient(&space, e, b, c, 1);
                out[n++] = key_part(key_sum(&space, step, 'r', a, b).text, c);
                out[n++] = key_part(key_sum(&space, step, 'u', a, b).text, c);
            }
        }
    }
    return n;
}

static int by_text(const void *a, const void *b) {
    return strcmp(((const Key *)a)->text, ((const Key *)b)->text);
}

Test(key, all_differ) {
    static Key keys[2000];
    int n = all_keys(keys, 1);
    n += all_keys(keys + n, 11);
    qsort(keys, (size_t)n, sizeof keys[0], by_text);
    for (int i = 0; i < n; i++) {
        cr_assert_eq(relay_check_key(keys[i].text), 0, "%s", err_text());
        cr_assert(i == 0 || strcmp(keys[i - 1].text, keys[i].text) != 0, "twice: %s", keys[i].text);
    }
}

Test(key, largest_numbers_fit) {
    KeySpace large = {.generation = INT64_MAX};
    memset(large.job, 'j', sizeof large.job - 1);
    KeyPlace place = {INT64_MAX, INT64_MAX};
    int m = INT32_MAX;
    cr_expect_eq(relay_check_key(key_activation(&large, place, m, m, m).text), 0);
    cr_expect_eq(relay_check_key(key_part(key_sum(&large, INT64_MAX, 'r', m, m).text, 1023).text),
                 0);
    cr_expect_eq(relay_check_key(key_fence(&large, m, m, INT64_MAX).text), 0);
}

static bool under(const Key *key, Key prefix) {
    size_t length = strlen(prefix.text);
    return strncmp(key->text, prefix.text, length) == 0 && key->text[length] == '/';
}

Test(key, prefixes_hold_their_own) {
    KeyPlace later = {.step = 71, .eval_batch = -1};
    KeyPlace other_batch = {.step = 7, .eval_batch = 21};
    Key a = key_activation(&space, train, 0, 1, 4);
    Key b = key_activation(&space, later, 0, 1, 4);
    Key c = key_activation(&space, evaluation, 0, 1, 4);
    Key d = key_activation(&space, other_batch, 0, 1, 4);
    cr_expect(under(&a, key_step_prefix(&space, 7)));
    cr_expect(!under(&b, key_step_prefix(&space, 7)));
    cr_expect(!under(&c, key_step_prefix(&space, 7)));
    cr_expect(under(&c, key_eval_prefix(&space, evaluation)));
    cr_expect(!under(&d, key_eval_prefix(&space, evaluation)));
    cr_expect(under(&a, key_space_prefix(&space)) && under(&d, key_space_prefix(&space)));
    Key claim = key_claim("mnist", 3);
    cr_expect(!under(&claim, key_space_prefix(&space)));
}

Test(key, whose_it_is) {
    static const char *const others[] = {"",
                                         "mnist",
                                         "mnist/",
                                         "mnist/g3",
                                         "mnist/g/x",
                                         "mnist/g03/x",
                                         "mnist/h3/x",
                                         "mnist/claim.3/x",
                                         "mnist/claim.",
                                         "mnist/gx/t1",
                                         "/g3/x",
                                         "mnist/x/g3/x"};
    KeySpace found;
    bool claim = true;
    cr_assert(key_find_space(key_sum(&space, 7, 'r', 1, 2).text, &found, &claim));
    cr_expect(strcmp(found.job, "mnist") == 0 && found.generation == 3 && !claim);
    cr_assert(key_find_space(key_claim("a.b-c", 0).text, &found, &claim));
    cr_expect(strcmp(found.job, "a.b-c") == 0 && found.generation == 0 && claim);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        cr_expect(!key_find_space(others[i], &found, &claim), "'%s'", others[i]);
}

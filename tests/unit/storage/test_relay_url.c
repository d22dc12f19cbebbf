/* Opening by URL, and the rule for keys. What relays do is in tests/contract/test_relay.c. */
#include <criterion/criterion.h>
#include <string.h>

#include "core/err.h"
#include "storage/relay.h"

Test(relay_url, unknown_scheme_names_the_known) {
    static const char *const urls[] = {"",
                                       "fil:///tmp/x",
                                       "/tmp/x",
                                       "file:/tmp/x",
                                       "FILE:///tmp/x",
                                       "redis",
                                       "a-scheme-of-more-than-thirty-two-letters://x"};
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        Relay *relay = NULL;
        cr_expect_eq(relay_open(urls[i], &relay), ERR_ARGUMENT, "'%s'", urls[i]);
        cr_expect(strstr(err_text(), "file://"), "%s", err_text());
        cr_expect_null(relay);
    }
}

Test(relay_url, errors_keep_secrets) {
    Relay *relay = NULL;
    cr_expect_eq(relay_open("gopher://user:s3cret@host/0", &relay), ERR_ARGUMENT);
    cr_expect(strstr(err_text(), "gopher"), "%s", err_text());
    cr_expect_null(strstr(err_text(), "s3cret"), "%s", err_text());
    cr_expect_null(strstr(err_text(), "user"), "%s", err_text());
}

Test(relay_url, file_needs_an_absolute_directory) {
    Relay *relay = NULL;
    cr_expect_eq(relay_open("file://relative/dir", &relay), ERR_ARGUMENT);
    cr_expect(strstr(err_text(), "relative/dir"), "%s", err_text());
    cr_expect_eq(relay_open("file://", &relay), ERR_ARGUMENT);
}

Test(relay_url, file_needs_a_directory_of_its_own) {
    Relay *relay = NULL;
    cr_expect_eq(relay_open("file:///", &relay), ERR_ARGUMENT);
    cr_expect_eq(relay_open("file:///tmp/..", &relay), ERR_ARGUMENT);
    cr_expect(strstr(err_text(), "may not be '/'"), "%s", err_text());
    cr_expect_eq(relay_open("file:///dev/null", &relay), ERR_UNREACHABLE);
    cr_expect(strstr(err_text(), "'/dev/null' is not a directory"), "%s", err_text());
}

Test(relay_url, close_takes_null) {
    relay_close(NULL);
}

Test(relay_url, keys) {
    static const char *const good[] = {"a", "a/b", "A.b_c-9/x.", "-", "_/_", "0"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        cr_expect_eq(relay_check_key(good[i]), 0, "%s", err_text());
    static const char *const bad[] = {"", "..", "a//b", "/a", "a/", "a b", "a/.b", "\xE4"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_expect_eq(relay_check_key(bad[i]), ERR_ARGUMENT, "'%s'", bad[i]);
}

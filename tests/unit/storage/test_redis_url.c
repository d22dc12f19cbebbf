/* The URL of a Redis relay: every part, every refusal, and never the password in a sentence. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "core/err.h"
#include "storage/redis_url.h"
#include "tests/support/temp_folder.h"

#define CANARY "c4n4ry"

static RedisUrl parsed(const char *place, bool tls) {
    RedisUrl url;
    cr_assert_eq(redis_url_parse(place, tls, &url), 0, "%s: %s", place, err_text());
    return url;
}

static void refused(const char *place, bool tls, const char *sentence) {
    RedisUrl url = {.db = 77};
    int rc = redis_url_parse(place, tls, &url);
    cr_expect_eq(rc, ERR_ARGUMENT, "%s: %s (%s)", place, err_name(rc), err_text());
    cr_expect(strstr(err_text(), sentence), "%s: '%s' and not '%s'", place, err_text(), sentence);
    cr_expect(strstr(err_text(), "the relay's URL"), "%s: %s", place, err_text());
    cr_expect_not(strstr(err_text(), CANARY), "%s: %s", place, err_text());
    cr_expect_not(strchr(err_text(), '\n'), "%s: %s", place, err_text());
    cr_expect_eq(url.db, 77, "%s: half done", place);
}

static void expect_server(const RedisUrl *url, int i, const char *host, const char *port) {
    cr_assert_lt(i, url->n_servers);
    cr_expect_str_eq(url->servers[i].host, host);
    cr_expect_str_eq(url->servers[i].port, port);
}

Test(redis_url, host_alone_and_defaults) {
    RedisUrl url = parsed("cache.example", false);
    cr_expect_eq(url.n_servers, 1);
    expect_server(&url, 0, "cache.example", "6379");
    cr_expect_not(url.tls);
    cr_expect_eq(url.db, 0);
    cr_expect_eq(url.ttl_ms, 24 * 3600 * 1000);
    cr_expect_str_eq(url.prefix, "funcpipe:");
    cr_expect_str_empty(url.user);
    cr_expect_str_empty(url.password);
    cr_expect_str_empty(url.ca);
    cr_expect_str_empty(url.cert);
    cr_expect_str_empty(url.key);
}

Test(redis_url, every_part) {
    RedisUrl url =
        parsed("me:pw@h1:1,h2:65535/3?prefix=a/b:c_d-e.&ttl=90s&ca=/c%20a&cert=/c&key=/k", true);
    cr_expect(url.tls);
    cr_expect_eq(url.n_servers, 2);
    expect_server(&url, 0, "h1", "1");
    expect_server(&url, 1, "h2", "65535");
    cr_expect_str_eq(url.user, "me");
    cr_expect_str_eq(url.password, "pw");
    cr_expect_eq(url.db, 3);
    cr_expect_str_eq(url.prefix, "a/b:c_d-e.");
    cr_expect_eq(url.ttl_ms, 90000);
    cr_expect_str_eq(url.ca, "/c a");
    cr_expect_str_eq(url.cert, "/c");
    cr_expect_str_eq(url.key, "/k");
}

Test(redis_url, user_and_password) {
    RedisUrl url = parsed(":p%40%3a%2F%3f%25%c3%bc%2C@h", false);
    cr_expect_str_empty(url.user);
    cr_expect_str_eq(url.password, "p@:/?%\xc3\xbc,");
    url = parsed("u%3Aser:p:q@x,y@h", false); /* the last '@' and the first ':' count */
    cr_expect_str_eq(url.user, "u:ser");
    cr_expect_str_eq(url.password, "p:q@x,y");
    expect_server(&url, 0, "h", "6379");
    url = parsed(":@h", false);
    cr_expect_str_empty(url.password);
    url = parsed("@h", false);
    cr_expect_str_empty(url.user);
}

Test(redis_url, addresses) {
    RedisUrl url = parsed("[::1]:7000,[fe80::1%25eth0],127.0.0.1:7001", false);
    cr_expect_eq(url.n_servers, 3);
    expect_server(&url, 0, "::1", "7000");
    expect_server(&url, 1, "fe80::1%eth0", "6379");
    expect_server(&url, 2, "127.0.0.1", "7001");
}

Test(redis_url, database) {
    cr_expect_eq(parsed("h/", false).db, 0);
    cr_expect_eq(parsed("h/0", false).db, 0);
    cr_expect_eq(parsed("h/65535", false).db, 65535);
    cr_expect_eq(parsed("h/?ttl=1d", false).db, 0);
    cr_expect_eq(parsed("h?ttl=2h", false).ttl_ms, 7200 * 1000);
}

Test(redis_url, a_path_may_hold_what_it_likes) {
    RedisUrl url = parsed("h/2?ca=/etc/a@b/c:d,e/ca.crt", true);
    cr_expect_str_eq(url.ca, "/etc/a@b/c:d,e/ca.crt");
    cr_expect_eq(url.db, 2);
}

Test(redis_url, many_servers) {
    char place[512] = "h0";
    for (int i = 1; i < REDIS_MAX_SERVERS; i++)
        snprintf(place + strlen(place), sizeof place - strlen(place), ",h%d", i);
    RedisUrl url = parsed(place, false);
    cr_expect_eq(url.n_servers, REDIS_MAX_SERVERS);
    expect_server(&url, 15, "h15", "6379");
    snprintf(place + strlen(place), sizeof place - strlen(place), ",h");
    refused(place, false, "more than 16 servers");
}

Test(redis_url, bad_servers) {
    refused("", false, "a host is missing");
    refused(":6379", false, "a host is missing");
    refused("h,", false, "a host is missing");
    refused(",h", false, "a host is missing");
    refused("[]:1", false, "a host is missing");
    refused("[::1", false, "'[' of an address without its ']'");
    refused("h:", false, "the port of 'h' is no number from 1 to 65535");
    refused("h:0", false, "the port of 'h' is no number from 1 to 65535");
    refused("h:65536", false, "the port of 'h' is no number from 1 to 65535");
    refused("h:1x", false, "the port of 'h' is no number from 1 to 65535");
    refused("h:-1", false, "the port of 'h' is no number from 1 to 65535");
    refused("h:12345678901234567890", false, "the port of 'h' is no number from 1 to 65535");
    refused("[::1]7", false, "the port of '::1' is no number from 1 to 65535");
    refused("::1", false, "a host is missing");
    refused("a,b:6379,a:6379", false, "names the server 'a:6379' twice");
    refused("h%", false, "a host has a '%' that no two hex digits follow");
    refused("h%0", false, "a host has a '%' that no two hex digits follow");
    refused("h%g0", false, "a host has a '%' that no two hex digits follow");
    refused("h%00", false, "a host has a control character");
}

Test(redis_url, bad_database) {
    refused("h/x", false, "the database 'x' is no number from 0 to 65535");
    refused("h/-1", false, "the database '-1' is no number from 0 to 65535");
    refused("h/65536", false, "the database '65536' is no number from 0 to 65535");
    refused("h/1/2", false, "the database '1/2' is no number from 0 to 65535");
    refused("h/123456789012345678901234567890", false, "is no number from 0 to 65535");
}

Test(redis_url, unknown_parameter_names_the_nearest) {
    refused("h?pasword_file=/x", false,
            "'pasword_file' is unknown (did you mean 'password_file'?)");
    refused("h?prefx=a", false, "(did you mean 'prefix'?)");
    refused("h?tll=1d", false, "(did you mean 'ttl'?)");
    refused("h?crt=/c", true, "(did you mean 'cert'?)");
    refused("h?something_else=1", false, "the parameter 'something_else' is unknown");
    refused("h?=1", false, "is unknown");
}

Test(redis_url, bad_parameters) {
    refused("h?ttl", false, "a parameter without '='");
    refused("h?ttl=1d&&prefix=a", false, "a parameter without '='");
    refused("h?ttl=", false, "ttl '' is no duration such as 1d");
    refused("h?ttl=10", false, "ttl '10' is no duration such as 1d");
    refused("h?ttl=0s", false, "ttl '0s' is no duration such as 1d");
    refused("h?ttl=-1s", false, "ttl '-1s' is no duration");
    refused("h?ttl=1d&prefix=a&ttl=2d", false, "'ttl' stands in it twice");
    refused("h?prefix=a*", false, "prefix 'a*' may hold only letters");
    refused("h?prefix=a%0Ab", false, "prefix has a control character");
    refused("h?ca=/c", false, "'ca' is of TLS, which is rediss://");
    refused("h?cert=/c&key=/k", false, "'cert' is of TLS, which is rediss://");
    refused("h?cert=/c", true, "cert and key belong together");
    refused("h?key=/k", true, "cert and key belong together");
    refused("h?ca=%zz", true, "ca has a '%' that no two hex digits follow");
}

Test(redis_url, too_long) {
    char long_text[2200];
    char place[2400];
    memset(long_text, 'a', sizeof long_text);
    long_text[2199] = '\0';
    snprintf(place, sizeof place, "%.300s:1", long_text);
    refused(place, false, "a host is longer than 255 bytes");
    snprintf(place, sizeof place, "u:" CANARY "%.600s@h", long_text);
    refused(place, false, "the password is longer than 511 bytes");
    snprintf(place, sizeof place, "%.600s:" CANARY "@h", long_text);
    refused(place, false, "the user's name is longer than 511 bytes");
    snprintf(place, sizeof place, "h?prefix=%.64s", long_text);
    refused(place, false, "prefix is longer than 63 bytes");
    snprintf(place, sizeof place, "h?ca=%s", long_text);
    refused(place, true, "ca is longer than 1023 bytes");
    snprintf(place, sizeof place, "h?%.40s=1", long_text);
    refused(place, true, "a parameter's name is longer than 31 bytes");
}

/* Whatever is wrong, and wherever an unescaped character of the password leads. */
Test(redis_url, no_password_in_a_sentence) {
    refused("u:" CANARY "%@h", false, "the password has a '%'");
    refused("u:" CANARY "%00@h", false, "the password has a control character");
    refused(CANARY "@h", false, "a user and no password");
    refused("u:" CANARY "@h/x", false, "the database 'x' is no number");
    refused("u:" CANARY "@h:x", false, "the port of 'h'");
    refused("u:" CANARY "@h?prefx=a", false, "(did you mean 'prefix'?)");
    refused(":" CANARY "/x@h", false, "a host is missing");
    refused("u:" CANARY "/x@h", false, "the port of 'u'");
    refused("u:12/" CANARY "@h", false, "%2F, %3F and %40");
    refused("u:12/" CANARY "@h:6379/2?ttl=1d", false, "%2F, %3F and %40");
    refused("u:12?" CANARY "@h", false, "a parameter without '='");
    refused("u:12?" CANARY "=@h", false, "%2F, %3F and %40");
    refused("u:12?" CANARY "=x@h:1/2", false, "%2F, %3F and %40");
    refused("u:p@q/" CANARY "@h", false, "%2F, %3F and %40");
}

static int parse_with_file(const char *content, size_t bytes, const char *user, RedisUrl *url) {
    char place[512];
    snprintf(place, sizeof place, "%sh?password_file=%s", user,
             temp_write("secret", content, bytes));
    return redis_url_parse(place, false, url);
}

Test(redis_url, password_file, .init = temp_enter, .fini = temp_leave) {
    RedisUrl url;
    cr_assert_eq(parse_with_file("p w:/@?\nmore\n", 13, "", &url), 0);
    cr_expect_str_eq(url.password, "p w:/@?");
    cr_assert_eq(parse_with_file("pw\r\n", 4, "me@", &url), 0);
    cr_expect_str_eq(url.password, "pw");
    cr_expect_str_eq(url.user, "me");
    cr_assert_eq(parse_with_file("pw", 2, "", &url), 0);
    cr_expect_str_eq(url.password, "pw");
}

Test(redis_url, bad_password_file, .init = temp_enter, .fini = temp_leave) {
    char text[600];
    RedisUrl url;
    cr_expect_eq(parse_with_file("", 0, "", &url), ERR_ARGUMENT);
    cr_expect(strstr(err_text(), "its first line is no password"), "%s", err_text());
    cr_expect_eq(parse_with_file("\npw\n", 4, "", &url), ERR_ARGUMENT);
    cr_expect_eq(parse_with_file(CANARY, 6, "u:" CANARY "@", &url), ERR_ARGUMENT);
    cr_expect(strstr(err_text(), "a password and a password_file"), "%s", err_text());
    cr_expect_not(strstr(err_text(), CANARY), "%s", err_text());
    memset(text, 'a', sizeof text);
    memcpy(text, CANARY, 6);
    cr_expect_eq(parse_with_file(text, sizeof text, "", &url), ERR_LIMIT);
    cr_expect_not(strstr(err_text(), CANARY), "%s", err_text());
    cr_expect_eq(parse_with_file(text, 512, "", &url), ERR_ARGUMENT);
    cr_expect_not(strstr(err_text(), CANARY), "%s", err_text());
    cr_expect_eq(redis_url_parse("h?password_file=/nowhere/at/all", false, &url), ERR_NOT_FOUND);
    cr_expect(strstr(err_text(), "the relay's password_file: "), "%s", err_text());
    cr_expect(strstr(err_text(), "/nowhere/at/all"), "%s", err_text());
}

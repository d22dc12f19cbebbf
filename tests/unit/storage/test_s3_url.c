/* The URL of an S3 relay and the credentials behind it: every part, every refusal, every place, and
 * never a secret in a sentence. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/err.h"
#include "core/file.h"
#include "storage/relay.h"
#include "storage/s3_credentials.h"
#include "tests/support/temp_folder.h"

#define CANARY "c4n4ry"

static S3Url parsed(const char *place) {
    S3Url url;
    cr_assert_eq(s3_url_parse(place, &url), 0, "%s: %s", place, err_text());
    return url;
}

static void refused(const char *place, const char *sentence) {
    S3Url url = {.timeout_ms = 77};
    int rc = s3_url_parse(place, &url);
    cr_expect_eq(rc, ERR_ARGUMENT, "%s: %s (%s)", place, err_name(rc), err_text());
    cr_expect(strstr(err_text(), sentence), "%s: '%s' and not '%s'", place, err_text(), sentence);
    cr_expect(strstr(err_text(), "the relay's URL"), "%s: %s", place, err_text());
    cr_expect_not(strstr(err_text(), CANARY), "%s: %s", place, err_text());
    cr_expect_not(strchr(err_text(), '\n'), "%s: %s", place, err_text());
    cr_expect_eq(url.timeout_ms, 77, "%s: half done", place);
}

Test(s3_url, bucket_alone_and_defaults) {
    S3Url url = parsed("some-bucket");
    cr_expect_str_eq(url.bucket, "some-bucket");
    cr_expect_str_empty(url.prefix);
    cr_expect(url.tls && url.virtual_style);
    cr_expect_str_empty(url.region);
    cr_expect_str_empty(url.host);
    cr_expect_eq(url.timeout_ms, 10000);
    s3_url_settle(&url, "eu-west-3");
    cr_expect_str_eq(url.host, "some-bucket.s3.eu-west-3.amazonaws.com");
}

Test(s3_url, chinas_regions) {
    S3Url url = parsed("some-bucket");
    s3_url_settle(&url, "cn-north-1");
    cr_expect_str_eq(url.host, "some-bucket.s3.cn-north-1.amazonaws.com.cn");
    url = parsed("some.bucket?region=cn-northwest-1");
    s3_url_settle(&url, "eu-west-3");
    cr_expect_str_eq(url.host, "s3.cn-northwest-1.amazonaws.com.cn");
}

Test(s3_url, every_part) {
    S3Url url = parsed("b.u-c_K3t/jobs/of%20mine/?endpoint=http://store.example:9000&region=x-1"
                       "&credentials_file=/etc/%C3%A9&profile=train&timeout=30s&style=path");
    cr_expect_str_eq(url.bucket, "b.u-c_K3t");
    cr_expect_str_eq(url.prefix, "jobs/of mine/");
    cr_expect_str_eq(url.host, "store.example:9000");
    cr_expect_not(url.tls || url.virtual_style);
    cr_expect_str_eq(url.region, "x-1");
    cr_expect_str_eq(url.credentials, "/etc/\xC3\xA9");
    cr_expect_str_eq(url.profile, "train");
    cr_expect_eq(url.timeout_ms, 30000);
    s3_url_settle(&url, "other");
    cr_expect_str_eq(url.region, "x-1");
    cr_expect_str_eq(url.host, "store.example:9000");
}

Test(s3_url, announce) {
    char place[1200] = "bucket?announce=redis://h/";
    S3Url url = parsed("bucket/p?announce=rediss://me@h:1/2?password_file=/p%26prefix=a%253Ab"
                       "&endpoint=http://s");
    cr_expect_str_eq(url.announce, "rediss://me@h:1/2?password_file=/p&prefix=a%3Ab");
    cr_expect_str_eq(url.host, "s");
    refused("bucket?announce=", "announce begins with neither redis:// nor rediss://");
    refused("bucket?announce=s3://" CANARY, "announce begins with neither");
    refused("bucket?announce=redis://h&announce=redis://h", "'announce' stands in it twice");
    refused("bucket?announce=redis://:a&" CANARY "=b@h", "behind 'announce'");
    refused("bucket?announce=redis://:a&" CANARY "@h", "a parameter without '='");
    memset(place + strlen(place), '7', sizeof place - 1 - strlen(place));
    refused(place, "longer than");
    cr_expect_eq(relay_check_url("s3://bucket?announce=redis://h:1/2?prefix=a:"), 0, "%s",
                 err_text());
    static const char *const bad[] = {
        "s3://bucket?announce=redis://:" CANARY "@h", "s3://bucket?announce=redis://h:0",
        "s3://bucket?announce=redis://h?" CANARY "@=x", "s3://bucket?announce=redis://"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect_eq(relay_check_url(bad[i]), ERR_ARGUMENT, "%s", bad[i]);
        cr_expect(strstr(err_text(), "where objects are announced"), "%s", err_text());
        cr_expect_not(strstr(err_text(), CANARY), "%s", err_text());
    }
}

Test(s3_url, hosts) {
    static const struct {
        const char *place, *host;
    } cases[] = {
        {"bucket?endpoint=https://h.example", "h.example"},
        {"bucket?endpoint=https://h.example/", "h.example"},
        {"bucket?endpoint=https://h.example:443", "h.example"},
        {"bucket?endpoint=http://h.example:443", "h.example:443"},
        {"bucket?endpoint=http://h.example:80", "h.example"},
        {"bucket?endpoint=http://[::1]:9000", "[::1]:9000"},
        {"bucket?endpoint=http://[::1]", "[::1]"},
        {"bucket?endpoint=https://h.example:9000&style=virtual", "bucket.h.example:9000"},
        {"bucket?region=r-1", "bucket.s3.r-1.amazonaws.com"},
        {"dotted.bucket?region=r-1", "s3.r-1.amazonaws.com"}, /* no certificate fits it */
        {"bucket?region=r-1&style=path", "s3.r-1.amazonaws.com"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        S3Url url = parsed(cases[i].place);
        s3_url_settle(&url, "x");
        cr_expect_str_eq(url.host, cases[i].host, "%s: %s", cases[i].place, url.host);
    }
}

Test(s3_url, prefixes) {
    cr_expect_str_eq(parsed("bucket/").prefix, "");
    cr_expect_str_eq(parsed("bucket/a").prefix, "a/");
    cr_expect_str_eq(parsed("bucket/a/").prefix, "a/");
    cr_expect_str_eq(parsed("bucket/a%2Fb/...").prefix, "a/b/.../");
    cr_expect_str_eq(parsed("bucket/a%20b+~@()=%2541%23%3F%C3%A9").prefix,
                     "a b+~@()=%41#?\xC3\xA9/");
}

Test(s3_url, refusals) {
    char longest[600];
    refused("", "the bucket ''");
    refused("ab", "the bucket 'ab'");
    refused("-bucket", "the bucket '-bucket'");
    refused("buck..et", "the bucket");
    refused("buck et", "the bucket 'buck et'");
    refused("b%00cket", "control character");
    refused("bucket%2", "two hex digits");
    refused("KEY:" CANARY "@bucket/x", "nothing may stand in front of the bucket");
    refused("KEY:" CANARY "/" CANARY "@bucket/x", "nothing may stand in front of the bucket");
    refused("KEY%3A" CANARY "/" CANARY "@bucket", "nothing may stand in front of the bucket");
    refused("bucket//a", "a part that is empty");
    refused("bucket/a//b", "a part that is empty");
    refused("bucket/./a", "'.' or '..'");
    refused("bucket/a/..", "'.' or '..'");
    refused("bucket/%C3", "not UTF-8");
    refused("bucket/a%0Ab", "control character");
    refused("bucket?endpoint=ftp://h", "neither http:// nor https://");
    refused("bucket?endpoint=h:9000", "neither http:// nor https://");
    refused("bucket?endpoint=http://", "no http[s]://HOST[:PORT]");
    refused("bucket?endpoint=http://h/path", "no http[s]://HOST[:PORT]");
    refused("bucket?endpoint=http://h?x", "no http[s]://HOST[:PORT]");
    refused("bucket?endpoint=http://u:" CANARY "@h", "no user or password");
    refused("bucket?endpoint=http://h:0", "the endpoint's port");
    refused("bucket?endpoint=http://h:65536", "the endpoint's port");
    refused("bucket?endpoint=http://h:", "the endpoint's port");
    refused("bucket?endpoint=http://h%20h", "a character that no host has");
    refused("bucket?region=eu west", "region 'eu west'");
    refused("bucket?region=", "region ''");
    refused("bucket?style=both", "'path' or 'virtual', not 'both'");
    refused("bucket?endpoint=http://[::1]&style=virtual", "cannot stand in front of the host");
    refused("buck_et?endpoint=http://h&style=virtual", "cannot stand in front of the host");
    refused("bucket?credentials_file=x", "'credentials_file' needs an absolute path");
    refused("bucket?ca=x", "'ca' needs an absolute path");
    refused("bucket?endpoint=http://h&ca=/x", "'ca' is of TLS");
    refused("bucket?profile=", "'profile' is empty");
    refused("bucket?timeout=999ms", "timeout '999ms'");
    refused("bucket?timeout=11m", "timeout '11m'");
    refused("bucket?timeout=10", "timeout '10'");
    refused("bucket?region=a&region=b", "'region' stands in it twice");
    refused("bucket?endpont=http://h", "did you mean 'endpoint'?");
    refused("bucket?secret_access_key=" CANARY, "'secret_access_key' is unknown");
    refused("bucket?" CANARY, "a parameter without '='");
    snprintf(longest, sizeof longest, "bucket/%0*d", 256, 0);
    refused(longest, "the prefix is longer than");
    snprintf(longest, sizeof longest, "%0*d", 64, 0);
    refused(longest, "the bucket is longer than 63 bytes");
    snprintf(longest, sizeof longest, "bucket?endpoint=http://%0*d", 300, 0);
    refused(longest, "no http[s]://HOST[:PORT]");
}

Test(s3_url, a_job_may_name_it) {
    cr_expect_eq(relay_check_url("s3://bucket/prefix?region=eu-central-1"), 0, "%s", err_text());
    cr_expect_eq(relay_check_url("s3://bucket?credentials_file=/not/there"), 0, "%s", err_text());
    cr_expect_eq(relay_check_url("s3://b"), ERR_ARGUMENT);
    cr_expect_eq(relay_check_url("s3://KEY:" CANARY "@bucket"), ERR_ARGUMENT);
    cr_expect_not(strstr(err_text(), CANARY));
}

/* ---- credentials ---- */

static void enter(void) {
    static const char *const names[] = {"AWS_ACCESS_KEY_ID",           "AWS_SECRET_ACCESS_KEY",
                                        "AWS_SESSION_TOKEN",           "AWS_REGION",
                                        "AWS_DEFAULT_REGION",          "AWS_PROFILE",
                                        "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"};
    temp_enter();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
    setenv("HOME", temp_folder, 1);
}

static const char *written(const char *name, const char *text) {
    const char *path = temp_path(name);
    cr_assert_eq(file_write(path, text, strlen(text)), 0, "%s", err_text());
    return path;
}

static int find(const char *place, S3Url *url, S3Credentials *keys) {
    *url = parsed(place);
    return s3_credentials_find(url, keys);
}

static void found(const char *place, const char *id, const char *secret, const char *token,
                  const char *region) {
    S3Url url;
    S3Credentials keys;
    cr_assert_eq(find(place, &url, &keys), 0, "%s: %s", place, err_text());
    cr_expect_str_eq(keys.key_id, id);
    cr_expect_str_eq(keys.secret, secret);
    cr_expect_str_eq(keys.token, token);
    cr_expect_str_eq(url.region, region);
}

static void not_found(const char *place, int code, const char *sentence) {
    S3Url url;
    S3Credentials keys;
    int rc = find(place, &url, &keys);
    cr_expect_eq(rc, code, "%s: %s", err_name(rc), err_text());
    cr_expect(strstr(err_text(), sentence), "'%s' and not '%s'", err_text(), sentence);
    cr_expect_not(strstr(err_text(), CANARY), "%s", err_text());
}

#define STORE "bucket?endpoint=http://h"

Test(s3_credentials, of_the_environment, .init = enter, .fini = temp_leave) {
    setenv("AWS_ACCESS_KEY_ID", "AK", 1);
    not_found(STORE, ERR_AUTH, "one is missing");
    setenv("AWS_SECRET_ACCESS_KEY", CANARY, 1);
    found(STORE, "AK", CANARY, "", "us-east-1");
    not_found("bucket", ERR_ARGUMENT, "neither a region nor an endpoint");
    setenv("AWS_DEFAULT_REGION", "r-2", 1);
    found("bucket", "AK", CANARY, "", "r-2");
    setenv("AWS_REGION", "r-1", 1);
    setenv("AWS_SESSION_TOKEN", "T/+=", 1);
    found("bucket", "AK", CANARY, "T/+=", "r-1");
    found("bucket?region=r-0", "AK", CANARY, "T/+=", "r-0");
    setenv("AWS_REGION", "r 1", 1);
    not_found("bucket", ERR_ARGUMENT, "region 'r 1'");
    setenv("AWS_SECRET_ACCESS_KEY", CANARY "\n", 1);
    not_found(STORE, ERR_AUTH, "AWS_SECRET_ACCESS_KEY is too long or has odd characters");
}

Test(s3_credentials, of_a_file_in_the_url, .init = enter, .fini = temp_leave) {
    char place[400];
    const char *path = written("keys", "# AWS's form\r\n"
                                       "[default]\r\n"
                                       "aws_access_key_id=AK1\r\n"
                                       "  aws_secret_access_key = overlooked: indented\n"
                                       "aws_secret_access_key = a" CANARY "/+=  \n"
                                       "; more\n"
                                       "region = r-3\n"
                                       "s3 =\n"
                                       "  max_concurrent_requests = 20\n"
                                       "[ train ]\n"
                                       "aws_access_key_id = AK2\n"
                                       "aws_secret_access_key = b" CANARY "\n"
                                       "aws_session_token = token\n"
                                       "[half]\n"
                                       "aws_access_key_id = AK3\n"
                                       "[odd]\n"
                                       "what " CANARY " is this\n");
    setenv("AWS_ACCESS_KEY_ID", "OTHER", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "other", 1);
    snprintf(place, sizeof place, "bucket?credentials_file=%s", path);
    found(place, "AK1", "a" CANARY "/+=", "", "r-3");
    snprintf(place, sizeof place, STORE "&credentials_file=%s&profile=train", path);
    found(place, "AK2", "b" CANARY, "token", "us-east-1");
    setenv("AWS_PROFILE", "train", 1);
    snprintf(place, sizeof place, STORE "&credentials_file=%s", path);
    found(place, "AK2", "b" CANARY, "token", "us-east-1");
    snprintf(place, sizeof place, STORE "&credentials_file=%s&profile=half", path);
    not_found(place, ERR_AUTH, "in its section [half]");
    snprintf(place, sizeof place, STORE "&credentials_file=%s&profile=absent", path);
    not_found(place, ERR_AUTH, "in its section [absent]");
    snprintf(place, sizeof place, STORE "&credentials_file=%s&profile=odd", path);
    not_found(place, ERR_FORMAT, "line 17");
    not_found(STORE "&credentials_file=/not/there", ERR_NOT_FOUND, "/not/there");
}

Test(s3_credentials, where_awss_programs_look, .init = enter, .fini = temp_leave) {
    not_found(STORE, ERR_AUTH, "neither in AWS_ACCESS_KEY_ID");
    cr_expect(strstr(err_text(), "/.aws/credentials"), "%s", err_text());
    mkdir(temp_path(".aws"), 0700);
    written(".aws/config", "[default]\nregion = r-5\n"
                           "[profile train]\nregion = r-6\naws_access_key_id = AK6\n"
                           "aws_secret_access_key = six\n");
    not_found(STORE, ERR_AUTH, "/.aws/config");
    found("bucket?profile=train", "AK6", "six", "", "r-6");
    written(".aws/credentials",
            "[default]\naws_access_key_id = AK5\naws_secret_access_key = five\n");
    found("bucket", "AK5", "five", "", "r-5");
    found(STORE, "AK5", "five", "", "r-5");
    setenv("AWS_SESSION_TOKEN", "stray", 1);
    found(STORE, "AK5", "five", "", "r-5");
    found("bucket?profile=train", "AK6", "six", "", "r-6");
    unsetenv("AWS_SESSION_TOKEN");
    setenv(
        "AWS_SHARED_CREDENTIALS_FILE",
        written("elsewhere", "[default]\naws_access_key_id = AK7\naws_secret_access_key = seven\n"),
        1);
    found("bucket", "AK7", "seven", "", "r-5");
    setenv("AWS_ACCESS_KEY_ID", "AK8", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "eight", 1);
    found("bucket", "AK8", "eight", "", "r-5");
    found("bucket?profile=train", "AK6", "six", "", "r-6");
}

/* Signatures: AWS's published examples of Signature Version 4, for S3 and in general, and the
 * encoding of paths. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "core/err.h"
#include "storage/s3_sign.h"

#define EMPTY_HASH "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

/* The keys of AWS's examples. */
static const S3Credentials s3_keys = {.key_id = "AKIAIOSFODNN7EXAMPLE",
                                      .secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
static const S3Credentials suite_keys = {.key_id = "AKIDEXAMPLE",
                                         .secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"};

static void expect(const S3Credentials *keys, const char *service, const char *date,
                   const S3Canonical *request, const char *credential, const char *headers,
                   const char *signature) {
    char expected[512];
    Buf text;
    buf_init(&text, 0);
    snprintf(expected, sizeof expected,
             "AWS4-HMAC-SHA256 Credential=%s,SignedHeaders=%s,Signature=%s", credential, headers,
             signature);
    cr_assert_eq(s3_sign(keys, "us-east-1", service, request, date, &text), 0, "%s", err_text());
    cr_expect_str_eq(text.data, expected);
    buf_done(&text);
}

#define S3_DAY "20130524T000000Z"
#define S3_CREDENTIAL "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"
#define S3_HOST "examplebucket.s3.amazonaws.com"

Test(s3_sign, get_a_range) {
    const S3Header headers[] = {{"host", S3_HOST},
                                {"range", "bytes=0-9"},
                                {"x-amz-content-sha256", EMPTY_HASH},
                                {"x-amz-date", S3_DAY}};
    const S3Canonical request = {"GET", "/test.txt", "", headers, 4, EMPTY_HASH};
    expect(&s3_keys, "s3", S3_DAY, &request, S3_CREDENTIAL,
           "host;range;x-amz-content-sha256;x-amz-date",
           "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

Test(s3_sign, put_an_object) {
    char hash[S3_HEX_BYTES];
    Buf path;
    buf_init(&path, 0);
    const Slice parts[] = {{"Welcome to ", 11}, {NULL, 0}, {"Amazon S3.", 10}};
    cr_assert_eq(s3_hash(parts, 3, hash), 0);
    cr_expect_str_eq(hash, "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072");
    cr_assert_eq(s3_encode(&path, "/test$file.text", true), 0);
    cr_expect_str_eq(path.data, "/test%24file.text");
    const S3Header headers[] = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                                {"host", S3_HOST},
                                {"x-amz-content-sha256", hash},
                                {"x-amz-date", S3_DAY},
                                {"x-amz-storage-class", "REDUCED_REDUNDANCY"}};
    const S3Canonical request = {"PUT", path.data, "", headers, 5, hash};
    expect(&s3_keys, "s3", S3_DAY, &request, S3_CREDENTIAL,
           "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
           "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
    buf_done(&path);
}

Test(s3_sign, a_query_without_a_value) {
    const S3Header headers[] = {
        {"host", S3_HOST}, {"x-amz-content-sha256", EMPTY_HASH}, {"x-amz-date", S3_DAY}};
    const S3Canonical request = {"GET", "/", "lifecycle", headers, 3, EMPTY_HASH};
    expect(&s3_keys, "s3", S3_DAY, &request, S3_CREDENTIAL, "host;x-amz-content-sha256;x-amz-date",
           "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

Test(s3_sign, a_listing) {
    const S3Header headers[] = {
        {"host", S3_HOST}, {"x-amz-content-sha256", EMPTY_HASH}, {"x-amz-date", S3_DAY}};
    const S3Canonical request = {"GET", "/", "max-keys=2&prefix=J", headers, 3, EMPTY_HASH};
    expect(&s3_keys, "s3", S3_DAY, &request, S3_CREDENTIAL, "host;x-amz-content-sha256;x-amz-date",
           "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

#define SUITE_DAY "20150830T123600Z"
#define SUITE_CREDENTIAL "AKIDEXAMPLE/20150830/us-east-1/service/aws4_request"
static const S3Header suite_headers[] = {{"host", "example.amazonaws.com"},
                                         {"x-amz-date", SUITE_DAY}};

Test(s3_sign, get_vanilla) {
    const S3Canonical request = {"GET", "/", "", suite_headers, 2, EMPTY_HASH};
    expect(&suite_keys, "service", SUITE_DAY, &request, SUITE_CREDENTIAL, "host;x-amz-date",
           "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
}

Test(s3_sign, get_vanilla_query) {
    const S3Canonical request = {"GET",         "/", "Param1=value1&Param2=value2",
                                 suite_headers, 2,   EMPTY_HASH};
    expect(&suite_keys, "service", SUITE_DAY, &request, SUITE_CREDENTIAL, "host;x-amz-date",
           "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
}

Test(s3_sign, post_vanilla) {
    const S3Canonical request = {"POST", "/", "", suite_headers, 2, EMPTY_HASH};
    expect(&suite_keys, "service", SUITE_DAY, &request, SUITE_CREDENTIAL, "host;x-amz-date",
           "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b");
}

Test(s3_sign, every_byte_is_encoded) {
    Buf text;
    buf_init(&text, 0);
    cr_assert_eq(s3_encode(&text, "a b+~@()=%41#?\xC3\xA9&'\"!*$,;:/-._Z9", true), 0);
    cr_expect_str_eq(text.data, "a%20b%2B~%40%28%29%3D%2541%23%3F%C3%A9%26%27%22%21%2A%24%2C%3B%3A/"
                                "-._Z9");
    buf_clear(&text);
    cr_assert_eq(s3_encode(&text, "a/b", false), 0);
    cr_expect_str_eq(text.data, "a%2Fb");
    buf_done(&text);
}

Test(s3_sign, dates_and_md5) {
    char date[S3_DATE_BYTES];
    char md5[S3_MD5_BYTES];
    s3_date(INT64_C(1440938160999), date);
    cr_expect_str_eq(date, SUITE_DAY);
    s3_date(0, date);
    cr_expect_str_eq(date, "19700101T000000Z");
    cr_assert_eq(s3_md5("", 0, md5), 0); /* RFC 1321: d41d8cd98f00b204e9800998ecf8427e */
    cr_expect_str_eq(md5, "1B2M2Y8AsgTpgAmY7PhCfg==");
}

/* Another secret, date, region, path or hash: another signature. */
Test(s3_sign, all_of_it_counts) {
    S3Canonical request = {"GET", "/", "", suite_headers, 2, EMPTY_HASH};
    S3Credentials keys = suite_keys;
    Buf texts[5];
    for (int i = 0; i < 5; i++)
        buf_init(&texts[i], 0);
    s3_sign(&keys, "us-east-1", "s3", &request, SUITE_DAY, &texts[0]);
    s3_sign(&keys, "us-east-2", "s3", &request, SUITE_DAY, &texts[1]);
    keys.secret[0] = 'x';
    s3_sign(&keys, "us-east-1", "s3", &request, SUITE_DAY, &texts[2]);
    keys.secret[0] = 'w';
    request.path = "/a";
    s3_sign(&keys, "us-east-1", "s3", &request, SUITE_DAY, &texts[3]);
    request.path = "/";
    request.body_hash = "UNSIGNED-PAYLOAD";
    s3_sign(&keys, "us-east-1", "s3", &request, SUITE_DAY, &texts[4]);
    for (int i = 0; i < 5; i++) {
        const char *signature = strstr(buf_string(&texts[i]), "Signature=");
        cr_assert_not_null(signature);
        for (int k = 0; k < i; k++)
            cr_expect_str_neq(signature, strstr(texts[k].data, "Signature="), "%d and %d", i, k);
    }
    for (int i = 0; i < 5; i++)
        buf_done(&texts[i]);
}

/* XML as stores write it, and as they do not. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "core/buf.h"
#include "core/err.h"
#include "storage/s3_xml.h"

static int note_down(void *arg, const char *path, const char *text) {
    return buf_printf(arg, "%s=%s|", path, text);
}

static int read_text(const char *text, Buf *out) {
    buf_clear(out);
    return s3_xml_read((Slice){text, strlen(text)}, note_down, out);
}

static void reads(const char *text, const char *expected) {
    Buf out;
    buf_init(&out, 0);
    cr_expect_eq(read_text(text, &out), 0, "%s: %s", text, err_text());
    cr_expect_str_eq(buf_string(&out), expected, "%s: %s", text, buf_string(&out));
    buf_done(&out);
}

static void refuses(const char *text, const char *sentence) {
    Buf out;
    buf_init(&out, 0);
    cr_expect_eq(read_text(text, &out), ERR_FORMAT, "%s", text);
    cr_expect(strstr(err_text(), sentence), "%s: '%s' and not '%s'", text, err_text(), sentence);
    buf_done(&out);
}

Test(s3_xml, documents) {
    reads("<a/>", "a=|");
    reads("<a>x</a>", "a=x|");
    reads("<?xml version=\"1.0\" encoding='UTF-8'?>\n<!-- <b> -->\n<a x=\"1>2\" y='/'>\n</a>\n",
          "a=\n|");
    reads("<r><k>1</k><k>2</k><d><k/></d></r >", "r/k=1|r/k=2|r/d/k=|r/d=|r=|");
    reads("<a>&amp;&lt;&gt;&quot;&apos;&#65;&#x42;&#233;&#x20AC;&#x1F600;</a>",
          "a=&<>\"'AB\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80|");
    reads("<a>\n  <b> x </b>\n</a>", "a/b= x |a=|");
}

Test(s3_xml, nonsense) {
    refuses("", "it ends too early");
    refuses("text", "text outside of elements");
    refuses("<a>", "it ends too early");
    refuses("<a", "a tag without '>'");
    refuses("<a x=\">", "a tag without '>'");
    refuses("<a></b>", "a closing tag of another element");
    refuses("<a><b></a></b>", "a closing tag of another element");
    refuses("<ab></b>", "a closing tag of another element");
    refuses("</a>", "a closing tag of another element");
    refuses("<a></a", "a tag without '>'");
    refuses("<a></a><b/>", "a second document");
    refuses("<a/><a/>", "a second document");
    refuses("<a></a>x", "text outside of elements");
    refuses("<>x</>", "'<' without a name");
    refuses("<!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>", "a document type");
    refuses("<a>&x;</a>", "an entity that is not known");
    refuses("<a>&amp</a>", "'&' without a name and ';'");
    refuses("<a>&#;</a>", "a character without a number");
    refuses("<a>&#x110000;</a>", "a character of a number that none has");
    refuses("<a>&#xD800;</a>", "a character of a number that none has");
    refuses("<a>&#0;</a>", "a character of a number that none has");
    refuses("<a>&#9a;</a>", "a character of a number that none has");
    refuses("<a><b><c><d><e><f><g><h><i>", "elements lie too deep");
    refuses("<?xml", "it ends too early");
    refuses("<!-- x", "it ends too early");
}

Test(s3_xml, bounds) {
    Buf text;
    Buf out;
    buf_init(&text, 0);
    buf_init(&out, 0);
    buf_printf(&text, "<a>%0*d</a>", S3_XML_TEXT_BYTES - 1, 0);
    cr_expect_eq(read_text(text.data, &out), 0, "%s", err_text());
    buf_clear(&text);
    buf_printf(&text, "<a>%0*d</a>", S3_XML_TEXT_BYTES, 0);
    cr_expect_eq(read_text(text.data, &out), ERR_FORMAT);
    cr_expect(strstr(err_text(), "a text is too long"), "%s", err_text());
    buf_clear(&text);
    buf_printf(&text, "<a%0*d/>", S3_XML_PATH_BYTES, 0);
    cr_expect_eq(read_text(text.data, &out), ERR_FORMAT);
    cr_expect_eq(s3_xml_read((Slice){"<a>\0</a>", 8}, note_down, &out), ERR_FORMAT);
    buf_done(&text);
    buf_done(&out);
}

/* Every beginning of a document is none. */
Test(s3_xml, cut_anywhere) {
    static const char whole[] = "<?xml version=\"1.0\"?><!-- c --><r a='b'><k>a&amp;b</k><e/></r>";
    Buf out;
    buf_init(&out, 0);
    for (size_t n = 0; n < sizeof whole - 1; n++) {
        buf_clear(&out);
        char *copy = malloc(n + 1); /* so that reading beyond it is noticed */
        memcpy(copy, whole, n);
        cr_expect_eq(s3_xml_read((Slice){copy, n}, note_down, &out), ERR_FORMAT, "%zu bytes", n);
        free(copy);
    }
    cr_expect_eq(read_text(whole, &out), 0);
    buf_done(&out);
}

static int stop_at_k(void *arg, const char *path, const char *text) {
    (void)text;
    ++*(int *)arg;
    return strcmp(path, "r/k") == 0 ? ERR_LIMIT : 0;
}

Test(s3_xml, a_visit_ends_it) {
    int n = 0;
    static const char text[] = "<r><a/><k/><b/></r>";
    cr_expect_eq(s3_xml_read((Slice){text, sizeof text - 1}, stop_at_k, &n), ERR_LIMIT);
    cr_expect_eq(n, 2);
}

Test(s3_xml, escaped_and_read_again) {
    Buf text;
    buf_init(&text, 0);
    cr_assert_eq(buf_text(&text, "<a>"), 0);
    cr_assert_eq(s3_xml_escape(&text, "a<b>&\"c'\xC3\xA9"), 0);
    cr_assert_eq(buf_text(&text, "</a>"), 0);
    reads(text.data, "a=a<b>&\"c'\xC3\xA9|");
    buf_done(&text);
}

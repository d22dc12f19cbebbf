#include "storage/s3_xml.h"

#include <stdbool.h>
#include <string.h>

#include "core/err.h"

typedef struct Reader {
    const char *begin, *at, *end;
    char path[S3_XML_PATH_BYTES];
    size_t lengths[S3_XML_DEPTH]; /* of the path in front of each open element */
    int depth, n_roots;
    bool is_leaf; /* the element opened last has no other in it so far */
    char text[S3_XML_TEXT_BYTES];
    size_t n_text;
    S3XmlVisit visit;
    void *arg;
} Reader;

static int wrong(const Reader *reader, const char *what) {
    return err_set(ERR_FORMAT, "the answer's XML, byte %zu: %s",
                   (size_t)(reader->at - reader->begin), what);
}

static bool starts(const Reader *reader, const char *text) {
    size_t n = strlen(text);
    return (size_t)(reader->end - reader->at) >= n && memcmp(reader->at, text, n) == 0;
}

static int skip_past(Reader *reader, const char *text) {
    const char *found = memmem(reader->at, (size_t)(reader->end - reader->at), text, strlen(text));
    if (!found)
        return wrong(reader, "it ends too early");
    reader->at = found + strlen(text);
    return 0;
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || c == ':';
}

static Slice take_name(Reader *reader) {
    const char *from = reader->at;
    while (reader->at < reader->end && name_char(*reader->at))
        reader->at++;
    return (Slice){from, (size_t)(reader->at - from)};
}

/* ---- text ---- */

static int add_char(Reader *reader, char c) {
    if (reader->n_text + 1 >= sizeof reader->text)
        return wrong(reader, "a text is too long");
    reader->text[reader->n_text++] = c;
    return 0;
}

static int add_code_point(Reader *reader, unsigned code) {
    if (code == 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        return wrong(reader, "a character of a number that none has");
    if (code < 0x80)
        return add_char(reader, (char)code);
    int n_more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    unsigned first = n_more == 1 ? 0xC0U : n_more == 2 ? 0xE0U : 0xF0U;
    TRY(add_char(reader, (char)(first | code >> (6 * n_more))));
    while (n_more-- > 0)
        TRY(add_char(reader, (char)(0x80U | (code >> (6 * n_more) & 0x3FU))));
    return 0;
}

/* "#65" or "#x41" */
static int take_number(Reader *reader, const char *from, const char *end) {
    unsigned base = *from == 'x' ? 16 : 10;
    unsigned code = 0;
    from += base == 16;
    if (from == end)
        return wrong(reader, "a character without a number");
    for (; from < end; from++) {
        unsigned digit = *from >= '0' && *from <= '9'   ? (unsigned)(*from - '0')
                         : *from >= 'a' && *from <= 'f' ? (unsigned)(*from - 'a') + 10
                         : *from >= 'A' && *from <= 'F' ? (unsigned)(*from - 'A') + 10
                                                        : 99;
        if (digit >= base || code > 0x10FFFF)
            return wrong(reader, "a character of a number that none has");
        code = code * base + digit;
    }
    return add_code_point(reader, code);
}

static int take_entity(Reader *reader) {
    static const struct {
        const char *name;
        char c;
    } known[] = {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}};
    const char *from = reader->at + 1;
    size_t most = (size_t)(reader->end - from) < 12 ? (size_t)(reader->end - from) : 12;
    const char *end = memchr(from, ';', most);
    if (!end || end == from)
        return wrong(reader, "'&' without a name and ';'");
    if (*from == '#') {
        TRY(take_number(reader, from + 1, end));
    } else {
        int which = -1;
        for (int i = 0; i < 5; i++) {
            if (strlen(known[i].name) == (size_t)(end - from) &&
                memcmp(known[i].name, from, (size_t)(end - from)) == 0)
                which = i;
        }
        if (which < 0)
            return wrong(reader, "an entity that is not known");
        TRY(add_char(reader, known[which].c));
    }
    reader->at = end + 1;
    return 0;
}

/* ---- elements ---- */

static int open_element(Reader *reader) {
    reader->at++;
    Slice name = take_name(reader);
    size_t length = strlen(reader->path);
    if (name.bytes == 0)
        return wrong(reader, "'<' without a name");
    if (reader->depth == S3_XML_DEPTH || length + name.bytes + 2 > sizeof reader->path)
        return wrong(reader, "elements lie too deep");
    if (reader->depth == 0 && reader->n_roots++ > 0)
        return wrong(reader, "a second document");
    reader->lengths[reader->depth++] = length;
    if (length > 0)
        reader->path[length++] = '/';
    memcpy(reader->path + length, name.data, name.bytes);
    reader->path[length + name.bytes] = '\0';
    reader->is_leaf = true;
    reader->n_text = 0;
    for (char quote = 0; reader->at < reader->end; reader->at++) { /* attributes */
        char c = *reader->at;
        if (quote ? c == quote : c == '"' || c == '\'')
            quote = quote ? 0 : c;
        else if (!quote && (c == '>' || c == '<'))
            break;
    }
    return reader->at < reader->end && *reader->at == '>' ? 0 : wrong(reader, "a tag without '>'");
}

static int close_element(Reader *reader) {
    reader->text[reader->is_leaf ? reader->n_text : 0] = '\0';
    TRY(reader->visit(reader->arg, reader->path, reader->text));
    reader->path[reader->lengths[--reader->depth]] = '\0';
    reader->is_leaf = false;
    return 0;
}

static int close_tag(Reader *reader) {
    reader->at += 2;
    Slice name = take_name(reader);
    size_t length = strlen(reader->path);
    if (reader->depth == 0 || name.bytes == 0 || name.bytes > length ||
        memcmp(reader->path + length - name.bytes, name.data, name.bytes) != 0 ||
        length - name.bytes !=
            reader->lengths[reader->depth - 1] + (reader->lengths[reader->depth - 1] > 0))
        return wrong(reader, "a closing tag of another element");
    while (reader->at < reader->end && is_space(*reader->at))
        reader->at++;
    if (reader->at == reader->end || *reader->at != '>')
        return wrong(reader, "a tag without '>'");
    reader->at++;
    return close_element(reader);
}

static int take_tag(Reader *reader) {
    if (starts(reader, "</"))
        return close_tag(reader);
    if (starts(reader, "<?"))
        return skip_past(reader, "?>");
    if (starts(reader, "<!--"))
        return skip_past(reader, "-->");
    if (starts(reader, "<!"))
        return wrong(reader, "a document type or other declaration");
    TRY(open_element(reader));
    bool empty = reader->at[-1] == '/';
    reader->at++;
    return empty ? close_element(reader) : 0;
}

int s3_xml_read(Slice document, S3XmlVisit visit, void *arg) {
    Reader reader = {.begin = document.data, .visit = visit, .arg = arg};
    reader.at = reader.begin;
    reader.end = reader.begin + document.bytes;
    while (reader.at < reader.end) {
        if (*reader.at == '<')
            TRY(take_tag(&reader));
        else if (reader.depth == 0 && !is_space(*reader.at))
            return wrong(&reader, "text outside of elements");
        else if (*reader.at == '\0')
            return wrong(&reader, "a zero byte");
        else if (*reader.at == '&')
            TRY(take_entity(&reader));
        else if (!reader.is_leaf)
            reader.at++; /* between elements */
        else
            TRY(add_char(&reader, *reader.at++));
    }
    return reader.depth > 0 || reader.n_roots == 0 ? wrong(&reader, "it ends too early") : 0;
}

int s3_xml_escape(Buf *out, const char *text) {
    for (; *text; text++) {
        switch (*text) {
        case '&':
            TRY(buf_text(out, "&amp;"));
            break;
        case '<':
            TRY(buf_text(out, "&lt;"));
            break;
        case '>':
            TRY(buf_text(out, "&gt;"));
            break;
        case '"':
            TRY(buf_text(out, "&quot;"));
            break;
        default:
            TRY(buf_add(out, text, 1));
        }
    }
    return 0;
}

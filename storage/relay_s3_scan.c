/* All that lies under a prefix: counting it, dropping it, and ending uploads that nobody goes on
 * with. The bucket is listed, by pages; no list of keys is kept anywhere that could grow or lie. */
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/text.h"
#include "storage/relay_s3_parts.h"
#include "storage/s3_xml.h"

enum { DELETE_TRIES = 5, DELETE_PAUSE_MS = 100, MAX_UPLOAD_PAGES = 100 };

typedef struct Page {
    const RelayS3 *s3;
    Buf names; /* of objects and notes, each with a zero byte behind */
    Buf facts; /* S3Fact of each */
    int64_t n_objects, n_notes;
    bool ours; /* the one being read */
    bool more;
    Buf token; /* of the next page */
} Page;

/* 'o', 'n', or 0 for what is none of ours. */
static char kind_of(const RelayS3 *s3, const char *name) {
    size_t n = strlen(name);
    size_t n_prefix = strlen(s3->url.prefix);
    if (n < n_prefix + 4 || n >= S3_NAME_BYTES || memcmp(name, s3->url.prefix, n_prefix) != 0 ||
        memcmp(name + n - 3, "/.", 2) != 0)
        return 0;
    return name[n - 1] == 'o' || name[n - 1] == 'n' ? name[n - 1] : (char)0;
}

static S3Fact *last_fact(Page *page) {
    return (S3Fact *)(void *)(page->facts.data + page->facts.bytes) - 1;
}

/* "2026-11-30T23:59:58.000Z" in milliseconds since 1970; -1 when it is none. */
static int64_t time_of(const char *text) {
    static const char form[] = "dddd-dd-ddTdd:dd:dd";
    int fields[6] = {0};
    int field = 0;
    for (size_t i = 0; i < sizeof form - 1; i++) {
        if (form[i] != 'd' ? text[i] != form[i] : text[i] < '0' || text[i] > '9')
            return -1;
        if (form[i] == 'd')
            fields[field] = fields[field] * 10 + (text[i] - '0');
        else
            field++;
    }
    struct tm time = {.tm_year = fields[0] - 1900,
                      .tm_mon = fields[1] - 1,
                      .tm_mday = fields[2],
                      .tm_hour = fields[3],
                      .tm_min = fields[4],
                      .tm_sec = fields[5]};
    return (int64_t)timegm(&time) * 1000;
}

static int take_listed(void *arg, const char *path, const char *text) {
    Page *page = arg;
    if (strcmp(path, "ListBucketResult/IsTruncated") == 0) {
        page->more = strcmp(text, "true") == 0;
    } else if (strcmp(path, "ListBucketResult/NextContinuationToken") == 0) {
        buf_clear(&page->token);
        return buf_text(&page->token, text);
    } else if (strcmp(path, "ListBucketResult/Contents/Key") == 0) {
        char kind = kind_of(page->s3, text);
        page->n_objects += kind == 'o';
        page->n_notes += kind == 'n';
        page->ours = kind != 0;
        if (!kind)
            return 0;
        TRY(buf_add(&page->facts, &(S3Fact){-1, -1}, sizeof(S3Fact)));
        return buf_add(&page->names, text, strlen(text) + 1);
    } else if (page->ours && strcmp(path, "ListBucketResult/Contents/Size") == 0) {
        return text_parse_i64(text, 0, INT64_MAX, &last_fact(page)->bytes) < 0 ? ERR_CORRUPT : 0;
    } else if (page->ours && strcmp(path, "ListBucketResult/Contents/LastModified") == 0) {
        last_fact(page)->modified_ms = time_of(text);
    }
    return 0;
}

/* Ask for XML and read it. */
static int ask_xml(RelayS3 *s3, S3Request *request, S3XmlVisit visit, void *arg) {
    Buf text;
    buf_init(&text, S3_MAX_ANSWER_BYTES);
    request->text = &text;
    int rc = relay_s3_ask(s3, request);
    if (rc >= 0 && request->answer.status != 200)
        rc = relay_s3_odd(s3, &request->answer);
    if (rc >= 0)
        rc = s3_xml_read((Slice){text.data, text.bytes}, visit, arg);
    request->text = NULL;
    buf_done(&text);
    return rc;
}

static int add_parameter(Buf *query, const char *name, const char *prefix, const char *rest,
                         const char *tail) {
    TRY(buf_printf(query, "%s%s=", query->bytes > 0 ? "&" : "", name));
    TRY(s3_encode(query, prefix, false));
    TRY(s3_encode(query, rest, false));
    return s3_encode(query, tail, false);
}

/* The next page of what lies at and under `under` ("": all). */
static int list(RelayS3 *s3, const char *under, Page *page) {
    Buf query;
    Buf token = page->token; /* of this one */
    int rc = 0;
    buf_init(&query, 0);
    buf_init(&page->token, 0);
    if (token.bytes > 0)
        TRY_DONE(add_parameter(&query, "continuation-token", token.data, "", ""));
    TRY_DONE(add_parameter(&query, "list-type", "2", "", ""));
    TRY_DONE(add_parameter(&query, "prefix", s3->url.prefix, under, under[0] ? "/" : ""));
    S3Request request = {.method = "GET", .query = query.data};
    buf_clear(&page->names);
    buf_clear(&page->facts);
    page->ours = false;
    page->n_objects = page->n_notes = 0;
    page->more = false;
    TRY_DONE(ask_xml(s3, &request, take_listed, page));
    bool same = strcmp(buf_string(&page->token), buf_string(&token)) == 0;
    if (page->more && (page->token.bytes == 0 || same))
        rc = err_set(ERR_CORRUPT, "the S3 store %s lists a part and gives %s token for the rest",
                     s3->url.host, page->token.bytes == 0 ? "no" : "the same");
done:
    buf_done(&token);
    buf_done(&query);
    return rc;
}

static void page_init(Page *page, const RelayS3 *s3) {
    *page = (Page){.s3 = s3};
    buf_init(&page->names, 0);
    buf_init(&page->facts, 0);
    buf_init(&page->token, 0);
}

static void page_done(Page *page) {
    buf_done(&page->names);
    buf_done(&page->facts);
    buf_done(&page->token);
}

/* One whose name is of our making. */
static int show(const RelayS3 *s3, char kind, const char *name, const S3Fact *fact, S3Visit visit,
                void *ctx) {
    char key[RELAY_KEY_BYTES];
    const size_t n_prefix = strlen(s3->url.prefix);
    const size_t n = strlen(name) - n_prefix - 3;
    if (n >= sizeof key)
        return 0;
    memcpy(key, name + n_prefix, n);
    key[n] = '\0';
    return visit(ctx, kind, key, fact);
}

static int show_page(const Page *page, S3Visit visit, void *ctx) {
    const char *name = page->names.data;
    for (size_t i = 0; i < page->facts.bytes / sizeof(S3Fact); i++) {
        S3Fact fact;
        memcpy(&fact, page->facts.data + i * sizeof fact, sizeof fact);
        TRY(show(page->s3, kind_of(page->s3, name), name, &fact, visit, ctx));
        name += strlen(name) + 1;
    }
    return 0;
}

static int list_things(RelayS3 *s3, const char *under, S3Visit visit, void *ctx) {
    Page page;
    int rc = 0;
    page_init(&page, s3);
    do {
        rc = list(s3, under, &page);
        if (rc >= 0)
            rc = show_page(&page, visit, ctx);
    } while (rc >= 0 && page.more);
    page_done(&page);
    return rc;
}

int relay_s3_count(Relay *relay, const char *prefix, int64_t *out_count) {
    RelayS3 *s3 = (RelayS3 *)relay;
    Page page;
    int64_t n = 0;
    int rc = 0;
    page_init(&page, s3);
    do {
        rc = list(s3, prefix, &page);
        n += page.n_objects;
    } while (rc >= 0 && page.more);
    page_done(&page);
    if (rc < 0)
        return err_context(rc, "counting '%s'", prefix);
    *out_count = n;
    return 0;
}

/* ---- dropping ---- */

typedef struct Deletion {
    char code[S3_CODE_BYTES]; /* of the first that was refused; "" none */
} Deletion;

static int take_deleted(void *arg, const char *path, const char *text) {
    Deletion *deletion = arg;
    if (strcmp(path, "DeleteResult/Error/Code") == 0 && !deletion->code[0])
        text_copy(deletion->code, sizeof deletion->code, text[0] ? text : "Error");
    return 0;
}

static int format_names(const Buf *names, Buf *out) {
    TRY(buf_text(out, "<Delete><Quiet>true</Quiet>"));
    for (size_t at = 0; at < names->bytes; at += strlen(names->data + at) + 1) {
        TRY(buf_text(out, "<Object><Key>"));
        TRY(s3_xml_escape(out, names->data + at));
        TRY(buf_text(out, "</Key></Object>"));
    }
    return buf_text(out, "</Delete>");
}

static int delete_once(RelayS3 *s3, Slice body, Deletion *deletion) {
    char md5[S3_MD5_BYTES];
    TRY(s3_md5(body.data, body.bytes, md5));
    S3Request request = {.method = "POST",
                         .query = "delete",
                         .md5 = md5,
                         .parts = &body,
                         .n_parts = 1,
                         .end_body = body.bytes};
    deletion->code[0] = '\0';
    return ask_xml(s3, &request, take_deleted, deletion);
}

static int delete_names(RelayS3 *s3, const Buf *names) {
    Deletion deletion = {0};
    Buf body;
    buf_init(&body, 0);
    int rc = format_names(names, &body);
    for (int i = 0; i < DELETE_TRIES && rc >= 0; i++) {
        rc = delete_once(s3, (Slice){body.data, body.bytes}, &deletion);
        if (rc < 0 || !deletion.code[0] || strcmp(deletion.code, "AccessDenied") == 0)
            break;
        if (!s3_client_pause(s3->client, clock_deadline_ms(DELETE_PAUSE_MS << i), CLOCK_NEVER))
            rc = err_set(ERR_CANCELLED, "interrupted");
    }
    buf_done(&body);
    if (rc >= 0 && deletion.code[0])
        rc = err_set(strcmp(deletion.code, "AccessDenied") == 0 ? ERR_AUTH : ERR_IO,
                     "the S3 store %s refuses to delete: %s", s3->url.host, deletion.code);
    return rc;
}

static int drop_at(RelayS3 *s3, const char *prefix, int64_t *n_gone) {
    Page page;
    int rc = 0;
    page_init(&page, s3);
    do {
        rc = list(s3, prefix, &page);
        if (rc >= 0 && page.names.bytes > 0)
            rc = delete_names(s3, &page.names);
        if (rc >= 0)
            *n_gone += page.n_objects + page.n_notes;
    } while (rc >= 0 && page.more);
    page_done(&page);
    return rc < 0 ? err_context(rc, "dropping '%s'", prefix) : 0;
}

/* One listing a prefix: the store finds what begins with it without looking at anything else. */
int relay_s3_drop(Relay *relay, const char *const *prefixes, int n_prefixes, int64_t *out_dropped) {
    RelayS3 *s3 = (RelayS3 *)relay;
    int64_t n_gone = 0;
    s3->held_key[0] = '\0';
    for (int i = 0; i < n_prefixes; i++)
        TRY(drop_at(s3, prefixes[i], &n_gone));
    *out_dropped = n_gone;
    return 0;
}

/* ---- uploads that nobody goes on with ---- */

typedef struct Upload {
    const char *name, *id;
    int64_t began_ms; /* by the store's clock, since 1970; -1: not told */
} Upload;

typedef int (*UploadVisit)(void *ctx, const Upload *upload);

typedef struct Uploads { /* a page of them */
    const RelayS3 *s3;
    Buf pairs;              /* a name and an id of each, each with a zero byte behind */
    Buf began;              /* int64_t of each */
    Buf name, id;           /* of the one being read */
    int64_t began_ms;       /* of it */
    Buf next_name, next_id; /* where the next page begins */
    bool more;
} Uploads;

static int set_text(Buf *out, const char *text) {
    buf_clear(out);
    return buf_text(out, text);
}

/* One was read: what is not said of the next one must not be taken from it. */
static int keep_upload(Uploads *uploads) {
    int rc = 0;
    if (uploads->id.bytes > 0 && kind_of(uploads->s3, buf_string(&uploads->name)) == 'o') {
        TRY(buf_add(&uploads->pairs, uploads->name.data, uploads->name.bytes + 1));
        TRY(buf_add(&uploads->pairs, uploads->id.data, uploads->id.bytes + 1));
        rc = buf_add(&uploads->began, &uploads->began_ms, sizeof uploads->began_ms);
    }
    buf_clear(&uploads->name);
    buf_clear(&uploads->id);
    uploads->began_ms = -1;
    return rc;
}

static int take_upload(void *arg, const char *path, const char *text) {
    static const char root[] = "ListMultipartUploadsResult/";
    Uploads *uploads = arg;
    if (strncmp(path, root, sizeof root - 1) != 0)
        return 0;
    path += sizeof root - 1;
    if (strcmp(path, "Upload/Key") == 0)
        return set_text(&uploads->name, text);
    if (strcmp(path, "Upload/UploadId") == 0)
        return set_text(&uploads->id, text);
    if (strcmp(path, "NextKeyMarker") == 0)
        return set_text(&uploads->next_name, text);
    if (strcmp(path, "NextUploadIdMarker") == 0)
        return set_text(&uploads->next_id, text);
    if (strcmp(path, "IsTruncated") == 0)
        uploads->more = strcmp(text, "true") == 0;
    if (strcmp(path, "Upload/Initiated") == 0)
        uploads->began_ms = time_of(text);
    return strcmp(path, "Upload") == 0 ? keep_upload(uploads) : 0;
}

static int list_page(RelayS3 *s3, const char *under, Uploads *uploads) {
    Buf query;
    int rc = 0;
    buf_init(&query, 0);
    if (uploads->next_name.bytes > 0)
        TRY_DONE(add_parameter(&query, "key-marker", uploads->next_name.data, "", ""));
    TRY_DONE(add_parameter(&query, "prefix", s3->url.prefix, under, under[0] ? "/" : ""));
    if (uploads->next_name.bytes > 0)
        TRY_DONE(add_parameter(&query, "upload-id-marker", buf_string(&uploads->next_id), "", ""));
    TRY_DONE(add_parameter(&query, "uploads", "", "", ""));
    S3Request request = {.method = "GET", .query = query.data};
    uploads->more = false;
    buf_clear(&uploads->pairs);
    buf_clear(&uploads->began);
    TRY_DONE(ask_xml(s3, &request, take_upload, uploads));
done:
    buf_done(&query);
    return rc;
}

static int visit_page(const Uploads *uploads, UploadVisit visit, void *ctx) {
    Upload upload = {.name = uploads->pairs.data};
    for (size_t i = 0; i < uploads->began.bytes / sizeof upload.began_ms; i++) {
        upload.id = upload.name + strlen(upload.name) + 1;
        memcpy(&upload.began_ms, uploads->began.data + i * sizeof upload.began_ms,
               sizeof upload.began_ms);
        TRY(visit(ctx, &upload));
        upload.name = upload.id + strlen(upload.id) + 1;
    }
    return 0;
}

static int visit_uploads(RelayS3 *s3, const char *under, UploadVisit visit, void *ctx) {
    Uploads uploads = {.s3 = s3, .began_ms = -1};
    Buf *const bufs[] = {&uploads.pairs, &uploads.began,     &uploads.name,
                         &uploads.id,    &uploads.next_name, &uploads.next_id};
    const size_t n_bufs = sizeof bufs / sizeof bufs[0];
    int rc = 0;
    for (size_t i = 0; i < n_bufs; i++)
        buf_init(bufs[i], 0);
    for (int i = 0; i < MAX_UPLOAD_PAGES && rc >= 0 && (i == 0 || uploads.more); i++) {
        rc = list_page(s3, under, &uploads);
        if (rc >= 0)
            rc = visit_page(&uploads, visit, ctx);
    }
    for (size_t i = 0; i < n_bufs; i++)
        buf_done(bufs[i]);
    return rc;
}

typedef struct Ending {
    RelayS3 *s3;
    int64_t before_ms; /* only those that began before; by the store's clock */
    bool any_age, dry_run;
    int64_t n;
} Ending;

static int abort_upload(RelayS3 *s3, const Upload *upload) {
    Buf query;
    buf_init(&query, 0);
    int rc = add_parameter(&query, "uploadId", upload->id, "", "");
    S3Request request = {.method = "DELETE", .name = upload->name, .query = query.data};
    if (rc >= 0)
        rc = relay_s3_ask(s3, &request);
    buf_done(&query);
    return rc;
}

static int end_upload(void *ctx, const Upload *upload) {
    Ending *ending = ctx;
    bool old = upload->began_ms >= 0 && upload->began_ms <= ending->before_ms;
    if (!old && !ending->any_age)
        return 0;
    if (!ending->dry_run)
        TRY(abort_upload(ending->s3, upload));
    ending->n++;
    return 0;
}

int relay_s3_end_uploads(RelayS3 *s3, const char *under, int64_t older_ms, bool dry_run,
                         int64_t *out_n) {
    Ending ending = {.s3 = s3,
                     .before_ms = s3_client_wall_us() / 1000 - older_ms,
                     .any_age = older_ms <= 0,
                     .dry_run = dry_run};
    int rc = visit_uploads(s3, under, end_upload, &ending);
    *out_n = ending.n;
    return rc;
}

typedef struct Showing {
    const RelayS3 *s3;
    S3Visit visit;
    void *ctx;
} Showing;

static int show_upload(void *ctx, const Upload *upload) {
    const Showing *showing = ctx;
    S3Fact fact = {.bytes = -1, .modified_ms = upload->began_ms};
    return show(showing->s3, 'u', upload->name, &fact, showing->visit, showing->ctx);
}

int relay_s3_list(RelayS3 *s3, const char *under, S3Visit visit, void *ctx) {
    Showing showing = {s3, visit, ctx};
    TRY(list_things(s3, under, visit, ctx));
    return visit_uploads(s3, under, show_upload, &showing);
}

/* What a put leaves that was killed on the way: parts that nobody sees and that cost. */
void relay_s3_tidy(Relay *relay, const char *prefix) {
    int64_t n = 0;
    (void)relay_s3_end_uploads((RelayS3 *)relay, prefix, 0, false, &n);
}

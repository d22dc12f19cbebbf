#include "tests/support/s3_fake.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/clock.h"
#include "core/err.h"
#include "core/hash.h"
#include "storage/s3_xml.h"
#include "tests/support/loopback.h"

enum {
    MAX_THREADS = 1024,
    MAX_SKEW_S = 900,
    HEAD_BYTES = 65536,
    MAX_SIGNATURES = 4096,
    TRICKLE_MS = 500
};

typedef struct Thing { /* an object, or a part of an upload */
    char name[600];
    int number; /* of the part */
    char *data;
    size_t bytes;
    char tag[40], stamp[40];
    int64_t made_ns;
    struct Thing *next;
} Thing;

typedef struct Upload {
    char name[600], id[40];
    int64_t made_ns;
    Thing *parts;
    struct Upload *next;
} Upload;

struct S3Fake {
    pthread_t thread, threads[MAX_THREADS];
    int n_threads;
    pthread_mutex_t lock; /* over all below */
    int listen_fd, stop_fd, port;
    S3FakeRule rules[S3_FAKE_MAX_RULES];
    int n_rules, n_used[S3_FAKE_MAX_RULES];
    S3FakeCreate create;
    const char *expired_request, *expired_key; /* NULL: none */
    int64_t ahead_s, stale_ns;
    int page, n_ids, n_skewed, n_twice;
    uint64_t random;
    Buf log; /* "METHOD address\n" */
    uint64_t signatures[MAX_SIGNATURES];
    int64_t signed_s[MAX_SIGNATURES];
    int n_signatures;
    Thing *objects;
    Thing *misses; /* names that were asked for and not there, when stale_ns is set */
    Upload *uploads;
};

typedef struct Call { /* a request and its answer */
    S3Fake *fake;
    int fd;
    char head[HEAD_BYTES];
    char method[8], address[4096], name[600], query[3000];
    char *body;
    size_t bytes;
    int status;
    char tag[40], stamp[40], range[80];
    Buf answer;
} Call;

/* ---- small things ---- */

static const char *header(const Call *call, const char *name, char *out, size_t out_bytes) {
    size_t n = strlen(name);
    out[0] = '\0';
    for (const char *at = strstr(call->head, "\r\n"); at; at = strstr(at, "\r\n")) {
        at += 2;
        if (strncasecmp(at, name, n) == 0 && at[n] == ':') {
            at += n + 1;
            at += strspn(at, " ");
            snprintf(out, out_bytes, "%.*s", (int)strcspn(at, "\r"), at);
        }
    }
    return out;
}

static void unescape(char *text) {
    char *out = text;
    for (const char *at = text; *at; at++) {
        if (*at == '%') {
            char hex[3] = {at[1], at[2], 0};
            *out++ = (char)strtol(hex, NULL, 16);
            at += 2;
        } else {
            *out++ = *at;
        }
    }
    *out = '\0';
}

/* A parameter of the query, decoded; NULL when it is not there. */
static const char *parameter(const Call *call, const char *name, char *out, size_t out_bytes) {
    size_t n = strlen(name);
    for (const char *at = call->query; *at; at += strcspn(at, "&"), at += *at == '&') {
        if (strncmp(at, name, n) == 0 && (at[n] == '=' || at[n] == '&' || at[n] == '\0')) {
            at += n + (at[n] == '=');
            snprintf(out, out_bytes, "%.*s", (int)strcspn(at, "&"), at);
            unescape(out);
            return out;
        }
    }
    return NULL;
}

static Thing **find(Thing **first, const char *name, int number) {
    while (*first && (strcmp((*first)->name, name) != 0 || (*first)->number != number))
        first = &(*first)->next;
    return first;
}

static void remove_thing(Thing **at) {
    Thing *thing = *at;
    if (!thing)
        return;
    *at = thing->next;
    free(thing->data);
    free(thing);
}

static Thing *put_thing(Thing **first, const char *name, int number, const char *data,
                        size_t bytes) {
    Thing *thing = calloc(1, sizeof *thing);
    remove_thing(find(first, name, number));
    snprintf(thing->name, sizeof thing->name, "%s", name);
    thing->number = number;
    thing->data = malloc(bytes + 1);
    if (bytes > 0)
        memcpy(thing->data, data, bytes);
    thing->bytes = bytes;
    thing->made_ns = clock_now_ns();
    snprintf(thing->tag, sizeof thing->tag, "\"%016llx%016llx\"",
             (unsigned long long)hash_bytes(data ? data : "", bytes), (unsigned long long)bytes);
    thing->next = *first;
    *first = thing;
    return thing;
}

/* Everything that was said stands in the message, as a careless store may do it. */
static void refuse(Call *call, int status, const char *code) {
    char authorization[1024];
    char token[1024];
    call->status = status;
    call->tag[0] = call->stamp[0] = call->range[0] = '\0';
    buf_clear(&call->answer);
    buf_printf(&call->answer,
               "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>said %s %s</Message>"
               "<Region>elsewhere-1</Region></Error>",
               code, header(call, "x-amz-security-token", token, sizeof token),
               header(call, "authorization", authorization, sizeof authorization));
}

/* ---- objects ---- */

/* With the time beside it, and its tag as the answer. */
static void keep(Call *call, Thing *thing) {
    header(call, "x-amz-meta-funcpipe-at", thing->stamp, sizeof thing->stamp);
    snprintf(call->tag, sizeof call->tag, "%s", thing->tag);
}

static void put_object(Call *call) {
    S3Fake *fake = call->fake;
    char value[80];
    bool create = header(call, "if-none-match", value, sizeof value)[0] != '\0';
    if (create && fake->create == S3_FAKE_CREATE_501)
        refuse(call, 501, "NotImplemented");
    else if (create && fake->create == S3_FAKE_CREATE_CHECKED &&
             *find(&fake->objects, call->name, 0))
        refuse(call, 412, "PreconditionFailed");
    else
        keep(call, put_thing(&fake->objects, call->name, 0, call->body, call->bytes));
}

/* Does it still look absent, as it was lately? Also remembers that it is. */
static bool is_missed(Call *call, bool there) {
    S3Fake *fake = call->fake;
    const Thing *miss = *find(&fake->misses, call->name, 0);
    if (!miss && !there && fake->stale_ns > 0)
        miss = put_thing(&fake->misses, call->name, 0, NULL, 0);
    return !there || (miss && clock_now_ns() < miss->made_ns + fake->stale_ns);
}

static void get_object(Call *call) {
    char value[80];
    const Thing *thing = *find(&call->fake->objects, call->name, 0);
    if (is_missed(call, thing != NULL)) {
        refuse(call, 404, "NoSuchKey");
        return;
    }
    header(call, "if-match", value, sizeof value);
    if (value[0] && strcmp(value, thing->tag) != 0) {
        refuse(call, 412, "PreconditionFailed");
        return;
    }
    long long first = 0;
    long long last = (long long)thing->bytes - 1;
    if (sscanf(header(call, "range", value, sizeof value), "bytes=%lld-%lld", &first, &last) == 2) {
        if (first >= (long long)thing->bytes) {
            refuse(call, 416, "InvalidRange");
            return;
        }
        last = last < (long long)thing->bytes ? last : (long long)thing->bytes - 1;
        call->status = 206;
        snprintf(call->range, sizeof call->range, "Content-Range: bytes %lld-%lld/%zu\r\n", first,
                 last, thing->bytes);
    }
    snprintf(call->tag, sizeof call->tag, "%s", thing->tag);
    snprintf(call->stamp, sizeof call->stamp, "%s", thing->stamp);
    buf_add(&call->answer, thing->data + first, (size_t)(last - first + 1));
}

/* When that was, as lists tell it. */
static void say_date(Call *call, const char *element, int64_t made_ns) {
    char date[64];
    int64_t ago_ms = (clock_now_ns() - made_ns) / CLOCK_NS_PER_MS;
    int64_t then_ms = clock_wall_ms() + call->fake->ahead_s * 1000 - ago_ms;
    time_t then = (time_t)(then_ms / 1000);
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", gmtime_r(&then, &utc));
    buf_printf(&call->answer, "<%s>%s.%03dZ</%s>", element, date, (int)(then_ms % 1000), element);
}

static int compare_things(const void *a, const void *b) {
    return strcmp((*(Thing *const *)a)->name, (*(Thing *const *)b)->name);
}

static void list_objects(Call *call) {
    S3Fake *fake = call->fake;
    char prefix[600];
    char token[600] = "";
    const Thing *found[8192];
    int n = 0;
    int n_said = 0;
    parameter(call, "prefix", prefix, sizeof prefix);
    parameter(call, "continuation-token", token, sizeof token);
    for (const Thing *thing = fake->objects; thing; thing = thing->next) {
        if (strncmp(thing->name, prefix, strlen(prefix)) == 0 && strcmp(thing->name, token) > 0 &&
            clock_now_ns() >= thing->made_ns + fake->stale_ns)
            found[n++] = thing;
    }
    qsort(found, (size_t)n, sizeof found[0], compare_things);
    buf_text(&call->answer,
             "<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"x\"><Name>b</Name>");
    for (; n_said < n && n_said < fake->page; n_said++) {
        buf_text(&call->answer, "<Contents><Key>");
        s3_xml_escape(&call->answer, found[n_said]->name);
        buf_text(&call->answer, "</Key>");
        say_date(call, "LastModified", found[n_said]->made_ns);
        buf_printf(&call->answer, "<Size>%zu</Size></Contents>", found[n_said]->bytes);
    }
    if (n_said < n) {
        buf_text(&call->answer, "<NextContinuationToken>");
        s3_xml_escape(&call->answer, found[n_said - 1]->name);
        buf_text(&call->answer, "</NextContinuationToken>");
    }
    buf_printf(&call->answer, "<IsTruncated>%s</IsTruncated></ListBucketResult>",
               n_said < n ? "true" : "false");
}

static int take_key(void *arg, const char *path, const char *text) {
    if (strcmp(path, "Delete/Object/Key") == 0)
        remove_thing(find(&((S3Fake *)arg)->objects, text, 0));
    return 0;
}

static void delete_objects(Call *call) {
    char value[80];
    if (!header(call, "content-md5", value, sizeof value)[0] ||
        s3_xml_read((Slice){call->body, call->bytes}, take_key, call->fake) < 0)
        refuse(call, 400, "MalformedXML");
    else
        buf_text(&call->answer, "<DeleteResult/>");
}

/* ---- uploads ---- */

static Upload **find_upload(Call *call) {
    char id[80];
    Upload **at = &call->fake->uploads;
    parameter(call, "uploadId", id, sizeof id);
    while (*at && strcmp((*at)->id, id) != 0)
        at = &(*at)->next;
    if (!*at)
        refuse(call, 404, "NoSuchUpload");
    return at;
}

static void end_upload(Upload **at) {
    Upload *upload = *at;
    *at = upload->next;
    while (upload->parts)
        remove_thing(&upload->parts);
    free(upload);
}

static Upload *add_upload(S3Fake *fake, const char *name) {
    Upload *upload = calloc(1, sizeof *upload);
    snprintf(upload->name, sizeof upload->name, "%s", name);
    snprintf(upload->id, sizeof upload->id, "up+%d/=", ++fake->n_ids);
    upload->made_ns = clock_now_ns();
    upload->next = fake->uploads;
    fake->uploads = upload;
    return upload;
}

static void begin_upload(Call *call) {
    const Upload *upload = add_upload(call->fake, call->name);
    buf_printf(&call->answer,
               "<InitiateMultipartUploadResult><UploadId>%s</UploadId>"
               "</InitiateMultipartUploadResult>",
               upload->id);
}

static void put_part(Call *call) {
    char number[16] = "0";
    Upload *upload = *find_upload(call);
    parameter(call, "partNumber", number, sizeof number);
    if (upload)
        snprintf(call->tag, sizeof call->tag, "%s",
                 put_thing(&upload->parts, "", atoi(number), call->body, call->bytes)->tag);
}

static void join_upload(Call *call) {
    S3Fake *fake = call->fake;
    char value[80];
    Buf whole;
    Upload **at = find_upload(call);
    if (!*at)
        return;
    if (header(call, "if-none-match", value, sizeof value)[0] &&
        fake->create == S3_FAKE_CREATE_501) {
        refuse(call, 501, "NotImplemented");
        return;
    }
    if (value[0] && fake->create == S3_FAKE_CREATE_CHECKED &&
        *find(&fake->objects, call->name, 0)) {
        refuse(call, 412, "PreconditionFailed");
        return;
    }
    buf_init(&whole, 0);
    for (int number = 1; *find(&(*at)->parts, "", number); number++) {
        const Thing *part = *find(&(*at)->parts, "", number);
        if (!memmem(call->body, call->bytes, part->tag + 1, strlen(part->tag) - 2)) {
            refuse(call, 400, "InvalidPart");
            buf_done(&whole);
            return;
        }
        buf_add(&whole, part->data, part->bytes);
    }
    put_thing(&fake->objects, call->name, 0, whole.data, whole.bytes);
    buf_done(&whole);
    end_upload(at);
    buf_text(&call->answer, "\n\n<CompleteMultipartUploadResult><ETag>x</ETag>"
                            "</CompleteMultipartUploadResult>");
}

static void list_uploads(Call *call) {
    char prefix[600];
    parameter(call, "prefix", prefix, sizeof prefix);
    buf_text(&call->answer, "<ListMultipartUploadsResult>");
    for (const Upload *upload = call->fake->uploads; upload; upload = upload->next) {
        if (strncmp(upload->name, prefix, strlen(prefix)) != 0)
            continue;
        buf_printf(&call->answer, "<Upload><Key>%s</Key><UploadId>%s</UploadId>", upload->name,
                   upload->id);
        say_date(call, "Initiated", upload->made_ns);
        buf_text(&call->answer, "</Upload>");
    }
    buf_text(&call->answer, "<IsTruncated>false</IsTruncated></ListMultipartUploadsResult>");
}

static void do_call(Call *call) {
    char value[600];
    bool upload = parameter(call, "uploadId", value, sizeof value) != NULL;
    call->status = 200;
    call->tag[0] = call->stamp[0] = call->range[0] = '\0';
    buf_clear(&call->answer);
    if (strcmp(call->method, "PUT") == 0 && upload)
        put_part(call);
    else if (strcmp(call->method, "PUT") == 0)
        put_object(call);
    else if (strcmp(call->method, "POST") == 0 && upload)
        join_upload(call);
    else if (strcmp(call->method, "POST") == 0 && parameter(call, "uploads", value, sizeof value))
        begin_upload(call);
    else if (strcmp(call->method, "POST") == 0)
        delete_objects(call);
    else if (strcmp(call->method, "DELETE") == 0 && upload) {
        Upload **at = find_upload(call);
        if (*at)
            end_upload(at);
    } else if (parameter(call, "uploads", value, sizeof value))
        list_uploads(call);
    else if (parameter(call, "list-type", value, sizeof value))
        list_objects(call);
    else
        get_object(call);
}

/* ---- connections ---- */

static bool ready(const S3Fake *fake, int fd, short events) {
    struct pollfd fds[2] = {{fd, events, 0}, {fake->stop_fd, POLLIN, 0}};
    while (poll(fds, 2, -1) < 0)
        ;
    return fds[1].revents == 0;
}

static bool take_bytes(Call *call, char *to, size_t most, size_t *n) {
    if (!ready(call->fake, call->fd, POLLIN))
        return false;
    ssize_t got = recv(call->fd, to, most, 0);
    *n += got > 0 ? (size_t)got : 0;
    return got > 0;
}

static bool give_bytes(const Call *call, const char *from, size_t bytes) {
    while (bytes > 0) {
        ssize_t n = ready(call->fake, call->fd, POLLOUT)
                        ? send(call->fd, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
                        : -1;
        if (n < 0)
            return false;
        from += n;
        bytes -= (size_t)n;
    }
    return true;
}

static bool trickle_bytes(const Call *call, const char *from, size_t bytes) {
    for (; bytes > 0; from++, bytes--) {
        struct pollfd stop = {call->fake->stop_fd, POLLIN, 0};
        if (poll(&stop, 1, TRICKLE_MS) != 0 || !give_bytes(call, from, 1))
            return false;
    }
    return true;
}

/* Read a request: false when the client is gone. */
static bool take_call(Call *call) {
    size_t n = 0;
    char *end = NULL;
    char value[64];
    while (!end) {
        if (n + 1 >= sizeof call->head ||
            !take_bytes(call, call->head + n, sizeof call->head - 1 - n, &n))
            return false;
        call->head[n] = '\0';
        end = strstr(call->head, "\r\n\r\n");
    }
    size_t in_head = (size_t)(end + 4 - call->head);
    size_t more = n - in_head;
    char early[HEAD_BYTES];
    memcpy(early, end + 4, more);
    end[2] = '\0';
    if (sscanf(call->head, "%7s %4095s", call->method, call->address) != 2)
        return false;
    call->bytes = (size_t)strtoll(header(call, "content-length", value, sizeof value), NULL, 10);
    free(call->body);
    call->body = malloc(call->bytes + 1);
    memcpy(call->body, early, more);
    while (more < call->bytes) {
        if (!take_bytes(call, call->body + more, call->bytes - more, &more))
            return false;
    }
    const char *path = strchr(call->address + 1, '/'); /* behind the bucket */
    const char *query = strchr(call->address, '?');
    snprintf(call->query, sizeof call->query, "%s", query ? query + 1 : "");
    snprintf(call->name, sizeof call->name, "%.*s", path ? (int)strcspn(path + 1, "?") : 0,
             path ? path + 1 : "");
    unescape(call->name);
    return true;
}

static bool answer(Call *call, const S3FakeRule *rule) {
    char date[64];
    char head[512];
    bool bodyless = strcmp(call->method, "HEAD") == 0;
    time_t now = (time_t)(clock_wall_ms() / 1000 + call->fake->ahead_s);
    struct tm utc;
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &utc));
    if (rule && rule->way == S3_FAKE_OTHER_TAG && call->tag[0])
        call->tag[1] = 'x';
    if (rule && rule->way == S3_FAKE_FAR_STAMP)
        snprintf(call->stamp, sizeof call->stamp, "%lld", (long long)INT64_MAX);
    if (rule && rule->way == S3_FAKE_GARBAGE) {
        buf_clear(&call->answer);
        buf_text(&call->answer, rule->code);
    }
    size_t bytes = call->answer.bytes;
    if (rule && rule->way == S3_FAKE_TRUNCATE)
        bytes /= 2;
    if (rule && rule->way == S3_FAKE_FLIP && bytes > 0)
        call->answer.data[bytes / 2] ^= 1;
    int n = snprintf(
        head, sizeof head, "HTTP/1.1 %d X\r\nDate: %s\r\n%s%s%s%s%s%s%sContent-Length: %zu\r\n\r\n",
        call->status, date, call->tag[0] ? "ETag: " : "", call->tag, call->tag[0] ? "\r\n" : "",
        call->range, call->stamp[0] ? "x-amz-meta-funcpipe-at: " : "", call->stamp,
        call->stamp[0] ? "\r\n" : "", bytes);
    if (rule && rule->way == S3_FAKE_CUT_HEADERS)
        return give_bytes(call, head, (size_t)n / 2) && false;
    if (!give_bytes(call, head, (size_t)n))
        return false;
    if (rule && rule->way == S3_FAKE_CUT_BODY)
        return give_bytes(call, buf_string(&call->answer), bodyless ? 0 : bytes / 2) && false;
    if (rule && rule->way == S3_FAKE_TRICKLE && !bodyless)
        return trickle_bytes(call, buf_string(&call->answer), bytes);
    return bodyless || give_bytes(call, buf_string(&call->answer), bytes);
}

static bool matches(const char *method, const char *address, const char *request) {
    char wanted[16];
    const char *space = strchr(request, ' ');
    snprintf(wanted, sizeof wanted, "%.*s", space ? (int)(space - request) : 15, request);
    return (!wanted[0] || strcmp(method, wanted) == 0) && (!space || strstr(address, space + 1));
}

static const S3FakeRule *rule_for(Call *call) {
    S3Fake *fake = call->fake;
    for (int i = 0; i < fake->n_rules; i++) {
        const S3FakeRule *rule = &fake->rules[i];
        if (!matches(call->method, call->address, rule->request))
            continue;
        int used = fake->n_used[i]++;
        if (used < rule->skip || (rule->n_times > 0 && used >= rule->skip + rule->n_times))
            continue;
        fake->random = fake->random * UINT64_C(6364136223846793005) + 1442695040888963407U;
        if (rule->percent == 0 || (int)((fake->random >> 33) % 100) < rule->percent)
            return rule;
    }
    return NULL;
}

/* Is its date near ours, and its signature of now? */
static bool is_fresh(Call *call) {
    S3Fake *fake = call->fake;
    char value[1024];
    struct tm utc = {0};
    strptime(header(call, "x-amz-date", value, sizeof value), "%Y%m%dT%H%M%SZ", &utc);
    int64_t now_s = clock_wall_ms() / 1000;
    int64_t off_s = (int64_t)timegm(&utc) - now_s - fake->ahead_s;
    uint64_t signature = hash_text(header(call, "authorization", value, sizeof value));
    for (int i = 0; i < fake->n_signatures; i++)
        fake->n_twice += fake->signatures[i] == signature && now_s - fake->signed_s[i] > 1;
    if (fake->n_signatures < MAX_SIGNATURES) {
        fake->signatures[fake->n_signatures] = signature;
        fake->signed_s[fake->n_signatures++] = now_s;
    }
    if (llabs(off_s) <= MAX_SKEW_S)
        return true;
    fake->n_skewed++;
    refuse(call, 403, "RequestTimeTooSkewed");
    return false;
}

static bool is_expired(const Call *call) {
    const S3Fake *fake = call->fake;
    char value[1024];
    return fake->expired_key && matches(call->method, call->address, fake->expired_request) &&
           strstr(header(call, "authorization", value, sizeof value), fake->expired_key);
}

/* Do one request: false when the connection ends. */
static bool serve_call(Call *call) {
    S3Fake *fake = call->fake;
    pthread_mutex_lock(&fake->lock);
    buf_printf(&fake->log, "%s %s\n", call->method, call->address);
    const S3FakeRule *found = rule_for(call);
    S3FakeRule rule = found ? *found : (S3FakeRule){0};
    bool fresh = is_fresh(call);
    bool undone = found && (rule.way == S3_FAKE_CUT_BEFORE || rule.way == S3_FAKE_SILENT);
    if (fresh && found && rule.way == S3_FAKE_REFUSE)
        refuse(call, rule.status, rule.code);
    else if (fresh && is_expired(call))
        refuse(call, 400, "ExpiredToken");
    else if (fresh && !undone)
        do_call(call);
    pthread_mutex_unlock(&fake->lock);
    if (found && rule.way == S3_FAKE_SILENT) {
        char nothing[4096];
        while (ready(fake, call->fd, POLLIN) && recv(call->fd, nothing, sizeof nothing, 0) > 0)
            ;
        return false;
    }
    if (undone || (found && rule.way == S3_FAKE_CUT_AFTER))
        return false;
    return answer(call, found ? &rule : NULL);
}

typedef struct Arrival {
    S3Fake *fake;
    int fd;
} Arrival;

static void *serve_connection(void *arg) {
    Arrival arrival = *(Arrival *)arg;
    int on = 1;
    Call *call = calloc(1, sizeof *call);
    free(arg);
    call->fake = arrival.fake;
    call->fd = arrival.fd;
    buf_init(&call->answer, 0);
    setsockopt(call->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    while (take_call(call) && serve_call(call))
        ;
    close(call->fd);
    buf_done(&call->answer);
    free(call->body);
    free(call);
    return NULL;
}

static void *serve(void *arg) {
    S3Fake *fake = arg;
    while (ready(fake, fake->listen_fd, POLLIN) && fake->n_threads < MAX_THREADS) {
        Arrival *arrival = malloc(sizeof *arrival);
        *arrival = (Arrival){fake, accept4(fake->listen_fd, NULL, NULL, SOCK_CLOEXEC)};
        if (arrival->fd < 0 ||
            pthread_create(&fake->threads[fake->n_threads], NULL, serve_connection, arrival) != 0)
            abort();
        fake->n_threads++;
    }
    return NULL;
}

/* ---- from outside ---- */

int s3_fake_start(S3Fake **out_fake) {
    S3Fake *fake = calloc(1, sizeof *fake);
    if (!fake)
        return err_set(ERR_MEMORY, "a store");
    fake->page = 1000;
    fake->random = 7;
    buf_init(&fake->log, 0);
    pthread_mutex_init(&fake->lock, NULL);
    fake->stop_fd = eventfd(0, EFD_CLOEXEC);
    fake->listen_fd = loopback_listen(0, &fake->port);
    if (fake->listen_fd < 0 || pthread_create(&fake->thread, NULL, serve, fake) != 0)
        return err_set(ERR_IO, "no store");
    *out_fake = fake;
    return 0;
}

void s3_fake_stop(S3Fake *fake) {
    uint64_t one = 1;
    ssize_t n = write(fake->stop_fd, &one, sizeof one);
    (void)n;
    pthread_join(fake->thread, NULL);
    for (int i = 0; i < fake->n_threads; i++)
        pthread_join(fake->threads[i], NULL);
    while (fake->objects)
        remove_thing(&fake->objects);
    while (fake->misses)
        remove_thing(&fake->misses);
    while (fake->uploads)
        end_upload(&fake->uploads);
    close(fake->listen_fd);
    close(fake->stop_fd);
    buf_done(&fake->log);
    pthread_mutex_destroy(&fake->lock);
    free(fake);
}

int s3_fake_port(const S3Fake *fake) {
    return fake->port;
}

void s3_fake_rules(S3Fake *fake, const S3FakeRule *rules) {
    pthread_mutex_lock(&fake->lock);
    fake->n_rules = 0;
    for (; rules && rules->request && fake->n_rules < S3_FAKE_MAX_RULES; rules++) {
        fake->n_used[fake->n_rules] = 0;
        fake->rules[fake->n_rules++] = *rules;
    }
    buf_clear(&fake->log);
    pthread_mutex_unlock(&fake->lock);
}

void s3_fake_create(S3Fake *fake, S3FakeCreate create) {
    pthread_mutex_lock(&fake->lock);
    fake->create = create;
    pthread_mutex_unlock(&fake->lock);
}

void s3_fake_expire(S3Fake *fake, const char *request, const char *key_id) {
    pthread_mutex_lock(&fake->lock);
    fake->expired_request = request;
    fake->expired_key = key_id;
    pthread_mutex_unlock(&fake->lock);
}

void s3_fake_clock(S3Fake *fake, int64_t ahead_s) {
    pthread_mutex_lock(&fake->lock);
    fake->ahead_s = ahead_s;
    pthread_mutex_unlock(&fake->lock);
}

void s3_fake_stale(S3Fake *fake, int64_t ms) {
    pthread_mutex_lock(&fake->lock);
    fake->stale_ns = ms * CLOCK_NS_PER_MS;
    pthread_mutex_unlock(&fake->lock);
}

void s3_fake_fill(S3Fake *fake, int n) {
    char name[32];
    pthread_mutex_lock(&fake->lock);
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "other/%d", i);
        put_thing(&fake->objects, name, 0, "x", 1);
    }
    pthread_mutex_unlock(&fake->lock);
}

void s3_fake_age(S3Fake *fake, int64_t ms) {
    pthread_mutex_lock(&fake->lock);
    for (Thing *thing = fake->objects; thing; thing = thing->next)
        thing->made_ns -= ms * CLOCK_NS_PER_MS;
    for (Upload *upload = fake->uploads; upload; upload = upload->next)
        upload->made_ns -= ms * CLOCK_NS_PER_MS;
    pthread_mutex_unlock(&fake->lock);
}

void s3_fake_begin(S3Fake *fake, const char *name) {
    pthread_mutex_lock(&fake->lock);
    add_upload(fake, name);
    pthread_mutex_unlock(&fake->lock);
}

void s3_fake_page(S3Fake *fake, int n) {
    pthread_mutex_lock(&fake->lock);
    fake->page = n;
    pthread_mutex_unlock(&fake->lock);
}

int s3_fake_count(S3Fake *fake, const char *request) {
    int n = 0;
    pthread_mutex_lock(&fake->lock);
    char *text = strdup(buf_string(&fake->log));
    pthread_mutex_unlock(&fake->lock);
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *space = strchr(line, ' ');
        *space = '\0';
        n += matches(line, space + 1, request);
    }
    free(text);
    return n;
}

static int locked(S3Fake *fake, const int *value) {
    pthread_mutex_lock(&fake->lock);
    int n = *value;
    pthread_mutex_unlock(&fake->lock);
    return n;
}

int s3_fake_skewed(S3Fake *fake) {
    return locked(fake, &fake->n_skewed);
}

int s3_fake_twice(S3Fake *fake) {
    return locked(fake, &fake->n_twice);
}

int s3_fake_objects(S3Fake *fake) {
    int n = 0;
    pthread_mutex_lock(&fake->lock);
    for (const Thing *thing = fake->objects; thing; thing = thing->next)
        n++;
    pthread_mutex_unlock(&fake->lock);
    return n;
}

int s3_fake_uploads(S3Fake *fake) {
    int n = 0;
    pthread_mutex_lock(&fake->lock);
    for (const Upload *upload = fake->uploads; upload; upload = upload->next)
        n++;
    pthread_mutex_unlock(&fake->lock);
    return n;
}

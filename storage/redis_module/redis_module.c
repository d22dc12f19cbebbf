/* The module funcpipe of a Redis server: it sums contributions where they arrive. A sum under way
 * is a value of our own type under the key s:KEY, so that everything the server can do with a key
 * it can do with it: time to live, SCAN and UNLINK, snapshots, append files, replicas. When it is
 * complete it becomes an object as relay_redis_put makes one, and who waits for that is woken.
 *
 * FUNCPIPE.ADD is replicated and appended as it came: the same contributions in the same order make
 * the same sum, and the file need not hold it a second time. */
#include <stdio.h>
#include <string.h>

#include "core/err.h"
#include "core/hash.h"
#include "storage/redis_form.h"
#include "storage/redis_module/redis_api.h"
#include "storage/sum.h"

enum { ENCODING_VERSION = 1, NAME_BYTES = 512, REWRITTEN_TTL_MS = 86400000 };

/* Set once, when the server loads us; it runs commands in one thread. */
static RedisApi api;
static RedisModuleType *sum_type;

static void *allocate(size_t bytes) {
    return api.Alloc(bytes);
}

static void release(void *memory) {
    api.Free(memory);
}

static const SumMemory server_memory = {allocate, release};

/* ---- names ---- */

/* An object's name, PREFIXo:KEY, taken apart. */
typedef struct Place {
    RedisModuleString *object;
    char text[NAME_BYTES];
    size_t at_kind; /* of the 'o' in it */
    const char *key;
} Place;

static int read_place(RedisModuleString *object, Place *place) {
    size_t bytes = 0;
    const char *text = api.StringPtrLen(object, &bytes);
    const char *colon = bytes < NAME_BYTES ? memrchr(text, ':', bytes) : NULL;
    if (!colon || colon == text || colon[-1] != 'o' || memchr(text, '\0', bytes))
        return err_set(ERR_ARGUMENT, "the name of an object is PREFIXo:KEY");
    memcpy(place->text, text, bytes);
    place->text[bytes] = '\0';
    place->object = object;
    place->at_kind = (size_t)(colon - text) - 1;
    place->key = place->text + place->at_kind + 2;
    return 0;
}

static RedisModuleString *state_name(RedisModuleCtx *ctx, const Place *place) {
    char text[NAME_BYTES];
    size_t bytes = strlen(place->text);
    memcpy(text, place->text, bytes);
    text[place->at_kind] = 's';
    return api.CreateString(ctx, text, bytes);
}

/* ---- the object ---- */

static int add_entry(RedisModuleCtx *ctx, const Place *place, const char *field, Slice content,
                     long long ttl_ms) {
    RedisModuleCallReply *reply = api.Call(ctx, "XADD", "sccb", place->object, "1-1", field,
                                           (const char *)content.data, content.bytes);
    bool fine = reply && api.CallReplyType(reply) != REDIS_REPLY_WAS_ERROR;
    if (reply)
        api.FreeCallReply(reply);
    if (!fine)
        return err_set(ERR_IO, "the sum '%s' cannot be put", place->key);
    RedisModuleKey *key = api.OpenKey(ctx, place->object, REDIS_KEY_READ | REDIS_KEY_WRITE);
    api.SetExpire(key, ttl_ms);
    api.CloseKey(key);
    return 0;
}

static void put_piece(RedisModuleCtx *ctx, const Place *place, const char *token, long long index,
                      Slice content, long long ttl_ms) {
    char text[NAME_BYTES + 64];
    int n = snprintf(text, sizeof text, "%.*sc:%s:%s:%lld", (int)place->at_kind, place->text,
                     place->key, token, index);
    RedisModuleString *name = api.CreateString(ctx, text, (size_t)n);
    RedisModuleString *value = api.CreateString(ctx, content.data, content.bytes);
    RedisModuleKey *key = api.OpenKey(ctx, name, REDIS_KEY_READ | REDIS_KEY_WRITE);
    api.StringSet(key, value);
    api.SetExpire(key, ttl_ms);
    api.CloseKey(key);
    api.FreeString(ctx, value);
    api.FreeString(ctx, name);
}

/* The token is of the content, so that a replica and an append file read again make the same. */
static int publish(RedisModuleCtx *ctx, const Place *place, Sum *sum, long long ttl_ms) {
    Slice sealed = sum_prefix(sum, NULL);
    char token[HASH_HEX_BYTES];
    char text[128];
    long long n_pieces = 0;
    if (sealed.bytes <= REDIS_INLINE_BYTES)
        return add_entry(ctx, place, "d", sealed, ttl_ms);
    hash_format(hash_bytes(sealed.data, sealed.bytes), token);
    for (size_t at = 0; at < sealed.bytes; at += REDIS_PIECE_BYTES) {
        size_t left = sealed.bytes - at;
        Slice piece = {(const char *)sealed.data + at,
                       left < REDIS_PIECE_BYTES ? left : REDIS_PIECE_BYTES};
        put_piece(ctx, place, token, n_pieces++, piece, ttl_ms);
    }
    int n = snprintf(text, sizeof text, "%s %lld %d %zu", token, n_pieces, REDIS_PIECE_BYTES,
                     sealed.bytes);
    return add_entry(ctx, place, "m", (Slice){text, (size_t)n}, ttl_ms);
}

/* ---- commands ---- */

static int answer(RedisModuleCtx *ctx, int rc) {
    char text[ERR_NOTE_BYTES + 32];
    if (rc >= 0)
        return api.ReplyWithLongLong(ctx, rc);
    snprintf(text, sizeof text, "%s %s", err_name(rc), err_text());
    return api.ReplyWithError(ctx, text);
}

/* A number from `least` to `most`. */
static int read_number(const RedisModuleString *text, const char *what, long long least,
                       long long most, long long *out_number) {
    if (api.StringToLongLong(text, out_number) == REDIS_OK && *out_number >= least &&
        *out_number <= most)
        return 0;
    return err_set(ERR_ARGUMENT, "the %s is no number from %lld to %lld", what, least, most);
}

static bool is_there(RedisModuleCtx *ctx, RedisModuleString *name) {
    RedisModuleKey *key = api.OpenKey(ctx, name, REDIS_KEY_READ);
    if (!key)
        return false;
    api.CloseKey(key);
    return true;
}

/* The sum in a key: NULL when the key is empty. */
static int sum_in(RedisModuleKey *key, const Place *place, Sum **out_sum) {
    *out_sum = NULL;
    if (api.KeyType(key) == REDIS_KEY_EMPTY)
        return 0;
    if (api.KeyType(key) != REDIS_KEY_MODULE || api.ModuleTypeGetType(key) != sum_type)
        return err_set(ERR_CORRUPT, "the key of the sum '%s' holds something else", place->key);
    *out_sum = api.ModuleTypeGetValue(key);
    return 0;
}

/* Memory is for what lets sums end: a full server still takes what makes none grow. */
static int check_room(RedisModuleCtx *ctx, const Place *place, const Sum *sum, int index) {
    int flags = api.GetContextFlags(ctx);
    if (!(flags & REDIS_IS_FULL) || flags & (REDIS_IS_LOADING | REDIS_IS_REPLICATED) ||
        (sum && !sum_grows(sum, index)))
        return 0;
    return err_set(ERR_FULL, "no memory for contribution %d to the sum '%s' (maxmemory)", index,
                   place->key);
}

/* Into the sum of an open key, made when there is none. */
static int add_into(RedisModuleCtx *ctx, RedisModuleKey *key, const Place *place, int index, int n,
                    Slice blob, Sum **out_sum) {
    Sum *there = NULL;
    TRY(sum_check_place(place->key, index, n, blob.bytes));
    TRY(sum_in(key, place, &there));
    if (!there || n == sum_n(there))
        TRY(check_room(ctx, place, there, index));
    Sum *sum = there;
    if (!there)
        TRY(sum_open(place->key, n, SUM_MAX_HELD_BYTES, &server_memory, &sum));
    int rc = sum_add(sum, index, n, blob.data, blob.bytes);
    if (rc < 0 && !there)
        sum_close(sum);
    if (rc < 0)
        return rc;
    if (!there)
        api.ModuleTypeSetValue(key, sum_type, sum);
    *out_sum = sum;
    return rc;
}

static int add(RedisModuleCtx *ctx, const Place *place, int index, int n, long long ttl_ms,
               Slice blob) {
    Sum *sum = NULL;
    if (is_there(ctx, place->object))
        return 1;
    RedisModuleString *name = state_name(ctx, place);
    RedisModuleKey *key = api.OpenKey(ctx, name, REDIS_KEY_READ | REDIS_KEY_WRITE);
    int rc = add_into(ctx, key, place, index, n, blob, &sum);
    if (rc == 0)
        api.SetExpire(key, ttl_ms);
    if (rc >= 0 && sum_complete(sum)) {
        int published = publish(ctx, place, sum, ttl_ms);
        if (published >= 0)
            api.DeleteKey(key);
        else
            rc = published; /* all are counted: the next one tries again */
    }
    api.CloseKey(key);
    api.FreeString(ctx, name);
    return rc;
}

static int command_add(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    Place place;
    long long index = 0;
    long long n = 0;
    long long ttl_ms = 0;
    Slice blob;
    int rc = 0;
    if (argc != 6)
        return api.WrongArity(ctx);
    TRY_DONE(read_place(argv[1], &place));
    TRY_DONE(read_number(argv[2], "index", 0, SUM_MAX_PARTS - 1, &index));
    TRY_DONE(read_number(argv[3], "number of contributions", 1, SUM_MAX_PARTS, &n));
    TRY_DONE(read_number(argv[4], "time to live", 1, INT64_MAX / 4, &ttl_ms));
    blob.data = api.StringPtrLen(argv[5], &blob.bytes);
    TRY_DONE(add(ctx, &place, (int)index, (int)n, ttl_ms, blob));
    if (rc == 0)
        api.ReplicateVerbatim(ctx);
done:
    return answer(ctx, rc);
}

static int command_resume(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    Place place;
    long long n = 0;
    long long n_added = 0;
    Slice blob;
    Sum *sum = NULL;
    RedisModuleString *name = NULL;
    RedisModuleKey *key = NULL;
    int rc = 0;
    if (argc != 5)
        return api.WrongArity(ctx);
    TRY_DONE(read_place(argv[1], &place));
    TRY_DONE(read_number(argv[2], "number of contributions", 1, SUM_MAX_PARTS, &n));
    TRY_DONE(read_number(argv[3], "number of those added", 1, SUM_MAX_PARTS, &n_added));
    name = state_name(ctx, &place);
    key = api.OpenKey(ctx, name, REDIS_KEY_READ | REDIS_KEY_WRITE);
    TRY_DONE(sum_in(key, &place, &sum));
    if (sum || is_there(ctx, place.object))
        TRY_DONE(err_set(ERR_EXISTS, "the sum '%s' is there", place.key));
    blob.data = api.StringPtrLen(argv[4], &blob.bytes);
    TRY_DONE(sum_resume(place.key, (int)n, (int)n_added, blob.data, blob.bytes, SUM_MAX_HELD_BYTES,
                        &server_memory, &sum));
    api.ModuleTypeSetValue(key, sum_type, sum);
    api.ReplicateVerbatim(ctx);
done:
    if (key)
        api.CloseKey(key);
    if (name)
        api.FreeString(ctx, name);
    return answer(ctx, rc);
}

static int command_about(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    (void)argv;
    return argc == 1 ? api.ReplyWithLongLong(ctx, REDIS_MODULE_VERSION) : api.WrongArity(ctx);
}

/* ---- the type ---- */

/* Key, n, number of those added up and their sum, then index and content of what is held; n ends
 * it. */
static void type_save(RedisModuleIO *io, void *value) {
    Sum *sum = value;
    int n = sum_n(sum);
    int n_added = 0;
    Slice prefix = sum_prefix(sum, &n_added);
    api.SaveStringBuffer(io, sum_key(sum), strlen(sum_key(sum)));
    api.SaveUnsigned(io, (uint64_t)n);
    api.SaveUnsigned(io, (uint64_t)n_added);
    if (n_added > 0)
        api.SaveStringBuffer(io, prefix.data, prefix.bytes);
    for (int i = n_added; i < n; i++) {
        Slice held = sum_held(sum, i);
        if (!held.data)
            continue;
        api.SaveUnsigned(io, (uint64_t)i);
        api.SaveStringBuffer(io, held.data, held.bytes);
    }
    api.SaveUnsigned(io, (uint64_t)n);
}

static int load_begin(RedisModuleIO *io, Sum **out_sum) {
    char text[RELAY_KEY_BYTES] = "";
    size_t bytes = 0;
    char *key = api.LoadStringBuffer(io, &bytes);
    bool fits = key && bytes < sizeof text;
    if (fits)
        memcpy(text, key, bytes);
    if (key)
        api.Free(key);
    uint64_t n = api.LoadUnsigned(io);
    uint64_t n_added = api.LoadUnsigned(io);
    if (!fits || n < 1 || n > SUM_MAX_PARTS || n_added > n)
        return err_set(ERR_CORRUPT, "a sum of %llu contributions", (unsigned long long)n);
    if (n_added == 0)
        return sum_open(text, (int)n, SUM_MAX_HELD_BYTES, &server_memory, out_sum);
    char *prefix = api.LoadStringBuffer(io, &bytes);
    if (!prefix)
        return err_set(ERR_CORRUPT, "a sum without its prefix");
    int rc = sum_resume(text, (int)n, (int)n_added, prefix, bytes, SUM_MAX_HELD_BYTES,
                        &server_memory, out_sum);
    api.Free(prefix);
    return rc;
}

/* NULL: the server says that its file is damaged, and ends. */
static void *type_load(RedisModuleIO *io, int version) {
    Sum *sum = NULL;
    int rc = version == ENCODING_VERSION ? load_begin(io, &sum) : ERR_FORMAT;
    while (rc >= 0) {
        size_t bytes = 0;
        uint64_t index = api.LoadUnsigned(io);
        if (index >= (uint64_t)sum_n(sum))
            break;
        char *blob = api.LoadStringBuffer(io, &bytes);
        rc = blob ? sum_add(sum, (int)index, sum_n(sum), blob, bytes) : ERR_CORRUPT;
        if (blob)
            api.Free(blob);
    }
    if (rc >= 0)
        return sum;
    sum_close(sum);
    return NULL;
}

/* The server writes the key's time to live behind it. */
static void type_rewrite(RedisModuleIO *io, RedisModuleString *key, void *value) {
    Sum *sum = value;
    char name[NAME_BYTES];
    size_t bytes = 0;
    int n_added = 0;
    const char *text = api.StringPtrLen(key, &bytes);
    const char *colon = bytes < NAME_BYTES ? memrchr(text, ':', bytes) : NULL;
    if (!colon || colon == text)
        return; /* renamed by hand: of no use */
    memcpy(name, text, bytes);
    name[colon - text - 1] = 'o';
    long long n = sum_n(sum);
    Slice prefix = sum_prefix(sum, &n_added);
    if (n_added > 0)
        api.EmitAOF(io, "FUNCPIPE.RESUME", "bllb", name, bytes, n, (long long)n_added,
                    (const char *)prefix.data, prefix.bytes);
    for (int i = n_added; i < n; i++) {
        Slice held = sum_held(sum, i);
        if (held.data)
            api.EmitAOF(io, "FUNCPIPE.ADD", "blllb", name, bytes, (long long)i, n,
                        (long long)REWRITTEN_TTL_MS, (const char *)held.data, held.bytes);
    }
}

static size_t type_memory(const void *value) {
    return sum_bytes(value);
}

static void type_free(void *value) {
    sum_close(value);
}

/* ---- loading ---- */

/* Functions and data are of one size here; C has no cast from one to the other. */
static bool find_functions(RedisModuleCtx *ctx) {
    int (*find)(const char *name, void *out_function) = NULL;
    memcpy(&find, ctx, sizeof find);
#define FIND(type, name, args)                                                                     \
    if (find("RedisModule_" #name, &api.name) != REDIS_OK)                                         \
        return false;
    REDIS_API_TABLE(FIND)
#undef FIND
    return true;
}

int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    static RedisTypeMethods methods = {.version = 1,
                                       .rdb_load = type_load,
                                       .rdb_save = type_save,
                                       .aof_rewrite = type_rewrite,
                                       .mem_usage = type_memory,
                                       .free = type_free};
    (void)argv;
    if (argc > 0 || !find_functions(ctx) || api.IsModuleNameBusy("funcpipe"))
        return REDIS_ERR;
    api.SetModuleAttribs(ctx, "funcpipe", REDIS_MODULE_VERSION, REDIS_INTERFACE_VERSION);
    sum_type = api.CreateDataType(ctx, "fp-sum-fp", ENCODING_VERSION, &methods);
    if (!sum_type ||
        api.CreateCommand(ctx, "funcpipe.add", command_add, "write", 1, 1, 1) != REDIS_OK ||
        api.CreateCommand(ctx, "funcpipe.resume", command_resume, "write", 1, 1, 1) != REDIS_OK ||
        api.CreateCommand(ctx, "funcpipe.about", command_about, "fast", 0, 0, 0) != REDIS_OK)
        return REDIS_ERR;
    return REDIS_OK;
}

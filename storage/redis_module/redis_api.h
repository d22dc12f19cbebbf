/* The part of Redis' module interface that the module uses (interface version 1, Redis 5.0 and
 * newer): types of the server that only it knows, and its functions, which it gives by name when it
 * loads us. */
#ifndef FUNCPIPE_STORAGE_REDIS_API_H
#define FUNCPIPE_STORAGE_REDIS_API_H

#include <stddef.h>
#include <stdint.h>

typedef struct RedisModuleCtx RedisModuleCtx; /* its first word: the function that finds the rest */
typedef struct RedisModuleString RedisModuleString;
typedef struct RedisModuleKey RedisModuleKey;
typedef struct RedisModuleCallReply RedisModuleCallReply;
typedef struct RedisModuleIO RedisModuleIO;
typedef struct RedisModuleType RedisModuleType;

enum { REDIS_OK = 0, REDIS_ERR = 1, REDIS_INTERFACE_VERSION = 1 };
enum { REDIS_KEY_READ = 1, REDIS_KEY_WRITE = 2 };   /* to open it for */
enum { REDIS_KEY_EMPTY = 0, REDIS_KEY_MODULE = 6 }; /* types of a key */
enum { REDIS_REPLY_WAS_ERROR = 1 };                 /* types of a reply */
enum { REDIS_IS_FULL = 1 << 10, REDIS_IS_REPLICATED = 1 << 12, REDIS_IS_LOADING = 1 << 13 };

typedef int (*RedisCommand)(RedisModuleCtx *ctx, RedisModuleString **argv, int argc);

typedef struct RedisTypeMethods { /* of a type of values */
    uint64_t version;             /* 1: the members below */
    void *(*rdb_load)(RedisModuleIO *io, int version);
    void (*rdb_save)(RedisModuleIO *io, void *value);
    void (*aof_rewrite)(RedisModuleIO *io, RedisModuleString *key, void *value);
    size_t (*mem_usage)(const void *value);
    void (*digest)(void *digest, void *value);
    void (*free)(void *value);
} RedisTypeMethods;

/* X(type, name in "RedisModule_NAME", arguments) */
#define REDIS_API_TABLE(X)                                                                         \
    X(void *, Alloc, (size_t bytes))                                                               \
    X(void, Free, (void *memory))                                                                  \
    X(int, IsModuleNameBusy, (const char *name))                                                   \
    X(void, SetModuleAttribs,                                                                      \
      (RedisModuleCtx * ctx, const char *name, int version, int interface))                        \
    X(int, CreateCommand,                                                                          \
      (RedisModuleCtx * ctx, const char *name, RedisCommand command, const char *flags, int first, \
       int last, int step))                                                                        \
    X(RedisModuleType *, CreateDataType,                                                           \
      (RedisModuleCtx * ctx, const char *name, int version, void *methods))                        \
    X(int, WrongArity, (RedisModuleCtx * ctx))                                                     \
    X(int, ReplyWithLongLong, (RedisModuleCtx * ctx, long long number))                            \
    X(int, ReplyWithError, (RedisModuleCtx * ctx, const char *text))                               \
    X(int, ReplicateVerbatim, (RedisModuleCtx * ctx))                                              \
    X(int, GetContextFlags, (RedisModuleCtx * ctx))                                                \
    X(const char *, StringPtrLen, (const RedisModuleString *string, size_t *bytes))                \
    X(int, StringToLongLong, (const RedisModuleString *string, long long *number))                 \
    X(RedisModuleString *, CreateString, (RedisModuleCtx * ctx, const char *data, size_t bytes))   \
    X(void, FreeString, (RedisModuleCtx * ctx, RedisModuleString * string))                        \
    X(void *, OpenKey, (RedisModuleCtx * ctx, RedisModuleString * name, int mode))                 \
    X(void, CloseKey, (RedisModuleKey * key))                                                      \
    X(int, KeyType, (RedisModuleKey * key))                                                        \
    X(int, DeleteKey, (RedisModuleKey * key))                                                      \
    X(int, SetExpire, (RedisModuleKey * key, long long ms))                                        \
    X(int, StringSet, (RedisModuleKey * key, RedisModuleString * value))                           \
    X(RedisModuleType *, ModuleTypeGetType, (RedisModuleKey * key))                                \
    X(void *, ModuleTypeGetValue, (RedisModuleKey * key))                                          \
    X(int, ModuleTypeSetValue, (RedisModuleKey * key, RedisModuleType * type, void *value))        \
    X(RedisModuleCallReply *, Call,                                                                \
      (RedisModuleCtx * ctx, const char *command, const char *format, ...))                        \
    X(int, CallReplyType, (RedisModuleCallReply * reply))                                          \
    X(void, FreeCallReply, (RedisModuleCallReply * reply))                                         \
    X(void, SaveUnsigned, (RedisModuleIO * io, uint64_t number))                                   \
    X(uint64_t, LoadUnsigned, (RedisModuleIO * io))                                                \
    X(void, SaveStringBuffer, (RedisModuleIO * io, const char *data, size_t bytes))                \
    X(char *, LoadStringBuffer, (RedisModuleIO * io, size_t * bytes))                              \
    X(void, EmitAOF, (RedisModuleIO * io, const char *command, const char *format, ...))

typedef struct RedisApi {
#define REDIS_API_MEMBER(type, name, args) type(*name) args;
    REDIS_API_TABLE(REDIS_API_MEMBER)
#undef REDIS_API_MEMBER
} RedisApi;

/* What the server looks for in us. */
__attribute__((visibility("default"))) int RedisModule_OnLoad(RedisModuleCtx *ctx,
                                                              RedisModuleString **argv, int argc);

#endif

/* What a worker tells its coordinator, besides its order's results: heartbeat notes while it runs,
 * a result line when it ends, and the contents of the small exchange objects both sides read. */
#ifndef FUNCPIPE_CORE_REPORT_H
#define FUNCPIPE_CORE_REPORT_H

#include "core/buf.h"
#include "core/err.h"
#include "core/json.h"
#include "core/traffic.h"

enum { HEARTBEAT_MAX_BYTES = 1536 }; /* a relay's note has room for it */

/* Heartbeat note, JSON text of at most HEARTBEAT_MAX_BYTES:
 * {"attempt":1,"pid":77,"state":"running","step":12,"busy_us":..,"wait_us":..,"wall_ms":..,
 *  "rss_bytes":..,"waiting":"KEY","traffic":{..}} */
typedef struct Heartbeat {
    int64_t attempt, pid;
    char state[16];  /* "loading" "running" "evaluating" "saving"; the last one: "done" "failed" */
    int64_t step;    /* the step under way */
    int64_t busy_us; /* compute time so far, all steps of this attempt */
    int64_t wait_us; /* time the compute thread waited inside steps */
    int64_t wall_ms; /* clock_wall_ms at sending */
    int64_t rss_bytes;
    char waiting[200]; /* key the fetch thread waits for; "" when none */
    Traffic traffic;   /* of this attempt so far, all its relay handles */
} Heartbeat;

int report_format_heartbeat(const Heartbeat *heartbeat, Buf *out_text);
int report_parse_heartbeat(const char *text, size_t bytes, Heartbeat *out_heartbeat);

/* The worker's last line on stdout: {"result":"done","step":100,"traffic":{..}} or
 * {"result":"error","code":"ERR_TIMEOUT","text":"...","step":57,"traffic":{..}}. */
typedef struct WorkerResult {
    int code;         /* 0 or an error code */
    int64_t step;     /* done: steps finished; error: the step under way */
    bool has_traffic; /* not when it ended before it began */
    Traffic traffic;  /* of this attempt */
    char text[ERR_NOTE_BYTES];
} WorkerResult;

int report_format_result(const WorkerResult *result, Buf *out_text);
int report_parse_result(const char *text, size_t bytes, WorkerResult *out_result);

/* Control note, JSON: {"stop":true,"save":false}. The leader (stage 0, replica 0) reads it and puts
 * its decision into its norms object of the step; all workers read that one, so all agree. */
typedef struct Control {
    bool stop, save;
} Control;
int report_format_control(const Control *control, Buf *out_text);
int report_parse_control(const char *text, size_t bytes, Control *out_control);

/* Saved object (key_saved), put by every worker when its part of a save is on the store, JSON:
 * {"files":[{"name":"model-00001-of-00003.safetensors","bytes":..,"xxh3":"16 hex digits"}]}.
 * Replica 0 of a stage writes two files, the others none. */
enum { SAVED_MAX_FILES = 2, SAVED_NAME_BYTES = 128 };
typedef struct SavedFile {
    char name[SAVED_NAME_BYTES];
    int64_t bytes;
    uint64_t xxh3; /* hash_bytes of the whole file, as it was meant to be written */
} SavedFile;
typedef struct Saved {
    int32_t n_files;
    SavedFile files[SAVED_MAX_FILES];
} Saved;
int report_format_saved(const Saved *saved, Buf *out_text);
int report_parse_saved(const char *text, size_t bytes, Saved *out_saved);

enum {
    DECISION_SAVE = 1, /* save after this step */
    DECISION_STOP = 2  /* save after this step, then end; nothing at the last step */
};

/* Norms object (key_norms), a blob of three tensors. Published by replica 0 of every stage, and by
 * every replica of the loss stage:
 *   F64 (n) squared gradient norms of the parameters the stage owns, ascending id (replica 0; else
 *           n = 0)
 *   F64 (1) loss sum of this replica's micro-batches (loss stage; else 0)
 *   I64 (4) valid targets, correct ones, decision bits (leader; else 0), updates skipped so far
 * Evaluation object (key_eval), loss stage, every replica: F64 (1) loss sum, I64 (2) valid,
 * correct. */

#endif

/* JobConfig: a job file, read strictly and resolved: every default filled in, every path absolute,
 * the model built, the data looked at. JSON, "version" 1; docs/job.schema.json describes each key.
 *
 *     {"version": 1, "name": "digits", "model": {"zoo": "mlp"},
 *      "data": {"train": {"kind": "idx", "inputs": "train-images.gz", "targets": "..."}},
 *      "batch": 128, "micro_batch": 32, "epochs": 3, "update": {"kind": "sgd", "lr": 0.1},
 *      "plan": {"stages": 3}}
 *
 * Errors name file, JSON path and nearest valid name, and the --set that brought the value. What
 * config_to_json writes reads back to an equal JobConfig anywhere on the same machine. */
#ifndef FUNCPIPE_COORDINATOR_CONFIG_H
#define FUNCPIPE_COORDINATOR_CONFIG_H

#include "core/order.h"

enum { CONFIG_VERSION = 1, CONFIG_MAX_BYTES = 16 << 20, CONFIG_MAX_REPLICAS = 4096 };

/* What the job asks of its plan; plan_make turns it into a PlanSpec. */
typedef struct PlanRequest {
    int32_t n_stages;
    int32_t *ends;     /* (n_stages) as in PlanSpec; NULL: balance by measured time */
    int32_t *replicas; /* (n_stages) */
    bool *recompute;   /* (n_stages) */
    char schedule[32];
    int32_t warmup;  /* 0: the schedule's own */
    int32_t hoist;   /* "prefetch": micro-batches that fetches run ahead */
    int32_t threads; /* per worker */
    char device[16], isa[32];
    ReduceSpec reduce; /* latency_us 0: measured where it decides; store_adds: the relay says */
} PlanRequest;

typedef struct JobConfig {
    Order order; /* the template of all orders: everything but plan, programs, place and slice */
    PlanRequest plan;
    int64_t save_every_ms;       /* 0: not by time */
    int64_t keep_last;           /* checkpoints to keep; 0: all */
    bool save_every_given;       /* false: plan_make chooses order.save_every */
    char relay[ORDER_URL_BYTES]; /* URL, or "auto": a fresh directory in memory */
    int64_t start_timeout_ms;    /* start of a worker until its first heartbeat */
    int64_t silence_ms;          /* least silence that counts as death */
    int64_t stop_timeout_ms;     /* a clean stop may take this long */
    int64_t max_workers;         /* platform.workers */
    int64_t max_restarts;        /* of one worker that keeps dying at one step */
    int64_t relay_limit_bytes;   /* limits.relay: what the relay may hold between saves */
} JobConfig;

typedef struct ConfigSet { /* one --set PATH=TEXT */
    const char *path, *text;
} ConfigSet;

enum { CONFIG_WITHOUT_DATA = 1 }; /* do not open data files: sample counts stay as written */

/* Read the job file `path`, apply the sets in order (the text "null" removes a key) and resolve. */
int config_load(const char *path, const ConfigSet *sets, int n_sets, unsigned flags,
                JobConfig *out_config);
/* The same from text; relative paths are relative to `folder`. */
int config_parse(const char *what, const char *text, size_t bytes, const char *folder,
                 const ConfigSet *sets, int n_sets, unsigned flags, JobConfig *out_config);
void config_done(JobConfig *config);
/* The resolved job file. NULL when out of memory. */
cJSON *config_to_json(const JobConfig *config);

/* The model of a job file, or of a file that holds only a model; for inspection. The whole job is
 * checked, but for its data files, which are not opened. */
int config_load_model(const char *path, const ConfigSet *sets, int n_sets, Model *out_model);

int32_t config_workers(const PlanRequest *plan); /* sum of the replicas */

#endif

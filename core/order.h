/* The Stage order: all that a worker is told, as JSON. It holds the model, the plan, what the data
 * is, how to update, where relay and store are, and which slice of the work is its own. It is the
 * contract between coordinator and worker: the worker knows nothing else, and everything it writes
 * is a pure function of it and of the step.
 *
 * Steps count from 0. `first_step` is the first to run; the state before it comes from checkpoint
 * `resume_path` (a checkpoint directory; "" = initial weights, then first_step is 0). A checkpoint
 * named STEP holds the state after STEP updates, so training goes on with step STEP. */
#ifndef FUNCPIPE_CORE_ORDER_H
#define FUNCPIPE_CORE_ORDER_H

#include "core/model.h"
#include "core/reduction.h"

enum { ORDER_PATH_BYTES = 1024, ORDER_URL_BYTES = 1024, ORDER_MAX_CHANNELS = 8 };
#define ORDER_MAX_BYTES ((size_t)64 << 20)

typedef enum DataKind { DATA_IDX, DATA_NPY, DATA_TOKENS, DATA_GENERATED } DataKind;

/* What tells a data file from another one in its place, and from itself with other content. All
 * workers of a job, whenever they start, must find the files that the coordinator found when the
 * job began. (No hash of the content: reading all of a large file takes longer than many a job.) */
typedef struct DataMark {
    uint64_t bytes; /* 0: none, any file will do */
    uint64_t modified_ns, inode;
} DataMark;

enum { DATA_MAX_FILES = 2 };

typedef struct DataSpec {
    DataKind kind;
    DataMark marks[DATA_MAX_FILES];     /* of input_path, target_path; orders only */
    char input_path[ORDER_PATH_BYTES];  /* idx, npy: inputs; tokens: the token file */
    char target_path[ORDER_PATH_BYTES]; /* idx, npy: targets */
    int64_t samples;    /* use only the first n; 0: all. generated: how many there are */
    Shape shape;        /* the model's input shape: what a sample must give (idx u8 (28,28) also as
                           (1,28,28) or (784)) */
    int32_t n_channels; /* entries of mean and std; 0: u8 input is scaled by 1/255 only */
    float mean[ORDER_MAX_CHANNELS], std[ORDER_MAX_CHANNELS]; /* (x/255 - mean) / std for u8;
                         (x - mean) / std for float input */
    int64_t context;   /* tokens: sample i = tokens[i*context, (i+1)*context), targets one later */
    DType token_dtype; /* tokens: U8, U16, I32, U32 (little-endian) */
    int64_t vocab;     /* tokens, generated tokens: valid input ids [0, vocab) */
    int64_t classes;   /* valid targets [0, classes) */
    bool has_ignore;
    int32_t ignore_index;
    uint64_t seed;         /* generated */
    bool generated_tokens; /* generated: I32 ids and next-token targets instead of F32 clusters */
} DataSpec;

typedef enum UpdateKind { UPDATE_SGD, UPDATE_ADAMW } UpdateKind;
typedef enum LrKind { LR_CONSTANT, LR_COSINE, LR_LINEAR, LR_STEP } LrKind;

typedef struct UpdateSpec {
    UpdateKind kind;
    double lr; /* base */
    LrKind schedule;
    int64_t warmup_steps; /* linear from lr/warmup_steps up */
    double final_lr;      /* cosine, linear: reached at the last step */
    int64_t decay_every;  /* step: multiply by decay_factor every n steps */
    double decay_factor;
    double momentum;
    bool nesterov;
    double weight_decay; /* not on parameters with no_decay */
    double beta1, beta2, eps;
    double clip_norm;       /* 0: no clipping */
    bool stop_on_nonfinite; /* policy: stop (ERR_DIVERGED) instead of skipping the step */
} UpdateSpec;

typedef struct PlanSpec {
    int32_t n_stages;
    int32_t *ends;      /* (n_stages) stage_check_cut */
    int32_t *replicas;  /* (n_stages) */
    bool *recompute;    /* (n_stages) */
    char schedule[32];  /* how the programs were made; only people read it */
    int32_t warmup;     /* warm-up depth given to the generator; 0: its default */
    int32_t micro_rows; /* rows of a full micro-batch */
    int32_t n_micro;    /* ceil(batch / micro_rows) */
    int32_t threads;    /* per worker */
    char device[16];    /* "cpu" */
    char isa[32];       /* pinned; "auto" only before the plan is made */
    ReduceSpec reduce;
} PlanSpec;

typedef struct Order {
    char job[64];
    int64_t generation, attempt;
    int32_t stage, replica;
    Model model;
    PlanSpec plan;
    char *program;        /* text of this worker's lowered training program (core/program.h) */
    char *eval_program;   /* text of its forward-only program */
    DataSpec train, eval; /* eval.samples: how many to evaluate; eval unused when !has_eval */
    bool has_eval;
    int64_t train_samples, eval_samples; /* resolved counts */
    int64_t batch;                       /* samples in a full global batch */
    bool shuffle;
    uint64_t seed;
    UpdateSpec update;
    int64_t n_steps;              /* of the whole job: learning rate, last step */
    int64_t first_step, end_step; /* this slice, [first, end) */
    int64_t save_every;           /* save after every n steps; 0: only at the end and when told */
    int64_t eval_every;           /* evaluate after every n steps; 0: only at the end if has_eval */
    bool eval_only; /* no training: evaluate the loaded weights once (as step first_step) */
    char relay_url[ORDER_URL_BYTES];
    char store_path[ORDER_PATH_BYTES]; /* directory that holds STEP/ checkpoints */
    char resume_path[ORDER_PATH_BYTES];
    char trace_path[ORDER_PATH_BYTES]; /* "" = no trace */
    int64_t wait_timeout_ms;           /* for one object, while those waited for stand still */
    int64_t heartbeat_ms;
} Order;

void order_init(Order *order); /* all zero, defaults where 0 is none */
void order_done(Order *order);
int order_copy(const Order *order, Order *out_order);
/* Strict both ways: parse(format(o)) equals o; unknown keys are errors. */
int order_parse(const char *what, const char *text, size_t bytes, Order *out_order);
int order_format(const Order *order, Buf *out_text);
/* Parts, for the job file and the resolved job. */
int order_parse_update(const cJSON *value, const char *path, UpdateSpec *out_update);
cJSON *order_update_to_json(const UpdateSpec *update);
int order_parse_data(const cJSON *value, const char *path, DataSpec *out_data);
cJSON *order_data_to_json(const DataSpec *data);
int order_parse_plan(const cJSON *value, const char *path, PlanSpec *out_plan);
cJSON *order_plan_to_json(const PlanSpec *plan);
void order_plan_done(PlanSpec *plan);

/* Learning rate of `step`: a pure function. warm-up: lr*(step+1)/warmup_steps; then cosine:
 * final + (lr-final)/2 (1+cos(pi t)), linear: lr + (final-lr) t, with
 * t = (step-warmup)/(n_steps-1-warmup) in [0,1]; step: lr*factor^floor((step-warmup)/every). */
double order_lr(const UpdateSpec *update, int64_t step, int64_t n_steps);

/* Geometry of the data: an epoch is ceil(samples/batch) steps, its last batch may be short. */
int64_t order_steps_per_epoch(int64_t samples, int64_t batch);
/* Samples in the global batch of `step`. */
int64_t order_batch_rows(int64_t samples, int64_t batch, int64_t step);
/* Micro-batch m of a batch of `rows` is rows [first, first + returned count); the count may be 0.
 */
int32_t order_micro_rows(int64_t rows, int32_t micro_rows, int32_t micro, int64_t *out_first);
/* Data-set index of row `row` of step `step`'s batch (rng_permute over the epoch, or in order). */
int64_t order_sample(uint64_t seed, bool shuffle, int64_t samples, int64_t batch, int64_t step,
                     int64_t row);
/* The replica of a stage with `replicas` replicas that runs micro-batch m. */
int32_t order_micro_owner(int32_t replicas, int32_t micro);
/* After step `step` (0-based, so after step+1 updates): is there a save or an evaluation due? */
bool order_save_due(const Order *order, int64_t step);
bool order_eval_due(const Order *order, int64_t step);

#endif

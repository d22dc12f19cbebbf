/* What layers_plan.c (where things lie), layers.c (running) and layers_blob.c (what crosses
 * stages) share. */
#ifndef FUNCPIPE_WORKER_LAYERS_INTERNAL_H
#define FUNCPIPE_WORKER_LAYERS_INTERNAL_H

#include "worker/layers.h"

typedef enum HomeKind {
    HOME_NONE,
    HOME_SHARED,  /* slab area */
    HOME_SLOT,    /* device memory of the slot */
    HOME_HOST,    /* the slot's host memory: loaded data */
    HOME_IN_ACT,  /* tensor of an incoming activation blob */
    HOME_OUT_ACT, /* tensor of an outgoing activation blob */
    HOME_IN_GRAD, /* tensor of the gradient blob that goes back over an in-port */
    HOME_OUT_GRAD /* tensor of the gradient blob received over an out-port */
} HomeKind;

typedef struct Home {
    HomeKind kind;
    int32_t port, item; /* the four blob kinds */
    int area;           /* shared */
    size_t offset;      /* slot, host: from the slot's start */
} Home;

/* The blob of one edge for one row count. */
typedef struct PortForm {
    BlobTensor *tensors;
    size_t *offsets;
    int64_t bytes;
    int32_t n;
} PortForm;

typedef struct Port {
    const Edge *edge;
    PortForm *acts, *grads;         /* per row variant; variant 0 is zero rows */
    size_t act_offset, grad_offset; /* in the slot's staging memory */
    size_t act_bytes, grad_bytes;   /* capacity */
    Home *items;                    /* in-ports: where each gradient item is made */
} Port;

/* Where layer input i's gradient goes. */
typedef struct GradTarget {
    bool wanted;
    bool first;   /* write; else the op writes to scratch and it is added */
    int32_t same; /* the layer's first input with the same value: theirs are added to one another
                     before anything else, as the layer is one consumer */
    Home home;
    size_t scratch; /* offset in the adding scratch */
    int32_t value;
} GradTarget;

typedef struct LocalLayer {
    Op *op;
    const OpNeeds *needs;
    const Layer *layer;
    Home saved;
    GradTarget dx[LAYER_MAX_INPUTS];
    bool any_dx; /* backward input has something to do */
    bool any_dw;
} LocalLayer;

/* A gradient contribution of a later stage to a value made here. */
typedef struct RemoteGrad {
    int32_t port, item; /* out-port and tensor */
    int32_t value;
    bool first;
} RemoteGrad;

struct Layers {
    LayersSetup setup;
    const Model *model;
    int32_t n_local;
    LocalLayer *local;
    int32_t n_variants;
    int32_t variants[OP_MAX_ROW_VARIANTS + 1]; /* row counts; [0] = 0 */
    int32_t max_rows;
    Home *values;     /* per model value: where its tensor lies in this stage */
    Home *grads;      /* per model value made here: where its gradient lies */
    Home input_plain; /* the loaded input before it is brought into device layout */
    Home target_plain;
    int32_t n_in, n_out;
    Port *in, *out;
    RemoteGrad *remote; /* in adding order */
    int32_t n_remote;
    size_t slot_bytes, staging_bytes;
    int area_slots, area_scratch, area_adding;
    size_t scratch_bytes, adding_bytes;
    char *base;    /* device slab */
    char *slots;   /* in the slab */
    char *staging; /* host memory, n_slots * staging_bytes */
    void *scratch, *adding;
    size_t *area_offsets; /* shared homes: offsets copied from the slab after placing */
    int32_t n_areas;
    Params *params;
    ParamUse **uses;     /* (n_local * LAYER_MAX_PARAMS) or NULL */
    ParamState **states; /* the same */
    int64_t step;
    double loss_scale;
    int32_t n_forward, n_backward; /* micro-batches done in this step */
    Event **loaded;                /* (n_slots) behind the copies of the slot's loaded data */
    LossSums loss;
    LossSums scrap;                    /* what a second forward adds up */
    int64_t *forward_ns, *backward_ns; /* layers_time */
    int (*backward_done)(void *ctx, int32_t layer, Stream *stream); /* layers_on_backward */
    void *backward_ctx;
};

/* Device address of a home for the micro-batch in `slot`. */
void *layers_at(const Layers *layers, const Home *home, int32_t slot, int32_t rows);
int32_t layers_variant(const Layers *layers, int32_t rows); /* index, or an error */
void *layers_staging(const Layers *layers, int32_t slot, size_t offset);

#endif

#include "core/stage.h"

#include <stdlib.h>
#include <string.h>

#include "core/err.h"

int32_t stage_of_layer(const int32_t *ends, int32_t n_stages, int32_t layer) {
    int32_t first = 0;
    int32_t end = n_stages - 1;
    while (first < end) {
        int32_t middle = first + (end - first) / 2;
        if (layer < ends[middle])
            end = middle;
        else
            first = middle + 1;
    }
    return first;
}

void stage_norm_owners(const Model *model, const int32_t *ends, int32_t n_stages,
                       int32_t *out_owners) {
    for (int32_t p = 0; p < model->n_params; p++)
        out_owners[p] = -1;
    for (int32_t l = model->n_layers - 1; l >= 0; l--) {
        for (int32_t i = 0; i < model->layers[l].n_params; i++) {
            int32_t p = model->layers[l].params[i];
            if (model->params[p].role == PARAM_WEIGHT)
                out_owners[p] = stage_of_layer(ends, n_stages, l);
        }
    }
}

int stage_check_cut(const Model *model, const int32_t *ends, int32_t n_stages) {
    if (n_stages < 1 || n_stages > STAGE_MAX)
        return err_set(ERR_LIMIT, "%d stages, expected 1 to %d", n_stages, STAGE_MAX);
    if (n_stages > model->n_layers)
        return err_set(ERR_INFEASIBLE, "%d stages, but model '%s' has %d layers", n_stages,
                       model->name, model->n_layers);
    int32_t first = 0;
    for (int32_t i = 0; i < n_stages; i++) {
        if (ends[i] <= first || ends[i] > model->n_layers)
            return err_set(ERR_ARGUMENT,
                           "stage %d ends at layer %d, expected more than %d and at most %d", i,
                           ends[i], first, model->n_layers);
        first = ends[i];
    }
    if (first != model->n_layers)
        return err_set(ERR_ARGUMENT, "the last stage ends at layer %d, expected %d", first,
                       model->n_layers);
    return 0;
}

/* A layer of one stage reads a value of another: `stage` is the one at the other end. */
typedef struct Crossing {
    int32_t stage, value, layer;
} Crossing;

typedef struct Crossings {
    Crossing *items;
    int32_t n;
} Crossings;

/* Ascending stage, ascending value, descending layer. */
static int compare_crossings(const void *a, const void *b) {
    const Crossing *x = a;
    const Crossing *y = b;
    if (x->stage != y->stage)
        return x->stage < y->stage ? -1 : 1;
    if (x->value != y->value)
        return x->value < y->value ? -1 : 1;
    if (x->layer != y->layer)
        return x->layer > y->layer ? -1 : 1;
    return 0;
}

static void cross(Crossings *crossings, int32_t stage, int32_t value, int32_t layer) {
    if (crossings->n > 0) { /* a layer that reads a value twice is one consumer */
        const Crossing *last = &crossings->items[crossings->n - 1];
        if (last->stage == stage && last->value == value && last->layer == layer)
            return;
    }
    crossings->items[crossings->n++] = (Crossing){stage, value, layer};
}

/* What crosses into the stage and out of it, sorted; `in` and `out` have room for all reads. */
static void find_crossings(const Stage *stage, const Model *model, const int32_t *ends,
                           Crossings *in, Crossings *out) {
    for (int32_t l = stage->first_layer; l < model->n_layers; l++) {
        const Layer *layer = &model->layers[l];
        for (int32_t i = 0; i < layer->n_inputs; i++) {
            int32_t value = layer->inputs[i];
            int32_t producer = model->values[value].producer;
            if (producer < 0)
                continue; /* data: loaded, never sent */
            if (l < stage->end_layer) {
                if (producer < stage->first_layer)
                    cross(in, stage_of_layer(ends, stage->n_stages, producer), value, l);
            } else if (producer >= stage->first_layer && producer < stage->end_layer) {
                cross(out, stage_of_layer(ends, stage->n_stages, l), value, l);
            }
        }
    }
    qsort(in->items, (size_t)in->n, sizeof *in->items, compare_crossings);
    qsort(out->items, (size_t)out->n, sizeof *out->items, compare_crossings);
}

/* The gradient items of one value, whose n consumers in the edge's consuming stage are `items`. One
 * item carries the sum when these consumers are the model's last ones (a prefix of the summing
 * order) or when there is only one; otherwise each has its own. */
static void add_grads(Edge *edge, const Crossing *items, int32_t n, int32_t last_consumer) {
    bool sum = n == 1 || items[0].layer == last_consumer;
    for (int32_t i = 0; i < (sum ? 1 : n); i++)
        edge->grads[edge->n_grads++] = (EdgeGrad){items[i].value, sum ? -1 : items[i].layer};
}

/* One edge from the n crossings of one stage pair. */
static int init_edge(Edge *edge, const Model *model, const Crossing *items, int32_t n,
                     const int32_t *last_consumers) {
    edge->values = malloc((size_t)n * sizeof *edge->values);
    edge->grads = malloc((size_t)n * sizeof *edge->grads);
    if (!edge->values || !edge->grads)
        return err_set(ERR_MEMORY, "no memory for an edge of %d values", n);
    for (int32_t i = 0; i < n;) {
        int32_t value = items[i].value;
        int32_t end = i + 1;
        while (end < n && items[end].value == value)
            end++;
        edge->values[edge->n_values++] = value;
        if (model->values[value].needs_grad)
            add_grads(edge, &items[i], end - i, last_consumers[value]);
        i = end;
    }
    return 0;
}

static int32_t end_of_pair(const Crossings *crossings, int32_t first) {
    int32_t end = first + 1;
    while (end < crossings->n && crossings->items[end].stage == crossings->items[first].stage)
        end++;
    return end;
}

static int init_edges(const Stage *stage, const Model *model, const Crossings *crossings,
                      const int32_t *last_consumers, Edge **edges, int32_t *n_edges) {
    int32_t n = 0;
    for (int32_t i = 0; i < crossings->n; i = end_of_pair(crossings, i))
        n++;
    if (n == 0)
        return 0;
    *edges = calloc((size_t)n, sizeof **edges);
    if (!*edges)
        return err_set(ERR_MEMORY, "no memory for %d edges", n);
    for (int32_t i = 0; i < crossings->n;) {
        Edge *edge = &(*edges)[(*n_edges)++];
        int32_t end = end_of_pair(crossings, i);
        int32_t other = crossings->items[i].stage;
        edge->producer = other < stage->index ? other : stage->index;
        edge->consumer = other < stage->index ? stage->index : other;
        TRY(init_edge(edge, model, &crossings->items[i], end - i, last_consumers));
        i = end;
    }
    return 0;
}

static int init_all_edges(Stage *stage, const Model *model, const int32_t *ends) {
    size_t max_reads = (size_t)model->n_layers * LAYER_MAX_INPUTS;
    Crossings in = {malloc(max_reads * sizeof(Crossing)), 0};
    Crossings out = {malloc(max_reads * sizeof(Crossing)), 0};
    int32_t *last_consumers = malloc((size_t)model->n_values * sizeof *last_consumers);
    int rc = 0;
    if (!in.items || !out.items || !last_consumers) {
        rc = err_set(ERR_MEMORY, "no memory for a stage of %d layers", model->n_layers);
        goto done;
    }
    for (int32_t l = 0; l < model->n_layers; l++)
        for (int32_t i = 0; i < model->layers[l].n_inputs; i++)
            last_consumers[model->layers[l].inputs[i]] = l;
    find_crossings(stage, model, ends, &in, &out);
    TRY_DONE(init_edges(stage, model, &in, last_consumers, &stage->in, &stage->n_in));
    TRY_DONE(init_edges(stage, model, &out, last_consumers, &stage->out, &stage->n_out));
done:
    free(in.items);
    free(out.items);
    free(last_consumers);
    return rc;
}

/* Per parameter the uses over the whole model: first and last layer, and whether here. */
typedef struct Use {
    int32_t first_layer, last_layer;
    bool here;
} Use;

static void find_uses(const Stage *stage, const Model *model, Use *uses) {
    for (int32_t p = 0; p < model->n_params; p++)
        uses[p] = (Use){-1, -1, false};
    for (int32_t l = 0; l < model->n_layers; l++)
        for (int32_t i = 0; i < model->layers[l].n_params; i++) {
            Use *use = &uses[model->layers[l].params[i]];
            if (use->first_layer < 0)
                use->first_layer = l;
            use->last_layer = l;
            use->here |= l >= stage->first_layer && l < stage->end_layer;
        }
}

static int init_params(Stage *stage, const Model *model) {
    if (model->n_params == 0)
        return 0;
    Use *uses = calloc((size_t)model->n_params, sizeof *uses);
    stage->params = malloc((size_t)model->n_params * sizeof *stage->params);
    if (!uses || !stage->params) {
        free(uses);
        return err_set(ERR_MEMORY, "no memory for %d parameters", model->n_params);
    }
    find_uses(stage, model, uses);
    for (int32_t p = 0; p < model->n_params; p++) {
        if (!uses[p].here)
            continue;
        bool before = uses[p].first_layer < stage->first_layer;
        bool after = uses[p].last_layer >= stage->end_layer;
        stage->params[stage->n_params++] =
            (StageParam){.param = p, .tied_across = before || after, .owner = !before};
    }
    free(uses);
    return 0;
}

int stage_init(Stage *stage, const Model *model, const int32_t *ends, int32_t n_stages,
               int32_t index) {
    memset(stage, 0, sizeof *stage);
    TRY(stage_check_cut(model, ends, n_stages));
    if (index < 0 || index >= n_stages)
        return err_set(ERR_ARGUMENT, "stage %d, expected one below %d", index, n_stages);
    stage->index = index;
    stage->n_stages = n_stages;
    stage->first_layer = index > 0 ? ends[index - 1] : 0;
    stage->end_layer = ends[index];
    for (int32_t l = stage->first_layer; l < stage->end_layer; l++) {
        const Layer *layer = &model->layers[l];
        for (int32_t i = 0; i < layer->n_inputs; i++) {
            stage->reads_input |= layer->inputs[i] == MODEL_VALUE_INPUT;
            stage->reads_target |= layer->inputs[i] == MODEL_VALUE_TARGET;
        }
        stage->has_loss |= layer->kind == LAYER_CROSS_ENTROPY;
    }
    int rc = init_params(stage, model);
    if (rc >= 0)
        rc = init_all_edges(stage, model, ends);
    if (rc < 0)
        stage_done(stage);
    return rc;
}

static void edges_done(Edge *edges, int32_t n_edges) {
    for (int32_t i = 0; i < n_edges; i++) {
        free(edges[i].values);
        free(edges[i].grads);
    }
    free(edges);
}

void stage_done(Stage *stage) {
    if (!stage)
        return;
    edges_done(stage->in, stage->n_in);
    edges_done(stage->out, stage->n_out);
    free(stage->params);
    memset(stage, 0, sizeof *stage);
}

/* Bytes of a value over `rows`; INT64_MAX beyond what fits. */
static int64_t value_bytes(const Model *model, int32_t value, int64_t rows) {
    const Value *v = &model->values[value];
    int64_t bytes = shape_elements(&v->shape) * (int64_t)dtype_bytes(v->dtype);
    return __builtin_mul_overflow(bytes, rows, &bytes) ? INT64_MAX : bytes;
}

int64_t stage_edge_bytes(const Model *model, const Edge *edge, int64_t rows, bool back) {
    int64_t sum = 0;
    for (int32_t i = 0; i < edge->n_values; i++)
        if (__builtin_add_overflow(sum, value_bytes(model, edge->values[i], rows), &sum))
            return INT64_MAX;
    for (int32_t i = 0; back && i < edge->n_grads; i++)
        if (__builtin_add_overflow(sum, value_bytes(model, edge->grads[i].value, rows), &sum))
            return INT64_MAX;
    return sum;
}

/* Stages: cuts at any place of any model. What must hold is worked out here from the layers alone
 * and compared with what stage_init gives. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/stage.h"

enum { MAX_STAGES = 8, MAX_LAYERS = 48 };

static uint32_t random_state = 1;

static int32_t pick(int32_t n) /* xorshift32 */
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return (int32_t)(random_state % (uint32_t)n);
}

static int32_t add_layer(Model *model, LayerKind kind, int32_t a, int32_t b, const char *tie) {
    char name[32];
    snprintf(name, sizeof name, "l%d", model->n_layers);
    LayerAttr attr = model_attr_default(kind);
    if (kind == LAYER_LINEAR)
        attr.features = 4;
    int n_inputs = kind == LAYER_ADD || kind == LAYER_CROSS_ENTROPY ? 2 : 1;
    int32_t id = model_add(model, kind, name, (int32_t[]){a, b}, n_inputs, &attr, tie);
    cr_assert_geq(id, 2, "%s", err_text());
    return id;
}

static void init_model(Model *model) {
    Shape shape = shape_1d(4);
    cr_assert_eq(model_init(model, "m", DTYPE_F32, &shape, DTYPE_I32, &(Shape){0}), 0);
}

static void finish_model(Model *model, int32_t logits) {
    add_layer(model, LAYER_CROSS_ENTROPY, logits, MODEL_VALUE_TARGET, NULL);
    cr_assert_eq(model_check(model), 0, "%s", err_text());
}

/* A random DAG of n_layers layers, with skips, values read twice by one layer, and tied weights.
 * Unread values are kept few enough that the layers left can still join them. */
static void random_model(Model *model, int32_t n_layers) {
    static const LayerKind unary[] = {LAYER_LINEAR, LAYER_RELU, LAYER_DELAY, LAYER_LINEAR};
    int32_t unread[MAX_LAYERS + 1] = {MODEL_VALUE_INPUT};
    int32_t made[MAX_LAYERS + 1] = {MODEL_VALUE_INPUT};
    int32_t n_unread = 1;
    int32_t n_made = 1;
    init_model(model);
    for (int32_t left = n_layers - 1; left > 0; left--) {
        bool join = n_unread - 1 >= left;
        bool branch = !join && n_unread < left && pick(3) == 0;
        int32_t first = branch ? made[pick(n_made)] : unread[pick(n_unread)];
        for (int32_t i = 0; i < n_unread; i++)
            if (unread[i] == first)
                unread[i--] = unread[--n_unread];
        LayerKind kind = join ? LAYER_ADD : pick(3) == 0 ? LAYER_ADD : unary[pick(4)];
        int32_t second = first;
        if (kind == LAYER_ADD) {
            second =
                n_unread > 0 && (join || pick(2)) ? unread[pick(n_unread)] : made[pick(n_made)];
            for (int32_t i = 0; i < n_unread; i++)
                if (unread[i] == second)
                    unread[i--] = unread[--n_unread];
        }
        const char *tie = NULL;
        if (kind == LAYER_LINEAR && model->n_params > 0 && pick(3) == 0)
            tie = model->params[2 * pick(model->n_params / 2)].name;
        if (tie && !strstr(tie, "weight"))
            tie = NULL;
        int32_t id = add_layer(model, kind, first, second, tie);
        unread[n_unread++] = id;
        made[n_made++] = id;
    }
    cr_assert_eq(n_unread, 1);
    finish_model(model, unread[0]);
    cr_assert_eq(model->n_layers, n_layers);
}

static void random_cut(int32_t n_layers, int32_t n_stages, int32_t *ends) {
    int32_t first = 0;
    for (int32_t i = 0; i < n_stages - 1; i++) {
        int32_t room = n_layers - first - (n_stages - 1 - i);
        first += 1 + pick(room);
        ends[i] = first;
    }
    ends[n_stages - 1] = n_layers;
}

static bool reads(const Model *model, int32_t layer, int32_t value) {
    for (int32_t i = 0; i < model->layers[layer].n_inputs; i++)
        if (model->layers[layer].inputs[i] == value)
            return true;
    return false;
}

static bool stage_reads(const Model *model, const Stage *stage, int32_t value) {
    for (int32_t l = stage->first_layer; l < stage->end_layer; l++)
        if (reads(model, l, value))
            return true;
    return false;
}

static int32_t count_value(const Edge *edge, int32_t value) {
    int32_t n = 0;
    for (int32_t i = 0; i < edge->n_values; i++)
        n += edge->values[i] == value;
    return n;
}

/* Every value read in the stage is data, made here, or on exactly one in-edge; and nothing else is.
 */
static void check_reads(const Model *model, const Stage *stages, const Stage *stage) {
    int32_t n_crossing = 0;
    for (int32_t v = 0; v < model->n_values; v++) {
        int32_t producer = model->values[v].producer;
        bool crosses =
            producer >= 0 && producer < stage->first_layer && stage_reads(model, stage, v);
        int32_t n = 0;
        for (int32_t e = 0; e < stage->n_in; e++) {
            const Edge *edge = &stage->in[e];
            n += count_value(edge, v);
            if (count_value(edge, v))
                cr_assert(producer >= stages[edge->producer].first_layer &&
                          producer < stages[edge->producer].end_layer);
        }
        cr_assert_eq(n, crosses ? 1 : 0, "value %d in stage %d", v, stage->index);
        n_crossing += crosses;
    }
    cr_assert_eq(stage->reads_input, stage_reads(model, stage, MODEL_VALUE_INPUT));
    cr_assert_eq(stage->reads_target, stage->index == stage->n_stages - 1);
    cr_assert_eq(stage->has_loss, stage->index == stage->n_stages - 1);
    for (int32_t e = 0; e < stage->n_in; e++)
        n_crossing -= stage->in[e].n_values;
    cr_assert_eq(n_crossing, 0);
}

/* The same edge seen from both ends; ascending on both sides. */
static void check_edges(const Stage *stages, const Stage *stage) {
    for (int32_t e = 0; e < stage->n_in; e++) {
        const Edge *in = &stage->in[e];
        const Stage *from = &stages[in->producer];
        const Edge *out = NULL;
        cr_assert(e == 0 || stage->in[e - 1].producer < in->producer);
        cr_assert(in->consumer == stage->index && in->producer < stage->index);
        for (int32_t o = 0; o < from->n_out; o++)
            if (from->out[o].consumer == stage->index)
                out = &from->out[o];
        cr_assert_not_null(out);
        cr_assert(out->producer == from->index && out->n_values == in->n_values &&
                  out->n_grads == in->n_grads && in->n_values > 0);
        cr_assert_arr_eq(out->values, in->values, (size_t)in->n_values * sizeof *in->values);
        for (int32_t i = 0; i < in->n_grads; i++)
            cr_assert(out->grads[i].value == in->grads[i].value &&
                      out->grads[i].consumer == in->grads[i].consumer);
        for (int32_t i = 1; i < in->n_values; i++)
            cr_assert_lt(in->values[i - 1], in->values[i]);
        for (int32_t i = 1; i < in->n_grads; i++) {
            const EdgeGrad *a = &in->grads[i - 1];
            const EdgeGrad *b = &in->grads[i];
            cr_assert(a->value < b->value ||
                      (a->value == b->value && a->consumer > b->consumer && b->consumer >= 0));
        }
    }
    for (int32_t o = 1; o < stage->n_out; o++)
        cr_assert_lt(stage->out[o - 1].consumer, stage->out[o].consumer);
}

/* Add up a value's gradient from the items its stage receives, as descending lists of consumers.
 * Going down all consumers, each step takes a local consumer or the item that holds it; an item of
 * several must start the sum, for only then is adding it the same as adding its parts in turn. */
static void check_grads(const Model *model, const Stage *stages, int32_t n_stages,
                        const Stage *stage, int32_t value) {
    int32_t n_items = 0;
    int32_t n_taken = 0;
    bool started = false;
    for (int32_t o = 0; o < stage->n_out; o++)
        for (int32_t i = 0; i < stage->out[o].n_grads; i++)
            n_items += stage->out[o].grads[i].value == value;
    if (!model->values[value].needs_grad)
        cr_assert_eq(n_items, 0);
    for (int32_t s = n_stages - 1; s > stage->index && model->values[value].needs_grad; s--) {
        const Edge *edge = NULL;
        for (int32_t o = 0; o < stage->n_out; o++)
            if (stage->out[o].consumer == s)
                edge = &stage->out[o];
        int32_t n_here = 0;
        for (int32_t l = stages[s].first_layer; l < stages[s].end_layer; l++)
            n_here += reads(model, l, value);
        int32_t n_single = 0;
        int32_t n_sum = 0;
        for (int32_t i = 0; edge && i < edge->n_grads; i++) {
            const EdgeGrad *grad = &edge->grads[i];
            if (grad->value != value)
                continue;
            n_sum += grad->consumer < 0;
            n_single += grad->consumer >= 0;
            cr_assert(grad->consumer < 0 || (grad->consumer >= stages[s].first_layer &&
                                             grad->consumer < stages[s].end_layer &&
                                             reads(model, grad->consumer, value)));
        }
        bool sum = n_here > 0 && (n_here == 1 || !started);
        cr_assert_eq(n_sum, sum ? 1 : 0, "value %d over stage %d", value, s);
        cr_assert_eq(n_single, sum ? 0 : n_here, "value %d over stage %d", value, s);
        started |= n_here > 0;
        n_taken += n_sum + n_single;
    }
    cr_assert_eq(n_taken, n_items);
}

static bool uses(const Model *model, const Stage *stage, int32_t param) {
    for (int32_t l = stage->first_layer; l < stage->end_layer; l++)
        for (int32_t i = 0; i < model->layers[l].n_params; i++)
            if (model->layers[l].params[i] == param)
                return true;
    return false;
}

static void check_params(const Model *model, const Stage *stages, int32_t n_stages) {
    for (int32_t p = 0; p < model->n_params; p++) {
        int32_t n_holders = 0;
        int32_t lowest = -1;
        for (int32_t s = n_stages - 1; s >= 0; s--)
            if (uses(model, &stages[s], p)) {
                n_holders++;
                lowest = s;
            }
        cr_assert_gt(n_holders, 0);
        for (int32_t s = 0; s < n_stages; s++) {
            int32_t n = 0;
            for (int32_t i = 0; i < stages[s].n_params; i++) {
                const StageParam *held = &stages[s].params[i];
                cr_assert(i == 0 || stages[s].params[i - 1].param < held->param);
                if (held->param != p)
                    continue;
                n++;
                cr_assert_eq(held->owner, s == lowest);
                cr_assert_eq(held->tied_across, n_holders > 1);
            }
            cr_assert_eq(n, uses(model, &stages[s], p) ? 1 : 0);
        }
    }
}

/* Each weight's norm is counted by the one stage that owns it, a statistic's by none. */
static void check_norm_owners(const Model *model, const Stage *stages, const int32_t *ends,
                              int32_t n_stages) {
    int32_t owners[3 * MAX_LAYERS];
    cr_assert_leq(model->n_params, 3 * MAX_LAYERS);
    stage_norm_owners(model, ends, n_stages, owners);
    for (int32_t p = 0; p < model->n_params; p++) {
        if (model->params[p].role != PARAM_WEIGHT)
            cr_assert_eq(owners[p], -1);
    }
    for (int32_t s = 0; s < n_stages; s++) {
        for (int32_t i = 0; i < stages[s].n_params; i++) {
            const StageParam *held = &stages[s].params[i];
            if (model->params[held->param].role == PARAM_WEIGHT)
                cr_assert_eq(owners[held->param] == s, held->owner);
        }
    }
}

static void check_all(const Model *model, const int32_t *ends, int32_t n_stages) {
    Stage stages[MAX_STAGES];
    int32_t first = 0;
    for (int32_t s = 0; s < n_stages; s++) {
        cr_assert_eq(stage_init(&stages[s], model, ends, n_stages, s), 0, "%s", err_text());
        cr_assert(stages[s].first_layer == first && stages[s].end_layer == ends[s] &&
                  stages[s].end_layer > first && stages[s].index == s);
        for (int32_t l = first; l < ends[s]; l++)
            cr_assert_eq(stage_of_layer(ends, n_stages, l), s);
        first = ends[s];
    }
    cr_assert_eq(first, model->n_layers);
    int32_t n_in = 0;
    int32_t n_out = 0;
    for (int32_t s = 0; s < n_stages; s++) {
        check_reads(model, stages, &stages[s]);
        check_edges(stages, &stages[s]);
        n_in += stages[s].n_in;
        n_out += stages[s].n_out;
        for (int32_t l = stages[s].first_layer; l < stages[s].end_layer; l++)
            check_grads(model, stages, n_stages, &stages[s], model->layers[l].output);
    }
    cr_assert_eq(n_in, n_out);
    check_params(model, stages, n_stages);
    check_norm_owners(model, stages, ends, n_stages);
    for (int32_t s = 0; s < n_stages; s++)
        stage_done(&stages[s]);
}

Test(stage, every_cut_of_1_to_40_layers_into_1_to_8_stages) {
    for (int32_t n_layers = 1; n_layers <= 40; n_layers++) {
        for (int repeat = 0; repeat < 3; repeat++) {
            Model model;
            random_model(&model, n_layers);
            for (int32_t n_stages = 1; n_stages <= MAX_STAGES; n_stages++) {
                int32_t ends[MAX_STAGES];
                if (n_stages > n_layers) {
                    memset(ends, 0, sizeof ends);
                    cr_assert_eq(stage_check_cut(&model, ends, n_stages), ERR_INFEASIBLE);
                    continue;
                }
                random_cut(n_layers, n_stages, ends);
                check_all(&model, ends, n_stages);
            }
            model_done(&model);
        }
    }
}

/* A cut between any two layers, and one stage per layer. */
Test(stage, a_cut_may_fall_anywhere) {
    Model model;
    random_model(&model, 30);
    for (int32_t at = 1; at < 30; at++)
        check_all(&model, (int32_t[]){at, 30}, 2);
    for (int32_t at = 1; at < 29; at++)
        for (int32_t next = at + 1; next < 30; next++)
            check_all(&model, (int32_t[]){at, next, 30}, 3);
    model_done(&model);
    random_model(&model, 8);
    check_all(&model, (int32_t[]){1, 2, 3, 4, 5, 6, 7, 8}, 8);
    model_done(&model);
}

Test(stage, refuses_bad_cuts) {
    Model model;
    Stage stage;
    random_model(&model, 10);
    cr_expect_eq(stage_check_cut(&model, (int32_t[]){5, 10}, 0), ERR_LIMIT);
    cr_expect_eq(stage_check_cut(&model, (int32_t[]){5, 10}, STAGE_MAX + 1), ERR_LIMIT);
    cr_expect_eq(stage_check_cut(&model, (int32_t[]){5, 5, 10}, 3), ERR_ARGUMENT);
    cr_expect(strstr(err_text(), "stage 1 ends at layer 5"), "%s", err_text());
    cr_expect_eq(stage_check_cut(&model, (int32_t[]){0, 10}, 2), ERR_ARGUMENT);
    cr_expect_eq(stage_check_cut(&model, (int32_t[]){6, 4, 10}, 3), ERR_ARGUMENT);
    cr_expect_eq(stage_check_cut(&model, (int32_t[]){5, 9}, 2), ERR_ARGUMENT);
    cr_expect_eq(stage_check_cut(&model, (int32_t[]){5, 11}, 2), ERR_ARGUMENT);
    cr_expect_eq(stage_check_cut(&model, (int32_t[]){-1, 10}, 2), ERR_ARGUMENT);
    cr_expect_eq(stage_init(&stage, &model, (int32_t[]){5, 10}, 2, 2), ERR_ARGUMENT);
    cr_expect_eq(stage_init(&stage, &model, (int32_t[]){5, 10}, 2, -1), ERR_ARGUMENT);
    cr_expect_eq(stage_init(&stage, &model, (int32_t[]){5, 9}, 2, 0), ERR_ARGUMENT);
    stage_done(&stage); /* after a failed init, twice, and NULL */
    stage_done(&stage);
    stage_done(NULL);
    model_done(&model);
}

/* "2 3 | 2:-1 3:7" for an edge's values and gradient items */
static void expect_edge(const Edge *edge, int32_t producer, int32_t consumer,
                        const char *expected) {
    Buf text;
    buf_init(&text, 0);
    cr_expect(edge->producer == producer && edge->consumer == consumer, "edge %d to %d",
              edge->producer, edge->consumer);
    for (int32_t i = 0; i < edge->n_values; i++)
        buf_printf(&text, "%d ", edge->values[i]);
    buf_text(&text, "|");
    for (int32_t i = 0; i < edge->n_grads; i++)
        buf_printf(&text, " %d:%d", edge->grads[i].value, edge->grads[i].consumer);
    cr_expect_str_eq(buf_string(&text), expected, "edge %d to %d: %s", producer, consumer,
                     buf_string(&text));
    buf_done(&text);
}

/* Value 2, made by layer 0, is read by layers 1, 2, 4 (twice), 6 and 7. */
static void many_consumers(Model *model) {
    init_model(model);
    int32_t a = add_layer(model, LAYER_LINEAR, MODEL_VALUE_INPUT, 0, NULL);
    int32_t r1 = add_layer(model, LAYER_RELU, a, 0, NULL);
    int32_t r2 = add_layer(model, LAYER_RELU, a, 0, NULL);
    int32_t s3 = add_layer(model, LAYER_ADD, r1, r2, NULL);
    int32_t d4 = add_layer(model, LAYER_ADD, a, a, NULL);
    int32_t t5 = add_layer(model, LAYER_ADD, s3, d4, NULL);
    int32_t r6 = add_layer(model, LAYER_RELU, a, 0, NULL);
    int32_t r7 = add_layer(model, LAYER_RELU, a, 0, NULL);
    int32_t u8 = add_layer(model, LAYER_ADD, r6, r7, NULL);
    int32_t w9 = add_layer(model, LAYER_ADD, t5, u8, NULL);
    finish_model(model, w9);
}

Test(stage, gradients_of_many_consumers_keep_the_models_order) {
    Model model;
    Stage stage;
    many_consumers(&model);
    int32_t ends[] = {1, 4, 6, 11};
    cr_assert_eq(stage_init(&stage, &model, ends, 4, 0), 0, "%s", err_text());
    cr_assert_eq(stage.n_out, 3);
    expect_edge(&stage.out[0], 0, 1, "2 | 2:2 2:1"); /* in the middle of the order: one by one */
    expect_edge(&stage.out[1], 0, 2, "2 | 2:-1");    /* one layer, though it reads it twice */
    expect_edge(&stage.out[2], 0, 3, "2 | 2:-1");    /* 7 + 6 begin the sum */
    stage_done(&stage);
    cr_assert_eq(stage_init(&stage, &model, ends, 4, 2), 0, "%s", err_text());
    cr_assert(stage.n_in == 2 && stage.n_out == 1);
    expect_edge(&stage.in[0], 0, 2, "2 | 2:-1"); /* passes over stage 1 */
    expect_edge(&stage.in[1], 1, 2, "5 | 5:-1");
    expect_edge(&stage.out[0], 2, 3, "7 | 7:-1");
    stage_done(&stage);
    cr_assert_eq(stage_init(&stage, &model, (int32_t[]){2, 11}, 2, 1), 0, "%s", err_text());
    cr_assert_eq(stage.n_in, 1);
    expect_edge(&stage.in[0], 0, 1, "2 3 | 2:-1 3:-1");
    stage_done(&stage);
    cr_assert_eq(stage_init(&stage, &model, (int32_t[]){2, 7, 11}, 3, 0), 0, "%s", err_text());
    expect_edge(&stage.out[0], 0, 1, "2 3 | 2:6 2:4 2:2 3:-1");
    expect_edge(&stage.out[1], 0, 2, "2 | 2:-1");
    stage_done(&stage);
    model_done(&model);
}

Test(stage, values_without_gradient_only_go_forward) {
    Model model;
    Stage stage;
    init_model(&model);
    int32_t d = add_layer(&model, LAYER_DELAY, MODEL_VALUE_INPUT, 0, NULL);
    int32_t a = add_layer(&model, LAYER_LINEAR, d, 0, NULL);
    int32_t s = add_layer(&model, LAYER_ADD, a, d, NULL);
    finish_model(&model, s);
    cr_assert_eq(stage_init(&stage, &model, (int32_t[]){1, 4}, 2, 1), 0, "%s", err_text());
    expect_edge(&stage.in[0], 0, 1, "2 |");
    cr_expect_eq(stage_edge_bytes(&model, &stage.in[0], 8, true), 8 * 16);
    stage_done(&stage);
    cr_assert_eq(stage_init(&stage, &model, (int32_t[]){2, 4}, 2, 1), 0, "%s", err_text());
    expect_edge(&stage.in[0], 0, 1, "2 3 | 3:-1");
    cr_expect_eq(stage_edge_bytes(&model, &stage.in[0], 8, false), 2 * 8 * 16);
    cr_expect_eq(stage_edge_bytes(&model, &stage.in[0], 8, true), 3 * 8 * 16);
    cr_expect_eq(stage_edge_bytes(&model, &stage.in[0], INT64_MAX / 20, true), INT64_MAX);
    cr_expect_eq(stage_edge_bytes(&model, &stage.in[0], INT64_MAX / 2, false), INT64_MAX);
    stage_done(&stage);
    model_done(&model);
}

Test(stage, tied_parameters_are_owned_by_the_lowest_stage) {
    Model model;
    init_model(&model);
    int32_t a = add_layer(&model, LAYER_LINEAR, MODEL_VALUE_INPUT, 0, NULL); /* params 0, 1 */
    int32_t b = add_layer(&model, LAYER_LINEAR, a, 0, NULL);                 /* params 2, 3 */
    int32_t c = add_layer(&model, LAYER_LINEAR, b, 0, "l0.weight");          /* params 0, 4 */
    finish_model(&model, c);
    static const StageParam expected[2][3] = {
        {{0, true, true}, {1, false, true}},
        {{0, true, false}, {2, false, true}, {3, false, true}}};
    for (int32_t s = 0; s < 2; s++) {
        Stage stage;
        cr_assert_eq(stage_init(&stage, &model, (int32_t[]){1, 4}, 2, s), 0, "%s", err_text());
        cr_assert_eq(stage.n_params, s == 0 ? 2 : 4);
        for (int32_t i = 0; i < (s == 0 ? 2 : 3); i++) {
            cr_expect_eq(stage.params[i].param, expected[s][i].param);
            cr_expect_eq(stage.params[i].tied_across, expected[s][i].tied_across);
            cr_expect_eq(stage.params[i].owner, expected[s][i].owner);
        }
        stage_done(&stage);
    }
    Stage whole;
    cr_assert_eq(stage_init(&whole, &model, (int32_t[]){4}, 1, 0), 0, "%s", err_text());
    cr_expect(!whole.params[0].tied_across && whole.params[0].owner);
    cr_expect(whole.n_in == 0 && whole.n_out == 0 && whole.reads_input && whole.reads_target);
    stage_done(&whole);
    model_done(&model);
}

/* Stages without a model: a chain in which every neighbour pair has an edge with one value and its
 * gradient, and, where asked, a skip from stage 0 to the last one. For tests of programs. */
#ifndef FUNCPIPE_TESTS_SUPPORT_STAGES_H
#define FUNCPIPE_TESTS_SUPPORT_STAGES_H

#include "core/stage.h"

typedef struct TestStage {
    Stage stage;
    Edge in[2], out[2];
} TestStage;

/* `test` must stay where it is. */
static inline const Stage *test_stage(TestStage *test, int32_t index, int32_t n_stages, bool skip) {
    *test = (TestStage){0};
    Stage *stage = &test->stage;
    int32_t last = n_stages - 1;
    skip = skip && n_stages > 2;
    stage->index = index;
    stage->n_stages = n_stages;
    stage->in = test->in;
    stage->out = test->out;
    if (skip && index == last)
        test->in[stage->n_in++] = (Edge){.producer = 0, .consumer = last, .n_grads = 1};
    if (index > 0)
        test->in[stage->n_in++] = (Edge){.producer = index - 1, .consumer = index, .n_grads = 1};
    if (index < last)
        test->out[stage->n_out++] = (Edge){.producer = index, .consumer = index + 1, .n_grads = 1};
    if (skip && index == 0)
        test->out[stage->n_out++] = (Edge){.producer = 0, .consumer = last, .n_grads = 1};
    return stage;
}

#endif

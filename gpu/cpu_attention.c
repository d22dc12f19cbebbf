/* attention. Per sample and head, in blocks of query rows; with a causal mask a block reads only
 * the keys up to its last row. The scores are made again in backward out of the saved log of the
 * sum of exponentials of each row (as Dao et al., FlashAttention, 2022). */
#include "gpu/cpu_internal.h"

enum { QUERY_BLOCK = 64 };

typedef struct AttentionShape {
    int64_t t, d, width; /* d per head; width = 3 D, row stride of q, k, v */
    int64_t heads;
    float factor; /* 1/sqrt(d) */
    bool causal;
    size_t scratch_floats; /* per thread */
} AttentionShape;

static int attention_open(Op *op) {
    AttentionShape *s = calloc(1, sizeof *s);
    if (s == NULL)
        return err_set(ERR_MEMORY, "layer '%s': no memory", op->layer->name);
    op->state = s;
    const Shape *in = &op->in[0]->shape;
    s->t = in->dims[0];
    s->width = in->dims[1];
    s->heads = op->layer->attr.heads;
    s->d = s->width / 3 / s->heads;
    s->factor = (float)(1.0 / __builtin_sqrt((double)s->d));
    s->causal = op->layer->attr.causal;
    s->scratch_floats =
        device_align((size_t)(2 * cpu_min(s->t, QUERY_BLOCK) * s->t) * sizeof(float)) /
        sizeof(float);
    op->needs.keeps_input[0] = true;
    op->needs.saved_bytes = (size_t)(cpu_max_rows(op) * s->heads * s->t) * sizeof(float);
    op->needs.scratch_bytes = (size_t)op->device->threads * s->scratch_floats * sizeof(float);
    return 0;
}

/* One head of one sample; out (t, D) rows of stride width/3, lse (t) may be NULL. */
static int head_forward(const Op *op, const AttentionShape *s, const float *q, float *out,
                        float *lse, float *scores) {
    int64_t third = s->width / 3;
    const float *k = q + third, *v = k + third;
    for (int64_t first = 0; first < s->t; first += QUERY_BLOCK) {
        int64_t n = cpu_min(QUERY_BLOCK, s->t - first);
        int64_t keys = s->causal ? first + n : s->t;
        TRY(cpu_gemm('N', 'T', n, keys, s->d, 1.0f, q + first * s->width, s->width, k, s->width,
                     0.0f, scores, keys));
        for (int64_t i = 0; i < n; i++) {
            float l = op->device->loops->attention_softmax(
                scores + i * keys, s->causal ? first + i + 1 : keys, keys, s->factor);
            if (lse != NULL)
                lse[first + i] = l;
        }
        TRY(cpu_gemm('N', 'N', n, s->d, keys, 1.0f, scores, keys, v, s->width, 0.0f,
                     out + first * third, third));
    }
    return 0;
}

/* dq, dk, dv of one head. Blocks from the last to the first: the last one reads all keys, so it
 * writes all of dk and dv and the others add. */
static int head_backward(const Op *op, const AttentionShape *s, const float *q, const float *dout,
                         const float *lse, float *dq, float *scores) {
    int64_t third = s->width / 3;
    const float *k = q + third, *v = k + third;
    float *dk = dq + third, *dv = dk + third;
    float *dscores = scores + cpu_min(s->t, QUERY_BLOCK) * s->t;
    int64_t last = (s->t - 1) / QUERY_BLOCK * QUERY_BLOCK;
    for (int64_t first = last; first >= 0; first -= QUERY_BLOCK) {
        int64_t n = cpu_min(QUERY_BLOCK, s->t - first);
        int64_t keys = s->causal ? first + n : s->t;
        float beta = first == last ? 0.0f : 1.0f;
        const float *qb = q + first * s->width, *db = dout + first * third;
        TRY(cpu_gemm('N', 'T', n, keys, s->d, 1.0f, qb, s->width, k, s->width, 0.0f, scores, keys));
        TRY(cpu_gemm('N', 'T', n, keys, s->d, 1.0f, db, third, v, s->width, 0.0f, dscores, keys));
        for (int64_t i = 0; i < n; i++)
            op->device->loops->attention_softmax_grad(scores + i * keys, dscores + i * keys,
                                                      s->causal ? first + i + 1 : keys, keys,
                                                      s->factor, lse[first + i]);
        TRY(cpu_gemm('N', 'N', n, s->d, keys, 1.0f, dscores, keys, k, s->width, 0.0f,
                     dq + first * s->width, s->width));
        TRY(cpu_gemm('T', 'N', keys, s->d, n, 1.0f, dscores, keys, qb, s->width, beta, dk,
                     s->width));
        TRY(cpu_gemm('T', 'N', keys, s->d, n, 1.0f, scores, keys, db, third, beta, dv, s->width));
    }
    return 0;
}

static int run_heads(Op *op, OpPass pass, const OpArgs *args) {
    const AttentionShape *s = op->state;
    int64_t n_heads = args->rows * s->heads;
    int32_t team = cpu_team(op->device, n_heads * s->t * s->t);
    int failed = 0;
    /* One iteration a thread, so that each knows its scratch. */
    CPU_PARALLEL_FOR(team)
    for (int64_t thread = 0; thread < team; thread++) {
        float *scratch = (float *)args->scratch + (size_t)thread * s->scratch_floats;
        int64_t end = n_heads * (thread + 1) / team;
        for (int64_t i = n_heads * thread / team; i < end; i++) {
            int64_t row = i / s->heads, head = i % s->heads, at = head * s->d;
            const float *q = (const float *)args->x[0] + row * s->t * s->width + at;
            int64_t out = row * s->t * (s->width / 3) + at;
            float *lse = pass == OP_FORWARD_EVAL ? NULL : (float *)args->saved + i * s->t;
            int rc = pass == OP_BACKWARD_INPUT
                         ? head_backward(op, s, q, (const float *)args->dy + out, lse,
                                         (float *)args->dx[0] + row * s->t * s->width + at, scratch)
                         : head_forward(op, s, q, (float *)args->y + out, lse, scratch);
            if (rc < 0)
                __atomic_store_n(&failed, rc, __ATOMIC_RELAXED);
        }
    }
    return failed == 0 ? 0
                       : err_set(failed, "layer '%s': a matrix product failed", op->layer->name);
}

static int attention_run(Op *op, OpPass pass, const OpArgs *args) {
    if (pass == OP_FORWARD || pass == OP_FORWARD_EVAL ||
        (pass == OP_BACKWARD_INPUT && args->dx[0] != NULL))
        return run_heads(op, pass, args);
    return 0;
}

const CpuKind cpu_kind_attention = {.open = attention_open, .run = attention_run};

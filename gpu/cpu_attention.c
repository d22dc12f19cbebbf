/* attention. Per sample and head, in blocks of query rows; with a causal mask a block reads only
 * the keys up to its last row. The scores are made again in backward out of the saved log of the
 * sum of exponentials of each row (as Dao et al., FlashAttention, 2022). The products are small:
 * own loops beat a library call for each (by a third at 128 positions, 32 per head). */
#include "gpu/cpu_internal.h"

enum { QUERY_BLOCK = 32, KEY_ALIGN = 16 };

typedef struct AttentionShape {
    int64_t t, d, width; /* d per head; width = 3 D, row stride of q, k, v */
    int64_t heads, t_padded;
    float factor; /* 1/sqrt(d) */
    bool causal;
    size_t scratch_floats; /* per thread */
} AttentionShape;

/* One thread's scratch. */
typedef struct AttentionScratch {
    float *keys_t, *values_t; /* (d, t_padded): transposed */
    float *rows;              /* (t, d): values in forward, keys in backward */
    float *scores, *dscores;  /* (QUERY_BLOCK, t_padded) */
} AttentionScratch;

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
    s->t_padded = cpu_ceil_div(s->t, KEY_ALIGN) * KEY_ALIGN;
    s->factor = (float)(1.0 / __builtin_sqrt((double)s->d));
    s->causal = op->layer->attr.causal;
    size_t floats = (size_t)(3 * s->d * s->t_padded + 2 * QUERY_BLOCK * s->t_padded);
    s->scratch_floats = device_align(floats * sizeof(float)) / sizeof(float);
    op->needs.keeps_input[0] = true;
    op->needs.saved_bytes = (size_t)(cpu_max_rows(op) * s->heads * s->t) * sizeof(float);
    op->needs.scratch_bytes = (size_t)op->device->threads * s->scratch_floats * sizeof(float);
    return 0;
}

static AttentionScratch scratch_of(const AttentionShape *s, void *scratch, int64_t thread) {
    AttentionScratch a;
    a.keys_t = (float *)scratch + (size_t)thread * s->scratch_floats;
    a.values_t = a.keys_t + s->d * s->t_padded;
    a.rows = a.values_t + s->d * s->t_padded;
    a.scores = a.rows + s->d * s->t_padded;
    a.dscores = a.scores + QUERY_BLOCK * s->t_padded;
    return a;
}

/* Rows of one head out of the strided input. */
static void gather(const AttentionShape *s, float *rows, const float *x) {
    for (int64_t i = 0; i < s->t; i++)
        memcpy(rows + i * s->d, x + i * s->width, (size_t)s->d * sizeof *rows);
}

/* Keys that query rows [first, first+n) read, and the same padded to whole vectors. */
static int64_t keys_of(const AttentionShape *s, int64_t first, int64_t n) {
    return s->causal ? first + n : s->t;
}
static int64_t padded_keys(int64_t keys) {
    return cpu_ceil_div(keys, KEY_ALIGN) * KEY_ALIGN;
}

/* One head of one sample; out (t, D) rows of stride width/3; lse (t) may be NULL. */
static void head_forward(const CpuLoops *loops, const AttentionShape *s, const float *q, float *out,
                         float *lse, AttentionScratch a) {
    int64_t third = s->width / 3;
    loops->transpose(a.keys_t, s->t_padded, q + third, s->width, s->t, s->d);
    gather(s, a.rows, q + 2 * third);
    for (int64_t first = 0; first < s->t; first += QUERY_BLOCK) {
        int64_t n = cpu_min(QUERY_BLOCK, s->t - first), keys = keys_of(s, first, n);
        int64_t padded = padded_keys(keys);
        SmallGemm scores = {n,        padded,      s->d,     q + first * s->width, s->width, 1,
                            a.keys_t, s->t_padded, a.scores, s->t_padded,          false};
        loops->small_gemm(&scores);
        for (int64_t i = 0; i < n; i++) {
            float l = loops->attention_softmax(a.scores + i * s->t_padded,
                                               s->causal ? first + i + 1 : keys, keys, s->factor);
            if (lse != NULL)
                lse[first + i] = l;
        }
        SmallGemm values = {
            n,     s->d, keys, a.scores, s->t_padded, 1, a.rows, s->d, out + first * third,
            third, false};
        loops->small_gemm(&values);
    }
}

/* dq, dk, dv of one head. Blocks from the last to the first: the last one reads all keys, so it
 * writes all of dk and dv and the others add. */
static void head_backward(const CpuLoops *loops, const AttentionShape *s, const float *q,
                          const float *dout, const float *lse, float *dq, AttentionScratch a) {
    int64_t third = s->width / 3, ld = s->t_padded;
    loops->transpose(a.keys_t, ld, q + third, s->width, s->t, s->d);
    loops->transpose(a.values_t, ld, q + 2 * third, s->width, s->t, s->d);
    gather(s, a.rows, q + third);
    int64_t last = (s->t - 1) / QUERY_BLOCK * QUERY_BLOCK;
    for (int64_t first = last; first >= 0; first -= QUERY_BLOCK) {
        int64_t n = cpu_min(QUERY_BLOCK, s->t - first), keys = keys_of(s, first, n);
        int64_t padded = padded_keys(keys);
        const float *qb = q + first * s->width, *db = dout + first * third;
        float *dqb = dq + first * s->width;
        bool add = first != last;
        SmallGemm scores = {n, padded, s->d, qb, s->width, 1, a.keys_t, ld, a.scores, ld, false};
        SmallGemm dp = {n, padded, s->d, db, third, 1, a.values_t, ld, a.dscores, ld, false};
        loops->small_gemm(&scores);
        loops->small_gemm(&dp);
        for (int64_t i = 0; i < n; i++)
            loops->attention_softmax_grad(a.scores + i * ld, a.dscores + i * ld,
                                          s->causal ? first + i + 1 : keys, keys, s->factor,
                                          lse[first + i]);
        SmallGemm to_q = {n, s->d, keys, a.dscores, ld, 1, a.rows, s->d, dqb, s->width, false};
        SmallGemm to_k = {keys, s->d, n, a.dscores, 1, ld, qb, s->width, dq + third, s->width, add};
        SmallGemm to_v = {keys, s->d, n, a.scores, 1, ld, db, third, dq + 2 * third, s->width, add};
        loops->small_gemm(&to_q);
        loops->small_gemm(&to_k);
        loops->small_gemm(&to_v);
    }
}

static void run_heads(Op *op, OpPass pass, const OpArgs *args) {
    const AttentionShape *s = op->state;
    const CpuLoops *loops = op->device->loops;
    int64_t n_heads = args->rows * s->heads;
    int32_t team = cpu_team(op->device, n_heads * s->t * s->t);
    /* One iteration a thread, so that each knows its scratch. */
    CPU_PARALLEL_FOR(team)
    for (int64_t thread = 0; thread < team; thread++) {
        AttentionScratch scratch = scratch_of(s, args->scratch, thread);
        int64_t end = n_heads * (thread + 1) / team;
        for (int64_t i = n_heads * thread / team; i < end; i++) {
            int64_t row = i / s->heads, at = i % s->heads * s->d;
            int64_t in = row * s->t * s->width + at, out = row * s->t * (s->width / 3) + at;
            const float *q = (const float *)args->x[0] + in;
            float *lse = pass == OP_FORWARD_EVAL ? NULL : (float *)args->saved + i * s->t;
            if (pass == OP_BACKWARD_INPUT)
                head_backward(loops, s, q, (const float *)args->dy + out, lse,
                              (float *)args->dx[0] + in, scratch);
            else
                head_forward(loops, s, q, (float *)args->y + out, lse, scratch);
        }
    }
}

static int attention_run(Op *op, OpPass pass, const OpArgs *args) {
    if (pass == OP_FORWARD || pass == OP_FORWARD_EVAL ||
        (pass == OP_BACKWARD_INPUT && args->dx[0] != NULL))
        run_heads(op, pass, args);
    return 0;
}

const CpuKind cpu_kind_attention = {.open = attention_open, .run = attention_run};

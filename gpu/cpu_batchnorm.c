/* batchnorm over (rows, H, W) of each channel. Saved: mean and 1/std per channel.
 *
 * The work is cut into pieces: of a blocked value one sample's (H*W, B), of a plain one one
 * sample's (H*W) of one channel. Each piece gives partial sums in fp32; they are combined per
 * channel in double, in the order of the samples. A value without H, W is cut into pieces of
 * columns. */
#include <math.h>

#include "gpu/cpu_internal.h"

typedef struct Pieces {
    int64_t rows, channels, hw;
    int64_t width;   /* channels per piece: B or 1; 0: by columns */
    int64_t per_row; /* pieces per sample */
    int64_t n;
    int32_t team;
} Pieces;

static Pieces pieces_of(const Op *op, int64_t rows) {
    const Shape *in = &op->in[0]->shape;
    Pieces p = {.rows = rows, .channels = in->dims[0], .hw = 1};
    for (int i = 1; i < in->n_dims; i++)
        p.hw *= in->dims[i];
    bool blocked = cpu_is_blocked(op->device, DTYPE_F32, in);
    p.width = blocked ? op->device->loops->block : in->n_dims == 1 ? 0 : 1;
    if (p.width > 0) {
        p.per_row = p.channels / p.width;
        p.n = rows * p.per_row;
    }
    p.team = cpu_team(op->device, rows * p.channels * p.hw);
    return p;
}

static int batchnorm_open(Op *op) {
    Pieces p = pieces_of(op, cpu_max_rows(op));
    size_t channel_bytes = (size_t)p.channels * sizeof(float);
    op->needs.saved_bytes = 2 * channel_bytes;
    op->needs.scratch_bytes = 4 * channel_bytes + 2 * channel_bytes * (size_t)p.rows;
    op->needs.keeps_input[0] = true;
    return 0;
}

/* Partial (first, second) per piece: (mean, m2) of x where dy is NULL, else (sum dy, sum
 * dy*(x-mean)). Each array is (rows, C), or (C) when by columns. */
static void partials(const Op *op, const Pieces *p, const float *dy, const float *x,
                     const float *mean, float *out_first, float *out_second) {
    const CpuLoops *loops = op->device->loops;
    if (p->width == 0) {
        CPU_PARALLEL_FOR(p->team)
        for (int64_t c = 0; c < p->channels; c += CPU_COLUMN_CHUNK) {
            int64_t n = cpu_min(CPU_COLUMN_CHUNK, p->channels - c);
            if (dy == NULL)
                loops->bn_stats_columns(x + c, p->rows, n, p->channels, out_first + c,
                                        out_second + c);
            else
                loops->bn_sums_columns(dy + c, x + c, p->rows, n, p->channels, mean + c,
                                       out_first + c, out_second + c);
        }
        return;
    }
    CPU_PARALLEL_FOR(p->team)
    for (int64_t i = 0; i < p->n; i++) {
        const float *piece = x + i * p->width * p->hw;
        int64_t c = i % p->per_row * p->width, out = i * p->width;
        if (dy == NULL && p->width > 1)
            loops->bn_stats_blocked(piece, p->hw, out_first + out, out_second + out);
        else if (dy == NULL)
            loops->bn_stats_plain(piece, p->hw, out_first + out, out_second + out);
        else if (p->width > 1)
            loops->bn_sums_blocked(dy + i * p->width * p->hw, piece, p->hw, mean + c,
                                   out_first + out, out_second + out);
        else
            loops->bn_sums_plain(dy + i * p->hw, piece, p->hw, mean[c], out_first + out,
                                 out_second + out);
    }
}

/* Mean and m2 of channel c out of the pieces' (Chan, Golub & LeVeque 1983). */
static void combine_stats(const Pieces *p, const float *means, const float *m2s, int64_t c,
                          double *out_mean, double *out_m2) {
    if (p->width == 0) {
        *out_mean = (double)means[c];
        *out_m2 = (double)m2s[c];
        return;
    }
    double mean = 0.0, m2 = 0.0, n = 0.0, hw = (double)p->hw;
    for (int64_t r = 0; r < p->rows; r++) {
        double delta = (double)means[r * p->channels + c] - mean;
        double total = n + hw;
        mean += delta * hw / total;
        m2 += (double)m2s[r * p->channels + c] + delta * delta * n * hw / total;
        n = total;
    }
    *out_mean = mean;
    *out_m2 = m2;
}

static void combine_sums(const Pieces *p, const float *first, const float *second, int64_t c,
                         double *out_first, double *out_second) {
    double s1 = 0.0, s2 = 0.0;
    int64_t rows = p->width == 0 ? 1 : p->rows;
    for (int64_t r = 0; r < rows; r++) {
        s1 += (double)first[r * p->channels + c];
        s2 += (double)second[r * p->channels + c];
    }
    *out_first = s1;
    *out_second = s2;
}

/* y = (x - mean) * a + b */
static void apply(const Op *op, const Pieces *p, float *y, const float *x, const float *mean,
                  const float *a, const float *b) {
    const CpuLoops *loops = op->device->loops;
    int64_t n = p->width == 0 ? p->rows : p->n;
    CPU_PARALLEL_FOR(p->team)
    for (int64_t i = 0; i < n; i++) {
        if (p->width == 0) {
            loops->bn_apply_columns(y + i * p->channels, x + i * p->channels, p->channels, mean, a,
                                    b);
            continue;
        }
        int64_t at = i * p->width * p->hw, c = i % p->per_row * p->width;
        if (p->width > 1)
            loops->bn_apply_blocked(y + at, x + at, p->hw, mean + c, a + c, b + c);
        else
            loops->bn_apply_plain(y + at, x + at, p->hw, mean[c], a[c], b[c]);
    }
}

static void add_statistic(float *dst, int64_t c, double value, bool accumulate) {
    if (dst != NULL)
        dst[c] = accumulate ? dst[c] + (float)value : (float)value;
}

static void forward(Op *op, const OpArgs *args) {
    Pieces p = pieces_of(op, args->rows);
    float *mean = args->saved, *istd = mean + p.channels;
    float *a = args->scratch, *first = a + 4 * p.channels, *second = first + p.rows * p.channels;
    const float *w = args->w[0];
    double n = (double)p.rows * (double)p.hw;
    double factor = (double)op->layer->attr.momentum * args->statistic_decay;
    partials(op, &p, NULL, args->x[0], NULL, first, second);
    for (int64_t c = 0; c < p.channels; c++) {
        double mu, m2;
        combine_stats(&p, first, second, c, &mu, &m2);
        double is = 1.0 / sqrt(m2 / n + (double)op->layer->attr.eps);
        mean[c] = (float)mu;
        istd[c] = (float)is;
        a[c] = (float)(is * (double)w[c]);
        add_statistic(args->dw[2], c, factor * mu, args->accumulate);
        add_statistic(args->dw[3], c, factor * (n > 1.0 ? m2 / (n - 1.0) : m2 / n),
                      args->accumulate);
    }
    apply(op, &p, args->y, args->x[0], mean, a, args->w[1]);
}

static void forward_eval(Op *op, const OpArgs *args) {
    Pieces p = pieces_of(op, args->rows);
    float *a = args->scratch;
    const float *w = args->w[0], *mean = args->w[2], *variance = args->w[3];
    for (int64_t c = 0; c < p.channels; c++)
        a[c] = (float)((double)w[c] / sqrt((double)variance[c] + (double)op->layer->attr.eps));
    apply(op, &p, args->y, args->x[0], mean, a, args->w[1]);
}

/* dx = a (dy - k1 - (x - mean) k2) */
static void backward_input(const Op *op, const Pieces *p, const OpArgs *args, const float *a,
                           const float *k1, const float *k2) {
    const CpuLoops *loops = op->device->loops;
    const float *x = args->x[0], *dy = args->dy, *mean = args->saved;
    float *dx = args->dx[0];
    int64_t n = p->width == 0 ? p->rows : p->n;
    CPU_PARALLEL_FOR(p->team)
    for (int64_t i = 0; i < n; i++) {
        if (p->width == 0) {
            int64_t at = i * p->channels;
            loops->bn_grad_columns(dx + at, dy + at, x + at, p->channels, mean, a, k1, k2);
            continue;
        }
        int64_t at = i * p->width * p->hw, c = i % p->per_row * p->width;
        if (p->width > 1)
            loops->bn_grad_blocked(dx + at, dy + at, x + at, p->hw, mean + c, a + c, k1 + c,
                                   k2 + c);
        else
            loops->bn_grad_plain(dx + at, dy + at, x + at, p->hw, mean[c], a[c], k1[c], k2[c]);
    }
}

static void backward(Op *op, OpPass pass, const OpArgs *args) {
    Pieces p = pieces_of(op, args->rows);
    const float *mean = args->saved, *istd = mean + p.channels, *w = args->w[0];
    float *a = args->scratch, *k1 = a + p.channels, *k2 = k1 + p.channels;
    float *first = a + 4 * p.channels, *second = first + p.rows * p.channels;
    double n = (double)p.rows * (double)p.hw;
    partials(op, &p, args->dy, args->x[0], mean, first, second);
    for (int64_t c = 0; c < p.channels; c++) {
        double s1, s2, is = (double)istd[c];
        combine_sums(&p, first, second, c, &s1, &s2);
        if (pass == OP_BACKWARD_WEIGHT) {
            add_statistic(args->dw[0], c, s2 * is, args->accumulate);
            add_statistic(args->dw[1], c, s1, args->accumulate);
            continue;
        }
        a[c] = (float)(is * (double)w[c]);
        k1[c] = (float)(s1 / n);
        k2[c] = (float)(s2 * is * is / n);
    }
    if (pass == OP_BACKWARD_INPUT)
        backward_input(op, &p, args, a, k1, k2);
}

static int batchnorm_run(Op *op, OpPass pass, const OpArgs *args) {
    if (op->out_elements == 0)
        return 0;
    if (pass == OP_FORWARD)
        forward(op, args);
    else if (pass == OP_FORWARD_EVAL)
        forward_eval(op, args);
    else if ((pass == OP_BACKWARD_INPUT && args->dx[0] != NULL) ||
             (pass == OP_BACKWARD_WEIGHT && (args->dw[0] != NULL || args->dw[1] != NULL)))
        backward(op, pass, args);
    return 0;
}

const CpuKind cpu_kind_batchnorm = {.open = batchnorm_open, .run = batchnorm_run};

/* The formula, shapes, saved state and gradients of every op (the layer kinds of core/model.h).
 * n = rows of the micro-batch; sums run over what the index list says; fp32 unless said otherwise.
 *
 * linear        x (n,...,D) w (F,D) b (F): y[i,f] = b[f] + sum_d x[i,d] w[f,d], i over n and the
 *               leading dims. dx = dy w; dw[f,d] = sum_i dy[i,f] x[i,d]; db[f] = sum_i dy[i,f].
 * conv2d        cross-correlation as PyTorch's conv2d: y[n,f,h,w] = b[f] + sum_{c,i,j}
 *               x[n,c,h*s-p+i,w*s-p+j] w[f,c,i,j]; H' = (H + 2p - k)/s + 1.
 * batchnorm     per channel c over n (and h, w), N = count: mu = mean, var = biased variance,
 *               y = (x-mu)/sqrt(var+eps) * w + b. Saved: mu, 1/sqrt(var+eps).
 *               Statistics: running r is moved once per micro-batch in micro order,
 *               r <- (1-momentum) r + momentum s, s = mu or the unbiased variance (N/(N-1); N = 1:
 *               the biased one). As that is linear, a step moves r to decay^k r + c with decay =
 *               1-momentum, k the non-empty micro-batches of the step, and c = sum_m momentum
 *               decay^(k-1-m) s_m, which replicas add up like a gradient. OP_FORWARD therefore adds
 *               momentum * statistic_decay * s to dw[2] (mean) and dw[3] (variance), where
 *               args.statistic_decay = decay^(k-1-m) comes from the caller (`accumulate` decides
 *               write or add; dw[2] NULL: leave the statistics alone, as recompute must).
 *               Evaluation uses w[2], w[3] = running mean, variance.
 *               dx = w*istd/N * (N dy - sum dy - xhat sum(dy xhat)); dw = sum dy xhat; db = sum dy.
 * layernorm     per row over the last dim D, biased variance; saved: mean, istd per row.
 * relu          y = max(x, 0); dx = dy where y > 0.
 * gelu          tanh form: y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks & Gimpel
 * 2016). add           y = x0 + x1; dx0 = dx1 = dy. dropout       y = x * keep / (1-p), keep from
 * rng_dropout(seed, step, first_row + i, layer, element/4) with the element's index in the *plain*
 * per-sample order; the mask is computed again in backward or saved, as the device likes.
 * Evaluation: y = x. maxpool2d     windows k, stride s, padding p with -inf; the first maximum gets
 * the gradient. global_avgpool2d  y[n,c] = mean over h, w. flatten       plain order; y is the
 * plain form of x. embedding     y[i,t,:] = w[x[i,t],:]; ids out of [0, vocab) are ERR_ARGUMENT
 * naming row, position and id; dw rows are added in order of (i,t): deterministic. position
 * y[i,t,:] = x[i,t,:] + w[t,:]; dw[t,:] = sum_i dy[i,t,:]. attention     qkv (n,T,3D), heads h of
 * size d = D/h laid out as GPT-2 does (q, k, v each D wide, head major): P = softmax(q k^T /
 * sqrt(d) + causal mask), y = P v, heads concatenated. cross_entropy logits z (n,...,V), target t
 * (n,...): loss += -log softmax(z)[t] over targets that are not ignore_index; dz = (softmax(z) -
 * onehot(t)) * loss_scale, 0 at ignored ones. Targets out of [0, V) that are not ignored are
 * ERR_ARGUMENT naming row and value. y is unused (the loss value has no tensor). loss->n_correct
 * counts argmax == t (first maximum). Non-finite logits give a non-finite loss, never a crash.
 * delay         y = x after sleeping forward_us; dx = dy after sleeping backward_us. The sleep is
 * by absolute deadline of the monotonic clock, not a busy loop.
 *
 * sgd           (PyTorch's SGD, dampening 0) d = scale*g + wd*w; m = momentum*m + d (first update:
 *               m = d, the same as m starting at 0); d = nesterov ? d + momentum*m : m (when
 *               momentum > 0); w -= lr*d.
 * adamw         (Loshchilov & Hutter 2019, PyTorch's AdamW) g' = scale*g; w -= lr*wd*w;
 *               m = b1 m + (1-b1) g'; v = b2 v + (1-b2) g'^2;
 *               w -= lr/(1-b1^t) * m / (sqrt(v)/sqrt(1-b2^t) + eps). */
#ifndef FUNCPIPE_GPU_KERNELS_H
#define FUNCPIPE_GPU_KERNELS_H

#include "gpu/device.h"

const DeviceOps *cpu_device_ops(void);

#endif

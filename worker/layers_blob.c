/* What crosses stages: a micro-batch's staging blobs, as they are received and made. */
#include "core/err.h"
#include "worker/layers_internal.h"

static const Port *layers_port(const Layers *layers, bool in, int32_t peer) {
    const int32_t n = in ? layers->n_in : layers->n_out;
    for (int32_t p = 0; p < n; p++) {
        const Port *port = in ? &layers->in[p] : &layers->out[p];
        if ((in ? port->edge->producer : port->edge->consumer) == peer) {
            return port;
        }
    }
    return NULL;
}

static int layers_blob(const Layers *layers, bool in, bool grad, int32_t peer, int32_t rows,
                       int32_t slot, FetchBlob *out_blob, const Port **out_port) {
    const Port *port = layers_port(layers, in, peer);
    const int32_t variant = layers_variant(layers, rows);
    TRY(variant);
    if (port == NULL) {
        return err_set(ERR_INTERNAL, "stage %d has no edge with stage %d",
                       layers->setup.stage->index, peer);
    }
    const PortForm *form = grad ? &port->grads[variant] : &port->acts[variant];
    *out_blob = (FetchBlob){
        .bytes = layers_staging(layers, slot, grad ? port->grad_offset : port->act_offset),
        .capacity = grad ? port->grad_bytes : port->act_bytes,
        .tensors = form->tensors,
        .offsets = form->offsets,
        .n_tensors = form->n};
    if (out_port != NULL) {
        *out_port = port;
    }
    return 0;
}

int layers_act_in(const Layers *layers, int32_t producer, int32_t rows, int32_t slot,
                  FetchBlob *out_blob) {
    return layers_blob(layers, true, false, producer, rows, slot, out_blob, NULL);
}

int layers_grad_in(const Layers *layers, int32_t consumer, int32_t rows, int32_t slot,
                   FetchBlob *out_blob) {
    return layers_blob(layers, false, true, consumer, rows, slot, out_blob, NULL);
}

/* Bring one value from its home into the blob, unless it was made there. */
static int layers_to_blob(const Layers *layers, Stream *stream, int32_t value, const Home *home,
                          HomeKind direct, int32_t rows, int32_t slot, void *dst) {
    const Value *v = &layers->model->values[value];
    if (home->kind == direct) {
        return 0;
    }
    return layers->setup.ops->value_to_plain(stream, v->dtype, &v->shape, rows, dst,
                                             layers_at(layers, home, slot, rows));
}

int layers_act_out(const Layers *layers, Stream *stream, int32_t consumer, int32_t rows,
                   int32_t slot, FetchBlob *out_blob) {
    const Port *port;
    TRY(layers_blob(layers, false, false, consumer, rows, slot, out_blob, &port));
    for (int32_t i = 0; i < port->edge->n_values; i++) {
        const int32_t value = port->edge->values[i];
        TRY(layers_to_blob(layers, stream, value, &layers->values[value], HOME_OUT_ACT, rows, slot,
                           (char *)out_blob->bytes + out_blob->offsets[i]));
    }
    return layers->setup.ops->stream_sync(stream);
}

int layers_grad_out(const Layers *layers, Stream *stream, int32_t producer, int32_t rows,
                    int32_t slot, FetchBlob *out_blob) {
    const Port *port;
    TRY(layers_blob(layers, true, true, producer, rows, slot, out_blob, &port));
    for (int32_t i = 0; i < port->edge->n_grads; i++) {
        TRY(layers_to_blob(layers, stream, port->edge->grads[i].value, &port->items[i],
                           HOME_IN_GRAD, rows, slot,
                           (char *)out_blob->bytes + out_blob->offsets[i]));
    }
    return layers->setup.ops->stream_sync(stream);
}

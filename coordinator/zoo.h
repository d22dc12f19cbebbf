/* The zoo: models built by name. A name ("cnn") with its options, a strict JSON object in which
 * everything may be left out, gives a finished model (model_check has passed):
 *
 *     mlp       {"input": [784], "hidden": [1024, 1024], "classes": 10}
 *               linear and relu per hidden width, linear, loss. An input of several dimensions is
 *               flattened first.
 *     cnn       {"image": [1, 28, 28], "channels": [32, 64], "blocks": 1, "classes": 10,
 *                "dropout": 0.1}
 *               stem conv3x3-BN-relu-maxpool2, then per width a conv3x3-BN-relu of stride 2 (not at
 *               the first) and `blocks` residual blocks conv-BN-relu-conv-BN-add-relu; global
 *               average, dropout, linear, loss. About 17 MFLOP an image (forward) as it stands.
 *     tiny_gpt  {"vocab": 256, "context": 128, "width": 128, "heads": 4, "depth": 4,
 *                "dropout": 0.1}
 *               GPT-2's layers and names (h.0.attn.c_attn.weight, ...): pre-LN blocks, and lm_head
 *               tied to wte.weight. Input and target are I32 (context).
 *
 * A dropout of 0 leaves the dropout layers out. */
#ifndef FUNCPIPE_COORDINATOR_ZOO_H
#define FUNCPIPE_COORDINATOR_ZOO_H

#include "core/model.h"

/* Build the model `name`; `options` NULL: as it stands. `path` is that of the options in errors
 * ("$.model.options"). ERR_NOT_FOUND and unknown options name the nearest. */
int zoo_build(const char *name, const cJSON *options, const char *path, Model *out_model);
/* All names, in the order above. */
const char *const *zoo_names(int *out_n);

#endif

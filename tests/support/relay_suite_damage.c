/* Objects that are not what their reader expects: for every relay. A worker's reader says which key
 * and what is wrong, and goes on. */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "tests/support/damage.h"
#include "tests/support/relay_suite.h"
#include "worker/fetch.h"

enum { N_TENSORS = 2 };

static const BlobTensor expected[N_TENSORS] = {{DTYPE_F32, {2, {8, 32}}}, {DTYPE_I32, {1, {8}}}};

static bool reads(RelayRig *rig, Fetch *fetch, int i) {
    static unsigned char staging[DAMAGED_BYTES];
    size_t offsets[N_TENSORS];
    const size_t capacity = (size_t)blob_layout(expected, N_TENSORS, offsets);
    const FetchBlob blob = {staging, capacity, expected, offsets, N_TENSORS};
    const Key key = key_activation(&fetch->space, (KeyPlace){0, -1}, 0, 1, i);
    const char *reason = damage_reason(i);
    const char *name = damage_name(i);
    Damaged object;
    int64_t bytes = 0;
    damage_make(i, key.text, expected, N_TENSORS, &object);
    Slice part = {object.bytes, object.n};
    RIG_CHECK(relay_put(relay_rig(rig, 1), key.text, &part, 1,
                        clock_deadline_ms(relay_rig_patience_ms(rig))) >= 0,
              "%s: %s", name, err_text());
    int rc = fetch_get(fetch, key, (FetchPeer){0, 0}, &blob, &bytes);
    if (!reason) {
        RIG_CHECK(rc == 0 && bytes == (int64_t)capacity &&
                      memcmp(staging, object.bytes, capacity) == 0,
                  "%s: %d %s", name, rc, err_text());
        return true;
    }
    /* One that is larger than what is expected may be refused before it is read. */
    RIG_CHECK(rc == ERR_CORRUPT || (rc == ERR_LIMIT && object.n > capacity), "%s: %d %s", name, rc,
              err_text());
    RIG_CHECK(strstr(err_text(), key.text), "%s: no key in '%s'", name, err_text());
    RIG_CHECK(strstr(err_text(), reason), "%s: no '%s' in '%s'", name, reason, err_text());
    RIG_CHECK(bytes == 0, "%s: %lld bytes were counted", name, (long long)bytes);
    return true;
}

bool relay_suite_damaged_objects(RelayRig *rig) {
    Relay *relay = NULL;
    Fetch fetch;
    Order order;
    order_init(&order);
    snprintf(order.job, sizeof order.job, "job");
    order.generation = 1;
    order.wait_timeout_ms = 1; /* what is there is read all the same, and tried again once */
    RIG_CHECK(rig->factory->open(rig->place, &relay) == 0, "%s", err_text());
    RIG_CHECK(fetch_init(&fetch, &order, relay) == 0, "%s", err_text());
    bool ok = true;
    for (int i = 0; ok && i < N_DAMAGES; i++)
        ok = reads(rig, &fetch, i);
    ok = ok && reads(rig, &fetch, DAMAGE_NONE); /* which is there already */
    fetch_done(&fetch);
    return ok;
}

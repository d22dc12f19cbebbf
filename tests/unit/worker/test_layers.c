/* The memory plan of orders that no memory can hold. */
#include "worker/layers.h"

#include <criterion/criterion.h>
#include <string.h>

#include "core/err.h"
#include "tests/support/sim.h"

/* 2^32 pixels a row: with 2^30 rows 2^64 bytes, which is 0 where sizes are not checked. */
static const char wide[] =
    "{\"name\":\"wide\",\"input\":{\"dtype\":\"F32\",\"shape\":[1,65536,65536]},"
    "\"target\":{\"dtype\":\"I32\",\"shape\":[]},\"layers\":["
    "{\"name\":\"relu\",\"kind\":\"relu\"},{\"name\":\"pool\",\"kind\":\"global_avgpool2d\"},"
    "{\"name\":\"head\",\"kind\":\"linear\",\"features\":2},"
    "{\"name\":\"loss\",\"kind\":\"cross_entropy\"}]}";

static int plan_rows(int64_t rows) {
    SimJob job;
    Stage stage;
    Layers *layers = NULL;
    Slab slab;
    const DeviceOps *ops = NULL;
    Device *device = NULL;
    cr_assert_eq(sim_job_init_text(&job, wide, false, 2), 0, "%s", err_text());
    sim_job_samples(&job, rows);
    sim_job_micro(&job, rows, (int32_t)rows);
    cr_assert_eq(device_find("cpu", &ops), 0);
    cr_assert_eq(ops->open(&(DeviceConfig){.threads = 1, .isa = "auto"}, &device), 0);
    cr_assert_eq(stage_init(&stage, &job.order.model, job.order.plan.ends, 1, 0), 0);
    const LayersSetup setup = {
        .order = &job.order, .stage = &stage, .ops = ops, .device = device, .n_slots = 2};
    slab_init(&slab);
    int rc = layers_open(&setup, &layers);
    cr_assert_eq(rc, 0, "%s", err_text());
    rc = layers_plan(layers, &slab);
    layers_close(layers);
    slab_done(&slab);
    stage_done(&stage);
    ops->close(device);
    sim_job_done(&job);
    return rc;
}

Test(layers, sizes_that_no_memory_holds) {
    cr_expect_eq(plan_rows(1), 0, "%s", err_text());
    for (int bits = 25; bits <= 30; bits++) {
        cr_expect_eq(plan_rows(INT64_C(1) << bits), ERR_LIMIT, "2^%d rows", bits);
        cr_expect(strstr(err_text(), "do not fit any memory"), "%s", err_text());
    }
}

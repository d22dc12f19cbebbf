#include "tests/support/cutting.h"

#include <stdlib.h>

#include "tests/support/redis_place.h"

static int operate(Cutting *cutting) {
    if (cutting->put)
        return place_put(cutting->proxied, "cut/o", cutting->data, cutting->bytes, 10000);
    place_expect(cutting->proxied, "cut/o", cutting->data, cutting->bytes);
    return 0;
}

static void clean(const Cutting *cutting) {
    int64_t n = 0;
    cr_assert_eq(relay_drop_one(cutting->direct, "cut", &n), 0, "%s", err_text());
    cr_assert_eq(n, 1);
}

int64_t cutting_stride(void) {
#ifdef __SANITIZE_ADDRESS__
    return getenv("FUNCPIPE_LONG") ? 1 : 3;
#else
    return 1;
#endif
}

int64_t cutting_measure(Cutting *cutting) {
    proxy_cut_all(cutting->proxy);
    cr_assert_geq(operate(cutting), 0, "%s", err_text());
    int64_t n = proxy_bytes(cutting->proxy, cutting->way);
    if (cutting->put)
        clean(cutting);
    return n;
}

void cutting_at(Cutting *cutting, int64_t at, bool reset) {
    const long long place = at;
    int64_t n_before = cutting->proxied->counters.n_retries;
    int64_t n_connections = proxy_connections(cutting->proxy);
    int64_t n_cuts = proxy_cuts(cutting->proxy);
    proxy_cut_all(cutting->proxy);
    (cutting->any ? proxy_cut_first : proxy_cut)(cutting->proxy, cutting->way, at, reset);
    int rc = operate(cutting);
    cr_assert(rc == 0 || rc == 1, "cut at %lld: %d %s", place, rc, err_text());
    cr_assert_geq(cutting->proxied->counters.n_retries - n_before, cutting->n_retries,
                  "cut at %lld", place);
    cr_assert_eq(proxy_cuts(cutting->proxy) - n_cuts, 1, "cut at %lld", place);
    cr_assert_geq(proxy_connections(cutting->proxy) - n_connections, 2, "cut at %lld", place);
    if (!cutting->put)
        return;
    place_expect(cutting->direct, "cut/o", cutting->data, cutting->bytes);
    if (cutting->look)
        cutting->look(cutting, at, false);
    clean(cutting);
    if (cutting->look)
        cutting->look(cutting, at, true);
}

/* Any bytes: json_parse says yes or no; what it accepts prints, and reads back as the same text.
 * The getters see every object. */
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "core/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(int truth) {
    if (!truth)
        abort();
}

static void ask(const cJSON *value) {
    JsonObject object;
    static const char *const names[] = {"gpipe", "1f1b"};
    int64_t i64s[4];
    const char *text;
    double f64;
    bool truth;
    int n;
    if (json_object(value, "$", &object) >= 0) {
        json_opt_i64(&object, "batch", 0, 100, i64s);
        json_opt_f64(&object, "lr", 0, 1, &f64);
        json_opt_bool(&object, "shuffle", &truth);
        json_get_string(&object, "name", &text);
        json_opt_choice(&object, "schedule", names, 2, &n);
        json_opt_duration_ms(&object, "limit", i64s);
        json_opt_bytes(&object, "memory", i64s);
        json_get_i64_array(&object, "cut", -5, 5, i64s, 4, &n);
        json_end(&object);
    }
    for (const cJSON *item = value->child; item; item = item->next)
        ask(item);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    enum { MAX_BYTES = 1 << 16 };
    cJSON *value = NULL;
    int rc = json_parse("input", (const char *)data, bytes, MAX_BYTES, &value);
    if (rc < 0) {
        require(rc == ERR_FORMAT || rc == ERR_LIMIT);
        require(err_text()[0] != '\0');
        return 0;
    }
    ask(value);
    Buf first;
    Buf second;
    buf_init(&first, 0);
    buf_init(&second, 0);
    require(json_format(value, bytes % 2, &first) >= 0);
    cJSON *again = NULL;
    require(json_parse("output", buf_string(&first), first.bytes, SIZE_MAX, &again) >= 0);
    require(json_format(again, bytes % 2, &second) >= 0);
    require(first.bytes == second.bytes && memcmp(first.data, second.data, first.bytes) == 0);
    if (cJSON_IsObject(value) && bytes < 200) {
        char text[200];
        memcpy(text, data, bytes);
        text[bytes] = '\0';
        if (json_set(value, "a.b", text) >= 0)
            (void)json_format(value, false, &second);
    }
    cJSON_Delete(value);
    cJSON_Delete(again);
    buf_done(&first);
    buf_done(&second);
    return 0;
}

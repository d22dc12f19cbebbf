/* docs/job.schema.json and the parser must know the same keys. The schema has, for each object, an
 * example that uses all its keys (or several that do together): the parser must know them all, and
 * must refuse others; and what the parser writes must be in the schema. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/config.h"
#include "coordinator/schedule.h"
#include "coordinator/zoo.h"
#include "core/err.h"

static const char base[] =
    "{\"version\": 1, \"name\": \"job\", \"model\": {\"zoo\": \"mlp\", \"options\": "
    "{\"input\": [8], \"hidden\": [16], \"classes\": 3}}, \"data\": {\"train\": {\"kind\": "
    "\"generated\", \"samples\": 100}, \"eval\": {\"kind\": \"generated\", \"samples\": 50}}, "
    "\"batch\": 32, \"steps\": 3, \"update\": {\"kind\": \"sgd\", \"lr\": 0.1}}";

static cJSON *schema;
static const cJSON *defs;

static void load_schema(void) {
    cr_assert_eq(json_parse_file(FUNCPIPE_SOURCE_DIR "/docs/job.schema.json", 1 << 20, &schema), 0,
                 "%s", err_text());
    defs = cJSON_GetObjectItem(schema, "$defs");
    cr_assert_not_null(defs);
}

static void free_schema(void) {
    cJSON_Delete(schema);
}

TestSuite(config_schema, .init = load_schema, .fini = free_schema);

static const cJSON *def(const char *name) {
    const cJSON *found = cJSON_GetObjectItem(defs, name);
    cr_assert_not_null(found, "no $defs.%s", name);
    return found;
}

static const cJSON *properties_of(const cJSON *object) {
    const cJSON *properties = cJSON_GetObjectItem(object, "properties");
    cr_assert_not_null(properties);
    cr_assert(cJSON_IsFalse(cJSON_GetObjectItem(object, "additionalProperties")));
    return properties;
}

/* Parse the base with `value` (JSON text) at `path`; the error note, or "". */
static const char *parse_with(const char *path, const char *value) {
    JobConfig config;
    ConfigSet set = {path, value};
    if (config_parse("job", base, strlen(base), "/", &set, 1, 0, &config) < 0)
        return err_text();
    config_done(&config);
    return "";
}

static void known(const char *path, const cJSON *value) {
    Buf text;
    buf_init(&text, 0);
    cr_assert_eq(json_format(value, false, &text), 0);
    const char *note = parse_with(path, text.data);
    cr_expect_null(strstr(note, "unknown key"), "%s = %s: %s", path, text.data, note);
    cr_expect_null(strstr(note, "exactly one of the keys 'zoo'"), "%s: %s", path, note);
    buf_done(&text);
}

/* The object `name` of the schema stands at `path` of a job: its examples use all of its keys and
 * the parser knows them; one more is refused. */
static void agree(const char *name, const char *path) {
    const cJSON *object = def(name);
    const cJSON *properties = properties_of(object);
    const cJSON *examples = cJSON_GetObjectItem(object, "examples");
    const cJSON *example = NULL;
    const cJSON *property = NULL;
    cr_assert(cJSON_IsArray(examples), "%s has no examples", name);
    cJSON_ArrayForEach(property, properties) {
        bool used = false;
        cJSON_ArrayForEach(example, examples) {
            used = used || cJSON_GetObjectItemCaseSensitive(example, property->string);
        }
        cr_expect(used, "%s: no example uses '%s'", name, property->string);
    }
    cJSON_ArrayForEach(example, examples) {
        known(path, example);
        cJSON *more = cJSON_Duplicate(example, true);
        cJSON_AddNumberToObject(more, "zzzz", 1);
        Buf text;
        buf_init(&text, 0);
        cr_assert_eq(json_format(more, false, &text), 0);
        const char *note = parse_with(path, text.data);
        cr_expect(strstr(note, "unknown key 'zzzz'"), "%s with a foreign key: '%s'", path, note);
        buf_done(&text);
        cJSON_Delete(more);
    }
}

Test(config_schema, sections_agree) {
    static const char *const sections[] = {"data",     "save",     "evaluate", "plan",
                                           "platform", "timeouts", "limits"};
    char name[64];
    for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++) {
        snprintf(name, sizeof name, "section_%s", sections[i]);
        agree(name, sections[i]);
    }
}

Test(config_schema, kinds_of_data_agree) {
    agree("data_idx", "data.train");
    agree("data_npy", "data.train");
    agree("data_tokens", "data.train");
    agree("data_generated", "data.eval");
}

Test(config_schema, updates_agree) {
    agree("update_sgd", "update");
    agree("update_adamw", "update");
    agree("schedule_constant", "update.schedule");
    agree("schedule_cosine", "update.schedule");
    agree("schedule_linear", "update.schedule");
    agree("schedule_step", "update.schedule");
}

Test(config_schema, models_agree) {
    int n = 0;
    const char *const *names = zoo_names(&n);
    char name[64];
    agree("model_file", "model");
    agree("model_inline", "model");
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "model_%s", names[i]);
        agree(name, "model");
        snprintf(name, sizeof name, "options_%s", names[i]);
        Model model;
        const cJSON *example = cJSON_GetArrayItem(cJSON_GetObjectItem(def(name), "examples"), 0);
        cr_expect_eq(cJSON_GetArraySize(example), cJSON_GetArraySize(properties_of(def(name))));
        cr_expect_eq(zoo_build(names[i], example, "$", &model), 0, "%s", err_text());
        model_done(&model);
    }
}

/* Data under which a layer of each kind, by its schema's first example, makes a model. */
static const struct {
    const char *kind, *input, *target;
} layer_cases[] = {
    {"linear", "F32 [8]", "[]"},
    {"conv2d", "F32 [1,4,4]", "[1,4]"},
    {"batchnorm", "F32 [8]", "[]"},
    {"layernorm", "F32 [8]", "[]"},
    {"relu", "F32 [8]", "[]"},
    {"gelu", "F32 [8]", "[]"},
    {"add", "F32 [8]", "[]"},
    {"dropout", "F32 [8]", "[]"},
    {"maxpool2d", "F32 [1,4,4]", "[1,4]"},
    {"global_avgpool2d", "F32 [2,4,4]", "[]"},
    {"flatten", "F32 [2,4]", "[]"},
    {"embedding", "I32 [4]", "[4]"},
    {"position", "F32 [4,6]", "[4]"},
    {"attention", "F32 [4,6]", "[4]"},
    {"cross_entropy", "F32 [8]", "[]"},
    {"delay", "F32 [8]", "[]"},
};

static int parse_layer(int i, const cJSON *layer, Model *out_model) {
    char text[2048];
    Buf json;
    cJSON *root = NULL;
    buf_init(&json, 0);
    cr_assert_eq(json_format(layer, false, &json), 0);
    bool loss = strcmp(layer_cases[i].kind, "cross_entropy") == 0;
    snprintf(text, sizeof text,
             "{\"name\":\"m\",\"input\":{\"dtype\":\"%.3s\",\"shape\":%s},\"target\":{\"dtype\":"
             "\"I32\",\"shape\":%s},\"layers\":[%s%s]}",
             layer_cases[i].input, layer_cases[i].input + 4, layer_cases[i].target, json.data,
             loss ? "" : ",{\"name\":\"loss\",\"kind\":\"cross_entropy\"}");
    buf_done(&json);
    cr_assert_eq(json_parse("model", text, strlen(text), 1 << 20, &root), 0, "%s", err_text());
    int rc = model_parse(root, "$", out_model);
    cJSON_Delete(root);
    return rc;
}

/* What the program fills in for what is left out is what the schema says. */
static void same_defaults(const cJSON *given, const cJSON *properties, const Model *model) {
    cJSON *root = model_to_json(model);
    const cJSON *written = cJSON_GetObjectItem(root, "layers")->child;
    const cJSON *property = NULL;
    const char *kind = cJSON_GetObjectItem(given, "kind")->valuestring;
    cJSON_ArrayForEach(property, properties) {
        const cJSON *value = cJSON_GetObjectItem(property, "default");
        const cJSON *filled = cJSON_GetObjectItem(written, property->string);
        bool of_the_kernel =
            strcmp(kind, "maxpool2d") == 0 && strcmp(property->string, "stride") == 0;
        if (cJSON_GetObjectItem(given, property->string) || of_the_kernel ||
            strcmp(property->string, "inputs") == 0)
            continue;
        cr_expect_eq(value != NULL, filled != NULL, "%s.%s", kind, property->string);
        cr_expect(!value || cJSON_Compare(value, filled, true), "%s.%s", kind, property->string);
    }
    cJSON_Delete(root);
}

Test(config_schema, layers_agree) {
    Model model;
    char name[64];
    cr_assert_eq(sizeof layer_cases / sizeof layer_cases[0], LAYER_N_KINDS);
    cr_assert_eq(cJSON_GetArraySize(cJSON_GetObjectItem(def("layer"), "oneOf")), LAYER_N_KINDS);
    for (int i = 0; i < LAYER_N_KINDS; i++) {
        cr_assert_str_eq(layer_cases[i].kind, layer_kind_name((LayerKind)i));
        snprintf(name, sizeof name, "layer_%s", layer_cases[i].kind);
        const cJSON *properties = properties_of(def(name));
        const cJSON *examples = cJSON_GetObjectItem(def(name), "examples");
        const cJSON *least = cJSON_GetArrayItem(examples, 0);
        const cJSON *all = cJSON_GetArrayItem(examples, 1);
        const cJSON *key = NULL;
        cr_expect_eq(cJSON_GetArraySize(all), cJSON_GetArraySize(properties), "%s", name);
        cr_assert_eq(parse_layer(i, least, &model), 0, "%s: %s", name, err_text());
        same_defaults(least, properties, &model);
        model_done(&model);
        if (parse_layer(i, all, &model) >= 0)
            model_done(&model);
        else
            cr_expect_null(strstr(err_text(), "unknown key"), "%s: %s", name, err_text());
        cJSON_ArrayForEach(key, cJSON_GetObjectItem(def(name), "required")) {
            cJSON *less = cJSON_Duplicate(least, true);
            cJSON_DeleteItemFromObject(less, key->valuestring);
            cr_expect_lt(parse_layer(i, less, &model), 0, "%s without %s", name, key->valuestring);
            cJSON_Delete(less);
        }
    }
}

Test(config_schema, schedules_are_all_there) {
    const cJSON *schedule = cJSON_GetObjectItem(properties_of(def("section_plan")), "schedule");
    const cJSON *names = cJSON_GetObjectItem(schedule, "enum");
    cr_assert_eq(cJSON_GetArraySize(names), SCHEDULE_N);
    for (int i = 0; i < SCHEDULE_N; i++)
        cr_expect_str_eq(cJSON_GetArrayItem(names, i)->valuestring, schedule_names[i]);
}

/* Every key of `value` must be in the schema's object. */
static void covered(const cJSON *value, const cJSON *object, const char *where);

static const cJSON *resolve(const cJSON *part) {
    const cJSON *reference = cJSON_GetObjectItem(part, "$ref");
    return reference ? def(reference->valuestring + strlen("#/$defs/")) : part;
}

/* Of several forms, the one whose constants fit and that has all the keys. */
static const cJSON *choose(const cJSON *value, const cJSON *part) {
    part = resolve(part);
    const cJSON *forms = cJSON_GetObjectItem(part, "oneOf");
    const cJSON *form = NULL;
    cJSON_ArrayForEach(form, forms) {
        const cJSON *candidate = resolve(form);
        const cJSON *properties = cJSON_GetObjectItem(candidate, "properties");
        const cJSON *item = NULL;
        bool fits = properties != NULL;
        if (cJSON_GetObjectItem(candidate, "patternProperties"))
            return candidate;
        cJSON_ArrayForEach(item, value) {
            const cJSON *property =
                item->string ? cJSON_GetObjectItem(properties, item->string) : NULL;
            const cJSON *constant = cJSON_GetObjectItem(property, "const");
            fits = fits && property && (!constant || cJSON_Compare(constant, item, true));
        }
        if (fits)
            return candidate;
    }
    return part;
}

static void covered(const cJSON *value, const cJSON *object, const char *where) {
    const cJSON *item = NULL;
    object = choose(value, object);
    const cJSON *properties = cJSON_GetObjectItem(object, "properties");
    if (cJSON_GetObjectItem(object, "patternProperties"))
        return;
    cJSON_ArrayForEach(item, value) {
        char path[256];
        snprintf(path, sizeof path, "%s.%s", where, item->string);
        const cJSON *property = cJSON_GetObjectItemCaseSensitive(properties, item->string);
        cr_expect_not_null(property, "%s is not in the schema", path);
        if (property && cJSON_IsObject(item))
            covered(item, property, path);
        if (property && cJSON_IsArray(item) && cJSON_IsObject(item->child)) {
            const cJSON *element = NULL;
            cJSON_ArrayForEach(element, item) {
                covered(element, cJSON_GetObjectItem(property, "items"), path);
            }
        }
    }
}

static void resolved_is_covered(const ConfigSet *sets, int n_sets) {
    JobConfig config;
    cr_assert_eq(config_parse("job", base, strlen(base), "/", sets, n_sets, 0, &config), 0, "%s",
                 err_text());
    cJSON *root = config_to_json(&config);
    covered(root, schema, "$");
    cJSON_Delete(root);
    config_done(&config);
}

Test(config_schema, resolved_jobs_are_covered) {
    static const ConfigSet all[] = {{"save", "{\"every_steps\": 2, \"every\": \"1h\"}"},
                                    {"evaluate.every_steps", "2"},
                                    {"update", "{\"kind\": \"adamw\", \"lr\": 1}"}};
    static const ConfigSet cnn[] = {{"model", "{\"zoo\": \"cnn\"}"}, {"data.eval", "null"}};
    static const ConfigSet gpt[] = {
        {"model", "{\"zoo\": \"tiny_gpt\"}"},
        {"data", "{\"train\": {\"kind\": \"generated\", \"samples\": 50, \"tokens\": true}}"}};
    resolved_is_covered(NULL, 0);
    resolved_is_covered(all, 3);
    resolved_is_covered(cnn, 2);
    resolved_is_covered(gpt, 2);
}

Test(config_schema, top_level_agrees) {
    const cJSON *property = NULL;
    cJSON_ArrayForEach(property, properties_of(schema)) {
        const char *note = parse_with(property->string, "{}"); /* of a wrong type, but known */
        cr_expect_null(strstr(note, "unknown key"), "%s", note);
    }
    cr_expect(strstr(parse_with("zzzz", "1"), "$: unknown key 'zzzz'"));
}

/* ---- defaults and ranges ---- */

/* Where an object of the schema stands in a job, or what reads it otherwise. */
typedef struct Part {
    const char *name, *path; /* of $defs; path NULL: options of the zoo, or a layer */
} Part;

static const Part parts[] = {
    {"section_save", "save"},
    {"section_evaluate", "evaluate"},
    {"section_plan", "plan"},
    {"section_reduce", "plan.reduce"},
    {"section_platform", "platform"},
    {"section_timeouts", "timeouts"},
    {"section_limits", "limits"},
    {"data_idx", "data.train"},
    {"data_npy", "data.train"},
    {"data_tokens", "data.train"},
    {"data_generated", "data.train"},
    {"update_sgd", "update"},
    {"update_adamw", "update"},
    {"schedule_constant", "update.schedule"},
    {"schedule_cosine", "update.schedule"},
    {"schedule_linear", "update.schedule"},
    {"schedule_step", "update.schedule"},
    {"options_mlp", NULL},
    {"options_cnn", NULL},
    {"options_tiny_gpt", NULL},
};
enum { N_PARTS = sizeof parts / sizeof parts[0] };

/* Its place in layer_cases; -1: it is no layer. */
static int layer_of(const Part *part) {
    for (int i = 0; strncmp(part->name, "layer_", 6) == 0 && i < LAYER_N_KINDS; i++) {
        if (strcmp(part->name + 6, layer_cases[i].kind) == 0)
            return i;
    }
    return -1;
}

/* The whole text of what the program makes of `value` at the part's place (NULL: of nothing there),
 * or why it refuses it. */
static char *outcome_of(const Part *part, const cJSON *value) {
    static char outcome[1 << 14];
    const char *text = NULL;
    char *given = value ? cJSON_PrintUnformatted(value) : NULL;
    cJSON *made = NULL;
    if (part->path) {
        JobConfig config;
        ConfigSet sets[] = {{part->path, given}, {"steps", "null"}};
        int n_sets = (value != NULL) + (value && strcmp(part->path, "epochs") == 0);
        if (config_parse("job", base, strlen(base), "/", sets, n_sets, CONFIG_WITHOUT_DATA,
                         &config) >= 0) {
            made = config_to_json(&config);
            config_done(&config);
        }
    } else {
        Model model;
        int layer = layer_of(part);
        int rc = layer < 0 ? zoo_build(part->name + strlen("options_"), value, "$", &model)
                           : parse_layer(layer, value, &model);
        if (rc >= 0) {
            made = model_to_json(&model);
            model_done(&model);
        }
    }
    text = made ? cJSON_PrintUnformatted(made) : NULL;
    snprintf(outcome, sizeof outcome, "%s", text ? text : err_text());
    cJSON_free((char *)text);
    cJSON_free(given);
    cJSON_Delete(made);
    return outcome;
}

/* An example of the part that uses the key, with `number` as its value. */
static cJSON *with_number(const cJSON *object, const char *key, double number) {
    const cJSON *example = NULL;
    cJSON_ArrayForEach(example, cJSON_GetObjectItem(object, "examples")) {
        if (!cJSON_GetObjectItemCaseSensitive(example, key))
            continue;
        cJSON *changed = cJSON_Duplicate(example, true);
        cJSON_ReplaceItemInObjectCaseSensitive(changed, key, cJSON_CreateNumber(number));
        return changed;
    }
    cr_assert_fail("no example uses '%s'", key);
    return NULL;
}

/* What is said of the key with that number, refused or not. */
static const char *said_of(const Part *part, const cJSON *object, const char *key, double number) {
    cJSON *value = object ? with_number(object, key, number) : cJSON_CreateNumber(number);
    const char *outcome = outcome_of(part, value);
    cJSON_Delete(value);
    return outcome;
}

/* The program refuses what lies outside of the property's range, by name, and nothing inside. */
static void same_range(const Part *part, const cJSON *object, const cJSON *property) {
    const cJSON *minimum = cJSON_GetObjectItem(property, "minimum");
    const cJSON *maximum = cJSON_GetObjectItem(property, "maximum");
    const cJSON *below = cJSON_GetObjectItem(property, "exclusiveMaximum");
    const char *key = property->string;
    char place[96];
    double low = NAN;
    double high = NAN;
    if (!minimum)
        return;
    snprintf(place, sizeof place, ".%s: ", key);
    const char *said = said_of(part, object, key, minimum->valuedouble - 1);
    const char *range = strstr(said, " is outside ");
    cr_expect(range && sscanf(range, " is outside %lf to %lf", &low, &high) == 2, "%s.%s: %s",
              part->name, key, said);
    cr_expect(strstr(said, place), "%s.%s: %s", part->name, key, said);
    cr_expect_eq(low, minimum->valuedouble, "%s.%s: %s", part->name, key, said);
    bool of_the_batch = strcmp(key, "micro_batch") == 0;
    cr_expect(!maximum || of_the_batch || high == maximum->valuedouble, "%s.%s: %s", part->name,
              key, said);
    said = said_of(part, object, key, minimum->valuedouble);
    cr_expect_null(strstr(said, " is outside "), "%s.%s: %s", part->name, key, said);
    if (below) {
        said = said_of(part, object, key, below->valuedouble);
        cr_expect(strstr(said, place), "%s.%s: %s", part->name, key, said);
        said = said_of(part, object, key, 0.999 * below->valuedouble);
        cr_expect_null(strstr(said, place), "%s.%s: %s", part->name, key, said);
    }
}

Test(config_schema, ranges_are_the_same) {
    const cJSON *property = NULL;
    int n = 0;
    for (int i = 0; i < N_PARTS; i++) {
        cJSON_ArrayForEach(property, properties_of(def(parts[i].name))) {
            same_range(&parts[i], def(parts[i].name), property);
            n += cJSON_HasObjectItem(property, "minimum");
        }
    }
    for (int i = 0; i < LAYER_N_KINDS; i++) {
        char name[64];
        snprintf(name, sizeof name, "layer_%s", layer_cases[i].kind);
        cJSON_ArrayForEach(property, properties_of(def(name))) {
            same_range(&(Part){name, NULL}, def(name), property);
            n += cJSON_HasObjectItem(property, "minimum");
        }
    }
    cJSON_ArrayForEach(property, properties_of(schema)) {
        same_range(&(Part){"$", property->string}, NULL, property);
        n += cJSON_HasObjectItem(property, "minimum");
    }
    cr_expect_geq(n, 60);
}

/* With the default that the schema tells of the same comes out as without the key. */
static void same_default(const Part *part, const cJSON *least, const cJSON *property) {
    const cJSON *value = cJSON_GetObjectItem(property, "default");
    if (!value)
        return;
    char *without = strdup(outcome_of(part, least));
    cJSON *with = least ? cJSON_Duplicate(least, true) : cJSON_Duplicate(value, true);
    if (least)
        cJSON_AddItemToObject(with, property->string, cJSON_Duplicate(value, true));
    const char *outcome = outcome_of(part, with);
    cr_expect_eq(outcome[0], '{', "%s.%s: %s", part->name, property->string, outcome);
    cr_expect_str_eq(outcome, without, "%s.%s", part->name, property->string);
    cJSON_Delete(with);
    free(without);
}

Test(config_schema, defaults_are_the_same) {
    const cJSON *property = NULL;
    const cJSON *key = NULL;
    for (int i = 0; i < N_PARTS; i++) {
        const cJSON *object = def(parts[i].name);
        const cJSON *example = cJSON_GetArrayItem(cJSON_GetObjectItem(object, "examples"), 0);
        cJSON *least = cJSON_CreateObject(); /* what is required */
        cJSON_ArrayForEach(key, cJSON_GetObjectItem(object, "required")) {
            const cJSON *value = cJSON_GetObjectItemCaseSensitive(example, key->valuestring);
            cJSON_AddItemToObject(least, key->valuestring, cJSON_Duplicate(value, true));
        }
        cJSON_ArrayForEach(property, properties_of(object)) {
            same_default(&parts[i], least, property);
        }
        cJSON_Delete(least);
    }
    cJSON_ArrayForEach(property, properties_of(schema)) {
        same_default(&(Part){"$", property->string}, NULL, property);
    }
}

/* ---- the examples of the documentation ---- */

/* A job or a model, as text: the schema covers it and the program reads it. */
static void check_example(const char *what, const char *text, size_t bytes) {
    cJSON *root = NULL;
    JobConfig config;
    Model model;
    cr_assert_eq(json_parse(what, text, bytes, 1 << 20, &root), 0, "%s", err_text());
    if (cJSON_GetObjectItem(root, "layers")) {
        covered(root, def("model_inline"), what);
        cr_assert_eq(model_parse(root, "$", &model), 0, "%s: %s", what, err_text());
        model_done(&model);
    } else {
        covered(root, schema, what);
        int rc = config_parse(what, text, bytes, FUNCPIPE_SOURCE_DIR "/docs/examples", NULL, 0,
                              CONFIG_WITHOUT_DATA, &config);
        cr_assert_eq(rc, 0, "%s", err_text());
        config_done(&config);
    }
    cJSON_Delete(root);
}

static char *read_doc(const char *name) {
    char path[512];
    static char text[1 << 17];
    snprintf(path, sizeof path, FUNCPIPE_SOURCE_DIR "/%s", name);
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file, "%s", path);
    size_t n = fread(text, 1, sizeof text - 1, file);
    cr_assert(feof(file), "%s is too long for this test", path);
    fclose(file);
    text[n] = '\0';
    return text;
}

/* Tables of docs/job-file.md, by what stands above them; keys of several objects in one table. */
static const struct {
    const char *heading, *names[2];
} tables[] = {
    {"\n## The file\n", {NULL, NULL}},
    {"\n**mlp**: ", {"options_mlp", NULL}},
    {"\n**cnn**: ", {"options_cnn", NULL}},
    {"\n**tiny_gpt**: ", {"options_tiny_gpt", NULL}},
    {"\n## data of kind \"idx\" and \"npy\"\n", {"data_idx", NULL}},
    {"\n## data of kind \"tokens\"\n", {"data_tokens", NULL}},
    {"\n## data of kind \"generated\"\n", {"data_generated", NULL}},
    {"\n## update of kind \"sgd\"\n", {"update_sgd", NULL}},
    {"\n## update of kind \"adamw\"\n", {"update_adamw", NULL}},
    {"\n## update.schedule\n", {"schedule_cosine", "schedule_step"}},
    {"\n## save\n", {"section_save", NULL}},
    {"\n## evaluate\n", {"section_evaluate", NULL}},
    {"\n## plan\n", {"section_plan", NULL}},
    {"\n## plan.reduce\n", {"section_reduce", NULL}},
    {"\n## platform\n", {"section_platform", NULL}},
    {"\n## timeouts\n", {"section_timeouts", NULL}},
    {"\n## limits\n", {"section_limits", NULL}},
};
enum { N_TABLES = sizeof tables / sizeof tables[0] };

static bool is_required(const cJSON *object, const char *key) {
    const cJSON *name = NULL;
    cJSON_ArrayForEach(name, cJSON_GetObjectItem(object, "required")) {
        if (strcmp(name->valuestring, key) == 0)
            return true;
    }
    return false;
}

/* The third cell of a key's row: `VALUE`, "required", or words. */
static void check_row(int table, const char *key, const char *cell) {
    const cJSON *object = tables[table].names[0] ? def(tables[table].names[0]) : schema;
    const cJSON *property = cJSON_GetObjectItemCaseSensitive(properties_of(object), key);
    if (!property && tables[table].names[1]) {
        object = def(tables[table].names[1]);
        property = cJSON_GetObjectItemCaseSensitive(properties_of(object), key);
    }
    cr_assert_not_null(property, "%s: no '%s'", tables[table].heading + 1, key);
    const cJSON *value = cJSON_GetObjectItem(property, "default");
    cJSON *told = cell[1] == '`' ? cJSON_Parse(cell + 2) : NULL;
    cr_expect_eq(strcmp(cell, " required ") == 0, is_required(object, key), "%s: %s",
                 tables[table].heading + 1, key);
    cr_expect_eq(told != NULL, value != NULL, "%s: %s:%s", tables[table].heading + 1, key, cell);
    cr_expect(!told || cJSON_Compare(told, value, true), "%s: %s:%s", tables[table].heading + 1,
              key, cell);
    cJSON_Delete(told);
}

Test(config_schema, defaults_in_the_text_are_right) {
    const char *text = read_doc("docs/job-file.md");
    for (int i = 0; i < N_TABLES; i++) {
        char key[64];
        char cell[128];
        int n = 0;
        const char *line = strstr(text, tables[i].heading);
        cr_assert_not_null(line, "%s", tables[i].heading + 1);
        line = strstr(line, "| form | default | what it says |\n");
        cr_assert_not_null(line);
        while ((line = strchr(line, '\n') + 1)[0] == '|') {
            if (sscanf(line, "| `%63[^`]` |%*[^|]|%127[^|]|", key, cell) != 2)
                continue; /* the line below the heads */
            check_row(i, key, cell);
            n++;
        }
        cr_expect_gt(n, 1, "%s", tables[i].heading + 1);
    }
}

Test(config_schema, examples_are_right) {
    char name[512];
    int n = 0;
    DIR *dir = opendir(FUNCPIPE_SOURCE_DIR "/docs/examples");
    cr_assert_not_null(dir);
    for (const struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(name, sizeof name, "docs/examples/%.200s", entry->d_name);
        const char *text = read_doc(name);
        check_example(name, text, strlen(text));
        n++;
    }
    closedir(dir);
    cr_expect_geq(n, 7);
}

Test(config_schema, examples_in_the_text_are_right) {
    static const char *const docs[] = {"README.md", "docs/job-file.md"};
    static const char fence[] = "\n```json\n";
    for (size_t i = 0; i < sizeof docs / sizeof docs[0]; i++) {
        int n = 0;
        const char *at = read_doc(docs[i]);
        while ((at = strstr(at, fence)) != NULL) {
            at += sizeof fence - 1;
            const char *end = strstr(at, "\n```\n");
            cr_assert_not_null(end);
            check_example(docs[i], at, (size_t)(end - at));
            at = end;
            n++;
        }
        cr_expect_gt(n, 0, "%s has no example", docs[i]);
    }
}

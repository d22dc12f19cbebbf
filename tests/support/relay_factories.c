#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/err.h"
#include "storage/relay_faulty.h"
#include "storage/relay_file.h"
#include "tests/support/relay_suite.h"
#include "tests/support/temp.h"

/* ---- memory ---- */

static int mem_place_open(void **out_place) {
    RelayMemStore *store = NULL;
    TRY(relay_mem_store_open(&store));
    *out_place = store;
    return 0;
}

static void mem_place_close(void *place) {
    relay_mem_store_close(place);
}

static int mem_open(void *place, Relay **out_relay) {
    return relay_mem_open(place, out_relay);
}

const RelayFactory relay_factory_mem = {.name = "mem",
                                        .place_open = mem_place_open,
                                        .place_close = mem_place_close,
                                        .open = mem_open,
                                        .adds = true};

/* ---- files ---- */

void relay_suite_remove_folder(const char *path) {
    temp_remove(path);
}

int relay_suite_folder(char *out_path, size_t path_bytes) {
    return temp_make(out_path, path_bytes, "test");
}

static int file_place_open(void **out_place) {
    char folder[512];
    if (relay_suite_folder(folder, sizeof folder) < 0)
        return err_set(ERR_IO, "no folder for the test");
    *out_place = strdup(folder);
    return *out_place ? 0 : err_set(ERR_MEMORY, "a path");
}

static void file_place_close(void *place) {
    relay_suite_remove_folder(place);
    free(place);
}

static int file_open(void *place, Relay **out_relay) {
    char url[600];
    snprintf(url, sizeof url, "file://%s", (const char *)place);
    return relay_open(url, out_relay);
}

const RelayFactory relay_factory_file = {.name = "file",
                                         .place_open = file_place_open,
                                         .place_close = file_place_close,
                                         .open = file_open,
                                         .across_processes = true,
                                         .adds = true};

static int file_named_open(void *place, Relay **out_relay) {
    TRY(relay_file_open(place, out_relay));
    relay_file_forbid_unnamed(*out_relay);
    return 0;
}

const RelayFactory relay_factory_file_named = {.name = "file_named",
                                               .place_open = file_place_open,
                                               .place_close = file_place_close,
                                               .open = file_named_open,
                                               .across_processes = true,
                                               .adds = true};

/* ---- faulty ---- */

static int faulty_open(void *place, Relay **out_relay) {
    Relay *inner = NULL;
    TRY(relay_mem_open(place, &inner));
    return relay_faulty_open(inner, NULL, 0, out_relay);
}

const RelayFactory relay_factory_faulty = {.name = "faulty",
                                           .place_open = mem_place_open,
                                           .place_close = mem_place_close,
                                           .open = faulty_open,
                                           .adds = true};

static int delayed_open(void *place, Relay **out_relay) {
    static const RelayFaultRule rules[] = {
        {.fault = RELAY_FAULT_DELAY, .n_operations = INT64_MAX, .delay_ms = 2}};
    Relay *inner = NULL;
    TRY(relay_mem_open(place, &inner));
    return relay_faulty_open(inner, rules, 1, out_relay);
}

const RelayFactory relay_factory_delayed = {.name = "delayed",
                                            .place_open = mem_place_open,
                                            .place_close = mem_place_close,
                                            .open = delayed_open,
                                            .adds = true,
                                            .slowness = 10};

#include "tests/bench/step_parts.h"

#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "tests/bench/bench.h"

typedef enum What { FORWARD, BACKWARD, FETCH_ACT, FETCH_GRAD, REDUCE, UPDATE, N_WHAT } What;
static const char *const beginnings[N_WHAT] = {"F", "B", "<a", "<g", "R", "U"};

/* The records of all stages, by stage, step, instruction and micro-batch. */
typedef struct Table {
    int32_t n_stages, n_micro;
    int64_t n_steps;
    WorkRecord *records;
} Table;

static WorkRecord *at(const Table *table, int32_t stage, int64_t step, What what, int32_t micro) {
    int64_t index = (((stage * table->n_steps + step) * N_WHAT) + what) * table->n_micro + micro;
    return &table->records[index];
}

static void add_record(const Table *table, int32_t stage, const WorkRecord *record) {
    for (int what = 0; what < N_WHAT; what++) {
        const size_t n = strlen(beginnings[what]);
        const char *number = record->name + n;
        if (strncmp(record->name, beginnings[what], n) != 0 ||
            (*number ? *number < '0' || *number > '9' : what < REDUCE))
            continue;
        const long micro = strtol(number, NULL, 10);
        if (micro < table->n_micro && record->step < table->n_steps)
            *at(table, stage, record->step, (What)what, (int32_t)micro) = *record;
    }
}

static void read_table(const Work *work, Table *table) {
    const PlanSpec *plan = &work->order.plan;
    *table = (Table){plan->n_stages, plan->n_micro, work->order.end_step, NULL};
    table->records = calloc((size_t)(table->n_stages * table->n_steps * N_WHAT * table->n_micro),
                            sizeof *table->records);
    if (!table->records)
        bench_must(err_set(ERR_MEMORY, "the records of all stages"), "reading traces");
    for (int32_t s = 0; s < table->n_stages; s++) {
        WorkRecord *records = NULL;
        int32_t n = work_trace(work, s, &records);
        for (int32_t i = 0; i < n; i++)
            add_record(table, s, &records[i]);
        free(records);
    }
}

/* Nanoseconds of [begin, end) that lie in [from, to). */
static double overlap_ns(int64_t begin, int64_t end, int64_t from, int64_t to) {
    begin = begin > from ? begin : from;
    end = end < to ? end : to;
    return end > begin ? (double)(end - begin) : 0;
}

/* A computation's waiting, by whether its input had been made (at made_ns) and fetched. */
static void add_wait(const WorkRecord *record, int64_t made_ns, int64_t fetched_ns,
                     StepParts *parts) {
    const int64_t begin = record->start_ns - record->wait_ns;
    parts->bubble += overlap_ns(begin, record->start_ns, 0, made_ns);
    parts->exposed += overlap_ns(begin, record->start_ns, made_ns, fetched_ns);
}

static void add_micro(const Table *table, int32_t stage, int64_t step, int32_t micro,
                      StepParts *parts) {
    const WorkRecord *forward = at(table, stage, step, FORWARD, micro);
    const WorkRecord *backward = at(table, stage, step, BACKWARD, micro);
    parts->compute += (double)(forward->end_ns - forward->start_ns) +
                      (double)(backward->end_ns - backward->start_ns);
    if (stage > 0)
        add_wait(forward, at(table, stage - 1, step, FORWARD, micro)->end_ns,
                 at(table, stage, step, FETCH_ACT, micro)->end_ns, parts);
    if (stage + 1 < table->n_stages)
        add_wait(backward, at(table, stage + 1, step, BACKWARD, micro)->end_ns,
                 at(table, stage, step, FETCH_GRAD, micro)->end_ns, parts);
}

/* R does little but exchange norms, so its time is waiting: for the last stage to begin its own,
 * then for the relay. */
static void add_end(const Table *table, int32_t stage, int64_t step, StepParts *parts) {
    const WorkRecord *reduce = at(table, stage, step, REDUCE, 0);
    const WorkRecord *update = at(table, stage, step, UPDATE, 0);
    int64_t last_ns = 0;
    for (int32_t s = 0; s < table->n_stages; s++) {
        int64_t begin_ns = at(table, s, step, REDUCE, 0)->start_ns;
        last_ns = begin_ns > last_ns ? begin_ns : last_ns;
    }
    parts->bubble += overlap_ns(reduce->start_ns, reduce->end_ns, 0, last_ns);
    parts->exposed += overlap_ns(reduce->start_ns, reduce->end_ns, last_ns, INT64_MAX);
    parts->compute += (double)(update->end_ns - update->start_ns);
}

void step_parts(const Work *work, int64_t first_step, StepParts *out_parts) {
    Table table;
    read_table(work, &table);
    const double scale = 1e6 * (double)(table.n_steps - first_step); /* ns of all to ms of one */
    for (int32_t s = 0; s < table.n_stages; s++) {
        StepParts parts = {0};
        for (int64_t step = first_step; step < table.n_steps; step++) {
            for (int32_t m = 0; m < table.n_micro; m++)
                add_micro(&table, s, step, m, &parts);
            add_end(&table, s, step, &parts);
        }
        parts.wall = (double)(at(&table, s, table.n_steps - 1, UPDATE, 0)->end_ns -
                              at(&table, s, first_step - 1, UPDATE, 0)->end_ns);
        out_parts[s] = (StepParts){parts.wall / scale, parts.compute / scale, parts.exposed / scale,
                                   parts.bubble / scale};
    }
    free(table.records);
}

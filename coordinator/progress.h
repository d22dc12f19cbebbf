/* Progress: what a person, or a program, sees of a running job. On a terminal one line, rewritten
 * in place; elsewhere a plain line every few seconds; with --json one JSON object a line on stdout.
 * Where stdout cannot be written that is said once (a reader that has gone knows): a job is worth
 * more than its lines. */
#ifndef FUNCPIPE_COORDINATOR_PROGRESS_H
#define FUNCPIPE_COORDINATOR_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct Progress {
    bool json, terminal, quiet;
    bool line_open; /* a line without its end stands on the terminal */
    bool lost;      /* stdout took a JSON line no more: nothing else is printed there */
    int64_t shown_ms;
} Progress;

typedef struct ProgressView {
    const char *state;
    int64_t step, end_step; /* steps done, of how many */
    double loss;            /* not a number: none yet */
    int64_t n_skipped;      /* updates skipped so far */
    double samples_per_s;
    int64_t left_ms; /* estimate; < 0: unknown */
    double bubble;   /* share of the compute threads' time that was waiting; < 0: unknown */
    int32_t n_alive, n_workers;
    int64_t n_restarts;
} ProgressView;

void progress_init(Progress *progress, bool json, bool quiet);
/* Show the view if it is time to (a terminal sees it more often than a file). */
void progress_show(Progress *progress, const ProgressView *view, int64_t now_ms);
/* A line of its own: "stage 1, replica 0 died: ...". `event` names it in JSON. */
void progress_say(Progress *progress, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same; in JSON with `members` too, JSON text such as "\"step\":12". */
void progress_say_with(Progress *progress, const char *event, const char *members,
                       const char *format, ...) __attribute__((format(printf, 4, 5)));
void progress_end(Progress *progress); /* ends the line under way */

#endif

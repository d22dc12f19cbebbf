/* What a program has to settle about its own process before it does anything else. Called by main
 * only (and by tests that need the same): it changes what belongs to the whole process. And what a
 * thread may settle about itself. */
#ifndef FUNCPIPE_CORE_PROCESS_H
#define FUNCPIPE_CORE_PROCESS_H

/* Descriptors 0, 1 and 2 that are closed become /dev/null, so that no file of ours gets such a
 * number and with it what is printed; writing to a reader that has gone (SIGPIPE) and beyond
 * RLIMIT_FSIZE (SIGXFSZ) become errors of write. */
void process_begin(void);
/* Can n_files more descriptors and n_threads more threads be had? They are taken at once and given
 * back. ERR_IO names the limit: libraries abort where they do not get theirs. */
int process_check_limits(int n_files, int n_threads);
/* Any thread of its own: it works briefly and often, beside one that computes. Asks the scheduler
 * for short slices, so that it is let in when it wakes and not at the next tick (Linux 6.12; older
 * ones know no such wish). */
void process_work_briefly(void);

#endif

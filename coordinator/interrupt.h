/* Interrupt: Ctrl-C, SIGTERM and SIGHUP (unless it was ignored from the start, as under nohup)
 * while the conductor's loop does not take them, so that the exit codes of job.h hold at any
 * moment: 130 after Ctrl-C, else 6. As long as nothing has been made that would be left behind they
 * end the process at once; then they are held until somebody asks, and a second one ends it all the
 * same. What a signal does is of the whole process, so this file has the state of one. */
#ifndef FUNCPIPE_COORDINATOR_INTERRUPT_H
#define FUNCPIPE_COORDINATOR_INTERRUPT_H

#include <stdbool.h>

/* End at once from now on; with `json` an error line goes to stdout too. */
void interrupt_begin(bool json);
/* The one file that would be left behind; "" or NULL: none. */
void interrupt_remove(const char *path);
/* Hold them from now on. */
void interrupt_hold(void);
/* The signal that is held, which is forgotten; 0: none. */
int interrupt_taken(void);
/* Was it to be ignored when the program began? */
bool interrupt_is_ignored(int number);

#endif

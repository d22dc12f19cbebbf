/* What the files of tests/support/e2e share; tests include e2e.h. */
#ifndef FUNCPIPE_TESTS_SUPPORT_E2E_PARTS_H
#define FUNCPIPE_TESTS_SUPPORT_E2E_PARTS_H

#include <stdint.h>

/* Release `thing` when the test leaves; returns it. Fails the test when it is NULL. */
void *e2e_keep(void *thing, void (*release)(void *thing));
int64_t e2e_deadline(void); /* when patience ends that begins now */

#endif

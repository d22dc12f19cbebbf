/* A locale that writes 1,5 for one and a half: the installed one, or one made for the test. */
#ifndef FUNCPIPE_TESTS_SUPPORT_GERMAN_H
#define FUNCPIPE_TESTS_SUPPORT_GERMAN_H

#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/temp.h"

/* Set it for the process; false when the system can neither give nor make one. */
static inline bool german_set(void) {
    if (setlocale(LC_ALL, "de_DE.UTF-8") || setlocale(LC_ALL, "de_DE"))
        return true;
    char folder[64];
    char command[256];
    if (temp_make(folder, sizeof folder, "german") < 0)
        return false;
    snprintf(command, sizeof command,
             "localedef -c -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1", folder);
    if (system(command) < 0)
        return false;
    setenv("LOCPATH", folder, 1);
    bool done = setlocale(LC_ALL, "de_DE.UTF-8") != NULL;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) == 0 && done;
}

#endif

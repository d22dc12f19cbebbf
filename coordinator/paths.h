/* Paths that go into Stage orders, which are JSON: a path that is not UTF-8 would arrive as another
 * one. So it is refused before anything is made. */
#ifndef FUNCPIPE_COORDINATOR_PATHS_H
#define FUNCPIPE_COORDINATOR_PATHS_H

/* `what` ("--out") names it in the error. NULL is no path, and fine. A relative path has the
 * current folder in front. */
int paths_check(const char *what, const char *path);

#endif

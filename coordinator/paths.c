#include "coordinator/paths.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "core/err.h"
#include "core/text.h"

int paths_check(const char *what, const char *path) {
    char folder[PATH_MAX];
    if (!path)
        return 0;
    if (!text_is_utf8(path, strlen(path)))
        return err_set(ERR_ARGUMENT, "%s: the path '%s' is not valid UTF-8", what, path);
    if (path[0] == '/')
        return 0;
    if (!getcwd(folder, sizeof folder))
        return err_errno(ERR_NOT_FOUND, errno, "%s: the current folder", what);
    if (!text_is_utf8(folder, strlen(folder)))
        return err_set(ERR_ARGUMENT, "%s: the current folder '%s' is not valid UTF-8", what,
                       folder);
    return 0;
}

/* The exit codes of the program. */
#include "coordinator/job.h"
#include "core/err.h"

int job_exit_code(int err_code, bool running) {
    switch (err_code) {
    case ERR_DIVERGED:
        return EXIT_CODE_DIVERGED;
    case ERR_INFEASIBLE:
        return EXIT_CODE_INFEASIBLE;
    case ERR_UNREACHABLE:
    case ERR_AUTH:
        return EXIT_CODE_UNREACHABLE;
    case ERR_UNSUPPORTED: /* by this build or machine: another configuration is wanted */
        return EXIT_CODE_USAGE;
    case ERR_ARGUMENT:
    case ERR_FORMAT:
    case ERR_NOT_FOUND:
    case ERR_EXISTS:
    case ERR_LIMIT:
        return running ? EXIT_CODE_FAILED : EXIT_CODE_USAGE;
    default:
        return err_code < 0 ? EXIT_CODE_FAILED : EXIT_CODE_DONE;
    }
}

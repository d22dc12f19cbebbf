#include "coordinator/cli.h"
#include "core/process.h"

int main(int argc, char **argv) {
    process_begin();
    return cli_main(argc, argv);
}

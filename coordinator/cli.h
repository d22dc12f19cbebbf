/* The command line: funcpipe COMMAND ... (main.c only calls cli_main). Exit codes stand in
 * coordinator/job.h; errors are one sentence on stderr, with --json an object on stdout too. */
#ifndef FUNCPIPE_COORDINATOR_CLI_H
#define FUNCPIPE_COORDINATOR_CLI_H

int cli_main(int argc, char **argv);

#endif

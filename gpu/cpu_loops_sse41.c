#define LOOPS_TABLE cpu_loops_sse41
#define LOOPS_BLOCK 8
#include "gpu/cpu_loops.inc"

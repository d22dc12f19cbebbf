#define LOOPS_TABLE cpu_loops_avx2
#define LOOPS_BLOCK 8
#include "gpu/cpu_loops.inc"

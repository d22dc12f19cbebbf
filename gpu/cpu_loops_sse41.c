#define LOOPS_TABLE cpu_loops_sse41
#define LOOPS_BLOCK 8
#define VECTOR_BYTES 16
#include "gpu/cpu_loops.inc"

#define LOOPS_TABLE cpu_loops_avx2
#define LOOPS_BLOCK 8
#define VECTOR_BYTES 32
#include "gpu/cpu_loops.inc"

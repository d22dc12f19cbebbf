#define LOOPS_TABLE cpu_loops_avx512
#define LOOPS_BLOCK 16
#define VECTOR_BYTES 64
#include "gpu/cpu_loops.inc"

# The CPU device: OpenMP, and its own loops compiled once per instruction set (chosen at run time).
if(FUNCPIPE_OPENMP)
  find_package(OpenMP COMPONENTS C)
  if(OpenMP_C_FOUND)
    target_compile_options(fp_gpu PRIVATE ${OpenMP_C_FLAGS})
    target_compile_definitions(fp_gpu PRIVATE FUNCPIPE_OPENMP=1)
    target_link_libraries(fp_gpu PUBLIC ${OpenMP_C_LIBRARIES})
  else()
    message(WARNING "no OpenMP for ${CMAKE_C_COMPILER}: the CPU device's own loops run on one thread")
  endif()
endif()

# -ffp-contract=fast: fused multiply-add where the set has it; still the same bits on every run.
set(fp_loop_flags -fopenmp-simd -ffp-contract=fast -fno-trapping-math)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU") # no prologue to align stores: sums would depend on addresses
  list(APPEND fp_loop_flags --param=vect-max-peeling-for-alignment=0)
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  set_source_files_properties(gpu/cpu_loops_avx512.c PROPERTIES COMPILE_OPTIONS
    "${fp_loop_flags};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx2;-mfma;-mprefer-vector-width=512")
  set_source_files_properties(gpu/cpu_loops_avx2.c PROPERTIES COMPILE_OPTIONS
    "${fp_loop_flags};-mavx2;-mfma")
  set_source_files_properties(gpu/cpu_loops_sse41.c PROPERTIES COMPILE_OPTIONS
    "${fp_loop_flags};-msse4.1")
endif()

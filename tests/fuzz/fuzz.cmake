# funcpipe_fuzz_targets(SOURCES LIBRARIES): the fuzz targets and what they are linked with.
function(funcpipe_fuzz_targets out_sources out_libraries)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_*.c)
  set(libraries fp_core)
  foreach(library fp_coordinator fp_worker) # found first: they stand on the others
    if(TARGET ${library})
      list(PREPEND libraries ${library})
    endif()
  endforeach()
  set(${out_sources} ${sources} PARENT_SCOPE)
  set(${out_libraries} ${libraries} PARENT_SCOPE)
endfunction()

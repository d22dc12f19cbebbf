# What the end-to-end tests start, and the library they preload there.
add_library(fault_io MODULE EXCLUDE_FROM_ALL e2e/fault_io.c)
target_compile_definitions(fault_io PRIVATE _GNU_SOURCE)
target_link_libraries(fault_io ${CMAKE_DL_LIBS})
file(GLOB e2e_programs CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/e2e/test_*.c)
foreach(source ${e2e_programs})
  get_filename_component(name ${source} NAME_WE)
  add_dependencies(${name} funcpipe funcpipe-worker fault_io)
endforeach()

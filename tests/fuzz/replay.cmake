# fuzz_replay_NAME runs every file of corpus/NAME through fuzz_NAME.c, with any compiler: what the
# fuzzer once found stays a test.
include(${CMAKE_CURRENT_LIST_DIR}/fuzz.cmake)
funcpipe_fuzz_targets(fuzz_sources fuzz_libraries)
foreach(source ${fuzz_sources})
  get_filename_component(name ${source} NAME_WE)
  string(REGEX REPLACE "^fuzz_" "" name ${name})
  add_executable(fuzz_replay_${name} ${source} ${CMAKE_CURRENT_LIST_DIR}/replay_main.c)
  target_link_libraries(fuzz_replay_${name} ${fuzz_libraries})
  add_test(NAME fuzz_replay_${name}
    COMMAND fuzz_replay_${name} ${CMAKE_CURRENT_LIST_DIR}/corpus/${name})
endforeach()
if(NOT FUNCPIPE_SANITIZE) # once is enough: it builds a preset of its own
  funcpipe_long_test(fuzz_long 900 ${CMAKE_CURRENT_LIST_DIR}/run 2)
endif()

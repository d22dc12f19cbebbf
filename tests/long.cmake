# funcpipe_long_test(NAME TIMEOUT COMMAND...): a test only where ctest runs with FUNCPIPE_LONG=1.
# ctest itself reads, at each run, the file that is written here; so the short form does not list
# as skipped what it never meant to run.
function(funcpipe_long_test name timeout)
  set(command "")
  foreach(word ${ARGN})
    string(APPEND command " \"${word}\"")
  endforeach()
  set_property(GLOBAL APPEND_STRING PROPERTY long_tests
    "  add_test(${name}${command})\n  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout})\n")
endfunction()

function(funcpipe_write_long_tests)
  get_property(tests GLOBAL PROPERTY long_tests)
  file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/long_tests.cmake
    CONTENT "if(\"\$ENV{FUNCPIPE_LONG}\" STREQUAL \"1\")\n${tests}endif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES
    ${CMAKE_CURRENT_BINARY_DIR}/long_tests.cmake)
endfunction()

# Criterion does not run under ThreadSanitizer: there, one plain program runs the threaded scenarios.
if(FUNCPIPE_SANITIZE MATCHES "thread")
  add_executable(tsan_main ${CMAKE_CURRENT_LIST_DIR}/tsan_main.c)
  target_link_libraries(tsan_main fp_support)
  add_test(NAME tsan_main COMMAND tsan_main)
  set_tests_properties(tsan_main PROPERTIES TIMEOUT 900)
endif()

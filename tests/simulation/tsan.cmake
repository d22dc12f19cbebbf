# Criterion does not run under ThreadSanitizer: there, one plain program runs the threaded scenarios.
if(FUNCPIPE_SANITIZE MATCHES "thread")
  add_executable(tsan_main ${CMAKE_CURRENT_LIST_DIR}/tsan_main.c)
  target_link_libraries(tsan_main fp_support)
  foreach(table vm equivalence kill relay_fault semantics)
    add_test(NAME tsan_${table} COMMAND tsan_main ${table}/)
    set_tests_properties(tsan_${table} PROPERTIES TIMEOUT 900
      ENVIRONMENT "TSAN_OPTIONS=suppressions=${CMAKE_CURRENT_LIST_DIR}/tsan.supp")
  endforeach()
  add_executable(tsan_relay ${CMAKE_SOURCE_DIR}/tests/contract/relay_tsan_main.c)
  target_link_libraries(tsan_relay fp_support)
  add_test(NAME tsan_relay COMMAND tsan_relay)
  set_tests_properties(tsan_relay PROPERTIES TIMEOUT 900)
endif()

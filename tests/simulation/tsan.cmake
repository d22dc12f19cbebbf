# Criterion does not run under ThreadSanitizer: there, one plain program runs the threaded scenarios.
if(FUNCPIPE_SANITIZE MATCHES "thread")
  add_executable(tsan_main ${CMAKE_CURRENT_LIST_DIR}/tsan_main.c
    unit/worker/test_exchange.c unit/worker/test_transfers.c simulation/test_parity.c)
  target_include_directories(tsan_main BEFORE PRIVATE ${CMAKE_CURRENT_LIST_DIR}/plain)
  target_compile_definitions(tsan_main PRIVATE FUNCPIPE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_link_libraries(tsan_main fp_support)
  foreach(table vm equivalence kill relay_fault transfers)
    add_test(NAME tsan_${table} COMMAND ${pinned} $<TARGET_FILE:tsan_main> ${table}/)
  endforeach()
  add_test(NAME tsan_exchange COMMAND ${pinned} $<TARGET_FILE:tsan_main> exchange/a_holder_with_two) # in every form
  # Most semantics are of numbers; their threads are those of the others. All: the long form.
  add_test(NAME tsan_semantics COMMAND ${pinned} $<TARGET_FILE:tsan_main> semantics/
    "device_|same_bits|part_of_a_sum|on_the_wire|restart|earlier_generations|over_stages|split_")
  add_test(NAME tsan_semantics_long COMMAND ${pinned} $<TARGET_FILE:tsan_main> semantics/)
  add_test(NAME tsan_exchange_long COMMAND ${pinned} $<TARGET_FILE:tsan_main> exchange/)
  add_test(NAME tsan_parity_long COMMAND ${pinned} $<TARGET_FILE:tsan_main> parity/ of_three_stages)
  foreach(table vm equivalence kill relay_fault semantics semantics_long transfers exchange
      exchange_long parity_long)
    set_tests_properties(tsan_${table} PROPERTIES TIMEOUT 900 RESOURCE_GROUPS cpus:1
      ENVIRONMENT "TSAN_OPTIONS=suppressions=${CMAKE_CURRENT_LIST_DIR}/tsan.supp")
  endforeach()
  add_executable(tsan_relay ${CMAKE_SOURCE_DIR}/tests/contract/relay_tsan_main.c)
  target_link_libraries(tsan_relay fp_support)
  add_test(NAME tsan_relay COMMAND ${pinned} $<TARGET_FILE:tsan_relay> mem file)
  add_test(NAME tsan_relay_long COMMAND ${pinned} $<TARGET_FILE:tsan_relay> file_named faulty delayed)
  add_test(NAME tsan_relay_redis COMMAND ${pinned} $<TARGET_FILE:tsan_relay> redis_plain redis_two redis_tls)
  add_test(NAME tsan_relay_s3 COMMAND ${pinned} $<TARGET_FILE:tsan_relay> s3_plain s3_announced)
  set_tests_properties(tsan_relay tsan_relay_long tsan_relay_redis tsan_relay_s3 PROPERTIES TIMEOUT 900
    RESOURCE_GROUPS cpus:1)
endif()

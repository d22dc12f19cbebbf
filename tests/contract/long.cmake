# The whole suite over relays that take minutes, in the long form only; else they are listed as
# skipped. Swift, a store without conditional puts, needs swift-proxy, swift-account,
# swift-container, swift-object.
add_executable(relay_main ${CMAKE_CURRENT_LIST_DIR}/relay_tsan_main.c)
target_link_libraries(relay_main fp_support)
foreach(factory s3_swift redis_slow s3_slow)
  add_test(NAME relay_${factory}_long COMMAND sh -c
    "test -n \"$FUNCPIPE_LONG\" || exit 77; exec $<TARGET_FILE:relay_main> ${factory}")
  set_tests_properties(relay_${factory}_long PROPERTIES TIMEOUT 900 SKIP_RETURN_CODE 77)
endforeach()

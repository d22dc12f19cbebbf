# The relay over Swift, a store without conditional puts: minutes, so in the long form only; else it
# is listed as skipped. Needs swift-proxy, swift-account, swift-container, swift-object.
add_executable(relay_main ${CMAKE_CURRENT_LIST_DIR}/relay_tsan_main.c)
target_link_libraries(relay_main fp_support)
add_test(NAME relay_swift_long COMMAND sh -c
  "test -n \"$FUNCPIPE_LONG\" || exit 77; exec $<TARGET_FILE:relay_main> s3_swift")
set_tests_properties(relay_swift_long PROPERTIES TIMEOUT 900 SKIP_RETURN_CODE 77)

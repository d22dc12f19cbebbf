# The whole suite over relays that take minutes. Swift, a store without conditional puts, needs
# swift-proxy, swift-account, swift-container, swift-object.
add_executable(relay_main ${CMAKE_CURRENT_LIST_DIR}/relay_tsan_main.c)
target_link_libraries(relay_main fp_support)
foreach(factory s3_swift redis_slow s3_slow)
  funcpipe_long_test(relay_${factory}_long 900 $<TARGET_FILE:relay_main> ${factory})
endforeach()

# The worker of the conductor's tests: it speaks the protocol and computes nothing.
add_executable(fake_worker EXCLUDE_FROM_ALL e2e/fake_worker.c)
target_link_libraries(fake_worker fp_storage)
target_compile_options(fake_worker PRIVATE -Wno-conversion)
if(TARGET test_conductor)
  add_dependencies(test_conductor fake_worker)
  target_link_options(test_conductor PRIVATE -Wl,--wrap=relay_open,--wrap=relay_open_again)
  target_compile_definitions(test_conductor PRIVATE FAKE_WORKER_PATH="$<TARGET_FILE:fake_worker>")
endif()

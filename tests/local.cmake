# Tests that are no Criterion programs.
include(${CMAKE_CURRENT_LIST_DIR}/long.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/fuzz/replay.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/simulation/tsan.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/golden/dump.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/e2e/e2e.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/e2e/fake_worker.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/contract/long.cmake)
funcpipe_write_long_tests()

# Tests that are no Criterion programs.
include(${CMAKE_CURRENT_LIST_DIR}/fuzz/replay.cmake)

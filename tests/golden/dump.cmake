# What tests/golden/make_curves.py reads; see tests/golden/README.md.
add_executable(dump_case ${CMAKE_CURRENT_LIST_DIR}/dump_case.c)
target_link_libraries(dump_case fp_support)

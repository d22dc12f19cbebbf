# funcpipe.so, for redis-server --loadmodule. It is loaded into a program that is not ours: never with
# sanitizers, in need of nothing but the C library (xxHash is compiled in), and only the function
# that the server looks for is to be seen.
set(module_sources storage/redis_module/redis_module.c storage/sum.c storage/blob.c storage/key.c
  core/err.c core/text.c core/hash.c core/dtype.c)
add_library(funcpipe_module MODULE ${module_sources})
set_target_properties(funcpipe_module PROPERTIES OUTPUT_NAME funcpipe PREFIX ""
  C_VISIBILITY_PRESET hidden)
target_compile_definitions(funcpipe_module PRIVATE XXH_INLINE_ALL)
target_compile_options(funcpipe_module PRIVATE -O3)
target_link_libraries(funcpipe_module PRIVATE fp_plain)
target_link_options(funcpipe_module PRIVATE -Wl,--no-undefined)

# oneDNN by its header and library. Debian's own dnnl-config.cmake asks for the OpenCL development
# files, which nothing here needs.
find_path(dnnl_INCLUDE_DIR dnnl.h)
find_library(dnnl_LIBRARY dnnl)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(dnnl REQUIRED_VARS dnnl_LIBRARY dnnl_INCLUDE_DIR)
if(dnnl_FOUND AND NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${dnnl_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${dnnl_INCLUDE_DIR})
endif()
mark_as_advanced(dnnl_INCLUDE_DIR dnnl_LIBRARY)

# find_package(regall): the target regall::regall, for include/regall.h. Found from where
# this file lies (PREFIX/lib/cmake/regall), so that a prefix may be moved.
get_filename_component(_regall_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET regall::regall)
  add_library(regall::regall SHARED IMPORTED)
  set_target_properties(regall::regall PROPERTIES
    IMPORTED_LOCATION "${_regall_prefix}/lib/libregall.so"
    IMPORTED_SONAME "libregall.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_regall_prefix}/include")
endif()
unset(_regall_prefix)

# Finds XRT, AMD's library for NPUs and FPGAs: target XRT::coreutil, variable XRT_FOUND.
# Its own xrt.pc is of no use: where Debian packages it the paths are wrong, and it links the device library, of which a process
# must not have two.
find_path(XRT_INCLUDE_DIR xrt/xrt_device.h HINTS "$ENV{XILINX_XRT}/include" PATHS /opt/xilinx/xrt/include PATH_SUFFIXES xrt)
find_library(XRT_COREUTIL_LIBRARY xrt_coreutil HINTS "$ENV{XILINX_XRT}/lib" PATHS /opt/xilinx/xrt/lib)
find_path(XRT_UUID_INCLUDE_DIR uuid/uuid.h)
find_library(XRT_UUID_LIBRARY uuid)
mark_as_advanced(XRT_INCLUDE_DIR XRT_COREUTIL_LIBRARY XRT_UUID_INCLUDE_DIR XRT_UUID_LIBRARY)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(XRT REQUIRED_VARS XRT_COREUTIL_LIBRARY XRT_INCLUDE_DIR XRT_UUID_LIBRARY XRT_UUID_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "on Debian and Ubuntu: apt-get install libxrt-dev uuid-dev")
if(XRT_FOUND AND NOT TARGET XRT::coreutil)
  add_library(XRT::coreutil INTERFACE IMPORTED)
  target_include_directories(XRT::coreutil SYSTEM INTERFACE "${XRT_INCLUDE_DIR}" "${XRT_UUID_INCLUDE_DIR}")
  target_link_libraries(XRT::coreutil INTERFACE "${XRT_COREUTIL_LIBRARY}" "${XRT_UUID_LIBRARY}")
endif()

# One line for a consumer whose flags allow kernels nothing beyond SSE2. Flags of single targets are not known here: FRUGAL_QUIET for those.
get_directory_property(frugal_options COMPILE_OPTIONS)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND NOT FRUGAL_QUIET AND NOT frugal_FIND_QUIETLY
   AND NOT "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_RELEASE} ${CMAKE_CXX_FLAGS_RELWITHDEBINFO} ${frugal_options}" MATCHES "-m(arch|avx)")
  message(STATUS "frugal: CMAKE_CXX_FLAGS has no -march, so header-only kernels use SSE2 only; add one, or link frugal::kernels and dispatch")
endif()
unset(frugal_options)

# Compiles through ccache where it is installed and nothing else was asked for.
if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(FRUGAL_CCACHE ccache)
  mark_as_advanced(FRUGAL_CCACHE)
  if(FRUGAL_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${FRUGAL_CCACHE}")
  endif()
endif()

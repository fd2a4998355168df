# FRUGAL_MACHINE_ISAS: the instruction sets that this machine can run, from the least to the most able; of these FRUGAL_ONLY_ISAS,
# where it is given, in which `best` is the most able.
include_guard(GLOBAL)
try_run(isas_ran isas_compiled "${PROJECT_BINARY_DIR}/list_isas" "${CMAKE_CURRENT_LIST_DIR}/list_isas.cpp"
  CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${PROJECT_SOURCE_DIR}/include"
  COMPILE_OUTPUT_VARIABLE isas_output RUN_OUTPUT_VARIABLE isas CXX_STANDARD 20)
if(NOT isas_compiled OR NOT isas_ran EQUAL 0)
  message(FATAL_ERROR "cannot list this machine's instruction sets: ${isas_output}")
endif()
string(REPLACE " " ";" isas "${isas}")
if(FRUGAL_ONLY_ISAS)
  list(GET isas -1 best)
  string(REPLACE "best" "${best}" only "${FRUGAL_ONLY_ISAS}")
  list(JOIN only "|" only)
  list(FILTER isas INCLUDE REGEX "^(${only})$")
  if(NOT isas)
    message(FATAL_ERROR "FRUGAL_ONLY_ISAS=${FRUGAL_ONLY_ISAS} names no instruction set of this machine")
  endif()
endif()
set(FRUGAL_MACHINE_ISAS "${isas}" CACHE INTERNAL "Instruction sets of this machine")

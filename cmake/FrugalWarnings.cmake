# frugal_warnings(target): the project's own code builds without a warning. One list: the header checks use it too.
set(FRUGAL_WARNING_FLAGS -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror)
function(frugal_warnings target)
  target_compile_options(${target} PRIVATE ${FRUGAL_WARNING_FLAGS})
endfunction()

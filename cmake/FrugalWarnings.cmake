# frugal_warnings(target): the project's own code builds without a warning.
function(frugal_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror)
endfunction()

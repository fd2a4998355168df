#pragma once
// A peer's shared libraries, loaded at run time: no header of theirs and no link line.
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "frugal/core/error.hpp"

namespace bench::peer {

namespace fg = frugal;

/// Loads the libraries that `variable` of the environment lists, parted by colons, in that order.
/// Errors: unsupported (it is not set, or none), io (a library cannot be loaded).
[[nodiscard]] inline fg::status load_libraries(const char* variable, const char* script) {
    const char* const listed = std::getenv(variable);
    const std::string list = listed != nullptr ? listed : "none";
    if (list.empty() || list == "none")
        return fg::fail(fg::errc::unsupported, variable, " names no libraries; see bench/peer/", script);
    for (std::size_t at = 0; at < list.size();) {
        const std::size_t end = std::min(list.find(':', at), list.size());
        if (dlopen(list.substr(at, end - at).c_str(), RTLD_LAZY | RTLD_GLOBAL) == nullptr)
            return fg::fail(fg::errc::io, dlerror());
        at = end + 1;
    }
    return {};
}

/// Points `function` to the loaded function of that name, or `missing` to the name.
template <class Function>
void bind(Function& function, const char* name, const char*& missing) {
    void* const found = dlsym(RTLD_DEFAULT, name);
    if (found == nullptr) missing = name;
    std::memcpy(&function, &found, sizeof found);
}

}  // namespace bench::peer
